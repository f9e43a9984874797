//! Text from agents in every command, in every output format and in the log: it cannot control a terminal or forge a
//! line of output. Also the output for people: tables, times and id prefixes.

use std::{fs, process::Command, sync::Arc};

use baton::proto::v1::{self, MessageType};
use baton_client::{About, context_of, session::Agent};
use serde_json::Value;

use crate::broker::{Broker, a_request, baton, card, exit_of, identity, write};

/// Clears a screen, ends a line and forges another, with C0 and C1 characters and direction marks.
const NASTY: &str =
    "nasty\u{1b}[2J\u{1b}]0;owned\u{7}\r\nFORGED line\u{85}\u{9b}31m\u{202e}\u{2066}\u{2028}\u{7f}\tend";

fn is_dangerous(letter: char) -> bool {
    (letter.is_control() && letter != '\n') || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[track_caller]
fn is_harmless(what: &str, text: &str) {
    if let Some(letter) = text.chars().find(|letter| is_dangerous(*letter)) {
        panic!("{what} writes {letter:?}: {text:?}");
    }
    assert!(!text.lines().any(|line| line.trim_start().starts_with("FORGED")), "{what} has a forged line: {text}");
}

fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Nacks the next message of this type as POISON, and acks all before it.
async fn poison(to: &Agent, kind: MessageType) {
    let delivered = loop {
        let delivered = to.next().await.unwrap();
        if delivered.kind() == kind {
            break delivered;
        }
        to.session.ack(&delivered.delivery.delivery_id).await.unwrap();
    };
    let nack = v1::Nack { cause: v1::NackCause::Poison.into(), reason_text: NASTY.into(), ..Default::default() };
    to.session.nack(&delivered.delivery.delivery_id, nack).await.unwrap();
}

/// Agents, tasks, handoffs, mail and dead letters with the hostile text in every field that an agent may write.
async fn nasty_world(broker: &Broker) -> (String, String) {
    let client = broker.client().await;
    for name in ["a", "b", "c"] {
        let mut card = card(name, "");
        card.description = NASTY.into();
        let request = v1::RegisterAgentRequest { card: Some(card), ..Default::default() };
        client.answer(client.agents().register_agent(request).await).unwrap();
    }
    let (a, b) = (broker.agent_session("a").await, broker.agent_session("b").await);
    a.session.heartbeat(v1::Heartbeat { status: NASTY.into(), ..Default::default() }).await.unwrap();
    let request =
        v1::HandoffRequest { initial_context_summary: NASTY.into(), reason_text: NASTY.into(), ..a_request() };
    // A rejected handoff with a reason.
    let rejected = a.request("b", "task-rejected", 1, &request).await.unwrap();
    let offer = b.take().await.unwrap();
    let reject =
        v1::HandoffReject { reason: v1::RejectReason::Other.into(), reason_text: NASTY.into(), ..Default::default() };
    b.reject(&offer, &reject).await.unwrap();
    a.take().await.unwrap();
    // A completed handoff, then a report with details.
    a.request("b", "task-done", 1, &request).await.unwrap();
    let offer = b.take().await.unwrap();
    b.accept(&offer).await.unwrap();
    let accept = loop {
        let delivered = a.take().await.unwrap();
        if delivered.kind() == MessageType::HandoffAccept {
            break delivered;
        }
    };
    let context = context_of([("notes", serde_json::json!({ "text": NASTY }).to_string())]);
    a.send_context(&accept, &context).await.unwrap();
    let context = b.take().await.unwrap();
    let receipt = b.complete(&context).await.unwrap();
    let done =
        v1::TaskStatusUpdate { status: v1::TaskStatus::Completed.into(), details: NASTY.into(), ..Default::default() };
    b.report(&About::task("task-done", receipt.epoch), &done).await.unwrap();
    // Dead letters, and queued mail for c.
    let info = v1::Info { text: NASTY.into(), ..Default::default() };
    for _ in 0..2 {
        a.send("b", MessageType::Info, &About::default(), &info).await.unwrap();
        poison(&b, MessageType::Info).await;
    }
    a.send("c", MessageType::Info, &About::default(), &info).await.unwrap();
    let listed = broker.lines(&["dlq", "list"]);
    (rejected.handoff_id, listed[0]["deadLetterId"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_of_agents_do_nothing_wherever_they_are_shown() {
    let broker = Broker::start();
    let (handoff, dead) = nasty_world(&broker).await;
    let other = broker.lines(&["dlq", "list"])[1]["deadLetterId"].as_str().unwrap().to_owned();
    assert_eq!(exit_of(&mut broker.command(&["dlq", "discard", &other, "--reason", NASTY])).0, Some(0));
    assert_eq!(exit_of(&mut broker.command(&["agent", "key", "revoke", "a", "k1", "--reason", NASTY])).0, Some(0));
    let commands: [&[&str]; 13] = [
        &["agent", "list"],
        &["agent", "show", "a"],
        &["agent", "key", "list", "a"],
        &["handoff", "list"],
        &["handoff", "show", &handoff],
        &["handoff", "watch", &handoff],
        &["task", "list"],
        &["task", "show", "task-done"],
        &["task", "watch", "task-done"],
        &["dlq", "list", "--state", "all"],
        &["dlq", "show", &dead],
        &["dlq", "export"],
        &["audit"],
    ];
    for command in commands {
        for format in ["table", "json", "jsonl", "yaml"] {
            let (code, stdout, stderr) = output(broker.command(command).args(["-o", format]));
            let what = format!("{command:?} -o {format}");
            assert_eq!(code, Some(0), "{what}: {stderr}");
            is_harmless(&what, &stdout);
            is_harmless(&what, &stderr);
        }
    }
    let shown: Value = broker.lines(&["task", "show", "task-done"]).remove(0);
    assert_eq!(shown["details"], NASTY, "a program reads what was written");
    let table = output(broker.command(&["task", "show", "task-done"]).args(["-o", "table"])).1;
    assert!(table.contains("nasty\\u{1b}[2J") && table.contains("\\r\\nFORGED"), "{table}");
    is_harmless("the log", &broker.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_is_shown_in_every_format_and_does_nothing() {
    // The commands only look, so the same message is there for the next one.
    let broker = Broker::serve("enrollment = \"open\"", "[delivery]\nack_wait_ms = 200\n");
    nasty_world(&broker).await;
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("c.pem");
    identity("c").key.write(&key).unwrap();
    for format in ["table", "json", "jsonl", "yaml"] {
        let mut command = baton();
        command.args(["mail", "receive", "--id", "c", "--max", "1", "--server", &broker.address, "-o", format, "--ca"]);
        let (code, stdout, stderr) = output(command.arg(broker.ca()).arg("--key").arg(&key));
        assert_eq!(code, Some(0), "{stderr}");
        is_harmless(format, &stdout);
        let text = match format {
            "table" => {
                assert!(stdout.contains("type          INFO") && stdout.contains("from          a"), "{stdout}");
                continue;
            }
            "yaml" => serde_yaml_ng::from_str::<Value>(&stdout).unwrap(),
            _ => serde_json::from_str(&stdout).unwrap(),
        };
        assert_eq!(text["envelope"]["payload"]["text"], NASTY, "{format}");
    }
}

#[tokio::test]
async fn refusals_that_repeat_a_text_do_nothing() {
    let broker = Broker::start();
    let a = broker.agent("a").await;
    drop(a);
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("a.pem");
    identity("a").key.write(&key).unwrap();
    let key = key.to_str().unwrap();
    let request = ["handoff", "request", "--id", "a", "--to", NASTY, "--task-type", NASTY, "--key", key];
    let (code, stderr) = exit_of(&mut broker.command(&request));
    assert_eq!(code, Some(8), "{stderr}");
    is_harmless("a refusal", &stderr);
}

/// Tables of everything that has a list, with long ids that share prefixes.
#[tokio::test]
async fn tables_fit_eighty_columns_and_ids_in_them_are_taken_by_commands() {
    let broker = Broker::start();
    let names = ["support-chatbot-of-the-northern-branch", "billing-expert-of-the-southern-branch"];
    let mut skilled = card(names[0], "support-chatbots");
    skilled.skills =
        (0..9).map(|n| v1::AgentSkill { name: format!("skill.number.{n}"), ..Default::default() }).collect();
    let client = broker.client().await;
    let request = v1::RegisterAgentRequest { card: Some(skilled), ..Default::default() };
    client.answer(client.agents().register_agent(request).await).unwrap();
    let b = broker.agent(names[1]).await;
    let a = broker.agent_session(names[0]).await;
    let mut handoffs = Vec::new();
    for task in ["0198aaaa-1111-7000-8000-000000000001", "ticket-of-a-customer-in-the-north-77"] {
        handoffs.push(a.request(names[1], task, 1, &a_request()).await.unwrap().handoff_id);
    }
    poison(&b, MessageType::HandoffRequest).await;
    for command in [
        &["agent", "list"][..],
        &["agent", "key", "list", names[0]],
        &["handoff", "list"],
        &["task", "list"],
        &["dlq", "list", "--state", "all"],
        &["audit"],
    ] {
        let (code, table, stderr) = output(broker.command(command).args(["-o", "table"]));
        assert_eq!(code, Some(0), "{stderr}");
        assert!(table.lines().count() >= 2, "{command:?}: {table}");
        let widest = table.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 80, "{command:?} is {widest} wide:\n{table}");
    }
    // `show` accepts the ids in the first column of a list.
    let table = output(broker.command(&["handoff", "list"]).args(["-o", "table"])).1;
    for (line, handoff) in table.lines().skip(1).zip(handoffs.iter().rev()) {
        let id = line.split_whitespace().next().unwrap();
        assert!(id.ends_with('…'), "{table}");
        assert_eq!(broker.lines(&["handoff", "show", id])[0]["handoffId"], handoff.as_str());
    }
    let steps = output(broker.command(&["handoff", "show", &handoffs[0]]).args(["-o", "table"])).1;
    let has_no_id = |line: &&str| !names.iter().any(|name| line.contains(name));
    assert!(steps.lines().filter(has_no_id).all(|line| line.chars().count() <= 80), "{steps}");
    assert!(!steps.contains("0000Z") && steps.contains("AWAITING_HANDOFF_ACCEPT"), "{steps}");
    assert_eq!(broker.lines(&["agent", "show", "supp"])[0]["card"]["agentId"], names[0]);
    assert_eq!(broker.lines(&["task", "show", "ticket"])[0]["taskId"], "ticket-of-a-customer-in-the-north-77");
    assert!(broker.lines(&["task", "list", "--owner", "support"])[0].is_object());
    assert_eq!(broker.lines(&["handoff", "list", "--task", "ticket-of"]).len(), 1);
}

#[tokio::test]
async fn a_beginning_that_fits_several_or_none_is_refused_in_words() {
    let broker = Broker::start();
    let (a, _b) = (broker.agent("a").await, broker.agent("b").await);
    for task in ["ticket-1", "ticket-10", "ticket-2"] {
        a.request("b", task, 1, &a_request()).await.unwrap();
    }
    let (code, stderr) = exit_of(&mut broker.command(&["task", "show", "ticket"]));
    assert_eq!(code, Some(2), "{stderr}");
    for id in ["ticket-1", "ticket-10", "ticket-2", "3 tasks"] {
        assert!(stderr.contains(id), "{stderr}");
    }
    // A whole id is never taken for a prefix.
    assert_eq!(broker.lines(&["task", "show", "ticket-1"])[0]["taskId"], "ticket-1");
    for (command, words) in [
        (&["task", "show", "nothing"][..], "no task that you may see has the id nothing or an id that starts with it"),
        (&["agent", "show", "nothing"], "no agent that you may see has the id nothing or an id that starts with it"),
        (&["handoff", "show", "ffff"], "no handoff that you may see has the id ffff or an id that starts with it"),
    ] {
        let (code, stderr) = exit_of(&mut broker.command(command));
        assert!(code == Some(8) && stderr.contains(words), "{code:?} {stderr}");
    }
}

#[tokio::test]
async fn an_agent_that_was_never_there_is_not_gone() {
    let broker = Broker::start();
    let client = broker.client().await;
    let request = v1::RegisterAgentRequest { card: Some(card("new", "")), ..Default::default() };
    let registered = client.answer(client.agents().register_agent(request).await).unwrap().agent.unwrap();
    assert_eq!(registered.presence(), v1::Presence::Unseen);
    let table = output(broker.command(&["agent", "list"]).args(["-o", "table"])).1;
    assert!(table.contains("UNSEEN") && !table.contains("GONE"), "{table}");
    let _session = broker.agent_session("new").await;
    assert_eq!(broker.lines(&["agent", "show", "new"])[0]["presence"], "PRESENCE_ALIVE");
}

/// Runs the command without a reader of stdout, then without a reader of stdout and stderr. Neither run may panic.
/// Returns the exit code of the first.
fn without_reader(command: &mut Command) -> Option<i32> {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let log = tempfile::NamedTempFile::new().unwrap();
    let code = command.stdout(writer).stderr(fs::File::create(log.path()).unwrap()).status().unwrap().code();
    let stderr = fs::read_to_string(log.path()).unwrap();
    assert!(!stderr.contains("panicked"), "{stderr}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_ne!(command.stdout(writer.try_clone().unwrap()).stderr(writer).status().unwrap().code(), Some(101));
    code
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    assert_eq!(output(baton().arg("manual").arg(&pages)).0, Some(0));
    for (page, words) in [("baton.1", "Exit codes"), ("baton-handoff-request.1", "deliver")] {
        let text = fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.starts_with(".ie") && text.contains(".SH") && text.contains(words), "{page}: {text}");
    }
    // A file in place of the folder.
    let (code, stderr) = exit_of(baton().arg("manual").arg(pages.join("baton.1")));
    assert!(code == Some(3) && stderr.contains("baton.1"), "{code:?} {stderr}");
}

#[test]
fn a_closed_pipe_ends_no_command_in_a_panic() {
    let broker = Broker::start();
    for shell in ["bash", "zsh", "fish"] {
        assert_eq!(without_reader(baton().args(["completions", shell])), Some(0));
    }
    let folder = Arc::clone(&broker.folder);
    let path = folder.path().join("draft.json");
    write(&path, r#"{"senderId": "a"}"#);
    for command in [
        &["policy", "show", "default"][..],
        &["conformance", "--list"],
        &["envelope", "inspect", "--file", path.to_str().unwrap()],
    ] {
        assert_eq!(without_reader(baton().args(command)), Some(0), "{command:?}");
    }
    for command in [&["agent", "list"][..], &["task", "list"], &["audit"]] {
        for format in ["table", "json", "jsonl", "yaml"] {
            let code = without_reader(broker.command(command).args(["-o", format]));
            assert_eq!(code, Some(0), "{command:?} {format}");
        }
    }
    assert_ne!(without_reader(baton().arg("--help")), Some(101));
}
