//! Acceptance of envelopes: repeats, time, receivers, and the step that a message causes.

use std::sync::Arc;

use super::{
    Engine,
    batch::PostCommit,
    entities::LETTERS_A_ROW,
    open_counts::Counted,
    resolution::Candidates,
    run::{Cause, Origin, RunError, ThisMessage},
    timers::Timer,
    transaction::Transaction,
};
use crate::{
    Away, BrokerError, Refused,
    codes::{FieldViolation, Refusal},
    directory::Reported,
    domain::{
        EntityId, Handling, Header, Input, Receiver,
        admission::{self, AdmissionError, CHAIN_MAX, Chain, Standing},
        check_fallbacks,
        handoff::{Handoff, LoopLimits, Message, Priority, Rejection, Task},
        mailbox::{ConsumerId, EnvelopeOwner, Flow},
        routing::{self, RunId, TurnId, check_handoff},
    },
    envelope::{self, Body, CreateBody, RequestBody, Resolved, VerifiedEnvelope},
    ids::{AgentId, MessageId, TaskId},
    metrics::Event,
    preparation::PreparedMessage,
    proto::v1,
    records::{
        Acceptance, CustodyEvent, EntityRecord, EnvelopeFacts, LoggedMessage, MessageRecord, NotFree, TaskRecord,
    },
    refused,
    time::Timestamp,
};

/// The receipt of an accepted envelope.
pub(super) enum Accepted {
    New(v1::Receipt),
    Repeat(v1::Receipt),
}

impl Engine {
    /// Accepts an envelope: a repeat gets its first receipt, and any other message its checks and its step.
    pub(super) fn submit(&mut self, message: &PreparedMessage, now: Timestamp) -> Result<Accepted, Refused> {
        let envelope = message.envelope();
        if self.batch.failed {
            // After a failed commit the state on disk is unknown, so no message can be checked against it.
            return Err(refused(BrokerError::StoreUnavailable));
        }
        let mut transaction = self.transaction();
        // A repeat gets its stored receipt before any other check: it may be older than the clock window allows.
        let key = MessageRecord::key(envelope.header().message_id);
        if let Some(known) = self.read(&mut transaction, &key).map_err(refused)? {
            let receipt = repeat(envelope, &known.value)?;
            self.env.resources.metrics.repeated(envelope.header().message_type);
            return Ok(Accepted::Repeat(receipt));
        }
        let sender = || envelope.header().sender.clone();
        transaction.sender = message.process().map(|process| (sender(), process));
        self.take_new(transaction, message, now).map(Accepted::New)
    }

