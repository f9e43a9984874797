//! Connections to a broker: addresses, TLS, credentials, and the stubs of each service.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tonic::{
    Status,
    client::Grpc,
    codec::CompressionEncoding,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

use super::{
    ClientError,
    authorized::{self, Authorized, Credentials},
    limits,
};
use crate::{
    envelope::{FRAME_BYTES_MAX, keys::PrivateKey},
    ids::{AgentId, KeyId},
    proto::v1::{
        self, agent_service_client::AgentServiceClient, audit_service_client::AuditServiceClient,
        blob_service_client::BlobServiceClient, broker_service_client::BrokerServiceClient,
        context_service_client::ContextServiceClient, dead_letter_service_client::DeadLetterServiceClient,
        handoff_service_client::HandoffServiceClient, negotiation_service_client::NegotiationServiceClient,
        plan_service_client::PlanServiceClient, registry_service_client::RegistryServiceClient,
        routing_service_client::RoutingServiceClient, schema_service_client::SchemaServiceClient,
        task_service_client::TaskServiceClient, thread_service_client::ThreadServiceClient,
        workspace_service_client::WorkspaceServiceClient,
    },
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be idle before an HTTP/2 ping.
const PING_AFTER: Duration = Duration::from_secs(20);
/// How long a ping may stay unanswered before the connection fails, with every call on it.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The address of a broker, and the caller's credentials.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// HOST:PORT; or http://HOST:PORT without TLS, for a broker on this machine that accepts such connections.
    pub server: String,
    /// A PEM file with the CA to trust; `None`: the CAs of the system.
    pub ca: Option<PathBuf>,
    /// The token sent with each call.
    pub token: Option<String>,
    /// The certificate that authenticates the agent when connecting.
    pub certificate: Option<ClientCertificate>,
    /// How messages are compressed, in both directions; `None`: not at all. It pays for contexts and results of many
    /// KiB over a slow network, and costs time for each message, also for acks. The limits count unpacked bytes.
    pub compression: Option<Compression>,
}

/// How gRPC messages are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// gzip, which most clients and proxies know.
    Gzip,
    /// Zstandard, which takes less time and fewer bytes.
    Zstd,
}

impl From<Compression> for CompressionEncoding {
    fn from(compression: Compression) -> Self {
        match compression {
            Compression::Gzip => Self::Gzip,
            Compression::Zstd => Self::Zstd,
        }
    }
}

/// An agent's certificate and its private key, as PEM files. The certificate has a URI `urn:baton:agent:ID`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, then its chain up to the CA.
    pub certificate: PathBuf,
    /// The private key, unencrypted.
    pub key: PathBuf,
}

/// An agent and its signing key.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The agent id.
    pub agent: AgentId,
    /// The id of the key on the agent's card.
    pub key_id: KeyId,
    /// The private key.
    pub key: PrivateKey,
}

impl Identity {
    /// The public key, as listed on the agent's card.
    pub fn agent_key(&self) -> v1::AgentKey {
        let public_key = self.key.public().as_bytes().to_vec().into();
        v1::AgentKey { key_id: self.key_id.to_string(), public_key, ..Default::default() }
    }
}

/// An endpoint over TLS, with the CA to trust and the certificate to present.
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

/// An endpoint without TLS. Only loopback addresses are allowed, because calls carry tokens.
fn plaintext(server: &str, address: &str) -> Result<Endpoint, ClientError> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    // A name other than `localhost` is not resolved here: it could resolve to another address at the connect.
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
    pub(super) server: String,
    /// Whether the connection's certificate authenticates the agent.
    pub(super) is_certified: bool,
    channel: Channel,
    credentials: Arc<Credentials>,
    compression: Option<CompressionEncoding>,
}

/// Makes the stub of a service: its limits are those of the broker.
macro_rules! stub {
    ($self:ident, $stub:ident) => {{
        let stub = $stub::new(Authorized::new($self.channel.clone(), Arc::clone(&$self.credentials)))
            .max_decoding_message_size(FRAME_BYTES_MAX)
            .max_encoding_message_size(FRAME_BYTES_MAX);
        match $self.compression {
            Some(encoding) => stub.send_compressed(encoding).accept_compressed(encoding),
            None => stub,
        }
    }};
}

