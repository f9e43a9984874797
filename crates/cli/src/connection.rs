//! The flags that select the broker and the caller's credentials.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;

use super::{
    Failure,
    local::LocalBroker,
    output,
    saved::{Name, Saved},
};
use baton_broker_core::{DEFAULT_DATA, DEFAULT_LISTEN};
use baton_client::{
    envelope::keys::PrivateKey,
    ids::{AgentId, KeyId, SystemIds},
    parse_server,
    time::SystemClock,
    {Client, ClientCertificate, ClientError, Identity, Options, session::Agent},
};

/// The heading of the flags that all commands share, below the flags of the command itself.
pub(super) const GLOBAL_HEADING: &str = "Global options";

/// Flags of every command that talks to a broker.
#[derive(Debug, Clone, Args)]
pub(super) struct ConnectionArgs {
    /// The broker's address. Default: 127.0.0.1:22866, the address of `baton dev`. `baton bench` starts a broker of its
    /// own instead.
    #[arg(long, global = true, help_heading = GLOBAL_HEADING, env = "BATON_SERVER", value_name = "HOST:PORT", value_parser = parse_server)]
    server: Option<String>,
    /// The CA certificates to trust, a PEM file. Default: ./baton-data/tls/ca.pem for the broker that runs on
    /// ./baton-data, otherwise the system's CAs.
    #[arg(long, global = true, help_heading = GLOBAL_HEADING, env = "BATON_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The token that authenticates calls. Default: ./baton-data/operator.token, sent only to the broker that runs on
    /// ./baton-data.
    #[arg(long, global = true, help_heading = GLOBAL_HEADING, env = "BATON_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A file with the token that authenticates calls. --token takes precedence.
    #[arg(long, global = true, help_heading = GLOBAL_HEADING, env = "BATON_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A client certificate that authenticates the caller, a PEM file. Needs --cert-key.
    #[arg(long, global = true, help_heading = GLOBAL_HEADING, env = "BATON_CERT", value_name = "FILE", requires = "cert_key")]
    cert: Option<PathBuf>,
    /// The private key of the client certificate, a PEM file.
    #[arg(long, global = true, help_heading = GLOBAL_HEADING, env = "BATON_CERT_KEY", value_name = "FILE", requires = "cert")]
    cert_key: Option<PathBuf>,
    /// The agent of the profile.
    #[arg(skip)]
    agent: Option<SavedAgent>,
}

/// The agent that a profile acts as. Its key is read only when it is needed.
#[derive(Debug, Clone)]
struct SavedAgent {
    /// The name of the profile.
    profile: Name,
    id: AgentId,
    key: PathBuf,
    key_id: KeyId,
}

/// Flags of every command that acts as an agent.
#[derive(Debug, Clone, Args)]
pub(super) struct IdentityArgs {
    /// The id of the agent to act as. A profile may have it (`baton profile add`).
    #[arg(id = "acting_id", long = "id", value_name = "AGENT", requires = "acting_key")]
    id: AgentId,
    /// The agent's private key, a file from `baton keygen`.
    #[arg(id = "acting_key", long = "key", value_name = "FILE", requires = "acting_id")]
    key: PathBuf,
    /// The key's name among the agent's keys (key_id).
    #[arg(id = "acting_key_id", long = "key-id", default_value = "k1", value_name = "KEY")]
    key_id: KeyId,
}

/// Flags of a command that acts as an agent, or as an operator without them.
#[derive(Debug, Clone, Args)]
pub(super) struct OptionalIdentityArgs {
    /// The id of the agent to act as. Default: act as an operator.
    #[arg(id = "identity_id", long = "id", value_name = "AGENT", requires = "identity_key")]
    id: Option<AgentId>,
    /// The agent's private key, a file from `baton keygen`.
    #[arg(id = "identity_key", long = "key", value_name = "FILE", requires = "identity_id")]
    key: Option<PathBuf>,
    /// The key's name among the agent's keys (key_id).
    #[arg(id = "identity_key_id", long = "key-id", default_value = "k1", value_name = "KEY")]
    key_id: KeyId,
}

