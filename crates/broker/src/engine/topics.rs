//! The results of subtasks under the schemas of the topics that they go to.

use super::Engine;
use crate::{
    BrokerError,
    domain::{EntityId, handoff::TaskStatus},
    preparation::{Findings, PreparedMessage},
    records::EntityRecord,
};

impl Engine {
    /// Refuses a report whose result does not fit the schema of a topic.
    pub(super) fn check_topics(&mut self, message: &PreparedMessage, status: TaskStatus) -> Result<(), BrokerError> {
        let header = message.envelope().header();
        let Some(task) = header.task.clone().filter(|task| status == TaskStatus::Completed && task.is_reserved())
        else {
            return Ok(());
        };
        let known = self.entity_record(&mut self.transaction(), &EntityId::Task(task))?;
        let is_owned = known
            .as_deref()
            .and_then(EntityRecord::as_task)
            .is_some_and(|record| record.task.owner == header.sender && record.task.plan.is_some());
        match message.findings() {
            // The machine refuses the report.
            _ if !is_owned => Ok(()),
            Findings::Result(violations) if violations.is_empty() => Ok(()),
            Findings::Result(violations) => Err(BrokerError::Fields { violations: violations.clone() }),
            // The task came to its agent after the preparation.
            _ => Err(BrokerError::Conflict),
        }
    }
}
