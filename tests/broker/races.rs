//! Runners that race, die and report twice, over kills and failed commits, in stories drawn from seeds (SPEC 12, laws 14
//! and 15).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use baton_broker_core::{
    domain::{
        routing::RunState,
        threads::{self, Action, RequestEnd, ThreadRunId},
    },
    ids::{MessageId, NodeId, SpecId},
    proto::v1::{self, ThreadRequestOutcome, run_entry, thread_entry::Event},
};

use crate::{runs, world::World};

const SEEDS: u64 = 40;
const STEPS: u32 = 150;

/// Numbers of a seed (splitmix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }
}

/// A fault between two steps: a kill, a commit that fails, or time that passes.
fn fault(world: &mut World, rng: &mut Rng) {
    match rng.below(8) {
        0 => world.restart(),
        1 => world.disk.full.store(true, Relaxed),
        2 => world.pass(Duration::from_secs(rng.below(70))),
        _ => {}
    }
}

/// Ends a failed commit, so that the next step meets the state on disk.
fn mend(world: &mut World) {
    if world.disk.full.swap(false, Relaxed) {
        world.recover();
    }
}

fn request_outcome(end: RequestEnd) -> ThreadRequestOutcome {
    match end {
        RequestEnd::Promoted => ThreadRequestOutcome::Promoted,
        RequestEnd::Replaced => ThreadRequestOutcome::Replaced,
        RequestEnd::Cleared => ThreadRequestOutcome::Cleared,
        RequestEnd::Failed(_) => ThreadRequestOutcome::Failed,
    }
}

/// Law 15, from the log: each request ends exactly once, one run is open, and the spec in force is that of the last
/// boundary.
fn check_thread(world: &World, seed: u64) {
    let (thread, log) = (world.thread(), world.thread_log());
    let (mut waiting, mut open, mut in_force) = (BTreeSet::new(), None, ("concierge".to_owned(), 1));
    for entry in log {
        match entry.event.unwrap() {
            Event::Requested(_) => assert!(waiting.insert(entry.number)),
            Event::RequestEnded(ended) => {
                assert!(waiting.remove(&ended.request_number), "law 15: seed {seed}: a request ends twice");
                let known = [RequestEnd::Promoted, RequestEnd::Replaced, RequestEnd::Cleared];
                let failed = RequestEnd::Failed(threads::Unresolved::NoSpec);
                assert!(known.into_iter().chain([failed]).any(|end| request_outcome(end) == ended.outcome()));
            }
            Event::RunBegan(began) => assert_eq!(open.replace(began.run_id), None, "law 15: seed {seed}: two runs"),
            Event::RunEnded(ended) => assert_eq!(open.take(), Some(ended.run_id), "law 15: seed {seed}"),
            Event::Boundary(boundary) => {
                assert_eq!(boundary.switched, in_force != (boundary.spec_id.clone(), boundary.revision));
                assert!(["concierge", "researcher"].contains(&boundary.spec_id.as_str()), "law 15: it resolved");
                in_force = (boundary.spec_id, boundary.revision);
            }
            Event::Created(_) | Event::Activated(_) | Event::Cleared(_) => {}
        }
    }
    assert!(waiting.len() <= 1);
    assert_eq!(thread.requested.as_ref().map(|request| request.number), waiting.first().copied(), "seed {seed}");
    assert_eq!(thread.run.as_ref().map(|run| run.id.to_string()), open, "law 15: seed {seed}");
    assert_eq!((thread.in_force.spec.to_string(), thread.in_force.revision), in_force, "law 15: seed {seed}");
}

