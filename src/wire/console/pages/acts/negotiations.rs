//! Cancelling a negotiation, which its requester alone may do.

use axum::{
    Extension,
    extract::{Path, State},
    response::Response,
};

use super::{Act, Offered, Word, answered, encoded, reviewed};
use crate::{
    broker::{BrokerError, access::Caller, engine::Command, queries::View, refused},
    domain::negotiation::{Negotiation, State as NegotiationState},
    ids::MessageId,
    wire::console::{Console, pages::parsed},
};

/// The acts on a negotiation that can be done now by this caller. No policy gives the right, so others see none.
pub(in crate::wire::console::pages) fn of_negotiation(view: View<'_>, negotiation: &Negotiation) -> Vec<Offered> {
    let is_open = matches!(negotiation.state, NegotiationState::Open | NegotiationState::Deciding);
    if !is_open || view.caller.as_agent() != Some(&negotiation.requester) {
        return Vec::new();
    }
    vec![Offered::new("Cancel the negotiation", format!("/negotiations/{}/cancel", negotiation.id), Ok(()))]
}

pub(super) async fn review(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    reviewed(&console, &caller, move |view| act(view, &id)).await
}

pub(super) async fn cancel(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    let outcome = match parsed("negotiation_id", &id, MessageId::parse) {
        Ok(negotiation) => {
            let acting = caller.clone();
            let command = |reply| Command::CancelNegotiation { negotiation, caller: acting, reply };
            console.broker.ask(command).await.map(drop)
        }
        Err(error) => Err(refused(error)),
    };
    let back = format!("/negotiations/{}", encoded(&id));
    answered(&console, &caller, outcome, &back, move |view| act(view, &id)).await
}

fn act(view: View<'_>, id: &str) -> Result<Act, BrokerError> {
    let negotiation = view.negotiation(parsed("negotiation_id", id, MessageId::parse)?)?;
    let agent = view.caller.agent()?;
    let path = format!("/negotiations/{}", negotiation.id);
    Ok(Act {
        who: view.caller.to_string(),
        section: "negotiations",
        title: "Cancel the negotiation?".to_owned(),
        about: format!("{}, asked of {}", negotiation.task_type, negotiation.receiver),
        effects: vec!["No offer is awarded. The agents that were asked are told.".to_owned()],
        audit: "none: the negotiation is the requester's own".to_owned(),
        path: format!("{path}/cancel"),
        back: path,
        button: "Cancel the negotiation",
        command: vec![
            Word::fixed("baton negotiation cancel"),
            Word::value(&negotiation.id.to_string()),
            Word::fixed(format!(" --id {agent} --key {agent}.pem")),
        ],
        ..Act::default()
    })
}
