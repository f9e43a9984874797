//! Plans for the tests of this module.

use std::time::Duration;

use super::{Mode, Spec, Subtask, Terms};
use crate::{handoff::Priority, ids::PlanId};

/// A plan of these subtasks, each a line: `id: needs | produces | consumes`.
pub(super) fn plan(mode: Mode, lines: &[&str]) -> Spec {
    let words = |text: Option<&str>| -> Vec<String> {
        text.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    };
    let subtask = |line: &&str| {
        let (id, rest) = line.split_once(':').unwrap_or((line, ""));
        let mut parts = rest.split('|');
        Subtask {
            id: id.to_owned(),
            agent_type: "worker".to_owned(),
            dependencies: words(parts.next()),
            produces: words(parts.next()),
            consumes: words(parts.next()),
            task_type: "subtask".to_owned(),
            timeout: Duration::from_secs(100),
            silence_timeout: Duration::from_secs(60),
            attempts_max: 1,
            ..Subtask::default()
        }
    };
    Spec {
        id: PlanId::parse("p").unwrap(),
        description: String::new(),
        subtasks: lines.iter().map(subtask).collect(),
        mode,
        terms: Terms::default(),
        priority: Priority::default(),
        input: String::new(),
        topic_schemas: Vec::new(),
        links: super::Links::default(),
    }
    .linked()
}

/// The report of the tests: a fetch, two calculations at once, and a synthesis.
pub(super) const REPORT: &[&str] = &["fetch:", "growth: fetch", "margin: fetch", "synthesis: growth margin"];
