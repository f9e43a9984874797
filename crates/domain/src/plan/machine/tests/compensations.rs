//! Tests of compensation.

use super::*;

/// A seat, a room and a payment, one after the other. The seat and the room can be cancelled.
fn trip() -> Spec {
    with(plan(Mode::Hybrid, &["seat:", "room: seat", "pay: room"]), |spec| {
        for subtask in &mut spec.subtasks[..2] {
            let undo = Subtask { dependencies: Vec::new(), ..subtask.clone() };
            subtask.compensate = Some(Box::new(undo));
        }
    })
}

impl World {
    fn undoing(&self) -> String {
        let (plan, spec) = (self.plan(), self.spec());
        let name = |known: &CompensationRun| format!("{}={}", spec.subtasks[known.of].id, known.run.state.name());
        plan.compensations.iter().map(name).collect::<Vec<_>>().join(" ")
    }

    /// The compensations in the log that have completed, in their order.
    fn undone(&self) -> Vec<String> {
        let changes = (1..=self.plan().log_length).filter_map(|number| match self.entry(number) {
            Event::Compensation(change) if change.state == SubtaskState::Completed => Some(change.subtask),
            _ => None,
        });
        changes.collect()
    }

    fn fail_the_payment(&mut self) {
        self.take("pay");
        self.report("pay", TaskStatus::Failed, "card refused").unwrap();
    }
}

fn failing() -> World {
    let mut world = World::of(&trip());
    world.complete("seat", "12A");
    world.complete("room", "204");
    world.fail_the_payment();
    world
}

#[test]
fn what_has_completed_is_undone_in_reverse_order_before_the_plan_fails() {
    let mut world = failing();
    assert_eq!((world.plan().state, world.failures), (PlanState::Running, 0));
    assert_eq!(world.undoing(), "room=HANDING_OFF seat=PENDING");
    world.complete("~room", "cancelled");
    assert_eq!(world.undoing(), "room=COMPLETED seat=HANDING_OFF");
    world.complete("~seat", "cancelled");
    let plan = world.plan();
    assert_eq!((plan.state, world.failures, plan.next_deadline()), (PlanState::Failed, 1, None));
    assert_eq!(plan.reason, "not completed: pay");
    assert_eq!(world.undone(), ["room", "seat"]);
    assert_eq!(world.states(), "seat=COMPLETED room=COMPLETED pay=FAILED");
    world.check();
}

#[test]
fn a_compensation_that_fails_is_shown_and_stops_nothing() {
    let mut world = failing();
    world.take("~room");
    world.report("~room", TaskStatus::Failed, "no refund").unwrap();
    assert_eq!(world.undoing(), "room=FAILED seat=HANDING_OFF");
    let failed = &world.plan().compensations[0].run;
    assert_eq!((failed.code, failed.cause.as_str()), (Some(ErrorCode::SubtaskFailed), "no refund"));
    world.reject("~seat");
    world.reject("~seat");
    assert_eq!((world.plan().state, world.undoing().as_str()), (PlanState::Failed, "room=FAILED seat=FAILED"));
    world.check();
}

#[test]
fn a_compensation_has_attempts_of_its_own() {
    let spec = with(trip(), |spec| {
        spec.subtasks[1].compensate.as_mut().unwrap().attempts_max = 2;
    });
    let mut world = World::of(&spec);
    world.complete("seat", "");
    world.complete("room", "");
    world.fail_the_payment();
    world.take("~room");
    world.report("~room", TaskStatus::Failed, "busy").unwrap();
    assert_eq!(world.undoing(), "room=READY seat=PENDING");
    world.wait(Duration::from_secs(60));
    assert_eq!(world.undoing(), "room=HANDING_OFF seat=PENDING");
    assert_eq!(world.handoff_of("~room").candidate, agent("carol"), "another agent is asked first");
    world.complete("~room", "");
    world.complete("~seat", "");
    assert_eq!(world.undone(), ["room", "seat"]);
    assert_eq!(world.plan().state, PlanState::Failed);
    world.check();
}

