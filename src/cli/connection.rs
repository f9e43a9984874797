//! Which broker, and as whom.

use std::{path::PathBuf, sync::Arc};

use clap::Args;

use super::Failure;
use crate::{
    client::{Agent, Client, ClientCertificate, Identity, Options},
    config::{DEFAULT_DATA, DEFAULT_LISTEN},
    envelope::keys::PrivateKey,
    ids::{AgentId, KeyId, SystemIds},
    time::SystemClock,
};

/// Flags of every command that talks to a broker.
#[derive(Debug, Clone, Args)]
pub(super) struct ConnectionArgs {
    /// The broker to talk to. Default: 127.0.0.1:22866, where `baton dev` listens; `baton bench` starts one of its own.
    #[arg(long, global = true, env = "BATON_SERVER", value_name = "HOST:PORT")]
    server: Option<String>,
    /// The CA to trust, a PEM file. Default: ./baton-data/tls/ca.pem if it is there, else the system's CAs.
    #[arg(long, global = true, env = "BATON_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The token to call with. Default: ./baton-data/operator.token if it is there.
    #[arg(long, global = true, env = "BATON_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A client certificate, a PEM file, to prove by who one is. Needs --cert-key.
    #[arg(long, global = true, env = "BATON_CERT", value_name = "FILE", requires = "cert_key")]
    cert: Option<PathBuf>,
    /// Its private key, a PEM file.
    #[arg(long, global = true, env = "BATON_CERT_KEY", value_name = "FILE", requires = "cert")]
    cert_key: Option<PathBuf>,
}

/// Flags of every command that acts as an agent.
#[derive(Debug, Clone, Args)]
pub(super) struct IdentityArgs {
    /// The agent to act as.
    #[arg(long, value_name = "AGENT")]
    id: AgentId,
    /// Its key, a file from `baton keygen`.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The name of that key among the agent's keys.
    #[arg(long, default_value = "k1", value_name = "KEY")]
    key_id: KeyId,
}

impl ConnectionArgs {
    /// Whether a broker is named, by a flag or by the environment.
    pub(super) fn names_a_broker(&self) -> bool {
        self.server.is_some()
    }

    /// Where the broker is, with the operator's token if it is at hand.
    pub(super) fn options(&self) -> Options {
        let data = PathBuf::from(DEFAULT_DATA);
        let ca = self.ca.clone().or_else(|| Some(data.join("tls/ca.pem")).filter(|path| path.exists()));
        let operator = || std::fs::read_to_string(data.join("operator.token")).ok();
        let token = self.token.clone().or_else(operator).map(|token| token.trim().to_owned());
        let certificate = self.cert.clone().zip(self.cert_key.clone());
        Options {
            server: self.server.clone().unwrap_or_else(|| DEFAULT_LISTEN.to_owned()),
            ca,
            token: token.filter(|token| !token.is_empty()),
            certificate: certificate.map(|(certificate, key)| ClientCertificate { certificate, key }),
        }
    }

    /// Of this broker. The operator's token may be of another one: only one that was given counts.
    pub(super) fn options_of(&self, server: String) -> Options {
        Options { server, token: self.token.clone(), ..self.options() }
    }

    /// As an operator, or whoever the token is of.
    pub(super) async fn client(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.options()).await?)
    }

    /// The operator's token may be of another broker than the one that is named: without it where it was not asked for.
    pub(super) async fn client_without_token(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&Options { token: self.token.clone(), ..self.options() }).await?)
    }

    /// As an agent, with a session.
    pub(super) async fn agent(&self, identity: Identity, credit: u32) -> Result<Agent, Failure> {
        let client = self.client_without_token().await?;
        Ok(Agent::connect(&client, identity, credit, Arc::new(SystemClock), Arc::new(SystemIds)).await?)
    }
}

impl IdentityArgs {
    pub(super) fn load(&self) -> Result<Identity, Failure> {
        let key = PrivateKey::read(&self.key)?;
        Ok(Identity { agent: self.id.clone(), key_id: self.key_id.clone(), key })
    }
}
