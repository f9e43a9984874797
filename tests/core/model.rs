//! A second, naive model of SPEC 3, compared with the domain on random stories.
//!
//! The model tracks less than the domain: the state, the owner, the epoch, the candidate, and the code of each refusal.
//! Its only source is the specification, which it follows as plainly as possible.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use baton_domain::{
    coordinator::Order,
    handoff::{
        Acked, Effect, Handoff, Input, LoopLimits, Message, Mode, Outcome, Priority, Request, Seize, Snapshot, State,
        Task, TaskStatus, Timeouts, Transition, Unavailable, step,
    },
};
use baton_protocol::{
    codes::{ErrorCode, Refusal as _},
    ids::{AgentId, MessageId, TaskId},
    time::Timestamp,
};
use proptest::prelude::*;

const AGENTS: [&str; 4] = ["a", "b", "c", "d"];
/// The number of the coordinator, behind those of the agents.
const COORDINATOR: usize = AGENTS.len();
const GOOD: [u8; 32] = [7; 32];
const BAD: [u8; 32] = [8; 32];

#[derive(Debug, Clone)]
enum Op {
    Request {
        from: usize,
        candidates: Vec<usize>,
        lend: Lend,
    },
    Accept {
        from: usize,
    },
    Reject {
        from: usize,
        suggestions: Vec<usize>,
    },
    Cancel {
        from: usize,
    },
    /// A recall of the loan by this completed handoff of the task, counted from 0.
    Recall {
        from: usize,
        hop: usize,
    },
    /// An operator takes the task, and the coordinator hands it to these candidates.
    Reassign {
        candidates: Vec<usize>,
    },
    Context {
        from: usize,
    },
    Complete {
        from: usize,
        success: bool,
        digest: bool,
    },
    Status {
        from: usize,
        end: bool,
    },
    Acked {
        by: usize,
        mail: Acked,
    },
    Undeliverable {
        to: usize,
        mail: Acked,
    },
    Pass {
        seconds: u64,
    },
}

/// Whether a request lends the task, and for how many seconds.
type Lend = Option<Option<u64>>;

/// The difference between the message's epoch and the task's.
type Offset = i8;

fn ops() -> impl Strategy<Value = Vec<(Op, Offset)>> {
    // Two thirds of the numbers are beyond the list, and stand for the agent that acts next: see `resolve`.
    let who = 0..3 * AGENTS.len();
    let some = || prop::collection::vec(0..AGENTS.len(), 1..4);
    let mail = || prop::sample::select(vec![Acked::Request, Acked::Context, Acked::Completion]);
    let lend = || prop::option::of(prop::option::of(1u64..300));
    let op = prop_oneof![
        3 => (who.clone(), some(), lend())
            .prop_map(|(from, candidates, lend)| Op::Request { from, candidates, lend }),
        1 => (who.clone(), 0usize..4).prop_map(|(from, hop)| Op::Recall { from, hop }),
        1 => some().prop_map(|candidates| Op::Reassign { candidates }),
        4 => who.clone().prop_map(|from| Op::Accept { from }),
        2 => (who.clone(), some()).prop_map(|(from, suggestions)| Op::Reject { from, suggestions }),
        1 => who.clone().prop_map(|from| Op::Cancel { from }),
        5 => who.clone().prop_map(|from| Op::Context { from }),
        5 => (who.clone(), prop::bool::weighted(0.8), prop::bool::weighted(0.9))
            .prop_map(|(from, success, digest)| Op::Complete { from, success, digest }),
        1 => (who.clone(), prop::bool::weighted(0.3)).prop_map(|(from, end)| Op::Status { from, end }),
        4 => (who.clone(), mail()).prop_map(|(by, mail)| Op::Acked { by, mail }),
        1 => (who, mail()).prop_map(|(to, mail)| Op::Undeliverable { to, mail }),
        1 => (0u64..100).prop_map(|seconds| Op::Pass { seconds }),
    ];
    let offset = prop_oneof![30 => Just(0i8), 1 => Just(-1i8), 1 => Just(1i8)];
    prop::collection::vec((op, offset), 1..250)
}

