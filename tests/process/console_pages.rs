//! The pages of the web console about tasks, plans, agents and the audit log: what they show of
//! the work of real clients, whom they refuse, and that texts of agents stay texts.

use baton::{
    client::{Agent, context_of},
    envelope::struct_of,
    proto::v1::{self, MessageType, TaskStatus},
};
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
    answer.body
}

fn is_well_made(path: &str, body: &str) {
    assert!(body.len() < 100_000, "{path}: {} bytes", body.len());
    for forbidden in ["<img", " style=", "<style", "<script>", " onclick"] {
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
    for picture in body.split("<svg").skip(1) {
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

const LISTS: [&str; 2] = ["/plans", "/audit"];
const UNKNOWN: [(&str, &str); 3] =
    [("/tasks/none", "TASK_UNKNOWN"), ("/plans/none", "PLAN_UNKNOWN"), ("/agents/none", "AGENT_UNKNOWN")];
const MALFORMED: [&str; 6] =
    ["/tasks/a%20b", "/tasks/none?page=x", "/plans/a%20b", "/plans?page=x", "/plans?state=X", "/plans/none?page=x"];

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
    let result = struct_of(&json!({"response": format!("{IMAGE} {}", "x".repeat(5000))}));
    let update = v1::TaskStatusUpdate { status: TaskStatus::Completed.into(), result, ..Default::default() };
    fei.report(&baton::client::About::task(&receipt.task_id, receipt.epoch), &update).await.unwrap();
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
        for (id, state) in [("fetch", "COMPLETED"), ("count", "HANDING_OFF"), ("write", "PENDING")] {
            assert!(shown.contains(&format!("<title>{id}: {state}</title>")), "{shown}");
            assert!(
                shown.contains(&format!("<tr id=\"subtask-{id}\"><th scope=\"row\">{id}</th><td>{state}</td>")),
                "{shown}"
            );
        }
        // What `fetch` gives `write` goes through `count` in the picture, and is in the table.
        assert_eq!(shown.matches("class=\"link\"").count(), 2, "{shown}");
        assert!(shown.contains("<td>fetch, count</td>") && shown.contains("href=\"/tasks/sums.fetch\""), "{shown}");
        assert!(shown.contains(ESCAPED) && shown.contains("<section id=\"result-fetch\""), "{shown}");
        assert!(shown.contains("the whole text has 5029 bytes"), "{shown}");
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
        eventually("the letter is counted", async || {
            page(&broker, path, cookie).await.contains("<dd>1 letters, the oldest of <time")
        })
        .await;
        let shown = page(&broker, path, cookie).await;
        assert!(shown.contains("ALIVE, 1 open sessions") && shown.contains("<tr id=\"key-"), "{shown}");
        assert!(shown.contains(&hex::encode(card("bob", "").keys[0].public_key.clone())), "{shown}");
        assert!(shown.matches(ESCAPED).count() == 2 && shown.contains("3 active tasks"), "{shown}");
        assert!(page(&broker, "/agents", cookie).await.contains("<tr id=\"agent-bob\"><td><a href=\"/agents/bob\">"));
        page(&broker, "/agents/baton", cookie).await;
    }
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
