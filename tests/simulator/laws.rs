//! The laws of SPEC 12, checked from outside: over every durable change, and over every observation of the
//! agents. The checker does its own naive bookkeeping. Of the code under test it uses only the record readers, and the
//! state machine where law 7 asks for a replay.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use baton_broker_core::{
    BlobLimits, Retention,
    blobs::BlobFiles,
    domain::{
        EntityId,
        dead_letter::DeadState,
        handoff::{Acked, Handoff, Prompt, PromptState, State, Task},
        mailbox::{ConsumerId, EnvelopePlace, Letter},
        negotiation::State as NegotiationState,
    },
    ids::{AgentId, MessageId, TaskId},
    proto::v1::{self, custody_entry::Event},
    records::{
        self, DeadLetterRecord, HandoffRecord, LogEntry, LogItem, LogPage, MessageRecord, NegotiationRecord, TaskRecord,
    },
    replay::Replay,
    store::{Change, KeyBytes, Record, Store, Table},
    time::Timestamp,
};
use bytes::Bytes;
use prost::Message as _;

/// A message for an agent.
type Mail = (MessageId, AgentId);

#[derive(Debug, Default)]
pub(crate) struct Laws {
    /// The time that the broker's clock shows.
    pub now: Timestamp,
    /// The real time.
    pub real: Timestamp,
    /// The total time that the broker could not observe because its clock was set back.
    pub unseen: Duration,
    /// The real time and the broker's time at the last durable change.
    pub committed: Option<(Timestamp, Timestamp)>,
    /// For each open handoff: its start, its total timeout, and the unobserved time at its start.
    began: BTreeMap<MessageId, (Timestamp, Duration, Duration)>,
    /// The loan timeout of each handoff that has one.
    loan_timeouts: HashMap<MessageId, Duration>,
    /// For each loan with a timeout: its start, its timeout, and the unobserved time at its start.
    loans: BTreeMap<(TaskId, MessageId), (Timestamp, Duration, Duration)>,
    /// The handoffs that lend each task, the outermost first.
    open_loans: HashMap<TaskId, Vec<MessageId>>,
    /// The tasks with an open question that has a deadline, and the real time since which it waits.
    waiting: HashMap<TaskId, Timestamp>,
    /// The time of the last entry of each log.
    logged_at: HashMap<TaskId, Timestamp>,
    /// The laws of retention.
    keeping: crate::keeping::Keeping,
    /// Law 10.
    pub negotiations: crate::negotiations::Negotiations,
    /// Law 13.
    pub plans: crate::plans::Plans,
    /// Law 14.
    pub runs: crate::runs::Runs,
    /// Law 15.
    pub threads: crate::threads::Threads,
    /// Law 11.
    pub contexts: crate::contexts::Contexts,
    /// The ends of delegations in threads.
    pub delegations: crate::delegations::Delegations,
    /// Laws 9 and 12.
    pub workspaces: crate::workspaces::Workspaces,
    /// Law 11.
    pub blobs: crate::blobs::Blobs,
    /// Law 16.
    pub processes: crate::processes::Processes,
    /// Law 17.
    pub silence: crate::silence::Silence,
    /// Offers to full agents.
    pub busy: crate::busy::Busy,
    /// Messages that wait for their time.
    pub delays: crate::delays::Delays,
    tasks: HashMap<TaskId, (AgentId, u64, bool)>,
    replays: BTreeMap<TaskId, Replay>,
    open: BTreeMap<MessageId, Timestamp>,
    ended: HashMap<MessageId, State>,
    accepted: HashSet<KeyBytes>,
    /// The digests of the signed content of all accepted messages.
    applied: HashSet<[u8; 32]>,
    /// The letters in mailboxes, by agent and place.
    mailbox: BTreeMap<(AgentId, u64), Letter>,
    lines: BTreeMap<(AgentId, TaskId), BTreeSet<u64>>,
    /// All mail that was ever put into a mailbox, or stored as a dead letter.
    known_mail: HashSet<Mail>,
    /// The acks that agents have sent, by delivery. The broker may not have received them.
    pub acks_sent: HashSet<(AgentId, u64)>,
    /// The questions that have an answer.
    answered: HashSet<String>,
    /// The first receipt for each message, by the message's bytes.
    receipts: HashMap<Bytes, v1::Receipt>,
    /// The owner of a task at an epoch, according to the receipts.
    owners: BTreeMap<(String, u64), String>,
    /// The ids of messages that were signed by another agent than their sender.
    pub forged: HashSet<String>,
    pub changes: u64,
    pub by_end: BTreeMap<&'static str, u64>,
}

