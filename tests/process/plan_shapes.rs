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

#[test]
fn without_workspaces_reads_and_appends_are_not_supported() {
    let broker = Broker::serve("", "[workspace]\nenabled = false\n");
    for arguments in [&["workspace", "list", "task:t"][..], &["workspace", "watch", "task:t"]] {
        let (code, stderr) = exit_of(&mut broker.command(arguments));
        assert!(code == Some(8) && stderr.contains("[workspace]"), "{code:?} {stderr}");
    }
}
