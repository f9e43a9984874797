//! SPEC 2: the envelope, its signature and its timestamp.

use bytes::Bytes;
use prost::Message as _;
use tonic::Code;

use super::{
    check::{Checks, Refusal, Verdict, answered, refused, same},
    story::a_request,
    world::{Actor, World},
};
use baton_client::{
    About,
    envelope::{PAYLOAD_BYTES_MAX, keys::PrivateKey, signing},
    ids::SystemIds,
    proto::v1::{self, MessageType},
};

cases! {
    "envelope.signed-is-taken" "2"
        "An envelope that its sender has signed is taken and answered with a receipt." signed_is_taken;
    "envelope.every-field-is-signed" "2"
        "A field that was changed after signing is refused with SIGNATURE_INVALID, each of them." every_field_is_signed;
    "envelope.payload-is-signed" "2"
        "A payload whose bytes or type were swapped after signing is refused." payload_is_signed;
    "envelope.trace-context-is-not-signed" "2"
        "Trace context is outside the signature: every hop may set it." trace_is_not_signed;
    "envelope.unsigned-is-refused" "2"
        "An envelope without a signature is refused with SIGNATURE_MISSING." unsigned_is_refused;
    "envelope.signature-of-another-key-is-refused" "2"
        "A signature by another agent's key is refused with SIGNATURE_INVALID." signature_of_another_key;
    "envelope.bent-signature-is-refused" "2"
        "A truncated, oversized, zeroed, bent or malleated signature is refused with SIGNATURE_INVALID." bent_signature;
    "envelope.signature-of-another-layout-is-refused" "2"
        "A signature over the body alone, over its digest, or for another purpose is refused." another_layout;
    "envelope.signature-version-is-checked" "2"
        "An unknown signature_version is refused with SIGNATURE_VERSION_UNKNOWN." signature_version;
    "envelope.key-id-is-looked-up" "2"
        "A key_id that is not the sender's is refused with KEY_UNKNOWN, an unregistered sender with SIGNATURE_INVALID." unknown_key;
    "envelope.old-is-refused" "2"
        "An envelope older than the clock window is refused with TIMESTAMP_OUTSIDE_WINDOW." old_is_refused;
    "envelope.early-is-refused" "2"
        "An envelope further ahead than the clock window is refused with TIMESTAMP_OUTSIDE_WINDOW." early_is_refused;
    "envelope.clock-may-be-a-little-off" "2"
        "A clock with an error of two minutes is within the window." a_little_off;
    "envelope.expired-is-refused" "2"
        "An envelope whose expires_at is over is refused with MESSAGE_EXPIRED." expired_is_refused;
    "envelope.arrives-byte-for-byte" "2"
        "The receiver gets the bytes that were sent, with fields that the broker does not know, and can verify them."
        arrives_byte_for_byte;
    "envelope.fields-are-checked" "2"
        "A missing or malformed field is refused with FIELD_INVALID, and BadRequest names its path." fields_are_checked;
    "envelope.ids-follow-the-grammar" "1"
        "Ids have 1 to 128 characters of A-Z a-z 0-9 . _ -, the first a letter or a digit." ids_follow_the_grammar;
    "envelope.payload-fits-its-type" "2"
        "A payload of another type than message_type is refused with PAYLOAD_TYPE_MISMATCH." payload_fits_its_type;
    "envelope.unknown-type-is-refused" "2"
        "An unknown message_type is refused." unknown_type;
    "envelope.payload-is-bounded" "5"
        "A payload over 1 MiB is refused with PAYLOAD_TOO_LARGE, and the session goes on." payload_is_bounded;
    "envelope.payload-of-1-mib-is-taken" "5"
        "A payload of nearly 1 MiB is taken and arrives." large_payload_arrives;
    "envelope.garbage-is-refused" "2"
        "Bytes that are no envelope are refused with MALFORMED, and the session goes on." garbage_is_refused;
    "envelope.refused-changes-nothing" "2"
        "A refused envelope changes nothing: no task, no delivery, and its message_id stays free." refused_changes_nothing;
}

const INVALID: Refusal = Refusal(Code::Unauthenticated, "SIGNATURE_INVALID");
const FIELD: Refusal = Refusal(Code::InvalidArgument, "FIELD_INVALID");

