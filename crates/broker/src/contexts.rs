//! Payloads of envelopes that the broker has received, and the contents of stored contexts.

use bytes::Bytes;
use prost::Message;
use serde_json::{Value, json};

use crate::{
    BrokerError,
    domain::{
        context::{BASES_MAX, Origin, Section, Version},
        mailbox::EnvelopePlace,
    },
    envelope::{read_checked_json, signing::sha256},
    ids::TaskId,
    proto::v1::{self, context_section::Content},
    records::{ContextSectionRecord, ContextVersionRecord, DecodeError, read_envelope},
    store::{Key, Record},
};

/// The payload of an envelope. `None`: the envelope has none of this type.
pub(super) fn payload_in<M: Message + Default>(raw: &Bytes) -> Option<M> {
    let payload = v1::Envelope::decode(raw.clone()).ok()?.payload?;
    M::decode(payload.value).ok()
}

/// The latest version with a section of this name that fits, and the section. Looks at the versions whose sections can be
/// the base of a delta; `last` is the number of the task's latest. `get` reads a record.
pub(super) fn latest_section<E: From<DecodeError>>(
    task: &TaskId,
    last: u64,
    name: &str,
    fits: impl Fn(&Section) -> bool,
    mut get: impl FnMut(&Key) -> Result<Option<Record>, E>,
) -> Result<Option<(Version, Section)>, E> {
    for number in (last.saturating_sub(BASES_MAX) + 1..=last).rev() {
        let key = ContextVersionRecord::key(task, number);
        // A removal in the background may have taken a version of the range.
        let Some(stored) = get(&key)? else { continue };
        let version = ContextVersionRecord::decode(&key.key, &stored.value)?.0;
        if let Some(section) = version.section(name).filter(|section| fits(section)).cloned() {
            return Ok(Some((version, section)));
        }
    }
    Ok(None)
}

/// The content of a section of a version, JSON or bytes. `None`: the broker does not keep it. `get` reads a record.
pub(super) fn content_of<E: From<DecodeError>>(
    version: &Version,
    section: &Section,
    mut get: impl FnMut(&Key) -> Result<Option<Record>, E>,
) -> Result<Option<Content>, E> {
    match section.origin {
        Origin::Value { .. } => {
            let raw = read_envelope(EnvelopePlace::Message(version.message), get)?;
            Ok(raw.and_then(|raw| content_in(&raw, &section.name)))
        }
        Origin::Delta { .. } => {
            let Some(stored) = get(&ContextSectionRecord::key(&version.task, &section.name, &section.sha256))? else {
                return Ok(None);
            };
            Ok(Some(Content::Json(ContextSectionRecord::decode(&stored.value)?.content)))
        }
        Origin::Reference { .. } => Ok(None),
    }
}

/// The content of a section in an envelope, JSON or bytes.
fn content_in(raw: &Bytes, name: &str) -> Option<Content> {
    let context: v1::TaskContextTransfer = payload_in(raw)?;
    let section = context.sections.into_iter().find(|section| section.name == name)?;
    match section.content? {
        content @ (Content::Json(_) | Content::Bytes(_)) => Some(content),
        Content::Reference(_) | Content::Delta(_) => None,
    }
}

/// The reference of a section that came as one.
pub(super) fn reference(section: &Section, uri: &str) -> v1::ContextReference {
    v1::ContextReference {
        uri: uri.to_owned(),
        sha256: Bytes::copy_from_slice(&section.sha256),
        size_bytes: section.size,
        media_type: section.media_type.clone(),
    }
}

/// The media type of JSON sections.
pub(super) const JSON: &str = "application/json";

/// The section of a version, of one that came with its content or as a reference. `is_known`: its schema is registered,
/// and JSON is checked with it.
pub(super) fn content_section(section: &v1::ContextSection, is_known: bool) -> Result<Section, BrokerError> {
    let value = |is_json| Origin::Value { is_json };
    let (sha256, size, media_type, origin) = match section.content.as_ref().ok_or(BrokerError::Internal)? {
        Content::Json(json) => (sha256(&[json.as_bytes()]), json.len() as u64, JSON, value(true)),
        Content::Bytes(bytes) => (sha256(&[&bytes.data]), bytes.data.len() as u64, &*bytes.media_type, value(false)),
        Content::Reference(reference) => {
            let sha256 = reference.sha256.as_ref().try_into().map_err(|_| BrokerError::Internal)?;
            let origin = Origin::Reference { uri: reference.uri.clone() };
            (sha256, reference.size_bytes, &*reference.media_type, origin)
        }
        Content::Delta(_) => return Err(BrokerError::Internal),
    };
    Ok(Section {
        is_checked: is_known && matches!(origin, Origin::Value { is_json: true }),
        name: section.name.clone(),
        sha256,
        size,
        media_type: media_type.to_owned(),
        origin,
        schema: (section.schema_id.clone(), section.schema_version.clone()),
        is_secret: section.secret,
        summary: section.summary.clone(),
    })
}

/// A section as a member of the whole context: its JSON, or a description of a section of another kind. `json` is the JSON
/// of the section, if it is JSON.
pub(super) fn whole_section(section: &Section, json: Option<&str>) -> (String, Value) {
    let value = match json {
        // Stored texts are read with the checks of their arrival, so none fails.
        Some(text) => read_checked_json(text).unwrap_or(Value::Null),
        None => json!({
            "media_type": section.media_type,
            "sha256": hex::encode(section.sha256),
            "size_bytes": section.size,
        }),
    };
    (section.name.clone(), value)
}

/// Whether the envelope carries a context with a secret section.
pub(super) fn has_secret(raw: &Bytes) -> bool {
    let context: Option<v1::TaskContextTransfer> = payload_in(raw);
    context.is_some_and(|context| context.sections.iter().any(|section| section.secret))
}