impl Laws {
    pub(crate) fn new(retention: Retention, files: Arc<BlobFiles>, limits: BlobLimits) -> Self {
        let blobs = crate::blobs::Blobs::new(files, limits);
        Self { keeping: crate::keeping::Keeping::new(retention), blobs, ..Self::default() }
    }

    /// Checks the store long after the last fault: no unneeded record is left.
    pub(crate) fn see_rest(&self, store: &dyn Store) {
        self.keeping.see_rest(store, self.now, &self.mailbox);
        self.blobs.see_rest(store, self.now);
    }

    /// Checks a durable change.
    pub(crate) fn see_change(
        &mut self,
        change: &Change,
        befores: &[Option<Record>],
        envelope: &dyn Fn(EnvelopePlace) -> Bytes,
    ) {
        self.changes += 1;
        self.committed = Some((self.real, self.now));
        let mut seen = Seen::default();
        // The handoffs that are in the records of their tasks before the change.
        let tasks = change.writes.iter().zip(befores).filter(|(write, _)| write.key.table == Table::Tasks);
        let tasks = tasks.filter_map(|(_, before)| Some(TaskRecord::decode(&before.as_ref()?.value).unwrap()));
        let hosted_before: HashMap<MessageId, std::sync::Arc<Handoff>> =
            tasks.filter_map(|task| Some((task.handoff.as_ref()?.handoff.id, task.handoff?.handoff))).collect();
        for (write, before) in change.writes.iter().zip(befores) {
            let key = &write.key.key;
            match (write.key.table, &write.record) {
                (Table::Messages, Some(record)) => {
                    let after = MessageRecord::decode(&record.value).unwrap();
                    if let Some(before) = before {
                        // The task of the message was removed, and its receipt stays for its time.
                        let before = MessageRecord::decode(&before.value).unwrap();
                        assert_eq!(before.content_digest, after.content_digest, "law 4: a message is applied once");
                        assert_eq!(before.receipt(), after.receipt(), "law 4: a repeat gets the first receipt");
                        assert!(before.logged().is_some() && after.logged().is_none(), "law 4: applied once");
                        continue;
                    }
                    // After its retention time an id may belong to another message, but the same message must not be
                    // accepted again.
                    let is_first = self.applied.insert(after.content_digest);
                    assert!(is_first, "law 4: a message is applied once, however long ago");
                    self.accepted.insert(key.clone());
                    let id = MessageId::from_bytes(key[..].try_into().unwrap());
                    seen.accepted.extend(after.logged().map(|logged| (id, logged.entry.clone())));
                    seen.said.push(match after.logged() {
                        Some(_) => EnvelopePlace::Message(id),
                        None => EnvelopePlace::Sequence(after.sequence),
                    });
                }
                (Table::Tasks, Some(record)) => {
                    let task = TaskRecord::decode(&record.value).unwrap();
                    if let Some(HandoffRecord { handoff, .. }) = &task.handoff {
                        let before = hosted_before.get(&handoff.id).map(|before| &**before);
                        self.see_handoff(before, handoff);
                        seen.handoffs.push(handoff.clone());
                    }
                    let first = task.custody.length + 1 - task.log_tail.len() as u64;
                    seen.see_items(&task.task.id, first, &task.log_tail);
                    seen.tasks.push(task);
                }
                (Table::Handoffs, Some(record)) => {
                    let before = before.as_ref().map(|before| HandoffRecord::decode(&before.value).unwrap().handoff);
                    let moved = hosted_before.get(&MessageId::from_bytes(key[..].try_into().unwrap())).cloned();
                    let before = before.or(moved);
                    let after = HandoffRecord::decode(&record.value).unwrap().handoff;
                    self.see_handoff(before.as_deref(), &after);
                    seen.handoffs.push(after);
                }
                (Table::Mailbox, Some(record)) => {
                    let letter = records::decode_letter(key, &record.value).unwrap();
                    let agent = agent_of(key);
                    seen.letters.push(agent.clone());
                    self.known_mail.insert((letter.message, agent.clone()));
                    if let Some(task) = &letter.task {
                        self.lines.entry((agent.clone(), task.clone())).or_default().insert(letter.sequence);
                    }
                    self.mailbox.insert((agent, letter.sequence), letter);
                }
                (Table::Mailbox, None) => seen.removed.push((agent_of(key), place_of(key))),
                (Table::DeadLetters, Some(record)) => {
                    let dead = DeadLetterRecord::decode(key, &record.value).unwrap();
                    if let Ok(message) = MessageId::parse(&dead.summary.message_id) {
                        self.known_mail.insert((message, dead.agent.clone()));
                    }
                    let place = dead.letter.as_ref().map(|letter| letter.sequence);
                    match dead.state {
                        DeadState::Parked => {
                            *self.by_end.entry(dead.reason.name()).or_default() += 1;
                            seen.parked.extend(place.map(|place| (dead.agent.clone(), place)));
                        }
                        DeadState::Redriven => seen.redriven = true,
                        DeadState::Discarded => {}
                    }
                }
                (Table::Negotiations, Some(record)) => {
                    let negotiation = NegotiationRecord::decode(&record.value).unwrap().negotiation;
                    seen.closed.extend((negotiation.state != NegotiationState::Open).then_some(negotiation.id));
                }
                (Table::Custody, Some(record)) => {
                    let (first, items) = LogPage::decode(key, &record.value).unwrap();
                    let task = std::str::from_utf8(&key[8..key.len() - 9]).unwrap();
                    seen.see_items(&TaskId::parse(task).unwrap(), first, &items);
                }
                _ => {}
            }
        }
        self.see_removals(&seen, envelope);
        assert!(!seen.tasks.is_empty() || seen.items.is_empty(), "law 7: nothing happens to a task off its log");
        let is_of_task = |handoff: &Handoff| seen.tasks.iter().any(|record| record.task.id == handoff.task);
        assert!(
            seen.handoffs.iter().all(|handoff| is_of_task(handoff)),
            "law 7: nothing happens to a handoff off its log"
        );
        seen.tasks.iter().for_each(|record| self.see_task(record, &seen, envelope));
        self.busy.see_change(&seen.tasks, &seen.handoffs, &mut self.by_end);
        self.negotiations.see_change(change, befores, envelope, &mut self.by_end);
        self.plans.see_change(change, befores, (self.real, self.unseen), &mut self.by_end);
        self.runs.see_change(change, befores, &self.ended, (self.real, self.unseen), &mut self.by_end);
        let written = (&seen.tasks[..], &seen.handoffs[..], &seen.letters[..]);
        let of_threads = (&self.threads, &self.workspaces);
        self.delegations.see_change(change, written, of_threads, envelope, &mut self.by_end);
        self.threads.see_change(change, befores, &mut self.by_end);
        self.workspaces.see_change(change, befores, &mut self.by_end);
        self.blobs.see_change(change, befores, self.now, &mut self.by_end);
        let written = (&seen.tasks[..], &seen.handoffs[..]);
        self.contexts.see_change(change, befores, written, envelope, &self.blobs, &mut self.by_end);
        let (tasks, mailbox) = (&self.tasks, &self.mailbox);
        self.keeping.see_change(change, befores, self.now, tasks, mailbox, &mut self.by_end);
    }

