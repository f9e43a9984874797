//! The state of a case: the client, the scripted broker, and another agent: a client program, a broker, and the agents on the other side of the broker.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use prost::{Message, Name};
use serde_json::{Value, json};

use super::{
    ClientRunError,
    broker::{AGENT, Broker, KEY_ID, Session, key_of},
    certificates,
    harness::{Harness, PROTOCOL},
};
use crate::report::Failed;
use baton_client::{
    About, Composer, Identity,
    envelope::{
        keys::{PrivateKey, PublicKey},
        signing,
    },
    ids::{AgentId, IdSource as _, KeyId, SystemIds},
    proto::v1::{
        self, MessageType, acknowledgement::Outcome, connect_request::Request as Asked,
        connect_response::Response as Said,
    },
    time::{Clock as _, SystemClock},
};

/// The result of a step of a case.
pub(super) type Verdict = Result<(), Failed>;

/// The state of a case: the client, the scripted broker, and another agent.
pub(super) struct Fixture {
    pub harness: Harness,
    pub broker: Broker,
    /// Another agent in the directory, with key `k1`.
    pub alice: Composer,
    /// The client's public key.
    pub client_key: PublicKey,
    /// The program's hello event.
    pub hello: Value,
    /// The time limit of steps for which the rules name none. A virtual machine has to start within it.
    pub patience: Duration,
    folder: tempfile::TempDir,
    sequence: u64,
}

/// An envelope sent by the client.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub request_id: u64,
    pub raw: Bytes,
    pub envelope: v1::Envelope,
}

impl Sent {
    /// The decoded payload.
    pub(crate) fn payload<M: Message + Default>(&self) -> M {
        let value = self.envelope.payload.as_ref().map(|payload| payload.value.clone()).unwrap_or_default();
        M::decode(value).unwrap_or_default()
    }
}

impl Fixture {
    /// Starts the program, and a broker to which it is not yet connected.
    pub(crate) async fn start(command: &str, patience: Duration) -> Result<Self, ClientRunError> {
        let folder = tempfile::tempdir()?;
        let tls = certificates::make(folder.path())?;
        let (key, other) = (PrivateKey::generate(&SystemIds), PrivateKey::generate(&SystemIds));
        key.write(&folder.path().join("bob.pem"))?;
        other.write(&folder.path().join("other.pem"))?;
        let client_key = key.public();
        let broker = Broker::start(tls, client_key.clone()).await?;
        let alice = composer("alice", "k1", PrivateKey::generate(&SystemIds));
        broker.state().directory.insert("alice".to_owned(), vec![alice.identity.agent_key()]);
        let harness = Harness::start(command)?;
        let hello = Value::Null;
        let mut fixture = Self { harness, broker, alice, client_key, hello, patience, folder, sequence: 0 };
        fixture.hello = fixture.hello().await.map_err(|failed| ClientRunError::NoHello(Box::new(failed)))?;
        Ok(fixture)
    }

    async fn hello(&mut self) -> Result<Value, Failed> {
        let step = "the program starts";
        let hello = self.event(step, "the event hello", |event| event["event"] == "hello").await?;
        expect(step, "hello.protocol", &json!(PROTOCOL), &hello["protocol"])?;
        for field in ["language", "library"] {
            if !hello[field].is_string() {
                return Err(Failed::new(step, &format!("hello.{field}"), "a string", hello[field].to_string()));
            }
        }
        Ok(hello)
    }

    /// The path of a file in the run's folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command to connect as bob.
    pub(crate) fn connect(&self) -> Value {
        json!({
            "command": "connect",
            "server": self.broker.relay.address.to_string(),
            "ca": self.file("ca.pem"),
            "agent_id": AGENT,
            "key_id": KEY_ID,
            "key": self.file("bob.pem"),
            "credit": 8,
            "stop_grace_ms": 3000,
        })
    }

    /// Connects. Returns the session, which has credit.
    pub(crate) async fn connected(&mut self) -> Result<Session, Failed> {
        let command = self.connect();
        self.connected_by(command).await
    }

    /// Connects by this command.
    pub(crate) async fn connected_by(&mut self, command: Value) -> Result<Session, Failed> {
        let id = self.harness.tell(command);
        let session = self.session("the client connects").await?;
        self.done("the client has connected", id).await?;
        Ok(session)
    }

    /// The next session that the client opens and gives credit on.
    pub(crate) async fn session(&mut self, step: &str) -> Result<Session, Failed> {
        self.session_within(step, self.patience).await
    }

