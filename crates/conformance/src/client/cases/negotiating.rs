//! Requests for offers: the client asks, counters and awards, and the client bids.

use serde_json::json;

use super::{
    super::{
        broker::{AGENT, Session},
        fixture::{Fixture, Sent, Verdict, composer, expect, type_url},
    },
    cases,
    sending::check_envelope,
};
use crate::report::Failed;
use baton_client::{
    About, Composer,
    envelope::keys::PrivateKey,
    ids::SystemIds,
    proto::v1::{self, BidState, MessageType, NegotiationState},
};

cases! {
    "client.offer-is-awarded", "2 6",
    "A request for offers is signed; each offer reaches the caller and is acked; the award names the offer to its bidder.",
    offer_is_awarded;
    "client.offer-is-countered", "6",
    "A counter-offer goes to the bidder of the offer in the next round, and the bidder's answer reaches the caller.",
    offer_is_countered;
    "client.close-is-told", "6",
    "A requester whose negotiation closes without an offer learns it from the broker's notice, which is acked.",
    close_is_told;
    "client.request-gets-an-offer", "6",
    "A request for offers is answered by the handler's offer, in round 0, and acked after the receipt.",
    request_gets_an_offer;
    "client.request-is-declined", "6",
    "A request for offers can be declined with a reason, and is acked.",
    request_is_declined;
    "client.counter-offer-gets-an-offer", "6",
    "A counter-offer is answered by a further offer in its round; the award of the work is told to the handler.",
    counter_offer_gets_an_offer;
    "client.offer-is-withdrawn", "6",
    "A bidder can withdraw its offer when it gets a counter-offer.",
    offer_is_withdrawn;
    "client.end-of-a-bid-is-told", "6",
    "A bidder that does not get the work learns the end from the broker's notice, which is acked.",
    end_of_a_bid_is_told;
}

/// The receiver of every request for offers. A signed request names it, whichever agents the broker asks.
const ANALYSTS: &str = "all:analyst";
/// The work that the requests describe.
const WORK: &str = "the sums of march";
/// The cost at which the harness offers.
const COST: f64 = 5.0;

/// A message of the negotiation.
fn about(negotiation_id: &str) -> About {
    About::handoff("", 0, negotiation_id)
}

fn offer_at(cost: f64, round: u32) -> v1::TaskOffer {
    v1::TaskOffer { confidence: 0.5, cost, round, ..Default::default() }
}

/// A second bidder, in the directory.
fn carol(fixture: &Fixture) -> Composer {
    let carol = composer("carol", "k1", PrivateKey::generate(&SystemIds));
    fixture.broker.state().directory.insert("carol".to_owned(), vec![carol.identity.agent_key()]);
    carol
}

/// Sets the negotiation that the broker shows.
fn set_negotiation(fixture: &Fixture, id: &str, requester_id: &str, state: NegotiationState) {
    let negotiation = v1::Negotiation {
        negotiation_id: id.to_owned(),
        requester_id: requester_id.to_owned(),
        receiver_id: ANALYSTS.to_owned(),
        state: state.into(),
        ..Default::default()
    };
    fixture.broker.state().negotiations.insert(id.to_owned(), negotiation);
}

/// Compares a cost. The cases use whole numbers, which every language writes alike.
fn expect_cost(step: &str, field: &str, expected: f64, seen: f64) -> Verdict {
    expect(step, field, &expected, &seen)
}

/// Checks a message of the negotiation from the client to this agent.
fn check_of<M: prost::Name>(fixture: &Fixture, step: &str, sent: &Sent, to: &str, negotiation_id: &str) -> Verdict {
    check_envelope(step, sent, &fixture.client_key, &type_url::<M>())?;
    expect(step, "envelope.receiver_id", to, sent.envelope.receiver_id.as_str())?;
    expect(step, "envelope.correlation_id", negotiation_id, sent.envelope.correlation_id.as_str())
}

