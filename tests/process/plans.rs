//! The report plan of the examples end to end: two calculations at once, kills of the broker in the middle, a failure and a retry. The
//! submitter uses the command line.

use std::path::PathBuf;

use baton::proto::v1::{self, MessageType, TaskStatus};
use baton_client::{About, SubtaskInputs, SubtaskResults, session::Agent};
use serde_json::{Value, json};

use crate::broker::{Broker, PATIENCE, exit_of, identity};

const ANALYSTS: [&str; 2] = ["guo", "hua"];

/// A plan of `examples/plans`, whose candidates and agents have an hour for each step: a machine may be busy.
pub(crate) fn example(name: &str) -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/plans/");
    let text = std::fs::read_to_string(format!("{path}{name}.json")).unwrap();
    let mut plan: Value = serde_json::from_str(&text).unwrap();
    plan["whole_timeout"] = "7200s".into();
    for subtask in plan["subtasks"].as_array_mut().unwrap() {
        subtask["timeout"] = "3600s".into();
        let hour = "3600s";
        subtask["handoff_timeouts"] = json!({"accept": hour, "context": hour, "complete": hour, "whole": hour});
    }
    plan["dependency_timeout"] = "7200s".into();
    plan
}

/// The submitter of a plan, who works with the command line.
pub(crate) struct Submitter {
    key: PathBuf,
    pub file: PathBuf,
    plan: String,
}

impl Submitter {
    /// Registers alice. The plan has the name of its file.
    pub(crate) fn new(broker: &Broker, name: &str, plan: &Value) -> Self {
        let folder = broker.folder.path();
        let (key, file) = (folder.join("alice.pem"), folder.join(format!("{name}.json")));
        if !key.exists() {
            identity("alice").key.write(&key).unwrap();
        }
        std::fs::write(&file, plan.to_string()).unwrap();
        broker.lines(&["agent", "register", "--id", "alice", "--key", key.to_str().unwrap()]);
        Self { key, file, plan: name.to_owned() }
    }

    pub(crate) fn with_identity<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        arguments.iter().copied().chain(["--id", "alice", "--key", self.key.to_str().unwrap()]).collect()
    }

    fn run(&self, broker: &Broker, arguments: &[&str]) -> Vec<Value> {
        broker.lines(&self.with_identity(arguments))
    }

    pub(crate) fn validate(&self, broker: &Broker) -> Vec<Value> {
        self.run(broker, &["plan", "validate", self.file.to_str().unwrap()])
    }

    pub(crate) fn submit(&self, broker: &Broker) -> Value {
        self.run(broker, &["plan", "submit", self.file.to_str().unwrap()]).remove(0)
    }

    /// The command about the plan. Returns its documents.
    pub(crate) fn ask(&self, broker: &Broker, command: &str) -> Vec<Value> {
        self.run(broker, &["plan", command, &self.plan])
    }

    /// The same, and its exit code with stderr.
    pub(crate) fn try_to(&self, broker: &Broker, command: &str) -> (Option<i32>, String) {
        exit_of(&mut broker.command(&self.with_identity(&["plan", command, &self.plan])))
    }

    pub(crate) fn show(&self, broker: &Broker) -> Value {
        self.ask(broker, "show").remove(0)
    }

    /// The states of the subtasks, and the causes of those without a result.
    pub(crate) fn states(&self, broker: &Broker) -> Vec<(String, String)> {
        let plan = self.show(broker);
        let text = |value: &Value| value.as_str().unwrap_or_default().trim_start_matches("SUBTASK_STATE_").to_owned();
        let of = |subtask: &Value| (text(&subtask["state"]), text(&subtask["cause"]));
        plan["subtasks"].as_array().unwrap().iter().map(of).collect()
    }

    /// The number of each subtask that has a result, or null.
    pub(crate) fn numbers(&self, broker: &Broker) -> Vec<(String, Value)> {
        let results = self.ask(broker, "results");
        let of = |result: &Value| (result["subtaskId"].as_str().unwrap().to_owned(), result["numericValue"].clone());
        results.iter().map(of).collect()
    }
}

