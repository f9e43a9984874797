//! Contexts of handoffs. That of a request is stored as a checkpoint of its task, so any process of the agent can send it
//! when a candidate has accepted.

use std::time::Duration;

use baton_client::{
    About, Client, Trust, Watch, completion_of, context_of_sections,
    envelope::signing,
    proto::v1::{self, HandoffState, MessageType, context_section::Content, get_context_section_response as answer},
    time::{Clock as _, SystemClock},
};
use prost::Message as _;
use serde_json::{Map, Value, json};

use crate::{
    ActError, Face,
    text::{DATA_MAX, TEXT_MAX, clean, clean_json},
};

/// When a watch that has failed begins again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The sections that a model gives: each member is one. A section is an object or a list, so any other value is wrapped.
pub(crate) fn sections_of(members: &Map<String, Value>) -> Vec<v1::ContextSection> {
    let section = |(name, value): (&String, &Value)| {
        let text = match value {
            Value::Object(_) | Value::Array(_) => value.to_string(),
            other => json!({ "value": other }).to_string(),
        };
        v1::ContextSection { name: name.clone(), content: Some(Content::Json(text)), ..Default::default() }
    };
    members.iter().map(section).collect()
}

/// Stores the sections as the latest context of the task.
pub(crate) async fn store(face: &Face, about: &About, sections: Vec<v1::ContextSection>) -> Result<(), ActError> {
    let client = face.client().await?;
    let payload = context_of_sections(sections);
    let envelope = face.composer().encode("", MessageType::ContextCheckpoint, about, &payload);
    client.answer(client.contexts().checkpoint_context(v1::CheckpointContextRequest { envelope }).await)?;
    Ok(())
}

/// The sections of the latest context of the task; `None`: it has none.
pub(crate) async fn latest(face: &Face, task_id: &str) -> Result<Option<Vec<v1::ContextSection>>, ActError> {
    Ok(version(face, task_id, 0).await?.map(|(_, sections)| sections))
}

