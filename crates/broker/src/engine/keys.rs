//! Keys of registered agents: adding, rotating, revoking and vouching (SPEC 5). These changes touch no handoff and no
//! mail.

use std::time::Duration;

use super::{Engine, batch::PostCommit, transaction::Transaction};
use crate::{
    Away, BrokerError, Refused,
    access::Caller,
    directory::{Entry, KEYS_MAX, VOUCHERS_MAX},
    ids::{AgentId, KeyId},
    policy::{Action, Resource},
    proto::v1::{AgentKey, AuditAction, KeyVoucher},
    records::AgentRecord,
    refused,
    store::Record,
    time::Timestamp,
};

/// The `retry_after` of the limits of keys and vouchers: an operator has to act.
const TOO_MANY_RETRY: Duration = Duration::from_secs(60 * 60);

/// A change of an agent's keys.
#[derive(Debug, Clone, PartialEq)]
pub enum KeyChange {
    /// Adds a key, and may end other keys after a grace period.
    Add {
        /// The new key, with its id and its validity.
        key: Box<AgentKey>,
        /// The keys that end after the grace period.
        replaced: Vec<KeyId>,
        /// The length of the grace period.
        grace: Duration,
    },
    /// Revokes a key for ever.
    Revoke {
        /// The id of the key.
        key_id: KeyId,
        /// The reason in the caller's words.
        reason_text: String,
    },
    /// Adds an operator's voucher to a key.
    Vouch {
        /// The id of the key.
        key_id: KeyId,
        /// The operator's signature for the key. It replaces an earlier one of the same operator key.
        voucher: KeyVoucher,
    },
}

impl Engine {
    pub(super) fn change_keys(
        &mut self,
        agent: &AgentId,
        change: &KeyChange,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<(), Refused> {
        self.make_key_change(agent, change, caller, now).map_err(refused)
    }

    /// Applies a key change to the stored card. A change that is in effect already succeeds without a write.
    fn make_key_change(
        &mut self,
        agent: &AgentId,
        change: &KeyChange,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let mut transaction = self.transaction();
        let known = self.agent_record(&mut transaction, agent)?;
        let unknown = || self.access().no_such_agent_to_manage(caller, agent);
        let (mut record, stored) = known.ok_or_else(unknown)?;
        let before = Entry::parse(record.clone())?;
        if !before.is_registered() {
            return Err(unknown());
        }
        let permitted = self.access().check(caller, Action::ManageKeys, Resource::Agent(before.as_asked()));
        // A caller that may read the directory can know that the agent exists, and gets the denial itself.
        permitted.map_err(|denied| match self.access().may_see_directory(caller) {
            Ok(()) => denied,
            Err(_) => unknown(),
        })?;
        let act = match change {
            KeyChange::Add { key, replaced, grace } => {
                match add(&mut record, agent, key, replaced, now.plus(*grace))? {
                    Some(details) => (AuditAction::KeyAdded, details),
                    None => return Ok(()),
                }
            }
            KeyChange::Revoke { key_id, reason_text } => {
                let key = find(&mut record, agent, key_id)?;
                if key.revoke_time.is_some() {
                    return Ok(());
                }
                key.revoke_time = Some(now.into());
                transaction.post_commit.push(PostCommit::SessionsEnded(agent.clone(), Away::KeyRevoked));
                (AuditAction::KeyRevoked, format!("key {key_id}: {reason_text}"))
            }
            KeyChange::Vouch { key_id, voucher } => {
                vouch(find(&mut record, agent, key_id)?, voucher)?;
                (AuditAction::KeyVouched, format!("key {key_id} by {}", voucher.operator_key_id))
            }
        };
        self.store_keys(transaction, record, &stored, act, caller, now)
    }

    /// Writes the changed card, unless another agent has one of its keys.
    fn store_keys(
        &mut self,
        transaction: Transaction,
        record: AgentRecord,
        stored: &Record,
        act: (AuditAction, String),
        caller: &Caller,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let entry = Entry::parse(record)?;
        self.check_keys_are_free(&entry)?;
        tracing::info!(agent = %entry.id(), by = %caller, act = act.0.as_str_name(), "changed an agent's keys: {}", act.1);
        self.store_agent(transaction, entry, Some(stored), act, caller, now)
    }

    /// Fails if another agent has a key on this card, in the directory or by an earlier command of the batch.
    pub(super) fn check_keys_are_free(&self, entry: &Entry) -> Result<(), BrokerError> {
        match self.env.directory.key_of_another(entry).or_else(|| self.batch.key_of_another(entry)) {
            Some(key_id) => Err(BrokerError::KeyTaken { key_id: key_id.to_string() }),
            None => Ok(()),
        }
    }
}

fn find<'a>(record: &'a mut AgentRecord, agent: &AgentId, key_id: &KeyId) -> Result<&'a mut AgentKey, BrokerError> {
    let mut keys = record.card.keys.iter_mut();
    let found = keys.find(|key| key.key_id == key_id.as_str());
    found.ok_or_else(|| BrokerError::AgentKeyUnknown { agent: agent.clone(), key_id: key_id.to_string() })
}