/// Replaces an agent number beyond the list by the agent that acts next.
fn resolve(op: &Op, model: &Model) -> Op {
    let asked = model.attempt.as_ref().map_or(0, |attempt| attempt.asked);
    let sender = model.attempt.as_ref().map_or(0, |attempt| attempt.sender);
    let mut op = op.clone();
    let (who, right) = match &mut op {
        Op::Request { from, .. } | Op::Status { from, .. } => (from, model.owner),
        Op::Cancel { from } | Op::Context { from } => (from, sender),
        Op::Recall { from, hop } => {
            let right = model.hops.get(*hop).map_or(0, |hop| hop.0);
            (from, right)
        }
        Op::Accept { from } | Op::Reject { from, .. } | Op::Complete { from, .. } => (from, asked),
        Op::Acked { by: to, mail: Acked::Completion } | Op::Undeliverable { to, mail: Acked::Completion } => {
            (to, sender)
        }
        Op::Acked { by: to, .. } | Op::Undeliverable { to, .. } => (to, asked),
        Op::Pass { .. } | Op::Reassign { .. } => return op,
    };
    if *who >= AGENTS.len() {
        *who = right;
    }
    op
}

/// The last requested handoff, as the model tracks it.
#[derive(Debug, Clone)]
struct Attempt {
    state: &'static str,
    sender: usize,
    asked: usize,
    epoch: u64,
    queue: Vec<usize>,
    refused: Vec<usize>,
    timed_out: Vec<usize>,
    ran_out_of_time: bool,
    lend: Lend,
    step_ends: Option<u64>,
    whole_ends: u64,
}

#[derive(Debug, Default)]
struct Model {
    exists: bool,
    owner: usize,
    epoch: u64,
    finished: bool,
    /// Each loan: the lender, the number of its handoff, and its end.
    lenders: Vec<(usize, usize, Option<u64>)>,
    hops: Vec<(usize, usize)>,
    /// The owners from which the task was taken.
    seized: Vec<usize>,
    attempt: Option<Attempt>,
    now: u64,
}

type Told = Result<(), ErrorCode>;

impl Attempt {
    fn is_open(&self) -> bool {
        ["REQUESTED", "DECIDING", "ACCEPTED", "CONTEXT_SENT"].contains(&self.state)
    }

    fn ended(&self) -> ErrorCode {
        if self.ran_out_of_time { ErrorCode::HandoffExpired } else { ErrorCode::HandoffFinal }
    }
}

impl Model {
    fn owned_once(&self, who: usize) -> bool {
        let handed_over = self.hops.iter().any(|hop| hop.0 == who || hop.1 == who);
        who == self.owner || handed_over || self.seized.contains(&who)
    }

    fn fence(&self, who: usize, epoch: u64) -> Told {
        match () {
            () if !self.owned_once(who) => Err(ErrorCode::NotOwner),
            () if epoch < self.epoch => Err(ErrorCode::StaleEpoch),
            () if who != self.owner => Err(ErrorCode::NotOwner),
            () if epoch > self.epoch => Err(ErrorCode::EpochAhead),
            () => Ok(()),
        }
    }

    fn candidate_may(&self, who: usize, epoch: u64) -> Told {
        let attempt = self.attempt.as_ref().unwrap();
        match () {
            () if who != attempt.asked && attempt.timed_out.contains(&who) => Err(ErrorCode::HandoffExpired),
            () if who != attempt.asked => Err(ErrorCode::NotCandidate),
            () if !attempt.is_open() => Err(attempt.ended()),
            () if epoch < attempt.epoch => Err(ErrorCode::StaleEpoch),
            () if epoch > attempt.epoch => Err(ErrorCode::EpochAhead),
            () => Ok(()),
        }
    }

    fn sender_may(&self, who: usize, epoch: u64) -> Told {
        let attempt = self.attempt.as_ref().unwrap();
        if who != attempt.sender {
            return Err(ErrorCode::NotOwner);
        }
        self.fence(who, epoch)?;
        if attempt.is_open() { Ok(()) } else { Err(attempt.ended()) }
    }

