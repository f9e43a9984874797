//! Handoffs, in the records of their tasks and in table handoffs, with their indexes: of the open ones (table timers), and
//! in table listings of all, of each participant's, of those of each task that are not in its record, and of the ended ones
//! among the changes.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message;

use super::{
    ChangePlace, DecodeError, List, Reader, TracePlace, id_bytes,
    letter::{process_bytes, process_from},
    moment, texts,
    trace::{place_from_storage, place_to_storage},
};
use crate::{
    codes::ErrorCode,
    domain::{
        handoff::{
            Cause, Failure, Handoff, Mode, Offer, OfferOutcome, Priority, ReceiverView, SenderView, State, Step,
            Timeouts, Waiting, WorkTerms,
        },
        routing::{HandoffRef, RunId, TurnId},
    },
    ids::{AgentId, InstanceId, MessageId, TaskId},
    proto::storage,
    store::{Key, Table},
    time::Timestamp,
};

/// A handoff as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandoffRecord {
    /// The state of the handoff's machine.
    pub handoff: Arc<Handoff>,
    /// The sequence, its place in lists.
    pub sequence: u64,
    /// The sequence of the latest change, its place in the order of changes.
    pub changed: u64,
    /// The place of the request, for further candidates.
    pub request: RequestPlace,
    /// The place in a trace.
    pub trace: Option<Box<TracePlace>>,
    /// The place in the candidate's mailbox of the latest offer or context. 0: none was delivered.
    pub latest_letter: u64,
    /// The process of the sender that sent the request. `None`: it has not said.
    pub sender_process: Option<InstanceId>,
    /// The process of the candidate that answered the offer.
    pub candidate_process: Option<InstanceId>,
}

/// The request of a handoff, which is delivered to one candidate after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestPlace {
    /// The message_id, which is the handoff's id unless the request was redriven.
    pub message: MessageId,
    /// The sequence of the message.
    pub sequence: u64,
    /// The expires_at of the request. It does not apply to a redriven one.
    pub expires_at: Option<Timestamp>,
}

/// An index entry of a handoff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandoffPlace {
    /// The sequence of the handoff.
    pub sequence: u64,
    /// The id of the handoff.
    pub handoff: MessageId,
    /// The task that the handoff is to move.
    pub task: TaskId,
}

/// The key of the latest change among the removed handoffs.
pub fn removed_changes_key() -> Key {
    Key { table: Table::Meta, key: "removed_handoff_changes".into() }
}

/// Encodes the sequence under [`removed_changes_key`].
pub fn encode_removed_changes(last: u64) -> Bytes {
    storage::SequenceRecord { last, ..Default::default() }.encode_to_vec().into()
}

/// Decodes the sequence under [`removed_changes_key`].
pub fn removed_changes(value: &Bytes) -> Result<u64, DecodeError> {
    Ok(Reader("meta").message::<storage::SequenceRecord>(value)?.last)
}

impl HandoffPlace {
    /// Encodes the value of the entry: the handoff's id, 16 bytes, then the task's id. The key has the sequence.
    pub fn encode(&self) -> Bytes {
        [&self.handoff.as_bytes()[..], self.task.as_str().as_bytes()].concat().into()
    }

    /// Decodes an entry from its sequence and its value.
    pub fn decode(sequence: u64, value: &[u8]) -> Result<Self, DecodeError> {
        let reader = Reader("listings");
        let (id, task) = value.split_at_checked(16).ok_or_else(|| reader.error("a value is too short"))?;
        let task = std::str::from_utf8(task).map_err(|error| reader.error(error.to_string()))?;
        Ok(Self { sequence, handoff: reader.message_id(id)?, task: reader.task(task)? })
    }
}

impl HandoffRecord {
    /// The process of this agent that takes part in the handoff.
    pub fn process_of(&self, agent: &AgentId) -> Option<InstanceId> {
        if self.handoff.sender == *agent {
            return self.sender_process;
        }
        self.candidate_process.filter(|_| self.handoff.candidate == *agent)
    }

    /// Whether the handoff's request is a mandate: the broker tells each candidate with a message of its own.
    pub fn is_under_mandate(&self) -> bool {
        self.handoff.negotiation == Some(self.request.message)
    }

