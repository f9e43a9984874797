//! An agent's mailbox: the order of its deliveries and the leases on them (SPEC 4).
//!
//! This module owns the order of deliveries, leases, backoff, and the rule that parks a message. It holds facts about
//! each message and never the message itself. It must not know the sockets of sessions, or how mail is stored.
//!
//! Order: the messages of one task form a line, and only the first of a line can be dispatched. The next one waits
//! until the first is acked or parked, so that no redelivery is overtaken. Among the firsts of all lines, the higher
//! priority goes first. Within a priority the senders take turns, and the oldest message of each goes first ([`Flow`]).
//! Every [`AGE_TURN`]th dispatch is one of the priority that has the oldest first, so that no priority starves.

mod backoff;
mod expiry;
mod fate;
mod processes;
mod turns;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use self::processes::Processes;
pub use self::{
    backoff::{ATTEMPTS_MAX, backoff},
    expiry::{Expiry, expires_at, soon},
    fate::{Fate, LeaseLimits, Next, RETRY_AFTER_MAX, after},
    processes::PROCESS_GRACE,
    turns::{Flow, Ready},
};

use super::{
    EntityId, TraceContext,
    handoff::{Acked, Priority},
    numbered,
};
use crate::{
    ids::{IdMap, InstanceId, MessageId, TaskId},
    time::Timestamp,
};

/// One dispatch in this many is of the priority with the oldest message.
pub const AGE_TURN: u64 = 8;

/// The most delivery attempts that a letter remembers.
pub const ATTEMPTS_KEPT: usize = 16;
/// The most bytes of text that an attempt remembers.
pub const ATTEMPT_TEXT_MAX: usize = 512;

/// The mailbox's record of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// The place in the order of all stored items. Unique in a mailbox.
    pub sequence: u64,
    /// The sequence of the message itself. It is lower than `sequence` where a handoff is offered to a further
    /// candidate.
    pub message_sequence: u64,
    /// The id of the message.
    pub message: MessageId,
    /// The task whose line the letter belongs to. A letter without a task is a line by itself.
    pub task: Option<TaskId>,
    /// The priority: that of its handoff, otherwise the default.
    pub priority: Priority,
    /// The queue that takes turns with others of the priority.
    pub flow: Flow,
    /// The running time at which the letter expires. The running time advances evenly where the clock is set back.
    pub expires_at: Timestamp,
    /// The time of the clock at which the letter was stored.
    pub stored_at: Timestamp,
    /// The number of delivery attempts. It is stored when an attempt ends without an ack; attempts that a crash of the
    /// broker ends are not counted.
    pub handouts: u32,
    /// The number of failed attempts: no ack in time, or a nack as FAILURE.
    pub failures: u32,
    /// The time of the clock before which the letter is not dispatched. See [`Self::bound_wait`].
    pub not_before: Timestamp,
    /// The entity that learns of the ack or the failure, and the role of the letter for it.
    pub report_to: Option<(EntityId, Acked)>,
    /// The latest attempts that ended without an ack, oldest first; at most [`ATTEMPTS_KEPT`].
    pub attempts: Vec<Attempt>,
    /// The owner of the message's bytes.
    pub envelope_owner: EnvelopeOwner,
    /// The trace context that the agent continues.
    pub trace: Option<Box<TraceContext>>,
    /// The process of the agent that has begun what the message is about. `None`: any process gets the letter.
    pub process: Option<InstanceId>,
}

/// The owner of the bytes of a letter's message, which decides when they are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvelopeOwner {
    /// This letter alone, under its own sequence. The bytes are deleted with the letter.
    Letter,
    /// All letters of the message, under the message's sequence. The bytes are deleted with the last letter.
    Letters,
    /// The task's custody log, under the message's id. The bytes are deleted with the task, whose removal waits for the
    /// letter.
    Log,
}

/// The place of an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvelopePlace {
    /// Among the envelopes by sequence.
    Sequence(u64),
    /// With the record of this message.
    Message(MessageId),
}

