//! SPEC 6: negotiations. Agents are asked for offers, offers and counter-offers alternate, and one offer is awarded.

use std::time::Duration;

use tokio_stream::StreamExt as _;
use tonic::Code;

use super::{
    check::{Answer, Checks, Refusal, Verdict, answered, refused, same},
    story::a_request,
    times::SHORT,
    world::{Actor, CREDIT, World, card},
};
use baton_client::{
    About, Delivered, context_of,
    proto::v1::{self, AwardRule, BidState, ErrorCode, MessageType, NegotiationState as State},
    time::{Clock as _, Moment, SystemClock},
};

cases! {
    "negotiation.all-of-the-type-are-asked" "6"
        "A TaskRequest to all:NAME reaches each agent of the type with every required skill; only they may offer." asks_all;
    "negotiation.type-asks-one-agent" "6"
        "A TaskRequest to type:NAME asks one agent, the one with most of the preferred skills." asks_one;
    "negotiation.request-is-checked" "6"
        "A deadline in the past or over one hour, floors without meaning, and fallbacks with a rule are FIELD_INVALID; no agent to ask is RECEIVER_UNKNOWN."
        request_is_checked;
    "negotiation.mandate-needs-the-owner" "6"
        "A mandate with a stale epoch is refused with STALE_EPOCH, one of a stranger with NOT_OWNER." mandate_needs_owner;
    "negotiation.offer-is-checked" "6"
        "A confidence that is NaN or over 1, an infinite cost, or another receiver than the requester is FIELD_INVALID; an unknown negotiation is NEGOTIATION_UNKNOWN; nothing changes."
        offer_is_checked;
    "negotiation.three-rounds" "6"
        "Offers and counter-offers alternate: a message out of turn is refused with OFFER_NOT_STANDING, round 4 with ROUND_LIMIT."
        three_rounds;
    "negotiation.ended-part-stays-ended" "6"
        "After a decline of either side or a withdrawal, the bidder's next offer is refused with OFFER_NOT_STANDING." ended_parts;
    "negotiation.closes-with-enough-offers" "6"
        "With offers_wanted standing offers, the requester is told DECIDING, and later offers are refused with NEGOTIATION_CLOSED."
        enough_offers;
    "negotiation.no-offer-at-the-deadline" "6"
        "Without an offer at the deadline, the requester gets NO_OFFER." no_offer;
    "negotiation.undecided-expires" "6"
        "Without a decision in time, the requester gets NEGOTIATION_EXPIRED, and the bidder is told FAILED." undecided;
    "negotiation.unfetched-request-is-withdrawn" "6"
        "A TaskRequest that waits unfetched at the close is withdrawn, and its bid is NOT_REACHED." not_reached;
    "negotiation.bids-are-private" "6"
        "A bidder sees its own bid alone, an agent that was not asked none, and the lists of both have what they bid for." bids_are_private;
    "negotiation.requester-alone-cancels" "6"
        "CancelNegotiation by a bidder is refused with NOT_ASKED; by the requester it tells the bidders, and a second one is refused with NEGOTIATION_CLOSED."
        cancel;
    "negotiation.watch-ends-with-the-negotiation" "6"
        "WatchNegotiation sends the present state, then each later one, and ends with the final one." watch;
}

pub(super) const INVALID: Refusal = Refusal(Code::InvalidArgument, "FIELD_INVALID");
pub(super) const NOBODY: Refusal = Refusal(Code::NotFound, "RECEIVER_UNKNOWN");
pub(super) const NOT_ASKED: Refusal = Refusal(Code::PermissionDenied, "NOT_ASKED");
pub(super) const UNKNOWN: Refusal = Refusal(Code::NotFound, "NEGOTIATION_UNKNOWN");
pub(super) const CLOSED: Refusal = Refusal(Code::FailedPrecondition, "NEGOTIATION_CLOSED");
pub(super) const NOT_STANDING: Refusal = Refusal(Code::FailedPrecondition, "OFFER_NOT_STANDING");
pub(super) const ROUND_LIMIT: Refusal = Refusal(Code::FailedPrecondition, "ROUND_LIMIT");

/// A negotiation of alice with bidders that have taken the request.
pub(super) struct Asked {
    pub(super) alice: Actor,
    pub(super) bidders: Vec<Actor>,
    pub(super) id: String,
}