    /// Law 2: a letter leaves a mailbox only after an ack or by the agent's own answer, or as a dead letter in the same
    /// change. The close of a negotiation withdraws its request, and the end of an offer, a handoff or a question what the
    /// agent has not acked of it.
    fn see_removals(&mut self, seen: &Seen, envelope: &dyn Fn(EnvelopePlace) -> Bytes) {
        let said = seen.said.iter().map(|place| v1::Envelope::decode(envelope(*place)).unwrap());
        let said: Vec<_> = if seen.removed.is_empty() { Vec::new() } else { said.collect() };
        for (agent, place) in &seen.removed {
            let Some(letter) = self.mailbox.remove(&(agent.clone(), *place)) else { continue };
            if let Some(task) = &letter.task {
                self.lines.get_mut(&(agent.clone(), task.clone())).unwrap().remove(place);
            }
            let acked = self.acks_sent.contains(&(agent.clone(), *place));
            let parked = seen.parked.contains(&(agent.clone(), *place));
            let withdrawn = seen.closed.contains(&letter.message) || seen.ends_need_for(&letter, agent);
            let answers = |said: &v1::Envelope| said.sender_id == agent.as_str() && is_answer(said, &letter);
            let answered = said.iter().any(answers);
            assert!(
                acked || parked || withdrawn || answered,
                "law 2: {agent} lost the message at {place}, and never acked it"
            );
        }
    }