async fn pair(world: &World) -> Verdict<(Actor, Actor)> {
    Ok((world.agent("alice").await?, world.agent("bob").await?))
}

/// A signed request to bob about a new task.
fn request(world: &World, alice: &Actor, bob: &Actor) -> v1::Envelope {
    alice.envelope(bob.id(), &About::task(&world.id("task"), 1), &a_request())
}

async fn signed_is_taken(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let envelope = alice.info(bob.id(), "in order");
    let receipt = answered("alice sends a signed Info", alice.submit(&envelope).await)?;
    same("alice sends a signed Info", "receipt.message_id", &envelope.message_id, &receipt.message_id)?;
    let delivered = bob.take(MessageType::Info).await?;
    same("bob takes it", "message_id", &envelope.message_id, &delivered.envelope.message_id)
}

async fn every_field_is_signed(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let carol = world.enrol("carol", &[]).await?;
    let signed = request(&world, &alice, &bob);
    let other = uuid(&alice, &bob);
    type Change<'a> = Box<dyn Fn(&mut v1::Envelope) + Send + Sync + 'a>;
    let changes: Vec<(&str, Change<'_>)> = vec![
        ("message_id", Box::new(|envelope| envelope.message_id.clone_from(&other))),
        ("receiver_id", Box::new(|envelope| envelope.receiver_id = carol.agent.to_string())),
        ("timestamp", Box::new(|envelope| shift(&mut envelope.timestamp, 1))),
        ("correlation_id", Box::new(|envelope| envelope.correlation_id.clone_from(&other))),
        ("task_id", Box::new(|envelope| envelope.task_id.push('x'))),
        ("epoch", Box::new(|envelope| envelope.epoch = 0)),
        ("expires_at", Box::new(|envelope| shift_from(&mut envelope.expires_at, signed.timestamp, 3600))),
    ];
    let mut checks = Checks::of("alice changes one field of a signed request and sends it");
    for (field, change) in changes {
        let mut envelope = signed.clone();
        change(&mut envelope);
        // An epoch of 0 is invalid by itself. The envelope is signed with it, and a valid epoch is set afterwards.
        if field == "epoch" {
            alice.sign(&mut envelope);
            envelope.epoch = 1;
        }
        // A request has no correlation_id, so plain mail carries the changed one.
        if field == "correlation_id" {
            envelope = alice.info(bob.id(), "about nothing");
            envelope.correlation_id.clone_from(&other);
        }
        checks.refused(field, alice.submit(&envelope).await, INVALID);
    }
    checks.done()?;
    answered("alice sends it as it was signed", alice.submit(&signed).await).map(drop)
}

fn uuid(alice: &Actor, bob: &Actor) -> String {
    alice.info(bob.id(), "").message_id
}

fn shift(time: &mut Option<prost_types::Timestamp>, seconds: i64) {
    if let Some(time) = time {
        time.seconds += seconds;
    }
}

fn shift_from(time: &mut Option<prost_types::Timestamp>, from: Option<prost_types::Timestamp>, seconds: i64) {
    *time = from;
    shift(time, seconds);
}

async fn payload_is_signed(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let mut checks = Checks::of("alice changes the payload of a signed envelope and sends it");
    let mut bytes = request(&world, &alice, &bob);
    let other = v1::HandoffRequest { task_type: "refund".to_owned(), ..Default::default() };
    if let Some(payload) = &mut bytes.payload {
        payload.value = other.encode_to_vec().into();
    }
    checks.refused("payload.value", alice.submit(&bytes).await, INVALID);
    let mut kind = alice.info(bob.id(), "");
    kind.message_type = MessageType::Delegation.into();
    if let Some(payload) = &mut kind.payload {
        payload.type_url = "type.googleapis.com/baton.v1.Delegation".to_owned();
    }
    checks.refused("message_type and payload.type_url", alice.submit(&kind).await, INVALID);
    checks.done()
}

async fn trace_is_not_signed(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let mut envelope = alice.info(bob.id(), "traced");
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned();
    envelope.trace_context = Some(v1::TraceContext { traceparent, tracestate: String::new() });
    answered("a hop sets the trace context of a signed envelope", alice.submit(&envelope).await)?;
    let delivered = bob.take(MessageType::Info).await?;
    same("bob takes it", "trace_context", &envelope.trace_context, &delivered.envelope.trace_context)
}