/// A delivery attempt that ended without an ack. In the history of a dead request, an offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The time of the dispatch.
    pub handed_out_at: Timestamp,
    /// The end of the attempt.
    pub ended_at: Timestamp,
    /// The way in which the attempt ended.
    pub end: AttemptEnd,
    /// The text of the agent or of the broker, at most [`ATTEMPT_TEXT_MAX`] bytes.
    pub text: String,
}

/// The way in which a delivery attempt ended without an ack. The numbers are those of `baton.v1.DeliveryEnd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEnd {
    /// No ack in time: a failure.
    NoAck,
    /// A nack: a failure.
    Failure,
    /// A nack for good.
    Poison,
    /// A nack by an agent that stops soon.
    Shutdown,
    /// The session ended before an ack.
    SessionEnded,
    /// An offer of a handoff: rejected.
    Rejected,
    /// An offer of a handoff: not decided in time.
    Undecided,
    /// An offer of a handoff: the candidate was gone.
    Gone,
    /// An offer of a handoff: the request could not be delivered.
    Undeliverable,
}

numbered! {
    AttemptEnd {
        NoAck = 1, Failure = 2, Poison = 3, Shutdown = 4, SessionEnded = 5, Rejected = 6, Undecided = 7, Gone = 8,
        Undeliverable = 9,
    }
    EnvelopeOwner { Letter = 1, Letters = 2, Log = 3, }
}

impl AttemptEnd {
    const fn is_failure(self) -> bool {
        matches!(self, Self::NoAck | Self::Failure)
    }
}

impl Letter {
    /// A letter that owns its envelope and was never dispatched. It stands in no line, has the usual priority, and
    /// expires at once: the caller sets what differs.
    pub fn new(sequence: u64, message: MessageId, flow: Flow, now: Timestamp) -> Self {
        Self {
            sequence,
            message_sequence: sequence,
            message,
            task: None,
            priority: Priority::default(),
            flow,
            expires_at: now,
            stored_at: now,
            handouts: 0,
            failures: 0,
            not_before: now,
            report_to: None,
            attempts: Vec::new(),
            envelope_owner: EnvelopeOwner::Letter,
            trace: None,
            process: None,
        }
    }

    /// The place of the message's bytes.
    pub fn bytes_at(&self) -> EnvelopePlace {
        match self.envelope_owner {
            EnvelopeOwner::Letter => EnvelopePlace::Sequence(self.sequence),
            EnvelopeOwner::Letters => EnvelopePlace::Sequence(self.message_sequence),
            EnvelopeOwner::Log => EnvelopePlace::Message(self.message),
        }
    }

    /// Bounds the wait of a letter that was stored before the clock was set back: it is ready after its last wait, counted from
    /// now at the latest. A letter without a failed attempt waits only if its sender asked for that.
    pub fn bound_wait(&mut self, now: Timestamp) {
        let waits_from = self.attempts.last().map_or(self.stored_at, |attempt| attempt.ended_at);
        // The length of the wait is kept, and its end moved: the clock that set the end is not the present one.
        let wait = self.not_before.since(waits_from);
        self.not_before = self.not_before.min(now.plus(wait));
    }

    /// Records an attempt that ended without an ack, and counts it if it is a failure.
    pub fn attempt_ended(&mut self, lease: &Lease, end: AttemptEnd, text: &str, now: Timestamp) {
        if end.is_failure() {
            self.failures += 1;
        }
        // The latest attempts stay. `failures` counts all of them.
        if self.attempts.len() == ATTEMPTS_KEPT {
            self.attempts.remove(0);
        }
        // The text is cut at a character boundary, or the slice would panic.
        let text = text[..text.floor_char_boundary(ATTEMPT_TEXT_MAX)].to_owned();
        self.attempts.push(Attempt { handed_out_at: lease.since, ended_at: now, end, text });
    }
}

/// The holder of a lease: a session, or a call of `Receive`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(pub u64);