    fn see_handoff(&mut self, before: Option<&Handoff>, after: &Handoff) {
        use State::{Accepted, Cancelled, Completed, ContextSent, Deciding, Failed, Rejected, Requested};
        let next: &[State] = match before.map(|before| before.state) {
            None => &[Requested],
            Some(Requested) => &[Requested, Deciding, Accepted, Rejected, Failed, Cancelled],
            Some(Deciding) => &[Deciding, Requested, Accepted, Rejected, Failed, Cancelled],
            Some(Accepted) => &[Accepted, ContextSent, Failed, Cancelled],
            Some(ContextSent) => &[ContextSent, Completed, Failed, Cancelled],
            Some(Completed) => &[Completed],
            Some(Rejected) => &[Rejected],
            Some(Failed) => &[Failed],
            Some(Cancelled) => &[Cancelled],
        };
        // The coordinator answers an accept in the commit of the accept.
        let is_open = before.is_some_and(|before| matches!(before.state, Requested | Deciding));
        let is_answered = after.sender.is_coordinator() && after.state == ContextSent && is_open;
        assert!(is_answered || next.contains(&after.state), "law 4: {before:?} became {after:?}");
        if let Some(before) = before {
            let same = before.sender == after.sender && before.task == after.task && before.epoch == after.epoch;
            assert!(same && before.whole_deadline == after.whole_deadline, "law 3: the whole time never moves");
        }
        // A delegate may extend its loan.
        let loan_timeout = after.work.loan_timeout_max.or(after.loan_timeout);
        self.loan_timeouts.extend(loan_timeout.map(|timeout| (after.id, timeout)));
        self.silence.see_terms(after.id, after.work.silence_timeout);
        // The times of a request that waits begin when its wait ends.
        let wait = self.delays.of(after.id).map_or(Duration::ZERO, |at| at.since(self.now));
        self.began.entry(after.id).or_insert((self.real, after.timeouts.whole + wait, self.unseen));
        if after.state.is_final() {
            self.open.remove(&after.id);
            if self.ended.insert(after.id, after.state).is_none() {
                *self.by_end.entry(after.state.name()).or_default() += 1;
            }
        } else {
            assert!(!self.ended.contains_key(&after.id), "law 4: a final state never changes");
            self.open.insert(after.id, after.whole_deadline);
        }
    }

