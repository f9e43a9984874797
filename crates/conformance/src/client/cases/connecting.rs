//! Authentication of the client and of the broker.

use std::time::Duration;

use serde_json::json;

use super::{
    super::{
        broker::HEARTBEAT_INTERVAL,
        fixture::{Fixture, Verdict, expect},
    },
    cases,
};
use baton_client::{
    proto::v1::{self, connect_request::Request as Asked},
    time::Moment,
};

cases! {
    "client.identity-is-proven", "5",
    "A client signs the broker's challenge with its key, and opens its session with the token that it gets for that.",
    identity_is_proven;
    "client.wrong-ca-is-untrusted", "5",
    "A broker whose certificate is not of the trusted CA hears nothing, and the caller gets an error that says so.",
    wrong_ca_is_untrusted;
    "client.wrong-key-is-refused", "5 11",
    "With another agent's key, connecting fails with the reason CHALLENGE_FAILED.",
    wrong_key_is_refused;
    "client.credit-is-as-asked", "4",
    "A session begins with the credit that the program asked for.",
    credit_is_as_asked;
    "client.heartbeats-are-sent", "6",
    "A session sends heartbeats as often as the broker wants, by itself.",
    heartbeats_are_sent;
}

/// The time limit of four heartbeats, twenty times what the broker asks for: a busy machine delays some.
const FOUR_HEARTBEATS_MAX: Duration = HEARTBEAT_INTERVAL.saturating_mul(4 * 20);

async fn identity_is_proven(fixture: &mut Fixture) -> Verdict {
    let _session = fixture.connected().await?;
    let (proofs, bad) = {
        let state = fixture.broker.state();
        (state.proofs, state.bad_proofs.clone())
    };
    expect("the client connects", "proofs that are not good", "[]", format!("{bad:?}").as_str())?;
    expect("the client connects", "proofs", &1, &proofs)
}

async fn wrong_ca_is_untrusted(fixture: &mut Fixture) -> Verdict {
    let mut command = fixture.connect();
    command["ca"] = json!(fixture.file("other-ca.pem"));
    let id = fixture.harness.tell(command);
    fixture.refused("the client connects with another CA", id, json!({"kind": "untrusted"})).await?;
    let calls = fixture.broker.state().calls;
    expect("the client connects with another CA", "calls that reached the broker", &0, &calls)
}

async fn wrong_key_is_refused(fixture: &mut Fixture) -> Verdict {
    let mut command = fixture.connect();
    command["key"] = json!(fixture.file("other.pem"));
    let id = fixture.harness.tell(command);
    let expected = json!({"kind": "refused", "reason": "CHALLENGE_FAILED", "code": "UNAUTHENTICATED"});
    fixture.refused("the client connects with another key", id, expected).await?;
    let proofs = fixture.broker.state().proofs;
    match proofs {
        // A client may try again, but not without end.
        1..=3 => Ok(()),
        _ => Err(fixture.failed("the client is refused", "proofs tried", "1 to 3", proofs.to_string())),
    }
}

async fn credit_is_as_asked(fixture: &mut Fixture) -> Verdict {
    let mut command = fixture.connect();
    command["credit"] = json!(3);
    fixture.harness.tell(command);
    let step = "the client connects with credit 3";
    // Not by `Fixture::session`, which takes the frame of the credit itself.
    let mut session = fixture.opened_session(step, fixture.patience).await?;
    let credit = fixture
        .frame(step, "credit", "a Credit", &mut session, |frame| match &frame.request {
            Some(Asked::Credit(credit)) => Some(credit.max_outstanding),
            _ => None,
        })
        .await?;
    expect(step, "credit.max_outstanding", &3, &credit)
}

async fn heartbeats_are_sent(fixture: &mut Fixture) -> Verdict {
    let mut session = fixture.connected().await?;
    let began = Moment::now();
    for turn in 1..=4 {
        let heartbeat = |frame: &v1::ConnectRequest| matches!(frame.request, Some(Asked::Heartbeat(_))).then_some(());
        let step = format!("the session is idle, heartbeat {turn}");
        fixture.frame(&step, "heartbeat", "a Heartbeat", &mut session, heartbeat).await?;
    }
    let is_in_time = began.elapsed() <= FOUR_HEARTBEATS_MAX;
    let field = format!("whether four heartbeats came within {FOUR_HEARTBEATS_MAX:?}");
    expect("the session is idle", &field, &true, &is_in_time)
}