    /// The key of the record.
    pub fn key(handoff: MessageId) -> Key {
        Key { table: Table::Handoffs, key: handoff.as_bytes().into() }
    }

    /// The value of the entries in lists.
    pub fn place(&self) -> HandoffPlace {
        HandoffPlace { sequence: self.sequence, handoff: self.handoff.id, task: self.handoff.task.clone() }
    }

    /// The entry in the list of changes. `None`: the handoff is open.
    pub fn end_entry(&self) -> Option<(Key, Bytes)> {
        let place = || ChangePlace { task: self.handoff.task.clone(), ended: Some(self.handoff.id) };
        self.handoff.state.is_final().then(|| (List::changes().place(self.changed), place().encode()))
    }

    /// The entry in the list of the task's handoffs that have records of their own.
    pub fn task_entry(&self) -> (Key, Bytes) {
        (List::handoffs_of_task(&self.handoff.task).place(self.sequence), self.place().encode())
    }

    /// Whether the record of a handoff begins in that of its task. The message of a mandate names no task, and no message
    /// has the id of a redriven handoff: such a handoff would not be found.
    pub fn begins_in_task(handoff: &Handoff) -> bool {
        !handoff.is_mandated() && handoff.redrive_of.is_none()
    }

    /// The agents with an index entry of the handoff: the sender and every candidate that got an offer.
    pub fn participants(handoff: &Handoff) -> BTreeSet<&AgentId> {
        let offers = handoff.offers.iter().filter(|offer| !offer.passed_over);
        let asked = offers.map(|offer| &offer.candidate);
        std::iter::once(&handoff.sender).chain(asked).collect()
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        self.to_storage().encode_to_vec().into()
    }

    pub(super) fn to_storage(&self) -> storage::HandoffRecord {
        let handoff = &self.handoff;
        let timeouts = handoff.timeouts;
        let spans = [timeouts.accept, timeouts.context, timeouts.complete, timeouts.whole];
        storage::HandoffRecord {
            handoff_id: id_bytes(handoff.id),
            task_id: handoff.task.to_string(),
            epoch: handoff.epoch,
            sender_id: handoff.sender.to_string(),
            receiver_id: handoff.receiver.clone(),
            candidate_id: handoff.candidate.to_string(),
            next_candidate_ids: texts(&handoff.next_candidates),
            offers: handoff.offers.iter().map(offer_to_storage).collect(),
            state: handoff.state.number(),
            mode: handoff.mode.number(),
            loan_timeout: handoff.loan_timeout.map_or(0, nanoseconds),
            work: work_to_storage(handoff.work),
            submitter: handoff.submitter.clone().unwrap_or_default(),
            run_id: handoff.routing.map(|routing| id_bytes(routing.run.0)).unwrap_or_default(),
            choice_id: handoff.routing.map(|routing| id_bytes(routing.choice.0)).unwrap_or_default(),
            priority: handoff.priority.number(),
            fairness_key: handoff.fairness_key.as_ref().map(ToString::to_string).unwrap_or_default(),
            task_type: handoff.task_type.clone(),
            reason: handoff.reason,
            timeouts: spans.map(nanoseconds).to_vec(),
            step_deadline: handoff.step_deadline.map(|at| at.unix_nanoseconds()),
            whole_deadline: handoff.whole_deadline.unix_nanoseconds(),
            wanted_sections: handoff.wanted_sections.clone(),
            estimate: handoff.estimate.map(nanoseconds),
            context_digest: handoff.context_digest.map(|digest| digest.to_vec().into()).unwrap_or_default(),
            context_delivered: handoff.context_delivered,
            let_go: handoff.let_go,
            failure_code: handoff.failure.as_ref().map_or(0, |failure| failure.code.number()),
            failure_message: handoff.failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default(),
            steps: handoff.steps.iter().map(step_to_storage).collect(),
            created_at: handoff.created_at.unix_nanoseconds(),
            updated_at: handoff.updated_at.unix_nanoseconds(),
            sequence: self.sequence,
            expires_at: self.request.expires_at.map(Timestamp::unix_nanoseconds),
            request_message_id: id_bytes(self.request.message),
            request_sequence: self.request.sequence,
            redrive_of_handoff_id: handoff.redrive_of.map(id_bytes).unwrap_or_default(),
            negotiation_id: handoff.negotiation.map(id_bytes).unwrap_or_default(),
            trace: self.trace.as_deref().map(place_to_storage),
            sender_process: process_bytes(self.sender_process),
            candidate_process: process_bytes(self.candidate_process),
            changed: self.changed,
            waiting_for: handoff.waiting.map_or(0, Waiting::number),
            wait_for_agent: handoff.wait_for_agent,
            thread_id: handoff.thread.as_ref().map(ToString::to_string).unwrap_or_default(),
            latest_letter: self.latest_letter,
        }
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("handoffs");
        Self::from_storage(&reader, reader.message(value)?)
    }

