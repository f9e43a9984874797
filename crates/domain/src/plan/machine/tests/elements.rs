//! Tests of subtasks with a list.

use super::*;
use crate::plan::ForEach;

/// A list of companies, a look at each, and a report.
fn companies(change: impl Fn(&mut Subtask)) -> Spec {
    with(plan(Mode::Hybrid, &["list:", "each: list | found", "report: each"]), |spec| {
        let each = &mut spec.subtasks[1];
        each.for_each = Some(ForEach { subtask: "list".to_owned(), pointer: "/result/all".to_owned() });
        change(each);
    })
}

impl World {
    /// Reports a completed subtask with this result.
    fn complete_with(&mut self, subtask: &str, result: &str) {
        self.take(subtask);
        let (run, id) = self.run_of(subtask);
        let epoch = read_task(self, &id).unwrap().unwrap().epoch;
        let message = self.message();
        let report = Report {
            response: "done".to_owned(),
            success: true,
            tokens: 2,
            result: result.to_owned(),
            ..Report::default()
        };
        self.reports.insert(message, report);
        let message = status_of(message, TaskStatus::Completed, "");
        let input = handoff::Input::Message {
            from: run.agent.unwrap_or_else(|| self.handoff_of(subtask).candidate.clone()),
            epoch,
            message,
        };
        self.run(&EntityId::Task(id.clone()), &crate::Input::Handoff { task: id, input }).unwrap();
    }

    fn elements(&self) -> String {
        let states = self.plan().elements.iter().map(|element| element.run.state.name()).collect::<Vec<_>>();
        states.join(" ")
    }

    fn result(&self, subtask: &str) -> Report {
        let number = self.plan().subtasks[self.spec().place(subtask).unwrap()].result.unwrap();
        let Event::Subtask(change) = self.entry(number) else { panic!("no result") };
        change.report.unwrap()
    }
}

