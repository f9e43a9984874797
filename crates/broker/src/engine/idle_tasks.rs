//! The end of idle tasks: a task in status CREATED, without an open handoff, about which no message has come for the
//! retention of idle tasks and whose owner was not seen for as long, is cancelled.
//!
//! The list of changes has each task at its latest update, the oldest first. A pass reads a part of it each tick, and stops
//! at the first task that was updated too late.

use std::time::Duration;

use super::{Engine, timers::Timer};
use crate::{
    BrokerError,
    domain::{
        EntityId, Input,
        handoff::{self, Cancellation, TaskStatus},
    },
    ids::TaskId,
    records::{ChangePlace, CustodyEvent, EntityRecord, List, TaskRecord},
    store::Order,
    time::Timestamp,
};

/// The most entries of the list that one tick reads.
const ENTRIES_A_TICK: usize = 64;
/// The time between two parts of a pass.
const REST: Duration = Duration::from_millis(100);
/// The least time between two passes.
const PASS_EVERY: Duration = Duration::from_secs(3600);

impl Engine {
    /// Cancels idle tasks, as many as one tick may look at.
    pub(super) fn end_idle_tasks(&mut self, now: Timestamp) {
        let Some(span) = self.env.settings.retention.idle_tasks else { return self.timers.clear(Timer::IdleTasks) };
        match self.end_some_idle(span, now) {
            Ok(Some(after)) => {
                self.retention.idle_after = after;
                self.timers.set_after(Timer::IdleTasks, REST);
            }
            // No task is idle before the span is over again, counted from the oldest one that is not idle yet.
            Ok(None) => {
                self.retention.idle_after = 0;
                let oldest = self.retention.idle_next.take().unwrap_or(now);
                self.timers.set_by_clock(Timer::IdleTasks, oldest.plus(span).max(now.plus(PASS_EVERY)));
            }
            Err(error) => {
                tracing::error!(%error, "failed to look for idle tasks");
                self.timers.set_after(Timer::IdleTasks, PASS_EVERY);
            }
        }
    }

    /// Looks at a part of the list. Returns the place behind which the next part begins. `None`: the pass has ended.
    fn end_some_idle(&mut self, span: Duration, now: Timestamp) -> Result<Option<u64>, BrokerError> {
        let (list, after) = (List::changes(), self.retention.idle_after);
        let found = self.env.store.scan(list.table, list.range_after(after), Order::Ascending, ENTRIES_A_TICK)?;
        let is_last = found.len() < ENTRIES_A_TICK;
        let mut place = after;
        for (key, entry) in found {
            place = list.number(&key)?;
            let task = ChangePlace::decode(&entry.value)?.task;
            let stored = self.entity_record(&mut self.transaction(), &EntityId::Task(task.clone()))?;
            let Some(record) = stored.as_deref().and_then(EntityRecord::as_task) else { continue };
            // Another entry of the list is that of the task's latest update.
            if record.updated != place {
                continue;
            }
            if record.task.updated_at.plus(span) > now {
                self.retention.idle_next = Some(record.task.updated_at);
                return Ok(None);
            }
            if self.is_idle(record, span, now) {
                self.cancel_idle(&task, now)?;
            }
        }
        Ok((!is_last).then_some(place))
    }

    fn is_idle(&self, record: &TaskRecord, span: Duration, now: Timestamp) -> bool {
        let task = &record.task;
        let signs = self.env.directory.presence(&task.owner).signs;
        let was_seen =
            signs.sessions > 0 || signs.receives > 0 || signs.last_seen.is_some_and(|at| at.plus(span) > now);
        // A plan ends its own tasks, and an operator those of the coordinator.
        task.status == TaskStatus::Created
            && task.open_handoff.is_none()
            && task.plan.is_none()
            && record.logged_at.plus(span) <= now
            && !was_seen
    }

    fn cancel_idle(&mut self, task: &TaskId, now: Timestamp) -> Result<(), BrokerError> {
        let (id, why) = (EntityId::Task(task.clone()), Cancellation::Idle);
        let input = Input::Handoff { task: task.clone(), input: handoff::Input::CancelTask(why.clone()) };
        let mut transaction = self.transaction();
        if self.run_unasked(&mut transaction, &id, &input, &CustodyEvent::Cancelled(&why), now)? {
            tracing::info!(%task, "cancelled a task that no agent has worked on");
            self.stage(transaction);
            self.end_unanswered();
        }
        Ok(())
    }
}
