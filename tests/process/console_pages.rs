//! The pages of the web console about tasks, agents and each machine: what they show of the work of real clients, whom they
//! refuse, and that texts of agents stay texts.

use std::time::Duration;

use baton::{
    ids::{IdSource as _, SystemIds},
    proto::v1::{self, MessageType, TaskStatus},
    time::{Clock as _, SystemClock},
};
use baton_client::{About, context_of, session::Agent};
use serde_json::json;

use crate::{
    broker::{Broker, a_request, card, eventually, identity, new_task, write},
    console::{get, logged_in},
    plans::Submitter,
};

const IMAGE: &str = "<img src=x onerror=alert(1)>";
const ESCAPED: &str = "&#60;img src=x onerror=alert(1)&#62;";

/// The page at this path, for a caller that may see it. It has what every page has to have.
async fn page(broker: &Broker, path: &str, cookie: &str) -> String {
    let answer = get(broker, path, cookie).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    is_well_made(path, &answer.body);
    plain(&answer.body)
}

/// The page without what only its looks need: the labels of cells, the chips of states, the ends of ids.
fn plain(body: &str) -> String {
    let body = without(body, " data-l=\"", "\"");
    let body = without(&body, " class=\"id\" title=\"", "\"");
    let mut parts = body.split("<span class=\"chip ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_, rest) = part.split_once("\">").expect("the end of the tag");
        plain.push_str(&rest.replacen("</span>", "", 1));
    }
    plain
}

/// The text without each part from `from` to the next `to`.
fn without(text: &str, from: &str, to: &str) -> String {
    let mut parts = text.split(from);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.split_once(to).map_or("", |(_, rest)| rest))
}

fn is_well_made(path: &str, body: &str) {
    assert!(body.len() < 100_000, "{path}: {} bytes", body.len());
    for forbidden in [IMAGE, " style=", "<style", "<script>", " onclick"] {
        assert!(!body.contains(forbidden), "{path} has {forbidden}: {body}");
    }
    for table in body.split("<table").skip(1) {
        let opening = table.split('>').next().unwrap();
        let region = body.split(table).next().unwrap().rsplit("<div").next().unwrap();
        assert!(opening.contains("aria-label") || region.contains("aria-label"), "{path}: a table without a name");
    }
    for heading in body.split("<th").skip(1).filter(|rest| !rest.starts_with("ead")) {
        assert!(heading.starts_with(" scope="), "{path}: <th{}", heading.chars().take(40).collect::<String>());
    }
    for (place, _) in body.match_indices("<svg") {
        let picture = &body[place..];
        let opening = picture.split('>').next().unwrap();
        assert!(opening.contains("role=\"img\"") && opening.contains("aria-label=\""), "{path}: {opening}");
        assert!(picture.contains("<table"), "{path}: a picture without a table after it");
    }
    let ids: Vec<&str> = body.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    let unique: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(ids.len(), unique.len(), "{path}: an id is not unique: {ids:?}");
}

async fn operator(broker: &Broker) -> String {
    logged_in(broker, &broker.operator_token()).await
}

async fn agent(broker: &Broker, name: &str) -> String {
    logged_in(broker, &broker.client().await.prove(&identity(name)).await.unwrap()).await
}

/// A broker whose agents see only what they take part in.
fn strict() -> Broker {
    Broker::serve("", "[console]\nenabled = true\n")
}

/// An agent that the operator has registered.
async fn enrolled(broker: &Broker, name: &str) -> Agent {
    let client = broker.operator().await;
    let mut card = card(name, "");
    card.description = IMAGE.to_owned();
    let request = v1::RegisterAgentRequest { card: Some(card), ..Default::default() };
    client.answer(client.agents().register_agent(request).await).unwrap();
    broker.agent_session(name).await
}

/// The page says that the caller may not see this.
async fn is_refused(broker: &Broker, path: &str, cookie: &str, status: u16, text: &str) {
    let answer = get(broker, path, cookie).await;
    assert_eq!(answer.status, status, "{path}: {}", answer.body);
    assert!(answer.body.contains(text), "{path}: {}", answer.body);
    is_well_made(path, &answer.body);
}

