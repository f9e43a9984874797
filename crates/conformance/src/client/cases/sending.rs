//! The client's messages, and its handling of receipts and refusals.

use std::time::Duration;

use serde_json::{Value, json};
use tonic::Code;

use super::{
    super::{
        broker::{AGENT, KEY_ID, Session},
        fixture::{Fixture, Sent, Verdict, expect, type_url},
        refusal::Refusal,
    },
    cases,
};
use crate::report::Failed;
use baton_client::{
    envelope::{
        keys::{PrivateKey, PublicKey},
        signing,
    },
    ids::{MessageId, SystemIds},
    proto::v1::{self, MessageType, connect_response::Response as Said},
    time::{Clock as _, Moment, SystemClock, Timestamp},
};

cases! {
    "client.envelope-is-signed", "2",
    "An envelope has an id, its sender and the present time, and the sender's signature over the layout of version 1.",
    envelope_is_signed;
    "client.message-ids-are-new", "2",
    "Every message has a new message id.",
    message_ids_are_new;
    "client.receipt-is-awaited", "2",
    "A message counts as sent when the broker's receipt arrives, not before; the client receives mail meanwhile.",
    receipt_is_awaited;
    "client.forged-receipt-is-refused", "2",
    "A receipt without a valid signature of the broker's key is an error, not a success.",
    forged_receipt_is_refused;
    "client.receipt-of-another-message-is-refused", "2",
    "A receipt of the broker's for another message is an error, not a success.",
    receipt_of_another_message_is_refused;
    "client.refusal-has-its-reason", "11",
    "A refusal is an error with the stable reason, the gRPC code and the metadata, and the session goes on.",
    refusal_has_its_reason;
    "client.clock-off-is-a-typed-error", "2 11",
    "A client whose clock is an hour off gets TIMESTAMP_OUTSIDE_WINDOW for its messages.",
    clock_off_is_a_typed_error;
    "client.overload-says-when", "11",
    "A refusal as RESOURCE_EXHAUSTED is an error with the broker's delay.",
    overload_says_when;
    "client.unavailable-is-tried-again", "11",
    "After UNAVAILABLE the same bytes are sent again, not before the broker's delay is over.",
    unavailable_is_tried_again;
    "client.too-large-is-refused-locally", "5 11",
    "A message over a limit of the schema is refused locally with the broker's reason, and the session continues.",
    too_large_is_refused_locally;
}

const SEND: &str = "the client sends an Info";

/// Tells the client to send an Info, and receives it.
pub(super) async fn send(fixture: &mut Fixture, session: &mut Session, text: &str) -> Result<(u64, Sent), Failed> {
    let id = fixture.harness.tell(json!({"command": "send", "to": "alice", "text": text}));
    Ok((id, fixture.sent(SEND, session, MessageType::Info).await?))
}

/// Checks the fields and the signature of an envelope from the client.
pub(super) fn check_envelope(step: &str, sent: &Sent, key: &PublicKey, url: &str) -> Verdict {
    let envelope = &sent.envelope;
    let is_id = MessageId::parse(&envelope.message_id).is_ok();
    expect(step, "whether envelope.message_id is a UUID", &true, &is_id)?;
    expect(step, "envelope.sender_id", AGENT, envelope.sender_id.as_str())?;
    expect(step, "envelope.key_id", KEY_ID, envelope.key_id.as_str())?;
    expect(step, "envelope.signature_version", &1, &envelope.signature_version)?;
    let payload_url = envelope.payload.as_ref().map(|payload| payload.type_url.as_str()).unwrap_or_default();
    expect(step, "envelope.payload.type_url", url, payload_url)?;
    let time = envelope.timestamp.as_ref().and_then(|time| Timestamp::from_parts(time.seconds, time.nanos));
    let now = SystemClock.now();
    let is_now = time.is_some_and(|time| now.since(time).max(time.since(now)) < Duration::from_secs(60));
    expect(step, "whether envelope.timestamp is within a minute of now", &true, &is_now)?;
    let is_signed = key.verifies(&signing::envelope_input(envelope), &envelope.signature);
    expect(step, "whether envelope.signature verifies by the agent's key", &true, &is_signed)
}

async fn envelope_is_signed(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, sent) = send(fixture, &mut session, "hello \u{1f91d}").await?;
    check_envelope(SEND, &sent, &fixture.client_key.clone(), &type_url::<v1::Info>())?;
    expect(SEND, "envelope.receiver_id", "alice", sent.envelope.receiver_id.as_str())?;
    expect(SEND, "payload.text", "hello \u{1f91d}", sent.payload::<v1::Info>().text.as_str())?;
    fixture.receipt(&session, &sent);
    let done = fixture.done("the receipt comes", id).await?;
    expect("the receipt comes", "done.message_id", &json!(sent.envelope.message_id), &done["message_id"])
}

async fn message_ids_are_new(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let (id, sent) = send(fixture, &mut session, "the same").await?;
        fixture.receipt(&session, &sent);
        fixture.done("the receipt comes", id).await?;
        ids.push(sent.envelope.message_id);
    }
    match ids[0] != ids[1] {
        true => Ok(()),
        false => Err(fixture.failed("the client sends twice", "message_id", "two ids", format!("{} twice", ids[0]))),
    }
}

