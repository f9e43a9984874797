//! The ledger of a load test: the observations of the clients, independent of the broker, and the laws that they must
//! obey.
//!
//! The ledger records each violation as a fault, and the test checks the faults. It knows no connection and no process.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Mutex, MutexGuard},
};

use baton::proto::v1::{self, HandoffState, MessageType};
use bytes::Bytes;
use prost::Message as _;
use tokio::sync::watch;

use super::rng::Rng;

/// The counters of the ledger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Messages with a receipt.
    pub receipts: usize,
    /// Repeated receipts that were compared with the first one.
    pub receipts_compared: usize,
    pub refusals: usize,
    /// Messages for which the sender has neither a receipt nor a refusal.
    pub unanswered: usize,
    pub deliveries: usize,
    /// Deliveries of messages that the same agent has received before.
    pub redeliveries: usize,
    /// Mail that was promised or delivered, and that its receiver has not tried to end yet.
    pub mail_open: usize,
    /// Acks and nacks of this chapter that the broker has not answered.
    pub ends_under_way: usize,
    pub faults: usize,
}

/// How an agent ends a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Acked,
    Poisoned,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Open,
    Receipt(Box<v1::Receipt>),
    Refused(String),
}

/// A message from a client.
#[derive(Debug)]
struct Sent {
    raw: Bytes,
    envelope: v1::Envelope,
    /// The highest sequence that any client had seen when the message was composed. Its own sequence must be higher.
    floor: u64,
    outcome: Outcome,
}

/// A message in an agent's mailbox, as the agent knows it.
#[derive(Debug, Default)]
struct Mail {
    deliveries: u32,
    /// An end without an answer: it may or may not have taken effect, until the next delivery.
    in_doubt: Option<End>,
    /// The end that the broker has confirmed.
    ended: Option<End>,
}

/// The contents of the broker's store after the test.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Queued mail: agent and message.
    pub mail: Vec<(String, String)>,
    /// Dead letters: agent and message, with the reason.
    pub dead_letters: BTreeMap<(String, String), String>,
    pub timers: usize,
}

#[derive(Debug, Default)]
struct State {
    sent: Vec<Sent>,
    index_of: HashMap<String, usize>,
    /// Indices of receipts that have not been compared.
    fresh: Vec<usize>,
    unanswered: BTreeSet<usize>,
    highest_sequence: u64,
    message_of: HashMap<u64, String>,
    sequence_of: HashMap<String, u64>,
    mail: HashMap<(String, String), Mail>,
    mail_open: BTreeSet<(String, String)>,
    ends_under_way: HashSet<(String, String)>,
    owners: BTreeMap<(String, u64), String>,
    epochs: HashMap<String, u64>,
    finals: BTreeMap<String, HandoffState>,
    progress: Progress,
    faults: Vec<String>,
    /// The text that each fault starts with.
    chapter: String,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    state: Mutex<State>,
    progress: watch::Sender<Progress>,
}

impl Ledger {
    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    pub(crate) fn now(&self) -> Progress {
        self.state().progress
    }

    /// Mail that no agent has tried to end: receiver, message and number of deliveries; at most ten.
    pub(crate) fn open_mail(&self) -> Vec<(String, String, u32)> {
        let state = self.state();
        let open = state.mail_open.iter().take(10);
        open.map(|key| (key.0.clone(), key.1.clone(), state.mail.get(key).map_or(0, |mail| mail.deliveries))).collect()
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        self.state().faults.clone()
    }

    /// Sets the text that later faults start with. Unanswered ends of the previous chapter stay unanswered.
    pub(crate) fn begin_chapter(&self, chapter: String) {
        self.change(|state| {
            state.chapter = chapter;
            state.ends_under_way.clear();
        });
    }

    pub(crate) fn fault(&self, what: String) {
        self.change(|state| state.fault(what));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let answer = change(&mut state);
        let progress = Progress {
            unanswered: state.unanswered.len(),
            mail_open: state.mail_open.len(),
            ends_under_way: state.ends_under_way.len(),
            faults: state.faults.len(),
            ..state.progress
        };
        state.progress = progress;
        self.progress.send_replace(progress);
        answer
    }
}

