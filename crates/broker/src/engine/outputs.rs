//! The outputs in their order, until the driver polls them.
//!
//! This module owns the queue of outputs and the registry of watchers. It must not know a channel: it holds handles.

use std::collections::{BTreeSet, VecDeque};

use super::{Engine, watchers::Watchers};
use crate::{Output, Update, changes::Change, domain::EntityId, ids::AgentId};

/// The queue of outputs and the watchers. See the module.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    queue: VecDeque<Output>,
    /// The agents whose mail is dispatched when the queue is empty. So answers leave before the mail of their commit,
    /// and the queue holds the deliveries of only one agent at a time.
    to_dispatch: BTreeSet<AgentId>,
    pub(super) watchers: Watchers,
    /// The changes of handoffs in the batch that has been committed.
    pub(super) changes: Vec<Change>,
}

impl Outputs {
    pub(super) fn push(&mut self, output: Output) {
        self.queue.push_back(output);
    }

    pub(super) fn extend(&mut self, outputs: impl IntoIterator<Item = Output>) {
        self.queue.extend(outputs);
    }

    /// Queues an update for each watcher of an entity. The last update also removes the watchers.
    pub(super) fn update(&mut self, entity: &EntityId, update: &Update) {
        let watchers = self.watchers.of(entity).iter();
        self.queue.extend(watchers.map(|watcher| watcher.clone().output(Ok(update.clone()))));
        // The registry drops its handles, so each channel ends after the queued update.
        if update.is_last() {
            self.watchers.remove_all_of(entity);
        }
    }

    /// Schedules the dispatch of these agents' mail behind the queued outputs.
    pub(super) fn dispatch_later(&mut self, mut agents: BTreeSet<AgentId>) {
        self.to_dispatch.append(&mut agents);
    }
}

impl Engine {
    /// The next output. `None`: the queue is empty and all mail is dispatched. The driver polls until then after each
    /// [`Engine::finish`]; outputs that it does not poll wait for the next poll.
    pub fn poll_output(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.outputs.queue.pop_front() {
                return Some(output);
            }
            let agent = self.outputs.to_dispatch.pop_first()?;
            self.dispatch(&agent, self.timers.clock.now);
        }
    }
}