/// Lets the client ask for offers. Returns the negotiation's id.
async fn asked(fixture: &mut Fixture, session: &mut Session) -> Result<String, Failed> {
    let step = "the client asks for offers";
    let id = fixture.harness.tell(json!({"command": "negotiate", "to": ANALYSTS, "text": WORK}));
    let sent = fixture.sent(step, session, MessageType::TaskRequest).await?;
    check_of::<v1::TaskRequest>(fixture, step, &sent, ANALYSTS, "")?;
    expect(step, "payload.description", WORK, sent.payload::<v1::TaskRequest>().description.as_str())?;
    let negotiation_id = sent.envelope.message_id.clone();
    set_negotiation(fixture, &negotiation_id, AGENT, NegotiationState::Open);
    fixture.receipt(session, &sent);
    let done = fixture.done("the receipt comes", id).await?;
    expect(step, "done.negotiation_id", &json!(negotiation_id), &done["negotiation_id"])?;
    Ok(negotiation_id)
}

/// Delivers an offer to the client, and expects its event and an ack. Returns the offer's id.
async fn offered(
    fixture: &mut Fixture,
    session: &mut Session,
    bidder: &Composer,
    negotiation_id: &str,
    offer: &v1::TaskOffer,
) -> Result<String, Failed> {
    let step = format!("{} offers in round {}", bidder.identity.agent, offer.round);
    let envelope = bidder.compose(AGENT, MessageType::TaskOffer, &about(negotiation_id), offer);
    let delivery_id = fixture.deliver(session, &envelope);
    let offer_id = envelope.message_id;
    let expected = format!("offered, of offer {offer_id}");
    let is_of = |event: &serde_json::Value| event["event"] == "offered" && event["offer_id"] == offer_id.as_str();
    let event = fixture.event(&step, &expected, is_of).await?;
    expect(&step, "offered.negotiation_id", &json!(negotiation_id), &event["negotiation_id"])?;
    expect(&step, "offered.agent_id", &json!(bidder.identity.agent.as_str()), &event["agent_id"])?;
    expect(&step, "offered.round", &json!(offer.round), &event["round"])?;
    expect_cost(&step, "offered.cost", offer.cost, event["cost"].as_f64().unwrap_or(f64::NAN))?;
    fixture.acked(&step, session, &delivery_id).await?;
    Ok(offer_id)
}

/// Lets the client award the work to an offer of this agent.
async fn awarded(
    fixture: &mut Fixture,
    session: &mut Session,
    negotiation_id: &str,
    (to, offer_id): (&str, &str),
) -> Verdict {
    let step = "the client awards the work";
    let command = json!({
        "command": "award", "negotiation_id": negotiation_id, "offer_id": offer_id, "text": "by friday",
    });
    let id = fixture.harness.tell(command);
    let sent = fixture.sent(step, session, MessageType::TaskAccept).await?;
    check_of::<v1::TaskAccept>(fixture, step, &sent, to, negotiation_id)?;
    let accept: v1::TaskAccept = sent.payload();
    expect(step, "payload.offer_id", offer_id, accept.offer_id.as_str())?;
    expect(step, "payload.details", "by friday", accept.details.as_str())?;
    expect(step, "whether payload.handoff is set", &false, &accept.handoff.is_some())?;
    set_negotiation(fixture, negotiation_id, AGENT, NegotiationState::Settled);
    fixture.receipt(session, &sent);
    fixture.done("the receipt comes", id).await.map(drop)
}

async fn offer_is_awarded(fixture: &mut Fixture) -> Verdict {
    let carol = carol(fixture);
    let alice = fixture.alice.clone();
    let mut session = fixture.connected().await?;
    let negotiation_id = asked(fixture, &mut session).await?;
    offered(fixture, &mut session, &alice, &negotiation_id, &offer_at(4.0, 0)).await?;
    let offer_id = offered(fixture, &mut session, &carol, &negotiation_id, &offer_at(3.0, 0)).await?;
    awarded(fixture, &mut session, &negotiation_id, ("carol", &offer_id)).await
}