// Observations of senders.
impl Ledger {
    /// Records a message before it is sent for the first time.
    pub(crate) fn composed(&self, envelope: v1::Envelope) -> Bytes {
        self.change(|state| {
            let (raw, index) = (Bytes::from(envelope.encode_to_vec()), state.sent.len());
            state.index_of.insert(envelope.message_id.clone(), index);
            state.unanswered.insert(index);
            let floor = state.highest_sequence;
            state.sent.push(Sent { raw: raw.clone(), envelope, floor, outcome: Outcome::Open });
            raw
        })
    }

    /// The agent's unanswered messages, in the order of composition.
    pub(crate) fn outbox(&self, agent: &str) -> Vec<(v1::Envelope, Bytes)> {
        let state = self.state();
        let unanswered = state.unanswered.iter().map(|index| &state.sent[*index]);
        let own = unanswered.filter(|sent| sent.envelope.sender_id == agent);
        own.map(|sent| (sent.envelope.clone(), sent.raw.clone())).collect()
    }

    /// Records a receipt. Returns true if it is the first for its message.
    pub(crate) fn receipted(&self, receipt: &v1::Receipt) -> bool {
        self.change(|state| state.receipted(receipt))
    }

    pub(crate) fn refused(&self, message: &str, reason: &str) {
        self.change(|state| {
            let index = state.index_of[message];
            if state.sent[index].outcome != Outcome::Open {
                state.fault(format!("{message} is refused as {reason} after another answer"));
            }
            state.sent[index].outcome = Outcome::Refused(reason.to_owned());
            state.unanswered.remove(&index);
            state.progress.refusals += 1;
        });
    }

    /// The messages to send again to compare receipts: all that were never compared, and up to `old_max` others.
    pub(crate) fn to_compare(&self, rng: &mut Rng, old_max: usize) -> Vec<Bytes> {
        self.change(|state| {
            let mut chosen: BTreeSet<usize> = state.fresh.drain(..).collect();
            for _ in 0..old_max.min(state.sent.len()) {
                let index = usize::try_from(rng.roll(state.sent.len() as u64)).unwrap();
                if matches!(state.sent[index].outcome, Outcome::Receipt(_)) {
                    chosen.insert(index);
                }
            }
            chosen.into_iter().map(|index| state.sent[index].raw.clone()).collect()
        })
    }
}

// Observations of receivers.
impl Ledger {
    pub(crate) fn delivered(&self, agent: &str, delivery: &v1::Delivery, envelope: &v1::Envelope) {
        self.change(|state| state.delivered(agent, delivery, envelope));
    }

    /// Records that the agent is about to end the delivery; the answer may never arrive.
    pub(crate) fn ending(&self, agent: &str, message: &str, end: End) {
        self.change(|state| {
            let key = (agent.to_owned(), message.to_owned());
            state.mail_open.remove(&key);
            state.ends_under_way.insert(key.clone());
            state.mail.entry(key).or_default().in_doubt = Some(end);
        });
    }

    /// Records that the broker has withdrawn a delivery that the agent was about to end.
    pub(crate) fn withdrawn(&self, agent: &str, message: &str) {
        self.change(|state| {
            let key = (agent.to_owned(), message.to_owned());
            state.ends_under_way.remove(&key);
            state.mail.entry(key).or_default().in_doubt = None;
        });
    }

    /// Records that the broker has confirmed the end of the delivery.
    pub(crate) fn ended(&self, agent: &str, message: &str, end: End) {
        self.change(|state| {
            let key = (agent.to_owned(), message.to_owned());
            state.ends_under_way.remove(&key);
            let mail = state.mail.entry(key).or_default();
            (mail.ended, mail.in_doubt) = (Some(end), None);
        });
    }
}

// Observations of third parties.
impl Ledger {
    /// The highest epoch of the task that any client has seen.
    pub(crate) fn epoch_of(&self, task: &str) -> u64 {
        self.state().epochs.get(task).copied().unwrap_or(0)
    }

    /// Checks a task that was read after `epoch_known` had been seen: its epoch must not be lower.
    pub(crate) fn task_seen(&self, task: &v1::Task, epoch_known: u64) {
        self.change(|state| {
            if task.epoch < epoch_known {
                state.fault(format!("the epoch of {} fell from {epoch_known} to {}", task.task_id, task.epoch));
            }
            state.owner_seen(&task.task_id, task.epoch, &task.owner_id);
        });
    }

