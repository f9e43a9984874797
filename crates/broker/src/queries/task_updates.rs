//! The list of tasks by update.

use super::{Page, TaskFilter, View, pages::merged};
use crate::{
    BrokerError,
    access::{Purpose, Reach},
    ids::TaskId,
    records::{ChangePlace, List, TaskRecord},
};

impl View<'_> {
    /// The tasks by their latest updates, newest first. The index is the list of changes with that of the open handoffs: the
    /// beginning of a handoff is an update of its task. The filter is applied to a page. Refused unless the caller may see
    /// all tasks: an agent would learn how many tasks the others have.
    pub(super) fn tasks_by_update(
        &self,
        filter: &TaskFilter,
        size: usize,
        token: &str,
    ) -> Result<Page<TaskRecord>, BrokerError> {
        let list = match self.access.reach(self.caller, Purpose::ReadTasks)? {
            Reach::Nothing => None,
            Reach::Own(_) => {
                self.access.may_see_all_tasks(self.caller)?;
                Some(List::changes())
            }
            Reach::Everything => Some(List::changes()),
        };
        let read = |number, task: TaskId| {
            let Some(record) = self.store.get(&TaskRecord::key(&task))? else { return Ok(None) };
            let record = TaskRecord::decode(&record.value)?;
            let task = &record.task;
            // Both lists have entries of handoffs since which the task has changed. It is at another place then.
            let is_here = record.updated == number;
            let is_wanted = filter.owner.as_ref().is_none_or(|owner| task.owner == *owner)
                && (filter.statuses.is_empty() || filter.statuses.contains(&task.status))
                && filter.parent.as_ref().is_none_or(|parent| task.parent.as_ref() == Some(parent))
                && self.access.may_see_task(self.caller, task);
            Ok(Some(record).filter(|_| is_here && is_wanted))
        };
        let open = List::open_handoffs();
        let entries = |changes, before| {
            let begun =
                self.newest_first(&open, before, size, |number, value| Ok(open.handoff_place(number, &value)?.task));
            let changed = self.newest_first(changes, before, size, |_, value| Ok(ChangePlace::decode(&value)?.task));
            merged(changed, begun)
        };
        self.page_of(list.as_ref(), entries, &format!("{filter:?}"), size, token, read)
    }
}
