//! Dead letters: parking messages, and the decisions of operators about them (SPEC 4).

use bytes::Bytes;

use super::{
    Engine,
    authorization::Work,
    batch::PostCommit,
    run::{Cause, Origin, RunError, ThisMessage},
    transaction::Transaction,
};
use crate::{
    BrokerError, Refused,
    access::Caller,
    domain::{
        EntityId, Input, MessageType,
        admission::AdmissionError,
        dead_letter::{AlreadySettled, DeadState, Decision, ParkReason, deliveries_as_attempts},
        handoff::{self, Priority},
        mailbox::{Attempt, EnvelopePlace, Flow, Letter},
    },
    envelope::{Body, UnverifiedEnvelope, signing},
    ids::{AgentId, MessageId},
    metrics::Event,
    proto::v1::AuditAction,
    records::{
        AuditAct, CustodyEvent, DeadEnvelope, DeadLetterRecord, EntityRecord, EnvelopeSummary, Expiration,
        HandoffRecord, MessageRecord, RequestPlace, Settlement, read_envelope,
    },
    refused,
    store::Record,
    time::Timestamp,
};

/// The reason, as a code and as a text.
pub(super) type Why<'a> = (ParkReason, &'a str);

/// A message that becomes a dead letter.
struct DeadMail<'a> {
    agent: &'a AgentId,
    letter: Option<&'a Letter>,
    attempts: Vec<(AgentId, Attempt)>,
    sequence: u64,
    bytes: Option<Bytes>,
    handoff: Option<MessageId>,
}

/// The id of the handoff, if the entity is a handoff.
fn handoff_id(entity: &EntityId) -> Option<MessageId> {
    match entity {
        EntityId::Handoff(id) => Some(*id),
        _ => None,
    }
}

/// Writes a new dead letter with its index entries.
fn put_dead_letter(transaction: &mut Transaction, record: &DeadLetterRecord) {
    record.agent_index_keys().for_each(|key| transaction.put_new(key, Bytes::new()));
    transaction.put_new(DeadLetterRecord::key(record.number), record.encode());
    transaction.post_commit.push(PostCommit::Count(Event::Parked(record.reason)));
}

impl Engine {
    /// Turns a letter into a dead letter. The caller removes the letter from its mailbox in the same transaction.
    pub(super) fn park(
        &mut self,
        transaction: &mut Transaction,
        agent: &AgentId,
        letter: &Letter,
        why: Why<'_>,
        now: Timestamp,
    ) {
        let about = DeadMail {
            agent,
            letter: Some(letter),
            attempts: deliveries_as_attempts(agent, letter),
            sequence: letter.message_sequence,
            bytes: self.envelope_bytes(letter.bytes_at()),
            handoff: letter.report_to.as_ref().and_then(|(entity, _)| handoff_id(entity)),
        };
        self.write_dead_letter(transaction, about, why, now);
    }

