//! `ThreadService`.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use serde_json::Value;
use tonic::Status;

use super::{
    call::Call,
    checked, checked_with, field,
    log_watch::{self, LogUpdate, LogWatch},
    page_size, parsed_id, refuse,
    registries::check_etag,
    responses::Responses,
};
use crate::{
    broker::{
        BrokerError,
        engine::{Command, Revision},
        queries::{ThreadFilter, ThreadWithSpecs, View},
    },
    domain::{
        EntityId, Input,
        threads::{self, Action, ActionId, Create, PARTICIPANTS_MAX, PLUGINS_MAX, Spec, SpecKind, Thread, ThreadRunId},
    },
    envelope::Checks,
    ids::{AgentId, MessageId, SpecId, TaskId, ThreadId, check_name},
    proto::v1::{self, apply_handoff_action_request::Action as Asked},
    records::{
        RegistrationName, Registry, agent_spec, agent_spec_to_v1, ended_request_to_v1, model_spec, model_spec_to_v1,
        thread_to_v1, unresolved,
    },
};

/// The most bytes of a system prompt.
const PROMPT_BYTES_MAX: usize = 64 * 1024;
/// The most bytes of a spec's sections and overlay, and of a model's parameters.
const VALUES_BYTES_MAX: usize = 64 * 1024;
/// What to do about values over that limit.
const SHORTER: &str = "keep larger values elsewhere";
/// The most bytes of a description.
const DESCRIPTION_BYTES_MAX: usize = 4096;
/// The most bytes of a provider and of a provider's name of a model.
const MODEL_BYTES_MAX: usize = 256;
/// The most tools of a list.
const TOOLS_MAX: usize = 256;

/// What a boundary puts in force.
struct InForce {
    thread: v1::Thread,
    switched: bool,
    spec: v1::AgentSpec,
    model: v1::ModelSpec,
    deactivate: Vec<String>,
    activate: Vec<String>,
    request: Option<v1::ThreadRequestEnded>,
}

/// Asks the engine for a step. The step is stored when this returns.
async fn apply(call: &Call, about: EntityId, input: threads::Input) -> Result<(), Status> {
    let input = Box::new(Input::Thread(input));
    call.ask(|caller, reply| Command::Apply { about, input, caller, reply }).await.map(drop)
}

/// The thread as the caller may see it.
async fn visible_thread(call: &Call, id: &ThreadId) -> Result<Arc<Thread>, Status> {
    let id = id.clone();
    call.read_small(move |view| view.thread(&id)).await
}

/// Checks that the caller may use the thread.
async fn check_use(call: &Call, id: &ThreadId) -> Result<(), Status> {
    let id = id.clone();
    call.read_small(move |view| view.thread_for_use(&id).map(drop)).await
}

/// Registers a spec. Returns it with its revision, and its name.
async fn put(call: &Call, spec: Spec, etag: String) -> Result<(Arc<Spec>, v1::Registration), Status> {
    let mut checks = Checks::default();
    check_etag(&mut checks, &etag);
    checked(checks)?;
    let name = RegistrationName::new(Registry::of_specs(spec.kind), &spec.id);
    call.broker.access().may_register(&call.caller, &name).map_err(refuse)?;
    let (kind, id) = (spec.kind, spec.id.clone());
    let revision = Box::new(Revision::Spec(spec));
    let stored = call.ask(|caller, reply| Command::RegisterRevision { revision, caller, etag, reply }).await?;
    // The registration is stored, so a caller that may not read specs sees its own.
    let spec = call.read_small(move |view| view.registered_spec(kind, &id)).await?;
    Ok((spec, stored.to_v1()))
}

/// Makes the step of a boundary, and returns what is in force. A repeat reads the same boundary.
async fn boundary(call: &Call, id: ThreadId, input: threads::Input) -> Result<InForce, Status> {
    check_use(call, &id).await?;
    apply(call, EntityId::Thread(id.clone()), input).await?;
    call.read_small(move |view| in_force(view, &id)).await
}

