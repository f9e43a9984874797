//! The directory of registered agents and their presence, in memory for all readers.
//!
//! Only the engine changes it, after the change is durable.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use prost::Message;

use super::{
    BrokerError, BrokerIdentity,
    engine::{KEYS_MAX, VOUCHERS_MAX},
};
use crate::{
    domain::presence::{PresenceCheck, PresenceRule, Signs, load_permille},
    envelope::{
        Checks, EnvelopeError, KeyRing, KeyRingError,
        keys::{PublicKey, PublicKeyError},
    },
    ids::{AgentId, AgentType, IdMap, KeyId, check_name},
    proto::v1,
    records::AgentRecord,
    time::Timestamp,
};

pub use crate::domain::presence::Liveness;

/// An agent with its parsed keys.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The record as stored: the card, and the times of its changes.
    pub record: AgentRecord,
    /// The types of the agent.
    pub types: Vec<AgentType>,
    keys: IdMap<KeyId, ValidKey>,
}

#[derive(Debug, Clone)]
struct ValidKey {
    key: PublicKey,
    not_before: Option<Timestamp>,
    not_after: Option<Timestamp>,
    revoked: bool,
}

/// The presence of an agent.
#[derive(Debug, Clone, Default)]
pub struct Presence {
    /// The signs of life.
    pub signs: Signs,
    /// The latest heartbeat, and its time of arrival.
    pub heartbeat: Option<(v1::Heartbeat, Timestamp)>,
}

#[derive(Debug, Default)]
struct Agents {
    by_id: BTreeMap<AgentId, Arc<Entry>>,
    /// An index by type, so that a list of a type, and a message to it, need not scan all agents.
    by_type: HashMap<AgentType, BTreeMap<AgentId, Arc<Entry>>>,
}

impl Agents {
    /// Inserts an entry, and returns the former one.
    fn insert(&mut self, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        let id = entry.id();
        let before = self.by_id.insert(id.clone(), entry.clone());
        for of_before in before.iter().flat_map(|before| &before.types) {
            // A card may name a type twice; the first pass has removed the entry then.
            let Some(of_type) = self.by_type.get_mut(of_before) else { continue };
            of_type.remove(&id);
            if of_type.is_empty() {
                self.by_type.remove(of_before);
            }
        }
        for of_entry in &entry.types {
            self.by_type.entry(of_entry.clone()).or_default().insert(id.clone(), entry.clone());
        }
        before
    }
}

/// The directory. See the module.
#[derive(Debug)]
pub struct Directory {
    broker: Arc<Entry>,
    rule: RwLock<PresenceRule>,
    agents: RwLock<Agents>,
    /// The bytes of all cards.
    card_bytes: AtomicU64,
    /// The owner of each public key on a card. Revoked keys stay on their cards.
    key_owners: RwLock<HashMap<[u8; 32], AgentId>>,
    presence: RwLock<IdMap<AgentId, Presence>>,
}

impl Directory {
    /// A directory of these agents and the broker itself.
    pub fn new(identity: &BrokerIdentity, rule: PresenceRule, agents: impl IntoIterator<Item = Entry>) -> Self {
        let directory = Self {
            broker: Arc::new(broker_entry(identity)),
            rule: RwLock::new(rule),
            agents: RwLock::default(),
            card_bytes: AtomicU64::new(0),
            key_owners: RwLock::default(),
            presence: RwLock::default(),
        };
        agents.into_iter().for_each(|entry| directory.put(entry));
        directory
    }

    /// The agent's entry, or that of the broker itself.
    pub fn get(&self, agent: &AgentId) -> Option<Arc<Entry>> {
        if *agent == AgentId::broker() {
            return Some(self.broker.clone());
        }
        self.agents.read().expect("no writer panics").by_id.get(agent).cloned()
    }

    /// The number of registered agents, without the coordinator.
    pub fn registered(&self) -> usize {
        let agents = self.agents.read().expect("no holder panics");
        agents.by_id.len() - usize::from(agents.by_id.contains_key(&AgentId::coordinator()))
    }

    /// The encoded bytes of the cards of all agents.
    pub fn card_bytes(&self) -> u64 {
        self.card_bytes.load(Ordering::Relaxed)
    }

    /// Whether the agent can receive mail: a registered agent other than the broker and the coordinator.
    pub fn is_registered(&self, agent: &AgentId) -> bool {
        !agent.is_coordinator() && self.agents.read().expect("no writer panics").by_id.contains_key(agent)
    }

