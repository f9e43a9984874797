//! `request_offers`, `make_offer` and `choose_offer`.

use std::{sync::Arc, time::Duration};

use baton_client::{
    About,
    ids::check_name,
    proto::v1::{self, BidState, HandoffMode, MessageType, NegotiationState, RejectReason},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Looks,
    moves::{Moved, follow as follow_handoff},
    requests::{own, terms},
    wait_of,
};
use crate::{ActError, Face, steps::Steps, text::short};

pub(super) const REQUEST_OFFERS: &str = "Ask agents for offers to do a piece of work, and return those that come.";
pub(super) const MAKE_OFFER: &str = "Answer a request for offers that `read_mail` shows: offer, decline, or withdraw.";
pub(super) const CHOOSE_OFFER: &str = "Award the work to an offer. With a task of yours it moves to that agent: lent, or \
     for good.";

/// The time for offers, by default and at most, in seconds.
const OFFERS_TIME: u32 = 60;
const OFFERS_TIME_MAX: u32 = 3600;
/// The time for the choice: the longest of the protocol.
const CHOICE_TIME: i64 = 3600;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestOffers {
    /// An agent's id, type:NAME, or all:NAME for every agent of the type.
    to: String,
    /// The work.
    description: String,
    task_type: Option<String>,
    skills: Option<Vec<String>>,
    /// A task that you own, which the award moves. Default: the work is no task.
    task_id: Option<String>,
    /// Until when offers are taken. 1 to 3600, default 60.
    offers_seconds: Option<u32>,
    /// At so many offers it closes.
    offers_wanted: Option<u32>,
    /// 0 to 240, default 45.
    wait_seconds: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MakeOffer {
    /// The message_id of the request.
    negotiation_id: String,
    answer: Answer,
    /// 0 to 1.
    confidence: Option<f64>,
    cost: Option<f64>,
    /// How long the work takes.
    seconds: Option<u32>,
    /// Conditions, or the reason of a decline.
    text: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum Answer {
    Offer,
    Decline,
    Withdraw,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ChooseOffer {
    negotiation_id: String,
    offer_id: String,
    /// For the agent.
    details: Option<String>,
    /// Give the task away for good. Default: lend it.
    for_good: Option<bool>,
    /// 0 to 240, default 45.
    wait_seconds: Option<u64>,
}

/// Where a negotiation is.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Bargain {
    negotiation_id: String,
    /// OPEN, DECIDING: choose; AWARDED, COMPLETED, FAILED, CANCELLED are ends.
    pub(super) state: String,
    /// How many agents were asked.
    asked: u32,
    offers: Vec<Offered>,
    #[serde(skip_serializing_if = "String::is_empty")]
    winner_id: String,
    pub(super) next: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Offered {
    offer_id: String,
    agent_id: String,
    /// OFFERED stands; DECLINED and WITHDRAWN do not.
    state: String,
    confidence: f64,
    cost: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<i64>,
}

pub(super) async fn request_offers(face: Arc<Face>, input: RequestOffers) -> Result<Bargain, ActError> {
    let wait = wait_of(input.wait_seconds)?;
    let name = input.to.strip_prefix("type:").or_else(|| input.to.strip_prefix("all:")).unwrap_or(&input.to);
    check_name(name).map_err(|problem| ActError::argument("/to", problem))?;
    let time = input.offers_seconds.unwrap_or(OFFERS_TIME);
    if !(1..=OFFERS_TIME_MAX).contains(&time) {
        return Err(ActError::argument("/offers_seconds", format!("must be 1 to {OFFERS_TIME_MAX}")));
    }
    let about = match &input.task_id {
        Some(task_id) => own(&face, task_id).await?,
        None => About::default(),
    };
    let deadline = face.composer().clock.now().plus(Duration::from_secs(time.into()));
    let request = v1::TaskRequest {
        description: input.description,
        required_skills: input.skills.unwrap_or_default(),
        task_type: input.task_type.unwrap_or_default(),
        offers_deadline: Some(deadline.into()),
        offers_wanted: input.offers_wanted.unwrap_or(0),
        decision_timeout: Some(prost_types::Duration { seconds: CHOICE_TIME, nanos: 0 }),
        ..Default::default()
    };
    let receipt = face.send(&input.to, MessageType::TaskRequest, &about, &request).await?;
    follow(&face, &receipt.message_id, wait).await
}

/// Follows a negotiation until no further offer is taken, or until the time is over.
pub(super) async fn follow(face: &Face, id: &str, wait: Duration) -> Result<Bargain, ActError> {
    let (mut looks, mut steps) = (Looks::new(wait), Steps::default());
    if !wait.is_zero() {
        looks.follow(face.client().await?, v1::WatchNegotiationRequest { negotiation_id: id.to_owned() });
    }
    loop {
        let negotiation = face.client().await?.get_negotiation(id).await?;
        steps.tell(|| {
            let offers = negotiation.bids.iter().filter(|bid| !bid.offer_id.is_empty()).count();
            format!("{}, offers: {offers}", short(negotiation.state().as_str_name(), "NEGOTIATION_STATE_"))
        });
        if negotiation.state() != NegotiationState::Open || !looks.again().await {
            return Ok(bargain_of(&negotiation));
        }
    }
}

fn bargain_of(negotiation: &v1::Negotiation) -> Bargain {
    let id = &negotiation.negotiation_id;
    let offers: Vec<Offered> = negotiation
        .bids
        .iter()
        .filter(|bid| !bid.offer_id.is_empty())
        .map(|bid| Offered {
            offer_id: bid.offer_id.clone(),
            agent_id: bid.agent_id.clone(),
            state: short(bid.state().as_str_name(), "BID_STATE_"),
            confidence: bid.confidence,
            cost: bid.cost,
            seconds: bid.estimated_duration.as_ref().map(|span| span.seconds),
        })
        .collect();
    let stands = offers.iter().any(|offer| offer.state == "OFFERED");
    let next = match (negotiation.state(), stands) {
        (NegotiationState::Open, _) => {
            format!("Offers are taken. Call `wait` with id {id} later, or `choose_offer` now.")
        }
        (NegotiationState::Deciding, true) => "`choose_offer` with one of the offers.".to_owned(),
        (NegotiationState::Deciding, false) => "No offer stands. Ask other agents, or do the work yourself.".to_owned(),
        _ => "It has ended.".to_owned(),
    };
    Bargain {
        negotiation_id: id.clone(),
        state: short(negotiation.state().as_str_name(), "NEGOTIATION_STATE_"),
        asked: negotiation.asked,
        offers,
        winner_id: negotiation.winner_id.clone(),
        next,
    }
}

pub(super) async fn make_offer(face: Arc<Face>, input: MakeOffer) -> Result<Bargain, ActError> {
    let client = face.client().await?;
    let negotiation = client.get_negotiation(&input.negotiation_id).await?;
    let confidence = input.confidence.unwrap_or(1.0);
    if !(0.0..=1.0).contains(&confidence) {
        return Err(ActError::argument("/confidence", "must be 0 to 1"));
    }
    let text = input.text.unwrap_or_default();
    let about = About::handoff("", 0, &input.negotiation_id);
    let to = &negotiation.requester_id;
    match input.answer {
        Answer::Decline => {
            let decline = v1::TaskDecline { reason: RejectReason::Other.into(), reason_text: text };
            face.send(to, MessageType::TaskDecline, &about, &decline).await?;
        }
        answer => {
            let round = negotiation.bids.iter().find(|bid| bid.agent_id == face.id()).map_or(0, |bid| bid.round);
            let seconds = input.seconds.map(|seconds| prost_types::Duration { seconds: seconds.into(), nanos: 0 });
            let offer = match answer == Answer::Withdraw {
                true => v1::TaskOffer { withdrawn: true, ..Default::default() },
                false => v1::TaskOffer {
                    confidence,
                    estimated_duration: seconds,
                    cost: input.cost.unwrap_or(0.0),
                    conditions: text,
                    round,
                    ..Default::default()
                },
            };
            face.send(to, MessageType::TaskOffer, &about, &offer).await?;
        }
    }
    let next = "An award with a task is an offer in your `inbox`; one without is mail: `read_mail`.".to_owned();
    Ok(Bargain { next, ..bargain_of(&client.get_negotiation(&input.negotiation_id).await?) })
}

pub(super) async fn choose_offer(face: Arc<Face>, input: ChooseOffer) -> Result<Moved, ActError> {
    let wait = wait_of(input.wait_seconds)?;
    let client = face.client().await?;
    let id = &input.negotiation_id;
    let negotiation = client.get_negotiation(id).await?;
    let is_award = |negotiation: &v1::Negotiation| negotiation.offer_id == input.offer_id;
    if !is_award(&negotiation) {
        let bid = negotiation.bids.iter().find(|bid| bid.offer_id == input.offer_id);
        let Some(bid) = bid.filter(|bid| matches!(bid.state(), BidState::Offered | BidState::Countered)) else {
            let text = "There is no such offer that stands. `wait` with the negotiation_id shows the offers.";
            return Err(ActError::new("OFFER_NOT_STANDING", text));
        };
        let (about, handoff) = match negotiation.task_id.as_str() {
            "" => (About::handoff("", 0, id), None),
            task_id => {
                let mode = match input.for_good == Some(true) {
                    true => HandoffMode::Transfer,
                    false => HandoffMode::Delegate,
                };
                let about = About { correlation_id: id.clone(), ..own(&face, task_id).await? };
                (about, Some(terms(&negotiation.task_type, "", mode)))
            }
        };
        let accept =
            v1::TaskAccept { offer_id: input.offer_id.clone(), details: input.details.unwrap_or_default(), handoff };
        face.send(&bid.agent_id, MessageType::TaskAccept, &about, &accept).await?;
    }
    let negotiation = client.get_negotiation(id).await?;
    let bargain = bargain_of(&negotiation);
    match negotiation.handoff_id.as_str() {
        "" => Ok(Moved::of_negotiation(bargain)),
        handoff_id => {
            let moved = follow_handoff(&face, handoff_id, wait).await?;
            Ok(Moved { negotiation: Some(bargain), ..moved })
        }
    }
}