    /// Accepts a message with an unknown id, after its checks, by its step.
    fn take_new(
        &mut self,
        mut transaction: Transaction,
        message: &PreparedMessage,
        now: Timestamp,
    ) -> Result<v1::Receipt, Refused> {
        let envelope = message.envelope();
        // The signature was verified before the queue. Meanwhile the sender may have been deregistered.
        let sender = &envelope.header().sender;
        if self.batch.left.contains(sender) || self.env.directory.has_left(sender) {
            return Err(refused(BrokerError::IdentityEnded { why: Away::Deregistered }));
        }
        self.check_service(envelope.header()).map_err(refused)?;
        self.check_time(envelope.header(), now).map_err(refused)?;
        // A heartbeat has no receiver's mailbox and no task, so the two checks below do not apply to it.
        if envelope.header().rules().handling != Handling::Heartbeat {
            // Only registered agents are counted: the count of any other name would stay in memory for ever. The
            // resolution of the receivers refuses an unregistered one.
            if let Receiver::Agent(to) = &envelope.header().receiver
                && self.env.directory.is_registered(to)
            {
                self.check_mailbox(to).map_err(refused)?;
            }
            self.settle_overdue(envelope.header().task.as_ref(), now).map_err(refused)?;
            self.check_stored(sender, envelope.raw().len()).map_err(refused)?;
        }
        match envelope.body() {
            Body::Heartbeat(heartbeat) => {
                self.take_heartbeat(None, &envelope.header().sender, heartbeat.clone(), now);
                self.env.resources.metrics.count(Event::Accepted(envelope.header().message_type));
                Ok(heartbeat_receipt(envelope.header(), now))
            }
            Body::Mail { .. } => self.take_mail(transaction, envelope, now),
            Body::Plan(plan) => self.submit_plan(transaction, message, plan, now),
            Body::PlanExtension(extension) => self.extend_plan(transaction, message, extension, now),
            Body::Append(append) => self.append_entry(transaction, envelope, append, now),
            Body::TaskRequest(request) => self.take_task_request(transaction, envelope, request, now),
            Body::TaskOffer(_) | Body::TaskDecline | Body::TaskAccept { terms: None, .. } => {
                self.take_answer(transaction, envelope, now)
            }
            Body::TaskAccept { terms: Some(terms), .. } => {
                self.settle_negotiation(envelope.header(), now).map_err(refused)?;
                self.take_request(transaction, envelope, terms, now)
            }
            Body::NegotiationClosed => Err(refused(of_broker_alone())),
            Body::Request(request) => self.take_request(transaction, envelope, request, now),
            Body::Create(create) => self.create_task(transaction, envelope, create, now),
            Body::Reject { reason, suggestions, retry_after, .. } => {
                let suggested = self.suggested(envelope.header(), suggestions, now).map_err(refused)?;
                let Candidates { agents, passed_over, .. } = &suggested;
                let receipt =
                    self.make_step(transaction, envelope, Resolved { agents, passed_over, terms: None }, now)?;
                if *reason == i32::from(v1::RejectReason::Overloaded) {
                    self.note_reject_for_room(envelope.header(), retry_after.is_some(), now).map_err(refused)?;
                }
                Ok(receipt)
            }
            Body::Handoff(Message::Context { .. } | Message::Checkpoint { .. }) => {
                let header = envelope.header();
                if let Some(context) = self.checked_context(message).map_err(refused)? {
                    if let Some(misfit) = &context.misfit {
                        return Err(misfit.clone());
                    }
                    self.hold_context(&mut transaction, header, &context.transfer, now).map_err(refused)?;
                    transaction.context = Some((header.message_id, context));
                }
                self.make_step(transaction, envelope, Resolved::default(), now)
            }
            Body::Handoff(_) | Body::Recall => self.make_step(transaction, envelope, Resolved::default(), now),
            Body::Input { data } => {
                self.check_answer(message, data.as_ref()).map_err(refused)?;
                self.make_step(transaction, envelope, Resolved::default(), now)
            }
            Body::Status { prompt, status, has_result, .. } => {
                if *has_result {
                    self.check_report(envelope, *status).map_err(refused)?;
                }
                self.check_topics(message, *status).map_err(refused)?;
                let mut agents = self.receivers(envelope.header(), now).map_err(refused)?;
                if let Some(prompt) = prompt {
                    agents.insert(0, self.asked(message, prompt, now).map_err(refused)?);
                }
                self.make_step(transaction, envelope, Resolved { agents: &agents, ..Resolved::default() }, now)
            }
        }
    }

    /// Checks the timestamp and the expiry. Runs after the check for repeats, because a repeat may be older than the
    /// window.
    fn check_time(&self, header: &Header, now: Timestamp) -> Result<(), BrokerError> {
        let (window, forgotten) = (self.env.settings.clock_window, self.batch.head.message_ids_gone);
        admission::check_timestamp(header, window, forgotten, now)?;
        Ok(admission::check_expiry(header, now)?)
    }

