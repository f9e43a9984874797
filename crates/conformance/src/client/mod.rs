//! `baton conformance --client`: tests the rules for clients on a client program in any language.
//!
//! The program talks over TLS to a broker that follows the case's script. It receives commands and reports events over
//! its stdin and stdout (`docs/conformance-client.md`). Owns the cases, the scripted broker and the program. Must not
//! know the internals of a client.

mod broker;
mod cases;
mod certificates;
mod fixture;
mod harness;
mod negotiations;
mod refusal;
mod relay;

use std::{io, pin::Pin, sync::Arc, time::Duration};

use tokio::{sync::Semaphore, task::JoinSet};

pub use self::cases::Case;
use self::fixture::Fixture;
use super::report::{CaseResult, Failed, Outcome, Report};
use baton_client::{envelope::keys::KeyFileError, time::Moment};

/// Why a case, or the whole run, could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ClientRunError {
    /// A file, a port or the program failed to open or start.
    #[error("failed to start the client program or the suite's broker: {0}")]
    Start(#[from] io::Error),
    /// A certificate could not be made.
    #[error("failed to create a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A key file could not be written or read.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The program does not speak the harness protocol.
    #[error("the program did not send the hello line that docs/conformance-client.md requires")]
    NoHello(Box<Failed>),
}

/// All cases, in order.
pub fn cases() -> Vec<&'static Case> {
    cases::all()
}

/// Runs the cases, at most `at_a_time` at once. Each starts its own program with this shell command, and gives it
/// `patience` for each step for which the rules name no time limit.
pub async fn run(
    command: &str,
    cases: Vec<&'static Case>,
    at_a_time: usize,
    patience: Duration,
    progress: impl Fn(&CaseResult),
) -> Result<Report, ClientRunError> {
    let began = Moment::now();
    let turns = Arc::new(Semaphore::new(at_a_time));
    let mut running = JoinSet::new();
    for (place, case) in cases.into_iter().enumerate() {
        let (command, turns) = (command.to_owned(), Arc::clone(&turns));
        running.spawn(async move { (place, trying(case, command, patience, turns).await) });
    }
    let mut results = Vec::new();
    while let Some(result) = running.join_next().await {
        let (place, result) = result.map_err(io::Error::other)?;
        let result = result?;
        progress(&result);
        results.push((place, result));
    }
    // Cases end in any order. The report has the order of the list.
    results.sort_by_key(|(place, _)| *place);
    Ok(Report::new(command, results.into_iter().map(|(_, result)| result).collect(), began.elapsed()))
}

/// Tries a case. The future is boxed, so that only this crate compiles all that cases do.
fn trying(
    case: &'static Case,
    command: String,
    patience: Duration,
    turns: Arc<Semaphore>,
) -> Pin<Box<dyn Future<Output = Result<CaseResult, ClientRunError>> + Send>> {
    Box::pin(tried(case, command, patience, turns))
}

async fn tried(
    case: &'static Case,
    command: String,
    patience: Duration,
    turns: Arc<Semaphore>,
) -> Result<CaseResult, ClientRunError> {
    let _turn = turns.acquire().await; // never closed
    let began = Moment::now();
    let outcome = match Fixture::start(&command, patience).await {
        Ok(mut fixture) => (case.run)(&mut fixture).await,
        // The fault of the program, so its case fails. Any other error is one of this machine, and ends the run.
        Err(ClientRunError::NoHello(failed)) => Err(*failed),
        Err(error) => return Err(error),
    };
    let outcome = outcome.map_or_else(Outcome::Failed, |()| Outcome::Passed);
    Ok(CaseResult { rule: case.rule(), outcome, duration: began.elapsed() })
}
