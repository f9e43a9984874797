//! The runs over a task: kept in its record while they are open, and told when the task moves or ends (SPEC 10).

use std::collections::VecDeque;

use crate::{
    BrokerError, Refused,
    codes::Refusal as _,
    domain::{
        Entity, EntityId, Input, Signal,
        handoff::{self, Rejection},
        routing::{self, RunId, RunSignal},
    },
    engine::{Engine, LIMIT_RETRY, transaction::Transaction},
    ids::TaskId,
    records::{EntityRecord, TaskRecord},
    refused,
    time::Timestamp,
};

/// Adds the word to a run, unless the handoff of one of its own choices has moved the task: it tells the run itself.
pub(super) fn tell(to_send: &mut VecDeque<(EntityId, Signal)>, run: RunId, signal: RunSignal) {
    let to = EntityId::Run(run);
    let by_own_choice = |(about, sent): &(EntityId, Signal)| {
        *about == to && matches!(sent, Signal::Run(RunSignal::HandoffEnded { owner: Some(_), .. }))
    };
    if matches!(signal, RunSignal::TaskMoved { .. }) && to_send.iter().any(by_own_choice) {
        return;
    }
    to_send.push_back((to, Signal::Run(signal)));
}

impl Engine {
    /// The words to the open runs over the tasks that a step moves or ends. Called before the step is written.
    pub(super) fn words_to_runs(
        &mut self,
        transaction: &mut Transaction,
        writes: &[Entity],
    ) -> Result<Vec<(RunId, RunSignal)>, BrokerError> {
        let mut words = Vec::new();
        for entity in writes {
            let Entity::Task(after) = entity else { continue };
            let before = self.entity_record(transaction, &entity.id())?;
            let Some(before) = before.as_deref().and_then(EntityRecord::as_task) else { continue };
            let signal = if after.status.is_final() && !before.task.status.is_final() {
                RunSignal::TaskEnded { status: after.status }
            } else if after.owner != before.task.owner {
                RunSignal::TaskMoved { owner: after.owner.clone() }
            } else {
                continue;
            };
            words.extend(before.open_runs.iter().map(|run| (*run, signal.clone())));
        }
        Ok(words)
    }

    /// Notes in the record of its task that a run is open, or is open no more.
    pub(super) fn keep_run_of_task(
        &mut self,
        transaction: &mut Transaction,
        task: &TaskId,
        run: RunId,
        is_open: bool,
    ) -> Result<(), BrokerError> {
        let stored = self.entity_record(transaction, &EntityId::Task(task.clone()))?;
        // The task of a run that has ended may have been removed.
        let Some(record) = stored.as_deref().and_then(EntityRecord::as_task) else { return Ok(()) };
        if record.open_runs.contains(&run) == is_open {
            return Ok(());
        }
        let mut record = record.clone();
        match is_open {
            true => record.open_runs.push(run),
            false => record.open_runs.retain(|open| *open != run),
        }
        transaction.put_entity(EntityRecord::Task(record));
        Ok(())
    }

    /// Fails if the run that an input starts would be one too many over its task. A repeat begins nothing.
    pub(in crate::engine) fn check_runs_of_task(&mut self, about: &EntityId, input: &Input) -> Result<(), Refused> {
        let Input::Routing(routing::Input::Start(start)) = input else { return Ok(()) };
        let Some(task) = &start.task else { return Ok(()) };
        let mut transaction = self.transaction();
        if self.entity_record(&mut transaction, about).map_err(refused)?.is_some() {
            return Ok(());
        }
        let stored = self.entity_record(&mut transaction, &EntityId::Task(task.clone())).map_err(refused)?;
        let open = stored.as_deref().and_then(EntityRecord::as_task).map_or(0, |record| record.open_runs.len());
        match open < TaskRecord::OPEN_RUNS_MAX {
            true => Ok(()),
            false => {
                let what = "the task has too many open runs";
                Err(refused(BrokerError::LimitExceeded { what, retry_after: LIMIT_RETRY }))
            }
        }
    }

    /// Tells the run whose choice a request was to carry out that the request is refused, and would be again.
    pub(in crate::engine) fn tell_run_of_refusal(
        &mut self,
        input: &Input,
        rejection: &Rejection,
        now: Timestamp,
    ) -> Result<(), Refused> {
        let Input::Handoff { task, input: handoff::Input::Request(request) } = input else { return Ok(()) };
        let Some(of) = request.routing else { return Ok(()) };
        let signal = RunSignal::HandoffRefused { choice: of.choice, task: task.clone(), code: rejection.code() };
        let mut transaction = self.transaction();
        self.run_signal(&mut transaction, &EntityId::Run(of.run), Signal::Run(signal), now)
            .map_err(super::RunError::into_refusal)?;
        self.stage(transaction);
        Ok(())
    }
}
