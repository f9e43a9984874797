//! The rules of each message type: a table with one row for each type.
//!
//! The parser of envelopes, the admission of messages and the engine all read the same row. The effect of a message on
//! a handoff is not part of the table: the state machine decides that.

use super::{handoff::Acked, header::Receiver};
use crate::numbered;

/// The type of an envelope's payload, from `message_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageType {
    /// Asks an agent to take a task over.
    HandoffRequest,
    /// Takes the task of a request.
    HandoffAccept,
    /// Declines a request.
    HandoffReject,
    /// Withdraws a request.
    HandoffCancel,
    /// Hands the context of a task over.
    TaskContextTransfer,
    /// Ends a handoff: the candidate has taken the task over, or failed to.
    HandoffComplete,
    /// Reports the status of a task.
    TaskStatusUpdate,
    /// Tells an agent of an error.
    ErrorNotification,
    /// Shows that an agent is alive.
    Heartbeat,
    /// Asks agents for offers.
    TaskRequest,
    /// Makes an offer.
    TaskOffer,
    /// Takes an offer.
    TaskAccept,
    /// Makes no offer, or declines one.
    TaskDecline,
    /// Tells how a negotiation closed. Only the broker sends it.
    NegotiationClosed,
    /// Gives a piece of work to another agent without moving a task.
    Delegation,
    /// Carries any other content.
    Info,
    /// Stores the context of a task without a handoff.
    ContextCheckpoint,
    /// Appends an entry to a workspace.
    WorkspaceAppend,
    /// Submits a plan.
    PlanSubmission,
    /// Takes a delegated task back.
    TaskRecall,
    /// Answers a question about a task.
    TaskInput,
    /// Begins a task that its sender owns, without a handoff.
    TaskCreate,
}

numbered! {
    MessageType {
        HandoffRequest = 1, HandoffAccept = 2, HandoffReject = 3, HandoffCancel = 4, TaskContextTransfer = 5,
        HandoffComplete = 6, TaskStatusUpdate = 7, ErrorNotification = 8, Heartbeat = 9, TaskRequest = 10, TaskOffer = 11,
        TaskAccept = 12, Delegation = 13, Info = 14, TaskDecline = 15, NegotiationClosed = 16, ContextCheckpoint = 17,
        WorkspaceAppend = 18, PlanSubmission = 19, TaskRecall = 20, TaskInput = 21, TaskCreate = 25,
    }
}

impl MessageType {
    /// The name that policies use: the name in the schema without its prefix.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HandoffRequest => "HANDOFF_REQUEST",
            Self::HandoffAccept => "HANDOFF_ACCEPT",
            Self::HandoffReject => "HANDOFF_REJECT",
            Self::HandoffCancel => "HANDOFF_CANCEL",
            Self::TaskContextTransfer => "TASK_CONTEXT_TRANSFER",
            Self::HandoffComplete => "HANDOFF_COMPLETE",
            Self::TaskStatusUpdate => "TASK_STATUS_UPDATE",
            Self::ErrorNotification => "ERROR_NOTIFICATION",
            Self::Heartbeat => "HEARTBEAT",
            Self::TaskRequest => "TASK_REQUEST",
            Self::TaskOffer => "TASK_OFFER",
            Self::TaskAccept => "TASK_ACCEPT",
            Self::TaskDecline => "TASK_DECLINE",
            Self::NegotiationClosed => "NEGOTIATION_CLOSED",
            Self::Delegation => "DELEGATION",
            Self::Info => "INFO",
            Self::ContextCheckpoint => "CONTEXT_CHECKPOINT",
            Self::WorkspaceAppend => "WORKSPACE_APPEND",
            Self::PlanSubmission => "PLAN_SUBMISSION",
            Self::TaskRecall => "TASK_RECALL",
            Self::TaskInput => "TASK_INPUT",
            Self::TaskCreate => "TASK_CREATE",
        }
    }
}

/// One row of the table: all requirements on a message that follow from its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageRules {
    /// The way in which the broker handles the message.
    pub handling: Handling,
    /// The fields that the envelope must set.
    pub names: Names,
    /// The permitted values of `receiver_id`.
    pub receivers: Receivers,
    /// The permitted values of `correlation_id`.
    pub correlation: Correlation,
    /// The required receiver of the message when it is about a known handoff.
    pub other_side: OtherSide,
    /// The role of the delivery whose fate is reported to its handoff. `None`: no report.
    pub reports: Option<Acked>,
    /// The answer to an outsider of the task, or to a sender that names an unknown task.
    pub outsider: Outsider,
}

