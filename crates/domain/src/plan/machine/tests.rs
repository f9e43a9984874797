//! Tests of plans in virtual time, with the real machine of tasks and handoffs below.

mod branches;
mod compensations;
mod elements;
mod extensions;
mod steering;

use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;

use super::{
    super::{
        Comparison, CompensationRun, Condition, Mode, PlanRef, Subtask,
        examples::{REPORT, plan},
    },
    *,
};
use crate::{
    Mail,
    codes::Refusal as _,
    handoff::{self, Handoff, LoopLimits, Message, Priority, Request, State, Timeouts},
    ids::AgentId,
    step,
};

fn at(milliseconds: i64) -> Timestamp {
    Timestamp::from_unix_nanoseconds(milliseconds * 1_000_000)
}

fn agent(name: &str) -> AgentId {
    AgentId::parse(name).unwrap()
}

/// A broker of one plan: its entities, and the coordinator's orders, which it carries out as the engine does.
struct World {
    entities: BTreeMap<EntityId, Entity>,
    reports: BTreeMap<MessageId, Report>,
    /// The words that wait, where words come late.
    outbox: Option<Vec<(EntityId, Signal)>>,
    appended: Vec<(String, String)>,
    /// The subtasks of requests, with the digests of the messages that have them.
    signed: Vec<(String, [u8; 32])>,
    failures: usize,
    messages: u64,
    now: i64,
}

impl Reader for World {
    fn entity(&mut self, id: &EntityId) -> Result<Option<Entity>, ReadError> {
        Ok(self.entities.get(id).cloned())
    }

    fn is_gone(&mut self, _: &AgentId) -> bool {
        false
    }

    fn report(&mut self, message: MessageId) -> Result<Option<Report>, ReadError> {
        Ok(self.reports.get(&message).cloned())
    }
}

impl World {
    fn new() -> Self {
        Self {
            entities: BTreeMap::new(),
            reports: BTreeMap::new(),
            outbox: None,
            appended: Vec::new(),
            signed: Vec::new(),
            failures: 0,
            messages: 0,
            now: 1_000_000,
        }
    }

    fn of(spec: &Spec) -> Self {
        let mut world = Self::new();
        world.submit(spec).unwrap();
        world
    }

    fn plan_id() -> PlanId {
        PlanId::parse("p").unwrap()
    }

    fn submit(&mut self, spec: &Spec) -> Result<bool, StepError> {
        assert!(spec.problems().iter().all(|problem| !problem.is_error()), "{:#?}", spec.problems());
        let submission = Submission {
            spec: Arc::new(spec.clone()),
            by: agent("alice"),
            message: MessageId::from_bytes([9; 16]),
            digest: [1; 32],
            content_digest: [u8::try_from(spec.subtasks.len()).unwrap(); 32],
        };
        self.call(Input::Submit(Box::new(submission)))
    }

    fn call(&mut self, input: Input) -> Result<bool, StepError> {
        self.run(&EntityId::Plan(Self::plan_id()), &crate::Input::Plan(input))
    }

    fn run(&mut self, about: &EntityId, input: &crate::Input) -> Result<bool, StepError> {
        let now = at(self.now);
        let transition = step(about, input, self, now)?;
        let has_changed = !transition.is_empty();
        for entity in transition.writes {
            self.entities.insert(entity.id(), entity);
        }
        let (mut signals, mut orders) = (Vec::new(), Vec::new());
        for effect in transition.effects {
            match effect {
                Effect::Send { to, signal } => signals.push((to, signal)),
                Effect::Order(order) => orders.push(order),
                Effect::Deliver { to, mail: Mail::Notice { notice, .. }, .. } => {
                    self.failures += usize::from(to == agent("alice") && notice.code == ErrorCode::PlanFailed);
                }
                _ => {}
            }
        }
        for (to, signal) in signals {
            match &mut self.outbox {
                Some(outbox) => outbox.push((to, signal)),
                None => drop(self.run(&to, &crate::Input::Signal(signal))?),
            }
        }
        for order in orders {
            self.carry_out(order);
        }
        Ok(has_changed)
    }

    fn empty_outbox(&mut self) {
        for (to, signal) in self.outbox.replace(Vec::new()).unwrap_or_default() {
            self.run(&to, &crate::Input::Signal(signal)).unwrap();
        }
    }

