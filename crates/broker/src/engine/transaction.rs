//! The transaction: the reads and writes of a command, until the engine stages it into the batch.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    Engine,
    batch::{Place, PostCommit},
    entities::Stored,
};
use crate::{
    BrokerError,
    domain::EntityId,
    ids::{AgentId, InstanceId, MessageId, TaskId},
    preparation::CheckedContext,
    records::{EntityRecord, Expiration, LogEntry, entity_timer, entity_timer_key},
    store::{Change, Expectation, Key, Record, Table, Write},
    time::Timestamp,
};

/// The open change of one command.
#[derive(Debug, Clone, Default)]
pub(super) struct Transaction {
    change: Change,
    pub(super) post_commit: Vec<PostCommit>,
    /// The entry of the message in hand in the custody log of its task. [`Engine::accept`] stores it with the message.
    pub(super) logged: Option<(TaskId, LogEntry)>,
    /// Whether the coordinator has sent a message in this transaction: its entities are then further than the message
    /// in hand has brought them.
    pub(super) has_orders: bool,
    /// The message in hand, whose record is written after its step.
    pub(super) in_hand: Option<(MessageId, Bytes)>,
    /// The sender of the message in hand with its process, if it has said which.
    pub(super) sender: Option<(AgentId, InstanceId)>,
    /// The process for which the next letter of the transaction waits.
    pub(super) preferred: Option<InstanceId>,
    /// The context that the message in hand carries.
    pub(super) context: Option<(MessageId, Arc<CheckedContext>)>,
    /// The agent that the entries of logs in the transaction count for, where the transaction reads no entity that says so.
    pub(super) payer: Option<AgentId>,
    /// Bytes that the transaction adds to what agents store (true), or removes, beside those that the tables show.
    pub(super) stored: Vec<(AgentId, usize, bool)>,
    /// How many messages of the coordinator are being sent, one within the step of the other.
    pub(super) order_depth: u32,
    /// The sequences that the transaction has taken. The engine counts them as used once the transaction is staged, so a
    /// transaction that is dropped leaves no gap.
    sequences: Range<u64>,
    /// The entities that the transaction has read, with their new versions. The list is short, so a lookup scans it.
    entities: Vec<ReadEntity>,
}

/// An entity that the transaction has read.
#[derive(Debug, Clone)]
struct ReadEntity {
    id: EntityId,
    before: Option<Stored>,
    after: Option<Arc<EntityRecord>>,
    /// The entity whose record contains this one. The revision of `before` is that of the container.
    container: Option<EntityId>,
}

impl Transaction {
    /// Writes a new version of a record that this transaction has read.
    pub(super) fn put(&mut self, key: Key, value: Bytes, before: Option<&Record>) {
        self.write_version(key, value, before.map(|record| record.revision));
    }

    /// Writes a new version of an entity that this transaction has read. Panics if it has not read the entity.
    pub(super) fn put_entity(&mut self, record: EntityRecord) {
        let id = record.entity().id();
        let read = self.entities.iter_mut().find(|read| read.id == id);
        read.expect("a step reads what it writes").after = Some(Arc::new(record));
    }

    /// The latest version of an entity that this transaction has read, to change it. The caller puts it back with
    /// [`Self::put_entity`].
    pub(super) fn take_entity(&mut self, id: &EntityId) -> Option<EntityRecord> {
        self.entities.iter_mut().find(|read| read.id == *id)?.latest().map(Arc::unwrap_or_clone)
    }

    /// The version of the entity that this transaction writes. `None`: the transaction does not write it.
    pub(super) fn written(&self, id: &EntityId) -> Option<&Arc<EntityRecord>> {
        self.entities.iter().find(|read| read.id == *id)?.after.as_ref()
    }

    /// The versions of all entities that this transaction writes.
    pub(super) fn all_written(&self) -> impl Iterator<Item = &Arc<EntityRecord>> {
        self.entities.iter().filter_map(|read| read.after.as_ref())
    }

    /// The latest versions of all entities that this transaction has read.
    pub(super) fn all_read(&self) -> impl Iterator<Item = &Arc<EntityRecord>> {
        self.entities.iter().filter_map(ReadEntity::record)
    }

    /// Makes the commit apply the change only if the record still has this revision. `None`: only if no record exists.
    pub(super) fn expect(&mut self, key: &Key, revision: Option<u64>) {
        let expectations = &mut self.change.expectations;
        if !expectations.iter().any(|known| known.key == *key) {
            expectations.push(Expectation { key: key.clone(), revision });
        }
    }

