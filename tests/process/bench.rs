//! `baton bench`: its report is consistent with itself and with the broker, and ctrl-C ends it in order.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use baton::proto::v1::{self, HandoffState};
use serde_json::Value;

use crate::broker::{Broker, baton, eventually, exit_of};

fn bench(arguments: &[&str]) -> Command {
    let mut command = baton();
    command.arg("bench").args(arguments).args(["-o", "json"]);
    command
}

/// Runs the command, expects success, and parses its report.
fn report_of(mut command: Command) -> Value {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn number(report: &Value, path: &str) -> f64 {
    report.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {report:#}"))
}

/// Checks the properties that every report of handoffs has.
#[track_caller]
fn check_handoffs(report: &Value, in_flight_max: f64) {
    let handoffs = number(report, "/handoffs");
    assert!(handoffs > 0.0 && number(report, "/handoffs_whole_run") >= handoffs, "{report:#}");
    assert_eq!(number(report, "/failed"), 0.0);
    let rate = handoffs / number(report, "/duration_s");
    assert!((number(report, "/handoffs_per_second") - rate).abs() <= rate * 0.01 + 0.1, "{rate}: {report:#}");
    assert_eq!(number(report, "/latency/handoff/count"), handoffs);
    for (step, times) in [("request", 1.0), ("accept", 1.0), ("context", 1.0), ("complete", 1.0), ("receipt", 4.0)] {
        let count = number(report, &format!("/latency/{step}/count"));
        assert!((count - handoffs * times).abs() <= in_flight_max * times, "{step}: {report:#}");
    }
    for of in ["handoff", "request", "accept", "context", "complete", "receipt"] {
        let at = |quantile: &str| number(report, &format!("/latency/{of}/{quantile}_us"));
        let quantiles = [at("p50"), at("p90"), at("p99"), at("max")];
        assert!(quantiles[0] > 0.0 && quantiles.is_sorted(), "{of}: {quantiles:?}");
    }
    let [whole, request] = ["handoff", "request"].map(|of| number(report, &format!("/latency/{of}/p50_us")));
    assert!(whole > request, "a handoff takes longer than its request");
}

#[test]
fn wrong_flags_are_wrong_usage() {
    for (arguments, part) in [
        (&["handoff", "--pair", "2"][..], "--pairs"),
        (&["handof"], "handoff"),
        (&["handoff", "--pairs", "0"], "1..=4096"),
        (&["handoff", "--window", "4097"], "1..=4096"),
        (&["handoff", "--context-size", "3"], "4..=1000000"),
        (&["handoff", "--duration", "10 parsecs"], "10s, 500ms or 1m 30s"),
        (&["handoff", "--warm-up", "25h"], "24h"),
        (&["handoff", "--rate", "0"], "0.01"),
        (&["handoff", "--verify", "--unsigned"], "cannot be used with"),
        (&["handoff", "--broker-pid", "1"], "--server"),
        (&["idle", "--sessions", "0"], "1..=1000000"),
        (&["backlog", "--size", "65537"], "0..=65536"),
        (&["recover", "--server", "127.0.0.1:1"], "omit --server"),
        (&["plan", "--subtasks", "257"], "1..=256"),
    ] {
        let (code, stderr) = exit_of(&mut bench(arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr:?} lacks {part:?}");
    }
}

#[test]
fn a_broker_that_does_not_answer_is_said_so() {
    let (code, stderr) = exit_of(&mut bench(&["handoff", "--server", "127.0.0.1:1"]));
    assert_eq!(code, Some(9), "{stderr}");
}

#[test]
fn a_broker_of_its_own_is_measured_from_outside() {
    let work = ["handoff", "--pairs", "2", "--window", "4", "--duration", "3s", "--warm-up", "200ms"];
    let report = report_of(bench(&[&work[..], &["--verify"]].concat()));
    check_handoffs(&report, 8.0);
    assert_eq!((&report["signed"], &report["verified"]), (&true.into(), &true.into()));
    for what in ["broker_written_bytes", "broker_syncs"] {
        assert!(number(&report, &format!("/per_handoff/{what}")) > 0.0, "{what}: {report:#}");
    }
    // Linux counts CPU time in ticks of 10 ms, of which a short run may get none.
    for what in ["clients_cpu_us", "broker_cpu_us"] {
        assert!(number(&report, &format!("/per_handoff/{what}")) >= 0.0, "{what}: {report:#}");
    }
    // The upper bound is the cost without batching: a sync for each of four messages and four acks.
    assert!(number(&report, "/per_handoff/broker_syncs") <= 8.0, "{report:#}");
    assert!(number(&report, "/resident/broker_max_bytes") >= number(&report, "/resident/broker_bytes"));

    let report = report_of(bench(&[&work[..], &["--unsigned"]].concat()));
    check_handoffs(&report, 8.0);
    assert_eq!((&report["signed"], &report["verified"]), (&false.into(), &false.into()));
}

#[test]
fn a_rate_is_kept_and_not_exceeded() {
    let report =
        report_of(bench(&["handoff", "--pairs", "2", "--rate", "20", "--duration", "2s", "--warm-up", "100ms"]));
    check_handoffs(&report, 64.0);
    // At full speed the number would be far higher. The extra seconds cover handoffs that were late at the start.
    assert!(number(&report, "/handoffs") <= 20.0 * (number(&report, "/duration_s") + 5.0), "{report:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_broker_has_seen_every_handoff_that_is_counted() {
    let broker = Broker::start();
    let pid = broker.pid().to_string();
    let mut command = bench(&["handoff", "--pairs", "2", "--window", "4", "--duration", "3s", "--warm-up", "100ms"]);
    command.args(["--server", &broker.address, "--broker-pid", &pid, "--ca"]).arg(broker.ca());
    let report = report_of(command);
    check_handoffs(&report, 8.0);
    assert!(number(&report, "/per_handoff/broker_cpu_us") >= 0.0);
    assert_eq!(report["per_handoff"]["broker_syncs"], Value::Null, "a broker that runs elsewhere does not tell them");
    let whole_run = number(&report, "/handoffs_whole_run");
    assert_eq!(handoffs(&broker, &[HandoffState::Completed]).await as f64, whole_run);
    assert_eq!(handoffs(&broker, &[]).await as f64, whole_run, "none is left open");
    assert_eq!(open_tasks(&broker).await, 0, "the broker is left as it was");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_ends_it_with_what_it_has_and_leaves_no_handoff_open() {
    let broker = Broker::start();
    let mut command = bench(&["handoff", "--pairs", "2", "--window", "4", "--duration", "1h", "--warm-up", "0s"]);
    command.args(["--server", &broker.address, "--ca"]).arg(broker.ca());
    let running = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    // The first eight may begin before it measures. Some of the later ones begin and end while it does.
    let have_completed = async || handoffs(&broker, &[HandoffState::Completed]).await >= 40;
    eventually("forty handoffs are completed", have_completed).await;
    interrupt(&running);
    let output = running.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["interrupted"], true);
    check_handoffs(&report, 8.0);
    let completed = handoffs(&broker, &[HandoffState::Completed]).await;
    assert_eq!(handoffs(&broker, &[]).await, completed, "none is left open");
    assert_eq!(open_tasks(&broker).await, 0, "nor is a task");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_takes_a_broker_of_its_own_and_its_folder_along() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = bench(&["handoff", "--duration", "1h"]);
    let running = command.env("TMPDIR", folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let is_up = async || fs::read_dir(folder.path()).unwrap().flatten().any(|entry| is_served(&entry.path()));
    eventually("its broker is up", is_up).await;
    interrupt(&running);
    running.wait_with_output().unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the folder is gone");
}

/// Whether a broker has written its address into this folder.
fn is_served(folder: &Path) -> bool {
    folder.join("data/address").exists()
}

#[test]
fn idle_sessions_stay_open_and_have_a_price() {
    let report = report_of(bench(&[
        "idle",
        "--sessions",
        "20",
        "--sessions-per-connection",
        "3",
        "--duration",
        "300ms",
        "--working-on",
        "10",
    ]));
    let of = |name: &str| number(&report, name);
    assert_eq!((of("/sessions"), of("/connections"), of("/working_on")), (20.0, 7.0, 10.0));
    assert_eq!(number(&report, "/lost"), 0.0);
    let [before, after, each] = ["broker_resident_before_bytes", "broker_resident_bytes", "broker_bytes_per_session"]
        .map(|name| number(&report, &format!("/{name}")));
    assert!((after - before - each * 20.0).abs() <= 20.0, "{report:#}");
}

#[test]
fn a_backlog_is_taken_by_those_who_come_back() {
    let report = report_of(bench(&["backlog", "--agents", "5", "--messages", "70", "--senders", "2"]));
    assert_eq!(number(&report, "/messages"), 350.0);
    assert_eq!((number(&report, "/first_message/count"), number(&report, "/all_messages/count")), (5.0, 5.0));
    assert!(number(&report, "/first_message/p50_us") <= number(&report, "/all_messages/p50_us"));
    for what in ["/per_stored/broker_syncs", "/per_taken/broker_syncs"] {
        assert!((f64::MIN_POSITIVE..=1.0).contains(&number(&report, what)), "{what}: {report:#}");
    }
    assert_eq!(number(&report, "/redelivered"), 0.0);
}

#[test]
fn plans_are_measured_beside_as_many_plain_handoffs() {
    let report = report_of(bench(&["plan", "--plans", "2", "--subtasks", "5", "--width", "2", "--agents", "2"]));
    assert_eq!((number(&report, "/plans"), number(&report, "/handoffs")), (2.0, 10.0));
    let [plain, planned] = ["plain", "planned"].map(|part| number(&report, &format!("/{part}/duration_s")));
    assert!(plain > 0.0 && planned > 0.0, "{report:#}");
    let ratio = number(&report, "/time_ratio");
    assert!((ratio - planned / plain).abs() <= ratio * 0.05 + 0.05, "{report:#}");
}

#[test]
fn open_handoffs_go_on_after_a_kill() {
    let report = report_of(bench(&["recover", "--handoffs", "50", "--resume", "20"]));
    assert_eq!((number(&report, "/handoffs"), number(&report, "/resumed")), (50.0, 20.0));
    assert_eq!(number(&report, "/redelivered"), 0.0, "all acks were taken before the kill");
    let times = ["ready_s", "connected_s", "first_completed_s", "last_completed_s"];
    let times = times.map(|name| number(&report, &format!("/{name}")));
    assert!(times[0] > 0.0 && times.is_sorted(), "{times:?}");
}

fn interrupt(process: &Child) {
    assert!(Command::new("kill").args(["-INT", &process.id().to_string()]).status().unwrap().success());
}

/// The number of tasks at the broker that have not ended, at most a page of them.
async fn open_tasks(broker: &Broker) -> usize {
    let client = broker.client().await;
    let open = [v1::TaskStatus::Created, v1::TaskStatus::InProgress, v1::TaskStatus::WaitingForInput];
    let statuses = open.map(i32::from).to_vec();
    let request = v1::ListTasksRequest { page_size: 1000, statuses, ..Default::default() };
    client.answer(client.tasks().list_tasks(request).await).unwrap().tasks.len()
}

/// The number of handoffs in these states at the broker.
async fn handoffs(broker: &Broker, states: &[HandoffState]) -> usize {
    let client = broker.client().await;
    let (mut many, mut page_token) = (0, String::new());
    loop {
        let states = states.iter().map(|state| (*state).into()).collect();
        let request = v1::ListHandoffsRequest { page_size: 1000, page_token, states, ..Default::default() };
        let page = client.answer(client.handoffs().list_handoffs(request).await).unwrap();
        many += page.handoffs.len();
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return many;
        }
    }
}