    fn carry_out(&mut self, order: Order) {
        let coordinator = AgentId::coordinator();
        let (task, message, about) = match order {
            Order::Subtask(order) => return self.request(*order),
            Order::Append { subtask, topic, .. } => return self.appended.push((subtask, topic.as_str().to_owned())),
            Order::Cancel { handoff, task, epoch, .. } => (task, (epoch, Message::Cancel), EntityId::Handoff(handoff)),
            Order::Recall { handoff, task, epoch, .. } => {
                let about = EntityId::Task(task.clone());
                (task, (epoch, Message::Recall { loan: handoff }), about)
            }
            Order::Status { task, epoch, status, details } => {
                let about = EntityId::Task(task.clone());
                (task, (epoch, status_of(self.message(), status, &details)), about)
            }
            Order::Context { handoff, task, epoch, .. } => {
                (task, (epoch, Message::Context { digest: [7; 32] }), EntityId::Handoff(handoff))
            }
            Order::Request(_) => unreachable!("no operator is in these tests"),
            Order::Tell(_) => unreachable!("the coordinator begins no delegation in a thread"),
        };
        let (epoch, message) = message;
        let input = handoff::Input::Message { from: coordinator, epoch, message };
        self.run(&about, &crate::Input::Handoff { task, input }).unwrap();
    }

    fn request(&mut self, order: SubtaskOrder) {
        let spec = self.spec();
        let subtask = spec.work(order.place, order.is_compensation);
        let digest = &order.submission_digest;
        let id = match order.element {
            _ if order.is_compensation => TaskId::of_compensation(digest, &subtask.id, order.round),
            Some(index) => TaskId::of_element(digest, &subtask.id, order.round, index),
            None => TaskId::of_subtask(digest, &subtask.id, order.round),
        };
        self.signed.push((subtask.id.clone(), order.signed_digest));
        let mut candidates = match &order.assigned_to {
            Some(to) => vec![agent(to)],
            None => vec![agent("bob"), agent("carol")],
        };
        candidates.sort_by_key(|candidate| order.tried.contains(candidate));
        let request = Request {
            negotiation: None,
            id: order.id,
            task: id.clone(),
            from: AgentId::coordinator(),
            epoch: order.epoch,
            receiver: "type:worker".to_owned(),
            candidates,
            passed_over: Vec::new(),
            task_type: subtask.task_type.clone(),
            reason: 0,
            mode: handoff::Mode::Delegate,
            loan_timeout: Some(subtask.timeout),
            work: crate::handoff::WorkTerms::default(),
            submitter: Some(order.submitter.to_string()),
            plan: Some(PlanRef {
                plan: order.plan.clone(),
                subtask: subtask.id.clone(),
                submitter: Some(order.submitter.clone()),
            }),
            routing: None,
            priority: Priority::default(),
            fairness_key: None,
            timeouts: Timeouts::default(),
            loop_limits: LoopLimits::default(),
            parent: None,
            conversation: None,
            wait_for_agent: false,
            thread: None,
            deliver_after: None,
        };
        let input = crate::Input::Handoff { task: id, input: handoff::Input::Request(request) };
        self.run(&EntityId::Handoff(order.id), &input).unwrap();
    }

    fn message(&mut self) -> MessageId {
        self.messages += 1;
        let mut bytes = [3; 16];
        bytes[..8].copy_from_slice(&self.messages.to_be_bytes());
        MessageId::from_bytes(bytes)
    }

    fn spec(&self) -> Arc<Spec> {
        match &self.entities[&EntityId::PlanSpec(Self::plan_id())] {
            Entity::PlanSpec(spec) => spec.clone(),
            _ => unreachable!(),
        }
    }

    fn plan(&self) -> Arc<Plan> {
        match &self.entities[&EntityId::Plan(Self::plan_id())] {
            Entity::Plan(plan) => plan.clone(),
            _ => unreachable!(),
        }
    }

    fn entry(&self, number: u64) -> Event {
        match &self.entities[&EntityId::PlanEntry(Self::plan_id(), number)] {
            Entity::PlanEntry(entry) => entry.event.clone(),
            _ => unreachable!(),
        }
    }

    fn tasks(&self) -> Vec<Arc<Task>> {
        let task = |entity: &Entity| match entity {
            Entity::Task(task) => Some(task.clone()),
            _ => None,
        };
        self.entities.values().filter_map(task).collect()
    }

    /// The state of a subtask and its task, or with `~` before the id those of its compensation, or with `#` and a place
    /// behind it those of an element.
    fn run_of(&self, subtask: &str) -> (SubtaskRun, TaskId) {
        let (plan, spec) = (self.plan(), self.spec());
        if let Some((id, index)) = subtask.split_once('#') {
            let (place, index) = (spec.place(id).unwrap(), index.parse::<usize>().unwrap());
            let known = plan.elements.iter().find(|known| known.of == place && known.index == index).unwrap();
            return (known.run.clone(), plan.element_task_id(&spec, known).unwrap());
        }
        match subtask.strip_prefix('~') {
            Some(id) => {
                let place = spec.place(id).unwrap();
                let known = plan.compensations.iter().find(|known| known.of == place).unwrap();
                (known.run.clone(), plan.compensation_task_id(&spec, known).unwrap())
            }
            None => {
                let place = spec.place(subtask).unwrap();
                (plan.subtasks[place].clone(), plan.task_id(&spec, place).unwrap())
            }
        }
    }