/// A lease on a dispatched message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The place of the letter in the mailbox.
    pub sequence: u64,
    /// The delivery attempt, starting at 1.
    pub attempt: u32,
    /// The consumer that holds the lease.
    pub consumer: ConsumerId,
    /// The start of the lease.
    pub since: Timestamp,
    /// The end of the lease.
    pub deadline: Timestamp,
}

/// The delivery is not dispatched, or its lease has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the delivery is not leased to this agent: it was acknowledged, or its lease expired")]
pub struct NotLeased;

#[derive(Debug)]
struct Entry {
    letter: Letter,
    lease: Option<Lease>,
}

/// A mailbox in memory. See the module.
#[derive(Debug, Default)]
pub struct Mailbox {
    entries: BTreeMap<u64, Entry>,
    lines: IdMap<TaskId, BTreeSet<u64>>,
    /// The letters that are first of their line, not leased and not delayed, and that any process may get.
    ready: Ready,
    /// The processes of the agent, with the ready letters that wait for each.
    processes: Processes,
    /// The letters that are first of their line and not leased, with the time until which they are delayed.
    delayed: BTreeSet<(Timestamp, u64)>,
    lease_ends: BTreeSet<(Timestamp, u64)>,
    turn: u64,
}

impl Mailbox {
    /// Adds a letter, which is dispatched after the earlier letters of its task. Panics if its sequence is in use.
    pub fn add(&mut self, letter: Letter) {
        let sequence = letter.sequence;
        let task = letter.task.clone();
        let former = self.entries.insert(sequence, Entry { letter, lease: None });
        assert!(former.is_none(), "a sequence is given once");
        if let Some(task) = task {
            let line = self.lines.entry(task).or_default();
            line.insert(sequence);
            // Sequences only grow, but a reload after the first dispatches may add an older letter, which becomes the
            // first.
            let second = line.iter().nth(1).copied();
            if line.first() == Some(&sequence)
                && let Some(second) = second
            {
                self.withdraw(second);
            }
        }
        self.offer(sequence);
    }

    /// The number of letters.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the mailbox is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a letter is leased.
    pub fn has_leases(&self) -> bool {
        !self.lease_ends.is_empty()
    }

    /// Dispatches the next letter to a consumer of this process, if one is ready: one that waits for the process, or one
    /// that any process may get.
    pub fn dispatch(
        &mut self,
        consumer: ConsumerId,
        process: Option<InstanceId>,
        now: Timestamp,
        ack_wait: Duration,
    ) -> Option<Lease> {
        self.wake(now);
        // Without these turns, a steady flow of high priority would starve the rest (SPEC 4). The age decides the priority
        // alone: within it, the senders take turns here too.
        let is_turn_by_age = self.turn % AGE_TURN == AGE_TURN - 1;
        let own = process.and_then(|process| self.processes.first(process, is_turn_by_age));
        let sequence = match (own, self.ready.first(is_turn_by_age)) {
            (Some(own), Some(open)) => self.nearer(own, open, is_turn_by_age),
            (own, open) => own.or(open)?,
        };
        let letter = &self.entries[&sequence].letter;
        match own.filter(|own| *own == sequence).and(process) {
            Some(process) => self.processes.end_turn(process, letter),
            None => self.ready.end_turn(letter),
        }
        // Only a dispatch counts, so an empty mailbox does not use up the turn by age.
        self.turn += 1;
        self.withdraw(sequence);
        let entry = self.entries.get_mut(&sequence).expect("what is ready is there");
        entry.letter.handouts = entry.letter.handouts.saturating_add(1);
        let lease =
            Lease { sequence, attempt: entry.letter.handouts, consumer, since: now, deadline: now.plus(ack_wait) };
        entry.lease = Some(lease);
        self.lease_ends.insert((lease.deadline, sequence));
        Some(lease)
    }