impl Asked {
    /// Asks new agents with these names.
    pub(super) async fn new(world: &World, names: &[&str], request: &v1::TaskRequest) -> Verdict<Self> {
        Self::about(world, names, request, "").await
    }

    /// Asks for offers for a task of alice, or for none if the id is empty.
    pub(super) async fn about(world: &World, names: &[&str], request: &v1::TaskRequest, task: &str) -> Verdict<Self> {
        let alice = world.agent("alice").await?;
        let types = [world.id("analyst")];
        let mut bidders = Vec::new();
        for name in names {
            bidders.push(world.agent_of(name, &types, CREDIT).await?);
        }
        let about = About::task(task, u64::from(!task.is_empty()));
        let receipt = alice.tell(&format!("all:{}", types[0]), &about, request).await?;
        for bidder in &bidders {
            bidder.take(MessageType::TaskRequest).await?;
        }
        Ok(Self { alice, bidders, id: receipt.message_id })
    }

    pub(super) async fn say<M>(&self, from: &Actor, to: &Actor, payload: &M) -> Answer<v1::Receipt>
    where
        M: prost::Message + prost::Name,
    {
        from.say(to.id(), &about(&self.id), payload).await
    }

    /// The answer of a bidder to alice.
    pub(super) async fn answer<M>(&self, bidder: usize, payload: &M) -> Answer<v1::Receipt>
    where
        M: prost::Message + prost::Name,
    {
        self.say(&self.bidders[bidder], &self.alice, payload).await
    }

    /// An offer that the broker must take. Returns its id.
    pub(super) async fn offers(&self, bidder: usize, offer: &v1::TaskOffer) -> Verdict<String> {
        let step = format!("{} offers", self.bidders[bidder].id());
        Ok(answered(&step, self.answer(bidder, offer).await)?.message_id)
    }

    /// A message of alice to a bidder.
    pub(super) async fn to<M>(&self, bidder: usize, payload: &M) -> Answer<v1::Receipt>
    where
        M: prost::Message + prost::Name,
    {
        self.say(&self.alice, &self.bidders[bidder], payload).await
    }

    /// The negotiation, as alice reads it.
    pub(super) async fn look(&self) -> Verdict<v1::Negotiation> {
        answered("alice reads the negotiation", read(&self.alice, &self.id).await)
    }

    /// Waits until the negotiation is in this state.
    pub(super) async fn is(&self, step: &str, state: State, winner: &str) -> Verdict {
        let (began, mut seen) = (Moment::now(), self.look().await?);
        while seen.state() != state && self.alice.looks_again(began).await {
            seen = self.look().await?;
        }
        let mut checks = Checks::of(step);
        checks.same("state", state, seen.state());
        checks.same("winner_id", winner, seen.winner_id.as_str());
        checks.done()
    }

    /// Expects the broker's notice of the close as the next delivery of this agent.
    pub(super) async fn told(&self, who: &Actor, state: State, winner: &str) -> Verdict {
        let closed = closed_of(&who.take(MessageType::NegotiationClosed).await?);
        let mut checks = Checks::of(format!("{} is told the close", who.id()));
        checks.same("negotiation_id", self.id.as_str(), closed.negotiation_id.as_str());
        checks.same("state", state, closed.state());
        checks.same("winner_id", winner, closed.winner_id.as_str());
        checks.done()
    }

    /// Answers the handoff of an award.
    pub(super) async fn decide<M>(&self, bidder: usize, task: &str, handoff: &str, payload: &M) -> Verdict
    where
        M: prost::Message + prost::Name,
    {
        let about = About::handoff(task, 1, handoff);
        self.bidders[bidder].tell(self.alice.id(), &about, payload).await.map(drop)
    }
}

pub(super) fn about(negotiation: &str) -> About {
    About::handoff("", 0, negotiation)
}

pub(super) fn costs(cost: f64) -> v1::TaskOffer {
    v1::TaskOffer { confidence: 0.5, cost, ..Default::default() }
}

pub(super) fn in_round(round: u32, cost: f64) -> v1::TaskOffer {
    v1::TaskOffer { round, ..costs(cost) }
}