/// Hands a task from one agent to another, whole.
async fn handed_over(from: &Agent, to: &Agent, task: &str, epoch: u64) {
    from.request(to.id().as_str(), task, epoch, &a_request()).await.unwrap();
    let offer = to.take().await.unwrap();
    to.accept(&offer).await.unwrap();
    loop {
        let delivered = from.take().await.unwrap();
        if delivered.kind() == MessageType::HandoffAccept {
            from.send_context(&delivered, &context_of([("notes", json!({"text": IMAGE}).to_string())])).await.unwrap();
            break;
        }
    }
    to.complete(&to.take().await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn every_page_refuses_what_the_caller_may_not_see() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("default.cedar"), baton::policy::DEFAULT);
    let forbid = "@id(\"nothing\") forbid(principal is Operator, action, resource);";
    write(&folder.path().join("more.cedar"), forbid);
    let denying = Broker::serve("", &format!("[console]\nenabled = true\n[policy]\npath = {:?}\n", folder.path()));
    let cookie = operator(&denying).await;
    for (path, ..) in UNKNOWN {
        is_refused(&denying, path, &cookie, 403, "nothing").await;
    }
    for path in LISTS {
        is_refused(&denying, path, &cookie, 403, "nothing").await;
    }
    let broker = Broker::start();
    let cookie = operator(&broker).await;
    for (path, code) in UNKNOWN {
        is_refused(&broker, path, &cookie, 404, code).await;
    }
    for path in MALFORMED {
        is_refused(&broker, path, &cookie, 400, "").await;
    }
    for path in LISTS {
        page(&broker, path, &cookie).await;
    }
    for path in LISTS.iter().copied().chain(UNKNOWN.map(|(path, _)| path)) {
        assert_eq!(get(&broker, path, "").await.status, 303, "{path}");
    }
}

const LISTS: [&str; 6] = ["/plans", "/negotiations", "/threads", "/runs", "/registry", "/audit"];
const UNKNOWN: [(&str, &str); 7] = [
    ("/tasks/none", "TASK_UNKNOWN"),
    ("/plans/none", "PLAN_UNKNOWN"),
    ("/agents/none", "AGENT_UNKNOWN"),
    ("/threads/none", "THREAD_UNKNOWN"),
    ("/workspaces/task%3Anone", "WORKSPACE_UNKNOWN"),
    ("/runs/01890000-0000-7000-8000-000000000000", "RUN_UNKNOWN"),
    ("/negotiations/01890000-0000-7000-8000-000000000000", "NEGOTIATION_UNKNOWN"),
];
const MALFORMED: [&str; 25] = [
    "/tasks/a%20b",
    "/tasks/none?page=x",
    "/plans/a%20b",
    "/plans?page=x",
    "/plans?state=X",
    "/plans/none?page=x",
    "/plans/none?results=x",
    "/agents/a%20b",
    "/audit?page=x",
    "/threads/a%20b",
    "/threads?page=x",
    "/threads?task=a%20b",
    "/threads/none?page=x",
    "/runs/x",
    "/runs?page=x",
    "/registry?page=x",
    "/registry?kind=X",
    "/runs?state=X",
    "/runs?graph=a%20b",
    "/negotiations/x",
    "/negotiations?state=X",
    "/negotiations?agent=a%20b",
    "/workspaces/none",
    "/workspaces/task%3Anone?page=x",
    "/workspaces/task%3Anone?topic=%20",
];