    fn handoff_of(&self, subtask: &str) -> Arc<Handoff> {
        let id = self.run_of(subtask).0.handoff.unwrap();
        match &self.entities[&EntityId::Handoff(id)] {
            Entity::Handoff(handoff) => handoff.clone(),
            _ => unreachable!(),
        }
    }

    fn states(&self) -> String {
        let names: Vec<String> = (self.spec().subtasks.iter().zip(&self.plan().subtasks))
            .map(|(subtask, run)| format!("{}={}", subtask.id, run.state.name()))
            .collect();
        names.join(" ")
    }

    fn active(&self) -> Vec<String> {
        let spec = self.spec();
        let plan = self.plan();
        let active = spec.subtasks.iter().zip(&plan.subtasks).filter(|(_, run)| run.state.is_active());
        active.map(|(subtask, _)| subtask.id.clone()).collect()
    }

    fn answer_of_candidate(&mut self, subtask: &str, message: Message) -> Result<bool, StepError> {
        let handoff = self.handoff_of(subtask);
        let input = handoff::Input::Message { from: handoff.candidate.clone(), epoch: handoff.epoch, message };
        self.run(&EntityId::Handoff(handoff.id), &crate::Input::Handoff { task: handoff.task.clone(), input })
    }

    /// The candidate of a subtask takes it.
    fn take(&mut self, subtask: &str) {
        self.answer_of_candidate(subtask, Message::Accept { wanted_sections: Vec::new(), estimate: None }).unwrap();
        let complete = Message::Complete { success: true, digest: Some([7; 32]), details: String::new() };
        self.answer_of_candidate(subtask, complete).unwrap();
    }

    fn reject(&mut self, subtask: &str) {
        let reject = Message::Reject {
            reason: 1,
            text: "no".to_owned(),
            suggestions: Vec::new(),
            retry_after: None,
            passed_over: Vec::new(),
        };
        self.answer_of_candidate(subtask, reject).unwrap();
    }

    fn report(&mut self, subtask: &str, status: TaskStatus, response: &str) -> Result<bool, StepError> {
        let (run, id) = self.run_of(subtask);
        let task = read_task(self, &id)?.unwrap();
        let message = self.message();
        let report = Report { response: response.to_owned(), success: true, ..Report::default() };
        self.reports.insert(message, report);
        let input = handoff::Input::Message {
            from: run.agent.unwrap_or_else(|| agent("bob")),
            epoch: task.epoch,
            message: status_of(message, status, ""),
        };
        self.run(&EntityId::Task(id.clone()), &crate::Input::Handoff { task: id, input })
    }

    fn complete(&mut self, subtask: &str, response: &str) {
        self.take(subtask);
        self.report(subtask, TaskStatus::Completed, response).unwrap();
    }

    /// Lets time pass up to this moment: every deadline fires when it is due.
    fn wait(&mut self, span: Duration) {
        let end = self.now + i64::try_from(span.as_millis()).unwrap();
        loop {
            let due = self.entities.values().filter_map(|entity| Some((entity.next_deadline()?, entity.id())));
            match due.min().filter(|(due, _)| *due <= at(end)) {
                Some((due, id)) => {
                    self.now = self.now.max(due.unix_nanoseconds().div_euclid(1_000_000) + 1);
                    assert!(self.run(&id, &crate::Input::Time).unwrap(), "{id} has a deadline and does nothing");
                }
                None => {
                    self.now = end.max(self.now);
                    return;
                }
            }
        }
    }

    /// Law 13, at every moment.
    fn check(&self) {
        let (plan, spec) = (self.plan(), self.spec());
        let elements = plan.elements.iter().map(|element| &element.run);
        let active = plan.subtasks.iter().chain(elements).filter(|run| run.holds_slot()).count();
        assert!(active <= spec.terms.max_concurrency as usize);
        for (place, run) in plan.subtasks.iter().enumerate() {
            assert!(run.attempts <= spec.subtasks[place].attempts_max);
            if run.state.is_active() || run.state == SubtaskState::Completed {
                for need in &spec.links.direct[place] {
                    let needed = &plan.subtasks[*need];
                    let is_done = needed.state == SubtaskState::Completed;
                    // A retry may start an optional one again, whose dependents have their results.
                    let has_ended = needed.state.is_final() || run.state == SubtaskState::Completed;
                    // So it may one that was not needed in the round before.
                    let was_excluded = run.state == SubtaskState::Completed && spec.subtasks[*need].when.is_some();
                    // And a retry starts again what was skipped because of the subtask.
                    let is_again = |number| {
                        let Event::Retried { subtask, .. } = self.entry(number) else { return false };
                        let place = spec.place(&subtask);
                        place.is_some_and(|place| place == *need || spec.links.ancestors[*need].contains(place))
                    };
                    let has_ended = has_ended || (1..=plan.log_length).any(is_again);
                    let may_miss =
                        spec.subtasks[*need].is_optional && has_ended || needed.is_excluded() || was_excluded;
                    assert!(is_done || may_miss, "{}", self.states());
                }
            }
        }
        let mut results = BTreeMap::new();
        for number in 1..=plan.log_length {
            if let Event::Subtask(change) = self.entry(number)
                && change.state == SubtaskState::Completed
            {
                assert_eq!(results.insert(change.subtask.clone(), number), None, "a result is recorded once");
            }
        }
        if plan.state.is_final() {
            for task in self.tasks() {
                assert!(task.status.is_final() && task.owner.is_coordinator(), "{task:#?}");
            }
        } else {
            assert!(at(self.now) <= plan.deadline.plus(Duration::from_millis(1)));
        }
    }
}

