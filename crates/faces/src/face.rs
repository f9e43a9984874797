//! An agent behind a face: its identity, and the broker.

use std::{sync::Arc, time::Duration};

use baton_client::{
    About, Client, ClientError, Composer, Identity, Options, envelope,
    ids::SystemIds,
    proto::v1::{self, MessageType},
    session::Agent as Session,
    time::SystemClock,
};
use prost::Message as _;
use tokio::{sync::Mutex, time};
use tokio_util::sync::CancellationToken;

use crate::{ActError, contexts};

/// How long a connection may take.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// The time to decide that a face states where it registers its agent: a model looks into its inbox now and then.
const DECIDES_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the question may take whether the broker takes the key. Afterwards an act finds out.
const ACCEPTED_TIME: Duration = Duration::from_secs(2);
/// When a lost session is opened again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// An agent behind a face. It connects at the first act, and again after the broker's return.
pub struct Face {
    options: Options,
    types: Vec<String>,
    decides_within: Option<Duration>,
    /// Whether an agent that the broker does not know is registered.
    registers: bool,
    /// The only run whose choices are tools. `None`: all runs.
    run_id: Option<String>,
    composer: Composer,
    /// The connection; `None`: none yet. It reconnects by itself.
    client: Mutex<Option<Client>>,
}

impl std::fmt::Debug for Face {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Face").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Face {
    /// The agent with this identity, at the broker of these options. With types the agent is registered under them.
    /// `decides_within` is the time that its card states for decisions about offers, 1 s to 7 days. `None`: 24 hours where
    /// the face registers the agent, else the card stays as it is.
    pub fn new(options: Options, identity: Identity, types: Vec<String>, decides_within: Option<Duration>) -> Self {
        Self { types, decides_within, registers: true, ..Self::registered(options, identity) }
    }

    /// An agent that the broker knows, at the broker of these options. Nothing registers it, and its card stays as it is.
    pub fn registered(options: Options, identity: Identity) -> Self {
        let composer = Composer { identity, clock: Arc::new(SystemClock), ids: Arc::new(SystemIds) };
        let types = Vec::new();
        Self {
            options,
            types,
            decides_within: None,
            registers: false,
            run_id: None,
            composer,
            client: Mutex::new(None),
        }
    }

    /// The same agent, with the choices of this run alone as tools. `None`: those of all runs.
    #[must_use]
    pub fn of_run(self, run_id: Option<String>) -> Self {
        Self { run_id, ..self }
    }

    pub(crate) fn run_id(&self) -> Option<&str> {
        self.run_id.as_deref()
    }

    /// The agent's id.
    pub fn id(&self) -> &str {
        self.composer.identity.agent.as_str()
    }

    pub(crate) fn composer(&self) -> &Composer {
        &self.composer
    }

