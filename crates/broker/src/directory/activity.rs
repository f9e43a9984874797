//! What the broker knows of each agent's work: its tasks, its open offers, the end of its latest offers, and when it was
//! asked last. In memory; the engine keeps it in step with its commits.

use crate::{
    domain::matching::{DECIDED_WITHIN, Statistics, Summary},
    time::Timestamp,
};

/// The work of one agent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Activity {
    /// The number of tasks without a final status that the agent owns.
    pub(crate) owned: u32,
    /// The number of open handoffs in which the agent is the current candidate.
    pub(crate) offers: u32,
    /// The number of letters that wait for the agent.
    pub(crate) letters: u64,
    /// The bytes that the agent stores.
    pub(crate) stored_bytes: u64,
    /// The number of the latest offer to the agent; later offers have higher numbers. 0: never asked.
    pub(crate) asked: u64,
    /// The time up to which the agent takes no more, as it has said.
    pub(crate) overloaded_until: Option<Timestamp>,
    statistics: Statistics,
    /// The summary of the statistics. It holds until the oldest offer no longer counts.
    summary: (Summary, Timestamp),
}

impl Activity {
    /// The number of tasks and open offers.
    pub(crate) fn known(&self) -> u32 {
        self.owned.saturating_add(self.offers)
    }

    pub(crate) fn set_statistics(&mut self, statistics: Statistics) {
        let results = statistics.results();
        let (oldest, latest) = (results.first().map(|result| result.at), results.last().map(|result| result.at));
        // The offers come in the order of their ends, so the oldest is the first to count no longer.
        let holds_until = oldest.map_or(Timestamp::default(), |at| at.plus(DECIDED_WITHIN));
        self.summary = (latest.map_or(Summary::default(), |at| statistics.summary(at)), holds_until);
        // After a restart the order of asking is that of the latest ends.
        let asked = latest.map_or(0, |at| u64::try_from(at.unix_nanoseconds()).unwrap_or(0));
        // Never back: in a running broker the present number is newer than any end.
        self.asked = self.asked.max(asked);
        self.statistics = statistics;
    }

    /// Whether statistics are known.
    pub(crate) fn has_statistics(&self) -> bool {
        !self.statistics.results().is_empty()
    }

    pub(crate) fn summary(&self, now: Timestamp) -> Summary {
        let (summary, holds_until) = self.summary;
        if now < holds_until { summary } else { self.statistics.summary(now) }
    }

    pub(crate) fn is_overloaded(&self, now: Timestamp) -> bool {
        self.overloaded_until.is_some_and(|until| now < until)
    }
}
