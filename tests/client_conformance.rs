//! `baton conformance --client`: the Rust client passes, and a named case detects each single fault of a client.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, OnceLock},
    time::Duration,
};

use baton_conformance::{
    client::{self, Case},
    report::{self, Outcome, Report},
};
use tokio::{sync::Semaphore, task::JoinSet};

/// The number of programs of one run at the same time.
const AT_A_TIME: usize = 4;
/// The number of faults that are tried at the same time. Nearly all of the time is waiting.
const FAULTS_AT_A_TIME: usize = 8;
/// The time limit of each step of a correct client. It only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(300);
/// The time limit of each step of a client with a fault: the time after which a missing step counts as a fault.
const PATIENCE_WITH_FAULTS: Duration = Duration::from_secs(20);

/// The faults of `examples/harness`, and the cases that must detect them.
const FAULTS: [(&str, &[&str]); 35] = [
    (
        "naive",
        &[
            "client.wrong-ca-is-untrusted",
            "client.forged-delivery-is-refused",
            "client.strangers-delivery-is-refused",
            "client.unsigned-delivery-is-refused",
            "client.swapped-payload-is-refused",
            "client.changed-envelope-is-refused",
            "client.unknown-key-is-refused",
            "client.revoked-key-is-refused",
            "client.unknown-signature-version-is-refused",
            "client.unknown-message-type-is-refused",
            "client.payload-of-another-type-is-refused",
            "client.long-handler-is-extended",
            "client.context-of-another-digest-is-refused",
            "client.go-away-is-kept",
            "client.broker-that-stops-is-waited-for",
            "client.expired-token-is-replaced",
            "client.single-refusal-is-tried-again",
            "client.reconnects-with-backoff",
            "client.lost-ack-is-made-up-for",
            "client.late-ack-is-made-up-for",
            "client.running-handler-keeps-its-message",
            "client.silent-broker-is-noticed",
            "client.session-begins-with-hello",
        ],
    ),
    ("acks-failures", &["client.throwing-handler-is-nacked", "client.throwing-offer-handler-is-nacked"]),
    ("acks-early", &["client.handled-mail-is-acked"]),
    ("forgets-poison", &["client.poison-is-said"]),
    ("drops-delays", &["client.later-is-said"]),
    ("ignores-timeouts", &["client.endless-handler-is-given-up"]),
    ("signs-with-another-key", &["client.envelope-is-signed"]),
    ("reuses-ids", &["client.message-ids-are-new"]),
    ("counts-unsent", &["client.receipt-is-awaited"]),
    ("believes-receipts", &["client.forged-receipt-is-refused", "client.receipt-of-another-message-is-refused"]),
    ("makes-new-envelopes", &["client.unanswered-is-sent-again"]),
    ("ignores-retry-delays", &["client.unavailable-is-tried-again"]),
    (
        "untyped-errors",
        &[
            "client.wrong-key-is-refused",
            "client.refusal-has-its-reason",
            "client.clock-off-is-a-typed-error",
            "client.overload-says-when",
        ],
    ),
    ("ignores-redriving", &["client.handoff-id-is-the-deliverys"]),
    ("stops-at-once", &["client.stop-waits-for-handlers", "client.stop-gives-back-what-is-not-done"]),
    ("ends-in-silence", &["client.refused-for-good-ends"]),
    ("gives-no-credit", &["client.credit-is-as-asked"]),
    ("forgets-provider", &["client.sender-restart-sends-context"]),
    ("poisons-accepts", &["client.sender-restart-accept-is-not-poison"]),
    ("acks-accepts-early", &["client.sender-restart-sends-context"]),
    ("cannot-resume", &["client.sender-restart-resumes"]),
    ("poisons-contexts", &["client.receiver-restart-takes-context", "client.receiver-restart-after-complete"]),
    ("fails-repeats", &["client.receiver-restart-after-accept"]),
    ("lists-one-page", &["client.owned-tasks-are-listed"]),
    (
        "ends-loans-early",
        &[
            "client.task-is-delegated",
            "client.loan-timeout-ends-the-delegation",
            "client.delegation-ends-at-its-limit",
            "client.cancelled-delegation-is-recalled",
            "client.result-of-another-process-is-found",
        ],
    ),
    ("leaves-handoffs", &["client.handoff-is-cancelled-at-its-limit"]),
    ("keeps-recalled-tasks", &["client.recalled-task-is-dropped"]),
    ("sends-too-large", &["client.too-large-is-refused-locally"]),
    ("misses-offers", &["client.offer-is-awarded", "client.offer-is-countered"]),
    ("misses-ends", &["client.close-is-told", "client.end-of-a-bid-is-told"]),
    (
        "leaves-requests",
        &["client.request-gets-an-offer", "client.request-is-declined", "client.counter-offer-gets-an-offer"],
    ),
    ("swallows-failures", &["client.failing-work-ends-the-task", "client.impossible-result-is-refused-locally"]),
    (
        "waits-for-mail-alone",
        &[
            "client.acceptance-of-another-process-is-found",
            "client.rejection-of-another-process-is-found",
            "client.completion-of-another-process-is-found",
        ],
    ),
    ("never-resumes", &["client.tasks-are-resumed"]),
    ("forgets-rounds", &["client.counter-offer-gets-an-offer", "client.offer-is-withdrawn"]),
];

