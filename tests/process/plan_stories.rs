//! The plans of `examples/plans`, with agents of the Rust client and a person at the command line.

use std::{collections::BTreeMap, sync::Arc};

use baton::proto::v1::{self, MessageType, TaskStatus};
use baton_client::{Delivered, Handler, Link, NotTaken, SubtaskInputs};
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    broker::{Broker, card, eventually, write},
    inbox::Person,
    plans::{Submitter, example},
};

/// What an agent answers to a subtask: a text, or the JSON of the whole result. `Err`: its work has failed, for this reason.
type Answer = Result<String, String>;

/// An agent that takes each subtask and answers it at once.
struct Player {
    name: &'static str,
    answer: fn(&str, &SubtaskInputs) -> Answer,
}

impl Handler for Player {
    async fn handle(&self, link: Link, delivered: Delivered) -> Result<(), NotTaken> {
        match delivered.kind() {
            MessageType::HandoffRequest => {
                let offer = delivered.subtask().ok_or_else(|| NotTaken::Poison("no subtask".to_owned()))?;
                assert!(offer.previous_results.is_empty(), "the context brings them");
                link.accept(&delivered, &v1::HandoffAccept::default()).await?;
            }
            MessageType::TaskContextTransfer => {
                let task = link.complete(&delivered).await?;
                let inputs = link.subtask(&delivered).await?.expect("the context of a subtask");
                let (status, response) = match (self.answer)(self.name, &inputs) {
                    Ok(response) => (TaskStatus::Completed, response),
                    Err(reason) => (TaskStatus::Failed, reason),
                };
                let whole = serde_json::from_str(&response).ok().filter(Value::is_object);
                let result_json = whole.unwrap_or_else(|| json!({"response": response})).to_string();
                task.report(&v1::TaskStatusUpdate { status: status.into(), result_json, ..Default::default() }).await?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// An agent that serves until it is dropped.
type Serving = AbortOnDropHandle<()>;

/// Registers an agent with a type and skills, and lets it play.
async fn play(
    broker: &Broker,
    name: &'static str,
    agent_type: &str,
    skills: &[&str],
    answer: fn(&str, &SubtaskInputs) -> Answer,
) -> Serving {
    let operator = broker.operator().await;
    let skills =
        skills.iter().map(|skill| v1::AgentSkill { name: (*skill).to_owned(), ..Default::default() }).collect();
    let card = v1::AgentCard { skills, ..card(name, agent_type) };
    let request = v1::RegisterAgentRequest { card: Some(card), ..Default::default() };
    operator.answer(operator.agents().register_agent(request).await).unwrap();
    let link = broker.link(name).await;
    let player = Player { name, answer };
    AbortOnDropHandle::new(tokio::spawn(async move {
        link.serve(player, CancellationToken::new()).await.unwrap();
    }))
}

/// The response of a subtask, for the answers of later ones.
fn response<'a>(inputs: &'a SubtaskInputs, id: &str) -> &'a str {
    &inputs.previous_results[id].response
}

fn number(inputs: &SubtaskInputs, id: &str) -> f64 {
    inputs.previous_results[id].numeric_value.expect("the result has a number")
}

/// Waits for the end of a plan, which completes. Returns its responses by subtask.
#[track_caller]
fn completes(alice: &Submitter, broker: &Broker) -> BTreeMap<String, String> {
    let (code, stderr) = alice.try_to(broker, "watch");
    assert_eq!(code, Some(0), "{stderr}");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |result: &Value| (text(&result["subtaskId"]), text(&result["response"]));
    alice.ask(broker, "results").iter().map(of).collect()
}

fn chatbot(_: &str, inputs: &SubtaskInputs) -> Answer {
    Ok(match inputs.subtask_id.as_str() {
        "understand" => format!("a refund for order {}", inputs.plan_input["order"]),
        _ => format!("Dear customer, {}", response(inputs, "decide")),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn customer_service_leaves_the_decision_to_a_person() {
    let broker = Broker::start();
    let _bot = play(&broker, "bot", "chatbot", &[], chatbot).await;
    drop(broker.agent_with("carol", "human", 0).await);
    let carol = Person::new(&broker, "carol");
    let alice = Submitter::new(&broker, "customer-service", &example("customer-service"));
    alice.submit(&broker);
    let waits = async |part: &str| !carol.inbox()[part].as_array().unwrap().is_empty();
    eventually("the person is asked", async || waits("offers").await).await;
    let inbox = carol.inbox();
    assert_eq!(inbox["offers"][0]["initialContextSummary"], "Grant or refuse the refund");
    let task = inbox["offers"][0]["taskId"].as_str().unwrap();
    carol.run(&["handoff", "accept", task]);
    eventually("the context is there", async || waits("contexts").await).await;
    let (_, shown) = carol.run(&["handoff", "complete", task, "--yes"]);
    assert!(shown.contains("a refund for order 7"), "the person sees the earlier result: {shown}");
    let result = r#"{"response": "your 90 EUR are on their way", "success": true}"#;
    carol.run(&["task", "status", task, "completed", "--result-json", result]);
    let results = completes(&alice, &broker);
    assert_eq!(results["reply"], "Dear customer, your 90 EUR are on their way");
}

fn supplier(_: &str, inputs: &SubtaskInputs) -> Answer {
    Ok(match inputs.subtask_id.as_str() {
        "purchase" => format!("{} boxes ordered", inputs.plan_input["quantity"]),
        "logistics" if inputs.attempt == 1 => return Err("the lorry has broken down".to_owned()),
        "logistics" => format!("{} boxes are in the warehouse", number(inputs, "purchase")),
        _ => format!("{} good boxes", (number(inputs, "logistics") * 0.98).round()),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supply_chain_goes_on_with_a_second_carrier() {
    let broker = Broker::start();
    let mut agents = Vec::new();
    for (name, agent_type, skill) in [
        ("paul", "purchaser", "buying"),
        ("lena", "", "transport.road.lorry"),
        ("luis", "", "transport.road.van"),
        ("ina", "inspector", "measuring"),
    ] {
        agents.push(play(&broker, name, agent_type, &[skill], supplier).await);
    }
    let alice = Submitter::new(&broker, "supply-chain", &example("supply-chain"));
    alice.submit(&broker);
    let results = completes(&alice, &broker);
    assert_eq!(results["logistics"], "500 boxes are in the warehouse");
    let numbers = [("purchase", 500.0), ("logistics", 500.0), ("inspection", 490.0)];
    assert_eq!(alice.numbers(&broker), numbers.map(|(id, number)| (id.to_owned(), json!(number))));
    assert_eq!(alice.show(&broker)["subtasks"][1]["attempts"], 2);
}

fn desk(_: &str, inputs: &SubtaskInputs) -> Answer {
    Ok(match inputs.subtask_id.as_str() {
        "check" => "the score is 0.7".to_owned(),
        "report" => inputs.dependency_results.keys().cloned().collect::<Vec<_>>().join(" and "),
        id => format!("{id} is done"),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_article_takes_one_of_two_branches() {
    let broker = Broker::start();
    let _desk = play(&broker, "desk-1", "desk", &[], desk).await;
    let alice = Submitter::new(&broker, "branches", &example("branches"));
    alice.submit(&broker);
    let results = completes(&alice, &broker);
    assert_eq!(results.keys().collect::<Vec<_>>(), ["check", "publish", "report"]);
    assert_eq!(results["report"], "publish");
    let states = alice.states(&broker);
    assert!(states[1].0 == "SKIPPED" && states[1].1.contains("/numeric_value of check less 0.5"), "{states:?}");
    assert_eq!(states[2].0, "SKIPPED");
}

fn survey(_: &str, inputs: &SubtaskInputs) -> Answer {
    Ok(match (inputs.subtask_id.as_str(), &inputs.element) {
        ("find", _) => json!({"companies": ["Acme", "Bolt", "Coil"]}).to_string(),
        ("look", Some(element)) if element.index == 1 && inputs.attempt == 1 => {
            return Err(format!("{} does not answer", element.value));
        }
        ("look", Some(element)) => format!("{} of {}: {}", element.index + 1, element.count, element.value),
        _ => {
            let results: Value = serde_json::from_str(&inputs.previous_results["look"].result_json).unwrap();
            let results = results["results"].as_array().unwrap().iter();
            results.map(|one| one["response"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join("; ")
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_survey_looks_at_each_company_and_reports_them_in_their_order() {
    let broker = Broker::start();
    let mut agents = Vec::new();
    for (name, agent_type) in
        [("scout-1", "scout"), ("analyst-1", "analyst"), ("analyst-2", "analyst"), ("pen", "writer")]
    {
        agents.push(play(&broker, name, agent_type, &[], survey).await);
    }
    let alice = Submitter::new(&broker, "survey", &example("survey"));
    assert!(alice.validate(&broker).iter().all(|problem| problem["severity"] != "PROBLEM_SEVERITY_ERROR"));
    alice.submit(&broker);
    let results = completes(&alice, &broker);
    assert_eq!(results["report"], r#"1 of 3: "Acme"; 2 of 3: "Bolt"; 3 of 3: "Coil""#);
}

fn factory(name: &str, inputs: &SubtaskInputs) -> Answer {
    let made = |id: &str| inputs.consumed["parts"][id].numeric_value.expect("a machine states its parts");
    Ok(match inputs.subtask_id.as_str() {
        "planning" => "100".to_owned(),
        "mill" if inputs.attempt == 1 => return Err(format!("{name} has a worn cutter")),
        "lathe" | "mill" => format!("{} parts", inputs.consumed["production_plan"]["planning"].numeric_value.unwrap()),
        "photo" => return Err("no light".to_owned()),
        _ => format!("{} good parts", made("lathe") + made("mill") - 3.0),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_factory_replaces_a_machine_and_goes_on_without_the_photo() {
    let broker = Broker::start();
    let mut agents = Vec::new();
    for (name, agent_type) in [
        ("plan-office", "planner"),
        ("machine-1", "machine"),
        ("machine-2", "machine"),
        ("lens", "camera"),
        ("quality-desk", "inspector"),
    ] {
        agents.push(play(&broker, name, agent_type, &[], factory).await);
    }
    let alice = Submitter::new(&broker, "manufacturing", &example("manufacturing"));
    assert!(alice.validate(&broker).iter().all(|problem| problem["severity"] != "PROBLEM_SEVERITY_ERROR"));
    alice.submit(&broker);
    let results = completes(&alice, &broker);
    assert_eq!(results["quality"], "197 good parts");
    let states = alice.states(&broker);
    assert_eq!(states[3], ("FAILED".to_owned(), "no light".to_owned()));
    let mill = &alice.show(&broker)["subtasks"][2];
    assert_eq!(mill["attempts"], 2);
}

fn bank(_: &str, inputs: &SubtaskInputs) -> Answer {
    Ok(match inputs.subtask_id.as_str() {
        "check" => "the documents are complete".to_owned(),
        "review" => "the risk is 4.5 %".to_owned(),
        _ if number(inputs, "review") < 5.0 => format!("approved: {} EUR", inputs.plan_input["amount"]),
        _ => "declined".to_owned(),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_goes_to_a_manager_also_if_the_plan_names_another() {
    let policy = tempfile::tempdir().unwrap();
    let rule = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/plans/finance.cedar")).unwrap();
    write(&policy.path().join("baton.cedar"), baton::policy::DEFAULT);
    write(&policy.path().join("finance.cedar"), &rule);
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let broker = Broker::start_in(folder, &["--policy", policy.path().to_str().unwrap()]);
    let mut agents = Vec::new();
    for (name, agent_type) in [("cleo", "clerk"), ("rita", "reviewer"), ("mona", "manager")] {
        agents.push(play(&broker, name, agent_type, &[], bank).await);
    }

    let mut wrong = example("finance");
    wrong["subtasks"][2]["agent_type"] = "reviewer".into();
    let alice = Submitter::new(&broker, "by-a-reviewer", &wrong);
    alice.submit(&broker);
    let (code, _) = alice.try_to(&broker, "watch");
    assert_eq!(code, Some(1));
    let (state, cause) = alice.states(&broker).remove(2);
    assert!(state == "FAILED" && cause.contains("approvals-need-a-manager"), "{state}: {cause}");
    assert_eq!(alice.show(&broker)["subtasks"][2]["errorCode"], "ERROR_CODE_PERMISSION_DENIED");

    let alice = Submitter::new(&broker, "finance", &example("finance"));
    alice.submit(&broker);
    let results = completes(&alice, &broker);
    assert_eq!(results["approve"], "approved: 80000 EUR");
}

fn booker(_: &str, inputs: &SubtaskInputs) -> Answer {
    if inputs.is_compensation {
        let done = &inputs.dependency_results[&inputs.subtask_id].response;
        return Ok(format!("{done} is cancelled"));
    }
    match inputs.subtask_id.as_str() {
        "pay" => Err("the card is refused".to_owned()),
        id => Ok(format!("{id} 204")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trip_that_is_not_paid_is_cancelled_the_latest_booking_first() {
    let broker = Broker::start();
    let _airline = play(&broker, "fly", "airline", &[], booker).await;
    let _hotel = play(&broker, "hotel", "hotel", &[], booker).await;
    let _bank = play(&broker, "bank", "bank", &[], booker).await;
    let alice = Submitter::new(&broker, "trip", &example("trip"));
    alice.submit(&broker);
    let (code, stderr) = alice.try_to(&broker, "watch");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("FAILED"), "{stderr}");
    let plan = alice.show(&broker);
    assert_eq!(plan["reason"], "not completed: pay");
    let undone = ["seat", "room", "pay"].map(|id| {
        let subtasks = plan["subtasks"].as_array().unwrap();
        let found = subtasks.iter().find(|subtask| subtask["id"] == id).unwrap();
        found["compensation"]["state"].as_str().unwrap_or_default().to_owned()
    });
    assert_eq!(undone, ["SUBTASK_STATE_COMPLETED", "SUBTASK_STATE_COMPLETED", ""]);
    let watch = alice.with_identity(&["plan", "watch", "trip", "--after", "0", "--output", "jsonl"]);
    let output = broker.command(&watch).output().unwrap();
    let log: Vec<Value> =
        output.stdout.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let of = |update: &Value| {
        let change = &update["entry"]["compensation"];
        (change["state"] == "SUBTASK_STATE_COMPLETED").then(|| {
            [&change["subtaskId"], &change["result"]["response"]].map(|text| text.as_str().unwrap().to_owned())
        })
    };
    let undone: Vec<[String; 2]> = log.iter().filter_map(of).collect();
    assert_eq!(undone, [["room", "room 204 is cancelled"], ["seat", "seat 204 is cancelled"]]);
}
