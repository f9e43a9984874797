//! The agent: reports the library's behaviour as events of the harness protocol.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use baton_client::{
    About, Bid, BidEnd, ClientError, Delivered, HandOverError, Handler, Link, NotTaken, OwnedTask, Recalled,
    context_of, context_of_sections,
};
use baton_client::{
    ids::SystemIds,
    proto::v1::{self, MessageType},
    time::SystemClock,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    account, bidding, done, failed, failed_as, options, say,
    wrong::{self, Wrong},
};

/// The configured behaviour of handlers, and the state that they share.
pub(super) struct Manners {
    how: Mutex<HashMap<String, String>>,
    /// The number of times that waiting handlers were released.
    released: watch::Sender<u64>,
    /// The handoffs that this process has accepted.
    accepted: Mutex<HashSet<String>>,
    wrong: Option<Wrong>,
}

impl Manners {
    pub(crate) fn new(wrong: Option<Wrong>) -> Arc<Self> {
        let how = Mutex::default();
        Arc::new(Self { how, released: watch::Sender::new(0), accepted: Mutex::default(), wrong })
    }

    pub(crate) fn set(&self, command: &Value) {
        let text = |name: &str| command[name].as_str().unwrap_or_default().to_owned();
        let mut how = self.how.lock().expect("no holder panics");
        how.insert(text("type"), text("as"));
        how.insert("bytes".to_owned(), command["bytes"].to_string());
        drop(how);
        done(command, json!({}));
    }

    pub(crate) fn release(&self, command: &Value) {
        self.released.send_modify(|count| *count += 1);
        done(command, json!({}));
    }

    /// The configured behaviour for this message type; empty for the default.
    fn how(&self, kind: &str) -> String {
        self.how.lock().expect("no holder panics").get(kind).cloned().unwrap_or_default()
    }

    /// Acts on a task that was taken over as the last `handle` says.
    async fn work_on(&self, task: OwnedTask) -> Result<(), NotTaken> {
        let done = match self.how("HandoffRequest").as_str() {
            "fail" => Err(NotTaken::Failure("told to fail".to_owned())),
            "finish" => task.finish(self.result()).await.map(drop).map_err(NotTaken::from),
            "work" => {
                // The work goes on after this handler: the notice of a recall waits for the context's ack.
                let recalled = task.recalled();
                tokio::spawn(async move {
                    say(&json!({"event": "stopped", "task_id": recalled.await.task_id}));
                    drop(task);
                });
                Ok(())
            }
            _ => Ok(()),
        };
        if self.is_wrong(Wrong::SwallowsFailures) { Ok(()) } else { done }
    }

    /// The result of the last `handle`.
    fn result(&self) -> Option<Value> {
        let bytes = self.how("bytes").parse().unwrap_or_default();
        Some(json!({"text": "x".repeat(bytes)}))
    }

    fn is_wrong(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    fn accepted(&self) -> MutexGuard<'_, HashSet<String>> {
        self.accepted.lock().expect("no holder panics")
    }

    /// Reports the handler call, and acts as configured for the message type. Returns true if the normal handling must
    /// follow.
    pub(crate) async fn obey(&self, delivered: &Delivered) -> Result<bool, NotTaken> {
        let kind = kind_name(delivered.kind());
        // Subscribes before the report: the suite may release the handler as soon as it reads the report.
        let mut released = self.released.subscribe();
        let how = self.how(&kind);
        say_handling(delivered, &kind);
        match how.as_str() {
            "throw" if self.is_wrong(Wrong::AcksFailures) => Ok(false),
            "throw" => Err(NotTaken::Failure("told to throw".to_owned())),
            "poison" if self.is_wrong(Wrong::ForgetsPoison) => Err(NotTaken::Failure("poison".to_owned())),
            "poison" => Err(NotTaken::Poison("told that it is poison".to_owned())),
            "later" if self.is_wrong(Wrong::DropsDelays) => Err(NotTaken::Failure("later".to_owned())),
            "later" => Err(NotTaken::Later(Duration::from_secs(7), "told to ask for it later".to_owned())),
            "wait" if self.is_wrong(Wrong::AcksEarly) => Ok(false),
            "wait" => {
                let _ = released.changed().await; // the sender lives in the same object
                Ok(false)
            }
            "reject" => Ok(false),
            _ => Ok(true),
        }
    }
}