    fn see_task(&mut self, record: &TaskRecord, seen: &Seen, envelope: &dyn Fn(EnvelopePlace) -> Bytes) {
        let task = &record.task;
        let entries = seen.new_entries(record, self.replays.get(&task.id).map_or(0, Replay::length));
        let Some(first) = entries.first() else {
            // The broker notes beside the task that it has told of an absent owner.
            let replayed = self.replays.get(&task.id).and_then(Replay::task);
            assert_eq!(replayed, Some(&**task), "law 7: every change of a task is in its log");
            return;
        };
        let cause = event_of(first);
        self.delegations.see_cause(task, cause.clone().filter(|_| entries.len() == 1));
        let now = (task.owner.clone(), task.epoch, task.status.is_final());
        if let Some((owner, epoch, is_final)) = self.tasks.insert(task.id.clone(), now) {
            assert!(task.epoch >= epoch, "law 1: the epoch of {} fell", task.id);
            // A recall raises the epoch even if the delegator owns the task already, by a loan within its own, and a
            // reassignment even if the coordinator does.
            let recalled = task.loans.len() < self.open_loans.get(&task.id).map_or(0, Vec::len);
            let reassigned = is_reassignment(&cause);
            let moved = task.owner != owner || recalled || reassigned;
            assert_eq!(task.epoch != epoch, moved, "law 1: owner and epoch of {} move together", task.id);
            assert!(!is_final || task.status.is_final(), "law 4: a final status never changes");
            if moved {
                assert_eq!(task.epoch, epoch + 1, "law 1: one step at a time");
            }
            if reassigned {
                assert!(task.owner.is_coordinator() && task.loans.is_empty(), "law 8: {} is not seized", task.id);
                *self.by_end.entry("REASSIGNED").or_default() += 1;
            }
            if task.owner != owner {
                let completed = seen.handoffs.iter().any(|handoff| {
                    handoff.state == State::Completed && handoff.sender == owner && handoff.candidate == task.owner
                });
                // A recall tells the former owner; its delegator has sent it, or is told as well. A reassignment tells
                // the former owner, too.
                let told: &[&AgentId] = match () {
                    () if completed || reassigned => &[&owner],
                    () if is_recall(&cause) => &[&owner],
                    () if is_loan_due(&cause) => &[&owner, &task.owner],
                    () => &[&task.owner],
                };
                // The coordinator has no mailbox.
                for told in told.iter().filter(|told| !told.is_coordinator()) {
                    assert!(
                        seen.letters.contains(told),
                        "law 5: {} moved, and {told} was not told by the same change",
                        task.id
                    );
                }
            }
        }
        self.see_loans(task, cause.as_ref().filter(|_| entries.len() == 1));
        self.silence.see_task(task, self.running());
        let ended = task.prompts.split_last().map_or(&[][..], |(_, ended)| ended);
        assert!(
            ended.iter().all(|prompt| prompt.state != PromptState::Open),
            "an earlier question about {} is still open",
            task.id
        );
        entries.iter().for_each(|entry| self.see_entry(task, entry, seen, envelope));
        let replay = &self.replays[&task.id];
        assert_eq!(replay.task(), Some(&**task), "law 7: the log explains the task");
        assert_eq!(*replay.hash(), record.custody.hash, "law 7: the head is that of the log");
        for handoff in seen.handoffs.iter().filter(|handoff| handoff.task == task.id) {
            let replayed = replay.handoffs().find(|replayed| replayed.id == handoff.id);
            assert_eq!(replayed, Some(&**handoff), "law 7: the log explains the handoff");
        }
    }

