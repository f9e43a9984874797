//! A plan that runs: its state, its inputs, and its log. Plain data; the rules are in `machine`.

use std::{fmt, sync::Arc, time::Duration};

use super::Spec;
use crate::{
    codes::ErrorCode,
    ids::{AgentId, MessageId, PlanId, TaskId},
    numbered,
    time::Timestamp,
};

/// A plan after its submission.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The id, chosen by the submitter.
    pub id: PlanId,
    /// The agent that submitted the plan. The coordinator acts with its rights.
    pub submitter: AgentId,
    /// The message of the submission.
    pub submission: MessageId,
    /// The digest of the submission's content, which its signature covers.
    pub submission_digest: [u8; 32],
    /// The digest of the plan in the submission, to recognise the same plan.
    pub content_digest: [u8; 32],
    /// The state of the present round.
    pub state: PlanState,
    /// The reason of a failure or a cancellation, from its begin on. Empty otherwise.
    pub reason: String,
    /// The final state that follows once the tasks of all subtasks have ended. `None`: no end has begun, or the plan has
    /// ended.
    pub ending: Option<PlanState>,
    /// Whether the last step has left work that the next one does at once.
    pub goes_on: bool,
    /// 1 after the submission, and 1 more for each retry.
    pub round: u32,
    /// The subtasks, in the order of the plan.
    pub subtasks: Vec<SubtaskRun>,
    /// The compensations of the present round, in the order in which they run: the subtask that has completed last comes
    /// first. Empty before the plan has begun to fail.
    pub compensations: Vec<CompensationRun>,
    /// The elements of the lists that are worked on, by subtask and place in the list. Those of a subtask that has ended are
    /// left out.
    pub elements: Vec<ElementRun>,
    /// The extensions, oldest first.
    pub extensions: Vec<Extended>,
    /// The number of entries in the log.
    pub log_length: u64,
    /// The time of the submission.
    pub created_at: Timestamp,
    /// The time of the last change.
    pub updated_at: Timestamp,
    /// The time by which the present round ends.
    pub deadline: Timestamp,
    /// The time that a subtask waits while none of its ancestors changes state.
    pub dependency_timeout: Duration,
    /// The time of the end. `None`: the plan runs.
    pub ended_at: Option<Timestamp>,
}

/// The state of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlanState {
    /// A subtask has not ended.
    Running,
    /// Every subtask has completed, or is optional and has ended.
    Completed,
    /// A subtask that is not optional did not complete, or the plan's time was up.
    Failed,
    /// The plan was cancelled.
    Cancelled,
}

/// The state of a subtask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SubtaskState {
    /// A dependency has not ended.
    Pending,
    /// The subtask waits for a free slot, or for its next attempt.
    Ready,
    /// The coordinator hands the task off.
    HandingOff,
    /// An agent works on the task.
    Running,
    /// Final: the agent has reported the result.
    Completed,
    /// Final: the last attempt has failed.
    Failed,
    /// Final: the time of the last attempt or of the plan was up.
    TimedOut,
    /// Final: a dependency did not complete, or the subtask could not start in time; or without a code, its condition did
    /// not hold.
    Skipped,
    /// Final: the plan was cancelled.
    Cancelled,
}

numbered! {
    PlanState { Running = 1, Completed = 2, Failed = 3, Cancelled = 4, }
    SubtaskState {
        Pending = 1, Ready = 2, HandingOff = 3, Running = 4, Completed = 5, Failed = 6, TimedOut = 7, Skipped = 8,
        Cancelled = 9,
    }
}

impl PlanState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Running, Self::Completed, Self::Failed, Self::Cancelled];

    /// Whether the plan has ended. A retry starts it again.
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Running)
    }

    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
        }
    }
}

