//! The cost of each part of a handoff, measured in isolation.
//!
//! ```text
//! cargo bench --bench parts                        all, in time
//! cargo bench --bench parts -- verify              parts with this in their name
//! cargo test --bench parts -- --test               each once and with less to prepare: nothing is measured
//! benches/cost.sh instructions verify/strict        in instructions, which no noise of the machine changes
//! ```

mod access;
mod blobs;
mod contexts;
mod directory;
mod envelopes;
mod negotiations;
mod plans;
mod room;
mod routing;
mod states;
mod stores;
mod workspaces;

use std::time::Duration;

use criterion::{Criterion, Throughput};

/// A part to measure: its name, the number of operations in one turn, and the turn.
pub struct Part {
    name: &'static str,
    many: u64,
    turn: Box<dyn FnMut()>,
}

impl Part {
    /// A part with one operation a turn.
    pub fn one(name: &'static str, turn: impl FnMut() + 'static) -> Self {
        Self::many(name, 1, turn)
    }

    /// A part with `many` operations a turn.
    pub fn many(name: &'static str, many: u64, turn: impl FnMut() + 'static) -> Self {
        Self { name, many, turn: Box::new(turn) }
    }
}

/// The size of something that a part prepares: the first while it is measured, the second if it only has to run once.
pub(crate) fn size(measured: u64, tested: u64) -> u64 {
    if std::env::args().any(|argument| argument == "--test") { tested } else { measured }
}

fn main() {
    let parts = access::parts()
        .into_iter()
        .chain(blobs::parts())
        .chain(contexts::parts())
        .chain(directory::parts())
        .chain(envelopes::parts())
        .chain(negotiations::parts())
        .chain(plans::parts())
        .chain(routing::parts())
        .chain(states::parts())
        .chain(stores::parts())
        .chain(workspaces::parts());
    match std::env::var("PARTS_TURNS") {
        Ok(turns) => take_turns(parts, &turns),
        Err(_) => measure(parts),
    }
}

fn measure(parts: impl Iterator<Item = Part>) {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    for Part { name, many, mut turn } in parts {
        let (group, function) = name.split_once('/').expect("a name is GROUP/FUNCTION");
        let mut group = criterion.benchmark_group(group);
        group.throughput(Throughput::Elements(many)).bench_function(function, |bencher| bencher.iter(&mut turn));
        group.finish();
    }
    criterion.final_summary();
}

/// Runs one part for a number of turns, given as `NAME:TURNS`, so that an external tool can count its instructions.
fn take_turns(mut parts: impl Iterator<Item = Part>, wanted: &str) {
    let (wanted, turns) = wanted.split_once(':').expect("PARTS_TURNS is NAME:TURNS");
    let turns: u64 = turns.parse().expect("the turns are a number");
    let mut part = parts.find(|part| part.name == wanted).unwrap_or_else(|| panic!("there is no part {wanted}"));
    (0..turns).for_each(|_| (part.turn)());
    println!("{}", part.many);
}
