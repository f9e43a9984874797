//! Absences of owners: an agent that is gone works on none of its tasks, so the agents that handed them over are told.
//!
//! This module owns the absences that have begun and not ended. Each task is told about once in an absence: its record
//! names the absence. A sign of life ends the absence. The rule that decides who is told is in `domain::handoff`.

use std::collections::VecDeque;

use super::{Engine, timers::Timer, transaction::Transaction};
use crate::{
    BrokerError,
    domain::{Entity, EntityId, Input},
    ids::{AgentId, IdMap, TaskId},
    records::{AbsenceRecord, CustodyEvent, EntityRecord, HandoffPlace, List, TaskRecord},
    store::{Order, Store},
    time::Timestamp,
};

/// The most handoffs of a gone owner that one tick looks at, each for a task that the agent owns.
const HANDOFFS_A_TICK: usize = 64;

/// The absences, and the searches for tasks of gone owners.
#[derive(Debug, Default)]
pub(super) struct Absences {
    known: IdMap<AgentId, AbsenceRecord>,
    searches: VecDeque<Search>,
}

/// A search for the tasks of a gone agent, among its handoffs, newest first.
#[derive(Debug)]
struct Search {
    agent: AgentId,
    /// The sequence of the last handoff that the search has looked at.
    before: Option<u64>,
    /// The number of open tasks that the search has found.
    found: u32,
    /// The number of notices that it has stored.
    told: u32,
}

impl Absences {
    /// Loads the absences at a start. A search that a stop interrupted resumes once its agent is found gone again.
    pub(super) fn load(store: &dyn Store) -> Result<Self, BrokerError> {
        let list = List::of_absences();
        let stored = store.scan(list.table, list.range(), Order::Ascending, usize::MAX)?;
        let records = stored.iter().map(|(key, record)| AbsenceRecord::decode(key, &record.value));
        let known = records.map(|record| record.map(|record| (record.agent.clone(), record)));
        Ok(Self { known: known.collect::<Result<_, _>>()?, searches: VecDeque::new() })
    }
}

impl Engine {
    /// Begins the absence of an agent that is gone, if it may own tasks.
    pub(super) fn owner_is_gone(&mut self, agent: &AgentId) {
        let is_told = self.absences.known.get(agent).is_some_and(|absence| absence.is_told);
        let owns_none = self.loads.is_exact() && self.env.directory.counts(agent).0 == 0;
        if is_told || owns_none || agent.is_coordinator() {
            return;
        }
        self.search_later(agent);
    }

    fn search_later(&mut self, agent: &AgentId) {
        if !self.absences.searches.iter().any(|search| search.agent == *agent) {
            self.absences.searches.push_back(Search { agent: agent.clone(), before: None, found: 0, told: 0 });
        }
        self.timers.set_at_once(Timer::TasksOfGone);
    }

    /// Ends the absence of an agent that gives a sign of life.
    pub(super) fn end_absence(&mut self, agent: &AgentId) {
        // After a failed commit the recovery reads the absences again, and the next sign of life ends this one.
        if self.batch.failed {
            return;
        }
        let Some(absence) = self.absences.known.remove(agent) else { return };
        let mut transaction = self.transaction();
        transaction.delete(absence.key());
        self.stage(transaction);
        self.end_unanswered();
    }

    /// Searches a part of the handoffs of the next gone owner for its tasks, and tells about them.
    pub(super) fn tell_of_tasks_of_gone(&mut self, now: Timestamp) {
        if let Some(search) = self.absences.searches.pop_front()
            && self.env.directory.is_gone(&search.agent, now)
        {
            let agent = search.agent.clone();
            if let Err(error) = self.search_some(search, now) {
                tracing::error!(%agent, %error, "failed to tell about the tasks of an agent that is gone");
            }
        }
        if self.absences.searches.is_empty() {
            self.timers.clear(Timer::TasksOfGone);
        }
    }