    /// The same with another time limit.
    pub(crate) async fn session_within(&mut self, step: &str, patience: Duration) -> Result<Session, Failed> {
        let mut session = self.opened_session(step, patience).await?;
        let gives_credit = |frame: &v1::ConnectRequest| match &frame.request {
            Some(Asked::Credit(credit)) => (credit.max_outstanding > 0).then_some(()),
            _ => None,
        };
        self.frame(step, "credit", "a Credit above 0", &mut session, gives_credit).await?;
        Ok(session)
    }

    /// The next session that the client opens, without waiting for credit on it.
    pub(crate) async fn opened_session(&mut self, step: &str, patience: Duration) -> Result<Session, Failed> {
        let exited = self.harness.exited.clone();
        let opened = within(patience, self.broker.session(), &exited).await;
        opened.map_err(|why| self.failed(step, "session", "a session", why))
    }

    /// Waits until the client has ended the session, and reads its frames until then.
    pub(crate) async fn session_ends(&self, step: &str, mut session: Session) -> Verdict {
        let reading = async { while session.pick(|_| Some(())).await.is_some() {} };
        let ended = tokio::time::timeout(self.patience, reading).await;
        ended.map_err(|_| self.failed(step, "session", "its end", format!("it is open after {:?}", self.patience)))
    }

    /// The first frame on the session that `pick` selects.
    pub(crate) async fn frame<T>(
        &self,
        step: &str,
        field: &str,
        expected: &str,
        session: &mut Session,
        pick: impl FnMut(&v1::ConnectRequest) -> Option<T>,
    ) -> Result<T, Failed> {
        let picked = within(self.patience, session.pick(pick), &self.harness.exited).await;
        picked.map_err(|why| {
            let mut failed = self.failed(step, field, expected, why);
            failed.differences[0].seen += &lines("\nfrom the client: ", &session.unread());
            failed
        })
    }

    /// The next envelope of this type from the client.
    pub(crate) async fn sent(&self, step: &str, session: &mut Session, kind: MessageType) -> Result<Sent, Failed> {
        let field = format!("a {}", kind.as_str_name());
        self.frame(step, &field, "an envelope", session, |frame| envelope_of(frame, kind)).await
    }

    /// The client's ack or nack of a delivery. Extensions are skipped.
    pub(crate) async fn outcome(
        &self,
        step: &str,
        session: &mut Session,
        delivery_id: &str,
    ) -> Result<Outcome, Failed> {
        let field = format!("delivery {delivery_id}");
        self.frame(step, &field, "an ack or a nack", session, |frame| match acknowledged(frame, delivery_id)? {
            Outcome::Extend(_) => None,
            outcome => Some(outcome),
        })
        .await
    }

    /// Expects an ack of the delivery.
    pub(crate) async fn acked(&self, step: &str, session: &mut Session, delivery_id: &str) -> Verdict {
        let outcome = self.outcome(step, session, delivery_id).await?;
        expect(step, &format!("delivery {delivery_id}"), "ack", &outcome_in_words(&outcome))
    }

    /// Expects a nack of the delivery for this cause. Returns the nack.
    pub(crate) async fn nacked(
        &self,
        step: &str,
        session: &mut Session,
        delivery_id: &str,
        cause: v1::NackCause,
    ) -> Result<v1::Nack, Failed> {
        match self.outcome(step, session, delivery_id).await? {
            Outcome::Nack(nack) if nack.cause() == cause => Ok(nack),
            other => {
                let expected = format!("nack {}", cause.as_str_name());
                Err(self.failed(step, &format!("delivery {delivery_id}"), &expected, outcome_in_words(&other)))
            }
        }
    }

    /// The first event that `pick` selects.
    pub(crate) async fn event(
        &mut self,
        step: &str,
        expected: &str,
        mut pick: impl FnMut(&Value) -> bool,
    ) -> Result<Value, Failed> {
        let exited = tokio_util::sync::CancellationToken::new(); // never cancelled: events from before the exit count
        let event = within(self.patience, self.harness.pick(&mut pick), &exited).await;
        event.map_err(|why| self.failed(step, "event", expected, why))
    }

    /// The answer to a command: `done` or `failed`.
    pub(crate) async fn answer(&mut self, step: &str, id: u64) -> Result<Value, Failed> {
        let expected = format!("done or failed, of command {id}");
        self.event(step, &expected, |event| {
            event["id"] == id && (event["event"] == "done" || event["event"] == "failed")
        })
        .await
    }

    /// Expects the command to be done.
    pub(crate) async fn done(&mut self, step: &str, id: u64) -> Result<Value, Failed> {
        let answer = self.answer(step, id).await?;
        match answer["event"] == "done" {
            true => Ok(answer),
            false => Err(self.failed(step, "event", "done", answer.to_string())),
        }
    }

