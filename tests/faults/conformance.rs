//! Shows that the conformance suite detects faults: a named case catches each planted fault, and no case fails for a
//! broker without a fault.
//!
//! `tests/plant.sh tests/faults/faults.patch cargo test --test faults -- --nocapture` prints the cases that caught each
//! fault. The patch plants the faults into a copy of the source and adds this file to its tests. The broker itself
//! contains no faults.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

#[path = "../suite.rs"]
mod suite;

use baton_protocol::faults::Fault;
use serde_json::Value;

/// Each fault, and the cases that must catch it.
const CAUGHT_BY: [(Fault, &[&str]); 33] = [
    (Fault::TakesAnySignature, &["envelope.every-field-is-signed", "scenario.only-what-is-signed-is-taken"]),
    (Fault::TakesUnsigned, &["envelope.unsigned-is-refused"]),
    (Fault::TakesWeakKeys, &["key.weak-is-refused"]),
    (Fault::TakesAnyTime, &["envelope.old-is-refused"]),
    (Fault::TakesAnySender, &["access.session-sends-only-as-its-agent"]),
    (Fault::TakesChallengesTwice, &["access.challenge-is-good-once"]),
    (Fault::AnswersRepeatsAnew, &["repeat.same-receipt", "scenario.repeat-gets-the-first-receipt"]),
    (Fault::SignsReceiptsWrongly, &["receipt.is-signed-by-the-broker"]),
    (Fault::ShowsAnotherKey, &["key.directory-shows-what-signs"]),
    (Fault::ForgetsTheEpoch, &["status.only-the-owner", "scenario.old-owner-is-fenced"]),
    (Fault::MovesOwnershipAtAccept, &["handoff.ownership-moves-only-at-completion", "scenario.handoff-completes"]),
    (Fault::KeepsNoAcceptDeadline, &["timeout.accept-fails-the-handoff", "scenario.late-accept-is-refused"]),
    (Fault::TakesAnyContextDigest, &["handoff.wrong-takeover-digest-is-refused", "scenario.takeover-fails"]),
    (Fault::StopsNoLoop, &["loop.limit-of-the-task", "scenario.loops-are-stopped"]),
    (Fault::SendsNoFailureNotice, &["handoff.failure-leaves-the-task", "scenario.rejected-by-all-stays"]),
    (Fault::RecordsNoLateMessage, &["timeout.late-messages-are-recorded"]),
    (Fault::DeliversOutOfOrder, &["delivery.redelivery-keeps-the-order"]),
    (Fault::IgnoresPriority, &["delivery.higher-priority-first", "scenario.mail-waits-by-priority"]),
    (Fault::LosesNackedMail, &["delivery.nacked-comes-again", "scenario.nacked-comes-again"]),
    (Fault::NeverRedelivers, &["delivery.no-ack-comes-again"]),
    (Fault::CountsShutdowns, &["delivery.shutdown-is-no-failure"]),
    (Fault::ParksNothing, &["dead-letter.poison-at-once"]),
    (Fault::LetsAllAgentsSettle, &["access.agents-settle-no-dead-letters"]),
    (Fault::HidesTheDomain, &["error.has-error-info"]),
    (
        Fault::AnswersAnyProcess,
        &[
            "process.gets-what-it-began",
            "process.that-accepts-gets-the-context",
            "process.that-requests-gets-the-reject",
            "process.that-offers-gets-the-answer",
            "process.that-offers-gets-the-award",
            "process.that-submits-a-plan-gets-its-notice",
        ],
    ),
    (Fault::AsksFullAgents, &["busy.full-agent-gets-one-after-the-other", "busy.heartbeat-shows-room"]),
    (Fault::CountsBusyAsReject, &["busy.overloaded-is-asked-again"]),
    (Fault::JudgesPlainStubs, &["silence.is-judged-of-those-that-tell"]),
    (Fault::NoticesNoSilence, &["silence.loan-comes-back"]),
    (Fault::LeavesATaskOut, &["resume.gives-what-a-lost-process-left"]),
    (Fault::DeliversAtOnce, &["delivery.after"]),
    (Fault::TakesRevisionsOfAll, &["registry.names-have-owners", "registry.a-name-is-handed-over"]),
    (Fault::LetsAllAgentsRemove, &["registry.names-have-owners"]),
];

/// The `baton` command in a folder without `baton-data`.
fn baton() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.current_dir(env!("CARGO_TARGET_TMPDIR"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("BATON_")) {
        command.env_remove(name);
    }
    command
}

/// A broker with at most one fault. Dropping it kills the process.
struct Broker {
    child: Child,
    address: String,
}

