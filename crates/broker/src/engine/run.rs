//! Running the state machines: the reader of a step, the writes of a step, and the execution of its effects.

mod handoff_update;
mod node_letters;
mod reading;
mod runs_of_task;
mod unasked;

use std::{collections::VecDeque, sync::Arc};

use self::handoff_update::HandoffUpdate;
pub(super) use self::reading::OpenTransaction;
use super::{Engine, absences::owners_of, transaction::Transaction};
use crate::{
    BrokerError, Refused,
    domain::{
        Effect, Entity, EntityId, Handling, Input, Mail, MessageType, ReadError, Signal, StepError, Transition,
        coordinator::Order,
        handoff::{Cancellation, Handoff, Rejection, TaskSignal},
        mailbox::EnvelopeOwner,
        matching::ended_offer,
        negotiation::{Award, NegotiationSignal},
        step,
    },
    envelope::VerifiedEnvelope,
    ids::{AgentId, MessageId, TaskId},
    records::{
        CustodyEvent, EntityRecord, EnvelopeFacts, LogClock, LogEntry, LogItem, NotFree, RequestPlace, TaskRecord,
        WriteFacts, custody_entry,
    },
    refused,
    time::Timestamp,
};

/// The most inputs that one step may send to other entities in its own transaction. Further ones go through the outbox.
const TOLD_A_TRANSACTION: usize = 16;
/// The most messages of the coordinator that are sent one within the step of the other before inputs wait.
const ORDER_DEPTH_MAX: u32 = 4;

/// The cause of a step, and its event in the custody logs of the tasks that it changes.
#[derive(Clone, Copy)]
pub(super) struct Cause<'a> {
    pub(super) origin: Origin<'a>,
    /// `None`: the step changes no task.
    pub(super) event: Option<&'a CustodyEvent<'a>>,
}

impl Cause<'_> {
    /// An input from another entity.
    pub(super) const SIGNAL: Self = Self { origin: Origin::Broker, event: None };
}

/// What follows from a step in the same transaction.
#[derive(Default)]
struct FollowUps {
    /// Inputs for other entities, in their order.
    to_send: VecDeque<(EntityId, Signal)>,
    /// Messages that the coordinator sends.
    orders: Vec<Order>,
}

/// The origin of a step: a message, a stored request that is redriven or awarded, or the broker itself.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    Message(ThisMessage<'a>),
    StoredRequest(RequestPlace),
    Broker,
}

impl<'a> Origin<'a> {
    fn message(self) -> Option<ThisMessage<'a>> {
        match self {
            Self::Message(this) => Some(this),
            Self::StoredRequest(_) | Self::Broker => None,
        }
    }

    /// The message that opens an entity which this step creates.
    fn opening(self) -> Option<RequestPlace> {
        match self {
            Self::Message(this) => {
                let header = this.envelope.header();
                let (message, expires_at) = (header.message_id, header.expires_at);
                Some(RequestPlace { message, sequence: this.sequence, expires_at })
            }
            Self::StoredRequest(request) => Some(request),
            Self::Broker => None,
        }
    }
}

/// The reasons why a step fails.
#[derive(Debug)]
pub(super) enum RunError {
    /// A rejection of the handoff machine, which a custody log may record.
    Rejected(Rejection),
    /// A rejection of any other machine.
    Refused(Refused),
    /// The broker fails; the same step may succeed later.
    Broker(BrokerError),
}

impl RunError {
    /// The answer to the caller whose input failed.
    pub(super) fn into_refusal(self) -> Refused {
        match self {
            Self::Rejected(rejection) => refused(rejection),
            Self::Refused(refusal) => refusal,
            Self::Broker(error) => refused(error),
        }
    }

    /// The refusal by a machine, which the same step would meet again. Fails with the fault of the broker.
    pub(super) fn by_machine(self) -> Result<Refused, BrokerError> {
        match self {
            Self::Broker(error) => Err(error),
            Self::Rejected(_) | Self::Refused(_) => Ok(self.into_refusal()),
        }
    }
}