    pub(super) fn from_storage(reader: &Reader, stored: storage::HandoffRecord) -> Result<Self, DecodeError> {
        // No error code is 0, so 0 stands for a handoff without a failure.
        let failure = match stored.failure_code {
            0 => None,
            number => Some(Failure {
                code: reader.some(ErrorCode::from_number(number), "failure_code")?,
                message: stored.failure_message,
            }),
        };
        let context_digest =
            if stored.context_digest.is_empty() { None } else { Some(reader.digest(&stored.context_digest)?) };
        let handoff = Handoff {
            id: reader.message_id(&stored.handoff_id)?,
            redrive_of: reader.optional_message_id(&stored.redrive_of_handoff_id)?,
            task: reader.task(&stored.task_id)?,
            epoch: stored.epoch,
            sender: reader.agent(&stored.sender_id)?,
            receiver: stored.receiver_id,
            candidate: reader.agent(&stored.candidate_id)?,
            next_candidates: reader.agents(&stored.next_candidate_ids)?,
            offers: stored.offers.iter().map(|offer| offer_from_storage(reader, offer)).collect::<Result<_, _>>()?,
            state: reader.some(State::from_number(stored.state), "state")?,
            mode: reader.some(Mode::from_number(stored.mode), "mode")?,
            // A loan timeout is at least 1 s (SPEC 3), so 0 stands for none.
            loan_timeout: span_unless_zero(stored.loan_timeout),
            work: work_from_storage(stored.work.as_ref()),
            submitter: Some(stored.submitter.clone()).filter(|submitter| !submitter.is_empty()),
            routing: match reader.optional_message_id(&stored.run_id)? {
                Some(run) => {
                    let choice = reader.message_id(&stored.choice_id)?;
                    Some(HandoffRef { run: RunId(run), choice: TurnId(choice) })
                }
                None => None,
            },
            priority: reader.some(Priority::from_number(stored.priority), "priority")?,
            fairness_key: reader.optional_fairness_key(&stored.fairness_key)?,
            task_type: stored.task_type,
            reason: stored.reason,
            timeouts: timeouts_from_storage(reader, &stored.timeouts)?,
            step_deadline: stored.step_deadline.map(moment),
            whole_deadline: moment(stored.whole_deadline),
            wanted_sections: stored.wanted_sections,
            estimate: stored.estimate.map(Duration::from_nanos),
            waiting: match stored.waiting_for {
                0 => None,
                number => Some(reader.some(Waiting::from_number(number), "waiting_for")?),
            },
            wait_for_agent: stored.wait_for_agent,
            thread: reader.optional_thread(&stored.thread_id)?,
            context_digest,
            context_delivered: stored.context_delivered,
            let_go: stored.let_go,
            failure,
            negotiation: reader.optional_message_id(&stored.negotiation_id)?,
            steps: stored.steps.iter().map(|step| step_from_storage(reader, step)).collect::<Result<_, _>>()?,
            created_at: moment(stored.created_at),
            updated_at: moment(stored.updated_at),
        };
        let request = RequestPlace {
            message: reader.message_id(&stored.request_message_id)?,
            sequence: stored.request_sequence,
            expires_at: stored.expires_at.map(moment),
        };
        let sender_process = process_from(reader, &stored.sender_process)?;
        let candidate_process = process_from(reader, &stored.candidate_process)?;
        let trace = place_from_storage(reader, stored.trace)?;
        let (sequence, changed, latest_letter) = (stored.sequence, stored.changed, stored.latest_letter);
        Ok(Self {
            handoff: Arc::new(handoff),
            sequence,
            changed,
            request,
            trace,
            latest_letter,
            sender_process,
            candidate_process,
        })
    }
}