#[tokio::test]
async fn a_task_shows_its_owners_as_lanes_and_a_table_and_its_log_holds() {
    let broker = strict();
    let mut agents = Vec::new();
    for name in ["alice", "bob", "carol", "dave"] {
        agents.push(enrolled(&broker, name).await);
    }
    let task = new_task();
    for (place, pair) in agents.windows(2).enumerate() {
        handed_over(&pair[0], &pair[1], &task, place as u64 + 1).await;
    }
    agents[3].request("alice", &task, 4, &a_request()).await.unwrap();
    agents[0].take().await.unwrap();
    let (operator, carol) = (operator(&broker).await, agent(&broker, "carol").await);
    for cookie in [&operator, &carol] {
        let shown = page(&broker, &format!("/tasks/{task}"), cookie).await;
        for (epoch, owner) in [(1, "alice"), (2, "bob"), (3, "carol"), (4, "dave")] {
            assert!(shown.contains(&format!("<title>epoch {epoch}: {owner}</title>")), "{shown}");
            assert!(shown.contains(&format!("<tr id=\"epoch-{epoch}\"><td>{epoch}</td><td>{owner}</td>")), "{shown}");
        }
        assert!(shown.contains("<tr id=\"entry-1\">") && shown.contains("HANDOFF_REQUEST from alice"), "{shown}");
    }
    let shown = page(&broker, &format!("/tasks/{task}"), &operator).await;
    assert!(shown.contains("<title>open handoff to alice: "), "{shown}");
    // Carol takes no part in the open handoff.
    let shown = page(&broker, &format!("/tasks/{task}"), &carol).await;
    assert!(!shown.contains("open handoff to"), "{shown}");
    let log = broker.lines(&["task", "audit", &task]).remove(0);
    let verified = page(&broker, &format!("/tasks/{task}?verify=1"), &operator).await;
    assert!(verified.contains(&format!("All {} entries hold", log["entries"])), "{verified}");
    assert!(verified.contains(log["custodyHash"].as_str().unwrap()), "{verified}");
    // Carol reads some of the contexts by their digests alone.
    let verified = page(&broker, &format!("/tasks/{task}?verify=1"), &carol).await;
    assert!(verified.contains(&format!("All {} entries hold", log["entries"])), "{verified}");
    let rest = page(&broker, &format!("/tasks/{task}?page=4"), &operator).await;
    assert!(!rest.contains("id=\"entry-4\"") && rest.contains("id=\"entry-5\""), "{rest}");
    drop(enrolled(&broker, "erin").await);
    is_refused(&broker, &format!("/tasks/{task}?verify=1"), &agent(&broker, "erin").await, 403, "readTask").await;
}

#[tokio::test]
async fn a_plan_shows_its_subtasks_as_a_picture_and_a_table_with_results() {
    let broker = Broker::start();
    let fei = broker.agent("fei").await;
    let plan = json!({
        "description": IMAGE,
        "subtasks": [
            {"id": "fetch", "description": "get it", "agent_id": "fei"},
            {"id": "count", "description": "count it", "agent_id": "fei", "dependencies": ["fetch"]},
            {"id": "write", "description": "write it", "agent_id": "fei", "dependencies": ["fetch", "count"]},
        ],
    });
    let alice = Submitter::new(&broker, "sums", &plan);
    alice.submit(&broker);
    let offer = fei.take().await.unwrap();
    fei.accept(&offer).await.unwrap();
    let context = fei.take().await.unwrap();
    let receipt = fei.complete(&context).await.unwrap();
    let result_json = json!({"response": format!("{IMAGE} {}", "x".repeat(5000))}).to_string();
    let update = v1::TaskStatusUpdate { status: TaskStatus::Completed.into(), result_json, ..Default::default() };
    fei.report(&About::task(&receipt.task_id, receipt.epoch), &update).await.unwrap();
    let (operator, submitter) = (operator(&broker).await, agent(&broker, "alice").await);
    eventually("the second subtask begins", async || {
        page(&broker, "/plans/sums", &operator).await.contains("HANDING_OFF")
    })
    .await;
    for cookie in [&operator, &submitter] {
        let list = page(&broker, "/plans?state=RUNNING", cookie).await;
        assert!(list.contains("<tr id=\"plan-sums\">") && list.contains("1 of 3"), "{list}");
        assert!(!page(&broker, "/plans?state=FAILED", cookie).await.contains("plan-sums"));
        let shown = page(&broker, "/plans/sums", cookie).await;
        let rows = [
            ("fetch", "COMPLETED", "Completed"),
            ("count", "HANDING_OFF", "Handing off"),
            ("write", "PENDING", "Pending"),
        ];
        for (id, state, words) in rows {
            assert!(shown.contains(&format!("<title>{id}: {state}</title>")), "{shown}");
            let row = format!("<tr id=\"subtask-{id}\"><th scope=\"row\">{id}</th><td>{words}</td>");
            assert!(shown.contains(&row), "{shown}");
        }
        // What `fetch` gives `write` goes through `count` in the picture, and is in the table.
        assert_eq!(shown.matches("class=\"link\"").count(), 2, "{shown}");
        assert!(
            shown.contains("<td>fetch, count</td>")
                && shown.contains("href=\"/tasks/baton.")
                && shown.contains(".fetch\""),
            "{shown}"
        );
        assert!(shown.contains(ESCAPED) && shown.contains("<section id=\"result-fetch\""), "{shown}");
        assert!(shown.contains("the whole text has 5029 bytes"), "{shown}");
        assert!(shown.contains("href=\"/workspaces/plan%3Asums\""), "{shown}");
        page(&broker, "/workspaces/plan%3Asums", cookie).await;
    }
}