async fn unsigned_is_refused(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let mut envelope = alice.info(bob.id(), "unsigned");
    envelope.signature = Bytes::new();
    let missing = Refusal(Code::Unauthenticated, "SIGNATURE_MISSING");
    refused("alice sends an envelope without a signature", alice.submit(&envelope).await, missing).map(drop)
}

async fn signature_of_another_key(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let mut envelope = alice.info(bob.id(), "forged");
    baton_client::envelope::sign(&mut envelope, &alice.identity.key_id, &bob.identity.key);
    refused("alice's envelope is signed by bob's key", alice.submit(&envelope).await, INVALID)?;
    let stranger = PrivateKey::generate(&SystemIds);
    baton_client::envelope::sign(&mut envelope, &alice.identity.key_id, &stranger);
    refused("alice's envelope is signed by a stranger's key", alice.submit(&envelope).await, INVALID).map(drop)
}

/// Adds the group order to the scalar S. A verifier that accepts a non-canonical S accepts the result as the same
/// signature.
fn malleated(signature: &[u8]) -> Vec<u8> {
    const ORDER: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let mut bent = signature.to_vec();
    let mut carry = 0;
    for (byte, add) in bent.iter_mut().skip(32).zip(ORDER) {
        let sum = u16::from(*byte) + u16::from(add) + carry;
        [*byte, _] = sum.to_le_bytes();
        carry = sum >> 8;
    }
    bent
}

async fn bent_signature(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let signed = alice.info(bob.id(), "bent");
    let good = signed.signature.to_vec();
    let flipped = |place: usize| {
        let mut bent = good.clone();
        bent[place] ^= 1;
        bent
    };
    let bent = [
        ("truncated", good[..63].to_vec()),
        ("oversized", [&good[..], &[0]].concat()),
        ("zeroed", vec![0; 64]),
        ("first bit flipped", flipped(0)),
        ("last byte's bit flipped", flipped(63)),
        ("malleated", malleated(&good)),
    ];
    let mut checks = Checks::of("alice sends an envelope whose signature was bent");
    for (name, signature) in bent {
        let envelope = v1::Envelope { signature: signature.into(), ..signed.clone() };
        checks.refused(name, alice.submit(&envelope).await, INVALID);
    }
    checks.done()
}

async fn another_layout(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let signed = alice.info(bob.id(), "another layout");
    let input = signing::envelope_input(&signed);
    // The body follows "DSSEv1 33 application/vnd.baton.envelope.v1 LENGTH ".
    let body_at = input.iter().enumerate().filter(|(_, byte)| **byte == b' ').nth(3).map_or(0, |(place, _)| place + 1);
    let session = signing::session_input(alice.id(), "k1", &input);
    let inputs = [
        ("the body without its domain", input[body_at..].to_vec()),
        ("the digest", signing::sha256(&[&input]).to_vec()),
        ("another domain", session),
    ];
    let mut checks = Checks::of("alice signs something else than the layout says");
    for (name, input) in inputs {
        let signature = alice.identity.key.sign(&input).to_vec().into();
        let envelope = v1::Envelope { signature, ..signed.clone() };
        checks.refused(name, alice.submit(&envelope).await, INVALID);
    }
    checks.done()
}

async fn signature_version(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let signed = alice.info(bob.id(), "another version");
    let unknown = Refusal(Code::InvalidArgument, "SIGNATURE_VERSION_UNKNOWN");
    for version in [0, 2] {
        // The version is outside the signature, so the envelope is not signed again.
        let envelope = v1::Envelope { signature_version: version, ..signed.clone() };
        refused(&format!("signature_version is {version}"), alice.submit(&envelope).await, unknown)?;
    }
    Ok(())
}

async fn unknown_key(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let unknown = Refusal(Code::Unauthenticated, "KEY_UNKNOWN");
    let mut envelope = alice.info(bob.id(), "another key");
    let other = "k2".parse().expect("it follows the grammar");
    baton_client::envelope::sign(&mut envelope, &other, &alice.identity.key);
    refused("alice names a key that she has not", alice.submit(&envelope).await, unknown)?;
    let mut envelope = alice.info(bob.id(), "of an unknown sender");
    envelope.sender_id = world.id("unknown");
    alice.sign(&mut envelope);
    // By a call without a token: a session would refuse another sender than its agent first.
    let request = v1::SendRequest { envelope: envelope.encode_to_vec().into(), ..Default::default() };
    let answer = world.call(async { world.anonymous.answer(world.anonymous.messages().send(request).await) }).await;
    refused("an unregistered agent sends", answer, INVALID).map(drop)
}

