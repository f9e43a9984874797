//! `AgentService`.

use std::{sync::Arc, time::Duration};

use prost::Message as _;
use tonic::{Request, Response, Status};

use super::{
    agents_watch, auth, checked, checked_with, page_size, parsed_id, read_small, refuse, refuse_shared,
    responses::Responses, run_large,
};
use crate::{
    broker::{
        Broker, BrokerError,
        access::{Caller, Purpose},
        directory::{Entry, Filter, KEYS_MAX, check_key, check_voucher},
        engine::{CardField, CardUpdate, Command, KeyChange},
        identity::{Proof, random_bytes},
        queries::{PAGE_BYTES_MAX, View, make_token as make_number_token, parse_token as parse_number_token},
    },
    domain::{
        handoff::Priority,
        matching::{self, Wanted},
    },
    envelope::Checks,
    ids::{AgentId, AgentType, KeyId, check_name},
    proto::v1::{self, agent_service_server::AgentService},
    records::{AgentRecord, InvitationRecord},
    store::format_name,
    wire::to_proto,
};

/// What a caller may know of the broker itself.
fn status(broker: &Broker, caller: &Caller, view: &View<'_>) -> v1::BrokerStatus {
    let clock_time = Some(broker.now().into());
    if *caller == Caller::Anonymous {
        return v1::BrokerStatus { clock_time, ..Default::default() };
    }
    let store = matches!(caller, Caller::Operator(_)).then(|| v1::StoreStatus {
        format: format_name(),
        size_bytes: view.store.size_bytes(),
        size_bytes_max: broker.settings().retention.store_bytes_max.unwrap_or_default(),
    });
    v1::BrokerStatus {
        clock_time,
        caller: caller.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        start_time: Some(broker.started_at().into()),
        store,
    }
}

/// The lifetime of an invitation, and of a replaced key, if the request sets none.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
const LIFETIME_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

pub(super) struct Agents {
    broker: Broker,
}

impl Agents {
    pub(super) fn new(broker: Broker) -> Self {
        Self { broker }
    }

    /// The agent as the directory has it now.
    fn agent(&self, id: &AgentId) -> Result<v1::Agent, Status> {
        let unknown = || refuse(BrokerError::AgentUnknown { agent: id.to_string() });
        self.broker.directory().get(id).map(|entry| shown(&self.broker, &entry)).ok_or_else(unknown)
    }

    async fn change_keys(&self, agent: &str, change: KeyChange, caller: Caller) -> Result<v1::Agent, Status> {
        self.broker.count_card_change(&caller).map_err(refuse)?;
        let agent = parsed_id("agent_id", agent, AgentId::parse)?;
        let id = agent.clone();
        let command = |reply| Command::ChangeKeys { agent, change, caller, reply };
        self.broker.ask(command).await.map_err(refuse_shared)?;
        self.agent(&id)
    }
}

#[tonic::async_trait]
impl AgentService for Agents {
    async fn register_agent(
        &self,
        request: Request<v1::RegisterAgentRequest>,
    ) -> Result<Response<v1::RegisterAgentResponse>, Status> {
        let caller = auth::caller(&self.broker, &request)?;
        self.broker.count_card_change(&caller).map_err(refuse)?;
        let v1::RegisterAgentRequest { card, invitation } = request.into_inner();
        let permitted = self.broker.access().reach(&caller, Purpose::Enroll);
        if invitation.is_empty() {
            permitted.map_err(refuse)?;
        // The engine decides: it uses the invitation up in the commit of the registration. An unknown one takes none of its
        // time, because a stranger may try any number of them.
        } else if permitted.is_err() {
            let key = InvitationRecord::key(&invitation);
            let known = move |view: View<'_>| view.store.get(&key)?.map(drop).ok_or(BrokerError::InvitationInvalid);
            read_small(&self.broker, &caller, known).await.map_err(refuse)?;
        }
        let mut card = card.ok_or_else(|| refuse(super::field("card", "must be set")))?;
        // An agent may omit its keys to keep them. The reply reveals the kept keys, so the caller must be the agent or
        // may see the directory.
        let may_know = matches!(&caller, Caller::Agent(own) if own.as_str() == card.agent_id)
            || self.broker.access().may_see_directory(&caller).is_ok();
        if card.keys.is_empty()
            && may_know
            && let Some(known) = AgentId::parse(&card.agent_id).ok().and_then(|id| self.broker.directory().get(&id))
        {
            card.keys.clone_from(&known.record.card.keys);
        }
        let now = self.broker.now();
        let entry = Entry::parse(AgentRecord::new(card, now)).map_err(refuse)?;
        let id = entry.id();
        let entry = Box::new(entry);
        let command = |reply| Command::Register { entry, caller, invitation, reply };
        self.broker.ask(command).await.map_err(refuse_shared)?;
        Ok(Response::new(v1::RegisterAgentResponse { agent: Some(self.agent(&id)?) }))
    }

