//! Signatures, and the path from bytes to a verified envelope and back.

use std::{hint::black_box, sync::Arc};

use baton::{
    envelope::{
        KeyRing, KeyRingError, UnverifiedEnvelope,
        keys::{PrivateKey, PublicKey},
        signing,
    },
    ids::{AgentId, KeyId, SystemIds},
    proto::v1::{self, MessageType, connect_request::Request},
    time::{Clock as _, SystemClock, Timestamp},
};
use baton_client::{About, Composer, Identity, context_of};
use bytes::Bytes;
use ed25519_dalek::{Signature, Signer as _, SigningKey, Verifier as _, VerifyingKey, verify_batch};
use prost::Message as _;

use super::Part;

struct OneKey(PublicKey);

impl KeyRing for OneKey {
    fn key(&self, _: &AgentId, _: &KeyId, _: Timestamp) -> Result<PublicKey, KeyRingError> {
        Ok(self.0.clone())
    }
}

fn composer() -> Composer {
    let identity = Identity {
        agent: AgentId::parse("bench-giver").unwrap(),
        key_id: KeyId::parse("k1").unwrap(),
        key: PrivateKey::generate(&SystemIds),
    };
    Composer { identity, clock: Arc::new(SystemClock), ids: Arc::new(SystemIds) }
}

/// The largest of the four messages, with a context of 2 KiB.
fn context(composer: &Composer) -> v1::Envelope {
    let context = context_of([("collected_data", format!("[\"{}\"]", "x".repeat(2044)))]);
    let about = About::handoff("bench-task", 1, "0198c0de-0000-7000-8000-000000000001");
    composer.compose("bench-taker", MessageType::TaskContextTransfer, &about, &context)
}

pub(crate) fn parts() -> Vec<Part> {
    [signatures(), batches(), whole_envelopes()].into_iter().flatten().collect()
}

fn signatures() -> Vec<Part> {
    let key = SigningKey::from_bytes(&[7; 32]);
    let message = [5; 400]; // about the size of an envelope's signing input
    let (signature, verifying) = (key.sign(&message), key.verifying_key());
    let plain = move || verifying.verify(black_box(&message), &signature).unwrap();
    let strict = move || verifying.verify_strict(black_box(&message), &signature).unwrap();
    vec![
        Part::one("sign/one", move || _ = black_box(key.sign(black_box(&message)))),
        Part::one("verify/plain", plain),
        Part::one("verify/strict", strict),
    ]
}

/// Batches with as many keys as a default bench has agents.
fn batches() -> Vec<Part> {
    let keys: Vec<SigningKey> = (0..16).map(|number| SigningKey::from_bytes(&[number; 32])).collect();
    let batch = |name, many: usize| {
        let messages: Vec<Vec<u8>> = (0..many).map(|number| vec![number as u8; 400]).collect();
        let signers = || keys.iter().cycle().zip(&messages);
        let signatures: Vec<Signature> = signers().map(|(key, message)| key.sign(message)).collect();
        let verifying: Vec<VerifyingKey> = signers().map(|(key, _)| key.verifying_key()).collect();
        Part::many(name, many as u64, move || {
            let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
            verify_batch(&messages, &signatures, &verifying).unwrap();
        })
    };
    vec![
        batch("verify/batch of 8", 8),
        batch("verify/batch of 32", 32),
        batch("verify/batch of 128", 128),
        batch("verify/batch of 512", 512),
    ]
}

fn whole_envelopes() -> Vec<Part> {
    let composer = composer();
    let keys = OneKey(composer.identity.key.public());
    let envelope = context(&composer);
    let raw = Bytes::from(envelope.encode_to_vec());
    let frame = v1::ConnectRequest { request_id: 1, request: Some(Request::Envelope(raw.clone())) };
    let frame = Bytes::from(frame.encode_to_vec());
    let receipt = v1::Receipt {
        message_id: envelope.message_id.clone(),
        task_id: envelope.task_id.clone(),
        owner_id: envelope.sender_id.clone(),
        handoff_id: envelope.correlation_id.clone(),
        custody_hash: vec![7; 32].into(),
        ..Default::default()
    };
    let broker = PrivateKey::generate(&SystemIds);
    let (parsed, verified) = (raw.clone(), raw);
    vec![
        Part::one("codec/frame", move || drop(black_box(v1::ConnectRequest::decode(frame.clone()).unwrap()))),
        Part::one("codec/envelope", move || drop(black_box(UnverifiedEnvelope::parse(parsed.clone()).unwrap()))),
        Part::one("codec/signing input", move || drop(black_box(signing::envelope_input(&envelope)))),
        Part::one("verify/envelope", move || {
            let parsed = UnverifiedEnvelope::parse(verified.clone()).unwrap();
            drop(black_box(parsed.verify(&keys, SystemClock.now(), false).unwrap()));
        }),
        Part::one("sign/envelope", move || drop(black_box(context(&composer)))),
        Part::one("sign/receipt", move || _ = black_box(broker.sign(&signing::receipt_input(&receipt)))),
    ]
}
