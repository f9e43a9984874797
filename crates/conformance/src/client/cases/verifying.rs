//! Deliveries and receipts that a client must refuse although the broker sent them, and unknown fields that it must
//! accept.

use std::time::Duration;

use bytes::BytesMut;
use prost::Message as _;

use super::{
    super::{
        broker::AGENT,
        fixture::{Fixture, Verdict, further_key, info, outcome_in_words},
    },
    cases,
};
use baton_client::{
    About, Composer,
    envelope::{self, keys::PrivateKey},
    ids::SystemIds,
    proto::v1::{self, MessageType, acknowledgement::Outcome},
    time::{Clock as _, SystemClock},
};

cases! {
    "client.forged-delivery-is-refused", "2",
    "A delivery whose signature does not verify is nacked as POISON, and no handler sees it.",
    forged_delivery;
    "client.strangers-delivery-is-refused", "2",
    "A delivery signed by another key than it names is nacked as POISON.",
    strangers_delivery;
    "client.unsigned-delivery-is-refused", "2",
    "A delivery without a signature is nacked as POISON.",
    unsigned_delivery;
    "client.swapped-payload-is-refused", "2",
    "A delivery with another payload than the signed one is nacked as POISON.",
    swapped_payload;
    "client.changed-envelope-is-refused", "2",
    "A delivery with a signed field changed, here the correlation id, is nacked as POISON.",
    changed_envelope;
    "client.unknown-key-is-refused", "2 5",
    "A delivery by a key that the directory does not have is nacked as POISON.",
    unknown_key;
    "client.revoked-key-is-refused", "2 5",
    "A delivery by a key that was revoked before is nacked as POISON.",
    revoked_key;
    "client.unknown-signature-version-is-refused", "2",
    "A delivery of a later signature version is nacked as POISON, not read by the old layout.",
    unknown_signature_version;
    "client.unknown-message-type-is-refused", "2",
    "A message of a type that the client's schema does not have is nacked as POISON, and kept as a dead letter so.",
    unknown_message_type;
    "client.payload-of-another-type-is-refused", "2",
    "A payload of another type than message_type is nacked as POISON.",
    payload_of_another_type;
    "client.unknown-fields-are-left", "2",
    "Fields that the client's schema does not have, in the envelope or in its signed payload, do not harm.",
    unknown_fields;
    "client.unknown-frame-is-passed-over", "2",
    "A frame that the client's schema does not have does not end the session.",
    unknown_frame;
    "client.clock-off-takes-mail", "2",
    "A client whose clock is an hour behind or ahead takes its mail all the same: the broker has checked the times.",
    clock_off;
    "client.empty-envelope-is-refused", "2",
    "A delivery without an envelope is nacked, and the client goes on.",
    empty_envelope;
}

async fn forged_delivery(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let mut envelope = fixture.info("forged");
    let mut signature = envelope.signature.to_vec();
    signature[3] ^= 1;
    envelope.signature = signature.into();
    fixture.refuses_delivery(&mut session, &envelope).await
}

async fn strangers_delivery(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let mut envelope = fixture.info("of a stranger");
    let key_id = fixture.alice.identity.key_id.clone();
    envelope::sign(&mut envelope, &key_id, &PrivateKey::generate(&SystemIds));
    fixture.refuses_delivery(&mut session, &envelope).await
}

async fn unsigned_delivery(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let mut envelope = fixture.info("unsigned");
    envelope.signature.clear();
    fixture.refuses_delivery(&mut session, &envelope).await
}

async fn swapped_payload(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let mut envelope = fixture.info("what was signed");
    envelope.payload = Some(envelope::payload_of(&info("something else")));
    fixture.refuses_delivery(&mut session, &envelope).await
}

async fn changed_envelope(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let mut envelope = fixture.info("about nothing");
    envelope.correlation_id = fixture.info("another").message_id;
    fixture.refuses_delivery(&mut session, &envelope).await
}

fn info_of(sender: &Composer) -> v1::Envelope {
    sender.compose(AGENT, MessageType::Info, &About::default(), &info("by another key"))
}