    async fn add_agent_key(
        &self,
        request: Request<v1::AddAgentKeyRequest>,
    ) -> Result<Response<v1::AddAgentKeyResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ManageKeys)?;
        let request = request.into_inner();
        let key = request.key.ok_or_else(|| refuse(super::field("key", "must be set")))?;
        let mut checks = Checks::default();
        check_key(&key, "key", &mut checks).map_err(refuse)?;
        let replaced = checks.ids("replaced_key_ids", &request.replaced_key_ids, KEYS_MAX, KeyId::parse);
        let grace = lifetime(&mut checks, "grace", request.grace.as_ref());
        checked(checks)?;
        let change = KeyChange::Add { key: Box::new(key), replaced, grace };
        let agent = self.change_keys(&request.agent_id, change, caller).await?;
        Ok(Response::new(v1::AddAgentKeyResponse { agent: Some(agent) }))
    }

    async fn revoke_agent_key(
        &self,
        request: Request<v1::RevokeAgentKeyRequest>,
    ) -> Result<Response<v1::RevokeAgentKeyResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ManageKeys)?;
        let request = request.into_inner();
        let mut checks = Checks::default();
        let key_id = checks.id("key_id", &request.key_id, KeyId::parse);
        checks.text("reason_text", &request.reason_text, 1024);
        let key_id = checked_with(checks, key_id)?;
        let change = KeyChange::Revoke { key_id, reason_text: request.reason_text };
        let agent = self.change_keys(&request.agent_id, change, caller).await?;
        Ok(Response::new(v1::RevokeAgentKeyResponse { agent: Some(agent) }))
    }

    async fn vouch_for_agent_key(
        &self,
        request: Request<v1::VouchForAgentKeyRequest>,
    ) -> Result<Response<v1::VouchForAgentKeyResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ManageKeys)?;
        let request = request.into_inner();
        let voucher = request.voucher.ok_or_else(|| refuse(super::field("voucher", "must be set")))?;
        let mut checks = Checks::default();
        let key_id = checks.id("key_id", &request.key_id, KeyId::parse);
        check_voucher(&voucher, "voucher", &mut checks);
        let key_id = checked_with(checks, key_id)?;
        let change = KeyChange::Vouch { key_id, voucher };
        let agent = self.change_keys(&request.agent_id, change, caller).await?;
        Ok(Response::new(v1::VouchForAgentKeyResponse { agent: Some(agent) }))
    }

    async fn create_invitation(
        &self,
        request: Request<v1::CreateInvitationRequest>,
    ) -> Result<Response<v1::CreateInvitationResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::Invite)?;
        let request = request.get_ref();
        let mut checks = Checks::default();
        let agent = checks.optional_id("agent_id", &request.agent_id, AgentId::parse);
        let types = checks.ids("agent_types", &request.agent_types, 16, AgentType::parse);
        let lifetime = lifetime(&mut checks, "lifetime", request.lifetime.as_ref());
        checked(checks)?;
        let invitation = format!("invitation-{}", hex::encode(random_bytes(self.broker.ids())));
        let expires_at = self.broker.now().plus(lifetime);
        let record = InvitationRecord { agent, types, expires_at, used_by: None };
        let command = |reply| Command::Invite { invitation: invitation.clone(), record, caller, reply };
        self.broker.ask(command).await.map_err(refuse_shared)?;
        let expire_time = Some(expires_at.into());
        Ok(Response::new(v1::CreateInvitationResponse { invitation, expire_time }))
    }

    async fn get_agent(&self, request: Request<v1::GetAgentRequest>) -> Result<Response<v1::GetAgentResponse>, Status> {
        let caller = auth::caller(&self.broker, &request)?;
        self.broker.count_call(&caller).map_err(refuse)?;
        let id = &request.get_ref().agent_id;
        // Any caller may read the broker's own key, also without a token, because receipts are verified with it.
        if *id != AgentId::broker().as_str() {
            self.broker.access().may_see_directory(&caller).map_err(refuse)?;
        }
        let id = parsed_id("agent_id", id, AgentId::parse)?;
        let mut agents = vec![self.agent(&id)?];
        let (broker, by) = (self.broker.clone(), caller.clone());
        let read = move |view: View<'_>| {
            add_mailboxes(&broker, &mut agents)?;
            let status = (id == AgentId::broker()).then(|| status(&broker, &by, &view));
            Ok(v1::GetAgentResponse { agent: agents.pop(), broker: status })
        };
        read_small(&self.broker, &caller, read).await.map(Response::new).map_err(refuse)
    }

    async fn list_processes(
        &self,
        request: Request<v1::ListProcessesRequest>,
    ) -> Result<Response<v1::ListProcessesResponse>, Status> {
        let caller = auth::caller(&self.broker, &request)?;
        self.broker.access().may_see_directory(&caller).map_err(refuse)?;
        self.broker.count_call(&caller).map_err(refuse)?;
        let agent = parsed_id("agent_id", &request.get_ref().agent_id, AgentId::parse)?;
        self.agent(&agent)?;
        let command = |reply| Command::Processes { agent, reply };
        let running = self.broker.ask(command).await.map_err(refuse_shared)?;
        let processes = run_large(&self.broker, &caller, move |broker, caller| {
            let view = broker.view(caller);
            Ok(running.iter().map(|process| to_proto::process(view, process)).collect())
        });
        Ok(Response::new(v1::ListProcessesResponse { processes: processes.await? }))
    }

    async fn list_agents(
        &self,
        request: Request<v1::ListAgentsRequest>,
    ) -> Result<Response<v1::ListAgentsResponse>, Status> {
        let caller = auth::caller(&self.broker, &request)?;
        self.broker.access().may_see_directory(&caller).map_err(refuse)?;
        let size = page_size(request.get_ref().page_size);
        self.broker.count_call(&caller).map_err(refuse)?;
        run_large(&self.broker, &caller, move |broker, _| list(broker, request.get_ref(), size))
            .await
            .map(Response::new)
    }

    async fn update_agent(
        &self,
        request: Request<v1::UpdateAgentRequest>,
    ) -> Result<Response<v1::UpdateAgentResponse>, Status> {
        let caller = auth::caller(&self.broker, &request)?;
        self.broker.access().reach(&caller, Purpose::ChangeCards).map_err(refuse)?;
        self.broker.count_card_change(&caller).map_err(refuse)?;
        let v1::UpdateAgentRequest { card, update_mask, etag } = request.into_inner();
        let card = card.ok_or_else(|| refuse(super::field("card", "must be set")))?;
        let mut checks = Checks::default();
        let agent = checks.id("card.agent_id", &card.agent_id, AgentId::parse);
        let fields = card_fields(update_mask, &mut checks);
        checks.text("etag", &etag, 64);
        let agent = checked_with(checks, agent)?;
        let update = Box::new(CardUpdate { agent: agent.clone(), card, fields, etag });
        self.broker.ask(|reply| Command::Update { update, caller, reply }).await.map_err(refuse_shared)?;
        Ok(Response::new(v1::UpdateAgentResponse { agent: Some(self.agent(&agent)?) }))
    }

    async fn deregister_agent(
        &self,
        request: Request<v1::DeregisterAgentRequest>,
    ) -> Result<Response<v1::DeregisterAgentResponse>, Status> {
        let caller = auth::caller(&self.broker, &request)?;
        self.broker.access().reach(&caller, Purpose::Deregister).map_err(refuse)?;
        self.broker.count_card_change(&caller).map_err(refuse)?;
        let v1::DeregisterAgentRequest { agent_id, force, reason_text } = request.into_inner();
        let mut checks = Checks::default();
        let agent = checks.id("agent_id", &agent_id, AgentId::parse);
        checks.text("reason_text", &reason_text, 1024);
        if agent.as_ref().is_some_and(|agent| agent.is_reserved() || *agent == AgentId::broker()) {
            checks.wrong("agent_id", "is the broker's own, which cannot be deregistered");
        }
        let agent = checked_with(checks, agent)?;
        let id = agent.clone();
        let command = |reply| Command::Deregister { agent, force, reason_text, caller, reply };
        self.broker.ask(command).await.map_err(refuse_shared)?;
        Ok(Response::new(v1::DeregisterAgentResponse { agent: Some(self.agent(&id)?) }))
    }

    async fn find_agents(
        &self,
        request: Request<v1::FindAgentsRequest>,
    ) -> Result<Response<v1::FindAgentsResponse>, Status> {
        let caller = auth::caller(&self.broker, &request)?;
        self.broker.access().may_see_directory(&caller).map_err(refuse)?;
        let size = page_size(request.get_ref().page_size);
        self.broker.count_call(&caller).map_err(refuse)?;
        // Ranking many agents takes a while, and the threads of the runtime serve other calls.
        run_large(&self.broker, &caller, move |broker, caller| find(broker, caller, request.get_ref(), size))
            .await
            .map(Response::new)
    }

    type WatchAgentsStream = Responses<v1::WatchAgentsResponse>;

    async fn watch_agents(
        &self,
        request: Request<v1::WatchAgentsRequest>,
    ) -> Result<Response<Self::WatchAgentsStream>, Status> {
        let caller = auth::caller(&self.broker, &request)?;
        self.broker.access().may_see_directory(&caller).map_err(refuse)?;
        self.broker.count_call(&caller).map_err(refuse)?;
        let request = request.into_inner();
        let mut checks = Checks::default();
        checks.optional_id("agent_type", &request.agent_type, AgentType::parse);
        checks.optional_id("skill", &request.skill, check_name);
        checked(checks)?;
        Ok(Response::new(agents_watch::stream(self.broker.clone(), caller, request)))
    }

    async fn create_challenge(
        &self,
        request: Request<v1::CreateChallengeRequest>,
    ) -> Result<Response<v1::CreateChallengeResponse>, Status> {
        // Not authenticated: this is the first step of a proof. An id without an agent gets a challenge too, so the
        // answer does not reveal which agents exist.
        let id = parsed_id("agent_id", &request.get_ref().agent_id, AgentId::parse)?;
        let broker = &self.broker;
        let (challenge, expires_at) = broker.identities().challenge(&id, broker.ids(), broker.now());
        Ok(Response::new(v1::CreateChallengeResponse {
            challenge: challenge.to_vec().into(),
            expire_time: Some(expires_at.into()),
        }))
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        let request = request.get_ref();
        let mut checks = Checks::default();
        let agent = checks.id("agent_id", &request.agent_id, AgentId::parse);
        let key_id = checks.id("key_id", &request.key_id, KeyId::parse);
        let (agent, key_id) = checked_with(checks, (agent, key_id))?;
        let proof =
            Proof { agent: &agent, key_id: &key_id, challenge: &request.challenge, signature: &request.signature };
        let broker = &self.broker;
        let issued = broker.identities().token(&proof, broker.directory(), broker.ids(), broker.now());
        let (token, expires_at) = issued.map_err(refuse)?;
        let expire_time = Some(expires_at.into());
        Ok(Response::new(v1::CreateTokenResponse { token, expire_time }))
    }

    async fn create_login_code(
        &self,
        request: Request<v1::CreateLoginCodeRequest>,
    ) -> Result<Response<v1::CreateLoginCodeResponse>, Status> {
        let broker = &self.broker;
        let (caller, credential) = auth::proven(broker, &request)?;
        broker.count_call(&caller).map_err(refuse)?;
        if !broker.settings().console {
            return Err(refuse(BrokerError::NotSupported {
                what: "the web console, which [console] of the configuration enables",
            }));
        }
        let (code, expires_at) = broker.identities().login_code(caller, credential, broker.ids(), broker.now());
        Ok(Response::new(v1::CreateLoginCodeResponse { code, expire_time: Some(expires_at.into()) }))
    }
}