    /// Runs the overdue deadlines of the task and of its open handoff before the message, so that a late message meets
    /// the state after them.
    pub(super) fn settle_overdue(&mut self, task: Option<&TaskId>, now: Timestamp) -> Result<(), BrokerError> {
        let running = self.timers.clock.running();
        // Each deadline has a timer, so without a due timer nothing is overdue.
        if self.timers.next().is_none_or(|at| at > running) {
            return Ok(());
        }
        let Some(task) = task else { return Ok(()) };
        let stored = self.entity_record(&mut self.transaction(), &EntityId::Task(task.clone()))?;
        let Some(stored) = stored.as_deref().and_then(EntityRecord::as_task) else { return Ok(()) };
        let open = stored.task.open_handoff.map(EntityId::Handoff);
        for entity in open.into_iter().chain([EntityId::Task(task.clone())]) {
            // The due timer may be that of something else, and a timer is never later than the deadline.
            if self.timers.is_due(&Timer::Entity(entity.clone()))
                && self.deadline_of(&entity)?.is_some_and(|due| due <= running)
            {
                self.pass_time(&entity, now)?;
            }
        }
        Ok(())
    }

    /// Notes that the sender of a reject has no room, until the time at which the handoff may ask it again.
    fn note_reject_for_room(&mut self, header: &Header, has_named: bool, now: Timestamp) -> Result<(), BrokerError> {
        let Some(handoff) = header.correlation else { return Ok(()) };
        let record = self.entity_record(&mut self.transaction(), &EntityId::Handoff(handoff))?;
        let Some(record) = record.as_deref().and_then(EntityRecord::as_handoff) else { return Ok(()) };
        let offer = record.handoff.offers.iter().find(|offer| offer.candidate == header.sender);
        // The log of a task may be ahead of the clock, so the pause counts from now.
        let pause = offer.and_then(|offer| Some(offer.retry_at?.since(record.handoff.updated_at)));
        if let Some(pause) = pause {
            self.note_overload(&header.sender, now.plus(pause), has_named);
        }
        Ok(())
    }

    /// Records a heartbeat of this session, or a signed one without a session, in memory.
    pub(super) fn take_heartbeat(
        &mut self,
        consumer: Option<ConsumerId>,
        agent: &AgentId,
        heartbeat: v1::Heartbeat,
        now: Timestamp,
    ) {
        self.hear_of_work(consumer, agent, &heartbeat);
        let (own, others) = (Reported::of(&heartbeat), self.delivery.reported_beside(agent, consumer));
        let after = match consumer {
            // It is of one of the processes that tell it on their sessions.
            None if others != Reported::default() => others,
            _ => own.and(others),
        };
        let mut before = Reported::default();
        self.env.directory.change_presence(agent, |presence| {
            before = std::mem::replace(&mut presence.reported, after);
            presence.heartbeat = Some((heartbeat, now));
        });
        self.env.directory.change_activity(agent, |known| {
            known.known_at_report = known.known();
            if after.in_use < before.in_use {
                known.load_fell();
            }
        });
        self.seen(agent, now);
    }

    /// Resolves candidates and terms of a request, and runs its step.
    fn take_request(
        &mut self,
        mut transaction: Transaction,
        envelope: &VerifiedEnvelope,
        request: &RequestBody,
        now: Timestamp,
    ) -> Result<v1::Receipt, Refused> {
        let header = envelope.header();
        check_fallbacks(&header.sender, &request.fallback_candidates)
            .map_err(|violations| refused(BrokerError::Fields { violations }))?;
        // Only the broker sends for others, and its own requests do not come this way.
        if request.submitter.is_some() {
            let path = "envelope.payload.on_behalf_of".to_owned();
            let problem = "is set by baton.coordinator alone".to_owned();
            let violations = vec![FieldViolation { path, problem }];
            return Err(refused(BrokerError::Fields { violations }));
        }
        admission::check_deliver_after(request.deliver_after, now).map_err(refused)?;
        self.check_open(Counted::Handoff, &header.sender, 0).map_err(refused)?;
        let terms = self.terms(request).map_err(refused)?;
        let chain = self.check_parent(&mut transaction, header, request.parent.as_ref(), terms.1).map_err(refused)?;
        self.check_choice(header, request)?;
        self.check_thread(&mut transaction, header, request.thread.as_ref(), now).map_err(refused)?;
        let mut candidates = self.candidates(header, request, now).map_err(refused)?;
        if let Some(chain) = chain {
            chain.keep_free(&header.sender, &mut candidates.agents).map_err(refused)?;
        }
        let resolved = candidates.resolved(self.terms_with(terms, request, &candidates.agents));
        self.make_step(transaction, envelope, resolved, now)
    }

