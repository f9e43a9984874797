//! The process behind a link and the tasks that it works on: what its `Hello` and its heartbeats tell.
//!
//! A task is listed from its takeover until it ends or moves on, while a handler works on it or an
//! [`OwnedTask`](crate::OwnedTask) of it lives. So the work of a handler that is gone is told by no heartbeat.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use tokio::sync::watch;

/// The most tasks of a heartbeat.
pub(super) const WORKING_ON_MAX: usize = 1024;

/// The tasks that this process knows as its agent's.
#[derive(Debug)]
pub(super) struct Work {
    tasks: Mutex<BTreeMap<String, Weak<Held>>>,
    /// Changes with the list of [`Self::working_on`].
    changes: watch::Sender<()>,
}

/// A task that values of this process refer to. All of them share it, so each follows the moves that one of them makes.
#[derive(Debug)]
pub(super) struct Held {
    task_id: String,
    state: Mutex<State>,
    work: Weak<Work>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// The latest epoch at which this agent is known to own the task.
    epoch: u64,
    /// Whether this process has taken the task over.
    is_taken_up: bool,
    /// Whether the task has ended, is lent, or has gone to another agent.
    is_away: bool,
}

impl State {
    const fn is_listed(self) -> bool {
        self.is_taken_up && !self.is_away
    }
}

impl Work {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { tasks: Mutex::default(), changes: watch::Sender::new(()) })
    }

    /// The task, as known to be this agent's at this epoch.
    pub(super) fn hold(self: &Arc<Self>, task_id: &str, epoch: u64) -> Arc<Held> {
        let mut tasks = self.tasks();
        match tasks.get(task_id).and_then(Weak::upgrade) {
            Some(held) => {
                held.change(|state| {
                    if epoch > state.epoch {
                        (state.epoch, state.is_away) = (epoch, false);
                    }
                });
                held
            }
            None => {
                let state = Mutex::new(State { epoch, is_taken_up: false, is_away: false });
                let held = Arc::new(Held { task_id: task_id.to_owned(), state, work: Arc::downgrade(self) });
                tasks.insert(task_id.to_owned(), Arc::downgrade(&held));
                held
            }
        }
    }

    /// The same of a task that this process has taken over: from now on it works on it.
    pub(super) fn take_up(self: &Arc<Self>, task_id: &str, epoch: u64) -> Arc<Held> {
        let held = self.hold(task_id, epoch);
        held.change(|state| state.is_taken_up = true);
        held
    }

    /// The latest epoch at which this agent is known to own the task; `None` if no value of it lives.
    pub(super) fn epoch_of(&self, task_id: &str) -> Option<u64> {
        let held = self.tasks().get(task_id).and_then(Weak::upgrade)?;
        Some(held.epoch())
    }

    /// Notes that the task has come back at this epoch.
    pub(super) fn came_back(&self, task_id: &str, epoch: u64) {
        self.change(task_id, |state| {
            if epoch >= state.epoch {
                (state.epoch, state.is_away) = (epoch, false);
            }
        });
    }

    /// Notes that the task, owned until this epoch, has ended, is lent, or has gone to another agent.
    pub(super) fn went_away(&self, task_id: &str, epoch: u64) {
        self.change(task_id, |state| state.is_away |= epoch >= state.epoch);
    }

    /// The tasks that this process works on, at most [`WORKING_ON_MAX`].
    pub(super) fn working_on(&self) -> Vec<String> {
        let held: Vec<_> = self.tasks().values().filter_map(Weak::upgrade).collect();
        let listed = held.iter().filter(|held| held.state().is_listed());
        listed.take(WORKING_ON_MAX).map(|held| held.task_id.clone()).collect()
    }

    /// Learns of changes of [`Self::working_on`].
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn change(&self, task_id: &str, change: impl FnOnce(&mut State)) {
        // Not in one expression: dropping the last reference below the lock would take it a second time.
        let held = self.tasks().get(task_id).and_then(Weak::upgrade);
        if let Some(held) = held {
            held.change(change);
        }
    }

    fn tasks(&self) -> MutexGuard<'_, BTreeMap<String, Weak<Held>>> {
        self.tasks.lock().expect("no holder panics")
    }
}

impl Held {
    /// The latest epoch at which this agent is known to own the task.
    pub(super) fn epoch(&self) -> u64 {
        self.state().epoch
    }

    /// Whether this agent still owns the task, as far as this process knows.
    pub(super) fn is_here(&self) -> bool {
        !self.state().is_away
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let (was, is) = {
            let mut state = self.state.lock().expect("no holder panics");
            let was = state.is_listed();
            change(&mut state);
            (was, state.is_listed())
        };
        if let (true, Some(work)) = (was != is, self.work.upgrade()) {
            work.changes.send_replace(());
        }
    }

    fn state(&self) -> State {
        *self.state.lock().expect("no holder panics")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(work) = self.work.upgrade() else { return };
        let mut tasks = work.tasks();
        // A later value of the same task has taken the place already.
        if tasks.get(&self.task_id).is_some_and(|held| held.strong_count() == 0) {
            tasks.remove(&self.task_id);
        }
        drop(tasks);
        if self.state().is_listed() {
            work.changes.send_replace(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_listed_from_its_takeover_until_it_moves_or_is_let_go() {
        let work = Work::new();
        let known = work.hold("a", 1);
        assert!(work.working_on().is_empty(), "a task that was only read is no work");
        let mut changes = work.changes();
        let task = work.take_up("a", 2);
        assert_eq!((work.working_on(), known.epoch()), (vec!["a".to_owned()], 2));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        work.went_away("a", 1);
        assert_eq!(work.working_on(), ["a"], "the news of an earlier epoch");
        work.went_away("a", 2);
        assert!(work.working_on().is_empty() && !task.is_here() && changes.has_changed().unwrap());
        work.came_back("a", 4);
        assert_eq!((work.working_on(), task.epoch()), (vec!["a".to_owned()], 4));
        changes.mark_unchanged();
        drop((known, task));
        assert!(work.working_on().is_empty() && changes.has_changed().unwrap());
        assert!(work.tasks().is_empty());
    }

    #[test]
    fn a_heartbeat_has_a_bounded_list() {
        let work = Work::new();
        let held: Vec<_> = (0..WORKING_ON_MAX + 1).map(|number| work.take_up(&format!("t{number}"), 2)).collect();
        assert_eq!(work.working_on().len(), WORKING_ON_MAX);
        drop(held);
    }
}