fn with_list(list: &str, change: impl Fn(&mut Subtask)) -> World {
    let mut world = World::of(&companies(change));
    world.complete_with("list", &format!(r#"{{"all": {list}}}"#));
    world
}

#[test]
fn each_element_has_a_task_and_the_results_come_back_in_their_order() {
    let mut world = with_list(r#"["x", {"y": 1}, 3]"#, |_| {});
    assert_eq!(world.states(), "list=COMPLETED each=RUNNING report=PENDING");
    assert_eq!(world.elements(), "HANDING_OFF HANDING_OFF HANDING_OFF");
    world.complete_with("each#2", r#"{"score": 9007199254740993}"#);
    world.complete_with("each#0", "");
    assert_eq!(world.plan().subtasks[1].state, SubtaskState::Running);
    world.complete_with("each#1", r#"{"score": 4.0}"#);
    assert_eq!(world.states(), "list=COMPLETED each=COMPLETED report=HANDING_OFF");
    let report = world.result("each");
    assert_eq!(report.result, r#"{"results":[{"response":"done"},{"score": 4.0},{"score": 9007199254740993}]}"#);
    assert_eq!((report.tokens, report.success, report.response.as_str()), (6, true, "done\ndone\ndone"));
    assert_eq!(world.appended.len(), 3, "each result is an entry of the topic");
    assert!(world.plan().elements.is_empty() && world.plan().participants().contains(&agent("bob")));
    world.complete("report", "");
    assert_eq!(world.plan().state, PlanState::Completed);
    world.check();
}

#[test]
fn an_empty_list_completes_at_once() {
    let mut world = with_list("[]", |_| {});
    assert_eq!(world.states(), "list=COMPLETED each=COMPLETED report=HANDING_OFF");
    assert_eq!(world.result("each").result, r#"{"results":[]}"#);
    world.complete("report", "");
    assert_eq!(world.plan().state, PlanState::Completed);
    world.check();
}

#[test]
fn what_is_no_list_or_too_long_fails_the_subtask() {
    let long = format!("[{}]", vec!["1"; 257].join(","));
    for (list, cause) in
        [("7", "/result/all of list is no list"), (&*long, "/result/all of list has more than 256 elements")]
    {
        let world = with_list(list, |_| {});
        let each = &world.plan().subtasks[1];
        assert_eq!((each.state, each.code), (SubtaskState::Failed, Some(ErrorCode::ForEachInvalid)));
        assert_eq!(each.cause, cause);
        assert_eq!(world.plan().state, PlanState::Failed);
        world.check();
    }
    let most = format!("[{}]", vec!["1"; 256].join(","));
    assert_eq!(with_list(&most, |_| {}).plan().elements.len(), 256);
}

#[test]
fn an_element_has_the_attempts_of_its_subtask() {
    let mut world = with_list("[1, 2]", |each| each.attempts_max = 2);
    world.take("each#0");
    world.report("each#0", TaskStatus::Failed, "busy").unwrap();
    assert_eq!(world.elements(), "READY HANDING_OFF");
    world.complete_with("each#1", "{}");
    world.wait(Duration::from_secs(60));
    assert_eq!(world.handoff_of("each#0").candidate, agent("carol"));
    world.complete_with("each#0", "{}");
    assert_eq!(world.plan().subtasks[1].state, SubtaskState::Completed);
    world.check();
}

#[test]
fn an_element_that_fails_ends_the_subtask_and_stops_the_others() {
    let mut world = with_list("[1, 2, 3]", |_| {});
    world.take("each#0");
    world.take("each#1");
    world.report("each#1", TaskStatus::Failed, "unknown company").unwrap();
    let plan = world.plan();
    assert_eq!(world.states(), "list=COMPLETED each=FAILED report=SKIPPED");
    assert_eq!(plan.subtasks[1].cause, "element 1: unknown company");
    assert_eq!((plan.subtasks[1].code, plan.state), (Some(ErrorCode::SubtaskFailed), PlanState::Failed));
    world.check();
}

#[test]
fn in_an_optional_subtask_the_others_go_on() {
    let mut world = with_list("[1, 2]", |each| each.is_optional = true);
    world.take("each#0");
    world.report("each#0", TaskStatus::Failed, "no").unwrap();
    assert_eq!(world.elements(), "FAILED HANDING_OFF");
    world.complete_with("each#1", r#"{"a":1}"#);
    let report = world.result("each");
    assert_eq!((report.result.as_str(), report.success), (r#"{"results":[null,{"a":1}]}"#, false));
    world.check();
}

#[test]
fn elements_keep_to_the_slots_of_the_plan() {
    let list = format!("[{}]", vec!["1"; 200].join(","));
    let mut world = with_list(&list, |_| {});
    let handed_off = |world: &World| world.elements().matches("HANDING_OFF").count();
    assert_eq!(handed_off(&world), 5);
    for index in 0..200 {
        world.complete_with(&format!("each#{index}"), "{}");
        world.wait(Duration::from_millis(2));
        world.check();
    }
    assert_eq!(world.plan().subtasks[1].state, SubtaskState::Completed);
}

#[test]
fn the_list_of_results_is_bounded_and_marks_what_does_not_fit() {
    let mut world = with_list("[1, 2]", |_| {});
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(200 * 1024));
    world.complete_with("each#0", &large);
    world.complete_with("each#1", &large);
    let report = world.result("each");
    assert!(report.result.len() < 256 * 1024);
    let list: serde_json::Value = serde_json::from_str(&report.result).unwrap();
    assert_eq!(list["results"][1]["omitted"], true);
    let number = list["results"][1]["log_entry"].as_u64().unwrap();
    let Event::Element(change) = world.entry(number) else { panic!("no element") };
    assert_eq!((change.element, change.report.unwrap().result), (Some(1), large));
}

#[test]
fn a_dependency_timeout_counts_from_the_last_element() {
    let spec = with(companies(|_| {}), |spec| spec.terms.dependency_timeout = Duration::from_secs(50));
    let mut world = World::of(&spec);
    world.complete_with("list", r#"{"all": [1, 2, 3]}"#);
    for index in 0..3 {
        world.wait(Duration::from_secs(40));
        world.complete_with(&format!("each#{index}"), "{}");
    }
    assert_eq!(world.states(), "list=COMPLETED each=COMPLETED report=HANDING_OFF");
}

#[test]
fn of_many_lists_four_are_worked_on_at_once() {
    let lines: Vec<String> = (0..6).map(|number| format!("e{number}: list")).collect();
    let lines: Vec<&str> = std::iter::once("list:").chain(lines.iter().map(String::as_str)).collect();
    let spec = with(plan(Mode::Hybrid, &lines), |spec| {
        spec.terms.max_concurrency = 64;
        for subtask in &mut spec.subtasks[1..] {
            subtask.for_each = Some(ForEach { subtask: "list".to_owned(), pointer: "/result/all".to_owned() });
        }
    });
    let mut world = World::of(&spec);
    world.complete_with("list", r#"{"all": [1]}"#);
    assert_eq!(world.states(), "list=COMPLETED e0=RUNNING e1=RUNNING e2=RUNNING e3=RUNNING e4=READY e5=READY");
    world.complete_with("e3#0", "{}");
    world.wait(Duration::from_millis(2));
    assert_eq!(world.plan().subtasks[5].state, SubtaskState::Running);
    for number in [0, 1, 2, 4, 5] {
        world.complete_with(&format!("e{number}#0"), "{}");
        world.wait(Duration::from_millis(2));
    }
    assert_eq!(world.plan().state, PlanState::Completed);
    world.check();
}

#[test]
fn a_plan_that_ends_stops_its_elements_and_a_retry_begins_the_list_anew() {
    let mut world = with_list("[1, 2]", |_| {});
    world.take("each#0");
    world.call(Input::Cancel { by: "alice".to_owned(), reason: String::new() }).unwrap();
    assert_eq!((world.plan().state, world.plan().elements.len()), (PlanState::Cancelled, 0));
    world.check();
    world.call(Input::Retry { by: "alice".to_owned() }).unwrap();
    assert_eq!(world.elements(), "HANDING_OFF HANDING_OFF");
    world.complete_with("each#1", "{}");
    world.complete_with("each#0", "{}");
    assert_eq!(world.plan().subtasks[1].state, SubtaskState::Completed);
    world.check();
}

#[test]
fn the_end_of_the_whole_time_takes_the_tasks_of_many_elements_back() {
    let list = format!("[{}]", vec!["1"; 60].join(","));
    let spec = with(companies(|_| {}), |spec| {
        (spec.terms.max_concurrency, spec.terms.whole_timeout) = (64, Duration::from_secs(20));
    });
    let mut world = World::of(&spec);
    world.complete_with("list", &format!(r#"{{"all": {list}}}"#));
    world.wait(Duration::from_secs(1));
    assert_eq!(world.elements().matches("HANDING_OFF").count(), 60);
    world.take("each#7");
    world.wait(Duration::from_secs(30));
    assert_eq!(world.plan().state, PlanState::Failed);
    world.check();
}

#[test]
fn a_list_of_no_dependency_is_a_problem() {
    let mut spec = companies(|_| {});
    spec.subtasks[1].dependencies.clear();
    let codes: Vec<&str> = spec
        .linked()
        .problems()
        .iter()
        .filter(|problem| problem.is_error())
        .map(|problem| problem.code.name())
        .collect();
    assert_eq!(codes, ["FOR_EACH_NOT_DEPENDENCY"]);
}