    /// The final state of the handoff, if a client has seen it.
    pub(crate) fn final_of(&self, handoff: &str) -> Option<HandoffState> {
        self.state().finals.get(handoff).copied()
    }

    /// Checks a handoff that was read after the final state `known` had been seen: it must have the same state.
    pub(crate) fn handoff_seen(&self, handoff: &str, seen: HandoffState, known: Option<HandoffState>) {
        self.change(|state| {
            if known.is_some_and(|known| known != seen) {
                state.fault(format!("the handoff {handoff} had ended as {known:?} and is {seen:?}"));
            }
            state.handoff_seen(handoff, seen);
        });
    }

    pub(crate) fn tasks(&self) -> Vec<String> {
        self.state().epochs.keys().cloned().collect()
    }

    /// The handoffs whose requests have receipts.
    pub(crate) fn handoffs(&self) -> BTreeSet<String> {
        let state = self.state();
        let receipts = state.receipts().map(|(_, receipt)| receipt);
        receipts.filter(|receipt| receipt.handoff_id == receipt.message_id).map(|r| r.handoff_id.clone()).collect()
    }

    /// The number of handoffs with each final state.
    pub(crate) fn finals(&self) -> BTreeMap<&'static str, usize> {
        let mut count = BTreeMap::new();
        for state in self.state().finals.values() {
            *count.entry(state.as_str_name().trim_start_matches("HANDOFF_STATE_")).or_default() += 1;
        }
        count
    }

    /// Checks the laws over all observations and the contents of the store.
    pub(crate) fn close(&self, left: &Left) {
        self.change(|state| {
            state.check_histories();
            state.check_mail(left);
            if left.timers > 0 {
                state.fault(format!("{} timers of handoffs are left and no handoff is open", left.timers));
            }
        });
    }
}

impl State {
    fn fault(&mut self, what: String) {
        self.faults.push(format!("{}: {what}", self.chapter));
    }

    fn receipts(&self) -> impl Iterator<Item = (&Sent, &v1::Receipt)> {
        self.sent.iter().filter_map(|sent| match &sent.outcome {
            Outcome::Receipt(receipt) => Some((sent, &**receipt)),
            Outcome::Open | Outcome::Refused(_) => None,
        })
    }

    fn receipted(&mut self, receipt: &v1::Receipt) -> bool {
        let Some(&index) = self.index_of.get(&receipt.message_id) else {
            self.fault(format!("a receipt for a message that was not sent: {receipt:?}"));
            return false;
        };
        match &self.sent[index].outcome {
            Outcome::Receipt(first) if **first == *receipt => self.progress.receipts_compared += 1,
            Outcome::Receipt(first) => {
                let what = format!("another receipt than the first one:\n  {first:?}\n  {receipt:?}");
                self.fault(what);
            }
            Outcome::Refused(reason) => {
                let what = format!("{} has a receipt and was refused as {reason}", receipt.message_id);
                self.fault(what);
            }
            Outcome::Open => {
                self.first_receipt(index, receipt);
                return true;
            }
        }
        false
    }

    fn first_receipt(&mut self, index: usize, receipt: &v1::Receipt) {
        let (floor, receiver) = (self.sent[index].floor, self.sent[index].envelope.receiver_id.clone());
        if receipt.sequence <= floor {
            self.fault(format!("{} got {} after {floor} had been given", receipt.message_id, receipt.sequence));
        }
        self.sequence_seen(&receipt.message_id, receipt.sequence);
        self.highest_sequence = self.highest_sequence.max(receipt.sequence);
        if !receipt.owner_id.is_empty() {
            self.owner_seen(&receipt.task_id, receipt.epoch, &receipt.owner_id);
        }
        if !receipt.handoff_id.is_empty() {
            self.handoff_seen(&receipt.handoff_id, receipt.handoff_state());
        }
        self.promise(receiver, receipt.message_id.clone());
        self.sent[index].outcome = Outcome::Receipt(Box::new(receipt.clone()));
        self.unanswered.remove(&index);
        self.fresh.push(index);
        self.progress.receipts += 1;
    }

