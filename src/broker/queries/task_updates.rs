//! The list of tasks by update.

use bytes::Bytes;

use super::{Page, TaskFilter, View};
use crate::{
    broker::{
        BrokerError,
        access::{Purpose, Reach},
    },
    records::TaskRecord,
};

impl View<'_> {
    /// The tasks by their latest updates, newest first. The list of all tasks is the index, and the filter is applied to a
    /// page. Refused unless the caller may see all tasks: an agent would learn how many tasks the others have.
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
                Some(TaskRecord::by_update())
            }
            Reach::Everything => Some(TaskRecord::by_update()),
        };
        let read = |number, value: &Bytes| {
            let Some(record) = self.store.get(&TaskRecord::key(&TaskRecord::decode_part(value)?))? else {
                return Ok(None);
            };
            let record = TaskRecord::decode(&record.value)?;
            let task = &record.task;
            // A task that has changed since the read of the list is at another place now.
            let is_here = record.updated == number;
            let is_wanted = filter.owner.as_ref().is_none_or(|owner| task.owner == *owner)
                && (filter.statuses.is_empty() || filter.statuses.contains(&task.status))
                && filter.parent.as_ref().is_none_or(|parent| task.parent.as_ref() == Some(parent))
                && self.access.may_see_task(self.caller, task);
            Ok(Some(record).filter(|_| is_here && is_wanted))
        };
        self.page(list.as_ref(), &format!("{filter:?}"), size, token, read)
    }
}