async fn register(broker: &Broker) {
    drop(broker.agent_with("fei", "fetcher", 0).await);
    for name in ANALYSTS {
        drop(broker.agent_with(name, "analyst", 0).await);
    }
    drop(broker.agent_with("wen", "writer", 0).await);
}

/// A subtask that an agent has taken.
struct Work {
    agent: Agent,
    about: About,
    inputs: SubtaskInputs,
}

/// The agent takes the subtask that it is offered, and begins.
async fn take(broker: &Broker, name: &str) -> Work {
    let agent = broker.agent_session(name).await;
    loop {
        let delivered = tokio::time::timeout(PATIENCE, agent.take()).await.expect("its mail comes in time").unwrap();
        match delivered.kind() {
            MessageType::HandoffRequest => {
                let offer = delivered.subtask().expect("the offer of a subtask");
                assert_eq!(offer.plan_id, "report");
                agent.accept(&delivered).await.unwrap();
            }
            MessageType::TaskContextTransfer => {
                let inputs = delivered.subtask().expect("the context of a subtask");
                let receipt = agent.complete(&delivered).await.unwrap();
                return Work { agent, about: About::task(&receipt.task_id, receipt.epoch), inputs };
            }
            _ => {}
        }
    }
}

impl Work {
    async fn report(&self, agent: &Agent, status: TaskStatus, response: &str) {
        let result_json = json!({"response": response, "tools_used": ["sql"]}).to_string();
        let update = v1::TaskStatusUpdate { status: status.into(), result_json, ..Default::default() };
        agent.report(&self.about, &update).await.unwrap();
    }

    async fn complete(&self, response: &str) {
        self.report(&self.agent, TaskStatus::Completed, response).await;
    }
}

