//! How many handoffs ended in each minute of the last hour, from the counters of the broker. In memory: it begins with
//! the broker.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::broker::Broker;

/// The minutes that the history keeps.
const MINUTES: usize = 60;
/// The time between two looks at the counters.
const PERIOD: Duration = Duration::from_secs(5);

/// What ended in one minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Minute {
    pub(super) completed: u64,
    pub(super) otherwise: u64,
}

#[derive(Debug, Default)]
struct Counted {
    /// The minute of the last entry, since 1970.
    latest: i64,
    /// The counters at the last look.
    seen: [u64; 2],
    /// Oldest first. The last one is the present minute.
    minutes: VecDeque<Minute>,
}

impl Counted {
    fn count(&mut self, minute: i64, totals: [u64; 2]) {
        // A clock that was set back adds to the latest minute.
        let passed = usize::try_from(minute - self.latest).unwrap_or(0).min(MINUTES);
        for _ in 0..if self.minutes.is_empty() { 1 } else { passed } {
            self.minutes.push_back(Minute::default());
        }
        self.latest = self.latest.max(minute);
        while self.minutes.len() > MINUTES {
            self.minutes.pop_front();
        }
        if let Some(now) = self.minutes.back_mut() {
            now.completed += totals[0].saturating_sub(self.seen[0]);
            now.otherwise += totals[1].saturating_sub(self.seen[1]);
        }
        self.seen = totals;
    }
}

/// The ended handoffs by minute.
#[derive(Debug, Clone, Default)]
pub(super) struct History(Arc<Mutex<Counted>>);

impl History {
    /// Counts until the broker stops.
    pub(super) fn start(broker: Broker) -> Self {
        let history = Self::default();
        let counts = history.clone();
        tokio::spawn(async move {
            loop {
                counts.look(&broker);
                tokio::select! {
                    () = tokio::time::sleep(PERIOD) => {}
                    () = broker.draining() => return,
                }
            }
        });
        history
    }

    fn look(&self, broker: &Broker) {
        let minute = broker.now().to_parts().0.div_euclid(60);
        self.0.lock().expect("no holder panics").count(minute, broker.resources().metrics.handoffs_ended());
    }

    /// The minutes so far, oldest first, with all that has ended until now.
    pub(super) fn minutes(&self, broker: &Broker) -> Vec<Minute> {
        self.look(broker);
        self.0.lock().expect("no holder panics").minutes.iter().copied().collect()
    }
}

/// A bar of the chart: what completed below, what ended otherwise above.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bar {
    pub(super) x: u64,
    pub(super) good_y: u64,
    pub(super) good_height: u64,
    pub(super) bad_y: u64,
    pub(super) bad_height: u64,
}

/// The chart of an hour, in units of a picture of 600 × 100.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chart {
    pub(super) bars: Vec<Bar>,
    pub(super) completed: u64,
    pub(super) otherwise: u64,
    /// The most that ended in one minute.
    pub(super) most: u64,
}

/// The height of the tallest bar.
const HEIGHT: u64 = 84;
/// The line on which the bars stand.
const GROUND: u64 = 98;

/// The chart of these minutes, of which the last one is at the right.
pub(super) fn chart(minutes: &[Minute]) -> Chart {
    let most = minutes.iter().map(|minute| minute.completed + minute.otherwise).max().unwrap_or(0);
    // A count of 1 can be seen, too.
    let height = |many: u64| if many == 0 { 0 } else { (many * HEIGHT / most.max(1)).max(2) };
    let first = MINUTES.saturating_sub(minutes.len());
    let bar = |(place, minute): (usize, &Minute)| {
        let (good, bad) = (height(minute.completed), height(minute.otherwise));
        let x = (first + place) as u64 * 10 + 1;
        Bar { x, good_y: GROUND - good, good_height: good, bad_y: GROUND - good - bad, bad_height: bad }
    };
    Chart {
        bars: minutes.iter().enumerate().filter(|(_, minute)| **minute != Minute::default()).map(bar).collect(),
        completed: minutes.iter().map(|minute| minute.completed).sum(),
        otherwise: minutes.iter().map(|minute| minute.otherwise).sum(),
        most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(completed: u64, otherwise: u64) -> Minute {
        Minute { completed, otherwise }
    }

    #[test]
    fn each_end_counts_in_its_minute_for_an_hour() {
        let mut counted = Counted::default();
        counted.count(1000, [5, 1]);
        counted.count(1000, [7, 1]);
        counted.count(1002, [7, 4]);
        assert_eq!(counted.minutes, [minute(7, 1), minute(0, 0), minute(0, 3)]);
        counted.count(1001, [8, 4]);
        assert_eq!(counted.minutes.back(), Some(&minute(1, 3)), "a clock that was set back");
        counted.count(1000 + 60, [8, 4]);
        assert_eq!((counted.minutes.len(), counted.minutes[0]), (MINUTES, minute(0, 0)));
        counted.count(i64::MAX, [9, 4]);
        assert_eq!((counted.minutes.len(), counted.minutes.back()), (MINUTES, Some(&minute(1, 0))));
    }

    #[test]
    fn the_bars_stay_in_the_picture_and_the_last_minute_is_at_the_right() {
        let chart = chart(&[minute(0, 0), minute(1000, 1), minute(3, 500)]);
        assert_eq!((chart.completed, chart.otherwise, chart.most), (1003, 501, 1001));
        assert_eq!(chart.bars.last().map(|bar| bar.x), Some(591));
        assert!(chart.bars.iter().all(|bar| bar.bad_y >= 10 && bar.good_y + bar.good_height == GROUND));
        assert!(chart.bars.iter().all(|bar| bar.good_height >= 2 && bar.bad_height >= 2), "what is there can be seen");
        assert_eq!(super::chart(&[]).bars, []);
    }
}