    /// Begins a task that the sender owns, without a handoff.
    fn create_task(
        &mut self,
        mut transaction: Transaction,
        envelope: &VerifiedEnvelope,
        create: &CreateBody,
        now: Timestamp,
    ) -> Result<v1::Receipt, Refused> {
        let settings = &self.env.settings;
        let terms = (settings.timeouts, settings.loop_limits.lowered_to(create.loop_limits));
        self.check_parent(&mut transaction, envelope.header(), create.parent.as_ref(), terms.1).map_err(refused)?;
        self.make_step(transaction, envelope, Resolved { terms: Some(terms), ..Resolved::default() }, now)
    }

    /// Checks the parent of a task that the message creates; the machine compares that of a known task. Returns the chain
    /// of a task that is a part.
    fn check_parent(
        &mut self,
        transaction: &mut Transaction,
        header: &Header,
        parent: Option<&TaskId>,
        limits: LoopLimits,
    ) -> Result<Option<Chain>, BrokerError> {
        let Some(task) = &header.task else { return Ok(None) };
        let known = self.entity_record(transaction, &EntityId::Task(task.clone()))?;
        let known = known.as_deref().and_then(EntityRecord::as_task).map(|record| record.task.clone());
        match (parent, known) {
            // A task whose parent is itself is known at best, and refused all the same.
            (parent, Some(known)) if parent != Some(task) => self.chain_of(known),
            (Some(parent), _) => {
                let above = self.tasks_above(Some(parent.clone()))?;
                admission::check_parent(header, parent, above.first().map(|parent| &**parent))?;
                let chain = Chain::new(above, None, limits);
                chain.check_levels().map_err(AdmissionError::from)?;
                Ok(Some(chain))
            }
            (None, _) => Ok(None),
        }
    }

    /// The chain of a known task. `None`: the task is no part.
    pub(super) fn chain_of(&mut self, task: Arc<Task>) -> Result<Option<Chain>, BrokerError> {
        if task.parent.is_none() {
            return Ok(None);
        }
        let above = self.tasks_above(task.parent.clone())?;
        let limits = task.loop_limits;
        Ok(Some(Chain::new(above, Some(task), limits)))
    }

    /// A task and the tasks above it, as far as the broker has them.
    fn tasks_above(&mut self, mut next: Option<TaskId>) -> Result<Vec<Arc<Task>>, BrokerError> {
        let mut transaction = self.transaction();
        let mut above = Vec::new();
        while let Some(id) = next.take()
            && above.len() < CHAIN_MAX
            && let Some(record) = self.entity_record(&mut transaction, &EntityId::Task(id))?
        {
            let task = record.as_task().ok_or(BrokerError::Internal)?.task.clone();
            next = task.parent.clone();
            above.push(task);
        }
        Ok(above)
    }

