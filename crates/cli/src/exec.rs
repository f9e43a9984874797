//! `baton agent exec`: an agent whose work is a command. Each task starts the command once.
//!
//! Owns what the command reads and prints. `child` owns the process, and the runner the agent with its tasks. Must not
//! interpret a result: the broker checks it.

mod child;
mod guard;

use std::{ffi::OsString, sync::Arc, time::Duration};

use clap::Args;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{child::Run, guard::Guard};
use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs},
    duration,
    runner::{self, End, Input, RESULT_MAX, Reporter, Settings, Work},
    signals,
    worker::register,
};
use baton_client::{Link, OwnedTask, ids::AgentType};

/// The time beyond `--grace` in which the last messages of a stopping agent are sent.
const STOP_SLACK: Duration = Duration::from_secs(5);

/// Run an agent that starts a command for each task.
///
/// The command reads the task from standard input: one JSON object with task_id, handoff_id, from, task_type, summary,
/// resumed and context, which has each section by its name. BATON_TASK_ID and BATON_HANDOFF_ID are in its environment.
/// What it prints on standard output is the result: a JSON object as it is, any other text as {"response": TEXT}. Lines
/// on standard error are progress, at most 10 a minute. Exit code 0 completes the task; 75 gives it back to the agent that it
/// came from; any other fails it. The last lines of standard error are the words of both.
///
/// If the task is taken from the agent, the command and all processes that it has started get SIGTERM, and SIGKILL after
/// --grace. On SIGINT or SIGTERM the agent takes no more tasks, ends its commands in the same way, and exits with code
/// 0. Their tasks stay the agent's: the next `baton agent exec` of the agent starts the command for them again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton agent exec --id rev --key rev.pem --type reviewer -- ./review.sh
  baton agent exec --id rev --key rev.pem --type reviewer --concurrency 4 --text -- claude -p 'Review this change.'
  baton agent exec --id rev --key rev.pem --text -- codex exec -")]
pub(super) struct ExecArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// A type to register under. May be repeated.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<AgentType>,
    /// The number of commands that run at a time. Further tasks wait at the broker.
    #[arg(long, default_value_t = 1, value_name = "TASKS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    concurrency: u32,
    /// The time from SIGTERM to SIGKILL.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = duration::parse)]
    grace: Duration,
    /// Give the command the summary and the context as text, in place of JSON.
    #[arg(long)]
    text: bool,
    /// The command and its arguments. No shell reads them.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What the commands of all tasks share.
struct Commands {
    command: Vec<OsString>,
    grace: Duration,
    is_text: bool,
    guard: Guard,
    /// The commands, also those whose handler has ended with its task.
    running: TaskTracker,
    stop: CancellationToken,
}

pub(super) async fn run(args: ExecArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    child::check_program(&args.command[0])?;
    let identity = args.identity.load()?;
    register(&args.types, args.concurrency, &identity, connection).await?;
    let stop = signals::stop_on_signal()?;
    let commands = Commands {
        command: args.command,
        grace: args.grace,
        is_text: args.text,
        guard: Guard::start()?,
        running: TaskTracker::new(),
        stop: stop.clone(),
    };
    let settings = Settings {
        identity: &args.identity,
        connection,
        concurrency: args.concurrency,
        stop_grace: args.grace + STOP_SLACK,
        stop,
    };
    runner::run(Arc::new(commands), &identity, settings).await
}

impl Work for Commands {
    /// Runs the command for the task, and reports its progress.
    async fn work(&self, _: &Link, task: &OwnedTask, input: &Input) -> End {
        let (progress, lines) = watch::channel(String::new());
        let cancel = self.stop.child_token();
        let run = Run {
            command: self.command.clone(),
            environment: input.environment(),
            input: if self.is_text { input.text() } else { input.json() },
            output_max: RESULT_MAX,
            grace: self.grace,
            cancel: cancel.clone(),
            progress,
        };
        // A task of its own: the handler is dropped where it waits if the task is recalled, and the command has its grace
        // period then.
        let running = self.running.spawn(run.until_the_end(self.guard.clone()));
        let _ends_with_its_handler = cancel.drop_guard();
        let reporting = async {
            let mut reporter = Reporter::of(task);
            reporter.say(String::new()).await;
            reporter.pass_on(lines).await;
        };
        let (end, ()) = tokio::join!(running, reporting);
        match end.unwrap_or_else(|error| child::End::Failed(format!("the command was lost: {error}"))) {
            child::End::Done(output) => result_of(&output).map_or_else(End::Failed, End::Done),
            child::End::Failed(words) => End::Failed(words),
            child::End::HandedBack(words) => End::HandedBack(words),
            child::End::Stopped => End::Stopped,
        }
    }

    async fn ended(&self) {
        self.running.close();
        self.running.wait().await;
    }
}

/// The result that an output stands for; empty for an empty output. `Err`: the reason for having none.
fn result_of(output: &[u8]) -> Result<String, String> {
    let text = String::from_utf8_lossy(output);
    let text = text.trim();
    let is_object = serde_json::from_str::<serde_json::Map<String, Value>>(text).is_ok();
    let result = match (text.is_empty(), is_object) {
        (true, _) => String::new(),
        // As it was printed: each digit stays.
        (false, true) => text.to_owned(),
        (false, false) => json!({ "response": text }).to_string(),
    };
    match result.len() > RESULT_MAX {
        true => Err(too_large()),
        false => Ok(result),
    }
}

fn too_large() -> String {
    format!(
        "the command printed a result of more than {RESULT_MAX} bytes; store it elsewhere, and print a reference to it"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_the_result_and_any_other_text_a_response() {
        let result = |output: &str| result_of(output.as_bytes()).unwrap();
        assert_eq!(result(" {\"sum\": 9007199254740993.0}\n"), "{\"sum\": 9007199254740993.0}", "as it was printed");
        assert_eq!(result("looks good\n"), r#"{"response":"looks good"}"#);
        assert_eq!(result("[1, 2]"), r#"{"response":"[1, 2]"}"#);
        assert_eq!(result(" \n"), "");
        assert_eq!(result_of(b"\xff").unwrap(), "{\"response\":\"\u{fffd}\"}");
        let large = "\"".repeat(RESULT_MAX / 2 + 1);
        assert!(result_of(large.as_bytes()).unwrap_err().contains("262144"), "it grows as JSON");
    }
}
