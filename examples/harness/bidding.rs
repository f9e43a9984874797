//! Negotiations: the commands of a requester, and the answers of a bidder.

use std::collections::HashMap;

use baton_client::proto::v1::{self, MessageType, NegotiationState, RejectReason};
use baton_client::{About, Bid, Delivered, Link, Negotiation, NotTaken, StandingOffer};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{done, failed, failed_as, say, wrong::Wrong};

/// The cost of an offer that answers a request.
const COST: f64 = 5.0;

/// Asks for offers, and then obeys the commands about them until `orders` ends.
pub(super) async fn negotiate(
    link: Link,
    command: Value,
    mut orders: mpsc::UnboundedReceiver<Value>,
    wrong: Option<Wrong>,
) {
    let text = |name: &str| command[name].as_str().unwrap_or_default();
    let request = v1::TaskRequest { description: text("text").to_owned(), ..Default::default() };
    let mut negotiation = match link.negotiate(text("to"), &About::default(), &request).await {
        Ok(negotiation) => negotiation,
        Err(error) => return failed(&command, &error, wrong),
    };
    done(&command, json!({"negotiation_id": negotiation.id()}));
    let mut offers = HashMap::new();
    let mut is_open = true;
    loop {
        tokio::select! {
            heard = negotiation.next_offer(), if is_open => match heard {
                Ok(Some(offer)) => {
                    if wrong != Some(Wrong::MissesOffers) {
                        say_offered(&negotiation, &offer);
                    }
                    offers.insert(offer.offer_id.clone(), offer);
                }
                Ok(None) => {
                    is_open = false;
                    say_closed(&mut negotiation, wrong).await;
                }
                Err(_) => is_open = false,
            },
            order = orders.recv() => match order {
                Some(order) => obey(&negotiation, &offers, &order, wrong).await,
                None => return,
            },
        }
    }
}

fn say_offered(negotiation: &Negotiation, offer: &StandingOffer) {
    say(&json!({
        "event": "offered",
        "negotiation_id": negotiation.id(),
        "agent_id": offer.agent_id,
        "offer_id": offer.offer_id,
        "cost": offer.terms.cost,
        "round": offer.terms.round,
    }));
}

async fn say_closed(negotiation: &mut Negotiation, wrong: Option<Wrong>) {
    let Ok(closed) = negotiation.closed().await else { return };
    if wrong != Some(Wrong::MissesEnds) {
        let state = state_name(closed.state());
        say(&json!({"event": "closed", "negotiation_id": closed.negotiation_id, "state": state}));
    }
}

fn state_name(state: NegotiationState) -> &'static str {
    state.as_str_name().trim_start_matches("NEGOTIATION_STATE_")
}

/// Counters or awards an offer.
async fn obey(negotiation: &Negotiation, offers: &HashMap<String, StandingOffer>, order: &Value, wrong: Option<Wrong>) {
    let Some(offer) = order["offer_id"].as_str().and_then(|id| offers.get(id)) else {
        return failed_as(order, json!({"kind": "other", "message": "no such offer was heard"}), wrong);
    };
    let sent = match order["command"].as_str() {
        Some("counter") => {
            let cost = order["cost"].as_f64().unwrap_or_default();
            negotiation.counter(offer, &v1::TaskOffer { cost, ..offer.terms.clone() }).await
        }
        _ => negotiation.award(offer, order["text"].as_str().unwrap_or_default()).await,
    };
    match sent {
        Ok(_) => done(order, json!({})),
        Err(error) => failed(order, &error, wrong),
    }
}

/// The answer to a request or a counter-offer, as the suite has configured it.
pub(super) async fn answer(link: &Link, asked: &Delivered, how: &str, wrong: Option<Wrong>) -> Result<Bid, NotTaken> {
    let counter = (asked.kind() == MessageType::TaskOffer).then(|| asked.payload::<v1::TaskOffer>());
    let cost = counter.map_or(COST, |counter| counter.cost);
    let offer = v1::TaskOffer { confidence: 0.9, cost, ..Default::default() };
    match (how, wrong) {
        (_, Some(Wrong::LeavesRequests)) => Ok(Bid::Later),
        (_, Some(Wrong::ForgetsRounds)) => {
            let about = About::handoff("", 0, asked.negotiation_id());
            link.send(&asked.envelope.sender_id, MessageType::TaskOffer, &about, &offer).await?;
            Ok(Bid::Later)
        }
        ("decline", _) => {
            let reason = RejectReason::Overloaded.into();
            Ok(Bid::Decline(v1::TaskDecline { reason, reason_text: "told to decline".to_owned() }))
        }
        ("withdraw", _) => Ok(Bid::Offer(v1::TaskOffer { withdrawn: true, ..Default::default() })),
        _ => Ok(Bid::Offer(offer)),
    }
}
