//! `baton cluster` without a running broker: keys, the check of an engine, and what is refused. `tests/cluster/processes.rs` has
//! brokers.

use std::{path::Path, process::Stdio};

use baton_cluster::{
    engines::directory::Directory,
    lease::{self, Lease},
    log::{Register, SharedLog as _},
    member_value::{MemberValue, name_of},
};

use serde_json::Value;

use crate::broker::{baton, exit_of, write};

/// A configuration of a broker in a cluster, with its keys.
fn configured() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (code, text) = exit_of(baton().args(["cluster", "keys", "--out"]).arg(folder.path().join("keys")));
    assert_eq!(code, Some(0), "{text}");
    configure(folder.path(), &format!("file://{}", folder.path().join("log").display()));
    folder
}

fn configure(folder: &Path, log: &str) {
    let text = format!(
        "[tls]\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n[cluster]\nbroker = \"b1\"\nlog = {log:?}\nkeys = {:?}\n\
         peer_listen = \"127.0.0.1:1\"\npeer_address = \"127.0.0.1:1\"\n",
        folder.join("keys")
    );
    write(&folder.join("baton.toml"), &text);
}

/// Runs a command of `baton cluster` with the configuration; its exit code, and what it says on both outputs.
fn cluster(folder: &Path, args: &[&str]) -> (Option<i32>, String) {
    let (code, shown, told) = outputs(folder, args);
    (code, shown + &told)
}

fn outputs(folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = baton();
    command.arg("cluster").args(args).arg("--config").arg(folder.join("baton.toml"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// What a command prints as JSON, and its exit code.
fn json(folder: &Path, args: &[&str]) -> (Option<i32>, Value) {
    let (code, shown, told) = outputs(folder, &[args, &["-o", "json"]].concat());
    (code, serde_json::from_str(&shown).unwrap_or_else(|error| panic!("{error}: {shown}{told}")))
}

#[test]
fn keys_are_made_once() {
    let folder = configured();
    let (code, text) = exit_of(baton().args(["cluster", "keys", "--out"]).arg(folder.path().join("keys")));
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("is not empty"), "{text}");
}

#[test]
fn the_engine_is_checked_and_nothing_of_the_check_stays() {
    let folder = configured();
    let (code, found) = json(folder.path(), &["check"]);
    assert_eq!((code, &found["violation"], &found["unsafe"]), (Some(0), &Value::Null, &Value::Array(vec![])));
    let left: Vec<String> = std::fs::read_dir(folder.path().join("log"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, ["baton"]);
}

#[tokio::test]
async fn members_that_are_gone_are_shown_and_can_be_forgotten() {
    let folder = configured();
    let (code, text) = cluster(folder.path(), &["status"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("NOT_READY") && text.contains("no broker answers"), "{text}");
    let engine = Directory::open(&folder.path().join("log/baton")).unwrap();
    engine.append(0, bytes::Bytes::from_static(b"an entry")).await.unwrap();
    let peer_address = "127.0.0.1:1".to_owned();
    let value = MemberValue {
        broker: "b2".into(),
        peer_address: peer_address.clone(),
        version: "0.1.0".into(),
        ..Default::default()
    };
    engine.write(&name_of("b2"), None, value.to_bytes()).await.unwrap();
    let lease = Lease { broker: "b2".into(), peer_address, ..Default::default() };
    engine.write(lease::NAME, None, lease.to_bytes()).await.unwrap();
    let (code, status) = json(folder.path(), &["status"]);
    let (end, role) = (status["end"].as_u64(), status["members"][0]["role"].as_str());
    assert_eq!((code, end, role, &status["leader"]), (Some(1), Some(1), Some("gone"), &Value::Null), "{status}");
    let (code, text) = cluster(folder.path(), &["step-down"]);
    assert_eq!(code, Some(9), "{text}");
    assert!(text.contains("failed to reach the broker at 127.0.0.1:1"), "{text}");
    let (code, text) = cluster(folder.path(), &["forget", "b2"]);
    assert_eq!(code, Some(0), "{text}");
    let (_, value) = Register::read(&engine, &name_of("b2")).await.unwrap().unwrap();
    assert!(MemberValue::parse(&value).unwrap().forgotten);
    assert_eq!(json(folder.path(), &["status"]).1["members"][0]["role"], "forgotten");
    for unknown in ["b3", "../b2"] {
        let (code, text) = cluster(folder.path(), &["forget", unknown]);
        assert_eq!(code, Some(8), "{text}");
        assert!(text.contains("no broker of the cluster baton has the name"), "{text}");
    }
}

#[test]
fn what_cannot_be_used_is_refused_with_what_to_do() {
    let folder = configured();
    write(&folder.path().join("baton.toml"), "[tls]\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n");
    let (code, text) = cluster(folder.path(), &["status"]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("has no section [cluster]"), "{text}");
    configure(folder.path(), "postgres://u:secret@127.0.0.1:1/baton");
    let (code, text) = cluster(folder.path(), &["status"]);
    assert_eq!(code, Some(9), "{text}");
    assert!(text.contains("postgres://127.0.0.1:1/baton") && !text.contains("secret"), "{text}");
    configure(folder.path(), "postgres://u:secret@db.internal/baton");
    let (code, text) = cluster(folder.path(), &["check"]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("add ?sslmode=verify-full") && !text.contains("secret"), "{text}");
    std::fs::remove_file(folder.path().join("keys/peer.key")).unwrap();
    configure(folder.path(), &format!("file://{}", folder.path().join("log").display()));
    let (code, text) = cluster(folder.path(), &["status"]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("peer.key") && text.contains("baton cluster keys"), "{text}");
}
