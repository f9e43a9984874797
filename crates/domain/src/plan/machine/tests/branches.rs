//! Branches: subtasks that their conditions exclude, and what their dependents do.

use super::*;

/// The number in the response of the subtask is less than the bound; or else, where it is negated.
fn less(subtask: &str, bound: f64, is_negated: bool) -> Option<Condition> {
    let (subtask, pointer) = (subtask.to_owned(), "/numeric_value".to_owned());
    Some(Condition { subtask, pointer, comparison: Comparison::Less(bound), is_negated })
}

/// A check, two branches behind it, a step in each, and a report that joins them.
fn branches(mode: Mode) -> Spec {
    let lines = ["check:", "mend: check", "tell: mend", "publish: check", "report: tell publish check"];
    with(plan(mode, &lines), |spec| {
        spec.subtasks[1].when = less("check", 0.5, false);
        spec.subtasks[3].when = less("check", 0.5, true);
        // It is about both branches, and not about the check alone.
        spec.subtasks[4].dependencies.pop();
    })
}

fn cause_of(world: &World, subtask: &str) -> (Option<ErrorCode>, String) {
    let run = &world.plan().subtasks[world.spec().place(subtask).unwrap()];
    (run.code, run.cause.clone())
}

#[test]
fn one_of_two_branches_runs_and_the_join_gets_it() {
    let mut world = World::of(&branches(Mode::Hybrid));
    world.complete("check", "the score is 0.7");
    assert_eq!(world.active(), ["publish"]);
    assert_eq!(world.states(), "check=COMPLETED mend=SKIPPED tell=SKIPPED publish=HANDING_OFF report=PENDING");
    let (code, cause) = cause_of(&world, "mend");
    assert_eq!((code, cause.as_str()), (None, "its condition does not hold: (/numeric_value of check less 0.5)"));
    assert_eq!(cause_of(&world, "tell"), (None, "all of its dependencies were skipped by their conditions".to_owned()));
    world.complete("publish", "done");
    assert_eq!(world.active(), ["report"], "a join runs with the branch that was taken");
    world.complete("report", "done");
    assert_eq!((world.plan().state, world.failures), (PlanState::Completed, 0));
    let retried = world.call(Input::Retry { by: "alice".to_owned() });
    assert_eq!(code_of(retried), ErrorCode::PlanFinal, "nothing is left to retry");
    world.check();
}

#[test]
fn the_other_branch_runs_with_another_result() {
    let mut world = World::of(&branches(Mode::Hybrid));
    world.complete("check", "the score is 0.2");
    assert_eq!(world.active(), ["mend"]);
    world.complete("mend", "mended");
    world.complete("tell", "told");
    world.complete("report", "done");
    assert_eq!(world.states(), "check=COMPLETED mend=COMPLETED tell=COMPLETED publish=SKIPPED report=COMPLETED");
    assert_eq!(world.plan().state, PlanState::Completed);
}

#[test]
fn without_any_branch_the_plan_completes_too() {
    let spec = with(plan(Mode::Hybrid, &["a:", "b: a", "c: b"]), |spec| spec.subtasks[1].when = less("a", 0.0, false));
    let mut world = World::of(&spec);
    world.complete("a", "7");
    assert_eq!(
        (world.states().as_str(), world.plan().state),
        ("a=COMPLETED b=SKIPPED c=SKIPPED", PlanState::Completed)
    );
    world.check();
}

#[test]
fn in_a_sequential_plan_the_next_one_runs() {
    let spec = with(plan(Mode::Sequential, &["a:", "b:", "c:", "d: b"]), |spec| {
        spec.subtasks[1].when = less("a", 0.0, false);
    });
    let mut world = World::of(&spec);
    world.complete("a", "7");
    assert_eq!(world.active(), ["c"], "only its turn depends on b");
    world.complete("c", "8");
    assert_eq!(world.states(), "a=COMPLETED b=SKIPPED c=COMPLETED d=SKIPPED", "d names b");
    assert_eq!(world.plan().state, PlanState::Completed);
}

#[test]
fn a_failure_is_no_false_condition() {
    let mut world = World::of(&branches(Mode::Hybrid));
    world.take("check");
    world.report("check", TaskStatus::Failed, "").unwrap();
    assert_eq!(cause_of(&world, "publish").0, Some(ErrorCode::DependencyFailed), "although its condition is negated");
    assert_eq!((world.plan().state, world.failures), (PlanState::Failed, 1));
}

#[test]
fn a_retry_looks_at_the_condition_anew() {
    let spec = with(plan(Mode::Hybrid, &["a:", "b: a", "c: a", "d: c"]), |spec| {
        spec.subtasks[0].is_optional = true;
        spec.subtasks[1].when = less("a", 0.5, false);
    });
    let mut world = World::of(&spec);
    world.take("a");
    world.report("a", TaskStatus::Failed, "").unwrap();
    assert_eq!(world.states(), "a=FAILED b=SKIPPED c=HANDING_OFF d=PENDING", "without a result no comparison holds");
    world.take("c");
    world.report("c", TaskStatus::Failed, "").unwrap();
    assert_eq!(world.plan().state, PlanState::Failed);
    world.call(Input::Retry { by: "alice".to_owned() }).unwrap();
    world.complete("a", "0.1");
    assert!(world.active().contains(&"b".to_owned()), "{}", world.states());
    world.check();
}

#[test]
fn a_condition_is_about_a_dependency() {
    let about = |subtask: &str| {
        let spec = with(plan(Mode::Hybrid, &["a:", "b: a", "c: b", "d:"]), |spec| {
            spec.subtasks[2].when = less(subtask, 0.0, false);
        });
        spec.problems().first().map(|problem| (problem.code.name(), problem.path.clone()))
    };
    assert_eq!((about("a"), about("b")), (None, None), "an indirect one has ended, too");
    let problem = Some(("WHEN_NOT_DEPENDENCY", "subtasks[2].when.subtask_id".to_owned()));
    for wrong in ["c", "d", "nothing", ""] {
        assert_eq!(about(wrong), problem, "{wrong}");
    }
}
