//! The outcome of a delivery, by the outcome of its handler.

use serde_json::json;

use super::{
    super::{
        broker::Session,
        fixture::{Fixture, Verdict, acknowledged, expect, outcome_in_words},
    },
    cases,
};
use crate::report::Failed;
use baton_client::proto::v1::{self, NackCause, acknowledgement::Outcome};

cases! {
    "client.handled-mail-is-acked", "4",
    "A message is acked when its handler has returned, not before.",
    handled_mail_is_acked;
    "client.long-handler-is-extended", "4",
    "The delivery is extended as long as its handler works, and then acked.",
    long_handler_is_extended;
    "client.throwing-handler-is-nacked", "4",
    "A handler that throws has its message nacked as FAILURE, and the client goes on.",
    throwing_handler_is_nacked;
    "client.poison-is-said", "4",
    "A handler can declare a message as impossible to process: the client nacks it as POISON.",
    poison_is_said;
    "client.later-is-said", "4",
    "A handler can ask for the message again after a time: the client nacks it as FAILURE with that time.",
    later_is_said;
    "client.endless-handler-is-given-up", "4",
    "A handler that never returns is given up after its timeout: its message is nacked as FAILURE, and mail goes on.",
    endless_handler_is_given_up;
    "client.handlers-run-side-by-side", "4",
    "Within the credit one slow handler does not keep up the next message.",
    handlers_run_side_by_side;
}

/// Delivers an `Info` to a handler that acts as `how` says. Returns the ids of the delivery and the message.
async fn handled_as(fixture: &mut Fixture, session: &Session, how: &str) -> Result<(String, String), Failed> {
    fixture.handle("Info", how).await?;
    let envelope = fixture.info(how);
    let delivery_id = fixture.deliver(session, &envelope);
    fixture.handling("the message is delivered", &envelope.message_id).await?;
    Ok((delivery_id, envelope.message_id))
}

async fn handled_mail_is_acked(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (delivery_id, _) = handled_as(fixture, &session, "wait").await?;
    fixture.handle("Info", "return").await?;
    fixture.mail_goes_on(&mut session).await?;
    // Later mail was acked by now, so an early ack of this delivery has arrived too.
    let early = session.unread().iter().any(|words| *words == format!("ack of {delivery_id}"));
    let seen = if early { "an ack" } else { "nothing" };
    expect("the handler works", &format!("delivery {delivery_id}"), "nothing", seen)?;
    release(fixture).await?;
    fixture.acked("the handler has returned", &mut session, &delivery_id).await
}

async fn release(fixture: &mut Fixture) -> Verdict {
    let id = fixture.harness.tell(json!({"command": "release"}));
    fixture.done("handlers that wait return", id).await.map(drop)
}

async fn long_handler_is_extended(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (delivery_id, _) = handled_as(fixture, &session, "wait").await?;
    for turn in 1..=3 {
        let step = format!("the handler works for long, extension {turn}");
        let field = format!("delivery {delivery_id}");
        let outcome =
            fixture.frame(&step, &field, "an Extend", &mut session, |frame| acknowledged(frame, &delivery_id)).await?;
        if !matches!(outcome, Outcome::Extend(_)) {
            let seen = outcome_in_words(&outcome);
            return Err(fixture.failed(&step, &field, "extend", seen));
        }
    }
    release(fixture).await?;
    fixture.acked("the handler has returned", &mut session, &delivery_id).await
}

async fn throwing_handler_is_nacked(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (delivery_id, _) = handled_as(fixture, &session, "throw").await?;
    fixture.nacked("the handler throws", &mut session, &delivery_id, NackCause::Failure).await?;
    fixture.handle("Info", "return").await?;
    fixture.mail_goes_on(&mut session).await
}

async fn poison_is_said(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (delivery_id, _) = handled_as(fixture, &session, "poison").await?;
    fixture.nacked("the handler says so", &mut session, &delivery_id, NackCause::Poison).await.map(drop)
}

async fn later_is_said(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let (delivery_id, _) = handled_as(fixture, &session, "later").await?;
    let step = "the handler asks for the message again in 7 s";
    let nack: v1::Nack = fixture.nacked(step, &mut session, &delivery_id, NackCause::Failure).await?;
    let seconds = nack.retry_after.map(|span| span.seconds);
    expect(step, "nack.retry_after", "Some(7)", format!("{seconds:?}").as_str())
}

async fn endless_handler_is_given_up(fixture: &mut Fixture) -> Verdict {
    let mut command = fixture.connect();
    command["handler_timeout_ms"] = json!(800);
    let mut session = fixture.connected_by(command).await?;
    let (delivery_id, _) = handled_as(fixture, &session, "wait").await?;
    fixture.nacked("800 ms are over", &mut session, &delivery_id, NackCause::Failure).await?;
    fixture.handle("Info", "return").await?;
    fixture.mail_goes_on(&mut session).await
}

async fn handlers_run_side_by_side(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    handled_as(fixture, &session, "wait").await?;
    fixture.handle("Info", "return").await?;
    fixture.mail_goes_on(&mut session).await
}
