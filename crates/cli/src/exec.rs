//! `baton agent exec`: an agent whose work is a command. Each task starts the command once.
//!
//! Owns the agent, its tasks and what the command reads. `child` owns the process. Must not interpret a result: the
//! broker checks it.

mod child;
mod guard;
mod input;

use std::{ffi::OsString, sync::Arc, time::Duration};

use clap::Args;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::input::Input;
use self::{
    child::{End, Run},
    guard::Guard,
};
use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs},
    duration, signals,
    worker::{register, say},
};
use baton_client::{
    Agent, ClientError, HandlerResult, Link, NotTaken, Offer, OwnedTask, Recalled,
    ids::AgentType,
    proto::v1::{self, RejectReason, TaskStatus},
};

/// The least credit of the agent: notices of recalls come beside the offers.
const CREDIT: u32 = 16;
/// The time beyond `--grace` in which the last messages of a stopping agent are sent.
const STOP_SLACK: Duration = Duration::from_secs(5);
/// When an offer comes again that came while all places were taken.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// The progress reports of a command that may be sent at once, and the time that gives another one: 10 a minute.
const REPORTS_AT_ONCE: u32 = 10;
const REPORT_EVERY: Duration = Duration::from_secs(6);
/// The longest reason of a request, in bytes: that of the protocol.
const REASON_MAX: usize = 4096;
/// The largest result of a task, in bytes: that of the protocol.
const RESULT_MAX: usize = 262_144;

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

/// What the handlers of all tasks share.
struct Worker {
    command: Vec<OsString>,
    grace: Duration,
    is_text: bool,
    places: Arc<Semaphore>,
    guard: Guard,
    /// The commands, also those whose handler has ended with its task.
    commands: TaskTracker,
    stop: CancellationToken,
}

pub(super) async fn run(args: ExecArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    child::check_program(&args.command[0])?;
    let identity = args.identity.load()?;
    register(&args.types, args.concurrency, &identity, connection).await?;
    let options = connection.options_of_agent()?;
    let stop = signals::stop_on_signal()?;
    let worker = Arc::new(Worker {
        command: args.command,
        grace: args.grace,
        is_text: args.text,
        places: Arc::new(Semaphore::new(args.concurrency as usize)),
        guard: Guard::start()?,
        commands: TaskTracker::new(),
        stop: stop.clone(),
    });
    let mut builder = Agent::builder(identity.agent.as_str())
        .server(&options.server)
        .key(identity.key.clone())
        .key_id(identity.key_id.as_str())
        .credit(args.concurrency.max(CREDIT))
        .stop_grace(args.grace + STOP_SLACK)
        .without_registration()
        .on_recalled(recalled)
        .on_handoff({
            let worker = Arc::clone(&worker);
            move |offer| Arc::clone(&worker).take(offer)
        });
    if let Some(ca) = options.ca {
        builder = builder.ca(ca);
    }
    if let Some(certificate) = options.certificate {
        builder = builder.certificate(certificate);
    }
    let not_signed_in = |error: ClientError| connection.not_signed_in(error, &identity, args.identity.key());
    let agent = builder.connect().await.map_err(not_signed_in)?;
    say("connected", &json!({"agent": identity.agent.to_string()}));
    let ended = tokio::select! {
        ended = agent.run() => ended,
        () = stop.cancelled() => agent.stop().await,
    };
    // After a failure of the agent its commands end too: no process takes their results.
    stop.cancel();
    worker.commands.close();
    worker.commands.wait().await;
    ended?;
    say("stopped", &json!({}));
    Ok(())
}

async fn recalled(recalled: Recalled) -> HandlerResult {
    say("recalled", &json!({"task": recalled.task_id, "reason": recalled.message}));
    Ok(())
}

impl Worker {
    async fn take(self: Arc<Self>, offer: Offer) -> HandlerResult {
        let stopping = || NotTaken::GivenBack(Duration::ZERO, "the agent stops".to_owned());
        let is_offered = offer.request().is_some();
        let free = Arc::clone(&self.places).try_acquire_owned();
        let place = match (free, is_offered) {
            (Ok(place), _) => place,
            // The card says how many tasks the agent takes. Where an operator has registered another number, the broker
            // asks the next candidate at once.
            (Err(_), true) => {
                let reject = v1::HandoffReject {
                    reason: RejectReason::Overloaded.into(),
                    reason_text: "all places of the agent are taken".to_owned(),
                    retry_after: prost_types::Duration::try_from(AGAIN_AFTER).ok(),
                    ..Default::default()
                };
                return Ok(offer.reject_with(&reject).await?);
            }
            // The task, or its context, is this agent's already.
            (Err(_), false) => tokio::select! {
                place = Arc::clone(&self.places).acquire_owned() => place?,
                () = self.stop.cancelled() => return Err(stopping().into()),
            },
        };
        let link = offer.link().clone();
        let mut input = Input::of(&offer).await?;
        // An accepted offer comes again to the next process of the agent, with its context.
        let takeover = tokio::select! {
            takeover = offer.accept() => takeover?,
            () = self.stop.cancelled() => return Err(stopping().into()),
        };
        input.read_context(&takeover).await?;
        let task = takeover.complete().await?;
        say("started", &json!({"task": task.task_id, "handoff": input.handoff_id, "epoch": task.epoch()}));
        let end = match task.open_handoff_id.as_str() {
            "" => self.work(&task, &input).await,
            _ => End::HandedBack("an earlier process of this agent has begun to give it back".to_owned()),
        };
        // Free before the report: the broker offers the next task as soon as it has the report.
        drop(place);
        self.settle(&link, &task, end, &input).await
    }