/// The way in which the broker handles a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handling {
    /// The message creates its task if the task is unknown. A request also opens a handoff of the task.
    Request,
    /// The message moves an open handoff.
    Handoff,
    /// The message reports on a task, and may extend a step of a handoff.
    Status,
    /// The message is about a task, not about the handoff that it names.
    Task,
    /// The broker records the heartbeat in memory and does not store it.
    Heartbeat,
    /// The message appends an entry to a workspace.
    Workspace,
    /// The message opens or moves a negotiation. A `TaskAccept` with a task also opens a handoff.
    Negotiation,
    /// The message submits a plan.
    Plan,
    /// The broker carries the message to its receivers.
    Mail,
}

/// The fields that an envelope must set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// No field.
    Nothing,
    /// No field, and neither a task nor an epoch is permitted: the payload names what the message is about.
    NoTask,
    /// A task and its epoch.
    Task,
    /// A task, its epoch, and a handoff as the correlation.
    Handoff,
    /// A task, its epoch, and a question as the correlation.
    Question,
    /// A negotiation as the correlation.
    Negotiation,
}

impl Names {
    /// Whether `task_id` and `epoch` must be set.
    pub const fn task(self) -> bool {
        match self {
            Self::Nothing | Self::NoTask | Self::Negotiation => false,
            Self::Task | Self::Handoff | Self::Question => true,
        }
    }

    /// Whether `correlation_id` must be the id of a handoff.
    pub const fn handoff(self) -> bool {
        match self {
            Self::Nothing | Self::NoTask | Self::Task | Self::Question | Self::Negotiation => false,
            Self::Handoff => true,
        }
    }

    /// Whether `correlation_id` must be the id of the status update with a question.
    pub const fn question(self) -> bool {
        match self {
            Self::Nothing | Self::NoTask | Self::Task | Self::Handoff | Self::Negotiation => false,
            Self::Question => true,
        }
    }
}

/// The permitted values of `receiver_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receivers {
    /// None: the broker tells all agents that the message concerns.
    Absent,
    /// One agent.
    Agent,
    /// One agent, or any one of a type.
    AgentOrType,
    /// One agent, any one of a type, or all of a type.
    Any,
    /// As [`Receivers::Any`], or empty.
    AnyOrAbsent,
}

impl Receivers {
    /// Checks a receiver. The error is a text with the requirement.
    pub const fn check(self, receiver: &Receiver) -> Result<(), &'static str> {
        match (self, receiver) {
            (Self::Agent | Self::AgentOrType | Self::Any | Self::AnyOrAbsent, Receiver::Agent(_))
            | (Self::AgentOrType | Self::Any | Self::AnyOrAbsent, Receiver::AnyOf(_))
            | (Self::Any | Self::AnyOrAbsent, Receiver::AllOf(_))
            | (Self::Absent | Self::AnyOrAbsent, Receiver::Absent) => Ok(()),
            (Self::Absent, Receiver::Agent(_) | Receiver::AnyOf(_) | Receiver::AllOf(_)) => {
                Err("must be empty: the broker tells the agents that it concerns")
            }
            (Self::Agent | Self::AgentOrType | Self::Any, Receiver::Absent) => Err("must not be empty"),
            (Self::Agent, Receiver::AnyOf(_) | Receiver::AllOf(_)) => Err("must be an agent"),
            (Self::AgentOrType, Receiver::AllOf(_)) => Err("must be an agent or type:NAME; a task has one owner"),
        }
    }
}

/// The permitted values of `correlation_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Correlation {
    /// Any message id. The broker does not look it up, or uses it only to find out whether the sender is a participant.
    AnyMessage,
    /// A known handoff of the task, or empty.
    Handoff,
}

/// The agent that a message about a known handoff must be addressed to. The signature then covers the name of that
/// agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherSide {
    /// Any agent.
    Any,
    /// The sender of the handoff.
    Sender,
    /// The current candidate.
    Candidate,
    /// The current candidate, while the handoff is open and if the handoff's sender sends the message. The state
    /// machine refuses any other sender, and the answer must not reveal the candidate.
    CandidateWhileOpen,
}

/// The answer to an outsider: a sender that has no part in the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outsider {
    /// The sender does not own the task.
    NotOwner,
    /// The sender is not a candidate of a handoff of the task.
    NotCandidate,
    /// The sender was not asked a question about the task.
    NotAsked,
    /// No refusal: the broker carries the message without a record in the task's custody log.
    Carried,
}

const OF_CANDIDATE: MessageRules = MessageRules {
    handling: Handling::Handoff,
    names: Names::Handoff,
    receivers: Receivers::Agent,
    correlation: Correlation::Handoff,
    other_side: OtherSide::Sender,
    reports: None,
    outsider: Outsider::NotCandidate,
};

const OF_OWNER: MessageRules =
    MessageRules { other_side: OtherSide::Candidate, outsider: Outsider::NotOwner, ..OF_CANDIDATE };