#[tokio::test]
async fn an_agent_shows_its_card_its_keys_and_its_mailbox() {
    let broker = strict();
    let (alice, bob) = (enrolled(&broker, "alice").await, enrolled(&broker, "bob").await);
    let heartbeat = v1::Heartbeat { status: IMAGE.into(), active_tasks: 3, ..Default::default() };
    bob.session.heartbeat(heartbeat).await.unwrap();
    alice.request("bob", &new_task(), 1, &a_request()).await.unwrap();
    let (operator, carol) = (operator(&broker).await, agent(&broker, "alice").await);
    for cookie in [&operator, &carol] {
        let path = "/agents/bob";
        // The heartbeat comes on another connection than the request.
        eventually("the letter is counted, and the heartbeat is there", async || {
            let shown = page(&broker, path, cookie).await;
            shown.contains("<dd>1 letters, the oldest of <time") && shown.contains("3 active tasks")
        })
        .await;
        let shown = page(&broker, path, cookie).await;
        assert!(shown.contains("Alive 1 open sessions") && shown.contains("<tr id=\"key-"), "{shown}");
        assert!(shown.contains(&hex::encode(card("bob", "").keys[0].public_key.clone())), "{shown}");
        assert!(shown.matches(ESCAPED).count() == 2 && shown.contains("3 active tasks"), "{shown}");
        assert!(page(&broker, "/agents", cookie).await.contains("<tr id=\"agent-bob\"><td><a href=\"/agents/bob\">"));
        page(&broker, "/agents/baton", cookie).await;
        assert!(!shown.contains("Decides within"), "a card that states no time: {shown}");
    }
    let decides_within = Some(prost_types::Duration { seconds: 5400, nanos: 0 });
    let stated = v1::AgentCard { agent_id: "bob".to_owned(), decides_within, ..Default::default() };
    broker.client_of("bob").await.update_agent(stated, &["decides_within"], "").await.unwrap();
    let shown = page(&broker, "/agents/bob", &operator).await;
    assert!(shown.contains("<dt>Decides within</dt><dd>1h 30m</dd>"), "{shown}");
    let key = card("bob", "").keys.remove(0).key_id;
    broker.lines(&["agent", "key", "revoke", "bob", &key, "--reason", IMAGE]);
    let shown = page(&broker, "/agents/bob", &operator).await;
    assert!(
        !shown.contains(&format!("<tr id=\"key-{key}\"><th scope=\"row\">{key}</th><td></td><td></td><td></td>")),
        "{shown}"
    );
}

#[tokio::test]
async fn the_audit_log_has_pages_with_the_latest_acts_first() {
    let broker = strict();
    let client = broker.operator().await;
    for number in 0..60 {
        let request = v1::CreateInvitationRequest { agent_id: format!("a{number}"), ..Default::default() };
        client.answer(client.agents().create_invitation(request).await).unwrap();
    }
    drop(enrolled(&broker, "alice").await);
    let operator = operator(&broker).await;
    let listed = client.answer(
        client.audit().list_audit_entries(v1::ListAuditEntriesRequest { page_size: 200, ..Default::default() }).await,
    );
    let mut expected: Vec<u64> = listed.unwrap().entries.into_iter().map(|shown| shown.entry.unwrap().number).collect();
    expected.reverse();
    let (mut path, mut seen) = ("/audit".to_owned(), Vec::new());
    loop {
        let shown = page(&broker, &path, &operator).await;
        let rows = shown.split("<tr id=\"audit-").skip(1);
        seen.extend(rows.map(|row| row.split('"').next().unwrap().parse::<u64>().unwrap()));
        let Some((_, next)) = shown.split_once("<a rel=\"next\" href=\"") else { break };
        path = next.split('"').next().unwrap().to_owned();
    }
    assert_eq!(seen, expected);
    is_refused(&broker, "/audit", &agent(&broker, "alice").await, 403, "readAuditLog").await;
}