    /// Checks that the request carries out the choice that it names. The run hears of the handoff by an input, which may
    /// wait in the outbox: so the sender gets a refusal here.
    fn check_choice(&mut self, header: &Header, request: &RequestBody) -> Result<(), Refused> {
        let (Some((run, choice)), Some(task)) = (request.routing, &header.task) else { return Ok(()) };
        let of_task = self.entity_record(&mut self.transaction(), &EntityId::Task(task.clone())).map_err(refused)?;
        // The step refuses any other sender, and tells it nothing of the run.
        if of_task.as_deref().and_then(EntityRecord::as_task).is_some_and(|known| known.task.owner != header.sender) {
            return Ok(());
        }
        let known = self.entity_record(&mut self.transaction(), &EntityId::Run(RunId(run))).map_err(refused)?;
        let known = known.as_deref().and_then(EntityRecord::as_run);
        let known = known.ok_or_else(|| refused(routing::Rejection::RunUnknown))?;
        let receiver = header.receiver.to_string();
        check_handoff(&known.run, TurnId(choice), header.message_id, task, &receiver).map_err(refused)
    }

    /// Runs the step of a message. The transaction takes all of it, or the message is refused and the custody log may
    /// record that.
    fn make_step(
        &mut self,
        mut transaction: Transaction,
        envelope: &VerifiedEnvelope,
        resolved: Resolved<'_>,
        now: Timestamp,
    ) -> Result<v1::Receipt, Refused> {
        let header = envelope.header();
        // An envelope without a task does not parse, and mail is taken elsewhere: a fault of the broker.
        let fault = || refused(BrokerError::Internal);
        let task = header.task.clone().ok_or_else(fault)?;
        let input = envelope::input_of(header, envelope.body(), resolved).ok_or_else(fault)?;
        let about = header.handoff().map_or(EntityId::Task(task.clone()), EntityId::Handoff);
        let named = self.named(&mut transaction, &task, &about).map_err(refused)?;
        self.admit(&mut transaction, header, &named).map_err(refused)?;
        // The sequence is assigned before the step, because the step may need further sequences for its own messages.
        let sequence = self.new_sequence(&mut transaction);
        // The entry has the resolved agents and terms, because a replay has neither the directory nor the settings
        // (SPEC 12, law 7).
        let event = CustodyEvent::Accepted(EnvelopeFacts { envelope, sequence, resolved });
        let this = ThisMessage { envelope, sequence, owner: EnvelopeOwner::Log, copy: None };
        transaction.in_hand = Some((header.message_id, envelope.raw().clone()));
        let input = Input::Handoff { task, input };
        let cause = Cause { origin: Origin::Message(this), event: Some(&event) };
        let awarded = self.award_first(&mut transaction, this, now);
        match awarded.and_then(|()| self.run(&mut transaction, &about, &input, cause, now)) {
            Ok(true) => Ok(self.accept(transaction, this, now)),
            Ok(false) => Err(refused(BrokerError::Internal)), // a step of a message changes something or rejects it
            Err(RunError::Rejected(rejection)) => {
                // The transaction of the step is dropped, so the record of a late message (SPEC 3) gets a transaction
                // of its own.
                if rejection.is_recorded() {
                    self.keep_refusal(envelope, &rejection, now).map_err(refused)?;
                }
                if rejection.is_lasting() {
                    self.tell_run_of_refusal(&input, &rejection, now)?;
                }
                Err(refused(rejection))
            }
            Err(error) => Err(error.into_refusal()),
        }
    }

    /// Reads the task and the handoff that a message names.
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

    /// Records the refusal of a late message in the task's custody log, as SPEC 3 requires.
    pub(super) fn keep_refusal(
        &mut self,
        envelope: &VerifiedEnvelope,
        rejection: &Rejection,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let header = envelope.header();
        let Some(task) = &header.task else { return Ok(()) };
        let mut transaction = self.transaction();
        let stored = self.entity_record(&mut transaction, &EntityId::Task(task.clone()))?;
        // An unknown task has no log, and the log of a removed one is gone.
        let Some(record) = stored.as_deref().and_then(EntityRecord::as_task) else { return Ok(()) };
        // A sender may not fill a log with refusals: each log records a bounded number.
        let most = self.env.settings.refusals_recorded_max;
        let most = admission::refusals_of(&record.task, &header.sender, most);
        if record.refusals_recorded >= most {
            return Ok(());
        }
        let facts = EnvelopeFacts { envelope, sequence: 0, resolved: Resolved::default() };
        let event = CustodyEvent::Refused(facts, rejection.code());
        let about = match header.handoff() {
            Some(id) => self.entity_record(&mut transaction, &EntityId::Handoff(id))?,
            None => None,
        };
        let handoff = about.as_deref().and_then(EntityRecord::as_handoff).map(|record| &*record.handoff);
        self.append_custody(&mut transaction, task, &event, handoff, &NotFree::default(), now)?;
        self.stage(transaction);
        Ok(())
    }