    /// The agents after this id, in the order of their ids, at most `limit`; only those of this type, if given.
    pub fn list(&self, after: Option<&AgentId>, limit: usize, agent_type: Option<&AgentType>) -> Vec<Arc<Entry>> {
        use std::ops::Bound;
        let agents = self.agents.read().expect("no writer panics");
        let start = after.map_or(Bound::Unbounded, |id| Bound::Excluded(id.clone()));
        let of = match agent_type {
            None => Some(&agents.by_id),
            Some(agent_type) => agents.by_type.get(agent_type),
        };
        let found = of.map(|of| of.range((start, Bound::Unbounded)).map(|(_, entry)| entry.clone()).take(limit));
        found.into_iter().flatten().collect()
    }

    /// The agents of a type with all these skills, best first: by liveness, then by load, then by id.
    pub fn able(&self, agent_type: &AgentType, skills: &[String], now: Timestamp) -> Vec<AgentId> {
        let mut able = self.list(None, usize::MAX, Some(agent_type));
        able.retain(|entry| entry.has_skills(skills));
        // Lock order: `presence`, then `rule`. No other function holds two of the directory's locks.
        let presence = self.presence.read().expect("no writer panics");
        let unknown = Presence::default();
        let rule = self.rule();
        let rank = |entry: &Arc<Entry>| {
            let present = presence.get(&entry.id()).unwrap_or(&unknown);
            (rule.liveness(present.signs, now), present.load_permille())
        };
        able.sort_by_cached_key(rank); // the sort is stable, and the list is in the order of ids
        able.iter().map(|entry| entry.id()).collect()
    }

    /// The presence of the agent.
    pub fn presence(&self, agent: &AgentId) -> Presence {
        self.presence.read().expect("no writer panics").get(agent).cloned().unwrap_or_default()
    }

    /// The liveness of the agent.
    pub fn liveness(&self, agent: &AgentId, now: Timestamp) -> Liveness {
        self.rule().liveness(self.signs(agent), now)
    }

    /// Whether the agent has given no sign of life for the length of the lease.
    pub fn is_gone(&self, agent: &AgentId, now: Timestamp) -> bool {
        self.rule().is_gone(self.signs(agent), now)
    }

    /// Whether the agent is gone now, or the time of the next check.
    pub fn check_presence(&self, agent: &AgentId, now: Timestamp) -> PresenceCheck {
        self.rule().check(self.signs(agent), now)
    }

    fn signs(&self, agent: &AgentId) -> Signs {
        self.presence.read().expect("no writer panics").get(agent).map(|presence| presence.signs).unwrap_or_default()
    }

    fn rule(&self) -> PresenceRule {
        *self.rule.read().expect("no writer panics")
    }

    /// Replaces all agents and clears the presence, as at a start.
    pub(super) fn reset(&self, rule: PresenceRule, agents: impl IntoIterator<Item = Entry>) {
        *self.rule.write().expect("no writer panics") = rule;
        *self.agents.write().expect("no writer panics") = Agents::default();
        self.card_bytes.store(0, Ordering::Relaxed);
        self.key_owners.write().expect("no writer panics").clear();
        agents.into_iter().for_each(|entry| self.put(entry));
        self.presence.write().expect("no writer panics").clear();
    }

    /// The id of a key on this card that belongs to another agent, if any.
    pub(super) fn key_of_another(&self, entry: &Entry) -> Option<KeyId> {
        let owners = self.key_owners.read().expect("no writer panics");
        let id = entry.id();
        let mut keys = entry.keys.iter();
        let taken = keys.find(|(_, valid)| owners.get(valid.key.as_bytes()).is_some_and(|owner| *owner != id));
        taken.map(|(key_id, _)| key_id.clone())
    }

    pub(super) fn put(&self, entry: Entry) {
        let id = entry.id();
        let keys: Vec<_> = entry.keys.values().map(|valid| *valid.key.as_bytes()).collect();
        self.card_bytes.fetch_add(entry.card_bytes(), Ordering::Relaxed);
        let before = self.agents.write().expect("no writer panics").insert(Arc::new(entry));
        self.card_bytes.fetch_sub(before.as_ref().map_or(0, |entry| entry.card_bytes()), Ordering::Relaxed);
        let mut owners = self.key_owners.write().expect("no writer panics");
        // The former keys go first: a key that is on both cards keeps its owner.
        for valid in before.iter().flat_map(|entry| entry.keys.values()) {
            owners.remove(valid.key.as_bytes());
        }
        owners.extend(keys.into_iter().map(|key| (key, id.clone())));
    }

    pub(super) fn change_presence(&self, agent: &AgentId, change: impl FnOnce(&mut Presence)) {
        let mut presence = self.presence.write().expect("no writer panics");
        change(presence.entry(agent.clone()).or_default());
    }
}

/// All keys on the cards, valid or not. Used to tell the holder of a key why a signature was refused.
pub(super) struct AllKeys<'a>(pub(super) &'a Directory);

