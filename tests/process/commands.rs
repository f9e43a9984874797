//! The command line as a newcomer meets it: what goes wrong, the message, the exit code.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Value, json};

use crate::broker::{Broker, baton, exit_of, write};

#[track_caller]
fn check((code, stderr): (Option<i32>, String), expected: i32, part: &str) {
    assert_eq!(code, Some(expected), "{stderr}");
    assert!(stderr.contains(part), "{stderr:?} lacks {part:?}");
}

#[test]
fn a_typo_in_a_flag_is_wrong_usage_and_gets_a_suggestion() {
    check(exit_of(baton().args(["dev", "--prot", "0"])), 2, "--port");
    check(exit_of(baton().arg("agnet")), 2, "agent");
    check(exit_of(baton().args(["dev", "--listen", "nowhere"])), 2, "nowhere");
}

#[test]
fn a_second_broker_on_the_same_folder_is_refused() {
    let broker = Broker::start();
    check(exit_of(baton().args(["dev", "--port", "0", "--data"]).arg(broker.data())), 4, "another broker has it");
}

#[test]
fn a_port_in_use_is_refused() {
    let broker = Broker::start();
    let other = tempfile::tempdir().unwrap();
    check(exit_of(baton().args(["dev", "--listen", &broker.address, "--data"]).arg(other.path())), 7, "port is in use");
}

#[test]
fn a_folder_of_a_newer_version_is_refused() {
    let folder = Broker::start().kill();
    let data = folder.path().join("data");
    write(&data.join("store/FORMAT"), "baton-store 999\n");
    check(exit_of(baton().args(["dev", "--port", "0", "--data"]).arg(&data)), 5, "baton-store 999");
}

#[test]
fn a_broken_configuration_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("baton.toml");
    check(exit_of(baton().args(["serve", "--config"]).arg(&config)), 3, "baton.toml");
    write(&config, "listn = \"127.0.0.1:0\"\n");
    check(exit_of(baton().args(["serve", "--config"]).arg(&config)), 3, "listn");
    write(&config, "[tls]\ncertificate = \"/no/such.pem\"\nkey = \"/no/such.key\"\n");
    let mut serve = baton();
    serve.current_dir(folder.path()).args(["serve", "--config"]).arg(&config);
    check(exit_of(&mut serve), 3, "/no/such.pem");
    check(
        exit_of(baton().args(["dev", "--listen", "0.0.0.0:0", "--data"]).arg(folder.path().join("d"))),
        3,
        "loopback",
    );
}

/// The newest file of the log of a broker that was killed, and where its last group ends.
fn log_of(data: &Path) -> (PathBuf, usize) {
    let files = fs::read_dir(data.join("store/log")).unwrap().map(|entry| entry.unwrap().path());
    let first_group = |path: &PathBuf| fs::read(path).unwrap()[8..16].to_vec();
    let path = files.max_by_key(first_group).unwrap();
    let last = fs::read(&path).unwrap().iter().rposition(|byte| *byte != 0).unwrap();
    (path, last + 1)
}

