//! Random numbers that a seed reproduces (SplitMix64).

use std::sync::atomic::{AtomicU64, Ordering};

use baton_broker_core::ids::IdSource;

#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number from 0 to `sides` - 1.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.number() % sides
    }

    /// True with a probability of 1 in `sides`.
    pub(crate) fn once_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.roll(from.len() as u64)).unwrap()].clone()
    }

    /// An independent source, so that changes in the use of one do not affect the other.
    pub(crate) fn split(&mut self) -> Self {
        Self(self.number())
    }
}

fn mix(number: u64) -> u64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Unique ids that a seed reproduces.
#[derive(Debug)]
pub(crate) struct Ids {
    seed: u64,
    next: AtomicU64,
}

impl Ids {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, next: AtomicU64::new(1) }
    }
}

impl IdSource for Ids {
    fn random(&self) -> [u8; 16] {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&mix(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes());
        bytes[2..10].copy_from_slice(&number.to_be_bytes());
        bytes[0] = mix(self.seed.wrapping_add(number)).to_be_bytes()[0];
        bytes
    }
}
