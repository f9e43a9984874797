//! What the message that creates a task says of it for good: its parent and its conversation. Admission checks the parent
//! of a new task.

use super::{Rejection, Request, Task};
use crate::codes::FieldViolation;

/// Checks that a request of a known task names no other parent and no other conversation than the task has.
pub(super) fn check_lasting(task: &Task, request: &Request) -> Result<(), Rejection> {
    let differs = |field: &str, problem| {
        let violation = FieldViolation { path: format!("envelope.payload.{field}"), problem };
        Err(Rejection::TermDiffers { violation })
    };
    if request.parent.is_some() && request.parent != task.parent {
        let problem = match &task.parent {
            Some(parent) => format!("must be empty or {parent}: the parent of a task never changes"),
            None => "must be empty: the task exists already, and is no part of another one".to_owned(),
        };
        return differs("parent_task_id", problem);
    }
    if request.conversation.is_some() && request.conversation != task.conversation {
        let problem = match &task.conversation {
            Some(_) => "must be empty or that of the task: the conversation of a task never changes".to_owned(),
            None => "must be empty: the task exists already, and is of no conversation".to_owned(),
        };
        return differs("conversation_id", problem);
    }
    Ok(())
}
