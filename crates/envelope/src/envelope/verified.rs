//! The steps from bytes to a verified envelope.

use bytes::Bytes;
use prost::Message;

use super::{
    APPEND_BYTES_MAX, Checks, EnvelopeError, PAYLOAD_BYTES_MAX,
    keys::PublicKey,
    payload::{self, Body},
    signing::{self, Digest32},
};
use crate::{
    ids::{AgentId, KeyId, MessageId, TaskId},
    proto::{Any, v1},
    protocol::{Header, MessageType, Names, Receiver, TraceContext, rules},
    time::Timestamp,
};

/// An envelope with valid fields and payload, and an unverified signature.
#[derive(Debug, Clone)]
pub struct UnverifiedEnvelope {
    raw: Bytes,
    wire: v1::Envelope,
    header: Header,
    body: Body,
}

/// An envelope whose signature was verified with its sender's key. Only [`UnverifiedEnvelope::verify`] makes one.
#[derive(Debug, Clone)]
pub struct VerifiedEnvelope {
    raw: Bytes,
    header: Header,
    body: Body,
    content_digest: Digest32,
}

/// A lookup of agents' public keys.
pub trait KeyRing {
    /// The agent's key with this id, if it is valid at this time.
    fn key(&self, agent: &AgentId, key_id: &KeyId, now: Timestamp) -> Result<PublicKey, KeyRingError>;
}

/// The reasons why a key ring gives no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRingError {
    /// The agent or the key is not registered.
    Unknown,
    /// The key is revoked, expired, or not valid yet.
    NotValid,
}

impl UnverifiedEnvelope {
    /// Parses the bytes of an envelope and checks every field and the payload.
    pub fn parse(raw: Bytes) -> Result<Self, EnvelopeError> {
        let wire = v1::Envelope::decode(raw.clone())
            .map_err(|error| EnvelopeError::Malformed { part: "envelope", problem: error.to_string() })?;
        // In this order: the size is checked before the payload is decoded, so an oversized payload costs no parse.
        let (header, payload) = header(&wire)?;
        check_size(header.message_type, payload.value.len())?;
        let body = payload::parse(header.message_type, payload)?;
        check_task_of_terms(&header, &body)?;
        Ok(Self { raw, wire, header, body })
    }

    /// The header. Unauthenticated.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The payload. Unauthenticated.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Verifies the signature with the sender's key. An unsigned envelope passes only if `unsigned_allowed`.
    /// Its sender is then unproven, so the caller passes `true` only where the operator allows this (SPEC 2).
    pub fn verify(
        self,
        keys: &impl KeyRing,
        now: Timestamp,
        unsigned_allowed: bool,
    ) -> Result<VerifiedEnvelope, EnvelopeError> {
        let key = match (self.wire.signature.is_empty(), unsigned_allowed) {
            (true, true) => None,
            (true, false) => return Err(EnvelopeError::SignatureMissing),
            (false, _) => Some(self.key(keys, now)?),
        };
        let input = signing::envelope_input(&self.wire);
        if let Some((key_id, key)) = key
            && !key.verifies(&input, &self.wire.signature)
        {
            return Err(EnvelopeError::SignatureInvalid { sender: self.header.sender, key_id });
        }
        // Over the signed bytes, not the raw ones: a repeat may differ in trace context and signature (SPEC 2).
        let content_digest = signing::sha256(&[&input]);
        let Self { raw, header, body, .. } = self;
        Ok(VerifiedEnvelope { raw, header, body, content_digest })
    }

    fn key(&self, keys: &impl KeyRing, now: Timestamp) -> Result<(KeyId, PublicKey), EnvelopeError> {
        // An unknown version stands for an unknown layout, which no key could verify.
        if self.wire.signature_version != signing::SIGNATURE_VERSION {
            return Err(EnvelopeError::SignatureVersionUnknown { version: self.wire.signature_version });
        }
        let mut checks = Checks::default();
        let key_id = checks.id("envelope.key_id", &self.wire.key_id, KeyId::parse);
        let key_id = checks.finish_with(key_id)?;
        let sender = self.header.sender.clone();
        match keys.key(&sender, &key_id, now) {
            Err(KeyRingError::Unknown) => Err(EnvelopeError::KeyUnknown { sender, key_id }),
            Err(KeyRingError::NotValid) => Err(EnvelopeError::KeyNotValid { sender, key_id }),
            Ok(key) => Ok((key_id, key)),
        }
    }
}

impl VerifiedEnvelope {
    /// The bytes as received.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// The fields beside the payload.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The payload.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// The SHA-256 of the signed bytes: two envelopes with the same digest have the same content.
    pub fn content_digest(&self) -> &Digest32 {
        &self.content_digest
    }
}

/// Checks the size of a payload. An append may have more bytes, so that an entry of the largest size has room for its
/// topic.
fn check_size(message_type: MessageType, bytes: usize) -> Result<(), EnvelopeError> {
    match message_type {
        MessageType::WorkspaceAppend if bytes > APPEND_BYTES_MAX => Err(EnvelopeError::EntryTooLarge { bytes }),
        MessageType::WorkspaceAppend => Ok(()),
        _ if bytes > PAYLOAD_BYTES_MAX => Err(EnvelopeError::PayloadTooLarge { bytes }),
        _ => Ok(()),
    }
}