    /// Accepts mail that the broker only carries. Mail from a participant of the task that it names is fenced and
    /// recorded in the custody log. Mail from any other agent is carried without a record.
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
            // The correlation of mail may be the id of any message. If no handoff has it, the open handoff decides
            // whether the sender is a participant.
            let about = header.correlation.map_or(EntityId::Task(task.clone()), EntityId::Handoff);
            named = self.named(&mut transaction, task, &about).map_err(refused)?;
        }
        let standing = match self.admit(&mut transaction, header, &named) {
            Ok(standing) => standing,
            Err(error) => {
                // The refusal of fenced mail may belong in the custody log, as that of a late step does.
                if let BrokerError::NotAdmitted(error) = &error
                    && let Some(rejection) = error.recorded()
                {
                    self.keep_refusal(envelope, rejection, now).map_err(refused)?;
                }
                return Err(refused(error));
            }
        };
        // Mail of an agent that takes no part gets no entry, and its receipt says nothing about the task (SPEC 2).
        let task = named.task.filter(|_| standing == Standing::OnRecord);
        let task = match task {
            Some(task) if !self.has_room_for_mail(&mut transaction, &task, header, now).map_err(refused)? => None,
            of_task => of_task,
        };
        let sequence = self.new_sequence(&mut transaction);
        let owner = owner_of(&mut transaction, sequence, task.is_some(), receivers.len());
        let this = ThisMessage { envelope, sequence, owner, copy: None };
        let deliver_after = match envelope.body() {
            Body::Mail { deliver_after } => *deliver_after,
            _ => None,
        };
        admission::check_deliver_after(deliver_after, now).map_err(refused)?;
        // The search has asked the policies about each of them.
        self.batch.work += receivers.len();
        let flow = Flow::of(header.sender.clone());
        let letter = self.letter_of(&mut transaction, this, (owner, None), (Priority::default(), flow), now);
        let (first, rest) = receivers.split_at(receivers.len().min(LETTERS_A_ROW));
        for to in first {
            self.store_letter(&mut transaction, to.clone(), letter.clone());
        }
        self.put_letters_left(&mut transaction, &letter, rest);
        if let Some(task) = task {
            let resolved = Resolved { agents: &receivers, ..Resolved::default() };
            let event = CustodyEvent::Accepted(EnvelopeFacts { envelope, sequence: this.sequence, resolved });
            self.append_custody(&mut transaction, &task.id, &event, None, &NotFree::default(), now).map_err(refused)?;
        }
        Ok(self.accept(transaction, this, now))
    }

    /// Whether the task's custody log records another piece of mail of this sender. Mail beyond the bound is counted, and
    /// one entry of the log says so.
    fn has_room_for_mail(
        &mut self,
        transaction: &mut Transaction,
        task: &Task,
        header: &Header,
        now: Timestamp,
    ) -> Result<bool, BrokerError> {
        let id = EntityId::Task(task.id.clone());
        let stored = self.entity_record(transaction, &id)?;
        let record = stored.as_deref().and_then(EntityRecord::as_task).ok_or(BrokerError::Internal)?;
        let most = admission::mail_of(task, &header.sender, self.env.settings.mail_recorded_max);
        if record.mail_recorded < most {
            return Ok(true);
        }
        if record.mail_unrecorded == 0 {
            self.append_custody(transaction, &task.id, &CustodyEvent::MailOmitted, None, &NotFree::default(), now)?;
        }
        let stored = self.entity_record(transaction, &id)?;
        let record = stored.as_deref().and_then(EntityRecord::as_task).ok_or(BrokerError::Internal)?;
        let record = TaskRecord { mail_unrecorded: record.mail_unrecorded + 1, ..record.clone() };
        transaction.put_entity(EntityRecord::Task(record));
        Ok(false)
    }

    /// Stores the envelope and its receipt in the same change as everything else that the message writes.
    pub(super) fn accept(
        &mut self,
        mut transaction: Transaction,
        this: ThisMessage<'_>,
        now: Timestamp,
    ) -> v1::Receipt {
        // After a message of the coordinator the entities no longer show the state that this message has left; its
        // entry in the custody log does.
        let of_entry = match (&transaction.logged, transaction.has_orders) {
            (Some((task, entry)), true) => {
                let logged = LoggedMessage { task: task.clone(), entry: entry.clone(), envelope: None };
                logged.receipt().ok()
            }
            (Some(_) | None, _) => None,
        };
        let receipt = of_entry.unwrap_or_else(|| receipt(this.envelope.header(), this.sequence, &transaction, now));
        self.store_message(&mut transaction, this, now, Some(&receipt));
        self.stage(transaction);
        receipt
    }

    /// Writes the record of an accepted message. A message without an entry in a custody log needs its receipt.
    pub(super) fn store_message(
        &mut self,
        transaction: &mut Transaction,
        this: ThisMessage<'_>,
        now: Timestamp,
        receipt: Option<&v1::Receipt>,
    ) {
        let header = this.envelope.header();
        transaction.post_commit.push(PostCommit::Count(Event::Accepted(header.message_type)));
        if tracing::enabled!(tracing::Level::DEBUG) {
            let trace = self.continued_by(transaction, header);
            transaction.post_commit.push(PostCommit::LogAccepted(Box::new(header.clone()), trace));
        }
        let raw = this.envelope.raw();
        let logged = transaction.logged.take();
        // Records by ids without order are merged again and again, so only small ones have such keys.
        let is_with_record = logged.is_some() && self.is_in_order(header.message_id, now);
        if is_with_record && !header.sender.is_reserved() {
            transaction.stored.push((header.sender.clone(), raw.len(), true));
        }
        if !is_with_record {
            transaction.put_new(MessageRecord::envelope_key(this.sequence), raw.clone());
        }
        let acceptance = match logged {
            Some((task, entry)) => {
                Acceptance::Logged(LoggedMessage { task, entry, envelope: is_with_record.then(|| raw.clone()) })
            }
            None => {
                // The id of a logged message is removed with its task. Any other id expires with the ids of its batch.
                self.batch.accepted.push(header.message_id);
                Acceptance::Carried(Box::new(receipt.cloned().unwrap_or_default()))
            }
        };
        let content_digest = *this.envelope.content_digest();
        let record = MessageRecord { sequence: this.sequence, content_digest, acceptance };
        transaction.put_new(MessageRecord::key(header.message_id), record.encode());
    }

    /// Whether the id sorts among the ids of messages that are accepted about now: it is a UUID of version 7, with a
    /// time within the clock window.
    fn is_in_order(&self, message: MessageId, now: Timestamp) -> bool {
        message.time().is_some_and(|time| time.since(now).max(now.since(time)) <= self.env.settings.clock_window)
    }
}