/// Reports that a handler has received the message.
fn say_handling(delivered: &Delivered, kind: &str) {
    let envelope = &delivered.envelope;
    say(&json!({
        "event": "handling",
        "type": kind,
        "message_id": envelope.message_id,
        "sender_id": envelope.sender_id,
        "task_id": envelope.task_id,
        "handoff_id": delivered.handoff_id(),
        "attempt": delivered.delivery.attempt,
        "winner_id": delivered.payload::<v1::NegotiationClosed>().winner_id,
    }));
}

/// The name of the payload, for example `HandoffRequest`.
fn kind_name(kind: MessageType) -> String {
    let name = kind.as_str_name().trim_start_matches("MESSAGE_TYPE_");
    let capitalised = |word: &str| word[..1].to_owned() + &word[1..].to_lowercase();
    name.split('_').map(capitalised).collect()
}

/// The handler of the agent's mail.
struct Mail {
    manners: Arc<Manners>,
    /// The sections that the context provider returns; `None` without a provider.
    context: Option<Vec<v1::ContextSection>>,
}

impl Handler for Mail {
    async fn handle(&self, link: Link, delivered: Delivered) -> Result<(), NotTaken> {
        let manners = &self.manners;
        let goes_on = manners.obey(&delivered).await?;
        match delivered.kind() {
            MessageType::HandoffRequest if goes_on => {
                let mut delivered = delivered;
                if manners.is_wrong(Wrong::IgnoresRedriving) {
                    delivered.delivery.handoff_id.clone_from(&delivered.envelope.message_id);
                }
                if manners.is_wrong(Wrong::FailsRepeats) {
                    let accept = v1::HandoffAccept::default();
                    let sent = link.reply(&delivered, MessageType::HandoffAccept, &accept).await;
                    return sent.map(drop).map_err(|error| NotTaken::Failure(error.to_string()));
                }
                link.accept(&delivered, &v1::HandoffAccept::default()).await?;
                manners.accepted().insert(delivered.handoff_id().to_owned());
            }
            MessageType::HandoffRequest => {
                let reject = v1::HandoffReject { reason: v1::RejectReason::NoSkill.into(), ..Default::default() };
                link.reject(&delivered, &reject).await?;
            }
            MessageType::TaskContextTransfer => {
                let handoff_id = delivered.handoff_id();
                if manners.is_wrong(Wrong::PoisonsContexts) && !manners.accepted().contains(handoff_id) {
                    return Err(NotTaken::Poison("nothing was accepted here".to_owned()));
                }
                let task = link.complete(&delivered).await?;
                say(&json!({
                    "event": "owned", "task_id": task.task_id, "handoff_id": handoff_id, "epoch": task.epoch(),
                }));
                manners.work_on(task).await?;
            }
            _ => {}
        }
        Ok(())
    }

    async fn resumed(&self, _: Link, task: OwnedTask, _: v1::TaskContextTransfer) -> Result<(), NotTaken> {
        say(&json!({"event": "resumed", "task_id": task.task_id, "epoch": task.epoch()}));
        self.manners.work_on(task).await
    }

    async fn recalled(&self, _: Link, _: Delivered, recalled: Recalled) -> Result<(), NotTaken> {
        if !self.manners.is_wrong(Wrong::KeepsRecalledTasks) {
            say(&json!({
                "event": "recalled",
                "task_id": recalled.task_id,
                "handoff_id": recalled.handoff_id,
                "epoch": recalled.epoch,
            }));
        }
        Ok(())
    }

    async fn bid(&self, link: Link, asked: Delivered) -> Result<Bid, NotTaken> {
        self.manners.obey(&asked).await?;
        let how = self.manners.how(&kind_name(asked.kind()));
        bidding::answer(&link, &asked, &how, self.manners.wrong).await
    }

