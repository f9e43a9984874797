//! The directory of registered agents and their presence, in memory for all readers.
//!
//! Only the engine changes it, after the change is durable.

mod activity;
mod index;
mod keys;
mod reported;

pub use self::reported::Reported;
use std::{
    collections::{BTreeMap, HashMap},
    ops::RangeInclusive,
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use prost::Message;
use tokio::sync::watch;

pub(super) use self::activity::Activity;
pub use self::index::Filter;
use self::index::{Index, Selected};
pub(super) use self::keys::AllKeys;
use super::{BrokerError, BrokerIdentity};
use crate::{
    domain::{
        matching::{self, Facts, Load, Match, Statistics, Summary, Wanted},
        presence::{PresenceCheck, PresenceRule, Signs},
    },
    envelope::{
        Checks, EnvelopeError,
        keys::{PublicKey, PublicKeyError},
    },
    ids::{AgentId, AgentType, IdMap, KeyId, check_name},
    proto::v1,
    records::AgentRecord,
    time::{Timestamp, span_from_parts},
};

pub use crate::domain::presence::{Liveness, PresenceState};

/// An agent with its parsed keys.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The record as stored: the card, and the times of its changes.
    pub record: AgentRecord,
    /// The types of the agent.
    pub types: Vec<AgentType>,
    id: AgentId,
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
    /// The sum of what the connected processes have said; of the last one, if none is connected.
    pub reported: Reported,
}

/// The load of an agent, and the numbers that it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy {
    /// The load that matching uses.
    pub load: Load,
    /// The number of tasks without a final status that the agent owns.
    pub owned: u32,
    /// The number of open handoffs in which the agent is the current candidate.
    pub offers: u32,
}

/// What changes often about an agent.
#[derive(Debug, Clone, Copy)]
struct Snapshot {
    liveness: Liveness,
    busy: Busy,
    record: Summary,
    asked: u64,
}

/// The agents that fit, best first.
#[derive(Debug)]
pub struct Ranking {
    entries: Vec<Arc<Entry>>,
    snapshots: Vec<Snapshot>,
    matches: Vec<Match>,
}

impl Ranking {
    /// The number of agents.
    pub fn len(&self) -> usize {
        self.matches.len()
    }

    /// Whether no agent fits.
    pub fn is_empty(&self) -> bool {
        self.matches.is_empty()
    }

    /// Leaves out the agents that are gone.
    pub fn without_gone(&mut self) {
        let snapshots = &self.snapshots;
        self.matches.retain(|found| snapshots[found.place].liveness != Liveness::Gone);
    }

    /// The ids of the agents, best first.
    pub fn agents(&self) -> impl Iterator<Item = &AgentId> {
        self.matches.iter().map(|found| &self.entries[found.place].id)
    }

    /// The agents from this rank on, counted from 0, each with its facts, its score and its load.
    pub fn from(&self, rank: usize) -> impl Iterator<Item = (Facts<'_, v1::AgentSkill>, f64, Busy)> {
        self.matches.iter().skip(rank).map(|found| {
            let (entry, snapshot) = (&self.entries[found.place], &self.snapshots[found.place]);
            (facts(entry, snapshot), found.score, snapshot.busy)
        })
    }
}

fn facts<'a>(entry: &'a Entry, snapshot: &Snapshot) -> Facts<'a, v1::AgentSkill> {
    Facts {
        agent: &entry.id,
        types: &entry.types,
        skills: &entry.record.card.skills,
        liveness: snapshot.liveness,
        load: snapshot.busy.load,
        record: snapshot.record,
        asked: snapshot.asked,
    }
}

#[derive(Debug, Default)]
struct Agents {
    /// All agents, deregistered ones too.
    by_id: BTreeMap<AgentId, Arc<Entry>>,
    /// The registered agents by the fields of their cards.
    index: Index,
    /// All agents in the order of their last changes.
    by_change: BTreeMap<u64, Arc<Entry>>,
}