impl KeyRing for AllKeys<'_> {
    fn key(&self, agent: &AgentId, key_id: &KeyId, _: Timestamp) -> Result<PublicKey, KeyRingError> {
        let entry = self.0.get(agent).ok_or(KeyRingError::Unknown)?;
        entry.keys.get(key_id).map(|known| known.key.clone()).ok_or(KeyRingError::Unknown)
    }
}

impl KeyRing for Directory {
    fn key(&self, agent: &AgentId, key_id: &KeyId, now: Timestamp) -> Result<PublicKey, KeyRingError> {
        let entry = self.get(agent).ok_or(KeyRingError::Unknown)?;
        let key = entry.keys.get(key_id).ok_or(KeyRingError::Unknown)?;
        let begun = key.not_before.is_none_or(|start| start <= now);
        let over = key.not_after.is_some_and(|end| end <= now);
        if key.revoked || over || !begun { Err(KeyRingError::NotValid) } else { Ok(key.key.clone()) }
    }
}

impl Presence {
    /// The load in permille of the capacity, as the agent reports it.
    fn load_permille(&self) -> u32 {
        let load = |beat: &v1::Heartbeat| load_permille(beat.capacity, beat.active_tasks, beat.queue_length);
        self.heartbeat.as_ref().map_or(0, |(beat, _)| load(beat))
    }
}

impl Entry {
    /// Parses a stored or registered card, and checks every field and key.
    pub fn parse(record: AgentRecord) -> Result<Self, BrokerError> {
        let card = &record.card;
        let mut checks = Checks::default();
        check_card(card, &mut checks);
        let types = checks.ids("card.agent_types", &card.agent_types, 16, AgentType::parse);
        checks.at_most("card.keys", card.keys.len(), KEYS_MAX, "entries");
        if card.keys.is_empty() {
            checks.wrong("card.keys", "must not be empty");
        }
        let mut keys = IdMap::default();
        // A longer list is refused already, and the bound also limits the work for its keys.
        for (index, key) in card.keys.iter().enumerate().take(KEYS_MAX) {
            if let Some((id, key)) = parse_key(key, &format!("card.keys[{index}]"), &mut checks)?
                && keys.insert(id, key).is_some()
            {
                checks.wrong(format!("card.keys[{index}].key_id"), "is that of an earlier key");
            }
        }
        checks.finish().map_err(fields)?;
        Ok(Self { types, keys, record })
    }

    /// The id of the agent.
    pub fn id(&self) -> AgentId {
        AgentId::parse(&self.record.card.agent_id).expect("checked when the entry was made")
    }

    /// The encoded size of the card in bytes.
    pub fn card_bytes(&self) -> u64 {
        self.record.card.encoded_len() as u64
    }

    fn has_skills(&self, skills: &[String]) -> bool {
        skills.iter().all(|wanted| self.record.card.skills.iter().any(|skill| skill.name == *wanted))
    }
}

fn fields(error: EnvelopeError) -> BrokerError {
    match error {
        EnvelopeError::Fields { violations } => BrokerError::Fields { violations },
        other => unreachable!("checks only find fields, not {other}"),
    }
}

/// The most encoded bytes of a card without its keys. The bounds of its lists alone would allow ten times as much.
pub const CARD_BYTES_MAX: usize = 64 * 1024;

fn check_card(card: &v1::AgentCard, checks: &mut Checks) {
    let keys: usize = card.keys.iter().map(Message::encoded_len).sum();
    if card.encoded_len() - keys > CARD_BYTES_MAX {
        checks.wrong("card", format!("must have at most {CARD_BYTES_MAX} bytes without its keys"));
    }
    if let Some(id) = checks.id("card.agent_id", &card.agent_id, AgentId::parse)
        && id == AgentId::broker()
    {
        checks.wrong("card.agent_id", "is the broker's own");
    }
    checks.text("card.description", &card.description, 4096);
    checks.at_most("card.skills", card.skills.len(), 64, "entries");
    for (index, skill) in card.skills.iter().enumerate().take(64) {
        checks.id(&format!("card.skills[{index}].name"), &skill.name, check_name);
        for (name, list) in [("tags", &skill.tags), ("languages", &skill.languages), ("task_types", &skill.task_types)]
        {
            let path = format!("card.skills[{index}].{name}");
            checks.at_most(&path, list.len(), 16, "entries");
            list.iter().for_each(|entry| checks.text(&path, entry, 128));
        }
    }
    checks.at_most("card.metadata", card.metadata.len(), 32, "entries");
    for (name, value) in &card.metadata {
        checks.text("card.metadata.key", name, 64);
        checks.text(&format!("card.metadata[{name}]"), value, 1024);
    }
}

/// Checks a key by itself.
pub fn check_key(key: &v1::AgentKey, path: &str, checks: &mut Checks) -> Result<(), BrokerError> {
    parse_key(key, path, checks).map(drop)
}

