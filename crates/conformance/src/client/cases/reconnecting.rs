//! A broker that goes away and comes back.

use std::time::Duration;

use prost::Message as _;
use serde_json::json;
use tonic::Code;

use super::{
    super::{
        broker::Session,
        fixture::{Fixture, Verdict, expect},
        refusal::Refusal,
    },
    cases,
    sending::send,
};
use crate::report::Failed;
use baton_client::{
    proto::v1::{self, MessageType, connect_response::Response as Said},
    time::Moment,
};

cases! {
    "client.unanswered-is-sent-again", "2 4",
    "What has no answer when the connection is cut is sent again on the next session, byte for byte.",
    unanswered_is_sent_again;
    "client.go-away-is-kept", "4",
    "After a GoAway the client opens its next session when the broker said, not before.",
    go_away_is_kept;
    "client.broker-that-stops-is-waited-for", "4",
    "While the broker is away the client reconnects by itself, and sends pending messages on its return.",
    broker_that_stops;
    "client.expired-token-is-replaced", "5",
    "A session that ends because the token's time is over is opened again with a new token.",
    expired_token;
    "client.single-refusal-is-tried-again", "5",
    "A client that is refused once while it reconnects tries again: a broker that restarts forgets its challenges.",
    single_refusal;
    "client.reconnects-with-backoff", "4",
    "A broker that ends every session at once is not called without a pause: each time the client waits longer.",
    backoff;
    "client.refused-for-good-ends", "5 11",
    "A client whose agent is let in no more ends by itself, with the reason.",
    refused_for_good;
    "client.lost-ack-is-made-up-for", "4",
    "Where an ack is lost with its session, the message is acked when it comes again, and not handled twice.",
    lost_ack;
    "client.late-ack-is-made-up-for", "4",
    "A message handled between a reconnect and its redelivery is acked when it comes again, and not handled twice.",
    late_ack;
    "client.running-handler-keeps-its-message", "4",
    "A message delivered again while its handler works is not handled twice, and is acked under its new delivery.",
    running_handler;
    "client.silent-broker-is-noticed", "4",
    "If the broker falls silent on an open connection, the client opens a new session within 60 s, and continues.",
    silent_broker;
}

/// The time limit for a client to detect a silent connection and to reconnect.
const SILENCE_MAX: Duration = Duration::from_secs(60);

async fn unanswered_is_sent_again(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (id, first) = send(fixture, &mut session, "did you get that?").await?;
    fixture.broker.relay.cut();
    let step = "the connection is cut before the receipt";
    let mut session = fixture.session(step).await?;
    let again = fixture.sent(step, &mut session, MessageType::Info).await?;
    expect(step, "the envelope, in hexadecimal", &hex::encode(&first.raw), &hex::encode(&again.raw))?;
    fixture.receipt(&session, &again);
    fixture.done("the receipt comes", id).await.map(drop)
}

async fn go_away_is_kept(fixture: &mut Fixture) -> Verdict {
    let session = fixture.connected().await?;
    let delay = Duration::from_millis(1500);
    let reconnect_after = prost_types::Duration::try_from(delay).ok();
    session.say(0, Said::GoAway(v1::GoAway { reconnect_after, reason_text: "a new version".to_owned() }));
    let told = Moment::now();
    drop(session);
    let step = "the broker goes away for 1500 ms";
    let mut session = fixture.session(step).await?;
    // The lower bound leaves a margin for jitter.
    let waited = told.elapsed();
    let is_kept = waited >= Duration::from_millis(1150);
    expect(step, "whether it waited 1150 ms and more", &true, &is_kept)?;
    fixture.mail_goes_on(&mut session).await
}

async fn broker_that_stops(fixture: &mut Fixture) -> Verdict {
    let session = fixture.connected().await?;
    fixture.broker.relay.close().await;
    drop(session);
    let id = fixture.harness.tell(json!({"command": "send", "to": "alice", "text": "are you back?"}));
    let step = "the broker listens again";
    fixture.broker.relay.open_again().await.map_err(|error| fixture.failed(step, "port", "free", error.to_string()))?;
    let mut session = fixture.session(step).await?;
    let sent = fixture.sent(step, &mut session, MessageType::Info).await?;
    fixture.receipt(&session, &sent);
    fixture.done("the receipt comes", id).await?;
    fixture.mail_goes_on(&mut session).await
}

async fn expired_token(fixture: &mut Fixture) -> Verdict {
    let session = fixture.connected().await?;
    fixture.broker.state().expire_tokens();
    session.end(Some(Refusal::new(Code::Unauthenticated, "TOKEN_INVALID")));
    let step = "the token's time is over";
    let mut session = fixture.session(step).await?;
    let bad = fixture.broker.state().bad_proofs.clone();
    expect(step, "proofs that are not good", "[]", format!("{bad:?}").as_str())?;
    fixture.mail_goes_on(&mut session).await
}

async fn single_refusal(fixture: &mut Fixture) -> Verdict {
    let session = fixture.connected().await?;
    {
        let mut state = fixture.broker.state();
        state.expire_tokens();
        state.refuses_next_proof = Some(Refusal::new(Code::Unauthenticated, "CHALLENGE_FAILED"));
    }
    session.end(Some(Refusal::new(Code::Unauthenticated, "TOKEN_INVALID")));
    let mut session = fixture.session("the first proof is refused").await?;
    fixture.mail_goes_on(&mut session).await
}