impl Agents {
    /// Inserts an entry, and returns the former one.
    fn insert(&mut self, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        let before = self.by_id.insert(entry.id.clone(), entry.clone());
        if let Some(before) = &before {
            // Both are keyed by fields that the change may have altered, so the former entry leaves them first.
            self.index.remove(before);
            self.by_change.remove(&before.record.changed);
        }
        self.index.insert(&entry);
        self.by_change.insert(entry.record.changed, entry);
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
    activity: RwLock<IdMap<AgentId, Activity>>,
    /// Whether the letters of all activities are counted.
    mail_is_counted: AtomicBool,
    /// The number of the last offer that was made; see [`Facts::asked`].
    asked: AtomicU64,
    /// The sequence of the last change of an agent.
    last_change: watch::Sender<u64>,
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
            activity: RwLock::default(),
            mail_is_counted: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            last_change: watch::Sender::default(),
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
    pub fn registered_count(&self) -> usize {
        let agents = self.agents.read().expect("no writer panics");
        agents.by_id.values().filter(|entry| entry.is_registered() && !entry.id().is_coordinator()).count()
    }

    /// The number of agents without the coordinator, deregistered ones too.
    pub fn count(&self) -> usize {
        let agents = self.agents.read().expect("no writer panics");
        agents.by_id.len() - usize::from(agents.by_id.contains_key(&AgentId::coordinator()))
    }

    /// The encoded bytes of the cards of all agents.
    pub fn card_bytes(&self) -> u64 {
        self.card_bytes.load(Ordering::Relaxed)
    }

    /// Whether the agent can receive mail: a registered agent other than the broker and the coordinator.
    pub fn is_registered(&self, agent: &AgentId) -> bool {
        let agents = self.agents.read().expect("no writer panics");
        !agent.is_coordinator() && agents.by_id.get(agent).is_some_and(|entry| entry.is_registered())
    }

    /// Whether the agent was registered once and is no longer.
    pub fn has_left(&self, agent: &AgentId) -> bool {
        let agents = self.agents.read().expect("no writer panics");
        agents.by_id.get(agent).is_some_and(|entry| !entry.is_registered())
    }

    /// All agents after this id, deregistered ones too, in the order of their ids, at most `limit`.
    pub fn list(&self, after: Option<&AgentId>, limit: usize) -> Vec<Arc<Entry>> {
        let agents = self.agents.read().expect("no writer panics");
        after_id(&agents.by_id, after).take(limit).cloned().collect()
    }

    /// The registered agents after this id that match the filter, in the order of their ids. Examines at most `limit`
    /// agents; the second value is the last examined one if more may follow.
    pub fn lookup(
        &self,
        filter: Filter<'_>,
        after: Option<&AgentId>,
        limit: usize,
    ) -> (Vec<Arc<Entry>>, Option<AgentId>) {
        let agents = self.agents.read().expect("no writer panics");
        let set = match agents.index.select(filter) {
            Selected::All => &agents.by_id,
            Selected::Of(set) => set,
            Selected::Nothing => return (Vec::new(), None),
        };
        let examined: Vec<_> = after_id(set, after).take(limit).collect();
        // The last examined agent and not the last match: a page without a match still has to lead on.
        let last = examined.last().filter(|_| examined.len() == limit).map(|entry| entry.id.clone());
        // The index selects by one field of the filter, so the others are checked here.
        let fits = |entry: &&&Arc<Entry>| entry.is_registered() && agents.index.matches(&entry.id, filter);
        (examined.iter().filter(fits).map(|entry| (*entry).clone()).collect(), last)
    }

    /// The registered agents of a type, in the order of their ids.
    pub fn of_type(&self, agent_type: &AgentType) -> Vec<Arc<Entry>> {
        self.lookup(Filter { agent_type: agent_type.as_str(), ..Filter::default() }, None, usize::MAX).0
    }

    /// The agents that changed after this one in the order of changes, at most `limit`.
    pub fn changed_after(&self, change: u64, limit: usize) -> Vec<Arc<Entry>> {
        use std::ops::Bound::{Excluded, Unbounded};
        let agents = self.agents.read().expect("no writer panics");
        agents.by_change.range((Excluded(change), Unbounded)).take(limit).map(|(_, entry)| entry.clone()).collect()
    }

    /// Whether a registered agent matches the filter.
    pub fn matches(&self, agent: &AgentId, filter: Filter<'_>) -> bool {
        let agents = self.agents.read().expect("no writer panics");
        let is_registered = agents.by_id.get(agent).is_some_and(|entry| entry.is_registered());
        is_registered && agents.index.matches(agent, filter)
    }

    /// The sequence of the last change of an agent, and each later one.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.last_change.subscribe()
    }

