//! Specs (tables specs and spec_revisions), threads (table threads) and their logs (table thread_log).

use std::{collections::BTreeSet, ops::Bound, sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message as _;

use super::{DecodeError, List, LogClock, Reader, by_name, id_bytes, moment, number_of, range_of_name};
use crate::{
    codes::ErrorCode,
    domain::threads::{
        Action, ActionId, Boundary, EndedRequest, Event, InForce, KnownAction, OpenRun, Request, RequestEnd, Spec,
        SpecKind, Thread, ThreadEntry, ThreadRunId, Unresolved,
    },
    ids::{AgentId, MessageId, SpecId, ThreadId},
    proto::{
        storage,
        v1::{self, thread_entry::Event as Stored},
    },
    store::{Key, KeyRange, Table},
    time::Timestamp,
};

const AGENT: u8 = b'a';
const MODEL: u8 = b'm';

/// The byte of a kind in keys.
pub(super) fn kind_byte(kind: SpecKind) -> u8 {
    match kind {
        SpecKind::Agent => AGENT,
        SpecKind::Model => MODEL,
    }
}

pub(super) fn kind_of(reader: &Reader, byte: u8) -> Result<SpecKind, DecodeError> {
    match byte {
        AGENT => Ok(SpecKind::Agent),
        MODEL => Ok(SpecKind::Model),
        _ => Err(reader.error("a spec is of no known kind")),
    }
}

pub(super) fn spec_id(reader: &Reader, text: &str) -> Result<SpecId, DecodeError> {
    SpecId::parse(text).map_err(|error| reader.error(format!("spec id {text:?} {error}")))
}

pub(super) fn thread_id(reader: &Reader, text: &str) -> Result<ThreadId, DecodeError> {
    ThreadId::parse(text).map_err(|error| reader.error(format!("thread id {text:?} {error}")))
}

fn optional_spec(reader: &Reader, text: &str) -> Result<Option<SpecId>, DecodeError> {
    if text.is_empty() { Ok(None) } else { spec_id(reader, text).map(Some) }
}

fn text<T: ToString>(value: Option<&T>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

fn optional_agent(reader: &Reader, text: &str) -> Result<Option<AgentId>, DecodeError> {
    if text.is_empty() { Ok(None) } else { reader.agent(text).map(Some) }
}

// ------------------------------------------------------------------------------------------------------------- specs

/// A spec as stored: its latest revision.
#[derive(Debug, Clone, PartialEq)]
pub struct SpecRecord {
    /// The latest revision.
    pub spec: Arc<Spec>,
    /// The sequence of the first registration, its place in lists.
    pub sequence: u64,
}

impl SpecRecord {
    /// The key of the record.
    pub fn key(kind: SpecKind, id: &SpecId) -> Key {
        Key { table: Table::Specs, key: [&[kind_byte(kind)][..], id.as_str().as_bytes()].into() }
    }

    /// The list of all specs of a kind.
    pub fn list(kind: SpecKind) -> List {
        match kind {
            SpecKind::Agent => List::of_agent_specs(),
            SpecKind::Model => List::of_model_specs(),
        }
    }

    /// The place of the spec in the list of its kind, and its entry there.
    pub fn listing(&self) -> (Key, Bytes) {
        (Self::list(self.spec.kind).place(self.sequence), Bytes::copy_from_slice(self.spec.id.as_str().as_bytes()))
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        encode_spec(&self.spec, self.sequence)
    }

    /// Decodes the record of a spec of this kind.
    pub fn decode(kind: SpecKind, value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("specs");
        let stored: storage::SpecRecord = reader.message(value)?;
        Ok(Self { spec: Arc::new(decode_spec(&reader, kind, &stored)?), sequence: stored.sequence })
    }
}

/// A revision of a spec as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct SpecRevisionRecord(pub Arc<Spec>);

impl SpecRevisionRecord {
    /// The key of the record.
    pub fn key(kind: SpecKind, id: &SpecId, revision: u64) -> Key {
        let kind = [kind_byte(kind)];
        let revision = revision.to_be_bytes();
        let parts: [&[u8]; 4] = [&kind, id.as_str().as_bytes(), &[0], &revision];
        Key { table: Table::SpecRevisions, key: parts.into() }
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        encode_spec(&self.0, 0)
    }

    /// Decodes the record of a spec of this kind.
    pub fn decode(kind: SpecKind, value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("spec_revisions");
        let stored: storage::SpecRecord = reader.message(value)?;
        Ok(Self(Arc::new(decode_spec(&reader, kind, &stored)?)))
    }
}

/// Checks a value of one of the tables of specs.
pub(super) fn check_spec(table: &'static str, key: &[u8], value: &Bytes) -> Result<(), DecodeError> {
    let reader = Reader(table);
    let kind = key.first().ok_or_else(|| reader.error("a key is empty"))?;
    let stored: storage::SpecRecord = reader.message(value)?;
    decode_spec(&reader, kind_of(&reader, *kind)?, &stored).map(drop)
}

fn encode_spec(spec: &Spec, sequence: u64) -> Bytes {
    let content = Bytes::copy_from_slice(&spec.content);
    storage::SpecRecord { content, revision: spec.revision, sequence }.encode_to_vec().into()
}

fn decode_spec(reader: &Reader, kind: SpecKind, stored: &storage::SpecRecord) -> Result<Spec, DecodeError> {
    let spec = match kind {
        SpecKind::Agent => {
            let agent: v1::AgentSpec = reader.message(&stored.content)?;
            let (id, model) = (spec_id(reader, &agent.spec_id)?, spec_id(reader, &agent.model_id)?);
            agent_spec(id, model, agent)
        }
        SpecKind::Model => {
            let model: v1::ModelSpec = reader.message(&stored.content)?;
            model_spec(spec_id(reader, &model.model_id)?, model)
        }
    };
    Ok(Spec { revision: stored.revision, ..spec })
}

/// The spec of a message whose ids are parsed, without a revision.
pub fn agent_spec(id: SpecId, model: SpecId, message: v1::AgentSpec) -> Spec {
    let (plugins, hook_filter) = (message.plugin_ids.clone(), message.hook_filter.clone());
    let content = v1::AgentSpec { revision: 0, ..message }.encode_to_vec().into();
    Spec { kind: SpecKind::Agent, id, revision: 0, model: Some(model), plugins, hook_filter, content }
}

/// The spec of a message whose id is parsed, without a revision.
pub fn model_spec(id: SpecId, message: v1::ModelSpec) -> Spec {
    let content = v1::ModelSpec { revision: 0, ..message }.encode_to_vec().into();
    Spec { kind: SpecKind::Model, id, revision: 0, model: None, plugins: Vec::new(), hook_filter: Vec::new(), content }
}

/// The message of a persona's spec.
pub fn agent_spec_to_v1(spec: &Spec) -> Result<v1::AgentSpec, DecodeError> {
    let message: v1::AgentSpec = Reader("specs").message(&Bytes::copy_from_slice(&spec.content))?;
    Ok(v1::AgentSpec { revision: spec.revision, ..message })
}

/// The message of a model's spec.
pub fn model_spec_to_v1(spec: &Spec) -> Result<v1::ModelSpec, DecodeError> {
    let message: v1::ModelSpec = Reader("specs").message(&Bytes::copy_from_slice(&spec.content))?;
    Ok(v1::ModelSpec { revision: spec.revision, ..message })
}

// ----------------------------------------------------------------------------------------------------------- threads

/// A thread as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadRecord {
    /// The state of the thread's machine.
    pub thread: Arc<Thread>,
    /// The sequence of the creation, its place in lists.
    pub sequence: u64,
    /// The pace of the thread's log.
    pub log_clock: LogClock,
}

impl ThreadRecord {
    /// The key of the record.
    pub fn key(id: &ThreadId) -> Key {
        by_name(Table::Threads, id.as_str())
    }

    /// The places of the thread in the lists of all threads and of its participants.
    pub fn listings(&self) -> Vec<Key> {
        let agents = self.thread.participants.iter().map(Some).chain([None]);
        agents.map(|agent| List::of_threads(agent).place(self.sequence)).collect()
    }

    pub(super) fn new_entries(&self, before: Option<&Self>) -> Vec<(Key, Bytes)> {
        // The participants of a thread do not change.
        if before.is_some() {
            return Vec::new();
        }
        let value = Bytes::copy_from_slice(self.thread.id.as_str().as_bytes());
        self.listings().into_iter().map(|key| (key, value.clone())).collect()
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let thread = &self.thread;
        let boundary = thread.boundary.as_ref().map(|boundary| boundary_to_v1(boundary).encode_to_vec());
        let action = |known: &KnownAction| {
            let (kind, spec_id) = match &known.action {
                Action::Request(spec) => (1, spec.to_string()),
                Action::Activate(spec) => (2, spec.to_string()),
                Action::Clear => (3, String::new()),
            };
            storage::ThreadActionRecord { action_id: id_bytes(known.id.0), kind, spec_id }
        };
        storage::ThreadRecord {
            thread: thread_to_v1(thread).encode_to_vec().into(),
            boundary: boundary.unwrap_or_default().into(),
            request_number: thread.requested.as_ref().map_or(0, |request| request.number),
            request_warning: match thread.requested.as_ref().and_then(|request| request.warning) {
                None => 0,
                Some(Unresolved::NoSpec) => 1,
                Some(Unresolved::NoModel) => 2,
            },
            last_run_id: thread.last_run.map(|run| id_bytes(run.0)).unwrap_or_default(),
            actions: thread.actions.iter().map(action).collect(),
            has_ended: thread.has_ended,
            sequence: self.sequence,
            logged_at: self.log_clock.logged_at.unix_nanoseconds(),
            set_back: u64::try_from(self.log_clock.set_back.as_nanos()).unwrap_or(u64::MAX),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("threads");
        let stored: storage::ThreadRecord = reader.message(value)?;
        let shown: v1::Thread = reader.message(&stored.thread)?;
        let warning = match stored.request_warning {
            0 => None,
            1 => Some(Unresolved::NoSpec),
            2 => Some(Unresolved::NoModel),
            _ => return Err(reader.error("the warning of a request is not known")),
        };
        let requested = optional_spec(&reader, &shown.requested_agent)?;
        let run = match shown.run_id.as_str() {
            "" => None,
            run => Some(OpenRun {
                id: run_id(&reader, run)?,
                runner: optional_agent(&reader, &shown.runner_id)?,
                step: shown.step,
                lease: time(&reader, shown.lease_deadline.as_ref())?,
            }),
        };
        let boundary = match &*stored.boundary {
            [] => None,
            _ => Some(boundary_from_v1(&reader, reader.message(&stored.boundary)?)?),
        };
        let thread = Thread {
            id: thread_id(&reader, &shown.thread_id)?,
            base: spec_id(&reader, &shown.base_spec_id)?,
            active: optional_spec(&reader, &shown.active_agent)?,
            requested: requested.map(|spec| Request { number: stored.request_number, spec, warning }),
            in_force: InForce {
                spec: spec_id(&reader, &shown.in_force_spec_id)?,
                revision: shown.in_force_revision,
                model: spec_id(&reader, &shown.in_force_model_id)?,
                model_revision: shown.in_force_model_revision,
            },
            creator: optional_agent(&reader, &shown.creator_id)?,
            participants: reader.agents(&shown.participant_ids)?.into_iter().collect::<BTreeSet<_>>(),
            task: if shown.task_id.is_empty() { None } else { Some(reader.task(&shown.task_id)?) },
            run,
            last_run: reader.optional_message_id(&stored.last_run_id)?.map(ThreadRunId),
            boundary,
            actions: stored.actions.iter().map(|action| known_action(&reader, action)).collect::<Result<_, _>>()?,
            log_length: shown.log_length,
            created_at: time(&reader, shown.create_time.as_ref())?,
            updated_at: time(&reader, shown.update_time.as_ref())?,
            has_ended: stored.has_ended,
        };
        let log_clock =
            LogClock { logged_at: moment(stored.logged_at), set_back: Duration::from_nanos(stored.set_back) };
        Ok(Self { thread: Arc::new(thread), sequence: stored.sequence, log_clock })
    }
}

fn known_action(reader: &Reader, stored: &storage::ThreadActionRecord) -> Result<KnownAction, DecodeError> {
    let action = match stored.kind {
        1 => Action::Request(spec_id(reader, &stored.spec_id)?),
        2 => Action::Activate(spec_id(reader, &stored.spec_id)?),
        3 => Action::Clear,
        _ => return Err(reader.error("an action is of no known kind")),
    };
    Ok(KnownAction { id: ActionId(reader.message_id(&stored.action_id)?), action })
}

/// An entry of a thread's log as stored: a `baton.v1.ThreadEntry`.
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadEntryRecord(pub Arc<ThreadEntry>);

impl ThreadEntryRecord {
    /// The key of the record.
    pub fn key(thread: &ThreadId, number: u64) -> Key {
        super::by_name_and_number(Table::ThreadLog, thread.as_str(), number)
    }

    /// The range of the entries of a thread after this number.
    pub fn range_after(thread: &ThreadId, number: u64) -> KeyRange {
        (Bound::Excluded(Self::key(thread, number).key), range_of_name(thread.as_str()).1)
    }

    /// The message of a value.
    pub fn message(value: &Bytes) -> Result<v1::ThreadEntry, DecodeError> {
        Reader("thread_log").message(value)
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        entry_to_v1(&self.0).encode_to_vec().into()
    }

    /// Decodes the record of this thread.
    pub fn decode(thread: &ThreadId, value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("thread_log");
        Ok(Self(Arc::new(entry_from_v1(&reader, thread, reader.message(value)?)?)))
    }

    /// Checks a value of the table.
    pub(super) fn check(key: &[u8], value: &Bytes) -> Result<(), DecodeError> {
        let reader = Reader("thread_log");
        number_of(&reader, key)?;
        let name = key.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = std::str::from_utf8(name).map_err(|error| reader.error(error.to_string()))?;
        Self::decode(&thread_id(&reader, name)?, value).map(drop)
    }
}

// ---------------------------------------------------------------------------------------------------------- messages

fn time(reader: &Reader, time: Option<&prost_types::Timestamp>) -> Result<Timestamp, DecodeError> {
    let parsed = time.and_then(|time| Timestamp::from_parts(time.seconds, time.nanos));
    reader.some(parsed, "a time")
}

fn run_id(reader: &Reader, text: &str) -> Result<ThreadRunId, DecodeError> {
    MessageId::parse(text).map(ThreadRunId).map_err(|error| reader.error(format!("run id {text:?} {error}")))
}

/// The message of a thread.
pub fn thread_to_v1(thread: &Thread) -> v1::Thread {
    let run = thread.run.as_ref();
    v1::Thread {
        thread_id: thread.id.to_string(),
        base_spec_id: thread.base.to_string(),
        active_agent: text(thread.active.as_ref()),
        requested_agent: text(thread.requested.as_ref().map(|request| &request.spec)),
        in_force_spec_id: thread.in_force.spec.to_string(),
        run_id: text(run.map(|run| &run.id)),
        step: run.map_or(0, |run| run.step),
        lease_deadline: run.map(|run| run.lease.into()),
        log_length: thread.log_length,
        task_id: text(thread.task.as_ref()),
        in_force_revision: thread.in_force.revision,
        in_force_model_id: thread.in_force.model.to_string(),
        in_force_model_revision: thread.in_force.model_revision,
        creator_id: text(thread.creator.as_ref()),
        participant_ids: thread.participants.iter().map(ToString::to_string).collect(),
        runner_id: text(run.and_then(|run| run.runner.as_ref())),
        first_number: thread.first_number(),
        create_time: Some(thread.created_at.into()),
        update_time: Some(thread.updated_at.into()),
    }
}

/// The message of an ended request.
pub fn ended_request_to_v1(ended: &EndedRequest) -> v1::ThreadRequestEnded {
    let (outcome, why) = match ended.end {
        RequestEnd::Promoted => (v1::ThreadRequestOutcome::Promoted, None),
        RequestEnd::Replaced => (v1::ThreadRequestOutcome::Replaced, None),
        RequestEnd::Cleared => (v1::ThreadRequestOutcome::Cleared, None),
        RequestEnd::Failed(why) => (v1::ThreadRequestOutcome::Failed, Some(why)),
    };
    v1::ThreadRequestEnded {
        request_number: ended.number,
        spec_id: ended.spec.to_string(),
        outcome: outcome.into(),
        error_message: why.map(|why| unresolved(&ended.spec, why)).unwrap_or_default(),
        error_code: why.map_or(0, |_| ErrorCode::HandoffResolveFailed.number()),
        unresolved: why.map_or(v1::ThreadUnresolved::Unspecified, unresolved_to_v1).into(),
    }
}

fn unresolved_to_v1(why: Unresolved) -> v1::ThreadUnresolved {
    match why {
        Unresolved::NoSpec => v1::ThreadUnresolved::NoSpec,
        Unresolved::NoModel => v1::ThreadUnresolved::NoModel,
    }
}

/// The reason of a spec that does not resolve, for a person to read.
pub fn unresolved(spec: &SpecId, why: Unresolved) -> String {
    format!("handoff resolve failed: {spec} ({why})")
}

fn unresolved_of(reader: &Reader, text: &str) -> Result<Unresolved, DecodeError> {
    let all = [Unresolved::NoSpec, Unresolved::NoModel];
    reader.some(all.into_iter().find(|why| text.ends_with(&format!("({why})"))), "the reason of a failed request")
}

fn ended_request_from_v1(reader: &Reader, info: &v1::ThreadRequestEnded) -> Result<EndedRequest, DecodeError> {
    let end = match info.outcome() {
        v1::ThreadRequestOutcome::Promoted => RequestEnd::Promoted,
        v1::ThreadRequestOutcome::Replaced => RequestEnd::Replaced,
        v1::ThreadRequestOutcome::Cleared => RequestEnd::Cleared,
        v1::ThreadRequestOutcome::Failed => RequestEnd::Failed(match info.unresolved() {
            v1::ThreadUnresolved::NoSpec => Unresolved::NoSpec,
            v1::ThreadUnresolved::NoModel => Unresolved::NoModel,
            // An entry of an older version has the text alone.
            v1::ThreadUnresolved::Unspecified => unresolved_of(reader, &info.error_message)?,
        }),
        v1::ThreadRequestOutcome::Unspecified => return Err(reader.error("the end of a request is not known")),
    };
    Ok(EndedRequest { number: info.request_number, spec: spec_id(reader, &info.spec_id)?, end })
}

fn boundary_to_v1(boundary: &Boundary) -> v1::ThreadBoundary {
    v1::ThreadBoundary {
        run_id: boundary.run.to_string(),
        step: boundary.step,
        spec_id: boundary.in_force.spec.to_string(),
        revision: boundary.in_force.revision,
        model_id: boundary.in_force.model.to_string(),
        model_revision: boundary.in_force.model_revision,
        switched: boundary.switched,
        deactivate_plugin_ids: boundary.deactivate.clone(),
        activate_plugin_ids: boundary.activate.clone(),
        request: boundary.request.as_ref().map(ended_request_to_v1),
    }
}

fn boundary_from_v1(reader: &Reader, boundary: v1::ThreadBoundary) -> Result<Boundary, DecodeError> {
    Ok(Boundary {
        run: run_id(reader, &boundary.run_id)?,
        step: boundary.step,
        in_force: InForce {
            spec: spec_id(reader, &boundary.spec_id)?,
            revision: boundary.revision,
            model: spec_id(reader, &boundary.model_id)?,
            model_revision: boundary.model_revision,
        },
        switched: boundary.switched,
        deactivate: boundary.deactivate_plugin_ids,
        activate: boundary.activate_plugin_ids,
        request: boundary.request.as_ref().map(|info| ended_request_from_v1(reader, info)).transpose()?,
    })
}

fn entry_to_v1(entry: &ThreadEntry) -> v1::ThreadEntry {
    let action = |spec: Option<&SpecId>, by: &Option<AgentId>, warning: String| v1::ThreadAction {
        spec_id: text(spec),
        actor_id: text(by.as_ref()),
        warning,
    };
    let event = match &entry.event {
        Event::Created { base, by } => {
            Stored::Created(v1::ThreadCreated { base_spec_id: base.to_string(), creator_id: text(by.as_ref()) })
        }
        Event::Requested { spec, by, warning } => {
            let warning = warning.map(|why| unresolved(spec, why)).unwrap_or_default();
            Stored::Requested(action(Some(spec), by, warning))
        }
        Event::RequestEnded(ended) => Stored::RequestEnded(ended_request_to_v1(ended)),
        Event::Activated { spec, by } => Stored::Activated(action(Some(spec), by, String::new())),
        Event::Cleared { by } => Stored::Cleared(action(None, by, String::new())),
        Event::RunBegan { run, runner } => {
            Stored::RunBegan(v1::ThreadRunBegan { run_id: run.to_string(), runner_id: text(runner.as_ref()) })
        }
        Event::Boundary(boundary) => Stored::Boundary(boundary_to_v1(boundary)),
        Event::RunEnded { run, lease_over } => {
            Stored::RunEnded(v1::ThreadRunEnded { run_id: run.to_string(), lease_over: *lease_over })
        }
    };
    v1::ThreadEntry { number: entry.number, entry_time: Some(entry.at.into()), event: Some(event) }
}

fn entry_from_v1(reader: &Reader, thread: &ThreadId, entry: v1::ThreadEntry) -> Result<ThreadEntry, DecodeError> {
    let at = time(reader, entry.entry_time.as_ref())?;
    let event = match reader.some(entry.event, "the event of an entry")? {
        Stored::Created(created) => Event::Created {
            base: spec_id(reader, &created.base_spec_id)?,
            by: optional_agent(reader, &created.creator_id)?,
        },
        Stored::Requested(action) => Event::Requested {
            spec: spec_id(reader, &action.spec_id)?,
            by: optional_agent(reader, &action.actor_id)?,
            warning: match action.warning.as_str() {
                "" => None,
                warning => Some(unresolved_of(reader, warning)?),
            },
        },
        Stored::RequestEnded(info) => Event::RequestEnded(ended_request_from_v1(reader, &info)?),
        Stored::Activated(action) => {
            Event::Activated { spec: spec_id(reader, &action.spec_id)?, by: optional_agent(reader, &action.actor_id)? }
        }
        Stored::Cleared(action) => Event::Cleared { by: optional_agent(reader, &action.actor_id)? },
        Stored::RunBegan(began) => {
            Event::RunBegan { run: run_id(reader, &began.run_id)?, runner: optional_agent(reader, &began.runner_id)? }
        }
        Stored::Boundary(boundary) => Event::Boundary(boundary_from_v1(reader, boundary)?),
        Stored::RunEnded(ended) => {
            Event::RunEnded { run: run_id(reader, &ended.run_id)?, lease_over: ended.lease_over }
        }
    };
    Ok(ThreadEntry { thread: thread.clone(), number: entry.number, at, event })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> SpecId {
        SpecId::parse(name).unwrap()
    }

    fn agent(name: &str) -> AgentId {
        AgentId::parse(name).unwrap()
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 5).unwrap()
    }

    fn boundary() -> Boundary {
        let why = RequestEnd::Failed(Unresolved::NoModel);
        Boundary {
            run: ThreadRunId(MessageId::from_bytes([1; 16])),
            step: 3,
            in_force: InForce { spec: spec("writer"), revision: 2, model: spec("large"), model_revision: 4 },
            switched: true,
            deactivate: vec!["notes".to_owned()],
            activate: vec!["spelling".to_owned()],
            request: Some(EndedRequest { number: 7, spec: spec("unknown"), end: why }),
        }
    }

    #[test]
    fn a_thread_comes_back() {
        let id = MessageId::from_bytes([2; 16]);
        let thread = Thread {
            id: ThreadId::parse("th").unwrap(),
            base: spec("base"),
            active: Some(spec("writer")),
            requested: Some(Request { number: 9, spec: spec("later"), warning: Some(Unresolved::NoSpec) }),
            in_force: boundary().in_force,
            creator: Some(agent("alice")),
            participants: [agent("alice"), agent("bob")].into(),
            task: Some(crate::ids::TaskId::parse("t").unwrap()),
            run: Some(OpenRun { id: boundary().run, runner: Some(agent("bob")), step: 3, lease: at(60) }),
            last_run: Some(ThreadRunId(id)),
            boundary: Some(boundary()),
            actions: vec![
                KnownAction { id: ActionId(id), action: Action::Request(spec("writer")) },
                KnownAction { id: ActionId(id), action: Action::Activate(spec("writer")) },
                KnownAction { id: ActionId(id), action: Action::Clear },
            ],
            log_length: 12,
            created_at: at(1),
            updated_at: at(9),
            has_ended: false,
        };
        let log_clock = LogClock { logged_at: at(9), set_back: Duration::from_secs(1) };
        let record = ThreadRecord { thread: Arc::new(thread), sequence: 3, log_clock };
        assert_eq!(ThreadRecord::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn every_entry_comes_back() {
        let (run, by) = (boundary().run, Some(agent("alice")));
        let ended = |end| Event::RequestEnded(EndedRequest { number: 1, spec: spec("x"), end });
        let events = [
            Event::Created { base: spec("base"), by: None },
            Event::Requested { spec: spec("x"), by: by.clone(), warning: None },
            Event::Requested { spec: spec("x"), by: None, warning: Some(Unresolved::NoModel) },
            ended(RequestEnd::Promoted),
            ended(RequestEnd::Replaced),
            ended(RequestEnd::Cleared),
            ended(RequestEnd::Failed(Unresolved::NoSpec)),
            Event::Activated { spec: spec("x"), by: by.clone() },
            Event::Cleared { by: by.clone() },
            Event::RunBegan { run, runner: by },
            Event::Boundary(boundary()),
            Event::RunEnded { run, lease_over: true },
        ];
        let thread = ThreadId::parse("th").unwrap();
        for event in events {
            let record =
                ThreadEntryRecord(Arc::new(ThreadEntry { thread: thread.clone(), number: 4, at: at(2), event }));
            assert_eq!(ThreadEntryRecord::decode(&thread, &record.encode()), Ok(record));
        }
    }

    #[test]
    fn a_spec_comes_back_with_its_lists() {
        let message = v1::AgentSpec {
            spec_id: "writer".to_owned(),
            model_id: "large".to_owned(),
            plugin_ids: vec!["agent_handoff".to_owned()],
            hook_filter: vec!["other".to_owned()],
            ..Default::default()
        };
        let spec = Spec { revision: 3, ..agent_spec(spec("writer"), spec("large"), message) };
        let record = SpecRecord { spec: Arc::new(spec), sequence: 8 };
        assert_eq!(SpecRecord::decode(SpecKind::Agent, &record.encode()), Ok(record.clone()));
        assert_eq!(agent_spec_to_v1(&record.spec).unwrap().revision, 3);
        let key = SpecRevisionRecord::key(SpecKind::Agent, &record.spec.id, 3);
        assert_eq!(check_spec("spec_revisions", &key.key, &record.encode()), Ok(()));
    }
}