impl<E: Into<BrokerError>> From<E> for RunError {
    fn from(error: E) -> Self {
        Self::Broker(error.into())
    }
}

/// A message as the input of a step: the envelope and its sequence.
#[derive(Clone, Copy)]
pub(super) struct ThisMessage<'a> {
    pub(super) envelope: &'a VerifiedEnvelope,
    pub(super) sequence: u64,
    /// The owner of the envelope that its letters get.
    pub(super) owner: EnvelopeOwner,
    /// The sequence of the copy of the envelope that a new entity keeps.
    pub(super) copy: Option<u64>,
}

impl Engine {
    /// Runs one step of an entity and the steps that follow from its `Send` effects, and writes all of it into the
    /// transaction. Returns false if the step changes nothing.
    pub(super) fn run(
        &mut self,
        transaction: &mut Transaction,
        about: &EntityId,
        input: &Input,
        cause: Cause<'_>,
        now: Timestamp,
    ) -> Result<bool, RunError> {
        let mut follow_ups = FollowUps::default();
        let has_changed = self.run_one(transaction, about, input, cause, &mut follow_ups, now)?;
        self.send_all(transaction, follow_ups, now)?;
        Ok(has_changed)
    }

    /// Runs the step of an input that another entity has sent, and the steps that follow.
    pub(super) fn run_signal(
        &mut self,
        transaction: &mut Transaction,
        to: &EntityId,
        signal: Signal,
        now: Timestamp,
    ) -> Result<(), RunError> {
        let mut follow_ups = FollowUps::default();
        self.send_one(transaction, to, signal, &mut follow_ups, now)?;
        self.send_all(transaction, follow_ups, now)
    }

    fn send_all(
        &mut self,
        transaction: &mut Transaction,
        mut follow_ups: FollowUps,
        now: Timestamp,
    ) -> Result<(), RunError> {
        // Inputs that already wait in the outbox go first, so no later input overtakes them.
        // Messages of the coordinator may cause further ones: beyond a few, one within the other, they wait too.
        let must_wait =
            self.entities.has_outbox() || self.batch.writes_outbox || transaction.order_depth > ORDER_DEPTH_MAX;
        let mut room = if must_wait { 0 } else { TOLD_A_TRANSACTION };
        while let Some((to, signal)) = follow_ups.to_send.pop_front() {
            if signal.waits_for_commit() {
                room = 0; // no later input overtakes it
            }
            if room == 0 {
                self.put_outbox(transaction, to, signal);
                continue;
            }
            room -= 1;
            // A failure here fails the first step too: one commit applies all of these steps, or none.
            self.send_one(transaction, &to, signal, &mut follow_ups, now)?;
        }
        // A message of the coordinator is a step like any other, so a failure here fails the first step too.
        for order in follow_ups.orders {
            self.carry_out(transaction, &order, now)?;
        }
        Ok(())
    }

    fn send_one(
        &mut self,
        transaction: &mut Transaction,
        to: &EntityId,
        signal: Signal,
        follow_ups: &mut FollowUps,
        now: Timestamp,
    ) -> Result<(), RunError> {
        if let Signal::Task(TaskSignal::ParentCanceled { parent }) = &signal {
            let why = Cancellation::WithParent(parent.clone());
            let event = CustodyEvent::Cancelled(&why);
            let cause = Cause { origin: Origin::Broker, event: Some(&event) };
            self.run_one(transaction, to, &Input::Signal(signal), cause, follow_ups, now)?;
            return Ok(());
        }
        let Signal::Handoff(award) = &signal else {
            self.run_one(transaction, to, &Input::Signal(signal), Cause::SIGNAL, follow_ups, now)?;
            return Ok(());
        };
        // The machine knows no removed tasks, and a new handoff would begin such a task again.
        if self.entity_record(transaction, &EntityId::Task(award.task.clone()))?.is_none()
            && let Some(removed) = self.removed_task(transaction, &award.task)?
        {
            let rejection = Rejection::TaskFinal { status: removed.status };
            let signal = NegotiationSignal::not_opened(award.negotiation, &rejection);
            follow_ups.to_send.push_back((EntityId::Negotiation(award.negotiation), Signal::Negotiation(signal)));
            return Ok(());
        }
        let mut award = award.clone();
        if let Err(rejection) = self.keep_free_of_loops(transaction, &mut award)? {
            let signal = NegotiationSignal::not_opened(award.negotiation, &rejection);
            follow_ups.to_send.push_back((EntityId::Negotiation(award.negotiation), Signal::Negotiation(signal)));
            return Ok(());
        }
        let (request, facts) = self.mandate_of(transaction, &award)?;
        // The entry has the mandate and the candidates, because a replay has no negotiation (SPEC 12, law 7).
        let event = CustodyEvent::Awarded {
            task_request: &facts.task_request,
            candidates: &award.candidates,
            terms: facts.terms,
        };
        let cause = Cause { origin: Origin::StoredRequest(request), event: Some(&event) };
        self.run_one(transaction, to, &Input::Signal(Signal::Handoff(award.clone())), cause, follow_ups, now)?;
        Ok(())
    }