    /// The next candidate: not the sender, not asked before, and not across an exhausted pair.
    fn next(&mut self) -> Option<usize> {
        let hops = self.hops.clone();
        let attempt = self.attempt.as_mut().unwrap();
        while !attempt.queue.is_empty() {
            let who = attempt.queue.remove(0);
            let used = hops.iter().filter(|hop| **hop == (attempt.sender, who)).count();
            let was_asked = attempt.refused.contains(&who) || who == attempt.asked;
            // An operator decides about each handoff of the coordinator, and no loop guard does.
            if who != attempt.sender && !was_asked && (used < 4 || attempt.sender == COORDINATOR) {
                return Some(who);
            }
        }
        None
    }

    /// Removes the present candidate. Asks the next one, or ends the handoff in the state `end`.
    fn ask_next_or(&mut self, end: &'static str) {
        let out = self.attempt.as_ref().unwrap().asked;
        self.attempt.as_mut().unwrap().refused.push(out);
        let next = self.next();
        let attempt = self.attempt.as_mut().unwrap();
        attempt.step_ends = None;
        match next {
            Some(who) => (attempt.state, attempt.asked) = ("REQUESTED", who),
            None => attempt.state = end,
        }
    }

    fn pass(&mut self, seconds: u64) {
        let end = self.now + seconds;
        loop {
            let open = self.attempt.as_mut().filter(|attempt| attempt.is_open());
            let due = open.as_ref().map_or(u64::MAX, |open| open.step_ends.unwrap_or(u64::MAX).min(open.whole_ends));
            let loan_due = self.lenders.iter().filter_map(|lender| lender.2).min().unwrap_or(u64::MAX);
            if due.min(loan_due) > end {
                break;
            }
            self.now = due.min(loan_due);
            let Some(attempt) = open.filter(|_| due <= loan_due) else {
                let loan = self.lenders.iter().position(|lender| lender.2.is_some_and(|at| at <= loan_due)).unwrap();
                self.take_back(loan);
                continue;
            };
            if due == attempt.whole_ends {
                (attempt.state, attempt.ran_out_of_time) = ("FAILED", true);
            } else if attempt.state == "DECIDING" {
                attempt.timed_out.push(attempt.asked);
                self.ask_next_or("FAILED");
                let attempt = self.attempt.as_mut().unwrap();
                attempt.ran_out_of_time = attempt.state == "FAILED";
            } else {
                (attempt.state, attempt.ran_out_of_time) = ("FAILED", true);
            }
        }
        self.now = end;
    }

    fn apply(&mut self, op: &Op, epoch: u64) -> Told {
        let now = self.now;
        match op {
            Op::Request { from, candidates, lend } => self.request(*from, candidates, *lend, epoch),
            Op::Pass { seconds } => {
                self.pass(*seconds);
                Ok(())
            }
            _ if !self.exists => match op {
                Op::Acked { .. } | Op::Undeliverable { .. } => Ok(()),
                _ => Err(ErrorCode::TaskUnknown),
            },
            Op::Accept { from } => {
                self.candidate_may(*from, epoch)?;
                self.move_from(&["REQUESTED", "DECIDING"], "ACCEPTED", Some(now + 60))?;
                // The coordinator sends the context at once.
                match self.attempt.as_ref().unwrap().sender {
                    COORDINATOR => self.move_from(&["ACCEPTED"], "CONTEXT_SENT", Some(now + 120)),
                    _ => Ok(()),
                }
            }
            Op::Reassign { candidates } => self.reassign(candidates, epoch),
            Op::Reject { from, suggestions } => {
                self.candidate_may(*from, epoch)?;
                self.must_be(&["REQUESTED", "DECIDING"])?;
                self.attempt.as_mut().unwrap().queue.extend(suggestions);
                self.ask_next_or("REJECTED");
                Ok(())
            }
            Op::Cancel { from } => {
                self.sender_may(*from, epoch)?;
                self.attempt.as_mut().unwrap().state = "CANCELLED";
                Ok(())
            }
            Op::Recall { from, hop } => match self.lenders.iter().position(|lender| lender.1 == *hop) {
                _ if self.finished => Err(ErrorCode::TaskFinal),
                None => Err(ErrorCode::NotLent),
                Some(loan) if self.lenders[loan].0 != *from => Err(ErrorCode::NotOwner),
                Some(loan) => {
                    self.take_back(loan);
                    Ok(())
                }
            },
            Op::Context { from } => {
                self.sender_may(*from, epoch)?;
                self.move_from(&["ACCEPTED"], "CONTEXT_SENT", Some(now + 120))
            }
            Op::Complete { from, success, digest } => self.complete(*from, epoch, *success, *digest),
            Op::Status { from, end } => self.status(*from, epoch, *end),
            Op::Acked { by, mail } => {
                let attempt = self.attempt.as_mut().unwrap();
                if *mail == Acked::Request && attempt.state == "REQUESTED" && *by == attempt.asked {
                    (attempt.state, attempt.step_ends) = ("DECIDING", Some(now + 30));
                }
                Ok(())
            }
            Op::Undeliverable { to, mail } => {
                let attempt = self.attempt.as_mut().unwrap();
                match (mail, attempt.state) {
                    (Acked::Request, "REQUESTED" | "DECIDING") if *to == attempt.asked => self.ask_next_or("FAILED"),
                    (Acked::Context, "CONTEXT_SENT") if *to == attempt.asked => attempt.state = "FAILED",
                    _ => {}
                }
                Ok(())
            }
        }
    }