    fn search_some(&mut self, mut search: Search, now: Timestamp) -> Result<(), BrokerError> {
        let agent = search.agent.clone();
        let mut transaction = self.transaction();
        let list = List::of_handoffs(Some(&agent));
        let stored =
            self.env.store.scan(list.table, list.range_before(search.before), Order::Descending, HANDOFFS_A_TICK)?;
        let number = match self.absences.known.get(&agent) {
            Some(absence) => absence.number,
            None => self.new_sequence(&mut transaction),
        };
        for (key, record) in &stored {
            let place = HandoffPlace::decode(list.number(key)?, &record.value)?;
            search.before = Some(place.sequence);
            let task = self.entity_record(&mut transaction, &EntityId::Task(place.task.clone()))?;
            // An agent may have many handoffs of a task, and lists the task at one of them.
            let is_open = |task: &&TaskRecord| task.task.owner == agent && !task.task.status.is_final();
            let task = task.as_deref().and_then(EntityRecord::as_task).filter(is_open);
            if task.is_some_and(|task| task.is_shown_to_at(&agent, &place)) {
                search.found += 1;
                search.told += u32::from(self.tell_of_task(&mut transaction, &place.task, number, now)?);
            }
        }
        let owned = self.env.directory.counts(&agent).0;
        let is_told = stored.len() < HANDOFFS_A_TICK || (self.loads.is_exact() && search.found >= owned);
        let (tasks, told) = (search.found, search.told);
        if is_told {
            if tasks > 0 {
                tracing::warn!(%agent, tasks, told, "an agent that owns tasks is gone");
            }
        } else {
            self.absences.searches.push_back(search);
        }
        // An absence of which no agent is to know needs no record.
        if told > 0 || self.absences.known.contains_key(&agent) {
            let absence = AbsenceRecord { number, agent: agent.clone(), is_told };
            transaction.put_over(absence.key(), absence.encode());
            self.absences.known.insert(agent, absence);
            self.stage(transaction);
            self.end_unanswered();
        }
        Ok(())
    }

    /// Tells about the tasks of a step that have come to an absent owner: the delegator of a loan that has ended.
    pub(super) fn tell_of_arrivals(
        &mut self,
        transaction: &mut Transaction,
        moved: &[(TaskId, AgentId)],
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        for (task, owner) in moved {
            match self.absences.known.get(owner) {
                Some(absence) => {
                    let number = absence.number;
                    self.tell_of_task(transaction, task, number, now)?;
                }
                // The search begins after this commit, which gives the agent its first task.
                None if !owner.is_coordinator() && self.env.directory.is_gone(owner, now) => self.search_later(owner),
                None => {}
            }
        }
        Ok(())
    }

    /// Tells about a task, unless this absence has told about it. Returns whether an agent is told.
    fn tell_of_task(
        &mut self,
        transaction: &mut Transaction,
        task: &TaskId,
        absence: u64,
        now: Timestamp,
    ) -> Result<bool, BrokerError> {
        let id = EntityId::Task(task.clone());
        let stored = self.entity_record(transaction, &id)?;
        let Some(record) = stored.as_deref().and_then(EntityRecord::as_task) else { return Ok(false) };
        if record.told_absence == absence {
            return Ok(false);
        }
        if !self.run_unasked(transaction, &id, &Input::AgentGone, &CustodyEvent::Gone, now)? {
            return Ok(false);
        }
        let record = TaskRecord { told_absence: absence, ..record.clone() };
        transaction.put_entity(EntityRecord::Task(record));
        Ok(true)
    }
}

/// The tasks among the entities that a step writes, which its owner may get by it. The owner of a lent task is not asked
/// for: its delegator can recall the task.
pub(super) fn owners_of(writes: &[Entity]) -> Vec<(TaskId, AgentId)> {
    let of_task = |entity: &Entity| match entity {
        Entity::Task(task) if task.loans.is_empty() && !task.status.is_final() => {
            Some((task.id.clone(), task.owner.clone()))
        }
        _ => None,
    };
    writes.iter().filter_map(of_task).collect()
}