    /// The registered agents that fit, best first. `permits` is the policy.
    pub fn rank(&self, wanted: &Wanted<'_>, now: Timestamp, permits: impl FnMut(&AgentId) -> bool) -> Ranking {
        let filter = Filter {
            agent_type: wanted.agent_type.map_or("", AgentType::as_str),
            skills: wanted.required_skills,
            tags: wanted.tags,
            languages: wanted.languages,
            task_type: wanted.task_type,
        };
        let (mut entries, _) = self.lookup(filter, None, usize::MAX);
        // The coordinator takes no task by a handoff.
        entries.retain(|entry| !entry.id.is_coordinator());
        let snapshots = self.snapshots(&entries, now);
        let facts: Vec<_> = entries.iter().zip(&snapshots).map(|(entry, snapshot)| facts(entry, snapshot)).collect();
        let matches = matching::rank(wanted, &facts, permits);
        drop(facts);
        Ranking { entries, snapshots, matches }
    }

    /// Why the agent does not pass the gate. `None`: it passes. An unknown agent passes, because other checks refuse it.
    pub fn unfit(&self, agent: &AgentId, wanted: &Wanted<'_>) -> Option<String> {
        let entry = self.get(agent)?;
        matching::unfit(wanted, &entry.types, &entry.record.card.skills)
    }

    /// The load of an agent.
    pub fn busy(&self, entry: &Arc<Entry>, now: Timestamp) -> Busy {
        self.snapshots(std::slice::from_ref(entry), now)[0].busy
    }

    /// Whether the agent has stated how much it does at a time.
    pub(super) fn has_capacity(&self, agent: &AgentId, now: Timestamp) -> bool {
        self.get(agent).is_some_and(|entry| self.busy(&entry, now).load.capacity > 0)
    }

    /// Whether the agent has no room for a further offer.
    pub fn is_full(&self, agent: &AgentId, now: Timestamp) -> bool {
        self.get(agent).is_some_and(|entry| self.busy(&entry, now).load.is_full())
    }

    /// The statistics of an agent.
    pub fn statistics(&self, agent: &AgentId, now: Timestamp) -> Summary {
        let activity = self.activity.read().expect("no writer panics");
        activity.get(agent).map(|activity| activity.summary(now)).unwrap_or_default()
    }

    fn snapshots(&self, entries: &[Arc<Entry>], now: Timestamp) -> Vec<Snapshot> {
        // Lock order: `presence`, then `activity`, then `rule`. No other function holds two of the directory's locks.
        let presence = self.presence.read().expect("no writer panics");
        let activity = self.activity.read().expect("no writer panics");
        let rule = self.rule();
        let (unseen, idle) = (Presence::default(), Activity::default());
        let snapshot = |entry: &Arc<Entry>| {
            let presence = presence.get(&entry.id).unwrap_or(&unseen);
            let activity = activity.get(&entry.id).unwrap_or(&idle);
            let stated = entry.record.card.capacity;
            let (in_use, capacity) = (activity.in_use(presence.reported.in_use), presence.reported.capacity);
            let load = Load::new(Some((in_use, 0, capacity)), in_use, stated, activity.is_overloaded(now));
            Snapshot {
                liveness: rule.liveness(presence.signs, now),
                busy: Busy { load, owned: activity.owned, offers: activity.offers },
                record: activity.summary(now),
                asked: activity.asked,
            }
        };
        entries.iter().map(snapshot).collect()
    }