impl SubtaskState {
    /// All states.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Ready,
        Self::HandingOff,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::TimedOut,
        Self::Skipped,
        Self::Cancelled,
    ];

    /// Whether the subtask has ended in this round.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Ready | Self::HandingOff | Self::Running => false,
            Self::Completed | Self::Failed | Self::TimedOut | Self::Skipped | Self::Cancelled => true,
        }
    }

    /// Whether the subtask takes a slot.
    pub const fn is_active(self) -> bool {
        matches!(self, Self::HandingOff | Self::Running)
    }

    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Ready => "READY",
            Self::HandingOff => "HANDING_OFF",
            Self::Running => "RUNNING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::TimedOut => "TIMED_OUT",
            Self::Skipped => "SKIPPED",
            Self::Cancelled => "CANCELLED",
        }
    }
}

/// A subtask of a plan that runs.
#[derive(Debug, Clone, PartialEq)]
pub struct SubtaskRun {
    /// The state in the present round.
    pub state: SubtaskState,
    /// The attempts of this round that have begun.
    pub attempts: u32,
    /// The round of the present task, which is a part of its id. 0: no round has made one.
    pub task_round: u32,
    /// The handoff of the latest attempt.
    pub handoff: Option<MessageId>,
    /// The agent that took the task in the latest attempt.
    pub agent: Option<AgentId>,
    /// The agents of earlier attempts, oldest first. They are asked after all others.
    pub tried: Vec<AgentId>,
    /// READY only: the time of the next attempt. `None`: at once.
    pub retry_at: Option<Timestamp>,
    /// PENDING only: the time since which no ancestor has changed its state.
    pub waits_since: Timestamp,
    /// The start of the latest attempt.
    pub started_at: Option<Timestamp>,
    /// RUNNING only: the time at which the task is taken back.
    pub deadline: Option<Timestamp>,
    /// The time of the end.
    pub ended_at: Option<Timestamp>,
    /// The entry of the log with the result.
    pub result: Option<u64>,
    /// The number in the result.
    pub numeric_value: Option<f64>,
    /// Why the subtask did not complete, or why its latest attempt did not.
    pub code: Option<ErrorCode>,
    /// The same, for people to read.
    pub cause: String,
    /// The number of elements of its list. `None`: one task, or a list that this round does not have yet.
    pub elements: Option<u32>,
    /// The state that follows once its elements have ended. `None`: its end has not begun.
    pub ends_as: Option<SubtaskState>,
    /// The receiver that a reassignment has named: an agent's id or `type:NAME`. `None`: those of the plan.
    pub assigned_to: Option<String>,
    /// How often it was given to another agent during an attempt. A part of the ids of handoffs.
    pub reassignments: u32,
}

impl SubtaskRun {
    /// Whether the subtask takes a slot. Of one with a list its elements do.
    pub fn holds_slot(&self) -> bool {
        self.state.is_active() && self.elements.is_none()
    }

    /// Whether the subtask is not needed in this round: its condition does not hold, or all that it waits for is not
    /// needed. It fails nothing.
    pub fn is_excluded(&self) -> bool {
        // Every other skip has a code.
        self.state == SubtaskState::Skipped && self.code.is_none()
    }

    /// A subtask before its first attempt in a round.
    pub fn pending(now: Timestamp) -> Self {
        Self {
            state: SubtaskState::Pending,
            attempts: 0,
            task_round: 0,
            handoff: None,
            agent: None,
            tried: Vec::new(),
            retry_at: None,
            waits_since: now,
            started_at: None,
            deadline: None,
            ended_at: None,
            result: None,
            numeric_value: None,
            code: None,
            cause: String::new(),
            elements: None,
            ends_as: None,
            assigned_to: None,
            reassignments: 0,
        }
    }
}

/// An element of the list of a subtask.
#[derive(Debug, Clone, PartialEq)]
pub struct ElementRun {
    /// The place of the subtask.
    pub of: usize,
    /// The place in the list.
    pub index: usize,
    /// Its state, READY until it begins.
    pub run: SubtaskRun,
    /// The bytes that its result takes in the list of results. 0: it has none.
    pub bytes: usize,
    /// The tokens that its agent has used.
    pub tokens: u64,
    /// Whether its agent regards the work as a success.
    pub is_success: bool,
}

