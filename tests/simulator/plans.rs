//! Law 13: no subtask starts before its dependencies have completed; at most `max_concurrency` run; each result is
//! recorded once; every plan ends within its whole timeout, and then no agent owns one of its tasks. A plan that fails undoes
//! each completed subtask with a compensation, one at a time, the latest first; no result is undone twice.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use baton_broker_core::{
    domain::plan::{Comparison, Mode, Plan, PlanState, Spec, SubtaskState},
    ids::{AgentId, PlanId, TaskId},
    proto::v1::{self, plan_entry::Event},
    records::{PlanEntryRecord, PlanRecord, PlanSpecRecord},
    store::{Change, Record, Table},
    time::Timestamp,
};

/// The owner, the epoch, and whether the task has ended.
type Tasks = HashMap<TaskId, (AgentId, u64, bool)>;

/// The plans as stored.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    plans: BTreeMap<PlanId, Arc<Plan>>,
    specs: BTreeMap<PlanId, Arc<Spec>>,
    /// Of each round that runs: its start, its whole timeout, and the unobserved time at its start.
    began: BTreeMap<(PlanId, u32), (Timestamp, Duration, Duration)>,
    /// The subtasks with a result in the log, by round.
    results: HashSet<(PlanId, u32, String)>,
    /// The results that a compensation has undone, by their entries of the log.
    undone: HashSet<(PlanId, u64)>,
    /// The elements with a result: the plan, the subtask, the round of the task, and the place in the list.
    elements: HashSet<(PlanId, String, u32, u32)>,
}

impl Plans {
    /// Checks a durable change at this real time, with this sum of unobserved times.
    pub(crate) fn see_change(
        &mut self,
        change: &Change,
        befores: &[Option<Record>],
        (real, unseen): (Timestamp, Duration),
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        let id_of = |key: &[u8]| PlanId::parse(std::str::from_utf8(key).unwrap()).unwrap();
        let mut entries: BTreeMap<PlanId, Vec<v1::PlanEntry>> = BTreeMap::new();
        let mut written = Vec::new();
        for (write, before) in change.writes.iter().zip(befores) {
            let key = &write.key.key;
            match (write.key.table, &write.record) {
                (Table::PlanSpecs, Some(record)) => {
                    self.specs.insert(id_of(key), PlanSpecRecord::decode(&record.value).unwrap().0);
                }
                (Table::Plans, Some(record)) => written.push(PlanRecord::decode(&record.value).unwrap().plan),
                (Table::Plans, None) => {
                    let gone = PlanRecord::decode(&before.as_ref().unwrap().value).unwrap().plan;
                    assert!(gone.state.is_final(), "{} was removed while it ran", gone.id);
                    self.plans.remove(&gone.id);
                    self.results.retain(|(plan, ..)| *plan != gone.id);
                    self.undone.retain(|(plan, _)| *plan != gone.id);
                    self.elements.retain(|(plan, ..)| *plan != gone.id);
                    *counts.entry("plans removed").or_default() += 1;
                }
                (Table::PlanLog, Some(record)) => {
                    let entry = PlanEntryRecord::message(&record.value).unwrap();
                    entries.entry(id_of(&key[..key.len() - 9])).or_default().push(entry);
                }
                _ => {}
            }
        }
        for plan in written {
            self.see_plan(&plan, entries.remove(&plan.id).unwrap_or_default(), (real, unseen), counts);
        }
        assert!(entries.is_empty(), "an entry of a plan without its plan: {entries:?}");
    }