    /// Changes what the broker knows of an agent's work.
    pub(super) fn change_activity(&self, agent: &AgentId, change: impl FnOnce(&mut Activity)) {
        let mut activity = self.activity.write().expect("no writer panics");
        change(activity.entry(agent.clone()).or_default());
    }

    /// Notes that the agent is asked now.
    pub(super) fn asked(&self, agent: &AgentId, now: Timestamp) {
        let now = u64::try_from(now.unix_nanoseconds()).unwrap_or(0);
        let before = self.asked.load(Ordering::Relaxed);
        // Numbers of offers at one time differ, too.
        let number = now.max(before + 1);
        self.asked.store(number, Ordering::Relaxed);
        self.change_activity(agent, |activity| activity.asked = number);
    }

    /// Sets the statistics of an agent.
    pub(super) fn set_statistics(&self, agent: &AgentId, statistics: Statistics) {
        self.change_activity(agent, |activity| activity.set_statistics(statistics));
    }

    /// Whether statistics of the agent are in memory.
    pub(super) fn has_statistics(&self, agent: &AgentId) -> bool {
        self.activity.read().expect("no writer panics").get(agent).is_some_and(Activity::has_statistics)
    }

    /// The number of tasks that the agent owns, and of its open offers.
    pub(super) fn counts(&self, agent: &AgentId) -> (u32, u32) {
        let activity = self.activity.read().expect("no writer panics");
        activity.get(agent).map_or((0, 0), |activity| (activity.owned, activity.offers))
    }

    /// The bytes that the agent stores: of its messages, and of the logs of its runs, threads and plans.
    pub fn stored_bytes(&self, agent: &AgentId) -> u64 {
        let activity = self.activity.read().expect("no writer panics");
        activity.get(agent).map_or(0, |activity| activity.stored_bytes)
    }

    /// The number of letters that wait for the agent. `None`: the broker has just started, and still counts.
    pub fn letters(&self, agent: &AgentId) -> Option<u64> {
        let activity = self.activity.read().expect("no writer panics");
        let is_counted = self.mail_is_counted.load(Ordering::Relaxed);
        is_counted.then(|| activity.get(agent).map_or(0, |activity| activity.letters))
    }

    /// Notes whether all letters of the store are counted.
    pub(super) fn mail_is_counted(&self, is_counted: bool) {
        self.mail_is_counted.store(is_counted, Ordering::Relaxed);
    }

    /// Forgets all counts of tasks, offers and letters, before they are counted again.
    pub(super) fn clear_counts(&self) {
        self.mail_is_counted(false);
        let mut all = self.activity.write().expect("no writer panics");
        all.values_mut().for_each(|activity| (activity.owned, activity.offers, activity.letters) = (0, 0, 0));
    }

    /// The load of the agent in permille of its capacity. 0: the agent is unknown.
    pub fn load(&self, agent: &AgentId, now: Timestamp) -> u32 {
        self.get(agent).map_or(0, |entry| self.busy(&entry, now).load.permille())
    }

    /// The presence of the agent.
    pub fn presence(&self, agent: &AgentId) -> Presence {
        self.presence.read().expect("no writer panics").get(agent).cloned().unwrap_or_default()
    }