    /// The connection, as this agent.
    pub(crate) async fn client(&self) -> Result<Client, ActError> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let connected = time::timeout(CONNECT_TIME, self.connect()).await;
        let connected = connected.map_err(|_| ActError::away("no answer in time"))??;
        Ok(client.insert(connected).clone())
    }

    async fn connect(&self) -> Result<Client, ClientError> {
        let client = Client::connect(&self.options).await?;
        let identity = &self.composer.identity;
        if !self.registers {
            return client.sign_in(identity).await;
        }
        // A span that is too long for the message is out of the broker's bounds, too.
        let longest = prost_types::Duration { seconds: i64::MAX, nanos: 0 };
        let decides_within = self.decides_within.unwrap_or(DECIDES_WITHIN);
        let decides_within = Some(decides_within.try_into().unwrap_or(longest));
        let card = v1::AgentCard { agent_types: self.types.clone(), decides_within, ..Default::default() };
        if !self.types.is_empty() {
            client.register(identity, card, "").await?;
            return client.sign_in(identity).await;
        }
        match client.sign_in(identity).await {
            // The broker does not say whether it knows the agent. One with another key stays refused.
            Err(refused) if refused.reason() == Some("CHALLENGE_FAILED") => {
                match client.register(identity, card, "").await {
                    Ok(_) => client.sign_in(identity).await,
                    Err(_) => Err(refused),
                }
            }
            Ok(client) => {
                if self.decides_within.is_some() {
                    let card = v1::AgentCard { agent_id: self.id().to_owned(), decides_within, ..Default::default() };
                    client.update_agent(card, &["decides_within"], "").await?;
                }
                Ok(client)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a message. An empty receiver is the broker's choice.
    pub(crate) async fn send<M: prost::Message + prost::Name>(
        &self,
        to: &str,
        kind: MessageType,
        about: &About,
        payload: &M,
    ) -> Result<v1::Receipt, ActError> {
        Ok(self.client().await?.send(self.composer.encode(to, kind, about, payload)).await?)
    }

    /// Sends a message under an id of its own, so that its repeats do not count.
    pub(crate) async fn send_once<M: prost::Message + prost::Name>(
        &self,
        message_id: &str,
        to: &str,
        kind: MessageType,
        about: &About,
        payload: &M,
    ) -> Result<(), ActError> {
        let mut envelope = self.composer.draft(to, kind, about, payload);
        message_id.clone_into(&mut envelope.message_id);
        envelope::sign(&mut envelope, &self.composer.identity.key_id, &self.composer.identity.key);
        match self.client().await?.send(envelope.encode_to_vec().into()).await.map_err(ActError::from) {
            // An earlier one, at another time.
            Err(error) if error.reason != "MESSAGE_ID_REUSED" => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) async fn task(&self, task_id: &str) -> Result<v1::Task, ActError> {
        let client = self.client().await?;
        let request = v1::GetTaskRequest { task_id: task_id.to_owned() };
        Ok(client.answer(client.tasks().get_task(request).await)?.task.unwrap_or_default())
    }

    pub(crate) async fn handoff(&self, handoff_id: &str) -> Result<v1::Handoff, ActError> {
        Ok(self.handoff_with(handoff_id, false).await?.handoff.unwrap_or_default())
    }

    pub(crate) async fn handoff_with(
        &self,
        id: &str,
        include_context: bool,
    ) -> Result<v1::GetHandoffResponse, ActError> {
        let client = self.client().await?;
        let request = v1::GetHandoffRequest { handoff_id: id.to_owned(), include_context };
        Ok(client.answer(client.handoffs().get_handoff(request).await)?)
    }

    /// Whether the broker takes the key; `None`: it does not say.
    pub(crate) async fn is_accepted(&self) -> Option<bool> {
        let asked = async {
            let client = self.client().await?;
            let request = v1::GetAgentRequest { agent_id: self.id().to_owned() };
            client.answer(client.agents().get_agent(request).await).map_err(ActError::from)
        };
        match time::timeout(ACCEPTED_TIME, asked).await {
            Ok(Ok(_)) => Some(true),
            Ok(Err(error)) if error.is_of_key() => Some(false),
            // A policy that forbids the read has found the agent.
            Ok(Err(error)) => (error.reason == "PERMISSION_DENIED").then_some(true),
            Err(_) => None,
        }
    }

    /// What goes on while no act runs, until `stop`: the agent is present, and the contexts of its handoffs are sent.
    pub async fn attend(&self, stop: CancellationToken) {
        let forever = async { tokio::join!(self.be_present(), contexts::send_all(self)) };
        tokio::select! {
            _ = forever => {}
            () = stop.cancelled() => {}
        }
    }

    /// Keeps a session without credit: the agent is ALIVE, and its mail stays in its mailbox for the acts.
    async fn be_present(&self) {
        loop {
            if let Ok(client) = self.client().await {
                let Composer { identity, clock, ids } = self.composer.clone();
                match Session::connect(&client, identity, 0, clock, ids).await {
                    Ok(agent) => drop(agent.session.next_delivery().await),
                    Err(error) => tracing::debug!(%error, "no session"),
                }
            }
            time::sleep(AGAIN_AFTER).await;
        }
    }
}
