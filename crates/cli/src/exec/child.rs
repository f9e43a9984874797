//! One run of a command: its process group, its input and its outputs.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, Command},
    sync::watch,
    time,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::guard::Guard;
use crate::Failure;

/// The longest line of progress, in bytes. The rest of a line is dropped.
const LINE_MAX: usize = 1024;
/// The last lines of standard error that explain a failure: their number.
const LAST_LINES: usize = 20;
/// How long the outputs are read after the end of the command and its group. Only a process that has left the group can
/// hold them open.
const DRAIN: Duration = Duration::from_secs(2);

/// A run to make.
pub(super) struct Run {
    pub(super) command: Vec<OsString>,
    pub(super) environment: [(&'static str, String); 2],
    /// What the command reads from standard input.
    pub(super) input: String,
    /// The most bytes of standard output. The command ends when it prints more.
    pub(super) output_max: usize,
    /// The time from SIGTERM to SIGKILL.
    pub(super) grace: Duration,
    /// Ends the command.
    pub(super) cancel: CancellationToken,
    /// Gets each line of standard error, without control characters.
    pub(super) progress: watch::Sender<String>,
}

/// The exit code with which a command gives its task back: EX_TEMPFAIL of sysexits.h.
const HANDS_BACK: i32 = 75;

/// How a run has ended.
#[derive(Debug)]
pub(super) enum End {
    /// With exit code 0 and this standard output.
    Done(Vec<u8>),
    /// For the reason in these words.
    Failed(String),
    /// With the exit code [`HANDS_BACK`], for the reason in these words.
    HandedBack(String),
    /// It was cancelled.
    Stopped,
}

/// Checks that the program can be found.
pub(super) fn check_program(program: &OsStr) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt as _;
    let is_program = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let path = Path::new(program);
    let is_found = match path.components().count() > 1 {
        true => is_program(path),
        false => std::env::var_os("PATH")
            .is_some_and(|folders| std::env::split_paths(&folders).any(|folder| is_program(&folder.join(path)))),
    };
    match is_found {
        true => Ok(()),
        false => Err(Failure::file(path, "there is no such program")),
    }
}

impl Run {
    pub(super) async fn until_the_end(self, guard: Guard) -> End {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).envs(self.environment.clone());
        // A group of its own: signals reach what the command starts, and ctrl-C in the terminal is for the agent alone.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return End::Failed(format!("failed to start {}: {error}", self.command[0].display())),
        };
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(group) = group {
            guard.add(group);
        }
        let end = self.attend(&mut child, group).await;
        if let Some(group) = group {
            guard.remove(group);
        }
        end
    }

    async fn attend(self, child: &mut Child, group: Option<Pid>) -> End {
        let too_large = CancellationToken::new();
        let (input, stdin) = (self.input, child.stdin.take());
        let _feed = AbortOnDropHandle::new(tokio::spawn(async move {
            if let Some(mut stdin) = stdin {
                // A command need not read its input.
                drop(stdin.write_all(input.as_bytes()).await);
            }
        }));
        let output = read_output(child.stdout.take(), self.output_max, too_large.clone());
        let mut output = AbortOnDropHandle::new(tokio::spawn(output));
        let mut lines = AbortOnDropHandle::new(tokio::spawn(read_lines(child.stderr.take(), self.progress)));
        let status = tokio::select! {
            biased;
            status = child.wait() => Some(status),
            () = self.cancel.cancelled() => None,
            () = too_large.cancelled() => None,
        };
        let was_stopped = status.is_none() && !too_large.is_cancelled();
        let status = match status {
            Some(status) => status,
            None => end(child, group, self.grace).await,
        };
        // What the command has left behind in its group.
        signal(group, Signal::KILL);
        let drained = time::timeout(DRAIN, async { tokio::join!(&mut output, &mut lines) }).await;
        // The output of a command after SIGTERM is no result.
        if was_stopped {
            return End::Stopped;
        }
        if too_large.is_cancelled() {
            return End::Failed(super::too_large());
        }
        let Ok((Ok(output), Ok(last))) = drained else {
            return End::Failed("a process that the command has left behind holds its outputs open".to_owned());
        };
        match status {
            Ok(status) if status.success() => End::Done(output),
            Ok(status) if status.code() == Some(HANDS_BACK) => End::HandedBack(words_of(status, &last)),
            Ok(status) => End::Failed(words_of(status, &last)),
            Err(error) => End::Failed(format!("failed to wait for the command: {error}")),
        }
    }
}

