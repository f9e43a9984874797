//! `baton status`: what a caller learns of a broker, and the exit code.

use std::{path::Path, process::Command};

use serde_json::{Value, json};

use crate::{
    broker::{Broker, baton},
    foreign::{Stranger, free_port},
    health::asked,
};

fn status(server: &str, ca: &Path) -> Command {
    let mut command = baton();
    command.args(["status", "--server", server, "--ca"]).arg(ca);
    command
}

/// The document of the command, which ends with this code, and stderr.
#[track_caller]
pub(crate) fn shown(command: &mut Command, code: i32) -> (Value, String) {
    let (found, said, stderr) = asked(command.args(["-o", "json"]));
    assert_eq!(found, Some(code), "{said}{stderr}");
    (serde_json::from_str(&said).unwrap(), stderr)
}

#[test]
fn an_operator_sees_all_of_a_broker() {
    let broker = Broker::start();
    let (shown, _) = shown(&mut broker.command(&["status"]), 0);
    assert_eq!(shown["server"], json!(broker.address));
    assert_eq!((&shown["health"], &shown["reason"]), (&json!("ready"), &Value::Null));
    assert_eq!(shown["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(shown["caller"], "operator operator.token");
    assert!(shown["start_time"].as_str().unwrap().ends_with('Z'), "{shown}");
    assert!(shown["store"]["format"].as_str().unwrap().starts_with("baton-store "), "{shown}");
    assert!(shown["store"]["size_bytes"].as_u64().is_some_and(|size| size > 0), "{shown}");
    assert_eq!(shown["store"]["size_bytes_max"], Value::Null);
    // Both clocks are that of this machine; the broker's approaches it slowly.
    assert!(shown["clock"]["ahead_ms"].as_f64().unwrap().abs() < 60_000.0, "{shown}");
    assert!(shown["clock"]["uncertainty_ms"].as_f64().is_some_and(|time| time >= 0.0), "{shown}");
    let days = shown["certificate"]["days_left"].as_i64().unwrap();
    assert!((395..=397).contains(&days), "a new certificate has 397 days: {shown}");
}

#[test]
fn people_get_a_line_for_each() {
    let broker = Broker::start();
    let (code, said, stderr) = asked(broker.command(&["status"]).args(["-o", "table"]));
    assert_eq!(code, Some(0), "{stderr}");
    let names: Vec<&str> = said.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let expected = ["address", "health", "version", "started", "identity", "clock", "store", "certificate"];
    assert_eq!(names, expected, "{said}");
}

#[tokio::test]
async fn an_agent_sees_itself_and_not_the_store() {
    let broker = Broker::start();
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("alice.pem");
    assert!(baton().args(["keygen", "--out"]).arg(&key).output().unwrap().status.success());
    let mut register = broker.command(&["agent", "register", "--id", "alice"]);
    assert!(register.arg("--key").arg(&key).output().unwrap().status.success());
    let as_alice = |key: &Path| {
        let mut command = status(&broker.address, &broker.ca());
        command.args(["--id", "alice", "--key"]).arg(key);
        command
    };
    let (seen, _) = shown(&mut as_alice(&key), 0);
    assert_eq!(seen["caller"], "agent alice");
    assert_eq!(seen["agent"], json!({"id": "alice", "presence": "UNSEEN", "sessions": 0, "letters": 0}));
    assert_eq!((&seen["store"], &seen["version"]), (&Value::Null, &json!(env!("CARGO_PKG_VERSION"))));

    // A key that is not alice's: all else is shown.
    let other = folder.path().join("other.pem");
    assert!(baton().args(["keygen", "--out"]).arg(&other).output().unwrap().status.success());
    let (seen, stderr) = shown(&mut as_alice(&other), 8);
    assert!(stderr.contains("CHALLENGE_FAILED"), "{stderr}");
    assert_eq!((&seen["health"], &seen["caller"], &seen["agent"]), (&json!("ready"), &Value::Null, &Value::Null));
    assert!(seen["certificate"]["days_left"].is_i64() && seen["clock"].is_object(), "{seen}");
}

#[test]
fn a_caller_without_an_identity_sees_no_version() {
    let broker = Broker::start();
    let (seen, _) = shown(&mut status(&broker.address, &broker.ca()), 0);
    assert_eq!(seen["health"], "ready");
    for hidden in ["version", "start_time", "caller", "store", "agent"] {
        assert_eq!(seen[hidden], Value::Null, "{hidden}");
    }
    let (seen, stderr) = shown(status(&broker.address, &broker.ca()).args(["--token", "nonsense"]), 8);
    assert!(stderr.contains("TOKEN_INVALID"), "{stderr}");
    assert_eq!(seen["health"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_cannot_be_asked_has_a_word_and_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    let expired = Stranger::over_tls(free_port(), &ca, (2020, 2021));
    let (seen, stderr) = shown(&mut status(&expired.address.to_string(), &ca), 9);
    assert_eq!(seen["health"], "untrusted", "{stderr}");
    assert!(seen["certificate"]["days_left"].as_i64().is_some_and(|days| days < 0), "{seen}");
    assert_eq!(expired.calls().len(), 0, "no credential goes there");
    let broker = Broker::start();
    let (address, ca) = (broker.address.clone(), broker.ca());
    let _folder = broker.kill();
    let (seen, stderr) = shown(&mut status(&address, &ca), 9);
    assert_eq!((&seen["health"], &seen["certificate"]), (&json!("unreachable"), &Value::Null), "{stderr}");
}
