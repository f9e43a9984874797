//! The machine of a plan: total over every state and input.
//!
//! A word of a task is checked against the handoff of the present attempt, and what the plan decides about a task it
//! decides from the task itself. So a word that comes late, from the outbox, can only find that nothing is left to do.

mod compensating;
mod conditions;
mod elements;
mod ending;
mod extending;
mod hearing;
mod steering;

use std::{collections::BTreeSet, sync::Arc};

use self::hearing::{Failure, Heard};
use super::{
    Event, Input, Plan, PlanEntry, PlanSignal, PlanState, Rejection, Report, Spec, Submission, SubtaskChange,
    SubtaskRun, SubtaskState, numeric_value, spec::ROUNDS_MAX,
};
use crate::{
    Effect, Entity, EntityId, ReadError, Reader, Signal, StepError, Transition,
    codes::ErrorCode,
    coordinator::{Order, SubtaskOrder},
    handoff::{Task, TaskStatus},
    ids::{MessageId, PlanId, TaskId, Topic},
    time::Timestamp,
};

/// The most bytes of a cause.
const CAUSE_BYTES_MAX: usize = 1024;
/// The orders after which a step starts and stops no further subtask. Each is a signed message of the coordinator. The next
/// step does the rest at once, in a commit of its own: so no plan holds the engine up for long.
const ORDERS_A_STEP: usize = 16;

/// Applies one input to a plan.
pub(crate) fn step(
    id: &PlanId,
    input: &crate::Input,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    let known = read_plan(read, id)?;
    match input {
        crate::Input::Plan(Input::Submit(submission)) => submit(known.as_deref(), submission, read, now),
        crate::Input::Plan(Input::Extend(extension)) => extending::extend(id, known, extension, read, now),
        crate::Input::Plan(Input::Cancel { by, reason }) => cancel(id, known, by, reason, read, now),
        crate::Input::Plan(Input::Retry { by }) => retry(id, known, by, read, now),
        crate::Input::Plan(Input::CancelSubtask { subtask, by, reason }) => {
            steering::cancel(&*running(id, known)?, subtask, by, reason, read, now)
        }
        crate::Input::Plan(Input::RetrySubtask { subtask, by }) => {
            steering::retry(&*running(id, known)?, subtask, by, read, now)
        }
        crate::Input::Plan(Input::ReassignSubtask { subtask, to, by, reason }) => {
            steering::reassign(&*running(id, known)?, subtask, to, (by, reason), read, now)
        }
        crate::Input::Time => match known {
            Some(plan) => pass_time(&plan, read, now),
            None => Ok(Transition::default()),
        },
        crate::Input::Signal(Signal::Plan(signal)) => match known {
            Some(plan) => on_signal(&plan, signal, read, now),
            None => Ok(Transition::default()),
        },
        // A plan has no mail, and no call about anything else is an input of it.
        crate::Input::Handoff { .. }
        | crate::Input::Append { .. }
        | crate::Input::Routing(_)
        | crate::Input::Thread(_)
        | crate::Input::Negotiation(_)
        | crate::Input::Acked { .. }
        | crate::Input::Undeliverable { .. }
        | crate::Input::AgentGone
        | crate::Input::Signal(Signal::Run(_) | Signal::Handoff(_) | Signal::Task(_) | Signal::Negotiation(_)) => {
            Ok(Transition::default())
        }
        #[cfg(debug_assertions)]
        crate::Input::Signal(Signal::Probe(_)) => Ok(Transition::default()),
    }
}

fn read_plan(read: &mut dyn Reader, id: &PlanId) -> Result<Option<Arc<Plan>>, ReadError> {
    Ok(match read.entity(&EntityId::Plan(id.clone()))? {
        Some(Entity::Plan(plan)) => Some(plan),
        Some(_) | None => None,
    })
}

