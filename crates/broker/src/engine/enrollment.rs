//! Registration of agents, changes of their cards, and invitations.

use super::{Engine, LIMIT_RETRY, batch::PostCommit, transaction::Transaction};
use crate::{
    BrokerError, Refused,
    access::Caller,
    codes::FieldViolation,
    directory::Entry,
    ids::{AgentId, AgentType},
    policy::{Action, Agent, Resource},
    proto::v1::{AgentCard, AgentKey, AuditAction},
    records::{AgentRecord, AuditAct, Expiration, InvitationRecord},
    refused,
    store::Record,
    time::Timestamp,
};

/// A field of a card that an update can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is a field of baton.v1.AgentCard, which describes it")]
pub enum CardField {
    AgentTypes,
    Description,
    Skills,
    Capacity,
    Metadata,
    DecidesWithin,
}

impl CardField {
    /// All fields that an update can change.
    pub const ALL: [Self; 6] =
        [Self::AgentTypes, Self::Description, Self::Skills, Self::Capacity, Self::Metadata, Self::DecidesWithin];

    /// The name of the field in an update mask.
    pub const fn path(self) -> &'static str {
        match self {
            Self::AgentTypes => "agent_types",
            Self::Description => "description",
            Self::Skills => "skills",
            Self::Capacity => "capacity",
            Self::Metadata => "metadata",
            Self::DecidesWithin => "decides_within",
        }
    }

    fn copy(self, from: &AgentCard, to: &mut AgentCard) {
        match self {
            Self::AgentTypes => to.agent_types.clone_from(&from.agent_types),
            Self::Description => to.description.clone_from(&from.description),
            Self::Skills => to.skills.clone_from(&from.skills),
            Self::Capacity => to.capacity = from.capacity,
            Self::Metadata => to.metadata.clone_from(&from.metadata),
            Self::DecidesWithin => to.decides_within = from.decides_within,
        }
    }
}

/// A change of some fields of a card.
#[derive(Debug, Clone, PartialEq)]
pub struct CardUpdate {
    /// The agent whose card is changed.
    pub agent: AgentId,
    /// The new values of the fields.
    pub card: AgentCard,
    /// The fields to change.
    pub fields: Vec<CardField>,
    /// The version that the change is based on. Empty: any.
    pub etag: String,
}

impl Engine {
    /// Registers a new agent, or changes the card of a registered one.
    pub(super) fn register(
        &mut self,
        entry: Entry,
        caller: &Caller,
        invitation: &str,
        now: Timestamp,
    ) -> Result<(), Refused> {
        let mut transaction = self.transaction();
        let id = entry.id();
        if id.is_reserved() {
            let problem = "begins with \"baton.\", which is reserved for agents that the broker runs".to_owned();
            let violations = vec![FieldViolation { path: "card.agent_id".to_owned(), problem }];
            return Err(refused(BrokerError::Fields { violations }));
        }
        let known = self.agent_record(&mut transaction, &id).map_err(refused)?;
        let outcome = match known {
            Some((known, stored)) => self.change(transaction, entry, &known, &stored, (caller, invitation), now),
            None => self.enroll(transaction, entry, caller, invitation, now),
        };
        outcome.map_err(refused)
    }

    /// Registers a new agent, with the permission of the policy or with an invitation.
    fn enroll(
        &mut self,
        mut transaction: Transaction,
        entry: Entry,
        caller: &Caller,
        invitation: &str,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let id = entry.id();
        let permitted = self.access().check(caller, Action::Enroll, Resource::Agent(entry.as_asked()));
        let details = match permitted {
            Ok(()) => {
                // With an invitation, the invitation names the permitted types instead.
                self.check_types(caller, &entry, &entry.types)?;
                String::new()
            }
            // The refusal names the rule. With an invitation the error must be about the invitation alone.
            Err(refusal) if invitation.is_empty() => return Err(refusal),
            Err(_) => self.use_invitation(&mut transaction, invitation, &entry, now)?,
        };
        // Only a caller that may register reaches this check: to any other caller the error would reveal which keys
        // exist.
        self.check_keys_are_free(&entry)?;
        // After the rights, so that the limit is not revealed to a caller that may not register anyway.
        self.check_agents()?;
        let act = (AuditAction::AgentRegistered, details);
        self.store_agent(transaction, entry, None, act, caller, now)?;
        tracing::info!(agent = %id, by = %caller, "registered an agent");
        Ok(())
    }

    /// Fails if the maximum number of agents is registered. Does not count those of the batch in hand.
    fn check_agents(&self) -> Result<(), BrokerError> {
        let most = self.env.settings.broker_limits.agents_max as usize;
        if most == 0 || self.env.directory.count() < most {
            return Ok(());
        }
        Err(BrokerError::LimitExceeded { what: "too many agents are registered", retry_after: LIMIT_RETRY })
    }

