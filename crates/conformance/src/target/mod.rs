//! Tests a broker over the wire: each rule of SPEC 2 to 11 that a client can observe is a case.
//!
//! Cases are independent and use unique ids, so a broker in production use can be tested. The scenarios that the
//! clients of all languages play (`clients/scenarios`) are cases too. Must not know the internals of a broker.

/// A list of cases: name, chapter of the specification, the rule as a sentence, and the function that tests it.
macro_rules! cases {
    ($($name:literal $chapter:literal $rule:literal $play:path;)*) => {
        pub(super) fn cases() -> Vec<$crate::target::Case> {
            vec![$($crate::target::Case::new($name, $chapter, $rule, |world| Box::pin($play(world)))),*]
        }
    };
}

mod access;
mod awards;
mod blobs;
mod busy;
mod check;
mod contexts;
mod cuts;
mod dead_letters;
mod delays;
mod delivery;
mod directory;
mod envelope;
mod errors;
mod handoff;
mod keys;
mod messages;
mod negotiations;
mod parts;
mod plan_growth;
mod plan_shapes;
mod plan_states;
mod plan_work;
mod plans;
mod processes;
mod questions;
mod reassignment;
mod registries;
mod resume;
mod routing;
mod scenario;
mod schemas;
mod silence;
mod states;
mod story;
mod threads;
mod times;
mod workspaces;
mod world;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::{sync::Semaphore, task::JoinSet};

use self::{
    check::{Problem, Verdict},
    scenario::Scenario,
    world::World,
};
use super::report::{CaseResult, Failed, Outcome, Report, Rule};
use baton_client::{
    Client, ClientError, Options,
    envelope::{keys::PublicKey, signing},
    ids::TaskId,
    proto::v1,
    time::Moment,
};

/// The time limit of one case, over all its steps, as a multiple of the patience with one step.
const CASE_MAX: u32 = 9;

/// The least patience from which the time limit of a case is computed: some cases sit out an ack wait of 60 s.
const PATIENCE_MIN: Duration = Duration::from_secs(20);

/// The broker under test.
#[derive(Debug)]
pub struct Target {
    /// Its address. A token must be an operator's.
    pub options: Options,
    /// The time limit of each answer and each delivery.
    pub patience: Duration,
    /// Replays a custody log. The suite tests a broker without the broker's state machine, so the caller brings one.
    pub replay: Replay,
}

/// Replays a task's custody log from empty, and verifies its receipts with the broker's key. Returns what the log gives,
/// or the first problem in words.
pub type Replay = fn(&TaskId, PublicKey, &[v1::CustodyLogEntry]) -> Result<Replayed, String>;

/// What the replay of a custody log gives.
#[derive(Debug)]
pub struct Replayed {
    /// The hash of the log after its last entry.
    pub head: signing::Digest32,
    /// The task's owner and epoch. `None`: the log has no task.
    pub owner_and_epoch: Option<(String, u64)>,
    /// The number of receipts with a verified signature.
    pub receipts: u64,
}

/// A rule with its test.
pub struct Case {
    /// The rule under test.
    pub rule: Rule,
    play: Play,
}

enum Play {
    Code(fn(World) -> Playing),
    Scenario(Box<Scenario>),
}

type Playing = Pin<Box<dyn Future<Output = Verdict> + Send>>;

impl Case {
    fn new(name: &str, chapter: &str, rule: &str, play: fn(World) -> Playing) -> Self {
        let rule = Rule { name: name.to_owned(), spec: vec![chapter.to_owned()], rule: rule.to_owned() };
        Self { rule, play: Play::Code(play) }
    }
}

impl Target {
    /// Opens a connection without credentials.
    async fn connect(&self) -> Result<Client, ClientError> {
        Client::connect(&Options { token: None, ..self.options.clone() }).await
    }
}

/// All cases, by chapter.
pub fn cases() -> Vec<Case> {
    let scenario = |scenario: Scenario| Case { rule: scenario.rule(), play: Play::Scenario(Box::new(scenario)) };
    let lists = [
        envelope::cases(),
        messages::cases(),
        questions::cases(),
        parts::cases(),
        handoff::cases(),
        states::cases(),
        reassignment::cases(),
        processes::cases(),
        busy::cases(),
        silence::cases(),
        resume::cases(),
        cuts::cases(),
        times::cases(),
        delivery::cases(),
        delays::cases(),
        dead_letters::cases(),
        access::cases(),
        keys::cases(),
        directory::cases(),
        negotiations::cases(),
        awards::cases(),
        errors::cases(),
        contexts::cases(),
        workspaces::cases(),
        plans::cases(),
        plan_work::cases(),
        plan_shapes::cases(),
        plan_growth::cases(),
        routing::cases(),
        threads::cases(),
        registries::cases(),
        schemas::cases(),
        blobs::cases(),
        scenario::all().into_iter().map(scenario).collect(),
    ];
    lists.into_iter().flatten().collect()
}

/// Runs these cases, at most `jobs` at a time. Calls `seen` with each result as the case ends. Fails if no broker
/// answers.
pub async fn run(
    target: Target,
    cases: Vec<Case>,
    jobs: usize,
    mut seen: impl FnMut(&CaseResult),
) -> Result<Report, ClientError> {
    let began = Moment::now();
    let subject = target.options.server.clone();
    target.connect().await?;
    let target = Arc::new(target);
    let turns = Arc::new(Semaphore::new(jobs));
    let mut running = JoinSet::new();
    for (place, case) in cases.into_iter().enumerate() {
        let (target, turns) = (target.clone(), turns.clone());
        running.spawn(async move {
            let _turn = turns.acquire().await.expect("it is never closed");
            (place, trying(target, case).await)
        });
    }
    let mut results = Vec::new();
    while let Some(ended) = running.join_next().await {
        // A panic is a bug in the suite, so it must not be reported as a fault of the broker.
        let (place, result) = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        seen(&result);
        results.push((place, result));
    }
    // Cases end in any order. The report has the order of the list.
    results.sort_by_key(|(place, _)| *place);
    let results = results.into_iter().map(|(_, result)| result).collect();
    Ok(Report::new(subject, results, began.elapsed()))
}

/// Tries a case. The future is boxed, so that only this crate compiles all that cases do.
fn trying(target: Arc<Target>, case: Case) -> Pin<Box<dyn Future<Output = CaseResult> + Send>> {
    Box::pin(try_case(target, case))
}

async fn try_case(target: Arc<Target>, case: Case) -> CaseResult {
    let began = Moment::now();
    let case_max = target.patience.max(PATIENCE_MIN) * CASE_MAX;
    let playing = async {
        let world = World::new(target).await?;
        match case.play {
            Play::Code(play) => play(world).await,
            Play::Scenario(scenario) => scenario.play(world).await,
        }
    };
    let outcome = match tokio::time::timeout(case_max, playing).await {
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(Problem::Failed(failed))) => Outcome::Failed(failed),
        Ok(Err(Problem::Skipped(why))) => Outcome::Skipped { why },
        Err(_) => Outcome::Failed(Failed::new("the whole case", "time", format!("at most {case_max:?}"), "longer")),
    };
    CaseResult { rule: case.rule, outcome, duration: began.elapsed() }
}
