//! Agent cards: of what the operator names, for everybody.

use baton::proto::v1;
use http::{Method, Request};
use serde_json::{Value, json};

use super::super::{Answer, Gateway, gateway, granted};
use crate::broker::{Broker, card, eventually, exit_of};

/// Registers an agent of the type billing with these skills.
async fn biller(broker: &Broker, name: &str, skills: &[(&str, &str, &[&str])]) {
    let skill = |(name, description, tags): &(&str, &str, &[&str])| v1::AgentSkill {
        name: (*name).to_owned(),
        description: (*description).to_owned(),
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        ..Default::default()
    };
    let card = v1::AgentCard { skills: skills.iter().map(skill).collect(), ..card(name, "billing") };
    let client = broker.operator().await;
    let request = v1::RegisterAgentRequest { card: Some(card), ..Default::default() };
    client.answer(client.agents().register_agent(request).await).unwrap();
}

async fn card_of(gateway: &Gateway, name: &str, tag: Option<&str>) -> Answer {
    let mut request = Request::builder().uri(format!("/a2a/{name}/.well-known/agent-card.json"));
    if let Some(tag) = tag {
        request = request.header("if-none-match", tag);
    }
    gateway.send(request.body(Vec::new()).unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_published_has_a_card_and_nothing_else_has() {
    let broker = Broker::start();
    biller(&broker, "bob", &[("tax", "", &["de"]), ("invoice", "Writes invoices.", &[])]).await;
    biller(&broker, "carol", &[("tax", "Files taxes.", &["at"])]).await;
    let gateway = Gateway::start(&broker, &["--a2a-publish", "type:billing,bob,nobody"]);
    // The gateway reads with the keys of grants.
    let early = card_of(&gateway, "billing", None).await;
    assert_eq!((early.status, early.reason()), (503, "UNAVAILABLE".to_owned()), "{early:?}");
    granted(&broker, "alice").await;
    eventually("the grant is found", async || card_of(&gateway, "billing", None).await.status == 200).await;

    let answer = card_of(&gateway, "billing", None).await;
    let found = answer.json();
    let skill = |at: usize| {
        let skill = &found["skills"][at];
        (skill["id"].clone(), skill["description"].clone(), skill["tags"].clone())
    };
    assert_eq!(found["name"], "billing");
    assert_eq!(skill(0), (json!("invoice"), json!("Writes invoices."), json!(["invoice"])));
    assert_eq!(skill(1), (json!("tax"), json!("Files taxes."), json!(["at", "de"])));
    let url = format!("https://{}/a2a/billing", gateway.address);
    let bindings: Vec<Value> = ["JSONRPC", "HTTP+JSON"]
        .map(|binding| json!({"url": url, "protocolBinding": binding, "protocolVersion": "1.0"}))
        .to_vec();
    assert_eq!(found["supportedInterfaces"], json!(bindings));
    assert_eq!(found["capabilities"]["streaming"], true);
    assert_eq!(found["securitySchemes"]["grant"]["httpAuthSecurityScheme"]["scheme"], "Bearer");
    assert_eq!(answer.head["content-type"], "application/json");
    assert!(answer.head["cache-control"].to_str().unwrap().contains("max-age"));

    // A known card is not sent again, and one agent has its own skills.
    let tag = answer.head["etag"].to_str().unwrap();
    let known = card_of(&gateway, "billing", Some(tag)).await;
    assert_eq!((known.status, known.text.as_str(), &known.head["etag"]), (304, "", &answer.head["etag"]));
    let own = card_of(&gateway, "bob", Some(tag)).await;
    assert_eq!((own.status, own.json()["skills"].as_array().unwrap().len()), (200, 2));

    // Unpublished, unknown to the broker, or no agent at all: the same answer.
    let unknown = card_of(&gateway, "carol", None).await;
    assert_eq!((unknown.status, unknown.reason()), (404, "PATH_UNKNOWN".to_owned()));
    for name in ["nobody", "none", "type:billing"] {
        assert_eq!(card_of(&gateway, name, None).await.text, unknown.text, "{name}");
    }
    let posted = Request::builder().method(Method::POST).uri("/a2a/bob/.well-known/agent-card.json");
    assert_eq!(gateway.send(posted.body(Vec::new()).unwrap()).await.unwrap().status, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_cannot_be_published_are_refused() {
    let broker = Broker::start();
    for (names, words) in [("type:billing,billing", "billing twice"), ("a/b", "--a2a-publish"), ("", "--a2a-publish")] {
        let (code, said) = exit_of(gateway(&broker, &[]).args(["--listen", "127.0.0.1:0", "--a2a-publish", names]));
        assert!(code == Some(2) && said.contains(words), "{names}: {code:?} {said}");
    }
}
