//! The processes of one agent, and the ready letters that wait for each.
//!
//! A letter may prefer a process: the one that has begun what its message is about. It waits for the process while the
//! process takes mail and for [`PROCESS_GRACE`] after that, so that a reconnect does not lose it. Then any process gets it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Letter, Ready};
use crate::{ids::InstanceId, time::Timestamp};

/// The time for which a letter waits for a process that has closed its last consumer, or for one that was not seen since
/// the broker started.
pub const PROCESS_GRACE: Duration = Duration::from_secs(2);

/// The processes of an agent. See the module.
#[derive(Debug, Default)]
pub(super) struct Processes {
    /// The processes that take mail now.
    open: BTreeSet<InstanceId>,
    /// The processes that are waited for, with the end of the wait.
    closed: BTreeMap<InstanceId, Timestamp>,
    /// The end of the wait for a process in neither list.
    pub(super) unknown_until: Timestamp,
    /// The ready letters of each process that is open or waited for. No entry is empty.
    held: BTreeMap<InstanceId, Ready>,
}

impl Processes {
    pub(super) fn open(&mut self, process: InstanceId) {
        self.closed.remove(&process);
        self.open.insert(process);
    }

    pub(super) fn close(&mut self, process: InstanceId, waits_until: Timestamp) {
        if self.open.remove(&process) {
            self.closed.insert(process, waits_until);
        }
    }

    /// Takes a ready letter, if it prefers a process that is open or waited for.
    pub(super) fn hold(&mut self, letter: &Letter, now: Timestamp) -> bool {
        let Some(process) = letter.process else { return false };
        let is_open = self.open.contains(&process) || self.closed.contains_key(&process);
        if !is_open && now >= self.unknown_until {
            return false;
        }
        if !is_open {
            self.closed.insert(process, self.unknown_until);
        }
        self.held.entry(process).or_default().insert(letter);
        true
    }

    /// Removes a letter, if it waits for a process.
    pub(super) fn withdraw(&mut self, letter: &Letter) -> bool {
        let Some(process) = letter.process else { return false };
        let Some(held) = self.held.get_mut(&process).filter(|held| held.contains(letter)) else { return false };
        held.remove(letter);
        if held.is_empty() {
            self.held.remove(&process);
        }
        true
    }

    pub(super) fn first(&self, process: InstanceId, is_turn_by_age: bool) -> Option<u64> {
        self.held.get(&process)?.first(is_turn_by_age)
    }

    pub(super) fn end_turn(&mut self, process: InstanceId, letter: &Letter) {
        if let Some(held) = self.held.get_mut(&process) {
            held.end_turn(letter);
        }
    }

    /// Ends the waits that are over. Returns the letters that any process may get now.
    pub(super) fn release(&mut self, now: Timestamp) -> Vec<u64> {
        let is_over = |(process, until): (&InstanceId, &Timestamp)| (*until <= now).then_some(*process);
        let over: Vec<InstanceId> = self.closed.iter().filter_map(is_over).collect();
        let mut released = Vec::new();
        for process in over {
            self.closed.remove(&process);
            released.extend(self.held.remove(&process).iter().flat_map(Ready::letters));
        }
        released
    }

    /// The end of the next wait.
    pub(super) fn next_release(&self) -> Option<Timestamp> {
        self.closed.values().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        handoff::Priority,
        ids::{AgentId, MessageId, TaskId},
        mailbox::{ConsumerId, Flow, Mailbox},
    };