    /// Fails if a larger card would exceed the size of all cards. Does not count cards of the batch in hand.
    fn check_card_bytes(&self, entry: &Entry) -> Result<(), BrokerError> {
        let most = self.env.settings.broker_limits.card_bytes_max;
        let before = self.env.directory.get(&entry.id()).map_or(0, |known| known.card_bytes());
        let more = entry.card_bytes().saturating_sub(before);
        if most == 0 || more == 0 || self.env.directory.card_bytes() + more <= most {
            return Ok(());
        }
        Err(BrokerError::LimitExceeded { what: "the cards of all agents are too large", retry_after: LIMIT_RETRY })
    }

    /// Changes the card of a registered agent, except for its keys. The same card again succeeds for a caller that may
    /// register the agent.
    fn change(
        &mut self,
        mut transaction: Transaction,
        mut entry: Entry,
        known: &AgentRecord,
        stored: &Record,
        (caller, invitation): (&Caller, &str),
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let agent = Resource::Agent(entry.as_asked());
        let may_change = self.access().check(caller, Action::ChangeCard, agent);
        // A caller that may register agents may repeat a registration whose answer it has lost.
        let may_enroll = self.access().check(caller, Action::Enroll, agent);
        if let (Err(_), Err(refusal)) = (&may_change, may_enroll) {
            if invitation.is_empty() {
                return Err(refusal);
            }
            // As with a new agent: only a valid invitation reveals that the agent is registered.
            self.use_invitation(&mut transaction, invitation, &entry, now)?;
            // The transaction is dropped, so the invitation stays unused.
            return Err(BrokerError::AgentExists { agent: entry.id() });
        }
        // The id of a deregistered agent is never used again (SPEC 6).
        if known.deregistered_at.is_some() {
            return Err(BrokerError::AgentExists { agent: entry.id() });
        }
        keep_keys(&mut entry, known, may_change.is_ok())?;
        if entry.record.card == known.card {
            return Ok(());
        }
        let id = entry.id();
        // A caller that may only register agents does not change the card of a registered one.
        if may_change.is_err() {
            return Err(BrokerError::AgentExists { agent: id });
        }
        let before = Entry::parse(known.clone())?;
        self.store_card(transaction, entry, &before, stored, caller, now)
    }

    /// Writes a changed card, if the caller may give and take the types that differ.
    fn store_card(
        &mut self,
        transaction: Transaction,
        mut entry: Entry,
        before: &Entry,
        stored: &Record,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let differs = |one: &Entry, other: &Entry| -> Vec<AgentType> {
            one.types.iter().filter(|name| !other.types.contains(name)).cloned().collect()
        };
        // Types decide about policies, so taking one away needs the same right as giving it.
        let changed = [differs(&entry, before), differs(before, &entry)].concat();
        self.check_types(caller, before, &changed)?;
        entry.record.created_at = before.record.created_at;
        let types = if changed.is_empty() { String::new() } else { format!("types {:?}", entry.types) };
        self.store_agent(transaction, entry, Some(stored), (AuditAction::AgentChanged, types), caller, now)
    }

    /// Changes fields of a registered agent's card. The same values again succeed without a write.
    pub(super) fn update(&mut self, update: &CardUpdate, caller: &Caller, now: Timestamp) -> Result<(), Refused> {
        self.make_update(update, caller, now).map_err(refused)
    }

    fn make_update(&mut self, update: &CardUpdate, caller: &Caller, now: Timestamp) -> Result<(), BrokerError> {
        let mut transaction = self.transaction();
        let (record, stored) = self.permitted_record(&mut transaction, &update.agent, Action::ChangeCard, caller)?;
        let before = Entry::parse(record)?;
        if !before.is_registered() {
            return Err(BrokerError::AgentUnknown { agent: update.agent.to_string() });
        }
        // Before the values are compared: an update of an old version is a conflict even if it would change nothing.
        if !update.etag.is_empty() && update.etag != before.etag() {
            return Err(BrokerError::EtagChanged);
        }
        let mut record = before.record.clone();
        update.fields.iter().for_each(|field| field.copy(&update.card, &mut record.card));
        let entry = Entry::parse(record)?;
        // Without a write the version stays, so repeats of the update succeed too.
        if entry.record == before.record {
            return Ok(());
        }
        self.store_card(transaction, entry, &before, &stored, caller, now)
    }

    /// The record of an agent, perhaps a deregistered one, that the caller may do this to. A caller that may not read the directory does not
    /// learn whether the agent exists.
    pub(super) fn permitted_record(
        &self,
        transaction: &mut Transaction,
        agent: &AgentId,
        action: Action<'_>,
        caller: &Caller,
    ) -> Result<(AgentRecord, Record), BrokerError> {
        let unknown = || {
            let denied = self.access().check(caller, action, Resource::Agent(Agent { id: agent.as_str(), types: &[] }));
            denied.err().unwrap_or_else(|| BrokerError::AgentUnknown { agent: agent.to_string() })
        };
        let (record, stored) = self.agent_record(transaction, agent)?.ok_or_else(unknown)?;
        let entry = Entry::parse(record)?;
        self.access().check(caller, action, Resource::Agent(entry.as_asked())).map_err(|denied| {
            match self.access().may_see_directory(caller) {
                Ok(()) => denied,
                Err(_) => unknown(),
            }
        })?;
        Ok((entry.record, stored))
    }