    /// Checks an entry of a task's log, and replays it.
    fn see_entry(&mut self, task: &Task, logged: &LogEntry, seen: &Seen, envelope: &dyn Fn(EnvelopePlace) -> Bytes) {
        let entry = v1::CustodyEntry::decode(logged.bytes.clone()).unwrap();
        let at = entry.entry_time.and_then(|time| Timestamp::from_parts(time.seconds, time.nanos)).unwrap();
        let before = self.logged_at.insert(task.id.clone(), at);
        assert!(before.is_none_or(|before| before <= at), "law 7: the log of {} goes back in time", task.id);
        let envelope = match &entry.event {
            Some(Event::Accepted(accepted)) => {
                envelope(EnvelopePlace::Message(MessageId::parse(&accepted.message_id).unwrap()))
            }
            _ => Bytes::new(),
        };
        let replay = self.replays.entry(task.id.clone()).or_insert_with(|| Replay::new(task.id.clone(), None));
        if let (Some(Event::Silent(_)), Some(before)) = (&entry.event, replay.task()) {
            self.silence.see_silence(&task.id, &before.owner, self.now);
            *self.by_end.entry("SILENT").or_default() += 1;
        }
        if !envelope.is_empty() {
            let said = v1::Envelope::decode(envelope.clone()).unwrap();
            self.processes.see_accepted(&said);
            if said.message_type() == v1::MessageType::TaskInput {
                let is_first = self.answered.insert(said.correlation_id.clone());
                assert!(is_first, "a question about {} has two answers", task.id);
                assert!(seen.letters.contains(&task.owner), "an answer about {} did not reach its owner", task.id);
                *self.by_end.entry("ANSWERED").or_default() += 1;
            }
            // A delegator does not see how often its delegate has lent the task on.
            if said.message_type() != v1::MessageType::TaskRecall {
                let epoch = replay.task().map_or(1, |task| task.epoch);
                assert_eq!(said.epoch, epoch, "law 1: a message of another epoch was applied to {}", task.id);
            }
        }
        let (entry_bytes, custody_hash) = (logged.bytes.clone(), logged.hash.to_vec().into());
        let shown = v1::CustodyLogEntry { entry_bytes, custody_hash, envelope, ..Default::default() };
        replay.take(&shown).unwrap_or_else(|error| panic!("law 7: task {}: {error}", task.id));
    }

    /// Follows the loans of a task.
    fn see_loans(&mut self, task: &Task, cause: Option<&Event>) {
        let ids: Vec<MessageId> = task.loans.iter().map(|loan| loan.handoff).collect();
        let before = self.open_loans.insert(task.id.clone(), ids.clone()).unwrap_or_default();
        assert!(
            before.starts_with(&ids) || ids.starts_with(&before),
            "law 8: a loan of {} outlives its outer one",
            task.id
        );
        if ids.len() < before.len() {
            *self.by_end.entry("LOAN ENDED").or_default() += 1;
            if let Some(Event::Accepted(accepted)) = cause
                && accepted.message_type() == v1::MessageType::TaskStatusUpdate
            {
                self.processes.see_end_of_loan(&accepted.message_id, before[ids.len()]);
            }
        }
        // The clock of a loan stands still while a question with a deadline waits.
        if task.waits_for_answer() {
            self.waiting.entry(task.id.clone()).or_insert(self.real);
        } else if let Some(since) = self.waiting.remove(&task.id) {
            let waited = self.real.since(since);
            let of_task = self.loans.iter_mut().filter(|((of, _), _)| *of == task.id);
            of_task.for_each(|(_, (_, timeout, _))| *timeout += waited);
        }
        self.loans.retain(|(of, id), _| *of != task.id || ids.contains(id));
        for id in ids {
            if let Some(timeout) = self.loan_timeouts.get(&id) {
                self.loans.entry((task.id.clone(), id)).or_insert((self.real, *timeout, self.unseen));
            }
        }
    }

    /// Checks a receipt that an agent has received.
    pub(crate) fn see_receipt(&mut self, agent: &str, receipt: &v1::Receipt, bytes: &Bytes) {
        let id = &receipt.message_id;
        assert!(!self.forged.contains(id), "law 6: {id} was signed by another key, and accepted");
        let stored = MessageId::parse(id).unwrap();
        if receipt.sequence == 0 {
            return; // a heartbeat
        }
        assert!(self.accepted.contains(&stored.as_bytes().into()), "law 2: {id} has a receipt and is not stored");
        let envelope = v1::Envelope::decode(bytes.clone()).unwrap();
        assert_eq!(envelope.sender_id, agent, "law 6");
        if let Some(first) = self.receipts.get(bytes) {
            assert_eq!(first, receipt, "law 4: the same message gets the first receipt again");
            return;
        }
        if !receipt.task_id.is_empty() && receipt.epoch > 0 {
            let owner = self.owners.entry((receipt.task_id.clone(), receipt.epoch)).or_insert(receipt.owner_id.clone());
            assert_eq!(*owner, receipt.owner_id, "law 1: two owners of {} at epoch {}", receipt.task_id, receipt.epoch);
        }
        self.workspaces.see_receipt(receipt);
        if let Some(to) = addressee(&envelope) {
            assert!(self.known_mail.contains(&(stored, to.clone())), "law 2: {id} has a receipt, and {to} has no mail");
        }
        self.receipts.insert(bytes.clone(), receipt.clone());
    }

