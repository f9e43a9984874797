//! The task in whose work the present code runs: a request that it makes is a part of that task, and its failure ends
//! the task.

use std::sync::{Arc, Mutex};

use super::OwnedTask;

tokio::task_local! {
    static SCOPE: Scope;
}

/// What a handler works on. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Scope(Arc<Mutex<Vec<OwnedTask>>>);

impl Scope {
    /// Runs a future in this scope. Tasks that it spawns have none.
    pub(super) async fn run<F: Future>(self, future: F) -> F::Output {
        SCOPE.scope(self, future).await
    }

    /// The tasks that were taken over in the scope.
    pub(super) fn tasks(&self) -> Vec<OwnedTask> {
        self.0.lock().expect("no holder panics").clone()
    }

    /// Adds a task that is taken over.
    pub(super) fn add(&self, task: &OwnedTask) {
        self.0.lock().expect("no holder panics").push(task.clone());
    }
}

/// Runs a future as part of the work on a task: a task that it creates by
/// [`Link::hand_over`](crate::Link::hand_over) or [`Link::delegate`](crate::Link::delegate) is a part of this one, unless
/// the request names another parent. A handler that takes a task over is in its scope from there on; code that it spawns
/// is not, and needs this call.
pub async fn in_task<F: Future>(task: &OwnedTask, future: F) -> F::Output {
    let scope = Scope::default();
    scope.add(task);
    scope.run(future).await
}

/// Runs a future outside of the work on any task: the tasks that it creates are no parts, unless the request says so.
pub async fn without_parent<F: Future>(future: F) -> F::Output {
    Scope::default().run(future).await
}

/// Adds a task that is taken over to the present scope.
pub(super) fn add(task: &OwnedTask) {
    // Outside of handlers there is no scope.
    let _ = SCOPE.try_with(|scope| scope.add(task));
}

/// The latest task of the present scope, if this agent still owns it.
pub(super) fn parent() -> Option<String> {
    let last = SCOPE.try_with(|scope| scope.tasks().pop()).ok().flatten();
    last.filter(OwnedTask::is_here).map(|task| task.task_id)
}
