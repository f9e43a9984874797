//! The command line of an agent: waits, limits and lists.

use std::{fs, process::Stdio};

use serde_json::json;

use crate::broker::{Broker, baton, eventually, exit_of, identity};

/// A broker with the agents alice and bob, whose keys are in its folder, and a task of alice's.
async fn world() -> Broker {
    let broker = Broker::serve("enrollment = \"open\"", "");
    for name in ["alice", "bob"] {
        broker.agent(name).await;
        identity(name).key.write(&key(&broker, name)).unwrap();
    }
    broker
}

fn key(broker: &Broker, name: &str) -> std::path::PathBuf {
    broker.folder.path().join(format!("{name}.pem"))
}

/// A command that acts as this agent, without a token.
fn acting(broker: &Broker, name: &str, arguments: &[&str]) -> std::process::Command {
    let mut command = baton();
    command.args(arguments).args(["--server", &broker.address, "--ca"]).arg(broker.ca());
    command.args(["--id", name, "--key"]).arg(key(broker, name));
    command
}

fn file(broker: &Broker, name: &str, value: &serde_json::Value) -> String {
    let path = broker.folder.path().join(name);
    fs::write(&path, value.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[track_caller]
fn check((code, stderr): (Option<i32>, String), expected: i32, part: &str) {
    assert_eq!(code, Some(expected), "{stderr}");
    assert!(stderr.contains(part), "{stderr:?} lacks {part:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_over_the_limit_of_a_message_is_refused_with_the_limit() {
    let broker = world().await;
    let text = "x".repeat(5_000_000);
    let context = file(&broker, "context.json", &json!({"notes": {"text": text}}));
    let plan = file(&broker, "plan.json", &json!([{"id": "a", "agent_id": "bob", "description": text}]));
    let request = ["handoff", "request", "--to", "bob", "--task", "t1"];
    assert_eq!(exit_of(&mut acting(&broker, "alice", &request)).0, Some(0));
    for arguments in [&["context", "checkpoint", "t1", "--file", &context][..], &["plan", "validate", &plan]] {
        let ended = exit_of(&mut acting(&broker, "alice", arguments));
        check(ended.clone(), 8, "PAYLOAD_TOO_LARGE");
        check(ended, 8, "4194304");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_mail_ends() {
    let broker = world().await;
    let receive = |more: &[&str]| {
        let mut command = acting(&broker, "bob", &["mail", "receive", "--ack", "-o", "jsonl"]);
        let output = command.args(more).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout).lines().count(), text(&output.stderr))
    };
    let (code, printed, stderr) = receive(&["--max", "1", "--wait", "1s"]);
    assert_eq!((code, printed), (Some(1), 0), "{stderr}");
    assert!(stderr.contains("NO_MAIL: no mail has arrived within 1s"), "{stderr}");
    let send = ["mail", "send", "--to", "bob", "--text", "hello"];
    assert_eq!(exit_of(&mut acting(&broker, "alice", &send)).0, Some(0));
    let (code, printed, stderr) = receive(&["--max", "2", "--wait", "1s"]);
    assert_eq!((code, printed), (Some(0), 1), "{stderr}");
    assert!(stderr.contains("no further mail has arrived within 1s"), "{stderr}");
    // The wait that is longer than the mail takes does not delay the end.
    assert_eq!(exit_of(&mut acting(&broker, "alice", &send)).0, Some(0));
    let (code, printed, stderr) = receive(&["--max", "1", "--wait", "1d"]);
    assert_eq!((code, printed, stderr.as_str()), (Some(0), 1, ""));
    check(exit_of(&mut acting(&broker, "bob", &["mail", "receive", "--wait", "5s"])), 2, "--ack");
    check(exit_of(&mut acting(&broker, "bob", &["mail", "receive", "--ack", "--wait", "0s"])), 2, "at least 1s");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_proof_names_agent_key_and_profile() {
    let broker = world().await;
    let config = broker.folder.path().join("config");
    let (alices, bobs) = (key(&broker, "alice"), key(&broker, "bob"));
    let (alices, bobs) = (alices.to_str().unwrap(), bobs.to_str().unwrap());
    let base = |arguments: &[&str]| {
        let mut command = baton();
        command.env("XDG_CONFIG_HOME", &config).args(arguments);
        command
    };
    let ca = broker.ca();
    let to = ["--server", &broker.address, "--ca", ca.to_str().unwrap()];
    // The keys are mixed up.
    assert_eq!(exit_of(base(&["profile", "add", "mixed", "--id", "alice", "--key", bobs]).args(to)).0, Some(0));
    let used = format!("used: agent alice, key k1 from {bobs}, profile mixed");
    for arguments in [&["inbox"][..], &["task", "list"], &["token"], &["mail", "receive"], &["agent", "serve"]] {
        let ended = exit_of(base(&["--profile", "mixed"]).args(arguments));
        check(ended.clone(), 8, "CHALLENGE_FAILED");
        check(ended, 8, &used);
    }
    let flags = ["task", "list", "--id", "bob", "--key", alices];
    let ended = exit_of(base(&["--profile", "mixed"]).args(flags));
    check(ended, 8, &format!("used: agent bob, key k1 from {alices}, no profile"));
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_read_act_as_an_agent() {
    let broker = world().await;
    let request = ["handoff", "request", "--to", "bob", "--task", "t1"];
    assert_eq!(exit_of(&mut acting(&broker, "alice", &request)).0, Some(0));
    for arguments in [
        &["handoff", "list"][..],
        &["handoff", "show", "t1"],
        &["task", "list"],
        &["task", "show", "t1"],
        &["task", "audit", "t1"],
        &["dlq", "list"],
        &["dlq", "export"],
        &["agent", "list"],
        &["agent", "show", "bob"],
        &["agent", "processes", "bob"],
        &["agent", "find", "--limit", "1"],
        &["graph", "list"],
        &["spec", "list"],
        &["schema", "list"],
        &["agent", "update", "alice", "--capacity", "8"],
        &["top", "--once"],
    ] {
        let (code, stderr) = exit_of(&mut acting(&broker, "alice", arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
        // The flags count: with the key of another agent the same call is refused.
        let mut as_alice = baton();
        as_alice.args(arguments).args(["--server", &broker.address, "--ca"]).arg(broker.ca());
        check(exit_of(as_alice.args(["--id", "alice", "--key"]).arg(key(&broker, "bob"))), 8, "CHALLENGE_FAILED");
    }
    // An operator's calls, which an agent may make where the policy says so.
    for arguments in [&["audit"][..], &["task", "reassign", "t1", "--to", "bob"]] {
        check(exit_of(&mut acting(&broker, "alice", arguments)), 8, "PERMISSION_DENIED");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_fits_80_columns_and_says_whose_turn_it_is() {
    let broker = world().await;
    let run = |name: &str, arguments: &[&str]| {
        let (code, stderr) = exit_of(&mut acting(&broker, name, arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    };
    let long = "a-ticket-system-with-a-very-long-prefix-for-its-tickets-of-the-year-2026-number-4711";
    for task in [long, "t1"] {
        run("alice", &["handoff", "request", "--to", "bob", "--task", task, "--summary", "crash on start"]);
    }
    let ask = ["--question", "May I?", "--answer-by", "bob", "--answer-before", "2h"];
    run("alice", &["mail", "send", "--to", "bob", "--text", "not in an inbox"]);
    let rows = |name: &str| {
        let output = acting(&broker, name, &["inbox", "-o", "table"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let tables = text.lines().filter(|line| !line.contains("baton "));
        assert!(tables.clone().all(|line| line.chars().count() <= 80), "{text}");
        tables.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect::<Vec<Vec<String>>>()
    };
    let offers = rows("bob");
    assert_eq!(offers[0], ["TASK", "FROM", "TURN", "LEFT", "SUMMARY"]);
    for row in &offers[1..3] {
        assert_eq!((row[1].as_str(), row[2].as_str(), row[4].as_str()), ("alice", "bob", "min"), "{row:?}");
        assert!(row[3].parse::<u32>().is_ok_and(|left| left > 0), "{row:?}");
    }
    // The owner sees that its task is the turn of the candidate, and a short id of a task works in a command.
    let tasks = rows("alice");
    assert_eq!(tasks[0], ["TASK", "TYPE", "EPOCH", "STATUS", "TURN", "LEFT", "DETAILS"]);
    assert!(tasks[1..3].iter().all(|row| row.contains(&"bob".to_owned())), "{tasks:?}");
    let short = offers[1..3].iter().map(|row| row[0].as_str()).find(|task| *task != "t1").unwrap();
    assert!(short.ends_with('…'), "{short}");
    run("bob", &["handoff", "accept", short]);
    run("bob", &["handoff", "reject", "t1"]);
    run("alice", &[&["task", "status", "t1", "waiting-for-input"][..], &ask].concat());
    let asked = rows("bob");
    assert_eq!(asked[0], ["TASK", "FROM", "TURN", "LEFT", "QUESTION"]);
    assert_eq!(asked[1][..4], ["t1", "alice", "bob", "119"], "{asked:?}");
    check(exit_of(&mut acting(&broker, "bob", &["handoff", "reject", "no-such"])), 8, "HANDOFF_UNKNOWN");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_handoffs_fits_80_columns_and_says_whose_turn_it_is() {
    let broker = world().await;
    for _ in 0..2 {
        assert_eq!(exit_of(&mut acting(&broker, "alice", &["handoff", "request", "--to", "bob"])).0, Some(0));
    }
    let list = |more: &[&str]| {
        let output = acting(&broker, "bob", &[&["handoff", "list", "-o", "table"], more].concat()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect::<Vec<Vec<String>>>()
    };
    let rows = list(&[]);
    assert_eq!(rows[0], ["HANDOFF", "TASK", "FROM", "TO", "STATE", "TURN", "LEFT"]);
    assert_eq!(rows.len(), 3);
    for row in &rows[1..] {
        assert_eq!((row[4].as_str(), row[5].as_str()), ("REQUESTED", "bob"), "{row:?}");
        assert!(row[6].parse::<u32>().is_ok_and(|left| left > 0), "{row:?}");
    }
    // A short id works in a command, also one of a list that shows it alone.
    let only = list(&["--limit", "1"]);
    let (code, stderr) = exit_of(&mut acting(&broker, "bob", &["handoff", "accept", &only[1][0]]));
    assert_eq!(code, Some(0), "{stderr}");
    let states: Vec<_> = list(&[])[1..].iter().map(|row| (row[4].clone(), row[5].clone())).collect();
    assert!(states.contains(&("ACCEPTED".into(), "alice".into())), "the sender has the next step: {states:?}");
    check(exit_of(&mut acting(&broker, "bob", &["handoff", "list", "--state", "BOGUS"])), 2, "context-sent");
    assert_eq!(list(&["--state", "ACCEPTED"]).len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delegate_extends_its_loan_on_the_command_line() {
    let broker = world().await;
    let run = |name: &str, arguments: &[&str]| {
        let (code, stderr) = exit_of(&mut acting(&broker, name, arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    };
    let context = file(&broker, "context.json", &json!({"notes": {"cause": "unknown"}}));
    let lend = |task: &str, more: &[&str]| {
        let request = ["handoff", "request", "--to", "bob", "--delegate", "--loan-timeout", "1h", "--task", task];
        run("alice", &[&request[..], more].concat());
        run("bob", &["handoff", "accept", task]);
        run("alice", &["handoff", "context", task, "--file", &context]);
        run("bob", &["handoff", "complete", task, "--yes"]);
    };
    lend("t1", &["--loan-timeout-max", "5h"]);
    run("bob", &["task", "status", "t1", "in-progress", "--progress", "0.5", "--details", "half"]);
    // The lender sees how far the work is.
    let shown = acting(&broker, "alice", &["task", "show", "t1", "-o", "table"]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.lines().any(|line| line.starts_with("progress") && line.ends_with("50 %")), "{shown}");
    let due = |task: &serde_json::Value| task["loans"][0]["dueTime"].as_str().unwrap().to_owned();
    let before = broker.lines(&["task", "show", "t1"]).remove(0);
    let printed = acting(&broker, "bob", &["task", "extend", "t1", "--by", "2h", "-o", "json"]).output().unwrap();
    let after: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert!(due(&after) > due(&before), "{before} {after}");
    assert_eq!((&after["progress"], &after["details"]), (&json!(0.5), &json!("half")));
    // Only the delegate may ask, and only if the lender has set a limit.
    check(exit_of(&mut acting(&broker, "alice", &["task", "extend", "t1", "--by", "2h"])), 8, "NOT_OWNER");
    lend("t2", &[]);
    check(exit_of(&mut acting(&broker, "bob", &["task", "extend", "t2", "--by", "2h"])), 8, "NOT_LENT");
    // An extension would withdraw an open question.
    let ask = ["task", "status", "t1", "waiting-for-input", "--question", "why?", "--answer-by", "alice"];
    run("bob", &ask);
    check(exit_of(&mut acting(&broker, "bob", &["task", "extend", "t1", "--by", "2h"])), 2, "waits for an answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_watch_of_a_lent_task_shows_its_progress() {
    let broker = world().await;
    let run = |name: &str, arguments: &[&str]| {
        let (code, stderr) = exit_of(&mut acting(&broker, name, arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    };
    let context = file(&broker, "context.json", &json!({"notes": {"cause": "unknown"}}));
    run("alice", &["handoff", "request", "--to", "bob", "--delegate", "--task", "t1"]);
    run("bob", &["handoff", "accept", "t1"]);
    run("alice", &["handoff", "context", "t1", "--file", &context]);
    run("bob", &["handoff", "complete", "t1", "--yes"]);
    run("bob", &["task", "status", "t1", "in-progress", "--progress", "0.25", "--details", "reproduced"]);
    run("bob", &["task", "status", "t1", "completed"]);
    run("alice", &["task", "status", "t1", "completed"]);
    // The watch ends with the task.
    let watched = acting(&broker, "alice", &["task", "watch", "t1", "-o", "table"]).output().unwrap();
    let watched = String::from_utf8_lossy(&watched.stdout).into_owned();
    assert!(watched.contains("IN_PROGRESS, owner bob at epoch 2: 25 %, reproduced"), "{watched}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_parts_of_a_cancelled_task_stay_if_they_are_kept() {
    let broker = world().await;
    let run = |arguments: &[&str]| {
        let (code, stderr) = exit_of(&mut acting(&broker, "alice", arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    };
    for whole in ["kept", "ended"] {
        let part = format!("{whole}.1");
        run(&["handoff", "request", "--to", "bob", "--task", whole]);
        run(&["handoff", "cancel", whole]);
        run(&["handoff", "request", "--to", "bob", "--task", &part, "--parent", whole]);
    }
    let refused = acting(&broker, "alice", &["task", "status", "kept", "completed", "--keep-parts"]);
    check(exit_of(&mut { refused }), 2, "is for the status canceled");
    run(&["task", "status", "kept", "canceled", "--keep-parts"]);
    run(&["task", "status", "ended", "canceled"]);
    let status = |task: &str| broker.lines(&["task", "show", task]).remove(0)["status"].clone();
    // The end reaches the parts in a later step.
    eventually("the part is cancelled", async || status("ended.1") == "TASK_STATUS_CANCELED").await;
    assert_eq!(status("kept.1"), "TASK_STATUS_CREATED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_its_context_waits_for_the_end_of_the_handoff() {
    let broker = world().await;
    let context = file(&broker, "context.json", &json!({"notes": {"cause": "unknown"}, "keys": {"pin": 1}}));
    let run = |name: &str, arguments: &[&str]| {
        let (code, stderr) = exit_of(&mut acting(&broker, name, arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    };
    let begin = |arguments: &[&str]| {
        let mut command = acting(&broker, "alice", &[&["handoff", "request", "--to", "bob"], arguments].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let state = |task: &str| broker.lines(&["handoff", "list", "--task", task])[0]["state"].clone();
    // Accepted, context, completion: the command sends the context and prints the handoff.
    let asked = begin(&["--task", "t1", "--context", &context, "--secret", "keys", "--wait", "-o", "json"]);
    eventually("t1 is offered", async || !broker.lines(&["handoff", "list", "--task", "t1"]).is_empty()).await;
    run("bob", &["handoff", "accept", "t1"]);
    eventually("the context is sent", async || state("t1") == "HANDOFF_STATE_CONTEXT_SENT").await;
    run("bob", &["handoff", "complete", "t1", "--yes"]);
    let ended = asked.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{stderr}");
    let printed: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(printed["state"], "HANDOFF_STATE_COMPLETED", "{printed}");
    assert!(stderr.contains("ACCEPTED, candidate bob: ACCEPTED"), "{stderr}");
    // Refused: the words are printed, and the exit code and the code say that no agent has taken the task.
    let asked = begin(&["--task", "t2", "--reason", "load", "--reason-text", "a busy day", "--wait", "-o", "table"]);
    eventually("t2 is offered", async || !broker.lines(&["handoff", "list", "--task", "t2"]).is_empty()).await;
    let words = "no room before noon, and in the afternoon the machine is down for its yearly maintenance";
    run("bob", &["handoff", "reject", "t2", "--reason", "no-skill", "--text", words]);
    let ended = asked.wait_with_output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("failed: NO_CANDIDATE: handoff "), "{stderr}");
    assert!(stdout.contains("reason        LOAD: a busy day"), "{stdout}");
    assert!(stdout.contains(": REJECTED, NO_SKILL\n              no room before noon, and"), "{stdout}");
    let listed = acting(&broker, "alice", &["handoff", "list", "-o", "table"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("\n    bob REJECTED, NO_SKILL: no room before noon"), "{listed}");
    assert!(stdout.lines().chain(listed.lines()).all(|line| line.chars().count() <= 80), "{stdout}\n{listed}");
    // Cut off: the handoff is cancelled while the command waits.
    let asked = begin(&["--task", "t3", "--context", &context]);
    eventually("t3 is offered", async || !broker.lines(&["handoff", "list", "--task", "t3"]).is_empty()).await;
    run("alice", &["handoff", "cancel", "t3"]);
    assert_eq!(asked.wait_with_output().unwrap().status.code(), Some(1));
    // A context that cannot be read leaves no request.
    let no_file = ["handoff", "request", "--to", "bob", "--task", "t4", "--context", "/no/such.json"];
    check(exit_of(&mut acting(&broker, "alice", &no_file)), 3, "/no/such.json");
    assert!(broker.lines(&["handoff", "list", "--task", "t4"]).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delegation_that_is_waited_for_ends_with_the_result() {
    let broker = world().await;
    let context = file(&broker, "context.json", &json!({"notes": {"cause": "unknown"}}));
    let run = |name: &str, arguments: &[&str]| {
        let (code, stderr) = exit_of(&mut acting(&broker, name, arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    };
    let lend = async |task: &str| {
        let request =
            ["handoff", "request", "--to", "bob", "--delegate", "--wait", "--context", &context, "--task", task];
        let mut command = acting(&broker, "alice", &request);
        let asked = command.args(["-o", "json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        eventually("it is offered", async || !broker.lines(&["handoff", "list", "--task", task]).is_empty()).await;
        run("bob", &["handoff", "accept", task]);
        let state = || broker.lines(&["handoff", "list", "--task", task])[0]["state"].clone();
        eventually("the context is sent", async || state() == "HANDOFF_STATE_CONTEXT_SENT").await;
        run("bob", &["handoff", "complete", task, "--yes"]);
        asked
    };
    let asked = lend("t1").await;
    run("bob", &["task", "status", "t1", "completed", "--result-json", "{\"answer\": 42}"]);
    let ended = asked.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{stderr}");
    let task: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!((&task["ownerId"], &task["resultJson"]), (&json!("alice"), &json!("{\"answer\": 42}")), "{task}");
    // A result of failed work and a recall are no success.
    let asked = lend("t2").await;
    run("bob", &["task", "status", "t2", "failed"]);
    let ended = asked.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("has returned with the status FAILED"));
    let asked = lend("t3").await;
    run("alice", &["task", "recall", "t3"]);
    let ended = asked.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("has come back without a result"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_the_terms_of_its_flags() {
    let broker = world().await;
    let request = |task: &str, more: &[&str]| {
        let arguments = ["handoff", "request", "--to", "bob", "--task", task];
        exit_of(&mut acting(&broker, "alice", &[&arguments[..], more].concat()))
    };
    // bob lacks the skill, so the broker passes it over, and the handoff ends without a candidate.
    assert_eq!(request("t1", &["--skill", "law"]).0, Some(0));
    let passed = broker.lines(&["handoff", "list", "--task", "t1"]).remove(0);
    assert_eq!(passed["offers"][0]["passedOver"], true, "{passed}");
    assert_eq!(request("t2", &["--desired-type", "lawyer"]).0, Some(0));
    assert_eq!(broker.lines(&["handoff", "list", "--task", "t2"])[0]["offers"][0]["passedOver"], true);
    assert_eq!(
        request("t3", &["--max-handoffs", "1", "--fallback", "type:worker", "--silence-timeout", "60s"]).0,
        Some(0)
    );
    let shown = broker.lines(&["handoff", "show", "t3"]).remove(0);
    assert_eq!(shown["state"], "HANDOFF_STATE_REQUESTED", "{shown}");
    check(request("t4", &["--max-handoffs", "0"]), 2, "--max-handoffs");
    check(request("t4", &["--reason", "boredom"]), 2, "user-request");
    check(request("t4", &["--secret", "keys"]), 2, "--context");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_created_and_listed_by_its_conversation() {
    let broker = world().await;
    let create = |name: &str, task: &str, more: &[&str]| {
        exit_of(&mut acting(&broker, name, &[&["task", "create", task][..], more].concat()))
    };
    let chat = ["--conversation", "chat 7"];
    assert_eq!(create("alice", "t1", &[&chat[..], &["--summary", "it crashes"]].concat()).0, Some(0));
    assert_eq!(create("alice", "t2", &[&chat[..], &["--parent", "t1"]].concat()).0, Some(0));
    assert_eq!(create("alice", "t3", &["--max-handoffs", "1"]).0, Some(0));
    let listed = |more: &[&str]| {
        let output = acting(&broker, "alice", &[&["task", "list", "-o", "json"], more].concat()).output().unwrap();
        let tasks: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
        tasks.iter().map(|task| task["taskId"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&chat), ["t2", "t1"]);
    assert_eq!(listed(&[&chat[..], &["--parent", "t1"]].concat()), ["t2"]);
    assert_eq!(listed(&["--by-update"]), ["t3", "t2", "t1"]);
    let shown = acting(&broker, "alice", &["task", "show", "t1", "-o", "table"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("summary       it crashes\n"), "{shown}");
    assert!(shown.contains("conversation  chat 7\n"), "{shown}");
    check(create("alice", "t1", &[]), 8, "TASK_EXISTS");
    check(create("bob", "t1", &[]), 8, "NOT_OWNER");
    // The context of an own task, and a handoff later.
    let context = file(&broker, "context.json", &json!({"notes": {"cause": "unknown"}}));
    let run = |name: &str, arguments: &[&str]| {
        let (code, stderr) = exit_of(&mut acting(&broker, name, arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    };
    run("alice", &["context", "checkpoint", "t1", "--file", &context]);
    run("alice", &["handoff", "request", "--to", "bob", "--task", "t1"]);
    run("alice", &["task", "audit", "t1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reject_suggests_an_agent_or_a_type() {
    let broker = world().await;
    let request = ["handoff", "request", "--to", "bob", "--task", "t1"];
    assert_eq!(exit_of(&mut acting(&broker, "alice", &request)).0, Some(0));
    let public = hex::encode(identity("carol").key.public().as_bytes());
    broker.lines(&["agent", "register", "--id", "carol", "--public-key", &public, "--type", "support"]);
    let reject = ["handoff", "reject", "t1", "--reason", "no-skill", "--suggest"];
    for wrong in ["type:", "all:support", "type:a b"] {
        check(exit_of(&mut acting(&broker, "bob", &[&reject[..], &[wrong]].concat())), 2, "--suggest");
    }
    let suggested = [&reject[..], &["type:support"]].concat();
    let (code, stderr) = exit_of(&mut acting(&broker, "bob", &suggested));
    assert_eq!(code, Some(0), "{stderr}");
    let shown = broker.lines(&["handoff", "show", "t1"]);
    assert_eq!(shown[0]["candidateId"], "carol", "the agent of the suggested type is asked: {shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_says_what_helps() {
    let broker = world().await;
    let schema = file(&broker, "log.schema.json", &json!({}));
    for arguments in [&["schema", "register", "log", "1", &schema][..], &["schema", "remove", "log", "1"]] {
        assert_eq!(exit_of(&mut broker.command(arguments)).0, Some(0));
    }
    let retired = exit_of(&mut broker.command(&["schema", "retire", "log"]));
    check(retired.clone(), 8, "SCHEMA_UNKNOWN");
    assert!(
        retired.1.contains("schema \"log\" has no registered version") && !retired.1.contains("\"\""),
        "{retired:?}"
    );

    let again = ["agent", "register", "--id", "alice", "--public-key"];
    let other = hex::encode(identity("carol").key.public().as_bytes());
    let known = exit_of(&mut broker.command(&[&again[..], &[&other, "--key-id", "k2"]].concat()));
    check(known, 8, "`baton agent key add`");

    let old = exit_of(&mut broker.command(&["agent", "update", "bob", "--capacity", "8", "--etag", "0"]));
    check(old.clone(), 8, "CONFLICT");
    assert!(old.1.contains("Read it") && !old.1.contains("try again in"), "{old:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_states_the_time_that_its_agent_needs_to_decide() {
    let broker = world().await;
    let key = hex::encode(identity("dave").key.public().as_bytes());
    let register = ["agent", "register", "--id", "dave", "--public-key", &key, "--decides-within"];
    let registered = broker.lines(&[&register[..], &["8h"]].concat());
    assert_eq!(registered[0]["card"]["decidesWithin"], "28800s");
    let show = || {
        let output = broker.command(&["agent", "show", "dave", "-o", "table"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(show().contains("decides in    8h"), "{}", show());
    let updated = broker.lines(&["agent", "update", "dave", "--decides-within", "1d"]);
    assert_eq!(updated[0]["card"]["decidesWithin"], "86400s");
    for wrong in ["0s", "8d"] {
        check(
            exit_of(&mut broker.command(&["agent", "update", "dave", "--decides-within", wrong])),
            8,
            "FIELD_INVALID",
        );
    }
    let updated = broker.lines(&["agent", "update", "dave", "--decides-within", "none"]);
    assert!(updated[0]["card"].get("decidesWithin").is_none(), "{updated:?}");
    assert!(!show().contains("decides in"), "{}", show());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_changes_its_keys_and_leaves_by_its_own_key() {
    let broker = world().await;
    let second = hex::encode(identity("carol").key.public().as_bytes());
    for arguments in [
        &["agent", "key", "list", "bob"][..],
        &["agent", "key", "add", "bob", "k2", "--public-key", &second],
        &["agent", "key", "revoke", "bob", "k2"],
        &["agent", "deregister", "bob"],
    ] {
        check(exit_of(&mut acting(&broker, "alice", arguments)), if arguments[2] == "list" { 0 } else { 8 }, "");
        check(exit_of(&mut acting(&broker, "bob", arguments)), 0, "");
    }
    // An agent gets no invitations, and an operator makes them for an agent that is to come.
    let invite = ["agent", "invite", "--for", "carol"];
    check(exit_of(&mut acting(&broker, "alice", &invite)), 8, "PERMISSION_DENIED");
    check(exit_of(&mut broker.command(&invite)), 0, "");
}
