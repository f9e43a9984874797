//! The problems of a plan, all at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    ATTEMPTS_MAX, CONCURRENCY_MAX, Condition, DESCRIPTION_BYTES_MAX, DataFlowCheck, EDGES_MAX, ForEach,
    INPUT_BYTES_MAX, Mode, PLAN_ID_LENGTH_MAX, ROLE_BYTES_MAX, SKILLS_MAX, SUBTASK_ID_LENGTH_MAX, SUBTASKS_MAX, Spec,
    Subtask, TIMEOUTS, TopicSchema, WHOLE_TIMEOUT_MAX,
};
use crate::{
    Receiver,
    ids::{AgentId, AgentType, Topic, check_name},
    numbered,
};

/// The shortest time of a plan.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// The bounds of a silence timeout (SPEC 3).
const SILENCE_TIMEOUT: std::ops::RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_secs(24 * 60 * 60);

/// The weight of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The plan cannot be submitted.
    Error,
    /// The plan can be submitted.
    Warning,
    /// A remark.
    Info,
}

/// The kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProblemCode {
    /// The plan has no subtask.
    Empty,
    /// The plan has more than [`SUBTASKS_MAX`] subtasks. No other problem of it is looked for.
    TooManySubtasks,
    /// A subtask has no id.
    IdMissing,
    /// Two subtasks have the same id.
    IdDoubled,
    /// A dependency is no subtask of the plan.
    DependencyUnknown,
    /// A subtask depends on itself.
    DependencyOnItself,
    /// Subtasks wait for each other.
    Cycle,
    /// A consumed topic has no producer. A warning where the check is lenient.
    NoProducer,
    /// A subtask consumes a topic that it alone produces.
    ConsumesItself,
    /// An extension produces a topic that an earlier subtask consumes: it may have started without that result.
    ProducedLate,
    /// A subtask names no agent, no type and no skill.
    NoAgent,
    /// A warning: the named agent is not registered, or no agent of the type is.
    AgentUnknown,
    /// The condition of a subtask is about a subtask that it does not depend on.
    WhenNotDependency,
    /// The list of a subtask is in the result of a subtask that it does not depend on.
    ForEachNotDependency,
    /// A sequential plan has a dependency that stands later.
    Order,
    /// A parallel plan has dependencies or consumed topics.
    ParallelDepends,
    /// A remark: no subtask consumes a produced topic.
    ProducedUnused,
    /// A field is out of its bounds.
    FieldInvalid,
}

numbered! {
    Severity { Error = 1, Warning = 2, Info = 3, }
}

impl ProblemCode {
    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "EMPTY",
            Self::TooManySubtasks => "TOO_MANY_SUBTASKS",
            Self::IdMissing => "ID_MISSING",
            Self::IdDoubled => "ID_DOUBLED",
            Self::DependencyUnknown => "DEPENDENCY_UNKNOWN",
            Self::DependencyOnItself => "DEPENDENCY_ON_ITSELF",
            Self::Cycle => "CYCLE",
            Self::NoProducer => "NO_PRODUCER",
            Self::ConsumesItself => "CONSUMES_ITSELF",
            Self::ProducedLate => "PRODUCED_LATE",
            Self::NoAgent => "NO_AGENT",
            Self::AgentUnknown => "AGENT_UNKNOWN",
            Self::WhenNotDependency => "WHEN_NOT_DEPENDENCY",
            Self::ForEachNotDependency => "FOR_EACH_NOT_DEPENDENCY",
            Self::Order => "ORDER",
            Self::ParallelDepends => "PARALLEL_DEPENDS",
            Self::ProducedUnused => "PRODUCED_UNUSED",
            Self::FieldInvalid => "FIELD_INVALID",
        }
    }
}

/// A problem of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The weight.
    pub severity: Severity,
    /// The kind.
    pub code: ProblemCode,
    /// The path of the field in the plan, for example `subtasks[2].dependencies`.
    pub path: String,
    /// The subtasks that have the problem. Those of a cycle are in the order of the cycle.
    pub subtasks: Vec<String>,
    /// The topic, of a problem with one. Empty otherwise.
    pub topic: String,
    /// The problem, for people to read.
    pub message: String,
}

impl Problem {
    /// Whether the plan cannot be submitted.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

#[derive(Default)]
struct Found(Vec<Problem>);

impl Found {
    fn add(&mut self, code: ProblemCode, path: impl Into<String>, subtasks: &[&str], message: impl Into<String>) {
        self.0.push(Problem {
            severity: Severity::Error,
            code,
            path: path.into(),
            subtasks: subtasks.iter().map(ToString::to_string).collect(),
            topic: String::new(),
            message: message.into(),
        });
    }