pub(super) async fn put_agent_spec(
    call: Call,
    request: v1::PutAgentSpecRequest,
) -> Result<v1::PutAgentSpecResponse, Status> {
    let v1::PutAgentSpecRequest { spec, etag } = request;
    let (spec, registration) = put(&call, parse_agent_spec(spec.as_ref())?, etag).await?;
    let spec = Some(agent_spec_to_v1(&spec).map_err(|error| refuse(BrokerError::from(error)))?);
    Ok(v1::PutAgentSpecResponse { spec, registration: Some(registration) })
}

pub(super) async fn get_agent_spec(
    call: Call,
    request: v1::GetAgentSpecRequest,
) -> Result<v1::GetAgentSpecResponse, Status> {
    let v1::GetAgentSpecRequest { spec_id, revision } = request;
    let id = parsed_id("spec_id", &spec_id, SpecId::parse)?;
    let found = call.read_small(move |view| {
        let spec = agent_spec_to_v1(&*view.spec(SpecKind::Agent, &id, revision)?)?;
        Ok((spec, view.may_read_prompt(&id)?))
    });
    let (spec, is_whole) = found.await?;
    let spec = if is_whole { spec } else { without_prompt(spec) };
    Ok(v1::GetAgentSpecResponse { spec: Some(spec), prompt_hidden: !is_whole })
}

pub(super) async fn list_agent_specs(
    call: Call,
    request: v1::ListAgentSpecsRequest,
) -> Result<v1::ListAgentSpecsResponse, Status> {
    call.run_large(move |broker, caller| {
        let size = page_size(request.page_size);
        let page = broker.view(caller).specs(SpecKind::Agent, size, &request.page_token).map_err(refuse)?;
        let brief = |spec: &Arc<Spec>| {
            Ok(without_prompt(agent_spec_to_v1(spec).map_err(|error| refuse(BrokerError::from(error)))?))
        };
        let specs = page.entries.iter().map(brief).collect::<Result<_, Status>>()?;
        Ok(v1::ListAgentSpecsResponse { specs, next_page_token: page.next_token })
    })
    .await
}

pub(super) async fn put_model_spec(
    call: Call,
    request: v1::PutModelSpecRequest,
) -> Result<v1::PutModelSpecResponse, Status> {
    let v1::PutModelSpecRequest { spec, etag } = request;
    let (spec, registration) = put(&call, parse_model_spec(spec.as_ref())?, etag).await?;
    let spec = Some(model_spec_to_v1(&spec).map_err(|error| refuse(BrokerError::from(error)))?);
    Ok(v1::PutModelSpecResponse { spec, registration: Some(registration) })
}

pub(super) async fn list_model_specs(
    call: Call,
    request: v1::ListModelSpecsRequest,
) -> Result<v1::ListModelSpecsResponse, Status> {
    call.run_large(move |broker, caller| {
        let size = page_size(request.page_size);
        let page = broker.view(caller).specs(SpecKind::Model, size, &request.page_token).map_err(refuse)?;
        let brief = |spec: &Arc<Spec>| {
            let spec = model_spec_to_v1(spec).map_err(|error| refuse(BrokerError::from(error)))?;
            Ok(v1::ModelSpec { parameters_json: String::new(), ..spec })
        };
        let specs = page.entries.iter().map(brief).collect::<Result<_, Status>>()?;
        Ok(v1::ListModelSpecsResponse { specs, next_page_token: page.next_token })
    })
    .await
}

