//! The terms of plans that name none.

use serde::Deserialize;

use super::{ConfigError, PlanSection};
use crate::domain::plan::{CONCURRENCY_MAX, DataFlowCheck, Terms, WHOLE_TIMEOUT_MAX};

/// The treatment of a consumed topic without a producer.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Check {
    Strict,
    Lenient,
}

impl PlanSection {
    pub(super) fn terms(&self) -> Terms {
        let defaults = Terms::default();
        let check = self.data_flow_check.map(|check| match check {
            Check::Strict => DataFlowCheck::Strict,
            Check::Lenient => DataFlowCheck::Lenient,
        });
        Terms {
            max_concurrency: self.max_concurrency.unwrap_or(defaults.max_concurrency),
            dependency_timeout: self.dependency_timeout().unwrap_or(defaults.dependency_timeout),
            whole_timeout: self.whole_timeout().unwrap_or(defaults.whole_timeout),
            pass_results: self.pass_results.unwrap_or(defaults.pass_results),
            pass_dependency_results: self.pass_dependency_results.unwrap_or(defaults.pass_dependency_results),
            extract_numeric: self.extract_numeric.unwrap_or(defaults.extract_numeric),
            data_flow_check: check.unwrap_or(defaults.data_flow_check),
        }
    }
}

/// Refuses terms that no plan may have.
pub(super) fn check(terms: &Terms) -> Result<(), ConfigError> {
    let refused = |problem: String| Err(ConfigError::Refused(problem));
    if !(1..=CONCURRENCY_MAX).contains(&terms.max_concurrency) {
        return refused(format!("plan.max_concurrency must be from 1 to {CONCURRENCY_MAX}"));
    }
    let spans = [("dependency_timeout", terms.dependency_timeout), ("whole_timeout", terms.whole_timeout)];
    for (name, span) in spans {
        if span.as_secs() == 0 || span > WHOLE_TIMEOUT_MAX {
            return refused(format!("plan.{name} must be from 1 s to 7 days"));
        }
    }
    Ok(())
}
