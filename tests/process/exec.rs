//! `baton agent exec`: a command as an agent.

use std::{
    fs,
    io::BufRead as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use baton::proto::v1::{self, TaskStatus, context_section::Content};
use baton_client::{Agent, Delegation, HandOverError, Offer, Progress, RecallReason, Returned, json_section};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::broker::{Broker, PATIENCE, a_request, baton, eventually, exit_of, identity, new_task};

/// A process of `baton agent exec` with a shell script. Dropping it kills the process alone.
struct Exec {
    child: Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Exec {
    fn start(broker: &Broker, options: &[&str], script: &str) -> Self {
        let mut command = command(broker, options);
        command.args(["--", "/bin/sh", "-c", script]).current_dir(broker.folder.path());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let mut exec = Self { child, lines };
        exec.says("connected");
        exec
    }

    /// Skips the output before this event.
    #[track_caller]
    fn says(&mut self, event: &str) -> Value {
        loop {
            let line = self.lines.next().unwrap_or_else(|| panic!("it ended before it said {event}")).unwrap();
            let said: Value = serde_json::from_str(&line).unwrap();
            if said["event"] == event {
                return said["facts"].clone();
            }
        }
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn command(broker: &Broker, options: &[&str]) -> Command {
    let key = broker.folder.path().join("rev.pem");
    if !key.exists() {
        identity("rev").key.write(&key).unwrap();
    }
    let mut command = baton();
    command.args(["agent", "exec", "--id", "rev", "--type", "reviewer", "--server", &broker.address, "--key"]);
    command.arg(key).arg("--ca").arg(broker.ca()).args(options);
    command
}

async fn alice(broker: &Broker) -> Agent {
    Agent::builder("alice").server(&broker.address).ca(broker.ca()).key(identity("alice").key).connect().await.unwrap()
}

fn lend(alice: &Agent, task: &str) -> Delegation {
    let request = v1::HandoffRequest { initial_context_summary: "review it".into(), ..a_request() };
    alice.delegate("type:reviewer", task, &request, [json_section("goals", json!({"find": ["bugs"]}))])
}

async fn within<T>(waited: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, waited.into_future()).await.expect("it takes too long")
}

async fn returned(alice: &Agent) -> Returned {
    within(lend(alice, &new_task())).await.unwrap()
}

/// Whether a process with this id runs.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie has ended.
    !stat.is_empty() && !stat.contains(") Z ")
}

/// The ids that a script writes into this file, once it has so many.
async fn pids(file: PathBuf, count: usize) -> Vec<String> {
    let read = || fs::read_to_string(&file).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    eventually("the command runs", async || read().len() >= count).await;
    read()
}

fn file(broker: &Broker, name: &str) -> PathBuf {
    Path::new(broker.folder.path()).join(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_reads_its_task_and_prints_its_result() {
    let broker = Broker::start();
    let alice = alice(&broker).await;
    let exec = Exec::start(&broker, &[], "cat");
    let task = new_task();
    let done = within(lend(&alice, &task)).await.unwrap();
    let result = done.result.unwrap();
    assert_eq!(done.status, TaskStatus::Completed);
    let handoff = alice.get_task(&task).await.unwrap().hops[0].handoff_id.clone();
    let expected = json!({
        "task_id": task, "handoff_id": handoff, "from": "alice", "task_type": "support", "summary": "review it",
        "resumed": false, "context": {"goals": {"find": ["bugs"]}},
    });
    assert_eq!(result, expected);
    drop(exec);

    let text = Exec::start(&broker, &["--text"], "cat; echo $BATON_TASK_ID");
    let task = new_task();
    let done = within(lend(&alice, &task)).await.unwrap();
    let response = format!("review it\n\n## goals\n\n{{\"find\":[\"bugs\"]}}\n{task}");
    assert_eq!(done.result.unwrap(), json!({ "response": response }));
    drop(text);

    // A command that does not read its input, and one that prints nothing.
    let silent = Exec::start(&broker, &[], "exec <&-; true");
    let done = returned(&alice).await;
    assert_eq!((done.status, done.result), (TaskStatus::Completed, None));
    drop(silent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_fails_fails_its_task_with_its_words() {
    let broker = Broker::start();
    let alice = alice(&broker).await;
    let mut exec = Exec::start(&broker, &[], "echo partly; echo no paper >&2; exit 3");
    let failed = returned(&alice).await;
    assert_eq!((failed.status, failed.result), (TaskStatus::Failed, None));
    assert_eq!(failed.details, "the command ended with exit code 3: no paper");
    assert!(exec.says("failed")["problem"].as_str().unwrap().contains("no paper"));
    drop(exec);

    let killed = Exec::start(&broker, &[], "kill -KILL $$");
    assert_eq!(returned(&alice).await.details, "the command was ended by signal 9");
    drop(killed);

    // It ends at the limit, and does not fill the memory. What it has started ends with it.
    let large = Exec::start(&broker, &[], "sleep 1000 & echo $! > pids; yes");
    let failed = returned(&alice).await;
    assert_eq!(failed.status, TaskStatus::Failed);
    assert!(failed.details.contains("more than 262144 bytes"), "{}", failed.details);
    let [left] = &pids(file(&broker, "pids"), 1).await[..] else { panic!() };
    eventually("no orphan is left", async || !is_running(left)).await;
    drop(large);

    // The broker refuses this result, and the task says so.
    let wrong = Exec::start(&broker, &[], r#"echo '{"a": 1, "a": 2}'"#);
    let failed = returned(&alice).await;
    assert_eq!(failed.status, TaskStatus::Failed);
    assert!(failed.details.contains("FIELD_INVALID"), "{}", failed.details);
    drop(wrong);
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_code_75_gives_the_task_back() {
    let broker = Broker::start();
    let alice = alice(&broker).await;
    let mut exec = Exec::start(&broker, &[], "echo no quota today >&2; exit 75");
    let task = new_task();
    let back = within(lend(&alice, &task)).await.unwrap();
    assert_eq!((back.status, back.result), (TaskStatus::Canceled, None));
    assert_eq!(back.details, "the command ended with exit code 75: no quota today");
    let told = exec.says("handed_back");
    assert_eq!((told["task"].as_str(), told["to"].as_str()), (Some(task.as_str()), Some("alice")));
    let record = alice.get_task(&task).await.unwrap();
    assert_eq!(record.owner_id, "alice");
    assert!(!matches!(record.status(), TaskStatus::Canceled | TaskStatus::Failed), "it is open for another try");

    // A task that was given for good goes back by a handoff, with its context.
    let (heard, mut offers) = mpsc::unbounded_channel();
    let carol = Agent::builder("carol").server(&broker.address).ca(broker.ca()).key(identity("carol").key);
    let carol = carol.on_handoff(move |offer: Offer| {
        let heard = heard.clone();
        async move {
            let reason = offer.request().map(|request| request.reason_text.clone());
            let takeover = offer.accept().await?;
            // It may come as a delta to what carol has sent.
            let Some(Content::Json(goals)) = takeover.section("goals").await? else { panic!("there are no goals") };
            let goals: Value = serde_json::from_str(&goals).unwrap();
            takeover.complete().await?;
            drop(heard.send((reason.unwrap_or_default(), goals)));
            Ok(())
        }
    });
    let carol = carol.connect().await.unwrap();
    let task = new_task();
    let request = v1::HandoffRequest { initial_context_summary: "review it".into(), ..a_request() };
    let goals = json_section("goals", json!({"find": ["bugs"]}));
    within(carol.hand_over("type:reviewer", &task, &request, [goals])).await.unwrap();
    let (reason, goals) = within(offers.recv()).await.unwrap();
    assert_eq!(reason, "the command ended with exit code 75: no quota today");
    assert_eq!(goals, json!({"find": ["bugs"]}));
    exec.says("handed_back");
    let record = carol.get_task(&task).await.unwrap();
    assert_eq!(record.owner_id, "carol");
    assert!(!matches!(record.status(), TaskStatus::Completed | TaskStatus::Canceled | TaskStatus::Failed));
    carol.stop().await.unwrap();

    // A former owner that takes nothing: the task fails with both reasons.
    let dave = Agent::builder("dave").server(&broker.address).ca(broker.ca()).key(identity("dave").key);
    let dave = dave.on_handoff(|offer: Offer| async move {
        offer.reject(v1::RejectReason::NoSkill, "not me").await?;
        Ok(())
    });
    let dave = dave.connect().await.unwrap();
    let task = new_task();
    within(dave.hand_over("type:reviewer", &task, &request, [])).await.unwrap();
    let problem = exec.says("failed")["problem"].as_str().unwrap().to_owned();
    assert!(problem.contains("no quota today; dave does not take it back"), "{problem}");
    assert_eq!(dave.get_task(&task).await.unwrap().status(), TaskStatus::Failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_on_standard_error_are_progress_and_not_too_many() {
    let broker = Broker::start();
    let alice = alice(&broker).await;
    let script = "echo begun >&2; while [ ! -e go ]; do :; done; i=0; while [ $i -lt 500 ]; do echo line $i >&2; i=$((i+1)); done";
    let _exec = Exec::start(&broker, &[], script);
    let (heard, mut progress) = mpsc::unbounded_channel::<Progress>();
    let lent = lend(&alice, &new_task()).on_progress(move |told| drop(heard.send(told)));
    let lent = tokio::spawn(lent.into_future());
    let mut details = Vec::new();
    while !details.contains(&"begun".to_owned()) {
        let told = within(progress.recv()).await.unwrap();
        assert_eq!(told.status, TaskStatus::InProgress);
        details.push(told.details);
    }
    fs::write(file(&broker, "go"), "").unwrap();
    assert_eq!(within(lent).await.unwrap().unwrap().status, TaskStatus::Completed);
    while let Ok(told) = progress.try_recv() {
        details.push(told.details);
    }
    assert!(details.len() <= 14, "10 a minute: {details:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recall_ends_the_command_and_what_it_has_started() {
    let broker = Broker::start();
    let alice = alice(&broker).await;
    // It ignores SIGTERM, and so does its child.
    let script = "trap '' TERM; sleep 1000 & echo $$ > pids.new; echo $! >> pids.new; mv pids.new pids; wait";
    let mut exec = Exec::start(&broker, &["--grace", "200ms"], script);
    let task = new_task();
    let lent = tokio::spawn(lend(&alice, &task).into_future());
    let running = pids(file(&broker, "pids"), 2).await;
    assert!(running.iter().all(|pid| is_running(pid)));
    let handoff = alice.get_task(&task).await.unwrap().hops[0].handoff_id.clone();
    alice.recall(&handoff, "no longer needed").await.unwrap();
    let recalled = within(lent).await.unwrap();
    assert!(matches!(recalled, Err(HandOverError::Recalled { reason: RecallReason::Recall, .. })), "{recalled:?}");
    assert_eq!(exec.says("recalled")["task"], task.as_str());
    eventually("the whole group has ended", async || !running.iter().any(|pid| is_running(pid))).await;
    // The place is free again.
    fs::remove_file(file(&broker, "pids")).unwrap();
    let next = tokio::spawn(lend(&alice, &new_task()).into_future());
    pids(file(&broker, "pids"), 2).await;
    next.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_commands_run_at_a_time_and_further_tasks_wait() {
    let broker = Broker::start();
    let alice = alice(&broker).await;
    let script = "echo $$ >> pids; while [ ! -e go ]; do sleep 0.02; done; echo done";
    let _exec = Exec::start(&broker, &["--concurrency", "2"], script);
    let lent: Vec<_> = (0..5).map(|_| tokio::spawn(lend(&alice, &new_task()).into_future())).collect();
    let two = pids(file(&broker, "pids"), 2).await;
    assert_eq!(two.len(), 2, "the others wait");
    fs::write(file(&broker, "go"), "").unwrap();
    for one in lent {
        assert_eq!(within(one).await.unwrap().unwrap().result, Some(json!({"response": "done"})));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_stops_ends_its_commands_and_its_next_process_starts_them_again() {
    let broker = Broker::start();
    let alice = alice(&broker).await;
    let script =
        "read -r task; echo $$ >> pids; echo \"$task\" >> tasks; while [ ! -e go ]; do sleep 0.02; done; echo done";
    let mut exec = Exec::start(&broker, &[], script);
    let task = new_task();
    let lent = tokio::spawn(lend(&alice, &task).into_future());
    let [first] = &pids(file(&broker, "pids"), 1).await[..] else { panic!() };
    exec.signal("-INT");
    assert_eq!(exec.says("left")["task"], task.as_str());
    exec.says("stopped");
    assert_eq!(exec.child.wait().unwrap().code(), Some(0));
    assert!(!is_running(first));
    let left = alice.get_task(&task).await.unwrap();
    assert_eq!((left.owner_id.as_str(), left.status()), ("rev", TaskStatus::InProgress), "it is for the next process");

    // The next one is killed where it works: no command outlives it.
    let mut exec = Exec::start(&broker, &[], script);
    let second = pids(file(&broker, "pids"), 2).await.remove(1);
    exec.child.kill().unwrap();
    exec.child.wait().unwrap();
    eventually("the command of a killed agent has ended", async || !is_running(&second)).await;

    let exec = Exec::start(&broker, &[], script);
    pids(file(&broker, "pids"), 3).await;
    fs::write(file(&broker, "go"), "").unwrap();
    let done = within(lent).await.unwrap().unwrap();
    assert_eq!((done.status, done.result), (TaskStatus::Completed, Some(json!({"response": "done"}))));
    let read = fs::read_to_string(file(&broker, "tasks")).unwrap();
    let read: Vec<Value> = read.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let resumed: Vec<_> = read.iter().map(|task| task["resumed"].clone()).collect();
    assert_eq!(resumed, [false, true, true]);
    assert!(read.iter().all(|input| input["summary"] == "review it" && input["from"] == "alice"), "{read:?}");
    assert!(read.iter().all(|input| input["context"]["goals"]["find"] == json!(["bugs"])), "{read:?}");
    drop(exec);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_not_there_is_refused_before_the_agent_connects() {
    let broker = Broker::start();
    for program in ["/no/such/program", "no-such-program-of-any-folder"] {
        let (code, stderr) = exit_of(command(&broker, &[]).args(["--", program]));
        assert!(code == Some(3) && stderr.contains("there is no such program"), "{stderr}");
    }
    let (code, _) = exit_of(&mut command(&broker, &[]));
    assert_eq!(code, Some(2), "without a command");
    let (code, _) = exit_of(command(&broker, &["--concurrency", "0"]).args(["--", "cat"]));
    assert_eq!(code, Some(2));
}
