//! Negotiations in virtual time, with a naive mailbox and policy.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use proptest::prelude::*;

use super::{building::SWEPT_A_STEP, *};
use crate::{
    Entity, EntityId, Mail, ReadError, Reader, Signal, StepError,
    codes::{ErrorCode, Refusal as _},
    handoff::{self, LoopLimits, Message, Mode, Priority, Timeouts},
    ids::{AgentId, MessageId, TaskId},
    step,
    time::Timestamp,
};

const NEGOTIATION: u8 = 1;

fn agent(name: &str) -> AgentId {
    AgentId::parse(name).unwrap()
}

fn id(number: u8) -> MessageId {
    MessageId::from_bytes([number; 16])
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_parts(1_000_000 + seconds, 0).unwrap()
}

fn negotiation_id() -> EntityId {
    EntityId::Negotiation(id(NEGOTIATION))
}

/// The entities of a broker, and what its agents have got.
#[derive(Default)]
struct World {
    entities: BTreeMap<EntityId, Entity>,
    unfetched: BTreeSet<AgentId>,
    loads: BTreeMap<AgentId, u32>,
    forbidden: BTreeSet<AgentId>,
    gone: BTreeSet<AgentId>,
    /// Each `NegotiationClosed`, in order.
    closed: Vec<(AgentId, Closed)>,
    /// Each notice to the requester, in order.
    notices: Vec<ErrorCode>,
    /// Each offer of the handoff to a candidate, in order.
    asked: Vec<AgentId>,
    /// Each request for an offer, in order.
    requested: Vec<AgentId>,
    forwarded: Vec<AgentId>,
    withdrawn: Vec<AgentId>,
    now: Timestamp,
}

impl Reader for World {
    fn entity(&mut self, id: &EntityId) -> Result<Option<Entity>, ReadError> {
        Ok(self.entities.get(id).cloned())
    }

    fn is_gone(&mut self, agent: &AgentId) -> bool {
        self.gone.contains(agent)
    }

    fn waiting_mail(&mut self, _: MessageId, agent: &AgentId) -> Result<WaitingMail, ReadError> {
        Ok(if self.unfetched.contains(agent) { WaitingMail::Unfetched } else { WaitingMail::None })
    }

    fn load(&mut self, agent: &AgentId) -> u32 {
        self.loads.get(agent).copied().unwrap_or_default()
    }

    fn may_hand_off(&mut self, _: &AgentId, to: &AgentId, _: Option<&Mandate>) -> bool {
        !self.forbidden.contains(to)
    }
}

impl World {
    fn run(&mut self, about: &EntityId, input: &crate::Input) -> Result<(), StepError> {
        let now = self.now;
        let mut queue = std::collections::VecDeque::from([(about.clone(), input.clone())]);
        while let Some((about, input)) = queue.pop_front() {
            let made = step(&about, &input, self, now)?;
            self.entities.extend(made.writes.into_iter().map(|entity| (entity.id(), entity)));
            for effect in made.effects {
                match effect {
                    crate::Effect::Deliver { to, mail: Mail::Closed(closed), .. } => self.closed.push((to, closed)),
                    crate::Effect::Deliver { mail: Mail::Notice { notice, about, .. }, .. } => {
                        if about == Some(id(NEGOTIATION)) {
                            self.notices.push(notice.code);
                        }
                    }
                    crate::Effect::Deliver { to, mail: Mail::Opening { entity: EntityId::Handoff(_), .. }, .. } => {
                        self.asked.push(to);
                    }
                    crate::Effect::Deliver { to, mail: Mail::Opening { .. }, .. } => self.requested.push(to),
                    crate::Effect::Deliver { to, mail: Mail::ThisMessage, report_to, .. } => match report_to {
                        Some(_) => self.requested.push(to),
                        None => self.forwarded.push(to),
                    },
                    crate::Effect::Withdraw { from, .. } => {
                        self.unfetched.remove(&from);
                        self.withdrawn.push(from);
                    }
                    crate::Effect::Send { to, signal } => queue.push_back((to, crate::Input::Signal(signal))),
                    crate::Effect::Deliver { mail: Mail::Node(_), .. }
                    | crate::Effect::Park { .. }
                    | crate::Effect::Order(_)
                    | crate::Effect::KeepEntry(_)
                    | crate::Effect::Remove(_)
                    | crate::Effect::WithdrawMessage { .. }
                    | crate::Effect::Settle { .. }
                    | crate::Effect::RemoveEntries { .. } => {}
                }
            }
        }
        Ok(())
    }

    fn say(&mut self, input: Input) -> Result<(), Rejection> {
        match self.run(&negotiation_id(), &crate::Input::Negotiation(input)) {
            Ok(()) => Ok(()),
            Err(StepError::Negotiation(rejection)) => Err(rejection),
            Err(other) => panic!("{other}"),
        }
    }

