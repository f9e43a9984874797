//! The laws of retention: no removal of an open task, queued mail or an undecided dead letter, and no removal before
//! its time. At the end of a run, every record that may be removed has been removed.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Bound::Unbounded,
    time::Duration,
};

use baton_broker_core::{
    Retention,
    domain::mailbox::{EnvelopePlace, Letter},
    ids::{AgentId, TaskId},
    proto::storage,
    records::{
        DeadLetterRecord, Expiration, HandoffRecord, ListKind, MessageRecord, NegotiationRecord, PlanRecord,
        TaskRecord, WorkspaceEntryRecord,
    },
    store::{Change, KeyBytes, Order, Record, Store, Table},
    time::Timestamp,
};
use prost::Message as _;

/// How much later than allowed a removal may happen: retention retries a deferred removal after a minute.
const LATE_BY_MAX: Duration = Duration::from_secs(120);

type Mailbox = BTreeMap<(AgentId, u64), Letter>;
/// The owner, the epoch, and whether the task has ended.
type Tasks = HashMap<TaskId, (AgentId, u64, bool)>;

#[derive(Debug, Default)]
pub(crate) struct Keeping {
    retention: Retention,
    accepted_at: HashMap<KeyBytes, Timestamp>,
    ended: HashSet<TaskId>,
    ended_at: HashMap<TaskId, Timestamp>,
    removed: HashSet<TaskId>,
    /// The task whose log contains this envelope.
    logged: HashMap<u64, TaskId>,
    /// The task whose log contains the message with this record.
    log_of: HashMap<KeyBytes, TaskId>,
    dead: HashSet<u64>,
    /// The submissions of plans.
    submissions: HashSet<u64>,
    /// The copies of the requests of negotiations, which their awards show.
    mandates: HashSet<u64>,
    /// The appends of entries of workspaces.
    appends: HashSet<u64>,
    settled_at: HashMap<u64, Timestamp>,
}

impl Keeping {
    pub(crate) fn new(retention: Retention) -> Self {
        Self { retention, ..Self::default() }
    }