    /// Which of two letters goes first: one that waits for the process of the consumer, or one that any process may get.
    fn nearer(&self, own: u64, open: u64, is_turn_by_age: bool) -> u64 {
        let priority = |sequence: &u64| self.entries[sequence].letter.priority;
        match is_turn_by_age {
            true => own.min(open),
            // Answers go before new work of the same priority, which they complete. An answer needs a message of the
            // process, so they cannot be without end.
            false if priority(&own) >= priority(&open) => own,
            false => open,
        }
    }

    /// The leased letter with this place and delivery attempt.
    pub fn leased(&self, sequence: u64, attempt: u32) -> Result<(&Letter, Lease), NotLeased> {
        let entry = self.entries.get(&sequence).ok_or(NotLeased)?;
        // A late ack of an earlier attempt must not settle the redelivery.
        let lease = entry.lease.filter(|lease| lease.attempt == attempt).ok_or(NotLeased)?;
        Ok((&entry.letter, lease))
    }

    /// The lease on a letter, if the letter is dispatched.
    pub fn lease(&self, sequence: u64) -> Option<Lease> {
        self.entries.get(&sequence)?.lease
    }

    /// The letter, if the mailbox has it, dispatched or not.
    pub fn letter(&self, sequence: u64) -> Option<&Letter> {
        self.entries.get(&sequence).map(|entry| &entry.letter)
    }

    /// The letter, if the mailbox has it and no consumer holds it.
    pub fn waiting(&self, sequence: u64) -> Option<&Letter> {
        self.entries.get(&sequence).filter(|entry| entry.lease.is_none()).map(|entry| &entry.letter)
    }

    /// Removes an acked or parked letter, which makes the next of its line ready. Returns the lease that ended with it.
    pub fn remove(&mut self, sequence: u64) -> Option<Lease> {
        self.withdraw(sequence);
        let lease = self.end_lease(sequence);
        if let Some(task) = self.entries.remove(&sequence).and_then(|entry| entry.letter.task) {
            self.leave_line(&task, sequence);
        }
        lease
    }

    fn leave_line(&mut self, task: &TaskId, sequence: u64) {
        let line = self.lines.get_mut(task).expect("mail of a task stands in its line");
        line.remove(&sequence);
        match line.first().copied() {
            // The predecessor is settled, so no redelivery of it can be overtaken any more (SPEC 4).
            Some(next) => self.offer(next),
            None => {
                self.lines.remove(task);
            }
        }
    }

    /// Ends the lease and replaces the letter, which is ready again from its `not_before` on. Returns the lease.
    pub fn requeue(&mut self, letter: Letter) -> Option<Lease> {
        let sequence = letter.sequence;
        let lease = self.end_lease(sequence);
        // The queues have the letter under its former priority and delay, so it leaves them before it is replaced.
        self.withdraw(sequence);
        if let Some(entry) = self.entries.get_mut(&sequence) {
            entry.letter = letter;
            self.offer(sequence);
        }
        lease
    }

    /// Extends a lease. The deadline never moves to an earlier time. Returns the deadline that now holds.
    pub fn extend(&mut self, sequence: u64, deadline: Timestamp) -> Timestamp {
        let Some(lease) = self.entries.get_mut(&sequence).and_then(|entry| entry.lease.as_mut()) else {
            return deadline;
        };
        // An extension without a length may end before an earlier, longer one.
        if deadline > lease.deadline {
            self.lease_ends.remove(&(lease.deadline, sequence));
            lease.deadline = deadline;
            self.lease_ends.insert((deadline, sequence));
        }
        lease.deadline
    }

    /// The letters that this consumer holds, with their leases.
    pub fn held_by(&self, consumer: ConsumerId) -> Vec<(Letter, Lease)> {
        let held =
            |entry: &Entry| Some((entry.letter.clone(), entry.lease.filter(|lease| lease.consumer == consumer)?));
        self.entries.values().filter_map(held).collect()
    }