/// The owner of the envelope of mail: the custody log, the only letter, or the last of several letters. The envelope is
/// deleted with it.
pub(super) fn owner_of(
    transaction: &mut Transaction,
    sequence: u64,
    is_on_record: bool,
    letters: usize,
) -> EnvelopeOwner {
    match (is_on_record, letters) {
        (true, _) => EnvelopeOwner::Log,
        (false, 0 | 1) => EnvelopeOwner::Letter,
        (false, many) => {
            transaction.put_new(MessageRecord::shared_key(sequence), MessageRecord::encode_shared(many as u64));
            EnvelopeOwner::Letters
        }
    }
}

/// The refusal of a message that only the broker sends.
fn of_broker_alone() -> BrokerError {
    let problem = "is sent by the broker alone".to_owned();
    BrokerError::Fields { violations: vec![FieldViolation { path: "envelope.message_type".to_owned(), problem }] }
}

/// The task and the handoff that a message names, where they exist.
#[derive(Default)]
pub(super) struct Named {
    pub(super) task: Option<Arc<Task>>,
    pub(super) handoff: Option<Arc<Handoff>>,
}

/// The first receipt of a repeat. Fails if the id was used for other content.
fn repeat(envelope: &VerifiedEnvelope, stored: &bytes::Bytes) -> Result<v1::Receipt, Refused> {
    let damaged = |error| refused(BrokerError::from(error));
    let known = MessageRecord::decode(stored).map_err(damaged)?;
    let message_id = envelope.header().message_id;
    admission::check_repeat(message_id, envelope.content_digest(), &known.content_digest).map_err(refused)?;
    known.receipt().map_err(damaged)
}

