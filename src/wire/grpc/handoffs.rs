//! `HandoffService`.

use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

use super::{
    auth, checked, handoffs_watch, numbered, page_size, parsed_id, read_small, refuse, refuse_shared,
    responses::Responses, run_large,
};
use crate::{
    broker::{
        Broker, BrokerError, Update, Updates,
        access::{Caller, Purpose},
        queries::{HandoffFilter, View},
    },
    domain::{EntityId, handoff::State},
    envelope::Checks,
    ids::{AgentId, MessageId, NAME_LENGTH_MAX, TaskId},
    proto::v1::{self, handoff_service_server::HandoffService},
    wire::{status, to_proto},
};

pub(super) struct Handoffs {
    broker: Broker,
}

impl Handoffs {
    pub(super) fn new(broker: Broker) -> Self {
        Self { broker }
    }
}

#[tonic::async_trait]
impl HandoffService for Handoffs {
    async fn get_handoff(
        &self,
        request: Request<v1::GetHandoffRequest>,
    ) -> Result<Response<v1::GetHandoffResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadHandoffs)?;
        let id = parsed_id("handoff_id", &request.get_ref().handoff_id, MessageId::parse)?;
        let with_context = request.get_ref().include_context;
        let read = move |view: View<'_>| {
            let handoff = view.shown_handoff(id)?;
            let context = if with_context { view.context_of(&handoff.handoff)? } else { None };
            Ok((handoff, context))
        };
        let (handoff, context) = read_small(&self.broker, &caller, read).await.map_err(refuse)?;
        Ok(Response::new(v1::GetHandoffResponse {
            handoff: Some(to_proto::shown_handoff(&handoff)),
            context: context.unwrap_or_default(),
        }))
    }

    async fn list_handoffs(
        &self,
        request: Request<v1::ListHandoffsRequest>,
    ) -> Result<Response<v1::ListHandoffsResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadHandoffs)?;
        run_large(&self.broker, &caller, move |broker, caller| list(broker, caller, request.get_ref()))
            .await
            .map(Response::new)
    }

    type WatchHandoffsStream = Responses<v1::WatchHandoffsResponse>;

    async fn watch_handoffs(
        &self,
        request: Request<v1::WatchHandoffsRequest>,
    ) -> Result<Response<Self::WatchHandoffsStream>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadHandoffs)?;
        let request = request.get_ref();
        let mut checks = Checks::default();
        let task = checks.optional_id("task_id", &request.task_id, TaskId::parse);
        let sender = checks.optional_id("sender_id", &request.sender_id, AgentId::parse);
        let task_type = task_type(&mut checks, &request.task_type);
        checked(checks)?;
        let filter = HandoffFilter { task, sender, task_type, ..HandoffFilter::default() };
        Ok(Response::new(handoffs_watch::stream(self.broker.clone(), caller, filter, request.after_cursor)))
    }

    type WatchHandoffStream = Responses<v1::WatchHandoffResponse>;

    async fn watch_handoff(
        &self,
        request: Request<v1::WatchHandoffRequest>,
    ) -> Result<Response<Self::WatchHandoffStream>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadHandoffs)?;
        let handoff = parsed_id("handoff_id", &request.get_ref().handoff_id, MessageId::parse)?;
        // A handoff that the caller may not see gets the same answer as an absent one (SPEC 5).
        let shown = read_small(&self.broker, &caller, move |view| view.shown_handoff(handoff)).await.map_err(refuse)?;
        // A request never changes, so it is read once.
        let request = shown.request;
        let (updates, receiver) = Updates::each(UPDATES_MAX);
        let watch = self.broker.watch(EntityId::Handoff(handoff), updates).await.map_err(refuse_shared)?;
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
        Ok(Response::new(Box::pin(responses)))
    }
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
