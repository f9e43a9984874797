//! The conformance suite against a broker process: every case passes, and the command prints the report.

use std::process::Command;

use serde_json::Value;

use crate::{
    broker::{Broker, baton, exit_of},
    suite,
};

fn command(broker: &Broker, options: &[&str]) -> Command {
    suite::built();
    let mut command = baton();
    command
        .args(["conformance", "--patience", "5m", "--target", &broker.address, "--ca"])
        .arg(broker.ca())
        .args(options);
    command
}

/// The names of the cases with this outcome.
fn named(report: &Value, outcome: &str) -> Vec<String> {
    let cases = report["cases"].as_array().unwrap().iter().filter(|case| case["outcome"] == outcome);
    cases.map(|case| case["name"].as_str().unwrap().to_owned()).collect()
}

/// Runs the whole suite, in which no case fails. Returns the report.
fn passed(broker: &Broker) -> Value {
    let output = command(broker, &["--format", "json", "--token", &broker.operator_token()]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Not the whole report, which is longer than the kept output of a build.
    let failed: Vec<&Value> =
        report["cases"].as_array().unwrap().iter().filter(|case| case["outcome"] == "failed").collect();
    assert!(failed.is_empty(), "cases that failed:\n{failed:#?}");
    assert_eq!(output.status.code(), Some(0));
    report
}

#[test]
fn a_broker_for_development_passes_every_case_that_it_can_be_tried_by() {
    let broker = Broker::start();
    let report = passed(&broker);
    let of_closed_brokers = [
        "access.task-is-its-participants",
        "access.stranger-cannot-enrol",
        "access.invitation-is-good-once",
        "plan.belongs-to-its-submitter",
        "plan.submitter-sees-the-work",
    ];
    assert_eq!(named(&report, "skipped"), of_closed_brokers, "its enrolment is open");
    assert!(named(&report, "passed").len() > 150);
}

/// A broker as a company runs it: only an operator enrols agents, and an agent reads only what it takes part in.
#[test]
fn a_broker_that_an_operator_enrols_agents_at_passes_every_case() {
    // A lease must outlive the pause of an agent on a busy machine.
    let broker = Broker::serve("enrollment = \"operator\"", "[delivery]\nack_wait_ms = 20000");
    assert_eq!(named(&passed(&broker), "skipped"), Vec::<String>::new());
}

#[test]
fn a_report_is_written_where_it_is_wanted_and_names_what_was_skipped() {
    let broker = Broker::start();
    let path = broker.folder.path().join("conformance.xml");
    let only = ["--only", "dead-letter.redrive-to-*", "--only", "envelope.unsigned-is-refused"];
    let mut command = command(&broker, &only);
    command.args(["--format", "junit", "--report"]).arg(&path);
    assert_eq!(exit_of(&mut command).0, Some(0));
    let xml = std::fs::read_to_string(path).unwrap();
    assert!(xml.contains(r#"tests="3" failures="0" skipped="2""#), "{xml}");
    assert!(xml.contains(r#"<skipped message="it needs an operator&apos;s token: --token"/>"#), "{xml}");
}

#[test]
fn a_failed_case_says_what_was_expected_and_seen_and_the_exit_code_is_10() {
    let folder = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let lax = Broker::start_in(folder, &["--allow-unsigned"]);
    let output = command(&lax, &["--only", "envelope.unsigned-is-refused"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(10), "{text}");
    for words in [
        "FAILED   envelope.unsigned-is-refused",
        "expected  refused: SIGNATURE_MISSING (Unauthenticated)",
        "seen      taken: Receipt",
    ] {
        assert!(text.contains(words), "{words} is not in: {text}");
    }
}

#[test]
fn a_case_that_is_not_there_is_an_error_and_so_is_a_broker_that_is_not() {
    suite::built();
    let (code, message) = exit_of(baton().args(["conformance", "--list", "--only", "no.such-case"]));
    assert!(code == Some(2) && message.contains("no.such-case"), "{message}");
    assert_eq!(exit_of(baton().args(["conformance"])).0, Some(2));
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    assert_eq!(exit_of(baton().args(["conformance", "--target", &free])).0, Some(9));
    let output = baton().args(["conformance", "--list", "--only", "scenario.*"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("scenario.handoff-completes\n    SPEC 2, 3. A whole handoff"), "{text}");
}

#[test]
fn without_the_program_the_command_says_how_to_get_it() {
    suite::built();
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("baton");
    std::fs::copy(env!("CARGO_BIN_EXE_baton"), &alone).unwrap();
    let (code, message) = exit_of(Command::new(&alone).args(["conformance", "--list"]).env("PATH", folder.path()));
    assert!(code == Some(1) && message.contains("cargo install --path crates/conformance"), "{code:?} {message}");
    // On the PATH it is found, and gets the flags of connections that stand before its own.
    let program = suite::built();
    let mut found = Command::new(&alone);
    found
        .args(["conformance", "--token", "x", "--list", "--only", "no.such-case"])
        .env("PATH", program.parent().unwrap());
    let (code, message) = exit_of(&mut found);
    assert!(
        code == Some(2) && message.starts_with("baton-conformance: ") && message.contains("no.such-case"),
        "{message}"
    );
}
