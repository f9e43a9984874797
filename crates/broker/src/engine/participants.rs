//! Admission of a message to the task that it names: this module reads the records that the domain's rules need.

use super::{Engine, messages::Named, transaction::Transaction};
use crate::{
    BrokerError,
    domain::{
        EntityId, Handling, Header,
        admission::{self, AdmissionError, KnownTask, Standing},
    },
    records::EntityRecord,
};

impl Engine {
    /// Admits a message in view of the task and the handoff that it names. A message without a task is carried.
    pub(super) fn admit(
        &mut self,
        transaction: &mut Transaction,
        header: &Header,
        named: &Named,
    ) -> Result<Standing, BrokerError> {
        let Some(id) = &header.task else { return Ok(Standing::Carried) };
        let handoff = named.handoff.as_deref();
        let Some(task) = &named.task else {
            // A removed task still answers its owners; to any other agent it is unknown.
            let removed = self.removed_task(transaction, id)?;
            let known = removed.as_ref().map_or(KnownTask::Unknown, KnownTask::Removed);
            return Ok(admission::admit(header, id, known, handoff)?);
        };
        let open = match admission::deciding_handoff(task, handoff, &header.sender) {
            Some(open) => self.entity_record(transaction, &EntityId::Handoff(open))?,
            None => None,
        };
        let open = open.as_ref().and_then(|record| Some(&*record.as_handoff()?.handoff));
        let admitted = admission::admit(header, id, KnownTask::Known(task, open), handoff);
        if matches!(admitted, Err(AdmissionError::NotOwner { .. })) && header.rules().handling == Handling::Mail {
            let record = self.entity_record(transaction, &EntityId::Task(id.clone()))?;
            let asked = record.as_deref().and_then(EntityRecord::as_task).map_or(&[][..], |record| &record.asked);
            if asked.contains(&header.sender) {
                return Ok(admission::admit_asked(header, task)?);
            }
        }
        Ok(admitted?)
    }
}