async fn receipt_is_awaited(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, sent) = send(fixture, &mut session, "is it there?").await?;
    fixture.mail_goes_on(&mut session).await?;
    let is_answered = fixture.harness.has(|event| event["id"] == id);
    expect("no receipt has come", "whether the send has ended", &false, &is_answered)?;
    fixture.receipt(&session, &sent);
    fixture.done("the receipt comes", id).await.map(drop)
}

async fn forged_receipt_is_refused(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, sent) = send(fixture, &mut session, "who signs?").await?;
    let mut receipt = fixture.unsigned_receipt(&sent);
    let stranger = PrivateKey::generate(&SystemIds);
    receipt.signature = stranger.sign(&signing::receipt_input(&receipt)).to_vec().into();
    session.say(sent.request_id, Said::Receipt(receipt));
    fixture.refused("a receipt comes that a stranger signed", id, json!({"kind": "unverified"})).await
}

async fn receipt_of_another_message_is_refused(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (first, sent) = send(fixture, &mut session, "first").await?;
    fixture.receipt(&session, &sent);
    fixture.done("the receipt comes", first).await?;
    // The broker signs this receipt too, so only its message id shows that it answers another message.
    let old = fixture.unsigned_receipt(&sent);
    let (id, sent) = send(fixture, &mut session, "second").await?;
    fixture.signed_receipt(&session, &sent, old);
    fixture.refused("the receipt of the message before comes", id, json!({"kind": "unverified"})).await
}

/// Refuses the client's message, and expects the command to fail with these fields.
async fn is_refused(fixture: &mut Fixture, refusal: Refusal, expected: Value) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, sent) = send(fixture, &mut session, "may I?").await?;
    session.say(sent.request_id, Said::Error(refusal.message()));
    fixture.refused("the broker refuses", id, expected).await?;
    // The refusal must not end the session.
    let (id, sent) = send(fixture, &mut session, "and now?").await?;
    fixture.receipt(&session, &sent);
    fixture.done("the next is taken", id).await.map(drop)
}

async fn refusal_has_its_reason(fixture: &mut Fixture) -> Verdict {
    let mut refusal = Refusal::new(Code::FailedPrecondition, "STALE_EPOCH");
    refusal.metadata = Some(("current_epoch", "7"));
    let expected = json!({
        "kind": "refused", "reason": "STALE_EPOCH", "code": "FAILED_PRECONDITION", "metadata": {"current_epoch": "7"},
    });
    is_refused(fixture, refusal, expected).await
}

async fn clock_off_is_a_typed_error(fixture: &mut Fixture) -> Verdict {
    let refusal = Refusal::new(Code::InvalidArgument, "TIMESTAMP_OUTSIDE_WINDOW");
    let expected = json!({"kind": "refused", "reason": "TIMESTAMP_OUTSIDE_WINDOW", "code": "INVALID_ARGUMENT"});
    is_refused(fixture, refusal, expected).await
}

async fn overload_says_when(fixture: &mut Fixture) -> Verdict {
    let mut refusal = Refusal::new(Code::ResourceExhausted, "LIMIT_EXCEEDED");
    refusal.retry_after = Some(Duration::from_millis(1500));
    let expected = json!({
        "kind": "refused", "reason": "LIMIT_EXCEEDED", "code": "RESOURCE_EXHAUSTED", "retry_delay_ms": 1500,
    });
    is_refused(fixture, refusal, expected).await
}

async fn unavailable_is_tried_again(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, first) = send(fixture, &mut session, "patience").await?;
    let delay = Duration::from_millis(700);
    let refusal = Refusal { retry_after: Some(delay), ..Refusal::new(Code::Unavailable, "STORE_UNAVAILABLE") };
    session.say(first.request_id, Said::Error(refusal.message()));
    let refused = Moment::now();
    let step = "the broker was not available for 700 ms";
    let again = fixture.sent(step, &mut session, MessageType::Info).await?;
    let waited = refused.elapsed();
    // The client measures with its own clock, so its wait may appear a little shorter. 500 ms leaves that margin.
    expect(step, "whether it waited 500 ms and more", &true, &(waited >= Duration::from_millis(500)))?;
    expect(step, "the envelope, in hexadecimal", &hex::encode(&first.raw), &hex::encode(&again.raw))?;
    fixture.receipt(&session, &again);
    fixture.done("the receipt comes", id).await.map(drop)
}

async fn too_large_is_refused_locally(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    // One byte over the limit of a payload, and over the limit of a frame.
    for bytes in [1_048_577, 5_000_000] {
        let id = fixture.harness.tell(json!({"command": "send", "to": "alice", "bytes": bytes}));
        let expected = json!({"kind": "refused", "reason": "PAYLOAD_TOO_LARGE"});
        fixture.refused(&format!("the client is to send {bytes} bytes"), id, expected).await?;
    }
    let id = fixture.harness.tell(json!({"command": "send", "to": "alice", "bytes": 60_000}));
    let step = "the client is to send 60000 bytes";
    let sent = fixture.sent(step, &mut session, MessageType::Info).await?;
    expect(step, "bytes of the first Info that comes", &60_000, &sent.payload::<v1::Info>().text.len())?;
    fixture.receipt(&session, &sent);
    fixture.done("the receipt comes", id).await?;
    fixture.mail_goes_on(&mut session).await
}
