//! `NegotiationService`.

use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::Status;

use super::{call::Call, checked, numbered, page_size, parsed_id, refuse, refuse_shared, responses::Responses};
use crate::{
    broker::{Broker, BrokerError, Update, Updates, access::Caller, engine::Command, queries::NegotiationFilter},
    domain::{
        EntityId,
        negotiation::{Negotiation, State},
    },
    envelope::Checks,
    ids::{AgentId, MessageId},
    proto::v1,
    wire::{status, to_proto},
};

pub(super) async fn get_negotiation(
    call: Call,
    request: v1::GetNegotiationRequest,
) -> Result<v1::GetNegotiationResponse, Status> {
    let id = parsed_id("negotiation_id", &request.negotiation_id, MessageId::parse)?;
    let negotiation = call.read_small(move |view| view.negotiation(id)).await?;
    Ok(v1::GetNegotiationResponse { negotiation: Some(to_proto::negotiation_for(&negotiation, &call.caller)) })
}

pub(super) async fn list_negotiations(
    call: Call,
    request: v1::ListNegotiationsRequest,
) -> Result<v1::ListNegotiationsResponse, Status> {
    call.run_large(move |broker, caller| list(broker, caller, &request)).await
}

pub(super) async fn watch_negotiation(
    call: Call,
    request: v1::WatchNegotiationRequest,
) -> Result<Responses<v1::WatchNegotiationResponse>, Status> {
    let id = parsed_id("negotiation_id", &request.negotiation_id, MessageId::parse)?;
    // A negotiation that the caller may not see gets the same answer as an absent one (SPEC 5).
    call.read_small(move |view| view.negotiation(id)).await?;
    let (updates, receiver) = Updates::each(UPDATES_MAX);
    let watch = call.broker.watch(EntityId::Negotiation(id), updates).await.map_err(refuse_shared)?;
    let mut is_told_all = false;
    let responses = ReceiverStream::new(receiver).map(Some).chain(tokio_stream::once(None));
    let responses = responses.filter_map(move |update| {
        let _open_until_the_stream_ends = &watch;
        // An error ends the watch as the last update does.
        is_told_all |= update.as_ref().is_some_and(|update| update.as_ref().map_or(true, Update::is_last));
        match update {
            Some(Ok(Update(record))) => {
                let negotiation =
                    record.as_negotiation().map(|record| to_proto::negotiation_for(&record.negotiation, &call.caller));
                Some(Ok(v1::WatchNegotiationResponse { negotiation }))
            }
            Some(Err(error)) => Some(Err(refuse_shared(error))),
            None if is_told_all => None,
            // The updates ended before the last one: the channel was full.
            None => Some(Err(refuse(too_slow()))),
        }
    });
    Ok(Box::pin(responses))
}

pub(super) async fn cancel_negotiation(
    call: Call,
    request: v1::CancelNegotiationRequest,
) -> Result<v1::CancelNegotiationResponse, Status> {
    let negotiation = parsed_id("negotiation_id", &request.negotiation_id, MessageId::parse)?;
    let cancelled = call.ask(|caller, reply| Command::CancelNegotiation { negotiation, caller, reply }).await?;
    Ok(v1::CancelNegotiationResponse { negotiation: Some(to_proto::negotiation_for(&cancelled, &call.caller)) })
}

/// The most updates that wait to be sent to one watcher. The watcher of a negotiation with more offers at a time may
/// have to watch again.
const UPDATES_MAX: usize = 64;

fn too_slow() -> BrokerError {
    let what = "the watcher does not keep up with the negotiation: watch it again";
    BrokerError::LimitExceeded { what, retry_after: status::RETRY_OVERUSE_AFTER }
}

fn list(
    broker: &Broker,
    caller: &Caller,
    request: &v1::ListNegotiationsRequest,
) -> Result<v1::ListNegotiationsResponse, Status> {
    let size = page_size(request.page_size);
    let mut checks = Checks::default();
    let agent = checks.optional_id("agent_id", &request.agent_id, AgentId::parse);
    checks.at_most("states", request.states.len(), State::ALL.len(), "entries");
    let states = numbered(&mut checks, "states", "known states", &request.states, State::from_number);
    let filter = NegotiationFilter { agent, states };
    checked(checks)?;
    let page = broker.view(caller).negotiations(&filter, size, &request.page_token).map_err(refuse)?;
    // A page of a thousand negotiations with a thousand bids each would exceed a frame.
    let without_bids = |negotiation: &Negotiation| v1::Negotiation {
        bids: Vec::new(),
        ..to_proto::negotiation_for(negotiation, caller)
    };
    Ok(v1::ListNegotiationsResponse {
        negotiations: page.entries.iter().map(|negotiation| without_bids(negotiation)).collect(),
        next_page_token: page.next_token,
    })
}