impl OptionalIdentityArgs {
    /// Connects as the agent, or as an operator.
    pub(super) async fn client(&self, connection: &ConnectionArgs) -> Result<Client, Failure> {
        let (Some(identity), Some(key)) = (self.load()?, &self.key) else { return connection.client().await };
        connection.sign_in(&identity, key).await
    }

    /// The agent, with its key. `None`: act as an operator.
    pub(super) fn load(&self) -> Result<Option<Identity>, Failure> {
        let Some((id, key)) = self.id.clone().zip(self.key.as_deref()) else { return Ok(None) };
        Ok(Some(Identity { agent: id, key_id: self.key_id.clone(), key: read_key(key)? }))
    }
}

impl ConnectionArgs {
    /// Takes the agent of a profile: calls without a token authenticate as it.
    pub(super) fn act_as(&mut self, profile: &Name, saved: &Saved) -> Result<(), Failure> {
        let Some((id, key)) = saved.id.as_deref().zip(saved.key.clone()) else { return Ok(()) };
        let id = AgentId::parse(id).map_err(|error| Failure::usage(format!("the profile's id: {error}")))?;
        let key_id = KeyId::parse(saved.key_id.as_deref().unwrap_or("k1"));
        let key_id = key_id.map_err(|error| Failure::usage(format!("the profile's key_id: {error}")))?;
        self.agent = Some(SavedAgent { profile: profile.clone(), id, key, key_id });
        Ok(())
    }

    /// The connection that flags or the environment name, as values of a profile.
    pub(super) fn to_save(&self) -> Result<Saved, Failure> {
        if let Some(ca) = &self.ca {
            check_ca(ca)?;
        }
        if let Some(token) = &self.token_file {
            read_token(token)?;
        }
        if let Some(key) = &self.cert_key {
            check_private(key)?;
        }
        let absolute = |path: &PathBuf| std::path::absolute(path).map_err(|error| Failure::file(path, error));
        let path = |path: &Option<PathBuf>| path.as_ref().map(absolute).transpose();
        Ok(Saved {
            server: self.named().cloned(),
            ca: path(&self.ca)?,
            token_file: path(&self.token_file)?,
            cert: path(&self.cert)?,
            cert_key: path(&self.cert_key)?,
            ..Saved::default()
        })
    }

    /// Whether the broker is that of the profile. A flag may name another one.
    pub(super) fn is_at(&self, saved: &Saved) -> bool {
        self.named() == saved.server.as_ref()
    }

    /// Drops the profile's token, which must not go to a broker that the profile does not name.
    pub(super) fn forget_token(&mut self) {
        self.token_file = None;
    }

    /// The connection of a profile alone, without flags and the environment.
    pub(super) fn of_profile(name: &Name, saved: &Saved) -> Result<Self, Failure> {
        let mut connection = Self {
            server: saved.server.clone(),
            ca: saved.ca.clone(),
            token: None,
            token_file: saved.token_file.clone(),
            cert: saved.cert.clone(),
            cert_key: saved.cert_key.clone(),
            agent: None,
        };
        connection.act_as(name, saved)?;
        Ok(connection)
    }

    /// Whether a flag or the environment names a broker.
    pub(super) fn names_a_broker(&self) -> bool {
        self.named().is_some()
    }

    /// Whether the calls go to the broker that runs on the folder, or no other broker is named.
    pub(super) fn is_to_broker_on(&self, folder: &Path) -> bool {
        self.named().is_none_or(|server| LocalBroker::find(folder).is_some_and(|broker| broker.is_at(server)))
    }

    /// The named broker. An empty BATON_SERVER names none.
    fn named(&self) -> Option<&String> {
        self.server.as_ref().filter(|server| !server.is_empty())
    }

    /// The options for the named broker. They include the token of ./baton-data if the broker runs on that folder: see
    /// [`LocalBroker`].
    pub(super) fn options(&self) -> Result<Options, Failure> {
        self.options_at(self.named().cloned().unwrap_or_else(|| DEFAULT_LISTEN.to_owned()), true)
    }

    /// The options for this broker, with no token except an explicit one.
    pub(super) fn options_of(&self, server: String) -> Result<Options, Failure> {
        self.options_at(server, false)
    }

