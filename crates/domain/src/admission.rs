//! Admission: whether the broker accepts a message, in view of the records of its id, task, handoff and receivers.
//!
//! This module owns the checks before the state machine: repeats, the clock window, participants of a task, removed
//! tasks, the fencing of mail, and receivers. The caller reads the records that these functions need.

mod chain;

use std::time::Duration;

pub use self::chain::{CHAIN_MAX, Chain};
use super::{
    Correlation, Handling, Header, MessageType, Outsider, Receiver,
    handoff::{Handoff, OFFERS_MAX, Rejection, Task, check_owner},
    removed_task::RemovedTask,
};
use crate::{
    codes::{ErrorCode, FieldViolation, Refusal},
    ids::{AgentId, MessageId, TaskId},
    time::Timestamp,
};

/// A refused message. Nothing changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// The timestamp is too far from the broker's clock.
    #[error("the envelope's timestamp differs from the broker's clock by {off_by:?}; the limit is {window:?}")]
    TimestampOutsideWindow {
        /// The distance to the broker's clock.
        off_by: Duration,
        /// The largest accepted distance.
        window: Duration,
    },
    /// The ids of messages with this timestamp are removed, so the broker could not recognise a repeat.
    #[error(
        "the broker has removed the message ids of the time of this envelope's timestamp, because its clock was ahead: it \
         refuses timestamps up to {upto}"
    )]
    TimestampForgotten {
        /// The latest refused timestamp.
        upto: Timestamp,
    },
    /// The message is past its `expires_at`.
    #[error("the message expired at {expired_at}")]
    MessageExpired {
        /// The `expires_at` of the message.
        expired_at: Timestamp,
    },
    /// The broker has accepted another message with the same id.
    #[error("message_id {message_id} belongs to another accepted message; generate a new id for each message")]
    MessageIdReused {
        /// The id that two different messages have.
        message_id: MessageId,
    },
    /// The sender is not a participant of the task, or the task is unknown.
    #[error("{sender} does not own task {task}; only a task's owner may send this message")]
    NotOwner {
        /// The sender of the message.
        sender: AgentId,
        /// The task that the message names.
        task: TaskId,
    },
    /// The sender is not a participant of the task, or the task is unknown.
    #[error("{sender} has no offer of task {task}; only a handoff's current candidate may send this message")]
    NotCandidate {
        /// The sender of the message.
        sender: AgentId,
        /// The task that the message names.
        task: TaskId,
    },
    /// The sender was not asked a question about the task, or the task is unknown.
    #[error("{sender} was not asked a question about task {task}; only the agent that was asked may answer")]
    NotAsked {
        /// The sender of the message.
        sender: AgentId,
        /// The task that the message names.
        task: TaskId,
    },
    /// The id or the parent of a new task is not permitted.
    #[error("{violation}")]
    FieldInvalid {
        /// The field and its problem.
        violation: FieldViolation,
    },
    /// No agent is registered under the name.
    #[error("no registered agent matches {receiver}")]
    ReceiverUnknown {
        /// The receiver that the message names.
        receiver: String,
    },
    /// The receiver is not permitted for this message.
    #[error("{receiver} cannot be the receiver of this message: {problem}")]
    ReceiverInvalid {
        /// The receiver that the message names.
        receiver: String,
        /// The reason, for a person to read.
        problem: String,
    },
    /// A refusal with the code of the state machine, before its step.
    #[error(transparent)]
    Rejected(#[from] Rejection),
}

impl AdmissionError {
    /// The rejection that the task's custody log records. `None`: the log does not record the refusal.
    pub fn recorded(&self) -> Option<&Rejection> {
        self.rejection().filter(|rejection| rejection.is_recorded())
    }

    const fn rejection(&self) -> Option<&Rejection> {
        match self {
            Self::Rejected(rejection) => Some(rejection),
            Self::TimestampOutsideWindow { .. }
            | Self::TimestampForgotten { .. }
            | Self::MessageExpired { .. }
            | Self::MessageIdReused { .. }
            | Self::NotOwner { .. }
            | Self::NotCandidate { .. }
            | Self::NotAsked { .. }
            | Self::FieldInvalid { .. }
            | Self::ReceiverUnknown { .. }
            | Self::ReceiverInvalid { .. } => None,
        }
    }
}