    /// Parks the message that opened an entity which no agent took.
    pub(super) fn park_opening(
        &mut self,
        transaction: &mut Transaction,
        entity: &EntityId,
        to: &AgentId,
        why: Why<'_>,
        (attempts, message): (Vec<(AgentId, Attempt)>, Option<ThisMessage<'_>>),
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let record = self.entity_record(transaction, entity)?.ok_or(BrokerError::Internal)?;
        let opening = record.opening().ok_or(BrokerError::Internal)?;
        let place = match record.as_handoff() {
            Some(handoff) => self.place_of_request(transaction, handoff)?,
            None => EnvelopePlace::Message(opening.message),
        };
        let about = DeadMail {
            agent: to,
            letter: None,
            attempts,
            sequence: opening.sequence,
            bytes: match message {
                // The message in hand is stored after its step.
                Some(this) if this.sequence == opening.sequence => Some(this.envelope.raw().clone()),
                Some(_) | None => self.envelope_bytes(place),
            },
            handoff: handoff_id(entity),
        };
        self.write_dead_letter(transaction, about, why, now);
        Ok(())
    }

    /// Writes the dead letter, its index entries and its copy of the envelope.
    fn write_dead_letter(&mut self, transaction: &mut Transaction, about: DeadMail<'_>, why: Why<'_>, now: Timestamp) {
        let DeadMail { agent, letter, attempts, sequence, bytes, handoff } = about;
        // A message whose envelope cannot be read still becomes a dead letter, with its reason and history.
        let bytes = bytes.unwrap_or_default();
        let summary = EnvelopeSummary::of(&bytes);
        tracing::warn!(
            %agent, message_id = summary.message_id, task = summary.task_id, reason = why.0.name(),
            "parked a message as a dead letter"
        );
        let parked = self.parked_now(transaction, agent, DeadEnvelope::Accepted(sequence), summary, why, now);
        let record = DeadLetterRecord { letter: letter.cloned(), attempts, handoff, ..parked };
        put_dead_letter(transaction, &record);
        // The dead letter gets its own copy, because the former owner of the envelope may be removed first.
        transaction.put_new(MessageRecord::envelope_key(record.number), bytes);
    }

    /// A dead letter of this moment, with a number of its own and without a history.
    fn parked_now(
        &self,
        transaction: &mut Transaction,
        agent: &AgentId,
        envelope: DeadEnvelope,
        summary: EnvelopeSummary,
        (reason, text): Why<'_>,
        now: Timestamp,
    ) -> DeadLetterRecord {
        DeadLetterRecord {
            number: self.new_sequence(transaction),
            agent: agent.clone(),
            letter: None,
            attempts: Vec::new(),
            handoff: None,
            reason,
            reason_text: text.to_owned(),
            parked_at: now,
            state: DeadState::Parked,
            settlement: None,
            envelope,
            summary,
        }
    }

    /// The bytes of an accepted envelope, from the store or from the batch in hand.
    pub(super) fn envelope_bytes(&self, place: EnvelopePlace) -> Option<Bytes> {
        let mut transaction = self.transaction();
        match read_envelope(place, |key| self.read(&mut transaction, key)) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(?place, %error, "failed to read an envelope");
                None
            }
        }
    }

    /// Keeps a refused envelope as a dead letter for operators to read: the bytes are no envelope, or the payload does
    /// not fit its type. Equal bytes are kept once.
    pub(super) fn keep_refused(&mut self, agent: &AgentId, raw: Bytes, why: Why<'_>, now: Timestamp) {
        let kept = self.retention.refused_envelopes(agent);
        if self.batch.failed || !kept.admit(raw.len(), || signing::sha256(&[&raw])) {
            return;
        }
        let summary = EnvelopeSummary::of(&raw);
        let mut transaction = self.transaction();
        let record = self.parked_now(&mut transaction, agent, DeadEnvelope::Refused(raw), summary, why, now);
        put_dead_letter(&mut transaction, &record);
        self.stage(transaction);
        self.end_unanswered();
    }

    /// Redrives a dead letter, and marks it as redriven in the same change.
    pub(super) fn redrive(
        &mut self,
        number: u64,
        to: Option<&AgentId>,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<DeadLetterRecord, Refused> {
        let mut transaction = self.transaction();
        let (mut dead, stored) = self.decided(&mut transaction, number, Decision::Redrive, caller).map_err(refused)?;
        // A refused envelope was never accepted, so it cannot be delivered (SPEC 4).
        let DeadEnvelope::Accepted(sequence) = dead.envelope else {
            return Err(refused(BrokerError::DeadLetterNotAMessage { dead_letter: number }));
        };
        // The dead letter of a request starts a new handoff; any other message goes into a mailbox again.
        let text = caller.to_string();
        let mut settlement = Settlement { at: now, text, redriven_to: None, redriven_handoff: None };
        match self.ended_handoff(&mut transaction, &dead).map_err(refused)? {
            Some(former) => {
                let (handoff, asked) = self.try_again(&mut transaction, &dead, &former, to, now)?;
                settlement.redriven_to = Some(asked);
                settlement.redriven_handoff = Some(handoff);
            }
            None => {
                let to = self.registered(to.unwrap_or(&dead.agent)).map_err(refused)?;
                // The original receiver has already passed the policy.
                if to != dead.agent {
                    self.check_redirected(&dead, &to).map_err(refused)?;
                }
                let letter = self.fresh_letter(&mut transaction, &dead, sequence, now).map_err(refused)?;
                let process = dead.letter.as_ref().and_then(|letter| letter.process);
                transaction.preferred = process.filter(|_| to == dead.agent);
                self.store_letter(&mut transaction, to.clone(), letter);
                settlement.redriven_to = Some(to);
            }
        }
        let to = settlement.redriven_to.as_ref().map_or("no agent", AgentId::as_str);
        let details = format!("to {to}");
        dead.settlement = Some(settlement);
        self.settle(transaction, dead, &stored, (AuditAction::DeadLetterRedriven, details), caller, now)
    }

    /// Discards a dead letter for good, and stores the caller and the reason with it.
    pub(super) fn discard(
        &mut self,
        number: u64,
        caller: &Caller,
        reason_text: &str,
        now: Timestamp,
    ) -> Result<DeadLetterRecord, Refused> {
        let mut transaction = self.transaction();
        let (mut dead, stored) = self.decided(&mut transaction, number, Decision::Discard, caller).map_err(refused)?;
        let text = if reason_text.is_empty() { caller.to_string() } else { format!("{caller}: {reason_text}") };
        dead.settlement = Some(Settlement { at: now, text, redriven_to: None, redriven_handoff: None });
        let act = (AuditAction::DeadLetterDiscarded, reason_text.to_owned());
        self.settle(transaction, dead, &stored, act, caller, now)
    }

    /// Stores a decision with its audit entry, and starts the dead letter's retention.
    fn settle(
        &mut self,
        mut transaction: Transaction,
        dead: DeadLetterRecord,
        stored: &Record,
        (action, details): (AuditAction, String),
        caller: &Caller,
        now: Timestamp,
    ) -> Result<DeadLetterRecord, Refused> {
        let key = DeadLetterRecord::key(dead.number);
        transaction.expire_later(Expiration::DeadLetter, now, &key.key);
        transaction.put(key, dead.encode(), Some(stored));
        let act = AuditAct { actor: caller.to_string(), action, subject: dead.number.to_string(), details };
        self.record(&mut transaction, act, now).map_err(refused)?;
        self.stage(transaction);
        tracing::info!(dead_letter = dead.number, by = %caller, state = dead.state.name(), "settled a dead letter");
        Ok(dead)
    }

    /// Checks that the sender of a redirected dead letter may write to the new receiver.
    fn check_redirected(&self, dead: &DeadLetterRecord, to: &AgentId) -> Result<(), BrokerError> {
        let sender = AgentId::parse(&dead.summary.sender_id).map_err(|_| BrokerError::Internal)?;
        let (Some(from), Some(to)) = (self.env.directory.get(&sender), self.env.directory.get(to)) else {
            return Ok(());
        };
        let kind = MessageType::from_number(dead.summary.message_type).ok_or(BrokerError::Internal)?;
        // A context is for the receiver of that version alone (SPEC 5).
        if kind == MessageType::TaskContextTransfer {
            let problem = "a context is delivered again to its receiver only".to_owned();
            return Err(AdmissionError::ReceiverInvalid { receiver: to.id().to_string(), problem }.into());
        }
        self.access().may_send(&from, &to, kind.name())
    }

    /// Reads a dead letter and applies the decision. Returns it with the new state, and the stored record.
    fn decided(
        &self,
        transaction: &mut Transaction,
        number: u64,
        decision: Decision,
        caller: &Caller,
    ) -> Result<(DeadLetterRecord, Record), BrokerError> {
        if self.batch.failed {
            return Err(BrokerError::StoreUnavailable);
        }
        let key = DeadLetterRecord::key(number);
        // A caller without the permission gets the same error as for an unknown number.
        let unknown = || self.access().no_such_dead_letter_to_settle(caller, number);
        // The read sees the decision of an earlier command of this batch, so only the first decision counts.
        let stored = self.read(transaction, &key)?.ok_or_else(unknown)?;
        let mut dead = DeadLetterRecord::decode(&key.key, &stored.value)?;
        self.access().may_settle_dead_letter(caller, &dead).map_err(|_| unknown())?;
        let settled =
            |AlreadySettled { state }| BrokerError::DeadLetterSettled { dead_letter: number, state: state.name() };
        dead.state = dead.state.settle(decision).map_err(settled)?;
        Ok((dead, stored))
    }

    /// The handoff of a dead request. It has ended, or is open with another candidate; a redrive makes a new handoff
    /// either way.
    fn ended_handoff(
        &mut self,
        transaction: &mut Transaction,
        dead: &DeadLetterRecord,
    ) -> Result<Option<HandoffRecord>, BrokerError> {
        // An award is the request of a handoff as well: the accept of an offer, or the mandate that a candidate was shown.
        let requests = [
            MessageType::HandoffRequest,
            MessageType::TaskAccept,
            MessageType::TaskRequest,
            MessageType::NegotiationClosed,
        ];
        let is_request = requests.iter().any(|kind| dead.summary.message_type == kind.number());
        // Other mail of a handoff, such as its context, goes into a mailbox again.
        let Some(handoff) = dead.handoff.filter(|_| is_request) else { return Ok(None) };
        let unknown = || BrokerError::HandoffUnknown { handoff: handoff.to_string() };
        // Without the handoff's record, its task has ended and was removed: no task is left to hand over.
        let stored = self.entity_record(transaction, &EntityId::Handoff(handoff))?;
        Ok(Some(stored.as_deref().and_then(EntityRecord::as_handoff).ok_or_else(unknown)?.clone()))
    }

    /// Starts a new handoff with the request of a former one. Returns its id and the first candidate.
    fn try_again(
        &mut self,
        transaction: &mut Transaction,
        dead: &DeadLetterRecord,
        former: &HandoffRecord,
        to: Option<&AgentId>,
        now: Timestamp,
    ) -> Result<(MessageId, AgentId), Refused> {
        let candidates = match to {
            Some(to) => {
                let to = self.registered(to).map_err(refused)?;
                self.check_hand_off(&Work::of_handoff(&former.handoff), &to).map_err(refused)?;
                self.check_fit(former, &to).map_err(refused)?;
                // The agent that the operator names is the only candidate. The request's own candidates are not asked
                // again.
                vec![to]
            }
            None => self.candidates_again(former, now).map_err(refused)?,
        };
        let id = self.env.ids.message_id(now);
        let event = CustodyEvent::Redriven {
            dead_letter: dead.number,
            former: former.handoff.id,
            handoff: id,
            candidates: &candidates,
        };
        let task = former.handoff.task.clone();
        let input = Input::Handoff { task, input: handoff::Input::Redrive { id, candidates: candidates.clone() } };
        let about = EntityId::Handoff(former.handoff.id);
        let cause = Cause { origin: Origin::StoredRequest(former.request), event: Some(&event) };
        // The task may have moved on (SPEC 4). The transaction is dropped, and the dead letter stays parked.
        self.run(transaction, &about, &input, cause, now).map_err(RunError::into_refusal)?;
        let made = transaction.written(&EntityId::Handoff(id)).and_then(|record| record.as_handoff());
        let asked = made.ok_or_else(|| refused(BrokerError::Internal))?.handoff.candidate.clone();
        Ok((id, asked))
    }

    /// The candidates of the stored request, resolved as for a request that arrives now.
    fn candidates_again(&mut self, former: &HandoffRecord, now: Timestamp) -> Result<Vec<AgentId>, BrokerError> {
        if former.is_under_mandate() {
            // The mandate permits the agents of the offers alone.
            let work = Work::of_handoff(&former.handoff);
            let asked = former.handoff.offers.iter().map(|offer| offer.candidate.clone()).collect();
            return self.permitted_to_take(&work, asked);
        }
        let parsed = self.stored_request(former.request)?;
        match parsed.body() {
            // The agents that are passed over are on the record of the former handoff.
            Body::Request(body) | Body::TaskAccept { terms: Some(body), .. } => {
                Ok(self.candidates(parsed.header(), body, now)?.agents)
            }
            _ => Err(BrokerError::Internal),
        }
    }

    /// The stored request of a handoff.
    pub(super) fn stored_request(&self, request: RequestPlace) -> Result<UnverifiedEnvelope, BrokerError> {
        let raw = self.envelope_bytes(EnvelopePlace::Message(request.message)).ok_or(BrokerError::Internal)?;
        UnverifiedEnvelope::parse(raw).map_err(|error| {
            tracing::error!(%error, sequence = request.sequence, "a stored request cannot be parsed");
            BrokerError::Internal
        })
    }

    /// A new letter with the same message, and with fresh counts and a fresh lifetime: an operator wants it delivered.
    fn fresh_letter(
        &mut self,
        transaction: &mut Transaction,
        dead: &DeadLetterRecord,
        message_sequence: u64,
        now: Timestamp,
    ) -> Result<Letter, BrokerError> {
        let before = dead.letter.as_ref();
        let message = MessageId::parse(&dead.summary.message_id)
            .map_err(|_| BrokerError::DeadLetterNotAMessage { dead_letter: dead.number })?;
        let bytes = self.envelope_bytes(EnvelopePlace::Sequence(dead.number)).ok_or(BrokerError::Internal)?;
        let of_sender = || AgentId::parse(&dead.summary.sender_id).ok().map(Flow::of);
        let flow = before.map(|letter| letter.flow.clone()).or_else(of_sender);
        let flow = flow.ok_or(BrokerError::DeadLetterNotAMessage { dead_letter: dead.number })?;
        let sequence = self.new_sequence(transaction);
        // The letter gets its own copy, because the retention removes the dead letter with its envelope.
        transaction.put_new(MessageRecord::envelope_key(sequence), bytes);
        Ok(Letter {
            message_sequence,
            task: before.and_then(|letter| letter.task.clone()),
            priority: before.map_or(Priority::default(), |letter| letter.priority),
            expires_at: self.mail_expiry(None, None, now),
            report_to: before.and_then(|letter| letter.report_to.clone()),
            trace: before.and_then(|letter| letter.trace.clone()),
            ..Letter::new(sequence, message, flow, now)
        })
    }
}
