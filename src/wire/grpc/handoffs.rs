//! `HandoffService`.

use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::Status;

use super::{
    call::Call, checked, handoffs_watch, numbered, page_size, parsed_id, refuse, refuse_shared, responses::Responses,
};
use crate::{
    broker::{
        Broker, BrokerError, Update, Updates,
        access::Caller,
        queries::{HandoffFilter, View},
    },
    domain::{EntityId, handoff::State},
    envelope::Checks,
    ids::{AgentId, MessageId, NAME_LENGTH_MAX, TaskId},
    proto::v1,
    wire::{status, to_proto},
};

pub(super) async fn get_handoff(call: Call, request: v1::GetHandoffRequest) -> Result<v1::GetHandoffResponse, Status> {
    let id = parsed_id("handoff_id", &request.handoff_id, MessageId::parse)?;
    let with_context = request.include_context;
    let read = move |view: View<'_>| {
        let handoff = view.shown_handoff(id)?;
        let context = if with_context { view.context_of(&handoff.handoff)? } else { None };
        Ok((handoff, context))
    };
    let (handoff, context) = call.read_small(read).await?;
    Ok(v1::GetHandoffResponse {
        handoff: Some(to_proto::shown_handoff(&handoff)),
        context: context.unwrap_or_default(),
    })
}

pub(super) async fn list_handoffs(
    call: Call,
    request: v1::ListHandoffsRequest,
) -> Result<v1::ListHandoffsResponse, Status> {
    call.run_large(move |broker, caller| list(broker, caller, &request)).await
}

pub(super) async fn watch_handoffs(
    call: Call,
    request: v1::WatchHandoffsRequest,
) -> Result<Responses<v1::WatchHandoffsResponse>, Status> {
    let mut checks = Checks::default();
    let task = checks.optional_id("task_id", &request.task_id, TaskId::parse);
    let sender = checks.optional_id("sender_id", &request.sender_id, AgentId::parse);
    let task_type = task_type(&mut checks, &request.task_type);
    checked(checks)?;
    let filter = HandoffFilter { task, sender, task_type, ..HandoffFilter::default() };
    Ok(handoffs_watch::stream(call, filter, request.after_cursor))
}

pub(super) async fn watch_handoff(
    call: Call,
    request: v1::WatchHandoffRequest,
) -> Result<Responses<v1::WatchHandoffResponse>, Status> {
    let handoff = parsed_id("handoff_id", &request.handoff_id, MessageId::parse)?;
    // A handoff that the caller may not see gets the same answer as an absent one (SPEC 5).
    let shown = call.read_small(move |view| view.shown_handoff(handoff)).await?;
    // A request never changes, so it is read once.
    let request = shown.request;
    let (updates, receiver) = Updates::each(UPDATES_MAX);
    let watch = call.broker.watch(EntityId::Handoff(handoff), updates).await.map_err(refuse_shared)?;
    let mut is_told_all = false;
    let responses = ReceiverStream::new(receiver).map(Some).chain(tokio_stream::once(None));
    let responses = responses.filter_map(move |update| {
        let _open_until_the_stream_ends = &watch;
        // An error ends the watch as the last update does.
        is_told_all |= update.as_ref().is_some_and(|update| update.as_ref().map_or(true, Update::is_last));
        match update {
            Some(Ok(Update(record))) => {
                let handoff = record.as_handoff().map(|record| to_proto::handoff(&record.handoff));
                let handoff = handoff.map(|handoff| to_proto::with_request(handoff, &request));
                Some(Ok(v1::WatchHandoffResponse { handoff }))
            }
            Some(Err(error)) => Some(Err(refuse_shared(error))),
            None if is_told_all => None,
            // The updates ended before the handoff's last one: the channel was full.
            None => Some(Err(refuse(too_slow()))),
        }
    });
    Ok(Box::pin(responses))
}

/// The most updates that wait to be sent to one watcher. A handoff has fewer steps unless its agents extend deadlines.
const UPDATES_MAX: usize = 64;

fn too_slow() -> BrokerError {
    let what = "the watcher does not keep up with the handoff: watch it again";
    BrokerError::LimitExceeded { what, retry_after: status::RETRY_OVERUSE_AFTER }
}

fn task_type(checks: &mut Checks, text: &str) -> Option<String> {
    checks.text("task_type", text, NAME_LENGTH_MAX);
    Some(text.to_owned()).filter(|name| !name.is_empty())
}

fn list(
    broker: &Broker,
    caller: &Caller,
    request: &v1::ListHandoffsRequest,
) -> Result<v1::ListHandoffsResponse, Status> {
    let size = page_size(request.page_size);
    let mut checks = Checks::default();
    let task = checks.optional_id("task_id", &request.task_id, TaskId::parse);
    let agent = checks.optional_id("agent_id", &request.agent_id, AgentId::parse);
    checks.at_most("states", request.states.len(), State::ALL.len(), "entries");
    let states = numbered(&mut checks, "states", "known states", &request.states, State::from_number);
    let sender = checks.optional_id("sender_id", &request.sender_id, AgentId::parse);
    let candidate = checks.optional_id("candidate_id", &request.candidate_id, AgentId::parse);
    let task_type = task_type(&mut checks, &request.task_type);
    let deadline_before = checks.time("deadline_before", request.deadline_before.as_ref());
    let open_only = request.open_only;
    checked(checks)?;
    let filter = HandoffFilter { task, agent, sender, candidate, task_type, states, open_only, deadline_before };
    let page = broker.view(caller).handoffs(&filter, size, &request.page_token).map_err(refuse)?;
    Ok(v1::ListHandoffsResponse {
        handoffs: page.entries.iter().map(|handoff| to_proto::handoff(handoff)).collect(),
        next_page_token: page.next_token,
    })
}