impl Refusal for AdmissionError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::TimestampOutsideWindow { .. } | Self::TimestampForgotten { .. } => ErrorCode::TimestampOutsideWindow,
            Self::MessageExpired { .. } => ErrorCode::MessageExpired,
            Self::MessageIdReused { .. } => ErrorCode::MessageIdReused,
            Self::NotOwner { .. } => ErrorCode::NotOwner,
            Self::NotCandidate { .. } => ErrorCode::NotCandidate,
            Self::NotAsked { .. } => ErrorCode::NotAsked,
            Self::FieldInvalid { .. } => ErrorCode::FieldInvalid,
            Self::ReceiverUnknown { .. } => ErrorCode::ReceiverUnknown,
            Self::ReceiverInvalid { .. } => ErrorCode::ReceiverInvalid,
            Self::Rejected(rejection) => rejection.code(),
        }
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        self.rejection().map(Rejection::metadata).unwrap_or_default()
    }

    fn violations(&self) -> &[FieldViolation] {
        match self {
            Self::FieldInvalid { violation } => std::slice::from_ref(violation),
            Self::Rejected(rejection) => rejection.violations(),
            _ => &[],
        }
    }
}

// ------------------------------------------------------------------------------------------------- repeats and time

/// Checks a message with a known id. The same content is a repeat, which gets the first receipt.
pub fn check_repeat(message_id: MessageId, content: &[u8; 32], first: &[u8; 32]) -> Result<(), AdmissionError> {
    if content == first { Ok(()) } else { Err(AdmissionError::MessageIdReused { message_id }) }
}

/// Checks the timestamp of a message with an unknown id. `forgotten` is the latest timestamp whose ids are removed; it
/// lies inside the window only after a clock that was ahead has been set right.
pub fn check_timestamp(
    header: &Header,
    window: Duration,
    forgotten: Timestamp,
    now: Timestamp,
) -> Result<(), AdmissionError> {
    let off_by = header.timestamp.since(now).max(now.since(header.timestamp));
    // In both directions: an old timestamp may be a repeat whose id is removed, a future one would outlive its id's
    // record.
    if off_by > window {
        return Err(AdmissionError::TimestampOutsideWindow { off_by, window });
    }
    if header.timestamp <= forgotten {
        return Err(AdmissionError::TimestampForgotten { upto: forgotten });
    }
    Ok(())
}

/// The longest time ahead for which a request or mail can be kept back.
pub const DELIVER_AFTER_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Checks that a message is kept back for 30 days at most.
pub fn check_deliver_after(deliver_after: Option<Timestamp>, now: Timestamp) -> Result<(), AdmissionError> {
    match deliver_after.filter(|at| at.since(now) > DELIVER_AFTER_MAX) {
        None => Ok(()),
        Some(_) => {
            let path = "envelope.payload.deliver_after".to_owned();
            let problem = "must be at most 30 days ahead".to_owned();
            Err(AdmissionError::FieldInvalid { violation: FieldViolation { path, problem } })
        }
    }
}

/// Checks that a message is not past its `expires_at`.
pub fn check_expiry(header: &Header, now: Timestamp) -> Result<(), AdmissionError> {
    match header.expires_at {
        Some(expired_at) if expired_at <= now => Err(AdmissionError::MessageExpired { expired_at }),
        Some(_) | None => Ok(()),
    }
}

// --------------------------------------------------------------------------------------------------------- the task

/// The broker's records of the task that a message names.
#[derive(Debug, Clone, Copy)]
pub enum KnownTask<'a> {
    /// The broker has no record of the task.
    Unknown,
    /// The task has ended and was removed.
    Removed(&'a RemovedTask),
    /// The task, and its open handoff if [`deciding_handoff`] names it.
    Known(&'a Task, Option<&'a Handoff>),
}

/// Whether the custody log records an admitted message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The custody log of the task records it.
    OnRecord,
    /// No log records it: the broker carries it like a message without a task.
    Carried,
}