const MAIL: MessageRules = MessageRules {
    handling: Handling::Mail,
    names: Names::Nothing,
    receivers: Receivers::Any,
    correlation: Correlation::AnyMessage,
    other_side: OtherSide::Any,
    reports: None,
    outsider: Outsider::Carried,
};

/// Mail that may name a task of its sender only. The messages of a negotiation are [`MAIL`]: agents that have no part in
/// the task offer to take it.
const MAIL_OF_PARTICIPANT: MessageRules = MessageRules { outsider: Outsider::NotOwner, ..MAIL };

const OF_NEGOTIATION: MessageRules =
    MessageRules { handling: Handling::Negotiation, names: Names::Negotiation, receivers: Receivers::Agent, ..MAIL };

/// The row of a message type.
pub const fn rules(kind: MessageType) -> MessageRules {
    match kind {
        MessageType::HandoffRequest => MessageRules {
            handling: Handling::Request,
            names: Names::Task,
            receivers: Receivers::AgentOrType,
            correlation: Correlation::AnyMessage,
            other_side: OtherSide::Any,
            reports: Some(Acked::Request),
            outsider: Outsider::NotOwner,
        },
        MessageType::HandoffAccept => OF_CANDIDATE,
        MessageType::HandoffReject => OF_CANDIDATE,
        MessageType::HandoffComplete => MessageRules { reports: Some(Acked::Completion), ..OF_CANDIDATE },
        // A request that waits may have no candidate yet.
        MessageType::HandoffCancel => {
            MessageRules { receivers: Receivers::AnyOrAbsent, other_side: OtherSide::CandidateWhileOpen, ..OF_OWNER }
        }
        MessageType::TaskContextTransfer => MessageRules { reports: Some(Acked::Context), ..OF_OWNER },
        MessageType::TaskStatusUpdate => MessageRules {
            handling: Handling::Status,
            names: Names::Task,
            receivers: Receivers::AnyOrAbsent,
            correlation: Correlation::Handoff,
            other_side: OtherSide::Any,
            reports: None,
            outsider: Outsider::NotOwner,
        },
        MessageType::WorkspaceAppend => MessageRules {
            handling: Handling::Workspace,
            names: Names::NoTask,
            receivers: Receivers::Absent,
            correlation: Correlation::AnyMessage,
            other_side: OtherSide::Any,
            reports: None,
            outsider: Outsider::NotOwner,
        },
        MessageType::PlanSubmission => MessageRules {
            handling: Handling::Plan,
            names: Names::NoTask,
            receivers: Receivers::Absent,
            correlation: Correlation::AnyMessage,
            other_side: OtherSide::Any,
            reports: None,
            outsider: Outsider::NotOwner,
        },
        MessageType::TaskRecall => MessageRules {
            handling: Handling::Task,
            names: Names::Handoff,
            receivers: Receivers::Absent,
            correlation: Correlation::AnyMessage,
            other_side: OtherSide::Any,
            reports: None,
            outsider: Outsider::NotOwner,
        },
        MessageType::ContextCheckpoint => MessageRules {
            handling: Handling::Task,
            names: Names::Task,
            receivers: Receivers::Absent,
            correlation: Correlation::AnyMessage,
            other_side: OtherSide::Any,
            reports: None,
            outsider: Outsider::NotOwner,
        },
        MessageType::TaskInput => MessageRules {
            handling: Handling::Task,
            names: Names::Question,
            receivers: Receivers::Absent,
            correlation: Correlation::AnyMessage,
            other_side: OtherSide::Any,
            reports: None,
            outsider: Outsider::NotAsked,
        },
        MessageType::TaskCreate => MessageRules {
            handling: Handling::Request,
            names: Names::Task,
            receivers: Receivers::Absent,
            correlation: Correlation::AnyMessage,
            other_side: OtherSide::Any,
            reports: None,
            outsider: Outsider::NotOwner,
        },
        MessageType::Heartbeat => {
            MessageRules { handling: Handling::Heartbeat, receivers: Receivers::AnyOrAbsent, ..MAIL }
        }
        MessageType::ErrorNotification => MAIL_OF_PARTICIPANT,
        MessageType::TaskRequest => MessageRules { handling: Handling::Negotiation, ..MAIL },
        MessageType::TaskOffer | MessageType::TaskDecline => OF_NEGOTIATION,
        MessageType::TaskAccept => {
            MessageRules { reports: Some(Acked::Request), outsider: Outsider::NotOwner, ..OF_NEGOTIATION }
        }
        MessageType::NegotiationClosed => MessageRules { reports: Some(Acked::Request), ..OF_NEGOTIATION },
        MessageType::Delegation => MAIL_OF_PARTICIPANT,
        MessageType::Info => MAIL_OF_PARTICIPANT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole table, one line for each type.
    const TABLE: &str = "
        HANDOFF_REQUEST        Request    Task      AgentOrType  AnyMessage  Any                 Some(Request)     NotOwner
        HANDOFF_ACCEPT         Handoff    Handoff   Agent        Handoff     Sender              None              NotCandidate
        HANDOFF_REJECT         Handoff    Handoff   Agent        Handoff     Sender              None              NotCandidate
        HANDOFF_CANCEL         Handoff    Handoff   AnyOrAbsent  Handoff     CandidateWhileOpen  None              NotOwner
        TASK_CONTEXT_TRANSFER  Handoff    Handoff   Agent        Handoff     Candidate           Some(Context)     NotOwner
        HANDOFF_COMPLETE       Handoff    Handoff   Agent        Handoff     Sender              Some(Completion)  NotCandidate
        TASK_STATUS_UPDATE     Status     Task      AnyOrAbsent  Handoff     Any                 None              NotOwner
        ERROR_NOTIFICATION     Mail       Nothing   Any          AnyMessage  Any                 None              NotOwner
        HEARTBEAT              Heartbeat  Nothing   AnyOrAbsent  AnyMessage  Any                 None              Carried
        TASK_REQUEST           Negotiation  Nothing   Any          AnyMessage  Any                 None              Carried
        TASK_OFFER             Negotiation  Negotiation  Agent        AnyMessage  Any                 None              Carried
        TASK_ACCEPT            Negotiation  Negotiation  Agent        AnyMessage  Any                 Some(Request)     NotOwner
        DELEGATION             Mail       Nothing   Any          AnyMessage  Any                 None              NotOwner
        INFO                   Mail       Nothing   Any          AnyMessage  Any                 None              NotOwner
        TASK_DECLINE           Negotiation  Negotiation  Agent        AnyMessage  Any                 None              Carried
        NEGOTIATION_CLOSED     Negotiation  Negotiation  Agent        AnyMessage  Any                 Some(Request)     Carried
        CONTEXT_CHECKPOINT     Task       Task      Absent       AnyMessage  Any                 None              NotOwner
        WORKSPACE_APPEND       Workspace  NoTask    Absent       AnyMessage  Any                 None              NotOwner
        PLAN_SUBMISSION        Plan       NoTask    Absent       AnyMessage  Any                 None              NotOwner
        TASK_RECALL            Task       Handoff   Absent       AnyMessage  Any                 None              NotOwner
        TASK_INPUT             Task       Question  Absent       AnyMessage  Any                 None              NotAsked
        TASK_CREATE            Request    Task      Absent       AnyMessage  Any                 None              NotOwner
    ";

    fn line(kind: MessageType) -> String {
        let MessageRules { handling, names, receivers, correlation, other_side, reports, outsider } = rules(kind);
        format!(
            "{:<21}  {:<9}  {:<8}  {:<11}  {:<10}  {:<18}  {:<16}  {outsider:?}",
            kind.name(),
            format!("{handling:?}"),
            format!("{names:?}"),
            format!("{receivers:?}"),
            format!("{correlation:?}"),
            format!("{other_side:?}"),
            format!("{reports:?}"),
        )
    }

    fn all() -> impl Iterator<Item = MessageType> {
        (1..32).filter_map(MessageType::from_number)
    }

    #[test]
    fn the_table_says_what_each_message_type_asks_for() {
        let found: Vec<String> = all().map(line).collect();
        let expected: Vec<&str> = TABLE.trim().lines().map(str::trim).collect();
        assert_eq!(found, expected);
    }

    /// Clients see these texts.
    #[test]
    fn a_receiver_that_does_not_fit_is_told_what_it_must_be() {
        let receivers = ["", "bob", "type:legal", "all:legal"].map(|text| Receiver::parse(text).unwrap());
        let answers = |rule: Receivers| receivers.each_ref().map(|receiver| rule.check(receiver).err().unwrap_or("ok"));
        let one_owner = "must be an agent or type:NAME; a task has one owner";
        assert_eq!(answers(Receivers::Agent), ["must not be empty", "ok", "must be an agent", "must be an agent"]);
        assert_eq!(answers(Receivers::AgentOrType), ["must not be empty", "ok", "ok", one_owner]);
        assert_eq!(answers(Receivers::Any), ["must not be empty", "ok", "ok", "ok"]);
        assert_eq!(answers(Receivers::AnyOrAbsent), ["ok"; 4]);
    }

    #[test]
    fn only_a_message_that_names_a_handoff_has_another_side() {
        for kind in all().map(rules).filter(|rules| rules.other_side != OtherSide::Any) {
            assert!(kind.names.handoff() && kind.correlation == Correlation::Handoff, "{kind:?}");
        }
    }
}