async fn unknown_key(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let further = further_key(fixture, "k9", |_| {});
    // Removes the key again, so that the signature is by a key without an entry.
    fixture.broker.state().directory.get_mut("alice").expect("alice is there").pop();
    fixture.refuses_delivery(&mut session, &info_of(&further)).await
}

async fn revoked_key(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let an_hour_ago =
        baton_client::time::Timestamp::from_unix_nanoseconds(SystemClock.now().unix_nanoseconds() - 3_600_000_000_000)
            .into();
    let further = further_key(fixture, "k2", |key| key.revoke_time = Some(an_hour_ago));
    fixture.refuses_delivery(&mut session, &info_of(&further)).await
}

async fn unknown_signature_version(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let mut envelope = fixture.info("of tomorrow");
    envelope.signature_version = 2;
    fixture.refuses_delivery(&mut session, &envelope).await
}

async fn unknown_message_type(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let mut envelope = fixture.info("of tomorrow");
    envelope.message_type = 99;
    if let Some(payload) = &mut envelope.payload {
        // With a payload type of the schema the client could refuse the mismatch instead.
        payload.type_url = "type.googleapis.com/baton.v1.Tomorrow".to_owned();
    }
    sign_by_alice(fixture, &mut envelope);
    fixture.refuses_delivery(&mut session, &envelope).await
}

async fn payload_of_another_type(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let mut envelope = fixture.info("what am I?");
    // Signed again below, so that only the type can be the reason for the refusal.
    envelope.message_type = MessageType::Delegation.into();
    sign_by_alice(fixture, &mut envelope);
    fixture.refuses_delivery(&mut session, &envelope).await
}

async fn unknown_fields(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let mut envelope = fixture.info("of tomorrow");
    if let Some(payload) = &mut envelope.payload {
        payload.value = with_unknown_field(&payload.value).into();
    }
    sign_by_alice(fixture, &mut envelope);
    // Added after signing: an unknown field of the envelope is outside the signature, one of the payload inside.
    let bytes = with_unknown_field(&envelope.encode_to_vec());
    let delivery_id = fixture.deliver_bytes(&session, bytes.into(), 1);
    let step = "an envelope with unknown fields comes";
    fixture.handling(step, &envelope.message_id).await?;
    fixture.acked(step, &mut session, &delivery_id).await
}

/// Adds an unknown field: a string with number 4000.
fn with_unknown_field(message: &[u8]) -> BytesMut {
    let mut bytes = BytesMut::from(message);
    prost::encoding::string::encode(4000, &"tomorrow".to_owned(), &mut bytes);
    bytes
}

async fn unknown_frame(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    session.say_nothing_known();
    fixture.mail_goes_on(&mut session).await
}

async fn clock_off(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    for hours in [-1, 1] {
        let nanoseconds = SystemClock.now().unix_nanoseconds() + hours * 3_600_000_000_000;
        let then = baton_client::time::Timestamp::from_unix_nanoseconds(nanoseconds);
        let mut envelope = fixture.info("at another time");
        envelope.timestamp = Some(then.into());
        sign_by_alice(fixture, &mut envelope);
        let delivery = v1::Delivery {
            envelope: envelope.encode_to_vec().into(),
            attempt: 1,
            ack_deadline: Some(then.plus(Duration::from_secs(3)).into()),
            ..Default::default()
        };
        let delivery_id = fixture.deliver_as(&session, delivery);
        let step = format!("mail comes of a broker that is {hours} h ahead");
        fixture.handling(&step, &envelope.message_id).await?;
        fixture.acked(&step, &mut session, &delivery_id).await?;
    }
    Ok(())
}

async fn empty_envelope(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let delivery_id = fixture.deliver(&session, &v1::Envelope::default());
    let step = "a delivery without an envelope comes";
    match fixture.outcome(step, &mut session, &delivery_id).await? {
        Outcome::Nack(_) => fixture.mail_goes_on(&mut session).await,
        other => Err(fixture.failed(step, "its outcome", "nack", outcome_in_words(&other))),
    }
}

fn sign_by_alice(fixture: &Fixture, envelope: &mut v1::Envelope) {
    envelope::sign(envelope, &fixture.alice.identity.key_id, &fixture.alice.identity.key);
}
