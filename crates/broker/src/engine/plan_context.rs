//! The context of a subtask: its inputs, and the results that it gets, within the bytes of a payload.

use std::collections::BTreeMap;

use fixedbitset::FixedBitSet;
use prost::Message as _;
use serde_json::{Value, json};

use super::{
    Engine,
    plan_reports::{number_text, result_text},
    transaction::Transaction,
};
use crate::{
    BrokerError,
    domain::{
        EntityId,
        handoff::Task,
        plan::{CompensationRun, ElementRun, Event, Mode, Plan, Spec},
    },
    envelope::{self, PAYLOAD_BYTES_MAX},
    proto::v1,
    records::EntityRecord,
};

/// The most bytes of all results in the context of a subtask. Those beyond it are left out, and marked so.
const RESULTS_BYTES_MAX: usize = 640 * 1024;
/// The bytes of a context that are kept for the marks of results which are left out: one for each direct dependency, and
/// one for each earlier subtask.
const MARKS_BYTES_MAX: usize = 128 * 1024;
/// The bytes of a context that are kept for the names and digests of its sections.
const NAMES_BYTES_MAX: usize = 16 * 1024;

/// The bytes that are left in the context of a subtask.
struct Room {
    /// For results.
    results: usize,
    /// For the marks of results that are left out.
    marks: usize,
    /// The results that were looked at, by subtask. A result is large, and one that many topics have is read again only
    /// where it fits.
    known: BTreeMap<usize, Known>,
}

/// A result that was looked at.
struct Known {
    /// The bytes that it takes in the context.
    bytes: usize,
    /// What stands for it where it is left out.
    mark: String,
    mark_bytes: usize,
}

impl Engine {
    /// The context of a subtask: what is to be done, and the results that it gets.
    pub(super) fn plan_context(
        &mut self,
        transaction: &mut Transaction,
        task: &Task,
    ) -> Result<v1::TaskContextTransfer, BrokerError> {
        let of = task.plan.as_ref().ok_or(BrokerError::Internal)?;
        let (plan, spec) = self.plan_of_task(transaction, &of.plan)?;
        let place = spec.place(&of.subtask).ok_or(BrokerError::Internal)?;
        let is_it = |known: &&CompensationRun| plan.compensation_task_id(&spec, known).as_ref() == Some(&task.id);
        let compensation = plan.compensations.iter().find(is_it);
        let is_element = |known: &&ElementRun| plan.element_task_id(&spec, known).as_ref() == Some(&task.id);
        let element = plan.elements.iter().find(is_element);
        let of_part = compensation.map(|known| &known.run).or(element.map(|known| &known.run));
        let (subtask, run) = (spec.work(place, compensation.is_some()), of_part.unwrap_or(&plan.subtasks[place]));
        let mut description = json!({
            "description": subtask.description,
            "role": subtask.role,
            "task_id": task.id.as_str(),
            "plan_id": plan.id.as_str(),
            "subtask_id": subtask.id,
            "attempt": run.attempts,
        });
        if compensation.is_some() {
            description["compensates"] = subtask.id.as_str().into();
        }
        if let Some(element) = element {
            description["element"] = element.index.into();
        }
        let mut sections = vec![section("task_description", description.to_string())];
        if let Some(element) = element {
            sections.push(section("element", self.element_text(transaction, &plan, &spec, element)?));
        }
        let inputs = [("input", &subtask.input), ("plan_input", &spec.input)];
        sections.extend(
            inputs.iter().filter(|(_, text)| !text.is_empty()).map(|(name, text)| section(name, (*text).clone())),
        );
        let others: usize = sections.iter().map(v1::ContextSection::encoded_len).sum();
        // A topic is a key of the section of consumed results, with the braces around its own results.
        let topics: usize =
            subtask.consumes.iter().map(|topic| Value::from(topic.as_str()).to_string().len() + 4).sum();
        // The role and the id stand in the object of the subtask once more.
        let again = 8 * (subtask.role.len() + subtask.id.len());
        let room = PAYLOAD_BYTES_MAX.saturating_sub(others + again + topics + MARKS_BYTES_MAX + NAMES_BYTES_MAX);
        let known = BTreeMap::new();
        let mut left = Room { results: room.min(RESULTS_BYTES_MAX), marks: MARKS_BYTES_MAX, known };
        let (terms, links) = (&spec.terms, &spec.links);
        let mut results = |engine: &mut Self, places: &mut dyn Iterator<Item = usize>| {
            results_in(engine, transaction, &plan, &spec, places, &mut left)
        };
        if compensation.is_some() {
            // What is undone says what there is to undo. The other results are of no use for that.
            sections.push(section("dependency_results", results(self, &mut std::iter::once(place))?));
            return Ok(envelope::context_of_sections(sections));
        }
        if spec.mode == Mode::Hybrid && terms.pass_dependency_results {
            let direct = results(self, &mut links.direct[place].iter().copied())?;
            sections.push(section("dependency_results", direct));
        }
        let gets_earlier = spec.mode != Mode::Parallel && terms.pass_results;
        let earlier: FixedBitSet = match spec.mode {
            _ if !gets_earlier => FixedBitSet::new(),
            Mode::Sequential => (0..place).collect(),
            Mode::Hybrid | Mode::Parallel => links.ancestors[place].clone(),
        };
        let mut previous = results(self, &mut earlier.ones())?;
        if gets_earlier {
            sections.push(section("previous_results", previous.clone()));
        }
        if !subtask.consumes.is_empty() {
            let mut consumed = BTreeMap::new();
            for topic in &subtask.consumes {
                let producers = (0..spec.subtasks.len()).filter(|other| spec.subtasks[*other].produces.contains(topic));
                let of_topic = results(self, &mut producers.filter(|other| *other != place))?;
                consumed.insert(&**topic, of_topic);
            }
            sections.push(section("consumed", object(&consumed)));
        }
        // The same results once more, in the object that says all about the subtask. It goes last, so that it takes no room
        // from the others.
        if previous.len() > left.results {
            previous = results_in(self, transaction, &plan, &spec, &mut earlier.ones(), &mut left)?;
        }
        let (role, id) = (Value::from(subtask.role.as_str()).to_string(), Value::from(subtask.id.as_str()).to_string());
        let whole = BTreeMap::from([("role", role), ("task_id", id), ("previous_results", previous)]);
        sections.push(section("subtask", object(&whole)));
        Ok(envelope::context_of_sections(sections))
    }

