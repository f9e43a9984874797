//! The pages of negotiations: the list, and one negotiation with its bids.

use askama::Template;
use axum::{
    Extension,
    extract::{Path, Query, State},
    response::Response,
};
use serde::Deserialize;

use super::{
    PAGE_SIZE,
    acts::{self, Offered},
    lists::{check_list, place},
    named, no_handoff, optional, parsed, shown,
};
use crate::{
    broker::{
        BrokerError,
        access::{Caller, Purpose},
        queries::{NegotiationFilter, View},
    },
    domain::negotiation::State as NegotiationState,
    ids::{AgentId, MessageId},
    proto::v1,
    wire::{
        console::Console,
        to_proto::{self, time_text},
    },
};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NegotiationsQuery {
    state: String,
    agent: String,
    page: String,
}

#[derive(Template)]
#[template(path = "negotiations.html")]
struct NegotiationsPage {
    who: String,
    query: NegotiationsQuery,
    states: [&'static str; 6],
    rows: Vec<NegotiationRow>,
    next: String,
}

struct NegotiationRow {
    id: String,
    state: &'static str,
    requester: String,
    receiver: String,
    task_type: String,
    task: String,
    asked: u32,
    rule: &'static str,
    created_at: String,
    offers_until: String,
    decides_until: String,
    closed_at: String,
    winner: String,
    handoff: String,
    failure: String,
}

impl NegotiationRow {
    fn new(shown: &v1::Negotiation) -> Self {
        let failure = match shown.error_code {
            0 => String::new(),
            _ => {
                let code = shown.error_code().as_str_name().trim_start_matches("ERROR_CODE_");
                format!("{code}: {}", shown.error_message)
            }
        };
        Self {
            id: shown.negotiation_id.clone(),
            state: shown.state().as_str_name().trim_start_matches("NEGOTIATION_STATE_"),
            requester: shown.requester_id.clone(),
            receiver: shown.receiver_id.clone(),
            task_type: shown.task_type.clone(),
            task: shown.task_id.clone(),
            asked: shown.asked,
            rule: match shown.award_rule {
                0 => "the requester decides",
                _ => shown.award_rule().as_str_name().trim_start_matches("AWARD_RULE_"),
            },
            created_at: time_text(shown.create_time.as_ref()),
            offers_until: time_text(shown.offers_deadline.as_ref()),
            decides_until: time_text(shown.decision_deadline.as_ref()),
            closed_at: time_text(shown.close_time.as_ref()),
            winner: shown.winner_id.clone(),
            handoff: shown.handoff_id.clone(),
            failure,
        }
    }
}

pub(super) async fn list(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<NegotiationsQuery>,
) -> Response {
    let reader = caller.clone();
    let list = move |view: View<'_>| {
        let state = named("state", &query.state, NegotiationState::ALL, NegotiationState::name)?;
        let agent = optional("agent", &query.agent, AgentId::parse)?;
        let filter = NegotiationFilter { agent, states: state.into_iter().collect() };
        let page = view.negotiations(&filter, PAGE_SIZE, &query.page)?;
        let no_such = || view.access.no_such_negotiation(view.caller, no_handoff());
        check_list(view, Purpose::ReadNegotiations, page.entries.is_empty(), no_such)?;
        let row = |found: &_| NegotiationRow::new(&to_proto::negotiation_for(found, &reader));
        Ok(NegotiationsPage {
            who: reader.to_string(),
            query,
            states: NegotiationState::ALL.map(NegotiationState::name),
            rows: page.entries.iter().map(|found| row(found)).collect(),
            next: page.next_token,
        })
    };
    shown(&console, &caller, list).await
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct BidsQuery {
    /// The place of the first bid that is shown.
    page: String,
}

#[derive(Template)]
#[template(path = "negotiation.html")]
struct NegotiationPage {
    who: String,
    row: NegotiationRow,
    acts: Vec<Offered>,
    bids: Vec<BidRow>,
    next: Option<usize>,
}

struct BidRow {
    agent: String,
    state: &'static str,
    is_awarded: bool,
    confidence: String,
    cost: String,
    duration: String,
    round: u32,
    valid_until: String,
    offered_at: String,
}

impl BidRow {
    fn new(bid: &v1::NegotiationBid, awarded: &str) -> Self {
        let number = |value: f64| if bid.offer_id.is_empty() { String::new() } else { value.to_string() };
        Self {
            agent: bid.agent_id.clone(),
            state: bid.state().as_str_name().trim_start_matches("BID_STATE_"),
            is_awarded: !awarded.is_empty() && bid.offer_id == awarded,
            confidence: number(bid.confidence),
            cost: number(bid.cost),
            duration: bid.estimated_duration.as_ref().map(|span| format!("{} s", span.seconds)).unwrap_or_default(),
            round: bid.round,
            valid_until: time_text(bid.valid_until.as_ref()),
            offered_at: time_text(bid.offer_time.as_ref()),
        }
    }
}

pub(super) async fn show(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<BidsQuery>,
) -> Response {
    let reader = caller.clone();
    let show = move |view: View<'_>| -> Result<NegotiationPage, BrokerError> {
        let id = parsed("negotiation_id", &id, MessageId::parse)?;
        let from = place(&query.page)?;
        // A bidder does not see the other bids.
        let negotiation = view.negotiation(id)?;
        let shown = to_proto::negotiation_for(&negotiation, &reader);
        let until = from.saturating_add(PAGE_SIZE);
        Ok(NegotiationPage {
            who: reader.to_string(),
            row: NegotiationRow::new(&shown),
            acts: acts::of_negotiation(view, &negotiation),
            bids: shown.bids.iter().skip(from).take(PAGE_SIZE).map(|bid| BidRow::new(bid, &shown.offer_id)).collect(),
            next: Some(until).filter(|until| *until < shown.bids.len()),
        })
    };
    shown(&console, &caller, show).await
}