/// The agent as the directory has it.
fn shown(broker: &Broker, entry: &Arc<Entry>) -> v1::Agent {
    to_proto::agent(broker.directory(), entry, broker.now())
}

fn list(broker: &Broker, request: &v1::ListAgentsRequest, size: usize) -> Result<v1::ListAgentsResponse, Status> {
    checked(list_checks(request))?;
    let after = parse_token(&request.page_token, request)?;
    let (agents, last) = directory_page(broker, request, after, size);
    let mut agents: Vec<_> = agents.iter().map(|entry| shown(broker, entry)).collect();
    add_mailboxes(broker, &mut agents).map_err(refuse)?;
    let next_page_token = last.map(|last| make_token(&last, request)).unwrap_or_default();
    Ok(v1::ListAgentsResponse { agents, next_page_token })
}

/// Adds what waits in the mailbox of each agent, and what it stores. Reads one letter of each, so it may wait for the disk.
fn add_mailboxes(broker: &Broker, agents: &mut [v1::Agent]) -> Result<(), BrokerError> {
    for agent in agents {
        let id = agent.card.as_ref().and_then(|card| AgentId::parse(&card.agent_id).ok());
        if let Some(id) = id.filter(|id| *id != AgentId::broker() && !id.is_coordinator()) {
            let (letter_count, oldest) = (broker.directory().letters(&id), broker.oldest_letter(&id)?);
            agent.mailbox = Some(v1::Mailbox { letter_count, oldest_letter_time: oldest.map(Into::into) });
            let stored_bytes = broker.directory().stored_bytes(&id);
            let stored_bytes_max = broker.settings().limits.stored_bytes_max;
            agent.usage = Some(v1::AgentUsage { stored_bytes, stored_bytes_max });
        }
    }
    Ok(())
}

