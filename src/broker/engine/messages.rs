//! Taking envelopes: repeats, time, whom they go to, and what they do.

use std::{sync::Arc, time::Duration};

use prost_types::Timestamp as WireTime;

use super::{
    Engine,
    authorization::{Work, permitted},
    run::{Origin, RunError, ThisMessage},
    transaction::Transaction,
};
use crate::{
    broker::{BrokerError, Refused, refused},
    codes::{FieldViolation, Refusal},
    domain::{
        EntityId, Header, Input, Receiver, admission,
        handoff::{self, Handoff, LoopLimits, Message, Priority, Rejection, Task, Timeouts},
        mailbox::Keeper,
    },
    envelope::{self, Body, RequestBody, RequestedTimeouts, Resolved, VerifiedEnvelope},
    faults::{Fault, is_on},
    ids::{AgentId, TaskId},
    proto::v1,
    records::{CustodyEvent, EntityRecord, EnvelopeFacts, MessageRecord},
    time::Timestamp,
};

impl Engine {
    pub(super) fn submit(&mut self, envelope: &VerifiedEnvelope, now: Timestamp) -> Result<v1::Receipt, Refused> {
        if self.batch.failed {
            return Err(refused(BrokerError::StoreUnavailable));
        }
        let mut transaction = self.transaction();
        let key = MessageRecord::key(envelope.header().message_id);
        if let Some(known) = self.read(&mut transaction, &key).map_err(refused)? {
            return repeat(envelope, &known.value);
        }
        self.check_time(envelope.header(), now).map_err(refused)?;
        if let Body::Heartbeat(heartbeat) = envelope.body() {
            self.take_heartbeat(&envelope.header().sender, heartbeat.clone(), now);
            return Ok(heartbeat_receipt(envelope.header(), now));
        }
        if let Receiver::Agent(to) = &envelope.header().receiver
            && self.env.directory.is_registered(to)
        {
            self.check_mailbox(to).map_err(refused)?;
        }
        self.settle_overdue(envelope.header(), now).map_err(refused)?;
        match envelope.body() {
            Body::Heartbeat(_) => unreachable!("taken above"),
            Body::Mail => self.take_mail(transaction, envelope, now),
            Body::Request(request) => self.take_request(transaction, envelope, request, now),
            Body::Handoff(Message::Reject { suggestions, .. }) => {
                let able = self.able_suggestions(envelope.header(), suggestions).map_err(refused)?;
                self.make_step(transaction, envelope, Resolved { agents: &able, terms: None }, now)
            }
            Body::Handoff(_) => self.make_step(transaction, envelope, Resolved { agents: &[], terms: None }, now),
            Body::Status { .. } => {
                let receivers = self.receivers(envelope.header(), now).map_err(refused)?;
                self.make_step(transaction, envelope, Resolved { agents: &receivers, terms: None }, now)
            }
        }
    }

    /// Of those that a reject suggests: those that are registered, and that the policy lets the owner ask.
    fn able_suggestions(&mut self, header: &Header, suggestions: &[AgentId]) -> Result<Vec<AgentId>, BrokerError> {
        let Some(handoff) = header.correlation.filter(|_| !suggestions.is_empty()) else { return Ok(Vec::new()) };
        let stored = self.entity_record(&mut self.transaction(), &EntityId::Handoff(handoff))?;
        let Some(stored) = stored.as_deref().and_then(EntityRecord::as_handoff) else { return Ok(Vec::new()) };
        let work = Work::of_handoff(&stored.handoff);
        let is_able =
            |agent: &&AgentId| self.env.directory.is_registered(agent) && self.check_hand_off(&work, agent).is_ok();
        Ok(suggestions.iter().filter(is_able).cloned().collect())
    }

    /// A repeat may be older than the window, and so this comes after the repeats.
    fn check_time(&self, header: &Header, now: Timestamp) -> Result<(), BrokerError> {
        let off_by = header.timestamp.since(now).max(now.since(header.timestamp));
        let window = self.env.settings.clock_window;
        if off_by > window && !is_on(Fault::TakesAnyTime) {
            return Err(BrokerError::TimestampOutsideWindow { off_by, window });
        }
        // Only where the clock was ahead, and is set right: else those ids are older than the window.
        if header.timestamp <= self.batch.head.message_ids_gone && !is_on(Fault::TakesAnyTime) {
            return Err(BrokerError::TimestampForgotten { upto: self.batch.head.message_ids_gone });
        }
        match header.expires_at {
            Some(expired_at) if expired_at <= now => Err(BrokerError::MessageExpired { expired_at }),
            Some(_) | None => Ok(()),
        }
    }

