//! Targets that parse input from clients.

use std::sync::LazyLock;

use bytes::Bytes;
use prost::Message as _;

use super::{reference, split};
use crate::{
    broker::directory::Entry,
    envelope::{
        Checks, KeyRing, KeyRingError, UnverifiedEnvelope, check_heartbeat,
        keys::{PrivateKey, PublicKey},
        sign, signing,
    },
    ids::{AgentId, KeyId},
    proto::v1::{self, connect_request::Request},
    records::AgentRecord,
    time::Timestamp,
    wire::{
        edge::opening,
        grpc::{bounds::Frames, certificate_agent, deadline, fate},
    },
};

static KEY: LazyLock<PrivateKey> = LazyLock::new(|| PrivateKey::from_seed(&SEED));
/// The seed of the key that signs `vectors/`, so that their envelopes verify.
const SEED: [u8; 32] = {
    let mut seed = [0; 32];
    let mut place = 0;
    while place < 32 {
        seed[place] = place as u8;
        place += 1;
    }
    seed
};

/// A key ring that returns the same key for every agent and key id.
struct OneKey;

impl KeyRing for OneKey {
    fn key(&self, _: &AgentId, _: &KeyId, _: Timestamp) -> Result<PublicKey, KeyRingError> {
        Ok(KEY.public())
    }
}

/// A frame of a session, or a request: a decoded frame encodes to the same bytes again, and every check of its parts
/// terminates.
pub(super) fn frame(bytes: &[u8]) {
    let Some((kind, rest)) = split(bytes) else { return };
    let rest = Bytes::copy_from_slice(rest);
    if kind % 2 == 1 {
        let Ok(request) = v1::RegisterAgentRequest::decode(rest) else { return };
        let now = Timestamp::default();
        let card = request.card.unwrap_or_default();
        if let Ok(entry) = Entry::parse(AgentRecord::new(card, now)) {
            let record = entry.record.encode();
            assert_eq!(AgentRecord::decode(&record).expect("what is registered can be stored"), entry.record);
        }
        return;
    }
    let Ok(frame) = v1::ConnectRequest::decode(rest) else { return };
    let again = v1::ConnectRequest::decode(Bytes::from(frame.encode_to_vec())).expect("what was encoded decodes");
    assert_eq!(again.encode_to_vec(), frame.encode_to_vec());
    match frame.request {
        Some(Request::Envelope(raw)) => envelope(&raw),
        Some(Request::Acknowledgement(acknowledgement)) => drop(fate(acknowledgement)),
        Some(Request::Heartbeat(heartbeat)) => check_heartbeat(&heartbeat, "heartbeat", &mut Checks::default()),
        Some(Request::Credit(_) | Request::Hello(_)) | None => {}
    }
}

/// An envelope: an envelope that parses can be signed and then verifies; a changed signature does not verify.
pub(super) fn envelope(bytes: &[u8]) {
    let raw = Bytes::copy_from_slice(bytes);
    let now = Timestamp::default();
    let Ok(parsed) = UnverifiedEnvelope::parse(raw.clone()) else { return };
    let wire = v1::Envelope::decode(raw).expect("it parsed");
    let signature_holds = KEY.public().verifies(&reference::envelope_input(&wire), &wire.signature);
    if let Ok(verified) = parsed.clone().verify(&OneKey, now, false) {
        assert!(signature_holds, "verified with a signature that is not of this content");
        assert_eq!(*verified.content_digest(), signing::sha256(&[&reference::envelope_input(&wire)]));
        assert_eq!(verified.raw(), parsed.clone().verify(&OneKey, now, true).expect("it verified").raw());
    }
    let mut signed = wire;
    sign(&mut signed, &KeyId::parse("k1").expect("an id"), &KEY);
    let parse = |envelope: &v1::Envelope| UnverifiedEnvelope::parse(envelope.encode_to_vec().into());
    parse(&signed).expect("it parsed unsigned").verify(&OneKey, now, false).expect("it was signed just now");
    let mut signature = signed.signature.to_vec();
    let place = bytes.len() % signature.len();
    signature[place] ^= 1 << (bytes.len() / signature.len() % 8);
    signed.signature = signature.into();
    assert!(parse(&signed).expect("it parsed").verify(&OneKey, now, false).is_err(), "a changed signature verifies");
}

/// The signing inputs of an envelope and a receipt: they equal the reference's, and each field can be read back from
/// them.
pub(super) fn signing(bytes: &[u8]) {
    let Some((kind, rest)) = split(bytes) else { return };
    if kind % 2 == 1 {
        let Ok(receipt) = v1::Receipt::decode(rest) else { return };
        let input = signing::receipt_input(&receipt);
        assert_eq!(input, reference::receipt_input(&receipt));
        let (kind, fields) = match receipt.resource.is_empty() {
            true => ("application/vnd.baton.receipt.v1", 11),
            false => ("application/vnd.baton.receipt.v2", 13),
        };
        let fields = reference::read_fields(&input, kind, fields).expect("it can be read");
        assert_eq!(
            (&fields[0][..], &fields[3][..], &fields[9][..]),
            (receipt.message_id.as_bytes(), receipt.task_id.as_bytes(), &receipt.custody_hash[..])
        );
        return;
    }
    let Ok(envelope) = v1::Envelope::decode(rest) else { return };
    let input = signing::envelope_input(&envelope);
    assert_eq!(input, reference::envelope_input(&envelope));
    let fields = reference::read_fields(&input, "application/vnd.baton.envelope.v1", 11).expect("it can be read");
    let texts = [
        (0, &envelope.message_id),
        (1, &envelope.sender_id),
        (2, &envelope.receiver_id),
        (5, &envelope.correlation_id),
        (6, &envelope.task_id),
        (9, &envelope.key_id),
    ];
    texts.into_iter().for_each(|(place, text)| assert_eq!(fields[place], text.as_bytes()));
    assert_eq!(fields[7], envelope.epoch.to_be_bytes());
}

/// The classification of a connection's first bytes, the frame boundaries of a body, and `grpc-timeout`.
pub(super) fn opening(bytes: &[u8]) {
    let mut decided = None;
    for end in 0..=bytes.len().min(64) {
        let found = opening::classify(&bytes[..end]);
        assert!(decided.is_none() || found == decided, "more bytes change what it is");
        assert!(end < opening::OPENING_BYTES || found.is_some(), "it must be clear by now");
        decided = found;
    }
    let pieces = usize::from(bytes.first().copied().unwrap_or(1)).max(1);
    let (mut whole, mut in_pieces) = (Frames::default(), Frames::default());
    whole.pass(bytes);
    bytes.chunks(pieces).for_each(|piece| in_pieces.pass(piece));
    assert_eq!(whole.is_between(), in_pieces.is_between());
    if let Ok(value) = http::HeaderValue::from_bytes(bytes) {
        let headers = http::HeaderMap::from_iter([(http::HeaderName::from_static("grpc-timeout"), value)]);
        assert!(deadline::limit_of(&headers).is_none() || (2..=9).contains(&bytes.len()));
    }
}

/// A client certificate: it names a valid agent id, by a URI that its bytes contain.
pub(super) fn certificate(bytes: &[u8]) {
    if let Some(agent) = certificate_agent(bytes) {
        assert_eq!(AgentId::parse(agent.as_str()).as_ref(), Ok(&agent));
        let uri = format!("urn:baton:agent:{agent}");
        assert!(bytes.windows(uri.len()).any(|part| part == uri.as_bytes()), "it is not in the certificate");
    }
}