/// Adds a key to the record. Returns the details for the audit log. `None`: the agent already has this very key.
fn add(
    record: &mut AgentRecord,
    agent: &AgentId,
    key: &AgentKey,
    replaced: &[KeyId],
    replaced_until: Timestamp,
) -> Result<Option<String>, BrokerError> {
    let same = |known: &&AgentKey| known.key_id == key.key_id || known.public_key == key.public_key;
    if let Some(known) = record.card.keys.iter().find(same) {
        // A revocation is final (SPEC 5): neither the id nor the public key comes back.
        if known.revoke_time.is_some() {
            return Err(BrokerError::KeyRevoked { key_id: known.key_id.clone() });
        }
        if known.key_id == key.key_id && known.public_key == key.public_key {
            return Ok(None);
        }
        return Err(BrokerError::KeyExists { agent: agent.clone(), key_id: known.key_id.clone() });
    }
    for key_id in replaced {
        let old = find(record, agent, key_id)?;
        let (seconds, nanos) = replaced_until.to_parts();
        // A rotation must not extend a key that ends before the grace period.
        let ends_before = old.not_after_time.is_some_and(|end| (end.seconds, end.nanos) <= (seconds, nanos));
        if !ends_before {
            old.not_after_time = Some(prost_types::Timestamp { seconds, nanos });
        }
    }
    make_room(&mut record.card.keys)?;
    // Only the broker says that a key is revoked.
    record.card.keys.push(AgentKey { revoke_time: None, ..key.clone() });
    let names: Vec<&str> = replaced.iter().map(KeyId::as_str).collect();
    let hex = hex::encode(&key.public_key);
    Ok(Some(match names.as_slice() {
        [] => format!("key {} {hex}", key.key_id),
        names => format!("key {} {hex} in place of {} from {replaced_until}", key.key_id, names.join(", ")),
    }))
}

/// Removes the key that ends first if the list is full. Fails if no unrevoked key has an end.
pub(super) fn make_room(keys: &mut Vec<AgentKey>) -> Result<(), BrokerError> {
    if keys.len() < KEYS_MAX {
        return Ok(());
    }
    // A revoked key stays on the card, where `add` finds it: without it the same key could be added again.
    let ended = |key: &AgentKey| key.not_after_time.filter(|_| key.revoke_time.is_none());
    let ends = keys.iter().enumerate().filter_map(|(place, key)| Some((ended(key)?, place)));
    match ends.min_by_key(|(end, _)| (end.seconds, end.nanos)) {
        Some((_, place)) => {
            keys.remove(place);
            Ok(())
        }
        None => Err(BrokerError::LimitExceeded { what: "the agent has too many keys", retry_after: TOO_MANY_RETRY }),
    }
}

/// Adds a voucher, in place of an earlier one of the same operator key.
fn vouch(key: &mut AgentKey, voucher: &KeyVoucher) -> Result<(), BrokerError> {
    key.vouchers.retain(|known| known.operator_key_id != voucher.operator_key_id);
    if key.vouchers.len() >= VOUCHERS_MAX {
        let what = "the key has too many vouchers";
        return Err(BrokerError::LimitExceeded { what, retry_after: TOO_MANY_RETRY });
    }
    key.vouchers.push(voucher.clone());
    Ok(())
}
