//! The list of tasks by update.

use std::collections::BTreeMap;

use super::{Page, TaskFilter, View, pages::merged};
use crate::{
    BrokerError,
    access::{Purpose, Reach},
    ids::{AgentId, TaskId},
    records::{ChangePlace, HandoffPlace, List, TaskRecord},
    store::Order,
};

/// The most entries in the list of one agent's handoffs that a page sorts by update. With more, it goes through the
/// changes of all tasks.
const SORTED_MAX: usize = 4096;

impl View<'_> {
    /// The tasks by their latest updates, newest first. The filter is applied to a page.
    pub(super) fn tasks_by_update(
        &self,
        filter: &TaskFilter,
        size: usize,
        token: &str,
    ) -> Result<Page<TaskRecord>, BrokerError> {
        let changes = List::changes();
        let (list, own) = match self.access.reach(self.caller, Purpose::ReadTasks)? {
            Reach::Nothing => (None, None),
            Reach::Own(agent) => (Some(&changes), self.tasks_of(agent)?),
            Reach::Everything => (Some(&changes), None),
        };
        let read = |number, task: TaskId| {
            let Some(record) = self.store.get(&TaskRecord::key(&task))? else { return Ok(None) };
            let record = TaskRecord::decode(&record.value)?;
            // Both lists have entries of handoffs since which the task has changed. It is at another place then.
            let is_wanted = record.updated == number
                && filter.matches(&record.task)
                && self.access.may_see_task(self.caller, &record.task);
            Ok(Some(record).filter(|_| is_wanted))
        };
        let name = format!("{filter:?}");
        if let Some(own) = own {
            let entries = |_, before: Option<u64>| {
                own.into_iter().rev().filter(move |(number, _)| before.is_none_or(|before| *number < before)).map(Ok)
            };
            return self.page_of(list, entries, &name, size, token, read);
        }
        // The index is the list of changes with that of the open handoffs: the beginning of a handoff is an update of its
        // task.
        let open = List::open_handoffs();
        let entries = |changes, before| {
            let begun =
                self.newest_first(&open, before, size, |number, value| Ok(open.handoff_place(number, &value)?.task));
            let changed = self.newest_first(changes, before, size, |_, value| Ok(ChangePlace::decode(&value)?.task));
            merged(changed, begun)
        };
        self.page_of(list, entries, &name, size, token, read)
    }

    /// The tasks in which the agent takes part, by their latest updates. `None`: its list is too long to sort for a page.
    fn tasks_of(&self, agent: &AgentId) -> Result<Option<BTreeMap<u64, TaskId>>, BrokerError> {
        let list = List::of_handoffs(Some(agent));
        let entries = self.entries(&list, list.range(), Order::Descending, SORTED_MAX + 1);
        let mut tasks = BTreeMap::new();
        for (looked_at, entry) in entries.enumerate() {
            if looked_at == SORTED_MAX {
                return Ok(None);
            }
            let (number, value) = entry?;
            let place = HandoffPlace::decode(number, &value.value)?;
            if let Some(record) = self.store.get(&TaskRecord::key(&place.task))? {
                tasks.insert(TaskRecord::decode(&record.value)?.updated, place.task);
            }
        }
        Ok(Some(tasks))
    }
}