fn status_of(id: MessageId, status: TaskStatus, details: &str) -> Message {
    Message::Status {
        id,
        status,
        progress: None,
        details: details.to_owned(),
        receivers: Vec::new(),
        has_result: true,
        prompt: None,
        keep_parts: false,
        extend_by: None,
    }
}

fn with(mut spec: Spec, change: impl Fn(&mut Spec)) -> Spec {
    change(&mut spec);
    spec.linked()
}

#[test]
fn the_report_runs_in_its_order_and_completes() {
    let mut world = World::of(&plan(Mode::Hybrid, REPORT));
    assert_eq!(world.active(), ["fetch"]);
    world.complete("fetch", "数据已获取");
    assert_eq!(world.active(), ["growth", "margin"], "both calculations start in the commit of the fetch");
    world.complete("margin", "利润率为7.2％");
    assert_eq!(world.active(), ["growth"]);
    world.complete("growth", "增长率为15.3%");
    assert_eq!(world.active(), ["synthesis"]);
    world.complete("synthesis", "报告已完成");
    let plan = world.plan();
    assert_eq!((plan.state, plan.next_deadline()), (PlanState::Completed, None));
    let values: Vec<Option<f64>> = plan.subtasks.iter().map(|run| run.numeric_value).collect();
    assert_eq!(values, [None, Some(15.3), Some(7.2), None]);
    assert_eq!(world.failures, 0);
    world.check();
}

#[test]
fn a_failed_calculation_skips_the_synthesis_and_a_retry_completes_it() {
    let mut world = World::of(&plan(Mode::Hybrid, REPORT));
    world.complete("fetch", "");
    world.complete("growth", "15.3");
    world.take("margin");
    world.report("margin", TaskStatus::Failed, "no data of the third quarter").unwrap();
    assert_eq!(world.states(), "fetch=COMPLETED growth=COMPLETED margin=FAILED synthesis=SKIPPED");
    let plan = world.plan();
    assert_eq!((plan.state, world.failures), (PlanState::Failed, 1));
    assert_eq!(plan.subtasks[3].cause, "margin is FAILED: no data of the third quarter");
    assert_eq!(plan.subtasks[3].code, Some(ErrorCode::DependencyFailed));
    world.check();
    assert!(world.call(Input::Retry { by: "alice".to_owned() }).unwrap());
    assert_eq!(world.states(), "fetch=COMPLETED growth=COMPLETED margin=HANDING_OFF synthesis=PENDING");
    assert_eq!(world.handoff_of("margin").task.as_str(), "baton.0101010101010101-2.margin");
    world.complete("margin", "7.2");
    world.complete("synthesis", "");
    assert_eq!(world.plan().state, PlanState::Completed);
    world.check();
    let refused = world.call(Input::Retry { by: "alice".to_owned() }).unwrap_err();
    assert!(matches!(refused, StepError::Plan(Rejection::NothingToRetry { .. })));
}

#[test]
fn only_max_concurrency_subtasks_run_and_the_next_starts_when_one_ends() {
    let names: Vec<String> = (0..8).map(|number| format!("s{number}:")).collect();
    let lines: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = World::of(&with(plan(Mode::Parallel, &lines), |spec| spec.terms.max_concurrency = 3));
    assert_eq!(world.active(), ["s0", "s1", "s2"]);
    world.complete("s1", "");
    assert_eq!(world.active(), ["s0", "s2", "s3"]);
    for name in ["s0", "s2", "s3", "s4", "s5", "s6", "s7"] {
        world.check();
        world.complete(name, "");
    }
    assert_eq!(world.plan().state, PlanState::Completed);
}

#[test]
fn an_attempt_that_no_agent_takes_is_tried_again_after_a_pause() {
    let mut world = World::of(&with(plan(Mode::Hybrid, &["a:"]), |spec| spec.subtasks[0].attempts_max = 2));
    let first = world.handoff_of("a").id;
    world.reject("a");
    world.reject("a");
    assert_eq!(world.states(), "a=READY");
    world.wait(Duration::from_secs(2));
    assert_eq!(world.states(), "a=HANDING_OFF");
    assert_ne!(world.handoff_of("a").id, first);
    world.reject("a");
    world.reject("a");
    assert_eq!(world.states(), "a=FAILED");
    assert_eq!(world.plan().subtasks[0].code, Some(ErrorCode::NoCandidate));
    world.check();
}