    /// Removes the agents from an award that the loop guard forbids along the chain of the task's parents. Returns the
    /// rejection if it leaves none.
    fn keep_free_of_loops(
        &mut self,
        transaction: &mut Transaction,
        award: &mut Award,
    ) -> Result<Result<(), Rejection>, BrokerError> {
        let task = self.entity_record(transaction, &EntityId::Task(award.task.clone()))?;
        let Some(task) = task.as_deref().and_then(EntityRecord::as_task) else { return Ok(Ok(())) };
        let owner = task.task.owner.clone();
        let Some(chain) = self.chain_of(task.task.clone())? else { return Ok(Ok(())) };
        Ok(chain.keep_free(&owner, &mut award.candidates))
    }

    fn run_one(
        &mut self,
        transaction: &mut Transaction,
        about: &EntityId,
        input: &Input,
        cause: Cause<'_>,
        follow_ups: &mut FollowUps,
        now: Timestamp,
    ) -> Result<bool, RunError> {
        // The machine gets the time of the log, not of the clock: a replay knows only the times of the log, and must
        // reach the same state (SPEC 12, law 7).
        let log_clock = self.log_clock_of(transaction, about, input, now)?;
        let mut read = OpenTransaction::new(self, transaction, now);
        if let EntityId::Handoff(handoff) = about {
            read.handoff = Some(*handoff);
        }
        let result = step(about, input, &mut read, log_clock.logged_at);
        let OpenTransaction { mut not_free, failure, .. } = read;
        // The machine reports a failed read without its cause, which the reader has kept.
        let made = match result {
            Ok(made) => made,
            Err(StepError::Rejected(rejection)) => return Err(RunError::Rejected(rejection)),
            Err(error) => {
                return Err(match error.into_refusal() {
                    Ok(refusal) => RunError::Refused(refusal),
                    Err(ReadError) => failure.unwrap_or(BrokerError::Internal).into(),
                });
            }
        };
        // Such a step gets no custody entry: a replay refuses an entry that changes no entity.
        if made.is_empty() {
            return Ok(false);
        }
        let Transition { writes, effects } = made;
        let owners = owners_of(&writes);
        for agents in [&mut not_free.absent, &mut not_free.full] {
            agents.sort();
            agents.dedup();
        }
        let words_to_runs = self.words_to_runs(transaction, &writes)?;
        // The writes go before the effects, which read the new records: the request of a redriven handoff is known only
        // from the record that this step makes.
        self.write_entities(transaction, writes, cause, &not_free, log_clock, now)?;
        // The agents that never got what is withdrawn from them, each with the id of its handoff or negotiation.
        let mut unaware: Vec<(AgentId, MessageId)> = Vec::new();
        for effect in effects {
            match effect {
                Effect::Deliver { to, mail, .. }
                    if matter_of(&mail, cause.origin.message())
                        .is_some_and(|id| unaware.contains(&(to.clone(), id))) => {}
                Effect::Deliver { to, mail, priority, report_to } => {
                    transaction.preferred = self.process_for(transaction, about, &to, &mail, cause.origin.message())?;
                    self.deliver(transaction, to, mail, (priority, report_to), cause.origin.message(), now)?;
                }
                Effect::Park { entity, to, reason, text, attempts } => {
                    let opening = cause.origin.message();
                    self.park_opening(transaction, &entity, &to, (reason, &text), (attempts, opening), now)?;
                }
                Effect::KeepEntry(entry) => {
                    let this = cause.origin.message().ok_or(BrokerError::Internal)?;
                    self.keep_entry(transaction, entry, this)?;
                }
                Effect::RemoveEntries { workspace, first_sequence, last_sequence } => {
                    self.remove_entries(transaction, &workspace, first_sequence..=last_sequence)?;
                }
                Effect::Remove(entity) => transaction.delete(EntityRecord::key(&entity)),
                Effect::Send { to, signal } => follow_ups.to_send.push_back((to, signal)),
                Effect::Order(order) => follow_ups.orders.push(order),
                Effect::Withdraw { entity, from } => {
                    let sender = cause.origin.message().map(|this| &this.envelope.header().sender);
                    let is_unaware = self.withdraw(transaction, &entity, &from, sender == Some(&from))?;
                    if let EntityId::Handoff(id) | EntityId::Negotiation(id) = entity
                        && is_unaware
                    {
                        unaware.push((from, id));
                    }
                }
                Effect::WithdrawMessage { message, from } => self.withdraw_message(transaction, message, &from)?,
                Effect::Settle { of, answered } => self.settle_answered(transaction, &of, &answered)?,
            }
        }
        for (run, signal) in words_to_runs {
            runs_of_task::tell(&mut follow_ups.to_send, run, signal);
        }
        self.tell_of_arrivals(transaction, &owners, now)?;
        Ok(true)
    }