/// A version of the task's context with its sections, 0 for the latest; `None`: none that this agent may read.
pub(crate) async fn version(
    face: &Face,
    task_id: &str,
    version: u64,
) -> Result<Option<(v1::ContextVersion, Vec<v1::ContextSection>)>, ActError> {
    let client = face.client().await?;
    let request = v1::GetContextRequest { task_id: task_id.to_owned(), version };
    let version = match client.answer(client.contexts().get_context(request).await) {
        Ok(answer) => answer.version.unwrap_or_default(),
        Err(error) if error.reason() == Some("CONTEXT_VERSION_UNKNOWN") => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut sections = Vec::new();
    for info in &version.sections {
        if let Some(content) = content_of(&client, &version, &info.name).await? {
            let (schema_id, secret) = (info.schema_id.clone(), info.secret);
            let schema_version = info.schema_version.clone();
            sections.push(v1::ContextSection {
                name: info.name.clone(),
                content: Some(content),
                schema_id,
                schema_version,
                secret,
                ..Default::default()
            });
        }
    }
    Ok(Some((version, sections)))
}

async fn content_of(client: &Client, version: &v1::ContextVersion, name: &str) -> Result<Option<Content>, ActError> {
    let request = v1::GetContextSectionRequest {
        task_id: version.task_id.clone(),
        name: name.to_owned(),
        version: version.version,
        ..Default::default()
    };
    let found = client.answer(client.contexts().get_context_section(request).await)?;
    Ok(match found.content {
        Some(answer::Content::Json(text)) => Some(Content::Json(text)),
        Some(answer::Content::Bytes(bytes)) => Some(Content::Bytes(bytes)),
        Some(answer::Content::Reference(reference)) => Some(Content::Reference(reference)),
        // Neither a base nor a digest was named.
        Some(answer::Content::Delta(_) | answer::Content::NotModified(_)) | None => None,
    })
}

/// Sends the stored context of a handoff that a candidate has accepted. Another process may have sent it.
pub(crate) async fn send(face: &Face, handoff: &v1::Handoff) -> Result<(), ActError> {
    if handoff.state() != HandoffState::Accepted || handoff.sender_id != face.id() {
        return Ok(());
    }
    // Not stored yet: the act that made the request stores it, and sends it then.
    let Some(mut sections) = latest(face, &handoff.task_id).await? else { return Ok(()) };
    if !handoff.wanted_sections.is_empty() {
        sections.retain(|section| handoff.wanted_sections.contains(&section.name));
    }
    let about = About::handoff(&handoff.task_id, handoff.epoch, &handoff.handoff_id);
    let context = context_of_sections(sections);
    match face.send(&handoff.candidate_id, MessageType::TaskContextTransfer, &about, &context).await {
        Err(error) if !matches!(error.reason.as_str(), "HANDOFF_STATE" | "HANDOFF_FINAL" | "STALE_EPOCH") => Err(error),
        _ => Ok(()),
    }
}

/// Sends the context of each handoff of this agent, as its candidate accepts. Never ends.
pub(crate) async fn send_all(face: &Face) {
    loop {
        if let Err(error) = watch(face).await {
            tracing::debug!(%error, "the watch of handoffs begins again");
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

async fn watch(face: &Face) -> Result<(), ActError> {
    let request = v1::WatchHandoffsRequest { sender_id: face.id().to_owned(), ..Default::default() };
    let mut watch = Watch::open(face.client().await?, request).await?;
    while let Some(update) = watch.next().await? {
        if let Some(v1::watch_handoffs_response::Event::Handoff(handoff)) = update.event
            && handoff.state() == HandoffState::Accepted
            // A list has no wanted sections.
            && let Err(error) = send(face, &face.handoff(&handoff.handoff_id).await?).await
        {
            tracing::warn!(handoff_id = %handoff.handoff_id, %error, "the context is not sent");
        }
    }
    Ok(())
}

/// The context of a handoff to this agent, after its signature and its digest are verified.
pub(crate) async fn verified(
    face: &Face,
    handoff: &v1::Handoff,
    envelope: impl AsRef<[u8]>,
) -> Result<v1::TaskContextTransfer, ActError> {
    let wrong = |problem: &str| {
        let text = format!(
            "The context is not what {} has sent: {problem}. Do not take the task; tell the user.",
            handoff.sender_id
        );
        ActError::new("SIGNATURE_INVALID", text).of_handoff(&handoff.handoff_id)
    };
    let envelope = envelope.as_ref().to_vec();
    if envelope.is_empty() {
        return Err(wrong("the broker shows none"));
    }
    let client = face.client().await?;
    let envelope = client.verified(envelope.into(), &Trust::Broker, SystemClock.now()).await?;
    let is_of_handoff = envelope.sender_id == handoff.sender_id
        && envelope.message_type() == MessageType::TaskContextTransfer
        && (envelope.task_id.as_str(), envelope.epoch) == (handoff.task_id.as_str(), handoff.epoch)
        && envelope.correlation_id == handoff.handoff_id;
    if !is_of_handoff {
        return Err(wrong("the broker shows a message of another agent or handoff"));
    }
    let payload = envelope.payload.unwrap_or_default();
    let context = v1::TaskContextTransfer::decode(payload.value).map_err(|error| wrong(&error.to_string()))?;
    match completion_of(&context).context_digest == handoff.context_digest {
        true => Ok(context),
        false => Err(wrong("its digest is another one")),
    }
}

/// The sections as data for a model.
pub(crate) fn shown(sections: &[v1::ContextSection], wanted: &[String]) -> Map<String, Value> {
    let mut left = DATA_MAX;
    let mut shown = Map::new();
    for section in sections.iter().filter(|section| wanted.is_empty() || wanted.contains(&section.name)) {
        let value = match &section.content {
            _ if section.secret => json!({"secret": "not shown to a model"}),
            Some(Content::Json(text)) => clean_json(text, left),
            Some(Content::Bytes(bytes)) => match std::str::from_utf8(&bytes.data) {
                Ok(text) if bytes.media_type.starts_with("text/") => clean(text, left.min(TEXT_MAX)).into(),
                _ => json!({
                    "media_type": bytes.media_type, "size_bytes": bytes.data.len(),
                    "sha256": hex::encode(signing::sha256(&[&bytes.data])),
                }),
            },
            Some(Content::Reference(found)) => json!({"uri": found.uri, "size_bytes": found.size_bytes}),
            Some(Content::Delta(_)) | None => Value::Null,
        };
        left = left.saturating_sub(value.to_string().len());
        shown.insert(clean(&section.name, 128), value);
    }
    shown
}