    fn reassign(&mut self, candidates: &[usize], epoch: u64) -> Told {
        match () {
            () if epoch < self.epoch => return Err(ErrorCode::StaleEpoch),
            () if epoch > self.epoch => return Err(ErrorCode::EpochAhead),
            () if self.finished => return Err(ErrorCode::TaskFinal),
            () => {}
        }
        if let Some(open) = self.attempt.as_mut().filter(|attempt| attempt.is_open()) {
            open.state = "CANCELLED";
        }
        self.lenders.clear();
        self.seized.push(self.owner);
        (self.owner, self.epoch) = (COORDINATOR, self.epoch + 1);
        self.request(COORDINATOR, candidates, None, self.epoch)
    }

    /// Returns the task to the lender of this loan, and ends all loans within it.
    fn take_back(&mut self, loan: usize) {
        (self.owner, self.epoch) = (self.lenders[loan].0, self.epoch + 1);
        self.lenders.truncate(loan);
        if let Some(open) = self.attempt.as_mut().filter(|attempt| attempt.is_open()) {
            open.state = "CANCELLED";
        }
    }

    fn must_be(&self, states: &[&str]) -> Told {
        let state = self.attempt.as_ref().unwrap().state;
        if states.contains(&state) { Ok(()) } else { Err(ErrorCode::HandoffState) }
    }

    fn move_from(&mut self, from: &[&str], to: &'static str, step_ends: Option<u64>) -> Told {
        self.must_be(from)?;
        let attempt = self.attempt.as_mut().unwrap();
        (attempt.state, attempt.step_ends) = (to, step_ends);
        Ok(())
    }

    fn request(&mut self, from: usize, candidates: &[usize], lend: Lend, epoch: u64) -> Told {
        if self.exists {
            self.fence(from, epoch)?;
            if self.finished {
                return Err(ErrorCode::TaskFinal);
            }
            if self.attempt.as_ref().is_some_and(Attempt::is_open) {
                return Err(ErrorCode::HandoffOpen);
            }
        } else if epoch > 1 {
            return Err(ErrorCode::EpochAhead);
        }
        if self.hops.len() >= 16 && from != COORDINATOR {
            return Err(ErrorCode::LoopLimit);
        }
        if candidates.iter().all(|who| *who == from) {
            return Err(ErrorCode::ReceiverUnknown);
        }
        let before = self.attempt.take();
        self.attempt = Some(Attempt {
            state: "REQUESTED",
            sender: from,
            asked: usize::MAX,
            epoch,
            queue: candidates.to_vec(),
            refused: vec![],
            timed_out: vec![],
            ran_out_of_time: false,
            lend,
            step_ends: None,
            whole_ends: self.now + 360,
        });
        match self.next() {
            Some(who) => self.attempt.as_mut().unwrap().asked = who,
            None => {
                self.attempt = before;
                return Err(ErrorCode::LoopLimit);
            }
        }
        if !self.exists {
            (self.exists, self.owner, self.epoch) = (true, from, 1);
        }
        Ok(())
    }