    /// What is overdue happens before the message, so that a late one finds the state that time has made.
    fn settle_overdue(&mut self, header: &Header, now: Timestamp) -> Result<(), BrokerError> {
        let running = self.timers.clock.running();
        // Each handoff that is open has a timer.
        if self.timers.next().is_none_or(|at| at > running) {
            return Ok(());
        }
        let Some(task) = &header.task else { return Ok(()) };
        let stored = self.entity_record(&mut self.transaction(), &EntityId::Task(task.clone()))?;
        let Some(stored) = stored.as_deref().and_then(EntityRecord::as_task) else { return Ok(()) };
        let Some(open) = stored.task.open_handoff.map(EntityId::Handoff) else { return Ok(()) };
        if self.deadline_of(&open)?.is_some_and(|due| due <= running) {
            self.pass_time(&open, now)?;
        }
        Ok(())
    }

    pub(super) fn take_heartbeat(&mut self, agent: &AgentId, heartbeat: v1::Heartbeat, now: Timestamp) {
        self.env.directory.change_presence(agent, |presence| presence.heartbeat = Some((heartbeat, now)));
        self.seen(agent, now);
    }

    fn take_request(
        &mut self,
        transaction: Transaction,
        envelope: &VerifiedEnvelope,
        request: &RequestBody,
        now: Timestamp,
    ) -> Result<v1::Receipt, Refused> {
        let header = envelope.header();
        check_fallbacks(header, request).map_err(refused)?;
        self.check_open_handoffs(&header.sender).map_err(refused)?;
        let candidates = self.candidates(header, request, now).map_err(refused)?;
        let timeouts = self.timeouts(&request.timeouts).map_err(refused)?;
        let terms = Some((timeouts, self.loop_limits(request.loop_limits)));
        self.make_step(transaction, envelope, Resolved { agents: &candidates, terms }, now)
    }

    /// The receiver, or the able agents of its type, then the fallbacks; each once, never the sender.
    pub(super) fn candidates(
        &self,
        header: &Header,
        request: &RequestBody,
        now: Timestamp,
    ) -> Result<Vec<AgentId>, BrokerError> {
        let work = Work::of_request(header, request);
        let named = |agent: &AgentId| {
            let agent = self.registered(agent)?;
            self.check_hand_off(&work, &agent).map(|()| agent)
        };
        let mut candidates = match &header.receiver {
            Receiver::Agent(agent) if *agent == header.sender => {
                let problem = "an agent cannot hand a task to itself".to_owned();
                return Err(BrokerError::ReceiverInvalid { receiver: header.sender.to_string(), problem });
            }
            Receiver::Agent(agent) => vec![named(agent)?],
            Receiver::AnyOf(agent_type) => {
                let mut able = self.env.directory.able(agent_type, &request.required_skills, now);
                able.retain(|agent| *agent != header.sender);
                permitted(able, |agent| self.check_hand_off(&work, agent))?
            }
            Receiver::Nobody | Receiver::AllOf(_) => unreachable!("refused when the envelope was parsed"),
        };
        for fallback in request.fallback_candidates.iter().filter(|agent| **agent != header.sender) {
            candidates.push(named(fallback)?);
        }
        let mut seen = std::collections::HashSet::new();
        candidates.retain(|candidate| *candidate != header.sender && seen.insert(candidate.clone()));
        candidates.truncate(handoff::OFFERS_MAX);
        if candidates.is_empty() {
            return Err(BrokerError::ReceiverUnknown { receiver: header.receiver.to_string() });
        }
        Ok(candidates)
    }

    pub(super) fn registered(&self, agent: &AgentId) -> Result<AgentId, BrokerError> {
        if *agent == AgentId::broker() {
            let problem = "it is the broker itself".to_owned();
            return Err(BrokerError::ReceiverInvalid { receiver: agent.to_string(), problem });
        }
        match self.env.directory.is_registered(agent) {
            true => Ok(agent.clone()),
            false => Err(BrokerError::ReceiverUnknown { receiver: agent.to_string() }),
        }
    }

