//! The work of each agent: the tasks that it owns, its open offers, the letters that wait for it, and how its latest
//! offers ended (SPEC 6).
//!
//! Counts are in memory and follow each change as it is staged, so that a request sees those of the same batch. After a
//! start they are counted again from the store, a part after each commit: a start takes no longer where tasks are many.
//! The statistics are durable; the commit of a step writes them.

use std::{collections::BTreeMap, ops::Bound};

use super::{Engine, TRY_AGAIN, batch::PostCommit, timers::Timer, transaction::Transaction};
use crate::{
    BrokerError,
    directory::Directory,
    domain::{
        EntityId,
        handoff::{Handoff, OfferOutcome, State},
        matching::OfferResult,
    },
    ids::{AgentId, TaskId},
    metrics::Metrics,
    records::{EntityRecord, HandoffRecord, StatisticsRecord, TaskRecord, letter_agent, letter_key},
    store::{KeyBytes, Order, Table},
    time::Timestamp,
};

/// The most records that are read after one commit.
const COUNTED_AT_ONCE: usize = 512;

/// The progress of the count since the start.
#[derive(Debug, Clone)]
enum Counted {
    /// The tasks up to this one are counted. `None`: no task is.
    Tasks(Option<TaskId>),
    /// All tasks are counted, and the letters up to the one with this key are.
    Letters(Option<KeyBytes>),
    /// All tasks and letters are counted, and the statistics up to those of this agent are loaded.
    Statistics(Option<AgentId>),
    All,
}

/// The progress of the count. See the module.
#[derive(Debug)]
pub(super) struct Loads {
    counted: Counted,
    /// Whether the next part is to be counted after this commit.
    is_due: bool,
}

impl Default for Loads {
    fn default() -> Self {
        Self { counted: Counted::Tasks(None), is_due: false }
    }
}

impl Loads {
    /// Whether all tasks are counted.
    pub(super) fn is_exact(&self) -> bool {
        match self.counted {
            Counted::Tasks(_) => false,
            Counted::Letters(_) | Counted::Statistics(_) | Counted::All => true,
        }
    }

    /// Whether a letter that is stored or removed changes the counts. The count still comes to a letter behind the last
    /// counted one.
    pub(super) fn has_counted_letter(&self, agent: &AgentId, place: u64) -> bool {
        match &self.counted {
            Counted::Tasks(_) | Counted::Letters(None) => false,
            Counted::Letters(Some(upto)) => letter_key(agent, place).key <= *upto,
            Counted::Statistics(_) | Counted::All => true,
        }
    }

    /// Whether changes of the task change the counts. The count still comes to a task after the last counted one.
    fn has_counted(&self, task: &TaskId) -> bool {
        match &self.counted {
            Counted::Tasks(upto) => upto.as_ref().is_some_and(|upto| task <= upto),
            Counted::Letters(_) | Counted::Statistics(_) | Counted::All => true,
        }
    }

    /// Counts the change of an entity.
    pub(super) fn note_change(
        &self,
        (directory, metrics): (&Directory, &Metrics),
        before: Option<&EntityRecord>,
        after: &EntityRecord,
    ) {
        if let Some(after) = after.as_handoff() {
            let before = before.and_then(EntityRecord::as_handoff).map(|record| &*record.handoff);
            note_offer(directory, before, &after.handoff);
        }
        let entity = after.entity();
        if entity.task().is_some_and(|task| self.has_counted(task)) {
            before.map(work_of).into_iter().for_each(|work| count(directory, metrics, work, false));
            count(directory, metrics, work_of(after), true);
        }
    }
}

/// A task or an open offer of an agent.
#[derive(Debug, Clone, Copy)]
enum Work<'a> {
    None,
    Task(&'a AgentId),
    Offer(&'a AgentId, State),
    /// An open handoff that no candidate has.
    Held(State),
}

fn work_of(record: &EntityRecord) -> Work<'_> {
    if let Some(TaskRecord { task, .. }) = record.as_task() {
        return if task.status.is_final() { Work::None } else { Work::Task(&task.owner) };
    }
    record.as_handoff().map_or(Work::None, |record| offer_of(&record.handoff))
}

fn offer_of(handoff: &Handoff) -> Work<'_> {
    match () {
        () if handoff.state.is_final() => Work::None,
        () if handoff.is_held() => Work::Held(handoff.state),
        () => Work::Offer(&handoff.candidate, handoff.state),
    }
}