    /// The log time of a step, and the part of the clock's set-backs that the log has followed by then.
    fn log_clock_of(
        &mut self,
        transaction: &mut Transaction,
        about: &EntityId,
        input: &Input,
        now: Timestamp,
    ) -> Result<LogClock, BrokerError> {
        let known = self.entity_record(transaction, about)?;
        // The input names the task while the step creates the entity.
        let task = match input {
            Input::Handoff { task, .. } => Some(task.clone()),
            Input::Signal(Signal::Handoff(award)) => Some(award.task.clone()),
            Input::Negotiation(_)
            | Input::Append { .. }
            | Input::Routing(_)
            | Input::Thread(_)
            | Input::Plan(_)
            | Input::Acked { .. }
            | Input::Undeliverable { .. }
            | Input::AgentGone
            | Input::Time
            | Input::Signal(_) => None,
        };
        let log = self.log_of(transaction, known, task)?;
        // A task that this step creates has no log yet: its log begins at the clock's time.
        let at = log.and_then(|record| record.log_time(now, self.timers.clock.set_back)).unwrap_or(now);
        Ok(self.log_clock_at(at, now))
    }

    /// The record whose log gives an entity its time: its task's, or its own if it belongs to no task.
    fn log_of(
        &mut self,
        transaction: &mut Transaction,
        record: Option<Arc<EntityRecord>>,
        task: Option<TaskId>,
    ) -> Result<Option<Arc<EntityRecord>>, BrokerError> {
        match task.or_else(|| record.as_ref()?.entity().task().cloned()) {
            Some(task) => self.entity_record(transaction, &EntityId::Task(task)),
            None => Ok(record),
        }
    }

    /// The pace of a log with this time at this moment.
    fn log_clock_at(&self, logged_at: Timestamp, now: Timestamp) -> LogClock {
        // A log that is ahead of the clock has not followed that part of the set-backs.
        LogClock { logged_at, set_back: self.timers.clock.set_back.saturating_sub(logged_at.since(now)) }
    }