    /// Whether the transaction has read this key and found no record.
    fn has_found_none(&self, key: &Key) -> bool {
        self.change.expectations.iter().any(|known| known.key == *key && known.revision.is_none())
    }

    /// Writes a record under a key that was never used.
    pub(super) fn put_new(&mut self, key: Key, value: Bytes) {
        self.write(key, Some(Record { revision: 1, value }), true);
    }

    /// Writes a record that may exist already, without a comparison of revisions.
    pub(super) fn put_over(&mut self, key: Key, value: Bytes) {
        self.write(key, Some(Record { revision: 1, value }), false);
    }

    /// Schedules the removal of a record for the end of its retention.
    pub(super) fn expire_later(&mut self, kind: Expiration, since: Timestamp, what: &[u8]) {
        let key = kind.key(since, what);
        self.put_over(key.clone(), Bytes::new());
        self.post_commit.push(PostCommit::ExpirationStored { kind, key, since });
    }

    /// Removes a record, without a comparison of revisions.
    pub(super) fn delete(&mut self, key: Key) {
        self.write(key, None, false);
    }

    /// The write of a record that this transaction has written before, to change it.
    pub(super) fn written_record(&mut self, key: &Key) -> Option<&mut Option<Record>> {
        let mut latest_first = self.change.writes.iter_mut().rev();
        latest_first.find(|write| write.key == *key).map(|write| &mut write.record)
    }

    /// The number of records that the transaction writes.
    pub(super) fn writes(&self) -> usize {
        self.change.writes.len()
    }

    /// Returns the revision of the new version.
    fn write_version(&mut self, key: Key, value: Bytes, before: Option<u64>) -> u64 {
        let revision = before.unwrap_or(0) + 1;
        self.write(key, Some(Record { revision, value }), before.is_none());
        revision
    }

    fn write(&mut self, key: Key, record: Option<Record>, is_new: bool) {
        self.change.writes.push(Write { key, record, is_new });
    }
}

impl Engine {
    pub(super) fn transaction(&self) -> Transaction {
        Transaction::default()
    }

    /// The next sequence of the transaction.
    pub(super) fn new_sequence(&self, transaction: &mut Transaction) -> u64 {
        let taken = &mut transaction.sequences;
        if taken.is_empty() {
            let next = self.batch.head.next_sequence;
            *taken = next..next;
        }
        let sequence = taken.end;
        taken.end += 1;
        sequence
    }