    /// Checks a durable change. `tasks` and `mailbox` show the state after it.
    pub(crate) fn see_change(
        &mut self,
        change: &Change,
        befores: &[Option<Record>],
        now: Timestamp,
        tasks: &Tasks,
        mailbox: &Mailbox,
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        let mut gone_tasks = Vec::new();
        let mut left = HashMap::new();
        // The tasks whose logs lose a message.
        let mut parted = Vec::new();
        for (write, before) in change.writes.iter().zip(befores) {
            let key = &write.key.key;
            match (write.key.table, &write.record) {
                (Table::Messages, Some(record)) => {
                    let message = MessageRecord::decode(&record.value).unwrap();
                    let at = message.receipt().unwrap().accept_time.unwrap();
                    match message.logged() {
                        Some(logged) => {
                            let at = Timestamp::from_parts(at.seconds, at.nanos).unwrap();
                            self.accepted_at.insert(key.clone(), at);
                            self.logged.insert(message.sequence, logged.task.clone());
                            self.log_of.insert(key.clone(), logged.task.clone());
                        }
                        None => {
                            self.accepted_at.entry(key.clone()).or_insert(now);
                            parted.extend(self.log_of.remove(key));
                        }
                    }
                }
                (Table::Messages, None) => {
                    parted.extend(self.log_of.remove(key));
                    let accepted_at = self.accepted_at.remove(key).expect("only what is there is removed");
                    let is_over = accepted_at.plus(self.retention.message_ids) <= now;
                    assert!(is_over, "law 4: the memory of a message was given up before its time");
                    *counts.entry("message ids removed").or_default() += 1;
                }
                (Table::Tasks, Some(record)) => {
                    let task = TaskRecord::decode(&record.value).unwrap().task;
                    assert!(!self.removed.contains(&task.id), "law 4: {} was removed, and is there again", task.id);
                    self.ended.extend(task.status.is_final().then_some(task.id.clone()));
                }
                // The time of the broker's clock. The task's own times follow its log.
                (Table::Expirations, Some(_)) => {
                    if let (Expiration::Task, since, task) = Expiration::parse(key).unwrap() {
                        self.ended_at.entry(task_of(task)).or_insert(since);
                    }
                }
                (Table::Tasks, None) => gone_tasks.push(task_of(key)),
                (Table::RemovedTasks, Some(record)) => {
                    let record = storage::RemovedTaskRecord::decode(record.value.clone()).unwrap();
                    left.insert(task_of(key), record.epoch);
                }
                (Table::RemovedTasks, None) => panic!("law 1: the last epoch of {} is forgotten", task_of(key)),
                (Table::DeadLetters, Some(record)) => {
                    let dead = DeadLetterRecord::decode(key, &record.value).unwrap();
                    self.dead.insert(dead.number);
                    let settled_at = dead.settlement.map(|settlement| settlement.at);
                    self.settled_at.extend(settled_at.map(|at| (dead.number, at)));
                }
                (Table::Negotiations, Some(record)) => {
                    self.mandates.extend(NegotiationRecord::decode(&record.value).unwrap().envelope);
                }
                (Table::Negotiations, None) => {
                    let gone = NegotiationRecord::decode(&before.as_ref().unwrap().value).unwrap();
                    let task = gone.negotiation.mandate.as_ref().and(gone.negotiation.task.as_ref());
                    let is_over = task.is_none_or(|(task, _)| !tasks.contains_key(task) || self.removed.contains(task));
                    assert!(is_over, "a negotiation was removed before the task of its mandate");
                    gone.envelope.map(|copy| self.mandates.remove(&copy));
                }
                (Table::Plans, Some(record)) => {
                    self.submissions.extend(signed_for(&PlanRecord::decode(&record.value).unwrap()));
                }
                (Table::Plans, None) => {
                    let gone = PlanRecord::decode(&before.as_ref().unwrap().value).unwrap();
                    self.submissions.retain(|sequence| !signed_for(&gone).any(|signed| signed == *sequence));
                }
                (Table::WorkspaceEntries, Some(record)) => {
                    self.appends.insert(WorkspaceEntryRecord::decode(key, &record.value).unwrap().message);
                }
                (Table::WorkspaceEntries, None) => {
                    let gone = WorkspaceEntryRecord::decode(key, &before.as_ref().unwrap().value).unwrap();
                    self.appends.remove(&gone.message);
                }
                (Table::DeadLetters, None) => {
                    let dead = DeadLetterRecord::decode(key, &before.as_ref().unwrap().value).unwrap();
                    let settled_at = self.settled_at.get(&dead.number);
                    let settled_at = settled_at.expect("law 2: a dead letter is gone without a decision");
                    let kept = self.retention.settled_dead_letters.expect("dead letters are kept for good");
                    assert!(settled_at.plus(kept) <= now, "a dead letter was removed before its time");
                    self.dead.remove(&dead.number);
                    *counts.entry("dead letters removed").or_default() += 1;
                }
                _ => {}
            }
        }
        for task in gone_tasks {
            let (_, epoch, is_final) = tasks[&task];
            assert!(is_final, "{task} was removed, and had not ended");
            assert_eq!(left.get(&task), Some(&epoch), "law 1: the last epoch of {task} stays");
            let aged = self.retention.ended_tasks.is_some_and(|kept| self.ended_at[&task].plus(kept) <= now);
            assert!(aged || self.retention.store_bytes_max.is_some(), "{task} was removed before its time");
            *counts.entry("tasks removed").or_default() += 1;
            self.removed.insert(task);
        }
        for task in parted {
            assert!(self.removed.contains(&task), "law 7: {task} lost a message of its log");
        }
        self.see_parts(change, befores, mailbox);
    }

    /// A part of a task is removed only after the task. An envelope is removed only after its last use.
    fn see_parts(&self, change: &Change, befores: &[Option<Record>], mailbox: &Mailbox) {
        for (write, before) in change.writes.iter().zip(befores).filter(|(write, _)| write.record.is_none()) {
            let (key, Some(before)) = (&write.key.key, before) else { continue };
            match write.key.table {
                Table::Custody => {
                    let task = task_of(&key[8..key.len() - 9]);
                    assert!(self.removed.contains(&task), "law 7: {task} lost a part of its log");
                }
                Table::Handoffs => {
                    let task = HandoffRecord::decode(&before.value).unwrap().handoff.task.clone();
                    assert!(self.removed.contains(&task), "{task} lost a handoff");
                }
                Table::Envelopes => {
                    let sequence = number_of(key);
                    let keeper = self.keeper(sequence, mailbox);
                    assert_eq!(keeper, None, "law 2: envelope {sequence} is gone");
                }
                _ => {}
            }
        }
    }

    /// The object that still needs this envelope.
    fn keeper(&self, sequence: u64, mailbox: &Mailbox) -> Option<String> {
        if let Some(task) = self.logged.get(&sequence).filter(|task| !self.removed.contains(*task)) {
            return Some(format!("the log of {task}"));
        }
        if self.dead.contains(&sequence) {
            return Some("a dead letter".to_owned());
        }
        if self.mandates.contains(&sequence) {
            return Some("a negotiation".to_owned());
        }
        if self.submissions.contains(&sequence) {
            return Some("a plan".to_owned());
        }
        if self.appends.contains(&sequence) {
            return Some("an entry of a workspace".to_owned());
        }
        let letter = mailbox.iter().find(|(_, letter)| letter.bytes_at() == EnvelopePlace::Sequence(sequence));
        letter.map(|((agent, place), _)| format!("the mail of {agent} at {place}"))
    }

