//! Messages and calls about negotiations: the agents that a request asks, the answers, the awards, and the mail of the
//! broker about them. The rules are in `domain::negotiation`.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    Engine,
    authorization::Work,
    messages::{Named, owner_of},
    open_counts::Counted,
    retention::Removal,
    run::{Cause, Origin, RunError, ThisMessage},
    timers::Timer,
    transaction::Transaction,
};
use crate::{
    BrokerError, Refused,
    access::Caller,
    codes::FieldViolation,
    domain::{
        EntityId, Header, Input, MessageType, Receiver,
        admission::{self, KnownTask, Standing},
        handoff::{Acked, LoopLimits, Priority, Timeouts},
        mailbox::{EnvelopeOwner, EnvelopePlace, Flow, Letter},
        matching::Wanted,
        negotiation::{self, Award, Closed, Negotiation, WaitingMail},
    },
    envelope::{self, NegotiationLimits, Resolved, TaskRequestBody, VerifiedEnvelope},
    ids::{AgentId, MessageId},
    proto::v1,
    records::{
        CustodyEvent, EntityRecord, EnvelopeFacts, HandoffRecord, MessageRecord, NegotiationRecord, NotFree,
        RequestPlace, TaskRecord, decode_letter, letter_key,
    },
    refused,
    settings::{NegotiationTimes, OFFERS_TIMEOUT_MAX},
    store::Key,
    time::Timestamp,
};

/// The most agents that one request asks (SPEC 6).
const ASKED_MAX: usize = 1000;

/// What the custody log of a task records of an award.
pub(super) struct AwardFacts {
    pub(super) task_request: Bytes,
    pub(super) terms: (Timeouts, LoopLimits),
}

impl Engine {
    fn negotiation_limits(&self) -> NegotiationLimits {
        let NegotiationTimes { offers, decision } = self.env.settings.negotiation_times;
        NegotiationLimits {
            asked_max: ASKED_MAX,
            offers_timeout: offers,
            offers_timeout_max: OFFERS_TIMEOUT_MAX,
            decision_timeout: decision,
        }
    }

    /// Opens a negotiation, and puts the request into the mailboxes of the agents that it asks.
    pub(super) fn take_task_request(
        &mut self,
        mut transaction: Transaction,
        envelope: &VerifiedEnvelope,
        request: &TaskRequestBody,
        now: Timestamp,
    ) -> Result<v1::Receipt, Refused> {
        let header = envelope.header();
        // First, because the search for agents is the dearest part of a request.
        self.check_open(Counted::Negotiation, &header.sender, envelope.raw().len()).map_err(refused)?;
        let asked = self.asked_agents(header, request, now).map_err(refused)?;
        // The search has asked the policies about each of them.
        self.batch.work += asked.len();
        // The terms are checked without a rule too: the bidders rely on them.
        let terms = request.terms.as_deref().map(|terms| self.terms(terms)).transpose().map_err(refused)?;
        let mut named = Named::default();
        if let Some(task) = &header.task {
            // The task of the request decides about a mandate and about the custody log.
            named = self.named(&mut transaction, task, &EntityId::Task(task.clone())).map_err(refused)?;
        }
        if terms.is_some() && request.rule.is_some() {
            self.check_mandate(&mut transaction, envelope, &named, now)?;
        }
        let standing = self.admit(&mut transaction, header, &named).map_err(refused)?;
        let task = named.task.filter(|_| standing == Standing::OnRecord);
        let sequence = self.new_sequence(&mut transaction);
        let owner = owner_of(&mut transaction, sequence, task.is_some(), asked.len());
        // An award shows the mandate to each candidate, perhaps after the letters and their envelope are gone.
        let copy = (terms.is_some() && request.rule.is_some()).then(|| self.new_sequence(&mut transaction));
        if let Some(copy) = copy {
            transaction.put_new(MessageRecord::envelope_key(copy), envelope.raw().clone());
        }
        let this = ThisMessage { envelope, sequence, owner, copy };
        let resolved = Resolved { agents: &asked, passed_over: &[], terms };
        let input = Input::Negotiation(envelope::negotiation_of(header, request, resolved, self.negotiation_limits()));
        let about = EntityId::Negotiation(header.message_id);
        let cause = Cause { origin: Origin::Message(this), event: None };
        self.run(&mut transaction, &about, &input, cause, now).map_err(RunError::into_refusal)?;
        // After the step: a refused request must leave nothing in the log.
        if let Some(task) = task {
            let event = CustodyEvent::Accepted(EnvelopeFacts {
                envelope,
                sequence,
                resolved: Resolved { terms: None, ..resolved },
            });
            self.append_custody(&mut transaction, &task.id, &event, None, &NotFree::default(), now).map_err(refused)?;
        }
        Ok(self.accept(transaction, this, now))
    }

