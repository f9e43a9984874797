//! Agents: some are diligent, some are slow, fail, repeat every message, never answer, or lie.

use std::collections::{BTreeMap, HashSet};

use baton::{
    broker::engine::Fate,
    domain::mailbox::ConsumerId,
    envelope::{self, keys::PrivateKey},
    ids::{AgentId, IdSource as _, KeyId},
    proto::v1::{self, MessageType as T},
    time::Timestamp,
};
use bytes::Bytes;
use prost::{Message, Name};

use crate::dice::{Dice, Ids};

/// The behaviour of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Diligent,
    Slow,
    Silent,
    Double,
    Failing,
    Liar,
}

/// An action of an agent.
#[derive(Debug)]
pub enum Deed {
    Send(Bytes),
    /// Sends an envelope that is signed by another agent than its sender.
    Forge(Bytes),
    Acknowledge(String, Fate),
    /// Performs the action after this number of milliseconds.
    Later(u64, Box<Deed>),
}

/// A handoff that the agent knows.
#[derive(Debug, Clone)]
pub struct Known {
    task: String,
    handoff: String,
    epoch: u64,
    other: String,
}

pub struct Agent {
    pub id: AgentId,
    pub manner: Manner,
    pub session: Option<ConsumerId>,
    /// Unanswered messages: the bytes, the time of the last attempt, and the number of attempts.
    pub unanswered: BTreeMap<u64, (Bytes, Timestamp, u32)>,
    /// The tasks that the agent believes to own, with their epochs.
    pub owned: BTreeMap<String, u64>,
    pub dice: Dice,
    key: PrivateKey,
    known: Vec<Known>,
    /// The tasks that the agent has offered to lend, with the handoffs. Not all of them became loans.
    lent: Vec<(String, String)>,
    said: Vec<Bytes>,
    handled: HashSet<(String, String)>,
}

const CONTEXT: &str = r#"{"crash":"segfault"}"#;

pub fn context() -> v1::TaskContextTransfer {
    use baton::envelope::signing;
    let section = v1::ContextSection {
        name: "collected_data".into(),
        content: Some(v1::context_section::Content::Json(CONTEXT.into())),
        ..Default::default()
    };
    let digest = signing::context_digest([("collected_data", signing::sha256(&[CONTEXT.as_bytes()]))]);
    v1::TaskContextTransfer { sections: vec![section], context_digest: digest.to_vec().into() }
}

impl Agent {
    pub fn new(name: &str, manner: Manner, dice: Dice) -> Self {
        let seed = envelope::signing::sha256(&[name.as_bytes()]);
        Self {
            id: AgentId::parse(name).unwrap(),
            manner,
            session: None,
            unanswered: BTreeMap::new(),
            owned: BTreeMap::new(),
            dice,
            key: PrivateKey::from_seed(&seed),
            known: Vec::new(),
            lent: Vec::new(),
            said: Vec::new(),
            handled: HashSet::new(),
        }
    }