fn lifetime(checks: &mut Checks, path: &str, wanted: Option<&prost_types::Duration>) -> Duration {
    let lifetime = checks.span(path, wanted).unwrap_or(LIFETIME);
    if lifetime.is_zero() || lifetime > LIFETIME_MAX {
        checks.wrong(path, "must be over 0 and at most 30 days");
    }
    lifetime
}

/// The most agents that are examined for one page of a list.
const EXAMINED_MAX: usize = 10_000;

/// A page of a list, and the last examined agent if more may follow.
fn directory_page(
    broker: &Broker,
    request: &v1::ListAgentsRequest,
    mut after: Option<AgentId>,
    size: usize,
) -> (Vec<Arc<Entry>>, Option<AgentId>) {
    let (directory, now) = (broker.directory(), broker.now());
    let wanted = request.presence();
    let is_wanted = |entry: &Arc<Entry>| {
        let presence = || to_proto::presence(directory.presence_state(&entry.id(), now));
        wanted == v1::Presence::Unspecified || presence() == wanted
    };
    let one = |text: &String| if text.is_empty() { Vec::new() } else { vec![text.clone()] };
    let (skills, tags, languages) = (one(&request.skill), one(&request.tag), one(&request.language));
    let filter = Filter {
        agent_type: &request.agent_type,
        skills: &skills,
        tags: &tags,
        languages: &languages,
        task_type: &request.task_type,
    };
    let (mut page, mut bytes) = (Vec::new(), 0);
    let mut left = EXAMINED_MAX;
    while left > 0 {
        // One more than the page, to learn whether another page follows.
        let part = left.min(size + 1);
        let (found, last) = match request.include_deregistered && is_everything(request) {
            true => {
                let found = directory.list(after.as_ref(), part);
                let last = found.last().filter(|_| found.len() == part).map(|entry| entry.id());
                (found, last)
            }
            false => directory.lookup(filter, after.as_ref(), part),
        };
        left -= part;
        for entry in found.into_iter().filter(|entry| is_wanted(entry)) {
            let heartbeat = directory.presence(&entry.id()).heartbeat;
            bytes += entry.record.card.encoded_len() + heartbeat.map_or(0, |(heartbeat, _)| heartbeat.encoded_len());
            // A page has at least one agent, of any size.
            if page.len() == size || (bytes > PAGE_BYTES_MAX && !page.is_empty()) {
                let last = page.last().map(|entry: &Arc<Entry>| entry.id());
                return (page, last);
            }
            page.push(entry);
        }
        match last {
            Some(last) => after = Some(last),
            None => return (page, None),
        }
    }
    (page, after)
}

