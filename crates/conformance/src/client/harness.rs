//! The client program as a child process: commands on its stdin, events on its stdout. `docs/conformance-client.md`
//! specifies the protocol.

use std::{
    collections::VecDeque,
    io::{self, BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The version of the harness protocol.
pub(super) const PROTOCOL: u64 = 1;

/// The number of stderr lines retained for the report of a failure.
const LINES_KEPT: usize = 12;

/// A running client program.
pub(super) struct Harness {
    /// Cancelled when the program's stdout ends.
    pub exited: CancellationToken,
    child: Child,
    stdin: Option<ChildStdin>,
    events: mpsc::UnboundedReceiver<Value>,
    backlog: Vec<Value>,
    errors: Arc<Mutex<VecDeque<String>>>,
    next_id: u64,
}

impl Harness {
    /// Starts the program by a shell.
    pub(crate) fn start(command: &str) -> io::Result<Self> {
        let mut child = Command::new("sh")
            // `exec` replaces the shell, so that the kill at the end reaches the program itself.
            .args(["-c", &format!("exec {command}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::Error::other("its pipes are not there"));
        };
        let (sender, events) = mpsc::unbounded_channel();
        let exited = CancellationToken::new();
        let has_exited = exited.clone().drop_guard();
        thread::spawn(move || read_events(stdout, &sender, has_exited));
        let errors = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&errors);
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut kept = kept.lock().expect("no holder panics");
                kept.push_back(line);
                if kept.len() > LINES_KEPT {
                    kept.pop_front();
                }
            }
        });
        Ok(Self { exited, child, stdin: Some(stdin), events, backlog: Vec::new(), errors, next_id: 1 })
    }

    /// Sends a command. Returns the id that its answer carries.
    pub(crate) fn tell(&mut self, mut command: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        command["id"] = id.into();
        if let Some(stdin) = &mut self.stdin {
            // A write fails only after the program has exited. Every case detects that by its stdout.
            let _ = writeln!(stdin, "{command}");
        }
        id
    }

    /// Removes the first event that `pick` selects. `None` if stdout ends first.
    pub(crate) async fn pick(&mut self, mut pick: impl FnMut(&Value) -> bool) -> Option<Value> {
        if let Some(place) = self.backlog.iter().position(&mut pick) {
            return Some(self.backlog.remove(place));
        }
        while let Some(event) = self.events.recv().await {
            if pick(&event) {
                return Some(event);
            }
            self.backlog.push(event);
        }
        None
    }

    /// Whether an event that `pick` selects has arrived.
    pub(crate) fn has(&mut self, mut pick: impl FnMut(&Value) -> bool) -> bool {
        while let Ok(event) = self.events.try_recv() {
            self.backlog.push(event);
        }
        self.backlog.iter().any(&mut pick)
    }

    /// The unpicked events, and the last lines of stderr.
    pub(crate) fn unread(&self) -> Vec<String> {
        let said = self.backlog.iter().map(|event| format!("event {event}"));
        let errors = self.errors.lock().expect("no holder panics");
        let errors: Vec<String> = errors.iter().map(|line| format!("stderr {line}")).collect();
        said.chain(errors).collect()
    }

    /// Closes the program's stdin.
    pub(crate) fn end_stdin(&mut self) {
        self.stdin = None;
    }

    /// Waits until the program's stdout ends. Returns its exit code; `None` if a signal ended it.
    pub(crate) async fn exit_code(&mut self) -> Option<i32> {
        self.exited.cancelled().await;
        self.child.wait().ok().and_then(|status| status.code())
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        let _ = self.child.kill(); // fails if it has already exited
        let _ = self.child.wait();
    }
}

fn read_events(stdout: ChildStdout, events: &mpsc::UnboundedSender<Value>, _has_exited: DropGuard) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let event = serde_json::from_str(&line).ok().filter(Value::is_object);
        let event = event.unwrap_or_else(|| json!({"event": "not an event", "line": line}));
        if events.send(event).is_err() {
            return;
        }
    }
}