    /// Runs the command for the task, and reports its progress.
    async fn work(&self, task: &OwnedTask, input: &Input) -> End {
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
        let running = self.commands.spawn(run.until_the_end(self.guard.clone()));
        let _ends_with_its_handler = cancel.drop_guard();
        let (end, ()) = tokio::join!(running, report_progress(task, lines));
        end.unwrap_or_else(|error| End::Failed(format!("the command was lost: {error}")))
    }

    /// Reports the end of the command as that of its task.
    async fn settle(&self, link: &Link, task: &OwnedTask, end: End, input: &Input) -> HandlerResult {
        let result = match end {
            // The task stays this agent's, for its next process.
            End::Stopped => {
                say("left", &json!({"task": task.task_id}));
                return Ok(());
            }
            End::Done(output) => result_of(&output),
            End::Failed(words) => Err(words),
            End::HandedBack(words) => match self.hand_back(link, task, &words, input).await? {
                Some(problem) => Err(problem),
                None => return Ok(()),
            },
        };
        match result {
            Ok(result_json) => {
                let status = TaskStatus::Completed.into();
                task.report(&v1::TaskStatusUpdate { status, result_json, ..Default::default() }).await?;
                say("completed", &json!({"task": task.task_id}));
            }
            Err(words) => {
                task.fail(&words).await?;
                say("failed", &json!({"task": task.task_id, "problem": words}));
            }
        }
        Ok(())
    }

    /// Gives the task back: a loan ends as CANCELED, and a task that was given for good is handed to its former owner with
    /// the context that came with it. Returns the problem if the former owner does not take it.
    async fn hand_back(
        &self,
        link: &Link,
        task: &OwnedTask,
        words: &str,
        input: &Input,
    ) -> Result<Option<String>, ClientError> {
        let told = json!({"task": task.task_id, "to": input.from, "problem": words});
        if is_lent(task, link).await? {
            task.cancel(words, true).await?;
            say("handed_back", &told);
            return Ok(None);
        }
        let request = input.request_back(&words[..words.floor_char_boundary(REASON_MAX)]);
        let handing = async {
            match task.open_handoff_id.as_str() {
                "" => task.hand_over(&input.from, &request, input.whole.clone()).await,
                handoff => link.resume_hand_over(handoff, input.whole.clone()).await,
            }
        };
        tokio::select! {
            handed = handing => Ok(match handed {
                Ok(_) => {
                    say("handed_back", &told);
                    None
                }
                Err(error) => Some(format!("{words}; {} does not take it back: {error}", input.from)),
            }),
            // The handoff goes on at the broker.
            () = self.stop.cancelled() => {
                say("left", &json!({"task": task.task_id}));
                Ok(None)
            }
        }
    }
}

/// Reports that the work has begun, and then the latest line of the command, until its standard error ends.
async fn report_progress(task: &OwnedTask, mut lines: watch::Receiver<String>) {
    let mut left = REPORTS_AT_ONCE;
    let mut turns = tokio::time::interval(REPORT_EVERY);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let details = lines.borrow_and_update().clone();
        let update = v1::TaskStatusUpdate { status: TaskStatus::InProgress.into(), details, ..Default::default() };
        // A refusal means that the task has moved on. The recall ends the command.
        if let Err(error) = task.report(&update).await {
            tracing::debug!(task_id = %task.task_id, %error, "progress is not reported");
        }
        left -= 1;
        let closed = closed(lines.clone());
        tokio::pin!(closed);
        loop {
            tokio::select! {
                changed = lines.changed(), if left > 0 => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                () = &mut closed, if left == 0 => return,
                _ = turns.tick() => left = (left + 1).min(REPORTS_AT_ONCE),
            }
        }
    }
}

/// Completes when the command has ended.
async fn closed(mut lines: watch::Receiver<String>) {
    while lines.changed().await.is_ok() {}
}

/// Whether this agent has the task as a loan, so that a final status returns it.
async fn is_lent(task: &OwnedTask, link: &Link) -> Result<bool, ClientError> {
    let record = link.get_task(&task.task_id).await?;
    let got = record.hops.last().map(|hop| hop.handoff_id.as_str());
    Ok(record.loans.last().map(|loan| loan.handoff_id.as_str()) == got && got.is_some())
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