    async fn bid_ended(&self, _: Link, told: Delivered, _: BidEnd) -> Result<(), NotTaken> {
        if !self.manners.is_wrong(Wrong::MissesEnds) {
            self.manners.obey(&told).await?;
        }
        Ok(())
    }

    async fn context(&self, link: Link, accept: Delivered) -> Result<Option<Vec<v1::ContextSection>>, NotTaken> {
        match self.manners.wrong {
            Some(Wrong::PoisonsAccepts) => Err(NotTaken::Poison("nothing was asked here".to_owned())),
            Some(Wrong::ForgetsProvider) => Ok(None),
            Some(Wrong::AcksAcceptsEarly) => {
                let context = context_of_sections(self.context.clone().unwrap_or_default());
                tokio::spawn(async move {
                    // The ack, which the return below causes, must reach the broker before the context.
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                    let _ = link.reply(&accept, MessageType::TaskContextTransfer, &context).await;
                });
                Err(NotTaken::TooLate("told to ack early".to_owned()))
            }
            _ => Ok(self.context.clone()),
        }
    }
}

/// The sections of a command, each as JSON.
fn sections(of: &Value) -> Vec<v1::ContextSection> {
    let sections = of.as_object().cloned().unwrap_or_default();
    context_of(sections.iter().map(|(name, value)| (name.as_str(), value.to_string()))).sections
}

/// The receiver, the task and the request in a command.
fn request_of(command: &Value) -> (String, About, v1::HandoffRequest) {
    let text = |name: &str| command[name].as_str().unwrap_or_default().to_owned();
    let loan_timeout = milliseconds(command, "loan_timeout_ms").and_then(|time| time.try_into().ok());
    let request = v1::HandoffRequest { task_type: text("task_type"), loan_timeout, ..Default::default() };
    (text("to"), About::task(&text("task_id"), command["epoch"].as_u64().unwrap_or_default()), request)
}

fn milliseconds(command: &Value, name: &str) -> Option<Duration> {
    command[name].as_u64().map(Duration::from_millis)
}

/// Reports that the handoff has failed.
fn not_handed_over(command: &Value, error: &HandOverError, wrong: Option<Wrong>) {
    match error {
        HandOverError::Client(error) => failed(command, error, wrong),
        HandOverError::Failed { reason, message, .. } => {
            let account = json!({"kind": "handoff_failed", "reason": reason, "message": message});
            failed_as(command, account, wrong);
        }
        HandOverError::Recalled { reason, message, epoch, .. } => {
            let account = json!({"kind": "recalled", "reason": reason.name(), "message": message, "epoch": epoch});
            failed_as(command, account, wrong);
        }
        HandOverError::Superseded => {
            failed_as(command, json!({"kind": "other", "message": error.to_string()}), wrong);
        }
    }
}

/// A connected agent that serves.
pub(super) struct Agent {
    link: Link,
    manners: Arc<Manners>,
    stop: CancellationToken,
    stopped: CancellationToken,
    /// The calls of `delegate`, by command id.
    calls: Mutex<HashMap<u64, CancellationToken>>,
    /// The commands to the negotiation of this process.
    orders: Mutex<Option<mpsc::UnboundedSender<Value>>>,
}