#[test]
fn the_law_of_threads_holds_with_runners_that_race_die_and_report_twice() {
    let mut promoted = 0;
    for seed in 0..SEEDS {
        let mut rng = Rng(seed);
        let mut world = World::with_thread();
        let mut next_run = 1;
        let mut runs: BTreeMap<&str, (u8, u64)> = BTreeMap::new();
        for _ in 0..STEPS {
            fault(&mut world, &mut rng);
            let runner = rng.of(&["a", "b"]);
            let (run, step) = runs.get(runner).copied().unwrap_or((0, 0));
            let id = |run: u8| ThreadRunId(MessageId::from_bytes([run; 16]));
            match rng.below(8) {
                // A runner that died begins again with a new id, and one whose answer was lost with the old one.
                0 | 1 => {
                    let again = run > 0 && rng.below(2) == 0;
                    let run = if again { run } else { next_run };
                    next_run = if again { next_run } else { next_run + 1 };
                    if world.begin(id(run), runner).is_ok() {
                        runs.insert(runner, (run, 1));
                    }
                }
                2..=4 if run > 0 => {
                    // The same step is reported again, or one that is long over.
                    let claimed = step.saturating_sub(rng.below(3).saturating_sub(1)).max(1);
                    if world.end_step(id(run), runner, claimed).is_ok() {
                        runs.insert(runner, (run, claimed + 1));
                    }
                }
                5 => drop(
                    world.act(Action::Request(SpecId::parse(rng.of(&["concierge", "researcher", "unknown"])).unwrap())),
                ),
                6 => drop(world.act(Action::Activate(SpecId::parse(rng.of(&["researcher", "unknown"])).unwrap()))),
                _ => drop(world.act(Action::Clear)),
            }
            mend(&mut world);
            check_thread(&world, seed);
        }
        promoted += world
            .thread_log()
            .iter()
            .filter(|entry| {
                matches!(
                    &entry.event,
                    Some(Event::RequestEnded(ended)) if ended.outcome() == ThreadRequestOutcome::Promoted
                )
            })
            .count();
    }
    assert!(promoted > 40, "the stories get somewhere: {promoted}");
}

#[test]
fn the_law_of_runs_holds_with_reporters_that_race_die_and_report_twice() {
    let mut completed = 0;
    for seed in 0..SEEDS {
        let mut rng = Rng(seed);
        let mut world = World::with(&["a"]);
        world.register_graph(runs::story()).unwrap();
        world.start_run(None, None).unwrap();
        let checker = NodeId::parse("checker").unwrap();
        let mut number = 0;
        for _ in 0..STEPS {
            fault(&mut world, &mut rng);
            let node = rng.of(&["searcher", "checker", "generator"]);
            let call = [None, Some("transfer_to_searcher"), Some("transfer_to_generator"), Some("transfer_to_end")]
                [usize::try_from(rng.below(4)).unwrap()];
            // A report is repeated with its content, or another one takes its id.
            let reported = if number > 0 && rng.below(3) == 0 { 1 + rng.below(number) } else { number + 1 };
            number = number.max(reported).min(250);
            drop(world.report_turn(runs::turn(reported.min(250), node, None, call)));
            mend(&mut world);
            let (run, log) = (world.run(), world.log());
            let (mut turns, mut choices) = (BTreeSet::new(), 0);
            for entry in &log {
                let Some(run_entry::Event::Turn(turn)) = &entry.event else { continue };
                assert!(turns.insert(turn.turn_id.clone()), "law 14: seed {seed}: a turn counts twice");
                if turn.outcome() == v1::TurnOutcome::Chosen {
                    choices += 1;
                    let target = &turn.choice.as_ref().unwrap().target_node_id;
                    assert!(["searcher", "generator"].contains(&target.as_str()), "law 14: only to outputs");
                }
            }
            assert!(choices <= 3, "law 14: seed {seed}: {choices} choices");
            assert_eq!(run.nodes.get(&checker).map_or(0, |node| node.choices), choices, "law 14: seed {seed}");
            assert_eq!(run.turns as usize, turns.len(), "law 14: seed {seed}");
        }
        completed += u32::from(world.run().state == RunState::Completed);
    }
    assert!(completed > 10, "the stories get somewhere: {completed}");
}
