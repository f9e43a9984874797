//! Agents: some are diligent, some are slow, fail, repeat every message, never answer, or lie.

mod bidding;
pub(crate) mod conversing;
mod errands;
mod planning;
pub(crate) mod routing;
mod sharing;

use std::collections::{BTreeMap, HashSet};

use baton_broker_core::{
    domain::{EntityId, Input, mailbox::ConsumerId},
    engine::Fate,
    envelope::{self, keys::PrivateKey},
    ids::{AgentId, IdSource as _, InstanceId, KeyId},
    proto::v1::{self, MessageType as T},
    time::Timestamp,
};
use bytes::Bytes;
use prost::{Message, Name};

use crate::rng::{Ids, Rng};

/// The behaviour of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    Diligent,
    Slow,
    Silent,
    Double,
    Failing,
    Liar,
}

/// An action of an agent.
#[derive(Debug)]
pub(crate) enum Action {
    Send(Bytes),
    /// Sends an envelope that is signed by another agent than its sender.
    Forge(Bytes),
    Acknowledge(String, Fate),
    /// Makes a call that is no message.
    Call(EntityId, Box<Input>),
    /// Performs the action after this number of milliseconds.
    Later(u64, Box<Self>),
}

/// A handoff that the agent knows.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    task: String,
    handoff: String,
    epoch: u64,
    other: String,
}

pub(crate) struct Agent {
    pub id: AgentId,
    pub manner: Manner,
    pub session: Option<ConsumerId>,
    /// The process. `None`: its sessions do not name it.
    pub instance: Option<InstanceId>,
    /// Whether its heartbeats tell what it works on.
    pub tells_work: bool,
    /// The number of tasks on its card; 0: none.
    pub capacity: u32,
    /// Whether the process does not say what it works on for a while.
    is_quiet: bool,
    /// Whether the process never comes back.
    pub is_retired: bool,
    /// Unanswered messages: the bytes, the time of the last attempt, and the number of attempts.
    pub unanswered: BTreeMap<u64, (Bytes, Timestamp, u32)>,
    /// The tasks that the agent believes to own, with their epochs.
    pub owned: BTreeMap<String, u64>,
    pub rng: Rng,
    key: PrivateKey,
    known: Vec<Known>,
    /// The tasks that the agent has offered to lend, with the handoffs. Not all of them became loans.
    lent: Vec<(String, String)>,
    /// The handoffs that offer a task in a thread to the agent.
    errands: HashSet<String>,
    bidding: bidding::Bidding,
    conversations: conversing::Conversations,
    reports: routing::Reports,
    shared: sharing::Shared,
    said: Vec<Bytes>,
    handled: HashSet<(String, String)>,
}

const CONTEXT: &str = r#"{"crash":"segfault"}"#;

pub(crate) fn context() -> v1::TaskContextTransfer {
    use baton_broker_core::envelope::signing;
    let section = v1::ContextSection {
        name: "collected_data".into(),
        content: Some(v1::context_section::Content::Json(CONTEXT.into())),
        ..Default::default()
    };
    let digest = signing::context_digest([("collected_data", signing::sha256(&[CONTEXT.as_bytes()]))]);
    v1::TaskContextTransfer { sections: vec![section], context_digest: digest.to_vec().into(), ..Default::default() }
}

impl Agent {
    pub(crate) fn new(name: &str, manner: Manner, rng: Rng) -> Self {
        let seed = envelope::signing::sha256(&[name.as_bytes()]);
        Self {
            id: AgentId::parse(name).unwrap(),
            manner,
            session: None,
            instance: None,
            tells_work: false,
            capacity: 0,
            is_quiet: false,
            is_retired: false,
            unanswered: BTreeMap::new(),
            owned: BTreeMap::new(),
            rng,
            key: PrivateKey::from_seed(&seed),
            known: Vec::new(),
            lent: Vec::new(),
            errands: HashSet::new(),
            bidding: bidding::Bidding::default(),
            conversations: conversing::Conversations::default(),
            reports: routing::Reports::default(),
            shared: sharing::Shared::default(),
            said: Vec::new(),
            handled: HashSet::new(),
        }
    }