impl Agent {
    pub(crate) async fn connect(command: &Value, wrong: Option<Wrong>) -> Result<Self, ClientError> {
        let mut options = options(command).map_err(|error| ClientError::Answer(error.to_string()))?;
        if wrong == Some(Wrong::IgnoresTimeouts) {
            options.handler_timeout = None;
        }
        options.resume &= wrong != Some(Wrong::NeverResumes);
        if wrong == Some(Wrong::GivesNoCredit) {
            options.credit = 1;
        }
        let link = Link::connect(options, Arc::new(SystemClock), Arc::new(SystemIds)).await?;
        let manners = Manners::new(wrong);
        let (stop, stopped) = (CancellationToken::new(), CancellationToken::new());
        let serving = {
            let context = command.get("context").map(sections);
            let (link, mail, stop) = (link.clone(), Mail { manners: Arc::clone(&manners), context }, stop.clone());
            async move { link.serve(mail, stop).await }
        };
        let has_stopped = stopped.clone();
        tokio::spawn(async move {
            if let Err(error) = serving.await
                && wrong != Some(Wrong::EndsInSilence)
            {
                let mut event = account(&error);
                event["event"] = "ended".into();
                say(&event);
            }
            has_stopped.cancel();
        });
        Ok(Self { link, manners, stop, stopped, calls: Mutex::default(), orders: Mutex::default() })
    }

    pub(crate) fn handle(&self, command: &Value) {
        self.manners.set(command);
    }

    pub(crate) fn release(&self, command: &Value) {
        self.manners.release(command);
    }

    pub(crate) fn send(&self, command: Value) {
        let (link, wrong) = (self.link.clone(), self.manners.wrong);
        tokio::spawn(async move {
            let text = match command["bytes"].as_u64() {
                Some(bytes) => "x".repeat(usize::try_from(bytes).unwrap_or_default()),
                None => command["text"].as_str().unwrap_or_default().to_owned(),
            };
            let info = v1::Info { text, ..Default::default() };
            let to = command["to"].as_str().unwrap_or_default();
            let sent = match wrong {
                Some(wrong) => wrong.send(&link, to, &info, &command).await,
                None => link.send(to, MessageType::Info, &About::default(), &info).await,
            };
            match sent {
                Ok(receipt) => done(&command, json!({"message_id": receipt.message_id})),
                Err(error) => failed(&command, &error, wrong),
            }
        });
    }

    pub(crate) fn hand_over(&self, command: Value) {
        let (link, wrong) = (self.link.clone(), self.manners.wrong);
        tokio::spawn(async move {
            let (to, about, request) = request_of(&command);
            if wrong == Some(Wrong::WaitsForMailAlone) {
                // The cases bring no mail: another process of the agent has it.
                if let Err(error) = link.send(&to, MessageType::HandoffRequest, &about, &request).await {
                    failed(&command, &error, wrong);
                }
                return;
            }
            let sections = sections(&command["context"]);
            let handed = match milliseconds(&command, "timeout_ms") {
                Some(limit) if wrong == Some(Wrong::LeavesHandoffs) => {
                    let handing = link.hand_over(&to, &about, &request, sections);
                    tokio::time::timeout(limit, handing).await.unwrap_or_else(|_| {
                        Err(HandOverError::Failed {
                            handoff_id: String::new(),
                            reason: "HANDOFF_CANCELLED".to_owned(),
                            message: "it takes too long".to_owned(),
                            rejections: Vec::new(),
                        })
                    })
                }
                Some(limit) => link.hand_over_within(limit, &to, &about, &request, sections).await,
                None => link.hand_over(&to, &about, &request, sections).await,
            };
            match handed {
                Ok(handed) => done(&command, json!({"owner_id": handed.owner_id, "epoch": handed.epoch})),
                Err(error) => not_handed_over(&command, &error, wrong),
            }
        });
    }

    pub(crate) fn resume(&self, command: Value) {
        let (link, wrong) = (self.link.clone(), self.manners.wrong);
        if wrong == Some(Wrong::CannotResume) {
            failed_as(&command, json!({"kind": "other", "message": "nothing was asked here"}), wrong);
            return;
        }
        tokio::spawn(async move {
            let handoff_id = command["handoff_id"].as_str().unwrap_or_default();
            match link.resume_hand_over(handoff_id, sections(&command["context"])).await {
                Ok(handed) => done(&command, json!({"owner_id": handed.owner_id, "epoch": handed.epoch})),
                Err(error) => not_handed_over(&command, &error, wrong),
            }
        });
    }