    /// What is shown of the agent's presence.
    pub fn presence_state(&self, agent: &AgentId, now: Timestamp) -> PresenceState {
        self.rule().state(self.signs(agent), now)
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
        // The lease of an agent without a sign of life counts from the new start.
        *self.rule.write().expect("no writer panics") = rule;
        let (mut all, mut owners, mut card_bytes, mut change) = (Agents::default(), HashMap::new(), 0, 0);
        for entry in agents {
            owners.extend(entry.keys.values().map(|valid| (*valid.key.as_bytes(), entry.id())));
            card_bytes += entry.card_bytes();
            change = entry.record.changed.max(change);
            all.insert(Arc::new(entry));
        }
        // Replaced whole: meanwhile other threads verify signatures, and must not miss an agent.
        *self.agents.write().expect("no writer panics") = all;
        *self.key_owners.write().expect("no writer panics") = owners;
        self.card_bytes.store(card_bytes, Ordering::Relaxed);
        self.last_change.send_if_modified(|last| change > std::mem::replace(last, change.max(*last)));
        self.presence.write().expect("no writer panics").clear();
        self.activity.write().expect("no writer panics").clear();
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
        let change = entry.record.changed;
        self.card_bytes.fetch_add(entry.card_bytes(), Ordering::Relaxed);
        let before = self.agents.write().expect("no writer panics").insert(Arc::new(entry));
        self.card_bytes.fetch_sub(before.as_ref().map_or(0, |entry| entry.card_bytes()), Ordering::Relaxed);
        let mut owners = self.key_owners.write().expect("no writer panics");
        // The former keys go first: a key on both cards keeps its owner.
        for valid in before.iter().flat_map(|entry| entry.keys.values()) {
            owners.remove(valid.key.as_bytes());
        }
        owners.extend(keys.into_iter().map(|key| (key, id.clone())));
        drop(owners);
        // Told last, so that a watcher finds the change in the directory.
        self.last_change.send_if_modified(|last| change > std::mem::replace(last, change.max(*last)));
    }

    pub(super) fn change_presence(&self, agent: &AgentId, change: impl FnOnce(&mut Presence)) {
        let mut presence = self.presence.write().expect("no writer panics");
        change(presence.entry(agent.clone()).or_default());
    }
}

/// The agents of a set after this id.
fn after_id<'a>(
    set: &'a BTreeMap<AgentId, Arc<Entry>>,
    after: Option<&AgentId>,
) -> impl Iterator<Item = &'a Arc<Entry>> + use<'a> {
    use std::ops::Bound;
    let start = after.map_or(Bound::Unbounded, |id| Bound::Excluded(id.clone()));
    set.range((start, Bound::Unbounded)).map(|(_, entry)| entry)
}

impl Entry {
    /// Parses a stored or registered card, and checks every field and key.
    pub fn parse(record: AgentRecord) -> Result<Self, BrokerError> {
        let card = &record.card;
        let mut checks = Checks::default();
        let id = check_card(card, &mut checks);
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
        let id = checks.finish_with(id).map_err(fields)?;
        Ok(Self { types, id, keys, record })
    }

    /// The id of the agent.
    pub fn id(&self) -> AgentId {
        self.id.clone()
    }

    /// Whether the agent is registered, and was not deregistered since.
    pub fn is_registered(&self) -> bool {
        self.record.deregistered_at.is_none()
    }

    /// The id of a key on this card that is also on the other one, if any.
    pub(super) fn key_shared_with(&self, other: &Self) -> Option<&KeyId> {
        let is_shared =
            |valid: &ValidKey| other.keys.values().any(|theirs| theirs.key.as_bytes() == valid.key.as_bytes());
        self.keys.iter().find(|(_, valid)| is_shared(valid)).map(|(key_id, _)| key_id)
    }

    /// The time that the agent needs to decide about an offered handoff, 1 s to 7 days. `None`: not stated.
    pub fn decides_within(&self) -> Option<Duration> {
        let stated = self.record.card.decides_within.as_ref()?;
        span_from_parts(stated.seconds, stated.nanos)
    }

    /// The version of the card and its keys.
    pub fn etag(&self) -> String {
        format!("{:x}", self.record.changed)
    }