#[tokio::test]
async fn a_task_that_began_without_a_handoff_is_shown_by_its_summary() {
    let broker = strict();
    let alice = enrolled(&broker, "alice").await;
    let create = v1::TaskCreate { task_type: "note".into(), summary: IMAGE.into(), ..Default::default() };
    let task = new_task();
    alice.send("", MessageType::TaskCreate, &About::task(&task, 1), &create).await.unwrap();
    let (operator, alice) = (operator(&broker).await, agent(&broker, "alice").await);
    for cookie in [&operator, &alice] {
        for path in ["/tasks", &format!("/tasks/{task}")] {
            let shown = page(&broker, path, cookie).await;
            assert!(shown.contains(ESCAPED) && !shown.contains("note task"), "{shown}");
        }
    }
}

#[tokio::test]
async fn the_overview_counts_for_those_who_may_read_all() {
    let broker = strict();
    let (alice, bob) = (enrolled(&broker, "alice").await, enrolled(&broker, "bob").await);
    drop(enrolled(&broker, "carol").await);
    alice.request("carol", &new_task(), 1, &a_request()).await.unwrap();
    alice.request("bob", &new_task(), 1, &a_request()).await.unwrap();
    bob.take().await.unwrap();
    let (operator, bob) = (operator(&broker).await, agent(&broker, "bob").await);
    eventually("one handoff is decided", async || {
        page(&broker, "/overview", &operator).await.contains("<b id=\"open-DECIDING\">1</b>")
    })
    .await;
    let shown = page(&broker, "/overview", &operator).await;
    assert!(shown.contains("<b id=\"open-REQUESTED\">1</b>"), "{shown}");
    assert!(shown.contains("<b id=\"agents-ALIVE\">2</b>"), "{shown}");
    assert!(!shown.contains("id=\"agents-UNSEEN\""), "{shown}");
    // The deadline of a decision comes before that of a whole handoff.
    let needs = shown.split("<h2>Needs somebody</h2>").nth(1).unwrap().split("<h2>").next().unwrap();
    assert!(needs.contains("Due") && needs.contains("bob decides") && !needs.contains("carol"), "{needs}");
    // An agent sees its own handoffs, and no count of all.
    let shown = page(&broker, "/overview", &bob).await;
    assert!(!shown.contains("open-DECIDING") && shown.contains("bob decides") && !shown.contains("carol"), "{shown}");
}

#[tokio::test]
async fn a_negotiation_shows_all_bids_to_its_requester_and_a_bidder_its_own() {
    let broker = strict();
    let alice = enrolled(&broker, "alice").await;
    let bidders = [enrolled(&broker, "bob").await, enrolled(&broker, "carol").await];
    let deadline = SystemClock.now().plus(Duration::from_secs(3600)).into();
    let request = v1::TaskRequest { description: IMAGE.into(), offers_deadline: Some(deadline), ..Default::default() };
    let mut ids = Vec::new();
    for (bidder, cost) in bidders.iter().zip([7.5, 6.25]) {
        let about = About::default();
        let to = bidder.id().as_str();
        let id = alice.send(to, MessageType::TaskRequest, &about, &request).await.unwrap().message_id;
        bidder.take().await.unwrap();
        let offer = v1::TaskOffer { confidence: 0.5, cost, ..Default::default() };
        bidder.send("alice", MessageType::TaskOffer, &About::handoff("", 0, &id), &offer).await.unwrap();
        ids.push(id);
    }
    let (operator, alice) = (operator(&broker).await, agent(&broker, "alice").await);
    let bob = agent(&broker, "bob").await;
    for cookie in [&operator, &alice, &bob] {
        let shown = page(&broker, &format!("/negotiations/{}", ids[0]), cookie).await;
        assert!(shown.contains("<tr id=\"bid-bob\">") && shown.contains("<td>7.5</td>"), "{shown}");
        assert!(shown.contains("the requester decides"), "{shown}");
        let list = page(&broker, "/negotiations?agent=bob", cookie).await;
        assert!(list.contains(&format!("<tr id=\"negotiation-{}\">", ids[0])), "{list}");
    }
    is_refused(&broker, &format!("/negotiations/{}", ids[1]), &bob, 403, "readNegotiation").await;
    assert!(!page(&broker, "/negotiations", &bob).await.contains(&ids[1]));
}

