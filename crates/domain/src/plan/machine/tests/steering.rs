//! Tests of what is done to one subtask.

use super::*;

impl World {
    fn cancel_one(&mut self, subtask: &str) -> Result<bool, StepError> {
        let (subtask, by, reason) = (subtask.to_owned(), "alice".to_owned(), "no need".to_owned());
        self.call(Input::CancelSubtask { subtask, by, reason })
    }

    fn retry_one(&mut self, subtask: &str) -> Result<bool, StepError> {
        self.call(Input::RetrySubtask { subtask: subtask.to_owned(), by: "alice".to_owned() })
    }

    fn reassign(&mut self, subtask: &str, to: &str) -> Result<bool, StepError> {
        let (subtask, to, by) = (subtask.to_owned(), to.to_owned(), "alice".to_owned());
        self.call(Input::ReassignSubtask { subtask, to, by, reason: String::new() })
    }
}

fn state_refused(outcome: Result<bool, StepError>) -> String {
    match outcome {
        Err(StepError::Plan(rejection)) => {
            let metadata = rejection.metadata();
            format!("{} {}", rejection.code().name(), metadata.first().map(|(_, state)| &**state).unwrap_or_default())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cancelled_subtask_gives_its_task_back_and_skips_its_dependents() {
    let mut world = World::of(&plan(Mode::Hybrid, &["a:", "b: a", "c:"]));
    world.take("a");
    assert!(world.cancel_one("a").unwrap());
    assert!(!world.cancel_one("a").unwrap(), "a repeat changes nothing");
    assert_eq!(world.states(), "a=CANCELLED b=SKIPPED c=HANDING_OFF");
    let (run, task) = world.run_of("a");
    assert_eq!(run.cause, "alice cancelled it: no need");
    let task = read_task(&mut world, &task).unwrap().unwrap();
    assert!(task.status == TaskStatus::Canceled && task.owner.is_coordinator());
    world.report("a", TaskStatus::Completed, "late").unwrap_err();
    world.complete("c", "");
    assert_eq!((world.plan().state, world.plan().reason.as_str()), (PlanState::Failed, "not completed: a, b"));
    world.check();
}

#[test]
fn an_offer_is_cancelled_with_its_subtask() {
    let mut world = World::of(&plan(Mode::Hybrid, &["a:", "c:"]));
    world.cancel_one("a").unwrap();
    assert_eq!(world.handoff_of("a").state, State::Cancelled);
    world.check();
}

#[test]
fn what_does_not_fit_the_state_is_refused() {
    let mut world = World::of(&plan(Mode::Hybrid, &["a:", "b: a", "c:", "d: b"]));
    assert_eq!(state_refused(world.cancel_one("x")), "SUBTASK_UNKNOWN ");
    assert_eq!(state_refused(world.retry_one("a")), "SUBTASK_STATE HANDING_OFF");
    assert_eq!(state_refused(world.retry_one("b")), "SUBTASK_STATE PENDING");
    world.complete("a", "");
    assert_eq!(state_refused(world.cancel_one("a")), "SUBTASK_STATE COMPLETED");
    assert_eq!(state_refused(world.retry_one("a")), "SUBTASK_STATE COMPLETED");
    assert_eq!(state_refused(world.reassign("a", "dave")), "SUBTASK_STATE COMPLETED");
    world.cancel_one("b").unwrap();
    assert_eq!(state_refused(world.retry_one("d")), "SUBTASK_STATE SKIPPED");
    world.complete("c", "");
    assert_eq!(state_refused(world.cancel_one("a")), "PLAN_FINAL FAILED");
    assert_eq!(state_refused(world.retry_one("b")), "PLAN_FINAL FAILED");
}

#[test]
fn a_failed_subtask_starts_again_with_what_was_skipped_because_of_it() {
    let mut world = World::of(&plan(Mode::Hybrid, &["a:", "b: a", "c: b", "other:"]));
    world.take("other");
    world.take("a");
    world.report("a", TaskStatus::Failed, "no").unwrap();
    assert_eq!(world.states(), "a=FAILED b=SKIPPED c=SKIPPED other=RUNNING");
    world.retry_one("a").unwrap();
    assert_eq!(world.plan().round, 2);
    assert_eq!(world.states(), "a=HANDING_OFF b=PENDING c=PENDING other=RUNNING");
    assert_eq!(world.handoff_of("a").candidate, agent("carol"), "the agent that has failed is asked last");
    for subtask in ["other", "a", "b", "c"] {
        if subtask == "other" {
            world.report(subtask, TaskStatus::Completed, "").unwrap();
        } else {
            world.complete(subtask, "");
        }
    }
    assert_eq!(world.plan().state, PlanState::Completed);
    world.check();
}

/// The task of a subtask between two attempts goes on, although another subtask has begun a round.
#[test]
fn the_retry_of_one_subtask_leaves_the_tasks_of_others() {
    let spec = with(plan(Mode::Hybrid, &["a:", "b:"]), |spec| spec.subtasks[1].attempts_max = 2);
    let mut world = World::of(&spec);
    world.take("b");
    world.report("b", TaskStatus::Failed, "busy").unwrap();
    let (_, task) = world.run_of("b");
    world.cancel_one("a").unwrap();
    world.retry_one("a").unwrap();
    world.wait(Duration::from_secs(60));
    assert_eq!(world.run_of("b").1, task);
    world.complete("a", "");
    world.complete("b", "");
    assert_eq!(world.plan().state, PlanState::Completed);
    world.check();
}

#[test]
fn a_subtask_is_given_to_another_agent_before_during_and_after_its_offer() {
    let mut world = World::of(&plan(Mode::Hybrid, &["a:", "b: a"]));
    world.reassign("a", "dave").unwrap();
    assert_eq!(world.handoff_of("a").candidate, agent("dave"));
    world.take("a");
    world.reassign("a", "erin").unwrap();
    let (run, task) = world.run_of("a");
    assert_eq!((run.state, run.attempts, run.reassignments), (SubtaskState::HandingOff, 1, 2));
    assert_eq!(world.handoff_of("a").candidate, agent("erin"));
    let task = read_task(&mut world, &task).unwrap().unwrap();
    assert!(task.owner.is_coordinator() && task.loans.is_empty(), "the loan of dave has ended");
    world.reassign("b", "frank").unwrap();
    world.complete("a", "");
    assert_eq!(world.handoff_of("b").candidate, agent("frank"));
    assert!(world.plan().participants().contains(&agent("dave")));
    world.complete("b", "");
    assert_eq!(world.plan().state, PlanState::Completed);
    world.check();
}

#[test]
fn a_report_that_is_on_its_way_counts() {
    let mut world = World::of(&plan(Mode::Hybrid, &["a:"]));
    world.take("a");
    world.outbox = Some(Vec::new());
    world.report("a", TaskStatus::Completed, "done").unwrap();
    world.reassign("a", "dave").unwrap();
    world.empty_outbox();
    assert_eq!(world.plan().state, PlanState::Completed);
}

#[test]
fn a_subtask_with_a_list_is_cancelled_with_its_elements() {
    let spec = with(plan(Mode::Hybrid, &["list:", "each: list", "c:"]), |spec| {
        let for_each = crate::plan::ForEach { subtask: "list".to_owned(), pointer: "/tools_used".to_owned() };
        spec.subtasks[1].for_each = Some(for_each);
        spec.terms.max_concurrency = 64;
    });
    let mut world = World::of(&spec);
    world.take("list");
    let (_, id) = world.run_of("list");
    let (message, epoch) = (world.message(), read_task(&mut world, &id).unwrap().unwrap().epoch);
    let report = Report { tools_used: vec![String::new(); 40], ..Report::default() };
    world.reports.insert(message, report);
    let input =
        handoff::Input::Message { from: agent("bob"), epoch, message: status_of(message, TaskStatus::Completed, "") };
    world.run(&EntityId::Task(id.clone()), &crate::Input::Handoff { task: id, input }).unwrap();
    world.wait(Duration::from_millis(10));
    world.take("each#3");
    world.cancel_one("each").unwrap();
    assert!(!world.cancel_one("each").unwrap(), "it is being cancelled");
    world.wait(Duration::from_secs(1));
    assert_eq!(world.states(), "list=COMPLETED each=CANCELLED c=HANDING_OFF");
    world.complete("c", "");
    assert_eq!(world.plan().state, PlanState::Failed);
    world.check();
}