/// The span of this many nanoseconds. `None`: 0.
pub(super) fn span_unless_zero(nanoseconds: u64) -> Option<Duration> {
    Some(Duration::from_nanos(nanoseconds)).filter(|span| !span.is_zero())
}

pub(super) fn work_to_storage(work: WorkTerms) -> Option<storage::WorkTermsRecord> {
    (work != WorkTerms::default()).then(|| storage::WorkTermsRecord {
        silence_timeout: work.silence_timeout.map_or(0, nanoseconds),
        returns_when_abandoned: work.returns_when_abandoned,
        loan_timeout_max: work.loan_timeout_max.map_or(0, nanoseconds),
    })
}

pub(super) fn work_from_storage(stored: Option<&storage::WorkTermsRecord>) -> WorkTerms {
    let Some(stored) = stored else { return WorkTerms::default() };
    WorkTerms {
        silence_timeout: span_unless_zero(stored.silence_timeout),
        returns_when_abandoned: stored.returns_when_abandoned,
        loan_timeout_max: span_unless_zero(stored.loan_timeout_max),
    }
}

pub(super) fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn timeouts_from_storage(reader: &Reader, spans: &[u64]) -> Result<Timeouts, DecodeError> {
    let [accept, context, complete, whole] = spans else { return Err(reader.error("timeouts are not four")) };
    let span = |nanoseconds: &u64| Duration::from_nanos(*nanoseconds);
    Ok(Timeouts { accept: span(accept), context: span(context), complete: span(complete), whole: span(whole) })
}

fn offer_to_storage(offer: &Offer) -> storage::OfferRecord {
    storage::OfferRecord {
        candidate_id: offer.candidate.to_string(),
        offered_at: offer.offered_at.unix_nanoseconds(),
        outcome: offer.outcome.number(),
        reject_reason: offer.reject_reason,
        reason_text: offer.reason_text.clone(),
        retry_at: offer.retry_at.map(Timestamp::unix_nanoseconds),
        passed_over: offer.passed_over,
        until_room: offer.until_room,
        repeats: offer.repeats,
        decides_within: offer.decides_within.map(nanoseconds),
    }
}

fn offer_from_storage(reader: &Reader, stored: &storage::OfferRecord) -> Result<Offer, DecodeError> {
    Ok(Offer {
        candidate: reader.agent(&stored.candidate_id)?,
        offered_at: moment(stored.offered_at),
        outcome: reader.some(OfferOutcome::from_number(stored.outcome), "outcome")?,
        reject_reason: stored.reject_reason,
        reason_text: stored.reason_text.clone(),
        retry_at: stored.retry_at.map(moment),
        passed_over: stored.passed_over,
        until_room: stored.until_room,
        repeats: stored.repeats,
        decides_within: stored.decides_within.map(Duration::from_nanos),
    })
}

fn step_to_storage(step: &Step) -> storage::StepRecord {
    storage::StepRecord {
        at: step.at.unix_nanoseconds(),
        cause: step.cause.number(),
        state: step.state.number(),
        sender_view: step.sender_view.number(),
        receiver_view: step.receiver_view.number(),
        candidate_id: step.candidate.to_string(),
    }
}

fn step_from_storage(reader: &Reader, stored: &storage::StepRecord) -> Result<Step, DecodeError> {
    Ok(Step {
        at: moment(stored.at),
        cause: reader.some(Cause::from_number(stored.cause), "cause")?,
        state: reader.some(State::from_number(stored.state), "state")?,
        sender_view: reader.some(SenderView::from_number(stored.sender_view), "sender_view")?,
        receiver_view: reader.some(ReceiverView::from_number(stored.receiver_view), "receiver_view")?,
        candidate: reader.agent(&stored.candidate_id)?,
    })
}
