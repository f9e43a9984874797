//! The command line as a new user meets it: errors, their messages and their exit codes.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use baton::proto::v1::{self, MessageType};
use baton_client::About;
use serde_json::{Value, json};

use crate::{
    broker::{Broker, baton, composer, eventually, exit_of, segments, write},
    foreign::{Stranger, free_port},
    ports::HeldPort,
};

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

/// The offset of the first entry in a segment of the log, in bytes.
const ENTRIES_AT: usize = 8192;

/// The newest segment of a killed broker's log, and the end of its last entry. The segment was not in use before.
fn log_of(data: &Path) -> (PathBuf, usize) {
    let path = segments(data).pop().unwrap();
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
    // The coordinator is an agent, too.
    assert_eq!((&agents["records"], &agents["damaged"]), (&json!(4), &json!(0)));
    let of_a = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_a =
        of_a.into_iter().find(|record| record["table"] == "agents" && record["key"] == hex::encode("a")).unwrap();
    assert!(of_a["value"]["card"].is_string() && of_a["revision"] == 1, "{of_a}");

    let (log, length) = log_of(&data);
    let mut bytes = fs::read(&log).unwrap();
    // A byte inside an entry: a zero byte may be padding between two entries.
    let place = (ENTRIES_AT + (length - ENTRIES_AT) / 2..length).find(|place| bytes[*place] != 0).unwrap();
    bytes[place] ^= 1;
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
    check(exit_of(&mut run(&["keygen", "--out", "bob.pem"])), 3, "never overwrites");
    let alice = ["--id", "alice", "--key", "alice.pem"];
    let bob = ["--id", "bob", "--key", "bob.pem"];
    let with = |first: &[&str], identity: &[&str], rest: &[&str]| run(&[first, identity, rest].concat());

    let receipt = json_of(&mut with(&["handoff", "request", "--to", "bob", "--summary", "crash"], &alice, &[]));
    let handoff = receipt["handoffId"].as_str().unwrap();
    let mail = json_of(&mut with(&["mail", "receive", "--max", "1", "--ack"], &bob, &[]));
    assert_eq!(mail["envelope"]["payload"]["initialContextSummary"], "crash");
    check(exit_of(&mut with(&["handoff", "accept", handoff], &alice, &[])), 8, "NOT_CANDIDATE");
    json_of(&mut with(&["handoff", "accept", handoff], &bob, &[]));
    check(exit_of(&mut with(&["handoff", "complete", handoff, "--yes"], &bob, &[])), 8, "HANDOFF_STATE");
    write(&folder.path().join("context.json"), r#"{"notes": {"seen": ["log"]}, "goal": "fix it"}"#);
    json_of(&mut with(&["handoff", "context", handoff, "--file", "context.json"], &alice, &[]));
    let done = json_of(&mut with(&["handoff", "complete", handoff, "--yes"], &bob, &[]));
    assert_eq!((done["ownerId"].as_str(), done["epoch"].as_str()), (Some("bob"), Some("2")));
    let shown = json_of(&mut run(&["handoff", "show", handoff]));
    assert_eq!(
        (shown["state"].as_str(), shown["receiverView"].as_str()),
        (Some("HANDOFF_STATE_COMPLETED"), Some("RECEIVER_VIEW_ACTIVE"))
    );
    assert_eq!(json_of(&mut run(&["handoff", "list", "--state", "completed"])).as_array().unwrap().len(), 1);

    // The task id resolves to its latest handoff.
    let task = receipt["taskId"].as_str().unwrap();
    let back = json_of(&mut with(&["handoff", "request", "--to", "alice", "--task", task, "--epoch", "2"], &bob, &[]));
    assert_eq!(json_of(&mut run(&["handoff", "show", task]))["handoffId"], back["handoffId"]);
    let rejected = json_of(&mut with(&["handoff", "reject", task, "--reason", "other"], &alice, &[]));
    assert_eq!(rejected["handoffState"], "HANDOFF_STATE_REJECTED");
    assert_eq!(json_of(&mut run(&["task", "list", "--owner", "bob"])).as_array().unwrap().len(), 1);
    assert_eq!(json_of(&mut run(&["agent", "list", "--type", "people"])).as_array().unwrap().len(), 2);
}

#[test]
fn a_question_is_asked_and_answered_on_the_command_line() {
    let broker = Broker::start();
    let folder = Arc::clone(&broker.folder);
    let run = |arguments: &[&str]| {
        let mut command = baton();
        command.current_dir(folder.path()).args(["--server", &broker.address, "-o", "json", "--ca"]).arg(broker.ca());
        command.args(arguments);
        command
    };
    for (name, kind) in [("alice", "robot"), ("carol", "human")] {
        let key = format!("{name}.pem");
        json_of(&mut run(&["keygen", "--out", &key]));
        json_of(&mut run(&["agent", "register", "--id", name, "--key", &key, "--type", kind]));
    }
    let alice = |first: &[&str]| run(&[first, &["--id", "alice", "--key", "alice.pem"]].concat());
    let carol = |first: &[&str]| run(&[first, &["--id", "carol", "--key", "carol.pem"]].concat());
    let (code, said) = exit_of(&mut alice(&["handoff", "request", "--to", "carol", "--task", "t"]));
    check((code, said.clone()), 0, "HANDOFF_INITIATED");
    json_of(&mut alice(&["handoff", "cancel", "t"]));
    json_of(&mut alice(&["handoff", "request", "--to", "carol", "--task", "t.1", "--parent", "t"]));
    assert_eq!(json_of(&mut run(&["task", "show", "t"]))["partTaskIds"][0], "t.1");
    assert_eq!(json_of(&mut run(&["task", "list", "--parent", "t"]))[0]["taskId"], "t.1");

    write(
        &folder.path().join("schema.json"),
        r#"{"required": ["refund"], "properties": {"refund": {"type": "boolean"}}}"#,
    );
    let ask = ["task", "status", "t", "waiting-for-input", "--question", "may I refund?", "--answer-by", "type:human"];
    let ask = [&ask[..], &["--answer-before", "2h", "--answer-schema", "schema.json"]].concat();
    check(exit_of(&mut alice(&ask[..6])), 2, "--answer-by");
    json_of(&mut alice(&ask));
    let open = json_of(&mut run(&["task", "show", "t"]))["openPrompt"].clone();
    assert_eq!(
        (open["askedAgentId"].as_str(), open["prompt"]["question"].as_str()),
        (Some("carol"), Some("may I refund?"))
    );
    let table = broker.command(&["task", "show", "t", "-o", "table"]).output().unwrap();
    assert!(String::from_utf8_lossy(&table.stdout).contains("may I refund?, put to carol until"), "{table:?}");

    check(
        exit_of(&mut carol(&["task", "input", "t", "--data-json", r#"{"refund": 1}"#])),
        8,
        "envelope.payload.data_json/refund",
    );
    check(exit_of(&mut alice(&["task", "input", "t", "--text", "yes"])), 8, "NOT_ASKED");
    json_of(&mut carol(&["task", "input", "t", "--data-json", r#"{"refund": true}"#]));
    let question = open["messageId"].as_str().unwrap();
    let again = ["task", "input", "t", "--text", "no", "--question", question, "--epoch", "1"];
    check(exit_of(&mut carol(&again)), 8, "INPUT_TAKEN");
    let mail = json_of(&mut alice(&["mail", "receive", "--max", "1", "--ack"]));
    assert_eq!(mail["envelope"]["payload"]["dataJson"], r#"{"refund": true}"#);
    json_of(&mut alice(&[
        "task",
        "status",
        "t",
        "completed",
        "--result-json",
        r#"{"refunded": 12, "id": 1234567890123456789}"#,
    ]));
    assert_eq!(
        json_of(&mut run(&["task", "show", "t"]))["resultJson"],
        r#"{"refunded": 12, "id": 1234567890123456789}"#
    );
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

fn with_file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    write(&path, text);
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_ca_or_a_server_that_cannot_be_meant_is_said_in_its_own_words() {
    let folder = tempfile::tempdir().unwrap();
    let key_only = rcgen::KeyPair::generate().unwrap().serialize_pem();
    for (text, part) in [
        ("", "it has no certificate"),
        ("nothing of PEM\n", "it has no certificate"),
        (key_only.as_str(), "it has no certificate"),
        ("-----BEGIN CERTIFICATE-----\n???\n", "it is not a PEM file"),
    ] {
        let ca = with_file(folder.path(), "ca.pem", text);
        check(exit_of(baton().args(["agent", "list", "--ca", &ca])), 3, part);
    }
    check(exit_of(baton().args(["agent", "list", "--ca", "/no/such/ca.pem"])), 3, "/no/such/ca.pem");
    for (server, part) in [
        ("127.0.0.1", "has no port; the default port of a broker is 22866: 127.0.0.1:22866"),
        ("broker.example", "broker.example:22866"),
        ("https://broker.example/", "broker.example:22866"),
        ("::1:22866", "[::1]:22866"),
        ("[::1]", "has no port"),
        ("127.0.0.1:", "has no port"),
        ("127.0.0.1:99999", "outside 1 to 65535"),
        ("127.0.0.1:0", "outside 1 to 65535"),
        ("me@127.0.0.1:1", "is not HOST:PORT"),
        ("not a host:1", "is not HOST:PORT"),
    ] {
        check(exit_of(baton().args(["agent", "list", "--server", server])), 2, part);
        check(exit_of(baton().args(["conformance", "--target", server])), 2, part);
        check(exit_of(baton().args(["agent", "list"]).env("BATON_SERVER", server)), 2, part);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_over_or_not_good_yet_makes_one_think_of_the_clock() {
    let folder = tempfile::tempdir().unwrap();
    for (years, part) in [((2001, 2002), "expired"), ((2090, 2100), "not valid yet")] {
        let ca = folder.path().join("ca.pem");
        let stranger = Stranger::over_tls(free_port(), &ca, years);
        let mut command = baton();
        command.args(["agent", "list", "--server", &stranger.address.to_string(), "--ca"]).arg(&ca);
        let ended = tokio::task::spawn_blocking(move || exit_of(&mut command)).await.unwrap();
        check(ended.clone(), 9, part);
        check(ended, 9, "if the clock of this machine is wrong, set it (NTP)");
    }
}

#[test]
fn a_private_key_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let broker = Broker::start();
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("alice.pem");
    assert_eq!(exit_of(baton().args(["keygen", "--out"]).arg(&key)).0, Some(0));
    let key = key.to_str().unwrap();
    for mode in [0o644, 0o640, 0o604] {
        fs::set_permissions(key, fs::Permissions::from_mode(mode)).unwrap();
        let words = format!("other users can read this private key (mode {mode:04o}); run chmod 600 {key}");
        for command in [
            &["agent", "register", "--id", "alice", "--key", key][..],
            &["token", "--id", "alice", "--key", key],
            &["agent", "serve", "--id", "alice", "--key", key],
            &["envelope", "sign", "--key", key],
            &["agent", "key", "vouch", "alice", "k1", "--key-file", key, "--operator", "o", "--operator-key", key],
            &["agent", "list", "--cert", key, "--cert-key", key],
        ] {
            check(exit_of(&mut broker.command(command)), 3, &words);
        }
    }
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(exit_of(&mut broker.command(&["agent", "register", "--id", "alice", "--key", key])).0, Some(0));
}

#[test]
fn only_a_delegation_names_a_thread_and_the_sender_takes_part_in_it() {
    let broker = Broker::start();
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("alice.pem");
    let key = key.to_str().unwrap();
    assert_eq!(exit_of(baton().args(["keygen", "--out", key])).0, Some(0));
    assert_eq!(exit_of(&mut broker.command(&["agent", "register", "--id", "alice", "--key", key])).0, Some(0));
    let request = [
        "handoff",
        "request",
        "--to",
        "bob",
        "--id",
        "alice",
        "--key",
        key,
        "--task-type",
        "bug",
        "--thread",
        "support",
    ];
    check(exit_of(&mut broker.command(&request)), 2, "--delegate");
    check(exit_of(broker.command(&request).arg("--delegate")), 8, "PERMISSION_DENIED");
}

#[test]
fn a_call_without_an_identity_hears_of_the_flags() {
    let broker = Broker::start();
    let mut audit = baton();
    audit.args(["audit", "--server", &broker.address, "--ca"]).arg(broker.ca());
    let ended = exit_of(&mut audit);
    for part in ["IDENTITY_MISSING", "--token TOKEN", "`baton token --id AGENT --key FILE`", "--cert FILE"] {
        check(ended.clone(), 8, part);
    }
    let ended = exit_of(audit.args(["--token", "wrong"]));
    check(ended.clone(), 8, "TOKEN_INVALID");
    check(ended, 8, "--token, BATON_TOKEN, a token file or ./baton-data/operator.token");
}

/// Runs `serve --check` on this configuration. Returns exit code, stdout and stderr.
fn checked(folder: &Path, text: &str) -> (Option<i32>, String, String) {
    let config = with_file(folder, "baton.toml", text);
    let output = baton().args(["serve", "--check", "--config", &config]).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_configuration_is_checked_with_its_files_and_printed_as_a_configuration() {
    let broker = Broker::start();
    let folder = tempfile::tempdir().unwrap();
    let (tls, data) = (broker.data().join("tls"), folder.path().join("data"));
    let top = format!("data = {data:?}\nlisten = \"127.0.0.1:0\"\n");
    let good = format!("[tls]\ncertificate = {:?}\nkey = {:?}\n", tls.join("server.pem"), tls.join("server.key"));
    let spans = "[handoff]\naccept_timeout = \"45s\"\n[delivery]\nack_wait_ms = 7000\n";
    let (code, printed, stderr) = checked(folder.path(), &format!("{top}{good}{spans}"));
    assert_eq!(code, Some(0), "{stderr}");
    let read: toml::Table = printed.parse().unwrap();
    assert_eq!(read["handoff"]["accept_timeout"].as_str(), Some("45s"));
    assert_eq!(read["delivery"]["ack_wait"].as_str(), Some("7s"));
    assert_eq!(read["session"]["presence_lease"].as_str(), Some("1m"));
    let (code, again, stderr) = checked(folder.path(), &printed);
    assert_eq!((code, again), (Some(0), printed), "{stderr}");
    assert!(!data.exists(), "nothing is made");

    let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let other = with_file(folder.path(), "other.key", &other);
    for (text, part) in [
        ("[tls]\ncertificate = \"/no/such.pem\"\nkey = \"/no/such.key\"\n".to_owned(), "/no/such.pem"),
        (good.replace("server.key", "no-such.key"), "no-such.key"),
        (good.replace("server.key", "server.pem"), "no private key"),
        (good.replace("server.pem", "server.key"), "no certificate"),
        (good.replace(tls.join("server.key").to_str().unwrap(), &other), "does not belong to the certificate"),
        (format!("{good}client_ca = \"/no/such/ca.pem\"\n"), "/no/such/ca.pem"),
        (format!("{good}client_ca = {other:?}\n"), "no certificate"),
        (format!("{good}[operators]\nkeys = \"/no/such/jwks\"\naudience = \"a\"\n"), "/no/such/jwks"),
        (format!("{good}[policy]\npath = \"/no/such/policy\"\n"), "/no/such/policy"),
    ] {
        let (code, printed, stderr) = checked(folder.path(), &format!("{top}{text}"));
        assert_eq!((code, printed.as_str()), (Some(3), ""), "{text}: {stderr}");
        assert!(stderr.contains(part), "{stderr:?} lacks {part:?}");
    }
}

/// An `agent serve` process and its output lines.
struct Served {
    child: std::process::Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Served {
    fn start(broker: &Broker, name: &str, options: &[&str]) -> Self {
        use std::io::BufRead as _;
        let key = broker.folder.path().join(format!("{name}.pem"));
        if !key.exists() {
            crate::broker::identity(name).key.write(&key).unwrap();
        }
        let mut command = baton();
        command.args(["agent", "serve", "--id", name, "--server", &broker.address, "--key"]).arg(key).args(options);
        let mut child = command.arg("--ca").arg(broker.ca()).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    #[track_caller]
    fn says(&mut self, event: &str) -> Value {
        let said = self.next(event);
        assert_eq!(said["event"], event, "{said}");
        said
    }

    /// Skips the output before this event.
    #[track_caller]
    fn says_at_last(&mut self, event: &str) -> Value {
        loop {
            let said = self.next(event);
            if said["event"] == event {
                return said;
            }
        }
    }

    #[track_caller]
    fn next(&mut self, event: &str) -> Value {
        let line = self.lines.next().unwrap_or_else(|| panic!("it ended before it said {event}")).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_served_agent_comes_back_after_the_broker_and_stops_in_order() {
    let port = HeldPort::new();
    let broker = Broker::start_on(&port, Arc::new(tempfile::tempdir().unwrap()));
    let mut worker = Served::start(&broker, "worker", &["--capacity", "3"]);
    worker.says("connected");
    // On the same port, at which the agent tries to reconnect.
    let broker = Broker::start_on(&port, broker.kill());
    let a = broker.agent("a").await;
    a.request("worker", "t", 1, &crate::broker::a_request()).await.unwrap();
    worker.says("accepted");
    let accept = a.take().await.unwrap();
    a.send_context(&accept, &baton_client::context_of([("notes", "{}".to_owned())])).await.unwrap();
    assert_eq!(worker.says("owns")["facts"]["epoch"], 2);
    let has_one = async || broker.lines(&["agent", "show", "worker"])[0]["lastHeartbeat"]["activeTasks"] == 1;
    eventually("its heartbeat says that it has a task", has_one).await;
    let pid = worker.child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    worker.says("stopped");
    assert_eq!(worker.child.wait().unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_served_agent_ends_after_one_task_where_that_is_wanted() {
    let broker = Broker::start();
    let a = broker.agent("a").await;
    let mut worker = Served::start(&broker, "worker", &["--once"]);
    worker.says("connected");
    a.request("worker", "t", 1, &crate::broker::a_request()).await.unwrap();
    worker.says("accepted");
    let accept = a.take().await.unwrap();
    a.send_context(&accept, &baton_client::context_of([("notes", "{}".to_owned())])).await.unwrap();
    worker.says("owns");
    worker.says("stopped");
    assert_eq!(worker.child.wait().unwrap().code(), Some(0));
    assert_eq!(broker.lines(&["task", "show", "t"])[0]["ownerId"], "worker");
}

fn a_loan(timeout_seconds: Option<i64>) -> v1::HandoffRequest {
    v1::HandoffRequest {
        mode: v1::HandoffMode::Delegate.into(),
        loan_timeout: timeout_seconds.map(|seconds| prost_types::Duration { seconds, nanos: 0 }),
        ..crate::broker::a_request()
    }
}

/// Lends task "t" to a served agent. Returns the id of the handoff.
async fn lend(a: &baton_client::session::Agent, worker: &mut Served, timeout_seconds: Option<i64>) -> String {
    let handoff = a.request("worker", "t", 1, &a_loan(timeout_seconds)).await.unwrap().handoff_id;
    worker.says("accepted");
    let accept = a.take().await.unwrap();
    a.send_context(&accept, &baton_client::context_of([("notes", "{}".to_owned())])).await.unwrap();
    assert_eq!(worker.says("owns")["facts"]["epoch"], 2);
    assert_eq!(a.take().await.unwrap().kind(), MessageType::HandoffComplete);
    handoff
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delegate_that_is_killed_loses_the_task_at_the_end_of_its_loan() {
    let broker = Broker::start();
    let a = broker.agent("a").await;
    let mut worker = Served::start(&broker, "worker", &[]);
    worker.says("connected");
    let handoff = lend(&a, &mut worker, Some(2)).await;
    drop(worker); // SIGKILL

    let told = a.take().await.unwrap();
    let notice: v1::ErrorNotification = told.payload();
    assert_eq!((notice.error_code(), notice.next_step()), (v1::ErrorCode::TaskRecalled, v1::NextStep::KeepTask));
    assert_eq!((told.envelope.correlation_id.as_str(), told.envelope.epoch), (handoff.as_str(), 3));
    let task = broker.lines(&["task", "show", "t"]).remove(0);
    assert_eq!((task["ownerId"].as_str(), task["epoch"].as_str()), (Some("a"), Some("3")));

    let mut worker = Served::start(&broker, "worker", &[]);
    worker.says("connected");
    // If the killed process had not acked the context, the new one gets it first, and the broker refuses the completion.
    assert_eq!(worker.says_at_last("told")["facts"]["code"], "ERROR_CODE_TASK_RECALLED");
    let late = v1::TaskStatusUpdate { status: v1::TaskStatus::Completed.into(), ..Default::default() };
    let envelope = composer("worker").encode("", MessageType::TaskStatusUpdate, &About::task("t", 2), &late);
    let error = broker.client_of("worker").await.send(envelope).await.unwrap_err();
    assert_eq!(error.reason(), Some("STALE_EPOCH"), "{error}");
    assert_eq!(broker.lines(&["task", "audit", "t"])[0]["refusals"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delegator_recalls_its_task_on_the_command_line() {
    let broker = Broker::start();
    let a = broker.agent("a").await;
    let mut worker = Served::start(&broker, "worker", &[]);
    worker.says("connected");
    lend(&a, &mut worker, None).await;
    let key = broker.folder.path().join("a.pem");
    crate::broker::identity("a").key.write(&key).unwrap();
    let identity = ["--id", "a", "--key", key.to_str().unwrap()];
    let recall = |options: &[&str]| broker.command(&[&["task", "recall", "t"], &identity[..], options].concat());
    assert_eq!(broker.lines(&["task", "show", "t"])[0]["loans"][0]["delegatorId"], "a");

    let receipt = json_of(&mut recall(&["--reason", "solved meanwhile"]));
    assert_eq!((receipt["ownerId"].as_str(), receipt["epoch"].as_str()), (Some("a"), Some("3")));
    assert_eq!(worker.says("told")["facts"]["code"], "ERROR_CODE_TASK_RECALLED");
    check(exit_of(&mut recall(&[])), 2, "a has not lent task t");
    let lender = broker.lines(&["handoff", "list", "--task", "t"])[0]["handoffId"].as_str().unwrap().to_owned();
    check(exit_of(&mut recall(&["--loan", &lender])), 8, "NOT_LENT");
}

#[test]
fn a_program_says_what_it_was_built_for() {
    let output = baton().args(["version", "-o", "json"]).output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["version"], env!("CARGO_PKG_VERSION"));
    assert!(shown["target"].as_str().unwrap().starts_with(std::env::consts::ARCH), "{shown}");
    let features: Vec<&str> = shown["features"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(features.contains(&"s3"), cfg!(feature = "s3"), "{shown}");
    let output = baton().args(["version", "-o", "table"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with(concat!("baton ", env!("CARGO_PKG_VERSION"), "\ncommit ")), "{text}");
}