    /// Expects the command to fail with an event that has at least these fields.
    pub(crate) async fn refused(&mut self, step: &str, id: u64, expected: Value) -> Verdict {
        let answer = self.answer(step, id).await?;
        is_like(&expected, &answer)
            .then_some(())
            .ok_or_else(|| self.failed(step, "event", &format!("failed, with {expected}"), answer.to_string()))
    }

    /// Expects a handler to be called for this message.
    pub(crate) async fn handling(&mut self, step: &str, message_id: &str) -> Result<Value, Failed> {
        self.event(step, &format!("handling of message {message_id}"), |event| is_handling(event, message_id)).await
    }

    /// Sets how handlers of this message type act from now on.
    pub(crate) async fn handle(&mut self, kind: &str, how: &str) -> Verdict {
        let id = self.harness.tell(json!({"command": "handle", "type": kind, "as": how}));
        self.done(&format!("{kind} is to be handled as {how}"), id).await.map(drop)
    }

    /// An `Info` from alice.
    pub(crate) fn info(&self, text: &str) -> v1::Envelope {
        self.alice.compose(AGENT, MessageType::Info, &About::default(), &info(text))
    }

    /// Delivers an envelope. Returns the delivery id.
    pub(crate) fn deliver(&mut self, session: &Session, envelope: &v1::Envelope) -> String {
        self.deliver_bytes(session, envelope.encode_to_vec().into(), 1)
    }

    /// Delivers these bytes with this attempt number, which starts at 1.
    pub(crate) fn deliver_bytes(&mut self, session: &Session, envelope: Bytes, attempt: u32) -> String {
        let delivery = v1::Delivery { envelope, attempt, ..Default::default() };
        self.deliver_as(session, delivery)
    }

    /// Delivers after filling in id, sequence and deadline.
    pub(crate) fn deliver_as(&mut self, session: &Session, mut delivery: v1::Delivery) -> String {
        self.sequence += 1;
        let delivery_id = format!("d{}", self.sequence);
        delivery.delivery_id.clone_from(&delivery_id);
        delivery.sequence = self.sequence;
        if delivery.ack_deadline.is_none() {
            delivery.ack_deadline = Some(SystemClock.now().plus(super::broker::ACK_WAIT).into());
        }
        session.say(0, Said::Delivery(delivery));
        delivery_id
    }

    /// Delivers a valid message, and expects a handler call and an ack. Earlier mail has been processed after that.
    pub(crate) async fn mail_goes_on(&mut self, session: &mut Session) -> Verdict {
        let envelope = self.info("good mail");
        let delivery_id = self.deliver(session, &envelope);
        self.handling("good mail comes", &envelope.message_id).await?;
        self.acked("good mail is handled", session, &delivery_id).await
    }

    /// Delivers a message that no handler may receive: expects a nack as POISON, and that later mail is handled.
    pub(crate) async fn refuses_delivery(&mut self, session: &mut Session, envelope: &v1::Envelope) -> Verdict {
        let delivery_id = self.deliver(session, envelope);
        let step = "the message is delivered";
        self.nacked(step, session, &delivery_id, v1::NackCause::Poison).await?;
        self.mail_goes_on(session).await?;
        self.never_handled(step, &envelope.message_id)
    }

    /// Expects that no handler was called for the message.
    pub(crate) fn never_handled(&mut self, step: &str, message_id: &str) -> Verdict {
        match self.harness.has(|event| is_handling(event, message_id)) {
            false => Ok(()),
            true => Err(self.failed(step, "event", "no handler is called", "handling of the message".to_owned())),
        }
    }

    /// The receipt for an envelope, unsigned.
    pub(crate) fn unsigned_receipt(&mut self, sent: &Sent) -> v1::Receipt {
        self.sequence += 1;
        let envelope = &sent.envelope;
        let is_request = envelope.message_type() == MessageType::HandoffRequest;
        v1::Receipt {
            message_id: envelope.message_id.clone(),
            sequence: self.sequence,
            accept_time: Some(SystemClock.now().into()),
            task_id: envelope.task_id.clone(),
            owner_id: envelope.sender_id.clone(),
            epoch: envelope.epoch,
            handoff_id: if is_request { envelope.message_id.clone() } else { envelope.correlation_id.clone() },
            custody_hash: vec![7; 32].into(),
            key_id: "broker".to_owned(),
            ..Default::default()
        }
    }

    /// Answers an envelope with a signed receipt.
    pub(crate) fn receipt(&mut self, session: &Session, sent: &Sent) {
        let receipt = self.unsigned_receipt(sent);
        self.signed_receipt(session, sent, receipt);
    }