    fn timeouts(&self, wanted: &RequestedTimeouts) -> Result<Timeouts, BrokerError> {
        let bounds = self.env.settings.timeout_bounds;
        let mut violations = Vec::new();
        let mut choose = |name: &str, wanted: Option<Duration>, otherwise: Duration| {
            let span = wanted.unwrap_or(otherwise);
            if span < bounds.shortest || span > bounds.longest {
                let problem = format!("must be from {:?} to {:?}, not {span:?}", bounds.shortest, bounds.longest);
                violations.push(FieldViolation { path: format!("envelope.payload.timeouts.{name}"), problem });
            }
            span
        };
        let defaults = self.env.settings.timeouts;
        let timeouts = Timeouts {
            accept: choose("accept", wanted.accept, defaults.accept),
            context: choose("context", wanted.context, defaults.context),
            complete: choose("complete", wanted.complete, defaults.complete),
            whole: choose("whole", wanted.whole, defaults.whole),
        };
        if violations.is_empty() { Ok(timeouts) } else { Err(BrokerError::Fields { violations }) }
    }

    fn loop_limits(&self, (handoffs, per_pair): (u32, u32)) -> LoopLimits {
        if is_on(Fault::StopsNoLoop) {
            return LoopLimits { handoffs_max: u32::MAX, handoffs_per_pair_max: u32::MAX };
        }
        let most = self.env.settings.loop_limits;
        let lower = |wanted: u32, most: u32| if wanted == 0 { most } else { wanted.min(most) };
        LoopLimits {
            handoffs_max: lower(handoffs, most.handoffs_max),
            handoffs_per_pair_max: lower(per_pair, most.handoffs_per_pair_max),
        }
    }

    /// One step for a message: all of it in the transaction, or a refusal, which the custody log may have to keep.
    fn make_step(
        &mut self,
        mut transaction: Transaction,
        envelope: &VerifiedEnvelope,
        resolved: Resolved<'_>,
        now: Timestamp,
    ) -> Result<v1::Receipt, Refused> {
        let header = envelope.header();
        let task = header.task.clone().expect("checked when the envelope was parsed");
        let input = envelope::input_of(header, envelope.body(), resolved).expect("mail is taken elsewhere");
        let about = match header.handoff() {
            Some(handoff) => EntityId::Handoff(handoff),
            None => EntityId::Task(task.clone()),
        };
        let named = self.named(&mut transaction, &task, &about).map_err(refused)?;
        if named.task.is_none() {
            self.check_not_removed(&mut transaction, header)?;
            if !matches!(input, handoff::Input::Request(_)) {
                return Err(refused(admission::outsider(header, &task)));
            }
        } else if !self.takes_part(&mut transaction, header, &named).map_err(refused)? {
            return Err(refused(admission::outsider(header, &task)));
        }
        admission::check_handoff(header, named.handoff.as_deref()).map_err(refused)?;
        let sequence = self.batch.head.next_sequence;
        let event = CustodyEvent::Accepted(EnvelopeFacts { envelope, sequence, resolved });
        // Taken at once: a step may need further sequences for what it sends.
        let this = ThisMessage { envelope, sequence: self.new_sequence() };
        let input = Input::Handoff { task, input };
        match self.run(&mut transaction, &about, &input, Some(&event), Origin::Message(this), now) {
            Ok(true) => Ok(self.accept(transaction, this, now)),
            Ok(false) => Err(refused(BrokerError::Internal)), // a message is taken or rejected
            Err(RunError::Broker(error)) => Err(refused(error)),
            Err(RunError::Rejected(rejection)) => {
                self.batch.head.next_sequence = sequence;
                if rejection.is_recorded() {
                    self.keep_refusal(envelope, &rejection, now).map_err(refused)?;
                }
                Err(refused(rejection))
            }
        }
    }

    /// The task that a message names, and the handoff.
    pub(super) fn named(
        &mut self,
        transaction: &mut Transaction,
        task: &TaskId,
        about: &EntityId,
    ) -> Result<Named, BrokerError> {
        let task = self.entity_record(transaction, &EntityId::Task(task.clone()))?;
        let handoff = self.entity_record(transaction, about)?;
        Ok(Named {
            task: task.and_then(|record| Some(record.as_task()?.task.clone())),
            handoff: handoff.and_then(|record| Some(record.as_handoff()?.handoff.clone())),
        })
    }