    fn with_topic(&mut self, severity: Severity, topic: &str) {
        if let Some(last) = self.0.last_mut() {
            (last.severity, last.topic) = (severity, topic.to_owned());
        }
    }
}

impl Spec {
    /// All problems of the plan by itself. Without an error among them it can be submitted. Of a list over its limit only
    /// the entries up to the limit are looked at.
    pub fn problems(&self) -> Vec<Problem> {
        let mut found = Found::default();
        // Ends the search: the other checks cost time and memory for each subtask of a refused plan.
        if self.subtasks.len() > SUBTASKS_MAX {
            let message = format!("the plan has {} subtasks, and may have {SUBTASKS_MAX}", self.subtasks.len());
            found.add(ProblemCode::TooManySubtasks, "subtasks", &[], message);
            return found.0;
        }
        self.check_terms(&mut found);
        if self.subtasks.is_empty() {
            found.add(ProblemCode::Empty, "subtasks", &[], "the plan has no subtask");
        }
        let mut seen = BTreeSet::new();
        let places: BTreeMap<&str, usize> =
            self.subtasks.iter().enumerate().rev().map(|(place, subtask)| (subtask.id.as_str(), place)).collect();
        for (place, subtask) in self.subtasks.iter().enumerate() {
            let path = format!("subtasks[{place}]");
            check_id(subtask, &path, &mut seen, &mut found);
            check_fields(subtask, &path, &mut found);
            if let Some(compensation) = &subtask.compensate {
                check_fields(compensation, &format!("{path}.compensate"), &mut found);
            }
        }
        // Ends the search: each of the other problems repeats the ids of its subtasks.
        if self.subtasks.iter().any(|subtask| subtask.id.len() > SUBTASK_ID_LENGTH_MAX) {
            return found.0;
        }
        for place in 0..self.subtasks.len() {
            self.check_needs(place, &places, &mut found);
        }
        self.check_topics(&mut found);
        for cycle in &self.links.cycles {
            let ids: Vec<&str> = cycle.iter().map(|place| self.subtasks[*place].id.as_str()).collect();
            let round: Vec<&str> = ids.iter().chain(ids.first()).copied().collect();
            let message = format!("the subtasks wait for each other: {}", round.join(" → "));
            found.add(ProblemCode::Cycle, "subtasks", &ids, message);
        }
        found.0
    }

    /// All problems of a running plan with further subtasks, which are those from this place on.
    pub fn problems_of_extension(&self, from: usize) -> Vec<Problem> {
        let mut found = Found(self.problems());
        if self.subtasks.len() <= from {
            found.add(ProblemCode::Empty, "subtasks", &[], "the extension has no subtask");
        }
        if self.subtasks.len() > SUBTASKS_MAX {
            return found.0;
        }
        let (earlier, new) = self.subtasks.split_at(from.min(self.subtasks.len()));
        let consumed: BTreeSet<&str> =
            earlier.iter().flat_map(|subtask| &subtask.consumes).map(String::as_str).collect();
        for (place, subtask) in new.iter().enumerate() {
            for topic in subtask.produces.iter().take(EDGES_MAX).filter(|topic| consumed.contains(topic.as_str())) {
                let message = format!("{} produces topic '{topic}', which an earlier subtask consumes", subtask.id);
                let path = format!("subtasks[{}].produces", from + place);
                found.add(ProblemCode::ProducedLate, path, &[&subtask.id], message);
                found.with_topic(Severity::Error, topic);
            }
        }
        found.0
    }

    fn check_terms(&self, found: &mut Found) {
        let mut field = |path: &str, message: String| found.add(ProblemCode::FieldInvalid, path, &[], message);
        let length = self.id.as_str().len();
        if length > PLAN_ID_LENGTH_MAX {
            field("plan_id", format!("has {length} characters, and may have {PLAN_ID_LENGTH_MAX}"));
        }
        let texts =
            [("description", &self.description, DESCRIPTION_BYTES_MAX), ("input_json", &self.input, INPUT_BYTES_MAX)];
        for (path, text, most) in texts {
            if text.len() > most {
                field(path, format!("has {} bytes, and may have {most}", text.len()));
            }
        }
        let schemas = self.topic_schemas.len();
        if schemas > EDGES_MAX {
            field("topic_schemas", format!("has {schemas} entries, and may have {EDGES_MAX}"));
        }
        let terms = &self.terms;
        if !(1..=CONCURRENCY_MAX).contains(&terms.max_concurrency) {
            field("max_concurrency", format!("must be 1 to {CONCURRENCY_MAX}, not {}", terms.max_concurrency));
        }
        let spans = [("dependency_timeout", terms.dependency_timeout), ("whole_timeout", terms.whole_timeout)];
        for (path, span) in spans {
            if !(TIMEOUT_MIN..=WHOLE_TIMEOUT_MAX).contains(&span) {
                field(path, format!("must be from 1 s to 7 days, not {span:?}"));
            }
        }
    }