    /// Writes the entities that a step has changed, and one entry in the custody log of each task that they belong to.
    fn write_entities(
        &mut self,
        transaction: &mut Transaction,
        writes: Vec<Entity>,
        cause: Cause<'_>,
        not_free: &NotFree,
        log_clock: LogClock,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let mut tasks: Vec<TaskId> = Vec::new();
        let (mut handoff, mut ended) = (None, None);
        // A handoff begins in a step that writes its task, too.
        let plan = writes.iter().find_map(|entity| match entity {
            Entity::Task(task) => task.plan.as_ref().map(|of| of.plan.clone()),
            _ => None,
        });
        let mut handoff_update = HandoffUpdate::of(&writes, cause.origin);
        // All entities that the step creates have one sequence: a list shows a task at the handoff that has the task's.
        let mut creation = cause.origin.message().map(|this| this.sequence);
        let mut runs = Vec::new();
        for entity in writes {
            if let Some(task) = entity.task().filter(|task| !tasks.contains(task)) {
                tasks.push(task.clone());
            }
            if let Entity::Handoff(written) = &entity {
                handoff = Some(written.clone());
            }
            let before = self.entity_record(transaction, &entity.id())?;
            if let Entity::Thread(after) = &entity {
                let before = before.as_deref().and_then(EntityRecord::as_thread).map(|record| &*record.thread);
                self.note_specs_in_force(transaction, before, after)?;
            }
            if let Entity::Handoff(written) = &entity {
                let before = before.as_deref().and_then(EntityRecord::as_handoff).map(|record| &*record.handoff);
                ended = ended_offer(before, written);
            }
            if let Entity::Run(run) = &entity
                && let Some(task) = &run.task
                && (before.is_none() || run.state.is_final())
            {
                runs.push((task.clone(), run.id, !run.state.is_final()));
            }
            let sequence = match &before {
                Some(_) => 0, // a stored entity keeps the sequence of its creation
                None => *creation.get_or_insert_with(|| self.new_sequence(transaction)),
            };
            let envelope = cause.origin.message().and_then(|this| this.copy);
            let trace = match before {
                None => {
                    let opening = cause.origin.message().map(|this| this.envelope.header());
                    self.place_in_trace(transaction, &entity, opening, plan.as_ref())
                }
                Some(_) => None, // a stored entity keeps its place
            };
            let graph = match (&entity, &before) {
                (Entity::Run(run), None) => Some(self.hold_graph(transaction, &run.graph)?),
                _ => None,
            };
            let changed = self.change_of(transaction, before.as_deref(), &entity, handoff_update.as_mut());
            let opening = cause.origin.opening();
            let facts = WriteFacts {
                sequence,
                opening,
                log_clock,
                envelope,
                trace,
                graph,
                changed,
                sender: transaction.sender.clone(),
            };
            let after = EntityRecord::after(entity, before.as_deref(), facts);
            let had_ended = before.is_some_and(|before| before.entity().has_ended());
            // The expiration starts when the entity ends. Later steps of an ended entity do not extend it.
            if let Some((kind, what)) = after.expiration().filter(|_| after.entity().has_ended() && !had_ended) {
                transaction.expire_later(kind, now, what);
            }
            transaction.put_entity(after);
        }
        for (task, run, is_open) in runs {
            self.keep_run_of_task(transaction, &task, run, is_open)?;
        }
        if let Some((agent, result)) = ended {
            self.record_offer(transaction, agent, result)?;
        }
        for task in tasks {
            // A change without a custody entry could not be replayed (SPEC 12, law 7), so the step fails instead.
            let event = cause.event.ok_or_else(|| {
                tracing::error!(%task, "a step of a task has no event for its custody log");
                BrokerError::Internal
            })?;
            let handoff = handoff.as_deref().filter(|handoff: &&Handoff| handoff.task == task);
            self.append_custody(transaction, &task, event, handoff, not_free, now)?;
        }
        Ok(())
    }