    fn see_plan(
        &mut self,
        plan: &Arc<Plan>,
        mut entries: Vec<v1::PlanEntry>,
        (real, unseen): (Timestamp, Duration),
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        let spec = self.specs[&plan.id].clone();
        let before = self.plans.insert(plan.id.clone(), plan.clone());
        let before = before.as_deref();
        entries.sort_by_key(|entry| entry.number);
        let logged = before.map_or(0, |before| before.log_length);
        assert!(
            entries.iter().map(|entry| entry.number).eq(logged + 1..=plan.log_length),
            "the log of {} has a gap or an entry twice",
            plan.id
        );
        for entry in &entries {
            let Some(Event::Subtask(change)) = &entry.event else { continue };
            if change.result.is_some() {
                let is_first = self.results.insert((plan.id.clone(), plan.round, change.subtask_id.clone()));
                assert!(is_first, "law 13: {} of {} has two results", change.subtask_id, plan.id);
            }
        }
        if let Some(before) = before {
            let retries = entries.iter().filter(|entry| matches!(entry.event, Some(Event::Retried(_)))).count();
            assert_eq!(plan.round as usize, before.round as usize + retries, "law 13: the rounds of {}", plan.id);
            let goes_on = before.state.is_final() && retries == 1;
            assert!(
                !before.state.is_final() || goes_on || plan.state == before.state,
                "law 4: {} goes on after its end",
                plan.id
            );
            *counts.entry("PLAN RETRIED").or_default() += retries as u64;
        }
        self.see_growth(plan, &spec, before, &entries, counts);
        let elements = plan.elements.iter().map(|element| &element.run);
        let active = plan.subtasks.iter().chain(elements).filter(|run| run.holds_slot()).count();
        assert!(active <= spec.terms.max_concurrency as usize, "law 13: {active} subtasks of {} run", plan.id);
        self.see_compensations(plan, &spec, before, &entries, counts);
        let was_undone = |place: usize| {
            let mut undoing = before.into_iter().flat_map(|before| &before.compensations);
            undoing.any(|known| known.of == place && known.run.state == SubtaskState::Completed)
        };
        for (place, subtask) in plan.subtasks.iter().enumerate() {
            let former = before.and_then(|before| before.subtasks.get(place));
            assert!(
                former.is_none_or(|former| former.state != SubtaskState::Completed)
                    || subtask.state == SubtaskState::Completed
                    || plan.round > before.map_or(0, |before| before.round) && was_undone(place),
                "law 4: a completed subtask of {} runs again",
                plan.id
            );
            // A subtask over an empty list completes at once, with another result.
            let is_retried = before.is_some_and(|before| plan.round > before.round) && was_undone(place);
            let keeps_result = former.is_some_and(|former| former.result == subtask.result);
            assert!(
                !is_retried || subtask.state != SubtaskState::Completed || !keeps_result,
                "law 13: {} of {} was undone, and a retry keeps its result",
                spec.subtasks[place].id,
                plan.id
            );
            *counts.entry("UNDONE, AND RETRIED").or_default() += u64::from(is_retried);
            assert!(subtask.attempts <= spec.subtasks[place].attempts_max, "law 13: too many attempts in {}", plan.id);
            if subtask.is_excluded() {
                assert_eq!(subtask.attempts, 0, "law 13: {} of {} ran", spec.subtasks[place].id, plan.id);
                let is_new = former.is_none_or(|former| !former.is_excluded());
                *counts.entry("SUBTASK EXCLUDED").or_default() += u64::from(is_new);
            }
            let is_new = former.is_none_or(|former| {
                former.handoff != subtask.handoff || subtask.elements.is_some() && former.elements.is_none()
            });
            let has_started = subtask.state.is_active() && is_new;
            for need in needs(&spec, place).filter(|_| has_started) {
                let state = plan.subtasks[need].state;
                let is_met = state == SubtaskState::Completed
                    || spec.subtasks[need].is_optional && state.is_final()
                    || plan.subtasks[need].is_excluded();
                assert!(is_met, "law 13: {} of {} started before what it needs", spec.subtasks[place].id, plan.id);
            }
            if let Some(when) = spec.subtasks[place].when.as_ref().filter(|_| has_started) {
                let other = &plan.subtasks[spec.place(&when.subtask).unwrap()];
                let number = other.numeric_value.filter(|_| other.state == SubtaskState::Completed);
                let Comparison::Less(bound) = when.comparison else { unreachable!("all plans compare with less") };
                let holds = number.is_some_and(|number| number < bound) != when.is_negated;
                assert!(holds, "law 13: {} of {} runs against its condition", spec.subtasks[place].id, plan.id);
            }
        }
        let undoing = plan.compensations.iter().map(|known| &known.run);
        let is_over = plan.subtasks.iter().chain(undoing).all(|subtask| subtask.state.is_final());
        assert_eq!(plan.state.is_final(), is_over, "law 13: {} ends with its last subtask", plan.id);
        if plan.state.is_final() {
            self.began.retain(|(id, _), _| *id != plan.id);
            if before.is_none_or(|before| !before.state.is_final()) {
                *counts.entry(end_of(plan.state)).or_default() += 1;
            }
        } else {
            let round = (plan.id.clone(), plan.round);
            let start = (real, spec.terms.whole_timeout, unseen);
            // A plan that begins to compensate has its whole time anew.
            if before.is_some_and(|before| before.compensations.is_empty() && !plan.compensations.is_empty()) {
                self.began.retain(|(id, _), _| *id != plan.id);
                self.began.insert(round, start);
            } else {
                self.began.entry(round).or_insert(start);
            }
        }
    }