pub(super) async fn create_thread(
    call: Call,
    request: v1::CreateThreadRequest,
) -> Result<v1::CreateThreadResponse, Status> {
    let mut checks = Checks::default();
    let base = checks.id("base_spec_id", &request.base_spec_id, SpecId::parse);
    let id = checks.optional_id("thread_id", &request.thread_id, ThreadId::parse);
    let task = checks.optional_id("task_id", &request.task_id, TaskId::parse);
    let participants = checks.ids("participant_ids", &request.participant_ids, PARTICIPANTS_MAX, AgentId::parse);
    for (place, agent) in participants.iter().enumerate() {
        if call.broker.directory().get(agent).is_none() {
            checks.wrong(format!("participant_ids[{place}]"), "is not registered");
        }
    }
    let base = checked_with(checks, base)?;
    let id = id.unwrap_or_else(|| {
        let id = call.broker.ids().message_id(call.broker.now()).to_string();
        ThreadId::parse(&id).expect("a UUID is a name")
    });
    call.broker.access().may_create_thread(&call.caller, &id).map_err(refuse)?;
    let participants = participants.into_iter().collect::<BTreeSet<_>>();
    let create = Create { base, by: call.caller.as_agent().cloned(), task, participants };
    apply(&call, EntityId::Thread(id.clone()), threads::Input::Create(create)).await?;
    let thread = Some(thread_to_v1(&*visible_thread(&call, &id).await?));
    Ok(v1::CreateThreadResponse { thread })
}

pub(super) async fn get_thread(call: Call, request: v1::GetThreadRequest) -> Result<v1::GetThreadResponse, Status> {
    let id = parsed_id("thread_id", &request.thread_id, ThreadId::parse)?;
    let thread = Some(thread_to_v1(&*visible_thread(&call, &id).await?));
    Ok(v1::GetThreadResponse { thread })
}

pub(super) async fn list_threads(
    call: Call,
    request: v1::ListThreadsRequest,
) -> Result<v1::ListThreadsResponse, Status> {
    call.run_large(move |broker, caller| {
        let size = page_size(request.page_size);
        let mut checks = Checks::default();
        let task = checks.optional_id("task_id", &request.task_id, TaskId::parse);
        let in_force = checks.optional_id("in_force_spec_id", &request.in_force_spec_id, SpecId::parse);
        checked(checks)?;
        let filter = ThreadFilter { task, in_force };
        let page = broker.view(caller).threads(&filter, size, &request.page_token).map_err(refuse)?;
        let threads = page.entries.iter().map(|thread| thread_to_v1(thread)).collect();
        Ok(v1::ListThreadsResponse { threads, next_page_token: page.next_token })
    })
    .await
}

pub(super) async fn watch_thread(
    call: Call,
    request: v1::WatchThreadRequest,
) -> Result<Responses<v1::WatchThreadResponse>, Status> {
    let id = parsed_id("thread_id", &request.thread_id, ThreadId::parse)?;
    // A thread that the caller may not see is refused here, with the same answer as an absent one.
    visible_thread(&call, &id).await?;
    let asked = LogWatch {
        entity: EntityId::Thread(id.clone()),
        after: request.after_number,
        read: move |view: View<'_>, after| view.thread_log(&id, after, log_watch::ENTRIES_MAX),
        respond: thread_update,
    };
    log_watch::open(call, asked).await
}

pub(super) async fn apply_handoff_action(
    call: Call,
    request: v1::ApplyHandoffActionRequest,
) -> Result<v1::ApplyHandoffActionResponse, Status> {
    let mut checks = Checks::default();
    let id = checks.id("thread_id", &request.thread_id, ThreadId::parse);
    let action_id = checks.optional_id("action_id", &request.action_id, MessageId::parse).map(ActionId);
    let action = match &request.action {
        Some(Asked::RequestSpecId(spec)) => checks.id("request_spec_id", spec, SpecId::parse).map(Action::Request),
        Some(Asked::ActivateSpecId(spec)) => checks.id("activate_spec_id", spec, SpecId::parse).map(Action::Activate),
        Some(Asked::Clear(true)) => Some(Action::Clear),
        Some(Asked::Clear(false)) => {
            checks.wrong("clear", "must be true");
            None
        }
        None => {
            checks.wrong("action", "must be set");
            None
        }
    };
    let (id, action) = checked_with(checks, (id, action))?;
    check_use(&call, &id).await?;
    let act = threads::Input::Act { id: action_id, action, by: call.caller.as_agent().cloned() };
    apply(&call, EntityId::Thread(id.clone()), act).await?;
    let thread = visible_thread(&call, &id).await?;
    let waiting = thread.requested.as_ref();
    let warning = waiting.and_then(|request| Some(unresolved(&request.spec, request.warning?)));
    let (thread, warning) = (Some(thread_to_v1(&thread)), warning.unwrap_or_default());
    Ok(v1::ApplyHandoffActionResponse { thread, warning })
}

