//! Those who follow a handoff or a task.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::{Engine, Updates};
use crate::{
    broker::{BrokerError, refused},
    domain::handoff::Handoff,
    ids::{IdMap, MessageId, TaskId},
    records::{HandoffRecord, TaskRecord},
};

impl Engine {
    pub(super) fn watch(&mut self, id: MessageId, updates: Updates) {
        let found = self.env.store.get(&HandoffRecord::key(id)).map_err(BrokerError::from);
        let decoded = found.and_then(|record| match record {
            Some(record) => Ok(HandoffRecord::decode(&record.value)?.handoff),
            None => Err(BrokerError::HandoffUnknown { handoff: id.to_string() }),
        });
        let handoff = match decoded {
            Ok(handoff) => handoff,
            Err(error) => return drop(updates.try_send(Err(refused(error)))),
        };
        let open = !handoff.state.is_final();
        if updates.try_send(Ok(handoff)).is_ok() && open {
            add_watcher(&mut self.watchers.handoffs, id, updates, mpsc::Sender::is_closed);
        }
    }

    pub(super) fn tell_watchers(&mut self, handoff: &Arc<Handoff>) {
        let Some(watchers) = self.watchers.handoffs.get_mut(&handoff.id) else { return };
        watchers.retain(|updates| updates.try_send(Ok(handoff.clone())).is_ok());
        if handoff.state.is_final() || watchers.is_empty() {
            self.watchers.handoffs.remove(&handoff.id);
        }
    }
}

/// Those who follow a task.
impl Engine {
    pub(super) fn watch_task(&mut self, task: TaskId, lengths: watch::Sender<u64>) {
        match self.env.store.get(&TaskRecord::key(&task)) {
            Ok(Some(record)) => {
                let stored = TaskRecord::decode(&record.value).map_or(0, |stored| stored.custody.length);
                lengths.send_replace(stored);
                add_watcher(&mut self.watchers.tasks, task, lengths, watch::Sender::is_closed);
            }
            Ok(None) => {} // the channel closes, and the caller has seen by itself that there is none
            Err(error) => tracing::error!(%task, %error, "failed to read a task"),
        }
    }

    pub(super) fn tell_task_watchers(&mut self, task: &TaskId, length: u64) {
        let Some(watchers) = self.watchers.tasks.get_mut(task) else { return };
        watchers.retain(|lengths| lengths.send(length).is_ok());
        if watchers.is_empty() {
            self.watchers.tasks.remove(task);
        }
    }
}

/// Adds one who watches something. Whoever has gone is found out at its next step; what makes none is looked through now
/// and then: when as many have come as to double what there is.
fn add_watcher<K: Eq + std::hash::Hash, W>(
    watchers: &mut IdMap<K, Vec<W>>,
    of: K,
    watcher: W,
    is_gone: impl Fn(&W) -> bool,
) {
    let of_this = watchers.entry(of).or_default();
    of_this.push(watcher);
    if of_this.len().is_power_of_two() {
        of_this.retain(|watcher| !is_gone(watcher));
    }
    if of_this.len() == 1 && watchers.len().is_power_of_two() {
        watchers.retain(|_, watchers| {
            watchers.retain(|watcher| !is_gone(watcher));
            !watchers.is_empty()
        });
    }
}
