//! `ThreadService`.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use serde_json::Value;
use tonic::{Request, Response, Status};

use super::{
    auth, checked, checked_with, field,
    log_watch::{self, LogUpdate, LogWatch},
    page_size, parsed_id, read_small, refuse, refuse_shared,
    registries::check_etag,
    responses::Responses,
    run_large,
};
use crate::{
    broker::{
        Broker, BrokerError,
        access::{Caller, Purpose},
        engine::{Command, Revision},
        queries::{ThreadFilter, ThreadWithSpecs, View},
    },
    domain::{
        EntityId, Input,
        threads::{self, Action, ActionId, Create, PARTICIPANTS_MAX, PLUGINS_MAX, Spec, SpecKind, Thread, ThreadRunId},
    },
    envelope::Checks,
    ids::{AgentId, MessageId, SpecId, TaskId, ThreadId, check_name},
    proto::v1::{self, apply_handoff_action_request::Action as Asked, thread_service_server::ThreadService},
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

pub(super) struct Threads {
    broker: Broker,
}

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

impl Threads {
    pub(super) fn new(broker: Broker) -> Self {
        Self { broker }
    }

    /// Asks the engine for a step. The step is stored when this returns.
    async fn apply(&self, caller: &Caller, about: EntityId, input: threads::Input) -> Result<(), Status> {
        let input = Box::new(Input::Thread(input));
        let caller = caller.clone();
        let applied = self.broker.ask(|reply| Command::Apply { about, input, caller, reply }).await;
        applied.map(drop).map_err(refuse_shared)
    }

    /// The thread as the caller may see it.
    async fn thread(&self, caller: &Caller, id: &ThreadId) -> Result<Arc<Thread>, Status> {
        let id = id.clone();
        read_small(&self.broker, caller, move |view| view.thread(&id)).await.map_err(refuse)
    }

    /// Checks that the caller may use the thread.
    async fn check_use(&self, caller: &Caller, id: &ThreadId) -> Result<(), Status> {
        let id = id.clone();
        read_small(&self.broker, caller, move |view| view.thread_for_use(&id).map(drop)).await.map_err(refuse)
    }

    /// Registers a spec. Returns it with its revision, and its name.
    async fn put(&self, caller: &Caller, spec: Spec, etag: String) -> Result<(Arc<Spec>, v1::Registration), Status> {
        let mut checks = Checks::default();
        check_etag(&mut checks, &etag);
        checked(checks)?;
        let name = RegistrationName::new(Registry::of_specs(spec.kind), &spec.id);
        self.broker.access().may_register(caller, &name).map_err(refuse)?;
        let (kind, id, by) = (spec.kind, spec.id.clone(), caller.clone());
        let revision = Box::new(Revision::Spec(spec));
        let stored = self.broker.ask(|reply| Command::RegisterRevision { revision, caller: by, etag, reply }).await;
        let registration = stored.map_err(refuse_shared)?.to_v1();
        // The registration is stored, so a caller that may not read specs sees its own.
        let spec = read_small(&self.broker, caller, move |view| view.registered_spec(kind, &id)).await;
        Ok((spec.map_err(refuse)?, registration))
    }

    /// Makes the step of a boundary, and returns what is in force. A repeat reads the same boundary.
    async fn boundary(&self, caller: &Caller, id: ThreadId, input: threads::Input) -> Result<InForce, Status> {
        self.check_use(caller, &id).await?;
        self.apply(caller, EntityId::Thread(id.clone()), input).await?;
        read_small(&self.broker, caller, move |view| in_force(view, &id)).await.map_err(refuse)
    }
}

#[tonic::async_trait]
impl ThreadService for Threads {
    async fn put_agent_spec(
        &self,
        request: Request<v1::PutAgentSpecRequest>,
    ) -> Result<Response<v1::PutAgentSpecResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ManageSpecs)?;
        self.broker.count_name_change(&caller).map_err(refuse)?;
        let v1::PutAgentSpecRequest { spec, etag } = request.into_inner();
        let (spec, registration) = self.put(&caller, parse_agent_spec(spec.as_ref())?, etag).await?;
        let spec = Some(agent_spec_to_v1(&spec).map_err(|error| refuse(BrokerError::from(error)))?);
        Ok(Response::new(v1::PutAgentSpecResponse { spec, registration: Some(registration) }))
    }

    async fn get_agent_spec(
        &self,
        request: Request<v1::GetAgentSpecRequest>,
    ) -> Result<Response<v1::GetAgentSpecResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadSpecs)?;
        let v1::GetAgentSpecRequest { spec_id, revision } = request.into_inner();
        let id = parsed_id("spec_id", &spec_id, SpecId::parse)?;
        let found = read_small(&self.broker, &caller, move |view| {
            let spec = agent_spec_to_v1(&*view.spec(SpecKind::Agent, &id, revision)?)?;
            Ok((spec, view.may_read_prompt(&id)?))
        });
        let (spec, is_whole) = found.await.map_err(refuse)?;
        let spec = if is_whole { spec } else { without_prompt(spec) };
        Ok(Response::new(v1::GetAgentSpecResponse { spec: Some(spec), prompt_hidden: !is_whole }))
    }

    async fn list_agent_specs(
        &self,
        request: Request<v1::ListAgentSpecsRequest>,
    ) -> Result<Response<v1::ListAgentSpecsResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadSpecs)?;
        let listed = run_large(&self.broker, &caller, move |broker, caller| {
            let request = request.get_ref();
            let size = page_size(request.page_size);
            let page = broker.view(caller).specs(SpecKind::Agent, size, &request.page_token).map_err(refuse)?;
            let brief = |spec: &Arc<Spec>| {
                Ok(without_prompt(agent_spec_to_v1(spec).map_err(|error| refuse(BrokerError::from(error)))?))
            };
            let specs = page.entries.iter().map(brief).collect::<Result<_, Status>>()?;
            Ok(v1::ListAgentSpecsResponse { specs, next_page_token: page.next_token })
        });
        listed.await.map(Response::new)
    }

    async fn put_model_spec(
        &self,
        request: Request<v1::PutModelSpecRequest>,
    ) -> Result<Response<v1::PutModelSpecResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ManageSpecs)?;
        self.broker.count_name_change(&caller).map_err(refuse)?;
        let v1::PutModelSpecRequest { spec, etag } = request.into_inner();
        let (spec, registration) = self.put(&caller, parse_model_spec(spec.as_ref())?, etag).await?;
        let spec = Some(model_spec_to_v1(&spec).map_err(|error| refuse(BrokerError::from(error)))?);
        Ok(Response::new(v1::PutModelSpecResponse { spec, registration: Some(registration) }))
    }

    async fn list_model_specs(
        &self,
        request: Request<v1::ListModelSpecsRequest>,
    ) -> Result<Response<v1::ListModelSpecsResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadSpecs)?;
        let listed = run_large(&self.broker, &caller, move |broker, caller| {
            let request = request.get_ref();
            let size = page_size(request.page_size);
            let page = broker.view(caller).specs(SpecKind::Model, size, &request.page_token).map_err(refuse)?;
            let brief = |spec: &Arc<Spec>| {
                let spec = model_spec_to_v1(spec).map_err(|error| refuse(BrokerError::from(error)))?;
                Ok(v1::ModelSpec { parameters_json: String::new(), ..spec })
            };
            let specs = page.entries.iter().map(brief).collect::<Result<_, Status>>()?;
            Ok(v1::ListModelSpecsResponse { specs, next_page_token: page.next_token })
        });
        listed.await.map(Response::new)
    }

    async fn create_thread(
        &self,
        request: Request<v1::CreateThreadRequest>,
    ) -> Result<Response<v1::CreateThreadResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::UseThreads)?;
        let request = request.get_ref();
        let mut checks = Checks::default();
        let base = checks.id("base_spec_id", &request.base_spec_id, SpecId::parse);
        let id = checks.optional_id("thread_id", &request.thread_id, ThreadId::parse);
        let task = checks.optional_id("task_id", &request.task_id, TaskId::parse);
        let participants = checks.ids("participant_ids", &request.participant_ids, PARTICIPANTS_MAX, AgentId::parse);
        for (place, agent) in participants.iter().enumerate() {
            if self.broker.directory().get(agent).is_none() {
                checks.wrong(format!("participant_ids[{place}]"), "is not registered");
            }
        }
        let base = checked_with(checks, base)?;
        let id = id.unwrap_or_else(|| {
            let id = self.broker.ids().message_id(self.broker.now()).to_string();
            ThreadId::parse(&id).expect("a UUID is a name")
        });
        self.broker.access().may_create_thread(&caller, &id).map_err(refuse)?;
        let participants = participants.into_iter().collect::<BTreeSet<_>>();
        let create = Create { base, by: caller.as_agent().cloned(), task, participants };
        self.apply(&caller, EntityId::Thread(id.clone()), threads::Input::Create(create)).await?;
        let thread = Some(thread_to_v1(&*self.thread(&caller, &id).await?));
        Ok(Response::new(v1::CreateThreadResponse { thread }))
    }

    async fn get_thread(
        &self,
        request: Request<v1::GetThreadRequest>,
    ) -> Result<Response<v1::GetThreadResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadThreads)?;
        let id = parsed_id("thread_id", &request.get_ref().thread_id, ThreadId::parse)?;
        let thread = Some(thread_to_v1(&*self.thread(&caller, &id).await?));
        Ok(Response::new(v1::GetThreadResponse { thread }))
    }

    async fn list_threads(
        &self,
        request: Request<v1::ListThreadsRequest>,
    ) -> Result<Response<v1::ListThreadsResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadThreads)?;
        let listed = run_large(&self.broker, &caller, move |broker, caller| {
            let request = request.get_ref();
            let size = page_size(request.page_size);
            let mut checks = Checks::default();
            let task = checks.optional_id("task_id", &request.task_id, TaskId::parse);
            let in_force = checks.optional_id("in_force_spec_id", &request.in_force_spec_id, SpecId::parse);
            checked(checks)?;
            let filter = ThreadFilter { task, in_force };
            let page = broker.view(caller).threads(&filter, size, &request.page_token).map_err(refuse)?;
            let threads = page.entries.iter().map(|thread| thread_to_v1(thread)).collect();
            Ok(v1::ListThreadsResponse { threads, next_page_token: page.next_token })
        });
        listed.await.map(Response::new)
    }

    type WatchThreadStream = Responses<v1::WatchThreadResponse>;

    async fn watch_thread(
        &self,
        request: Request<v1::WatchThreadRequest>,
    ) -> Result<Response<Self::WatchThreadStream>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadThreads)?;
        let request = request.get_ref();
        let id = parsed_id("thread_id", &request.thread_id, ThreadId::parse)?;
        // A thread that the caller may not see is refused here, with the same answer as an absent one.
        self.thread(&caller, &id).await?;
        let asked = LogWatch {
            entity: EntityId::Thread(id.clone()),
            after: request.after_number,
            read: move |view: View<'_>, after| view.thread_log(&id, after, log_watch::ENTRIES_MAX),
            respond: thread_update,
        };
        log_watch::open(&self.broker, caller, asked).await.map(Response::new)
    }

    async fn apply_handoff_action(
        &self,
        request: Request<v1::ApplyHandoffActionRequest>,
    ) -> Result<Response<v1::ApplyHandoffActionResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::UseThreads)?;
        let request = request.get_ref();
        let mut checks = Checks::default();
        let id = checks.id("thread_id", &request.thread_id, ThreadId::parse);
        let action_id = checks.optional_id("action_id", &request.action_id, MessageId::parse).map(ActionId);
        let action = match &request.action {
            Some(Asked::RequestSpecId(spec)) => checks.id("request_spec_id", spec, SpecId::parse).map(Action::Request),
            Some(Asked::ActivateSpecId(spec)) => {
                checks.id("activate_spec_id", spec, SpecId::parse).map(Action::Activate)
            }
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
        self.check_use(&caller, &id).await?;
        let act = threads::Input::Act { id: action_id, action, by: caller.as_agent().cloned() };
        self.apply(&caller, EntityId::Thread(id.clone()), act).await?;
        let thread = self.thread(&caller, &id).await?;
        let waiting = thread.requested.as_ref();
        let warning = waiting.and_then(|request| Some(unresolved(&request.spec, request.warning?)));
        let (thread, warning) = (Some(thread_to_v1(&thread)), warning.unwrap_or_default());
        Ok(Response::new(v1::ApplyHandoffActionResponse { thread, warning }))
    }

    async fn begin_run(&self, request: Request<v1::BeginRunRequest>) -> Result<Response<v1::BeginRunResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::UseThreads)?;
        let (id, run) = thread_and_run(&request.get_ref().thread_id, &request.get_ref().run_id, Checks::default())?;
        let begin = threads::Input::BeginRun { run, runner: caller.as_agent().cloned() };
        let InForce { thread, switched, spec, model, deactivate, activate, request } =
            self.boundary(&caller, id, begin).await?;
        Ok(Response::new(v1::BeginRunResponse {
            thread: Some(thread),
            switched,
            spec: Some(spec),
            model: Some(model),
            deactivate_plugin_ids: deactivate,
            activate_plugin_ids: activate,
            request,
        }))
    }

    async fn end_step(&self, request: Request<v1::EndStepRequest>) -> Result<Response<v1::EndStepResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::UseThreads)?;
        let request = request.get_ref();
        let mut checks = Checks::default();
        if request.step == 0 {
            checks.wrong("step", "must be at least 1");
        }
        let (id, run) = thread_and_run(&request.thread_id, &request.run_id, checks)?;
        let end = threads::Input::EndStep { run, runner: caller.as_agent().cloned(), step: request.step };
        let InForce { thread, switched, spec, model, deactivate, activate, request } =
            self.boundary(&caller, id, end).await?;
        Ok(Response::new(v1::EndStepResponse {
            thread: Some(thread),
            switched,
            spec: Some(spec),
            model: Some(model),
            deactivate_plugin_ids: deactivate,
            activate_plugin_ids: activate,
            request,
        }))
    }

    async fn end_run(&self, request: Request<v1::EndRunRequest>) -> Result<Response<v1::EndRunResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::UseThreads)?;
        let (id, run) = thread_and_run(&request.get_ref().thread_id, &request.get_ref().run_id, Checks::default())?;
        self.check_use(&caller, &id).await?;
        let end = threads::Input::EndRun { run, runner: caller.as_agent().cloned() };
        self.apply(&caller, EntityId::Thread(id.clone()), end).await?;
        let thread = Some(thread_to_v1(&*self.thread(&caller, &id).await?));
        Ok(Response::new(v1::EndRunResponse { thread }))
    }
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
