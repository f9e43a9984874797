//! A client of an agent renews its token by itself.

use baton::proto::v1;
use baton_client::{Client, ClientError};

use crate::{
    broker::{Broker, a_request, card, eventually, identity, new_task},
    ports::HeldPort,
};

/// A broker on this port, with the agents alice and bob. Each restart ends the tokens of the process before.
async fn broker_with_agents(port: &HeldPort) -> Broker {
    let broker = Broker::serve_on(port);
    let client = broker.operator().await;
    for name in ["alice", "bob"] {
        let request = v1::RegisterAgentRequest { card: Some(card(name, "")), ..Default::default() };
        client.answer(client.agents().register_agent(request).await).unwrap();
    }
    broker
}

async fn restarted(broker: Broker) -> Broker {
    let folder = broker.folder.clone();
    broker.stop().await;
    Broker::serve_again(folder)
}

fn reason(error: &ClientError) -> &str {
    error.reason().unwrap_or_else(|| panic!("{error}"))
}

/// The answer of a call, once the connection to the restarted broker is there.
async fn answered<T, F: Future<Output = Result<T, ClientError>>>(call: impl Fn() -> F) -> Result<T, ClientError> {
    let mut answer = call().await;
    eventually("the broker answers", async || {
        if matches!(answer, Err(ClientError::Unreachable { .. })) {
            answer = call().await;
        }
        !matches!(answer, Err(ClientError::Unreachable { .. }))
    })
    .await;
    answer
}

async fn agents(client: &Client) -> Result<usize, ClientError> {
    let page = client.agents().list_agents(v1::ListAgentsRequest::default()).await;
    Ok(client.answer(page)?.agents.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_client_go_on_when_its_token_has_ended() {
    let port = HeldPort::new();
    let broker = broker_with_agents(&port).await;
    let task = new_task();
    broker.agent_session("alice").await.request("bob", &task, 1, &a_request()).await.unwrap();
    let bare = broker.client().await;
    let with_a_token = bare.with_token(&bare.prove(&identity("alice")).await.unwrap()).unwrap();
    let signed_in = bare.sign_in(&identity("alice")).await.unwrap();
    let clone = signed_in.clone();
    let known = agents(&signed_in).await.unwrap();

    let broker = restarted(broker).await;
    assert_eq!(answered(|| agents(&signed_in)).await.unwrap(), known);
    assert_eq!(agents(&clone).await.unwrap(), known, "clones share the new token");
    // A token alone proves nothing anew.
    assert_eq!(reason(&answered(|| agents(&with_a_token)).await.unwrap_err()), "TOKEN_INVALID");

    // A stream of requests is sent again from its beginning. The other client shares the connection.
    let broker = restarted(broker).await;
    assert_eq!(reason(&answered(|| agents(&with_a_token)).await.unwrap_err()), "TOKEN_INVALID");
    let content: Vec<u8> = (0..900_000_u32).map(|number| number.to_le_bytes()[1]).collect();
    let sha256: Vec<u8> = baton::envelope::signing::sha256(&[&content]).to_vec();
    let blob = v1::Blob { sha256: sha256.into(), size_bytes: 900_000, ..Default::default() };
    let workspace_id = format!("task:{task}");
    let first = v1::WriteBlobRequest { blob: Some(blob), workspace_id, ..Default::default() };
    let part = |number: usize| v1::WriteBlobRequest {
        write_offset: number as u64 * 300_000,
        data: content[number * 300_000..][..300_000].to_vec().into(),
        ..Default::default()
    };
    let parts = [first, part(0), part(1), part(2)];
    let written = signed_in.blobs().write_blob(tokio_stream::iter(parts)).await;
    assert_eq!(signed_in.answer(written).unwrap().blob.unwrap().size_bytes, 900_000);

    // Calls at the same time all go on.
    let broker = restarted(broker).await;
    let all = tokio::join!(
        answered(|| agents(&signed_in)),
        answered(|| agents(&clone)),
        answered(|| agents(&signed_in)),
        answered(|| agents(&clone))
    );
    let all = [all.0, all.1, all.2, all.3].map(|answer| answer.unwrap());
    assert_eq!(all, [known; 4]);

    // While no broker runs the call fails as any other does, and the next one after the start goes on.
    let folder = broker.folder.clone();
    broker.stop().await;
    assert!(matches!(agents(&signed_in).await, Err(ClientError::Unreachable { .. })));
    let broker = Broker::serve_again(folder);
    assert_eq!(answered(|| agents(&signed_in)).await.unwrap(), known);

    // A key that is revoked gets no further token: the refusal of the proof is the answer.
    broker.operator().await.revoke_key("alice", "k1", "lost").await.unwrap();
    assert_eq!(reason(&agents(&signed_in).await.unwrap_err()), "CHALLENGE_FAILED");
}