pub(super) async fn begin_run(call: Call, request: v1::BeginRunRequest) -> Result<v1::BeginRunResponse, Status> {
    let (id, run) = thread_and_run(&request.thread_id, &request.run_id, Checks::default())?;
    let begin = threads::Input::BeginRun { run, runner: call.caller.as_agent().cloned() };
    let InForce { thread, switched, spec, model, deactivate, activate, request } = boundary(&call, id, begin).await?;
    Ok(v1::BeginRunResponse {
        thread: Some(thread),
        switched,
        spec: Some(spec),
        model: Some(model),
        deactivate_plugin_ids: deactivate,
        activate_plugin_ids: activate,
        request,
    })
}

pub(super) async fn end_step(call: Call, request: v1::EndStepRequest) -> Result<v1::EndStepResponse, Status> {
    let mut checks = Checks::default();
    if request.step == 0 {
        checks.wrong("step", "must be at least 1");
    }
    let (id, run) = thread_and_run(&request.thread_id, &request.run_id, checks)?;
    let end = threads::Input::EndStep { run, runner: call.caller.as_agent().cloned(), step: request.step };
    let InForce { thread, switched, spec, model, deactivate, activate, request } = boundary(&call, id, end).await?;
    Ok(v1::EndStepResponse {
        thread: Some(thread),
        switched,
        spec: Some(spec),
        model: Some(model),
        deactivate_plugin_ids: deactivate,
        activate_plugin_ids: activate,
        request,
    })
}

pub(super) async fn end_run(call: Call, request: v1::EndRunRequest) -> Result<v1::EndRunResponse, Status> {
    let (id, run) = thread_and_run(&request.thread_id, &request.run_id, Checks::default())?;
    check_use(&call, &id).await?;
    let end = threads::Input::EndRun { run, runner: call.caller.as_agent().cloned() };
    apply(&call, EntityId::Thread(id.clone()), end).await?;
    let thread = Some(thread_to_v1(&*visible_thread(&call, &id).await?));
    Ok(v1::EndRunResponse { thread })
}

fn thread_and_run(thread: &str, run: &str, mut checks: Checks) -> Result<(ThreadId, ThreadRunId), Status> {
    let thread = checks.id("thread_id", thread, ThreadId::parse);
    let run = checks.id("run_id", run, MessageId::parse).map(ThreadRunId);
    checked_with(checks, (thread, run))
}

/// What the last boundary of a thread has put in force, with the specs at their revisions.
fn in_force(view: View<'_>, id: &ThreadId) -> Result<InForce, BrokerError> {
    let ThreadWithSpecs { thread, spec, model } = view.thread_with_specs(id)?;
    let boundary = thread.boundary.clone().ok_or(BrokerError::Internal)?;
    Ok(InForce {
        thread: thread_to_v1(&thread),
        switched: boundary.switched,
        spec: agent_spec_to_v1(&spec)?,
        model: model_spec_to_v1(&model)?,
        request: boundary.request.as_ref().map(ended_request_to_v1),
        deactivate: boundary.deactivate,
        activate: boundary.activate,
    })
}

// ------------------------------------------------------------------------------------------------------------- specs

/// Checks a list of names: their grammar, their number, and that each occurs once.
fn check_names(checks: &mut Checks, path: &str, names: &[String], most: usize) {
    checks.at_most(path, names.len(), most, "entries");
    let mut seen = HashSet::new();
    for (place, name) in names.iter().take(most).enumerate() {
        if let Err(error) = check_name(name) {
            checks.wrong(format!("{path}[{place}]"), error.to_string());
        } else if !seen.insert(name) {
            checks.wrong(format!("{path}[{place}]"), "is in the list already");
        }
    }
}

