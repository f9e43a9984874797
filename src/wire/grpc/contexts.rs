//! `ContextService`.

use prost::Message as _;
use tonic::Status;

use super::{call::Call, checked_with, field, page_size, parsed_id, refuse};
use crate::{
    broker::queries::{SectionQuery, View},
    envelope::{Checks, sections},
    ids::{AgentId, MessageId, TaskId, check_name},
    proto::v1,
    wire::to_proto,
};

pub(super) async fn get_context(call: Call, request: v1::GetContextRequest) -> Result<v1::GetContextResponse, Status> {
    let (task, number) = (parsed_id("task_id", &request.task_id, TaskId::parse)?, request.version);
    let view = call.read_small(move |view| view.context(&task, number)).await?;
    Ok(v1::GetContextResponse { version: Some(to_proto::context_version(&view)) })
}

pub(super) async fn get_context_section(
    call: Call,
    request: v1::GetContextSectionRequest,
) -> Result<v1::GetContextSectionResponse, Status> {
    let query = section_query(request)?;
    // A section may have a megabyte, and a delta or a filter parses it.
    let read = move |view: View<'_>| view.context_section(&query);
    call.read_large(read).await
}

pub(super) async fn list_context_versions(
    call: Call,
    request: v1::ListContextVersionsRequest,
) -> Result<v1::ListContextVersionsResponse, Status> {
    let (task, size) = (parsed_id("task_id", &request.task_id, TaskId::parse)?, page_size(request.page_size));
    let token = request.page_token;
    let read = move |view: View<'_>| view.context_versions(&task, size, &token);
    let page = call.read_large(read).await?;
    Ok(v1::ListContextVersionsResponse {
        versions: page.entries.iter().map(to_proto::context_version).collect(),
        next_page_token: page.next_token,
    })
}

pub(super) async fn checkpoint_context(
    call: Call,
    request: v1::CheckpointContextRequest,
) -> Result<v1::CheckpointContextResponse, Status> {
    let envelope = request.envelope;
    // Bytes that do not decode are refused by the same check as those of any other call.
    let decoded = v1::Envelope::decode(envelope.clone()).unwrap_or_default();
    if !envelope.is_empty() && decoded.message_type() != v1::MessageType::ContextCheckpoint {
        return Err(refuse(field("envelope.message_type", "must be CONTEXT_CHECKPOINT")));
    }
    let receipt = super::submit(&call, envelope, None).await?;
    // The sender has just stored the version, so it may see it.
    let task = parsed_id("task_id", &decoded.task_id, TaskId::parse)?;
    let message = MessageId::parse(&decoded.message_id).ok();
    let author = AgentId::parse(&decoded.sender_id).map_err(|error| refuse(field("envelope", &error.to_string())))?;
    let version = match message {
        Some(message) => call.of_sender(author).read_small(move |view| view.context_of_message(&task, message)).await?,
        None => None,
    };
    let version = version.as_ref().map(to_proto::context_version);
    Ok(v1::CheckpointContextResponse { receipt: Some(receipt), version })
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
