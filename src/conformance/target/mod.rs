//! A broker, tried over the wire alone: every rule of SPEC 2, 3, 4, 5 and 11 that a client can observe is a case.
//!
//! Cases do not depend on one another and use ids of their own, so that a broker in use can be tried. The scenarios that
//! the clients of all languages play (`clients/scenarios`) are cases too. Must not know how a broker does what it does.

/// A list of cases: name, chapter of the specification, the rule in a sentence, and the function that tries it.
macro_rules! cases {
    ($($name:literal $chapter:literal $rule:literal $play:path;)*) => {
        pub(super) fn cases() -> Vec<$crate::conformance::target::Case> {
            vec![$($crate::conformance::target::Case::new($name, $chapter, $rule, |world| Box::pin($play(world)))),*]
        }
    };
}

mod access;
mod check;
mod dead_letters;
mod delivery;
mod envelope;
mod errors;
mod handoff;
mod keys;
mod messages;
mod scenario;
mod states;
mod story;
mod times;
mod world;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::{sync::Semaphore, task::JoinSet};

use self::{
    check::{Problem, Verdict},
    scenario::Scenario,
    world::World,
};
use super::report::{CaseResult, Failed, Outcome, Report, Rule};
use crate::{
    client::{Client, ClientError, Options},
    time::Moment,
};

/// The longest that one case may take, whatever its steps.
const CASE_MAX: Duration = Duration::from_secs(180);

/// The broker that is tried.
#[derive(Debug)]
pub struct Target {
    /// Where it is. A token is an operator's.
    pub options: Options,
    /// How long each answer and each delivery may take.
    pub patience: Duration,
}

/// A rule, and how it is tried.
pub struct Case {
    /// The rule.
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
    /// A connection that proves nothing.
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
        handoff::cases(),
        states::cases(),
        times::cases(),
        delivery::cases(),
        dead_letters::cases(),
        access::cases(),
        keys::cases(),
        errors::cases(),
        scenario::all().into_iter().map(scenario).collect(),
    ];
    lists.into_iter().flatten().collect()
}

/// Tries these cases, so many at a time. Calls `seen` with each result as it comes. Fails where no broker answers.
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
            let _turn = turns.acquire().await.expect("nobody closes it");
            (place, try_case(target, case).await)
        });
    }
    let mut results = Vec::new();
    while let Some(ended) = running.join_next().await {
        // A panic of ours is a fault of the suite: not to be taken for one of the broker.
        let (place, result) = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        seen(&result);
        results.push((place, result));
    }
    results.sort_by_key(|(place, _)| *place);
    let results = results.into_iter().map(|(_, result)| result).collect();
    Ok(Report::new(subject, results, began.elapsed()))
}

async fn try_case(target: Arc<Target>, case: Case) -> CaseResult {
    let began = Moment::now();
    let playing = async {
        let world = World::new(target).await?;
        match case.play {
            Play::Code(play) => play(world).await,
            Play::Scenario(scenario) => scenario.play(world).await,
        }
    };
    let outcome = match tokio::time::timeout(CASE_MAX, playing).await {
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(Problem::Failed(failed))) => Outcome::Failed(failed),
        Ok(Err(Problem::Skipped(why))) => Outcome::Skipped { why },
        Err(_) => Outcome::Failed(Failed::new("the whole case", "time", format!("at most {CASE_MAX:?}"), "longer")),
    };
    CaseResult { rule: case.rule, outcome, duration: began.elapsed() }
}