/// The compensation of a completed subtask, in a plan that fails.
#[derive(Debug, Clone, PartialEq)]
pub struct CompensationRun {
    /// The place of the subtask whose work it undoes.
    pub of: usize,
    /// What has become of it. It is PENDING until its turn has come.
    pub run: SubtaskRun,
}

/// Subtasks that were added to a running plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extended {
    /// The message with them.
    pub message: MessageId,
    /// The digest of the message's content, which its signature covers.
    pub digest: [u8; 32],
    /// The digest of the extension in it, to recognise the same extension.
    pub content_digest: [u8; 32],
    /// The sequence of the message, the key of its row.
    pub sequence: u64,
    /// The place of the first of its subtasks. They end before those of the next extension.
    pub from: usize,
}

/// The subtask that a task carries out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanRef {
    /// The plan that the task belongs to.
    pub plan: PlanId,
    /// The id of the subtask.
    pub subtask: String,
    /// The submitter of the plan, who sees the task. `None`: the task is older than this field.
    pub submitter: Option<AgentId>,
}

/// An entry of a plan's log. It never changes.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanEntry {
    /// The plan whose log has the entry.
    pub plan: PlanId,
    /// The number of the entry, from 1 on without gaps.
    pub number: u64,
    /// The time of the entry.
    pub at: Timestamp,
    /// What has happened.
    pub event: Event,
}

/// What has happened to a plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The plan was submitted.
    Submitted {
        /// The submitter.
        by: AgentId,
    },
    /// A subtask has changed its state.
    Subtask(Box<SubtaskChange>),
    /// The compensation of a subtask has changed its state.
    Compensation(Box<SubtaskChange>),
    /// The element of a subtask has changed its state.
    Element(Box<SubtaskChange>),
    /// A subtask was given to another agent.
    Reassigned {
        /// The id of the subtask.
        subtask: String,
        /// The receiver: an agent's id or `type:NAME`.
        to: String,
        /// Who asked for it.
        by: String,
        /// The reason, for people to read; may be empty.
        reason: String,
    },
    /// The result of a subtask was not appended to a topic.
    NotAppended {
        /// The id of the subtask.
        subtask: String,
        /// The topic that refused the entry.
        topic: String,
        /// Why not.
        code: ErrorCode,
        /// Why not, for people to read.
        text: String,
    },
    /// What did not complete starts again.
    Retried {
        /// The new round.
        round: u32,
        /// Who asked for it.
        by: String,
        /// The subtask that starts again by itself. Empty: all of the plan.
        subtask: String,
    },
    /// The submitter has added subtasks.
    Extended {
        /// The message with them.
        message: MessageId,
        /// The digest of its content.
        digest: [u8; 32],
        /// The ids of the subtasks, in their order.
        subtasks: Vec<String>,
    },
    /// The plan has ended.
    Ended {
        /// The final state.
        state: PlanState,
        /// Why it failed or was cancelled.
        reason: String,
    },
}

/// A change of a subtask's state.
#[derive(Debug, Clone, PartialEq)]
pub struct SubtaskChange {
    /// The id of the subtask.
    pub subtask: String,
    /// The new state.
    pub state: SubtaskState,
    /// The attempt, from 1 on. 0: none has begun in this round.
    pub attempt: u32,
    /// The round of the subtask's task. 0: it has none.
    pub task_round: u32,
    /// The handoff of the attempt.
    pub handoff: Option<MessageId>,
    /// The agent that took the task.
    pub agent: Option<AgentId>,
    /// Why the subtask or its attempt did not complete.
    pub code: Option<ErrorCode>,
    /// The same, for people to read.
    pub cause: String,
    /// COMPLETED only: the result.
    pub report: Option<Report>,
    /// The place of the element in its list. `None`: the change is that of the whole subtask.
    pub element: Option<u32>,
}

/// What an agent reports at the end of a subtask.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// The answer: `response` of the result, or else the details of the report, or else the result as JSON.
    pub response: String,
    /// The tokens that the agent has used.
    pub tokens: u64,
    /// Whether the agent regards its work as a success.
    pub success: bool,
    /// The tools that the agent has used.
    pub tools_used: Vec<String>,
    /// The number of the response, as the agent states it or as the broker finds it.
    pub numeric_value: Option<f64>,
    /// The whole result, a JSON object as text. Empty: none.
    pub result: String,
    /// A summary of the answer, at most [`SUMMARY_BYTES_MAX`] bytes. Empty: none.
    pub summary: String,
}

