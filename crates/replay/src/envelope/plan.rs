//! A plan between its message and the domain.

use std::{collections::BTreeSet, time::Duration};

use super::{Checks, EnvelopeError};
use crate::{
    codes::FieldViolation,
    domain::{
        RequestedTimeouts,
        handoff::Priority,
        plan::{
            ATTEMPTS_MAX, Comparison, Condition, DataFlowCheck, ForEach, INPUT_BYTES_MAX, Links, Mode, SKILLS_MAX,
            Spec, Subtask, TIMEOUTS, Terms, TopicSchema,
        },
    },
    ids::{AgentId, AgentType, IdError, PlanId, Topic, check_name},
    proto::v1,
};

/// The most subtasks that are read: the validation names those over the limit of a plan.
const READ_MAX: usize = 1024;
/// The kind of work of a subtask that names none.
const TASK_TYPE: &str = "subtask";
/// The kind of work of a compensation that names none.
const TASK_TYPE_OF_COMPENSATION: &str = "compensation";
const TIMEOUT: Duration = Duration::from_secs(360);
/// The silence after which an attempt ends, unless the subtask names another (SPEC 3).
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// Reads a plan. `terms` are those of fields that it leaves out. [`Spec::problems`] has the rules of its contents.
///
/// # Errors
/// The fields without a meaning: an id that does not parse, an unknown enum value, a span out of the bounds of spans.
pub fn plan_of(plan: &v1::Plan, terms: &Terms) -> Result<Spec, Vec<FieldViolation>> {
    let mut checks = Checks::default();
    let id = checks.id("plan.plan_id", &plan.plan_id, PlanId::parse);
    checks.at_most("plan.subtasks", plan.subtasks.len(), READ_MAX, "entries");
    let mode = match plan.mode {
        0 => Some(Mode::Hybrid),
        number => Mode::from_number(number),
    };
    let data_flow_check = match plan.data_flow_check {
        0 => Some(terms.data_flow_check),
        number => DataFlowCheck::from_number(number),
    };
    let priority = match plan.priority {
        0 => Some(Priority::default()),
        number => Priority::from_number(number),
    };
    let enums = [("mode", mode.is_some()), ("data_flow_check", data_flow_check.is_some())];
    for (name, _) in enums.into_iter().chain([("priority", priority.is_some())]).filter(|(_, is_known)| !is_known) {
        checks.wrong(format!("plan.{name}"), "must be a known value");
    }
    let dependency_timeout = checks.span("plan.dependency_timeout", plan.dependency_timeout.as_ref());
    let whole_timeout = checks.span("plan.whole_timeout", plan.whole_timeout.as_ref());
    check_input(&mut checks, "plan.input_json", &plan.input_json);
    let subtasks = plan.subtasks.iter().take(READ_MAX).enumerate();
    let defaults = Defaults::of(plan.defaults.as_ref(), &mut checks);
    let subtasks = subtasks.map(|(place, subtask)| subtask_of(subtask, place, &defaults, &mut checks)).collect();
    let parsed = checks.finish_with((id, mode, data_flow_check, priority));
    let (id, mode, data_flow_check, priority) = parsed.map_err(violations_of)?;
    Ok(Spec {
        id,
        description: plan.description.clone(),
        subtasks,
        mode,
        terms: Terms {
            max_concurrency: if plan.max_concurrency == 0 { terms.max_concurrency } else { plan.max_concurrency },
            dependency_timeout: dependency_timeout.unwrap_or(terms.dependency_timeout),
            whole_timeout: whole_timeout.unwrap_or(terms.whole_timeout),
            pass_results: plan.pass_results.unwrap_or(terms.pass_results),
            pass_dependency_results: plan.pass_dependency_results.unwrap_or(terms.pass_dependency_results),
            extract_numeric: plan.extract_numeric.unwrap_or(terms.extract_numeric),
            data_flow_check,
        },
        priority,
        input: plan.input_json.clone(),
        topic_schemas: plan.topic_schemas.iter().map(topic_schema_of).collect(),
        links: Links::default(),
    }
    .linked())
}