#[test]
fn another_agent_is_asked_first_after_a_failed_attempt() {
    let mut world = World::of(&with(plan(Mode::Hybrid, &["a:"]), |spec| spec.subtasks[0].attempts_max = 2));
    world.take("a");
    assert_eq!(world.plan().subtasks[0].agent, Some(agent("bob")));
    world.report("a", TaskStatus::Failed, "").unwrap();
    world.wait(Duration::from_secs(2));
    assert_eq!(world.handoff_of("a").candidate, agent("carol"));
    world.complete("a", "1");
    assert_eq!(world.plan().state, PlanState::Completed);
    assert_eq!(world.plan().participants(), [agent("alice"), agent("bob"), agent("carol")]);
}

#[test]
fn a_subtask_that_takes_too_long_is_taken_back() {
    let mut world = World::of(&plan(Mode::Hybrid, &["a:", "b: a"]));
    world.take("a");
    let due = world.plan().subtasks[0].deadline.unwrap();
    assert_eq!(due, at(world.now).plus(Duration::from_secs(100)));
    world.wait(Duration::from_secs(101));
    assert_eq!(world.states(), "a=TIMED_OUT b=SKIPPED");
    assert!(world.report("a", TaskStatus::Completed, "late").is_err(), "a late result is refused");
    world.check();
}

#[test]
fn an_optional_subtask_may_fail() {
    let mut world = World::of(&with(plan(Mode::Hybrid, &["a:", "b: a"]), |spec| spec.subtasks[0].is_optional = true));
    world.take("a");
    world.report("a", TaskStatus::Failed, "").unwrap();
    assert_eq!(world.states(), "a=FAILED b=HANDING_OFF");
    world.complete("b", "");
    assert_eq!(world.plan().state, PlanState::Completed);
}

#[test]
fn a_chain_that_moves_outlasts_the_dependency_timeout_and_one_that_stands_does_not() {
    let spec = with(plan(Mode::Hybrid, &["a:", "b: a", "c: b"]), |spec| {
        spec.terms.dependency_timeout = Duration::from_secs(50);
    });
    let mut world = World::of(&spec);
    world.wait(Duration::from_secs(40));
    world.take("a");
    world.wait(Duration::from_secs(40));
    assert_eq!(world.states(), "a=RUNNING b=PENDING c=PENDING");
    world.wait(Duration::from_secs(11));
    assert_eq!(world.states(), "a=RUNNING b=SKIPPED c=SKIPPED");
    assert_eq!(world.plan().subtasks[1].code, Some(ErrorCode::DependencyTimeout));
    world.report("a", TaskStatus::Completed, "").unwrap();
    assert_eq!(world.plan().state, PlanState::Failed);
}

#[test]
fn of_subtasks_whose_dependency_timeouts_end_together_the_first_of_the_chain_is_the_cause() {
    // The clocks of b and c begin together, when a starts. The order of the plan must not decide.
    for lines in [["a:", "b: a", "c: b"], ["c: b", "b: a", "a:"], ["b: a", "c: b", "a:"]] {
        let spec = with(plan(Mode::Hybrid, &lines), |spec| spec.terms.dependency_timeout = Duration::from_secs(50));
        let mut world = World::of(&spec);
        world.take("a");
        world.wait(Duration::from_secs(51));
        let plan = world.plan();
        let of = |id: &str| &plan.subtasks[world.spec().place(id).unwrap()];
        let (b, c) = (of("b"), of("c"));
        assert_eq!([b.state, c.state], [SubtaskState::Skipped; 2]);
        assert_eq!(b.ended_at, c.ended_at, "in one step");
        let codes = [b.code, c.code];
        assert_eq!(codes, [Some(ErrorCode::DependencyTimeout), Some(ErrorCode::DependencyFailed)], "{lines:?}");
        assert_eq!(c.cause, "b is SKIPPED: its dependencies did not end in time: a");
        world.check();
    }
}

#[test]
fn the_end_of_the_whole_time_takes_every_task_back() {
    let spec = with(plan(Mode::Hybrid, &["a:", "b:", "c: a"]), |spec| {
        spec.terms.whole_timeout = Duration::from_secs(90);
    });
    let mut world = World::of(&spec);
    world.take("a");
    world.wait(Duration::from_secs(91));
    assert_eq!(world.states(), "a=TIMED_OUT b=TIMED_OUT c=SKIPPED");
    assert_eq!(world.plan().state, PlanState::Failed);
    world.check();
}

