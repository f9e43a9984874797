//! The scenarios that the tests of all languages play. `clients/scenarios/README.md` describes the file format.

use std::{collections::BTreeMap, sync::LazyLock, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    check::{Answer, Checks, NoAnswer, Problem, Verdict, answered, fail},
    world::{Actor, CREDIT, World, type_named},
};
use crate::report::Rule;
use baton_client::{
    About, Delivered, Identity, context_of_sections, envelope,
    proto::{self, v1},
};

macro_rules! files {
    ($($name:literal)*) => {
        const FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../scenarios/", $name, ".json")))),*];
    };
}

files! {
    "accepted-offer-opens-the-handoff"
    "cancelled-by-the-owner"
    "each-message-has-its-place"
    "handoff-completes"
    "late-accept-is-refused"
    "lent-task-comes-back"
    "loan-is-cancelled-before-it-begins"
    "loan-times-out"
    "loops-are-stopped"
    "mail-waits-by-priority"
    "nacked-comes-again"
    "offer-is-countered-and-accepted"
    "old-owner-is-fenced"
    "only-the-asked-offer"
    "only-what-is-signed-is-taken"
    "owner-restarts"
    "poison-ends-the-handoff"
    "recall-cancels-the-open-handoff"
    "recall-ends-inner-loans"
    "recalled-task-comes-back"
    "receiver-restarts-after-its-accept"
    "receiver-restarts-after-its-complete"
    "receiver-restarts-before-its-answer"
    "receiver-restarts-before-its-complete"
    "receiver-restarts-before-the-context"
    "rejected-by-all-stays"
    "rejected-goes-to-the-next"
    "repeat-gets-the-first-receipt"
    "sender-restarts-after-the-complete"
    "sender-restarts-before-the-accept"
    "sender-restarts-before-the-complete"
    "sender-restarts-before-the-context"
    "sender-restarts-before-the-receipt"
    "takeover-fails"
    "types-and-everybody"
}