    fn options_at(&self, server: String, as_local_operator: bool) -> Result<Options, Failure> {
        let local = LocalBroker::find(Path::new(DEFAULT_DATA));
        let local = local.and_then(|broker| broker.access(&server, self.ca.as_deref()));
        let (local_ca, local_token) = local.map(|access| (access.ca, access.token)).unzip();
        // The folder's CA takes precedence over the same file under another path: the token may go only to brokers of
        // that CA.
        let ca = local_ca.or_else(|| self.ca.clone());
        if let Some(path) = &ca {
            check_ca(path)?;
        }
        let token = self.given_token()?.or_else(|| local_token.flatten().filter(|_| as_local_operator));
        let certificate = self.client_certificate()?;
        Ok(Options { server, ca, token, certificate, compression: None })
    }

    /// The certificate that authenticates the caller, if there is one.
    pub(super) fn client_certificate(&self) -> Result<Option<ClientCertificate>, Failure> {
        let Some((certificate, key)) = self.cert.clone().zip(self.cert_key.clone()) else { return Ok(None) };
        check_private(&key)?;
        Ok(Some(ClientCertificate { certificate, key }))
    }

    /// Connects as the owner of the token, else as the agent of the profile, else as an operator.
    pub(super) async fn client(&self) -> Result<Client, Failure> {
        match (self.saved_identity()?, &self.agent) {
            (Some(identity), Some(agent)) => self.sign_in(&identity, &agent.key).await,
            _ => Ok(Client::connect(&self.options()?).await?),
        }
    }

    /// Proves the identity of the profile's agent by its key. Returns the agent; `None`: the profile has none.
    pub(super) async fn prove(&self) -> Result<Option<AgentId>, Failure> {
        let Some(agent) = &self.agent else { return Ok(None) };
        let identity = Identity { agent: agent.id.clone(), key_id: agent.key_id.clone(), key: read_key(&agent.key)? };
        self.sign_in(&identity, &agent.key).await?;
        Ok(Some(identity.agent))
    }

    /// Connects as an agent that proves its identity by the key in this file.
    async fn sign_in(&self, identity: &Identity, key: &Path) -> Result<Client, Failure> {
        let signed_in = self.client_without_token().await?.sign_in(identity).await;
        signed_in.map_err(|error| self.not_signed_in(error, identity, key))
    }

    /// The failure of an agent to prove its identity. If the broker does not accept the proof, it names the agent, the
    /// key, the key's file and the profile, because a wrong one of these is the usual cause.
    pub(super) fn not_signed_in(&self, error: ClientError, identity: &Identity, key: &Path) -> Failure {
        if error.reason() != Some("CHALLENGE_FAILED") {
            return error.into();
        }
        let agent = self.agent.as_ref().filter(|agent| agent.id == identity.agent && agent.key == key);
        let profile = agent.map_or_else(|| "no profile".to_owned(), |agent| format!("profile {}", agent.profile));
        let (agent, key_id, key) = (&identity.agent, &identity.key_id, key.display());
        let used = format!("used: agent {agent}, key {key_id} from {key}, {profile}");
        let advice = format!("{used}; `baton agent show {agent}` shows the agent's keys");
        Failure::from(error).with_advice(&output::line(&advice))
    }

    /// The agent of the profile, with its key, unless a token or a certificate says who calls.
    pub(super) fn saved_identity(&self) -> Result<Option<Identity>, Failure> {
        let is_said = self.given_token()?.is_some() || self.cert.is_some();
        match &self.agent {
            Some(SavedAgent { id, key, key_id, .. }) if !is_said => {
                Ok(Some(Identity { agent: id.clone(), key_id: key_id.clone(), key: read_key(key)? }))
            }
            _ => Ok(None),
        }
    }

    /// The credentials as the environment variables of their flags, for a program that this one becomes.
    pub(super) fn environment(&self) -> Result<Vec<(&'static str, OsString)>, Failure> {
        let path = |name, path: &Option<PathBuf>| path.clone().map(|path| (name, path.into_os_string()));
        let token = self.given_token()?.map(|token| ("BATON_TOKEN", token.into()));
        let files =
            [path("BATON_CA", &self.ca), path("BATON_CERT", &self.cert), path("BATON_CERT_KEY", &self.cert_key)];
        Ok(files.into_iter().chain([token]).flatten().collect())
    }

