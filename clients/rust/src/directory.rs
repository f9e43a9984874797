//! The directory of agents: registration, keys and cards.

use std::time::Duration;

use super::{Client, ClientError, Identity};
use crate::proto::v1;

/// The agent of an answer.
fn agent_in(agent: Option<v1::Agent>) -> Result<v1::Agent, ClientError> {
    agent.ok_or_else(|| ClientError::Answer("there is no agent in it".to_owned()))
}

impl Client {
    /// Registers this agent's card with its key, or changes the card of a registered one. The same card again changes
    /// nothing. `agent_id` and `keys` of the card are set here. `invitation` permits one new agent to register; empty: the
    /// policies decide.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`]: `CHALLENGE_FAILED` if the id is registered with another key, `PERMISSION_DENIED` or
    /// `INVITATION_INVALID` if the agent may not register.
    pub async fn register(
        &self,
        identity: &Identity,
        mut card: v1::AgentCard,
        invitation: &str,
    ) -> Result<v1::Agent, ClientError> {
        card.agent_id = identity.agent.to_string();
        card.keys = vec![identity.agent_key()];
        let request = v1::RegisterAgentRequest { card: Some(card), invitation: invitation.to_owned() };
        match self.answer(self.agents().register_agent(request.clone()).await) {
            // The agent is registered with another card. It may change its own card once it has proven its identity.
            Err(exists) if exists.reason() == Some("AGENT_EXISTS") => {
                let own = self.sign_in(identity).await?;
                agent_in(own.answer(own.agents().register_agent(request).await)?.agent)
            }
            answer => agent_in(answer?.agent),
        }
    }

    /// Creates an invitation for one new agent: this one, or any if empty. Returns the secret. Without a lifetime it is
    /// good for one day.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `PERMISSION_DENIED`.
    pub async fn invite(&self, agent_id: &str, lifetime: Option<Duration>) -> Result<String, ClientError> {
        let lifetime = lifetime.and_then(|lifetime| prost_types::Duration::try_from(lifetime).ok());
        let request = v1::CreateInvitationRequest { agent_id: agent_id.to_owned(), lifetime, ..Default::default() };
        Ok(self.answer(self.agents().create_invitation(request).await)?.invitation)
    }

    /// Adds a key to an agent. The keys that it replaces stay valid for `grace`; without it, for one day.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with `KEY_TAKEN`, `KEY_EXISTS` and `PERMISSION_DENIED`.
    pub async fn add_key(
        &self,
        agent_id: &str,
        key: v1::AgentKey,
        replaced_key_ids: &[&str],
        grace: Option<Duration>,
    ) -> Result<v1::Agent, ClientError> {
        let request = v1::AddAgentKeyRequest {
            agent_id: agent_id.to_owned(),
            key: Some(key),
            replaced_key_ids: replaced_key_ids.iter().map(|id| (*id).to_owned()).collect(),
            grace: grace.and_then(|grace| prost_types::Duration::try_from(grace).ok()),
        };
        agent_in(self.answer(self.agents().add_agent_key(request).await)?.agent)
    }

    /// Revokes a key for good: the broker refuses each signature by it.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `AGENT_KEY_UNKNOWN` or `PERMISSION_DENIED`.
    pub async fn revoke_key(&self, agent_id: &str, key_id: &str, reason: &str) -> Result<v1::Agent, ClientError> {
        let request = v1::RevokeAgentKeyRequest {
            agent_id: agent_id.to_owned(),
            key_id: key_id.to_owned(),
            reason_text: reason.to_owned(),
        };
        agent_in(self.answer(self.agents().revoke_agent_key(request).await)?.agent)
    }

    /// Adds an operator's voucher to a key of an agent: see [`vouch`](crate::vouch).
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `AGENT_KEY_UNKNOWN` or `PERMISSION_DENIED`.
    pub async fn vouch_for_key(
        &self,
        agent_id: &str,
        key_id: &str,
        voucher: v1::KeyVoucher,
    ) -> Result<v1::Agent, ClientError> {
        let (agent_id, key_id) = (agent_id.to_owned(), key_id.to_owned());
        let request = v1::VouchForAgentKeyRequest { agent_id, key_id, voucher: Some(voucher) };
        agent_in(self.answer(self.agents().vouch_for_agent_key(request).await)?.agent)
    }

    /// The registration of an agent. The broker's own id is `baton`.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `AGENT_UNKNOWN`.
    pub async fn get_agent(&self, agent_id: &str) -> Result<v1::Agent, ClientError> {
        let request = v1::GetAgentRequest { agent_id: agent_id.to_owned() };
        agent_in(self.answer(self.agents().get_agent(request).await)?.agent)
    }

    /// The processes of an agent that have an open session, in the order in which they came, at most 100. Each names at most
    /// 20 tasks that it works on, without those that the caller may not see.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `AGENT_UNKNOWN`, and `PERMISSION_DENIED` if the policies do not let the caller read the
    /// directory.
    pub async fn list_processes(&self, agent_id: &str) -> Result<Vec<v1::Process>, ClientError> {
        let request = v1::ListProcessesRequest { agent_id: agent_id.to_owned() };
        Ok(self.answer(self.agents().list_processes(request).await)?.processes)
    }

    /// Changes the fields of a card that `fields` names: `agent_types`, `description`, `skills`, `capacity`, `metadata`,
    /// `decides_within`. Each is replaced as a whole; without names all of them are. With the `etag` of an agent that was read, the change
    /// is refused if the agent has changed since; empty: it applies to any version.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `CONFLICT`, `FIELD_INVALID` or `PERMISSION_DENIED`.
    pub async fn update_agent(
        &self,
        card: v1::AgentCard,
        fields: &[&str],
        etag: &str,
    ) -> Result<v1::Agent, ClientError> {
        let paths = fields.iter().map(|field| (*field).to_owned()).collect();
        let update_mask = (!fields.is_empty()).then_some(prost_types::FieldMask { paths });
        let request = v1::UpdateAgentRequest { card: Some(card), update_mask, etag: etag.to_owned() };
        agent_in(self.answer(self.agents().update_agent(request).await)?.agent)
    }

    /// Deregisters an agent for good: its keys are revoked, its sessions end, and its id is never used again. `force` also
    /// deregisters one that owns open tasks or takes part in open handoffs.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `AGENT_BUSY` without `force`, or `PERMISSION_DENIED`.
    pub async fn deregister(&self, agent_id: &str, force: bool, reason: &str) -> Result<v1::Agent, ClientError> {
        let (agent_id, reason_text) = (agent_id.to_owned(), reason.to_owned());
        let request = v1::DeregisterAgentRequest { agent_id, force, reason_text };
        agent_in(self.answer(self.agents().deregister_agent(request).await)?.agent)
    }
}
