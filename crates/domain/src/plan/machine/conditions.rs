//! The subtasks that are not needed, by their conditions.

use super::{Event, PlanEntry, Report, TransitionBuilder};
use crate::{Entity, EntityId, ReadError, Reader};

impl TransitionBuilder {
    /// Why a subtask whose dependencies have ended is not needed. `None`: it is.
    pub(super) fn excluded_because(&self, place: usize, read: &mut dyn Reader) -> Result<Option<String>, ReadError> {
        let named = &self.spec.links.named[place];
        // With one that was needed, the subtask joins branches, and runs with the results of those that were taken.
        if !named.is_empty() && named.iter().all(|need| self.plan.subtasks[*need].is_excluded()) {
            return Ok(Some("all of its dependencies were skipped by their conditions".to_owned()));
        }
        let Some(when) = &self.spec.subtasks[place].when else { return Ok(None) };
        let other = self.spec.place(&when.subtask);
        let report = match other.and_then(|other| self.plan.subtasks[other].result) {
            Some(number) => self.report(number, read)?,
            None => None,
        };
        Ok((!when.holds(report.as_ref())).then(|| format!("its condition does not hold: {when}")))
    }

    /// The result in this entry of the log, of this step or an earlier one.
    pub(super) fn report(&self, number: u64, read: &mut dyn Reader) -> Result<Option<Report>, ReadError> {
        let report_of = |entry: &PlanEntry| match &entry.event {
            Event::Subtask(change) | Event::Element(change) => change.report.clone(),
            _ => None,
        };
        if let Some(entry) = self.entries.iter().find(|entry| entry.number == number) {
            return Ok(report_of(entry));
        }
        Ok(match read.entity(&EntityId::PlanEntry(self.plan.id.clone(), number))? {
            Some(Entity::PlanEntry(entry)) => report_of(&entry),
            Some(_) | None => None,
        })
    }
}
