//! The orderly shutdown of a client.

use std::time::Duration;

use serde_json::json;

use super::{
    super::fixture::{Fixture, Verdict, expect},
    cases,
};
use baton_client::{proto::v1::NackCause, time::Moment};

cases! {
    "client.stop-waits-for-handlers", "4",
    "A client that stops lets its handlers end, and acks their messages, before its session ends.",
    stop_waits_for_handlers;
    "client.stop-gives-back-what-is-not-done", "4",
    "What a handler is still at when the grace is over is nacked as SHUTDOWN, and the client ends.",
    stop_gives_back;
    "client.stop-ends-the-program", "4",
    "After a stop the session is over, and the program ends with code 0 when its stdin does.",
    stop_ends_the_program;
}

async fn stop_waits_for_handlers(fixture: &mut Fixture) -> Verdict {
    let mut command = fixture.connect();
    command["stop_grace_ms"] = json!(20_000);
    let mut session = fixture.connected_by(command).await?;
    fixture.handle("Info", "wait").await?;
    let envelope = fixture.info("not yet done");
    let delivery_id = fixture.deliver(&session, &envelope);
    fixture.handling("the message is delivered", &envelope.message_id).await?;
    let closing = fixture.harness.tell(json!({"command": "close"}));
    // After the stop, so that the handler returns during the grace period.
    let id = fixture.harness.tell(json!({"command": "release"}));
    fixture.done("the client stops, and the handler returns", id).await?;
    fixture.acked("the handler has returned", &mut session, &delivery_id).await?;
    drop(session);
    fixture.done("the client has stopped", closing).await.map(drop)
}

async fn stop_gives_back(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    fixture.handle("Info", "wait").await?;
    let envelope = fixture.info("never done");
    let delivery_id = fixture.deliver(&session, &envelope);
    fixture.handling("the message is delivered", &envelope.message_id).await?;
    let told = Moment::now();
    let closing = fixture.harness.tell(json!({"command": "close"}));
    let step = "the client stops, and the handler does not return";
    fixture.nacked(step, &mut session, &delivery_id, NackCause::Shutdown).await?;
    // The grace is 3 s. A timer of the client may fire a little early by the clock of the suite.
    let is_after_grace = told.elapsed() >= Duration::from_millis(2900);
    expect(step, "whether the nack came after 2900 ms and more", &true, &is_after_grace)?;
    drop(session);
    fixture.done("the client has stopped", closing).await.map(drop)
}

async fn stop_ends_the_program(fixture: &mut Fixture) -> Verdict {
    let session = fixture.connected().await?;
    let id = fixture.harness.tell(json!({"command": "close"}));
    let step = "the client stops";
    // The client may close its half of the stream or the connection. Either way no further frame arrives.
    fixture.session_ends(step, session).await?;
    fixture.done(step, id).await?;
    fixture.harness.end_stdin();
    let code = tokio::time::timeout(fixture.patience, fixture.harness.exit_code()).await;
    let seen = code.map_or_else(|_| "it runs on".to_owned(), |code| format!("{code:?}"));
    expect("its stdin has ended", "exit code", "Some(0)", seen.as_str())
}