/// Reads an extension of a plan. Returns the plan with its subtasks.
///
/// # Errors
/// The fields without a meaning, as those of [`plan_of`].
pub fn extended_plan(extension: &v1::PlanExtension, plan: &Spec) -> Result<Spec, Vec<FieldViolation>> {
    let mut checks = Checks::default();
    checks.at_most("plan.subtasks", extension.subtasks.len(), READ_MAX, "entries");
    let defaults = Defaults::of(extension.defaults.as_ref(), &mut checks);
    let read = extension.subtasks.iter().take(READ_MAX).enumerate();
    let subtasks: Vec<Subtask> =
        read.map(|(place, subtask)| subtask_of(subtask, place, &defaults, &mut checks)).collect();
    checks.finish().map_err(|error| {
        let mut violations = violations_of(error);
        for violation in &mut violations {
            if let Some(path) = violation.path.strip_prefix("plan.") {
                violation.path = format!("extension.{path}");
            }
        }
        violations
    })?;
    let mut extended = plan.clone();
    extended.subtasks.extend(subtasks);
    Ok(extended.linked())
}

/// The violations of an error. An error of another kind is one violation of the whole plan.
fn violations_of(error: EnvelopeError) -> Vec<FieldViolation> {
    match error {
        EnvelopeError::Fields { violations } => violations,
        other => vec![FieldViolation { path: "plan".to_owned(), problem: other.to_string() }],
    }
}

/// Checks an input. One over the bound is a problem of the plan, and is not read.
fn check_input(checks: &mut Checks, path: &str, text: &str) {
    if text.len() <= INPUT_BYTES_MAX {
        checks.json_object(path, text, INPUT_BYTES_MAX, "");
    }
}

fn topic_schema_of(schema: &v1::TopicSchema) -> TopicSchema {
    TopicSchema { topic: normalised(&schema.topic), schema: schema.schema_json.clone() }
}

fn topic_schema_to_v1(schema: &TopicSchema) -> v1::TopicSchema {
    v1::TopicSchema { topic: schema.topic.clone(), schema_json: schema.schema.clone() }
}

/// Two spellings of one topic are one topic. Any other text stays unchanged, and is a problem of the plan.
fn normalised(text: &str) -> String {
    Topic::parse(text).map_or_else(|_: IdError| text.to_owned(), |topic| topic.as_str().to_owned())
}

/// What stands for the fields that a subtask leaves out.
struct Defaults<'p> {
    given: Option<&'p v1::SubtaskDefaults>,
    timeout: Duration,
    attempts_max: u32,
}

impl<'p> Defaults<'p> {
    /// The defaults of a plan. They are checked by themselves too, because no subtask may use them.
    fn of(given: Option<&'p v1::SubtaskDefaults>, checks: &mut Checks) -> Self {
        let Some(defaults) = given else { return Self { given: None, timeout: TIMEOUT, attempts_max: 1 } };
        checks.optional_id("plan.defaults.agent_id", &defaults.agent_id, AgentId::parse);
        checks.optional_id("plan.defaults.agent_type", &defaults.agent_type, AgentType::parse);
        checks.ids("plan.defaults.required_skills", &defaults.required_skills, SKILLS_MAX, check_name);
        if defaults.attempts_max > ATTEMPTS_MAX {
            checks.wrong("plan.defaults.attempts_max", format!("must be 1 to {ATTEMPTS_MAX}"));
        }
        let timeout = checks.span("plan.defaults.timeout", defaults.timeout.as_ref());
        if timeout.is_some_and(|timeout| !TIMEOUTS.contains(&timeout)) {
            checks.wrong("plan.defaults.timeout", "must be from 1 s to 30 days");
        }
        Self { given, timeout: timeout.unwrap_or(TIMEOUT), attempts_max: defaults.attempts_max.max(1) }
    }

    /// The agent, the type and the skills of a subtask.
    fn agents(&self, subtask: &v1::Subtask) -> (String, String, Vec<String>) {
        let names_none =
            subtask.agent_id.is_empty() && subtask.agent_type.is_empty() && subtask.required_skills.is_empty();
        match self.given {
            Some(v1::SubtaskDefaults { agent_id, agent_type, required_skills, .. }) if names_none => {
                (agent_id.clone(), agent_type.clone(), required_skills.clone())
            }
            _ => (subtask.agent_id.clone(), subtask.agent_type.clone(), subtask.required_skills.clone()),
        }
    }
}