/// The plan, if it runs and its end has not begun.
fn running(id: &PlanId, known: Option<Arc<Plan>>) -> Result<Arc<Plan>, Rejection> {
    let plan = known.ok_or_else(|| Rejection::Unknown { plan: id.clone() })?;
    match plan.ending.unwrap_or(plan.state) {
        PlanState::Running => Ok(plan),
        state @ (PlanState::Completed | PlanState::Failed | PlanState::Cancelled) => Err(Rejection::Final { state }),
    }
}

fn read_spec(read: &mut dyn Reader, id: &PlanId) -> Result<Arc<Spec>, ReadError> {
    match read.entity(&EntityId::PlanSpec(id.clone()))? {
        Some(Entity::PlanSpec(spec)) => Ok(spec),
        // The spec is written with the plan, and removed after it.
        Some(_) | None => Err(ReadError),
    }
}

fn read_task(read: &mut dyn Reader, id: &TaskId) -> Result<Option<Arc<Task>>, ReadError> {
    Ok(match read.entity(&EntityId::Task(id.clone()))? {
        Some(Entity::Task(task)) => Some(task),
        Some(_) | None => None,
    })
}

// ------------------------------------------------------------------------------------------------------------- calls

fn submit(
    known: Option<&Plan>,
    submission: &Submission,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    let Submission { spec, by, message, digest, content_digest } = submission;
    if let Some(known) = known {
        // A submitter that lost its receipt may sign the plan again under a new id, so the content decides (SPEC 9).
        let is_same = known.submitter == *by && known.content_digest == *content_digest;
        let exists = Rejection::Exists { plan: spec.id.clone() };
        return if is_same { Ok(Transition::default()) } else { Err(exists.into()) };
    }
    let plan = Plan {
        id: spec.id.clone(),
        submitter: by.clone(),
        submission: *message,
        submission_digest: *digest,
        content_digest: *content_digest,
        state: PlanState::Running,
        reason: String::new(),
        ending: None,
        goes_on: false,
        round: 1,
        subtasks: spec.subtasks.iter().map(|_| SubtaskRun::pending(now)).collect(),
        compensations: Vec::new(),
        elements: Vec::new(),
        extensions: Vec::new(),
        log_length: 0,
        created_at: now,
        updated_at: now,
        deadline: now.plus(spec.terms.whole_timeout),
        dependency_timeout: spec.terms.dependency_timeout,
        ended_at: None,
    };
    let mut builder = TransitionBuilder::new(plan, spec.clone(), now);
    builder.log(Event::Submitted { by: by.clone() });
    builder.go_on(read)?;
    let mut transition = builder.done();
    transition.writes.push(Entity::PlanSpec(spec.clone()));
    Ok(transition)
}

fn cancel(
    id: &PlanId,
    known: Option<Arc<Plan>>,
    by: &str,
    reason: &str,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    let plan = known.ok_or_else(|| Rejection::Unknown { plan: id.clone() })?;
    match plan.ending.unwrap_or(plan.state) {
        PlanState::Running => {}
        // A repeated cancel finds the outcome that it asks for. After an end by itself the caller must learn that its
        // cancel came too late.
        PlanState::Cancelled => return Ok(Transition::default()),
        PlanState::Completed | PlanState::Failed => {
            return Err(Rejection::Final { state: plan.ending.unwrap_or(plan.state) }.into());
        }
    }
    let reason = if reason.is_empty() { format!("{by} cancelled the plan") } else { reason.to_owned() };
    let mut builder = TransitionBuilder::of(&plan, read, now)?;
    builder.begin_end(PlanState::Cancelled, &reason, read)?;
    Ok(builder.done())
}