    /// Takes an offer, a decline, or an accept without a task.
    pub(super) fn take_answer(
        &mut self,
        mut transaction: Transaction,
        envelope: &VerifiedEnvelope,
        now: Timestamp,
    ) -> Result<v1::Receipt, Refused> {
        let header = envelope.header();
        // Before any read of the negotiation: the timer of a past deadline may still wait in this batch.
        self.settle_negotiation(header, now).map_err(refused)?;
        let receivers = self.receivers(header, now).map_err(refused)?;
        let to = receivers.first().ok_or_else(|| refused(BrokerError::Internal))?;
        let about = EntityId::Negotiation(negotiation_of(header).map_err(refused)?);
        // An answer may leave the task out. Naming another one would put it into the wrong custody log.
        self.check_task_of(&mut transaction, header, &about)?;
        let sequence = self.new_sequence(&mut transaction);
        let owner = owner_of(&mut transaction, sequence, false, 1);
        let this = ThisMessage { envelope, sequence, owner, copy: None };
        let input = envelope::answer_of(header, envelope.body(), to).ok_or_else(|| refused(BrokerError::Internal))?;
        let cause = Cause { origin: Origin::Message(this), event: None };
        self.run(&mut transaction, &about, &Input::Negotiation(input), cause, now).map_err(RunError::into_refusal)?;
        Ok(self.accept(transaction, this, now))
    }

    /// Runs the award of an accept that requests a handoff, too. Any other message awards nothing.
    pub(super) fn award_first(
        &mut self,
        transaction: &mut Transaction,
        this: ThisMessage<'_>,
        now: Timestamp,
    ) -> Result<(), RunError> {
        let header = this.envelope.header();
        let Receiver::Agent(to) = &header.receiver else { return Ok(()) };
        let Some(input) = envelope::answer_of(header, this.envelope.body(), to) else { return Ok(()) };
        let about = EntityId::Negotiation(negotiation_of(header)?);
        let cause = Cause { origin: Origin::Message(this), event: None };
        self.run(transaction, &about, &Input::Negotiation(input), cause, now).map(drop)
    }

    /// Runs the overdue deadline of the negotiation before the message, so that a late message meets the state after it.
    pub(super) fn settle_negotiation(&mut self, header: &Header, now: Timestamp) -> Result<(), BrokerError> {
        let Some(negotiation) = header.correlation else { return Ok(()) };
        let about = EntityId::Negotiation(negotiation);
        let running = self.timers.clock.running();
        if self.timers.is_due(&Timer::Entity(about.clone()))
            && self.deadline_of(&about)?.is_some_and(|due| due <= running)
        {
            self.pass_time(&about, now)?;
        }
        Ok(())
    }

    /// The agents that a request asks, each once. Of a type: the best first.
    fn asked_agents(
        &mut self,
        header: &Header,
        request: &TaskRequestBody,
        now: Timestamp,
    ) -> Result<Vec<AgentId>, BrokerError> {
        admission::check_not_own(header)?;
        let accept_timeout = self.env.settings.timeouts.accept;
        let wanted = |agent_type| Wanted {
            agent_type,
            required_skills: &request.required_skills,
            preferred_skills: &request.preferred_skills,
            // The task type is for the policies; a skill need not list it.
            task_type: "",
            languages: &[],
            tags: &[],
            priority: request.terms.as_deref().map_or(Priority::default(), |terms| terms.priority),
            accept_timeout,
        };
        let able = match &header.receiver {
            Receiver::AnyOf(agent_type) => {
                let ranking = self.env.directory.rank(&wanted(Some(agent_type)), now, |agent| *agent != header.sender);
                let able = ranking.agents().cloned().collect();
                self.permitted_to_get(header, able)?
            }
            // A named agent and all agents of a type are not ranked: each is asked, if it has the required skills.
            Receiver::Agent(_) | Receiver::AllOf(_) | Receiver::Absent => {
                let mut all = self.permitted_receivers(header, now)?;
                all.retain(|agent| self.env.directory.unfit(agent, &wanted(None)).is_none());
                all
            }
        };
        let able = match request.terms.as_deref().filter(|_| request.rule.is_some()) {
            // Asked now, so that no bidder works on an offer that the award could not use. The policies are asked again
            // at the award.
            Some(terms) => {
                let work = Work::of_request(header, terms);
                self.permitted_to_take(&work, able)?
            }
            None => able,
        };
        self.receivers_of_type(header, able)
    }

