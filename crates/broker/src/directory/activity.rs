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
    /// Whether the agent has named that time itself.
    pub(crate) has_named_time: bool,
    /// The tasks and open offers that the broker knew of at the agent's latest report.
    pub(crate) known_at_report: u32,
    statistics: Statistics,
    /// The summary of the statistics. It holds until the oldest offer no longer counts.
    summary: (Summary, Timestamp),
}

impl Activity {
    /// The number of tasks and open offers.
    pub(crate) fn known(&self) -> u32 {
        self.owned.saturating_add(self.offers)
    }

    /// The tasks and open offers of the agent: those that the broker knows of, and those that the agent alone has
    /// reported. What has ended since the report no longer counts.
    pub(crate) fn in_use(&self, reported: u32) -> u32 {
        self.known().saturating_add(reported.saturating_sub(self.known_at_report))
    }

    /// Ends the pause after a reject for lack of room, unless the agent has named its end itself.
    pub(crate) fn load_fell(&mut self) {
        if !self.has_named_time {
            self.overloaded_until = None;
        }
    }

    /// Ends the pause after a reject for lack of room, if its time has come.
    pub(crate) fn end_overload(&mut self, now: Timestamp) {
        if !self.is_overloaded(now) {
            (self.overloaded_until, self.has_named_time) = (None, false);
        }
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