fn retry(
    id: &PlanId,
    known: Option<Arc<Plan>>,
    by: &str,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    let plan = known.ok_or_else(|| Rejection::Unknown { plan: id.clone() })?;
    if !plan.state.is_final() {
        return Err(Rejection::Running.into());
    }
    // What was undone has to be done again. A compensation that has failed has undone nothing, so its subtask keeps its
    // result.
    let undone = plan.undone();
    let is_left = |place: usize, subtask: &SubtaskRun| {
        undone.contains(&place) || (subtask.state != SubtaskState::Completed && !subtask.is_excluded())
    };
    // The ids of tasks have room for two digits of the round. A completed plan would start nothing, and would be
    // RUNNING without a subtask that could end it.
    if plan.round >= ROUNDS_MAX || !plan.subtasks.iter().enumerate().any(|(place, subtask)| is_left(place, subtask)) {
        return Err(Rejection::NothingToRetry { state: plan.state, rounds: plan.round }.into());
    }
    let mut builder = TransitionBuilder::of(&plan, read, now)?;
    builder.plan.state = PlanState::Running;
    builder.plan.reason.clear();
    builder.plan.round += 1;
    // Each round has the whole time of its own: the deadline of the round before may be long past.
    builder.plan.deadline = now.plus(builder.spec.terms.whole_timeout);
    builder.plan.ended_at = None;
    builder.forget_compensations();
    // What was not needed is looked at anew, as what it depends on may have another result now.
    for (place, subtask) in builder.plan.subtasks.iter_mut().enumerate() {
        if subtask.state == SubtaskState::Completed && !undone.contains(&place) {
            continue;
        }
        subtask.start_anew(now);
    }
    let round = builder.plan.round;
    builder.log(Event::Retried { round, by: by.to_owned(), subtask: String::new() });
    builder.go_on(read)?;
    Ok(builder.done())
}

// ------------------------------------------------------------------------------------------------------ time and words

fn pass_time(plan: &Plan, read: &mut dyn Reader, now: Timestamp) -> Result<Transition, StepError> {
    if plan.next_deadline().is_none_or(|deadline| now < deadline) {
        return Ok(Transition::default());
    }
    let mut builder = TransitionBuilder::of(plan, read, now)?;
    // Goes before the timeouts of subtasks: if both have passed, a skipped subtask would start others, and the plan
    // would outlive its whole timeout.
    if plan.deadline <= now && plan.ending.is_none() {
        builder.begin_end(PlanState::Failed, "the time of the plan was up", read)?;
        return Ok(builder.done());
    }
    if let Some(state) = plan.ending {
        builder.end_some(state, read)?;
        return Ok(builder.done());
    }
    // Dependencies go before their dependents, wherever they stand in the plan: a subtask that is skipped here restarts
    // the clocks of its descendants (SPEC 9), whose `waits_since` is therefore read anew. They are skipped because of it,
    // as DEPENDENCY_FAILED.
    for place in builder.spec.links.order.clone() {
        let subtask = &builder.plan.subtasks[place];
        let is_over = subtask.waits_since.plus(plan.dependency_timeout) <= now;
        if subtask.state == SubtaskState::Pending && is_over {
            let waited = builder.waiting_for(place).join(", ");
            let cause = format!("its dependencies did not end in time: {waited}");
            builder.end(place, SubtaskState::Skipped, Some(ErrorCode::DependencyTimeout), &cause);
        }
    }
    builder.go_on(read)?;
    Ok(builder.done())
}