pub(super) fn award(offer: &str) -> v1::TaskAccept {
    v1::TaskAccept { offer_id: offer.to_owned(), ..Default::default() }
}

pub(super) fn by_rule(rule: AwardRule) -> v1::TaskRequest {
    v1::TaskRequest { award_rule: rule.into(), ..Default::default() }
}

pub(super) fn mandate(rule: AwardRule) -> v1::TaskRequest {
    v1::TaskRequest { handoff: Some(a_request()), ..by_rule(rule) }
}

/// A time from now on, by the suite's clock.
pub(super) fn in_seconds(seconds: i64) -> Option<prost_types::Timestamp> {
    let (now, nanos) = SystemClock.now().to_parts();
    Some(prost_types::Timestamp { seconds: now + seconds, nanos })
}

pub(super) fn closed_of(delivered: &Delivered) -> v1::NegotiationClosed {
    delivered.payload()
}

pub(super) async fn read(by: &Actor, negotiation: &str) -> Answer<v1::Negotiation> {
    by.call(by.client.get_negotiation(negotiation)).await
}

async fn asks_all(world: World) -> Verdict {
    let (types, skill) = ([world.id("analyst")], world.id("skill"));
    let alice = world.agent("alice").await?;
    let unskilled = world.agent_of("unskilled", &types, CREDIT).await?;
    let mut able = Vec::new();
    for name in ["bob", "carol"] {
        let identity = world.identity(name);
        let skills = vec![v1::AgentSkill { name: skill.clone(), ..Default::default() }];
        let card = v1::AgentCard { skills, ..card(&identity, &types) };
        answered(&format!("{name} is registered"), world.register(&world.registrar(), card).await)?;
        able.push(world.connect(&identity, CREDIT).await?);
    }
    let request = v1::TaskRequest { required_skills: vec![skill], ..Default::default() };
    let sent = alice.tell(&format!("all:{}", types[0]), &About::default(), &request).await?;
    for bidder in &able {
        let asked = bidder.take(MessageType::TaskRequest).await?;
        same("a request arrives", "message_id", sent.message_id.as_str(), asked.envelope.message_id.as_str())?;
    }
    let state = answered("alice reads the negotiation", read(&alice, &sent.message_id).await)?;
    same("alice reads the negotiation", "asked", 2, state.asked)?;
    let uninvited = unskilled.say(alice.id(), &about(&sent.message_id), &costs(1.0)).await;
    refused("an agent without the skill offers", uninvited, NOT_ASKED)?;
    let offer = able[0].tell(alice.id(), &about(&sent.message_id), &costs(1.0)).await?;
    let heard = alice.take(MessageType::TaskOffer).await?;
    same("the offer arrives", "message_id", offer.message_id.as_str(), heard.envelope.message_id.as_str())
}

async fn asks_one(world: World) -> Verdict {
    let (types, skill) = ([world.id("analyst")], world.id("skill"));
    let alice = world.agent("alice").await?;
    let _plain = world.agent_of("plain", &types, CREDIT).await?;
    let identity = world.identity("skilled");
    let skills = vec![v1::AgentSkill { name: skill.clone(), ..Default::default() }];
    let card = v1::AgentCard { skills, ..card(&identity, &types) };
    answered("the skilled agent is registered", world.register(&world.registrar(), card).await)?;
    let skilled = world.connect(&identity, CREDIT).await?;
    let request = v1::TaskRequest { preferred_skills: vec![skill], ..Default::default() };
    let sent = alice.tell(&format!("type:{}", types[0]), &About::default(), &request).await?;
    skilled.take(MessageType::TaskRequest).await?;
    let state = answered("alice reads the negotiation", read(&alice, &sent.message_id).await)?;
    let asked: Vec<&str> = state.bids.iter().map(|bid| bid.agent_id.as_str()).collect();
    same("alice reads the negotiation", "agents asked", vec![skilled.id()], asked)
}