/// The most bytes of a summary.
pub const SUMMARY_BYTES_MAX: usize = 1024;

/// A call or a message about a plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// An agent submits the plan.
    Submit(Box<Submission>),
    /// The submitter adds subtasks.
    Extend(Box<Extension>),
    /// The plan ends at once.
    Cancel {
        /// Who asks for it.
        by: String,
        /// The reason, for people to read; may be empty.
        reason: String,
    },
    /// What did not complete starts again.
    Retry {
        /// Who asks for it.
        by: String,
    },
    /// One subtask ends at once.
    CancelSubtask {
        /// The id of the subtask.
        subtask: String,
        /// Who asks for it.
        by: String,
        /// The reason, for people to read; may be empty.
        reason: String,
    },
    /// One subtask that did not complete starts again.
    RetrySubtask {
        /// The id of the subtask.
        subtask: String,
        /// Who asks for it.
        by: String,
    },
    /// One subtask is given to another agent.
    ReassignSubtask {
        /// The id of the subtask.
        subtask: String,
        /// The receiver: an agent's id or `type:NAME`.
        to: String,
        /// Who asks for it.
        by: String,
        /// The reason, for people to read; may be empty.
        reason: String,
    },
}

/// The submission of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    /// The plan, without an error among its problems.
    pub spec: Arc<Spec>,
    /// The submitter.
    pub by: AgentId,
    /// The id of the message.
    pub message: MessageId,
    /// The digest of the message's content.
    pub digest: [u8; 32],
    /// The digest of the plan in it.
    pub content_digest: [u8; 32],
}

/// Further subtasks of a running plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Extension {
    /// The plan with them, without an error among its problems.
    pub spec: Arc<Spec>,
    /// The number of subtasks that the plan had at the check. Its other subtasks are those of the extension.
    pub from: usize,
    /// The sender.
    pub by: AgentId,
    /// The id of the message.
    pub message: MessageId,
    /// The digest of the message's content.
    pub digest: [u8; 32],
    /// The digest of the extension in it.
    pub content_digest: [u8; 32],
    /// The sequence of the message.
    pub sequence: u64,
}

/// An input from a task of the plan. Each names the handoff that began the attempt, so that one of an earlier attempt
/// changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanSignal {
    /// The coordinator's request could not be sent.
    NotStarted {
        /// The id of the subtask.
        subtask: String,
        /// The handoff that did not begin.
        handoff: MessageId,
        /// Why not.
        code: ErrorCode,
        /// Why not, for people to read.
        text: String,
    },
    /// An agent has taken the task.
    Taken {
        /// The id of the subtask.
        subtask: String,
        /// The handoff that began the attempt.
        handoff: MessageId,
        /// The new owner.
        owner: AgentId,
        /// The time at which the task is taken back.
        due: Option<Timestamp>,
    },
    /// The handoff has ended, and no agent has taken the task.
    NotTaken {
        /// The id of the subtask.
        subtask: String,
        /// The handoff that began the attempt.
        handoff: MessageId,
        /// Why not.
        code: ErrorCode,
        /// Why not, for people to read.
        text: String,
        /// Whether the handoff waited when its whole time was over. Waiting uses no attempt.
        has_waited: bool,
    },
    /// The agent has reported a final status, and the task is the coordinator's again.
    Reported {
        /// The id of the subtask.
        subtask: String,
        /// The handoff that lent the task.
        handoff: MessageId,
        /// The message with the report.
        message: MessageId,
        /// Whether the status is COMPLETED.
        is_completed: bool,
        /// The details of the report.
        details: String,
    },
    /// The task was taken back, because its time was up or because its agent gave no sign of work.
    Recalled {
        /// The id of the subtask.
        subtask: String,
        /// The handoff that had lent the task.
        handoff: MessageId,
        /// Whether that was because its agent gave no sign of work.
        is_abandoned: bool,
    },
    /// The result was not appended to a topic.
    NotAppended {
        /// The id of the subtask.
        subtask: String,
        /// The topic that refused the entry.
        topic: String,
        /// Why not.
        code: ErrorCode,
        /// Why not, for people to read.
        text: String,
    },
}