    /// A receipt promises mail to the receiver, who may already have received it.
    fn promise(&mut self, receiver: String, message: String) {
        let key = (receiver, message);
        if !key.0.is_empty() && !self.mail.contains_key(&key) && !self.may_be_withdrawn(&key.1) {
            self.mail_open.insert(key);
        }
    }

    fn sequence_seen(&mut self, message: &str, sequence: u64) {
        let before = self.sequence_of.insert(message.to_owned(), sequence);
        if before.is_some_and(|before| before != sequence) {
            self.fault(format!("{message} has the sequences {before:?} and {sequence}"));
        }
        let other = self.message_of.insert(sequence, message.to_owned());
        if let Some(other) = other.filter(|other| other != message) {
            self.fault(format!("the sequence {sequence} was given to {other} and to {message}"));
        }
    }

    fn owner_seen(&mut self, task: &str, epoch: u64, owner: &str) {
        let known = self.epochs.entry(task.to_owned()).or_default();
        *known = epoch.max(*known);
        let before = self.owners.insert((task.to_owned(), epoch), owner.to_owned());
        if let Some(before) = before.filter(|before| before != owner) {
            self.fault(format!("{task} has two owners in epoch {epoch}: {before} and {owner}"));
        }
    }

    fn handoff_seen(&mut self, handoff: &str, seen: HandoffState) {
        if let Some(ended) = self.finals.get(handoff) {
            // A receipt shows an earlier state, so it may arrive after the final state was seen.
            if is_final(seen) && *ended != seen {
                self.fault(format!("the handoff {handoff} has ended as {ended:?} and as {seen:?}"));
            }
        } else if is_final(seen) {
            self.finals.insert(handoff.to_owned(), seen);
        }
    }

    fn delivered(&mut self, agent: &str, delivery: &v1::Delivery, envelope: &v1::Envelope) {
        let message = &envelope.message_id;
        self.sequence_seen(message, delivery.sequence);
        if let Some(&index) = self.index_of.get(message) {
            self.check_delivered(agent, delivery, index);
        }
        let key = (agent.to_owned(), message.clone());
        self.ends_under_way.remove(&key);
        let mail = self.mail.entry(key.clone()).or_default();
        mail.in_doubt = None;
        mail.deliveries += 1;
        self.progress.deliveries += 1;
        self.progress.redeliveries += usize::from(mail.deliveries > 1);
        if let Some(end) = mail.ended {
            self.fault(format!("{message} is delivered to {agent} again after the broker answered that it is {end:?}"));
        } else if !self.may_be_withdrawn(&key.1) {
            self.mail_open.insert(key);
        }
    }

    /// Whether the broker withdraws the message once its handoff has ended or gone on: an offer or a context.
    fn may_be_withdrawn(&self, message: &str) -> bool {
        let sent = self.index_of.get(message).map(|&index| &self.sent[index].envelope);
        sent.is_some_and(|envelope| {
            matches!(envelope.message_type(), MessageType::HandoffRequest | MessageType::TaskContextTransfer)
        })
    }

    fn check_delivered(&mut self, agent: &str, delivery: &v1::Delivery, index: usize) {
        let sent = &self.sent[index];
        let mut faults = Vec::new();
        if sent.raw != delivery.envelope {
            faults.push("is not byte for byte what was sent".to_owned());
        }
        if let Outcome::Refused(reason) = &sent.outcome {
            faults.push(format!("was refused as {reason}"));
        }
        if !may_receive(&sent.envelope, agent) {
            faults.push(format!("was meant for {}", sent.envelope.receiver_id));
        }
        let message = sent.envelope.message_id.clone();
        faults.into_iter().for_each(|what| self.fault(format!("{message}, delivered to {agent}, {what}")));
    }

    /// In the order of sequences, the epoch of a task never decreases.
    fn check_histories(&mut self) {
        let mut receipts: Vec<_> = self.receipts().map(|(_, receipt)| receipt.clone()).collect();
        receipts.sort_by_key(|receipt| receipt.sequence);
        let mut epochs = HashMap::<String, u64>::new();
        for receipt in receipts.iter().filter(|receipt| !receipt.owner_id.is_empty()) {
            let before = epochs.insert(receipt.task_id.clone(), receipt.epoch).unwrap_or(0);
            if receipt.epoch < before {
                self.fault(format!("with {} the epoch of {} falls from {before}", receipt.message_id, receipt.task_id));
            }
        }
    }

