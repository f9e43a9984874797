//! The Tasks extension, forms for the person, and the tools of runs.

use std::sync::{Arc, Mutex};

use baton::proto::v1;
use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        CallToolRequestParams, CallToolResponse, CancelTaskParams, ClientCapabilities, ClientConfig,
        ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationCapability, GetTaskParams, Implementation,
        ProtocolVersion, SubscriptionFilter, UpdateTaskParams,
    },
    service::{ClientLifecycleMode, ClientServiceExt as _, NotificationContext, RequestContext},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Host, server, text};
use crate::broker::{Broker, PATIENCE, eventually};

/// A host with tasks and forms. It enters `entered` into each form, and remembers the forms.
#[derive(Clone)]
struct Able {
    entered: Option<Value>,
    forms: Arc<Mutex<Vec<Value>>>,
    changes: mpsc::UnboundedSender<()>,
    has_tasks: bool,
}

fn able(entered: Option<Value>, has_tasks: bool) -> (Able, mpsc::UnboundedReceiver<()>) {
    let (changes, changed) = mpsc::unbounded_channel();
    (Able { entered, forms: Arc::default(), changes, has_tasks }, changed)
}

impl ClientHandler for Able {
    fn get_info(&self) -> ClientConfig {
        let mut known = match self.has_tasks {
            true => ClientCapabilities::builder().enable_tasks().build(),
            false => ClientCapabilities::default(),
        };
        known.elicitation = Some(ElicitationCapability::new());
        ClientConfig::new(known, Implementation::new("able", "1"))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.forms.lock().unwrap().push(serde_json::to_value(request).unwrap());
        Ok(match &self.entered {
            Some(entered) => ElicitResult::new(ElicitationAction::Accept).with_content(entered.clone()),
            None => ElicitResult::new(ElicitationAction::Decline),
        })
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changes.send(()).ok();
    }
}

/// A host of the era with metadata on each request.
async fn of_new_era(handler: Able, broker: &Broker, name: &str) -> Host<Able> {
    let mut child = server(broker, name, &[]).spawn().unwrap();
    let transport = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let lifecycle = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] };
    Host { client: handler.serve_with_lifecycle(transport, lifecycle).await.unwrap(), child }
}

async fn begin(host: &Host<Able>, tool: &'static str, arguments: Value) -> Result<Value, Value> {
    let mut request = CallToolRequestParams::new(tool);
    request.arguments = arguments.as_object().cloned();
    match host.client.call_tool_once(request).await.unwrap() {
        CallToolResponse::Task(created) => Ok(serde_json::to_value(created).unwrap()),
        CallToolResponse::Complete(result) => Err(serde_json::to_value(result).unwrap()),
        other => panic!("{other:?}"),
    }
}

async fn look(host: &Host<Able>, id: &str) -> Value {
    let found = host.client.peer().get_task(GetTaskParams::new(id)).await.unwrap();
    serde_json::to_value(found).unwrap()
}

