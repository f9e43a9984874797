//! The cases, one file a subject. Each case starts its own program and broker.

mod connecting;
mod handoffs;
mod loans;
mod negotiating;
mod receiving;
mod reconnecting;
mod restarts;
mod sending;
mod stopping;
mod verifying;
mod working;

use std::pin::Pin;

use super::fixture::{Fixture, Verdict};
use crate::report::Rule;

/// A rule with its test.
pub struct Case {
    /// The stable name, for example `client.forged-delivery-is-refused`.
    pub name: &'static str,
    pub(in crate::client) spec: &'static str,
    pub(in crate::client) rule: &'static str,
    pub(in crate::client) run: for<'a> fn(&'a mut Fixture) -> Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>,
}

impl Case {
    /// The rule, as reports show it.
    pub fn rule(&self) -> Rule {
        let spec = self.spec.split(' ').map(str::to_owned).collect();
        Rule { name: self.name.to_owned(), spec, rule: self.rule.to_owned() }
    }
}

/// A list of cases: name, chapters, the rule as a sentence, and the function that tests it.
macro_rules! cases {
    ($($name:literal, $spec:literal, $rule:literal, $run:ident;)*) => {
        pub(super) const CASES: &[super::Case] = &[$(super::Case {
            name: $name,
            spec: $spec,
            rule: $rule,
            run: |fixture| Box::pin($run(fixture)),
        },)*];
    };
}
use cases;

/// All cases, in order.
pub(super) fn all() -> Vec<&'static Case> {
    [
        connecting::CASES,
        sending::CASES,
        verifying::CASES,
        receiving::CASES,
        handoffs::CASES,
        restarts::CASES,
        loans::CASES,
        working::CASES,
        negotiating::CASES,
        reconnecting::CASES,
        stopping::CASES,
    ]
    .into_iter()
    .flatten()
    .collect()
}
