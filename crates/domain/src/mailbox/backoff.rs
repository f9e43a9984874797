//! The wait before a message is delivered again (SPEC 4).

use std::time::Duration;

/// The number of failed delivery attempts after which a message becomes a dead letter.
pub const ATTEMPTS_MAX: u32 = 5;

const LADDER_SECONDS: [u64; 6] = [1, 2, 4, 8, 16, 30];

/// The wait after this many failures, including the last one: 1, 2, 4, 8, 16, then 30 s, each ±20 %. `jitter` is any
/// random value; equal values give equal waits.
pub fn backoff(failures: u32, jitter: u8) -> Duration {
    let rung = (failures.max(1) as usize - 1).min(LADDER_SECONDS.len() - 1);
    let base = Duration::from_secs(LADDER_SECONDS[rung]);
    // Maps 0..=255 to 80 % to 120 %.
    base.mul_f64(0.8 + 0.4 * f64::from(jitter) / 255.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_stay_within_a_fifth_of_the_ladder() {
        for (failures, seconds) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 30), (7, 30), (u32::MAX, 30)] {
            let base = Duration::from_secs(seconds);
            assert!(backoff(failures, 0) >= base.mul_f64(0.799) && backoff(failures, 0) <= base.mul_f64(0.801));
            assert!(backoff(failures, 255) >= base.mul_f64(1.199) && backoff(failures, 255) <= base.mul_f64(1.201));
        }
    }
}
