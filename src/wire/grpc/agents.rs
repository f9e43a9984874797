//! `AgentService`.

use std::{sync::Arc, time::Duration};

use prost::Message as _;
use tonic::Status;

use super::{
    agents_watch, call::Call, checked, checked_with, page_size, parsed_id, refuse, refuse_shared, responses::Responses,
};
use crate::{
    broker::{
        Broker, BrokerError,
        access::Caller,
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
    proto::v1,
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

/// The agent as the directory has it now.
fn registered(call: &Call, id: &AgentId) -> Result<v1::Agent, Status> {
    let unknown = || refuse(BrokerError::AgentUnknown { agent: id.to_string() });
    call.broker.directory().get(id).map(|entry| shown(&call.broker, &entry)).ok_or_else(unknown)
}

/// Changes the keys of an agent. Also counts as a change of its card, once the fields of the request are checked.
async fn change_keys(call: &Call, agent: &str, change: KeyChange) -> Result<v1::Agent, Status> {
    call.broker.count_card_change(&call.caller).map_err(refuse)?;
    let agent = parsed_id("agent_id", agent, AgentId::parse)?;
    let id = agent.clone();
    call.ask(|caller, reply| Command::ChangeKeys { agent, change, caller, reply }).await?;
    registered(call, &id)
}

pub(super) async fn register_agent(
    call: Call,
    request: v1::RegisterAgentRequest,
) -> Result<v1::RegisterAgentResponse, Status> {
    let v1::RegisterAgentRequest { card, invitation } = request;
    let permitted = call.may_enroll();
    if invitation.is_empty() {
        permitted?;
    // The engine decides: it uses the invitation up in the commit of the registration. An unknown one takes none of its
    // time, because a stranger may try any number of them.
    } else if permitted.is_err() {
        let key = InvitationRecord::key(&invitation);
        let known = move |view: View<'_>| view.store.get(&key)?.map(drop).ok_or(BrokerError::InvitationInvalid);
        call.read_small(known).await?;
    }
    let mut card = card.ok_or_else(|| refuse(super::field("card", "must be set")))?;
    // An agent may omit its keys to keep them. The reply reveals the kept keys, so the caller must be the agent or
    // may see the directory.
    let may_know = matches!(&call.caller, Caller::Agent(own) if own.as_str() == card.agent_id)
        || call.broker.access().may_see_directory(&call.caller).is_ok();
    if card.keys.is_empty()
        && may_know
        && let Some(known) = AgentId::parse(&card.agent_id).ok().and_then(|id| call.broker.directory().get(&id))
    {
        card.keys.clone_from(&known.record.card.keys);
    }
    let now = call.broker.now();
    let entry = Entry::parse(AgentRecord::new(card, now)).map_err(refuse)?;
    let id = entry.id();
    let entry = Box::new(entry);
    call.ask(|caller, reply| Command::Register { entry, caller, invitation, reply }).await?;
    Ok(v1::RegisterAgentResponse { agent: Some(registered(&call, &id)?) })
}

pub(super) async fn add_agent_key(
    call: Call,
    request: v1::AddAgentKeyRequest,
) -> Result<v1::AddAgentKeyResponse, Status> {
    let key = request.key.ok_or_else(|| refuse(super::field("key", "must be set")))?;
    let mut checks = Checks::default();
    check_key(&key, "key", &mut checks).map_err(refuse)?;
    let replaced = checks.ids("replaced_key_ids", &request.replaced_key_ids, KEYS_MAX, KeyId::parse);
    let grace = lifetime(&mut checks, "grace", request.grace.as_ref());
    checked(checks)?;
    let change = KeyChange::Add { key: Box::new(key), replaced, grace };
    let agent = change_keys(&call, &request.agent_id, change).await?;
    Ok(v1::AddAgentKeyResponse { agent: Some(agent) })
}

pub(super) async fn revoke_agent_key(
    call: Call,
    request: v1::RevokeAgentKeyRequest,
) -> Result<v1::RevokeAgentKeyResponse, Status> {
    let mut checks = Checks::default();
    let key_id = checks.id("key_id", &request.key_id, KeyId::parse);
    checks.text("reason_text", &request.reason_text, 1024);
    let key_id = checked_with(checks, key_id)?;
    let change = KeyChange::Revoke { key_id, reason_text: request.reason_text };
    let agent = change_keys(&call, &request.agent_id, change).await?;
    Ok(v1::RevokeAgentKeyResponse { agent: Some(agent) })
}

pub(super) async fn vouch_for_agent_key(
    call: Call,
    request: v1::VouchForAgentKeyRequest,
) -> Result<v1::VouchForAgentKeyResponse, Status> {
    let voucher = request.voucher.ok_or_else(|| refuse(super::field("voucher", "must be set")))?;
    let mut checks = Checks::default();
    let key_id = checks.id("key_id", &request.key_id, KeyId::parse);
    check_voucher(&voucher, "voucher", &mut checks);
    let key_id = checked_with(checks, key_id)?;
    let change = KeyChange::Vouch { key_id, voucher };
    let agent = change_keys(&call, &request.agent_id, change).await?;
    Ok(v1::VouchForAgentKeyResponse { agent: Some(agent) })
}

pub(super) async fn create_invitation(
    call: Call,
    request: v1::CreateInvitationRequest,
) -> Result<v1::CreateInvitationResponse, Status> {
    let mut checks = Checks::default();
    let agent = checks.optional_id("agent_id", &request.agent_id, AgentId::parse);
    let types = checks.ids("agent_types", &request.agent_types, 16, AgentType::parse);
    let lifetime = lifetime(&mut checks, "lifetime", request.lifetime.as_ref());
    checked(checks)?;
    let invitation = format!("invitation-{}", hex::encode(random_bytes(call.broker.ids())));
    let expires_at = call.broker.now().plus(lifetime);
    let record = InvitationRecord { agent, types, expires_at, used_by: None };
    call.ask(|caller, reply| Command::Invite { invitation: invitation.clone(), record, caller, reply }).await?;
    let expire_time = Some(expires_at.into());
    Ok(v1::CreateInvitationResponse { invitation, expire_time })
}

pub(super) async fn get_agent(call: Call, request: v1::GetAgentRequest) -> Result<v1::GetAgentResponse, Status> {
    let id = &request.agent_id;
    // Any caller may read the broker's own key, also without a token, because receipts are verified with it.
    if *id != AgentId::broker().as_str() {
        call.broker.access().may_see_directory(&call.caller).map_err(refuse)?;
    }
    let id = parsed_id("agent_id", id, AgentId::parse)?;
    let mut agents = vec![registered(&call, &id)?];
    let (broker, by) = (call.broker.clone(), call.caller.clone());
    let read = move |view: View<'_>| {
        add_mailboxes(&broker, &mut agents)?;
        let status = (id == AgentId::broker()).then(|| status(&broker, &by, &view));
        Ok(v1::GetAgentResponse { agent: agents.pop(), broker: status })
    };
    call.read_small(read).await
}

pub(super) async fn list_processes(
    call: Call,
    request: v1::ListProcessesRequest,
) -> Result<v1::ListProcessesResponse, Status> {
    let agent = parsed_id("agent_id", &request.agent_id, AgentId::parse)?;
    registered(&call, &agent)?;
    // A question, which changes nothing.
    let running = call.broker.ask(|reply| Command::Processes { agent, reply }).await.map_err(refuse_shared)?;
    let processes = call.run_large(move |broker, caller| {
        let view = broker.view(caller);
        Ok(running.iter().map(|process| to_proto::process(view, process)).collect())
    });
    Ok(v1::ListProcessesResponse { processes: processes.await? })
}

pub(super) async fn list_agents(call: Call, request: v1::ListAgentsRequest) -> Result<v1::ListAgentsResponse, Status> {
    let size = page_size(request.page_size);
    call.run_large(move |broker, _| list(broker, &request, size)).await
}

pub(super) async fn update_agent(
    call: Call,
    request: v1::UpdateAgentRequest,
) -> Result<v1::UpdateAgentResponse, Status> {
    let v1::UpdateAgentRequest { card, update_mask, etag } = request;
    let card = card.ok_or_else(|| refuse(super::field("card", "must be set")))?;
    let mut checks = Checks::default();
    let agent = checks.id("card.agent_id", &card.agent_id, AgentId::parse);
    let fields = card_fields(update_mask, &mut checks);
    checks.text("etag", &etag, 64);
    let agent = checked_with(checks, agent)?;
    let update = Box::new(CardUpdate { agent: agent.clone(), card, fields, etag });
    call.ask(|caller, reply| Command::Update { update, caller, reply }).await?;
    Ok(v1::UpdateAgentResponse { agent: Some(registered(&call, &agent)?) })
}

pub(super) async fn deregister_agent(
    call: Call,
    request: v1::DeregisterAgentRequest,
) -> Result<v1::DeregisterAgentResponse, Status> {
    let v1::DeregisterAgentRequest { agent_id, force, reason_text } = request;
    let mut checks = Checks::default();
    let agent = checks.id("agent_id", &agent_id, AgentId::parse);
    checks.text("reason_text", &reason_text, 1024);
    if agent.as_ref().is_some_and(|agent| agent.is_reserved() || *agent == AgentId::broker()) {
        checks.wrong("agent_id", "is the broker's own, which cannot be deregistered");
    }
    let agent = checked_with(checks, agent)?;
    let id = agent.clone();
    call.ask(|caller, reply| Command::Deregister { agent, force, reason_text, caller, reply }).await?;
    Ok(v1::DeregisterAgentResponse { agent: Some(registered(&call, &id)?) })
}

pub(super) async fn find_agents(call: Call, request: v1::FindAgentsRequest) -> Result<v1::FindAgentsResponse, Status> {
    let size = page_size(request.page_size);
    // Ranking many agents takes a while, and the threads of the runtime serve other calls.
    call.run_large(move |broker, caller| find(broker, caller, &request, size)).await
}

pub(super) async fn watch_agents(
    call: Call,
    request: v1::WatchAgentsRequest,
) -> Result<Responses<v1::WatchAgentsResponse>, Status> {
    let mut checks = Checks::default();
    checks.optional_id("agent_type", &request.agent_type, AgentType::parse);
    checks.optional_id("skill", &request.skill, check_name);
    checked(checks)?;
    Ok(agents_watch::stream(call, request))
}

pub(super) async fn create_challenge(
    call: Call,
    request: v1::CreateChallengeRequest,
) -> Result<v1::CreateChallengeResponse, Status> {
    // Not authenticated: this is the first step of a proof. An id without an agent gets a challenge too, so the
    // answer does not reveal which agents exist.
    let id = parsed_id("agent_id", &request.agent_id, AgentId::parse)?;
    let broker = &call.broker;
    let (challenge, expires_at) = broker.identities().challenge(&id, broker.ids(), broker.now());
    Ok(v1::CreateChallengeResponse { challenge: challenge.to_vec().into(), expire_time: Some(expires_at.into()) })
}

pub(super) async fn create_token(
    call: Call,
    request: v1::CreateTokenRequest,
) -> Result<v1::CreateTokenResponse, Status> {
    let mut checks = Checks::default();
    let agent = checks.id("agent_id", &request.agent_id, AgentId::parse);
    let key_id = checks.id("key_id", &request.key_id, KeyId::parse);
    let (agent, key_id) = checked_with(checks, (agent, key_id))?;
    let proof = Proof { agent: &agent, key_id: &key_id, challenge: &request.challenge, signature: &request.signature };
    let broker = &call.broker;
    let issued = broker.identities().token(&proof, broker.directory(), broker.ids(), broker.now());
    let (token, expires_at) = issued.map_err(refuse)?;
    let expire_time = Some(expires_at.into());
    Ok(v1::CreateTokenResponse { token, expire_time })
}

pub(super) async fn create_login_code(
    call: Call,
    _request: v1::CreateLoginCodeRequest,
) -> Result<v1::CreateLoginCodeResponse, Status> {
    let Call { broker, caller, credential, .. } = call;
    let credential = credential.ok_or_else(|| refuse(BrokerError::IdentityMissing))?;
    if !broker.settings().console {
        return Err(refuse(BrokerError::NotSupported {
            what: "the web console, which [console] of the configuration enables",
        }));
    }
    let (code, expires_at) = broker.identities().login_code(caller, credential, broker.ids(), broker.now());
    Ok(v1::CreateLoginCodeResponse { code, expire_time: Some(expires_at.into()) })
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
