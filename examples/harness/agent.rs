//! The agent: what the library does, told in the protocol's words.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use baton::{
    client::{About, ClientError, Delivered, Handler, Link, NotTaken, context_of},
    ids::SystemIds,
    proto::v1::{self, MessageType},
    time::SystemClock,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{account, done, failed, options, say, wrong::Wrong};

/// How handlers are to go about it, and what they know.
pub(super) struct Manners {
    how: Mutex<HashMap<String, String>>,
    /// How often waiting handlers were released.
    released: watch::Sender<u64>,
    /// Handoffs that this agent has asked for: the command, and the context.
    asked: Mutex<HashMap<String, (Value, v1::TaskContextTransfer)>>,
    wrong: Option<Wrong>,
}

impl Manners {
    pub fn new(wrong: Option<Wrong>) -> Arc<Self> {
        let how = Mutex::default();
        Arc::new(Self { how, released: watch::Sender::new(0), asked: Mutex::default(), wrong })
    }

    pub fn set(&self, command: &Value) {
        let text = |name: &str| command[name].as_str().unwrap_or_default().to_owned();
        self.how.lock().expect("no holder panics").insert(text("type"), text("as"));
        done(command, json!({}));
    }

    pub fn release(&self, command: &Value) {
        self.released.send_modify(|count| *count += 1);
        done(command, json!({}));
    }

    fn is_wrong(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<String, (Value, v1::TaskContextTransfer)>> {
        self.asked.lock().expect("no holder panics")
    }

    /// Says that a handler has this message, and does with it what it was told to; true if that was not all.
    pub async fn obey(&self, delivered: &Delivered) -> Result<bool, NotTaken> {
        let kind = kind_name(delivered.kind());
        // Before it says so: whoever hears of it may tell it otherwise at once.
        let mut released = self.released.subscribe();
        let how = self.how.lock().expect("no holder panics").get(&kind).cloned().unwrap_or_default();
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
                let _ = released.changed().await; // the sender is in this very object
                Ok(false)
            }
            "reject" => Ok(false),
            _ => Ok(true),
        }
    }
}

/// What is told of a message that has come to its handler.
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
    }));
}

/// The name of its payload: `HandoffRequest`.
fn kind_name(kind: MessageType) -> String {
    let name = kind.as_str_name().trim_start_matches("MESSAGE_TYPE_");
    let capitalised = |word: &str| word[..1].to_owned() + &word[1..].to_lowercase();
    name.split('_').map(capitalised).collect()
}

struct Mail(Arc<Manners>);

impl Handler for Mail {
    async fn handle(&self, link: Link, delivered: Delivered) -> Result<(), NotTaken> {
        let Self(manners) = self;
        let goes_on = manners.obey(&delivered).await?;
        match delivered.kind() {
            MessageType::HandoffRequest if goes_on => {
                let mut delivered = delivered;
                if manners.is_wrong(Wrong::IgnoresRedriving) {
                    delivered.delivery.handoff_id.clone_from(&delivered.envelope.message_id);
                }
                link.reply(&delivered, MessageType::HandoffAccept, &v1::HandoffAccept::default()).await?;
            }
            MessageType::HandoffRequest => {
                let reject = v1::HandoffReject { reason: v1::RejectReason::NoSkill.into(), ..Default::default() };
                link.reply(&delivered, MessageType::HandoffReject, &reject).await?;
            }
            MessageType::TaskContextTransfer => {
                let receipt = link.complete(&delivered).await?;
                let about = delivered.about();
                say(&json!({
                    "event": "owned", "task_id": about.task_id, "handoff_id": about.correlation_id,
                    "epoch": receipt.epoch,
                }));
            }
            MessageType::HandoffAccept => {
                let asked = manners.asked().get(delivered.handoff_id()).cloned();
                if let Some((_, context)) = asked {
                    link.reply(&delivered, MessageType::TaskContextTransfer, &context).await?;
                }
            }
            MessageType::HandoffComplete => {
                if let Some((command, _)) = manners.asked().remove(delivered.handoff_id()) {
                    let (owner, epoch) = (&delivered.envelope.sender_id, delivered.envelope.epoch + 1);
                    done(&command, json!({"owner_id": owner, "epoch": epoch}));
                }
            }
            MessageType::ErrorNotification => {
                let told: v1::ErrorNotification = delivered.payload();
                if let Some((command, _)) = manners.asked().remove(delivered.handoff_id()) {
                    let reason = told.error_code().as_str_name().trim_start_matches("ERROR_CODE_");
                    say(&json!({
                        "event": "failed", "id": command["id"], "kind": "handoff_failed", "reason": reason,
                        "message": told.error_message,
                    }));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// A connected agent that serves.
pub(super) struct Agent {
    link: Link,
    manners: Arc<Manners>,
    stop: CancellationToken,
    stopped: CancellationToken,
}

impl Agent {
    pub async fn connect(command: &Value, wrong: Option<Wrong>) -> Result<Self, ClientError> {
        let mut options = options(command).map_err(|error| ClientError::Answer(error.to_string()))?;
        if wrong == Some(Wrong::IgnoresTimeouts) {
            options.handler_timeout = None;
        }
        if wrong == Some(Wrong::GivesNoCredit) {
            options.credit = 1;
        }
        let link = Link::connect(options, Arc::new(SystemClock), Arc::new(SystemIds)).await?;
        let manners = Manners::new(wrong);
        let (stop, stopped) = (CancellationToken::new(), CancellationToken::new());
        let serving = {
            let (link, mail, stop) = (link.clone(), Mail(Arc::clone(&manners)), stop.clone());
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
        Ok(Self { link, manners, stop, stopped })
    }

    pub fn handle(&self, command: &Value) {
        self.manners.set(command);
    }

    pub fn release(&self, command: &Value) {
        self.manners.release(command);
    }

    pub fn send(&self, command: Value) {
        let (link, wrong) = (self.link.clone(), self.manners.wrong);
        tokio::spawn(async move {
            let text = command["text"].as_str().unwrap_or_default().to_owned();
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

    pub fn hand_over(&self, command: Value) {
        let (link, manners) = (self.link.clone(), Arc::clone(&self.manners));
        tokio::spawn(async move {
            let text = |name: &str| command[name].as_str().unwrap_or_default().to_owned();
            let sections = command["context"].as_object().cloned().unwrap_or_default();
            let context = context_of(sections.iter().map(|(name, value)| (name.as_str(), value.to_string())));
            let request = v1::HandoffRequest { task_type: text("task_type"), ..Default::default() };
            let about = About::task(&text("task_id"), command["epoch"].as_u64().unwrap_or_default());
            // Known before it is sent: the answer may be quicker than the receipt.
            let envelope = link.composer().compose(&text("to"), MessageType::HandoffRequest, &about, &request);
            manners.asked().insert(envelope.message_id.clone(), (command.clone(), context));
            let bytes = prost::Message::encode_to_vec(&envelope);
            if let Err(error) = link.send_bytes(bytes.into()).await {
                manners.asked().remove(&envelope.message_id);
                failed(&command, &error, manners.wrong);
            }
        });
    }

    pub fn close(&self, command: Value) {
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