/// The id of the task's open handoff, if that decides whether the sender is a participant.
pub fn deciding_handoff(task: &Task, named: Option<&Handoff>, sender: &AgentId) -> Option<MessageId> {
    let names_one = named.is_some_and(|handoff| handoff.task == task.id);
    // A named handoff of the task decides alone, and a present or former owner is a participant without a handoff.
    task.open_handoff.filter(|_| !names_one && !task.has_been_owned_by(sender))
}

/// Whether an agent is a participant: a present or former owner of the task, an agent that was asked one of its latest
/// questions, or a present or former candidate of the named handoff, or of the open one if no handoff of the task is named.
pub fn takes_part(task: &Task, named: Option<&Handoff>, open: Option<&Handoff>, agent: &AgentId) -> bool {
    let of_task = named.filter(|handoff| handoff.task == task.id).or(open);
    task.has_been_owned_by(agent)
        || task.has_asked(agent)
        || of_task.is_some_and(|handoff| handoff.was_offered_to(agent))
}

/// Admits a message that names this task and perhaps the handoff `named`.
///
/// A sender that is not a participant gets the same answer as for an unknown task: the answer reveals neither the owner
/// nor the epoch nor the state. A removed task has ended, which never changes: only its owners learn that.
pub fn admit(
    header: &Header,
    task: &TaskId,
    known: KnownTask<'_>,
    named: Option<&Handoff>,
) -> Result<Standing, AdmissionError> {
    let is_mail = match header.rules().handling {
        Handling::Mail | Handling::Heartbeat => true,
        // An accept that names a task is the request of a handoff; the other messages of a negotiation move no task.
        Handling::Negotiation => header.message_type != MessageType::TaskAccept,
        Handling::Request
        | Handling::Handoff
        | Handling::Status
        | Handling::Task
        | Handling::Workspace
        | Handling::Plan => false,
    };
    match known {
        KnownTask::Known(known, open) => {
            if !takes_part(known, named, open, &header.sender) {
                return answer_outsider(header, task);
            }
            // The state machine fences every other message, in its own order of checks.
            if is_mail {
                fence(header, known.epoch)?;
            } else {
                check_handoff(header, named)?;
            }
            Ok(Standing::OnRecord)
        }
        KnownTask::Removed(removed) => {
            // The remains name the owners only, so a former candidate gets the answer of an outsider.
            if !removed.owners.contains(&header.sender) {
                return answer_outsider(header, task);
            }
            // The id of a removed task stays in use.
            if header.message_type == MessageType::TaskCreate {
                return Err(Rejection::TaskExists.into());
            }
            // In the order of a living task: a stale message of a former owner is StaleEpoch, whether the task is
            // removed or not.
            fence(header, removed.epoch)?;
            // A removed task has no custody log any more, so the broker carries mail about it without a record.
            if is_mail { Ok(Standing::Carried) } else { Err(Rejection::TaskFinal { status: removed.status }.into()) }
        }
        KnownTask::Unknown => match header.rules().handling {
            // A request with an unknown task and a TaskCreate create the task (SPEC 2).
            Handling::Request => {
                check_new_task(task)?;
                check_handoff(header, named).map(|()| Standing::OnRecord)
            }
            Handling::Negotiation if !is_mail => check_new_task(task).map(|()| Standing::OnRecord),
            Handling::Handoff
            | Handling::Status
            | Handling::Task
            | Handling::Workspace
            | Handling::Negotiation
            | Handling::Plan
            | Handling::Heartbeat
            | Handling::Mail => answer_outsider(header, task),
        },
    }
}

/// Admits mail of an agent that takes no part in the task, but that a participant has asked about it. It is fenced like
/// mail of a participant, and no log records it.
pub fn admit_asked(header: &Header, task: &Task) -> Result<Standing, AdmissionError> {
    fence(header, task.epoch)?;
    Ok(Standing::Carried)
}

