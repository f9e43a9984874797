//! Plans as people write them, at the command line; and services that are switched off.

use serde_json::{Value, json};

use crate::{
    broker::{Broker, exit_of},
    plans::Submitter,
};

/// The errors among the problems of a plan, with these flags.
fn errors(broker: &Broker, alice: &Submitter, flags: &[&str]) -> Vec<String> {
    let arguments = [&["plan", "validate", alice.file.to_str().unwrap()], flags, &["-o", "json"]].concat();
    let output = broker.command(&alice.with_identity(&arguments)).output().unwrap();
    let problems: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let errors = problems.iter().filter(|problem| problem["severity"] == "PROBLEM_SEVERITY_ERROR");
    let errors: Vec<String> = errors.map(|problem| problem["code"].as_str().unwrap().to_owned()).collect();
    assert_eq!(output.status.code(), Some(i32::from(!errors.is_empty())));
    errors
}

#[tokio::test]
async fn a_list_of_ids_and_dependencies_is_a_plan() {
    let broker = Broker::start();
    drop(broker.agent("bob").await);
    let list = json!([{"id": "A", "dependencies": []}, {"id": "B", "dependencies": ["A"]}]);
    for (name, plan) in [("list", list.clone()), ("object", json!({"subtasks": list}))] {
        let alice = Submitter::new(&broker, name, &plan);
        assert_eq!(errors(&broker, &alice, &[]), ["NO_AGENT", "NO_AGENT"]);
        assert_eq!(errors(&broker, &alice, &["--agent", "type:analyst"]), [""; 0]);
        assert_eq!(errors(&broker, &alice, &["--skill", "tax"]), [""; 0]);
        let flags = ["--agent", "no agent"];
        let arguments = [&["plan", "validate", alice.file.to_str().unwrap()], &flags[..]].concat();
        let (_, stderr) = exit_of(&mut broker.command(&alice.with_identity(&arguments)));
        assert!(stderr.contains("plan.defaults.agent_id"), "{stderr}");
        let arguments = ["plan", "submit", alice.file.to_str().unwrap(), "--agent", "bob"];
        assert_eq!(broker.lines(&alice.with_identity(&arguments))[0]["state"], "PLAN_STATE_RUNNING");
    }
}

#[tokio::test]
async fn a_plan_grows_and_its_subtasks_change_by_commands() {
    let broker = Broker::start();
    drop(broker.agent("bob").await);
    drop(broker.agent("carol").await);
    let alice = Submitter::new(&broker, "growth", &json!([{"id": "a", "agent_id": "bob"}]));
    alice.submit(&broker);
    let more = Submitter::new(&broker, "more", &json!([{"id": "b", "dependencies": ["a"]}]));
    let file = more.file.to_str().unwrap();
    let run = |arguments: &[&str]| broker.lines(&alice.with_identity(arguments)).remove(0);
    let plan = run(&["plan", "extend", "growth", file, "--agent", "bob"]);
    assert_eq!(plan["subtasks"][1]["state"], "SUBTASK_STATE_PENDING", "{plan}");
    assert_eq!(plan["extensionIds"].as_array().map(Vec::len), Some(1));
    let of = |arguments: &[&str]| run(&[&["plan", "subtask"], arguments].concat())["subtasks"][0].clone();
    assert_eq!(of(&["reassign", "growth", "a", "--to", "carol"])["turnAgentId"], "carol");
    assert_eq!(of(&["cancel", "growth", "a", "--reason", "enough"])["state"], "SUBTASK_STATE_CANCELLED");
    let retry = ["plan", "subtask", "retry", "growth", "a"];
    let (code, stderr) = exit_of(&mut broker.command(&alice.with_identity(&retry)));
    assert!(code != Some(0) && stderr.contains("PLAN_FINAL"), "it was the last one: {code:?} {stderr}");
    let shown = broker.command(&alice.with_identity(&["plan", "show", "growth", "-o", "mermaid"])).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("n0 --> n1"), "the diagram has the extension: {shown}");
}

#[test]
fn without_workspaces_reads_and_appends_are_not_supported() {
    let broker = Broker::serve("", "[workspace]\nenabled = false\n");
    for arguments in [&["workspace", "list", "task:t"][..], &["workspace", "watch", "task:t"]] {
        let (code, stderr) = exit_of(&mut broker.command(arguments));
        assert!(code == Some(8) && stderr.contains("[workspace]"), "{code:?} {stderr}");
    }
}
