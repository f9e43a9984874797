//! Ends the commands of an agent that was killed: its next process starts them again, and two must not run at a time.

use std::{
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex},
};

use rustix::process::Pid;

/// Reads the process groups that begin (+) and end (-). At the end of its input the agent is gone, and the groups
/// without an end are killed. A shell, because it must outlive the agent without being a second program of ours.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
all=
while read -r sign group; do
    if [ "$sign" = + ]; then
        all="$all $group"
    else
        rest=
        for other in $all; do [ "$other" = "$group" ] || rest="$rest $other"; done
        all=$rest
    fi
done
for group in $all; do kill -s KILL -- "-$group" 2>/dev/null; done
"#;

/// The process that outlives the agent. It ends with the last clone.
#[derive(Clone)]
pub(super) struct Guard(Arc<Mutex<Running>>);

struct Running {
    shell: Child,
    /// `None`: dropped.
    input: Option<ChildStdin>,
}

impl Guard {
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "baton agent exec: guard"]);
        // A group of its own: ctrl-C in the terminal is for the agent.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut shell = command.spawn()?;
        let input = shell.stdin.take();
        Ok(Self(Arc::new(Mutex::new(Running { shell, input }))))
    }

    pub(super) fn add(&self, group: Pid) {
        self.tell('+', group);
    }

    pub(super) fn remove(&self, group: Pid) {
        self.tell('-', group);
    }

    fn tell(&self, sign: char, group: Pid) {
        let mut running = self.0.lock().expect("no holder panics");
        let line = format!("{sign} {}\n", group.as_raw_nonzero());
        let told = running.input.as_mut().map(|input| input.write_all(line.as_bytes()));
        if let Some(Err(error)) = told {
            tracing::warn!(%error, "commands would outlive this agent if it were killed");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.input = None;
        drop(self.shell.wait());
    }
}