fn store_command(command: &str, data: &Path) -> (Option<i32>, String, String) {
    let output = baton().args(["store", command, "--data"]).arg(data).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn a_damaged_store_is_refused_and_what_can_be_read_is_saved() {
    let broker = Broker::start();
    for name in ["a", "b", "c"] {
        broker.agent(name).await;
    }
    let folder = broker.kill();
    let data = folder.path().join("data");
    let (whole_code, whole, _) = store_command("export", &data);
    let (code, report, _) = store_command("check", &data);
    assert_eq!((whole_code, code), (Some(0), Some(0)));
    let report: Value = serde_json::from_str(&report).unwrap();
    let agents = report["tables"].as_array().unwrap().iter().find(|table| table["table"] == "agents").unwrap();
    assert_eq!((&agents["records"], &agents["damaged"]), (&json!(3), &json!(0)));
    let of_a = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_a =
        of_a.into_iter().find(|record| record["table"] == "agents" && record["key"] == hex::encode("a")).unwrap();
    assert!(of_a["value"]["card"].is_string() && of_a["revision"] == 1, "{of_a}");

    let (log, length) = log_of(&data);
    let mut bytes = fs::read(&log).unwrap();
    bytes[length / 2] ^= 1;
    fs::write(&log, bytes).unwrap();
    let before = fs::read(&log).unwrap();
    let mut start = baton();
    start.args(["dev", "--port", "0", "--data"]).arg(&data);
    check(exit_of(&mut start), 6, log.to_str().unwrap());
    let (code, report, problem) = store_command("check", &data);
    assert_eq!(code, Some(6), "{problem}");
    assert!(report.contains(log.to_str().unwrap()), "{report}");
    let (code, rest, problem) = store_command("export", &data);
    assert_eq!(code, Some(6));
    assert!(problem.contains(log.to_str().unwrap()), "{problem}");
    let lines: Vec<_> = whole.lines().collect();
    assert!(!rest.is_empty() && rest.lines().count() < lines.len());
    assert!(fs::read(&log).unwrap() == before, "nothing was changed");
}

#[tokio::test]
async fn a_store_that_ends_too_early_is_refused() {
    let broker = Broker::start();
    broker.agent("a").await;
    let folder = broker.kill();
    let (log, length) = log_of(&folder.path().join("data"));
    fs::OpenOptions::new().write(true).open(log).unwrap().set_len(length as u64 - 20).unwrap();
    let mut start = baton();
    start.args(["dev", "--port", "0", "--data"]).arg(folder.path().join("data"));
    check(exit_of(&mut start), 6, "baton store check");
}

#[test]
fn a_store_is_checked_only_where_there_is_one_and_no_broker_has_it() {
    let broker = Broker::start();
    check(exit_of(baton().args(["store", "check", "--data"]).arg(broker.data())), 4, "another broker has it");
    let nothing = broker.folder.path().join("nothing");
    check(exit_of(baton().args(["store", "export", "--data"]).arg(&nothing)), 3, "FORMAT");
    assert!(!nothing.exists());
}

#[test]
fn where_no_broker_answers_the_command_says_how_to_start_one() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    check(exit_of(baton().args(["agent", "list", "--server", &free])), 9, "baton dev");
    let broker = Broker::start();
    check(exit_of(baton().args(["agent", "list", "--server", &broker.address])), 9, "--ca");
}