    fn check_needs(&self, place: usize, places: &BTreeMap<&str, usize>, found: &mut Found) {
        let subtask = &self.subtasks[place];
        let id = subtask.id.as_str();
        let path = format!("subtasks[{place}].dependencies");
        let mut seen = BTreeSet::new();
        for need in subtask.dependencies.iter().take(EDGES_MAX).filter(|need| seen.insert(need.as_str())) {
            // A subtask without an id has no place to find, so the comparison with itself goes before the search.
            match places.get(need.as_str()) {
                _ if need == id => {
                    found.add(ProblemCode::DependencyOnItself, &path, &[id], format!("{id} depends on itself"));
                }
                None => {
                    let message = format!("{id} depends on {need:?}, which is no subtask of the plan");
                    found.add(ProblemCode::DependencyUnknown, &path, &[id], message);
                }
                Some(needed) if self.mode == Mode::Sequential && *needed > place => {
                    let message = format!("{id} depends on {need}, which stands later in a sequential plan");
                    found.add(ProblemCode::Order, &path, &[id, need], message);
                }
                Some(_) => {}
            }
        }
        if self.mode == Mode::Parallel && !(subtask.dependencies.is_empty() && subtask.consumes.is_empty()) {
            let message = format!("{id} waits for others in a plan whose subtasks all run at once");
            found.add(ProblemCode::ParallelDepends, path, &[id], message);
        }
        let depends_on = |other: &str| {
            let other = places.get(other).filter(|other| **other != place);
            other.is_some_and(|other| self.links.ancestors[place].contains(*other))
        };
        if let Some(when) = subtask.when.as_ref().filter(|when| !depends_on(&when.subtask)) {
            let message = format!("the condition of {id} is about {:?}, which it does not depend on", when.subtask);
            found.add(ProblemCode::WhenNotDependency, format!("subtasks[{place}].when.subtask_id"), &[id], message);
        }
        if let Some(for_each) = subtask.for_each.as_ref().filter(|for_each| !depends_on(&for_each.subtask)) {
            let message =
                format!("the list of {id} is a result of {:?}, which it does not depend on", for_each.subtask);
            let path = format!("subtasks[{place}].for_each.subtask_id");
            found.add(ProblemCode::ForEachNotDependency, path, &[id], message);
        }
    }

    fn check_topics(&self, found: &mut Found) {
        let mut producers: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut consumers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for subtask in &self.subtasks {
            for topic in subtask.produces.iter().take(EDGES_MAX) {
                producers.entry(topic).or_default().insert(&subtask.id);
            }
            let topics: BTreeSet<&String> = subtask.consumes.iter().take(EDGES_MAX).collect();
            for topic in topics {
                consumers.entry(topic).or_default().push(&subtask.id);
            }
        }
        for (topic, ids) in &consumers {
            // Without a producer the consumer would start at once without its input, so only a lenient plan may.
            let Some(makers) = producers.get(topic) else {
                let message = format!("Topic '{topic}' consumed by [{}] but no producer", ids.join(", "));
                found.add(ProblemCode::NoProducer, "subtasks", ids, message);
                let is_strict = self.terms.data_flow_check == DataFlowCheck::Strict;
                found.with_topic(if is_strict { Severity::Error } else { Severity::Warning }, topic);
                continue;
            };
            // With a second producer the subtask waits for that one, and its own entry is no cycle.
            for id in ids.iter().filter(|id| makers.len() == 1 && makers.contains(*id)) {
                let message = format!("{id} consumes topic '{topic}', which it alone produces");
                found.add(ProblemCode::ConsumesItself, "subtasks", &[id], message);
                found.with_topic(Severity::Error, topic);
            }
        }
        let mut seen = BTreeSet::new();
        for (place, TopicSchema { topic, .. }) in self.topic_schemas.iter().take(EDGES_MAX).enumerate() {
            let is_produced = producers.contains_key(topic.as_str());
            if !is_produced || !seen.insert(topic) {
                let problem = if is_produced { "has a schema already" } else { "is produced by no subtask" };
                let message = format!("Topic '{topic}' {problem}");
                found.add(ProblemCode::FieldInvalid, format!("topic_schemas[{place}].topic"), &[], message);
                found.with_topic(Severity::Error, topic);
            }
        }
        for (topic, makers) in producers.iter().filter(|(topic, _)| !consumers.contains_key(*topic)) {
            let ids: Vec<&str> = makers.iter().copied().collect();
            let message = format!("Topic '{topic}' produced by [{}] but no consumer", ids.join(", "));
            found.add(ProblemCode::ProducedUnused, "subtasks", &ids, message);
            found.with_topic(Severity::Info, topic);
        }
    }
}

fn check_id<'a>(subtask: &'a Subtask, path: &str, seen: &mut BTreeSet<&'a str>, found: &mut Found) {
    let path = format!("{path}.id");
    let id = subtask.id.as_str();
    if id.is_empty() {
        return found.add(ProblemCode::IdMissing, path, &[], "a subtask has no id");
    }
    match check_name(id) {
        Err(error) => found.add(ProblemCode::FieldInvalid, &path, &[id], error.to_string()),
        Ok(()) if id.len() > SUBTASK_ID_LENGTH_MAX => {
            let message = format!("has {} characters, and may have {SUBTASK_ID_LENGTH_MAX}", id.len());
            found.add(ProblemCode::FieldInvalid, &path, &[id], message);
        }
        Ok(()) => {}
    }
    if !seen.insert(id) {
        found.add(ProblemCode::IdDoubled, path, &[id], format!("the plan has another subtask {id}"));
    }
}