fn on_signal(plan: &Plan, signal: &PlanSignal, read: &mut dyn Reader, now: Timestamp) -> Result<Transition, StepError> {
    // Goes before the checks of the attempt: the append follows the result, so the subtask has ended already.
    if let PlanSignal::NotAppended { subtask, topic, code, text } = signal {
        let mut builder = TransitionBuilder::of(plan, read, now)?;
        let (subtask, topic, code) = (subtask.clone(), topic.clone(), *code);
        builder.log(Event::NotAppended { subtask, topic, code, text: cut(text) });
        return Ok(builder.done());
    }
    let mut builder = TransitionBuilder::of(plan, read, now)?;
    let (subtask, handoff) = match signal {
        PlanSignal::NotStarted { subtask, handoff, .. }
        | PlanSignal::Taken { subtask, handoff, .. }
        | PlanSignal::NotTaken { subtask, handoff, .. }
        | PlanSignal::Reported { subtask, handoff, .. }
        | PlanSignal::Recalled { subtask, handoff, .. } => (subtask, handoff),
        PlanSignal::NotAppended { .. } => unreachable!("logged above"),
    };
    if let Some(at) = plan.compensations.iter().position(|compensation| compensation.run.handoff == Some(*handoff)) {
        return builder.on_compensation(at, signal, read);
    }
    if let Some(at) = plan.elements.iter().position(|element| element.run.handoff == Some(*handoff)) {
        return builder.on_element(at, signal, read);
    }
    // An ended attempt, or one that a later attempt has replaced, must not end the present one. The word is late and
    // not wrong, so no error follows.
    let Some(place) = builder.spec.place(subtask) else { return Ok(Transition::default()) };
    let known = &plan.subtasks[place];
    if known.handoff != Some(*handoff) || !known.state.is_active() {
        return Ok(Transition::default());
    }
    match hearing::heard(signal, known.state, read)? {
        None => return Ok(Transition::default()),
        Some(Heard::Taken { owner, due }) => {
            let subtask = &mut builder.plan.subtasks[place];
            (subtask.agent, subtask.deadline) = (Some(owner), due);
            builder.change(place, SubtaskState::Running, None);
        }
        Some(Heard::Failed(failure)) => {
            if failure.has_waited {
                let subtask = &mut builder.plan.subtasks[place];
                subtask.attempts = subtask.attempts.saturating_sub(1);
            }
            builder.fail(place, &failure, read)?;
        }
        Some(Heard::Completed(report)) => builder.complete(place, report, read)?,
    }
    builder.go_on(read)?;
    Ok(builder.done())
}