#[tokio::test]
async fn a_thread_shows_its_persona_its_request_and_its_log() {
    let broker = strict();
    let client = broker.operator().await;
    let model = v1::ModelSpec { model_id: "large".into(), model_name: "big".into(), ..Default::default() };
    client
        .answer(
            client.threads().put_model_spec(v1::PutModelSpecRequest { spec: Some(model), ..Default::default() }).await,
        )
        .unwrap();
    for spec_id in ["concierge", "researcher"] {
        let plugin_ids = vec!["agent_handoff".to_owned()];
        let spec =
            v1::AgentSpec { spec_id: spec_id.into(), model_id: "large".into(), plugin_ids, ..Default::default() };
        client
            .answer(
                client
                    .threads()
                    .put_agent_spec(v1::PutAgentSpecRequest { spec: Some(spec), ..Default::default() })
                    .await,
            )
            .unwrap();
    }
    drop((enrolled(&broker, "alice").await, enrolled(&broker, "bob").await));
    let alice = broker.client_of("alice").await;
    let (base_spec_id, thread_id) = ("concierge".to_owned(), "support".to_owned());
    let create = v1::CreateThreadRequest { base_spec_id, thread_id: thread_id.clone(), ..Default::default() };
    alice.answer(alice.threads().create_thread(create).await).unwrap();
    let run_id = new_id();
    let begin = v1::BeginRunRequest { thread_id: thread_id.clone(), run_id: run_id.clone() };
    alice.answer(alice.threads().begin_run(begin).await).unwrap();
    let action = Some(v1::apply_handoff_action_request::Action::RequestSpecId("researcher".into()));
    let ask = v1::ApplyHandoffActionRequest { thread_id, action, ..Default::default() };
    alice.answer(alice.threads().apply_handoff_action(ask).await).unwrap();
    let (operator, alice) = (operator(&broker).await, agent(&broker, "alice").await);
    for cookie in [&operator, &alice] {
        let list = page(&broker, "/threads?spec=concierge", cookie).await;
        assert!(list.contains("<tr id=\"thread-support\">"), "{list}");
        assert!(!page(&broker, "/threads?spec=researcher", cookie).await.contains("thread-support"));
        let shown = page(&broker, "/threads/support", cookie).await;
        assert!(shown.contains("<dt>Requested</dt><dd>researcher</dd>") && shown.contains(&run_id), "{shown}");
        assert!(shown.contains("<td>requested</td><td>researcher</td>"), "{shown}");
    }
    let bob = agent(&broker, "bob").await;
    is_refused(&broker, "/threads/support", &bob, 403, "readThread").await;
    assert!(!page(&broker, "/threads", &bob).await.contains("thread-support"));
}

fn new_id() -> String {
    SystemIds.message_id(SystemClock.now()).to_string()
}

