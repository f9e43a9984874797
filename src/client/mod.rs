//! The Rust client: what our own commands use, and any agent in Rust can.
//!
//! Owns connecting, proving who one is, the session, and checking what comes back: receipts by the broker's key,
//! envelopes by their senders' keys. Must not know the broker's insides: it talks over the wire like everybody else.
//!
//! An agent that takes what it is offered, and first ends what an earlier process of it has left:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use baton::{
//!     client::{ClientError, Delivered, Handler, Link, LinkOptions, NotTaken},
//!     ids::SystemIds,
//!     proto::v1::{self, MessageType},
//!     time::SystemClock,
//! };
//! use tokio_util::sync::CancellationToken;
//!
//! struct Mail;
//!
//! impl Handler for Mail {
//!     async fn handle(&self, link: Link, delivered: Delivered) -> Result<(), NotTaken> {
//!         match delivered.kind() {
//!             MessageType::HandoffRequest => link.accept(&delivered, &v1::HandoffAccept::default()).await?,
//!             MessageType::TaskContextTransfer => {
//!                 let context: v1::TaskContextTransfer = delivered.payload();
//!                 println!("{} sections", context.sections.len());
//!                 let task = link.complete(&delivered).await?;
//!                 task.finish(None).await?;
//!             }
//!             _ => {} // news
//!         }
//!         Ok(())
//!     }
//! }
//!
//! async fn run(options: LinkOptions, stop: CancellationToken) -> Result<(), ClientError> {
//!     let link = Link::connect(options, Arc::new(SystemClock), Arc::new(SystemIds)).await?;
//!     for task in link.owned_tasks().await? {
//!         task.finish(None).await?;
//!     }
//!     link.serve(Mail, stop).await
//! }
//! ```

mod agent;
mod compose;
mod error;
mod handoffs;
mod limits;
mod link;
mod pipeline;
mod serve;
mod session;
mod trust;
mod waiting;

use std::{path::PathBuf, time::Duration};

use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

pub use agent::{Agent, Delivered};
pub use compose::{About, Composer, context_of, context_of_sections};
pub use error::{ClientError, Refused};
pub use handoffs::{HandOverError, HandedOver, OwnedTask, Rejection, Returned};
pub use link::{Link, LinkOptions};
pub use pipeline::Pipeline;
pub use serve::{Handler, NotTaken};
pub use session::Session;
pub use trust::{Trust, vouch};

use crate::{
    envelope::{FRAME_BYTES_MAX, keys::PrivateKey, signing},
    ids::{AgentId, KeyId},
    proto::v1::{
        self, agent_service_client::AgentServiceClient, audit_service_client::AuditServiceClient,
        broker_service_client::BrokerServiceClient, dead_letter_service_client::DeadLetterServiceClient,
        handoff_service_client::HandoffServiceClient, task_service_client::TaskServiceClient,
    },
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be without a word before it is asked for one, by a ping of HTTP/2.
const PING_AFTER: Duration = Duration::from_secs(20);
/// How long the answer to a ping may take before the connection, and what is under way on it, is given up.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a broker is, and as whom to call it.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// HOST:PORT; or http://HOST:PORT without TLS, to a broker on this machine that takes such connections.
    pub server: String,
    /// A PEM file with the CA to trust; the system's CAs if there is none.
    pub ca: Option<PathBuf>,
    /// A token to call with.
    pub token: Option<String>,
    /// What to prove by who one is when connecting.
    pub certificate: Option<ClientCertificate>,
}

/// A certificate of an agent, and its key: PEM files. The certificate has a URI `urn:baton:agent:ID`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, then those that lead to the CA.
    pub certificate: PathBuf,
    /// Its private key, not encrypted.
    pub key: PathBuf,
}

/// Who an agent is, and what proves it.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The agent.
    pub agent: AgentId,
    /// The name of its key.
    pub key_id: KeyId,
    /// The key.
    pub key: PrivateKey,
}

impl Identity {
    /// The public half, as it stands on the agent's card.
    pub fn agent_key(&self) -> v1::AgentKey {
        let public_key = self.key.public().as_bytes().to_vec().into();
        v1::AgentKey { key_id: self.key_id.to_string(), public_key, ..Default::default() }
    }
}

/// A channel whose calls carry a token.
pub type Authorized = InterceptedService<Channel, Token>;

/// Adds the token to each call.
#[derive(Debug, Clone, Default)]
pub struct Token(Option<MetadataValue<Ascii>>);

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// Over TLS, with the CA to trust and the certificate to show.
fn encrypted(server: &str, options: &Options) -> Result<Endpoint, ClientError> {
    let mut tls = ClientTlsConfig::new();
    tls = match &options.ca {
        Some(path) => {
            let pem = std::fs::read(path).map_err(|source| ClientError::Ca { path: path.clone(), source })?;
            tls.ca_certificate(Certificate::from_pem(pem))
        }
        None => tls.with_native_roots(),
    };
    if let Some(files) = &options.certificate {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|source| ClientError::Certificate { path: path.clone(), source })
        };
        tls = tls.identity(tonic::transport::Identity::from_pem(read(&files.certificate)?, read(&files.key)?));
    }
    Endpoint::from_shared(format!("https://{server}"))
        .and_then(|endpoint| endpoint.tls_config(tls))
        .map_err(|source| ClientError::Address { server: server.to_owned(), source })
}