/// Whether the request has no filter on cards.
fn is_everything(request: &v1::ListAgentsRequest) -> bool {
    let v1::ListAgentsRequest { agent_type, skill, tag, language, task_type, .. } = request;
    [agent_type, skill, tag, language, task_type].into_iter().all(String::is_empty)
}

fn list_checks(request: &v1::ListAgentsRequest) -> Checks {
    let mut checks = Checks::default();
    checks.optional_id("agent_type", &request.agent_type, AgentType::parse);
    checks.optional_id("skill", &request.skill, check_name);
    for (path, text) in [("tag", &request.tag), ("language", &request.language), ("task_type", &request.task_type)] {
        checks.text(path, text, 128);
    }
    if v1::Presence::try_from(request.presence).is_err() {
        checks.wrong("presence", format!("must be a known value, not {}", request.presence));
    }
    checks
}

/// The fields of an update mask. An empty mask has all of them.
fn card_fields(mask: Option<prost_types::FieldMask>, checks: &mut Checks) -> Vec<CardField> {
    let paths = mask.map(|mask| mask.paths).unwrap_or_default();
    if paths.is_empty() {
        return CardField::ALL.to_vec();
    }
    checks.at_most("update_mask.paths", paths.len(), 16, "entries");
    let mut fields = Vec::new();
    for (index, path) in paths.iter().take(16).enumerate() {
        match CardField::ALL.into_iter().find(|field| field.path() == path) {
            Some(field) => fields.push(field),
            None => {
                let known = CardField::ALL.map(CardField::path).join(", ");
                checks.wrong(format!("update_mask.paths[{index}]"), format!("must be one of {known}"));
            }
        }
    }
    fields
}