    /// The encoded size of the card in bytes.
    pub fn card_bytes(&self) -> u64 {
        self.record.card.encoded_len() as u64
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
/// The most keys of one agent. A key added beyond that replaces the key that ends first. Revoked keys stay.
pub const KEYS_MAX: usize = 64;
/// The most vouchers of one key.
pub const VOUCHERS_MAX: usize = 8;

/// The bounds of the time that an agent needs to decide about an offered handoff.
const DECIDES_WITHIN: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(7 * 24 * 60 * 60);

/// The most parts of a skill's dotted name. Each is a further entry of the index.
const SKILL_PARTS_MAX: usize = 16;

/// Checks the fields of a card beside its types and keys. Returns the id of the agent.
fn check_card(card: &v1::AgentCard, checks: &mut Checks) -> Option<AgentId> {
    // Keys have a bound of their own, and their number grows with each rotation.
    let keys: usize = card.keys.iter().map(Message::encoded_len).sum();
    if card.encoded_len() - keys > CARD_BYTES_MAX {
        checks.wrong("card", format!("must have at most {CARD_BYTES_MAX} bytes without its keys"));
    }
    // The broker's own id signs receipts and notices. The prefix of its other agents is checked where an agent
    // registers, since the coordinator has a card too.
    let id = checks.id("card.agent_id", &card.agent_id, AgentId::parse);
    if id == Some(AgentId::broker()) {
        checks.wrong("card.agent_id", "is the broker's own");
    }
    checks.text("card.description", &card.description, 4096);
    checks.at_most("card.skills", card.skills.len(), 64, "entries");
    for (index, skill) in card.skills.iter().enumerate().take(64) {
        let path = format!("card.skills[{index}]");
        checks.id(&format!("{path}.name"), &skill.name, check_name);
        checks.at_most(&format!("{path}.name"), skill.name.split('.').count(), SKILL_PARTS_MAX, "parts");
        checks.text(&format!("{path}.description"), &skill.description, 1024);
        checks.at_most(&format!("{path}.examples"), skill.examples.len(), 8, "entries");
        skill.examples.iter().for_each(|example| checks.text(&format!("{path}.examples"), example, 1024));
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
    let decides_within = checks.span("card.decides_within", card.decides_within.as_ref());
    if let Some(span) = decides_within.filter(|span| !DECIDES_WITHIN.contains(span)) {
        checks.wrong("card.decides_within", format!("must be from 1s to 7 days, not {span:?}"));
    }
    id
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
        // A weak key has a code of its own (SPEC 2), which no list of violations shows.
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
        record: AgentRecord::new(card, Timestamp::default()),
        types: Vec::new(),
        id: AgentId::broker(),
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
            coordinator: crate::Signer::new(PrivateKey::from_seed(&[77; 32])),
        };
        let entry = |name: &str, types: &[&str]| {
            let public_key = PrivateKey::from_seed(&[name.as_bytes()[0]; 32]).public().as_bytes().to_vec().into();
            let card = v1::AgentCard {
                agent_id: name.to_owned(),
                agent_types: types.iter().map(ToString::to_string).collect(),
                keys: vec![v1::AgentKey { key_id: "k".into(), public_key, ..Default::default() }],
                ..Default::default()
            };
            let changed = u64::from(name.as_bytes()[0]);
            Entry::parse(AgentRecord { changed, ..AgentRecord::new(card, at(0)) }).unwrap()
        };
        let directory =
            Directory::new(&identity, RULE, [entry("a", &["x", "y", "y"]), entry("b", &["x"]), entry("c", &[])]);
        let of = |name: &str| {
            let found = directory.of_type(&AgentType::parse(name).unwrap());
            found.iter().map(|entry| entry.id().to_string()).collect::<Vec<_>>().concat()
        };
        assert_eq!((of("x"), of("y"), of("z")), ("ab".to_owned(), "a".to_owned(), String::new()));
        let before = directory.card_bytes();
        directory.put(entry("a", &["z"]));
        assert_eq!((of("x"), of("y"), of("z")), ("b".to_owned(), String::new(), "a".to_owned()));
        assert!(directory.card_bytes() < before);
        directory.reset(RULE, []);
        assert_eq!((of("x"), directory.card_bytes(), directory.count()), (String::new(), 0, 0));
    }
}