    /// Signs this receipt as the broker, and answers with it.
    pub(crate) fn signed_receipt(&self, session: &Session, sent: &Sent, mut receipt: v1::Receipt) {
        receipt.signature = self.broker.key.sign(&signing::receipt_input(&receipt)).to_vec().into();
        session.say(sent.request_id, Said::Receipt(receipt));
    }

    /// A failure: the expected and the observed value, and the unread output of the program.
    pub(crate) fn failed(&self, step: &str, field: &str, expected: &str, seen: String) -> Failed {
        Failed::new(step, field, expected, seen + &lines("\nfrom the program: ", &self.harness.unread()))
    }
}

/// The composer of an agent on the other side of the broker.
pub(super) fn composer(agent: &str, key_id: &str, key: PrivateKey) -> Composer {
    let agent = AgentId::parse(agent).expect("a name");
    let key_id = KeyId::parse(key_id).expect("a name");
    Composer { identity: Identity { agent, key_id, key }, clock: Arc::new(SystemClock), ids: Arc::new(SystemIds) }
}

pub(super) fn info(text: &str) -> v1::Info {
    v1::Info { text: text.to_owned(), ..Default::default() }
}

/// A new task id.
pub(super) fn new_task() -> String {
    format!("task-{}", hex::encode(&SystemIds.random()[..6]))
}

/// Adds a second key of alice to the directory.
pub(super) fn further_key(fixture: &Fixture, key_id: &str, change: impl FnOnce(&mut v1::AgentKey)) -> Composer {
    let further = composer("alice", key_id, PrivateKey::generate(&SystemIds));
    let mut key = key_of(key_id, &further.identity.key.public());
    change(&mut key);
    fixture.broker.state().directory.entry("alice".to_owned()).or_default().push(key);
    further
}

/// Compares a field for equality.
pub(super) fn expect<T: PartialEq + ToString + ?Sized>(step: &str, field: &str, expected: &T, seen: &T) -> Verdict {
    match expected == seen {
        true => Ok(()),
        false => Err(Failed::new(step, field, expected.to_string(), seen.to_string())),
    }
}

/// The frame's envelope, if it has this type.
pub(super) fn envelope_of(frame: &v1::ConnectRequest, kind: MessageType) -> Option<Sent> {
    let Some(Asked::Envelope(raw)) = &frame.request else { return None };
    let envelope = v1::Envelope::decode(raw.clone()).ok()?;
    let sent = Sent { request_id: frame.request_id, raw: raw.clone(), envelope };
    (sent.envelope.message_type() == kind).then_some(sent)
}

/// The frame's acknowledgement of this delivery.
pub(super) fn acknowledged(frame: &v1::ConnectRequest, delivery_id: &str) -> Option<Outcome> {
    match &frame.request {
        Some(Asked::Acknowledgement(one)) if one.delivery_id == delivery_id => one.outcome.clone(),
        _ => None,
    }
}

pub(super) fn outcome_in_words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Ack(_) => "ack".to_owned(),
        Outcome::Extend(_) => "extend".to_owned(),
        Outcome::Nack(nack) => format!("nack {}: {}", nack.cause().as_str_name(), nack.reason_text),
    }
}

/// The type URL of a payload.
pub(super) fn type_url<M: Name>() -> String {
    M::type_url()
}

fn is_handling(event: &Value, message_id: &str) -> bool {
    event["event"] == "handling" && event["message_id"] == message_id
}

/// Whether `seen` has all expected fields with equal values.
pub(super) fn is_like(expected: &Value, seen: &Value) -> bool {
    match (expected, seen) {
        (Value::Object(expected), Value::Object(seen)) => {
            expected.iter().all(|(name, value)| seen.get(name).is_some_and(|seen| is_like(value, seen)))
        }
        (expected, seen) => expected == seen,
    }
}

fn lines(before: &str, lines: &[String]) -> String {
    lines.iter().fold(String::new(), |text, line| text + before + line)
}

async fn within<T>(
    patience: Duration,
    waiting: impl Future<Output = Option<T>>,
    exited: &tokio_util::sync::CancellationToken,
) -> Result<T, String> {
    tokio::select! {
        // `waiting` first, so that events and frames from before the exit still count.
        biased;
        done = tokio::time::timeout(patience, waiting) => match done {
            Ok(Some(done)) => Ok(done),
            Ok(None) => Err("there will be none: it has ended".to_owned()),
            Err(_) => Err(format!("nothing within {patience:?}")),
        },
        () = exited.cancelled() => Err("the program has ended".to_owned()),
    }
}