    /// The places of the letters whose leases have ended.
    pub fn overdue(&self, now: Timestamp) -> Vec<u64> {
        self.lease_ends.iter().take_while(|(end, _)| *end <= now).map(|(_, sequence)| *sequence).collect()
    }

    /// The time of the next end of a lease.
    pub fn next_lease_end(&self) -> Option<Timestamp> {
        self.lease_ends.first().map(|(end, _)| *end)
    }

    /// The time of the next end of a lease or delay, after `now`.
    pub fn next_deadline(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.wake(now);
        let delay = self.delayed.first().map(|(end, _)| *end);
        self.next_lease_end().into_iter().chain(delay).chain(self.processes.next_release()).min()
    }

    /// Notes that a process takes mail. The letters that prefer it wait for it from now on.
    pub fn process_opened(&mut self, process: InstanceId) {
        self.processes.open(process);
        let prefers = |letter: &Letter| letter.process == Some(process);
        let open: Vec<u64> = (self.entries.values().map(|entry| &entry.letter))
            .filter(|letter| prefers(letter) && self.ready.contains(letter))
            .map(|letter| letter.sequence)
            .collect();
        for sequence in open {
            let letter = &self.entries[&sequence].letter;
            self.ready.remove(letter);
            self.processes.hold(letter, letter.not_before);
        }
    }

    /// Notes that the last consumer of a process has closed. The letters that prefer it wait until this time.
    pub fn process_closed(&mut self, process: InstanceId, waits_until: Timestamp) {
        self.processes.close(process, waits_until);
    }

    /// Holds letters for unknown processes until this time: after a start no process has had the time to come back.
    pub fn wait_for_processes_until(&mut self, at: Timestamp) {
        self.processes.unknown_until = at;
    }

    /// Whether letters may wait for a process that has closed.
    pub fn waits_for_process(&self) -> bool {
        self.processes.next_release().is_some()
    }

    fn end_lease(&mut self, sequence: u64) -> Option<Lease> {
        let lease = self.entries.get_mut(&sequence).and_then(|entry| entry.lease.take())?;
        self.lease_ends.remove(&(lease.deadline, sequence));
        Some(lease)
    }

    /// Makes a letter available if no letter of its line precedes it and no consumer holds it.
    fn offer(&mut self, sequence: u64) {
        let entry = &self.entries[&sequence];
        // A later letter of the task must not reach the agent before an earlier one that may be delivered again (SPEC
        // 4).
        if entry.lease.is_some() || !self.is_first(&entry.letter) {
            return;
        }
        // A letter without a delay goes through `delayed` too: the next `wake` makes it ready.
        self.delayed.insert((entry.letter.not_before, sequence));
    }

    fn withdraw(&mut self, sequence: u64) {
        let Some(entry) = self.entries.get(&sequence) else { return };
        self.delayed.remove(&(entry.letter.not_before, sequence));
        if !self.processes.withdraw(&entry.letter) {
            self.ready.remove(&entry.letter);
        }
    }

    fn is_first(&self, letter: &Letter) -> bool {
        let Some(task) = &letter.task else { return true };
        self.lines.get(task).and_then(BTreeSet::first) == Some(&letter.sequence)
    }

