//! `baton conformance --client`: tries the rules that a client must keep, on a client program of any language.
//!
//! The program talks over TLS to a broker that does what the case's script says. It is told what to do, and says what
//! came of it, over its stdin and stdout (`docs/conformance-client.md`). Owns the cases, the scripted broker and the
//! program; must not know any client's insides.

mod bench;
mod broker;
mod cases;
mod certificates;
mod harness;
mod refusal;
mod relay;

use std::{io, sync::Arc};

use tokio::sync::Semaphore;

use self::{bench::Bench, cases::Case};
use super::report::{self, CaseResult, Failed, Outcome, Report, Rule, UnknownPattern};
use crate::{envelope::keys::KeyFileError, time::Moment};

/// How many cases run at a time, each with a program of its own.
const AT_A_TIME: usize = 3;

/// Why a case, or all of them, could not be tried.
#[derive(Debug, thiserror::Error)]
pub enum ClientRunError {
    /// No case fits.
    #[error(transparent)]
    Pattern(#[from] UnknownPattern),
    /// A file, a port or the program.
    #[error("failed to start the client program or the broker before it: {0}")]
    Start(#[from] io::Error),
    /// A certificate.
    #[error("failed to make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A key file.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// It does not speak the harness protocol.
    #[error("the program did not say hello as docs/conformance-client.md has it")]
    NoHello(Box<Failed>),
}

/// The rules, in their order.
pub fn rules() -> Vec<Rule> {
    cases::all().into_iter().map(Case::rule).collect()
}

/// Tries the cases that one of the patterns fits, all if there is none, on a program that this shell command starts.
pub async fn run(command: &str, patterns: &[String]) -> Result<Report, ClientRunError> {
    let began = Moment::now();
    let cases = report::select(cases::all(), patterns, |case| case.name)?;
    let turns = Arc::new(Semaphore::new(AT_A_TIME));
    let running: Vec<_> =
        cases.into_iter().map(|case| tokio::spawn(tried(case, command.to_owned(), Arc::clone(&turns)))).collect();
    let mut results = Vec::new();
    for result in running {
        results.push(result.await.map_err(io::Error::other)??);
    }
    Ok(Report::new(command, results, began.elapsed()))
}

async fn tried(case: &'static Case, command: String, turns: Arc<Semaphore>) -> Result<CaseResult, ClientRunError> {
    let _turn = turns.acquire().await; // nobody closes it
    let began = Moment::now();
    let outcome = match Bench::start(&command).await {
        Ok(mut bench) => (case.run)(&mut bench).await,
        Err(ClientRunError::NoHello(failed)) => Err(*failed),
        Err(error) => return Err(error),
    };
    let outcome = outcome.map_or_else(Outcome::Failed, |()| Outcome::Passed);
    Ok(CaseResult { rule: case.rule(), outcome, duration: began.elapsed() })
}
