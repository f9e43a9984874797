//! Authentication of the client and of the broker.

use serde_json::json;

use super::{
    super::bench::{Bench, Verdict, expect},
    cases,
};
use crate::proto::v1::{self, connect_request::Request as Asked};

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

async fn identity_is_proven(bench: &mut Bench) -> Verdict {
    let _session = bench.connected().await?;
    let (proofs, bad) = {
        let state = bench.broker.state();
        (state.proofs, state.bad_proofs.clone())
    };
    expect("the client connects", "proofs that are not good", "[]", format!("{bad:?}").as_str())?;
    expect("the client connects", "proofs", &1, &proofs)
}

async fn wrong_ca_is_untrusted(bench: &mut Bench) -> Verdict {
    let mut command = bench.connect();
    command["ca"] = json!(bench.file("other-ca.pem"));
    let id = bench.harness.tell(command);
    bench.refused("the client connects with another CA", id, json!({"kind": "untrusted"})).await?;
    let calls = bench.broker.state().calls;
    expect("the client connects with another CA", "calls that reached the broker", &0, &calls)
}

async fn wrong_key_is_refused(bench: &mut Bench) -> Verdict {
    let mut command = bench.connect();
    command["key"] = json!(bench.file("other.pem"));
    let id = bench.harness.tell(command);
    let expected = json!({"kind": "refused", "reason": "CHALLENGE_FAILED", "code": "UNAUTHENTICATED"});
    bench.refused("the client connects with another key", id, expected).await?;
    let proofs = bench.broker.state().proofs;
    match proofs {
        // A client may try again, but not without end.
        1..=3 => Ok(()),
        _ => Err(bench.failed("the client is refused", "proofs tried", "1 to 3", proofs.to_string())),
    }
}

async fn credit_is_as_asked(bench: &mut Bench) -> Verdict {
    let mut command = bench.connect();
    command["credit"] = json!(3);
    bench.harness.tell(command);
    let step = "the client connects with credit 3";
    // Not by `Bench::session`, which takes the frame of the credit itself.
    let mut session =
        bench.broker.session().await.ok_or_else(|| bench.failed(step, "session", "a session", "none".to_owned()))?;
    let credit = bench
        .frame(step, "credit", "a Credit", &mut session, |frame| match &frame.request {
            Some(Asked::Credit(credit)) => Some(credit.max_outstanding),
            _ => None,
        })
        .await?;
    expect(step, "credit.max_outstanding", &3, &credit)
}

async fn heartbeats_are_sent(bench: &mut Bench) -> Verdict {
    let mut session = bench.connected().await?;
    for turn in 1..=4 {
        let heartbeat = |frame: &v1::ConnectRequest| matches!(frame.request, Some(Asked::Heartbeat(_))).then_some(());
        let step = format!("the session is idle, heartbeat {turn}");
        bench.frame(&step, "heartbeat", "a Heartbeat", &mut session, heartbeat).await?;
    }
    Ok(())
}