#[test]
fn a_plan_that_completes_or_is_cancelled_undoes_nothing() {
    let mut world = World::of(&trip());
    world.complete("seat", "");
    world.complete("room", "");
    world.complete("pay", "");
    assert_eq!((world.plan().state, world.undoing().as_str()), (PlanState::Completed, ""));
    let mut world = World::of(&trip());
    world.complete("seat", "");
    world.call(Input::Cancel { by: "alice".to_owned(), reason: String::new() }).unwrap();
    assert_eq!((world.plan().state, world.undoing().as_str()), (PlanState::Cancelled, ""));
    world.check();
}

#[test]
fn a_plan_whose_time_is_up_undoes_within_its_whole_time_anew() {
    let mut world = World::of(&with(trip(), |spec| spec.terms.whole_timeout = Duration::from_secs(200)));
    world.complete("seat", "");
    world.wait(Duration::from_secs(201));
    assert_eq!(world.undoing(), "seat=HANDING_OFF");
    world.complete("~seat", "");
    assert_eq!((world.plan().state, world.plan().reason.as_str()), (PlanState::Failed, "the time of the plan was up"));
    world.check();
    // The second time is an end too.
    let mut world = World::of(&with(trip(), |spec| spec.terms.whole_timeout = Duration::from_secs(90)));
    world.complete("seat", "");
    world.complete("room", "");
    world.fail_the_payment();
    world.take("~room");
    world.wait(Duration::from_secs(91));
    assert_eq!((world.plan().state, world.undoing().as_str()), (PlanState::Failed, "room=TIMED_OUT seat=SKIPPED"));
    world.check();
}

#[test]
fn a_failing_plan_takes_no_cancel_and_no_retry_before_it_has_undone_all() {
    let mut world = failing();
    let cancel = world.call(Input::Cancel { by: "alice".to_owned(), reason: String::new() }).unwrap_err();
    assert!(matches!(cancel, StepError::Plan(Rejection::Final { state: PlanState::Failed })));
    let retry = world.call(Input::Retry { by: "alice".to_owned() }).unwrap_err();
    assert!(matches!(retry, StepError::Plan(Rejection::Running)));
}

#[test]
fn a_retry_does_again_what_was_undone_and_keeps_what_was_not() {
    let mut world = failing();
    world.complete("~room", "");
    world.take("~seat");
    world.report("~seat", TaskStatus::Failed, "not refundable").unwrap();
    world.call(Input::Retry { by: "alice".to_owned() }).unwrap();
    assert_eq!(world.states(), "seat=COMPLETED room=HANDING_OFF pay=PENDING");
    assert_eq!(world.undoing(), "");
    assert!(world.plan().participants().contains(&agent("bob")));
    world.complete("room", "");
    world.fail_the_payment();
    // The seat is still there, so the second failure tries to cancel it again, as a task of its own.
    assert_eq!(world.undoing(), "room=HANDING_OFF seat=PENDING");
    assert_eq!(world.run_of("~room").1.as_str(), "baton.0101010101010101-c2.room");
    world.complete("~room", "");
    world.complete("~seat", "");
    assert_eq!(world.undone(), ["room", "room", "seat"]);
}

#[test]
fn a_word_that_comes_late_or_twice_undoes_nothing_twice() {
    let mut world = failing();
    let first = world.handoff_of("~room").id;
    world.outbox = Some(Vec::new());
    world.take("~room");
    world.empty_outbox();
    world.report("~room", TaskStatus::Completed, "").unwrap();
    let words = world.outbox.clone().unwrap();
    world.empty_outbox();
    world.outbox = None;
    assert_eq!(world.undoing(), "room=COMPLETED seat=HANDING_OFF");
    for (to, word) in words {
        assert!(!world.run(&to, &crate::Input::Signal(word)).unwrap(), "the word is known");
    }
    let taken = PlanSignal::Taken { subtask: "room".to_owned(), handoff: first, owner: agent("bob"), due: None };
    let taken = crate::Input::Signal(Signal::Plan(taken));
    assert!(!world.run(&EntityId::Plan(World::plan_id()), &taken).unwrap());
    assert_eq!(world.undoing(), "room=COMPLETED seat=HANDING_OFF");
}