impl Broker {
    fn start(folder: &Path, fault: Option<Fault>) -> Self {
        let mut command = baton();
        command.args(["serve", "--config"]).arg(folder.join("baton.toml"));
        command.env("BATON_LOG", "off");
        if let Some(fault) = fault {
            command.env("BATON_FAULT", fault.name());
        }
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().expect("a broker that starts says so").unwrap();
        std::thread::spawn(move || lines.for_each(drop));
        let address = first.strip_prefix("baton is ready on ").and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("not ready: {first}")).to_owned();
        Self { child, address }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Makes a folder with a certificate and a configuration with this enrolment and ack wait.
fn folder(enrollment: &str, ack_wait: Duration) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut command = baton();
    command.args(["dev", "--port", "0", "--data"]).arg(&data).env("BATON_LOG", "off");
    drop(Broker::spawn(command)); // a first start makes the certificate
    let (certificate, key) = (data.join("tls/server.pem"), data.join("tls/server.key"));
    let text = format!(
        "listen = \"127.0.0.1:0\"\ndata = {data:?}\nenrollment = {enrollment:?}\n\
         [tls]\ncertificate = {certificate:?}\nkey = {key:?}\n[delivery]\nack_wait_ms = {}\n",
        ack_wait.as_millis()
    );
    std::fs::write(folder.path().join("baton.toml"), text).unwrap();
    folder
}

/// Runs the suite. Returns the exit code and the report.
fn report(folder: &Path, broker: &Broker, options: &[&str]) -> (Option<i32>, Value) {
    let data = folder.join("data");
    let token = std::fs::read_to_string(data.join("operator.token")).unwrap();
    suite::built();
    let mut command = baton();
    command.args(["conformance", "--target", &broker.address, "--format", "json", "--token", token.trim()]);
    command.arg("--ca").arg(data.join("tls/ca.pem")).args(options);
    let output = command.output().unwrap();
    let report = serde_json::from_slice(&output.stdout);
    let problem = || String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), report.unwrap_or_else(|error| panic!("{error}: {}", problem())))
}

fn with_outcome(report: &Value, outcome: &str) -> Vec<String> {
    let cases = report["cases"].as_array().unwrap().iter().filter(|case| case["outcome"] == outcome);
    cases.map(|case| case["name"].as_str().unwrap().to_owned()).collect()
}

/// The outcome of a case and its first difference, as one line.
fn account(case: &Value) -> String {
    let of = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let first = &case["differences"][0];
    let [name, outcome] = ["name", "outcome"].map(|name| of(case, name));
    let [field, expected, seen] = ["field", "expected", "seen"].map(|name| of(first, name));
    let words = if outcome == "failed" { "caught by" } else { "NOT caught by" };
    format!("{words} {name}: {field} is {seen:.60}, not {expected:.60}")
}

#[test]
fn each_fault_has_its_case() {
    let tried: BTreeSet<&str> = CAUGHT_BY.iter().map(|(fault, _)| fault.name()).collect();
    let all: BTreeSet<&str> = Fault::ALL.iter().map(|fault| fault.name()).collect();
    assert_eq!(tried, all);
}

#[test]
fn each_fault_is_caught_by_its_case() {
    let mut missed = Vec::new();
    for (fault, cases) in CAUGHT_BY {
        // A new folder for each fault: a broker without the fault may be unable to open its store.
        let folder = folder("open", Duration::from_secs(2));
        let broker = Broker::start(folder.path(), Some(fault));
        let only: Vec<&str> = cases.iter().flat_map(|case| ["--only", case]).collect();
        let (code, report) = report(folder.path(), &broker, &[&["--patience", "6s"], &only[..]].concat());
        println!("{}", fault.name());
        for case in report["cases"].as_array().unwrap() {
            println!("    {}", account(case));
        }
        if code != Some(10) || with_outcome(&report, "failed") != cases {
            missed.push(format!("{} by {cases:?}: exit code {code:?}, {report}", fault.name()));
        }
    }
    assert!(missed.is_empty(), "faults that were not caught:\n{}", missed.join("\n"));
}

/// With enrolment by the operator only. The cases that an open broker skips run here.
#[test]
fn a_broker_without_a_fault_passes_every_case() {
    // Long enough that a lease outlives the pause of an agent on a busy machine.
    let folder = folder("operator", Duration::from_secs(20));
    let broker = Broker::start(folder.path(), None);
    // The limit is for a broker that hangs: a busy machine needs more time than the default.
    let (code, report) = report(folder.path(), &broker, &["--patience", "5m"]);
    // Only what failed: the whole report is longer than the kept output of a build.
    let unlike: Vec<&Value> = report["cases"].as_array().unwrap().iter().filter(|case| case["outcome"] != "passed").collect();
    assert!(unlike.is_empty(), "cases that failed or were skipped:\n{unlike:#?}");
    assert_eq!(code, Some(0));
    println!("without a fault: {} cases passed", report["passed"]);
}
