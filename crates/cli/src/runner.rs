//! An agent that does one kind of work on each of its tasks: `baton agent exec` and `baton a2a connect`.
//!
//! Owns the agent, its places, and the reports of a task. [`Work`] does the work. Must not know the kind of work.

mod input;

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::{
    sync::{Semaphore, SetOnce, watch},
    time,
};
use tokio_util::sync::CancellationToken;

pub(crate) use self::input::Input;
use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs},
    worker::say,
};
use baton_client::{
    Agent, ClientError, HandlerResult, Identity, Link, NotTaken, Offer, OwnedTask, Recalled,
    proto::v1::{self, RejectReason, TaskStatus},
};

/// The least credit of the agent: notices of recalls come beside the offers.
const CREDIT: u32 = 16;
/// When an offer comes again that came while all places were taken.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// The progress reports of a task that may be sent at once, and the time that gives another one: 10 a minute.
const REPORTS_AT_ONCE: u32 = 10;
const REPORT_EVERY: Duration = Duration::from_secs(6);
/// The longest reason of a request, in bytes: that of the protocol.
const REASON_MAX: usize = 4096;
/// The largest result of a task, in bytes: that of the protocol.
pub(crate) const RESULT_MAX: usize = 262_144;
/// The pause before what did not reach the broker is sent again.
const SEND_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// How the work on a task has ended.
#[derive(Debug)]
pub(crate) enum End {
    /// With this result: a text of JSON, empty for none.
    Done(String),
    /// For the reason in these words.
    Failed(String),
    /// The task goes back to the agent that it came from, for the reason in these words.
    HandedBack(String),
    /// The agent stops. The task stays the agent's, for its next process.
    Stopped,
}

/// The work on each task.
pub(crate) trait Work: Send + Sync + 'static {
    /// The answer to an offer that the work cannot do. `None`: it can.
    fn refusal(&self, _request: &v1::HandoffRequest) -> Option<v1::HandoffReject> {
        None
    }

    /// Why the work cannot use the context that has come: the handoff fails, and its sender keeps the task.
    fn problem(&self, _input: &Input) -> Option<String> {
        None
    }

    /// Does the work. The future is dropped where it waits if the task is taken from the agent.
    fn work(&self, link: &Link, task: &OwnedTask, input: &Input) -> impl Future<Output = End> + Send;

    /// Ends what the work has begun elsewhere for a task that was taken from the agent, also by an earlier process.
    fn recalled(&self, _link: &Link, _recalled: &Recalled) -> impl Future<Output = HandlerResult> + Send {
        async { Ok(()) }
    }

    /// Waits for what outlives [`Self::work`], after the agent has ended.
    fn ended(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// An agent to run.
pub(crate) struct Settings<'a> {
    pub(crate) identity: &'a IdentityArgs,
    pub(crate) connection: &'a ConnectionArgs,
    /// The tasks that the agent works on at a time.
    pub(crate) concurrency: u32,
    /// How long the work may go on after the agent stops.
    pub(crate) stop_grace: Duration,
    pub(crate) stop: CancellationToken,
}

/// What the handlers of all tasks share.
struct Runner<W> {
    work: Arc<W>,
    places: Arc<Semaphore>,
    stop: CancellationToken,
    /// Set once the agent is connected.
    link: SetOnce<Link>,
}

/// Runs the agent, which is registered, until `settings.stop` or a failure.
pub(crate) async fn run<W: Work>(work: Arc<W>, identity: &Identity, settings: Settings<'_>) -> Result<(), Failure> {
    let Settings { identity: args, connection, concurrency, stop_grace, stop } = settings;
    let options = connection.options_of_agent()?;
    let runner = Arc::new(Runner {
        work: Arc::clone(&work),
        places: Arc::new(Semaphore::new(concurrency as usize)),
        stop: stop.clone(),
        link: SetOnce::new(),
    });
    let mut builder = Agent::builder(identity.agent.as_str())
        .server(&options.server)
        .key(identity.key.clone())
        .key_id(identity.key_id.as_str())
        .credit(concurrency.max(CREDIT))
        .stop_grace(stop_grace)
        .without_registration()
        .on_recalled({
            let runner = Arc::clone(&runner);
            move |recalled| Arc::clone(&runner).recalled(recalled)
        })
        .on_handoff({
            let runner = Arc::clone(&runner);
            move |offer| Arc::clone(&runner).take(offer)
        });
    if let Some(ca) = options.ca {
        builder = builder.ca(ca);
    }
    if let Some(certificate) = options.certificate {
        builder = builder.certificate(certificate);
    }
    let not_signed_in = |error: ClientError| connection.not_signed_in(error, identity, args.key());
    let agent = builder.connect().await.map_err(not_signed_in)?;
    // The only call: no second value can be set.
    drop(runner.link.set(agent.link().clone()));
    say("connected", &json!({"agent": identity.agent.to_string()}));
    let ended = tokio::select! {
        ended = agent.run() => ended,
        () = stop.cancelled() => agent.stop().await,
    };
    // After a failure of the agent its work ends too: no process takes the results.
    stop.cancel();
    work.ended().await;
    ended?;
    say("stopped", &json!({}));
    Ok(())
}