    /// The sequence of the latest change of a task or a handoff that a step writes: a new one, unless the step leaves it
    /// as it is. The end of a handoff is its last change; the sender's later ack of it is none.
    fn change_of(
        &self,
        transaction: &mut Transaction,
        before: Option<&EntityRecord>,
        after: &Entity,
        handoff_update: Option<&mut HandoffUpdate>,
    ) -> u64 {
        match (before, after) {
            (Some(EntityRecord::Task(before)), Entity::Task(after)) if before.task == *after => before.updated,
            (Some(EntityRecord::Handoff(before)), Entity::Handoff(after))
                if before.handoff == *after || before.handoff.state.is_final() =>
            {
                before.changed
            }
            (_, Entity::Task(_) | Entity::Handoff(_)) => match handoff_update
                .filter(|handoff_update| handoff_update.is_of(after))
            {
                Some(handoff_update) => *handoff_update.sequence.get_or_insert_with(|| self.new_sequence(transaction)),
                None => self.new_sequence(transaction),
            },
            _ => 0,
        }
    }

    /// Appends one entry to a task's custody log.
    pub(super) fn append_custody(
        &mut self,
        transaction: &mut Transaction,
        task: &TaskId,
        event: &CustodyEvent<'_>,
        handoff: Option<&Handoff>,
        not_free: &NotFree,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let id = EntityId::Task(task.clone());
        self.entity_record(transaction, &id)?;
        let is_written = transaction.written(&id).is_some();
        let Some(EntityRecord::Task(mut record)) = transaction.take_entity(&id) else {
            return Err(BrokerError::Internal);
        };
        // A step in the same transaction has already set the log time of the task that it wrote.
        if !is_written {
            let log_clock = self.log_clock_at(record.log_time(now, self.timers.clock.set_back), now);
            (record.logged_at, record.set_back) = (log_clock.logged_at, log_clock.set_back);
        }
        let number = record.custody.length + 1;
        // The entry states the task as the step leaves it, so that a replay can compare its own state after each entry.
        let entry = custody_entry(number, record.logged_at, event, &record.task, handoff, not_free);
        record.custody = record.custody.followed_by(&entry);
        if let CustodyEvent::Accepted(EnvelopeFacts { envelope, .. }) = event {
            match envelope.header().message_type {
                MessageType::TaskContextTransfer => self.keep_context(transaction, &mut record, envelope, handoff)?,
                MessageType::ContextCheckpoint => self.keep_context(transaction, &mut record, envelope, None)?,
                _ => {}
            }
        }
        if let CustodyEvent::Accepted(EnvelopeFacts { envelope, resolved, .. }) = event {
            let header = envelope.header();
            record.mail_recorded += u32::from(header.rules().handling == Handling::Mail);
            if header.message_type == MessageType::TaskRequest {
                let new = resolved.agents.iter().filter(|agent| !record.asked.contains(agent));
                let room = TaskRecord::ASKED_MAX.saturating_sub(record.asked.len());
                let new: Vec<AgentId> = new.take(room).cloned().collect();
                record.asked.extend(new);
            }
        }
        record.refusals_recorded += u32::from(matches!(event, CustodyEvent::Refused(..)));
        let entry = LogEntry { hash: record.custody.hash, bytes: entry };
        let item = match event {
            // The record of the message has the entry, and the log only the id. `accept` writes that record in this
            // transaction.
            CustodyEvent::Accepted(facts) => {
                transaction.logged = Some((task.clone(), entry));
                LogItem::Message(facts.envelope.header().message_id)
            }
            _ => LogItem::Entry(entry),
        };
        if let Some((key, page)) = record.append(item) {
            transaction.put_new(key, page);
        }
        transaction.put_entity(EntityRecord::Task(record));
        Ok(())
    }
}

/// The handoff or the negotiation that a message of a step is about. An agent that never heard of it hears no word of it.
fn matter_of(mail: &Mail, message: Option<ThisMessage<'_>>) -> Option<MessageId> {
    match mail {
        Mail::ThisMessage => message?.envelope.header().correlation,
        Mail::Notice { about, .. } => *about,
        Mail::Opening { .. } | Mail::Closed(_) | Mail::Node(_) => None,
    }
}