    /// Checks that the sender of a mandate owns the task that the request names. The custody log records a stale one.
    fn check_mandate(
        &mut self,
        transaction: &mut Transaction,
        envelope: &VerifiedEnvelope,
        named: &Named,
        now: Timestamp,
    ) -> Result<(), Refused> {
        let header = envelope.header();
        let Some(task) = &header.task else { return Ok(()) };
        // A removed task has a record of its own, which is read only where the task itself is gone.
        let removed = match &named.task {
            Some(_) => None,
            None => self.removed_task(transaction, task).map_err(refused)?,
        };
        let known = match (&named.task, &removed) {
            (Some(task), _) => KnownTask::Known(task, None),
            (None, Some(removed)) => KnownTask::Removed(removed),
            (None, None) => KnownTask::Unknown,
        };
        let Err(error) = admission::check_mandate(header, task, known) else { return Ok(()) };
        if let Some(rejection) = error.recorded() {
            self.keep_refusal(envelope, rejection, now).map_err(refused)?;
        }
        Err(refused(error))
    }

    /// Checks that an answer that names a task names that of its negotiation.
    fn check_task_of(
        &mut self,
        transaction: &mut Transaction,
        header: &Header,
        about: &EntityId,
    ) -> Result<(), Refused> {
        let Some(task) = &header.task else { return Ok(()) };
        let record = self.entity_record(transaction, about).map_err(refused)?;
        let Some(record) = record.as_deref().and_then(EntityRecord::as_negotiation) else { return Ok(()) };
        if record.negotiation.task.as_ref().is_some_and(|(of_negotiation, _)| of_negotiation == task) {
            return Ok(());
        }
        let problem = "must be empty or the task of the negotiation".to_owned();
        let violations = vec![FieldViolation { path: "envelope.task_id".to_owned(), problem }];
        Err(refused(BrokerError::Fields { violations }))
    }

    /// The place of the stored request of an award, and what the custody log records of the award.
    pub(super) fn mandate_of(
        &mut self,
        transaction: &mut Transaction,
        award: &Award,
    ) -> Result<(RequestPlace, AwardFacts), BrokerError> {
        let stored = self.entity_record(transaction, &EntityId::Negotiation(award.negotiation))?;
        let record = stored.as_deref().and_then(EntityRecord::as_negotiation).ok_or(BrokerError::Internal)?;
        let mandate = record.negotiation.mandate.as_ref().ok_or(BrokerError::Internal)?;
        // A mandate is always stored with the copy of its request.
        let copy = record.envelope.ok_or(BrokerError::Internal)?;
        let terms = (mandate.timeouts, mandate.loop_limits);
        let task_request = self.envelope_bytes(EnvelopePlace::Sequence(copy)).ok_or(BrokerError::Internal)?;
        let request = RequestPlace { message: award.negotiation, sequence: record.sequence, expires_at: None };
        Ok((request, AwardFacts { task_request, terms }))
    }

    /// The place of the envelope of a handoff's request.
    pub(super) fn place_of_request(
        &mut self,
        transaction: &mut Transaction,
        handoff: &HandoffRecord,
    ) -> Result<EnvelopePlace, BrokerError> {
        if !handoff.is_under_mandate() {
            return Ok(EnvelopePlace::Message(handoff.request.message));
        }
        let stored = self.entity_record(transaction, &EntityId::Negotiation(handoff.request.message))?;
        let copy = stored.as_deref().and_then(EntityRecord::as_negotiation).and_then(|record| record.envelope);
        copy.map(EnvelopePlace::Sequence).ok_or(BrokerError::Internal)
    }