    /// Extensions only add, and each element of a list has one result, which is in the result of its subtask.
    fn see_growth(
        &mut self,
        plan: &Plan,
        spec: &Spec,
        before: Option<&Plan>,
        entries: &[v1::PlanEntry],
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        assert_eq!(plan.subtasks.len(), spec.subtasks.len(), "law 13: {} has other subtasks than its spec", plan.id);
        let former = before.map_or(plan.subtasks.len(), |before| before.subtasks.len());
        let mut added = 0;
        for entry in entries {
            match &entry.event {
                Some(Event::Extended(extended)) => {
                    added += extended.subtask_ids.len();
                    *counts.entry("PLAN EXTENDED").or_default() += 1;
                }
                Some(Event::Element(change)) if change.state() == v1::SubtaskState::Completed => {
                    let key = (plan.id.clone(), change.subtask_id.clone(), change.task_round, change.element.unwrap());
                    let is_first = self.elements.insert(key);
                    assert!(is_first, "law 13: an element of {} of {} has two results", change.subtask_id, plan.id);
                    *counts.entry("ELEMENT COMPLETED").or_default() += 1;
                }
                Some(Event::Subtask(change)) if change.result.is_some() => {
                    let place = spec.place(&change.subtask_id).unwrap();
                    let Some(many) = plan.subtasks[place].elements else { continue };
                    let json = &change.result.as_ref().unwrap().result_json;
                    let result: serde_json::Value = serde_json::from_str(json).unwrap();
                    let listed = result["results"].as_array().unwrap();
                    assert_eq!(listed.len(), many as usize, "law 13: the list of {} of {}", change.subtask_id, plan.id);
                    let is_whole = listed.iter().all(|result| !result.is_null());
                    assert!(
                        is_whole || spec.subtasks[place].is_optional,
                        "law 13: a result of {} is left out",
                        plan.id
                    );
                    *counts.entry("LIST COMPLETED").or_default() += 1;
                }
                Some(Event::Reassigned(_)) => *counts.entry("SUBTASK REASSIGNED").or_default() += 1,
                _ => {}
            }
        }
        assert_eq!(plan.subtasks.len(), former + added, "law 13: the subtasks of {}", plan.id);
        for element in &plan.elements {
            let run = &plan.subtasks[element.of];
            assert!(run.state == SubtaskState::Running && run.elements.is_some(), "law 13: an element of {}", plan.id);
            let most = spec.subtasks[element.of].attempts_max;
            assert!(element.run.attempts <= most, "law 13: too many attempts of an element of {}", plan.id);
        }
    }