    pub(crate) fn card(&self) -> v1::AgentCard {
        v1::AgentCard {
            agent_id: self.id.to_string(),
            agent_types: vec!["worker".into()],
            capacity: self.capacity,
            decides_within: (self.capacity % 2 == 1).then_some(prost_types::Duration { seconds: 60, nanos: 0 }),
            keys: vec![v1::AgentKey {
                key_id: "k1".into(),
                public_key: self.key.public().as_bytes().to_vec().into(),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    /// Ends the process. The next one has no memory, and finds the tasks of its agent or not.
    pub(crate) fn restart(&mut self, instance: InstanceId) {
        self.instance = self.instance.map(|_| instance);
        self.unanswered.clear();
        self.known.clear();
        self.errands.clear();
        self.handled.clear();
        if self.rng.once_in(2) {
            self.owned.clear();
        }
    }

    /// The tasks that the process lists in its next heartbeat.
    pub(crate) fn works_on(&mut self, may_be_quiet: bool) -> Vec<String> {
        if self.rng.once_in(6) {
            self.is_quiet = !self.is_quiet;
        }
        let says_nothing = may_be_quiet && (self.is_quiet || self.manner == Manner::Silent);
        if says_nothing || !self.tells_work { Vec::new() } else { self.owned.keys().cloned().collect() }
    }

    /// Makes the agent act of its own accord. Returns its actions.
    pub(crate) fn act(&mut self, others: &[String], tasks: u64, ids: &Ids, now: Timestamp) -> Vec<Action> {
        let other = others[usize::try_from(self.rng.roll(others.len() as u64)).unwrap()].clone();
        let mut actions = Vec::new();
        if self.manner == Manner::Liar && self.rng.once_in(2) {
            actions.extend(self.lie(&other, ids, now));
        }
        let action = match self.rng.roll(12) {
            0..=2 => self.hand_over(&other, others, tasks, ids, now),
            3 => self.inform(&other, ids, now),
            4 => self.report(&other, ids, now),
            5 => self.cancel(ids, now),
            6 => self.recall(ids, now),
            7 => Some(self.ask_for_offers(&other, tasks, ids, now)),
            8 => self.press(ids, now),
            9 => self.submit_plan(others, ids, now),
            10 => Some(self.create(tasks, ids, now)),
            _ => None,
        };
        actions.extend(action);
        if self.rng.once_in(4) {
            actions.extend(self.checkpoint(tasks, ids, now));
        }
        for _ in 0..self.rng.roll(3) {
            actions.push(self.append(tasks, ids, now));
        }
        actions
    }

    fn hand_over(&mut self, other: &str, others: &[String], tasks: u64, ids: &Ids, now: Timestamp) -> Option<Action> {
        let known: Vec<String> = self.owned.keys().cloned().collect();
        let task = match known.len() {
            0 => format!("task-{}", self.rng.roll(tasks)),
            _ if self.rng.once_in(3) => format!("task-{}", self.rng.roll(tasks)),
            many => known[usize::try_from(self.rng.roll(many as u64)).unwrap()].clone(),
        };
        let epoch = self.owned.get(&task).copied().unwrap_or(1);
        let seconds = |seconds: u64| {
            let seconds = i64::try_from(seconds).unwrap();
            (seconds > 0).then_some(prost_types::Duration { seconds, nanos: 0 })
        };
        let fallback = others[usize::try_from(self.rng.roll(others.len() as u64)).unwrap()].clone();
        let lends = self.rng.once_in(3);
        let loan_timeout = if lends { seconds(self.rng.roll(120)) } else { None };
        let silence_timeout = if self.rng.once_in(2) { seconds(5 + self.rng.roll(60)) } else { None };
        let is_extended = loan_timeout.is_some() && self.rng.once_in(3);
        let waits_for_nobody = self.rng.once_in(20);
        let deliver_after = self.rng.once_in(8).then(|| self.later(now));
        let thread_id = if lends && !self.rng.once_in(4) { self.thread_to_lend_in() } else { String::new() };
        let request = v1::HandoffRequest {
            task_type: "x".into(),
            fallback_candidates: if self.rng.once_in(2) && fallback != self.id.as_str() {
                vec![fallback]
            } else {
                vec![]
            },
            mode: if lends { v1::HandoffMode::Delegate.into() } else { 0 },
            loan_timeout,
            loan_timeout_max: if is_extended { seconds(120 + self.rng.roll(100)) } else { None },
            silence_timeout,
            return_when_abandoned: !lends && silence_timeout.is_some() && self.rng.once_in(2),
            wait_for_agent: waits_for_nobody,
            deliver_after,
            thread_id,
            priority: i32::try_from(self.rng.roll(5)).unwrap(),
            timeouts: Some(v1::HandoffTimeouts {
                // Some requests leave the time of the decision to the card of the candidate.
                accept: Some(self.rng.roll(20)).filter(|time| *time > 4).and_then(seconds),
                whole: Some(self.rng.roll(200)).filter(|time| *time > 40).and_then(seconds),
                ..Default::default()
            }),
            ..Default::default()
        };
        let to = match self.rng.roll(3) {
            _ if waits_for_nobody => "type:nobody",
            0 => "type:worker",
            _ => other,
        };
        let envelope = self.envelope(to, T::HandoffRequest, &task, "", epoch, &request, ids, now);
        if lends {
            self.lent.push((task, envelope.message_id.clone()));
        }
        Some(Action::Send(self.sign(envelope)))
    }

    /// Recalls the task of an earlier request, which may have lent it or not. A liar recalls loans of others, too.
    fn recall(&mut self, ids: &Ids, now: Timestamp) -> Option<Action> {
        let of_others = self.known.iter().filter(|_| self.manner == Manner::Liar);
        let of_others = of_others.map(|known| (known.task.clone(), known.handoff.clone()));
        let all: Vec<_> = self.lent.iter().cloned().chain(of_others).collect();
        let pick = usize::try_from(self.rng.number() >> 1).unwrap();
        let (task, handoff) = all.get(pick % all.len().max(1))?.clone();
        let recall = v1::TaskRecall::default();
        Some(Action::Send(self.make("", T::TaskRecall, &task, &handoff, 1, &recall, ids, now)))
    }

    /// Begins a task without a handoff: a new one, or one that somebody owns already. Sometimes a part of an own task.
    fn create(&mut self, tasks: u64, ids: &Ids, now: Timestamp) -> Action {
        let task = format!("task-{}", self.rng.roll(tasks));
        let parent = self.owned.keys().next().filter(|parent| **parent != task).cloned().unwrap_or_default();
        let create = v1::TaskCreate {
            task_type: "x".into(),
            parent_task_id: if self.rng.once_in(3) { parent } else { String::new() },
            conversation_id: if self.rng.once_in(2) { "chat 1".into() } else { String::new() },
            ..Default::default()
        };
        let bytes = self.make("", T::TaskCreate, &task, "", 1, &create, ids, now);
        // The broker may refuse it. Then the agent believes to own a task of another.
        self.owned.entry(task).or_insert(1);
        Action::Send(bytes)
    }

    fn inform(&mut self, other: &str, ids: &Ids, now: Timestamp) -> Option<Action> {
        let to = if self.rng.once_in(4) { "all:worker" } else { other };
        // Mail that expires before its time becomes a dead letter, which an operator may redrive at any time.
        let (deliver_after, expires_at) = match self.rng.roll(6) {
            0 | 1 => (None, Some(self.later(now))),
            2 => (Some(self.later(now)), None),
            _ => (None, None),
        };
        let info = v1::Info { deliver_after, ..Default::default() };
        let envelope = self.envelope(to, T::Info, "", "", 0, &info, ids, now);
        Some(Action::Send(self.sign(v1::Envelope { expires_at, ..envelope })))
    }

    /// A time within the next minute.
    fn later(&mut self, now: Timestamp) -> prost_types::Timestamp {
        let (seconds, nanos) = now.to_parts();
        prost_types::Timestamp { seconds: seconds + i64::try_from(1 + self.rng.roll(60)).unwrap(), nanos }
    }

    fn report(&mut self, other: &str, ids: &Ids, now: Timestamp) -> Option<Action> {
        let task = self.owned.keys().next()?.clone();
        let epoch = self.owned[&task];
        let status = match self.rng.roll(8) {
            0 => v1::TaskStatus::Completed,
            1 => v1::TaskStatus::Failed,
            2 => v1::TaskStatus::WaitingForInput,
            _ => v1::TaskStatus::InProgress,
        };
        let asks = status == v1::TaskStatus::WaitingForInput && other != self.id.as_str();
        let prompt = asks.then(|| self.question(other, now));
        let result_json = if self.rng.once_in(2) { "{}".to_owned() } else { String::new() };
        let extends = status == v1::TaskStatus::InProgress && self.rng.once_in(8);
        let extend_by = extends.then_some(prost_types::Duration { seconds: 100, nanos: 0 });
        let update = v1::TaskStatusUpdate {
            status: status.into(),
            details: "so".into(),
            prompt,
            result_json,
            extend_by,
            ..Default::default()
        };
        let to = if self.rng.once_in(2) { other } else { "" };
        Some(Action::Send(self.make(to, T::TaskStatusUpdate, &task, "", epoch, &update, ids, now)))
    }

    /// A question to one agent or to a type, often with a deadline.
    fn question(&mut self, other: &str, now: Timestamp) -> v1::TaskPrompt {
        let answer_by = if self.rng.once_in(3) { "type:worker".to_owned() } else { other.to_owned() };
        let answer_before = self.rng.once_in(2).then(|| {
            let (seconds, nanos) = now.to_parts();
            prost_types::Timestamp { seconds: seconds + i64::try_from(1 + self.rng.roll(120)).unwrap(), nanos }
        });
        v1::TaskPrompt { question: "which?".into(), answer_by, answer_before, ..Default::default() }
    }

    fn cancel(&mut self, ids: &Ids, now: Timestamp) -> Option<Action> {
        if !self.rng.once_in(3) {
            return None;
        }
        let known = self.known.last()?.clone();
        let cancel = v1::HandoffCancel::default();
        let bytes =
            self.make(&known.other, T::HandoffCancel, &known.task, &known.handoff, known.epoch, &cancel, ids, now);
        Some(Action::Send(bytes))
    }

    fn lie(&mut self, other: &str, ids: &Ids, now: Timestamp) -> Option<Action> {
        let pick = usize::try_from(self.rng.number() >> 1).unwrap();
        let known = (!self.known.is_empty()).then(|| self.known[pick % self.known.len()].clone());
        match self.rng.roll(6) {
            // Another agent's name under its own key.
            0 if other == self.id.as_str() => None,
            0 => {
                let mut envelope = self.envelope(self.id.as_str(), T::Info, "", "", 0, &v1::Info::default(), ids, now);
                envelope.sender_id = other.to_owned();
                Some(Action::Forge(self.sign(envelope)))
            }
            // Another message under a used id.
            1 => {
                let said = (!self.said.is_empty()).then(|| self.said[pick % self.said.len()].clone())?;
                let said = v1::Envelope::decode(said).unwrap();
                let info = v1::Info { text: "something else".into(), ..Default::default() };
                let envelope = self.envelope(other, T::Info, "", "", 0, &info, ids, now);
                Some(Action::Send(self.sign(v1::Envelope { message_id: said.message_id, ..envelope })))
            }
            2 => self.lie_about_offers(other, ids, now),
            // A message on behalf of another agent, at an invented epoch.
            kind => {
                let known = known?;
                let epoch = (known.epoch + self.rng.roll(3)).saturating_sub(1).max(1);
                let complete = v1::HandoffComplete {
                    outcome: v1::HandoffOutcome::Success.into(),
                    context_digest: context().context_digest,
                    ..Default::default()
                };
                let (task, handoff, to) = (&known.task.clone(), &known.handoff.clone(), &known.other.clone());
                let bytes = match kind {
                    3 => self.make(to, T::HandoffAccept, task, handoff, epoch, &v1::HandoffAccept::default(), ids, now),
                    4 => self.make(to, T::TaskContextTransfer, task, handoff, epoch, &context(), ids, now),
                    _ => self.make(to, T::HandoffComplete, task, handoff, epoch, &complete, ids, now),
                };
                Some(Action::Send(bytes))
            }
        }
    }

    /// Handles a received message.
    pub(crate) fn take(
        &mut self,
        delivery_id: &str,
        handoff: &str,
        envelope: &v1::Envelope,
        ids: &Ids,
        now: Timestamp,
    ) -> Vec<Action> {
        let ack = |fate| Action::Acknowledge(delivery_id.to_owned(), fate);
        let is_new = self.handled.insert((envelope.message_id.clone(), handoff.to_owned()));
        if self.manner == Manner::Silent && self.rng.roll(8) > 0 {
            self.handled.remove(&(envelope.message_id.clone(), handoff.to_owned()));
            return Vec::new();
        }
        let is_failing = self.manner == Manner::Failing && self.rng.roll(8) > 0;
        if is_failing || self.manner != Manner::Diligent && self.rng.once_in(6) {
            self.handled.remove(&(envelope.message_id.clone(), handoff.to_owned()));
            let text = "not now".to_owned();
            return vec![match self.rng.roll(8) {
                0 => ack(Fate::Poison { text }),
                1..=3 => ack(Fate::Shutdown { text, retry_after: None }),
                4 => ack(Fate::Extend { extension: None }),
                _ => ack(Fate::Failed { text, retry_after: None }),
            }];
        }
        let answer = if is_new { self.answer(handoff, envelope, ids, now) } else { None };
        let mut actions = Vec::new();
        let ack_first = self.rng.once_in(2);
        if ack_first {
            actions.push(ack(Fate::Acked));
        }
        if let Some(bytes) = answer {
            if self.manner == Manner::Double {
                actions.push(Action::Send(bytes.clone()));
                actions.push(Action::Later(self.rng.roll(60_000), Box::new(Action::Send(bytes.clone()))));
            }
            let late = if self.manner == Manner::Slow { self.rng.roll(90_000) } else { self.rng.roll(50) };
            actions.push(Action::Later(late, Box::new(Action::Send(bytes))));
        }
        if !ack_first {
            actions.push(Action::Later(self.rng.roll(100), Box::new(ack(Fate::Acked))));
        }
        // The coordinator also hands on tasks that an operator has taken: their agents report what they like.
        let is_subtask = envelope.sender_id == "baton.coordinator" && envelope.task_id.starts_with("baton.");
        if is_new && envelope.message_type() == T::TaskContextTransfer {
            if is_subtask {
                actions.extend(self.carry_out(envelope, ids, now));
            }
            actions.extend(self.run_errand(handoff, envelope, ids, now));
        }
        actions
    }

    fn answer(&mut self, handoff: &str, envelope: &v1::Envelope, ids: &Ids, now: Timestamp) -> Option<Bytes> {
        let (to, task, epoch) = (&envelope.sender_id, &envelope.task_id, envelope.epoch);
        if !handoff.is_empty() && !task.is_empty() {
            let (task, handoff, other) = (task.clone(), handoff.to_owned(), to.clone());
            self.known.push(Known { task, handoff, epoch, other });
        }
        match envelope.message_type() {
            T::HandoffRequest if self.manner != Manner::Diligent && self.rng.once_in(4) => {
                let reject = v1::HandoffReject {
                    reason: self.rng.pick(&[v1::RejectReason::Other, v1::RejectReason::Overloaded]).into(),
                    alternative_agent_suggestions: vec!["a".into(), "unknown".into()],
                    retry_after: self.rng.once_in(2).then(|| prost_types::Duration {
                        seconds: i64::try_from(self.rng.roll(90)).unwrap(),
                        nanos: 0,
                    }),
                    ..Default::default()
                };
                Some(self.make(to, T::HandoffReject, task, handoff, epoch, &reject, ids, now))
            }
            T::HandoffRequest => {
                self.note_errand(handoff, envelope);
                let seconds = i64::try_from(self.rng.roll(400)).unwrap();
                let estimate = self.rng.once_in(3).then_some(prost_types::Duration { seconds, nanos: 0 });
                let accept = v1::HandoffAccept { estimated_handoff_time: estimate, ..Default::default() };
                Some(self.make(to, T::HandoffAccept, task, handoff, epoch, &accept, ids, now))
            }
            // Also agents that were not asked answer, and slow ones after others or too late.
            T::TaskStatusUpdate if envelope.payload.is_some() => {
                let update = v1::TaskStatusUpdate::decode(envelope.payload.clone()?.value).ok()?;
                update.prompt.filter(|_| !self.rng.once_in(8))?;
                let input = v1::TaskInput { text: "that".into(), ..Default::default() };
                Some(self.make("", T::TaskInput, task, &envelope.message_id.clone(), epoch, &input, ids, now))
            }
            T::HandoffAccept => {
                let context = if self.rng.once_in(4) { context() } else { self.a_context(task) };
                Some(self.make(to, T::TaskContextTransfer, task, handoff, epoch, &context, ids, now))
            }
            T::TaskContextTransfer => {
                self.learn(envelope);
                let failed = self.manner != Manner::Diligent && self.rng.once_in(6);
                let outcome = if failed { v1::HandoffOutcome::Failure } else { v1::HandoffOutcome::Success };
                let complete = v1::HandoffComplete {
                    outcome: outcome.into(),
                    context_digest: planning::digest_in(envelope),
                    ..Default::default()
                };
                Some(self.make(to, T::HandoffComplete, task, handoff, epoch, &complete, ids, now))
            }
            _ => self.answer_in_negotiation(handoff, envelope, ids, now),
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
        v1::Envelope {
            message_id: ids.message_id(now).to_string(),
            sender_id: self.id.to_string(),
            receiver_id: to.to_owned(),
            timestamp: Some(now.into()),
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