/// A scenario, as parsed from its file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    name: String,
    about: String,
    spec: Vec<String>,
    agents: BTreeMap<String, Role>,
    #[serde(default)]
    names: Vec<String>,
    steps: Vec<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Role {
    #[serde(default)]
    types: Vec<String>,
    #[serde(default = "yes")]
    connected: bool,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
struct Step {
    #[serde(rename = "as")]
    who: String,
    #[serde(flatten)]
    action: Action,
    #[serde(default)]
    expect: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Send(Box<Send>),
    Repeat(String),
    Receive(Box<Receive>),
    Acknowledge(Acknowledge),
    Connect(Connect),
    Disconnect {},
    Task(String),
    Handoff(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Send {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    payload: Map<String, Value>,
    id: Option<String>,
    #[serde(default)]
    to: String,
    #[serde(default)]
    task: String,
    #[serde(default)]
    epoch: u64,
    #[serde(default)]
    correlation: String,
    sender: Option<String>,
    message_id: Option<String>,
    #[serde(default)]
    clock_offset_ms: i64,
    expires_in_ms: Option<i64>,
    signed_by: Option<String>,
    #[serde(default)]
    changed: Changed,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Changed {
    to: Option<String>,
    task: Option<String>,
    epoch: Option<u64>,
    correlation: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Receive {
    #[serde(rename = "type")]
    kind: String,
    from: Option<String>,
    to: Option<String>,
    task: Option<String>,
    epoch: Option<u64>,
    correlation: Option<String>,
    message: Option<String>,
    attempt: Option<u32>,
    #[serde(default)]
    payload: Map<String, Value>,
    id: Option<String>,
    #[serde(default)]
    then: Then,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Acknowledge {
    delivery: String,
    then: Then,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Connect {
    credit: u32,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Then {
    Word(Word),
    Nack {
        nack: String,
        #[serde(default)]
        retry_after_ms: u64,
    },
    Extend {
        extend_ms: u64,
    },
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Ack,
    Nothing,
}

impl Default for Then {
    fn default() -> Self {
        Self::Word(Word::Ack)
    }
}

/// All scenarios, in the order of `FILES`.
pub(super) fn all() -> Vec<Scenario> {
    let parsed = FILES.iter().map(|(name, text)| {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("the scenario {name} does not parse: {error}"))
    });
    parsed.collect()
}

impl Scenario {
    pub(super) fn rule(&self) -> Rule {
        Rule { name: format!("scenario.{}", self.name), spec: self.spec.clone(), rule: self.about.clone() }
    }

    pub(super) async fn play(&self, world: World) -> Verdict {
        let mut player = Player::new(self, world).await?;
        for (place, step) in self.steps.iter().enumerate() {
            let named = format!("step {}: {step}", place + 1);
            player.take_step(step).await.map_err(|problem| within(&named, problem))?;
        }
        Ok(())
    }
}

/// Adds the file's step to the step of a failure.
fn within(step: &str, problem: Problem) -> Problem {
    match problem {
        Problem::Failed(mut failed) => {
            failed.step = format!("{step}\n{}", failed.step);
            Problem::Failed(failed)
        }
        skipped @ Problem::Skipped(_) => skipped,
    }
}

struct Player {
    world: World,
    names: BTreeMap<String, String>,
    identities: BTreeMap<String, Identity>,
    actors: BTreeMap<String, Actor>,
    envelopes: BTreeMap<String, v1::Envelope>,
    receipts: BTreeMap<String, v1::Receipt>,
    deliveries: BTreeMap<String, Delivered>,
}

impl Player {
    async fn new(scenario: &Scenario, world: World) -> Verdict<Self> {
        let ids = scenario.agents.keys().chain(&scenario.names);
        let names = ids.map(|name| (name.clone(), world.id(name))).collect();
        let mut player = Self {
            world,
            names,
            identities: BTreeMap::new(),
            actors: BTreeMap::new(),
            envelopes: BTreeMap::new(),
            receipts: BTreeMap::new(),
            deliveries: BTreeMap::new(),
        };
        for (name, role) in &scenario.agents {
            let types: Vec<String> = role.types.iter().map(|kind| player.bound(kind)).collect::<Verdict<_>>()?;
            let identity = player.world.enrol(name, &types).await?;
            if role.connected {
                player.actors.insert(name.clone(), player.world.connect(&identity, CREDIT).await?);
            }
            player.identities.insert(name.clone(), identity);
        }
        Ok(player)
    }

    /// Replaces the names in a text by their values.
    fn bound(&self, text: &str) -> Verdict<String> {
        let mut parts = text.split("${");
        let mut bound = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let known = part.split_once('}').and_then(|(name, rest)| Some((self.names.get(name)?, rest)));
            let Some((value, rest)) = known else { return fail("the scenario", "name", "one that is bound", part) };
            bound.push_str(value);
            bound.push_str(rest);
        }
        Ok(bound)
    }

    async fn take_step(&mut self, step: &Value) -> Verdict {
        let actions =
            step.as_object().into_iter().flatten().filter(|(key, _)| !["as", "expect"].contains(&key.as_str()));
        // serde takes one action, and would ignore a second.
        if actions.count() != 1 {
            return broken(&"a step has one action");
        }
        // Bound at each step, because earlier steps define names.
        let text = self.bound(&step.to_string())?;
        let Step { who, action, expect } = serde_json::from_str(&text).or_else(|error| broken(&error))?;
        match action {
            Action::Send(send) => {
                let envelope = self.make(&who, &send)?;
                if let Some(id) = &send.id {
                    self.envelopes.insert(id.clone(), envelope.clone());
                }
                self.send(&who, &envelope, send.id.as_ref(), &expect).await
            }
            Action::Repeat(id) => {
                let envelope = self.envelopes.get(&id).cloned().map_or_else(|| broken(&"nothing to repeat"), Ok)?;
                self.send(&who, &envelope, None, &expect).await
            }
            Action::Receive(receive) => self.receive(&who, &receive).await,
            Action::Acknowledge(Acknowledge { delivery, then }) => {
                let delivered = self.deliveries.get(&delivery).map_or_else(|| broken(&"no such delivery"), Ok)?;
                let answer = acknowledge(self.actor(&who)?, delivered, &then).await;
                compare("the acknowledgement", answer.map(|()| json!({})), &expect)
            }
            Action::Connect(Connect { credit }) => {
                let identity = self.identities.get(&who).map_or_else(|| broken(&"no such agent"), Ok)?;
                let actor = self.world.connect(identity, credit).await?;
                self.actors.insert(who, actor);
                Ok(())
            }
            Action::Disconnect {} => {
                // The drop of the actor ends its session.
                self.actors.remove(&who);
                Ok(())
            }
            Action::Task(id) => {
                let task = self.actor(&who)?.task(&id).await;
                compare("the task", task.map(|task| task_json(&task)), &expect)
            }
            Action::Handoff(id) => self.look_at(&who, &id, &expect).await,
        }
    }

    fn actor(&self, name: &str) -> Verdict<&Actor> {
        self.actors.get(name).map_or_else(|| broken(&format!("{name} is not connected")), Ok)
    }

    fn make(&mut self, who: &str, send: &Send) -> Verdict<v1::Envelope> {
        let Some(kind) = type_named(&send.kind) else { return broken(&send.kind) };
        let name = format!("baton.v1.{}", send.kind);
        let mut value = encode(&name, &send.payload)?;
        if send.kind == "TaskContextTransfer" {
            value = self.with_digest(&value, send.id.as_deref())?;
        }
        let about = About::handoff(&send.task, send.epoch, &send.correlation);
        let mut envelope = self.actor(who)?.composer().draft(&send.to, kind, &about, &v1::Info::default());
        envelope.payload = Some(proto::Any { type_url: format!("type.googleapis.com/{name}"), value: value.into() });
        send.sender.clone_into_if(&mut envelope.sender_id);
        send.message_id.clone_into_if(&mut envelope.message_id);
        // The expiry counts from the true time: the clock offset applies only to the timestamp.
        if let (Some(time), Some(span)) = (envelope.timestamp, send.expires_in_ms) {
            envelope.expires_at = Some(moved(time, span));
        }
        envelope.timestamp = envelope.timestamp.map(|time| moved(time, send.clock_offset_ms));
        let signer = send.signed_by.as_deref().unwrap_or(who);
        if !signer.is_empty() {
            let key = &self.identities.get(signer).map_or_else(|| broken(&signer), Ok)?.key;
            envelope::sign(&mut envelope, &self.actor(who)?.identity.key_id, key);
        }
        // Changed after signing, so that the signature no longer matches the content.
        send.changed.to.clone_into_if(&mut envelope.receiver_id);
        send.changed.task.clone_into_if(&mut envelope.task_id);
        send.changed.correlation.clone_into_if(&mut envelope.correlation_id);
        envelope.epoch = send.changed.epoch.unwrap_or(envelope.epoch);
        if let Some(id) = &send.id {
            self.names.insert(id.clone(), envelope.message_id.clone());
        }
        Ok(envelope)
    }

    /// Fills in the digest of a context that has none.
    fn with_digest(&mut self, value: &[u8], id: Option<&str>) -> Verdict<Vec<u8>> {
        let mut context = v1::TaskContextTransfer::decode(value).or_else(|error| broken(&error))?;
        if context.context_digest.is_empty() {
            context = context_of_sections(context.sections);
        }
        if let Some(id) = id {
            self.names.insert(format!("{id}.digest"), BASE64_STANDARD.encode(&context.context_digest));
        }
        Ok(context.encode_to_vec())
    }

    async fn send(
        &mut self,
        who: &str,
        envelope: &v1::Envelope,
        id: Option<&String>,
        expect: &Map<String, Value>,
    ) -> Verdict {
        let answer = self.actor(who)?.submit(envelope).await;
        if let (Some(id), Ok(receipt)) = (id, &answer) {
            self.receipts.insert(id.clone(), receipt.clone());
        }
        let first = expect.get("same_receipt_as").and_then(Value::as_str);
        let is_the_first = |receipt: &v1::Receipt| first.is_some_and(|id| self.receipts.get(id) == Some(receipt));
        let seen = answer.map(|receipt| {
            let mut seen = receipt_json(&receipt);
            if is_the_first(&receipt) {
                seen["same_receipt_as"] = json!(first);
            }
            seen
        });
        compare("the receipt", seen, expect)
    }

    async fn receive(&mut self, who: &str, receive: &Receive) -> Verdict {
        let actor = self.actor(who)?;
        let delivered = actor.next("the next delivery").await?;
        check_delivery(receive, &delivered)?;
        answered("the acknowledgement", acknowledge(actor, &delivered, &receive.then).await)?;
        if let Some(id) = &receive.id {
            self.deliveries.insert(id.clone(), delivered);
        }
        Ok(())
    }

    async fn look_at(&self, who: &str, id: &str, expect: &Map<String, Value>) -> Verdict {
        let handoff = answered("the handoff is read", self.actor(who)?.handoff(id).await)?;
        let mut checks = Checks::of("the handoff");
        check_part(&mut checks, "handoff", expect, &handoff_json(&handoff));
        checks.done()
    }
}

fn broken<T>(problem: &dyn std::fmt::Display) -> Verdict<T> {
    fail("the scenario", "file", "one that can be played", problem.to_string())
}

trait CloneIntoIf {
    fn clone_into_if(&self, field: &mut String);
}

impl CloneIntoIf for Option<String> {
    fn clone_into_if(&self, field: &mut String) {
        if let Some(value) = self {
            value.clone_into(field);
        }
    }
}

fn moved(time: prost_types::Timestamp, milliseconds: i64) -> prost_types::Timestamp {
    let total = time.seconds * 1000 + i64::from(time.nanos / 1_000_000) + milliseconds;
    let nanos = i32::try_from(total.rem_euclid(1000)).unwrap_or_default() * 1_000_000;
    prost_types::Timestamp { seconds: total.div_euclid(1000), nanos }
}

static SCHEMA: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(baton_client::proto::DESCRIPTORS).expect("the schema was compiled with this program")
});

fn encode(name: &str, payload: &Map<String, Value>) -> Verdict<Vec<u8>> {
    let Some(descriptor) = SCHEMA.get_message_by_name(name) else { return broken(&name) };
    let message = DynamicMessage::deserialize(descriptor, Value::Object(payload.clone()));
    message.map(|message| message.encode_to_vec()).or_else(|error| broken(&error))
}

/// The payload in protobuf's JSON mapping.
fn payload_json(envelope: &v1::Envelope) -> Option<(String, Value)> {
    let payload = envelope.payload.as_ref()?;
    let name = payload.type_url.rsplit('/').next()?;
    let message = DynamicMessage::decode(SCHEMA.get_message_by_name(name)?, payload.value.clone()).ok()?;
    Some((name.rsplit('.').next()?.to_owned(), serde_json::to_value(&message).ok()?))
}

async fn acknowledge(actor: &Actor, delivered: &Delivered, then: &Then) -> Answer<()> {
    let (session, id) = (&actor.agent.session, &delivered.delivery.delivery_id);
    match then {
        Then::Word(Word::Nothing) => Ok(()),
        Then::Word(Word::Ack) => actor.call(session.ack(id)).await,
        Then::Extend { extend_ms } => actor.call(session.extend(id, Duration::from_millis(*extend_ms))).await,
        Then::Nack { nack, retry_after_ms } => {
            let cause = v1::NackCause::from_str_name(&format!("NACK_CAUSE_{nack}")).unwrap_or_default();
            let retry_after = prost_types::Duration::try_from(Duration::from_millis(*retry_after_ms)).ok();
            let retry_after = retry_after.filter(|_| *retry_after_ms > 0);
            actor.call(session.nack(id, v1::Nack { cause: cause.into(), retry_after, ..Default::default() })).await
        }
    }
}

fn check_delivery(receive: &Receive, delivered: &Delivered) -> Verdict {
    let mut checks = Checks::of("the next delivery");
    let (kind, payload) = payload_json(&delivered.envelope).unwrap_or_default();
    let envelope = &delivered.envelope;
    checks.same("type", receive.kind.as_str(), kind.as_str());
    let texts = [
        ("from", &receive.from, &envelope.sender_id),
        ("to", &receive.to, &envelope.receiver_id),
        ("task", &receive.task, &envelope.task_id),
        ("correlation", &receive.correlation, &envelope.correlation_id),
        ("message", &receive.message, &envelope.message_id),
    ];
    for (field, expected, seen) in texts {
        // A field that the file does not name may have any value.
        checks.same(field, expected.as_ref().unwrap_or(seen), seen);
    }
    checks.same("epoch", receive.epoch.unwrap_or(envelope.epoch), envelope.epoch);
    checks.same("attempt", receive.attempt.unwrap_or(delivered.delivery.attempt), delivered.delivery.attempt);
    check_part(&mut checks, "payload", &receive.payload, &payload);
    if kind == "TaskContextTransfer" {
        let context: v1::TaskContextTransfer = delivered.payload();
        let right = context_of_sections(context.sections.clone()).context_digest;
        checks.same("payload.contextDigest", hex::encode(right), hex::encode(&context.context_digest));
    }
    checks.done()
}

/// Compares an answer or a refusal with the expected fields.
fn compare(step: &str, answer: Answer<Value>, expect: &Map<String, Value>) -> Verdict {
    let seen = match answer {
        Ok(seen) => seen,
        Err(NoAnswer::Refused(refused)) if expect.contains_key("error") => {
            let fields: Vec<&String> = refused.violations.iter().map(|(path, _)| path).collect();
            let code = code_name(refused.code);
            json!({"error": refused.reason, "code": code, "fields": fields, "metadata": refused.metadata})
        }
        Err(problem) => return answered(step, Err(problem)),
    };
    let mut checks = Checks::of(step);
    check_part(&mut checks, "answer", expect, &seen);
    checks.done()
}

/// Converts `FailedPrecondition` to `FAILED_PRECONDITION`.
fn code_name(code: tonic::Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// Checks that every expected field is present and equal. Further fields are allowed.
fn check_part(checks: &mut Checks, path: &str, expected: &Map<String, Value>, seen: &Value) {
    for (name, value) in expected {
        let path = format!("{path}.{name}");
        let found = seen.get(name).unwrap_or(&Value::Null);
        match value {
            Value::Object(inner) => check_part(checks, &path, inner, found),
            // A number may be encoded as 1 or 1.0.
            Value::Number(number) if number.as_f64() == found.as_f64() => {}
            value if value == found => {}
            value => checks.differs(&path, value.to_string(), found.to_string()),
        }
    }
}

fn short(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_owned()
}

fn receipt_json(receipt: &v1::Receipt) -> Value {
    json!({
        "state": short(receipt.handoff_state().as_str_name(), "HANDOFF_STATE_"),
        "status": short(receipt.task_status().as_str_name(), "TASK_STATUS_"),
        "epoch": receipt.epoch,
        "owner": receipt.owner_id,
        "handoff": receipt.handoff_id,
    })
}

fn task_json(task: &v1::Task) -> Value {
    json!({
        "owner": task.owner_id,
        "epoch": task.epoch,
        "status": short(task.status().as_str_name(), "TASK_STATUS_"),
        "open_handoff": task.open_handoff_id,
    })
}

fn handoff_json(handoff: &v1::Handoff) -> Value {
    json!({
        "state": short(handoff.state().as_str_name(), "HANDOFF_STATE_"),
        "sender_view": short(handoff.sender_view().as_str_name(), "SENDER_VIEW_"),
        "receiver_view": short(handoff.receiver_view().as_str_name(), "RECEIVER_VIEW_"),
        "candidate": handoff.candidate_id,
        "error": short(handoff.error_code().as_str_name(), "ERROR_CODE_"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_played() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let json = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        let mut names: Vec<String> =
            json.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
        names.sort();
        let played: Vec<String> = all().into_iter().map(|scenario| scenario.name).collect();
        assert_eq!(names, played);
    }
}