async fn backoff(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let mut waits = Vec::new();
    for _ in 0..5 {
        let ended = Moment::now();
        session.end(Some(Refusal::new(Code::Unavailable, "STORE_UNAVAILABLE")));
        session = fixture.session("the session ends at once").await?;
        waits.push(ended.elapsed());
    }
    let step = "five sessions have ended at once";
    // With a backoff of 100 ms that doubles, less 20 % jitter, five sessions take 2.5 s. Without one they take 0.5 s.
    let took: Duration = waits.iter().sum();
    expect(step, "whether five new ones took 2 s and more", &true, &(took >= Duration::from_secs(2)))?;
    // The last wait is 1.2 s longer than the first. A busy machine lengthens single waits, so the last one is compared with
    // the shortest, and with a margin.
    let margin = Duration::from_millis(400);
    let is_longer = waits.iter().min().zip(waits.last()).is_some_and(|(shortest, last)| *last >= *shortest + margin);
    expect(step, &format!("whether the last wait of {waits:?} is 400 ms longer than the shortest"), &true, &is_longer)
}

async fn refused_for_good(fixture: &mut Fixture) -> Verdict {
    let session = fixture.connected().await?;
    // Without a token the client has to prove its identity again, and this is refused from now on.
    fixture.broker.state().refuses_proofs = Some(Refusal::new(Code::Unauthenticated, "CHALLENGE_FAILED"));
    fixture.broker.state().expire_tokens();
    session.end(Some(Refusal::new(Code::Unauthenticated, "TOKEN_INVALID")));
    let step = "the agent is let in no more";
    let ended = fixture.event(step, "the event ended", |event| event["event"] == "ended").await?;
    expect(step, "ended.kind", &json!("refused"), &ended["kind"])?;
    expect(step, "ended.reason", &json!("CHALLENGE_FAILED"), &ended["reason"])
}

async fn lost_ack(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    // The ack gets no answer, so the client has to count it as lost with its session.
    session.leave_acknowledgements();
    let envelope = fixture.info("once");
    let delivery_id = fixture.deliver(&session, &envelope);
    fixture.handling("the message is delivered", &envelope.message_id).await?;
    fixture.acked("the message is handled", &mut session, &delivery_id).await?;
    fixture.broker.relay.cut();
    let step = "the ack was lost, and the message comes again";
    let mut session = fixture.session(step).await?;
    let delivery_id = fixture.deliver_bytes(&session, envelope.encode_to_vec().into(), 2);
    fixture.acked(step, &mut session, &delivery_id).await?;
    fixture.mail_goes_on(&mut session).await?;
    // The event of the first call was picked above, so only a second call is found here.
    fixture.never_handled(step, &envelope.message_id)
}

/// Cuts the connection while a handler works on a message. Returns the next session, and the message.
async fn cut_while_handled(fixture: &mut Fixture, step: &str) -> Result<(Session, v1::Envelope), Failed> {
    let session = fixture.connected().await?;
    fixture.handle("Info", "wait").await?;
    let envelope = fixture.info("once");
    fixture.deliver(&session, &envelope);
    fixture.handling("the message is delivered", &envelope.message_id).await?;
    fixture.broker.relay.cut();
    drop(session);
    Ok((fixture.session(step).await?, envelope))
}

async fn late_ack(fixture: &mut Fixture) -> Verdict {
    let step = "the handler returns on the next session, and then the message comes again";
    let (mut session, envelope) = cut_while_handled(fixture, step).await?;
    fixture.handle("Info", "return").await?;
    let id = fixture.harness.tell(json!({"command": "release"}));
    fixture.done("the handler returns", id).await?;
    // The client may ack the old delivery, which is refused with DELIVERY_UNKNOWN. This mail comes after that.
    fixture.mail_goes_on(&mut session).await?;
    let delivery_id = fixture.deliver_bytes(&session, envelope.encode_to_vec().into(), 2);
    fixture.acked(step, &mut session, &delivery_id).await?;
    fixture.mail_goes_on(&mut session).await?;
    fixture.never_handled(step, &envelope.message_id)
}

async fn running_handler(fixture: &mut Fixture) -> Verdict {
    let step = "the message comes again while its handler works";
    let (mut session, envelope) = cut_while_handled(fixture, step).await?;
    let delivery_id = fixture.deliver_bytes(&session, envelope.encode_to_vec().into(), 2);
    // For later mail only: the handler that runs already goes on waiting.
    fixture.handle("Info", "return").await?;
    fixture.mail_goes_on(&mut session).await?;
    fixture.never_handled(step, &envelope.message_id)?;
    let id = fixture.harness.tell(json!({"command": "release"}));
    fixture.done("the handler returns", id).await?;
    fixture.acked(step, &mut session, &delivery_id).await
}

async fn silent_broker(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    fixture.mail_goes_on(&mut session).await?;
    fixture.broker.relay.fall_silent();
    let id = fixture.harness.tell(json!({"command": "send", "to": "alice", "text": "are you there?"}));
    let step = "the connection is open, and nothing passes it";
    let mut session = fixture.session_within(step, SILENCE_MAX).await?;
    let sent = fixture.sent(step, &mut session, MessageType::Info).await?;
    fixture.receipt(&session, &sent);
    fixture.done("the receipt comes", id).await?;
    fixture.mail_goes_on(&mut session).await
}