async fn off_by(world: &World, seconds: i64) -> Verdict<(Actor, v1::Envelope)> {
    let (alice, bob) = pair(world).await?;
    let mut envelope = alice.info(bob.id(), "a clock that is off");
    shift(&mut envelope.timestamp, seconds);
    alice.sign(&mut envelope);
    Ok((alice, envelope))
}

const OUTSIDE: Refusal = Refusal(Code::InvalidArgument, "TIMESTAMP_OUTSIDE_WINDOW");

async fn old_is_refused(world: World) -> Verdict {
    let (alice, envelope) = off_by(&world, -3600).await?;
    refused("alice sends an envelope of an hour ago", alice.submit(&envelope).await, OUTSIDE).map(drop)
}

async fn early_is_refused(world: World) -> Verdict {
    let (alice, envelope) = off_by(&world, 3600).await?;
    refused("alice sends an envelope of in an hour", alice.submit(&envelope).await, OUTSIDE).map(drop)
}

async fn a_little_off(world: World) -> Verdict {
    for seconds in [-120, 120] {
        let (alice, envelope) = off_by(&world.another(), seconds).await?;
        answered(&format!("alice's clock is off by {seconds} s"), alice.submit(&envelope).await)?;
    }
    Ok(())
}

async fn expired_is_refused(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let mut envelope = alice.info(bob.id(), "over");
    shift_from(&mut envelope.expires_at, envelope.timestamp, -1);
    alice.sign(&mut envelope);
    let over = Refusal(Code::FailedPrecondition, "MESSAGE_EXPIRED");
    refused("alice sends an envelope that is over", alice.submit(&envelope).await, over).map(drop)
}

/// An unknown field: number 1000, three bytes long.
const UNKNOWN_FIELD: [u8; 6] = [0xc2, 0x3e, 3, b'n', b'e', b'w'];

async fn arrives_byte_for_byte(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let mut envelope = alice.info(bob.id(), "of a newer schema");
    if let Some(payload) = &mut envelope.payload {
        payload.value = [&payload.value[..], &UNKNOWN_FIELD].concat().into();
    }
    alice.sign(&mut envelope);
    let sent: Bytes = [&envelope.encode_to_vec()[..], &UNKNOWN_FIELD].concat().into();
    let step = "alice sends an envelope with a field of a newer schema, in the payload and outside";
    answered(step, alice.submit_bytes(sent.clone()).await)?;
    let delivered = bob.take(MessageType::Info).await?;
    same("bob takes it", "envelope bytes", hex::encode(sent), hex::encode(delivered.delivery.envelope))
}

async fn fields_are_checked(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    type Change = fn(&mut v1::Envelope);
    let changes: [(&str, Change); 7] = [
        ("envelope.message_id", |envelope| envelope.message_id = "not-a-uuid".to_owned()),
        ("envelope.message_id", |envelope| envelope.message_id.clear()),
        ("envelope.timestamp", |envelope| envelope.timestamp = None),
        ("envelope.task_id", |envelope| envelope.task_id.clear()),
        ("envelope.epoch", |envelope| envelope.epoch = 0),
        ("envelope.receiver_id", |envelope| envelope.receiver_id.clear()),
        ("envelope.payload.task_type", |envelope| {
            envelope.payload = Some(baton_client::envelope::payload_of(&v1::HandoffRequest::default()));
        }),
    ];
    let mut checks = Checks::of("alice signs and sends a request with a field that cannot be");
    for (path, change) in changes {
        let mut envelope = request(&world, &alice, &bob);
        change(&mut envelope);
        alice.sign(&mut envelope);
        names_the_path(&mut checks, path, alice.submit(&envelope).await);
    }
    checks.done()
}