/// The path of the Rust client's harness. Builds it unless `cargo test` has built all targets, or `BATON_PROGRAMS_BUILT` is in
/// the environment: Cargo would wait for a build that goes on beside the tests.
fn harness() -> &'static Path {
    static HARNESS: OnceLock<PathBuf> = OnceLock::new();
    HARNESS.get_or_init(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_baton-conformance")).parent().unwrap();
        if std::env::var_os("BATON_PROGRAMS_BUILT").is_some() {
            return folder.join("examples/harness");
        }
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--locked", "--example", "harness"]);
        if folder.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).status().unwrap().success());
        folder.join("examples/harness")
    })
}

async fn run(arguments: &str, cases: Vec<&'static Case>, patience: Duration) -> Report {
    let command = format!("{}{arguments}", harness().display());
    client::run(&command, cases, AT_A_TIME, patience, |_| {}).await.unwrap()
}

fn cases(names: &[&str]) -> Vec<&'static Case> {
    let patterns: Vec<String> = names.iter().map(ToString::to_string).collect();
    report::select(client::cases(), &patterns, |case| case.name).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_client_passes() {
    let report = run("", client::cases(), PATIENCE).await;
    assert_eq!((report.failed, report.skipped), (0, 0), "{}", report.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_is_seen_by_the_cases_that_name_it() {
    let turns = Arc::new(Semaphore::new(FAULTS_AT_A_TIME));
    let mut running = JoinSet::new();
    for (fault, names) in FAULTS {
        let turns = Arc::clone(&turns);
        running.spawn(async move {
            let _turn = turns.acquire().await;
            (fault, run(&format!(" --wrong {fault}"), cases(names), PATIENCE_WITH_FAULTS).await)
        });
    }
    while let Some(ran) = running.join_next().await {
        let (fault, report) = ran.unwrap();
        for case in &report.cases {
            let is_seen = matches!(case.outcome, Outcome::Failed(_));
            assert!(is_seen, "{fault} is not seen by {}:\n{}", case.rule.name, report.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_misses_a_command_fails_in_time() {
    let faults = [
        ("grep --line-buffered -v '\"connect\"'", "client.credit-is-as-asked", "a session"),
        ("grep --line-buffered -v '\"close\"'", "client.stop-ends-the-program", "it is open after"),
        (
            "sed -u 's/\"stop_grace_ms\":3000/\"stop_grace_ms\":0/'",
            "client.stop-gives-back-what-is-not-done",
            "2900 ms",
        ),
    ];
    for (filter, case, seen) in faults {
        let command = format!("{filter} | {}", harness().display());
        let report = client::run(&command, cases(&[case]), 1, PATIENCE_WITH_FAULTS, |_| {}).await.unwrap();
        assert_eq!(report.failed, 1, "{}", report.text());
        assert!(report.text().contains(seen), "{}", report.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_says_nothing_fails_each_case() {
    let report = client::run("true", cases(&["client.envelope-is-signed"]), 1, PATIENCE, |_| {}).await.unwrap();
    assert_eq!(report.failed, 1, "{}", report.text());
    assert!(report.text().contains("the event hello"), "{}", report.text());
}

#[test]
fn the_document_lists_all_cases_with_their_rules() {
    let document = include_str!("../docs/conformance-client.md");
    let listed: Vec<&str> = document.lines().filter(|line| line.starts_with("| `client.")).collect();
    let row = |case: &&Case| {
        let rule = case.rule();
        format!("| `{}` | {} | {} |", rule.name, rule.spec.join(", "), rule.rule)
    };
    let expected: Vec<String> = client::cases().iter().map(row).collect();
    assert_eq!(listed, expected);
}

#[test]
fn names_are_given_once() {
    let mut names: Vec<&str> = client::cases().iter().map(|case| case.name).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}
