//! The elements of a list: parts of a subtask with a task each, and one result (SPEC 9).
//!
//! A subtask with a list is RUNNING without a handoff while its elements run. An element that fails ends the subtask once the
//! other elements have ended; in an optional subtask the others go on.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    Attempted, Event, PlanSignal, PlanState, Report, SubtaskRun, SubtaskState, TransitionBuilder, Work, attempt_id,
    cut, hearing, read_task,
};
use crate::{
    ReadError, Reader, StepError, Transition,
    codes::ErrorCode,
    handoff::{Task, TaskStatus},
    plan::{
        ElementRun, Subtask,
        machine::Heard,
        spec::{ELEMENTS_MAX, LISTS_MAX},
    },
};

/// The most bytes of the list of results: those of any result.
const LIST_BYTES_MAX: usize = 256 * 1024;
/// The bytes of the list that are kept for the marks of elements whose results do not fit.
const MARK_BYTES_MAX: usize = 64;
/// The most bytes of the responses of all elements together.
const RESPONSES_BYTES_MAX: usize = 64 * 1024;

impl TransitionBuilder {
    /// Gets the list of a READY subtask, or ends a RUNNING one whose elements have ended.
    pub(super) fn work_on_list(&mut self, place: usize, read: &mut dyn Reader) -> Result<(), ReadError> {
        let run = &self.plan.subtasks[place];
        match (run.state, run.elements) {
            (SubtaskState::Ready, None) => self.spread(place, read),
            (SubtaskState::Running, Some(_)) => self.gather(place, read),
            _ => Ok(()),
        }
    }

    /// The lists that are worked on. Their elements are a part of the plan's record, which each step writes.
    fn open_lists(&self) -> usize {
        self.plan.subtasks.iter().filter(|run| run.elements.is_some() && !run.state.is_final()).count()
    }

    /// Whether a subtask waits to get its list, and can get it.
    pub(super) fn has_room_for_list(&self) -> bool {
        let waits = |(run, subtask): (&SubtaskRun, &Subtask)| {
            run.state == SubtaskState::Ready && run.elements.is_none() && subtask.for_each.is_some()
        };
        self.plan.subtasks.iter().zip(&self.spec.subtasks).any(waits) && self.open_lists() < LISTS_MAX
    }

    fn spread(&mut self, place: usize, read: &mut dyn Reader) -> Result<(), ReadError> {
        if self.open_lists() >= LISTS_MAX {
            return Ok(());
        }
        let spec = self.spec.clone();
        let Some(for_each) = &spec.subtasks[place].for_each else { return Ok(()) };
        let other = spec.place(&for_each.subtask);
        let report = match other.and_then(|other| self.plan.subtasks[other].result) {
            Some(number) => self.report(number, read)?,
            None => None,
        };
        let pointer = &for_each.pointer;
        let many = match for_each.elements(report.as_ref(), ELEMENTS_MAX + 1).map(|elements| elements.len()) {
            Some(many) if many <= ELEMENTS_MAX => many,
            Some(_) => {
                let cause = format!("{pointer} of {} has more than {ELEMENTS_MAX} elements", for_each.subtask);
                self.end(place, SubtaskState::Failed, Some(ErrorCode::ForEachInvalid), &cause);
                return Ok(());
            }
            None => {
                let cause = format!("{pointer} of {} is no list", for_each.subtask);
                self.end(place, SubtaskState::Failed, Some(ErrorCode::ForEachInvalid), &cause);
                return Ok(());
            }
        };
        let run = &mut self.plan.subtasks[place];
        (run.elements, run.started_at, run.attempts) = (u32::try_from(many).ok(), Some(self.now), 1);
        let ready = SubtaskRun { state: SubtaskState::Ready, ..SubtaskRun::pending(self.now) };
        self.plan.elements.extend((0..many).map(|index| ElementRun {
            of: place,
            index,
            run: ready.clone(),
            bytes: 0,
            tokens: 0,
            is_success: false,
        }));
        self.change(place, SubtaskState::Running, None);
        self.gather(place, read)
    }

    /// Ends a subtask whose elements have all ended.
    fn gather(&mut self, place: usize, read: &mut dyn Reader) -> Result<(), ReadError> {
        let ends_as = self.plan.subtasks[place].ends_as;
        if ends_as.is_some() {
            let reason = self.plan.subtasks[place].cause.clone();
            if !self.stop_elements(Some(place), PlanState::Cancelled, &reason, read)? {
                return Ok(());
            }
        }
        let mut elements = self.plan.elements.iter().filter(|element| element.of == place);
        if !elements.all(|element| element.run.state.is_final()) {
            return Ok(());
        }
        match ends_as {
            Some(state) => {
                self.forget_elements(place);
                self.change(place, state, None);
            }
            None => {
                let report = self.list_of_results(place, read)?;
                self.forget_elements(place);
                (self.plan.subtasks[place].code, self.plan.subtasks[place].cause) = (None, String::new());
                self.change(place, SubtaskState::Completed, Some(report));
            }
        }
        Ok(())
    }

