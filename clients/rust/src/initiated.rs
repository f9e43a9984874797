//! The requests of this process that the broker has not stored yet: the sender's view HandoffInitiated.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

/// The tasks of requests without a receipt, each with the number of its requests.
#[derive(Default)]
pub(super) struct Initiated(Mutex<HashMap<String, usize>>);

/// Marks a request as initiated until it is dropped.
pub(super) struct Mark {
    initiated: Arc<Initiated>,
    task_id: String,
}

impl Initiated {
    /// Marks a request for this task.
    pub(super) fn begin(self: &Arc<Self>, task_id: &str) -> Mark {
        *self.tasks().entry(task_id.to_owned()).or_default() += 1;
        Mark { initiated: Arc::clone(self), task_id: task_id.to_owned() }
    }

    /// Whether a request for this task is initiated.
    pub(super) fn contains(&self, task_id: &str) -> bool {
        self.tasks().contains_key(task_id)
    }

    fn tasks(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().expect("no holder panics")
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut tasks = self.initiated.tasks();
        if let Some(requests) = tasks.get_mut(&self.task_id) {
            *requests -= 1;
            if *requests == 0 {
                tasks.remove(&self.task_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_initiated_until_its_last_mark_is_dropped() {
        let initiated = Arc::new(Initiated::default());
        let (first, second) = (initiated.begin("t"), initiated.begin("t"));
        drop(first);
        assert!(initiated.contains("t") && !initiated.contains("u"));
        drop(second);
        assert!(!initiated.contains("t"));
    }
}