    /// Checks that the caller may give these types to an agent, or take them away.
    fn check_types(&self, caller: &Caller, entry: &Entry, types: &[AgentType]) -> Result<(), BrokerError> {
        // Asked without the agent's present types, so that one type cannot give it the right to another.
        let agent = Agent { types: &[], ..entry.as_asked() };
        let check =
            |name: &AgentType| self.access().check(caller, Action::AssignType { agent }, Resource::Type(name.as_str()));
        types.iter().try_for_each(check)
    }

    pub(super) fn agent_record(
        &self,
        transaction: &mut Transaction,
        agent: &AgentId,
    ) -> Result<Option<(AgentRecord, Record)>, BrokerError> {
        let stored = self.read(transaction, &AgentRecord::key(agent))?;
        stored.map(|stored| Ok((AgentRecord::decode(&stored.value)?, stored))).transpose()
    }

    /// Writes an agent and the audit entry of the act that changes it.
    pub(super) fn store_agent(
        &mut self,
        mut transaction: Transaction,
        mut entry: Entry,
        before: Option<&Record>,
        (action, details): (AuditAction, String),
        caller: &Caller,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let id = entry.id();
        entry.record.updated_at = now;
        entry.record.changed = self.new_sequence(&mut transaction);
        // A larger card only: a card over the limit may still become smaller.
        self.check_card_bytes(&entry)?;
        transaction.put(AgentRecord::key(&id), entry.record.encode(), before);
        let act = AuditAct { actor: caller.to_string(), action, subject: id.to_string(), details };
        self.record(&mut transaction, act, now)?;
        // Other threads authorize by the directory, so it changes only when the agent is durable.
        transaction.post_commit.push(PostCommit::AgentStored(Box::new(entry)));
        self.stage(transaction);
        Ok(())
    }

    /// Marks the invitation as used in the change that registers the agent. Returns the details for the audit log.
    fn use_invitation(
        &self,
        transaction: &mut Transaction,
        invitation: &str,
        entry: &Entry,
        now: Timestamp,
    ) -> Result<String, BrokerError> {
        let agent = entry.id();
        let key = InvitationRecord::key(invitation);
        let stored = self.read(transaction, &key)?.ok_or(BrokerError::InvitationInvalid)?;
        let record = InvitationRecord::decode(&stored.value)?;
        // One error for all reasons, so that a guesser does not learn that an invitation exists.
        let is_good = record.used_by.is_none()
            && record.expires_at > now
            && record.agent.as_ref().is_none_or(|invited| *invited == agent)
            && entry.types.iter().all(|name| record.types.contains(name));
        if !is_good {
            return Err(BrokerError::InvitationInvalid);
        }
        let used = InvitationRecord { used_by: Some(agent), ..record };
        // With the revision that was read: of two agents with the same invitation, one registers.
        transaction.put(key, used.encode(), Some(&stored));
        Ok(format!("invitation {}", named(invitation)))
    }

    /// Stores an invitation with its audit entry.
    pub(super) fn invite(
        &mut self,
        invitation: &str,
        record: &InvitationRecord,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<(), Refused> {
        self.access().check(caller, Action::Invite, Resource::Broker).map_err(refused)?;
        let mut transaction = self.transaction();
        let key = InvitationRecord::key(invitation);
        // Used or not, the record goes after its time.
        transaction.expire_later(Expiration::Invitation, record.expires_at, &key.key);
        transaction.put_new(key, record.encode());
        let whom = record.agent.as_ref().map_or("any new agent".to_owned(), ToString::to_string);
        let act = AuditAct {
            actor: caller.to_string(),
            action: AuditAction::InvitationCreated,
            subject: named(invitation),
            details: format!("for {whom}, types {:?}, until {}", record.types, record.expires_at),
        };
        self.record(&mut transaction, act, now).map_err(refused)?;
        self.stage(transaction);
        Ok(())
    }
}

/// The first 8 bytes of the invitation's digest, in hex: enough to tell invitations apart, and useless to a reader of
/// the log.
fn named(invitation: &str) -> String {
    hex::encode(&InvitationRecord::digest(invitation)[..8])
}

/// Keeps the registered keys. Keys change only by their own calls: a card may omit keys, and each key that it names
/// must be registered.
fn keep_keys(entry: &mut Entry, known: &AgentRecord, may_change: bool) -> Result<(), BrokerError> {
    let is_known = |key: &AgentKey| {
        let mut known = known.card.keys.iter();
        known.any(|other| other.key_id == key.key_id && other.public_key == key.public_key)
    };
    if let Some(place) = entry.record.card.keys.iter().position(|key| !is_known(key)) {
        if !may_change {
            return Err(BrokerError::AgentExists { agent: entry.id() });
        }
        let problem =
            "is new: the keys of a registered agent are added by `baton agent key add`, or by the call AddAgentKey"
                .to_owned();
        let violations = vec![FieldViolation { path: format!("card.keys[{place}]"), problem }];
        return Err(BrokerError::Fields { violations });
    }
    let mut record = entry.record.clone();
    record.card.keys.clone_from(&known.card.keys);
    *entry = Entry::parse(record)?;
    Ok(())
}