async fn request_is_checked(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let types = [world.id("analyst")];
    let _bob = world.agent_of("bob", &types, CREDIT).await?;
    let all = format!("all:{}", types[0]);
    let mut checks = Checks::of("alice asks for offers");
    let terms = |terms| v1::TaskRequest { handoff: Some(terms), ..by_rule(AwardRule::Soonest) };
    let fallback = v1::HandoffRequest { fallback_candidates: vec![alice.id().to_owned()], ..a_request() };
    let second = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    for (what, request) in [
        ("with a deadline in the past", v1::TaskRequest { offers_deadline: in_seconds(-60), ..Default::default() }),
        ("with a deadline over 1 h", v1::TaskRequest { offers_deadline: in_seconds(3700), ..Default::default() }),
        ("with a least confidence of 1.1", v1::TaskRequest { min_confidence: 1.1, ..Default::default() }),
        ("with NaN as the least confidence", v1::TaskRequest { min_confidence: f64::NAN, ..Default::default() }),
        ("with a negative cost", v1::TaskRequest { max_cost: -1.0, ..Default::default() }),
        ("with an unknown rule", v1::TaskRequest { award_rule: 77, ..Default::default() }),
        (
            "with a description of 16,385 bytes",
            v1::TaskRequest { description: "x".repeat(16_385), ..Default::default() },
        ),
        ("with a decision time of 1 h and 1 s", {
            let decision_timeout = Some(prost_types::Duration { seconds: 3601, nanos: 0 });
            v1::TaskRequest { decision_timeout, ..Default::default() }
        }),
        (
            "with a rule and a decision time",
            v1::TaskRequest { decision_timeout: second, ..by_rule(AwardRule::Soonest) },
        ),
        ("with a rule and fallbacks", terms(fallback)),
        ("with a mandate for no task", terms(a_request())),
    ] {
        checks.refused(what, alice.say(&all, &About::default(), &request).await, INVALID);
    }
    let plain = v1::TaskRequest::default();
    let unknown = format!("all:{}", world.id("unknown"));
    checks.refused("all of a type without agents", alice.say(&unknown, &About::default(), &plain).await, NOBODY);
    let skilled = v1::TaskRequest { required_skills: vec![world.id("skill")], ..Default::default() };
    checks.refused("with a skill of none", alice.say(&all, &About::default(), &skilled).await, NOBODY);
    checks.done()
}

async fn mandate_needs_owner(world: World) -> Verdict {
    let (alice, mallory) = (world.agent("alice").await?, world.agent("mallory").await?);
    let types = [world.id("analyst")];
    let bob = world.agent_of("bob", &types, CREDIT).await?;
    let (all, task) = (format!("all:{}", types[0]), world.id("task"));
    let receipt = alice.tell(bob.id(), &About::task(&task, 1), &a_request()).await?;
    bob.take(MessageType::HandoffRequest).await?;
    let handoff = About::handoff(&task, 1, &receipt.handoff_id);
    bob.tell(alice.id(), &handoff, &v1::HandoffAccept::default()).await?;
    let context = context_of([("goals", "[]".to_owned())]);
    alice.tell(bob.id(), &handoff, &context).await?;
    bob.tell(alice.id(), &handoff, &baton_client::completion_of(&context)).await?;
    let mandate = mandate(AwardRule::Soonest);
    let mut checks = Checks::of("a mandate for bob's task at epoch 2");
    let stale = Refusal(Code::FailedPrecondition, "STALE_EPOCH");
    checks.refused("by alice at epoch 1", alice.say(&all, &About::task(&task, 1), &mandate).await, stale);
    let stranger = Refusal(Code::PermissionDenied, "NOT_OWNER");
    checks.refused("by mallory", mallory.say(&all, &About::task(&task, 2), &mandate).await, stranger);
    let ahead = Refusal(Code::FailedPrecondition, "EPOCH_AHEAD");
    checks.refused(
        "for a new task at epoch 2",
        alice.say(&all, &About::task(&world.id("new"), 2), &mandate).await,
        ahead,
    );
    checks.done()
}