    /// Checks a delivery that an agent has received.
    pub(crate) fn see_delivery(
        &mut self,
        consumer: ConsumerId,
        (agent, place): (&AgentId, u64),
        envelope: &v1::Envelope,
    ) {
        if self.processes.see_delivery(consumer, agent, envelope) {
            *self.by_end.entry("TO ITS PROCESS").or_default() += 1;
        }
        if self.delays.see_delivery(envelope) {
            *self.by_end.entry("AFTER ITS TIME").or_default() += 1;
        }
        let Some(Letter { message, task, .. }) = self.mailbox.get(&(agent.clone(), place)) else {
            return; // a faster ack has ended the message
        };
        assert_eq!(message.to_string(), envelope.message_id, "law 6: {agent} got what is not in its mailbox");
        if let Some(task) = task {
            let first = self.lines[&(agent.clone(), task.clone())].first();
            assert_eq!(first, Some(&place), "order: {agent} got {place} of {task} out of turn");
        }
    }

    /// Checks the open handoffs after the broker has processed all deadlines up to this time.
    pub(crate) fn see_time(&self, now: Timestamp) {
        let late = self.open.iter().find(|(_, deadline)| **deadline <= now);
        assert_eq!(late, None, "law 3: a handoff is open beyond its whole time");
        // The limit also holds in real time, for any state of the broker's clock.
        let late = self.open.keys().find(|id| {
            let (began, whole, unseen) = self.began[id];
            began.plus(whole).plus(self.unseen - unseen) <= self.real
        });
        assert_eq!(late, None, "law 3: a handoff has outlived its whole time, by a clock that was set");
        let late = self
            .loans
            .iter()
            .filter(|((task, _), _)| !self.waiting.contains_key(task))
            .find(|(_, (began, timeout, unseen))| began.plus(*timeout).plus(self.unseen - *unseen) <= self.real);
        assert_eq!(late, None, "law 8: a task is owned by its delegate after its loan is due");
        self.silence.see_time(self.running());
        self.negotiations.see_time(now);
        self.plans.see_time((self.real, self.unseen), &self.tasks);
        self.runs.see_time((self.real, self.unseen));
        self.threads.see_time(now);
    }

    /// The running time of the broker, as far as it is known here: the real time without what the broker's clock has
    /// hidden.
    pub(crate) fn running(&self) -> Timestamp {
        self.real.minus(self.unseen)
    }

    pub(crate) fn open_handoffs(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn ended_handoffs(&self) -> usize {
        self.ended.len()
    }

    pub(crate) fn mail_left(&self) -> usize {
        self.mailbox.len()
    }

    pub(crate) fn receipts(&self) -> usize {
        self.receipts.len()
    }

    /// The owner and the epoch of a task.
    pub(crate) fn owner_of(&self, task: &TaskId) -> Option<(&AgentId, u64)> {
        self.tasks.get(task).map(|(owner, epoch, _)| (owner, *epoch))
    }
}

/// The contents of one change.
#[derive(Debug, Default)]
struct Seen {
    tasks: Vec<TaskRecord>,
    handoffs: Vec<std::sync::Arc<Handoff>>,
    letters: Vec<AgentId>,
    removed: Vec<(AgentId, u64)>,
    parked: Vec<(AgentId, u64)>,
    redriven: bool,
    /// The negotiations in this change that take no offers.
    closed: Vec<MessageId>,
    /// The items of logs as written now, with those that were written before.
    items: BTreeMap<(TaskId, u64), LogItem>,
    /// The entries of the accepted messages.
    accepted: BTreeMap<MessageId, LogEntry>,
    /// The envelopes of all accepted messages.
    said: Vec<EnvelopePlace>,
}

impl Seen {
    /// Whether this change ends what a letter is about: its offer, its handoff or its question.
    fn ends_need_for(&self, letter: &Letter, agent: &AgentId) -> bool {
        let of_handoff = match &letter.report_to {
            Some((EntityId::Handoff(id), Acked::Request | Acked::Context)) => Some(*id),
            _ => None,
        };
        let is_over = |handoff: &Handoff| handoff.state.is_final() || handoff.candidate != *agent;
        let mut handoffs = self.handoffs.iter().filter(|handoff| Some(handoff.id) == of_handoff);
        let has_ended = |prompt: &Prompt| matches!(prompt.state, PromptState::Expired | PromptState::Withdrawn);
        let mut prompts = self.tasks.iter().flat_map(|record| &record.task.prompts);
        handoffs.any(|handoff| is_over(handoff))
            || prompts.any(|prompt| prompt.id == letter.message && prompt.asked == *agent && has_ended(prompt))
    }