    /// Every message with a receipt was delivered and acked, or is a dead letter; an offer or a context may have been
    /// withdrawn. Nothing else is a dead letter.
    fn check_mail(&mut self, left: &Left) {
        let mut faults = Vec::new();
        for (agent, message) in &left.mail {
            faults.push(format!("{message} is still in the mailbox of {agent}"));
        }
        let promised = self.receipts().map(|(sent, receipt)| (&sent.envelope.receiver_id, &receipt.message_id));
        let promised: HashSet<(String, String)> =
            promised.filter(|(to, _)| !to.is_empty()).map(|(to, message)| (to.clone(), message.clone())).collect();
        let delivered: HashSet<_> = self.mail.keys().cloned().collect();
        for key in promised.union(&delivered) {
            let is_dead = left.dead_letters.contains_key(key);
            let end = self.mail.get(key).and_then(|mail| mail.ended.or(mail.in_doubt));
            match end {
                Some(End::Acked) if !is_dead => {}
                Some(End::Poisoned) if is_dead => {}
                None if !is_dead && self.may_be_withdrawn(&key.1) => {}
                other => faults.push(format!("{key:?} ended as {other:?}, and as a dead letter: {is_dead}")),
            }
        }
        for (key, reason) in &left.dead_letters {
            if reason != "Poison" {
                faults.push(format!("{key:?} is a dead letter because of {reason}"));
            }
        }
        faults.into_iter().for_each(|what| self.fault(what));
    }
}

fn is_final(state: HandoffState) -> bool {
    use HandoffState as S;
    matches!(state, S::Completed | S::Rejected | S::Failed | S::Cancelled)
}

fn may_receive(envelope: &v1::Envelope, agent: &str) -> bool {
    let is_fallback = || {
        let value = envelope.payload.as_ref().map(|payload| payload.value.clone()).unwrap_or_default();
        let request = v1::HandoffRequest::decode(value).unwrap_or_default();
        request.fallback_candidates.iter().any(|candidate| candidate == agent)
    };
    envelope.receiver_id == agent || (envelope.message_type() == MessageType::HandoffRequest && is_fallback())
}

/// Each test breaks one law, to show that the ledger detects it.
mod tests {
    use super::*;

    /// A ledger with a message from a to b that has a receipt.
    fn ledger() -> Ledger {
        let ledger = Ledger::default();
        send(&ledger, "m1", 1);
        ledger
    }

    fn send(ledger: &Ledger, message: &str, sequence: u64) {
        ledger.composed(envelope(message));
        assert!(ledger.receipted(&receipt(message, sequence)));
    }

    fn envelope(message: &str) -> v1::Envelope {
        let (message_id, sender_id, receiver_id) = (message.into(), "a".into(), "b".into());
        v1::Envelope { message_id, sender_id, receiver_id, ..Default::default() }
    }

    fn receipt(message: &str, sequence: u64) -> v1::Receipt {
        let (message_id, task_id, owner_id) = (message.into(), "t".into(), "a".into());
        v1::Receipt { message_id, sequence, task_id, owner_id, epoch: 1, ..Default::default() }
    }

    fn deliver(ledger: &Ledger, agent: &str, message: &str, sequence: u64) {
        let envelope = envelope(message);
        let raw = envelope.encode_to_vec().into();
        ledger.delivered(agent, &v1::Delivery { envelope: raw, sequence, ..Default::default() }, &envelope);
    }

    fn end(ledger: &Ledger, end: End) {
        ledger.ending("b", "m1", end);
        ledger.ended("b", "m1", end);
    }

    fn dead(reason: &str) -> Left {
        let key = ("b".to_owned(), "m1".to_owned());
        Left { dead_letters: BTreeMap::from([(key, reason.to_owned())]), ..Left::default() }
    }

    #[track_caller]
    fn check(ledger: &Ledger, part: &str) {
        let faults = ledger.faults();
        assert!(faults.len() == 1 && faults[0].contains(part), "{faults:?} lacks {part:?}, or has more");
    }