/// Checks the task of a `TaskRequest` with a mandate: the sender owns it at the request's epoch, or it does not exist. A
/// sender that never owned the task learns neither its owner nor its state.
pub fn check_mandate(header: &Header, task: &TaskId, known: KnownTask<'_>) -> Result<(), AdmissionError> {
    let outsider = || AdmissionError::NotOwner { sender: header.sender.clone(), task: task.clone() };
    match known {
        KnownTask::Known(known, _) => {
            if !known.has_been_owned_by(&header.sender) {
                return Err(outsider());
            }
            check_owner(known, &header.sender, header.epoch)?;
            match known.status.is_final() {
                true => Err(Rejection::TaskFinal { status: known.status }.into()),
                false => Ok(()),
            }
        }
        KnownTask::Removed(removed) => {
            if !removed.owners.contains(&header.sender) {
                return Err(outsider());
            }
            // In the order of a living task.
            fence(header, removed.epoch)?;
            Err(Rejection::TaskFinal { status: removed.status }.into())
        }
        // The award would create the task, at epoch 1 (SPEC 2).
        KnownTask::Unknown if header.epoch > 1 => {
            Err(Rejection::EpochAhead { claimed: header.epoch, current: 1 }.into())
        }
        KnownTask::Unknown => check_new_task(task),
    }
}

/// Checks the id of a task that a message of an agent would create. The ids of the tasks of plans are not for agents:
/// an agent that took one would stop the plan.
fn check_new_task(task: &TaskId) -> Result<(), AdmissionError> {
    if !task.is_reserved() {
        return Ok(());
    }
    let problem = "begins with \"baton.\", which is reserved for tasks that the broker creates".to_owned();
    Err(AdmissionError::FieldInvalid { violation: FieldViolation { path: "envelope.task_id".to_owned(), problem } })
}

fn answer_outsider(header: &Header, task: &TaskId) -> Result<Standing, AdmissionError> {
    let (sender, task) = (header.sender.clone(), task.clone());
    match header.rules().outsider {
        Outsider::NotCandidate => Err(AdmissionError::NotCandidate { sender, task }),
        Outsider::NotOwner => Err(AdmissionError::NotOwner { sender, task }),
        Outsider::NotAsked => Err(AdmissionError::NotAsked { sender, task }),
        Outsider::Carried => Ok(Standing::Carried),
    }
}

/// Refuses a message with an epoch before the current one. 0 means no epoch.
fn fence(header: &Header, current: u64) -> Result<(), AdmissionError> {
    match header.epoch {
        // A later epoch passes: SPEC 1 permits it in plain mail, and a later check refuses any other message.
        claimed if claimed != 0 && claimed < current => Err(Rejection::StaleEpoch { claimed, current }.into()),
        _ => Ok(()),
    }
}

/// Checks that the handoff belongs to the task, and that the receiver is the handoff's other side.
fn check_handoff(header: &Header, named: Option<&Handoff>) -> Result<(), AdmissionError> {
    let rules = header.rules();
    let Some(handoff) = named else {
        return match rules.correlation {
            // A message without a correlation is about the task alone.
            Correlation::Handoff if header.correlation.is_some() => Err(Rejection::HandoffUnknown.into()),
            Correlation::Handoff | Correlation::AnyMessage => Ok(()),
        };
    };
    // The same answer as for an unknown handoff, which reveals nothing about the handoffs of other tasks.
    if header.task.as_ref() != Some(&handoff.task) {
        return Err(Rejection::HandoffUnknown.into());
    }
    match handoff.other_side(rules.other_side, &header.sender) {
        Some(other_side) if header.receiver != Receiver::Agent(other_side.clone()) => {
            let problem = format!("the other side of the handoff is {other_side}");
            Err(AdmissionError::ReceiverInvalid { receiver: header.receiver.to_string(), problem })
        }
        Some(_) | None => Ok(()),
    }
}

/// The most refusals of this sender that the task's custody log may hold, if it may hold `most` of all senders.
/// Candidates that never owned the task leave half of the room to its present and former owners.
pub fn refusals_of(task: &Task, sender: &AgentId, most: u32) -> u32 {
    // A candidate may be asked without its will, and could fill the log of a task that is not its own.
    if task.has_been_owned_by(sender) { most } else { most.div_ceil(2) }
}

/// The most pieces of plain mail that the task's custody log may hold when this sender adds one, if it may hold `most` of
/// all senders. Candidates that never owned the task leave half of the room to its present and former owners.
pub fn mail_of(task: &Task, sender: &AgentId, most: u32) -> u32 {
    refusals_of(task, sender, most)
}

// ------------------------------------------------------------------------------------------------------------ parts