/// Ends the command and all of its group.
async fn end(child: &mut Child, group: Option<Pid>, grace: Duration) -> std::io::Result<ExitStatus> {
    signal(group, Signal::TERM);
    if let Ok(status) = time::timeout(grace, child.wait()).await {
        return status;
    }
    signal(group, Signal::KILL);
    child.wait().await
}

fn signal(group: Option<Pid>, signal: Signal) {
    // No process is left in a group that has ended.
    let _ = group.map(|group| kill_process_group(group, signal));
}

/// Reads to the end, or cancels `too_large` at the limit.
async fn read_output(from: Option<impl AsyncRead + Unpin>, max: usize, too_large: CancellationToken) -> Vec<u8> {
    let mut read = Vec::new();
    let Some(from) = from else { return read };
    // What a broken pipe has given until then is the output.
    drop(from.take(max as u64 + 1).read_to_end(&mut read).await);
    if read.len() > max {
        too_large.cancel();
    }
    read
}

/// Passes each line on. Returns the last ones.
async fn read_lines(from: Option<impl AsyncRead + Unpin>, progress: watch::Sender<String>) -> VecDeque<String> {
    let mut last = VecDeque::new();
    let Some(from) = from else { return last };
    let mut from = BufReader::new(from);
    while let Some(line) = next_line(&mut from).await {
        let line = clean(&line);
        if line.is_empty() {
            continue;
        }
        last.push_back(line.clone());
        if last.len() > LAST_LINES {
            last.pop_front();
        }
        progress.send_replace(line);
    }
    last
}

/// The next line, at most [`LINE_MAX`] bytes of it; `None` at the end.
async fn next_line(from: &mut (impl AsyncBufRead + Unpin)) -> Option<Vec<u8>> {
    let (mut line, mut is_begun) = (Vec::new(), false);
    loop {
        let read = from.fill_buf().await.unwrap_or_default();
        if read.is_empty() {
            return is_begun.then_some(line);
        }
        is_begun = true;
        let end = read.iter().position(|byte| *byte == b'\n');
        let part = &read[..end.unwrap_or(read.len())];
        line.extend_from_slice(&part[..part.len().min(LINE_MAX.saturating_sub(line.len()))]);
        let used = end.map_or(read.len(), |end| end + 1);
        from.consume(used);
        if end.is_some() {
            return Some(line);
        }
    }
}

/// The line as text, without what steers a terminal.
fn clean(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut clean = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            // An escape sequence, as colours are: to its last letter.
            '\u{1b}' => drop(letters.find(|letter| letter.is_ascii_alphabetic())),
            _ if letter.is_control() => clean.push(' '),
            _ => clean.push(letter),
        }
    }
    clean.trim().to_owned()
}

/// Why the command has failed, with its last words.
fn words_of(status: ExitStatus, last: &VecDeque<String>) -> String {
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("the command ended with exit code {code}"),
        (None, Some(signal)) => format!("the command was ended by signal {signal}"),
        (None, None) => "the command failed".to_owned(),
    };
    match last.is_empty() {
        true => how,
        false => format!("{how}: {}", last.iter().map(String::as_str).collect::<Vec<_>>().join("\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_of_any_length_is_cut_and_cleaned() {
        let text = format!("\u{1b}[32mone\u{1b}[0m\ttwo\r\n\n{}\nlast", "x".repeat(10_000));
        let (progress, lines) = watch::channel(String::new());
        let last = read_lines(Some(text.as_bytes()), progress).await;
        assert_eq!(last, ["one two", &"x".repeat(LINE_MAX), "last"]);
        assert_eq!(*lines.borrow(), "last");
    }

    #[test]
    fn a_failure_has_the_last_words_of_the_command() {
        let words = |status| words_of(ExitStatus::from_raw(status), &VecDeque::from(["no paper".to_owned()]));
        assert_eq!(words(3 << 8), "the command ended with exit code 3: no paper");
        assert_eq!(words(9), "the command was ended by signal 9: no paper");
    }
}
