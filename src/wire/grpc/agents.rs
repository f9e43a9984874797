//! `AgentService`.

use std::{sync::Arc, time::Duration};

use tonic::{Request, Response, Status};

use super::{auth, checked, page_size, refuse, refuse_shared};
use crate::{
    broker::{
        Broker, BrokerError,
        access::{Caller, Purpose},
        directory::{Entry, check_key, check_voucher},
        engine::{Command, KEYS_MAX, KeyChange},
        identity::{Proof, random_bytes},
    },
    envelope::Checks,
    ids::{AgentId, AgentType, KeyId},
    proto::v1::{self, agent_service_server::AgentService},
    records::{AgentRecord, InvitationRecord},
    wire::to_proto,
};

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

    fn to_proto(&self, entry: &Arc<Entry>) -> v1::Agent {
        let directory = self.broker.directory();
        to_proto::agent(entry, &directory.presence(&entry.id()), directory.liveness(&entry.id(), self.broker.now()))
    }

    /// The agent as the directory has it now.
    fn agent(&self, id: &AgentId) -> Result<v1::Agent, Status> {
        let unknown = || refuse(BrokerError::AgentUnknown { agent: id.to_string() });
        self.broker.directory().get(id).map(|entry| self.to_proto(&entry)).ok_or_else(unknown)
    }

    async fn change_keys(&self, agent: &str, change: KeyChange, caller: Caller) -> Result<v1::Agent, Status> {
        self.broker.count_card_change(&caller).map_err(refuse)?;
        let agent = agent_id(agent)?;
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
        // With an invitation the engine decides: it uses the invitation up in the commit of the registration.
        if invitation.is_empty() {
            self.broker.access().reach(&caller, Purpose::Enroll).map_err(refuse)?;
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
        let entry = Entry::parse(AgentRecord { card, created_at: now, updated_at: now }).map_err(refuse)?;
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
        checked(checks)?;
        let change = KeyChange::Revoke { key_id: key_id.expect("checked above"), reason_text: request.reason_text };
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
        checked(checks)?;
        let change = KeyChange::Vouch { key_id: key_id.expect("checked above"), voucher };
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
        let expire_time = Some(to_proto::time(expires_at));
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
        let id = agent_id(id)?;
        Ok(Response::new(v1::GetAgentResponse { agent: Some(self.agent(&id)?) }))
    }

    async fn list_agents(
        &self,
        request: Request<v1::ListAgentsRequest>,
    ) -> Result<Response<v1::ListAgentsResponse>, Status> {
        let caller = auth::caller(&self.broker, &request)?;
        self.broker.access().may_see_directory(&caller).map_err(refuse)?;
        let request = request.get_ref();
        let size = page_size(request.page_size)?;
        self.broker.count_reads(&caller, size).map_err(refuse)?;
        let mut checks = Checks::default();
        let agent_type = checks.optional_id("agent_type", &request.agent_type, AgentType::parse);
        checked(checks)?;
        let after = parse_token(&request.page_token, &request.agent_type)?;
        // One more than the page, to learn whether another page follows.
        let mut found = self.broker.directory().list(after.as_ref(), size + 1, agent_type.as_ref());
        let more = found.len() > size;
        found.truncate(size);
        let next = found.last().filter(|_| more).map(|entry| make_token(&entry.id(), &request.agent_type));
        Ok(Response::new(v1::ListAgentsResponse {
            agents: found.iter().map(|entry| self.to_proto(entry)).collect(),
            next_page_token: next.unwrap_or_default(),
        }))
    }

    async fn create_challenge(
        &self,
        request: Request<v1::CreateChallengeRequest>,
    ) -> Result<Response<v1::CreateChallengeResponse>, Status> {
        // Not authenticated: this is the first step of a proof. An id without an agent gets a challenge too, so the
        // answer does not reveal which agents exist.
        let id = agent_id(&request.get_ref().agent_id)?;
        let broker = &self.broker;
        let (challenge, expires_at) = broker.identities().challenge(&id, broker.ids(), broker.now());
        Ok(Response::new(v1::CreateChallengeResponse {
            challenge: challenge.to_vec().into(),
            expire_time: Some(to_proto::time(expires_at)),
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
        checked(checks)?;
        let proof = Proof {
            agent: &agent.expect("checked above"),
            key_id: &key_id.expect("checked above"),
            challenge: &request.challenge,
            signature: &request.signature,
        };
        let broker = &self.broker;
        let issued = broker.identities().token(&proof, broker.directory(), broker.ids(), broker.now());
        let (token, expires_at) = issued.map_err(refuse)?;
        let expire_time = Some(to_proto::time(expires_at));
        Ok(Response::new(v1::CreateTokenResponse { token, expire_time }))
    }
}

fn lifetime(checks: &mut Checks, path: &str, wanted: Option<&prost_types::Duration>) -> Duration {
    let lifetime = checks.span(path, wanted).unwrap_or(LIFETIME);
    if lifetime.is_zero() || lifetime > LIFETIME_MAX {
        checks.wrong(path, "must be over 0 and at most 30 days");
    }
    lifetime
}

fn agent_id(text: &str) -> Result<AgentId, Status> {
    let mut checks = Checks::default();
    let id = checks.id("agent_id", text, AgentId::parse);
    checked(checks)?;
    Ok(id.expect("checked above"))
}

/// The page token of a list of agents: the last agent's id and the requested type.
fn make_token(last: &AgentId, agent_type: &str) -> String {
    // Names contain no colon (SPEC 1), so the token has one reading.
    format!("{last}:{agent_type}")
}

fn parse_token(token: &str, agent_type: &str) -> Result<Option<AgentId>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let invalid = || refuse(BrokerError::PageTokenInvalid);
    let (last, of_type) = token.split_once(':').ok_or_else(invalid)?;
    // A token continues only the list that it comes from (SPEC 11).
    if of_type != agent_type {
        return Err(invalid());
    }
    AgentId::parse(last).map(Some).map_err(|_| invalid())
}