async fn offer_is_checked(world: World) -> Verdict {
    let asked = Asked::new(&world, &["bob", "carol"], &v1::TaskRequest::default()).await?;
    let mallory = world.agent("mallory").await?;
    asked.offers(0, &costs(1.0)).await?;
    let before = asked.look().await?;
    let mut checks = Checks::of("carol offers");
    let sure = |confidence| v1::TaskOffer { confidence, ..Default::default() };
    for (what, offer, expected) in [
        ("with confidence NaN", sure(f64::NAN), INVALID),
        ("with confidence 1.1", sure(1.1), INVALID),
        ("with confidence -0.1", sure(-0.1), INVALID),
        ("with an infinite cost", costs(f64::INFINITY), INVALID),
        ("in round 1", in_round(1, 1.0), INVALID),
        ("in round 4", in_round(4, 1.0), ROUND_LIMIT),
        ("until a time in the past", v1::TaskOffer { valid_until: in_seconds(-60), ..costs(1.0) }, INVALID),
        ("to withdraw what she did not offer", v1::TaskOffer { withdrawn: true, ..costs(1.0) }, NOT_STANDING),
    ] {
        checks.refused(what, asked.answer(1, &offer).await, expected);
    }
    let (bob, carol) = (&asked.bidders[0], &asked.bidders[1]);
    checks.refused("to bob", asked.say(carol, bob, &costs(1.0)).await, INVALID);
    let nowhere = about("0198c0de-0000-7000-8000-000000000001");
    checks.refused("in no negotiation", carol.say(asked.alice.id(), &nowhere, &costs(1.0)).await, UNKNOWN);
    checks.refused("bob, twice", asked.answer(0, &costs(2.0)).await, NOT_STANDING);
    checks.refused("mallory", asked.say(&mallory, &asked.alice, &costs(1.0)).await, NOT_ASKED);
    checks.refused("mallory declines", asked.say(&mallory, &asked.alice, &v1::TaskDecline::default()).await, NOT_ASKED);
    checks.refused("alice counters what carol did not offer", asked.to(1, &in_round(1, 1.0)).await, NOT_STANDING);
    checks.refused(
        "alice counters with a withdrawal",
        {
            let withdrawal = v1::TaskOffer { withdrawn: true, ..in_round(1, 1.0) };
            asked.to(0, &withdrawal).await
        },
        INVALID,
    );
    checks.done()?;
    same("after the refused messages", "the negotiation", before, asked.look().await?)
}

async fn three_rounds(world: World) -> Verdict {
    let asked = Asked::new(&world, &["bob", "carol"], &v1::TaskRequest::default()).await?;
    let first = asked.offers(0, &costs(9.0)).await?;
    for round in 1..=3 {
        answered("alice counters", asked.to(0, &in_round(round, 1.0)).await)?;
        refused("alice counters again", asked.to(0, &in_round(round, 2.0)).await, NOT_STANDING)?;
        asked.bidders[0].take(MessageType::TaskOffer).await?;
        asked.offers(0, &in_round(round, 9.0 - f64::from(round))).await?;
        refused("bob offers again", asked.answer(0, &in_round(round, 1.0)).await, NOT_STANDING)?;
    }
    refused("alice counters in round 4", asked.to(0, &in_round(4, 1.0)).await, ROUND_LIMIT)?;
    let bid = asked.look().await?.bids.into_iter().find(|bid| bid.agent_id == asked.bidders[0].id());
    let bid = bid.unwrap_or_default();
    let mut checks = Checks::of("alice reads bob's bid");
    checks.same("state", BidState::Offered, bid.state());
    checks.same("cost", 6.0, bid.cost);
    checks.same("round", 3, bid.round);
    checks.holds("offer_id", bid.offer_id != first, "another one than the first offer's", &bid.offer_id);
    checks.refused("alice awards the first offer", asked.to(0, &award(&first)).await, NOT_STANDING);
    checks.done()
}

