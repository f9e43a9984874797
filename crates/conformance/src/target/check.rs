//! Comparison of expected with observed values.

use std::fmt::Debug;

use tonic::Code;

use crate::report::{Difference, Failed};
use baton_client::{ClientError, Refused, proto::v1};

/// Why a case does not pass.
#[derive(Debug)]
pub(super) enum Problem {
    /// The broker breaks the rule.
    Failed(Failed),
    /// The target does not allow the case to run, for this reason.
    Skipped(String),
}

/// The result of a step of a case.
pub(super) type Verdict<T = ()> = Result<T, Problem>;

/// Why a call returned no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The broker refused the call.
    Refused(Box<Refused>),
    /// Another failure: the connection, a timeout, or an invalid answer.
    Other(String),
}

/// The result of a call.
pub(super) type Answer<T> = Result<T, NoAnswer>;

impl From<ClientError> for NoAnswer {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(refused) => Self::Refused(refused),
            other => Self::Other(other.to_string()),
        }
    }
}

impl NoAnswer {
    fn describe(&self) -> String {
        match self {
            Self::Refused(refused) => refused.to_string(),
            Self::Other(problem) => problem.clone(),
        }
    }
}

/// The refusal that a rule requires: the gRPC code and the stable reason.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal(pub(super) Code, pub(super) &'static str);

/// Fails the case with one difference.
pub(super) fn fail<T>(step: &str, field: &str, expected: impl Into<String>, seen: impl Into<String>) -> Verdict<T> {
    Err(Problem::Failed(Failed::new(step, field, expected, seen)))
}

/// Unwraps the answer of a call. A refusal or any other failure fails the case.
pub(super) fn answered<T>(step: &str, answer: Answer<T>) -> Verdict<T> {
    answer.or_else(|problem| fail(step, "answer", "taken", problem.describe()))
}

/// Unwraps the expected refusal, compared by code and reason. An answer fails the case.
pub(super) fn refused<T: Debug>(step: &str, answer: Answer<T>, expected: Refusal) -> Verdict<Refused> {
    let Refusal(code, reason) = expected;
    let wanted = format!("refused: {reason} ({code:?})");
    match answer {
        Ok(answer) => fail(step, "answer", wanted, format!("taken: {:.300}", format!("{answer:?}"))),
        Err(NoAnswer::Other(problem)) => fail(step, "answer", wanted, problem),
        Err(NoAnswer::Refused(seen)) => {
            let mut checks = Checks::of(step);
            checks.same("reason", reason, seen.reason.as_str());
            checks.same("code", code, seen.code);
            if let Some(difference) = checks.differences.first_mut() {
                difference.seen = format!("{}, with: {}", difference.seen, seen.message);
            }
            checks.done().map(|()| *seen)
        }
    }
}

/// Collects differences of one step, and reports them together.
#[derive(Debug)]
pub(super) struct Checks {
    step: String,
    differences: Vec<Difference>,
}

impl Checks {
    /// Starts the checks of this step.
    pub(super) fn of(step: impl Into<String>) -> Self {
        Self { step: step.into(), differences: Vec::new() }
    }

    /// Compares a field for equality.
    pub(super) fn same<T: Debug + PartialEq>(&mut self, field: &str, expected: T, seen: T) {
        if expected != seen {
            self.differs(field, format!("{expected:?}"), format!("{seen:?}"));
        }
    }

    /// Checks a condition on a field.
    pub(super) fn holds(&mut self, field: &str, holds: bool, expected: &str, seen: impl Debug) {
        if !holds {
            self.differs(field, expected, format!("{seen:?}"));
        }
    }

    /// Checks a refusal by its code and reason as [`refused`] does, and continues after a difference.
    pub(super) fn refused<T: Debug>(&mut self, what: &str, answer: Answer<T>, expected: Refusal) {
        if let Err(Problem::Failed(failed)) = refused(what, answer, expected) {
            let named =
                |difference: Difference| Difference { field: format!("{what}: {}", difference.field), ..difference };
            self.differences.extend(failed.differences.into_iter().map(named));
        }
    }

    /// A read of an absent object must be refused like a read without permission: with `absent` if the caller may read
    /// everything, otherwise with PERMISSION_DENIED.
    pub(super) fn refused_as_absent<T: Debug>(&mut self, what: &str, answer: Answer<T>, absent: Refusal) {
        let denied = Refusal(Code::PermissionDenied, "PERMISSION_DENIED");
        let is_denied = matches!(&answer, Err(NoAnswer::Refused(seen)) if seen.reason == denied.1);
        self.refused(what, answer, if is_denied { denied } else { absent });
    }

    /// Adds a difference.
    pub(super) fn differs(&mut self, field: &str, expected: impl Into<String>, seen: impl Into<String>) {
        self.differences.push(Difference { field: field.to_owned(), expected: expected.into(), seen: seen.into() });
    }

    /// Ends the checks. Fails if a field differs.
    pub(super) fn done(self) -> Verdict {
        match self.differences.is_empty() {
            true => Ok(()),
            false => Err(Problem::Failed(Failed { step: self.step, differences: self.differences })),
        }
    }
}

/// Compares one field for equality.
pub(super) fn same<T: Debug + PartialEq>(step: &str, field: &str, expected: T, seen: T) -> Verdict {
    let mut checks = Checks::of(step);
    checks.same(field, expected, seen);
    checks.done()
}

/// Checks the task and the handoff in a receipt.
pub(super) fn receipt_says(
    step: &str,
    receipt: &v1::Receipt,
    state: v1::HandoffState,
    (epoch, owner): (u64, &str),
) -> Verdict {
    let mut checks = Checks::of(step);
    checks.same("receipt.handoff_state", state, receipt.handoff_state());
    checks.same("receipt.epoch", epoch, receipt.epoch);
    checks.same("receipt.owner_id", owner, receipt.owner_id.as_str());
    checks.done()
}
