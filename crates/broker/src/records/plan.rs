//! Plans (table plans), the plans as submitted (table plan_specs), and their logs (table plan_log); and the lists of plans
//! in table listings.

mod signal;

use std::{collections::BTreeSet, ops::Bound, sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message as _;

pub(super) use self::signal::{decode_signal, encode_signal};
use super::{
    DecodeError, List, LogClock, Reader, TracePlace, by_name, by_name_and_number, id_bytes,
    letter::{process_bytes, process_from},
    moment, number_of, texts,
    trace::{place_from_storage, place_to_storage},
};
use crate::{
    codes::ErrorCode,
    domain::plan::{
        CompensationRun, ElementRun, Event, Extended, Plan, PlanEntry, PlanState, Report, Spec, SubtaskChange,
        SubtaskRun, SubtaskState, Terms,
    },
    envelope,
    ids::{InstanceId, MessageId, PlanId, TaskId},
    proto::{
        storage,
        v1::{self, plan_entry::Event as Stored},
    },
    store::{Key, KeyRange, Table},
    time::Timestamp,
};

fn plan_id(reader: &Reader, text: &str) -> Result<PlanId, DecodeError> {
    PlanId::parse(text).map_err(|error| reader.error(format!("plan id {text:?} {error}")))
}

/// A plan as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanRecord {
    /// The state of the plan's machine.
    pub plan: Arc<Plan>,
    /// The sequence of the submission: its place in lists, and that of its envelope.
    pub sequence: u64,
    /// The pace of the plan's log.
    pub log_clock: LogClock,
    /// The place in a trace.
    pub trace: Option<Box<TracePlace>>,
    /// The process of the submitter that submitted the plan. `None`: it has not said.
    pub submitter_process: Option<InstanceId>,
}

impl PlanRecord {
    /// The key of the record.
    pub fn key(id: &PlanId) -> Key {
        by_name(Table::Plans, id.as_str())
    }

    /// The plan of a value of table listings, or of a key.
    pub fn listed(value: &[u8]) -> Result<PlanId, DecodeError> {
        let reader = Reader("listings");
        plan_id(&reader, std::str::from_utf8(value).map_err(|error| reader.error(error.to_string()))?)
    }

    /// The places of the plan in the lists of all plans and of its participants.
    pub fn listings(&self) -> Vec<Key> {
        let agents = self.plan.participants();
        let lists = agents.iter().map(Some).chain([None]).map(List::of_plans);
        lists.map(|list| Key { table: list.table, key: list.key(self.sequence) }).collect()
    }