/// Checks the parent of a new task: another task that the sender owns and that has not ended. [`Chain::check_levels`] has
/// the limit of levels.
pub fn check_parent(header: &Header, id: &TaskId, parent: Option<&Task>) -> Result<(), AdmissionError> {
    let invalid = |problem: &str| {
        let path = "envelope.payload.parent_task_id".to_owned();
        AdmissionError::FieldInvalid { violation: FieldViolation { path, problem: problem.to_owned() } }
    };
    // Before the owner: a new task has none yet, and the answer NOT_OWNER would mislead.
    if header.task.as_ref() == Some(id) {
        return Err(invalid("must be another task: no task is a part of itself"));
    }
    // The same answer for an unknown task and for one of another agent.
    let Some(parent) = parent.filter(|parent| parent.owner == header.sender) else {
        return Err(AdmissionError::NotOwner { sender: header.sender.clone(), task: id.clone() });
    };
    if parent.status.is_final() {
        return Err(Rejection::TaskFinal { status: parent.status }.into());
    }
    Ok(())
}

// -------------------------------------------------------------------------------------------------------- receivers

/// Checks an agent that a message names as a receiver or a candidate.
pub fn check_named(agent: &AgentId, is_registered: bool) -> Result<(), AdmissionError> {
    // Before the registry, which has neither of the two: RECEIVER_UNKNOWN would send the caller to look for a typing
    // error.
    if *agent == AgentId::broker() {
        let problem = "it is the broker itself".to_owned();
        return Err(AdmissionError::ReceiverInvalid { receiver: agent.to_string(), problem });
    }
    if agent.is_coordinator() {
        let problem = "the coordinator has no mailbox and takes no task from an agent".to_owned();
        return Err(AdmissionError::ReceiverInvalid { receiver: agent.to_string(), problem });
    }
    if is_registered { Ok(()) } else { Err(AdmissionError::ReceiverUnknown { receiver: agent.to_string() }) }
}

/// Checks that a request does not name its sender as the receiver.
pub fn check_not_own(header: &Header) -> Result<(), AdmissionError> {
    if header.receiver != Receiver::Agent(header.sender.clone()) {
        return Ok(());
    }
    let problem = "an agent cannot hand a task to itself".to_owned();
    Err(AdmissionError::ReceiverInvalid { receiver: header.sender.to_string(), problem })
}

/// The agents of a type that a message may go to: all but its sender.
pub fn others(header: &Header, mut of_type: Vec<AgentId>) -> Vec<AgentId> {
    of_type.retain(|agent| *agent != header.sender);
    of_type
}

/// The candidates of a request, best first. Each agent occurs once, the sender never, and the list is at most
/// [`OFFERS_MAX`] long. An empty list is an error if `must_have_one`: no other agent is known to have been passed over.
pub fn candidates(
    header: &Header,
    mut candidates: Vec<AgentId>,
    must_have_one: bool,
) -> Result<Vec<AgentId>, AdmissionError> {
    let mut seen = std::collections::HashSet::new();
    // The sender goes silently: a type or a suggestion may include it. As a named receiver, `check_not_own` refuses it.
    candidates.retain(|candidate| *candidate != header.sender && seen.insert(candidate.clone()));
    // Each offer goes to another agent, so further candidates could never be asked.
    candidates.truncate(OFFERS_MAX);
    if must_have_one { or_unknown(header, candidates) } else { Ok(candidates) }
}

/// The receivers of a message to a type, out of the able and permitted agents, best first: one agent or all.
pub fn receivers_of_type(header: &Header, mut able: Vec<AgentId>) -> Result<Vec<AgentId>, AdmissionError> {
    match header.receiver {
        Receiver::AnyOf(_) => able.truncate(1),
        Receiver::AllOf(_) | Receiver::Agent(_) | Receiver::Absent => {}
    }
    or_unknown(header, able)
}

fn or_unknown(header: &Header, agents: Vec<AgentId>) -> Result<Vec<AgentId>, AdmissionError> {
    if agents.is_empty() {
        return Err(AdmissionError::ReceiverUnknown { receiver: header.receiver.to_string() });
    }
    Ok(agents)
}

#[cfg(test)]
mod tests;