#[tokio::test]
async fn the_registry_shows_each_name_with_its_owner_escaped_and_paged() {
    let broker = strict();
    drop((enrolled(&broker, "alice").await, enrolled(&broker, "bob").await));
    let (alice, operator) = (broker.client_of("alice").await, broker.operator().await);
    let graph = |steps_max: u32| v1::Graph {
        graph_id: "search".to_owned(),
        entry_node_ids: vec!["find".to_owned()],
        nodes: vec![v1::Node {
            node_id: "find".to_owned(),
            output_nodes: vec!["end".to_owned()],
            ..Default::default()
        }],
        steps_max,
        ..Default::default()
    };
    for steps_max in [7, 8] {
        let request = v1::RegisterGraphRequest { graph: Some(graph(steps_max)), ..Default::default() };
        alice.answer(alice.routing().register_graph(request).await).unwrap();
    }
    for version in ["1", "2"] {
        operator.register_schema("report", version, "{}").await.unwrap();
    }
    for number in 0..20 {
        alice.register_schema(&format!("s{number}"), "1", "{}").await.unwrap();
    }
    let retire = v1::RetireRegistrationRequest {
        registry: v1::Registry::Graphs.into(),
        name: "search".to_owned(),
        ..Default::default()
    };
    alice.answer(alice.registries().retire_registration(retire).await).unwrap();
    let (of_operator, bob) = (self::operator(&broker).await, agent(&broker, "bob").await);
    for cookie in [&of_operator, &bob] {
        let first = page(&broker, "/registry", cookie).await;
        assert_eq!(first.matches("<tr id=\"schema-s").count(), 20, "{first}");
        let next = first.split("rel=\"next\" href=\"").nth(1).unwrap().split('"').next().unwrap();
        let second = page(&broker, &next.replace("&amp;", "&"), cookie).await;
        let row =
            "<tr id=\"graph-search\"><td>graph</td><td>search</td><td>revision 2</td><td>alice</td><td>Retired</td>";
        assert!(second.contains(row), "{second}");
        assert!(second.contains("<td>report</td><td>2 versions</td><td>operator:"), "{second}");
        assert!(!second.contains("rel=\"next\""), "{second}");
        let graphs = page(&broker, "/registry?kind=graph&owner=alice", cookie).await;
        assert!(graphs.contains(row) && !graphs.contains("<td>report</td>"), "{graphs}");
        // What the reader typed stays a text.
        let filtered = page(&broker, "/registry?owner=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E", cookie).await;
        assert!(filtered.contains(ESCAPED) && filtered.contains("None.</p>"), "{filtered}");
    }
}