    pub(crate) fn recall(&self, command: Value) {
        let (link, wrong) = (self.link.clone(), self.manners.wrong);
        tokio::spawn(async move {
            let text = |name: &str| command[name].as_str().unwrap_or_default();
            match link.recall(text("handoff_id"), text("text")).await {
                Ok(task) => done(&command, json!({"epoch": task.epoch()})),
                Err(error) => failed(&command, &error, wrong),
            }
        });
    }

    pub(crate) fn cancel(&self, command: &Value) {
        let calls = self.calls.lock().expect("no holder panics");
        if let Some(call) = command["call"].as_u64().and_then(|id| calls.get(&id)) {
            call.cancel();
        }
        done(command, json!({}));
    }

    pub(crate) fn delegate(&self, command: Value) {
        let (link, wrong) = (self.link.clone(), self.manners.wrong);
        let cancelled = CancellationToken::new();
        let id = command["id"].as_u64().unwrap_or_default();
        self.calls.lock().expect("no holder panics").insert(id, cancelled.clone());
        tokio::spawn(async move {
            let (to, about, mut request) = request_of(&command);
            let sections = sections(&command["context"]);
            if wrong == Some(Wrong::EndsLoansEarly) {
                request.mode = v1::HandoffMode::Delegate.into();
                match link.hand_over(&to, &about, &request, sections).await {
                    Ok(handed) => done(&command, json!({"epoch": handed.epoch, "status": "", "result": {}})),
                    Err(error) => not_handed_over(&command, &error, wrong),
                }
                return;
            }
            let limit = milliseconds(&command, "timeout_ms");
            let ended = tokio::select! {
                ended = link.delegate(&to, &about, &request, sections, limit) => ended,
                () = cancelled.cancelled() => {
                    failed_as(&command, json!({"kind": "cancelled", "message": "told to cancel"}), wrong);
                    return;
                }
            };
            match ended {
                Ok(returned) => {
                    let status = returned.status.as_str_name().trim_start_matches("TASK_STATUS_");
                    let result = returned.result.unwrap_or_else(|| json!({}));
                    done(&command, json!({"epoch": returned.epoch, "status": status, "result": result}));
                }
                Err(error) => not_handed_over(&command, &error, wrong),
            }
        });
    }

    pub(crate) fn negotiate(&self, command: Value) {
        let (sender, orders) = mpsc::unbounded_channel();
        *self.orders.lock().expect("no holder panics") = Some(sender);
        tokio::spawn(bidding::negotiate(self.link.clone(), command, orders, self.manners.wrong));
    }

    /// Passes a command to the negotiation of this process.
    pub(crate) fn order(&self, command: Value) {
        if let Some(orders) = &*self.orders.lock().expect("no holder panics") {
            let _ = orders.send(command); // fails only after a failed `negotiate`
        }
    }

    pub(crate) fn owned_tasks(&self, command: Value) {
        let (link, wrong) = (self.link.clone(), self.manners.wrong);
        tokio::spawn(async move {
            let tasks = match wrong {
                Some(Wrong::ListsOnePage) => wrong::first_page(&link).await,
                _ => link.owned_tasks().await.map(|tasks| {
                    let tasks =
                        tasks.into_iter().map(|task| (task.task_id.clone(), task.epoch(), task.open_handoff_id));
                    tasks.collect::<Vec<_>>()
                }),
            };
            match tasks {
                Ok(tasks) => {
                    let item = |(task_id, epoch, handoff_id)| json!({"task_id": task_id, "epoch": epoch, "handoff_id": handoff_id});
                    done(&command, json!({"tasks": tasks.into_iter().map(item).collect::<Vec<_>>()}));
                }
                Err(error) => failed(&command, &error, wrong),
            }
        });
    }

    pub(crate) fn close(&self, command: Value) {
        let (stop, stopped) = (self.stop.clone(), self.stopped.clone());
        if self.manners.is_wrong(Wrong::StopsAtOnce) {
            std::process::exit(0);
        }
        tokio::spawn(async move {
            stop.cancel();
            stopped.cancelled().await;
            done(&command, json!({}));
        });
    }
}