    /// Makes the letters ready whose delay is over.
    fn wake(&mut self, now: Timestamp) {
        while let Some(&(not_before, sequence)) = self.delayed.first()
            && not_before <= now
        {
            self.delayed.pop_first();
            let letter = &self.entries[&sequence].letter;
            if !self.processes.hold(letter, now) {
                self.ready.insert(letter);
            }
        }
        for sequence in self.processes.release(now) {
            self.ready.insert(&self.entries[&sequence].letter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{AgentId, FairnessKey};

    const ACK_WAIT: Duration = Duration::from_secs(30);
    const CONSUMER: ConsumerId = ConsumerId(1);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 0).unwrap()
    }

    fn flow(sender: &str, key: &str) -> Flow {
        Flow { sender: AgentId::parse(sender).unwrap(), key: FairnessKey::parse(key).ok() }
    }

    fn letter(sequence: u64, task: &str, priority: Priority) -> Letter {
        let message = MessageId::from_bytes([1; 16]);
        let task = TaskId::parse(task).ok();
        Letter { task, priority, expires_at: at(1_000_000), ..Letter::new(sequence, message, flow("alice", ""), at(0)) }
    }

    fn mailbox(letters: &[(u64, &str, Priority)]) -> Mailbox {
        let mut mailbox = Mailbox::default();
        for (sequence, task, priority) in letters {
            mailbox.add(letter(*sequence, task, *priority));
        }
        mailbox
    }

    fn dispatch_all(mailbox: &mut Mailbox, now: i64) -> Vec<u64> {
        std::iter::from_fn(|| mailbox.dispatch(CONSUMER, None, at(now), ACK_WAIT).map(|lease| lease.sequence)).collect()
    }

    #[test]
    fn a_task_s_next_message_waits_for_the_ack_of_the_one_before() {
        let mut mailbox = mailbox(&[(1, "t", Priority::Medium), (2, "t", Priority::Critical), (3, "u", Priority::Low)]);
        assert_eq!(dispatch_all(&mut mailbox, 1), [1, 3]);
        mailbox.remove(1);
        assert_eq!(dispatch_all(&mut mailbox, 1), [2]);
    }

    #[test]
    fn a_redelivery_is_not_overtaken_by_its_task() {
        let mut mailbox = mailbox(&[(1, "t", Priority::Medium), (2, "t", Priority::Medium)]);
        assert_eq!(dispatch_all(&mut mailbox, 1), [1]);
        let mut returned = mailbox.letter(1).unwrap().clone();
        returned.not_before = at(10);
        mailbox.requeue(returned);
        assert_eq!(dispatch_all(&mut mailbox, 9), [0; 0]);
        assert_eq!(mailbox.next_deadline(at(9)), Some(at(10)));
        assert_eq!(dispatch_all(&mut mailbox, 10), [1]);
    }

    #[test]
    fn after_a_clock_that_was_ahead_a_letter_waits_no_longer_than_it_was_to_wait() {
        let mut fresh = Letter { stored_at: at(1000), not_before: at(1000), ..letter(1, "", Priority::Medium) };
        fresh.bound_wait(at(20));
        assert_eq!(fresh.not_before, at(20));
        let mut held = Letter { stored_at: at(10), not_before: at(1000), ..letter(1, "", Priority::Medium) };
        held.bound_wait(at(20));
        assert_eq!(held.not_before, at(1000), "its sender asked for that");
        let lease = Lease { sequence: 1, attempt: 1, consumer: CONSUMER, since: at(990), deadline: at(1020) };
        let mut failed = letter(1, "", Priority::Medium);
        failed.attempt_ended(&lease, AttemptEnd::Failure, "", at(1000));
        failed.not_before = at(1004);
        for (now, not_before) in [(20, 24), (999, 1003), (1001, 1004), (2000, 1004)] {
            let mut letter = failed.clone();
            letter.bound_wait(at(now));
            assert_eq!(letter.not_before, at(not_before), "at {now}");
        }
    }

    #[test]
    fn higher_priority_first_then_older() {
        let mut mailbox = mailbox(&[
            (1, "", Priority::Low),
            (2, "", Priority::Medium),
            (3, "", Priority::Critical),
            (4, "", Priority::Medium),
        ]);
        assert_eq!(dispatch_all(&mut mailbox, 1), [3, 2, 4, 1]);
    }

    #[test]
    fn low_priority_does_not_starve() {
        let mut mailbox = mailbox(&[(1, "", Priority::Low)]);
        for sequence in 2..40 {
            mailbox.add(letter(sequence, "", Priority::Critical));
        }
        let order = dispatch_all(&mut mailbox, 1);
        assert_eq!(order.iter().position(|&sequence| sequence == 1), Some(7));
    }

    /// A mailbox with a letter of each of these flows, in this order from sequence 1 on.
    fn mailbox_of(flows: &[(&str, &str)]) -> Mailbox {
        let mut mailbox = Mailbox::default();
        for (place, (sender, key)) in flows.iter().enumerate() {
            let letter = letter(place as u64 + 1, "", Priority::Medium);
            mailbox.add(Letter { flow: flow(sender, key), ..letter });
        }
        mailbox
    }

    #[test]
    fn the_senders_take_turns_and_the_oldest_of_each_goes_first() {
        let mut flows = vec![("alice", ""); 200];
        flows.extend([("bob", ""), ("carol", ""), ("bob", "")]);
        let mut mailbox = mailbox_of(&flows);
        let order = dispatch_all(&mut mailbox, 1);
        assert_eq!(order[..6], [1, 201, 202, 2, 203, 3]);
        assert!(order[5..].is_sorted(), "alice's alone: {order:?}");
        assert_eq!(order.len(), 203);
    }

    #[test]
    fn the_keys_of_a_sender_share_its_turns() {
        let mut flows = vec![("alice", ""); 3];
        flows.extend([("alice", "x"), ("alice", "y"), ("bob", "x"), ("bob", "x"), ("bob", "x")]);
        let mut mailbox = mailbox_of(&flows);
        assert_eq!(dispatch_all(&mut mailbox, 1), [1, 6, 4, 7, 5, 8, 2, 3]);
    }

    #[test]
    fn a_letter_that_comes_or_returns_waits_for_one_turn_of_each_other_sender() {
        let mut mailbox = mailbox_of(&[("alice", ""), ("alice", ""), ("alice", ""), ("alice", ""), ("bob", "")]);
        let mut order = Vec::new();
        for _ in 0..2 {
            order.push(mailbox.dispatch(CONSUMER, None, at(1), ACK_WAIT).unwrap().sequence);
        }
        mailbox.requeue(mailbox.letter(5).unwrap().clone());
        mailbox.add(Letter { flow: flow("carol", ""), ..letter(6, "", Priority::Medium) });
        order.extend(dispatch_all(&mut mailbox, 2));
        assert_eq!(order, [1, 5, 2, 5, 6, 3, 4]);
    }

    #[test]
    fn the_turns_are_within_a_priority_and_a_turn_by_age_is_the_senders_too() {
        let mut mailbox = Mailbox::default();
        for sequence in 1..=20 {
            mailbox.add(letter(sequence, "", Priority::Low));
        }
        mailbox.add(Letter { flow: flow("bob", ""), ..letter(21, "", Priority::Low) });
        for sequence in 22..60 {
            mailbox.add(letter(sequence, "", Priority::Critical));
        }
        let order = dispatch_all(&mut mailbox, 1);
        let by_age: Vec<u64> = order.iter().copied().skip(7).step_by(8).take(3).collect();
        assert_eq!(by_age, [1, 21, 2], "every eighth");
        assert_eq!(order[..43].iter().filter(|sequence| **sequence <= 21).count(), 5, "{order:?}");
    }

    /// Order within a task and turns of the senders together, for many additions, acks and returns.
    #[test]
    fn no_letter_is_lost_or_overtakes_its_task_in_any_order_of_events() {
        let mut mailbox = Mailbox::default();
        let (mut next, mut seed, mut last) = (0_u64, 7_u64, BTreeMap::<TaskId, u64>::new());
        let (mut held, mut acked) = (Vec::new(), 0);
        for round in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = seed >> 33;
            match random % 4 {
                0 | 1 if round < 10_000 && next < 250 + acked => {
                    next += 1;
                    let message = MessageId::from_bytes([1; 16]);
                    let sender = ["alice", "bob", "carol"][(random / 8 % 3) as usize];
                    let task = TaskId::parse(&format!("t{}", random / 32 % 40)).ok().filter(|_| random & 4 == 0);
                    let priority = [Priority::Low, Priority::Medium, Priority::High][(random / 64 % 3) as usize];
                    let key = ["", "x"][(random / 256 % 2) as usize];
                    let new = Letter::new(next, message, flow(sender, key), at(0));
                    mailbox.add(Letter { task, priority, ..new });
                }
                2 => held.extend(mailbox.dispatch(CONSUMER, None, at(1), ACK_WAIT)),
                _ => {
                    if held.is_empty() {
                        continue;
                    }
                    let lease: Lease = held.swap_remove((random / 8) as usize % held.len());
                    let letter = mailbox.letter(lease.sequence).unwrap().clone();
                    if let Some(task) = &letter.task {
                        let before = last.insert(task.clone(), letter.sequence).unwrap_or_default();
                        assert!(before <= letter.sequence, "{task} goes back");
                    }
                    if random & 1024 == 0 {
                        mailbox.requeue(letter);
                    } else {
                        mailbox.remove(letter.sequence);
                        acked += 1;
                    }
                }
            }
        }
        for lease in held {
            mailbox.remove(lease.sequence);
            acked += 1;
        }
        while let Some(lease) = mailbox.dispatch(CONSUMER, None, at(1), ACK_WAIT) {
            mailbox.remove(lease.sequence);
            acked += 1;
        }
        assert_eq!((acked, mailbox.len()), (next, 0));
        assert!(mailbox.ready.first(false).is_none() && mailbox.ready.first(true).is_none());
    }