impl Client {
    /// Connects to the broker.
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
        let compression = options.compression.map(Into::into);
        let client = Self { server, is_certified, channel, credentials: Arc::default(), compression };
        match &options.token {
            Some(token) => client.with_token(token),
            None => Ok(client),
        }
    }

    /// A client whose calls fail.
    #[cfg(test)]
    pub(super) fn of_no_server() -> Self {
        // Nothing listens on port 1, and no connection is tried before the first call.
        let channel = Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
        Self { server: String::new(), is_certified: true, channel, credentials: Arc::default(), compression: None }
    }

    /// The same connection with this token.
    pub fn with_token(&self, token: &str) -> Result<Self, ClientError> {
        self.with_credentials(token, None)
    }

    /// The same connection as this agent, which proves its key. Calls of the client prove it again when the token has
    /// ended, which a broker's restart ends too.
    pub async fn sign_in(&self, identity: &Identity) -> Result<Self, ClientError> {
        self.with_credentials(&self.prove(identity).await?, Some(identity.clone()))
    }

    fn with_credentials(&self, token: &str, identity: Option<Identity>) -> Result<Self, ClientError> {
        let token = authorized::bearer(token).map_err(|_| ClientError::Token)?;
        Ok(Self { credentials: Credentials::new(token, identity), ..self.clone() })
    }

    /// Whether the client can prove who it is again.
    pub(super) fn has_signed_in(&self) -> bool {
        self.credentials.has_signed_in()
    }

    /// The failure of a stream.
    pub(super) fn failure(&self, status: &Status) -> ClientError {
        ClientError::of(&self.server, status)
    }

    /// Answers a challenge with the agent's key. Returns the token; see [`Self::with_token`].
    pub async fn prove(&self, identity: &Identity) -> Result<String, ClientError> {
        let proved = authorized::prove(self.channel.clone(), identity).await;
        proved.map_err(|status| ClientError::of(&self.server, &status))
    }

    /// Converts a call's result: the message of the response, or the status as a [`ClientError`].
    pub fn answer<T>(&self, answer: Result<tonic::Response<T>, Status>) -> Result<T, ClientError> {
        answer.map(tonic::Response::into_inner).map_err(|status| ClientError::of(&self.server, &status))
    }

    /// Sends one envelope by a unary call, without a session. Returns the broker's receipt. The receipt's signature is
    /// not verified, because only a session names the broker's key.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] if the broker refuses the envelope, or, before anything is sent, if the envelope
    /// exceeds the limits of the schema: `PAYLOAD_TOO_LARGE` for a payload over 1,048,576 bytes, `FIELD_INVALID` for a
    /// field out of bounds.
    pub async fn send(&self, envelope: bytes::Bytes) -> Result<v1::Receipt, ClientError> {
        limits::check_envelope(&envelope)?;
        let answer =
            self.answer(self.messages().send(v1::SendRequest { envelope, ..v1::SendRequest::default() }).await)?;
        answer.receipt.ok_or_else(|| ClientError::Answer("there is no receipt in it".to_owned()))
    }

    /// The calls of any service by their path.
    pub(super) fn grpc(&self) -> Grpc<Authorized> {
        stub!(self, Grpc)
    }

    /// The broker service: sending and receiving, without the checks of [`Self::send`].
    pub fn messages(&self) -> BrokerServiceClient<Authorized> {
        stub!(self, BrokerServiceClient)
    }

    /// The agent service: the directory.
    pub fn agents(&self) -> AgentServiceClient<Authorized> {
        stub!(self, AgentServiceClient)
    }

    /// The handoff service.
    pub fn handoffs(&self) -> HandoffServiceClient<Authorized> {
        stub!(self, HandoffServiceClient)
    }

    /// The audit service: the log of administrative actions.
    pub fn audit(&self) -> AuditServiceClient<Authorized> {
        stub!(self, AuditServiceClient)
    }

    /// The dead letter service.
    pub fn dead_letters(&self) -> DeadLetterServiceClient<Authorized> {
        stub!(self, DeadLetterServiceClient)
    }

    /// The context service.
    pub fn contexts(&self) -> ContextServiceClient<Authorized> {
        stub!(self, ContextServiceClient)
    }

    /// The workspace service.
    pub fn workspaces(&self) -> WorkspaceServiceClient<Authorized> {
        stub!(self, WorkspaceServiceClient)
    }

    /// The negotiation service.
    pub fn negotiations(&self) -> NegotiationServiceClient<Authorized> {
        stub!(self, NegotiationServiceClient)
    }

    /// The plan service.
    pub fn plans(&self) -> PlanServiceClient<Authorized> {
        stub!(self, PlanServiceClient)
    }

    /// The registry service.
    pub fn registries(&self) -> RegistryServiceClient<Authorized> {
        stub!(self, RegistryServiceClient)
    }

    /// The routing service.
    pub fn routing(&self) -> RoutingServiceClient<Authorized> {
        stub!(self, RoutingServiceClient)
    }

    /// The blob service.
    pub fn blobs(&self) -> BlobServiceClient<Authorized> {
        stub!(self, BlobServiceClient)
    }

    /// The schema service.
    pub fn schemas(&self) -> SchemaServiceClient<Authorized> {
        stub!(self, SchemaServiceClient)
    }

    /// The thread service.
    pub fn threads(&self) -> ThreadServiceClient<Authorized> {
        stub!(self, ThreadServiceClient)
    }

    /// The task service.
    pub fn tasks(&self) -> TaskServiceClient<Authorized> {
        stub!(self, TaskServiceClient)
    }
}

/// Parses HOST:PORT or http://HOST:PORT. A leading https:// is accepted and removed, because TLS is the default. An empty
/// text stays empty.
///
/// # Errors
///
/// What is wrong with the text, as the end of a sentence about it.
pub fn parse_server(text: &str) -> Result<String, String> {
    // An empty variable of the environment counts as absent.
    if text.is_empty() {
        return Ok(String::new());
    }
    let (scheme, address) = match text.strip_prefix("http://") {
        Some(address) => ("http://", address),
        None => ("", text.strip_prefix("https://").unwrap_or(text)),
    };
    let address = address.trim_end_matches(['/', ':']);
    if address.parse::<std::net::Ipv6Addr>().is_ok() || address.matches(':').count() > 1 && !address.starts_with('[') {
        return Err("an IPv6 address needs brackets, followed by the port: [::1]:22866".to_owned());
    }
    let authority: tonic::codegen::http::uri::Authority =
        address.parse().map_err(|_| "is not HOST:PORT, for example 127.0.0.1:22866".to_owned())?;
    let has_port =
        authority.as_str().rsplit_once(':').is_some_and(|(_, port)| !port.is_empty() && !port.ends_with(']'));
    match authority.port_u16() {
        _ if authority.as_str().contains('@') || authority.host().is_empty() => {
            Err("is not HOST:PORT, for example 127.0.0.1:22866".to_owned())
        }
        Some(port) if port > 0 => Ok(format!("{scheme}{authority}")),
        Some(_) => Err("has a port outside 1 to 65535".to_owned()),
        None if has_port => Err("has a port outside 1 to 65535".to_owned()),
        None => Err(format!("has no port; the default port of a broker is 22866: {address}:22866")),
    }
}