async fn offer_is_countered(fixture: &mut Fixture) -> Verdict {
    let alice = fixture.alice.clone();
    let mut session = fixture.connected().await?;
    let negotiation_id = asked(fixture, &mut session).await?;
    let mut offer_id = offered(fixture, &mut session, &alice, &negotiation_id, &offer_at(8.0, 0)).await?;
    for (round, cost) in [(1, 4.0), (2, 5.0)] {
        let step = format!("the client counters in round {round}");
        let command = json!({
            "command": "counter", "negotiation_id": negotiation_id, "offer_id": offer_id, "cost": cost,
        });
        let id = fixture.harness.tell(command);
        let sent = fixture.sent(&step, &mut session, MessageType::TaskOffer).await?;
        check_of::<v1::TaskOffer>(fixture, &step, &sent, "alice", &negotiation_id)?;
        let counter: v1::TaskOffer = sent.payload();
        expect(&step, "payload.round", &round, &counter.round)?;
        expect_cost(&step, "payload.cost", cost, counter.cost)?;
        fixture.receipt(&session, &sent);
        fixture.done("the receipt comes", id).await?;
        let better = offer_at(8.0 - f64::from(round), round);
        offer_id = offered(fixture, &mut session, &alice, &negotiation_id, &better).await?;
    }
    awarded(fixture, &mut session, &negotiation_id, ("alice", &offer_id)).await
}

async fn close_is_told(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let negotiation_id = asked(fixture, &mut session).await?;
    set_negotiation(fixture, &negotiation_id, AGENT, NegotiationState::Failed);
    let told = v1::ErrorNotification {
        error_code: v1::ErrorCode::NoOffer.into(),
        error_message: "no agent has made an offer".to_owned(),
        severity: v1::Severity::Warning.into(),
        origin_agent_id: "baton".to_owned(),
        ..Default::default()
    };
    let broker = composer("baton", "broker", fixture.broker.key.clone());
    let told = broker.compose(AGENT, MessageType::ErrorNotification, &about(&negotiation_id), &told);
    let delivery_id = fixture.deliver(&session, &told);
    let step = "the negotiation closes without an offer";
    let event = fixture.event(step, "the event closed", |event| event["event"] == "closed").await?;
    expect(step, "closed.negotiation_id", &json!(negotiation_id), &event["negotiation_id"])?;
    expect(step, "closed.state", &json!("FAILED"), &event["state"])?;
    fixture.acked(step, &mut session, &delivery_id).await
}

/// Delivers alice's request for offers. Returns the negotiation's id and the id of the delivery.
fn request(fixture: &mut Fixture, session: &Session) -> (String, String) {
    let request = v1::TaskRequest { description: WORK.to_owned(), ..Default::default() };
    let envelope = fixture.alice.compose(ANALYSTS, MessageType::TaskRequest, &About::default(), &request);
    set_negotiation(fixture, &envelope.message_id, "alice", NegotiationState::Open);
    (envelope.message_id.clone(), fixture.deliver(session, &envelope))
}

/// Receives the client's offer of this cost and round, and answers it. Returns the offer's id.
async fn bid(
    fixture: &mut Fixture,
    session: &mut Session,
    negotiation_id: &str,
    (cost, round): (f64, u32),
) -> Result<String, Failed> {
    let step = format!("the client offers in round {round}");
    let sent = fixture.sent(&step, session, MessageType::TaskOffer).await?;
    check_of::<v1::TaskOffer>(fixture, &step, &sent, "alice", negotiation_id)?;
    let offer: v1::TaskOffer = sent.payload();
    expect(&step, "payload.round", &round, &offer.round)?;
    expect_cost(&step, "payload.cost", cost, offer.cost)?;
    expect(&step, "payload.withdrawn", &false, &offer.withdrawn)?;
    fixture.receipt(session, &sent);
    Ok(sent.envelope.message_id)
}

/// Lets the client offer, and delivers alice's counter-offer of round 1. Returns the negotiation's id, the id of the
/// delivery, and the offer's id.
async fn countered(
    fixture: &mut Fixture,
    session: &mut Session,
    cost: f64,
) -> Result<(String, String, String), Failed> {
    let (negotiation_id, delivery_id) = request(fixture, session);
    let offer_id = bid(fixture, session, &negotiation_id, (COST, 0)).await?;
    fixture.acked("the offer has its receipt", session, &delivery_id).await?;
    let counter = offer_at(cost, 1);
    let counter = fixture.alice.compose(AGENT, MessageType::TaskOffer, &about(&negotiation_id), &counter);
    if let Some(shown) = fixture.broker.state().negotiations.get_mut(&negotiation_id) {
        shown.bids = vec![v1::NegotiationBid {
            agent_id: AGENT.to_owned(),
            state: BidState::Countered.into(),
            offer_id: offer_id.clone(),
            round: 1,
            counter_offer_id: counter.message_id.clone(),
            ..Default::default()
        }];
    }
    let delivery_id = fixture.deliver(session, &counter);
    Ok((negotiation_id, delivery_id, offer_id))
}