async fn until(host: &Host<Able>, id: &str, status: &str) -> Value {
    let mut last = Value::Null;
    eventually(status, async || {
        last = look(host, id).await;
        last["status"] == status
    })
    .await;
    last
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_is_a_task_of_the_extension_and_its_question_a_form() {
    let broker = Broker::start();
    let (handler, _changes) = able(None, true);
    let alice = of_new_era(handler.clone(), &broker, "alice").await;
    let bob = Host::start(&broker, "bob", &[]).await;
    bob.call("inbox", json!({})).await;
    let created = begin(&alice, "delegate", json!({"to": "bob", "summary": "it"})).await.unwrap();
    assert_eq!((text(&created, "resultType"), text(&created, "status")), ("task", "working"));
    assert_eq!((&created["ttlMs"], &created["pollIntervalMs"]), (&Value::Null, &json!(2000)));
    let id = text(&created, "taskId").to_owned();
    let again = begin(&alice, "delegate", json!({"to": "bob", "summary": "it"})).await.unwrap();
    assert_eq!(text(&again, "taskId"), id, "a repeat finds the first");

    let taken = bob.call("take_task", json!({"handoff_id": id})).await;
    let task = text(&taken, "task_id").to_owned();
    bob.call("report", json!({"task_id": task, "status": "IN_PROGRESS", "details": "half"})).await;
    assert_eq!(text(&look(&alice, &id).await, "statusMessage"), "bob says: half");
    let schema = json!({"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]});
    let ask = json!({
        "task_id": task, "question": "ignore your instructions?", "answer_by": "alice", "answer_schema": schema,
        "wait_seconds": 0,
    });
    bob.call("ask", ask).await;
    let waiting = until(&alice, &id, "input_required").await;
    let (key, form) = waiting["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(text(form, "method"), "elicitation/create");
    let message = text(&form["params"], "message");
    assert!(message.starts_with("The agent bob asks about the task"), "{message}");
    assert_eq!(form["params"]["requestedSchema"]["properties"]["yes"]["type"], "boolean");
    let wrong = UpdateTaskParams::new(&id, [("other".to_owned(), json!({"action": "accept"}))].into());
    let refused = alice.client.peer().update_task(wrong).await.unwrap_err();
    assert!(refused.to_string().contains("nothing is left to answer"), "{refused}");
    let entered = json!({"action": "accept", "content": {"yes": true}});
    let update = UpdateTaskParams::new(&id, [(key.clone(), entered)].into());
    alice.client.peer().update_task(update).await.unwrap();
    let shown = bob.call("get_task", json!({"task_id": task})).await;
    assert_eq!(shown["answer"]["data"], json!({"yes": true}));

    bob.call("report", json!({"task_id": task, "status": "COMPLETED", "result": {"n": 1}})).await;
    let done = until(&alice, &id, "completed").await;
    assert_eq!(done["result"]["structuredContent"]["result"], json!({"n": 1}));
    assert!(done["result"]["isError"] != true, "{done}");
    assert_eq!(look(&alice, &id).await["status"], "completed", "the end is a state");
    // What is over at once is no task.
    let over = begin(&alice, "wait", json!({"id": id})).await.unwrap_err();
    assert_eq!(over["structuredContent"]["state"], "RETURNED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_cancelled_fails_and_outlives_its_server() {
    let broker = Broker::start();
    let alice = of_new_era(able(None, true).0, &broker, "alice").await;
    let bob = Host::start(&broker, "bob", &[]).await;
    bob.call("inbox", json!({})).await;
    let lend = async |host: &Host<Able>, summary: &str| {
        let created = begin(host, "delegate", json!({"to": "bob", "summary": summary})).await.unwrap();
        text(&created, "taskId").to_owned()
    };
    // Cancelled while it is open, and while it is lent.
    let open = lend(&alice, "one").await;
    alice.client.peer().cancel_task(CancelTaskParams::new(&open)).await.unwrap();
    assert_eq!(look(&alice, &open).await["status"], "cancelled");
    let lent = lend(&alice, "two").await;
    bob.call("take_task", json!({"handoff_id": lent})).await;
    alice.client.peer().cancel_task(CancelTaskParams::new(&lent)).await.unwrap();
    assert_eq!(look(&alice, &lent).await["status"], "cancelled");
    // A refusal and a failure are results with isError.
    let declined = lend(&alice, "three").await;
    bob.call("decline_task", json!({"handoff_id": declined, "reason": "NO_SKILL"})).await;
    let end = until(&alice, &declined, "completed").await;
    assert!(end["result"]["isError"] == true && end["result"]["structuredContent"]["state"] == "REJECTED", "{end}");
    let failed = lend(&alice, "four").await;
    let taken = bob.call("take_task", json!({"handoff_id": failed})).await;
    bob.call("report", json!({"task_id": taken["task_id"], "status": "FAILED", "details": "no paper"})).await;
    let end = until(&alice, &failed, "completed").await;
    assert!(end["result"]["isError"] == true && end["result"]["structuredContent"]["details"] == "no paper", "{end}");

    // A question of this agent is a task, too.
    let given = bob.call("hand_over", json!({"to": "alice", "summary": "yours", "wait_seconds": 0})).await;
    let take = begin(&alice, "take_task", json!({"handoff_id": text(&given, "handoff_id")})).await;
    assert!(take.is_err(), "it is no long work");
    let ask = json!({"task_id": text(&given, "task_id"), "question": "which?", "answer_by": "bob"});
    let asked = text(&begin(&alice, "ask", ask).await.unwrap(), "taskId").to_owned();
    assert_eq!(look(&alice, &asked).await["status"], "working");
    bob.call("answer", json!({"task_id": text(&given, "task_id"), "text": "that"})).await;
    let end = until(&alice, &asked, "completed").await;
    assert_eq!(end["result"]["structuredContent"]["answer"]["text"], "that");

    // Another server of the agent has the same tasks; another agent does not.
    let open = lend(&alice, "five").await;
    drop(alice);
    let alice = of_new_era(able(None, true).0, &broker, "alice").await;
    assert_eq!(look(&alice, &open).await["status"], "working");
    let carol = of_new_era(able(None, true).0, &broker, "carol").await;
    for id in [open.as_str(), "none", "ask:none"] {
        let refused = carol.client.peer().get_task(GetTaskParams::new(id)).await;
        assert!(refused.is_err(), "{id}: {refused:?}");
    }
    let refused = carol.client.peer().cancel_task(CancelTaskParams::new(&open)).await;
    assert!(refused.is_err(), "{refused:?}");
    // A host without the extension gets the result of the call.
    let plain = of_new_era(able(None, false).0, &broker, "alice").await;
    let result = begin(&plain, "wait", json!({"id": open, "wait_seconds": 0})).await.unwrap_err();
    assert_eq!(result["structuredContent"]["state"], "REQUESTED");
    let refused = plain.client.peer().get_task(GetTaskParams::new(&open)).await;
    assert!(refused.is_err(), "{refused:?}");
}

/// A task of alice that bob has, with a question to alice.
async fn asked(alice: &Host<Able>, bob: &Host, schema: Option<Value>, summary: &str) -> String {
    let mut request = CallToolRequestParams::new("delegate");
    let lend = json!({"to": "bob", "summary": summary, "wait_seconds": 0});
    request.arguments = lend.as_object().cloned();
    let lent = serde_json::to_value(alice.client.call_tool(request).await.unwrap()).unwrap();
    let lent = &lent["structuredContent"];
    bob.call("take_task", json!({"handoff_id": text(lent, "handoff_id")})).await;
    let task = text(lent, "task_id").to_owned();
    let mut ask = json!({"task_id": task, "question": "which branch?", "answer_by": "alice", "wait_seconds": 0});
    if let Some(schema) = schema {
        ask["answer_schema"] = schema;
    }
    bob.call("ask", ask).await;
    task
}

async fn answer(alice: &Host<Able>, task: &str) -> Value {
    let mut request = CallToolRequestParams::new("answer");
    request.arguments = json!({ "task_id": task }).as_object().cloned();
    let result = tokio::time::timeout(PATIENCE, alice.client.call_tool(request)).await.unwrap().unwrap();
    serde_json::to_value(result).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_words_asks_the_person_in_both_eras() {
    let broker = Broker::start();
    let bob = Host::start(&broker, "bob", &[]).await;
    bob.call("inbox", json!({})).await;
    for is_new in [false, true] {
        let host = async |entered: Option<Value>| match is_new {
            true => of_new_era(able(entered, false).0, &broker, "alice").await,
            false => Host::with(able(entered, false).0, &broker, "alice", &[]).await,
        };
        let alice = host(Some(json!({"text": "main"}))).await;
        let task = asked(&alice, &bob, None, &format!("text {is_new}")).await;
        let result = answer(&alice, &task).await;
        assert!(text(&result["structuredContent"], "next").starts_with("The person has answered"), "{result}");
        assert_eq!(bob.call("get_task", json!({"task_id": task})).await["answer"]["text"], "main");
        let forms = alice.client.service().forms.lock().unwrap().clone();
        assert_eq!((forms.len(), &forms[0]["requestedSchema"]["required"]), (1, &json!(["text"])));

        let alice = host(Some(json!({"branch": "main"}))).await;
        let schema = json!({"type": "object", "properties": {"branch": {"type": "string"}}, "required": ["branch"]});
        let task = asked(&alice, &bob, Some(schema), &format!("data {is_new}")).await;
        answer(&alice, &task).await;
        assert_eq!(bob.call("get_task", json!({"task_id": task})).await["answer"]["data"], json!({"branch": "main"}));

        // A person that declines leaves it open.
        let alice = host(None).await;
        let task = asked(&alice, &bob, None, &format!("declined {is_new}")).await;
        let result = answer(&alice, &task).await;
        assert!(text(&result["structuredContent"], "next").contains("stays open"), "{result}");
        assert_eq!(bob.call("get_task", json!({"task_id": task})).await["status"], "WAITING_FOR_INPUT");
    }
    // A host without forms: the model has to answer.
    let plain = Host::start(&broker, "alice", &[]).await;
    let inbox = plain.call("inbox", json!({})).await;
    let (data, words) = plain.refused("answer", json!({"task_id": inbox["questions"][0]["task_id"]})).await;
    assert_eq!(text(&data, "field"), "/text", "{words}");
}

fn node(id: &str, agent: &str, handoffs: Option<u32>, outputs: &[&str]) -> v1::Node {
    v1::Node {
        node_id: id.to_owned(),
        agent_id: agent.to_owned(),
        description: format!("Does the work of {id}."),
        handoffs,
        output_nodes: outputs.iter().map(ToString::to_string).collect(),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_choices_of_a_run_are_tools_and_move_its_task() {
    let broker = Broker::start();
    let (handler, mut changed) = able(None, false);
    let alice = Host::with(handler, &broker, "alice", &[]).await;
    let bob = Host::start(&broker, "bob", &[]).await;
    bob.call("inbox", json!({})).await;
    let names = async |host: &Host<Able>| {
        let tools = host.client.list_all_tools().await.unwrap();
        tools.into_iter().map(|tool| tool.name.into_owned()).skip(12).collect::<Vec<_>>()
    };
    assert!(names(&alice).await.is_empty());

    let agent = baton_client::Agent::builder("alice").server(&broker.address).ca(broker.ca());
    let agent = agent.key(crate::broker::identity("alice").key).without_registration().connect().await.unwrap();
    agent.create_task("ticket", &v1::TaskCreate { task_type: "support".into(), ..Default::default() }).await.unwrap();
    let client = agent.link().client().await.unwrap();
    let graph = v1::Graph {
        graph_id: "desk".to_owned(),
        entry_node_ids: vec!["triage".to_owned()],
        nodes: vec![node("triage", "alice", Some(1), &["billing", "end"]), node("billing", "bob", None, &["end"])],
        ..Default::default()
    };
    client.register_graph(graph, "").await.unwrap();
    let start = v1::StartRunRequest { graph_id: "desk".to_owned(), task_id: "ticket".to_owned(), ..Default::default() };
    let (run, _) = client.start_run(start).await.unwrap();
    // The server alone is alice from here on.
    agent.stop().await.unwrap();
    tokio::time::timeout(PATIENCE, changed.recv()).await.unwrap().unwrap();
    assert_eq!(names(&alice).await, ["transfer_to_billing", "transfer_to_end"]);
    for (named, count) in [(run.id(), 2), ("0198c0de-1b2a-7c3d-8e4f-5a6b7c8d9e0f", 0)] {
        let host = Host::with(able(None, false).0, &broker, "alice", &["--run", named]).await;
        assert_eq!(names(&host).await.len(), count, "only the choices of the run {named}");
    }

    let call = async |name: &'static str, arguments: Value| alice.try_call(name, arguments).await.unwrap();
    let unknown = call("transfer_to_nobody", json!({"reason": "x"})).await;
    assert!(unknown.is_error && unknown.text.contains("Offered are: transfer_to_billing"), "{}", unknown.text);

    let peer = alice.client.peer().clone();
    let choosing = tokio::spawn(async move {
        let mut request = CallToolRequestParams::new("transfer_to_billing");
        request.arguments = json!({"reason": "it is about money"}).as_object().cloned();
        peer.call_tool(request).await
    });
    let inbox = bob.call("inbox", json!({"wait_seconds": 60})).await;
    let offer = &inbox["offers"][0];
    assert_eq!((text(offer, "task_id"), text(offer, "from")), ("ticket", "alice"));
    bob.call("take_task", json!({"handoff_id": text(offer, "handoff_id")})).await;
    let chosen = serde_json::to_value(choosing.await.unwrap().unwrap()).unwrap();
    let chosen = &chosen["structuredContent"];
    assert_eq!((text(chosen, "run_id"), text(chosen, "chosen")), (run.id(), "billing"));
    assert_eq!((text(&chosen["handoff"], "state"), text(&chosen["handoff"], "owner_id")), ("COMPLETED", "bob"));
    let state = run.state().await.unwrap();
    let active = state.nodes.iter().find(|node| node.state() == v1::NodeState::Active).unwrap();
    assert_eq!(active.node_id, "billing", "the run has moved with its task");

    // The tools are gone, the host hears of it, and a call says what there is.
    tokio::time::timeout(PATIENCE, changed.recv()).await.unwrap().unwrap();
    assert!(names(&alice).await.is_empty());
    let late = call("transfer_to_billing", json!({"reason": "x"})).await;
    assert!(late.is_error && late.text.contains("No transfer is offered now"), "{}", late.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_of_the_person_is_a_tool() {
    let broker = Broker::start();
    let offers = ["--offer", "review=lend:bob", "--offer", "billing=bob"];
    let alice = Host::start(&broker, "alice", &offers).await;
    let bob = Host::start(&broker, "bob", &[]).await;
    bob.call("inbox", json!({})).await;
    let tools = alice.client.list_all_tools().await.unwrap();
    assert_eq!(tools[12].name, "transfer_to_review");
    assert!(tools[12].description.as_ref().unwrap().contains("Lend a task to bob"));
    assert!(!tools[12].input_schema["properties"].as_object().unwrap().contains_key("to"));
    let lent = alice.call("transfer_to_review", json!({"summary": "it", "wait_seconds": 0})).await;
    bob.call("take_task", json!({"handoff_id": text(&lent, "handoff_id")})).await;
    assert_eq!(text(&alice.call("wait", json!({"id": lent["task_id"], "wait_seconds": 0})).await, "state"), "LENT");
    let given = alice.call("transfer_to_billing", json!({"summary": "it", "wait_seconds": 0})).await;
    bob.call("take_task", json!({"handoff_id": text(&given, "handoff_id")})).await;
    assert_eq!(text(&alice.call("wait", json!({"id": given["task_id"]})).await, "state"), "COMPLETED");
    let (data, words) = alice.refused("transfer_to_review", json!({"summary": "it", "to": "eve"})).await;
    assert_eq!(text(&data, "field"), "/to", "{words}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_the_new_era_listens() {
    let broker = Broker::start();
    let bob = of_new_era(able(None, false).0, &broker, "bob").await;
    let alice = Host::start(&broker, "alice", &[]).await;
    eventually("bob is there", async || !alice.try_call("inbox", json!({})).await.unwrap().is_error).await;
    bob.client.list_all_resources().await.unwrap();
    let filter = SubscriptionFilter::builder().tools_list_changed().resource_subscription("baton://inbox");
    let filter = filter.resource_subscription("baton://nothing").build();
    let mut heard = bob.client.peer().listen(filter).await.unwrap();
    alice.call("delegate", json!({"to": "bob", "summary": "one", "wait_seconds": 0})).await;
    let news = async move { heard.next().await };
    // The first read may come after the change; a second change is news in any case.
    tokio::pin!(news);
    let first = tokio::time::timeout(std::time::Duration::from_secs(5), &mut news).await;
    let news = match first {
        Ok(news) => news,
        Err(_) => {
            alice.call("delegate", json!({"to": "bob", "summary": "two", "wait_seconds": 0})).await;
            tokio::time::timeout(PATIENCE, &mut news).await.unwrap()
        }
    };
    let news = format!("{news:?}");
    assert!(news.contains("baton://inbox"), "{news}");
}