    fn see_items(&mut self, task: &TaskId, first: u64, items: &[LogItem]) {
        self.items.extend((first..).zip(items).map(|(number, item)| ((task.clone(), number), item.clone())));
    }

    /// The entries of a task's log after the first `known`. The entry of a message is in the message's record.
    fn new_entries(&self, record: &TaskRecord, known: u64) -> Vec<LogEntry> {
        let entry = |number| match &self.items[&(record.task.id.clone(), number)] {
            LogItem::Entry(entry) => entry.clone(),
            LogItem::Message(message) => self.accepted[message].clone(),
        };
        (known + 1..=record.custody.length).map(entry).collect()
    }
}

fn event_of(entry: &LogEntry) -> Option<Event> {
    v1::CustodyEntry::decode(entry.bytes.clone()).unwrap().event
}

/// Whether the message answers the letter: its offer, its context, its question or its request for offers.
fn is_answer(said: &v1::Envelope, letter: &Letter) -> bool {
    use v1::MessageType as T;
    match said.message_type() {
        T::HandoffAccept | T::HandoffReject | T::HandoffComplete => {
            let of_handoff = |id: &MessageId| id.to_string() == said.correlation_id;
            matches!(&letter.report_to, Some((EntityId::Handoff(id), _)) if of_handoff(id))
        }
        T::TaskInput | T::TaskOffer | T::TaskDecline => letter.message.to_string() == said.correlation_id,
        _ => false,
    }
}

/// Whether the entry is a reassignment by an operator.
fn is_reassignment(event: &Option<Event>) -> bool {
    matches!(event, Some(Event::Reassigned(_)))
}

/// Whether the entry is of a recall.
fn is_recall(event: &Option<Event>) -> bool {
    matches!(event, Some(Event::Accepted(accepted)) if accepted.message_type() == v1::MessageType::TaskRecall)
}

/// Whether the entry is of the end of a loan at its timeout, or by the silence of its owner.
fn is_loan_due(event: &Option<Event>) -> bool {
    matches!(event, Some(Event::Time(time)) if time.of_task) || matches!(event, Some(Event::Silent(_)))
}

/// The agent who must get the message, if the envelope alone determines it.
fn addressee(envelope: &v1::Envelope) -> Option<AgentId> {
    use v1::MessageType as T;
    match envelope.message_type() {
        T::Info
        | T::TaskOffer
        | T::TaskDecline
        | T::HandoffAccept
        | T::HandoffReject
        | T::TaskContextTransfer
        | T::HandoffComplete => {
            // The coordinator has no mailbox: it answers in the same commit.
            AgentId::parse(&envelope.receiver_id).ok().filter(|agent| !agent.is_coordinator())
        }
        _ => None,
    }
}

/// The agent in the key of a letter.
pub(crate) fn agent_of(key: &[u8]) -> AgentId {
    AgentId::parse(std::str::from_utf8(&key[..key.len() - 9]).unwrap()).unwrap()
}

fn place_of(key: &[u8]) -> u64 {
    u64::from_be_bytes(*key.last_chunk().unwrap())
}