async fn request_gets_an_offer(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (negotiation_id, delivery_id) = request(fixture, &session);
    bid(fixture, &mut session, &negotiation_id, (COST, 0)).await?;
    fixture.acked("the offer has its receipt", &mut session, &delivery_id).await
}

async fn request_is_declined(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    fixture.handle("TaskRequest", "decline").await?;
    let (negotiation_id, delivery_id) = request(fixture, &session);
    let step = "the client declines";
    let sent = fixture.sent(step, &mut session, MessageType::TaskDecline).await?;
    check_of::<v1::TaskDecline>(fixture, step, &sent, "alice", &negotiation_id)?;
    let reason = sent.payload::<v1::TaskDecline>().reason();
    expect(step, "payload.reason", v1::RejectReason::Overloaded.as_str_name(), reason.as_str_name())?;
    fixture.receipt(&session, &sent);
    fixture.acked("the decline has its receipt", &mut session, &delivery_id).await
}

async fn counter_offer_gets_an_offer(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (negotiation_id, delivery_id, _) = countered(fixture, &mut session, 3.0).await?;
    let offer_id = bid(fixture, &mut session, &negotiation_id, (3.0, 1)).await?;
    fixture.acked("the offer has its receipt", &mut session, &delivery_id).await?;
    set_negotiation(fixture, &negotiation_id, "alice", NegotiationState::Settled);
    let award = v1::TaskAccept { offer_id, details: "by friday".to_owned(), handoff: None };
    let award = fixture.alice.compose(AGENT, MessageType::TaskAccept, &about(&negotiation_id), &award);
    let delivery_id = fixture.deliver(&session, &award);
    let step = "alice awards the work";
    let event = fixture.handling(step, &award.message_id).await?;
    expect(step, "handling.type", &json!("TaskAccept"), &event["type"])?;
    fixture.acked(step, &mut session, &delivery_id).await
}

async fn offer_is_withdrawn(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    fixture.handle("TaskOffer", "withdraw").await?;
    let (negotiation_id, delivery_id, _) = countered(fixture, &mut session, 1.0).await?;
    let step = "the client withdraws its offer";
    let sent = fixture.sent(step, &mut session, MessageType::TaskOffer).await?;
    check_of::<v1::TaskOffer>(fixture, step, &sent, "alice", &negotiation_id)?;
    expect(step, "payload.withdrawn", &true, &sent.payload::<v1::TaskOffer>().withdrawn)?;
    fixture.receipt(&session, &sent);
    fixture.acked("the withdrawal has its receipt", &mut session, &delivery_id).await
}

async fn end_of_a_bid_is_told(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (negotiation_id, delivery_id) = request(fixture, &session);
    bid(fixture, &mut session, &negotiation_id, (COST, 0)).await?;
    fixture.acked("the offer has its receipt", &mut session, &delivery_id).await?;
    set_negotiation(fixture, &negotiation_id, "alice", NegotiationState::Settled);
    let closed = v1::NegotiationClosed {
        negotiation_id: negotiation_id.clone(),
        state: NegotiationState::Settled.into(),
        winner_id: "carol".to_owned(),
        ..Default::default()
    };
    let broker = composer("baton", "broker", fixture.broker.key.clone());
    let closed = broker.compose(AGENT, MessageType::NegotiationClosed, &about(&negotiation_id), &closed);
    let delivery_id = fixture.deliver(&session, &closed);
    let step = "another agent gets the work";
    let event = fixture.handling(step, &closed.message_id).await?;
    expect(step, "handling.type", &json!("NegotiationClosed"), &event["type"])?;
    expect(step, "handling.winner_id", &json!("carol"), &event["winner_id"])?;
    fixture.acked(step, &mut session, &delivery_id).await
}