    const P: InstanceId = InstanceId::from_bytes([1; 16]);
    const Q: InstanceId = InstanceId::from_bytes([2; 16]);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 0).unwrap()
    }

    fn letter(sequence: u64, process: Option<InstanceId>) -> Letter {
        let flow = Flow::of(AgentId::parse("alice").unwrap());
        let new = Letter::new(sequence, MessageId::from_bytes([1; 16]), flow, at(0));
        Letter { process, expires_at: at(1000), ..new }
    }

    fn dispatch_to(mailbox: &mut Mailbox, process: Option<InstanceId>, now: i64) -> Option<u64> {
        let lease = mailbox.dispatch(ConsumerId(1), process, at(now), Duration::from_secs(30));
        lease.map(|lease| lease.sequence)
    }

    #[test]
    fn a_letter_waits_for_its_process_and_holds_up_no_other() {
        let mut mailbox = Mailbox::default();
        mailbox.process_opened(P);
        mailbox.process_opened(Q);
        mailbox.add(letter(1, Some(P)));
        mailbox.add(letter(2, None));
        mailbox.add(letter(3, Some(Q)));
        assert_eq!(dispatch_to(&mut mailbox, None, 1), Some(2));
        assert_eq!(dispatch_to(&mut mailbox, None, 1), None);
        assert_eq!([dispatch_to(&mut mailbox, Some(Q), 1), dispatch_to(&mut mailbox, Some(Q), 1000)], [Some(3), None]);
        assert_eq!(dispatch_to(&mut mailbox, Some(P), 1000), Some(1));
    }

    #[test]
    fn a_letter_of_a_closed_process_goes_to_any_other_after_the_wait() {
        let mut mailbox = Mailbox::default();
        mailbox.process_opened(P);
        mailbox.add(letter(1, Some(P)));
        mailbox.process_closed(P, at(15));
        assert_eq!((dispatch_to(&mut mailbox, Some(Q), 14), mailbox.next_deadline(at(14))), (None, Some(at(15))));
        assert_eq!(dispatch_to(&mut mailbox, Some(Q), 15), Some(1));
        mailbox.add(letter(2, Some(P)));
        assert_eq!(dispatch_to(&mut mailbox, Some(Q), 16), Some(2), "the wait is over for new letters, too");
    }

    #[test]
    fn a_process_that_comes_back_gets_its_letters_again() {
        let mut mailbox = Mailbox::default();
        mailbox.add(letter(1, Some(P)));
        assert_eq!(mailbox.next_deadline(at(1)), None, "the letter is open to all");
        mailbox.process_opened(P);
        assert_eq!([dispatch_to(&mut mailbox, Some(Q), 2), dispatch_to(&mut mailbox, Some(P), 2)], [None, Some(1)]);
        mailbox.process_closed(P, at(15));
        mailbox.add(letter(2, Some(P)));
        assert_eq!(dispatch_to(&mut mailbox, Some(Q), 3), None);
        mailbox.process_opened(P);
        assert_eq!([dispatch_to(&mut mailbox, Some(Q), 100), dispatch_to(&mut mailbox, Some(P), 100)], [None, Some(2)]);
    }

    #[test]
    fn after_a_start_letters_wait_for_processes_that_are_not_back_yet() {
        let mut mailbox = Mailbox::default();
        mailbox.wait_for_processes_until(at(10));
        mailbox.add(letter(1, Some(P)));
        assert_eq!(dispatch_to(&mut mailbox, Some(Q), 9), None);
        assert!(mailbox.waits_for_process());
        assert_eq!(dispatch_to(&mut mailbox, Some(Q), 10), Some(1));
        assert!(!mailbox.waits_for_process());
    }

    #[test]
    fn the_order_of_a_task_holds_between_processes() {
        let mut mailbox = Mailbox::default();
        mailbox.process_opened(P);
        let task = TaskId::parse("t").ok();
        mailbox.add(Letter { task: task.clone(), ..letter(1, Some(P)) });
        mailbox.add(Letter { task, priority: Priority::Critical, ..letter(2, None) });
        assert_eq!(dispatch_to(&mut mailbox, Some(Q), 1), None);
        assert_eq!(dispatch_to(&mut mailbox, Some(P), 1), Some(1));
        mailbox.remove(1);
        assert_eq!(dispatch_to(&mut mailbox, Some(Q), 1), Some(2));
    }

    #[test]
    fn an_answer_goes_before_new_work_of_its_priority_and_behind_that_of_a_higher_one() {
        let mut mailbox = Mailbox::default();
        mailbox.process_opened(P);
        mailbox.add(letter(1, None));
        mailbox.add(Letter { priority: Priority::High, ..letter(2, None) });
        mailbox.add(letter(3, Some(P)));
        let order: Vec<_> = std::iter::from_fn(|| dispatch_to(&mut mailbox, Some(P), 1)).collect();
        assert_eq!(order, [2, 3, 1]);
    }
}