fn json_of(command: &mut std::process::Command) -> Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_whole_handoff_by_hand() {
    let broker = Broker::start();
    let folder = Arc::clone(&broker.folder);
    let run = |arguments: &[&str]| {
        let mut command = baton();
        command.current_dir(folder.path()).args(["--server", &broker.address, "-o", "json", "--ca"]).arg(broker.ca());
        command.args(arguments);
        command
    };
    for name in ["alice", "bob"] {
        let key = format!("{name}.pem");
        json_of(&mut run(&["keygen", "--out", &key]));
        json_of(&mut run(&["agent", "register", "--id", name, "--key", &key, "--type", "people"]));
    }
    check(exit_of(&mut run(&["keygen", "--out", "bob.pem"])), 3, "never overwritten");
    let alice = ["--id", "alice", "--key", "alice.pem"];
    let bob = ["--id", "bob", "--key", "bob.pem"];
    let with = |first: &[&str], identity: &[&str], rest: &[&str]| run(&[first, identity, rest].concat());

    let receipt = json_of(&mut with(&["handoff", "request", "--to", "bob", "--summary", "crash"], &alice, &[]));
    let handoff = receipt["handoffId"].as_str().unwrap();
    let mail = json_of(&mut with(&["mail", "receive", "--max", "1", "--ack"], &bob, &[]));
    assert_eq!(mail["envelope"]["payload"]["initialContextSummary"], "crash");
    check(exit_of(&mut with(&["handoff", "accept", handoff], &alice, &[])), 8, "NOT_CANDIDATE");
    json_of(&mut with(&["handoff", "accept", handoff], &bob, &[]));
    write(&folder.path().join("context.json"), r#"{"notes": {"seen": ["log"]}, "goal": "fix it"}"#);
    json_of(&mut with(&["handoff", "context", handoff, "--file", "context.json"], &alice, &[]));
    let done = json_of(&mut with(&["handoff", "complete", handoff], &bob, &[]));
    assert_eq!((done["ownerId"].as_str(), done["epoch"].as_str()), (Some("bob"), Some("2")));
    let shown = json_of(&mut run(&["handoff", "show", handoff]));
    assert_eq!(
        (shown["state"].as_str(), shown["receiverView"].as_str()),
        (Some("HANDOFF_STATE_COMPLETED"), Some("RECEIVER_VIEW_ACTIVE"))
    );
    assert_eq!(json_of(&mut run(&["handoff", "list", "--state", "completed"])).as_array().unwrap().len(), 1);
    assert_eq!(json_of(&mut run(&["task", "list", "--owner", "bob"])).as_array().unwrap().len(), 1);
    assert_eq!(json_of(&mut run(&["agent", "list", "--type", "people"])).as_array().unwrap().len(), 2);
}

#[test]
fn the_demo_runs_and_can_be_repeated() {
    let broker = Broker::start();
    for _ in 0..2 {
        let output = baton().args(["demo", "--server", &broker.address, "--ca"]).arg(broker.ca()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        for part in ["is full and rejects", "STALE_EPOCH", "COMPLETED, owned by expert-free"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

#[test]
fn an_envelope_is_signed_verified_and_found_out_when_changed() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = baton();
        command.current_dir(folder.path()).args(arguments);
        command
    };
    let key = json_of(&mut run(&["keygen", "--out", "a.pem"]))["publicKey"].as_str().unwrap().to_owned();
    let draft = r#"{"senderId": "a", "receiverId": "b", "taskId": "t", "epoch": 1, "payload":
        {"@type": "type.googleapis.com/baton.v1.HandoffRequest", "taskType": "support"}}"#;
    write(&folder.path().join("draft.json"), draft);
    let signed = json_of(&mut run(&["envelope", "sign", "--key", "a.pem", "--file", "draft.json"]));
    assert_eq!(signed["envelope"]["messageType"], "MESSAGE_TYPE_HANDOFF_REQUEST");
    write(&folder.path().join("signed.json"), &signed.to_string());
    let verified = json_of(&mut run(&["envelope", "verify", "--public-key", &key, "--file", "signed.json"]));
    assert_eq!(verified["valid"], true);
    let inspected = json_of(&mut run(&["envelope", "inspect", "--file", "signed.json"]));
    assert!(inspected["signedHex"].as_str().unwrap().starts_with(&hex::encode("DSSEv1 33 application/vnd.baton")));
    write(&folder.path().join("changed.json"), &signed.to_string().replace("\"t\"", "\"u\""));
    let mut verify = run(&["envelope", "verify", "--public-key", &key, "--file", "changed.json"]);
    check(exit_of(&mut verify), 1, "signature");
    write(&folder.path().join("typo.json"), r#"{"sendrId": "a"}"#);
    check(exit_of(&mut run(&["envelope", "inspect", "--file", "typo.json"])), 1, "sendrId");
}

#[test]
fn every_help_page_has_an_example_or_says_what_it_is_for() {
    let help = |arguments: &[&str]| {
        let output = baton().args(arguments).arg("--help").output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(help(&[]).contains("Exit codes:"));
    for page in [
        &["dev"][..],
        &["serve"],
        &["demo"],
        &["keygen"],
        &["token"],
        &["agent", "register"],
        &["agent", "serve"],
        &["handoff", "request"],
        &["mail", "receive"],
        &["envelope", "sign"],
        &["conformance"],
        &["completions"],
    ] {
        assert!(help(page).contains("Examples:"), "{page:?}");
    }
}