async fn ended_parts(world: World) -> Verdict {
    let names = ["bob", "carol", "dave", "erin"];
    let asked = Asked::new(&world, &names, &v1::TaskRequest::default()).await?;
    answered("bob declines", asked.answer(0, &v1::TaskDecline::default()).await)?;
    asked.alice.take(MessageType::TaskDecline).await?;
    asked.offers(1, &costs(1.0)).await?;
    answered("alice declines carol's offer", asked.to(1, &v1::TaskDecline::default()).await)?;
    asked.bidders[1].take(MessageType::TaskDecline).await?;
    asked.offers(2, &costs(1.0)).await?;
    asked.offers(2, &v1::TaskOffer { withdrawn: true, ..Default::default() }).await?;
    let mut checks = Checks::of("an offer after the end of the bidder's part");
    for (bidder, what) in ["after the own decline", "after alice's decline", "after a withdrawal"].iter().enumerate() {
        checks.refused(what, asked.answer(bidder, &costs(1.0)).await, NOT_STANDING);
    }
    checks.refused(
        "alice declines what erin did not offer",
        asked.to(3, &v1::TaskDecline::default()).await,
        NOT_STANDING,
    );
    let seen = asked.look().await?;
    let state =
        |bidder: &Actor| seen.bids.iter().find(|bid| bid.agent_id == bidder.id()).map(v1::NegotiationBid::state);
    let seen: Vec<_> = asked.bidders.iter().map(|bidder| state(bidder).unwrap_or_default()).collect();
    checks.same("states", vec![BidState::Declined, BidState::Declined, BidState::Withdrawn, BidState::Asked], seen);
    checks.done()
}

async fn enough_offers(world: World) -> Verdict {
    let request = v1::TaskRequest { offers_wanted: 2, ..Default::default() };
    let asked = Asked::new(&world, &["bob", "carol", "dave"], &request).await?;
    asked.offers(0, &costs(1.0)).await?;
    asked.is("after one offer", State::Open, "").await?;
    asked.offers(1, &costs(2.0)).await?;
    for _ in 0..2 {
        asked.alice.take(MessageType::TaskOffer).await?;
    }
    asked.told(&asked.alice, State::Deciding, "").await?;
    refused("dave offers after the close", asked.answer(2, &costs(1.0)).await, CLOSED)?;
    refused("alice counters after the close", asked.to(0, &in_round(1, 1.0)).await, CLOSED)?;
    refused(
        "carol withdraws after the close",
        {
            let withdrawal = v1::TaskOffer { withdrawn: true, ..Default::default() };
            asked.answer(1, &withdrawal).await
        },
        CLOSED,
    )
    .map(drop)
}

async fn no_offer(world: World) -> Verdict {
    let request = v1::TaskRequest { offers_deadline: in_seconds(5), ..Default::default() };
    let asked = Asked::new(&world, &["bob"], &request).await?;
    notice_after(&asked.alice, ErrorCode::NoOffer, Duration::from_secs(10)).await?;
    asked.is("after the deadline", State::Failed, "").await?;
    refused("bob offers after the deadline", asked.answer(0, &costs(1.0)).await, CLOSED).map(drop)
}

/// Expects the broker's notification with this code as the next delivery.
async fn notice_after(who: &Actor, code: ErrorCode, longer: Duration) -> Verdict {
    let delivered = who.take_within(MessageType::ErrorNotification, longer).await?;
    let told: v1::ErrorNotification = delivered.payload();
    same(&format!("{} takes the broker's notice", who.id()), "error_code", code, told.error_code())
}

async fn undecided(world: World) -> Verdict {
    let second = Some(prost_types::Duration { seconds: SHORT / 1000, nanos: 0 });
    let request = v1::TaskRequest { offers_wanted: 1, decision_timeout: second, ..Default::default() };
    let asked = Asked::new(&world, &["bob", "carol"], &request).await?;
    let offer = asked.offers(0, &costs(1.0)).await?;
    asked.alice.take(MessageType::TaskOffer).await?;
    asked.told(&asked.alice, State::Deciding, "").await?;
    notice_after(&asked.alice, ErrorCode::NegotiationExpired, Duration::from_secs(10)).await?;
    asked.told(&asked.bidders[0], State::Failed, "").await?;
    refused("alice awards after the time", asked.to(0, &award(&offer)).await, CLOSED).map(drop)
}

async fn not_reached(world: World) -> Verdict {
    let types = [world.id("analyst")];
    let absent = world.agent_of("absent", &types, 0).await?;
    let request = v1::TaskRequest { offers_wanted: 1, ..Default::default() };
    let asked = Asked::new(&world, &["bob"], &request).await?;
    asked.offers(0, &costs(1.0)).await?;
    let bids = asked.look().await?.bids;
    let state = bids.iter().find(|bid| bid.agent_id == absent.id()).map(v1::NegotiationBid::state);
    same("after the close", "state of the bid", Some(BidState::NotReached), state)?;
    answered("the absent agent takes mail", absent.call(absent.agent.session.credit(CREDIT)).await)?;
    let info = asked.alice.info(absent.id(), "the first message");
    answered("alice writes to it", asked.alice.submit(&info).await)?;
    absent.take(MessageType::Info).await?;
    let late = asked.say(&absent, &asked.alice, &costs(1.0)).await;
    refused("the absent agent offers all the same", late, CLOSED).map(drop)
}

