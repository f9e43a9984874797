//! The refusals of the machines of specs and threads.

use super::{ActionId, PLUGIN, REVISIONS_MAX, ThreadRunId, Unresolved};
use crate::{
    codes::{ErrorCode, Refusal},
    ids::{SpecId, TaskId},
    time::Timestamp,
};

/// A refusal of the machine. Nothing changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The thread does not exist.
    #[error("the thread does not exist")]
    ThreadUnknown,
    /// A thread with this id and another base spec, task or creator exists.
    #[error("a thread with this id exists already, with another base spec, task or creator")]
    ThreadExists,
    /// The spec has [`REVISIONS_MAX`] revisions.
    #[error("spec {spec} has {REVISIONS_MAX} revisions, and takes no more")]
    TooManyRevisions {
        /// The spec with too many revisions.
        spec: SpecId,
    },
    /// The spec does not resolve.
    #[error("handoff resolve failed: {spec} ({why})")]
    ResolveFailed {
        /// The spec that the call names.
        spec: SpecId,
        /// The reason.
        why: Unresolved,
    },
    /// The spec in force does not permit actions.
    #[error("spec {spec} is in force, and {PLUGIN} is not in its {list}")]
    PluginMissing {
        /// The spec in force.
        spec: SpecId,
        /// The list that lacks the plugin: `plugin_ids` or `hook_filter`.
        list: &'static str,
    },
    /// Another action has this id.
    #[error("action {action} was asked for with other content")]
    ActionIdReused {
        /// The id that both actions have.
        action: ActionId,
    },
    /// Another run of the thread is open, or this one by another runner.
    #[error("run {run} of the thread is open until {until}")]
    RunOpen {
        /// The open run.
        run: ThreadRunId,
        /// The end of its lease.
        until: Timestamp,
    },
    /// The run is not open: it has ended, or its lease is over.
    #[error("run {run} of the thread is not open: it has ended, or its lease is over")]
    RunEnded {
        /// The run that the call names.
        run: ThreadRunId,
    },
    /// The step is not the present one of the run.
    #[error("the run is at step {current}, not at step {claimed}")]
    WrongStep {
        /// The step that the call names.
        claimed: u64,
        /// The present step.
        current: u64,
    },
    /// The task does not exist.
    #[error("task {task} does not exist")]
    TaskUnknown {
        /// The id of the task.
        task: TaskId,
    },
    /// The caller does not own the task.
    #[error("only the owner of task {task} creates a thread of it")]
    NotOwner {
        /// The id of the task.
        task: TaskId,
    },
}

impl Refusal for Rejection {
    fn code(&self) -> ErrorCode {
        match self {
            Self::ThreadUnknown => ErrorCode::ThreadUnknown,
            Self::ThreadExists => ErrorCode::ThreadExists,
            Self::ActionIdReused { .. } => ErrorCode::MessageIdReused,
            Self::TooManyRevisions { .. } => ErrorCode::LimitExceeded,
            Self::ResolveFailed { .. } => ErrorCode::HandoffResolveFailed,
            Self::PluginMissing { .. } => ErrorCode::HandoffPluginMissing,
            Self::RunOpen { .. } => ErrorCode::RunOpen,
            Self::RunEnded { .. } => ErrorCode::RunFinal,
            Self::WrongStep { .. } => ErrorCode::SequenceConflict,
            Self::TaskUnknown { .. } => ErrorCode::TaskUnknown,
            Self::NotOwner { .. } => ErrorCode::NotOwner,
        }
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::ResolveFailed { spec, why } => vec![("spec_id", spec.to_string()), ("missing", why.to_string())],
            Self::PluginMissing { spec, list } => vec![("spec_id", spec.to_string()), ("list", (*list).to_owned())],
            Self::RunOpen { run, until } => vec![("run_id", run.to_string()), ("lease_deadline", until.to_string())],
            Self::WrongStep { current, .. } => vec![("step", current.to_string())],
            Self::ThreadUnknown
            | Self::ThreadExists
            | Self::TooManyRevisions { .. }
            | Self::ActionIdReused { .. }
            | Self::RunEnded { .. }
            | Self::TaskUnknown { .. }
            | Self::NotOwner { .. } => Vec::new(),
        }
    }
}