    /// Starts elements of a subtask as slots permit.
    pub(super) fn start_elements(
        &mut self,
        place: usize,
        active: &mut usize,
        most: usize,
        read: &mut dyn Reader,
    ) -> Result<(), ReadError> {
        for at in 0..self.plan.elements.len() {
            let ElementRun { of, run, .. } = &self.plan.elements[at];
            let waits = run.retry_at.is_some_and(|at| at > self.now);
            if *of != place || run.state != SubtaskState::Ready || waits {
                continue;
            }
            if *active >= most {
                // It waits for a slot now, and for no time.
                self.plan.elements[at].run.retry_at = None;
                continue;
            }
            *active += 1;
            self.plan.goes_on |= self.has_enough_orders();
            if !self.plan.goes_on {
                self.start_element(at, read)?;
            }
        }
        Ok(())
    }

    fn start_element(&mut self, at: usize, read: &mut dyn Reader) -> Result<(), ReadError> {
        let (submission, round) = (self.plan.submission, self.plan.round);
        let ElementRun { of, index, run, .. } = &mut self.plan.elements[at];
        let (place, element) = (*of, Some(*index));
        let attempted = Attempted { submission, place, element, round, reassignments: 0 };
        run.begin(round, self.now, |attempt, now| attempt_id(attempted, attempt, now));
        let epoch = self.task_of_element(at, read)?.map_or(1, |task| task.epoch);
        self.change_element(at, SubtaskState::HandingOff, None);
        let assigned_to = self.plan.subtasks[place].assigned_to.clone();
        let work = Work { place, is_compensation: false, element, assigned_to };
        self.order(work, epoch, &self.plan.elements[at].run.clone());
        Ok(())
    }

    /// Applies a word about the latest attempt of an element.
    pub(super) fn on_element(
        mut self,
        at: usize,
        signal: &PlanSignal,
        read: &mut dyn Reader,
    ) -> Result<Transition, StepError> {
        let state = self.plan.elements[at].run.state;
        match hearing::heard(signal, state, read)? {
            None => return Ok(Transition::default()),
            Some(Heard::Taken { owner, due }) => {
                let run = &mut self.plan.elements[at].run;
                (run.agent, run.deadline) = (Some(owner), due);
                self.change_element(at, SubtaskState::Running, None);
            }
            Some(Heard::Failed(failure)) => {
                let ElementRun { of, index, run, .. } = &mut self.plan.elements[at];
                let (of, index) = (*of, *index);
                run.attempts -= u32::from(failure.has_waited && run.attempts > 0);
                if run.fail(&failure, self.spec.subtasks[of].attempts_max, self.now) {
                    self.change_element(at, SubtaskState::Ready, None);
                } else {
                    if let Some(task) = self.task_of_element(at, read)? {
                        self.stop_task(&task, TaskStatus::Failed, &failure.text, read)?;
                    }
                    self.change_element(at, failure.state, None);
                    let subtask = &mut self.plan.subtasks[of];
                    if !self.spec.subtasks[of].is_optional && subtask.ends_as.is_none() {
                        let cause = format!("element {index}: {}", failure.text);
                        subtask.ends_as = Some(failure.state);
                        (subtask.code, subtask.cause) = (Some(failure.code), cut(&cause));
                    }
                }
            }
            Some(Heard::Completed(report)) => self.complete_element(at, report, read)?,
        }
        self.go_on(read)?;
        Ok(self.done())
    }

    fn complete_element(&mut self, at: usize, mut report: Report, read: &mut dyn Reader) -> Result<(), ReadError> {
        self.find_number(&mut report);
        let task = self.task_of_element(at, read)?;
        self.end_completed(task.as_deref());
        let ElementRun { of, index, run, bytes, tokens, is_success } = &mut self.plan.elements[at];
        let (of, index) = (*of, *index);
        (*bytes, *tokens, *is_success) = (text_of(&report).len(), report.tokens, report.success);
        (run.code, run.cause, run.numeric_value) = (None, String::new(), report.numeric_value);
        self.append(of, Some(index), &report);
        self.change_element(at, SubtaskState::Completed, Some(report));
        Ok(())
    }

