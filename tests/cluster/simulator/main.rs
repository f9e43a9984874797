//! Three members over a log in memory, in virtual time, from a seed: calls that come late, twice or never, outcomes that are
//! unknown, pauses, kills, partitions, clocks that drift, and a log that loses its tail. After each event the laws hold.
//!
//!     BATON_SIM_SEEDS=10000 cargo test -p baton-cluster --test cluster_simulator
//!     BATON_SIM_SEED=1832 cargo test -p baton-cluster --test cluster_simulator -- --nocapture

mod laws;
mod rng;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use world::{Outcome, Plan, World};

/// The seeds of a plain `cargo test`.
const SEEDS: u64 = 300;

fn run(seed: u64, plan: Plan) -> Result<Outcome, String> {
    let run = catch_unwind(AssertUnwindSafe(|| World::new(seed, plan).run()));
    run.map_err(|panic| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().map_or_else(|_| "a panic".into(), |text| (*text).into()),
    })
}

#[test]
fn three_brokers_keep_the_laws() {
    let from_environment = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, count) = match from_environment("BATON_SIM_SEED") {
        Some(seed) => (seed, 1),
        None => (1, from_environment("BATON_SIM_SEEDS").unwrap_or(SEEDS)),
    };
    let mut all = Outcome::default();
    for seed in first..first + count {
        match run(seed, Plan::default()) {
            Ok(outcome) => all.add(&outcome),
            Err(law) => panic!("seed {seed} breaks a law, after {} seeds: {law}", seed - first + 1),
        }
    }
    println!("{count} seeds: {all:?}");
    if count >= SEEDS {
        all.assert_that_faults_happened();
    }
}

/// The guard rests on clocks that run within a tenth of each other. With worse ones it breaks, so the simulator can see it.
#[test]
fn clocks_a_fifth_off_break_the_guard() {
    let plan = Plan { drift_ppm_max: 200_000 };
    let broken = (1..=500).find_map(|seed| run(seed, plan.clone()).err()).expect("a broken law");
    assert!(broken.contains("two guards hold at once") || broken.contains("a read misses"), "{broken}");
}
