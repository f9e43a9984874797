//! The agents of a bench: identities, registration and connections.

use std::{future::Future, sync::Arc};

use tokio::{sync::Semaphore, task::JoinSet};

use super::broker::Target;
use crate::Failure;
use baton_client::{
    envelope::keys::PrivateKey,
    ids::{AgentId, IdSource as _, KeyId, SystemIds},
    proto::v1::{self, connect_request::Request},
    {Client, Identity, Pipeline},
};

/// The most agents that register or connect at the same time.
const AT_A_TIME: usize = 64;

/// A unique name for the run: a running broker still has the agents of earlier runs.
pub(super) fn new_run() -> String {
    hex::encode(&SystemIds.random()[..4])
}

/// The identity of an agent with a new key.
pub(super) fn new_agent(run: &str, role: &str, number: usize) -> Identity {
    Identity {
        agent: AgentId::parse(&format!("bench-{run}-{role}-{number}")).expect("it follows the grammar"),
        key_id: KeyId::parse("k1").expect("it follows the grammar"),
        key: PrivateKey::generate(&SystemIds),
    }
}

/// Registers the agents.
pub(super) async fn register(target: &Target, agents: impl Iterator<Item = &Identity>) -> Result<(), Failure> {
    let operator = target.operator().await?;
    all(agents.cloned(), move |identity| register_one(operator.clone(), identity)).await.map(drop)
}

async fn register_one(operator: Client, identity: Identity) -> Result<(), Failure> {
    let card = v1::AgentCard {
        agent_id: identity.agent.to_string(),
        description: "a part in baton bench".to_owned(),
        keys: vec![identity.agent_key()],
        ..Default::default()
    };
    let request = v1::RegisterAgentRequest { card: Some(card), ..Default::default() };
    Ok(operator.answer(operator.agents().register_agent(request).await).map(drop)?)
}

/// Authenticates the agent and opens a session over this connection.
pub(super) async fn open(connection: &Client, identity: &Identity) -> Result<Pipeline, Failure> {
    let proven = connection.sign_in(identity).await?;
    Ok(Pipeline::open(&proven).await?)
}

/// Sets the credit of the session, without an answer.
pub(super) fn take_credit(session: &mut Pipeline, max_outstanding: u32) {
    session.push(0, Request::Credit(v1::Credit { max_outstanding }));
    session.flush();
}

/// Runs `act` for every item, with bounded concurrency. Returns the results in the order of the items.
pub(super) async fn all<I, O, F>(items: impl Iterator<Item = I>, act: impl Fn(I) -> F) -> Result<Vec<O>, Failure>
where
    O: Send + 'static,
    F: Future<Output = Result<O, Failure>> + Send + 'static,
{
    let (permits, mut acting) = (Arc::new(Semaphore::new(AT_A_TIME)), JoinSet::new());
    for (number, item) in items.enumerate() {
        let (permits, act) = (permits.clone(), act(item));
        acting.spawn(async move {
            let _permit = permits.acquire().await;
            act.await.map(|outcome| (number, outcome))
        });
    }
    let mut outcomes = Vec::with_capacity(acting.len());
    while let Some(ended) = acting.join_next().await {
        outcomes.push(ended.map_err(|failed| Failure::failed(failed.to_string()))??);
    }
    outcomes.sort_unstable_by_key(|(number, _)| *number);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}