fn subtask_of(subtask: &v1::Subtask, place: usize, defaults: &Defaults<'_>, checks: &mut Checks) -> Subtask {
    let topics = |texts: &[String]| -> Vec<String> {
        let mut seen = BTreeSet::new();
        texts.iter().map(|text| normalised(text)).filter(|topic| seen.insert(topic.clone())).collect()
    };
    let when = subtask.when.as_ref().and_then(|when| condition_of(when, place, checks));
    let path = format!("plan.subtasks[{place}]");
    let compensate = subtask.compensate.as_ref().map(|compensation| {
        Box::new(compensation_of(&subtask.id, compensation, &format!("{path}.compensate"), checks))
    });
    check_input(checks, &format!("{path}.input_json"), &subtask.input_json);
    let timeouts = timeouts_of(subtask.handoff_timeouts.as_ref(), &path, checks);
    let mut span = |name: &str, span: Option<&prost_types::Duration>| checks.span(&format!("{path}.{name}"), span);
    let (agent, agent_type, required_skills) = defaults.agents(subtask);
    Subtask {
        id: subtask.id.clone(),
        description: subtask.description.clone(),
        role: subtask.role.clone(),
        agent,
        agent_type,
        required_skills,
        dependencies: subtask.dependencies.clone(),
        produces: topics(&subtask.produces),
        consumes: topics(&subtask.consumes),
        input: subtask.input_json.clone(),
        task_type: if subtask.task_type.is_empty() { TASK_TYPE.to_owned() } else { subtask.task_type.clone() },
        timeout: span("timeout", subtask.timeout.as_ref()).unwrap_or(defaults.timeout),
        silence_timeout: span("silence_timeout", subtask.silence_timeout.as_ref()).unwrap_or(SILENCE_TIMEOUT),
        attempts_max: if subtask.attempts_max == 0 { defaults.attempts_max } else { subtask.attempts_max },
        is_optional: subtask.optional,
        timeouts,
        fallback_candidates: subtask.fallback_candidates.clone(),
        compensate,
        when,
        for_each: subtask
            .for_each
            .as_ref()
            .map(|for_each| ForEach { subtask: for_each.subtask_id.clone(), pointer: for_each.pointer.clone() }),
    }
}

fn condition_of(when: &v1::Condition, place: usize, checks: &mut Checks) -> Option<Condition> {
    let v1::Condition { subtask_id, pointer, negate, comparison } = when;
    let (comparison, is_negated) = match comparison {
        Some(v1::condition::Comparison::EqualJson(json)) => (Comparison::Equal(json.clone()), *negate),
        Some(v1::condition::Comparison::Less(bound)) => (Comparison::Less(*bound), *negate),
        // "present: false" and "negate" say the same, and both together nothing.
        Some(v1::condition::Comparison::Present(is_present)) => (Comparison::Present, *negate == *is_present),
        None => {
            checks.wrong(format!("plan.subtasks[{place}].when"), "must have one of equal_json, less and present");
            return None;
        }
    };
    Some(Condition { subtask: subtask_id.clone(), pointer: pointer.clone(), comparison, is_negated })
}

fn condition_to_v1(when: &Condition) -> v1::Condition {
    let comparison = match &when.comparison {
        Comparison::Equal(json) => v1::condition::Comparison::EqualJson(json.clone()),
        Comparison::Less(bound) => v1::condition::Comparison::Less(*bound),
        Comparison::Present => v1::condition::Comparison::Present(true),
    };
    v1::Condition {
        subtask_id: when.subtask.clone(),
        pointer: when.pointer.clone(),
        negate: when.is_negated,
        comparison: Some(comparison),
    }
}