    fn complete(&mut self, from: usize, epoch: u64, success: bool, digest: bool) -> Told {
        self.candidate_may(from, epoch)?;
        self.must_be(&["CONTEXT_SENT"])?;
        let attempt = self.attempt.as_mut().unwrap();
        if !success {
            attempt.state = "FAILED";
            return Ok(());
        }
        if !digest {
            return Err(ErrorCode::ContextDigestMismatch);
        }
        attempt.state = "COMPLETED";
        self.hops.push((attempt.sender, attempt.asked));
        if let Some(seconds) = attempt.lend {
            self.lenders.push((attempt.sender, self.hops.len() - 1, seconds.map(|seconds| self.now + seconds)));
        } else if self.lenders.last().is_some_and(|lender| lender.0 == attempt.asked) {
            self.lenders.pop();
        }
        (self.owner, self.epoch) = (attempt.asked, self.epoch + 1);
        Ok(())
    }

    fn status(&mut self, from: usize, epoch: u64, end: bool) -> Told {
        let now = self.now;
        if let Some(attempt) = self.attempt.as_ref().filter(|attempt| attempt.is_open())
            && from == attempt.asked
            && !end
        {
            self.candidate_may(from, epoch)?;
            return match self.attempt.as_ref().unwrap().state {
                "DECIDING" => self.move_from(&["DECIDING"], "DECIDING", Some(now + 30)),
                "CONTEXT_SENT" => self.move_from(&["CONTEXT_SENT"], "CONTEXT_SENT", Some(now + 120)),
                _ => Err(ErrorCode::HandoffState),
            };
        }
        self.fence(from, epoch)?;
        if self.finished {
            return Err(ErrorCode::TaskFinal);
        }
        let attempt = self.attempt.as_mut().unwrap();
        if !end {
            if attempt.state == "ACCEPTED" {
                attempt.step_ends = Some(now + 60);
            }
            return Ok(());
        }
        if attempt.is_open() {
            return Err(ErrorCode::HandoffOpen);
        }
        match self.lenders.pop() {
            Some((lender, ..)) => (self.owner, self.epoch) = (lender, self.epoch + 1),
            None => self.finished = true,
        }
        Ok(())
    }
}

/// The code under test, with the stored state between its steps.
#[derive(Default)]
struct Real {
    task: Option<Task>,
    handoff: Option<Handoff>,
    requests: u8,
    now: Timestamp,
    /// What the coordinator sends next.
    orders: Vec<Order>,
}

fn name(who: usize) -> &'static str {
    AGENTS.get(who).unwrap_or(&"baton.coordinator")
}

fn agent(who: usize) -> AgentId {
    AgentId::parse(name(who)).unwrap()
}

impl Real {
    fn apply(&mut self, op: &Op, epoch: u64) -> Told {
        if let Op::Pass { seconds } = op {
            self.pass(Duration::from_secs(*seconds));
            return Ok(());
        }
        let input = self.input(op, epoch);
        self.step(&input)?;
        while let Some(order) = self.orders.pop() {
            let epoch = self.task.as_ref().unwrap().epoch;
            let input = match (order, op) {
                (Order::Request(order), Op::Reassign { candidates }) => {
                    assert_eq!(order.epoch, epoch);
                    let request = Op::Request { from: COORDINATOR, candidates: candidates.clone(), lend: None };
                    self.input(&request, epoch)
                }
                (Order::Context { .. }, _) => self.input(&Op::Context { from: COORDINATOR }, epoch),
                (order, op) => panic!("{order:?} after {op:?}"),
            };
            self.step(&input)?;
        }
        Ok(())
    }

    fn step(&mut self, input: &Input) -> Told {
        let is_request = matches!(input, Input::Request(_));
        let handoff = self.handoff.as_ref().filter(|_| !is_request);
        let before = (self.task.clone(), self.handoff.clone());
        let outcome =
            step(Snapshot { task: self.task.as_ref(), handoff, unavailable: Unavailable::default() }, input, self.now);
        match outcome {
            Ok(Outcome::Moved(next)) => self.take(*next),
            Ok(Outcome::Unchanged) => {}
            Err(rejection) => {
                assert_eq!((self.task.clone(), self.handoff.clone()), before);
                return Err(rejection.code());
            }
        }
        Ok(())
    }