/// The most skills of a search, and the most tags and languages.
const SKILLS_MAX: usize = 32;
const TAGS_MAX: usize = 16;

fn find(
    broker: &Broker,
    caller: &Caller,
    request: &v1::FindAgentsRequest,
    size: usize,
) -> Result<v1::FindAgentsResponse, Status> {
    let mut checks = Checks::default();
    let agent_type = checks.optional_id("agent_type", &request.agent_type, AgentType::parse);
    checks.ids("required_skills", &request.required_skills, SKILLS_MAX, check_name);
    checks.ids("preferred_skills", &request.preferred_skills, SKILLS_MAX, check_name);
    checks.text("task_type", &request.task_type, 128);
    for (path, texts) in [("languages", &request.languages), ("tags", &request.tags)] {
        checks.at_most(path, texts.len(), TAGS_MAX, "entries");
        texts.iter().take(TAGS_MAX).for_each(|text| checks.text(path, text, 128));
    }
    let priority = match request.priority {
        0 => Some(Priority::default()),
        number => checks.number("priority", number, Priority::from_number),
    };
    let as_sender = checks.optional_id("as_sender_id", &request.as_sender_id, AgentId::parse);
    let priority = checked_with(checks, priority)?;
    let wanted = Wanted {
        agent_type: agent_type.as_ref(),
        required_skills: &request.required_skills,
        preferred_skills: &request.preferred_skills,
        task_type: &request.task_type,
        languages: &request.languages,
        tags: &request.tags,
        priority,
        accept_timeout: broker.settings().timeouts.accept,
    };
    // A token continues only a search with the same filters (SPEC 11).
    let filters = v1::FindAgentsRequest { page_size: 0, page_token: String::new(), ..request.clone() };
    let filters = hex::encode(filters.encode_to_vec());
    let first = match request.page_token.as_str() {
        "" => 0,
        token => parse_number_token(token, &filters).map_err(refuse)?,
    };
    let found = broker.find_agents(caller, &wanted, as_sender, request.include_gone).map_err(refuse)?;
    let first = usize::try_from(first).unwrap_or(usize::MAX);
    let next = first.saturating_add(size);
    let matches = found.from(first).take(size).enumerate();
    Ok(v1::FindAgentsResponse {
        matches: matches
            .map(|(place, (facts, score, busy))| v1::AgentMatch {
                agent_id: facts.agent.to_string(),
                rank: u32::try_from(first + place + 1).unwrap_or(u32::MAX),
                score,
                presence: to_proto::presence(broker.directory().presence_state(facts.agent, broker.now())).into(),
                factors: matching::explain(&wanted, &facts).into_iter().map(to_proto::factor).collect(),
                missing_skills: matching::missing(facts.skills, &request.preferred_skills)
                    .into_iter()
                    .map(str::to_owned)
                    .collect(),
                load: Some(to_proto::load(busy)),
            })
            .collect(),
        next_page_token: if next < found.len() { make_number_token(next as u64, &filters) } else { String::new() },
    })
}

/// The page token of a list of agents: the last agent's id and the filters.
fn make_token(last: &AgentId, request: &v1::ListAgentsRequest) -> String {
    // Names contain no colon (SPEC 1), so the token has one reading.
    format!("{last}:{}", filters_of(request))
}

fn filters_of(request: &v1::ListAgentsRequest) -> String {
    let filters = v1::ListAgentsRequest { page_size: 0, page_token: String::new(), ..request.clone() };
    hex::encode(filters.encode_to_vec())
}

fn parse_token(token: &str, request: &v1::ListAgentsRequest) -> Result<Option<AgentId>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let invalid = || refuse(BrokerError::PageTokenInvalid);
    let (last, filters) = token.split_once(':').ok_or_else(invalid)?;
    // A token continues only the list that it comes from (SPEC 11).
    if filters != filters_of(request) {
        return Err(invalid());
    }
    AgentId::parse(last).map(Some).map_err(|_| invalid())
}