/// Without TLS, and so never off this machine: what is sent has tokens in it.
fn plaintext(server: &str, address: &str) -> Result<Endpoint, ClientError> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if !is_here {
        return Err(ClientError::PlaintextAfar { server: server.to_owned() });
    }
    Endpoint::from_shared(server.to_owned())
        .map_err(|source| ClientError::Address { server: server.to_owned(), source })
}

/// A connection to a broker. Clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    server: String,
    /// The connection itself proves who one is.
    is_certified: bool,
    channel: Channel,
    token: Token,
}

impl Client {
    /// Connects.
    pub async fn connect(options: &Options) -> Result<Self, ClientError> {
        let server = options.server.clone();
        let endpoint = match server.strip_prefix("http://") {
            Some(address) => plaintext(&server, address)?,
            None => encrypted(&server, options)?,
        };
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .tcp_nodelay(true);
        let channel = endpoint.connect().await.map_err(|source| ClientError::connecting(&server, &source))?;
        let is_certified = options.certificate.is_some();
        let client = Self { server, is_certified, channel, token: Token::default() };
        match &options.token {
            Some(token) => client.with_token(token),
            None => Ok(client),
        }
    }

    /// The same connection with this token.
    pub fn with_token(&self, token: &str) -> Result<Self, ClientError> {
        let value = format!("Bearer {token}").parse().map_err(|_| ClientError::Token)?;
        Ok(Self { token: Token(Some(value)), ..self.clone() })
    }

    /// Proves who one is. Returns the token; see [`Self::with_token`].
    pub async fn prove(&self, identity: &Identity) -> Result<String, ClientError> {
        let (agent_id, key_id) = (identity.agent.to_string(), identity.key_id.to_string());
        // Without the token that may be there: this is to get a new one.
        let mut agents = AgentServiceClient::new(self.channel.clone());
        let request = v1::CreateChallengeRequest { agent_id: agent_id.clone() };
        let challenge = self.answer(agents.create_challenge(request).await)?.challenge;
        let signature = identity.key.sign(&signing::session_input(&agent_id, &key_id, &challenge));
        let signature = signature.to_vec().into();
        let request = v1::CreateTokenRequest { agent_id, key_id, challenge, signature };
        Ok(self.answer(agents.create_token(request).await)?.token)
    }

    /// The broker's answer, or the error that it is.
    pub fn answer<T>(&self, answer: Result<tonic::Response<T>, Status>) -> Result<T, ClientError> {
        answer.map(tonic::Response::into_inner).map_err(|status| ClientError::of(&self.server, &status))
    }

    /// Sends one envelope by a call of its own, without a session. Returns the broker's receipt; its signature is not
    /// checked, for without a session nothing says which key is the broker's.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] where the broker refuses it, and before anything is sent where it is over the limits of the
    /// schema: a payload over 1,048,576 bytes is `PAYLOAD_TOO_LARGE`, a field out of its bounds `FIELD_INVALID`.
    pub async fn send(&self, envelope: bytes::Bytes) -> Result<v1::Receipt, ClientError> {
        limits::check_envelope(&envelope)?;
        let answer = self.answer(self.messages().send(v1::SendRequest { envelope }).await)?;
        answer.receipt.ok_or_else(|| ClientError::Answer("there is no receipt in it".to_owned()))
    }

    /// Sending and receiving, without the checks of [`Self::send`].
    pub fn messages(&self) -> BrokerServiceClient<Authorized> {
        BrokerServiceClient::with_interceptor(self.channel.clone(), self.token.clone())
            .max_decoding_message_size(FRAME_BYTES_MAX)
            .max_encoding_message_size(FRAME_BYTES_MAX)
    }

    /// The directory.
    pub fn agents(&self) -> AgentServiceClient<Authorized> {
        AgentServiceClient::with_interceptor(self.channel.clone(), self.token.clone())
    }

    /// Handoffs.
    pub fn handoffs(&self) -> HandoffServiceClient<Authorized> {
        HandoffServiceClient::with_interceptor(self.channel.clone(), self.token.clone())
            .max_decoding_message_size(FRAME_BYTES_MAX)
    }

    /// The log of administrative acts.
    pub fn audit(&self) -> AuditServiceClient<Authorized> {
        AuditServiceClient::with_interceptor(self.channel.clone(), self.token.clone())
    }

    /// Dead letters.
    pub fn dead_letters(&self) -> DeadLetterServiceClient<Authorized> {
        DeadLetterServiceClient::with_interceptor(self.channel.clone(), self.token.clone())
            .max_decoding_message_size(FRAME_BYTES_MAX)
    }

    /// Tasks.
    pub fn tasks(&self) -> TaskServiceClient<Authorized> {
        TaskServiceClient::with_interceptor(self.channel.clone(), self.token.clone())
            .max_decoding_message_size(FRAME_BYTES_MAX)
    }
}