    /// Runs a part of a transaction that may fail while the rest of the transaction is kept. A failed part leaves nothing
    /// in the transaction.
    pub(super) fn attempt<T, E>(
        &mut self,
        transaction: &mut Transaction,
        part: impl FnOnce(&mut Self, &mut Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let before = transaction.clone();
        part(self, transaction).inspect_err(|_| *transaction = before)
    }

    /// Reads a record for a change. The commit applies the change only if the record is still the same.
    pub(super) fn read(&self, transaction: &mut Transaction, key: &Key) -> Result<Option<Record>, BrokerError> {
        let found = match self.batch.written.get(key) {
            // An earlier command of this batch has written the record. The store gets that version only with the
            // commit.
            Some(&Place(change, write)) => self.batch.changes[change].writes[write].record.clone(),
            None => self.env.store.get(key)?,
        };
        transaction.expect(key, found.as_ref().map(|record| record.revision));
        Ok(found)
    }

    /// Whether an earlier command of this batch writes the record.
    pub(super) fn is_written_in_batch(&self, key: &Key) -> bool {
        self.batch.written.contains_key(key)
    }

    /// Reads the further rows of a decoded record.
    fn with_rows(&self, transaction: &mut Transaction, record: EntityRecord) -> Result<EntityRecord, BrokerError> {
        let keys = record.row_keys();
        if keys.is_empty() {
            return Ok(record);
        }
        let record = match record {
            EntityRecord::Run(run) => match self.entities.graph(run.graph) {
                Some(graph) => return Ok(EntityRecord::Run(run.with_graph(graph))),
                None => EntityRecord::Run(run),
            },
            other => other,
        };
        let rows = keys.iter().map(|key| self.read(transaction, key)).collect::<Result<Vec<_>, _>>()?;
        let rows: Vec<_> = rows.into_iter().flatten().map(|row| row.value).collect();
        Ok(record.with_rows(&rows)?)
    }

    /// Reads an entity. The order is: the transaction's own writes, the cache, the batch, the store.
    pub(super) fn entity_record(
        &mut self,
        transaction: &mut Transaction,
        id: &EntityId,
    ) -> Result<Option<Arc<EntityRecord>>, BrokerError> {
        if let Some(read) = transaction.entities.iter().find(|read| read.id == *id) {
            return Ok(read.record().cloned());
        }
        if let Some(container) = self.container_of(transaction, id)?
            && let Some(record) = self.entity_record(transaction, &container)?
            && let Some(embedded) = record.embedded(id)
        {
            let record = Arc::new(embedded);
            // An embedded entity has no revision of its own. The expectation on the container's record guards both.
            let before = Some(Stored { record: record.clone(), revision: 0, bytes: 0 });
            transaction.entities.push(ReadEntity { id: id.clone(), before, after: None, container: Some(container) });
            return Ok(Some(record));
        }
        let key = EntityRecord::key(id);
        let before = match self.entities.get(&key) {
            Some(cached) => {
                // The commit compares the cached revision with the stored one, so a stale entry cannot be applied.
                transaction.expect(&key, Some(cached.revision));
                Some(cached.clone())
            }
            None => match self.read(transaction, &key)? {
                Some(found) => {
                    let record = Arc::new(self.with_rows(transaction, EntityRecord::decode(id, &found.value)?)?);
                    if let EntityRecord::Run(run) = &*record {
                        self.entities.keep_graph(run.graph, &run.run.graph);
                    }
                    let stored = Stored { record, revision: found.revision, bytes: found.value.len() };
                    self.entities.insert(key, stored.clone());
                    Some(stored)
                }
                None => None,
            },
        };
        let record = before.as_ref().map(|stored| stored.record.clone());
        transaction.entities.push(ReadEntity { id: id.clone(), before, after: None, container: None });
        Ok(record)
    }

    /// The entity whose record may contain this one.
    fn container_of(&mut self, transaction: &Transaction, id: &EntityId) -> Result<Option<EntityId>, BrokerError> {
        let Some(key) = EntityRecord::container_key(id) else { return Ok(None) };
        let is_container = |read: &&ReadEntity| read.record().is_some_and(|record| record.embeds(id));
        if let Some(container) = transaction.entities.iter().find(is_container) {
            return Ok(Some(container.id.clone()));
        }
        if let Some(container) = self.entities.container(&key) {
            return Ok(Some(container.clone()));
        }
        // The request that begins the handoff: the search for a repeat has looked for this record.
        if transaction.has_found_none(&key) {
            return Ok(None);
        }
        // No expectation: the container of an entity never changes, and its own record says whether it has the entity.
        let Some(stored) = self.read(&mut Transaction::default(), &key)? else { return Ok(None) };
        let container = EntityRecord::container_named_in(&stored.value)?;
        if let Some(container) = &container {
            self.entities.insert_container(key, container.clone());
        }
        Ok(container)
    }

    /// Adds the transaction to the batch, as a part of the command in hand.
    ///
    /// # Panics
    /// If another transaction with sequences was staged after this one took its first: both would use the same.
    pub(super) fn stage(&mut self, mut transaction: Transaction) {
        let next = &mut self.batch.head.next_sequence;
        if !transaction.sequences.is_empty() {
            assert_eq!(transaction.sequences.start, *next, "two open transactions took the same sequences");
            *next = transaction.sequences.end;
        }
        let mut entities = std::mem::take(&mut transaction.entities);
        // The new versions of embedded entities become parts of their containers' records before those are encoded.
        for (key, container) in put_into_containers(&mut transaction, &mut entities) {
            self.entities.insert_container(key, container);
        }
        let mut staged = Vec::with_capacity(entities.len());
        for read in &entities {
            if let Some(after) = &read.after {
                let before = read.before.as_ref().map(|stored| &*stored.record);
                let counted_in = (&*self.env.directory, &*self.env.resources.metrics);
                self.loads.note_change(counted_in, before, after);
                self.note_room(before, after);
                staged.extend(stage_entity(&mut transaction, read, after));
            }
        }
        let bytes = stored_bytes(&transaction, &entities);
        for read in &entities {
            if let Some(after) = &read.after {
                stage_timer(&mut transaction, read, after, &entities, bytes);
            }
        }
        transaction.entities = entities;
        self.count_stored(&transaction, &transaction.change);
        for (place, write) in transaction.change.writes.iter().enumerate() {
            self.batch.written.insert(write.key.clone(), Place(self.batch.changes.len(), place));
            // A removal does not go through `staged`, and the removed version must not stay in the cache.
            let is_entity = matches!(
                write.key.table,
                Table::Tasks
                    | Table::Handoffs
                    | Table::Negotiations
                    | Table::Workspaces
                    | Table::Graphs
                    | Table::Runs
                    | Table::RunLog
                    | Table::RunTurns
                    | Table::Specs
                    | Table::SpecRevisions
                    | Table::Threads
                    | Table::ThreadLog
                    | Table::Plans
                    | Table::PlanSpecs
                    | Table::PlanLog
            );
            if write.record.is_none() && is_entity {
                self.entities.forget(&write.key);
            }
        }
        // From here to the commit the cache is ahead of the store. A conflict clears it, and the recovery after a
        // failed commit starts with an empty one.
        for (key, stored) in staged {
            // No step reads an entry of a log again.
            if !stored.record.is_log_entry() {
                self.entities.insert(key, stored);
            }
        }
        if !transaction.change.writes.is_empty() {
            self.batch.push(transaction.change);
        }
        // Later commands of the batch see the timer here. Each of them would write a further one otherwise.
        for act in &transaction.post_commit {
            if let PostCommit::MailTimer { agent, at } = act {
                self.batch.mail_timers.insert(agent.clone(), *at);
            }
        }
        self.batch.open_post_commit.extend(transaction.post_commit);
    }

    /// A timer of the mailbox, known to be in the store or in the batch. The store may hold further timers of it.
    pub(super) fn mail_timer(&self, agent: &AgentId) -> Option<Timestamp> {
        match self.batch.mail_timers.get(agent) {
            Some(of_this_group) => *of_this_group,
            None => self.delivery.mail_timer(agent),
        }
    }

    /// The earliest expiry among the letters that the batch puts into a mailbox.
    pub(super) fn first_expiry_of_batch(&self, to: &AgentId) -> Option<Timestamp> {
        let post_commit =
            self.batch.replies.iter().flat_map(|pending| &pending.post_commit).chain(&self.batch.open_post_commit);
        let expiry = |act: &PostCommit| match act {
            PostCommit::LetterStored { agent, letter } if agent == to => Some(letter.expires_at),
            _ => None,
        };
        post_commit.filter_map(expiry).min()
    }

    /// Ends a command in hand that has no caller.
    pub(super) fn end_unanswered(&mut self) {
        self.batch.close(None);
    }
}

impl ReadEntity {
    /// The latest version of the entity.
    fn record(&self) -> Option<&Arc<EntityRecord>> {
        self.after.as_ref().or(self.before.as_ref().map(|stored| &stored.record))
    }