#[tokio::test]
async fn a_run_shows_its_graph_its_nodes_and_its_turns() {
    let broker = strict();
    drop((enrolled(&broker, "alice").await, enrolled(&broker, "bob").await));
    let client = broker.operator().await;
    let node = |id: &str, outputs: &[&str]| v1::Node {
        node_id: id.to_owned(),
        description: format!("does {id}"),
        agent_id: "alice".to_owned(),
        output_nodes: outputs.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    let graph = v1::Graph {
        graph_id: "search".to_owned(),
        description: IMAGE.to_owned(),
        entry_node_ids: vec!["find".to_owned()],
        nodes: vec![node("find", &["tell"]), node("tell", &["end"])],
        ..Default::default()
    };
    client
        .answer(
            client
                .routing()
                .register_graph(v1::RegisterGraphRequest { graph: Some(graph), ..Default::default() })
                .await,
        )
        .unwrap();
    let start = v1::StartRunRequest { graph_id: "search".to_owned(), ..Default::default() };
    let started = client.answer(client.routing().start_run(start).await).unwrap();
    let id = started.run.unwrap().run_id;
    let alice = broker.client_of("alice").await;
    let turn = v1::RecordTurnRequest {
        run_id: id.clone(),
        node_id: "find".to_owned(),
        turn_id: new_id(),
        finished: true,
        output: IMAGE.to_owned(),
        ..Default::default()
    };
    alice.answer(alice.routing().record_turn(turn).await).unwrap();
    let (operator, alice) = (operator(&broker).await, agent(&broker, "alice").await);
    for cookie in [&operator, &alice] {
        let list = page(&broker, "/runs?state=RUNNING&graph=search", cookie).await;
        assert!(list.contains(&format!("<tr id=\"run-{id}\">")) && list.contains("<td>tell</td>"), "{list}");
        let shown = page(&broker, &format!("/runs/{id}"), cookie).await;
        assert!(
            shown.contains("<tr id=\"node-tell\"><th scope=\"row\">tell</th><td>Active</td><td>alice</td>"),
            "{shown}"
        );
        assert!(shown.contains("<td>turn</td><td>find</td><td>FINISHED, by alice"), "{shown}");
        assert_eq!(shown.matches(ESCAPED).count(), 2, "{shown}");
        let workspace = format!("/workspaces/run%3A{id}");
        assert!(shown.contains(&format!("href=\"{workspace}\"")), "{shown}");
        page(&broker, &workspace, cookie).await;
    }
    let bob = agent(&broker, "bob").await;
    is_refused(&broker, &format!("/runs/{id}"), &bob, 403, "readRun").await;
    assert!(!page(&broker, "/runs", &bob).await.contains(&id));
}

#[tokio::test]
async fn a_workspace_shows_its_topics_and_entries_to_its_participants() {
    let broker = strict();
    let (alice, bob) = (enrolled(&broker, "alice").await, enrolled(&broker, "bob").await);
    drop(enrolled(&broker, "carol").await);
    let task = new_task();
    handed_over(&alice, &bob, &task, 1).await;
    for number in 0..60 {
        let topic = if number == 0 { "first" } else { "rest" };
        let json = format!("\"{number} {IMAGE} {}\"", "x".repeat(500));
        let append = v1::WorkspaceAppend {
            workspace_id: format!("task:{task}"),
            topic: topic.to_owned(),
            entry: Some(v1::workspace_append::Entry::Json(json)),
            ..Default::default()
        };
        bob.send("", MessageType::WorkspaceAppend, &About::default(), &append).await.unwrap();
    }
    let path = format!("/workspaces/task%3A{task}");
    let (operator, bob) = (operator(&broker).await, agent(&broker, "bob").await);
    for cookie in [&operator, &bob] {
        let latest = page(&broker, &path, cookie).await;
        assert!(latest.contains("<tr id=\"entry-11\">") && latest.contains("<tr id=\"entry-60\">"), "{latest}");
        assert!(!latest.contains("<tr id=\"entry-10\">") && latest.contains("Earlier entries"), "{latest}");
        assert!(latest.contains(ESCAPED) && latest.contains("<td>533</td>"), "{latest}");
        let first = page(&broker, &format!("{path}?topic=first&page=0"), cookie).await;
        assert!(first.contains("<tr id=\"entry-1\">") && first.matches("<tr id=\"entry-").count() == 1, "{first}");
        let earlier = page(&broker, &format!("{path}?page=0"), cookie).await;
        assert!(earlier.contains("<tr id=\"entry-50\">") && earlier.contains("Later entries"), "{earlier}");
    }
    is_refused(&broker, &path, &agent(&broker, "carol").await, 403, "readWorkspace").await;
}

#[tokio::test]
async fn a_policy_page_explains_what_the_rules_in_force_decide() {
    let broker = strict();
    for name in ["alice", "bob"] {
        drop(enrolled(&broker, name).await);
    }
    let operator = operator(&broker).await;
    let ask = "/policy?principal=agent%3Aalice&action=readTask&resource=task%3At&type=&participants=";
    let allowed = page(&broker, &format!("{ask}bob%2C+alice"), &operator).await;
    assert!(allowed.contains("<h2>Allowed</h2>") && allowed.contains("permit"), "{allowed}");
    let denied = page(&broker, &format!("{ask}bob"), &operator).await;
    assert!(denied.contains("<h2>Denied</h2>"), "{denied}");
    assert!(page(&broker, "/policy", &operator).await.contains("<option>readTask</option>"));
    for (question, problem) in [
        ("principal=alice&action=readTask&resource=task%3At", "is not a principal"),
        ("principal=agent%3Aalice&action=fly&resource=task%3At", "is not an action"),
        ("principal=agent%3Aalice&action=invite&resource=task%3At", "the schema does not allow"),
        ("principal=agent%3Aalice&action=readTask&resource=task%3At&participants=%3C", "participants"),
    ] {
        let refused = get(&broker, &format!("/policy?{question}"), &operator).await;
        assert!(refused.status == 400 && refused.body.contains(problem), "{question}: {}", refused.body);
    }
    // Rules are shown to those alone who may read the audit log.
    let alice = agent(&broker, "alice").await;
    let refused = get(&broker, ask, &alice).await;
    assert!(refused.status == 403 && refused.body.contains("PERMISSION_DENIED"), "{}", refused.body);
}
