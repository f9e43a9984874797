//! When a failed try is repeated: after 1 s, then after twice the time, at most 5 minutes, for 24 hours in all.

use std::time::Duration;

/// The longest pause after the first try, and after each later one.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(5 * 60);
/// The time from the first try to the last.
pub(super) const WHOLE: Duration = Duration::from_secs(24 * 60 * 60);

/// The pauses between the tries of one request.
#[derive(Debug, Default)]
pub(super) struct Retries {
    tries: u32,
}

impl Retries {
    /// The pause before the next try. `elapsed` is the time since the first one, `asked` what the receiver wants, at most
    /// 5 minutes of it count. `None`: the request is given up.
    ///
    /// `chance` spreads the pauses of many requests over the second half of the time, so that a receiver that comes back
    /// does not get all of them at once.
    pub(super) fn next(&mut self, elapsed: Duration, asked: Option<Duration>, chance: u64) -> Option<Duration> {
        let doubled = FIRST.saturating_mul(1_u32.checked_shl(self.tries).unwrap_or(u32::MAX));
        let most = doubled.min(LONGEST);
        self.tries = self.tries.saturating_add(1);
        let half = u64::try_from(most.as_millis() / 2).unwrap_or(u64::MAX);
        let pause = Duration::from_millis(half + chance % (half + 1));
        let pause = pause.max(asked.unwrap_or_default().min(LONGEST));
        (elapsed + pause <= WHOLE).then_some(pause)
    }

    /// The number of tries that have failed.
    pub(super) fn failed(&self) -> u32 {
        self.tries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pauses of a request that always fails, where a try takes `each`.
    fn pauses(each: Duration, chance: impl Fn(u32) -> u64) -> Vec<Duration> {
        let (mut retries, mut elapsed, mut pauses) = (Retries::default(), each, Vec::new());
        while let Some(pause) = retries.next(elapsed, None, chance(retries.failed())) {
            elapsed += pause + each;
            pauses.push(pause);
        }
        pauses
    }

    #[test]
    fn pauses_double_up_to_five_minutes_for_a_day() {
        for (place, most) in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300].into_iter().enumerate() {
            for chance in [0, 1, 77, u64::MAX] {
                let pause = pauses(Duration::ZERO, |_| chance)[place];
                let most = Duration::from_secs(most);
                assert!(most / 2 <= pause && pause <= most, "{place}: {pause:?}");
            }
        }
        for each in [Duration::ZERO, Duration::from_secs(10)] {
            let all = pauses(each, |tries| u64::from(tries) * 7919);
            let took: Duration = all.iter().sum::<Duration>() + each * u32::try_from(all.len()).unwrap();
            assert!(took <= WHOLE && took + LONGEST + each * 2 > WHOLE, "{took:?}");
        }
    }

    #[test]
    fn pauses_are_spread() {
        let of = |chance| Retries::default().next(Duration::ZERO, None, chance).unwrap().as_millis();
        assert_eq!((of(0), of(500), of(501)), (500, 1000, 500));
    }

    #[test]
    fn a_receiver_may_ask_for_a_longer_pause_within_the_bound() {
        let of = |asked| Retries::default().next(Duration::ZERO, Some(Duration::from_secs(asked)), 0).unwrap();
        assert_eq!((of(0), of(60), of(86_400)), (Duration::from_millis(500), Duration::from_secs(60), LONGEST));
    }
}