    /// Checks the invariants of a transition, and stores its result.
    fn take(&mut self, next: Transition) {
        if let Some(before) = &self.task {
            assert!(next.task.epoch >= before.epoch, "the epoch never falls");
            // A recall raises the epoch even if the delegator owns the task already, by a loan within its own.
            // So does a reassignment of a task that the coordinator owns.
            let seized = next.effects.iter().any(|effect| matches!(effect, Effect::Order(Order::Request(_))));
            let moved = next.task.owner != before.owner || next.task.loans.len() < before.loans.len() || seized;
            assert_eq!(next.task.epoch != before.epoch, moved, "they move together");
            assert_eq!(next.task.epoch - before.epoch, u64::from(moved));
            assert!(!before.status.is_final() || next.task.status == before.status, "a final status never changes");
        }
        if let (Some(before), Some(after)) = (&self.handoff, &next.handoff)
            && before.id == after.id
        {
            assert!(!before.state.is_final() || before.state == after.state, "a final state never changes");
        }
        if let Some(handoff) = &next.handoff {
            assert_eq!(handoff.state.is_final(), handoff.next_deadline().is_none(), "what is open ends by itself");
            assert_eq!(!handoff.state.is_final(), next.task.open_handoff == Some(handoff.id));
            assert!(handoff.next_deadline().is_none_or(|at| at <= handoff.whole_deadline));
        }
        for effect in &next.effects {
            match effect {
                Effect::Deliver { to, .. } => assert!(AGENTS.contains(&to.as_str()) || to.is_coordinator()),
                Effect::Order(order) => self.orders.push(order.clone()),
                Effect::Withdraw { from } | Effect::WithdrawQuestion { from, .. } => {
                    assert!(AGENTS.contains(&from.as_str()));
                }
                Effect::ParkRequest(_) => assert!(next.handoff.as_ref().unwrap().state.is_final()),
            }
        }
        self.task = Some(next.task);
        self.handoff = next.handoff.or(self.handoff.take());
    }

    fn pass(&mut self, span: Duration) {
        let end = self.now.plus(span);
        loop {
            let step_due = self.handoff.as_ref().and_then(Handoff::next_deadline);
            let loan_due = self.task.as_ref().and_then(Task::next_deadline);
            let Some(due) = step_due.into_iter().chain(loan_due).min().filter(|due| *due <= end) else { break };
            self.now = due;
            let input = if step_due == Some(due) { Input::Time } else { Input::TaskDue };
            let snapshot = Snapshot {
                task: self.task.as_ref(),
                handoff: self.handoff.as_ref(),
                unavailable: Unavailable::default(),
            };
            match step(snapshot, &input, self.now) {
                Ok(Outcome::Moved(next)) => self.take(*next),
                other => panic!("what is due happens: {other:?}"),
            }
        }
        self.now = end;
    }