/// Both timers may be due at once, and that of the plan may fire first.
#[test]
fn a_plan_whose_time_is_up_cancels_an_offer_that_is_overdue_too() {
    let spec = with(plan(Mode::Hybrid, &["a:"]), |spec| spec.terms.whole_timeout = Duration::from_secs(90));
    let mut world = World::of(&spec);
    world.now += 500_000;
    let handoff = world.handoff_of("a");
    assert!(handoff.next_deadline().unwrap() < at(world.now));
    assert!(world.run(&EntityId::Plan(World::plan_id()), &crate::Input::Time).unwrap());
    assert_eq!(world.plan().state, PlanState::Failed);
    assert_eq!(world.handoff_of("a").state, handoff::State::Cancelled);
    assert!(world.tasks().iter().all(|task| task.status.is_final()));
    world.check();
}

#[test]
fn a_cancelled_plan_owns_nothing_and_a_second_cancel_changes_nothing() {
    let mut world = World::of(&plan(Mode::Hybrid, REPORT));
    world.complete("fetch", "");
    world.take("growth");
    let cancel = Input::Cancel { by: "alice".to_owned(), reason: "no longer needed".to_owned() };
    assert!(world.call(cancel.clone()).unwrap());
    assert_eq!(world.states(), "fetch=COMPLETED growth=CANCELLED margin=CANCELLED synthesis=CANCELLED");
    assert_eq!((world.plan().state, world.failures), (PlanState::Cancelled, 0));
    world.check();
    assert!(!world.call(cancel).unwrap());
    assert!(world.report("growth", TaskStatus::Completed, "15.3").is_err());
}

fn code_of(outcome: Result<bool, StepError>) -> ErrorCode {
    outcome.unwrap_err().into_refusal().unwrap().code()
}