    /// Keeps a refusal in the task's custody log, as SPEC 3 asks for what came too late.
    fn keep_refusal(
        &mut self,
        envelope: &VerifiedEnvelope,
        rejection: &Rejection,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let header = envelope.header();
        let Some(task) = &header.task else { return Ok(()) };
        let mut transaction = self.transaction();
        let about = header.correlation.map_or(EntityId::Task(task.clone()), EntityId::Handoff);
        let named = self.named(&mut transaction, task, &about)?;
        let stored = self.entity_record(&mut transaction, &EntityId::Task(task.clone()))?;
        let Some(record) = stored.as_deref().and_then(EntityRecord::as_task) else { return Ok(()) };
        // An agent that only was asked leaves the other half to those that own the task or owned it.
        let most = self.env.settings.refusals_recorded_max;
        let is_owners = record.task.has_been_owned_by(&header.sender);
        let most = if is_owners { most } else { most.div_ceil(2) };
        if record.refusals_recorded >= most || is_on(Fault::RecordsNoLateMessage) {
            return Ok(());
        }
        let facts = EnvelopeFacts { envelope, sequence: 0, resolved: Resolved { agents: &[], terms: None } };
        let event = CustodyEvent::Refused(facts, rejection.code());
        self.append_custody(&mut transaction, task, &event, named.handoff.as_deref(), &[], now)?;
        transaction.count_refusal(task);
        self.stage(transaction);
        Ok(())
    }

    /// Mail that the broker only carries. From those who take part in the task that it names it is fenced, and on record like
    /// everything else; from others it is mail like any other.
    fn take_mail(
        &mut self,
        mut transaction: Transaction,
        envelope: &VerifiedEnvelope,
        now: Timestamp,
    ) -> Result<v1::Receipt, Refused> {
        let header = envelope.header();
        let receivers = self.receivers(header, now).map_err(refused)?;
        let mut named = Named::default();
        if let Some(task) = &header.task {
            let about = header.correlation.map_or(EntityId::Task(task.clone()), EntityId::Handoff);
            named = self.named(&mut transaction, task, &about).map_err(refused)?;
        }
        let is_strangers =
            named.task.is_some() && !self.takes_part(&mut transaction, header, &named).map_err(refused)?;
        let task = named.task.filter(|_| !is_strangers);
        if task.is_none() && !is_strangers {
            self.check_not_stale(&mut transaction, header)?;
        }
        if let Some(current) = task.as_ref().map(|task| task.epoch)
            && header.epoch != 0
            && header.epoch < current
        {
            let rejection = Rejection::StaleEpoch { claimed: header.epoch, current };
            self.keep_refusal(envelope, &rejection, now).map_err(refused)?;
            return Err(refused(rejection));
        }
        let this = ThisMessage { envelope, sequence: self.new_sequence() };
        let keeper = match (&task, receivers.len()) {
            (Some(_), _) => Keeper::Log,
            (None, 0 | 1) => Keeper::Letter,
            (None, many) => {
                transaction
                    .put_new(MessageRecord::shared_key(this.sequence), MessageRecord::encode_shared(many as u64));
                Keeper::Letters
            }
        };
        for to in &receivers {
            self.deliver_this(&mut transaction, to, this, (keeper, None), Priority::default(), now);
        }
        if let Some(task) = task {
            let resolved = Resolved { agents: &receivers, terms: None };
            let event = CustodyEvent::Accepted(EnvelopeFacts { envelope, sequence: this.sequence, resolved });
            self.append_custody(&mut transaction, &task.id, &event, None, &[], now).map_err(refused)?;
        }
        Ok(self.accept(transaction, this, now))
    }

    /// The registered agents that the receiver_id stands for, never the sender of an `all:`.
    fn receivers(&self, header: &Header, now: Timestamp) -> Result<Vec<AgentId>, BrokerError> {
        let unknown = || BrokerError::ReceiverUnknown { receiver: header.receiver.to_string() };
        match &header.receiver {
            Receiver::Nobody => Ok(Vec::new()),
            Receiver::Agent(agent) => {
                let agent = self.registered(agent)?;
                self.check_send(header, &agent)?;
                Ok(vec![agent])
            }
            Receiver::AnyOf(agent_type) => {
                let mut able = self.env.directory.able(agent_type, &[], now);
                able.retain(|agent| *agent != header.sender);
                let mut able = permitted(able, |agent| self.check_send(header, agent))?;
                able.truncate(1);
                if able.is_empty() { Err(unknown()) } else { Ok(able) }
            }
            Receiver::AllOf(agent_type) => {
                self.check_send_to_all(header, agent_type)?;
                let everybody = self.env.directory.list(None, usize::MAX, Some(agent_type));
                let mut everybody: Vec<_> = everybody.iter().map(|entry| entry.id()).collect();
                everybody.retain(|agent| *agent != header.sender);
                let everybody = permitted(everybody, |agent| self.check_send(header, agent))?;
                if everybody.is_empty() { Err(unknown()) } else { Ok(everybody) }
            }
        }
    }