    pub fn card(&self) -> v1::AgentCard {
        v1::AgentCard {
            agent_id: self.id.to_string(),
            agent_types: vec!["worker".into()],
            keys: vec![v1::AgentKey {
                key_id: "k1".into(),
                public_key: self.key.public().as_bytes().to_vec().into(),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    /// Makes the agent act of its own accord. Returns its actions.
    pub fn act(&mut self, others: &[String], tasks: u64, ids: &Ids, now: Timestamp) -> Vec<Deed> {
        let other = others[usize::try_from(self.dice.roll(others.len() as u64)).unwrap()].clone();
        let mut deeds = Vec::new();
        if self.manner == Manner::Liar && self.dice.once_in(2) {
            deeds.extend(self.lie(&other, ids, now));
        }
        let deed = match self.dice.roll(9) {
            0..=2 => self.hand_over(&other, others, tasks, ids, now),
            3 => self.inform(&other, ids, now),
            4 => self.report(&other, ids, now),
            5 => self.cancel(ids, now),
            6 => self.recall(ids, now),
            _ => None,
        };
        deeds.extend(deed);
        deeds
    }

    fn hand_over(&mut self, other: &str, others: &[String], tasks: u64, ids: &Ids, now: Timestamp) -> Option<Deed> {
        let known: Vec<String> = self.owned.keys().cloned().collect();
        let task = match known.len() {
            0 => format!("task-{}", self.dice.roll(tasks)),
            _ if self.dice.once_in(3) => format!("task-{}", self.dice.roll(tasks)),
            many => known[usize::try_from(self.dice.roll(many as u64)).unwrap()].clone(),
        };
        let epoch = self.owned.get(&task).copied().unwrap_or(1);
        let seconds = |seconds: u64| {
            let seconds = i64::try_from(seconds).unwrap();
            (seconds > 0).then_some(prost_types::Duration { seconds, nanos: 0 })
        };
        let fallback = others[usize::try_from(self.dice.roll(others.len() as u64)).unwrap()].clone();
        let lends = self.dice.once_in(3);
        let loan_timeout = if lends { seconds(self.dice.roll(120)) } else { None };
        let request = v1::HandoffRequest {
            task_type: "x".into(),
            fallback_candidates: if self.dice.once_in(2) && fallback != self.id.as_str() {
                vec![fallback]
            } else {
                vec![]
            },
            mode: if lends { v1::HandoffMode::Delegate.into() } else { 0 },
            loan_timeout,
            priority: i32::try_from(self.dice.roll(5)).unwrap(),
            timeouts: Some(v1::HandoffTimeouts {
                accept: seconds(self.dice.roll(20)),
                whole: seconds(self.dice.roll(200)),
                ..Default::default()
            }),
            ..Default::default()
        };
        let to = if self.dice.once_in(3) { "type:worker" } else { other };
        let envelope = self.envelope(to, T::HandoffRequest, &task, "", epoch, &request, ids, now);
        if lends {
            self.lent.push((task, envelope.message_id.clone()));
        }
        Some(Deed::Send(self.sign(envelope)))
    }

    /// Recalls the task of an earlier request, which may have lent it or not. A liar recalls loans of others, too.
    fn recall(&mut self, ids: &Ids, now: Timestamp) -> Option<Deed> {
        let of_others = self.known.iter().filter(|_| self.manner == Manner::Liar);
        let of_others = of_others.map(|known| (known.task.clone(), known.handoff.clone()));
        let all: Vec<_> = self.lent.iter().cloned().chain(of_others).collect();
        let pick = usize::try_from(self.dice.number() >> 1).unwrap();
        let (task, handoff) = all.get(pick % all.len().max(1))?.clone();
        let recall = v1::TaskRecall::default();
        Some(Deed::Send(self.make("", T::TaskRecall, &task, &handoff, 1, &recall, ids, now)))
    }

    fn inform(&mut self, other: &str, ids: &Ids, now: Timestamp) -> Option<Deed> {
        let to = if self.dice.once_in(4) { "all:worker" } else { other };
        let mut envelope = self.envelope(to, T::Info, "", "", 0, &v1::Info::default(), ids, now);
        if self.dice.once_in(3) {
            let (seconds, nanos) = now.to_parts();
            let seconds = seconds + i64::try_from(1 + self.dice.roll(60)).unwrap();
            envelope.expires_at = Some(prost_types::Timestamp { seconds, nanos });
        }
        Some(Deed::Send(self.sign(envelope)))
    }

    fn report(&mut self, other: &str, ids: &Ids, now: Timestamp) -> Option<Deed> {
        let task = self.owned.keys().next()?.clone();
        let epoch = self.owned[&task];
        let status = match self.dice.roll(8) {
            0 => v1::TaskStatus::Completed,
            1 => v1::TaskStatus::Failed,
            2 => v1::TaskStatus::WaitingForInput,
            _ => v1::TaskStatus::InProgress,
        };
        let asks = status == v1::TaskStatus::WaitingForInput && other != self.id.as_str();
        let prompt = asks.then(|| self.question(other, now));
        let result = self.dice.once_in(2).then(prost_types::Struct::default);
        let update =
            v1::TaskStatusUpdate { status: status.into(), details: "so".into(), prompt, result, ..Default::default() };
        let to = if self.dice.once_in(2) { other } else { "" };
        Some(Deed::Send(self.make(to, T::TaskStatusUpdate, &task, "", epoch, &update, ids, now)))
    }

    /// A question to one agent or to a type, often with a deadline.
    fn question(&mut self, other: &str, now: Timestamp) -> v1::TaskPrompt {
        let answer_by = if self.dice.once_in(3) { "type:worker".to_owned() } else { other.to_owned() };
        let answer_before = self.dice.once_in(2).then(|| {
            let (seconds, nanos) = now.to_parts();
            prost_types::Timestamp { seconds: seconds + i64::try_from(1 + self.dice.roll(120)).unwrap(), nanos }
        });
        v1::TaskPrompt { question: "which?".into(), answer_by, answer_before, ..Default::default() }
    }

    fn cancel(&mut self, ids: &Ids, now: Timestamp) -> Option<Deed> {
        if !self.dice.once_in(3) {
            return None;
        }
        let known = self.known.last()?.clone();
        let cancel = v1::HandoffCancel::default();
        let bytes =
            self.make(&known.other, T::HandoffCancel, &known.task, &known.handoff, known.epoch, &cancel, ids, now);
        Some(Deed::Send(bytes))
    }

    fn lie(&mut self, other: &str, ids: &Ids, now: Timestamp) -> Option<Deed> {
        let pick = usize::try_from(self.dice.number() >> 1).unwrap();
        let known = (!self.known.is_empty()).then(|| self.known[pick % self.known.len()].clone());
        match self.dice.roll(5) {
            // Another agent's name under its own key.
            0 if other == self.id.as_str() => None,
            0 => {
                let mut envelope = self.envelope(self.id.as_str(), T::Info, "", "", 0, &v1::Info::default(), ids, now);
                envelope.sender_id = other.to_owned();
                Some(Deed::Forge(self.sign(envelope)))
            }
            // Another message under a used id.
            1 => {
                let said = (!self.said.is_empty()).then(|| self.said[pick % self.said.len()].clone())?;
                let said = v1::Envelope::decode(said).unwrap();
                let info = v1::Info { text: "something else".into(), ..Default::default() };
                let envelope = self.envelope(other, T::Info, "", "", 0, &info, ids, now);
                Some(Deed::Send(self.sign(v1::Envelope { message_id: said.message_id, ..envelope })))
            }
            // A message on behalf of another agent, at an invented epoch.
            kind => {
                let known = known?;
                let epoch = (known.epoch + self.dice.roll(3)).saturating_sub(1).max(1);
                let complete = v1::HandoffComplete {
                    outcome: v1::HandoffOutcome::Success.into(),
                    context_digest: context().context_digest,
                    ..Default::default()
                };
                let (task, handoff, to) = (&known.task.clone(), &known.handoff.clone(), &known.other.clone());
                let bytes = match kind {
                    2 => self.make(to, T::HandoffAccept, task, handoff, epoch, &v1::HandoffAccept::default(), ids, now),
                    3 => self.make(to, T::TaskContextTransfer, task, handoff, epoch, &context(), ids, now),
                    _ => self.make(to, T::HandoffComplete, task, handoff, epoch, &complete, ids, now),
                };
                Some(Deed::Send(bytes))
            }
        }
    }

    /// Handles a received message.
    pub fn take(
        &mut self,
        delivery_id: &str,
        handoff: &str,
        envelope: &v1::Envelope,
        ids: &Ids,
        now: Timestamp,
    ) -> Vec<Deed> {
        let ack = |fate| Deed::Acknowledge(delivery_id.to_owned(), fate);
        let is_new = self.handled.insert((envelope.message_id.clone(), handoff.to_owned()));
        if self.manner == Manner::Silent && self.dice.roll(8) > 0 {
            self.handled.remove(&(envelope.message_id.clone(), handoff.to_owned()));
            return Vec::new();
        }
        let is_failing = self.manner == Manner::Failing && self.dice.roll(8) > 0;
        if is_failing || self.manner != Manner::Diligent && self.dice.once_in(6) {
            self.handled.remove(&(envelope.message_id.clone(), handoff.to_owned()));
            let text = "not now".to_owned();
            return vec![match self.dice.roll(8) {
                0 => ack(Fate::Poison { text }),
                1..=3 => ack(Fate::Shutdown { text, retry_after: None }),
                4 => ack(Fate::Extend { extension: None }),
                _ => ack(Fate::Failed { text, retry_after: None }),
            }];
        }
        let answer = if is_new { self.answer(handoff, envelope, ids, now) } else { None };
        let mut deeds = Vec::new();
        let ack_first = self.dice.once_in(2);
        if ack_first {
            deeds.push(ack(Fate::Acked));
        }
        if let Some(bytes) = answer {
            if self.manner == Manner::Double {
                deeds.push(Deed::Send(bytes.clone()));
                deeds.push(Deed::Later(self.dice.roll(60_000), Box::new(Deed::Send(bytes.clone()))));
            }
            let late = if self.manner == Manner::Slow { self.dice.roll(90_000) } else { self.dice.roll(50) };
            deeds.push(Deed::Later(late, Box::new(Deed::Send(bytes))));
        }
        if !ack_first {
            deeds.push(Deed::Later(self.dice.roll(100), Box::new(ack(Fate::Acked))));
        }
        deeds
    }

    fn answer(&mut self, handoff: &str, envelope: &v1::Envelope, ids: &Ids, now: Timestamp) -> Option<Bytes> {
        let (to, task, epoch) = (&envelope.sender_id, &envelope.task_id, envelope.epoch);
        if !handoff.is_empty() {
            let (task, handoff, other) = (task.clone(), handoff.to_owned(), to.clone());
            self.known.push(Known { task, handoff, epoch, other });
        }
        match envelope.message_type() {
            T::HandoffRequest if self.manner != Manner::Diligent && self.dice.once_in(4) => {
                let reject = v1::HandoffReject {
                    reason: v1::RejectReason::Overloaded.into(),
                    alternative_agent_suggestions: vec!["a".into(), "nobody".into()],
                    retry_after: self.dice.once_in(2).then(|| prost_types::Duration {
                        seconds: i64::try_from(self.dice.roll(90)).unwrap(),
                        nanos: 0,
                    }),
                    ..Default::default()
                };
                Some(self.make(to, T::HandoffReject, task, handoff, epoch, &reject, ids, now))
            }
            T::HandoffRequest => {
                let seconds = i64::try_from(self.dice.roll(400)).unwrap();
                let estimate = self.dice.once_in(3).then_some(prost_types::Duration { seconds, nanos: 0 });
                let accept = v1::HandoffAccept { estimated_handoff_time: estimate, ..Default::default() };
                Some(self.make(to, T::HandoffAccept, task, handoff, epoch, &accept, ids, now))
            }
            // Also agents that were not asked answer, and slow ones after others or too late.
            T::TaskStatusUpdate if envelope.payload.is_some() => {
                let update = v1::TaskStatusUpdate::decode(envelope.payload.clone()?.value).ok()?;
                update.prompt.filter(|_| !self.dice.once_in(8))?;
                let input = v1::TaskInput { text: "that".into(), data: None };
                Some(self.make("", T::TaskInput, task, &envelope.message_id.clone(), epoch, &input, ids, now))
            }
            T::HandoffAccept => Some(self.make(to, T::TaskContextTransfer, task, handoff, epoch, &context(), ids, now)),
            T::TaskContextTransfer => {
                let failed = self.manner != Manner::Diligent && self.dice.once_in(6);
                let outcome = if failed { v1::HandoffOutcome::Failure } else { v1::HandoffOutcome::Success };
                let complete = v1::HandoffComplete {
                    outcome: outcome.into(),
                    context_digest: context().context_digest,
                    ..Default::default()
                };
                Some(self.make(to, T::HandoffComplete, task, handoff, epoch, &complete, ids, now))
            }
            _ => None,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of an envelope")]
    fn make<M: Message + Name>(
        &mut self,
        to: &str,
        kind: T,
        task: &str,
        handoff: &str,
        epoch: u64,
        payload: &M,
        ids: &Ids,
        now: Timestamp,
    ) -> Bytes {
        let envelope = self.envelope(to, kind, task, handoff, epoch, payload, ids, now);
        self.sign(envelope)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of an envelope")]
    fn envelope<M: Message + Name>(
        &self,
        to: &str,
        kind: T,
        task: &str,
        handoff: &str,
        epoch: u64,
        payload: &M,
        ids: &Ids,
        now: Timestamp,
    ) -> v1::Envelope {
        let (seconds, nanos) = now.to_parts();
        v1::Envelope {
            message_id: ids.message_id(now).to_string(),
            sender_id: self.id.to_string(),
            receiver_id: to.to_owned(),
            timestamp: Some(prost_types::Timestamp { seconds, nanos }),
            message_type: kind.into(),
            correlation_id: handoff.to_owned(),
            task_id: task.to_owned(),
            epoch,
            payload: Some(envelope::payload_of(payload)),
            ..Default::default()
        }
    }

    fn sign(&mut self, mut envelope: v1::Envelope) -> Bytes {
        envelope::sign(&mut envelope, &KeyId::parse("k1").unwrap(), &self.key);
        let bytes = Bytes::from(envelope.encode_to_vec());
        if envelope.sender_id == self.id.as_str() {
            self.said.push(bytes.clone());
        }
        bytes
    }
}
