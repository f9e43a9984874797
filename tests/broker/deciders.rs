//! Agents that need long to decide about an offer: the time of their cards, beside the timeouts of requests.

use std::time::Duration;

use baton_broker_core::{
    codes::ErrorCode,
    domain::{
        dead_letter::ParkReason,
        handoff::{OfferOutcome, State},
    },
    engine::{CardField, CardUpdate, Command},
    ids::AgentId,
    proto::v1,
};

use crate::world::{Session, World, assert_refused, operator};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
/// The broker's defaults.
const ACCEPT: Duration = Duration::from_secs(30);
const WHOLE: Duration = Duration::from_secs(360);

impl World {
    /// Changes the time that an agent needs to decide.
    fn decides_within(&mut self, agent: &str, span: Duration) -> Result<(), crate::world::Refusal> {
        let card = v1::AgentCard { decides_within: proto(span), ..Default::default() };
        let agent = AgentId::parse(agent).unwrap();
        let update = CardUpdate { agent, card, fields: vec![CardField::DecidesWithin], etag: String::new() };
        self.ask(|reply| Command::Update { update: Box::new(update), caller: operator(), reply })
    }

    /// Sends a request of "a" with these timeouts.
    fn ask_within(
        &mut self,
        to: &str,
        accept: Option<Duration>,
        whole: Option<Duration>,
        fallbacks: &[&str],
    ) -> String {
        let span = |span: Option<Duration>| span.and_then(proto);
        let payload = v1::HandoffRequest {
            task_type: "support".into(),
            timeouts: Some(v1::HandoffTimeouts { accept: span(accept), whole: span(whole), ..Default::default() }),
            fallback_candidates: fallbacks.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        self.send(self.request_with("a", to, 1, &payload)).unwrap().handoff_id
    }

    fn state(&self, handoff: &str) -> State {
        self.handoff(handoff).state
    }
}

fn proto(span: Duration) -> Option<prost_types::Duration> {
    Some(span.try_into().unwrap())
}

/// A sender "a", and a receiver "b" that decides within eight hours.
fn world_of_a_slow_decider() -> (World, Session) {
    let mut world = World::with(&["a", "b"]);
    world.decides_within("b", HOUR * 8).unwrap();
    let b = world.connect("b");
    (world, b)
}

#[test]
fn an_agent_has_the_time_of_its_card_to_decide() {
    let (mut world, b) = world_of_a_slow_decider();
    world.disconnect(b);
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    assert_eq!(world.handoff(&id).timeouts.whole, WHOLE + HOUR * 8);
    // An offer that is not fetched waits as long, and its letter with it.
    world.pass(WHOLE - SECOND);
    let mut b = world.connect("b");
    world.take_and_ack(&mut b);
    assert_eq!(world.handoff(&id).step_deadline, Some(world.now.plus(HOUR * 8)));
    world.pass(HOUR * 7);
    assert_eq!(world.state(&id), State::Deciding);
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    assert_eq!(world.state(&id), State::Accepted);
    world.audit("t");
}

#[test]
fn the_time_of_a_card_ends_too() {
    let (mut world, mut b) = world_of_a_slow_decider();
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.pass(HOUR * 8 - SECOND);
    assert_eq!(world.state(&id), State::Deciding);
    world.pass(SECOND);
    assert_eq!(world.state(&id), State::Failed);
    assert_eq!(world.handoff(&id).offers[0].outcome, OfferOutcome::TimedOut);
    assert_refused(world.send(world.accept("b", "a", &id, 1)), ErrorCode::HandoffExpired);
    assert_eq!(world.dead_letters().remove(0).reason, ParkReason::AcceptTimeout);
    let statistics = world.engine.directory().statistics(&AgentId::parse("b").unwrap(), world.now);
    assert_eq!(statistics.median_decision, Some(HOUR * 8), "the slowest decision that was possible");
    world.audit("t");
}

#[test]
fn the_time_holds_over_a_crash_and_a_change_of_the_card() {
    let (mut world, _) = world_of_a_slow_decider();
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.restart();
    let mut b = world.connect("b");
    world.take_and_ack(&mut b);
    world.pass(HOUR);
    world.restart();
    // The offer keeps the time that the card gave it.
    world.decides_within("b", SECOND).unwrap();
    world.pass(HOUR);
    assert_eq!(world.state(&id), State::Deciding);
    // A sign of work starts the same time again.
    let busy = world.status("b", "", 1, v1::TaskStatus::InProgress);
    world.send(v1::Envelope { correlation_id: id.clone(), ..busy }).unwrap();
    assert_eq!(world.handoff(&id).step_deadline, Some(world.handoff(&id).whole_deadline), "never beyond the whole");
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    world.audit("t");
}

#[test]
fn the_sender_s_own_times_win() {
    // Its time for the decision, and so the default for the whole handoff.
    let (mut world, mut b) = world_of_a_slow_decider();
    let id = world.ask_within("b", Some(ACCEPT * 2), None, &[]);
    assert_eq!(world.handoff(&id).timeouts.whole, WHOLE);
    world.take_and_ack(&mut b);
    world.pass(ACCEPT * 2 - SECOND);
    assert_eq!(world.state(&id), State::Deciding);
    world.pass(SECOND);
    assert_eq!(world.state(&id), State::Failed);

    // Its time for the whole handoff limits the time of the card.
    let (mut world, mut b) = world_of_a_slow_decider();
    let id = world.ask_within("b", None, Some(HOUR), &[]);
    world.take_and_ack(&mut b);
    world.pass(HOUR - SECOND);
    assert_eq!(world.state(&id), State::Deciding);
    world.pass(SECOND);
    assert_eq!(world.state(&id), State::Failed);
    world.audit("t");
}

#[test]
fn each_candidate_has_its_own_time() {
    let mut world = World::with(&["a", "b", "c"]);
    world.decides_within("c", HOUR).unwrap();
    let (mut b, mut c) = (world.connect("b"), world.connect("c"));
    // The whole time has room for the first candidate alone, unless the request names it.
    let id = world.ask_within("b", None, Some(HOUR * 2), &["c"]);
    world.take_and_ack(&mut b);
    world.pass(ACCEPT);
    assert_eq!(world.handoff(&id).offers[0].outcome, OfferOutcome::TimedOut, "b has the default");
    world.take_and_ack(&mut b);
    world.take_and_ack(&mut c);
    world.pass(HOUR - SECOND);
    assert_eq!(world.state(&id), State::Deciding);
    world.pass(SECOND);
    assert_eq!(world.state(&id), State::Failed);
    world.audit("t");
}

#[test]
fn a_time_that_is_shorter_than_the_default_changes_nothing() {
    let mut world = World::with(&["a", "b"]);
    world.decides_within("b", SECOND).unwrap();
    let mut b = world.connect("b");
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    assert_eq!(world.handoff(&id).step_deadline, Some(world.now.plus(ACCEPT)));
    assert_eq!(world.handoff(&id).timeouts.whole, WHOLE);
}

#[test]
fn a_card_with_a_time_out_of_bounds_is_refused() {
    let mut world = World::with(&["b"]);
    for span in [Duration::ZERO, SECOND - Duration::from_nanos(1), HOUR * 24 * 7 + Duration::from_nanos(1)] {
        let refusal = assert_refused(world.decides_within("b", span), ErrorCode::FieldInvalid);
        assert_eq!(refusal.violations()[0].path, "card.decides_within", "{span:?}");
    }
    for span in [SECOND, HOUR * 24 * 7] {
        world.decides_within("b", span).unwrap();
    }
}