    #[test]
    fn a_message_that_is_delivered_and_acked_is_no_fault() {
        let ledger = ledger();
        assert_eq!(ledger.now().mail_open, 1);
        deliver(&ledger, "b", "m1", 1);
        deliver(&ledger, "b", "m1", 1);
        end(&ledger, End::Acked);
        ledger.receipted(&receipt("m1", 1));
        ledger.close(&Left::default());
        assert_eq!(ledger.faults(), [""; 0]);
        let progress = ledger.now();
        assert_eq!((progress.redeliveries, progress.receipts_compared, progress.mail_open), (1, 1, 0));
    }

    #[test]
    fn another_receipt_is_a_fault() {
        let ledger = ledger();
        ledger.receipted(&v1::Receipt { task_id: "u".into(), ..receipt("m1", 1) });
        check(&ledger, "another receipt");
    }

    #[test]
    fn a_sequence_that_is_given_twice_or_falls_is_a_fault() {
        let ledger = ledger();
        ledger.composed(envelope("m2"));
        send(&ledger, "m3", 7);
        ledger.receipted(&receipt("m2", 7));
        check(&ledger, "the sequence 7 was given to");
        let ledger = self::ledger();
        ledger.composed(envelope("m2"));
        ledger.receipted(&receipt("m2", 0));
        check(&ledger, "got 0 after 1");
    }

    #[test]
    fn a_message_that_is_nowhere_is_a_fault() {
        let ledger = ledger();
        ledger.close(&Left::default());
        check(&ledger, "ended as None");
    }

    #[test]
    fn mail_that_is_left_is_a_fault_also_where_its_ack_is_in_doubt() {
        let ledger = ledger();
        deliver(&ledger, "b", "m1", 1);
        ledger.ending("b", "m1", End::Acked);
        ledger.close(&Left { mail: vec![("b".into(), "m1".into())], ..Left::default() });
        check(&ledger, "still in the mailbox");
    }

    #[test]
    fn poisoned_mail_that_is_no_dead_letter_is_a_fault_and_so_is_the_reverse() {
        let ledger = ledger();
        deliver(&ledger, "b", "m1", 1);
        end(&ledger, End::Poisoned);
        ledger.close(&Left::default());
        check(&ledger, "ended as Some(Poisoned)");
        let ledger = self::ledger();
        deliver(&ledger, "b", "m1", 1);
        end(&ledger, End::Acked);
        ledger.close(&dead("Poison"));
        check(&ledger, "ended as Some(Acked)");
    }

    #[test]
    fn a_delivery_after_its_ack_was_answered_is_a_fault() {
        let ledger = ledger();
        deliver(&ledger, "b", "m1", 1);
        end(&ledger, End::Acked);
        deliver(&ledger, "b", "m1", 1);
        check(&ledger, "is delivered to b again");
    }

    #[test]
    fn a_delivery_to_another_agent_or_of_a_refused_message_is_a_fault() {
        let ledger = ledger();
        deliver(&ledger, "c", "m1", 1);
        check(&ledger, "was meant for b");
        let ledger = Ledger::default();
        ledger.composed(envelope("m1"));
        ledger.refused("m1", "TASK_FINAL");
        deliver(&ledger, "b", "m1", 1);
        check(&ledger, "was refused as TASK_FINAL");
    }

    #[test]
    fn two_owners_in_one_epoch_and_an_epoch_that_falls_are_faults() {
        let task =
            |owner: &str, epoch| v1::Task { task_id: "t".into(), owner_id: owner.into(), epoch, ..Default::default() };
        let ledger = ledger();
        ledger.task_seen(&task("b", 1), 1);
        check(&ledger, "two owners in epoch 1");
        let ledger = self::ledger();
        ledger.task_seen(&task("b", 2), 1);
        ledger.task_seen(&task("a", 1), ledger.epoch_of("t"));
        check(&ledger, "fell from 2 to 1");
    }

    #[test]
    fn a_handoff_that_ends_twice_or_is_open_again_is_a_fault() {
        let ledger = Ledger::default();
        ledger.handoff_seen("h", HandoffState::Failed, None);
        ledger.handoff_seen("h", HandoffState::Completed, None);
        check(&ledger, "has ended as Failed and as Completed");
        let ledger = Ledger::default();
        ledger.handoff_seen("h", HandoffState::Failed, None);
        ledger.handoff_seen("h", HandoffState::Deciding, ledger.final_of("h"));
        check(&ledger, "and is Deciding");
    }
}