/// The compensation of the subtask with this id.
fn compensation_of(id: &str, compensation: &v1::Compensation, path: &str, checks: &mut Checks) -> Subtask {
    check_input(checks, &format!("{path}.input_json"), &compensation.input_json);
    let timeouts = timeouts_of(compensation.handoff_timeouts.as_ref(), path, checks);
    let mut span = |name: &str, span: Option<&prost_types::Duration>| checks.span(&format!("{path}.{name}"), span);
    let task_type = Some(compensation.task_type.as_str()).filter(|task_type| !task_type.is_empty());
    Subtask {
        id: id.to_owned(),
        description: compensation.description.clone(),
        role: compensation.role.clone(),
        agent: compensation.agent_id.clone(),
        agent_type: compensation.agent_type.clone(),
        required_skills: compensation.required_skills.clone(),
        input: compensation.input_json.clone(),
        task_type: task_type.unwrap_or(TASK_TYPE_OF_COMPENSATION).to_owned(),
        timeout: span("timeout", compensation.timeout.as_ref()).unwrap_or(TIMEOUT),
        silence_timeout: span("silence_timeout", compensation.silence_timeout.as_ref()).unwrap_or(SILENCE_TIMEOUT),
        attempts_max: compensation.attempts_max.max(1),
        timeouts,
        fallback_candidates: compensation.fallback_candidates.clone(),
        ..Subtask::default()
    }
}

fn timeouts_of(timeouts: Option<&v1::HandoffTimeouts>, path: &str, checks: &mut Checks) -> RequestedTimeouts {
    let Some(timeouts) = timeouts else { return RequestedTimeouts::default() };
    let mut span = |name: &str, span: Option<&prost_types::Duration>| {
        checks.span(&format!("{path}.handoff_timeouts.{name}"), span)
    };
    RequestedTimeouts {
        accept: span("accept", timeouts.accept.as_ref()),
        context: span("context", timeouts.context.as_ref()),
        complete: span("complete", timeouts.complete.as_ref()),
        whole: span("whole", timeouts.whole.as_ref()),
    }
}

/// The message of a plan, with all its terms.
pub fn plan_to_v1(spec: &Spec) -> v1::Plan {
    let Terms { max_concurrency, pass_results, pass_dependency_results, extract_numeric, .. } = spec.terms;
    v1::Plan {
        plan_id: spec.id.to_string(),
        description: spec.description.clone(),
        subtasks: spec.subtasks.iter().map(subtask_to_v1).collect(),
        mode: spec.mode.number(),
        max_concurrency,
        dependency_timeout: span(spec.terms.dependency_timeout),
        whole_timeout: span(spec.terms.whole_timeout),
        pass_results: Some(pass_results),
        pass_dependency_results: Some(pass_dependency_results),
        extract_numeric: Some(extract_numeric),
        data_flow_check: spec.terms.data_flow_check.number(),
        priority: spec.priority.number(),
        input_json: spec.input.clone(),
        // Each subtask has what they stood for.
        defaults: None,
        topic_schemas: spec.topic_schemas.iter().map(topic_schema_to_v1).collect(),
    }
}

fn span(span: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(span).ok()
}

/// The timeouts of a subtask's handoffs. `None`: the broker's.
pub fn timeouts_to_v1(subtask: &Subtask) -> Option<v1::HandoffTimeouts> {
    let RequestedTimeouts { accept, context, complete, whole } = subtask.timeouts;
    let timeouts = v1::HandoffTimeouts {
        accept: accept.and_then(span),
        context: context.and_then(span),
        complete: complete.and_then(span),
        whole: whole.and_then(span),
    };
    (timeouts != v1::HandoffTimeouts::default()).then_some(timeouts)
}

fn subtask_to_v1(subtask: &Subtask) -> v1::Subtask {
    v1::Subtask {
        id: subtask.id.clone(),
        description: subtask.description.clone(),
        role: subtask.role.clone(),
        agent_id: subtask.agent.clone(),
        agent_type: subtask.agent_type.clone(),
        required_skills: subtask.required_skills.clone(),
        dependencies: subtask.dependencies.clone(),
        produces: subtask.produces.clone(),
        consumes: subtask.consumes.clone(),
        input_json: subtask.input.clone(),
        task_type: subtask.task_type.clone(),
        timeout: span(subtask.timeout),
        attempts_max: subtask.attempts_max,
        optional: subtask.is_optional,
        handoff_timeouts: timeouts_to_v1(subtask),
        fallback_candidates: subtask.fallback_candidates.clone(),
        silence_timeout: span(subtask.silence_timeout),
        compensate: subtask.compensate.as_deref().map(compensation_to_v1),
        when: subtask.when.as_ref().map(condition_to_v1),
        for_each: subtask
            .for_each
            .as_ref()
            .map(|for_each| v1::ForEach { subtask_id: for_each.subtask.clone(), pointer: for_each.pointer.clone() }),
    }
}