/// The receipt reports the task and the handoff as the transaction leaves them.
fn receipt(header: &Header, sequence: u64, transaction: &Transaction, now: Timestamp) -> v1::Receipt {
    let task = transaction.all_written().find_map(|record| record.as_task());
    let handoff = transaction.all_written().find_map(|record| record.as_handoff()).map(|record| &record.handoff);
    let workspace = transaction.all_written().find_map(|record| record.as_workspace());
    if header.rules().handling == Handling::Plan {
        return plan_receipt(header, sequence, transaction, now);
    }
    // The log time of the entry, so that the receipt can be rebuilt from it and agrees with it.
    let logged_at = task.map(|record| record.logged_at).or(workspace.map(|record| record.log_clock.logged_at));
    v1::Receipt {
        message_id: header.message_id.to_string(),
        sequence,
        accept_time: Some(logged_at.unwrap_or(now).into()),
        task_id: header.task.as_ref().map(ToString::to_string).unwrap_or_default(),
        task_status: task.map_or(0, |record| record.task.status.number()),
        owner_id: task.map(|record| record.task.owner.to_string()).unwrap_or_default(),
        epoch: task.map_or(0, |record| record.task.epoch),
        handoff_id: handoff.map(|handoff| handoff.id.to_string()).unwrap_or_default(),
        handoff_state: handoff.map_or(0, |handoff| handoff.state.number()),
        custody_hash: task.map(|record| record.custody.hash.to_vec().into()).unwrap_or_default(),
        resource: workspace.map(|record| format!("workspace:{}", record.workspace.id)).unwrap_or_default(),
        resource_sequence: workspace.map_or(0, |record| record.workspace.last_sequence),
        ..Default::default()
    }
}

/// The receipt of a submission names the plan, and none of the tasks that begin with it.
fn plan_receipt(header: &Header, sequence: u64, transaction: &Transaction, now: Timestamp) -> v1::Receipt {
    let plan = transaction.all_read().find_map(|record| record.as_plan());
    v1::Receipt {
        message_id: header.message_id.to_string(),
        sequence,
        accept_time: Some(now.into()),
        resource: plan.map(|record| format!("plan:{}", record.plan.id)).unwrap_or_default(),
        resource_sequence: plan.map_or(0, |record| record.plan.log_length),
        ..Default::default()
    }
}

/// A heartbeat is not stored, and so its receipt has no sequence.
fn heartbeat_receipt(header: &Header, now: Timestamp) -> v1::Receipt {
    v1::Receipt { message_id: header.message_id.to_string(), accept_time: Some(now.into()), ..Default::default() }
}