#[test]
fn a_wide_plan_starts_and_ends_in_steps_of_few_orders() {
    let lines: Vec<String> = (0..100).map(|number| format!("s{number}")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let wide = with(plan(Mode::Parallel, &lines), |spec| spec.terms.max_concurrency = 64);
    for reason in ["", "no longer needed"] {
        let mut world = World::of(&wide);
        assert_eq!(world.active().len(), ORDERS_A_STEP);
        world.wait(Duration::from_secs(1));
        assert_eq!(world.active().len(), 64);
        assert_eq!(code_of(world.call(Input::Retry { by: "alice".to_owned() })), ErrorCode::PlanRunning);
        let (ended, cause) = match reason {
            "" => {
                world.now = world.plan().deadline.unix_nanoseconds() / 1_000_000 + 1;
                world.run(&EntityId::Plan(World::plan_id()), &crate::Input::Time).unwrap();
                (PlanState::Failed, "the time of the plan was up")
            }
            reason => {
                world.call(Input::Cancel { by: "alice".to_owned(), reason: reason.to_owned() }).unwrap();
                (PlanState::Cancelled, reason)
            }
        };
        assert_eq!(
            (world.plan().state, world.plan().ending, &*world.plan().reason),
            (PlanState::Running, Some(ended), cause)
        );
        let open = world.tasks().iter().filter(|task| !task.status.is_final()).count();
        assert!(open > 64 - ORDERS_A_STEP && open < 64, "{open}");
        // A repeated cancel finds what it asks for, or that it is too late.
        let again = world.call(Input::Cancel { by: "alice".to_owned(), reason: String::new() });
        match ended {
            PlanState::Cancelled => assert!(!again.unwrap()),
            _ => assert_eq!(code_of(again), ErrorCode::PlanFinal),
        }
        // A word of a task whose turn has not come yet changes what the plan does with it, and not its end.
        if ended == PlanState::Cancelled {
            world.reject("s63");
        }
        world.wait(Duration::from_secs(1));
        assert_eq!((world.plan().state, world.plan().ending, &*world.plan().reason), (ended, None, cause));
        assert!(world.tasks().iter().all(|task| task.status.is_final()), "no agent owns a task of an ended plan");
        world.check();
    }
}

#[test]
fn the_same_plan_again_is_the_same_plan_and_another_one_is_refused() {
    let spec = plan(Mode::Hybrid, REPORT);
    let mut world = World::of(&spec);
    assert!(!world.submit(&spec).unwrap());
    let error = world.submit(&plan(Mode::Hybrid, &["other:"])).unwrap_err();
    let StepError::Plan(rejection) = error else { panic!("{error}") };
    assert_eq!(rejection.code(), ErrorCode::PlanExists);
    let retry = world.call(Input::Retry { by: "alice".to_owned() }).unwrap_err();
    assert!(matches!(retry, StepError::Plan(Rejection::Running)));
}

#[test]
fn results_go_to_the_topics_of_the_subtask() {
    let mut world = World::of(&plan(Mode::Hybrid, &["a: | data raw |", "b: | | data"]));
    assert_eq!(world.active(), ["a"], "a consumed topic implies waiting for its producer");
    world.complete("a", "");
    let topics = [("a", "data"), ("a", "raw")].map(|(subtask, topic)| (subtask.to_owned(), topic.to_owned()));
    assert_eq!(world.appended, topics);
    assert_eq!(world.active(), ["b"]);
}

#[test]
fn a_sequential_plan_runs_one_at_a_time() {
    let mut world = World::of(&plan(Mode::Sequential, &["a:", "b:", "c:"]));
    for name in ["a", "b", "c"] {
        assert_eq!(world.active(), [name]);
        world.complete(name, "");
    }
    assert_eq!(world.plan().state, PlanState::Completed);
}

#[test]
fn a_failure_in_a_sequential_plan_passes_through_optional_subtasks() {
    let plan_of = || with(plan(Mode::Sequential, &["a:", "b:", "c:"]), |spec| spec.subtasks[1].is_optional = true);
    let mut world = World::of(&plan_of());
    world.take("a");
    world.report("a", TaskStatus::Failed, "no data").unwrap();
    assert_eq!(world.states(), "a=FAILED b=SKIPPED c=SKIPPED");
    assert_eq!(world.plan().state, PlanState::Failed);
    world.check();
    // The failure of an optional one alone holds nothing up.
    let mut world = World::of(&plan_of());
    world.complete("a", "");
    world.take("b");
    world.report("b", TaskStatus::Failed, "no data").unwrap();
    world.complete("c", "");
    assert_eq!(world.plan().state, PlanState::Completed);
}

#[test]
fn a_refusal_by_a_rule_is_not_tried_again() {
    let spec = with(plan(Mode::Hybrid, &["a:"]), |spec| spec.subtasks[0].attempts_max = 3);
    let mut world = World::of(&spec);
    // As the engine does where no request can be sent: there is no task.
    let handoff = world.handoff_of("a").id;
    world.entities.retain(|id, _| !matches!(id, EntityId::Task(_) | EntityId::Handoff(_)));
    let (subtask, text) = ("a".to_owned(), "alice may not handOff on bob".to_owned());
    let signal = PlanSignal::NotStarted { subtask, handoff, code: ErrorCode::PermissionDenied, text };
    world.run(&EntityId::Plan(World::plan_id()), &crate::Input::Signal(Signal::Plan(signal))).unwrap();
    assert_eq!((world.states().as_str(), world.plan().state), ("a=FAILED", PlanState::Failed));
}

#[test]
fn every_word_in_every_state_of_a_subtask_is_defined() {
    let signals = |handoff: MessageId| {
        let subtask = || "a".to_owned();
        let (code, text) = (ErrorCode::NoCandidate, String::new());
        [
            PlanSignal::NotStarted { subtask: subtask(), handoff, code, text: text.clone() },
            PlanSignal::Taken { subtask: subtask(), handoff, owner: agent("bob"), due: None },
            PlanSignal::NotTaken { subtask: subtask(), handoff, code, text: text.clone(), has_waited: false },
            PlanSignal::Reported {
                subtask: subtask(),
                handoff,
                message: handoff,
                is_completed: true,
                details: String::new(),
            },
            PlanSignal::Recalled { subtask: subtask(), handoff, is_abandoned: false },
            PlanSignal::NotAppended { subtask: subtask(), topic: "t".to_owned(), code, text },
        ]
    };
    for state in SubtaskState::ALL {
        for is_present in [true, false] {
            let mut world = World::of(&plan(Mode::Hybrid, &["a:", "b: a"]));
            let mut changed = Plan::clone(&world.plan());
            changed.subtasks[0].state = state;
            let handoff = changed.subtasks[0].handoff.unwrap();
            if state.is_final() {
                changed.subtasks[1].state = SubtaskState::Skipped;
                changed.state = PlanState::Failed;
            }
            world.entities.insert(EntityId::Plan(World::plan_id()), Entity::Plan(Arc::new(changed)));
            let other = MessageId::from_bytes([8; 16]);
            for signal in signals(if is_present { handoff } else { other }) {
                let input = crate::Input::Signal(Signal::Plan(signal.clone()));
                let made = step(&EntityId::Plan(World::plan_id()), &input, &mut world, at(2_000_000)).unwrap();
                let may_change = matches!(signal, PlanSignal::NotAppended { .. }) || (is_present && state.is_active());
                assert!(made.is_empty() || may_change, "{state:?}: {signal:?}");
            }
        }
    }
}

/// One thing that happens to a plan.
#[derive(Debug, Clone, Copy)]
enum Act {
    Take(usize),
    Reject(usize),
    Complete(usize),
    Fail(usize),
    Wait(u64),
    Cancel,
    Retry,
    CancelSubtask(usize),
    RetrySubtask(usize),
    Reassign(usize),
    Deliver,
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => any::<usize>().prop_map(Act::Take),
        1 => any::<usize>().prop_map(Act::Reject),
        6 => any::<usize>().prop_map(Act::Complete),
        1 => any::<usize>().prop_map(Act::Fail),
        2 => (0..120u64).prop_map(Act::Wait),
        1 => Just(Act::Retry),
        1 => any::<usize>().prop_map(Act::CancelSubtask),
        1 => any::<usize>().prop_map(Act::RetrySubtask),
        1 => any::<usize>().prop_map(Act::Reassign),
        4 => Just(Act::Deliver),
        1 => (0..4u8).prop_map(|rng| if rng == 0 { Act::Cancel } else { Act::Wait(30) }),
    ]
}