fn count(directory: &Directory, metrics: &Metrics, work: Work<'_>, is_more: bool) {
    let moved = |number: u32| if is_more { number + 1 } else { number.saturating_sub(1) };
    match work {
        Work::None => {}
        Work::Task(agent) => directory.change_activity(agent, |known| {
            known.owned = moved(known.owned);
            if !is_more {
                known.load_fell();
            }
        }),
        Work::Held(state) => metrics.open_handoffs_changed(state, is_more),
        Work::Offer(agent, state) => {
            metrics.open_handoffs_changed(state, is_more);
            directory.change_activity(agent, |known| known.offers = moved(known.offers));
        }
    }
}

/// Notes a new offer, so that equal agents are asked in turn.
fn note_offer(directory: &Directory, before: Option<&Handoff>, after: &Handoff) {
    let last = |handoff: &Handoff| {
        let last = handoff.offers.last()?;
        Some((last.candidate.clone(), last.offered_at, last.repeats))
    };
    if let Some(offer) = after.offers.last().filter(|offer| offer.outcome == OfferOutcome::Pending)
        && before.and_then(last) != last(after)
    {
        directory.asked(&offer.candidate, offer.offered_at);
    }
}

impl Engine {
    /// Counts a letter that a commit has stored or removed.
    pub(super) fn count_letter(&self, agent: &AgentId, place: u64, is_more: bool) {
        if self.loads.has_counted_letter(agent, place) {
            self.env.directory.change_activity(agent, |known| {
                known.letters = if is_more { known.letters + 1 } else { known.letters.saturating_sub(1) };
            });
        }
    }

    /// Counts the next part after the commit in hand.
    pub(super) fn count_soon(&mut self) {
        self.loads.is_due = true;
    }

    /// Counts all tasks again: the counts have followed a change that was not applied.
    pub(super) fn count_again(&mut self) {
        self.env.directory.clear_counts();
        self.env.resources.metrics.no_open_handoffs();
        self.loads = Loads::default();
        self.timers.set_at_once(Timer::Loads);
    }

    /// Counts a part of the store, if it is due. Runs after a commit, when the store has every change.
    pub(super) fn count_some(&mut self) {
        if !std::mem::take(&mut self.loads.is_due) {
            return;
        }
        match self.counted_next() {
            Ok(Counted::All) => {
                self.loads.counted = Counted::All;
                self.timers.clear(Timer::Loads);
            }
            Ok(counted) => {
                let was_exact = self.loads.is_exact();
                self.loads.counted = counted;
                if !was_exact && self.loads.is_exact() {
                    self.loads_are_known();
                }
                self.timers.set_at_once(Timer::Loads);
            }
            Err(error) => {
                tracing::error!(%error, "failed to count the tasks of agents");
                self.timers.set_after(Timer::Loads, TRY_AGAIN);
            }
        }
    }

    fn counted_next(&mut self) -> Result<Counted, BrokerError> {
        match self.loads.counted.clone() {
            Counted::Tasks(upto) => self.count_tasks(upto.as_ref()),
            Counted::Letters(upto) => self.count_letters(upto),
            Counted::Statistics(upto) => self.load_statistics(upto.as_ref()),
            Counted::All => Ok(Counted::All),
        }
    }

    fn count_tasks(&mut self, upto: Option<&TaskId>) -> Result<Counted, BrokerError> {
        let from = upto.map_or(Bound::Unbounded, |task| Bound::Excluded(TaskRecord::key(task).key));
        let stored = self.env.store.scan(Table::Tasks, (from, Bound::Unbounded), Order::Ascending, COUNTED_AT_ONCE)?;
        // All records are read before the first counts, so that a failure leaves no part counted twice.
        let mut records = Vec::with_capacity(stored.len());
        for (_, record) in &stored {
            let task = TaskRecord::decode(&record.value)?;
            let redriven = self.open_handoff_elsewhere(&task)?;
            records.push((EntityRecord::Task(task), redriven));
        }
        for (record, redriven) in &records {
            count(&self.env.directory, &self.env.resources.metrics, work_of(record), true);
            let embedded = record.as_task().and_then(|task| task.handoff.as_ref());
            for handoff in embedded.into_iter().chain(redriven) {
                count(&self.env.directory, &self.env.resources.metrics, offer_of(&handoff.handoff), true);
                self.follow_held(handoff);
            }
        }
        let last = records.last().and_then(|(record, _)| record.as_task()).map(|task| task.task.id.clone());
        let is_last = stored.len() < COUNTED_AT_ONCE;
        Ok(if is_last { Counted::Letters(None) } else { Counted::Tasks(last) })
    }