    fn code(&mut self, input: Input) -> Option<ErrorCode> {
        self.say(input).err().map(|rejection| rejection.code())
    }

    fn wait(&mut self, seconds: u64) {
        self.now = self.now.plus(Duration::from_secs(seconds));
        for about in self.entities.keys().cloned().collect::<Vec<_>>() {
            self.run(&about, &crate::Input::Time).unwrap();
        }
    }

    fn negotiation(&self) -> Arc<Negotiation> {
        match self.entities.get(&negotiation_id()) {
            Some(Entity::Negotiation(negotiation)) => negotiation.clone(),
            _ => panic!("no negotiation"),
        }
    }

    fn state(&self) -> State {
        self.negotiation().state
    }

    fn thread(&self, name: &str) -> ThreadState {
        self.negotiation().thread(&agent(name)).unwrap().state
    }

    fn failure(&self) -> Option<ErrorCode> {
        self.negotiation().failure.as_ref().map(|failure| failure.code)
    }

    fn bid(&mut self, name: &str, number: u8, confidence: f64) -> Result<(), Rejection> {
        self.say(offer(name, "alice", NewOffer { confidence, ..an_offer(number) }))
    }

    /// The mandated handoff is accepted by its candidate.
    fn handoff_says(&mut self, from: &str, message: Message) {
        let input = handoff::Input::Message { from: agent(from), epoch: 1, message };
        let input = crate::Input::Handoff { task: task(), input };
        self.run(&EntityId::Handoff(id(NEGOTIATION)), &input).unwrap();
    }

    /// Lets the steps pass that ask the agents beyond the first ones.
    fn ask_all(&mut self) {
        while self.negotiation().has_rest() {
            self.wait(0);
        }
    }

    /// The agents that were told the end by the broker, without the requester.
    fn told(&self) -> Vec<&str> {
        let told = self.closed.iter().filter(|(to, _)| to.as_str() != "alice");
        told.map(|(to, _)| to.as_str()).collect()
    }
}

fn reject() -> Message {
    Message::Reject {
        reason: 1,
        text: String::new(),
        suggestions: Vec::new(),
        passed_over: Vec::new(),
        retry_after: None,
    }
}

fn task() -> TaskId {
    TaskId::parse("t-1").unwrap()
}

fn mandate() -> Mandate {
    Mandate {
        task_type: "report".to_owned(),
        reason: 1,
        mode: Mode::Transfer,
        loan_timeout: None,
        work: crate::handoff::WorkTerms::default(),
        priority: Priority::High,
        fairness_key: None,
        timeouts: Timeouts::default(),
        loop_limits: LoopLimits::default(),
        conversation: None,
    }
}

fn request(asked: &[&str]) -> Request {
    Request {
        id: id(NEGOTIATION),
        requester: agent("alice"),
        receiver: "all:analyst".to_owned(),
        asked: asked.iter().map(|name| agent(name)).collect(),
        asked_max: 1000,
        task_type: "report".to_owned(),
        task: None,
        mandate: None,
        rule: None,
        min_confidence: 0.0,
        max_cost: None,
        offers_wanted: 0,
        offers_deadline: None,
        offers_timeout: Duration::from_secs(30),
        offers_timeout_max: Duration::from_secs(3600),
        decision_timeout: Duration::from_secs(60),
    }
}

fn mandated(asked: &[&str], rule: AwardRule) -> Request {
    Request { task: Some((task(), 1)), mandate: Some(mandate()), rule: Some(rule), ..request(asked) }
}

fn opened(request: Request) -> World {
    let mut world = World { now: at(0), ..World::default() };
    world.say(Input::Request(Box::new(request))).unwrap();
    world
}

fn an_offer(number: u8) -> NewOffer {
    NewOffer {
        id: id(number),
        confidence: 0.5,
        estimated_duration: None,
        cost: 1.0,
        round: 0,
        is_withdrawal: false,
        valid_until: None,
    }
}

fn offer(from: &str, to: &str, offer: NewOffer) -> Input {
    Input::Offer { from: agent(from), to: agent(to), offer }
}

fn round(from: &str, to: &str, number: u8, round: u32) -> Input {
    offer(from, to, NewOffer { round, ..an_offer(number) })
}

fn accept(to: &str, number: u8, handoff: Option<u8>) -> Input {
    Input::Accept { from: agent("alice"), to: agent(to), offer: id(number), handoff: handoff.map(id) }
}

fn decline(from: &str, to: &str) -> Input {
    Input::Decline { from: agent(from), to: agent(to) }
}

// --------------------------------------------------------------------------------------------------------- the request

#[test]
fn a_request_asks_each_agent_once_and_takes_offers_for_half_a_minute() {
    let world = opened(request(&["bob", "carol"]));
    let negotiation = world.negotiation();
    assert_eq!((negotiation.state, negotiation.offers_deadline), (State::Open, at(30)));
    assert_eq!(negotiation.threads.len(), 2);
}

