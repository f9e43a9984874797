//! Tests of subtasks that are added while the plan runs.

use super::*;
use crate::plan::Extension;

impl World {
    /// Adds these subtasks, each a line as in `plan`.
    fn extend(&mut self, lines: &[&str]) -> Result<bool, StepError> {
        let from = self.spec().subtasks.len();
        self.extend_from(from, "alice", lines)
    }

    fn extend_from(&mut self, from: usize, by: &str, lines: &[&str]) -> Result<bool, StepError> {
        let mut spec = (*self.spec()).clone();
        spec.subtasks.extend(plan(Mode::Hybrid, lines).subtasks);
        let spec = Arc::new(spec.linked());
        let number = u8::try_from(lines.concat().len()).unwrap();
        let (message, digest) = (MessageId::from_bytes([number; 16]), [number; 32]);
        let (by, content_digest) = (agent(by), digest);
        let extension = Extension { spec, from, by, message, digest, content_digest, sequence: 7 };
        self.call(Input::Extend(Box::new(extension)))
    }

    fn code(outcome: Result<bool, StepError>) -> ErrorCode {
        match outcome {
            Err(StepError::Plan(rejection)) => rejection.code(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn added_subtasks_run_behind_those_that_the_plan_has() {
    let mut world = World::of(&plan(Mode::Hybrid, &["a:", "b: a"]));
    world.complete("a", "1");
    assert!(world.extend(&["c: a", "d: b c"]).unwrap());
    assert_eq!(world.states(), "a=COMPLETED b=HANDING_OFF c=HANDING_OFF d=PENDING");
    let Event::Extended { subtasks, .. } = world.entry(world.plan().log_length - 1) else { panic!("no entry") };
    assert_eq!(subtasks, ["c", "d"]);
    for subtask in ["b", "c"] {
        world.complete(subtask, "");
    }
    assert_eq!(world.plan().state, PlanState::Running);
    world.complete("d", "");
    assert_eq!(world.plan().state, PlanState::Completed);
    // The requests name the message that has the subtask.
    let extension = [u8::try_from("c: ad: b c".len()).unwrap(); 32];
    assert_eq!(
        world.signed.iter().map(|(id, digest)| (id.as_str(), *digest)).collect::<Vec<_>>(),
        [("a", [1; 32]), ("b", [1; 32]), ("c", extension), ("d", extension),]
    );
    world.check();
}

#[test]
fn a_repeat_adds_nothing_and_others_are_refused() {
    let mut world = World::of(&plan(Mode::Hybrid, &["a:"]));
    assert_eq!(World::code(world.extend_from(1, "bob", &["b: a"])), ErrorCode::PermissionDenied);
    assert!(world.extend(&["b: a"]).unwrap());
    assert!(!world.extend_from(1, "alice", &["b: a"]).unwrap(), "the same extension");
    assert_eq!(world.spec().subtasks.len(), 2);
    assert_eq!(World::code(world.extend_from(1, "alice", &["other: a"])), ErrorCode::Conflict);
    world.complete("a", "");
    world.complete("b", "");
    assert_eq!(world.plan().state, PlanState::Completed);
    assert_eq!(World::code(world.extend(&["late:"])), ErrorCode::PlanFinal);
    assert!(!world.extend_from(1, "alice", &["b: a"]).unwrap(), "a repeat after the end");
}

#[test]
fn a_plan_that_begins_to_end_takes_no_subtask() {
    let spec = with(plan(Mode::Hybrid, &["a:", "b: a"]), |spec| {
        let undo = Subtask { dependencies: Vec::new(), ..spec.subtasks[0].clone() };
        spec.subtasks[0].compensate = Some(Box::new(undo));
    });
    let mut world = World::of(&spec);
    world.complete("a", "");
    world.take("b");
    world.report("b", TaskStatus::Failed, "").unwrap();
    assert_eq!(world.plan().state, PlanState::Running, "it compensates");
    assert_eq!(World::code(world.extend(&["c: a"])), ErrorCode::PlanFinal);
}

#[test]
fn an_added_subtask_is_skipped_where_what_it_needs_has_failed() {
    let mut world = World::of(&plan(Mode::Hybrid, &["a:", "b:"]));
    world.take("a");
    world.report("a", TaskStatus::Failed, "no").unwrap();
    world.extend(&["c: a"]).unwrap();
    assert_eq!(world.states(), "a=FAILED b=HANDING_OFF c=SKIPPED");
}

#[test]
fn an_extension_with_a_problem_is_found() {
    let codes = |lines: &[&str], more: &[&str]| -> Vec<&'static str> {
        let mut spec = plan(Mode::Hybrid, lines);
        let from = spec.subtasks.len();
        spec.subtasks.extend(plan(Mode::Hybrid, more).subtasks);
        let problems = spec.linked().problems_of_extension(from);
        problems.iter().filter(|problem| problem.is_error()).map(|problem| problem.code.name()).collect()
    };
    assert_eq!(codes(&["a:"], &["b: a"]), [""; 0]);
    assert_eq!(codes(&["a:"], &[]), ["EMPTY"]);
    assert_eq!(codes(&["a:"], &["a:"]), ["ID_DOUBLED"]);
    assert_eq!(codes(&["a:"], &["b: c", "c: b"]), ["CYCLE"]);
    assert_eq!(codes(&["a: | t", "b: | | t"], &["c: | t"]), ["PRODUCED_LATE"]);
    assert_eq!(codes(&["a:"], &["b: x"]), ["DEPENDENCY_UNKNOWN"]);
    let many: Vec<String> = (0..256).map(|number| format!("s{number}:")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(codes(&["a:"], &many), ["TOO_MANY_SUBTASKS"]);
}