    fn input(&mut self, op: &Op, epoch: u64) -> Input {
        let said = |from: usize, message| Input::Message { from: agent(from), epoch, message };
        match op {
            Op::Request { from, candidates, lend } => {
                self.requests += 1;
                Input::Request(Request {
                    plan: None,
                    id: MessageId::from_bytes([self.requests; 16]),
                    task: TaskId::parse("t").unwrap(),
                    from: agent(*from),
                    epoch,
                    receiver: "type:x".into(),
                    candidates: candidates.iter().map(|who| agent(*who)).collect(),
                    passed_over: Vec::new(),
                    task_type: "x".into(),
                    reason: 0,
                    mode: if lend.is_some() { Mode::Delegate } else { Mode::Transfer },
                    loan_timeout: lend.flatten().map(Duration::from_secs),
                    work: baton_domain::handoff::WorkTerms::default(),
                    submitter: None,
                    routing: None,
                    priority: Priority::Medium,
                    fairness_key: None,
                    timeouts: Timeouts::default(),
                    loop_limits: LoopLimits::default(),
                    parent: None,
                    conversation: None,
                    wait_for_agent: false,
                    thread: None,
                    deliver_after: None,
                    negotiation: None,
                })
            }
            Op::Accept { from } => said(*from, Message::Accept { wanted_sections: vec![], estimate: None }),
            Op::Reject { from, suggestions } => {
                let suggestions = suggestions.iter().map(|who| agent(*who)).collect();
                let passed_over = Vec::new();
                let text = String::new();
                said(*from, Message::Reject { reason: 7, text, suggestions, retry_after: None, passed_over })
            }
            Op::Cancel { from } => said(*from, Message::Cancel),
            Op::Recall { from, hop } => {
                let hop = self.task.as_ref().and_then(|task| task.hops.get(*hop));
                said(*from, Message::Recall { loan: hop.map_or(MessageId::from_bytes([0; 16]), |hop| hop.handoff) })
            }
            Op::Reassign { .. } => Input::Seize(Seize {
                expected_epoch: epoch,
                submitter: "operator:olga".into(),
                receiver: "type:x".into(),
                reason_text: String::new(),
                handoff: MessageId::from_bytes([255; 16]),
            }),
            Op::Context { from } => said(*from, Message::Context { digest: GOOD }),
            Op::Complete { from, success, digest } => {
                let digest = Some(if *digest { GOOD } else { BAD });
                said(*from, Message::Complete { success: *success, digest, details: String::new() })
            }
            Op::Status { from, end } => {
                let status = if *end { TaskStatus::Completed } else { TaskStatus::InProgress };
                said(
                    *from,
                    Message::Status {
                        id: MessageId::from_bytes([9; 16]),
                        status,
                        progress: None,
                        details: String::new(),
                        receivers: vec![],
                        has_result: false,
                        prompt: None,
                        keep_parts: false,
                        extend_by: None,
                    },
                )
            }
            Op::Acked { by, mail } => Input::Acked { by: agent(*by), mail: *mail, decides_within: None },
            Op::Undeliverable { to, mail } => Input::Undeliverable { to: agent(*to), mail: *mail },
            Op::Pass { .. } => Input::Time,
        }
    }
}

/// The state that both sides report.
#[derive(Debug, PartialEq)]
struct Seen {
    owner: Option<String>,
    epoch: u64,
    finished: bool,
    state: Option<String>,
    asked: Option<String>,
}

fn seen_by_model(model: &Model) -> Seen {
    let attempt = model.attempt.as_ref();
    Seen {
        owner: model.exists.then(|| name(model.owner).into()),
        epoch: model.epoch,
        finished: model.finished,
        state: attempt.map(|attempt| attempt.state.into()),
        asked: attempt.map(|attempt| name(attempt.asked).into()),
    }
}

fn seen_by_real(real: &Real) -> Seen {
    let (task, handoff) = (real.task.as_ref(), real.handoff.as_ref());
    Seen {
        owner: task.map(|task| task.owner.to_string()),
        epoch: task.map_or(0, |task| task.epoch),
        finished: task.is_some_and(|task| task.status.is_final()),
        state: handoff.map(|handoff| handoff.state.name().into()),
        asked: handoff.map(|handoff| handoff.candidate.to_string()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    fn stories(ops in ops()) {
        let (mut model, mut real) = (Model::default(), Real::default());
        for (op, offset) in &ops {
            let op = &resolve(op, &model);
            let epoch = model.epoch.max(1).saturating_add_signed(i64::from(*offset));
            let (expected, found) = (model.apply(op, epoch), real.apply(op, epoch));
            prop_assert_eq!(&expected, &found, "{:?} at epoch {} of {:?}", op, epoch, seen_by_real(&real));
            prop_assert_eq!(seen_by_model(&model), seen_by_real(&real), "after {:?}", op);
        }
        LONGEST.fetch_max(model.hops.len(), Ordering::Relaxed);
        real.pass(Duration::from_secs(360));
        prop_assert!(real.handoff.is_none_or(|handoff| handoff.state.is_final()), "time alone ends every handoff");
    }
}

/// The most completed handoffs of one story, to show that the stories make progress.
static LONGEST: AtomicUsize = AtomicUsize::new(0);

#[test]
fn the_core_and_the_model_tell_the_same_story() {
    stories();
    let longest = LONGEST.load(Ordering::Relaxed);
    assert!(longest >= 3, "the longest story has only {longest} handoffs");
}

#[test]
fn state_names_are_those_of_the_specification() {
    let names = State::ALL.map(State::name);
    let specified =
        ["REQUESTED", "DECIDING", "ACCEPTED", "CONTEXT_SENT", "COMPLETED", "REJECTED", "FAILED", "CANCELLED"];
    assert_eq!(names, specified);
}