    /// The result of a subtask from those of its elements. Reads no more of them than the list has room for.
    fn list_of_results(&self, place: usize, read: &mut dyn Reader) -> Result<Report, ReadError> {
        let mut elements: Vec<&ElementRun> = self.plan.elements.iter().filter(|element| element.of == place).collect();
        elements.sort_by_key(|element| element.index);
        let mut left = LIST_BYTES_MAX - r#"{"results":[]}"#.len() - elements.len() * MARK_BYTES_MAX;
        let (mut texts, mut responses, mut tools) = (Vec::new(), String::new(), BTreeSet::new());
        for element in &elements {
            let Some(number) = element.run.result else {
                texts.push("null".to_owned());
                continue;
            };
            let report = match left.checked_sub(element.bytes) {
                Some(rest) => {
                    left = rest;
                    self.report(number, read)?
                }
                None => None,
            };
            texts.push(match report {
                Some(report) => {
                    if responses.len() + report.response.len() < RESPONSES_BYTES_MAX {
                        let line = if responses.is_empty() { "" } else { "\n" };
                        responses.push_str(line);
                        responses.push_str(&report.response);
                    }
                    let text = text_of(&report);
                    tools.extend(report.tools_used);
                    text
                }
                None => format!(r#"{{"omitted":true,"log_entry":{number}}}"#),
            });
        }
        Ok(Report {
            response: responses,
            tokens: elements.iter().fold(0, |sum, element| sum.saturating_add(element.tokens)),
            success: elements.iter().all(|element| element.is_success),
            tools_used: tools.into_iter().collect(),
            numeric_value: None,
            result: format!(r#"{{"results":[{}]}}"#, texts.join(",")),
            summary: String::new(),
        })
    }

    /// Ends elements with their tasks, of this subtask or of all, as many as one step may. Returns whether all have ended.
    pub(super) fn stop_elements(
        &mut self,
        place: Option<usize>,
        state: PlanState,
        reason: &str,
        read: &mut dyn Reader,
    ) -> Result<bool, ReadError> {
        for at in 0..self.plan.elements.len() {
            let ElementRun { of, run, .. } = &self.plan.elements[at];
            if place.is_some_and(|place| place != *of) || run.state.is_final() {
                continue;
            }
            let has_begun = run.attempts > 0 || run.task_round > 0;
            if self.has_enough_orders() {
                self.plan.goes_on = true;
                return Ok(false);
            }
            let (status, ended, code) = match state {
                PlanState::Cancelled => (TaskStatus::Canceled, SubtaskState::Cancelled, None),
                PlanState::Running | PlanState::Completed | PlanState::Failed if has_begun => {
                    (TaskStatus::Failed, SubtaskState::TimedOut, Some(ErrorCode::WholeTimeout))
                }
                PlanState::Running | PlanState::Completed | PlanState::Failed => {
                    (TaskStatus::Failed, SubtaskState::Skipped, Some(ErrorCode::WholeTimeout))
                }
            };
            if let Some(task) = self.task_of_element(at, read)? {
                self.stop_task(&task, status, reason, read)?;
            }
            let run = &mut self.plan.elements[at].run;
            (run.code, run.cause) = (code, cut(reason));
            self.change_element(at, ended, None);
        }
        Ok(true)
    }

    /// Forgets the elements of a subtask that ends. Their results are in the log.
    pub(super) fn forget_elements(&mut self, place: usize) {
        let of_place = |element: &mut ElementRun| element.of == place;
        let forgotten: Vec<ElementRun> = self.plan.elements.extract_if(.., of_place).collect();
        for element in forgotten {
            self.plan.subtasks[place].remember(element.run);
        }
    }

    /// Sets the state of an element, and records it.
    fn change_element(&mut self, at: usize, state: SubtaskState, report: Option<Report>) {
        let ElementRun { of, index, run, .. } = &mut self.plan.elements[at];
        run.enter(state, self.now);
        let is_result = report.is_some();
        let mut change = run.change(&self.spec.subtasks[*of].id, report);
        change.element = u32::try_from(*index).ok();
        let of = *of;
        let number = self.log(Event::Element(Box::new(change)));
        self.restart_clocks(of);
        if is_result {
            self.plan.elements[at].run.result = Some(number);
        }
    }

    fn task_of_element(&self, at: usize, read: &mut dyn Reader) -> Result<Option<Arc<Task>>, ReadError> {
        let Some(id) = self.plan.element_task_id(&self.spec, &self.plan.elements[at]) else { return Ok(None) };
        Ok(read_task(read, &id)?.filter(|task| !task.status.is_final()))
    }
}

/// The result of an element in the list of results.
fn text_of(report: &Report) -> String {
    match report.result.trim_ascii() {
        "" => format!(r#"{{"response":{}}}"#, serde_json::Value::from(report.response.as_str())),
        text => text.to_owned(),
    }
}