    /// Checks the store long after the last fault.
    pub(crate) fn see_rest(&self, store: &dyn Store, now: Timestamp, mailbox: &Mailbox) {
        let all = |table| store.scan(table, (Unbounded, Unbounded), Order::Ascending, usize::MAX).unwrap();
        let is_late = |since: Timestamp, kept: Duration| since.plus(kept).plus(LATE_BY_MAX) < now;
        for (key, _) in all(Table::Envelopes) {
            let sequence = number_of(&key);
            assert!(self.keeper(sequence, mailbox).is_some(), "envelope {sequence} is kept without a reason");
        }
        for (key, _) in all(Table::Messages) {
            let is_in_log = self.log_of.get(&key).is_some_and(|task| !self.removed.contains(task));
            assert!(
                is_in_log || !is_late(self.accepted_at[&key], self.retention.message_ids),
                "an id is kept for ever"
            );
        }
        for (key, _) in all(Table::Tasks) {
            let has_time = !self.ended.contains(&task_of(&key)) || self.ended_at.contains_key(&task_of(&key));
            assert!(has_time, "{} has ended, and nothing says when", task_of(&key));
            let ended_at = self.ended_at.get(&task_of(&key)).copied();
            let overdue = ended_at.zip(self.retention.ended_tasks).is_some_and(|(at, kept)| is_late(at, kept));
            assert!(!overdue, "{} is kept for ever", task_of(&key));
        }
        for (key, _) in all(Table::Custody) {
            let task = task_of(&key[8..key.len() - 9]);
            assert!(!self.removed.contains(&task), "a part of the log of {task} is left");
        }
        let hosted = all(Table::Tasks).into_iter().filter_map(|(_, record)| {
            let handoff = TaskRecord::decode(&record.value).unwrap().handoff?.handoff;
            Some(KeyBytes::from(&handoff.id.as_bytes()[..]))
        });
        // A task that began without a handoff stands in the list under the message that created it.
        let created = all(Table::Tasks).into_iter().filter_map(|(_, record)| {
            let message = TaskRecord::decode(&record.value).unwrap().task.created_by?;
            Some(KeyBytes::from(&message.as_bytes()[..]))
        });
        let handoffs = all(Table::Handoffs).into_iter().map(|(id, _)| id);
        let handoffs: HashSet<KeyBytes> = handoffs.chain(hosted).chain(created).collect();
        let listed =
            |kind| all(Table::Listings).into_iter().filter(move |(key, _)| ListKind::of_key(key) == Some(kind));
        for (key, record) in listed(ListKind::Handoffs) {
            assert!(
                handoffs.contains(&KeyBytes::from(&record.value[..16])),
                "{key:?} of a list of handoffs is of none"
            );
        }
        let dead: HashSet<KeyBytes> = all(Table::DeadLetters).into_iter().map(|(number, _)| number).collect();
        for (key, _) in listed(ListKind::DeadLetters) {
            assert!(
                dead.contains(&KeyBytes::from(&key[key.len() - 8..])),
                "{key:?} of a list of dead letters is of none"
            );
        }
        let negotiations = all(Table::Negotiations);
        for (_, record) in &negotiations {
            let of = NegotiationRecord::decode(&record.value).unwrap().negotiation;
            // One with a mandate stays as long as its task.
            let overdue = self.retention.ended_tasks.is_some_and(|kept| is_late(of.updated_at, kept));
            assert!(!overdue || of.mandate.is_some(), "negotiation {} is kept for ever", of.id);
        }
        let negotiations: HashSet<KeyBytes> = negotiations.into_iter().map(|(id, _)| id).collect();
        for (key, record) in listed(ListKind::Negotiations) {
            let id = KeyBytes::from(&record.value[..16]);
            assert!(negotiations.contains(&id), "{key:?} of a list of negotiations is of none");
        }
        for (key, _) in all(Table::NegotiationBids) {
            assert!(negotiations.contains(&KeyBytes::from(&key[..16])), "a bid of no negotiation is left");
        }
        for number in &self.dead {
            let settled_at = self.settled_at.get(number).zip(self.retention.settled_dead_letters);
            assert!(!settled_at.is_some_and(|(at, kept)| is_late(*at, kept)), "dead letter {number} is kept for ever");
        }
        assert_eq!(all(Table::SharedEnvelopes).len(), 0, "no mail is left that shares an envelope");
    }
}

fn task_of(key: &[u8]) -> TaskId {
    TaskId::parse(std::str::from_utf8(key).unwrap()).unwrap()
}

fn number_of(key: &[u8]) -> u64 {
    u64::from_be_bytes(key[..].try_into().unwrap())
}

/// The sequences of the messages by which a plan was submitted and extended.
fn signed_for(record: &PlanRecord) -> impl Iterator<Item = u64> {
    std::iter::once(record.sequence).chain(record.plan.extensions.iter().map(|extension| extension.sequence))
}