    fn count_letters(&self, upto: Option<KeyBytes>) -> Result<Counted, BrokerError> {
        let from = upto.map_or(Bound::Unbounded, Bound::Excluded);
        let stored =
            self.env.store.scan(Table::Mailbox, (from, Bound::Unbounded), Order::Ascending, COUNTED_AT_ONCE)?;
        let mut letters: BTreeMap<AgentId, u64> = BTreeMap::new();
        for (key, _) in &stored {
            *letters.entry(letter_agent(key)?).or_default() += 1;
        }
        for (agent, many) in letters {
            self.env.directory.change_activity(&agent, |known| known.letters += many);
        }
        match stored.last().filter(|_| stored.len() == COUNTED_AT_ONCE) {
            Some((last, _)) => Ok(Counted::Letters(Some(last.clone()))),
            None => {
                self.env.directory.mail_is_counted(true);
                Ok(Counted::Statistics(None))
            }
        }
    }

    /// The open handoff of a task, if the record of the task does not contain it.
    fn open_handoff_elsewhere(&self, record: &TaskRecord) -> Result<Option<HandoffRecord>, BrokerError> {
        let Some(open) = record.task.open_handoff else { return Ok(None) };
        if record.handoff.as_ref().is_some_and(|embedded| embedded.handoff.id == open) {
            return Ok(None);
        }
        let stored = self.env.store.get(&EntityRecord::key(&EntityId::Handoff(open)))?;
        Ok(stored.map(|stored| HandoffRecord::decode(&stored.value)).transpose()?)
    }

    fn load_statistics(&self, upto: Option<&AgentId>) -> Result<Counted, BrokerError> {
        let table = Table::AgentStatistics;
        let from = upto.map_or(Bound::Unbounded, |agent| Bound::Excluded(StatisticsRecord::key(agent).key));
        let stored = self.env.store.scan(table, (from, Bound::Unbounded), Order::Ascending, COUNTED_AT_ONCE)?;
        let mut last = None;
        for (key, record) in &stored {
            let agent = StatisticsRecord::agent(key)?;
            // A commit since the start has set later ones.
            if !self.env.directory.has_statistics(&agent) {
                match StatisticsRecord::decode(&record.value) {
                    Ok(statistics) => self.env.directory.set_statistics(&agent, statistics),
                    // Damaged statistics change an order of candidates at most.
                    Err(error) => tracing::error!(%agent, %error, "failed to read the statistics of an agent"),
                }
            }
            last = Some(agent);
        }
        Ok(if stored.len() < COUNTED_AT_ONCE { Counted::All } else { Counted::Statistics(last) })
    }

    /// Adds the end of an offer to the statistics of its agent.
    pub(super) fn record_offer(
        &mut self,
        transaction: &mut Transaction,
        agent: AgentId,
        result: OfferResult,
    ) -> Result<(), BrokerError> {
        let key = StatisticsRecord::key(&agent);
        let stored = self.read(transaction, &key)?;
        let known = stored.as_ref().map(|stored| StatisticsRecord::decode(&stored.value));
        // Damaged statistics begin again: a handoff must not fail by them.
        let mut statistics = known.and_then(Result::ok).unwrap_or_default();
        statistics.add(result);
        transaction.put(key, StatisticsRecord::encode(&statistics), stored.as_ref());
        transaction.post_commit.push(PostCommit::StatisticsStored { agent, statistics: Box::new(statistics) });
        Ok(())
    }

    /// Notes that an agent takes no more until this time, as its reject says. `has_named`: the agent has named the time
    /// itself, and is not asked earlier when its load falls.
    pub(super) fn note_overload(&mut self, agent: &AgentId, until: Timestamp, has_named: bool) {
        self.env.directory.change_activity(agent, |known| {
            known.overloaded_until = known.overloaded_until.into_iter().chain([until]).max();
            known.has_named_time |= has_named;
        });
        self.timers.set_by_clock(Timer::Room(agent.clone()), until);
    }

    /// Ends the pause after an agent's reject for lack of room.
    pub(super) fn end_overload(&mut self, agent: AgentId, now: Timestamp) {
        self.env.directory.change_activity(&agent, |known| known.end_overload(now));
        self.may_have_room(&agent);
        self.timers.clear(Timer::Room(agent));
    }
}