    /// The token of the flag or the environment, else that of the token file.
    fn given_token(&self) -> Result<Option<String>, Failure> {
        let given = self.token.as_ref().map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        match (given, &self.token_file) {
            (None, Some(path)) => read_token(path).map(Some),
            (given, _) => Ok(given),
        }
    }

    /// The options of a command that acts as an agent. The agent authenticates by its key and needs no token.
    pub(super) fn options_of_agent(&self) -> Result<Options, Failure> {
        self.options_of(self.named().cloned().unwrap_or_else(|| DEFAULT_LISTEN.to_owned()))
    }

    /// Connects for a command that acts as an agent.
    pub(super) async fn client_without_token(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.options_of_agent()?).await?)
    }

    /// Connects without a token, also without one that was given.
    pub(super) async fn client_without_any_token(&self) -> Result<Client, Failure> {
        // The certificate stays: a broker may refuse a connection without one.
        Ok(Client::connect(&Options { token: None, ..self.options_of_agent()? }).await?)
    }

    /// Connects as an agent and opens a session.
    pub(super) async fn agent(&self, identity: Identity, credit: u32) -> Result<Agent, Failure> {
        let client = self.client_without_token().await?;
        Ok(Agent::connect(&client, identity, credit, Arc::new(SystemClock), Arc::new(SystemIds)).await?)
    }
}

/// Checks that a CA file has a certificate. TLS would accept an empty file and then trust no server.
pub(super) fn check_ca(path: &Path) -> Result<(), Failure> {
    use rustls_pki_types::{
        CertificateDer,
        pem::{self, PemObject as _},
    };
    let of_file = |problem: pem::Error| match problem {
        pem::Error::Io(problem) => {
            Failure::file(path, format!("{problem}; `baton dev` creates a CA in its data folder, tls/ca.pem"))
        }
        problem => Failure::file(path, format!("it is not a PEM file: {problem}")),
    };
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(of_file)?;
    if certificates.is_empty() {
        return Err(Failure::file(path, "it has no certificate; a CA file has a BEGIN CERTIFICATE line"));
    }
    Ok(())
}

/// Refuses the caller's own private key file if other users can read it, as ssh does.
pub(super) fn check_private(path: &Path) -> Result<(), Failure> {
    check_secret(path, "this private key")
}

fn check_secret(path: &Path, what: &str) -> Result<(), Failure> {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(file) = std::fs::metadata(path) else { return Ok(()) }; // the later read reports the error
    let mode = file.mode() & 0o777;
    // Only the owner of a file can change its mode, so the rule applies to the caller's own files.
    if mode & 0o077 == 0 || file.uid() != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let path_text = path.display();
    Err(Failure::file(path, format!("other users can read {what} (mode {mode:04o}); run chmod 600 {path_text}")))
}

/// Reads a token from a file that only its owner can read.
pub(super) fn read_token(path: &Path) -> Result<String, Failure> {
    check_secret(path, "this token")?;
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, error))?;
    match text.trim() {
        "" => Err(Failure::file(path, "it has no token")),
        token => Ok(token.to_owned()),
    }
}

/// Reads a private key of an agent or an operator from a file that only its owner can read.
pub(super) fn read_key(path: &Path) -> Result<PrivateKey, Failure> {
    check_private(path)?;
    Ok(PrivateKey::read(path)?)
}

impl IdentityArgs {
    /// Connects as the agent. Returns its identity too, for messages that it signs.
    pub(super) async fn sign_in(&self, connection: &ConnectionArgs) -> Result<(Client, Identity), Failure> {
        let identity = self.load()?;
        Ok((connection.sign_in(&identity, &self.key).await?, identity))
    }

    /// The file of the agent's private key.
    pub(super) fn key(&self) -> &Path {
        &self.key
    }

    pub(super) fn id(&self) -> &AgentId {
        &self.id
    }

    pub(super) fn load(&self) -> Result<Identity, Failure> {
        let key = read_key(&self.key)?;
        Ok(Identity { agent: self.id.clone(), key_id: self.key_id.clone(), key })
    }
}