    fn see_compensations(
        &mut self,
        plan: &Plan,
        spec: &Spec,
        before: Option<&Plan>,
        entries: &[v1::PlanEntry],
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        let undoing = &plan.compensations;
        let undoable = |place: usize| {
            plan.subtasks[place].state == SubtaskState::Completed && spec.subtasks[place].compensate.is_some()
        };
        // A retry forgets the compensations of the round before, so the entries are those of the round that ends here.
        for entry in entries {
            let Some(Event::Compensation(change)) = &entry.event else { continue };
            if change.state() == v1::SubtaskState::Completed {
                let place = spec.place(&change.subtask_id).expect("a compensation is of a subtask");
                let result = plan.subtasks[place].result.expect("only what has completed is undone");
                let is_first = self.undone.insert((plan.id.clone(), result));
                assert!(is_first, "law 13: {} of {} is undone twice", change.subtask_id, plan.id);
                *counts.entry("COMPENSATION COMPLETED").or_default() += 1;
            }
        }
        let former = before.map(|before| &before.compensations[..]).unwrap_or_default();
        let is_new = former.is_empty() && !undoing.is_empty();
        let begins = before.is_none_or(|before| before.round == plan.round) && is_new;
        assert!(former.is_empty() || undoing.is_empty() || former.len() == undoing.len());
        if begins {
            assert_eq!(plan.ending.or(Some(plan.state)), Some(PlanState::Failed), "law 13: {} undoes", plan.id);
            let expected = (0..spec.subtasks.len()).filter(|place| undoable(*place)).count();
            assert_eq!(undoing.len(), expected, "law 13: {} does not undo all", plan.id);
        }
        let results: Vec<Option<u64>> = undoing.iter().map(|known| plan.subtasks[known.of].result).collect();
        assert!(results.is_sorted_by(|one, other| one > other), "law 13: {} undoes out of order", plan.id);
        // All before the first that has not ended have ended, and all behind it have not begun.
        let mut waiting = undoing.iter().skip_while(|known| known.run.state.is_final()).skip(1);
        let is_early = waiting.any(|known| known.run.state != SubtaskState::Pending);
        assert!(!is_early, "law 13: two compensations of {} run at once", plan.id);
        for known in undoing {
            let most = spec.work(known.of, true).attempts_max;
            assert!(known.run.attempts <= most, "law 13: too many attempts to undo in {}", plan.id);
        }
        let ends_failed = plan.state == PlanState::Failed && before.is_none_or(|before| !before.state.is_final());
        if ends_failed {
            let expected = (0..spec.subtasks.len()).filter(|place| undoable(*place)).count();
            assert_eq!(undoing.len(), expected, "law 13: {} has failed and does not undo all", plan.id);
        }
        let undoes = plan.state.is_final() && plan.state != PlanState::Failed && !undoing.is_empty();
        assert!(!undoes, "law 13: {} undoes and has not failed", plan.id);
    }

    /// Checks the plans after the broker has processed all deadlines up to this time.
    pub(crate) fn see_time(&self, (real, unseen): (Timestamp, Duration), tasks: &Tasks) {
        let late = self
            .began
            .iter()
            .find(|(_, (began, whole, unseen_then))| began.plus(*whole).plus(unseen - *unseen_then) <= real);
        assert_eq!(late, None, "law 13: a plan has outlived its whole time");
        for plan in self.plans.values().filter(|plan| plan.state.is_final()) {
            let first = TaskId::of_subtask(&plan.submission_digest, "", 1);
            // Of all rounds: that of a later one is behind a dash.
            let prefix = first.as_str().trim_end_matches('.');
            let of_plan = tasks.iter().filter(|(task, _)| task.as_str().starts_with(prefix));
            for (task, (owner, _, is_final)) in of_plan {
                assert!(owner.is_coordinator() && *is_final, "law 13: {owner} owns {task} after the end of its plan");
            }
        }
    }

    /// Checks long after the last fault that every plan has ended.
    pub(crate) fn see_end(&self) {
        let running = self.plans.values().find(|plan| !plan.state.is_final());
        assert!(running.is_none(), "law 13: {running:?} runs for ever");
    }

    /// The stored plans, and whether each has ended.
    pub(crate) fn known(&self) -> Vec<(PlanId, bool)> {
        self.plans.values().map(|plan| (plan.id.clone(), plan.state.is_final())).collect()
    }

    /// The plans that have failed and undone a subtask.
    pub(crate) fn undone(&self) -> Vec<PlanId> {
        let has_undone = |plan: &&Arc<Plan>| {
            plan.state == PlanState::Failed
                && plan.compensations.iter().any(|known| known.run.state == SubtaskState::Completed)
        };
        self.plans.values().filter(has_undone).map(|plan| plan.id.clone()).collect()
    }

    /// The ids of the subtasks of a plan.
    pub(crate) fn subtasks(&self, plan: &PlanId) -> Vec<String> {
        let spec = self.specs.get(plan);
        spec.map(|spec| spec.subtasks.iter().map(|subtask| subtask.id.clone()).collect()).unwrap_or_default()
    }
}

/// The subtasks that this one needs, as the plan says.
fn needs(spec: &Spec, place: usize) -> impl Iterator<Item = usize> {
    let named = &spec.subtasks[place].dependencies;
    let is_before = move |other: usize| spec.mode == Mode::Sequential && other + 1 == place;
    (0..spec.subtasks.len()).filter(move |other| is_before(*other) || named.contains(&spec.subtasks[*other].id))
}

fn end_of(state: PlanState) -> &'static str {
    match state {
        PlanState::Running => "PLAN RUNNING",
        PlanState::Completed => "PLAN COMPLETED",
        PlanState::Failed => "PLAN FAILED",
        PlanState::Cancelled => "PLAN CANCELLED",
    }
}