/// The spec without the parts that only its readers by `readSpec` see.
fn without_prompt(spec: v1::AgentSpec) -> v1::AgentSpec {
    v1::AgentSpec { system_prompt: String::new(), sections_json: String::new(), overlay: None, ..spec }
}

fn parse_agent_spec(spec: Option<&v1::AgentSpec>) -> Result<Spec, Status> {
    let Some(spec) = spec else { return Err(refuse(field("spec", "must be set"))) };
    let mut checks = Checks::default();
    let id = checks.id("spec.spec_id", &spec.spec_id, SpecId::parse);
    let model = checks.id("spec.model_id", &spec.model_id, SpecId::parse);
    checks.text("spec.system_prompt", &spec.system_prompt, PROMPT_BYTES_MAX);
    checks.text("spec.description", &spec.description, DESCRIPTION_BYTES_MAX);
    let allowed = spec.allowed_tools.as_ref().map_or(&[][..], |tools| &tools.names);
    check_names(&mut checks, "spec.allowed_tools.names", allowed, TOOLS_MAX);
    check_names(&mut checks, "spec.excluded_tools", &spec.excluded_tools, TOOLS_MAX);
    check_names(&mut checks, "spec.plugin_ids", &spec.plugin_ids, PLUGINS_MAX);
    check_names(&mut checks, "spec.hook_filter", &spec.hook_filter, PLUGINS_MAX);
    let sections = checks.json_object("spec.sections_json", &spec.sections_json, VALUES_BYTES_MAX, SHORTER);
    for (name, value) in sections.iter().filter_map(Value::as_object).flatten() {
        if let Err(error) = check_name(name) {
            checks.wrong("spec.sections_json", format!("has a name that {error}"));
        }
        if !value.is_object() {
            checks.wrong("spec.sections_json", "must have an object for each name");
        }
    }
    let settings = spec.overlay.as_ref().map_or("", |overlay| &overlay.settings_json);
    checks.json_object("spec.overlay.settings_json", settings, VALUES_BYTES_MAX, SHORTER);
    let values = spec.sections_json.len() + settings.len();
    checks.at_most("spec.sections_json", values, VALUES_BYTES_MAX, "bytes with the overlay");
    let (id, model) = checked_with(checks, (id, model))?;
    Ok(agent_spec(id, model, spec.clone()))
}

fn parse_model_spec(spec: Option<&v1::ModelSpec>) -> Result<Spec, Status> {
    let Some(spec) = spec else { return Err(refuse(field("spec", "must be set"))) };
    let mut checks = Checks::default();
    let id = checks.id("spec.model_id", &spec.model_id, SpecId::parse);
    checks.text("spec.provider", &spec.provider, MODEL_BYTES_MAX);
    checks.text("spec.model_name", &spec.model_name, MODEL_BYTES_MAX);
    if spec.model_name.is_empty() {
        checks.wrong("spec.model_name", "must not be empty");
    }
    checks.json_object("spec.parameters_json", &spec.parameters_json, VALUES_BYTES_MAX, SHORTER);
    let id = checked_with(checks, id)?;
    Ok(model_spec(id, spec.clone()))
}

// ----------------------------------------------------------------------------------------------------------- watches

fn thread_update(update: LogUpdate<v1::ThreadEntry>) -> v1::WatchThreadResponse {
    use v1::watch_thread_response::Update;
    let update = match update {
        LogUpdate::Entry(entry) => Update::Entry(entry),
        LogUpdate::Gap(gap) => Update::Gap(gap),
        LogUpdate::CaughtUp(number) => Update::CaughtUp(v1::ThreadCaughtUp { number }),
    };
    v1::WatchThreadResponse { update: Some(update) }
}