    #[test]
    fn the_end_of_a_session_gives_its_leases_back_and_only_those() {
        let mut mailbox = mailbox(&[(1, "", Priority::Medium), (2, "", Priority::Medium)]);
        mailbox.dispatch(ConsumerId(1), None, at(1), ACK_WAIT);
        mailbox.dispatch(ConsumerId(2), None, at(1), ACK_WAIT);
        let held = mailbox.held_by(ConsumerId(1));
        assert_eq!(held.len(), 1);
        mailbox.requeue(held[0].0.clone());
        let lease = mailbox.dispatch(ConsumerId(3), None, at(2), ACK_WAIT).unwrap();
        assert_eq!((lease.sequence, lease.attempt), (1, 2));
        assert_eq!(mailbox.leased(1, 1), Err(NotLeased), "the first lease is over");
        assert!(mailbox.leased(2, 1).is_ok());
    }

    #[test]
    fn failures_are_counted_apart_from_other_ends_and_a_bounded_history_is_kept() {
        let mut mailbox = mailbox(&[(1, "", Priority::Medium)]);
        let lease = mailbox.dispatch(CONSUMER, None, at(1), ACK_WAIT).unwrap();
        let mut letter = mailbox.letter(1).unwrap().clone();
        letter.attempt_ended(&lease, AttemptEnd::SessionEnded, "", at(2));
        letter.attempt_ended(&lease, AttemptEnd::Shutdown, "", at(3));
        assert_eq!(letter.failures, 0);
        for second in 0..20 {
            letter.attempt_ended(&lease, AttemptEnd::NoAck, &"ä".repeat(1000), at(10 + second));
        }
        assert_eq!((letter.failures, letter.attempts.len()), (20, ATTEMPTS_KEPT));
        assert_eq!(letter.attempts.last().unwrap().ended_at, at(29));
        assert_eq!(letter.attempts[0].text.len(), ATTEMPT_TEXT_MAX);
    }

    #[test]
    fn a_lease_that_is_over_is_reported_and_an_extended_one_is_not() {
        let mut mailbox = mailbox(&[(1, "", Priority::Medium), (2, "", Priority::Medium)]);
        dispatch_all(&mut mailbox, 0);
        mailbox.extend(2, at(50));
        mailbox.extend(2, at(40));
        assert_eq!(mailbox.overdue(at(29)), [0; 0]);
        assert_eq!(mailbox.overdue(at(30)), [1]);
        assert_eq!(mailbox.overdue(at(50)), [1, 2]);
    }
}