    /// The latest version of the entity, to change it. Removes a new version, which the caller puts back.
    fn latest(&mut self) -> Option<Arc<EntityRecord>> {
        self.after.take().or_else(|| self.before.as_ref().map(|stored| stored.record.clone()))
    }
}

/// Puts the new versions of embedded entities into the records of their containers. Returns the keys of [`Entities::container`]
/// with the containers.
///
/// [`Entities::container`]: super::entities::Entities::container
fn put_into_containers(transaction: &mut Transaction, all: &mut [ReadEntity]) -> Vec<(Key, EntityId)> {
    let mut containers = Vec::new();
    for embedded in 0..all.len() {
        let Some(after) = all[embedded].after.clone() else { continue };
        // Only a new entity gets a container. One that another entity has replaced in its container keeps its own record.
        if all[embedded].before.is_none() {
            all[embedded].container = after.first_container();
        }
        let Some(container) = all[embedded].container.clone() else { continue };
        containers.extend(EntityRecord::container_key(&all[embedded].id).map(|key| (key, container.clone())));
        let container =
            all.iter_mut().find(|read| read.id == container).expect("a step of an entity reads its container");
        // The step has usually written the container too. Its new version has no other holder yet, so it is not copied.
        let mut record = container.latest().expect("a container is there");
        let former = Arc::make_mut(&mut record).embed(&after);
        container.after = Some(record);
        // The container's record holds one handoff: the former one moves to its own key, in this commit. It leaves its container
        // only once, so the key was never used.
        if let Some(former) = former {
            transaction.put_new(EntityRecord::key(&former.entity().id()), former.encode());
            former.listings_outside().into_iter().for_each(|(key, value)| transaction.put_new(key, value));
        }
    }
    containers
}

/// The bytes that an entity counts which the transaction opens: of all records that the transaction writes, and of the
/// entities that it only reads.
fn stored_bytes(transaction: &Transaction, all: &[ReadEntity]) -> usize {
    let records = transaction.change.writes.iter().filter_map(|write| write.record.as_ref());
    let read = all.iter().filter(|read| read.after.is_none()).filter_map(|read| read.before.as_ref());
    records.map(|record| record.value.len()).sum::<usize>() + read.map(|stored| stored.bytes).sum::<usize>()
}

/// Writes a new version of an entity with its index entries. Returns the record that it has of its own.
fn stage_entity(transaction: &mut Transaction, read: &ReadEntity, after: &Arc<EntityRecord>) -> Option<(Key, Stored)> {
    let before = read.before.as_ref();
    // An embedded entity is written with its container.
    let own = read.container.is_none().then(|| {
        let (key, value) = (EntityRecord::key(&read.id), after.encode());
        let bytes = value.len();
        let revision = transaction.write_version(key.clone(), value, before.map(|stored| stored.revision));
        (key, Stored { record: after.clone(), revision, bytes })
    });
    // The revision of the record guards them.
    for (place, value) in after.changed_rows(before.map(|stored| &*stored.record)) {
        transaction.put_over(place, value);
    }
    let delta = after.index_delta(before.map(|stored| &*stored.record));
    delta.removed.into_iter().for_each(|place| transaction.delete(place));
    delta.new.into_iter().for_each(|(place, value)| transaction.put_new(place, value));
    delta.reused.into_iter().for_each(|(place, value)| transaction.put_over(place, value));
    let before = before.map(|stored| stored.record.clone());
    transaction.post_commit.push(PostCommit::EntityMoved { before, after: after.clone() });
    own
}

/// Sets the timer of an entity if its next deadline has moved. The store has one for an entity with a deadline: a time
/// that no later step brings forward.
fn stage_timer(
    transaction: &mut Transaction,
    read: &ReadEntity,
    after: &EntityRecord,
    all: &[ReadEntity],
    bytes: usize,
) {
    let before = read.before.as_ref().map(|stored| &*stored.record);
    // Deadlines are log times, timers are running times.
    let due = |record: &EntityRecord, is_before| {
        let deadline = record.entity().next_deadline();
        deadline.map(|at| at.plus(set_back_of(record, all, is_before)))
    };
    let was_due = before.and_then(|record| due(record, true));
    let is_due = due(after, false);
    if was_due == is_due {
        return;
    }
    let entity = after.entity();
    let counts_for = entity.counts_for().cloned();
    // A handoff is small, and counts by number alone.
    let has_bytes = counts_for.is_some() && !matches!(after, EntityRecord::Handoff(_));
    let bytes = if has_bytes { u32::try_from(bytes).unwrap_or(u32::MAX) } else { 0 };
    match is_due {
        // The timer names the agent, so that a start counts the open handoffs of each agent without reading the
        // entities.
        Some(at) if was_due.is_none() => {
            let first = entity.no_deadline_before().plus(set_back_of(after, all, false));
            let (key, value) = entity_timer(first.min(at), after, (counts_for.as_ref(), bytes));
            transaction.put_new(key, value);
        }
        Some(_) => {} // the stored timer fires too early, and the engine reads the deadline then
        None => transaction.delete(entity_timer_key(after)),
    }
    let entity = read.id.clone();
    transaction.post_commit.push(PostCommit::EntityTimer { entity, counts_for, bytes, before: was_due, after: is_due });
}

/// The part of the clock's set-backs that the log of an entity has followed. The log is the entity's own or that of its
/// task.
fn set_back_of(record: &EntityRecord, all: &[ReadEntity], is_before: bool) -> Duration {
    if let Some(log_clock) = record.log_clock() {
        return log_clock.set_back;
    }
    let entity = record.entity();
    let task = entity.task().map(|task| EntityId::Task(task.clone()));
    let Some(log) = all.iter().find(|read| Some(&read.id) == task.as_ref()) else { return Duration::ZERO };
    let before = log.before.as_ref().map(|stored| &stored.record);
    let version = if is_before { before } else { log.after.as_ref().or(before) };
    version.and_then(|record| record.log_clock()).map_or(Duration::ZERO, |log_clock| log_clock.set_back)
}
