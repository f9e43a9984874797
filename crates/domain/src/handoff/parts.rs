//! The parent of a task that is a part of another one. Admission checks the parent of a new task.

use super::{Rejection, Request, Task};
use crate::codes::FieldViolation;

/// Checks that a request of a known task names no other parent than the task has.
pub(super) fn check_parent(task: &Task, request: &Request) -> Result<(), Rejection> {
    if request.parent.is_none() || request.parent == task.parent {
        return Ok(());
    }
    let problem = match &task.parent {
        Some(parent) => format!("must be empty or {parent}: the parent of a task never changes"),
        None => "must be empty: the task exists already, and is no part of another one".to_owned(),
    };
    let violation = FieldViolation { path: "envelope.payload.parent_task_id".to_owned(), problem };
    Err(Rejection::ParentDiffers { violation })
}
