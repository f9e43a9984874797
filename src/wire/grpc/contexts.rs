//! `ContextService`.

use prost::Message as _;
use tonic::{Request, Response, Status};

use super::{auth, checked_with, field, messages, page_size, parsed_id, read_large, read_small, refuse};
use crate::{
    broker::{
        Broker,
        access::{Caller, Purpose},
        queries::{SectionQuery, View},
    },
    envelope::{Checks, sections},
    ids::{AgentId, MessageId, TaskId, check_name},
    proto::v1::{self, context_service_server::ContextService},
    wire::to_proto,
};

pub(super) struct Contexts {
    broker: Broker,
}

impl Contexts {
    pub(super) fn new(broker: Broker) -> Self {
        Self { broker }
    }
}

#[tonic::async_trait]
impl ContextService for Contexts {
    async fn get_context(
        &self,
        request: Request<v1::GetContextRequest>,
    ) -> Result<Response<v1::GetContextResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadContexts)?;
        let request = request.get_ref();
        let (task, number) = (parsed_id("task_id", &request.task_id, TaskId::parse)?, request.version);
        let view = read_small(&self.broker, &caller, move |view| view.context(&task, number)).await.map_err(refuse)?;
        Ok(Response::new(v1::GetContextResponse { version: Some(to_proto::context_version(&view)) }))
    }

    async fn get_context_section(
        &self,
        request: Request<v1::GetContextSectionRequest>,
    ) -> Result<Response<v1::GetContextSectionResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadContexts)?;
        let query = section_query(request.into_inner())?;
        // A section may have a megabyte, and a delta or a filter parses it.
        let read = move |view: View<'_>| view.context_section(&query);
        read_large(&self.broker, &caller, read).await.map(Response::new).map_err(refuse)
    }

    async fn list_context_versions(
        &self,
        request: Request<v1::ListContextVersionsRequest>,
    ) -> Result<Response<v1::ListContextVersionsResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadContexts)?;
        let request = request.into_inner();
        let (task, size) = (parsed_id("task_id", &request.task_id, TaskId::parse)?, page_size(request.page_size));
        let token = request.page_token;
        let read = move |view: View<'_>| view.context_versions(&task, size, &token);
        let page = read_large(&self.broker, &caller, read).await.map_err(refuse)?;
        Ok(Response::new(v1::ListContextVersionsResponse {
            versions: page.entries.iter().map(to_proto::context_version).collect(),
            next_page_token: page.next_token,
        }))
    }

    async fn checkpoint_context(
        &self,
        request: Request<v1::CheckpointContextRequest>,
    ) -> Result<Response<v1::CheckpointContextResponse>, Status> {
        let sender = messages::sender(&self.broker, &request)?;
        let envelope = request.into_inner().envelope;
        // Bytes that do not decode are refused by the same check as those of any other call.
        let decoded = v1::Envelope::decode(envelope.clone()).unwrap_or_default();
        if !envelope.is_empty() && decoded.message_type() != v1::MessageType::ContextCheckpoint {
            return Err(refuse(field("envelope.message_type", "must be CONTEXT_CHECKPOINT")));
        }
        let receipt = super::submit(&self.broker, envelope, sender.as_ref(), None).await?;
        // The sender has just stored the version, so it may see it.
        let task = parsed_id("task_id", &decoded.task_id, TaskId::parse)?;
        let message = MessageId::parse(&decoded.message_id).ok();
        let author = Caller::Agent(
            AgentId::parse(&decoded.sender_id).map_err(|error| refuse(field("envelope", &error.to_string())))?,
        );
        let version = match message {
            Some(message) => read_small(&self.broker, &author, move |view| view.context_of_message(&task, message))
                .await
                .map_err(refuse)?,
            None => None,
        };
        let version = version.as_ref().map(to_proto::context_version);
        Ok(Response::new(v1::CheckpointContextResponse { receipt: Some(receipt), version }))
    }
}

fn section_query(request: v1::GetContextSectionRequest) -> Result<SectionQuery, Status> {
    let mut checks = Checks::default();
    let task = checks.id("task_id", &request.task_id, TaskId::parse);
    if let Err(error) = check_name(&request.name) {
        checks.wrong("name", error.to_string());
    }
    let have = match request.have_sha256.is_empty() {
        true => None,
        false => checks.digest("have_sha256", &request.have_sha256),
    };
    if let Some(Err(problem)) = request.filter.as_ref().map(sections::check_filter) {
        checks.wrong("filter", problem);
    }
    let task = checked_with(checks, task)?;
    Ok(SectionQuery { task, name: request.name, version: request.version, have, filter: request.filter })
}