/// Checks the form of a voucher. The broker cannot check its truth; receivers can.
pub fn check_voucher(voucher: &v1::KeyVoucher, path: &str, checks: &mut Checks) {
    checks.id(&format!("{path}.operator_key_id"), &voucher.operator_key_id, KeyId::parse);
    checks.time(&format!("{path}.not_after_time"), voucher.not_after_time.as_ref());
    if voucher.signature.len() != 64 {
        checks.wrong(format!("{path}.signature"), "must have 64 bytes");
    }
}

fn parse_key(key: &v1::AgentKey, path: &str, checks: &mut Checks) -> Result<Option<(KeyId, ValidKey)>, BrokerError> {
    let key_id = checks.id(&format!("{path}.key_id"), &key.key_id, KeyId::parse);
    let not_before = checks.time(&format!("{path}.not_before_time"), key.not_before_time.as_ref());
    let not_after = checks.time(&format!("{path}.not_after_time"), key.not_after_time.as_ref());
    checks.at_most(&format!("{path}.vouchers"), key.vouchers.len(), VOUCHERS_MAX, "entries");
    for (index, voucher) in key.vouchers.iter().enumerate().take(VOUCHERS_MAX) {
        check_voucher(voucher, &format!("{path}.vouchers[{index}]"), checks);
    }
    match PublicKey::parse(&key.public_key) {
        Ok(public) => {
            let valid = ValidKey { key: public, not_before, not_after, revoked: key.revoke_time.is_some() };
            Ok(key_id.map(|key_id| (key_id, valid)))
        }
        // A weak key has a code of its own (SPEC 2), so it is no violation among others.
        Err(error @ PublicKeyError::Weak) => {
            Err(BrokerError::KeyWeak { key_id: key.key_id.clone(), problem: error.to_string() })
        }
        Err(error @ PublicKeyError::NotAKey) => {
            checks.wrong(format!("{path}.public_key"), error.to_string());
            Ok(None)
        }
    }
}

fn broker_entry(identity: &BrokerIdentity) -> Entry {
    let key = v1::AgentKey {
        key_id: identity.key_id.to_string(),
        public_key: identity.public().as_bytes().to_vec().into(),
        ..Default::default()
    };
    let valid = ValidKey { key: identity.public(), not_before: None, not_after: None, revoked: false };
    let card = v1::AgentCard {
        agent_id: AgentId::broker().to_string(),
        description: "The broker itself.".to_owned(),
        keys: vec![key],
        ..Default::default()
    };
    Entry {
        record: AgentRecord { card, created_at: Timestamp::default(), updated_at: Timestamp::default() },
        types: Vec::new(),
        keys: IdMap::from_iter([(identity.key_id.clone(), valid)]),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::envelope::keys::PrivateKey;

    const RULE: PresenceRule = PresenceRule {
        suspect_after: Duration::from_secs(30),
        lease: Duration::from_secs(60),
        started_at: Timestamp::from_unix_nanoseconds(0),
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 0).unwrap()
    }

    #[test]
    fn a_list_of_a_type_has_those_whose_card_names_it_now() {
        let identity = BrokerIdentity {
            key_id: KeyId::parse("b").unwrap(),
            key: PrivateKey::from_seed(&[2; 32]),
            coordinator: crate::broker::Signer::new(PrivateKey::from_seed(&[77; 32])),
        };
        let entry = |name: &str, types: &[&str]| {
            let public_key = PrivateKey::from_seed(&[name.as_bytes()[0]; 32]).public().as_bytes().to_vec().into();
            let card = v1::AgentCard {
                agent_id: name.to_owned(),
                agent_types: types.iter().map(ToString::to_string).collect(),
                keys: vec![v1::AgentKey { key_id: "k".into(), public_key, ..Default::default() }],
                ..Default::default()
            };
            Entry::parse(AgentRecord { card, created_at: at(0), updated_at: at(0) }).unwrap()
        };
        let directory =
            Directory::new(&identity, RULE, [entry("a", &["x", "y", "y"]), entry("b", &["x"]), entry("c", &[])]);
        let of = |name: &str| {
            let found = directory.list(None, 9, Some(&AgentType::parse(name).unwrap()));
            found.iter().map(|entry| entry.id().to_string()).collect::<Vec<_>>().concat()
        };
        assert_eq!((of("x"), of("y"), of("z")), ("ab".to_owned(), "a".to_owned(), String::new()));
        let before = directory.card_bytes();
        directory.put(entry("a", &["z"]));
        assert_eq!((of("x"), of("y"), of("z")), ("b".to_owned(), String::new(), "a".to_owned()));
        assert!(directory.card_bytes() < before);
        directory.reset(RULE, []);
        assert_eq!((of("x"), directory.card_bytes(), directory.registered()), (String::new(), 0, 0));
    }
}
