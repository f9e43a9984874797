//! Steps that no message causes: those of calls, of deadlines and of events.

use std::time::Duration;

use super::{Cause, Origin, RunError};
use crate::{
    BrokerError, Refused,
    access::Caller,
    domain::{Entity, EntityId, Input},
    engine::{Engine, transaction::Transaction},
    records::CustodyEvent,
    refused,
    time::Timestamp,
};

impl Engine {
    /// Runs a step without a caller, of an entity that may have been removed. Returns false if the step changes
    /// nothing.
    pub(in crate::engine) fn run_unasked(
        &mut self,
        transaction: &mut Transaction,
        about: &EntityId,
        input: &Input,
        event: &CustodyEvent<'_>,
        now: Timestamp,
    ) -> Result<bool, BrokerError> {
        // A letter can outlive its entity: a redriven one may report to a handoff that was removed with its task.
        if self.entity_record(transaction, about)?.is_none() {
            return Ok(false);
        }
        match self.run(transaction, about, input, Cause { origin: Origin::Broker, event: Some(event) }, now) {
            Ok(has_changed) => Ok(has_changed),
            Err(error) => {
                let refusal = error.by_machine()?;
                // A machine answers an event that no longer applies with no change, so a rejection is a bug.
                tracing::error!(%about, %refusal, "the state machine rejected an input that it must accept");
                Err(BrokerError::Internal)
            }
        }
    }

    /// Runs the step that a call asks for, of an entity without a custody log. Returns false if the step changes
    /// nothing: a repeat.
    pub(in crate::engine) fn apply(
        &mut self,
        about: &EntityId,
        input: &Input,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<bool, Refused> {
        // Their names have owners, so they are registered by `register_revision` alone.
        if matches!(about, EntityId::Graph(_) | EntityId::Spec(..)) {
            return Err(refused(BrokerError::Internal));
        }
        if self.batch.failed {
            // After a failed commit the state on disk is unknown, so no input can be checked against it.
            return Err(refused(BrokerError::StoreUnavailable));
        }
        self.check_retry(about, input)?;
        self.check_subtask_receiver(about, input, now)?;
        self.check_begin(about, input)?;
        self.check_runs_of_task(about, input)?;
        self.check_stored_by_call(about, input)?;
        let mut transaction = self.transaction();
        // Before the step: a turn makes its reporter a participant.
        let act = self.act_of(&mut transaction, about, input, caller, now).map_err(refused)?;
        let cause = Cause { origin: Origin::Broker, event: None };
        let has_changed = self.run(&mut transaction, about, input, cause, now).map_err(RunError::into_refusal)?;
        if has_changed {
            self.check_use(&mut transaction, input).map_err(refused)?;
            if let Some(act) = act {
                self.record(&mut transaction, act, now).map_err(refused)?;
            }
            self.stage(transaction);
        }
        Ok(has_changed)
    }

    /// Runs a step with `Input::Time` as a separate change. Returns false if the step changes nothing.
    pub(in crate::engine) fn pass_time(&mut self, entity: &EntityId, now: Timestamp) -> Result<bool, BrokerError> {
        let mut transaction = self.transaction();
        let has_moved = self.run_unasked(&mut transaction, entity, &Input::Time, &CustodyEvent::Time(entity), now)?;
        if has_moved {
            self.stage(transaction);
            self.end_unanswered();
        }
        Ok(has_moved)
    }

    /// The running time of the entity's next deadline. `None`: the entity has ended, does not exist, or has no
    /// deadline.
    pub(in crate::engine) fn deadline_of(&mut self, entity: &EntityId) -> Result<Option<Timestamp>, BrokerError> {
        self.time_of(entity, Entity::next_deadline)
    }

    /// The running time of a time of the entity, in its log's time, that `of` names.
    pub(in crate::engine) fn time_of(
        &mut self,
        entity: &EntityId,
        of: impl Fn(&Entity) -> Option<Timestamp>,
    ) -> Result<Option<Timestamp>, BrokerError> {
        let mut transaction = self.transaction();
        let Some(record) = self.entity_record(&mut transaction, entity)? else { return Ok(None) };
        let state = record.entity();
        let log_clock = self.log_of(&mut transaction, Some(record), None)?.and_then(|log| log.log_clock());
        let followed = log_clock.map_or(Duration::ZERO, |log_clock| log_clock.set_back);
        Ok(of(&state).map(|at| at.plus(followed)))
    }
}
