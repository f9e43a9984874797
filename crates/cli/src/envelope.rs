//! `baton envelope`: sign, verify, inspect. JSON in and out, ready for grpcurl.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::{Args, Subcommand};
use prost::Message as _;
use serde_json::{Value, json};

use super::{Failure, connection::read_key, json, output};
use baton_client::{
    envelope::{self, KeyRing, KeyRingError, UnverifiedEnvelope, keys::PublicKey, signing},
    ids::{AgentId, IdSource as _, KeyId, SystemIds},
    proto::v1::{self, MessageType},
    time::{Clock as _, SystemClock, Timestamp},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton envelope sign --key alice.pem --file draft.json > signed.json
  baton envelope verify --public-key 03a107bf…5531b8 --file signed.json")]
pub(super) enum EnvelopeCommand {
    /// Sign an envelope and print it as a SendRequest: {"envelope": …}.
    ///
    /// Absent fields are filled in: message_id, timestamp, and message_type from the payload's type.
    #[command(after_help = "Examples:
  echo '{\"senderId\": \"alice\", \"receiverId\": \"bob\", \"taskId\": \"t1\", \"epoch\": 1, \"payload\": {
      \"@type\": \"type.googleapis.com/baton.v1.HandoffRequest\", \"taskType\": \"support\"}}' |
    baton envelope sign --key alice.pem |
    grpcurl -cacert baton-data/tls/ca.pem -d @ 127.0.0.1:22866 baton.v1.BrokerService/Send")]
    Sign {
        /// The sender's key, a file from `baton keygen`.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The key's name (key_id).
        #[arg(long, default_value = "k1", value_name = "KEY")]
        key_id: KeyId,
        #[command(flatten)]
        input: InputArgs,
    },
    /// Verify an envelope: each field, the payload, and the signature. Exit code 1 if it is not valid.
    #[command(after_help = "Examples:
  baton envelope verify --public-key 03a107bf…5531b8 --file signed.json
  baton envelope verify --public-key A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg= < signed.json")]
    Verify {
        /// The sender's public key, as hex or base64.
        #[arg(long, value_name = "KEY")]
        public_key: String,
        #[command(flatten)]
        input: InputArgs,
    },
    /// Print the exact bytes of an envelope that are signed, to compare them with another implementation.
    #[command(after_help = "Examples:
  baton envelope inspect --file signed.json | jq -r .signedHex")]
    Inspect {
        #[command(flatten)]
        input: InputArgs,
    },
}

/// Where the envelope comes from.
#[derive(Debug, Args)]
pub(super) struct InputArgs {
    /// A file with the envelope as JSON, alone or as {"envelope": …}. Default: standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(super) fn run(command: EnvelopeCommand) -> Result<(), Failure> {
    match command {
        EnvelopeCommand::Sign { key, key_id, input } => sign(&key, &key_id, &input),
        EnvelopeCommand::Verify { public_key, input } => verify(&public_key, &input),
        EnvelopeCommand::Inspect { input } => inspect(&input),
    }
}

fn sign(key: &Path, key_id: &KeyId, input: &InputArgs) -> Result<(), Failure> {
    let key = read_key(key)?;
    let mut envelope = read(input)?;
    let now = SystemClock.now();
    if envelope.message_id.is_empty() {
        envelope.message_id = SystemIds.message_id(now).to_string();
    }
    if envelope.timestamp.is_none() {
        envelope.timestamp = Some(now.into());
    }
    if envelope.message_type() == MessageType::Unspecified {
        envelope.message_type = type_of_payload(&envelope).into();
    }
    envelope::sign(&mut envelope, key_id, &key);
    print(&json!({ "envelope": json::of(&envelope)? }));
    Ok(())
}

/// A bound over the numbers of all message types. The numbers have gaps.
const NUMBERS_MAX: i32 = 64;

/// The message type with the name of the payload's type.
fn type_of_payload(envelope: &v1::Envelope) -> MessageType {
    let url = envelope.payload.as_ref().map(|payload| payload.type_url.as_str()).unwrap_or_default();
    let name = url.rsplit('.').next().unwrap_or_default();
    let has_name = |kind: &MessageType| {
        let words = kind.as_str_name().trim_start_matches("MESSAGE_TYPE_").replace('_', "");
        words.eq_ignore_ascii_case(name)
    };
    (1..=NUMBERS_MAX).filter_map(|number| MessageType::try_from(number).ok()).find(has_name).unwrap_or_default()
}

fn verify(public_key: &str, input: &InputArgs) -> Result<(), Failure> {
    // Hex first: 64 hex digits are valid base64 too, of 48 bytes.
    let bytes = hex::decode(public_key).ok().or_else(|| BASE64_STANDARD.decode(public_key).ok()).unwrap_or_default();
    let key = PublicKey::parse(&bytes).map_err(|error| Failure::usage(format!("--public-key {error}")))?;
    let envelope = read(input)?;
    let parsed = UnverifiedEnvelope::parse(envelope.encode_to_vec().into());
    let verified = parsed.and_then(|parsed| parsed.verify(&OneKey(key), SystemClock.now(), false));
    match verified {
        Ok(_) => {
            print(&json!({"valid": true, "messageId": envelope.message_id, "senderId": envelope.sender_id}));
            Ok(())
        }
        Err(error) => {
            use baton_client::codes::Refusal as _;
            print(&json!({"valid": false, "reason": error.code().name(), "message": error.to_string()}));
            Err(Failure::failed(format!("the envelope is not valid: {error}")).named("DATA_INVALID"))
        }
    }
}

/// A key ring with one key, which it returns for every sender.
struct OneKey(PublicKey);

impl KeyRing for OneKey {
    fn key(&self, _: &AgentId, _: &KeyId, _: Timestamp) -> Result<PublicKey, KeyRingError> {
        Ok(self.0.clone())
    }
}

fn inspect(input: &InputArgs) -> Result<(), Failure> {
    let envelope = read(input)?;
    let signed = signing::envelope_input(&envelope);
    let payload = envelope.payload.clone().unwrap_or_default();
    print(&json!({
        "envelope": json::of(&envelope)?,
        "payloadType": payload.type_url,
        "payloadBytes": payload.value.len(),
        "payloadHex": hex::encode(&payload.value),
        "signedHex": hex::encode(&signed),
        "signedSha256": hex::encode(signing::sha256(&[&signed])),
        "encodedBytes": envelope.encoded_len(),
    }));
    Ok(())
}

fn read(input: &InputArgs) -> Result<v1::Envelope, Failure> {
    let text = match &input.file {
        Some(path) => std::fs::read_to_string(path).map_err(|error| Failure::file(path, error))?,
        None => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            text
        }
    };
    let mut value: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::failed(format!("failed to read the envelope: it is not JSON: {error}")))?;
    if let Some(inner) = value.get_mut("envelope") {
        value = inner.take();
    }
    json::parse(value)
}

fn print(value: &Value) {
    output::say_json_text(&format!("{value:#}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_broker_core::domain::MessageType as Kind;
    use baton_client::envelope::payload_of;

    #[test]
    fn the_type_of_a_payload_is_found_for_every_number() {
        let of = |payload| type_of_payload(&v1::Envelope { payload: Some(payload), ..Default::default() });
        assert_eq!(of(payload_of(&v1::HandoffRequest::default())), MessageType::HandoffRequest);
        assert_eq!(of(payload_of(&v1::TaskRecall::default())), MessageType::TaskRecall);
        assert!((NUMBERS_MAX..10_000).all(|number| Kind::from_number(number).is_none()), "a type beyond the bound");
    }
}