fn names_the_path(checks: &mut Checks, path: &str, answer: super::check::Answer<v1::Receipt>) {
    match refused(path, answer, FIELD) {
        Ok(refusal) => {
            let paths: Vec<&String> = refusal.violations.iter().map(|(path, _)| path).collect();
            checks.holds("BadRequest", paths.iter().any(|named| *named == path), path, paths);
        }
        Err(super::check::Problem::Failed(failed)) => {
            for difference in failed.differences {
                checks.differs(&format!("{path}: {}", difference.field), difference.expected, difference.seen);
            }
        }
        Err(super::check::Problem::Skipped(_)) => {}
    }
}

async fn ids_follow_the_grammar(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let mut checks = Checks::of("alice signs and sends a request about a task with an id that cannot be");
    let long = "x".repeat(129);
    for bad in ["-a", ".a", "a b", "a/b", "a:b", "\u{5ba2}\u{670d}", long.as_str()] {
        let envelope = alice.envelope(bob.id(), &About::task(bad, 1), &a_request());
        names_the_path(&mut checks, "envelope.task_id", alice.submit(&envelope).await);
    }
    checks.done()?;
    let good = format!("{}{}", world.id("A.b_c"), "-".repeat(128));
    let good = &good[..128];
    alice.tell(bob.id(), &About::task(good, 1), &a_request()).await.map(drop)
}

async fn payload_fits_its_type(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let mut envelope = request(&world, &alice, &bob);
    envelope.message_type = MessageType::Info.into();
    alice.sign(&mut envelope);
    let mismatch = Refusal(Code::InvalidArgument, "PAYLOAD_TYPE_MISMATCH");
    refused("alice sends a request and calls it an Info", alice.submit(&envelope).await, mismatch).map(drop)
}

async fn unknown_type(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let mut checks = Checks::of("alice sends a message of a type that is not known");
    for kind in [0, 99] {
        let mut envelope = alice.info(bob.id(), "");
        envelope.message_type = kind;
        alice.sign(&mut envelope);
        checks.refused(&format!("message_type {kind}"), alice.submit(&envelope).await, FIELD);
    }
    checks.done()
}

async fn payload_is_bounded(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let mut envelope = alice.info(bob.id(), "");
    if let Some(payload) = &mut envelope.payload {
        payload.value = vec![0; PAYLOAD_BYTES_MAX + 1].into();
    }
    alice.sign(&mut envelope);
    let large = Refusal(Code::InvalidArgument, "PAYLOAD_TOO_LARGE");
    refused("alice sends a payload of 1 MiB and a byte", alice.submit(&envelope).await, large)?;
    alice.tell(bob.id(), &About::default(), &v1::Info::default()).await.map(drop)
}

async fn large_payload_arrives(world: World) -> Verdict {
    let story = super::story::Story::at(&world, super::story::Stage::Accepted).await?;
    let json = format!("[\"{}\"]", "x".repeat(PAYLOAD_BYTES_MAX - 1024));
    let context = baton_client::context_of([("collected_data", json)]);
    let sent = story.alice.say(story.bob.id(), &story.about(), &context).await;
    answered("alice sends a context of nearly 1 MiB", sent)?;
    let delivered = story.bob.take(MessageType::TaskContextTransfer).await?;
    let arrived: v1::TaskContextTransfer = delivered.payload();
    same("bob takes it", "payload", true, arrived == context)
}

async fn garbage_is_refused(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let garbage = Bytes::from_static(b"\xff\xff\xff\xff");
    let malformed = Refusal(Code::InvalidArgument, "MALFORMED");
    refused("alice sends bytes that are no envelope", alice.submit_bytes(garbage).await, malformed)?;
    alice.tell(bob.id(), &About::default(), &v1::Info::default()).await.map(drop)
}

async fn refused_changes_nothing(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let good = request(&world, &alice, &bob);
    let forged = v1::Envelope { signature: vec![1; 64].into(), ..good.clone() };
    refused("alice sends a request with a signature that is not hers", alice.submit(&forged).await, INVALID)?;
    let mut checks = Checks::of("alice asks for its task");
    checks.refused_as_absent("GetTask", alice.task(&good.task_id).await, Refusal(Code::NotFound, "TASK_UNKNOWN"));
    checks.done()?;
    answered("alice sends the same, signed, under the same id", alice.submit(&good).await)?;
    let delivered = bob.take(MessageType::HandoffRequest).await?;
    same("bob takes the first delivery", "message_id", &good.message_id, &delivered.envelope.message_id)
}
