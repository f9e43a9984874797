//! Baton to baton: the remote agent is what a gateway publishes, in each binding.

use baton::proto::v1::{self, TaskStatus};
use baton_client::{Agent, Asked, HandOverError, Offer, Question, question};
use http::Request;
use serde_json::{Value, json};

use super::{
    Connector, builder, file, lend, new_task,
    remote::{Remote, Reply},
    reported, reports, within,
};
use crate::{
    broker::{Broker, eventually, write_private},
    gateway::{Gateway, granted},
};

/// kiri adds hours, and asks for their unit. Without hours it works for ever.
async fn kiri(broker: &Broker) -> Agent {
    let adds = |offer: Offer| async move {
        let takeover = offer.accept().await?;
        let data: Value = takeover.json("collected_data")?;
        let task = takeover.complete().await?;
        let details = "adding up".to_owned();
        let status = TaskStatus::InProgress.into();
        task.report(&v1::TaskStatusUpdate { status, details, ..Default::default() }).await?;
        let hours = data["collected_data"]["hours"].as_array().unwrap();
        let sum: u64 = hours.iter().filter_map(Value::as_u64).sum();
        if sum == 0 {
            std::future::pending::<()>().await;
        }
        let mut prompt = question("which unit?", "rana");
        prompt.answer_schema_json = r#"{"type":"object","required":["unit"]}"#.to_owned();
        let Asked::Answered(answer) = task.ask(prompt, "").await? else { return Err("there is no answer".into()) };
        task.finish(Some(json!({"sum": sum, "unit": answer.data.unwrap()["unit"]}))).await?;
        Ok(())
    };
    builder(broker, "kiri").on_handoff(adds).connect().await.unwrap()
}

/// A gateway that publishes kiri, and the file of rana's token.
async fn publishing(broker: &Broker) -> (Gateway, String, std::path::PathBuf) {
    let (token, _) = granted(broker, "rana").await;
    let bearer = file(broker, "bearer");
    write_private(&bearer, &token);
    (Gateway::start(broker, &["--a2a-publish", "kiri"]), token, bearer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_goes_through_a_gateway_and_back_in_each_binding() {
    let broker = Broker::start();
    let (gateway, _, bearer) = publishing(&broker).await;
    let _kiri = kiri(&broker).await;
    let alice = builder(&broker, "alice").on_question(|question: Question| async move {
        assert_eq!(question.text(), "which unit?");
        question.answer_data(&json!({"unit": "h"})).await?;
        Ok(())
    });
    let alice = alice.connect().await.unwrap();
    let path = "/a2a/kiri/.well-known/agent-card.json";
    let card = gateway.send(Request::builder().uri(path).body(Vec::new()).unwrap()).await.unwrap().json();
    for binding in ["JSONRPC", "HTTP+JSON"] {
        let mut card = card.clone();
        let interfaces = card["supportedInterfaces"].as_array_mut().unwrap();
        interfaces.retain(|interface| interface["protocolBinding"] == binding);
        let elsewhere = Remote::with(|_| card, |_, _| Reply::Silence).await;
        let origin = format!("https://{}", gateway.address);
        let options = ["--bearer-file", bearer.to_str().unwrap(), "--allow-origin", &origin];
        let mut connector = Connector::start(&broker, &elsewhere.url, &options);
        let lent = new_task();
        let done = within(lend(&alice, &lent)).await.unwrap();
        let result = Some(json!({"sum": 42, "unit": "h"}));
        assert_eq!((done.status, done.result), (TaskStatus::Completed, result), "{binding}: {}", done.details);
        connector.says("completed");
        let told = reports(&alice, &lent).await;
        assert!(told.iter().any(|details| details == "artifact result"), "{binding}: {told:?}");
    }
    let of_rana = broker.lines(&["task", "list"]).into_iter().filter(|task| task["ownerId"] == "rana").count();
    assert_eq!(of_rana, 2, "one task of the gateway for each of alice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recall_goes_through_a_gateway() {
    let broker = Broker::start();
    let (gateway, token, bearer) = publishing(&broker).await;
    let _kiri = kiri(&broker).await;
    let alice = super::alice(&broker).await;
    let card = format!("https://{}/a2a/kiri/.well-known/agent-card.json", gateway.address);
    let mut connector = Connector::start(&broker, &card, &["--bearer-file", bearer.to_str().unwrap()]);
    let section = baton_client::json_section("collected_data", json!({"hours": []}));
    let lent = new_task();
    let waiting = alice.delegate("type:billing", &lent, &crate::broker::a_request(), [section]);
    let waiting = tokio::spawn(waiting.into_future());
    reported(&alice, &lent, "adding up").await;
    let handoff = alice.get_task(&lent).await.unwrap().hops[0].handoff_id.clone();
    alice.recall(&handoff, "no longer needed").await.unwrap();
    let recalled = within(waiting).await.unwrap();
    assert!(matches!(recalled, Err(HandOverError::Recalled { .. })), "{recalled:?}");
    let id = connector.says("canceled")["remote_task"].as_str().unwrap().to_owned();
    eventually("the task of the gateway is canceled", async || {
        let request = Request::builder().uri(format!("/a2a/kiri/tasks/{id}")).header("a2a-version", "1.0");
        let request = request.header("authorization", format!("Bearer {token}")).body(Vec::new()).unwrap();
        gateway.send(request).await.unwrap().json()["status"]["state"] == "TASK_STATE_CANCELED"
    })
    .await;
}