/// A plan without a cycle: each subtask may depend on earlier ones.
fn graphs() -> impl Strategy<Value = Spec> {
    let subtask = (proptest::collection::vec(any::<prop::sample::Index>(), 0..3), 1..3u32, any::<bool>());
    (proptest::collection::vec(subtask, 1..12), 1..4u32).prop_map(|(subtasks, most)| {
        let lines: Vec<String> = (subtasks.iter().enumerate())
            .map(|(place, (needs, ..))| {
                let needs: Vec<String> =
                    needs.iter().filter(|_| place > 0).map(|need| format!("s{}", need.index(place))).collect();
                format!("s{place}: {}", needs.join(" "))
            })
            .collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let mut spec = plan(Mode::Hybrid, &lines);
        spec.terms.max_concurrency = most;
        spec.terms.whole_timeout = Duration::from_secs(600);
        for (subtask, (_, attempts, is_optional)) in spec.subtasks.iter_mut().zip(&subtasks) {
            (subtask.attempts_max, subtask.is_optional) = (*attempts, *is_optional);
            // Every response is 42. Of an optional one that failed there is none.
            if *attempts == 2
                && let Some(need) = subtask.dependencies.first()
            {
                let comparison = Comparison::Less(if *is_optional { 40.0 } else { 50.0 });
                let (subtask_id, pointer) = (need.clone(), "/numeric_value".to_owned());
                subtask.when = Some(Condition { subtask: subtask_id, pointer, comparison, is_negated: false });
            }
        }
        spec
    })
}

proptest! {
    #[test]
    fn law_13_holds_for_random_graphs_and_agents(
        spec in graphs(),
        acts in proptest::collection::vec(acts(), 0..60),
        is_late in any::<bool>(),
    ) {
        let mut world = World::new();
        world.outbox = is_late.then(Vec::new);
        world.submit(&spec).unwrap();
        for act in acts {
            let of = |world: &World, wanted: SubtaskState, number: usize| {
                let plan = world.plan();
                let all: Vec<usize> =
                    (0..plan.subtasks.len()).filter(|place| plan.subtasks[*place].state == wanted).collect();
                (!all.is_empty()).then(|| world.spec().subtasks[all[number % all.len()]].id.clone())
            };
            match act {
                Act::Take(number) | Act::Reject(number) => {
                    if let Some(name) = of(&world, SubtaskState::HandingOff, number)
                        && world.handoff_of(&name).state == State::Requested
                    {
                        if matches!(act, Act::Take(_)) { world.take(&name) } else { world.reject(&name) }
                    }
                }
                Act::Complete(number) | Act::Fail(number) => {
                    if let Some(name) = of(&world, SubtaskState::Running, number) {
                        let status =
                            if matches!(act, Act::Fail(_)) { TaskStatus::Failed } else { TaskStatus::Completed };
                        // The report may come after the recall, whose word is still on the way.
                        drop(world.report(&name, status, "42"));
                    }
                }
                Act::Wait(seconds) => world.wait(Duration::from_secs(seconds)),
                Act::Cancel => drop(world.call(Input::Cancel { by: "alice".to_owned(), reason: String::new() })),
                Act::Retry => drop(world.call(Input::Retry { by: "alice".to_owned() })),
                Act::CancelSubtask(number) => {
                    let subtask = world.spec().subtasks[number % world.spec().subtasks.len()].id.clone();
                    let (by, reason) = ("alice".to_owned(), String::new());
                    drop(world.call(Input::CancelSubtask { subtask, by, reason }));
                }
                Act::RetrySubtask(number) => {
                    let subtask = world.spec().subtasks[number % world.spec().subtasks.len()].id.clone();
                    drop(world.call(Input::RetrySubtask { subtask, by: "alice".to_owned() }));
                }
                Act::Reassign(number) => {
                    let subtask = world.spec().subtasks[number % world.spec().subtasks.len()].id.clone();
                    let (to, by, reason) = ("dave".to_owned(), "alice".to_owned(), String::new());
                    drop(world.call(Input::ReassignSubtask { subtask, to, by, reason }));
                }
                Act::Deliver => world.empty_outbox_if_any(),
            }
            world.check();
        }
        // Every plan ends within its whole time, and then no agent owns one of its tasks.
        for _ in 0..3 {
            world.wait(Duration::from_secs(601));
            world.empty_outbox_if_any();
        }
        prop_assert!(world.plan().state.is_final());
        world.check();
    }
}

impl World {
    fn empty_outbox_if_any(&mut self) {
        if self.outbox.is_some() {
            self.empty_outbox();
        }
    }
}