fn number(results: &SubtaskResults, id: &str) -> Option<f64> {
    results[id].numeric_value
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chinese_report_is_completed_once_over_kills_with_its_numbers() {
    let broker = Broker::start();
    register(&broker).await;
    let alice = Submitter::new(&broker, "report", &example("report"));
    assert_eq!(alice.validate(&broker), Vec::<Value>::new());
    alice.submit(&broker);
    let broker = Broker::start_in(broker.kill(), &[]);

    let fetch = take(&broker, "fei").await;
    assert_eq!((&*fetch.inputs.description, &*fetch.inputs.role, fetch.inputs.attempt), ("获取财务数据", "数据员", 1));
    assert_eq!(fetch.inputs.input, json!({"季度": 3}));
    fetch.complete("财务数据已获取").await;

    // Both calculations run at the moment of the kill.
    let (first, second) = tokio::join!(take(&broker, "guo"), take(&broker, "hua"));
    let states = alice.states(&broker).into_iter().map(|(state, _)| state).collect::<Vec<_>>();
    assert_eq!(states, ["COMPLETED", "RUNNING", "RUNNING", "PENDING"]);
    let broker = Broker::start_in(broker.kill(), &[]);
    for (name, work) in ANALYSTS.into_iter().zip([first, second]) {
        assert_eq!(work.inputs.consumed["财务数据"]["fetch"].response, "财务数据已获取");
        let response = match work.inputs.subtask_id.as_str() {
            "growth" => "第三季度增长率为１５.３％。",
            _ => "利润率：7.2%",
        };
        let agent = broker.agent_session(name).await;
        work.report(&agent, TaskStatus::Completed, response).await;
    }
    let broker = Broker::start_in(broker.kill(), &[]);

    let synthesis = take(&broker, "wen").await;
    for results in [&synthesis.inputs.previous_results, &synthesis.inputs.dependency_results] {
        assert_eq!((number(results, "growth"), number(results, "margin")), (Some(15.3), Some(7.2)));
    }
    assert_eq!(synthesis.inputs.previous_results["fetch"].tools_used, ["sql"]);
    synthesis.complete("报告已完成：增长率15.3%，利润率7.2%").await;

    // The watch ends with the plan, and shows each subtask to complete once.
    let entries = alice.ask(&broker, "watch");
    for id in ["fetch", "growth", "margin", "synthesis"] {
        let completed = |entry: &&Value| {
            let change = &entry["entry"]["subtask"];
            change["subtaskId"] == id && change["state"] == "SUBTASK_STATE_COMPLETED"
        };
        assert_eq!(entries.iter().filter(completed).count(), 1, "{id}: {entries:#?}");
    }
    let expected =
        [("fetch", Value::Null), ("growth", json!(15.3)), ("margin", json!(7.2)), ("synthesis", Value::Null)];
    assert_eq!(alice.numbers(&broker), expected.map(|(id, number)| (id.to_owned(), number)));
    let plan = alice.show(&broker);
    assert_eq!((&plan["state"], &plan["round"]), (&json!("PLAN_STATE_COMPLETED"), &json!(1)));
    let growth = plan["subtasks"][1]["taskId"].as_str().unwrap();
    let audit = broker.lines(&["task", "audit", growth]).remove(0);
    assert_eq!(audit["ownerId"], "baton.coordinator", "{audit}");
    // The same file again is the same plan.
    assert_eq!(alice.submit(&broker)["state"], "PLAN_STATE_COMPLETED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_calculation_skips_the_synthesis_and_a_retry_completes_it() {
    let broker = Broker::start();
    register(&broker).await;
    let alice = Submitter::new(&broker, "report", &example("report"));
    alice.submit(&broker);
    take(&broker, "fei").await.complete("财务数据已获取").await;
    let (first, second) = tokio::join!(take(&broker, "guo"), take(&broker, "hua"));
    let [growth, margin] = if first.inputs.subtask_id == "growth" { [first, second] } else { [second, first] };
    growth.complete("15.3%").await;
    margin.report(&margin.agent, TaskStatus::Failed, "缺少成本数据").await;
    drop((growth, margin));

    let (code, stderr) = alice.try_to(&broker, "watch");
    assert!(code == Some(1) && stderr.contains("FAILED"), "{code:?}: {stderr}");
    let states = alice.states(&broker);
    assert_eq!(states[2], ("FAILED".to_owned(), "缺少成本数据".to_owned()));
    assert_eq!(states[3], ("SKIPPED".to_owned(), "margin is FAILED: 缺少成本数据".to_owned()));
    let broker = Broker::start_in(broker.kill(), &[]);

    let retried = alice.ask(&broker, "retry").remove(0);
    assert_eq!((&retried["state"], &retried["round"]), (&json!("PLAN_STATE_RUNNING"), &json!(2)));
    let (code, stderr) = alice.try_to(&broker, "retry");
    assert!(code == Some(8) && stderr.contains("PLAN_RUNNING"), "{code:?}: {stderr}");
    let candidate = retried["subtasks"][2]["handoffId"].as_str().unwrap().to_owned();
    let candidate = broker.lines(&["handoff", "show", &candidate]).remove(0);
    let margin = take(&broker, candidate["candidateId"].as_str().unwrap()).await;
    let task = retried["subtasks"][2]["taskId"].as_str().unwrap();
    assert_eq!((&*margin.inputs.subtask_id, margin.about.task_id.as_str()), ("margin", task));
    assert!(task.starts_with("baton.") && task.ends_with("-2.margin"), "an id that no agent can take: {task}");
    margin.complete("7.2%").await;
    let synthesis = take(&broker, "wen").await;
    assert_eq!(number(&synthesis.inputs.previous_results, "growth"), Some(15.3), "what completed keeps its result");
    assert_eq!(number(&synthesis.inputs.previous_results, "margin"), Some(7.2));
    synthesis.complete("完成").await;
    alice.ask(&broker, "watch");
    let plan = alice.show(&broker);
    assert_eq!(plan["state"], "PLAN_STATE_COMPLETED");
}