    /// Puts the request of a negotiation into the mailbox of an agent that an earlier step had no room for.
    pub(super) fn ask_next(
        &mut self,
        transaction: &mut Transaction,
        to: AgentId,
        record: &NegotiationRecord,
        (priority, report_to): (Priority, Option<(EntityId, Acked)>),
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let sequence = record.sequence;
        // Letters that share the envelope have counted this one from the start. Any other envelope is that of a log.
        let is_shared = self.read(transaction, &MessageRecord::shared_key(sequence))?.is_some();
        let flow = Flow::of(record.negotiation.requester.clone());
        let letter = Letter {
            priority,
            expires_at: self.mail_expiry(record.expires_at, None, now),
            report_to,
            envelope_owner: if is_shared { EnvelopeOwner::Letters } else { EnvelopeOwner::Log },
            trace: record.trace.as_ref().map(|place| Box::new(place.continued.clone())),
            ..Letter::new(sequence, record.negotiation.id, flow, now)
        };
        self.store_letter(transaction, to, letter);
        Ok(())
    }

    /// Delivers the mandate of an award to a candidate of its handoff.
    pub(super) fn tell_candidate(
        &mut self,
        transaction: &mut Transaction,
        to: AgentId,
        record: &HandoffRecord,
        priority_and_report: (Priority, Option<(EntityId, Acked)>),
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        // Each candidate gets the signed request itself: it proves the mandate without trust in the broker.
        let place = self.place_of_request(transaction, record)?;
        let task_request = self.envelope_bytes(place).ok_or(BrokerError::Internal)?;
        let negotiation = record.request.message;
        let stored = self.entity_record(transaction, &EntityId::Negotiation(negotiation))?;
        let state = stored.as_deref().and_then(EntityRecord::as_negotiation).map(|record| &record.negotiation);
        let offer = state.and_then(|state| state.thread(&to)?.offer.as_ref()).map(|offer| offer.id);
        let payload = v1::NegotiationClosed {
            negotiation_id: negotiation.to_string(),
            state: negotiation::State::Awarded.number(),
            winner_id: to.to_string(),
            offer_id: offer.map(|offer| offer.to_string()).unwrap_or_default(),
            handoff_id: record.handoff.id.to_string(),
            task_request,
            error_code: 0,
        };
        let content = (MessageType::NegotiationClosed, envelope::payload_of(&payload));
        let task = Some((record.handoff.task.clone(), record.handoff.epoch));
        self.write_to(transaction, to, content, (Some(negotiation), task), priority_and_report, now);
        Ok(())
    }

    /// Delivers the end of a negotiation.
    pub(super) fn tell_closed(
        &mut self,
        transaction: &mut Transaction,
        to: AgentId,
        closed: &Closed,
        priority: Priority,
        now: Timestamp,
    ) {
        let payload = v1::NegotiationClosed {
            negotiation_id: closed.negotiation.to_string(),
            state: closed.state.number(),
            winner_id: closed.winner.as_ref().map(ToString::to_string).unwrap_or_default(),
            offer_id: closed.offer.map(|offer| offer.to_string()).unwrap_or_default(),
            handoff_id: closed.handoff.map(|handoff| handoff.to_string()).unwrap_or_default(),
            task_request: Bytes::new(),
            error_code: closed.code.map_or(0, crate::codes::ErrorCode::number),
        };
        let content = (MessageType::NegotiationClosed, envelope::payload_of(&payload));
        self.write_to(transaction, to, content, (Some(closed.negotiation), None), (priority, None), now);
    }

    /// The key of the request in the mailbox of an agent that was asked.
    pub(super) fn letter_of_request(
        &mut self,
        transaction: &mut Transaction,
        negotiation: MessageId,
        agent: &AgentId,
    ) -> Result<Option<(Key, u64)>, BrokerError> {
        let stored = self.entity_record(transaction, &EntityId::Negotiation(negotiation))?;
        let record = stored.as_deref().and_then(EntityRecord::as_negotiation);
        Ok(record.map(|record| (letter_key(agent, record.sequence), record.sequence)))
    }

    /// The sequence of the shared envelope that counts a letter which this agent never gets, since the negotiation closed
    /// before it was asked.
    pub(super) fn envelope_of_never_asked(
        &mut self,
        transaction: &mut Transaction,
        negotiation: &EntityId,
        agent: &AgentId,
    ) -> Result<Option<u64>, BrokerError> {
        let record = self.entity_record(transaction, negotiation)?;
        let record = record.as_deref().and_then(EntityRecord::as_negotiation);
        let Some(record) = record.filter(|record| record.negotiation.was_never_asked(agent)) else { return Ok(None) };
        let is_shared = self.read(transaction, &MessageRecord::shared_key(record.sequence))?.is_some();
        Ok(is_shared.then_some(record.sequence))
    }

