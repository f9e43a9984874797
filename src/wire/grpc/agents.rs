//! `AgentService`.

use std::{sync::Arc, time::Duration};

use tonic::{Request, Response, Status};

use super::{auth, checked, page_size, refuse, refuse_shared};
use crate::{
    broker::{
        Broker, BrokerError,
        directory::Entry,
        engine::{Command, EnrollmentRight},
        identity::{Proof, random_bytes},
    },
    envelope::Checks,
    ids::{AgentId, AgentType, KeyId},
    proto::v1::{self, agent_service_server::AgentService},
    records::AgentRecord,
    wire::to_proto,
};

/// For how long an invitation is good, if nothing is said.
const INVITATION_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
const INVITATION_LIFETIME_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

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
}

#[tonic::async_trait]
impl AgentService for Agents {
    async fn register_agent(
        &self,
        request: Request<v1::RegisterAgentRequest>,
    ) -> Result<Response<v1::RegisterAgentResponse>, Status> {
        let caller = auth::caller(&self.broker, &request)?;
        let v1::RegisterAgentRequest { card, invitation } = request.into_inner();
        let card = card.ok_or_else(|| refuse(super::field("card", "must be set")))?;
        let now = self.broker.now();
        let entry = Entry::parse(AgentRecord { card, created_at: now, updated_at: now }).map_err(refuse)?;
        let id = entry.id();
        let access = self.broker.access();
        let may_change = access.may_change_card(&caller, &id);
        let right = match access.may_enroll(&caller) {
            Ok(()) => EnrollmentRight::Enroll { may_change },
            // A known agent may change its own card also where it could not enroll.
            Err(_) if may_change && self.broker.directory().is_registered(&id) => EnrollmentRight::Change,
            Err(_) if !invitation.is_empty() => EnrollmentRight::Invited(invitation),
            Err(refusal) => return Err(refuse(refusal)),
        };
        let entry = Box::new(entry);
        self.broker.ask(|reply| Command::Register { entry, right, reply }).await.map_err(refuse_shared)?;
        let entry = self.broker.directory().get(&id).ok_or_else(|| refuse(BrokerError::Internal))?;
        Ok(Response::new(v1::RegisterAgentResponse { agent: Some(self.to_proto(&entry)) }))
    }

    async fn create_invitation(
        &self,
        request: Request<v1::CreateInvitationRequest>,
    ) -> Result<Response<v1::CreateInvitationResponse>, Status> {
        let caller = auth::caller(&self.broker, &request)?;
        self.broker.access().may_invite(&caller).map_err(refuse)?;
        let request = request.get_ref();
        let mut checks = Checks::default();
        let agent = checks.optional_id("agent_id", &request.agent_id, AgentId::parse);
        let lifetime = checks.span("lifetime", request.lifetime.as_ref()).unwrap_or(INVITATION_LIFETIME);
        if lifetime.is_zero() || lifetime > INVITATION_LIFETIME_MAX {
            checks.wrong("lifetime", "must be over 0 and at most 30 days");
        }
        checked(checks)?;
        let invitation = format!("invitation-{}", hex::encode(random_bytes(self.broker.ids())));
        let expires_at = self.broker.now().plus(lifetime);
        let command = |reply| Command::Invite { invitation: invitation.clone(), agent, expires_at, reply };
        self.broker.ask(command).await.map_err(refuse_shared)?;
        let expire_time = Some(to_proto::time(expires_at));
        Ok(Response::new(v1::CreateInvitationResponse { invitation, expire_time }))
    }

    async fn get_agent(&self, request: Request<v1::GetAgentRequest>) -> Result<Response<v1::GetAgentResponse>, Status> {
        let caller = auth::caller(&self.broker, &request)?;
        self.broker.access().may_see_directory(&caller).map_err(refuse)?;
        let id = agent_id(&request.get_ref().agent_id)?;
        let unknown = || refuse(BrokerError::AgentUnknown { agent: id.to_string() });
        let entry = self.broker.directory().get(&id).ok_or_else(unknown)?;
        Ok(Response::new(v1::GetAgentResponse { agent: Some(self.to_proto(&entry)) }))
    }

    async fn list_agents(
        &self,
        request: Request<v1::ListAgentsRequest>,
    ) -> Result<Response<v1::ListAgentsResponse>, Status> {
        let caller = auth::caller(&self.broker, &request)?;
        self.broker.access().may_see_directory(&caller).map_err(refuse)?;
        let request = request.get_ref();
        let size = page_size(request.page_size)?;
        let mut checks = Checks::default();
        let agent_type = checks.optional_id("agent_type", &request.agent_type, AgentType::parse);
        checked(checks)?;
        let after = parse_token(&request.page_token, &request.agent_type)?;
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
        let id = agent_id(&request.get_ref().agent_id)?;
        let broker = &self.broker;
        let issued = broker.identities().challenge(&id, broker.directory(), broker.ids(), broker.now());
        let (challenge, expires_at) = issued.map_err(refuse)?;
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

fn agent_id(text: &str) -> Result<AgentId, Status> {
    let mut checks = Checks::default();
    let id = checks.id("agent_id", text, AgentId::parse);
    checked(checks)?;
    Ok(id.expect("checked above"))
}

/// The token of a list of agents names the last one, and the type that was asked for.
fn make_token(last: &AgentId, agent_type: &str) -> String {
    format!("{last}:{agent_type}")
}

fn parse_token(token: &str, agent_type: &str) -> Result<Option<AgentId>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let invalid = || refuse(BrokerError::PageTokenInvalid);
    let (last, of_type) = token.split_once(':').ok_or_else(invalid)?;
    if of_type != agent_type {
        return Err(invalid());
    }
    AgentId::parse(last).map(Some).map_err(|_| invalid())
}