/// The reasons why an input of a plan is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// No plan has this id.
    Unknown {
        /// The id that the call names.
        plan: PlanId,
    },
    /// Another plan has this id.
    Exists {
        /// The id of the submitted plan.
        plan: PlanId,
    },
    /// The plan has ended.
    Final {
        /// The final state.
        state: PlanState,
    },
    /// The plan has not ended.
    Running,
    /// The agent has not submitted the plan, and cannot extend it.
    NotSubmitter {
        /// The plan that the extension names.
        plan: PlanId,
    },
    /// Another extension came between the check of this one and its step.
    ExtendedMeanwhile,
    /// The plan has no subtask of this id.
    SubtaskUnknown {
        /// The id that the call names.
        subtask: String,
    },
    /// The subtask is in a state in which it cannot be changed so.
    SubtaskState {
        /// The id of the subtask.
        subtask: String,
        /// Its state.
        state: SubtaskState,
        /// What does not fit, for people to read.
        problem: String,
    },
    /// Nothing of the plan is left to retry, or it has had [`super::ROUNDS_MAX`] rounds.
    NothingToRetry {
        /// The state of the plan.
        state: PlanState,
        /// The rounds so far.
        rounds: u32,
    },
}

impl std::error::Error for Rejection {}

impl fmt::Display for Rejection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { plan } => write!(formatter, "no plan {plan} exists"),
            Self::Exists { plan } => write!(formatter, "another plan {plan} exists, with other content"),
            Self::Final { state } => write!(formatter, "the plan has ended: {}", state.name()),
            Self::Running => formatter.write_str("the plan has not ended"),
            Self::NotSubmitter { plan } => write!(formatter, "only the submitter of plan {plan} extends it"),
            Self::SubtaskUnknown { subtask } => write!(formatter, "the plan has no subtask {subtask}"),
            Self::SubtaskState { subtask, state, problem } => {
                write!(formatter, "subtask {subtask} is {}: {problem}", state.name())
            }
            Self::ExtendedMeanwhile => formatter.write_str("another extension of the plan came first"),
            Self::NothingToRetry { state, rounds } => {
                write!(formatter, "nothing is left to retry: the plan is {}, after {rounds} rounds", state.name())
            }
        }
    }
}

impl crate::codes::Refusal for Rejection {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown { .. } => ErrorCode::PlanUnknown,
            Self::Exists { .. } => ErrorCode::PlanExists,
            Self::Final { .. } | Self::NothingToRetry { .. } => ErrorCode::PlanFinal,
            Self::Running => ErrorCode::PlanRunning,
            Self::NotSubmitter { .. } => ErrorCode::PermissionDenied,
            Self::ExtendedMeanwhile => ErrorCode::Conflict,
            Self::SubtaskUnknown { .. } => ErrorCode::SubtaskUnknown,
            Self::SubtaskState { .. } => ErrorCode::SubtaskState,
        }
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Final { state } | Self::NothingToRetry { state, .. } => vec![("state", state.name().to_owned())],
            Self::Running => vec![("state", PlanState::Running.name().to_owned())],
            Self::SubtaskState { state, .. } => vec![("state", state.name().to_owned())],
            Self::Unknown { .. }
            | Self::Exists { .. }
            | Self::NotSubmitter { .. }
            | Self::SubtaskUnknown { .. }
            | Self::ExtendedMeanwhile => Vec::new(),
        }
    }
}

impl Plan {
    /// The number of subtasks, of compensations, and of elements of lists.
    pub fn parts(&self) -> usize {
        self.subtasks.len() + self.compensations.len() + self.elements.len()
    }