    /// The request of a negotiation in an agent's mailbox.
    pub(super) fn waiting_request(
        &mut self,
        transaction: &mut Transaction,
        negotiation: MessageId,
        agent: &AgentId,
    ) -> Result<WaitingMail, BrokerError> {
        let Some((key, place)) = self.letter_of_request(transaction, negotiation, agent)? else {
            return Ok(WaitingMail::None);
        };
        let Some(stored) = self.read(transaction, &key)? else { return Ok(WaitingMail::None) };
        let letter = decode_letter(&key.key, &stored.value)?;
        Ok(match (self.delivery.lease(agent, place), letter.handouts) {
            (Some(_), _) => WaitingMail::None,
            (None, 0) => WaitingMail::Unfetched,
            (None, _) => WaitingMail::Returned,
        })
    }

    /// Cancels a negotiation for its requester.
    pub(super) fn cancel_negotiation(
        &mut self,
        id: MessageId,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<Arc<Negotiation>, Refused> {
        if self.batch.failed {
            return Err(refused(BrokerError::StoreUnavailable));
        }
        let about = EntityId::Negotiation(id);
        let mut transaction = self.transaction();
        let stored = self.entity_record(&mut transaction, &about).map_err(refused)?;
        let known = stored.as_deref().and_then(EntityRecord::as_negotiation).map(|record| record.negotiation.clone());
        let seen = known.filter(|negotiation| self.access().may_see_negotiation(caller, negotiation));
        let known = seen.ok_or_else(|| refused(self.access().no_such_negotiation(caller, id)))?;
        if caller.agent().map_err(refused)? != &known.requester {
            let problem = "only the requester of the negotiation may cancel it";
            return Err(refused(negotiation::Rejection::NotAsked { problem }));
        }
        let input = Input::Negotiation(negotiation::Input::Cancel);
        let cause = Cause { origin: Origin::Broker, event: None };
        self.run(&mut transaction, &about, &input, cause, now).map_err(RunError::into_refusal)?;
        let written = transaction.written(&about).and_then(|record| record.as_negotiation());
        let after = written.map(|record| record.negotiation.clone()).ok_or_else(|| refused(BrokerError::Internal))?;
        self.stage(transaction);
        Ok(after)
    }

    /// Removes a negotiation some time after its end, with its index entries and its copy of the request.
    pub(super) fn remove_negotiation(
        &mut self,
        entry: Key,
        id: &[u8],
        budget: &mut usize,
    ) -> Result<Removal, BrokerError> {
        let mut transaction = self.transaction();
        transaction.delete(entry);
        let id: [u8; 16] = id.try_into().map_err(|_| {
            tracing::error!("an expiration names no negotiation");
            BrokerError::Internal
        })?;
        let key = NegotiationRecord::key(MessageId::from_bytes(id));
        if self.is_written_in_batch(&key) {
            return Ok(Removal::PutOff);
        }
        let Some(stored) = self.read(&mut transaction, &key)? else {
            return Ok(self.stage_removal(transaction, budget));
        };
        let record = NegotiationRecord::decode(&stored.value)?;
        let rows = record.bids_keys().map(|key| self.read(&mut transaction, &key)).collect::<Result<Vec<_>, _>>()?;
        let rows: Vec<_> = rows.into_iter().flatten().map(|row| row.value).collect();
        let record = record.with_bids(&rows)?;
        let state = &record.negotiation;
        let has_told_all = state.told_upto == state.threads.len();
        // A handoff under the mandate needs the copy of the request for as long as its task can be handed on.
        let task = state.mandate.as_ref().and(state.task.as_ref());
        let has_task = match task {
            Some((task, _)) => self.env.store.get(&TaskRecord::key(task))?.is_some(),
            None => false,
        };
        if !state.state.is_final() || !has_told_all || has_task {
            return Ok(Removal::PutOff);
        }
        record.index_keys().for_each(|key| transaction.delete(key));
        if let Some(copy) = record.envelope {
            transaction.delete(MessageRecord::envelope_key(copy));
        }
        record.bids_keys().for_each(|key| transaction.delete(key));
        transaction.delete(key);
        Ok(self.stage_removal(transaction, budget))
    }
}

/// The negotiation that a message belongs to.
fn negotiation_of(header: &Header) -> Result<MessageId, BrokerError> {
    // The parser refuses an answer without one.
    header.correlation.ok_or(BrokerError::Internal)
}
