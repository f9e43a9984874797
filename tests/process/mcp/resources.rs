//! Resources and prompts.

use rmcp::{
    ClientHandler, RoleClient,
    model::{
        GetPromptRequestParams, ReadResourceRequestParams, ResourceUpdatedNotificationParam, SubscribeRequestParams,
    },
    service::{NotificationContext, ServiceError},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Host, text};
use crate::broker::{Broker, PATIENCE};

/// A host that hears of changed resources.
struct Hearing(mpsc::UnboundedSender<String>);

impl ClientHandler for Hearing {
    async fn on_resource_updated(&self, news: ResourceUpdatedNotificationParam, _: NotificationContext<RoleClient>) {
        drop(self.0.send(news.uri));
    }
}

async fn try_read<H: ClientHandler>(host: &Host<H>, uri: &str) -> Result<Value, ServiceError> {
    let read = host.client.read_resource(ReadResourceRequestParams::new(uri)).await?;
    let read = serde_json::to_value(read).unwrap();
    let contents = &read["contents"][0];
    assert_eq!((text(contents, "uri"), text(contents, "mimeType")), (uri, "application/json"));
    Ok(serde_json::from_str(text(contents, "text")).unwrap())
}

async fn read<H: ClientHandler>(host: &Host<H>, uri: &str) -> Value {
    try_read(host, uri).await.unwrap_or_else(|error| panic!("{uri}: {error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_records_of_the_broker_are_resources() {
    let broker = Broker::start();
    let (alice, bob) =
        (Host::start(&broker, "alice", &[]).await, Host::start(&broker, "bob", &["--type", "reviewer"]).await);
    bob.call("inbox", json!({})).await;
    let lend = json!({"to": "bob", "summary": "review it", "context": {"files": ["a.rs"]}, "wait_seconds": 0});
    let lent = alice.call("delegate", lend).await;
    let (task, handoff) = (text(&lent, "task_id").to_owned(), text(&lent, "handoff_id").to_owned());

    let listed = alice.client.list_all_resources().await.unwrap();
    let uris: Vec<&str> = listed.iter().map(|resource| resource.uri.as_str()).collect();
    let expected = [
        "baton://me".to_owned(),
        "baton://inbox".to_owned(),
        format!("baton://handoffs/{handoff}"),
        format!("baton://tasks/{task}"),
    ];
    assert_eq!(uris, expected);
    let templates = alice.client.list_all_resource_templates().await.unwrap();
    assert_eq!(templates.len(), 5);

    let me = read(&bob, "baton://me").await;
    assert_eq!((text(&me, "agent_id"), &me["types"], text(&me, "presence")), ("bob", &json!(["reviewer"]), "ALIVE"));
    assert_eq!(text(&read(&alice, "baton://agents/bob").await, "agent_id"), "bob");
    let inbox = read(&bob, "baton://inbox").await;
    assert_eq!(text(&inbox["offers"][0], "handoff_id"), handoff);
    let shown = read(&bob, &format!("baton://handoffs/{handoff}")).await;
    assert_eq!((text(&shown, "from"), text(&shown, "candidate_id")), ("alice", "bob"));
    assert_eq!((text(&shown, "summary"), &shown["is_loan"]), ("review it", &json!(true)));
    let shown = read(&alice, &format!("baton://tasks/{task}")).await;
    assert_eq!((text(&shown, "owner_id"), &shown["context"]["files"]), ("alice", &json!(["a.rs"])));
    assert_eq!(read(&alice, &format!("baton://tasks/{task}/context/files")).await, json!(["a.rs"]));

    // A secret section is not there, nor is what the agent may not see, nor what does not exist.
    let mut secret = baton_client::json_section("plans", json!({"n": 1}));
    secret.secret = true;
    let create = baton::proto::v1::TaskCreate { task_type: "support".into(), ..Default::default() };
    let carol = baton_client::Agent::builder("carol").server(&broker.address).ca(broker.ca());
    let carol = carol.key(crate::broker::identity("carol").key).connect().await.unwrap();
    let hidden = carol.create_task("hidden", &create).await.unwrap();
    hidden.checkpoint(vec![secret]).await.unwrap();
    let carol = Host::start(&broker, "carol", &[]).await;
    assert_eq!(read(&carol, "baton://tasks/hidden").await["context"]["plans"]["secret"], "not shown to a model");
    for (host, uri) in [
        (&carol, "baton://tasks/hidden/context/plans"),
        (&carol, "baton://tasks/hidden/context/none"),
        (&alice, "baton://tasks/hidden/context/plans"),
        (&alice, "baton://tasks/none"),
        (&alice, "baton://agents/nobody"),
        (&alice, "baton://plans/none"),
        (&alice, "baton://handoffs/none"),
        (&alice, "baton://"),
        (&alice, "baton://tasks/a/../b"),
        (&alice, "file:///etc/passwd"),
    ] {
        let Err(ServiceError::McpError(error)) = try_read(host, uri).await else { panic!("{uri} is read") };
        assert_eq!(error.code.0, -32002, "{uri}: {error}");
    }

    // A broker that is away: the reads say so, the list has what is always there.
    let _folder = broker.kill();
    let Err(ServiceError::McpError(error)) = try_read(&alice, "baton://inbox").await else { panic!("it is read") };
    assert!(error.code.0 == -32603 && error.message.contains("after 30 seconds"), "{error}");
    assert_eq!(error.data.unwrap()["retry_after_seconds"], 30);
    let listed = alice.client.list_all_resources().await.unwrap();
    let always: Vec<&str> = listed.iter().take(2).map(|resource| resource.uri.as_str()).collect();
    assert_eq!(always, ["baton://me", "baton://inbox"]);
}

#[expect(deprecated, reason = "hosts of the era with `initialize` have nothing else")]
#[tokio::test(flavor = "multi_thread")]
async fn a_host_hears_of_a_changed_resource() {
    let broker = Broker::start();
    let (heard, mut news) = mpsc::unbounded_channel();
    let bob = Host::with(Hearing(heard), &broker, "bob", &[]).await;
    let alice = Host::start(&broker, "alice", &[]).await;
    bob.call("inbox", json!({})).await;
    bob.client.subscribe(SubscribeRequestParams::new("baton://inbox")).await.unwrap();
    // Twice is once.
    bob.client.subscribe(SubscribeRequestParams::new("baton://inbox")).await.unwrap();
    let wrong = bob.client.subscribe(SubscribeRequestParams::new("baton://nothing")).await;
    assert!(matches!(wrong, Err(ServiceError::McpError(_))), "{wrong:?}");
    // The first read may come after the change; a second change is news in any case.
    for summary in ["one", "two"] {
        alice.call("delegate", json!({"to": "bob", "summary": summary, "wait_seconds": 0})).await;
        if summary == "two" {
            break;
        }
        drop(tokio::time::timeout(std::time::Duration::from_secs(5), news.recv()).await);
    }
    let uri = tokio::time::timeout(PATIENCE, news.recv()).await.unwrap().unwrap();
    assert_eq!(uri, "baton://inbox");
    let unsubscribe = rmcp::model::UnsubscribeRequestParams::new("baton://inbox");
    bob.client.unsubscribe(unsubscribe).await.unwrap();

    // No more than the limit at a time.
    for place in 0..32 {
        let request = SubscribeRequestParams::new(format!("baton://tasks/t{place}"));
        bob.client.subscribe(request).await.unwrap();
    }
    let one_more = bob.client.subscribe(SubscribeRequestParams::new("baton://tasks/t32")).await;
    let Err(ServiceError::McpError(error)) = one_more else { panic!("it is followed") };
    assert!(error.message.contains("at most 32"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_have_their_arguments() {
    let broker = Broker::start();
    let host = Host::start(&broker, "alice", &[]).await;
    let prompts = host.client.list_all_prompts().await.unwrap();
    let names: Vec<&str> = prompts.iter().map(|prompt| prompt.name.as_str()).collect();
    assert_eq!(names, ["hand_over_well", "take_over"]);
    let get = |name: &str, arguments: Value| {
        let mut request = GetPromptRequestParams::new(name);
        request.arguments = arguments.as_object().cloned();
        host.client.get_prompt(request)
    };
    let prompt = get("hand_over_well", json!({"to": "bob"})).await.unwrap();
    let prompt = serde_json::to_value(prompt).unwrap();
    assert!(text(&prompt["messages"][0]["content"], "text").starts_with("Hand the work over to bob."), "{prompt}");
    let Err(ServiceError::McpError(error)) = get("take_over", json!({"handoff_id": 7})).await else { panic!() };
    assert_eq!((error.code.0, error.data.unwrap()["field"].clone()), (-32602, json!("/arguments/handoff_id")));
    let Err(ServiceError::McpError(error)) = get("none", json!({})).await else { panic!() };
    assert!(error.message.contains("there is no prompt"), "{error}");
}