fn compensation_to_v1(compensation: &Subtask) -> v1::Compensation {
    v1::Compensation {
        description: compensation.description.clone(),
        role: compensation.role.clone(),
        agent_id: compensation.agent.clone(),
        agent_type: compensation.agent_type.clone(),
        required_skills: compensation.required_skills.clone(),
        task_type: compensation.task_type.clone(),
        timeout: span(compensation.timeout),
        attempts_max: compensation.attempts_max,
        handoff_timeouts: timeouts_to_v1(compensation),
        fallback_candidates: compensation.fallback_candidates.clone(),
        silence_timeout: span(compensation.silence_timeout),
        input_json: compensation.input.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_has_defaults_of_its_own_and_paths_of_its_own() {
        let subtask = |id: &str| v1::Subtask { id: id.to_owned(), ..Default::default() };
        let plan = v1::Plan { plan_id: "q3".to_owned(), subtasks: vec![subtask("a")], ..Default::default() };
        let spec = plan_of(&plan, &Terms::default()).unwrap();
        let defaults = v1::SubtaskDefaults { agent_type: "analyst".to_owned(), attempts_max: 2, ..Default::default() };
        let more = v1::Subtask { dependencies: vec!["a".to_owned()], ..subtask("b") };
        let mut extension =
            v1::PlanExtension { plan_id: "q3".to_owned(), subtasks: vec![more], defaults: Some(defaults) };
        let extended = extended_plan(&extension, &spec).unwrap();
        let of: Vec<(&str, u32)> =
            extended.subtasks.iter().map(|subtask| (&*subtask.agent_type, subtask.attempts_max)).collect();
        assert_eq!(of, [("", 1), ("analyst", 2)]);
        assert!(extended.links.ancestors[1].contains(0));
        extension.subtasks[0].input_json = "[1]".to_owned();
        let violations = extended_plan(&extension, &spec).unwrap_err();
        assert_eq!(violations[0].path, "extension.subtasks[0].input_json");
    }

    #[test]
    fn a_plan_comes_back_from_its_message() {
        let plan = v1::Plan {
            plan_id: "q3".to_owned(),
            subtasks: vec![v1::Subtask {
                id: "fetch".to_owned(),
                agent_type: "fetcher".to_owned(),
                produces: vec!["Financial Data".to_owned(), "financial_data".to_owned()],
                input_json: r#"{"quarter": 3}"#.to_owned(),
                compensate: Some(v1::Compensation {
                    description: "cancel the order".to_owned(),
                    required_skills: vec!["orders".to_owned()],
                    timeout: Some(prost_types::Duration { seconds: 7, nanos: 0 }),
                    input_json: r#"{"id": 1234567890123456789}"#.to_owned(),
                    ..Default::default()
                }),
                for_each: Some(v1::ForEach { subtask_id: "x".to_owned(), pointer: "/result/all".to_owned() }),
                ..Default::default()
            }],
            input_json: r#"{"id": 1234567890123456789}"#.to_owned(),
            topic_schemas: vec![v1::TopicSchema {
                topic: "Financial Data".to_owned(),
                schema_json: r#"{"type": "object"}"#.to_owned(),
            }],
            ..Default::default()
        };
        let spec = plan_of(&plan, &Terms::default()).unwrap();
        assert_eq!((spec.subtasks[0].produces.join(" ").as_str(), spec.terms), ("financial_data", Terms::default()));
        let compensation = spec.work(0, true);
        assert_eq!((compensation.id.as_str(), compensation.task_type.as_str()), ("fetch", "compensation"));
        assert_eq!((compensation.attempts_max, compensation.timeout), (1, Duration::from_secs(7)));
        assert_eq!(plan_of(&plan_to_v1(&spec), &Terms { max_concurrency: 9, ..Terms::default() }), Ok(spec));
    }

    #[test]
    fn defaults_stand_for_what_a_subtask_leaves_out() {
        let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        let of = |id: &str| v1::Subtask { id: id.to_owned(), ..Default::default() };
        let plan = v1::Plan {
            plan_id: "q3".to_owned(),
            subtasks: vec![
                of("a"),
                v1::Subtask {
                    required_skills: vec!["tax".to_owned()],
                    attempts_max: 1,
                    timeout: seconds(5),
                    ..of("b")
                },
            ],
            defaults: Some(v1::SubtaskDefaults {
                agent_type: "analyst".to_owned(),
                timeout: seconds(9),
                attempts_max: 3,
                ..Default::default()
            }),
            ..Default::default()
        };
        let spec = plan_of(&plan, &Terms::default()).unwrap();
        let of = |place: usize| {
            let Subtask { agent_type, attempts_max, timeout, .. } = &spec.subtasks[place];
            (agent_type.as_str(), *attempts_max, timeout.as_secs())
        };
        assert_eq!((of(0), of(1)), (("analyst", 3, 9), ("", 1, 5)));
        assert_eq!(plan_of(&plan_to_v1(&spec), &Terms::default()), Ok(spec), "they come back as stored");

        let defaults = Some(v1::SubtaskDefaults {
            agent_id: "no agent".to_owned(),
            timeout: seconds(0),
            attempts_max: 5,
            required_skills: vec!["?".to_owned()],
            ..Default::default()
        });
        let violations = plan_of(&v1::Plan { defaults, ..plan }, &Terms::default()).unwrap_err();
        let paths: Vec<&str> =
            violations.iter().map(|violation| violation.path.trim_start_matches("plan.defaults.")).collect();
        assert_eq!(paths, ["agent_id", "required_skills[0]", "attempts_max", "timeout"]);
    }

    #[test]
    fn conditions_come_back() {
        use v1::condition::Comparison as C;
        let of = |comparison, negate| v1::Condition {
            subtask_id: "a".to_owned(),
            pointer: "/response".to_owned(),
            negate,
            comparison: Some(comparison),
        };
        for (when, is_negated) in [
            (of(C::EqualJson("\"x\"".to_owned()), true), true),
            (of(C::Less(0.5), false), false),
            (of(C::Present(true), false), false),
            (of(C::Present(false), false), true),
            (of(C::Present(false), true), false),
        ] {
            let subtask = v1::Subtask { id: "b".to_owned(), when: Some(when), ..Default::default() };
            let plan = v1::Plan { plan_id: "q3".to_owned(), subtasks: vec![subtask], ..Default::default() };
            let spec = plan_of(&plan, &Terms::default()).unwrap();
            assert_eq!(spec.subtasks[0].when.as_ref().map(|when| when.is_negated), Some(is_negated));
            assert_eq!(plan_of(&plan_to_v1(&spec), &Terms::default()), Ok(spec));
        }
        let subtask = v1::Subtask { when: Some(v1::Condition::default()), ..Default::default() };
        let plan = v1::Plan { plan_id: "q3".to_owned(), subtasks: vec![subtask], ..Default::default() };
        let violations = plan_of(&plan, &Terms::default()).unwrap_err();
        assert_eq!(violations[0].path, "plan.subtasks[0].when");
    }

    #[test]
    fn fields_without_a_meaning_are_named_together() {
        let timeout = Some(prost_types::Duration { seconds: -1, nanos: 0 });
        let plan = v1::Plan {
            mode: 9,
            priority: 9,
            input_json: "[1]".to_owned(),
            subtasks: vec![v1::Subtask {
                timeout,
                input_json: r#"{"a":{"b":1,"b":2}}"#.to_owned(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let violations = plan_of(&plan, &Terms::default()).unwrap_err();
        let paths: Vec<&str> = violations.iter().map(|violation| violation.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "plan.plan_id",
                "plan.mode",
                "plan.priority",
                "plan.input_json",
                "plan.subtasks[0].input_json/a/b",
                "plan.subtasks[0].timeout",
            ]
        );
    }
}