    /// Stores the envelope and its receipt with everything that it changes.
    fn accept(&mut self, mut transaction: Transaction, this: ThisMessage<'_>, now: Timestamp) -> v1::Receipt {
        let header = this.envelope.header();
        let record = MessageRecord {
            sequence: this.sequence,
            content_digest: *this.envelope.content_digest(),
            receipt: receipt(header, this.sequence, &transaction, now),
        };
        transaction.put_new(MessageRecord::envelope_key(this.sequence), this.envelope.raw().clone());
        transaction.put_new(MessageRecord::key(header.message_id), record.encode());
        self.batch.accepted.push(header.message_id);
        self.stage(transaction);
        record.receipt
    }
}

/// The task and the handoff that a message names, as far as there are such.
#[derive(Default)]
pub(super) struct Named {
    pub(super) task: Option<Arc<Task>>,
    pub(super) handoff: Option<Arc<Handoff>>,
}

fn repeat(envelope: &VerifiedEnvelope, stored: &bytes::Bytes) -> Result<v1::Receipt, Refused> {
    let known = MessageRecord::decode(stored).map_err(|error| refused(BrokerError::from(error)))?;
    if known.content_digest == *envelope.content_digest() {
        let mut receipt = known.receipt;
        receipt.sequence += u64::from(is_on(Fault::AnswersRepeatsAnew));
        Ok(receipt)
    } else {
        Err(refused(BrokerError::MessageIdReused { message_id: envelope.header().message_id }))
    }
}

/// A sender cannot fall back on itself: it keeps the task if no candidate takes it.
fn check_fallbacks(header: &Header, request: &RequestBody) -> Result<(), BrokerError> {
    let violation = |place| FieldViolation {
        path: format!("envelope.payload.fallback_candidates[{place}]"),
        problem: "must not be the sender, which keeps the task if no candidate takes it".to_owned(),
    };
    let of_sender = request.fallback_candidates.iter().enumerate().filter(|(_, agent)| **agent == header.sender);
    let violations: Vec<_> = of_sender.map(|(place, _)| violation(place)).collect();
    if violations.is_empty() { Ok(()) } else { Err(BrokerError::Fields { violations }) }
}

/// The receipt says what the transaction has made of the task and of the handoff.
fn receipt(header: &Header, sequence: u64, transaction: &Transaction, now: Timestamp) -> v1::Receipt {
    let task = transaction.all_written().find_map(|record| record.as_task());
    let handoff = transaction.all_written().find_map(|record| record.as_handoff()).map(|record| &record.handoff);
    v1::Receipt {
        message_id: header.message_id.to_string(),
        sequence,
        // That of the entry, from which the receipt can be made again.
        accept_time: Some(wire_time(task.map_or(now, |record| record.logged_at))),
        task_id: header.task.as_ref().map(ToString::to_string).unwrap_or_default(),
        task_status: task.map_or(0, |record| record.task.status.number()),
        owner_id: task.map(|record| record.task.owner.to_string()).unwrap_or_default(),
        epoch: task.map_or(0, |record| record.task.epoch),
        handoff_id: handoff.map(|handoff| handoff.id.to_string()).unwrap_or_default(),
        handoff_state: handoff.map_or(0, |handoff| handoff.state.number()),
        custody_hash: task.map(|record| record.custody.hash.to_vec().into()).unwrap_or_default(),
        key_id: String::new(),
        signature: bytes::Bytes::new(),
    }
}

/// A heartbeat is not stored, and has no place in the order of what is.
fn heartbeat_receipt(header: &Header, now: Timestamp) -> v1::Receipt {
    v1::Receipt { message_id: header.message_id.to_string(), accept_time: Some(wire_time(now)), ..Default::default() }
}

fn wire_time(time: Timestamp) -> WireTime {
    let (seconds, nanos) = time.to_parts();
    WireTime { seconds, nanos }
}