fn cut(text: &str) -> String {
    let end = (0..=CAUSE_BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text[..end].to_owned()
}

// ------------------------------------------------------------------------------------------------------- transitions

/// A transition under construction.
struct TransitionBuilder {
    plan: Plan,
    spec: Arc<Spec>,
    entries: Vec<PlanEntry>,
    effects: Vec<Effect>,
    /// The subtasks that have become ready in this step.
    newly_ready: BTreeSet<usize>,
    now: Timestamp,
}

impl TransitionBuilder {
    fn new(plan: Plan, spec: Arc<Spec>, now: Timestamp) -> Self {
        Self { plan, spec, entries: Vec::new(), effects: Vec::new(), newly_ready: BTreeSet::new(), now }
    }

    fn of(plan: &Plan, read: &mut dyn Reader, now: Timestamp) -> Result<Self, ReadError> {
        Ok(Self::new(plan.clone(), read_spec(read, &plan.id)?, now))
    }

    fn done(self) -> Transition {
        let Self { mut plan, spec, entries, effects, now, .. } = self;
        plan.updated_at = now;
        let of_elements = plan.elements.iter().map(|element| &element.run);
        let undoing = plan.compensations.iter().map(|compensation| &compensation.run);
        let runs = || plan.subtasks.iter().chain(undoing.clone()).chain(of_elements.clone());
        // SPEC 12, law 13.
        debug_assert!(runs().filter(|run| run.holds_slot()).count() <= spec.terms.max_concurrency as usize);
        debug_assert_eq!(
            plan.state.is_final(),
            runs().all(|run| run.state.is_final()),
            "a plan ends with its last subtask, or with its last compensation"
        );
        let mut writes = vec![Entity::Plan(Arc::new(plan))];
        writes.extend(entries.into_iter().map(|entry| Entity::PlanEntry(Arc::new(entry))));
        Transition { writes, effects }
    }

    fn log(&mut self, event: Event) -> u64 {
        self.plan.log_length += 1;
        let number = self.plan.log_length;
        self.entries.push(PlanEntry { plan: self.plan.id.clone(), number, at: self.now, event });
        number
    }

    /// Sets the state of a subtask, and records it. The clocks of its descendants start anew.
    fn change(&mut self, place: usize, state: SubtaskState, report: Option<Report>) {
        let subtask = &mut self.plan.subtasks[place];
        subtask.enter(state, self.now);
        if let Some(report) = &report {
            subtask.numeric_value = report.numeric_value;
        }
        let change = subtask.change(&self.spec.subtasks[place].id, report);
        let is_result = change.report.is_some();
        let number = self.log(Event::Subtask(Box::new(change)));
        if is_result {
            self.plan.subtasks[place].result = Some(number);
        }
        self.restart_clocks(place);
    }

    /// Restarts the clocks of the descendants of a subtask that has moved. The timeout is for plans that stand still (SPEC 9).
    /// All ancestors count, because a long chain of dependencies moves while its last subtask waits.
    fn restart_clocks(&mut self, place: usize) {
        for (other, subtask) in self.plan.subtasks.iter_mut().enumerate() {
            if subtask.state == SubtaskState::Pending && self.spec.links.ancestors[other].contains(place) {
                subtask.waits_since = self.now;
            }
        }
    }

    /// Ends a subtask without a result.
    fn end(&mut self, place: usize, state: SubtaskState, code: Option<ErrorCode>, cause: &str) {
        let subtask = &mut self.plan.subtasks[place];
        (subtask.code, subtask.cause) = (code, cut(cause));
        self.change(place, state, None);
    }

    fn task_of(&self, place: usize, read: &mut dyn Reader) -> Result<Option<Arc<Task>>, ReadError> {
        let Some(id) = self.plan.task_id(&self.spec, place) else { return Ok(None) };
        Ok(read_task(read, &id)?.filter(|task| !task.status.is_final()))
    }

    /// The attempt has failed: the next one follows after a pause, or the subtask ends.
    fn fail(&mut self, place: usize, failure: &Failure, read: &mut dyn Reader) -> Result<(), ReadError> {
        let most = self.spec.subtasks[place].attempts_max;
        if self.plan.subtasks[place].fail(failure, most, self.now) {
            self.change(place, SubtaskState::Ready, None);
            return Ok(());
        }
        // No attempt follows, so the task must end too. Between attempts it stays open, since the next attempt hands
        // over the same task.
        self.stop(place, TaskStatus::Failed, &failure.text, read)?;
        self.change(place, failure.state, None);
        Ok(())
    }

    fn complete(&mut self, place: usize, mut report: Report, read: &mut dyn Reader) -> Result<(), ReadError> {
        self.find_number(&mut report);
        let subtask = &mut self.plan.subtasks[place];
        (subtask.code, subtask.cause) = (None, String::new());
        self.append(place, None, &report);
        let task = self.task_of(place, read)?;
        self.end_completed(task.as_deref());
        self.change(place, SubtaskState::Completed, Some(report));
        Ok(())
    }

    /// Looks for the number of a response. A number that the agent states counts before one that the broker reads out of its
    /// text.
    fn find_number(&self, report: &mut Report) {
        if report.numeric_value.is_none() && self.spec.terms.extract_numeric {
            report.numeric_value = numeric_value(&report.response);
        }
    }

    /// Appends a result to the topics of its subtask: one order for each topic, so that a full workspace refuses one of them
    /// without the result or the other topics.
    fn append(&mut self, place: usize, element: Option<usize>, report: &Report) {
        let spec = self.spec.clone();
        for topic in spec.subtasks[place].produces.iter().filter_map(|topic| Topic::parse(topic).ok()) {
            let (plan, subtask) = (self.plan.id.clone(), spec.subtasks[place].id.clone());
            let order = Order::Append { plan, subtask, element, topic, report: Box::new(report.clone()) };
            self.effects.push(Effect::Order(order));
        }
    }

    /// Ends a task whose result the plan has. The agent has ended its loan, not the task: the coordinator owns the task again.
    fn end_completed(&mut self, task: Option<&Task>) {
        let Some(task) = task else { return };
        let (task, epoch) = (task.id.clone(), task.epoch);
        let details = "the plan has the result".to_owned();
        let order = Order::Status { task, epoch, status: TaskStatus::Completed, details };
        self.effects.push(Effect::Order(order));
    }

    /// The ids of the direct dependencies that have not ended.
    fn waiting_for(&self, place: usize) -> Vec<String> {
        let open = self.spec.links.direct[place].iter().filter(|need| !self.plan.subtasks[**need].state.is_final());
        open.map(|need| self.spec.subtasks[*need].id.clone()).collect()
    }

    fn has_enough_orders(&self) -> bool {
        self.effects.iter().filter(|effect| matches!(effect, Effect::Order(_))).count() >= ORDERS_A_STEP
    }

    /// Does all that follows: makes subtasks ready, skips the dependents of incomplete ones, starts what has a slot,
    /// and ends the plan with its last subtask.
    fn go_on(&mut self, read: &mut dyn Reader) -> Result<(), ReadError> {
        if let Some(state) = self.plan.ending {
            return self.end_some(state, read);
        }
        let spec = self.spec.clone();
        self.plan.goes_on = false;
        // Dependencies stand before their dependents, so one pass is enough.
        for place in spec.links.order.iter().copied() {
            if self.plan.subtasks[place].state == SubtaskState::Pending {
                self.look_at_needs(place, read)?;
            }
            if spec.subtasks[place].for_each.is_some() {
                self.work_on_list(place, read)?;
            }
        }
        // A list that has ended may make room for one that stands before it.
        self.plan.goes_on |= self.has_room_for_list();
        // Before the check for the end: a plan with a subtask that can start has not ended.
        self.start_ready(read)?;
        if self.plan.subtasks.iter().all(|subtask| subtask.state.is_final()) {
            let missing: Vec<&str> = (self.plan.subtasks.iter().zip(&spec.subtasks))
                .filter(|(run, subtask)| {
                    run.state != SubtaskState::Completed && !run.is_excluded() && !subtask.is_optional
                })
                .map(|(_, subtask)| subtask.id.as_str())
                .collect();
            match missing.is_empty() {
                true => self.end_plan(PlanState::Completed, ""),
                false => {
                    let reason = format!("not completed: {}", missing.join(", "));
                    return self.begin_end(PlanState::Failed, &reason, read);
                }
            }
        }
        Ok(())
    }

    fn look_at_needs(&mut self, place: usize, read: &mut dyn Reader) -> Result<(), ReadError> {
        let mut waits = false;
        for need in &self.spec.links.direct[place] {
            let (run, subtask) = (&self.plan.subtasks[*need], &self.spec.subtasks[*need]);
            match run.state {
                SubtaskState::Completed => {}
                SubtaskState::Failed | SubtaskState::TimedOut | SubtaskState::Skipped | SubtaskState::Cancelled => {
                    // One missing dependency decides, even while others run: their results could not start this subtask
                    // any more.
                    if !subtask.is_optional && !run.is_excluded() {
                        let because = if run.cause.is_empty() { String::new() } else { format!(": {}", run.cause) };
                        let cause = format!("{} is {}{because}", subtask.id, run.state.name());
                        self.end(place, SubtaskState::Skipped, Some(ErrorCode::DependencyFailed), &cause);
                        return Ok(());
                    }
                }
                SubtaskState::Pending | SubtaskState::Ready | SubtaskState::HandingOff | SubtaskState::Running => {
                    waits = true;
                }
            }
        }
        if waits {
            return Ok(());
        }
        if let Some(cause) = self.excluded_because(place, read)? {
            self.end(place, SubtaskState::Skipped, None, &cause);
            return Ok(());
        }
        // The log shows READY only of a subtask that waits for a slot.
        self.plan.subtasks[place].state = SubtaskState::Ready;
        self.newly_ready.insert(place);
        Ok(())
    }

    fn start_ready(&mut self, read: &mut dyn Reader) -> Result<(), ReadError> {
        let most = self.spec.terms.max_concurrency as usize;
        let elements = self.plan.elements.iter().map(|element| &element.run);
        let mut active = self.plan.subtasks.iter().chain(elements).filter(|run| run.holds_slot()).count();
        for place in 0..self.plan.subtasks.len() {
            let subtask = &self.plan.subtasks[place];
            if subtask.elements.is_some() && subtask.state == SubtaskState::Running {
                self.start_elements(place, &mut active, most, read)?;
                continue;
            }
            if subtask.state != SubtaskState::Ready || subtask.retry_at.is_some_and(|at| at > self.now) {
                continue;
            }
            // In the order of the plan, so that of two subtasks for one slot the earlier one starts. One with a list waits for
            // the end of another list.
            if active < most && self.spec.subtasks[place].for_each.is_none() {
                active += 1;
                // It keeps its slot until the next step.
                self.plan.goes_on |= self.has_enough_orders();
                if !self.plan.goes_on {
                    let epoch = self.task_of(place, read)?.map_or(1, |task| task.epoch);
                    self.start(place, epoch);
                }
            // Recorded once, and not at each look while the subtask waits.
            } else if self.newly_ready.contains(&place) {
                self.change(place, SubtaskState::Ready, None);
            } else {
                // It waits for a slot now, and for no time.
                self.plan.subtasks[place].retry_at = None;
            }
        }
        Ok(())
    }

    /// Starts an attempt. The first one of a round creates the task, at epoch 1. A later one continues the task at its present
    /// epoch.
    fn start(&mut self, place: usize, epoch: u64) {
        let round = self.plan.round;
        let reassignments = self.plan.subtasks[place].reassignments;
        let of = Attempted { submission: self.plan.submission, place, element: None, round, reassignments };
        self.plan.subtasks[place].begin(round, self.now, |attempt, now| attempt_id(of, attempt, now));
        self.change(place, SubtaskState::HandingOff, None);
        let assigned_to = self.plan.subtasks[place].assigned_to.clone();
        self.order(
            Work { place, is_compensation: false, element: None, assigned_to },
            epoch,
            &self.plan.subtasks[place].clone(),
        );
    }

    /// Orders the request of the attempt that has just begun.
    fn order(&mut self, work: Work, epoch: u64, run: &SubtaskRun) {
        let Work { place, is_compensation, element, assigned_to } = work;
        let Some(id) = run.handoff else { return };
        self.effects.push(Effect::Order(Order::Subtask(Box::new(SubtaskOrder {
            id,
            plan: self.plan.id.clone(),
            place,
            is_compensation,
            element,
            assigned_to,
            epoch,
            round: run.task_round,
            attempt: run.attempts,
            submitter: self.plan.submitter.clone(),
            submission_digest: self.plan.submission_digest,
            signed_digest: self.plan.signed_digest(place),
            tried: run.tried.clone(),
        }))));
    }
}

/// The work of an order.
struct Work {
    place: usize,
    is_compensation: bool,
    element: Option<usize>,
    assigned_to: Option<String>,
}

/// What the id of an attempt's handoff is made of, beside the attempt and its time.
#[derive(Clone, Copy)]
struct Attempted {
    submission: MessageId,
    place: usize,
    element: Option<usize>,
    round: u32,
    reassignments: u32,
}

/// The id of an attempt's handoff: a UUID of version 7 with this time, and the random part of the submission's id, in
/// which the subtask, the element, the round, the attempt and its reassignments change seven bytes. So each attempt of a plan
/// has an id of its own.
fn attempt_id(of: Attempted, attempt: u32, now: Timestamp) -> MessageId {
    let Attempted { submission, place, element, round, reassignments } = of;
    let mut bytes = *submission.as_bytes();
    let milliseconds = u64::try_from(now.unix_milliseconds()).unwrap_or(0).to_be_bytes();
    bytes[..6].copy_from_slice(&milliseconds[2..]);
    bytes[6] = 0x70 | (bytes[6] & 0x0f);
    bytes[8] = 0x80 | (bytes[8] & 0x3f);
    let two = |number: usize| u16::try_from(number).unwrap_or(u16::MAX).to_be_bytes();
    let (place, element) = (two(place), two(element.map_or(0, |index| index + 1)));
    let low = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
    let own = [low(reassignments), element[0], element[1], place[0], place[1], low(round), low(attempt)];
    for (at, own) in own.into_iter().enumerate() {
        bytes[9 + at] ^= own;
    }
    MessageId::from_bytes(bytes)
}

#[cfg(test)]
mod tests;