    pub(super) fn new_entries(&self, before: Option<&Self>) -> Vec<(Key, Bytes)> {
        // Only a subtask that an agent takes adds a participant, and most steps change none.
        let has_same_agents = |before: &Self| {
            let (former, present) = (&before.plan.subtasks, &self.plan.subtasks);
            let same = |one: &SubtaskRun, other: &SubtaskRun| one.agent == other.agent && one.tried == other.tried;
            let (former_undoing, undoing) = (&before.plan.compensations, &self.plan.compensations);
            let elements = before.plan.elements.iter().zip(&self.plan.elements);
            former.len() == present.len()
                && before.plan.elements.len() == self.plan.elements.len()
                && elements.into_iter().all(|(one, other)| same(&one.run, &other.run))
                && former.iter().zip(present).all(|(one, other)| same(one, other))
                && former_undoing.len() == undoing.len()
                && former_undoing.iter().zip(undoing).all(|(one, other)| same(&one.run, &other.run))
        };
        if before.is_some_and(has_same_agents) {
            return Vec::new();
        }
        let known: BTreeSet<Key> = before.map(Self::listings).unwrap_or_default().into_iter().collect();
        let id = Bytes::copy_from_slice(self.plan.id.as_str().as_bytes());
        self.listings().into_iter().filter(|key| !known.contains(key)).map(|key| (key, id.clone())).collect()
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let plan = &self.plan;
        storage::PlanRecord {
            plan_id: plan.id.to_string(),
            submitter_id: plan.submitter.to_string(),
            submission_id: id_bytes(plan.submission),
            submission_digest: Bytes::copy_from_slice(&plan.submission_digest),
            content_digest: Bytes::copy_from_slice(&plan.content_digest),
            state: plan.state.number(),
            reason: plan.reason.clone(),
            ending: plan.ending.map_or(0, PlanState::number),
            goes_on: plan.goes_on,
            round: plan.round,
            subtasks: plan.subtasks.iter().map(subtask_to_storage).collect(),
            log_length: plan.log_length,
            created_at: plan.created_at.unix_nanoseconds(),
            updated_at: plan.updated_at.unix_nanoseconds(),
            deadline: plan.deadline.unix_nanoseconds(),
            dependency_timeout: nanoseconds(plan.dependency_timeout),
            ended_at: or_zero(plan.ended_at),
            sequence: self.sequence,
            logged_at: self.log_clock.logged_at.unix_nanoseconds(),
            set_back: nanoseconds(self.log_clock.set_back),
            trace: self.trace.as_deref().map(place_to_storage),
            submitter_process: process_bytes(self.submitter_process),
            compensations: plan.compensations.iter().map(compensation_to_storage).collect(),
            elements: plan.elements.iter().map(element_to_storage).collect(),
            extensions: plan.extensions.iter().map(extension_to_storage).collect(),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("plans");
        let stored: storage::PlanRecord = reader.message(value)?;
        let plan = Plan {
            id: plan_id(&reader, &stored.plan_id)?,
            submitter: reader.agent(&stored.submitter_id)?,
            submission: reader.message_id(&stored.submission_id)?,
            submission_digest: reader.digest(&stored.submission_digest)?,
            content_digest: reader.digest(&stored.content_digest)?,
            state: reader.some(PlanState::from_number(stored.state), "state")?,
            reason: stored.reason,
            ending: match stored.ending {
                0 => None,
                number => Some(reader.some(PlanState::from_number(number), "ending")?),
            },
            goes_on: stored.goes_on,
            round: stored.round,
            subtasks: stored
                .subtasks
                .into_iter()
                .map(|subtask| subtask_from_storage(&reader, subtask))
                .collect::<Result<_, _>>()?,
            compensations: stored
                .compensations
                .into_iter()
                .map(|compensation| compensation_from_storage(&reader, compensation))
                .collect::<Result<_, _>>()?,
            elements: stored
                .elements
                .into_iter()
                .map(|element| element_from_storage(&reader, element))
                .collect::<Result<_, _>>()?,
            extensions: stored
                .extensions
                .into_iter()
                .map(|extension| extension_from_storage(&reader, &extension))
                .collect::<Result<_, _>>()?,
            log_length: stored.log_length,
            created_at: moment(stored.created_at),
            updated_at: moment(stored.updated_at),
            deadline: moment(stored.deadline),
            dependency_timeout: Duration::from_nanos(stored.dependency_timeout),
            ended_at: unless_zero(stored.ended_at),
        };
        let log_clock =
            LogClock { logged_at: moment(stored.logged_at), set_back: Duration::from_nanos(stored.set_back) };
        let trace = place_from_storage(&reader, stored.trace)?;
        let submitter_process = process_from(&reader, &stored.submitter_process)?;
        Ok(Self { plan: Arc::new(plan), sequence: stored.sequence, log_clock, trace, submitter_process })
    }
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn or_zero(at: Option<Timestamp>) -> i64 {
    at.map_or(0, Timestamp::unix_nanoseconds)
}

fn unless_zero(at: i64) -> Option<Timestamp> {
    (at != 0).then(|| moment(at))
}

fn code_of(reader: &Reader, number: i32) -> Result<Option<ErrorCode>, DecodeError> {
    match number {
        0 => Ok(None),
        number => reader.some(ErrorCode::from_number(number), "error code").map(Some),
    }
}

fn element_to_storage(element: &ElementRun) -> storage::PlanElementRecord {
    storage::PlanElementRecord {
        place: u32::try_from(element.of).unwrap_or(u32::MAX),
        index: u32::try_from(element.index).unwrap_or(u32::MAX),
        run: Some(subtask_to_storage(&element.run)),
        bytes: element.bytes as u64,
        tokens: element.tokens,
        success: element.is_success,
    }
}

fn element_from_storage(reader: &Reader, stored: storage::PlanElementRecord) -> Result<ElementRun, DecodeError> {
    Ok(ElementRun {
        of: stored.place as usize,
        index: stored.index as usize,
        run: subtask_from_storage(reader, reader.some(stored.run, "run of an element")?)?,
        bytes: usize::try_from(stored.bytes).unwrap_or(usize::MAX),
        tokens: stored.tokens,
        is_success: stored.success,
    })
}

fn extension_to_storage(extension: &Extended) -> storage::PlanExtensionRecord {
    storage::PlanExtensionRecord {
        message_id: id_bytes(extension.message),
        digest: Bytes::copy_from_slice(&extension.digest),
        content_digest: Bytes::copy_from_slice(&extension.content_digest),
        sequence: extension.sequence,
        from: u32::try_from(extension.from).unwrap_or(u32::MAX),
    }
}

fn extension_from_storage(reader: &Reader, stored: &storage::PlanExtensionRecord) -> Result<Extended, DecodeError> {
    Ok(Extended {
        message: reader.message_id(&stored.message_id)?,
        digest: reader.digest(&stored.digest)?,
        content_digest: reader.digest(&stored.content_digest)?,
        sequence: stored.sequence,
        from: stored.from as usize,
    })
}

fn compensation_to_storage(compensation: &CompensationRun) -> storage::CompensationRecord {
    let place = u32::try_from(compensation.of).unwrap_or(u32::MAX);
    storage::CompensationRecord { place, run: Some(subtask_to_storage(&compensation.run)) }
}

fn compensation_from_storage(
    reader: &Reader,
    stored: storage::CompensationRecord,
) -> Result<CompensationRun, DecodeError> {
    let run = reader.some(stored.run, "run of a compensation")?;
    Ok(CompensationRun { of: stored.place as usize, run: subtask_from_storage(reader, run)? })
}

fn subtask_to_storage(run: &SubtaskRun) -> storage::SubtaskRecord {
    storage::SubtaskRecord {
        state: run.state.number(),
        attempts: run.attempts,
        task_round: run.task_round,
        handoff_id: run.handoff.map(id_bytes).unwrap_or_default(),
        agent_id: run.agent.as_ref().map(ToString::to_string).unwrap_or_default(),
        tried_agent_ids: texts(&run.tried),
        retry_at: or_zero(run.retry_at),
        waits_since: run.waits_since.unix_nanoseconds(),
        started_at: or_zero(run.started_at),
        deadline: or_zero(run.deadline),
        ended_at: or_zero(run.ended_at),
        result: run.result.unwrap_or(0),
        numeric_value: run.numeric_value,
        code: run.code.map_or(0, ErrorCode::number),
        cause: run.cause.clone(),
        elements: run.elements,
        ends_as: run.ends_as.map_or(0, SubtaskState::number),
        assigned_to: run.assigned_to.clone().unwrap_or_default(),
        reassignments: run.reassignments,
    }
}

fn subtask_from_storage(reader: &Reader, stored: storage::SubtaskRecord) -> Result<SubtaskRun, DecodeError> {
    Ok(SubtaskRun {
        state: reader.some(SubtaskState::from_number(stored.state), "state of a subtask")?,
        attempts: stored.attempts,
        task_round: stored.task_round,
        handoff: reader.optional_message_id(&stored.handoff_id)?,
        agent: if stored.agent_id.is_empty() { None } else { Some(reader.agent(&stored.agent_id)?) },
        tried: reader.agents(&stored.tried_agent_ids)?,
        retry_at: unless_zero(stored.retry_at),
        waits_since: moment(stored.waits_since),
        started_at: unless_zero(stored.started_at),
        deadline: unless_zero(stored.deadline),
        ended_at: unless_zero(stored.ended_at),
        result: (stored.result != 0).then_some(stored.result),
        numeric_value: stored.numeric_value,
        code: code_of(reader, stored.code)?,
        cause: stored.cause,
        elements: stored.elements,
        ends_as: match stored.ends_as {
            0 => None,
            number => Some(reader.some(SubtaskState::from_number(number), "end of a subtask")?),
        },
        assigned_to: Some(stored.assigned_to).filter(|receiver| !receiver.is_empty()),
        reassignments: stored.reassignments,
    })
}

/// A plan as submitted, with all its terms.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanSpecRecord(pub Arc<Spec>);

impl PlanSpecRecord {
    /// The key of the record.
    pub fn key(id: &PlanId) -> Key {
        by_name(Table::PlanSpecs, id.as_str())
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let plan = envelope::plan_to_v1(&self.0).encode_to_vec().into();
        storage::PlanSpecRecord { plan }.encode_to_vec().into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("plan_specs");
        let stored: storage::PlanSpecRecord = reader.message(value)?;
        let plan: v1::Plan = reader.message(&stored.plan)?;
        // The stored plan has all its terms, so the defaults are not used.
        let spec = envelope::plan_of(&plan, &Terms::default());
        let spec = spec.map_err(|violations| reader.error(format!("{violations:?}")))?;
        Ok(Self(Arc::new(spec)))
    }
}

/// An entry of a plan's log as stored: a `baton.v1.PlanEntry`.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanEntryRecord(pub Arc<PlanEntry>);

impl PlanEntryRecord {
    /// The key of the record.
    pub fn key(plan: &PlanId, number: u64) -> Key {
        by_name_and_number(Table::PlanLog, plan.as_str(), number)
    }

    /// The range of the entries of a plan after this number.
    pub fn range_after(plan: &PlanId, number: u64) -> KeyRange {
        (Bound::Excluded(Self::key(plan, number).key), Bound::Included(Self::key(plan, u64::MAX).key))
    }

    /// The number in a key.
    pub fn number(key: &[u8]) -> Result<u64, DecodeError> {
        number_of(&Reader("plan_log"), key)
    }

    /// The message of a value.
    pub fn message(value: &Bytes) -> Result<v1::PlanEntry, DecodeError> {
        Reader("plan_log").message(value)
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        entry_to_v1(&self.0).encode_to_vec().into()
    }

    /// Decodes the record of this plan.
    pub fn decode(plan: &PlanId, value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("plan_log");
        Ok(Self(Arc::new(entry_from_v1(&reader, plan, reader.message(value)?)?)))
    }
}

// ----------------------------------------------------------------------------------------------------------- messages

/// The message of a plan. `spec`: for the subtasks, which it leaves out otherwise.
pub fn plan_run_to_v1(plan: &Plan, spec: Option<&Spec>) -> v1::PlanRun {
    let subtasks = spec.map(|spec| (0..plan.subtasks.len()).map(|place| subtask_status(plan, spec, place)).collect());
    let extensions = plan.extensions.iter().filter(|_| spec.is_some()).map(|extension| extension.message.to_string());
    v1::PlanRun {
        extension_ids: extensions.collect(),
        plan_id: plan.id.to_string(),
        submitter_id: plan.submitter.to_string(),
        submission_id: plan.submission.to_string(),
        submission_sha256: Bytes::copy_from_slice(&plan.submission_digest),
        state: plan.state.number(),
        reason: plan.reason.clone(),
        round: plan.round,
        subtasks: subtasks.unwrap_or_default(),
        log_length: plan.log_length,
        create_time: Some(plan.created_at.into()),
        update_time: Some(plan.updated_at.into()),
        deadline: Some(plan.deadline.into()),
        end_time: plan.ended_at.map(Into::into),
    }
}

fn subtask_status(plan: &Plan, spec: &Spec, place: usize) -> v1::SubtaskStatus {
    let run = &plan.subtasks[place];
    let open = spec.links.direct[place].iter().filter(|need| !plan.subtasks[**need].state.is_final());
    let waiting = open.filter(|_| run.state == SubtaskState::Pending).map(|need| spec.subtasks[*need].id.clone());
    let waiting = waiting.collect();
    let compensation = plan.compensations.iter().find(|compensation| compensation.of == place).map(|known| {
        let task = plan.compensation_task_id(spec, known);
        Box::new(status_of_run(&known.run, &spec.subtasks[place].id, task.as_ref()))
    });
    let task = plan.task_id(spec, place);
    let status = status_of_run(run, &spec.subtasks[place].id, task.as_ref());
    let elements = plan.elements.iter().filter(|element| element.of == place).map(|element| {
        let task = plan.element_task_id(spec, element);
        status_of_run(&element.run, &spec.subtasks[place].id, task.as_ref())
    });
    v1::SubtaskStatus { waiting_for: waiting, compensation, elements: elements.collect(), ..status }
}

fn status_of_run(run: &SubtaskRun, id: &str, task: Option<&TaskId>) -> v1::SubtaskStatus {
    v1::SubtaskStatus {
        id: id.to_owned(),
        state: run.state.number(),
        task_id: task.map(ToString::to_string).unwrap_or_default(),
        attempts: run.attempts,
        handoff_id: run.handoff.map(|id| id.to_string()).unwrap_or_default(),
        agent_id: run.agent.as_ref().map(ToString::to_string).unwrap_or_default(),
        numeric_value: run.numeric_value,
        error_code: run.code.map_or(0, ErrorCode::number),
        cause: run.cause.clone(),
        start_time: run.started_at.map(Into::into),
        end_time: run.ended_at.map(Into::into),
        deadline: run.deadline.map(Into::into),
        result_entry: run.result.unwrap_or(0),
        element_count: run.elements,
        assigned_to: run.assigned_to.clone().unwrap_or_default(),
        ..Default::default()
    }
}

/// The message of a result.
pub fn result_to_v1(subtask: &str, report: &Report) -> v1::SubtaskResult {
    v1::SubtaskResult {
        subtask_id: subtask.to_owned(),
        response: report.response.clone(),
        tokens: report.tokens,
        success: report.success,
        tools_used: report.tools_used.clone(),
        numeric_value: report.numeric_value,
        result_json: report.result.clone(),
        summary: report.summary.clone(),
    }
}

fn result_from_v1(result: v1::SubtaskResult) -> Report {
    Report {
        response: result.response,
        tokens: result.tokens,
        success: result.success,
        tools_used: result.tools_used,
        numeric_value: result.numeric_value,
        result: result.result_json,
        summary: result.summary,
    }
}

fn entry_to_v1(entry: &PlanEntry) -> v1::PlanEntry {
    let event = match &entry.event {
        Event::Submitted { by } => Stored::Submitted(v1::PlanSubmitted { submitter_id: by.to_string() }),
        Event::Subtask(change) => Stored::Subtask(change_to_v1(change)),
        Event::Compensation(change) => Stored::Compensation(change_to_v1(change)),
        Event::Element(change) => Stored::Element(change_to_v1(change)),
        Event::Reassigned { subtask, to, by, reason } => Stored::Reassigned(v1::SubtaskReassigned {
            subtask_id: subtask.clone(),
            to: to.clone(),
            caller: by.clone(),
            reason_text: reason.clone(),
        }),
        Event::NotAppended { subtask, topic, code, text } => Stored::NotAppended(v1::ResultNotAppended {
            subtask_id: subtask.clone(),
            topic: topic.clone(),
            error_code: code.number(),
            text: text.clone(),
        }),
        Event::Retried { round, by, subtask } => {
            let subtask_id = subtask.clone();
            Stored::Retried(v1::PlanRetried { round: *round, caller: by.clone(), subtask_id })
        }
        Event::Extended { message, digest, subtasks } => Stored::Extended(v1::PlanExtended {
            message_id: message.to_string(),
            content_sha256: Bytes::copy_from_slice(digest),
            subtask_ids: subtasks.clone(),
        }),
        Event::Ended { state, reason } => {
            Stored::Ended(v1::PlanEnded { state: state.number(), reason: reason.clone() })
        }
    };
    v1::PlanEntry { number: entry.number, time: Some(entry.at.into()), event: Some(event) }
}

fn change_to_v1(change: &SubtaskChange) -> v1::SubtaskChanged {
    v1::SubtaskChanged {
        subtask_id: change.subtask.clone(),
        state: change.state.number(),
        attempt: change.attempt,
        task_round: change.task_round,
        handoff_id: change.handoff.map(|id| id.to_string()).unwrap_or_default(),
        agent_id: change.agent.as_ref().map(ToString::to_string).unwrap_or_default(),
        error_code: change.code.map_or(0, ErrorCode::number),
        cause: change.cause.clone(),
        result: change.report.as_ref().map(|report| result_to_v1(&change.subtask, report)),
        element: change.element,
    }
}

fn change_from_v1(reader: &Reader, change: v1::SubtaskChanged) -> Result<Box<SubtaskChange>, DecodeError> {
    Ok(Box::new(SubtaskChange {
        state: reader.some(SubtaskState::from_number(change.state), "state")?,
        attempt: change.attempt,
        task_round: change.task_round,
        handoff: match change.handoff_id.as_str() {
            "" => None,
            id => Some(MessageId::parse(id).map_err(|error| reader.error(error.to_string()))?),
        },
        agent: if change.agent_id.is_empty() { None } else { Some(reader.agent(&change.agent_id)?) },
        code: code_of(reader, change.error_code)?,
        cause: change.cause,
        report: change.result.map(result_from_v1),
        element: change.element,
        subtask: change.subtask_id,
    }))
}

fn entry_from_v1(reader: &Reader, plan: &PlanId, entry: v1::PlanEntry) -> Result<PlanEntry, DecodeError> {
    let event = match reader.some(entry.event, "event")? {
        Stored::Submitted(submitted) => Event::Submitted { by: reader.agent(&submitted.submitter_id)? },
        Stored::Subtask(change) => Event::Subtask(change_from_v1(reader, change)?),
        Stored::Compensation(change) => Event::Compensation(change_from_v1(reader, change)?),
        Stored::Element(change) => Event::Element(change_from_v1(reader, change)?),
        Stored::Reassigned(reassigned) => Event::Reassigned {
            subtask: reassigned.subtask_id,
            to: reassigned.to,
            by: reassigned.caller,
            reason: reassigned.reason_text,
        },
        Stored::NotAppended(not) => Event::NotAppended {
            subtask: not.subtask_id,
            topic: not.topic,
            code: reader.some(ErrorCode::from_number(not.error_code), "error code")?,
            text: not.text,
        },
        Stored::Retried(retried) => {
            Event::Retried { round: retried.round, by: retried.caller, subtask: retried.subtask_id }
        }
        Stored::Extended(extended) => Event::Extended {
            message: MessageId::parse(&extended.message_id).map_err(|error| reader.error(error.to_string()))?,
            digest: reader.digest(&extended.content_sha256)?,
            subtasks: extended.subtask_ids,
        },
        Stored::Ended(ended) => {
            let state = reader.some(PlanState::from_number(ended.state), "state")?;
            Event::Ended { state, reason: ended.reason }
        }
    };
    let at = entry.time.and_then(|time| Timestamp::from_parts(time.seconds, time.nanos));
    Ok(PlanEntry { plan: plan.clone(), number: entry.number, at: reader.some(at, "time")?, event })
}

// ------------------------------------------------------------------------------------------------------------- words

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{domain::plan::PlanSignal, ids::AgentId};

    fn id(byte: u8) -> MessageId {
        MessageId::from_bytes([byte; 16])
    }

    fn agent(name: &str) -> AgentId {
        AgentId::parse(name).unwrap()
    }

    #[test]
    fn a_plan_comes_back() {
        let at = |seconds| Timestamp::from_parts(seconds, 5).unwrap();
        let subtask = SubtaskRun {
            state: SubtaskState::Running,
            attempts: 2,
            task_round: 3,
            handoff: Some(id(4)),
            agent: Some(agent("bob")),
            tried: vec![agent("carol")],
            retry_at: Some(at(7)),
            started_at: Some(at(8)),
            deadline: Some(at(9)),
            ended_at: Some(at(10)),
            result: Some(11),
            numeric_value: Some(-1.5),
            code: Some(ErrorCode::NoCandidate),
            cause: "no".to_owned(),
            elements: Some(0),
            ends_as: Some(SubtaskState::Failed),
            assigned_to: Some("type:worker".to_owned()),
            reassignments: 2,
            ..SubtaskRun::pending(at(6))
        };
        let plan = Plan {
            id: PlanId::parse("q3").unwrap(),
            submitter: agent("alice"),
            submission: id(1),
            submission_digest: [2; 32],
            content_digest: [3; 32],
            state: PlanState::Failed,
            reason: "why".to_owned(),
            ending: Some(PlanState::Cancelled),
            goes_on: true,
            round: 3,
            subtasks: vec![subtask.clone(), SubtaskRun::pending(at(6))],
            elements: vec![ElementRun { of: 1, index: 3, run: subtask.clone(), bytes: 4, tokens: 5, is_success: true }],
            compensations: vec![CompensationRun { of: 1, run: subtask }],
            extensions: vec![Extended {
                message: id(7),
                digest: [8; 32],
                content_digest: [9; 32],
                sequence: 10,
                from: 1,
            }],
            log_length: 12,
            created_at: at(1),
            updated_at: at(2),
            deadline: at(3),
            dependency_timeout: Duration::from_millis(7),
            ended_at: Some(at(4)),
        };
        let log_clock = LogClock { logged_at: at(5), set_back: Duration::from_nanos(6) };
        let submitter_process = Some(InstanceId::from_bytes([5; 16]));
        let record = PlanRecord { plan: Arc::new(plan), sequence: 13, log_clock, trace: None, submitter_process };
        assert_eq!(PlanRecord::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn every_entry_comes_back() {
        let plan = PlanId::parse("q3").unwrap();
        let report = Report {
            response: "15.3%".to_owned(),
            tokens: 7,
            success: true,
            tools_used: vec!["sql".to_owned()],
            numeric_value: Some(15.3),
            result: "{}".to_owned(),
            summary: "a rise".to_owned(),
        };
        let change = SubtaskChange {
            subtask: "a".to_owned(),
            state: SubtaskState::Completed,
            attempt: 1,
            task_round: 1,
            handoff: Some(id(1)),
            agent: Some(agent("bob")),
            code: None,
            cause: String::new(),
            report: Some(report),
            element: None,
        };
        let (subtask, topic, text) = ("a".to_owned(), "t".to_owned(), "full".to_owned());
        let events = [
            Event::Submitted { by: agent("alice") },
            Event::Subtask(Box::new(change.clone())),
            Event::Compensation(Box::new(change.clone())),
            Event::Element(Box::new(SubtaskChange { element: Some(0), ..change })),
            Event::Reassigned {
                subtask: "a".to_owned(),
                to: "bob".to_owned(),
                by: "operator".to_owned(),
                reason: "why".to_owned(),
            },
            Event::NotAppended { subtask, topic, code: ErrorCode::QuotaExceeded, text },
            Event::Retried { round: 2, by: "agent alice".to_owned(), subtask: "a".to_owned() },
            Event::Extended { message: id(2), digest: [3; 32], subtasks: vec!["b".to_owned()] },
            Event::Ended { state: PlanState::Failed, reason: "why".to_owned() },
        ];
        for event in events {
            let at = Timestamp::from_parts(1, 2).unwrap();
            let record = PlanEntryRecord(Arc::new(PlanEntry { plan: plan.clone(), number: 3, at, event }));
            assert_eq!(PlanEntryRecord::decode(&plan, &record.encode()), Ok(record));
        }
    }

    #[test]
    fn the_inputs_of_a_plan_come_back_from_the_outbox() {
        let (subtask, text) = (|| "a".to_owned(), || "\0 \"why\" 为何".to_owned());
        let (handoff, code) = (id(1), ErrorCode::NoCandidate);
        let signals = [
            PlanSignal::NotStarted { subtask: subtask(), handoff, code, text: text() },
            PlanSignal::Taken { subtask: subtask(), handoff, owner: agent("bob"), due: Timestamp::from_parts(5, 6) },
            PlanSignal::NotTaken { subtask: subtask(), handoff, code, text: text(), has_waited: true },
            PlanSignal::Reported { subtask: subtask(), handoff, message: id(2), is_completed: true, details: text() },
            PlanSignal::Recalled { subtask: subtask(), handoff, is_abandoned: false },
            PlanSignal::Recalled { subtask: subtask(), handoff, is_abandoned: true },
            PlanSignal::NotAppended { subtask: subtask(), topic: "t".to_owned(), code, text: text() },
        ];
        for signal in signals {
            assert_eq!(decode_signal(&Reader("outbox"), &encode_signal(&signal)), Ok(signal));
        }
    }
}