    /// Whether an extension of this agent with this content extends the plan. `false`: the plan has it already.
    pub fn takes_extension(&self, by: &AgentId, content_digest: &[u8; 32]) -> Result<bool, Rejection> {
        if *by != self.submitter {
            return Err(Rejection::NotSubmitter { plan: self.id.clone() });
        }
        // A submitter that lost its receipt may sign the extension again, also after the end of the plan.
        if self.extensions.iter().any(|known| known.content_digest == *content_digest) {
            return Ok(false);
        }
        match self.ending.unwrap_or(self.state) {
            PlanState::Running => Ok(true),
            state @ (PlanState::Completed | PlanState::Failed | PlanState::Cancelled) => {
                Err(Rejection::Final { state })
            }
        }
    }

    /// The digest of the signed message that has this subtask: the submission, or an extension.
    pub fn signed_digest(&self, place: usize) -> [u8; 32] {
        let extension = self.extensions.iter().rev().find(|known| known.from <= place);
        extension.map_or(self.submission_digest, |known| known.digest)
    }

    /// The task of the latest attempt of a subtask. `None`: there was no attempt.
    pub fn task_id(&self, spec: &Spec, place: usize) -> Option<TaskId> {
        let round = self.subtasks[place].task_round;
        (round > 0).then(|| TaskId::of_subtask(&self.submission_digest, &spec.subtasks[place].id, round))
    }

    /// The task of the latest attempt of a compensation. `None`: there was no attempt.
    pub fn compensation_task_id(&self, spec: &Spec, compensation: &CompensationRun) -> Option<TaskId> {
        let (round, id) = (compensation.run.task_round, &spec.subtasks[compensation.of].id);
        (round > 0).then(|| TaskId::of_compensation(&self.submission_digest, id, round))
    }

    /// The task of the latest attempt of an element. `None`: there was no attempt.
    pub fn element_task_id(&self, spec: &Spec, element: &ElementRun) -> Option<TaskId> {
        let (round, id) = (element.run.task_round, &spec.subtasks[element.of].id);
        (round > 0).then(|| TaskId::of_element(&self.submission_digest, id, round, element.index))
    }

    /// The time of the next step without a message: a deadline, or at once while the last step has left work. `None`: the
    /// plan has ended.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.state.is_final() {
            return None;
        }
        let of_subtask = |subtask: &SubtaskRun| match subtask.state {
            // Only waiting subtasks have a time of their own. The task of an active one has its own timers, and reports
            // their end as a word.
            SubtaskState::Pending => Some(subtask.waits_since.plus(self.dependency_timeout)),
            SubtaskState::Ready => subtask.retry_at,
            SubtaskState::HandingOff
            | SubtaskState::Running
            | SubtaskState::Completed
            | SubtaskState::Failed
            | SubtaskState::TimedOut
            | SubtaskState::Skipped
            | SubtaskState::Cancelled => None,
        };
        // The time of the last step, so that the work of many plans takes turns.
        let rest = self.goes_on.then_some(self.updated_at);
        // A compensation that waits for another one has no time of its own.
        let of_compensations = self.compensations.iter().filter_map(|compensation| compensation.run.retry_at);
        // The deadline of the plan is always among them, so every running plan ends in time (SPEC 12, law 13).
        let elements = self.elements.iter().map(|element| &element.run);
        let of_subtasks = self.subtasks.iter().chain(elements).filter_map(of_subtask);
        of_subtasks.chain(of_compensations).chain([self.deadline]).chain(rest).min()
    }

    /// The agents that take part, sorted, each once: the submitter, and each agent that has taken a subtask.
    pub fn participants(&self) -> Vec<AgentId> {
        // Agents of failed attempts stay participants, so that they can read the log that names them.
        let elements = self.elements.iter().map(|element| &element.run);
        let undoing = self.compensations.iter().map(|compensation| &compensation.run);
        let runs = self.subtasks.iter().chain(undoing).chain(elements);
        let taken = runs.flat_map(|run| run.tried.iter().chain(&run.agent));
        let mut all: Vec<AgentId> = taken.chain([&self.submitter]).cloned().collect();
        all.sort();
        all.dedup();
        all
    }
}