#[test]
fn a_deadline_in_the_past_or_over_the_bound_is_refused() {
    for (deadline, works) in [(at(0), false), (at(-1), false), (at(1), true), (at(3600), true), (at(3601), false)] {
        let mut world = World { now: at(0), ..World::default() };
        let asked = Request { offers_deadline: Some(deadline), ..request(&["bob"]) };
        let code = world.code(Input::Request(Box::new(asked)));
        assert_eq!(code, (!works).then_some(ErrorCode::FieldInvalid), "{deadline:?}");
    }
}

#[test]
fn a_thousand_agents_are_asked_and_not_one_more() {
    let names: Vec<String> = (0..1001).map(|number| format!("a{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = World { now: at(0), ..World::default() };
    assert_eq!(world.code(Input::Request(Box::new(request(&names)))), Some(ErrorCode::ReceiverInvalid));
    assert_eq!(world.code(Input::Request(Box::new(request(&names[1..])))), None);
}

// ---------------------------------------------------------------------------------------------------------- the offers

#[test]
fn only_an_agent_that_was_asked_may_offer() {
    let mut world = opened(request(&["bob", "carol"]));
    assert_eq!(world.code(offer("mallory", "alice", an_offer(2))), Some(ErrorCode::NotAsked));
    assert_eq!(world.code(decline("mallory", "alice")), Some(ErrorCode::NotAsked));
    assert_eq!(world.code(offer("bob", "carol", an_offer(2))), Some(ErrorCode::FieldInvalid));
    assert_eq!(world.code(offer("bob", "alice", an_offer(2))), None);
}

#[test]
fn an_offer_to_an_unknown_negotiation_is_refused() {
    let mut world = World { now: at(0), ..World::default() };
    assert_eq!(world.code(offer("bob", "alice", an_offer(2))), Some(ErrorCode::NegotiationUnknown));
}

#[test]
fn an_offer_at_or_after_the_deadline_is_refused() {
    let mut world = opened(request(&["bob", "carol"]));
    world.now = at(30); // the timer has not fired yet
    assert_eq!(world.code(offer("bob", "alice", an_offer(2))), Some(ErrorCode::NegotiationClosed));
    world.wait(0);
    assert_eq!(world.code(offer("bob", "alice", an_offer(2))), Some(ErrorCode::NegotiationClosed));
    assert_eq!((world.state(), world.failure()), (State::Failed, Some(ErrorCode::NoOffer)));
}

#[test]
fn three_rounds_alternate_and_a_fourth_is_refused() {
    let mut world = opened(request(&["bob", "carol"]));
    world.bid("bob", 2, 0.5).unwrap();
    assert_eq!(world.code(round("bob", "alice", 3, 1)), Some(ErrorCode::OfferNotStanding), "alice is on turn");
    for number in 1..=3_u8 {
        let (counter, reply) = (10 + number, 20 + number);
        assert_eq!(world.code(round("alice", "bob", counter, u32::from(number))), None);
        let twice = round("alice", "bob", counter + 50, u32::from(number));
        assert_eq!(world.code(twice), Some(ErrorCode::OfferNotStanding), "bob is on turn");
        assert_eq!(world.code(round("bob", "alice", reply, 0)), Some(ErrorCode::FieldInvalid), "the wrong round");
        assert_eq!(world.code(round("bob", "alice", reply, u32::from(number))), None);
    }
    assert_eq!(world.code(round("alice", "bob", 40, 4)), Some(ErrorCode::RoundLimit));
    assert_eq!(world.code(round("alice", "bob", 40, 3)), Some(ErrorCode::RoundLimit));
    assert_eq!(world.code(round("alice", "carol", 41, 1)), Some(ErrorCode::OfferNotStanding), "no offer to counter");
    assert_eq!(world.code(accept("bob", 22, None)), Some(ErrorCode::OfferNotStanding), "a replaced offer");
    assert_eq!(world.code(accept("bob", 23, None)), None);
    assert_eq!(world.negotiation().winner, Some(agent("bob")));
}

#[test]
fn a_bidder_in_round_four_is_refused_with_the_limit() {
    let mut world = opened(request(&["bob", "carol"]));
    assert_eq!(world.code(round("bob", "alice", 2, 4)), Some(ErrorCode::RoundLimit));
}

#[test]
fn a_withdrawal_or_a_decline_ends_a_bidders_part() {
    let mut world = opened(request(&["bob", "carol", "dave"]));
    world.bid("bob", 2, 0.5).unwrap();
    let withdrawal = NewOffer { is_withdrawal: true, ..an_offer(3) };
    world.say(offer("bob", "alice", withdrawal.clone())).unwrap();
    assert_eq!(world.code(offer("bob", "alice", an_offer(4))), Some(ErrorCode::OfferNotStanding));
    assert_eq!(world.code(accept("bob", 2, None)), Some(ErrorCode::OfferNotStanding));
    assert_eq!(world.code(offer("carol", "alice", withdrawal)), Some(ErrorCode::OfferNotStanding));
    world.bid("carol", 5, 0.5).unwrap();
    world.say(decline("alice", "carol")).unwrap();
    assert_eq!((world.thread("bob"), world.thread("carol")), (ThreadState::Withdrawn, ThreadState::Declined));
    world.say(decline("dave", "alice")).unwrap();
    assert_eq!((world.state(), world.failure()), (State::Failed, Some(ErrorCode::NoOffer)), "all have answered");
    assert_eq!(world.told(), Vec::<&str>::new(), "no offer stands");
}

#[test]
fn an_offer_that_has_lapsed_does_not_stand() {
    let mut world = opened(request(&["bob", "carol"]));
    let short = NewOffer { valid_until: Some(at(10)), ..an_offer(2) };
    assert_eq!(world.code(offer("bob", "alice", NewOffer { valid_until: Some(at(0)), ..an_offer(2) })), {
        Some(ErrorCode::FieldInvalid)
    });
    world.say(offer("bob", "alice", short)).unwrap();
    world.now = at(10);
    assert_eq!(world.code(accept("bob", 2, None)), Some(ErrorCode::OfferNotStanding));
    world.wait(20);
    assert_eq!(world.failure(), Some(ErrorCode::NoOffer));
}

// ----------------------------------------------------------------------------------------------------------- the close

#[test]
fn enough_offers_close_the_negotiation_and_a_countered_one_is_not_counted() {
    let mut world = opened(Request { offers_wanted: 2, ..request(&["bob", "carol", "dave"]) });
    world.bid("bob", 2, 0.5).unwrap();
    world.say(round("alice", "bob", 3, 1)).unwrap();
    world.bid("carol", 4, 0.5).unwrap();
    assert_eq!(world.state(), State::Open, "bob is on turn");
    world.say(round("bob", "alice", 5, 1)).unwrap();
    assert_eq!(world.state(), State::Deciding);
    assert_eq!(world.closed.len(), 1, "only the requester is told, that it is to decide");
    assert_eq!(world.closed[0].0, agent("alice"));
}

#[test]
fn a_requester_that_does_not_decide_in_time_fails_the_negotiation() {
    let mut world = opened(request(&["bob"]));
    world.bid("bob", 2, 0.5).unwrap();
    assert_eq!((world.state(), world.negotiation().next_deadline()), (State::Deciding, Some(at(60))));
    world.now = at(60);
    assert_eq!(world.code(accept("bob", 2, None)), Some(ErrorCode::NegotiationClosed), "too late");
    world.wait(0);
    assert_eq!((world.state(), world.failure()), (State::Failed, Some(ErrorCode::NegotiationExpired)));
    assert_eq!((world.told(), world.notices.clone()), (vec!["bob"], vec![ErrorCode::NegotiationExpired]));
}

#[test]
fn a_request_that_was_not_fetched_is_withdrawn_at_the_close() {
    let mut world = opened(Request { offers_wanted: 1, ..request(&["bob", "carol", "dave"]) });
    world.unfetched.insert(agent("carol"));
    world.bid("bob", 2, 0.5).unwrap();
    assert_eq!((world.thread("carol"), world.thread("dave")), (ThreadState::NotReached, ThreadState::Asked));
    assert_eq!(world.withdrawn, [agent("carol")]);
    assert_eq!(world.code(offer("carol", "alice", an_offer(9))), Some(ErrorCode::NegotiationClosed));
}

#[test]
fn an_agent_whose_request_is_a_dead_letter_is_not_waited_for() {
    let mut world = opened(request(&["bob", "carol"]));
    world.bid("bob", 2, 0.5).unwrap();
    let dead = crate::Input::Undeliverable { to: agent("carol"), role: handoff::Acked::Request };
    world.run(&negotiation_id(), &dead).unwrap();
    assert_eq!((world.state(), world.thread("carol")), (State::Deciding, ThreadState::Unreachable));
}

#[test]
fn a_cancel_ends_an_open_negotiation_and_tells_the_bidders() {
    let mut world = opened(request(&["bob", "carol"]));
    world.bid("bob", 2, 0.5).unwrap();
    world.say(Input::Cancel).unwrap();
    assert_eq!((world.state(), world.told()), (State::Cancelled, vec!["bob"]));
    assert_eq!(world.code(Input::Cancel), Some(ErrorCode::NegotiationClosed));
    assert_eq!(world.code(accept("bob", 2, None)), Some(ErrorCode::NegotiationClosed));
}

// ----------------------------------------------------------------------------------------------------------- the award

#[test]
fn an_accept_without_a_task_settles_and_tells_the_others() {
    let mut world = opened(request(&["bob", "carol", "dave"]));
    world.bid("bob", 2, 0.5).unwrap();
    world.bid("carol", 3, 0.5).unwrap();
    let by_a_stranger = Input::Accept { from: agent("carol"), to: agent("bob"), offer: id(2), handoff: None };
    assert_eq!(world.code(by_a_stranger), Some(ErrorCode::NotAsked));
    assert_eq!(world.code(accept("dave", 2, None)), Some(ErrorCode::OfferUnknown));
    world.forwarded.clear();
    world.say(accept("bob", 2, None)).unwrap();
    assert_eq!((world.state(), world.told()), (State::Settled, vec!["carol"]));
    assert_eq!(world.forwarded, [agent("bob")]);
    assert_eq!(world.code(accept("carol", 3, None)), Some(ErrorCode::NegotiationClosed));
}

#[test]
fn each_rule_awards_its_best_offer_and_ties_go_to_the_next_rule_then_to_the_first() {
    let bids = |world: &mut World| {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let mut bid = |name: &str, number, confidence, estimated_duration, cost| {
            let bid = NewOffer { confidence, estimated_duration, cost, ..an_offer(number) };
            world.say(offer(name, "alice", bid)).unwrap();
        };
        bid("bob", 2, 0.9, seconds(50), 5.0);
        bid("carol", 3, 0.5, seconds(10), 5.0);
        bid("dave", 4, 0.5, None, 5.0);
        bid("erin", 5, 0.5, seconds(90), 1.0);
    };
    let winner = |rule| {
        let mut world = opened(Request { rule: Some(rule), ..request(&["bob", "carol", "dave", "erin"]) });
        world.loads =
            [("bob", 900), ("carol", 500), ("dave", 100), ("erin", 500)].map(|(name, load)| (agent(name), load)).into();
        bids(&mut world);
        assert_eq!(world.state(), State::Settled);
        let mut told = world.told();
        told.sort_unstable();
        assert_eq!(told, ["bob", "carol", "dave", "erin"], "the winner too, each once");
        world.negotiation().winner.clone().unwrap().to_string()
    };
    assert_eq!(winner(AwardRule::HighestConfidence), "bob");
    assert_eq!(winner(AwardRule::Soonest), "carol");
    assert_eq!(winner(AwardRule::LeastLoaded), "dave");
    assert_eq!(winner(AwardRule::LowestCost), "erin");

    let mut world = opened(Request { rule: Some(AwardRule::LowestCost), ..request(&["bob", "carol"]) });
    world.bid("carol", 2, 0.5).unwrap();
    world.bid("bob", 3, 0.5).unwrap();
    assert_eq!(world.negotiation().winner, Some(agent("carol")), "the first of two equal offers");
}

#[test]
fn offers_below_the_floors_are_not_awarded() {
    let floors = Request {
        rule: Some(AwardRule::HighestConfidence),
        min_confidence: 0.6,
        max_cost: Some(10.0),
        ..request(&["bob", "carol"])
    };
    let mut world = opened(floors);
    world.bid("bob", 2, 0.59).unwrap();
    world.say(offer("carol", "alice", NewOffer { confidence: 0.9, cost: 10.5, ..an_offer(3) })).unwrap();
    assert_eq!(world.failure(), Some(ErrorCode::NoOffer));
    assert_eq!((world.told(), world.notices.clone()), (vec!["bob", "carol"], vec![ErrorCode::NoOffer]));
}

#[test]
fn a_mandate_opens_the_handoff_and_asks_the_next_offer_if_the_winner_rejects() {
    let mut world = opened(mandated(&["bob", "carol", "dave"], AwardRule::HighestConfidence));
    for (name, number, confidence) in [("bob", 2, 0.6), ("carol", 3, 0.9), ("dave", 4, 0.3)] {
        world.bid(name, number, confidence).unwrap();
    }
    assert_eq!((world.state(), world.asked.clone()), (State::Awarded, vec![agent("carol")]));
    assert_eq!(world.code(Input::Cancel), Some(ErrorCode::NegotiationClosed), "the handoff is to be cancelled");
    world.handoff_says("carol", reject());
    assert_eq!((world.state(), world.asked.clone()), (State::Awarded, vec![agent("carol"), agent("bob")]));
    world.handoff_says("bob", Message::Accept { wanted_sections: Vec::new(), estimate: None });
    assert_eq!((world.state(), world.negotiation().winner.clone()), (State::Settled, Some(agent("bob"))));
    assert_eq!(world.told(), ["dave"], "the handoff has told the others");
}

#[test]
fn an_offer_that_ends_before_the_handoff_may_is_awarded_first_or_not_at_all() {
    let mut world = opened(mandated(&["bob", "carol", "dave"], AwardRule::HighestConfidence));
    let until = |seconds, offer: NewOffer| NewOffer { valid_until: Some(at(seconds)), ..offer };
    let whole = i64::try_from(Timeouts::default().whole.as_secs()).unwrap();
    for (name, number, confidence, end) in [("bob", 2, 0.9, 5), ("carol", 3, 0.6, whole - 1), ("dave", 4, 0.3, whole)] {
        let made = until(end, NewOffer { confidence, ..an_offer(number) });
        world.say(offer(name, "alice", made)).unwrap();
    }
    assert_eq!(world.asked, [agent("bob")], "its offer stands at the award");
    world.handoff_says("bob", reject());
    assert_eq!(world.asked, [agent("bob"), agent("dave")]);
    world.handoff_says("dave", reject());
    assert_eq!((world.state(), world.told()), (State::Failed, vec!["carol"]));
}

#[test]
fn a_gone_bidder_is_asked_last_so_its_offer_must_stand_until_then() {
    let whole = i64::try_from(Timeouts::default().whole.as_secs()).unwrap();
    for (end, asked) in [(whole - 1, vec!["carol"]), (whole, vec!["carol", "bob"])] {
        let mut world = opened(mandated(&["bob", "carol"], AwardRule::HighestConfidence));
        world.gone.insert(agent("bob"));
        let best = NewOffer { confidence: 0.9, valid_until: Some(at(end)), ..an_offer(2) };
        world.say(offer("bob", "alice", best)).unwrap();
        world.bid("carol", 3, 0.6).unwrap();
        world.handoff_says("carol", reject());
        assert_eq!(world.asked, asked.into_iter().map(agent).collect::<Vec<_>>(), "{end}");
    }
}

#[test]
fn an_accepted_bidder_whom_the_handoff_passes_over_is_told_the_end() {
    let mut world = opened(request(&["bob", "carol"]));
    world.bid("bob", 2, 0.6).unwrap();
    world.say(accept("bob", 2, Some(77))).unwrap();
    assert_eq!((world.state(), world.told()), (State::Awarded, vec![]));
    let taken = NegotiationSignal::Taken { handoff: id(77), by: agent("carol"), asked: vec![agent("carol")] };
    world.run(&negotiation_id(), &crate::Input::Signal(Signal::Negotiation(taken))).unwrap();
    assert_eq!((world.state(), world.told()), (State::Settled, vec!["bob"]));
}

#[test]
fn a_mandated_handoff_that_no_bidder_takes_fails_the_negotiation() {
    let mut world = opened(mandated(&["bob", "carol"], AwardRule::Soonest));
    world.bid("bob", 2, 0.6).unwrap();
    world.say(decline("carol", "alice")).unwrap();
    world.handoff_says("bob", reject());
    assert_eq!((world.state(), world.failure()), (State::Failed, Some(ErrorCode::NoCandidate)));
    assert!(world.notices.iter().all(|code| *code == ErrorCode::NoCandidate), "{:?}", world.notices);
}

#[test]
fn a_mandate_of_a_former_owner_fails_the_negotiation() {
    let mut world = opened(mandated(&["bob"], AwardRule::Soonest));
    // The task is made by another agent's request, so alice never owned it.
    let other = Request { task: Some((task(), 1)), ..request(&[]) };
    drop(other);
    let made = handoff::Request {
        plan: None,
        id: id(99),
        task: task(),
        from: agent("zoe"),
        epoch: 1,
        receiver: "yan".to_owned(),
        candidates: vec![agent("yan")],
        passed_over: Vec::new(),
        task_type: "report".to_owned(),
        reason: 1,
        mode: Mode::Transfer,
        loan_timeout: None,
        work: crate::handoff::WorkTerms::default(),
        submitter: None,
        routing: None,
        priority: Priority::default(),
        fairness_key: None,
        timeouts: Timeouts::default(),
        loop_limits: LoopLimits::default(),
        conversation: None,
        parent: None,
        wait_for_agent: false,
        thread: None,
        deliver_after: None,
        negotiation: None,
    };
    let input = crate::Input::Handoff { task: task(), input: handoff::Input::Request(made) };
    world.run(&EntityId::Handoff(id(99)), &input).unwrap();
    world.bid("bob", 2, 0.6).unwrap();
    assert_eq!((world.state(), world.failure()), (State::Failed, Some(ErrorCode::NotOwner)));
    assert_eq!(world.told(), ["bob"]);
    assert_eq!(world.notices, [ErrorCode::NotOwner]);
    let failure = world.negotiation().failure.clone().unwrap();
    assert!(!failure.message.contains("zoe"), "{}", failure.message);
}

#[test]
fn a_bidder_that_the_policies_no_longer_permit_is_passed_over() {
    let mut world = opened(mandated(&["bob", "carol"], AwardRule::HighestConfidence));
    world.bid("bob", 2, 0.9).unwrap();
    world.forbidden.insert(agent("bob"));
    world.bid("carol", 3, 0.5).unwrap();
    assert_eq!(world.asked, [agent("carol")]);
}

#[test]
fn many_bidders_are_told_in_steps_that_are_bounded() {
    let names: Vec<String> = (0..1000).map(|number| format!("a{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = opened(request(&names));
    world.ask_all();
    for name in &names[..500] {
        world.say(offer(name, "alice", an_offer(2))).unwrap();
    }
    world.unfetched = names[500..].iter().map(|name| agent(name)).collect();
    let made = step(&negotiation_id(), &crate::Input::Negotiation(Input::Cancel), &mut world, at(1)).unwrap();
    assert!(made.effects.len() <= 2 * SWEPT_A_STEP + 1, "{}", made.effects.len());
    world.say(Input::Cancel).unwrap();
    for steps in 1.. {
        assert!(world.told().len() <= steps * SWEPT_A_STEP && world.withdrawn.len() <= steps * SWEPT_A_STEP);
        if world.negotiation().next_deadline().is_none() {
            break;
        }
        world.wait(0);
    }
    let told: BTreeSet<&str> = world.told().into_iter().collect();
    assert_eq!((told.len(), world.told().len(), world.withdrawn.len()), (500, 500, 500));
}

#[test]
fn many_agents_are_asked_in_steps_that_are_bounded() {
    let names: Vec<String> = (0..1000).map(|number| format!("a{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = opened(request(&names));
    for steps in 1.. {
        assert_eq!(world.requested.len(), names.len().min(steps * SWEPT_A_STEP));
        if !world.negotiation().has_rest() {
            break;
        }
        assert_eq!(world.negotiation().next_deadline(), Some(world.now), "the rest is due at once");
        world.wait(0);
    }
    assert!(world.requested.iter().map(AgentId::as_str).eq(names.iter().copied()), "each once, in order");
    assert_eq!(world.negotiation().next_deadline(), Some(world.negotiation().offers_deadline));
}

#[test]
fn a_close_ends_the_asking_and_the_others_were_not_reached() {
    let names: Vec<String> = (0..200).map(|number| format!("a{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = opened(Request { offers_wanted: 1, ..request(&names) });
    world.bid("a7", 2, 0.5).unwrap();
    assert_eq!(world.state(), State::Deciding);
    world.ask_all();
    assert_eq!(world.requested.len(), SWEPT_A_STEP);
    assert_eq!(world.thread("a63"), ThreadState::Asked);
    assert_eq!(world.thread("a64"), ThreadState::NotReached);
    assert!(world.negotiation().was_never_asked(&agent("a199")) && !world.negotiation().was_never_asked(&agent("a7")));
    assert_eq!(world.withdrawn.len(), names.len() - SWEPT_A_STEP);
}

#[test]
fn a_message_in_time_is_taken_while_a_rest_is_left() {
    let names: Vec<String> = (0..200).map(|number| format!("a{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = opened(Request { offers_wanted: 1, ..request(&names) });
    world.ask_all();
    world.bid("a7", 2, 0.5).unwrap();
    assert!(world.negotiation().has_rest());
    assert_eq!(world.negotiation().next_deadline(), Some(world.now), "the rest is due at once");
    world.say(Input::Accept { from: agent("alice"), to: agent("a7"), offer: id(2), handoff: None }).unwrap();
    assert_eq!(world.state(), State::Settled);
}

// ------------------------------------------------------------------------------------------------------ random stories

#[derive(Debug, Clone)]
enum Act {
    Offer { from: usize, round: u32, confidence: f64, is_withdrawal: bool },
    Counter { to: usize, round: u32 },
    Decline { from: usize },
    DeclineOffer { to: usize },
    Accept { to: usize, offer: u8 },
    Cancel,
    Wait(u64),
    Undeliverable(usize),
    HandoffReject(usize),
    HandoffAccept(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let agent = 0..6_usize; // the last one was not asked
    prop_oneof![
        6 => (agent.clone(), 0..5_u32, 0.0..=1.0_f64, prop::bool::weighted(0.1)).prop_map(
            |(from, round, confidence, is_withdrawal)| Act::Offer { from, round, confidence, is_withdrawal }
        ),
        3 => (agent.clone(), 0..5_u32).prop_map(|(to, round)| Act::Counter { to, round }),
        1 => agent.clone().prop_map(|from| Act::Decline { from }),
        1 => agent.clone().prop_map(|to| Act::DeclineOffer { to }),
        2 => (agent.clone(), any::<u8>()).prop_map(|(to, offer)| Act::Accept { to, offer }),
        1 => Just(Act::Cancel),
        2 => (0..40_u64).prop_map(Act::Wait),
        1 => agent.clone().prop_map(Act::Undeliverable),
        2 => agent.clone().prop_map(Act::HandoffReject),
        1 => agent.prop_map(Act::HandoffAccept),
    ]
}

const NAMES: [&str; 6] = ["bob", "carol", "dave", "erin", "frank", "mallory"];

fn play(rule: Option<AwardRule>, has_task: bool, wanted: u32, acts: &[Act]) {
    let base = match (rule, has_task) {
        (Some(rule), true) => mandated(&NAMES[..5], rule),
        (rule, _) => Request { rule, ..request(&NAMES[..5]) },
    };
    let mut world = opened(Request { offers_wanted: wanted, ..base });
    world.unfetched.insert(agent("frank"));
    let mut number = 10;
    let mut awards = BTreeSet::new();
    for act in acts {
        let before = world.negotiation();
        number += 1;
        let _ = match act.clone() {
            Act::Offer { from, round, confidence, is_withdrawal } => {
                if from < NAMES.len() {
                    world.unfetched.remove(&agent(NAMES[from]));
                }
                world.say(offer(
                    NAMES[from],
                    "alice",
                    NewOffer { round, confidence, is_withdrawal, ..an_offer(number) },
                ))
            }
            Act::Counter { to, round: in_round } => world.say(round("alice", NAMES[to], number, in_round)),
            Act::Decline { from } => world.say(decline(NAMES[from], "alice")),
            Act::DeclineOffer { to } => world.say(decline("alice", NAMES[to])),
            Act::Accept { to, offer } => {
                // Half of the accepts name the standing offer.
                let standing = world.negotiation().thread(&agent(NAMES[to])).and_then(|thread| thread.offer.clone());
                let offer = standing.filter(|_| offer % 2 == 0).map_or(id(offer), |offer| offer.id);
                world.say(Input::Accept { from: agent("alice"), to: agent(NAMES[to]), offer, handoff: None })
            }
            Act::Cancel => world.say(Input::Cancel),
            Act::Wait(seconds) => {
                world.wait(seconds);
                Ok(())
            }
            Act::Undeliverable(to) => {
                let dead = crate::Input::Undeliverable { to: agent(NAMES[to]), role: handoff::Acked::Request };
                world.run(&negotiation_id(), &dead).unwrap();
                Ok(())
            }
            Act::HandoffReject(from) | Act::HandoffAccept(from) => {
                let message = match act {
                    Act::HandoffAccept(_) => Message::Accept { wanted_sections: Vec::new(), estimate: None },
                    _ => reject(),
                };
                let input = handoff::Input::Message { from: agent(NAMES[from]), epoch: 1, message };
                let input = crate::Input::Handoff { task: task(), input };
                let _ = world.run(&EntityId::Handoff(id(NEGOTIATION)), &input);
                Ok(())
            }
        };
        let after = world.negotiation();
        if before.state.is_final() {
            assert_eq!(before.state, after.state, "a final state never changes");
        }
        if let (None, Some(award)) = (&before.award, &after.award) {
            awards.insert(award.offer);
            let thread = before.thread(&award.bidder).or(after.thread(&award.bidder)).expect("the winner was asked");
            let last = after.thread(&award.bidder).unwrap();
            assert!(last.state.has_standing_offer(), "{thread:?}");
            assert_eq!(last.offer.as_ref().map(|offer| offer.id), Some(award.offer), "the standing offer");
        }
    }
    // Every negotiation ends by deadline, decision time and the handoff's whole time.
    for seconds in [30, 60, 360, 1] {
        world.wait(seconds);
    }
    let end = world.negotiation();
    assert!(end.state.is_final(), "{:?}", end.state);
    assert!(awards.len() <= 1);
    // Each bidder whose offer stood is told exactly once: by the handoff, by the accept, or by the broker.
    let by_accept: Vec<AgentId> = match &end.award {
        Some(award) if award.handoff.is_none() && end.rule.is_none() => vec![award.bidder.clone()],
        Some(award) if award.handoff.is_none() && !world.told().contains(&award.bidder.as_str()) => {
            vec![award.bidder.clone()]
        }
        _ => Vec::new(),
    };
    for thread in &end.threads {
        let name = thread.agent.as_str();
        let times = world.told().iter().filter(|told| **told == name).count()
            + world.asked.iter().filter(|asked| **asked == thread.agent).count()
            + by_accept.iter().filter(|told| **told == thread.agent).count();
        let expected = usize::from(thread.state.has_standing_offer());
        assert_eq!(times, expected, "{name} in {:?}: {:?}", thread.state, end.award);
        if expected == 1 {
            assert!(thread.is_told);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_negotiation_awards_at_most_once_tells_each_bidder_once_and_ends(
        rule in prop::option::of(prop::sample::select(AwardRule::ALL.to_vec())),
        has_task in any::<bool>(),
        wanted in 0..5_u32,
        acts in prop::collection::vec(act(), 0..40),
    ) {
        play(rule, has_task, wanted, &acts);
    }
}