    /// An element of a list with its place, as JSON.
    fn element_text(
        &mut self,
        transaction: &mut Transaction,
        plan: &Plan,
        spec: &Spec,
        element: &ElementRun,
    ) -> Result<String, BrokerError> {
        let for_each = spec.subtasks[element.of].for_each.as_ref().ok_or(BrokerError::Internal)?;
        let number = spec.place(&for_each.subtask).and_then(|other| plan.subtasks[other].result);
        let number = number.ok_or(BrokerError::Internal)?;
        let entry = self.entity_record(transaction, &EntityId::PlanEntry(plan.id.clone(), number))?;
        let report = match entry.as_deref() {
            Some(EntityRecord::PlanEntry(entry)) => match &entry.0.event {
                Event::Subtask(change) => change.report.as_ref(),
                _ => None,
            },
            _ => None,
        };
        let elements = for_each.elements(report, element.index + 1).unwrap_or_default();
        let value = elements.get(element.index).ok_or(BrokerError::Internal)?;
        let (index, count) = (element.index, plan.subtasks[element.of].elements.unwrap_or_default());
        // The value stays as the agent wrote it: joined and not parsed.
        Ok(format!(r#"{{"index":{index},"count":{count},"value":{value}}}"#))
    }

    /// The result of a subtask as JSON, if it has completed. One that is larger than what is left is marked as omitted.
    /// `None` also where no room is left for the mark.
    fn result_of_attempt(
        &mut self,
        transaction: &mut Transaction,
        plan: &Plan,
        place: usize,
        left: &mut Room,
    ) -> Result<Option<String>, BrokerError> {
        let Some(number) = plan.subtasks[place].result else { return Ok(None) };
        if let Some(known) = left.known.get(&place)
            && known.bytes > left.results
        {
            return Ok(marked(known, &mut left.marks));
        }
        let entry = self.entity_record(transaction, &EntityId::PlanEntry(plan.id.clone(), number))?;
        let Some(EntityRecord::PlanEntry(entry)) = entry.as_deref() else { return Ok(None) };
        let Event::Subtask(change) = &entry.0.event else { return Ok(None) };
        let Some(report) = &change.report else { return Ok(None) };
        let whole = result_text(report, None);
        let size = whole.len();
        // With the id of the subtask in front of it, two quotes, a colon and a comma.
        let with_id = |json: usize| json + change.subtask.len() + 4;
        let number = number_text(report).unwrap_or_else(|| "null".to_owned());
        let success = report.success;
        let mark = format!(r#"{{"omitted":true,"success":{success},"numeric_value":{number},"size_bytes":{size}}}"#);
        let mark_bytes = with_id(mark.len());
        let known = Known { bytes: with_id(size), mark, mark_bytes };
        let result = match left.results.checked_sub(known.bytes) {
            Some(results) => {
                left.results = results;
                Some(whole)
            }
            None => marked(&known, &mut left.marks),
        };
        left.known.insert(place, known);
        Ok(result)
    }
}

/// The results of these subtasks by their ids, as a JSON object.
fn results_in(
    engine: &mut Engine,
    transaction: &mut Transaction,
    plan: &Plan,
    spec: &Spec,
    places: &mut dyn Iterator<Item = usize>,
    left: &mut Room,
) -> Result<String, BrokerError> {
    let mut all = BTreeMap::new();
    for place in places {
        if let Some(result) = engine.result_of_attempt(transaction, plan, place, left)? {
            all.insert(&*spec.subtasks[place].id, result);
        }
    }
    Ok(object(&all))
}

/// The mark of a result that is left out. `None`: no room is left for it.
fn marked(known: &Known, left: &mut usize) -> Option<String> {
    *left = left.checked_sub(known.mark_bytes)?;
    Some(known.mark.clone())
}

/// The JSON object of these members, whose values are JSON. Results are large, so they are joined and not parsed.
fn object(members: &BTreeMap<&str, String>) -> String {
    let mut text = String::from("{");
    for (place, (name, value)) in members.iter().enumerate() {
        if place > 0 {
            text.push(',');
        }
        text.push_str(&Value::from(*name).to_string());
        text.push(':');
        text.push_str(value);
    }
    text.push('}');
    text
}

fn section(name: &str, json: String) -> v1::ContextSection {
    let content = Some(v1::context_section::Content::Json(json));
    v1::ContextSection { name: name.to_owned(), content, ..Default::default() }
}