fn check_fields(subtask: &Subtask, path: &str, found: &mut Found) {
    let id = [subtask.id.as_str()];
    if subtask.agent.is_empty() && subtask.agent_type.is_empty() && subtask.required_skills.is_empty() {
        let message = format!("{} names no agent, no agent type and no skill", subtask.id);
        found.add(ProblemCode::NoAgent, path, &id, message);
    }
    let mut field = |name: &str, problem: String| {
        found.add(ProblemCode::FieldInvalid, format!("{path}.{name}"), &id, problem);
    };
    let names = [
        ("agent_id", &subtask.agent, AgentId::parse(&subtask.agent).err()),
        ("agent_type", &subtask.agent_type, AgentType::parse(&subtask.agent_type).err()),
        ("task_type", &subtask.task_type, check_name(&subtask.task_type).err()),
    ];
    for (name, text, error) in names {
        // An empty name means that none is given. Only the task type must be there: policies and agents decide by it.
        if let Some(error) = error.filter(|_| !text.is_empty() || name == "task_type") {
            field(name, error.to_string());
        }
    }
    let texts = [
        ("description", &subtask.description, DESCRIPTION_BYTES_MAX),
        ("role", &subtask.role, ROLE_BYTES_MAX),
        ("input_json", &subtask.input, INPUT_BYTES_MAX),
    ];
    for (name, text, most) in texts {
        if text.len() > most {
            field(name, format!("has {} bytes, and may have {most}", text.len()));
        }
    }
    let is_receiver = |text: &str| matches!(Receiver::parse(text), Ok(Receiver::Agent(_) | Receiver::AnyOf(_)));
    type Check<'a> = &'a dyn Fn(&str) -> bool;
    let lists: [(&str, &[String], usize, Check<'_>); 5] = [
        // An unknown dependency is a problem of its own, so no text is invalid here.
        ("dependencies", &subtask.dependencies, EDGES_MAX, &|_| true),
        ("produces", &subtask.produces, EDGES_MAX, &|text| Topic::parse(text).is_ok()),
        ("consumes", &subtask.consumes, EDGES_MAX, &|text| Topic::parse(text).is_ok()),
        ("required_skills", &subtask.required_skills, SKILLS_MAX, &|text| check_name(text).is_ok()),
        ("fallback_candidates", &subtask.fallback_candidates, SKILLS_MAX, &is_receiver),
    ];
    for (name, list, most, is_valid) in lists {
        if list.len() > most {
            field(name, format!("has {} entries, and may have {most}", list.len()));
        }
        // The first one is enough for its author, and bounds the answer to a list of thousands.
        if let Some(bad) = list.iter().find(|text| !is_valid(text)) {
            field(name, format!("has {bad:?}, which is not valid there"));
        }
    }
    if !(1..=ATTEMPTS_MAX).contains(&subtask.attempts_max) {
        field("attempts_max", format!("must be 1 to {ATTEMPTS_MAX}, not {}", subtask.attempts_max));
    }
    if !TIMEOUTS.contains(&subtask.timeout) {
        field("timeout", format!("must be from 1 s to 30 days, not {:?}", subtask.timeout));
    }
    if let Some((name, problem)) = subtask.when.as_ref().and_then(Condition::problem) {
        field(&format!("when.{name}"), problem);
    }
    if let Some((name, problem)) = subtask.for_each.as_ref().and_then(ForEach::problem) {
        field(&format!("for_each.{name}"), problem);
    }
    if !SILENCE_TIMEOUT.contains(&subtask.silence_timeout) {
        field("silence_timeout", format!("must be from 5 s to 1 day, not {:?}", subtask.silence_timeout));
    }
}

#[cfg(test)]
mod tests;
