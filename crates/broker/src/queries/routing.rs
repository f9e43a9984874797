//! Queries of graphs, and of runs with their logs.

use std::{cell::RefCell, collections::HashMap, sync::Arc};

use bytes::Bytes;

use super::{
    Page, View,
    logs::{Log, LogPage},
};
use crate::{
    BrokerError,
    access::Purpose,
    domain::routing::{Graph, Run, RunId, RunState, TurnId},
    ids::{GraphId, TaskId},
    proto::v1,
    records::{
        GraphRecord, GraphRevision, List, RegistrationName, Registry, RunEntryRecord, RunRecord, RunTurnRecord,
        TaskRecord,
    },
    store::{Key, Table},
};

/// A filter of runs. All conditions that are set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// The graph of the run.
    pub graph: Option<GraphId>,
    /// The task that the run is over.
    pub task: Option<TaskId>,
    /// The permitted states. Empty: all.
    pub states: Vec<RunState>,
}

impl View<'_> {
    /// One run that the caller may see.
    pub fn run(&self, id: RunId) -> Result<Arc<Run>, BrokerError> {
        let stored = self.stored_run(id, &RefCell::default())?;
        // A run that does not exist and a hidden one get the same answer (SPEC 5).
        let seen = stored.filter(|run| self.access.may_see_run(self.caller, run));
        seen.ok_or_else(|| self.access.no_such_run(self.caller, id))
    }

    /// `known`: the graphs of the runs that were read before, so that a page reads each once.
    fn stored_run(
        &self,
        id: RunId,
        known: &RefCell<HashMap<GraphRevision, Arc<Graph>>>,
    ) -> Result<Option<Arc<Run>>, BrokerError> {
        let Some(stored) = self.store.get(&RunRecord::key(id))? else { return Ok(None) };
        let record = RunRecord::decode(&stored.value)?;
        if let Some(graph) = known.borrow().get(&record.graph) {
            let graph = graph.clone();
            return Ok(Some(record.with_graph(graph).run));
        }
        // The retention may have removed the run since, and its graph with it.
        let Some(graph) = self.store.get(&record.graph.key())? else { return Ok(None) };
        let graph = GraphRevision::decode(&graph.value)?;
        known.borrow_mut().insert(record.graph, graph.clone());
        Ok(Some(record.with_graph(graph).run))
    }

    /// The runs that the caller may see, newest first.
    pub fn runs(&self, filter: &RunFilter, size: usize, token: &str) -> Result<Page<Arc<Run>>, BrokerError> {
        let list = self.list(Purpose::ReadRuns, List::of_runs, None)?;
        let wanted = |run: &Arc<Run>| {
            filter.graph.as_ref().is_none_or(|graph| run.graph.id == *graph)
                && filter.task.as_ref().is_none_or(|task| run.task.as_ref() == Some(task))
                && (filter.states.is_empty() || filter.states.contains(&run.state))
                && self.access.may_see_run(self.caller, run)
        };
        let graphs = RefCell::default();
        let read = |_, value: &Bytes| Ok(self.stored_run(RunRecord::listed(value)?, &graphs)?.filter(wanted));
        self.page(list.as_ref(), &format!("{filter:?}"), size, token, read)
    }

    /// The entries of a run's log after this number, oldest first.
    pub fn run_log(&self, id: RunId, after: u64, limit: usize) -> Result<LogPage<v1::RunEntry>, BrokerError> {
        let run = self.run(id)?;
        let log = Log {
            table: Table::RunLog,
            range: RunEntryRecord::range_after(id, after),
            after,
            decode: RunEntryRecord::message,
            length: run.log_length,
            is_final: run.state.is_final(),
        };
        self.log_page(log, limit)
    }

    /// The recorded turn with this id, of a run that the caller may see.
    pub fn run_turn(&self, run: &Run, turn: TurnId) -> Result<v1::RunTurn, BrokerError> {
        self.check_run(run)?;
        let unknown = || BrokerError::RunUnknown { run: run.id.to_string() };
        let place = self.store.get(&RunTurnRecord::key(run.id, turn))?.ok_or_else(unknown)?;
        let number = RunTurnRecord::decode(run.id, turn, &place.value)?.0.number;
        self.run_entry(run, number)?.ok_or_else(unknown)
    }

    /// The turn with this number in the log of a run that the caller may see. `None`: the entry is no turn, or is removed.
    pub fn run_entry(&self, run: &Run, number: u64) -> Result<Option<v1::RunTurn>, BrokerError> {
        self.check_run(run)?;
        let Some(entry) = self.store.get(&RunEntryRecord::key(run.id, number))? else { return Ok(None) };
        Ok(match RunEntryRecord::message(&entry.value)?.event {
            Some(v1::run_entry::Event::Turn(turn)) => Some(turn),
            Some(_) | None => None,
        })
    }

    /// The type of the task that a run is over, for a proposal of a handoff. The right to see the run is enough. Empty if
    /// the run is over no task, or the task is removed.
    pub fn task_type_of_run(&self, run: &Run) -> Result<String, BrokerError> {
        self.check_run(run)?;
        let Some(task) = &run.task else { return Ok(String::new()) };
        let stored = self.store.get(&TaskRecord::key(task))?;
        let stored = stored.map(|record| TaskRecord::decode(&record.value)).transpose()?;
        Ok(stored.map(|record| record.task.task_type.clone()).unwrap_or_default())
    }

    fn check_run(&self, run: &Run) -> Result<(), BrokerError> {
        match self.access.may_see_run(self.caller, run) {
            true => Ok(()),
            false => Err(self.access.no_such_run(self.caller, run.id)),
        }
    }

    /// The latest revision of a graph.
    pub fn graph(&self, id: &GraphId) -> Result<Arc<Graph>, BrokerError> {
        self.access.may_see_directory(self.caller)?;
        self.stored_graph(id)
    }

    /// The latest revision of a graph that the caller may register, also without the right to read graphs.
    pub fn registered_graph(&self, id: &GraphId) -> Result<Arc<Graph>, BrokerError> {
        self.access.may_register(self.caller, &RegistrationName::new(Registry::Graphs, id))?;
        self.stored_graph(id)
    }

    fn stored_graph(&self, id: &GraphId) -> Result<Arc<Graph>, BrokerError> {
        let stored = self.store.get(&GraphRecord::key(id))?;
        let stored = stored.map(|record| GraphRecord::decode(&record.value)).transpose()?;
        stored.map(|record| record.graph).ok_or_else(|| BrokerError::GraphUnknown { graph: id.to_string() })
    }

    /// The registered graphs, the latest first.
    pub fn graphs(&self, size: usize, token: &str) -> Result<Page<Arc<Graph>>, BrokerError> {
        self.access.may_see_directory(self.caller)?;
        let read = |_, value: &Bytes| {
            let key = Key { table: Table::Graphs, key: (&**value).into() };
            let stored = self.store.get(&key)?;
            Ok(stored.map(|record| GraphRecord::decode(&record.value)).transpose()?.map(|record| record.graph))
        };
        self.page(Some(&List::of_graphs()), "graphs", size, token, read)
    }
}