impl<W: Work> Runner<W> {
    async fn recalled(self: Arc<Self>, recalled: Recalled) -> HandlerResult {
        say("recalled", &json!({"task": recalled.task_id, "reason": recalled.message}));
        self.work.recalled(self.link.wait().await, &recalled).await
    }

    async fn take(self: Arc<Self>, offer: Offer) -> HandlerResult {
        let stopping = || NotTaken::GivenBack(Duration::ZERO, "the agent stops".to_owned());
        if let Some(reject) = offer.request().and_then(|request| self.work.refusal(request)) {
            return Ok(offer.reject_with(&reject).await?);
        }
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
        if let Some(problem) = self.work.problem(&input) {
            say("refused", &json!({"task": takeover.task_id(), "problem": problem}));
            return Ok(takeover.fail(&problem).await?);
        }
        let task = takeover.complete().await?;
        say("started", &json!({"task": task.task_id, "handoff": input.handoff_id, "epoch": task.epoch()}));
        let end = match task.open_handoff_id.as_str() {
            "" => self.work.work(&link, &task, &input).await,
            _ => End::HandedBack("an earlier process of this agent has begun to give it back".to_owned()),
        };
        // Free before the report: the broker offers the next task as soon as it has the report.
        drop(place);
        self.settle(&link, &task, end, &input).await
    }

    /// Reports the end of the work as that of its task.
    async fn settle(&self, link: &Link, task: &OwnedTask, end: End, input: &Input) -> HandlerResult {
        let result = match end {
            End::Stopped => {
                say("left", &json!({"task": task.task_id}));
                return Ok(());
            }
            End::Done(result_json) => Ok(result_json),
            End::Failed(words) => Err(words),
            End::HandedBack(words) => match self.hand_back(link, task, &words, input).await? {
                Some(problem) => Err(problem),
                None => return Ok(()),
            },
        };
        match result {
            Ok(result_json) => {
                let status = TaskStatus::Completed.into();
                insist(task, &v1::TaskStatusUpdate { status, result_json, ..Default::default() }).await?;
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

/// Reports until the broker has the report or refuses it: the end of a task does not come twice.
pub(crate) async fn insist(task: &OwnedTask, report: &v1::TaskStatusUpdate) -> Result<(), ClientError> {
    loop {
        match task.report(report).await {
            Err(error) if error.is_passing() => time::sleep(SEND_AGAIN_AFTER).await,
            reported => return reported.map(drop),
        }
    }
}

/// Reports the progress of one task, and not too often.
pub(crate) struct Reporter<'a> {
    task: &'a OwnedTask,
    left: u32,
    turns: time::Interval,
}

impl<'a> Reporter<'a> {
    pub(crate) fn of(task: &'a OwnedTask) -> Self {
        let mut turns = time::interval(REPORT_EVERY);
        turns.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        Self { task, left: REPORTS_AT_ONCE, turns }
    }

    /// Reports these details.
    pub(crate) async fn say(&mut self, details: String) {
        let update = v1::TaskStatusUpdate { status: TaskStatus::InProgress.into(), details, ..Default::default() };
        // A refusal means that the task has moved on. The recall ends the work.
        if let Err(error) = self.task.report(&update).await {
            tracing::debug!(task_id = %self.task.task_id, %error, "progress is not reported");
        }
        self.left = self.left.saturating_sub(1);
    }

    /// Reports the latest line whenever a new one has come, until the lines end.
    pub(crate) async fn pass_on(&mut self, mut lines: watch::Receiver<String>) {
        loop {
            let closed = closed(lines.clone());
            tokio::pin!(closed);
            loop {
                tokio::select! {
                    changed = lines.changed(), if self.left > 0 => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    () = &mut closed, if self.left == 0 => return,
                    _ = self.turns.tick() => self.left = (self.left + 1).min(REPORTS_AT_ONCE),
                }
            }
            let details = lines.borrow_and_update().clone();
            self.say(details).await;
        }
    }
}

/// Completes when no more lines come.
async fn closed(mut lines: watch::Receiver<String>) {
    while lines.changed().await.is_ok() {}
}

/// Whether this agent has the task as a loan, so that a final status returns it.
async fn is_lent(task: &OwnedTask, link: &Link) -> Result<bool, ClientError> {
    let record = link.get_task(&task.task_id).await?;
    let got = record.hops.last().map(|hop| hop.handoff_id.as_str());
    Ok(record.loans.last().map(|loan| loan.handoff_id.as_str()) == got && got.is_some())
}
