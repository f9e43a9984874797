//! Each problem alone, and all together.

use super::{super::examples::plan, *};

fn found(spec: &Spec) -> Vec<(&'static str, Severity)> {
    spec.problems().into_iter().map(|problem| (problem.code.name(), problem.severity)).collect()
}

fn one(mode: Mode, lines: &[&str]) -> Problem {
    let mut problems = plan(mode, lines).problems();
    problems.retain(Problem::is_error);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems.remove(0)
}

#[test]
fn a_plan_without_a_problem_has_none() {
    let spec = plan(Mode::Hybrid, &["a: | data |", "b: a | | data", "c: a b"]);
    assert_eq!(spec.problems(), []);
    assert_eq!(spec.links.ancestors[2].ones().collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn a_cycle_is_named_in_its_order() {
    let cycle = one(Mode::Hybrid, &["a: c", "b: a", "c: b", "d: a"]);
    assert_eq!((cycle.code, cycle.subtasks.join(" ")), (ProblemCode::Cycle, "a c b".to_owned()));
    assert_eq!(cycle.message, "the subtasks wait for each other: a → c → b → a");
}

#[test]
fn a_cycle_over_topics_is_one_too() {
    let cycle = one(Mode::Hybrid, &["a: | x | y", "b: | y | x"]);
    assert_eq!(cycle.code, ProblemCode::Cycle);
}

#[test]
fn needs_that_lead_nowhere_are_problems() {
    assert_eq!(one(Mode::Hybrid, &["a: nothing"]).code, ProblemCode::DependencyUnknown);
    assert_eq!(one(Mode::Hybrid, &["a: a"]).code, ProblemCode::DependencyOnItself);
    assert_eq!(one(Mode::Hybrid, &["a: | x | x"]).code, ProblemCode::ConsumesItself);
    assert_eq!(one(Mode::Hybrid, &["a:", "a:"]).code, ProblemCode::IdDoubled);
    assert_eq!(one(Mode::Hybrid, &[":"]).code, ProblemCode::IdMissing);
    assert_eq!(one(Mode::Hybrid, &[]).code, ProblemCode::Empty);
}

#[test]
fn a_topic_without_a_producer_is_an_error_or_a_warning() {
    let mut spec = plan(Mode::Hybrid, &["A:", "B: | | x"]);
    let problem = spec.problems().remove(0);
    assert_eq!(problem.message, "Topic 'x' consumed by [B] but no producer");
    assert_eq!((problem.topic.as_str(), problem.severity), ("x", Severity::Error));
    spec.terms.data_flow_check = DataFlowCheck::Lenient;
    assert_eq!(found(&spec), [("NO_PRODUCER", Severity::Warning)]);
    assert!(spec.links.direct[1].is_empty(), "the topic is not waited for");
}

#[test]
fn the_modes_have_rules_of_their_own() {
    let problems = plan(Mode::Sequential, &["a: b", "b:"]).problems();
    assert!(problems.iter().any(|problem| problem.code == ProblemCode::Order), "{problems:#?}");
    assert_eq!(one(Mode::Parallel, &["a:", "b: a"]).code, ProblemCode::ParallelDepends);
    let chain = plan(Mode::Sequential, &["a:", "b:", "c:"]);
    assert_eq!((chain.problems(), chain.links.direct[2].clone()), (vec![], [1].into()));
}

#[test]
fn a_subtask_needs_an_agent_a_type_or_a_skill() {
    let mut spec = plan(Mode::Hybrid, &["a:"]);
    spec.subtasks[0].agent_type.clear();
    assert_eq!(found(&spec), [("NO_AGENT", Severity::Error)]);
    spec.subtasks[0].required_skills = vec!["finance".to_owned()];
    assert_eq!(spec.problems(), []);
}

#[test]
fn fields_are_bounded() {
    let mut spec = plan(Mode::Hybrid, &["a:"]);
    spec.terms.max_concurrency = 65;
    spec.input = " ".repeat(INPUT_BYTES_MAX + 1);
    let subtask = &mut spec.subtasks[0];
    (subtask.attempts_max, subtask.timeout) = (5, Duration::ZERO);
    subtask.role = "r".repeat(257);
    subtask.agent = "not an id".to_owned();
    subtask.produces = vec!["🚀".to_owned()];
    let paths: Vec<String> = spec.problems().into_iter().map(|problem| problem.path).collect();
    for path in ["max_concurrency", "input_json", "attempts_max", "timeout", "role", "agent_id", "produces"] {
        assert!(paths.iter().any(|found| found.ends_with(path)), "{path}: {paths:?}");
    }
}

#[test]
fn a_compensation_has_the_rules_of_a_subtask() {
    let mut spec = plan(Mode::Hybrid, &["a:"]);
    let mut undo = spec.subtasks[0].clone();
    spec.subtasks[0].compensate = Some(Box::new(undo.clone()));
    assert_eq!(spec.problems(), []);
    undo.agent_type.clear();
    undo.attempts_max = 5;
    spec.subtasks[0].compensate = Some(Box::new(undo));
    let problems: Vec<(&str, String)> =
        spec.problems().into_iter().map(|problem| (problem.code.name(), problem.path)).collect();
    assert_eq!(
        problems,
        [
            ("NO_AGENT", "subtasks[0].compensate".to_owned()),
            ("FIELD_INVALID", "subtasks[0].compensate.attempts_max".to_owned()),
        ]
    );
}

#[test]
fn lists_over_their_limit_make_no_links_beyond_it() {
    let mut spec = plan(Mode::Hybrid, &["a:", "b:"]);
    spec.subtasks[0].produces = vec!["x".to_owned(); 50_000];
    // The product of these two lists has more entries than a machine has memory.
    spec.subtasks[1].consumes = vec!["x".to_owned(); 50_000];
    spec.subtasks[1].dependencies = (0..50_000).map(|number| format!("n{number}")).collect();
    let spec = spec.linked();
    assert_eq!(spec.links.direct[1], [0].into());
    let mut counts = BTreeMap::new();
    spec.problems().into_iter().for_each(|problem| *counts.entry(problem.code.name()).or_insert(0) += 1);
    assert_eq!(counts, [("DEPENDENCY_UNKNOWN", EDGES_MAX), ("FIELD_INVALID", 3)].into());
}

#[test]
fn an_id_over_its_limit_is_repeated_by_no_other_problem() {
    let mut spec = plan(Mode::Hybrid, &["a:"]);
    spec.subtasks[0].id = "i".repeat(SUBTASK_ID_LENGTH_MAX + 1);
    spec.subtasks[0].consumes = (0..EDGES_MAX).map(|number| format!("t{number}")).collect();
    assert_eq!(found(&spec.linked()), [("FIELD_INVALID", Severity::Error)]);
}

#[test]
fn a_plan_of_257_subtasks_is_too_large() {
    let names: Vec<String> = (0..257).map(|number| format!("s{number}:")).collect();
    let lines: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(one(Mode::Hybrid, &lines).code, ProblemCode::TooManySubtasks);
    assert_eq!(plan(Mode::Hybrid, &lines[..256]).problems(), []);
}

#[test]
fn all_problems_come_at_once() {
    let mut spec = plan(
        Mode::Hybrid,
        &["a: b", "b: a", "c: c", "d: nowhere", "e: | | void", "f: | own | own", "f:", ":", "g: | unused |"],
    );
    spec.subtasks[3].agent_type.clear();
    let names: BTreeSet<&str> = found(&spec).into_iter().map(|(name, _)| name).collect();
    let wanted = [
        "CYCLE",
        "DEPENDENCY_ON_ITSELF",
        "DEPENDENCY_UNKNOWN",
        "NO_PRODUCER",
        "CONSUMES_ITSELF",
        "ID_DOUBLED",
        "ID_MISSING",
        "NO_AGENT",
        "PRODUCED_UNUSED",
    ];
    assert_eq!(names, wanted.into());
}

#[test]
fn a_schema_is_of_a_topic_that_has_a_producer_and_no_other_schema() {
    let of = |topic: &str| TopicSchema { topic: topic.to_owned(), schema: "{}".to_owned() };
    let mut spec = plan(Mode::Hybrid, &["a: | t |", "b: | | t"]);
    spec.topic_schemas = vec![of("t")];
    assert_eq!(spec.problems(), []);
    spec.topic_schemas = vec![of("t"), of("t"), of("x")];
    let paths: Vec<String> = spec.problems().into_iter().map(|problem| problem.path).collect();
    assert_eq!(paths, ["topic_schemas[1].topic", "topic_schemas[2].topic"]);
}