/// The header of an envelope, and its payload, which is not parsed yet.
fn header(wire: &v1::Envelope) -> Result<(Header, &Any), EnvelopeError> {
    let mut checks = Checks::default();
    let message_id = checks.id("envelope.message_id", &wire.message_id, MessageId::parse);
    let sender = checks.id("envelope.sender_id", &wire.sender_id, AgentId::parse);
    let receiver = checks.id("envelope.receiver_id", &wire.receiver_id, Receiver::parse);
    let correlation = checks.optional_id("envelope.correlation_id", &wire.correlation_id, MessageId::parse);
    let task = checks.optional_id("envelope.task_id", &wire.task_id, TaskId::parse);
    let timestamp = checks.time("envelope.timestamp", wire.timestamp.as_ref());
    // `Checks::time` lets an absent time pass.
    if wire.timestamp.is_none() {
        checks.wrong("envelope.timestamp", "must be set");
    }
    let expires_at = checks.time("envelope.expires_at", wire.expires_at.as_ref());
    let message_type = checks.number("envelope.message_type", wire.message_type, MessageType::from_number);
    let payload = wire.payload.as_ref();
    if payload.is_none() {
        checks.wrong("envelope.payload", "must be set");
    }
    if let Some(trace) = &wire.trace_context {
        checks.text("envelope.trace_context.traceparent", &trace.traceparent, 55);
        checks.text("envelope.trace_context.tracestate", &trace.tracestate, 512);
    }
    if let Some(message_type) = message_type {
        // The required fields depend on the type, so a message of an unknown type is only told about its type.
        let rules = rules(message_type);
        require(&mut checks, wire, rules.names);
        if let Some(receiver) = &receiver
            && let Err(problem) = rules.receivers.check(receiver)
        {
            checks.wrong("envelope.receiver_id", problem);
        }
    }
    let required = (message_id, sender, receiver, timestamp, message_type, payload);
    let (message_id, sender, receiver, timestamp, message_type, payload) = checks.finish_with(required)?;
    let header = Header {
        message_id,
        sender,
        receiver,
        timestamp,
        message_type,
        correlation,
        task,
        epoch: wire.epoch,
        expires_at,
        // A context that is not valid is no reason to refuse a message.
        trace: wire.trace_context.as_ref().and_then(trace_context).map(Box::new),
    };
    Ok((header, payload))
}

/// The trace context in a message. `None`: it is not valid.
pub fn trace_context(wire: &v1::TraceContext) -> Option<TraceContext> {
    TraceContext::parse(&wire.traceparent, &wire.tracestate)
}

impl From<&TraceContext> for v1::TraceContext {
    fn from(context: &TraceContext) -> Self {
        Self { traceparent: context.to_string(), tracestate: context.state.clone() }
    }
}

/// Checks that the envelope sets the fields that its type requires.
fn require(checks: &mut Checks, wire: &v1::Envelope, names: Names) {
    if names.task() && wire.task_id.is_empty() {
        checks.wrong("envelope.task_id", "must not be empty");
    }
    if names.task() && wire.epoch == 0 {
        checks.wrong("envelope.epoch", "must be at least 1");
    }
    if names == Names::NoTask && !wire.task_id.is_empty() {
        checks.wrong("envelope.task_id", "must be empty: the payload names what the message is about");
    }
    if names == Names::NoTask && wire.epoch != 0 {
        checks.wrong("envelope.epoch", "must be 0");
    }
    if names.handoff() && wire.correlation_id.is_empty() {
        checks.wrong("envelope.correlation_id", "must be the id of the handoff");
    }
    if names.question() && wire.correlation_id.is_empty() {
        checks.wrong("envelope.correlation_id", "must be the message_id of the status update with the question");
    }
    if names == Names::Negotiation && wire.correlation_id.is_empty() {
        checks.wrong("envelope.correlation_id", "must be the id of the negotiation");
    }
}

/// Checks that a message of a negotiation names a task exactly if it has the terms of a handoff.
fn check_task_of_terms(header: &Header, body: &Body) -> Result<(), EnvelopeError> {
    let mut checks = Checks::default();
    let (terms, is_award) = match body {
        Body::TaskAccept { terms, .. } => (terms, true),
        // Without a rule the terms are for the bidders to consider.
        Body::TaskRequest(request) if request.rule.is_some() => (&request.terms, false),
        _ => return Ok(()),
    };
    if terms.is_some() && header.task.is_none() {
        checks.wrong("envelope.task_id", "must not be empty: payload.handoff has the terms of its handoff");
    }
    if terms.is_some() && header.epoch == 0 {
        checks.wrong("envelope.epoch", "must be at least 1");
    }
    if is_award && terms.is_none() && header.task.is_some() {
        checks.wrong(
            "envelope.payload.handoff",
            "must be set: the accept names a task, and is the request of its handoff",
        );
    }
    checks.finish()
}