async fn bids_are_private(world: World) -> Verdict {
    let asked = Asked::new(&world, &["bob", "carol"], &v1::TaskRequest::default()).await?;
    let mallory = world.agent("mallory").await?;
    asked.offers(0, &costs(1.0)).await?;
    asked.alice.take(MessageType::TaskOffer).await?;
    let (bob, carol) = (&asked.bidders[0], &asked.bidders[1]);
    let agents = |seen: v1::Negotiation| seen.bids.into_iter().map(|bid| bid.agent_id).collect::<Vec<_>>();
    let seen = agents(answered("carol reads it", read(carol, &asked.id).await)?);
    same("carol reads it", "bids", vec![carol.id().to_owned()], seen)?;
    same("alice reads it", "number of bids", 2, asked.look().await?.bids.len())?;
    // By default the broker refuses the read; its operator may permit it.
    let of_stranger = read(&mallory, &asked.id).await.map(agents).unwrap_or_default();
    same("mallory reads it", "bids", Vec::<String>::new(), of_stranger)?;
    for (who, count) in [(&asked.alice, 1), (bob, 1), (carol, 0)] {
        let request = v1::ListNegotiationsRequest { agent_id: who.id().to_owned(), ..Default::default() };
        let listed = answered("a list", who.call(who.client.list_negotiations(request, 10)).await)?;
        same(&format!("{} lists its negotiations", who.id()), "entries", count, listed.len())?;
    }
    Ok(())
}

async fn cancel(world: World) -> Verdict {
    let asked = Asked::new(&world, &["bob", "carol"], &v1::TaskRequest::default()).await?;
    let mallory = world.agent("mallory").await?;
    let offer = asked.offers(0, &costs(1.0)).await?;
    asked.alice.take(MessageType::TaskOffer).await?;
    let cancel = async |who: &Actor| who.call(who.client.cancel_negotiation(&asked.id)).await;
    refused("bob cancels", cancel(&asked.bidders[0]).await, NOT_ASKED)?;
    let by_stranger = cancel(&mallory).await;
    let mut checks = Checks::of("mallory cancels");
    checks.holds("answer", by_stranger.is_err(), "refused", &by_stranger);
    checks.done()?;
    let cancelled = answered("alice cancels", cancel(&asked.alice).await)?;
    same("alice cancels", "state", State::Cancelled, cancelled.state())?;
    asked.told(&asked.bidders[0], State::Cancelled, "").await?;
    refused("alice cancels again", cancel(&asked.alice).await, CLOSED)?;
    refused("alice awards", asked.to(0, &award(&offer)).await, CLOSED).map(drop)
}

async fn watch(world: World) -> Verdict {
    let request = v1::TaskRequest { offers_wanted: 1, ..Default::default() };
    let asked = Asked::new(&world, &["bob", "carol"], &request).await?;
    let alice = &asked.alice;
    let request = v1::WatchNegotiationRequest { negotiation_id: asked.id.clone() };
    let opened =
        alice.call(async { alice.client.answer(alice.client.negotiations().watch_negotiation(request).await) });
    let mut updates = answered("alice watches", opened.await)?;
    let mut next = async || {
        let update = alice.call(async {
            let update = updates.next().await;
            update.map(|update| alice.client.answer(update.map(tonic::Response::new))).transpose()
        });
        let update = answered("the watch goes on", update.await)?;
        Ok(update.map(|update| update.negotiation.unwrap_or_default().state()))
    };
    let mut states = vec![next().await?];
    let offer = asked.offers(0, &costs(1.0)).await?;
    states.push(next().await?);
    answered("alice awards", asked.to(0, &award(&offer)).await)?;
    states.extend([next().await?, next().await?]);
    let expected = vec![Some(State::Open), Some(State::Deciding), Some(State::Settled), None];
    same("the watch", "states", expected, states)
}
