//! A running broker: its data folder, certificate and port, and the broker behind them.
//!
//! Owns the order of start and stop. Must not know the command line: it takes a configuration and a token to stop it.

mod blobs;
pub mod cluster_init;
pub mod cluster_keys;
pub mod cluster_refound;
mod clustered;
mod descriptors;
pub mod development_ca;
mod folder;
mod gateway;
pub(crate) mod members;
mod metrics;
mod relay;
mod reload;
mod supervisor;
pub mod tls;

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use baton_cluster::{
    member::Leave,
    view::{Role, View},
};
use baton_protocol::lead::{self as protocol_lead, LeadGuard};
use tokio::{
    net::TcpListener,
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tower::ServiceBuilder;

pub use clustered::ClusterError;
pub use folder::FolderError;

pub use crate::broker::StartError;

use self::{
    development_ca::{DevelopmentCa, DevelopmentCaError},
    folder::DataFolder,
    metrics::{Endpoint, Figured},
    tls::{TlsError, TlsFiles, TlsSetup},
};
use crate::{
    blobs::Bucket,
    broker::{Broker, BrokerError, EngineError, Resources, identity::Identities, jwt::OperatorKeys},
    config::{Config, MinimumTls, OperatorTokens, PolicySource, TlsSource},
    ids::{IdSource, SystemIds},
    metrics::Metrics,
    policy::Policies,
    proto::{self, v1::AuditAction},
    records::AuditAct,
    store::OpenError,
    time::{Clock, SteadyClock},
    traces::{self, Traces},
    wire::{
        bounds::Bounds,
        console,
        edge::{self, BindError, Dispatch, HttpLimits, Listener, RequireTlsLayer},
        grpc::{self, bounds::BoundsLayer, deadline::DeadlineLayer},
        guarded::Guarded,
        http::{self, HttpBoundsLayer},
        operations::SERVICES,
        status,
    },
};

/// How long connections may take to end by themselves when the broker stops.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// The interval between two log lines about refusals.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The reason why a broker does not start, or has stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The data folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The settings of the bucket of blobs, in the configuration or the environment, cannot be used.
    #[error("failed to use the bucket of blobs: {0}")]
    Bucket(io::Error),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The development certificate cannot be created or read.
    #[error(transparent)]
    DevelopmentCa(#[from] DevelopmentCaError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The keys of the signers of operator tokens cannot be used.
    #[error("failed to use {}: {problem}", path.display())]
    OperatorKeys {
        /// The file of the keys.
        path: PathBuf,
        /// The error.
        problem: String,
    },
    /// The port cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The address of the metrics cannot be bound.
    #[error(
        "failed to listen on {address} for metrics: {problem}; choose another address with --metrics-listen or metrics.listen"
    )]
    MetricsListen {
        /// The address as configured.
        address: SocketAddr,
        /// The error of the operating system.
        problem: io::Error,
    },
    /// The address of the gateway cannot be bound.
    #[error(
        "failed to listen on {address} for the gateway: {problem}; choose another address with --gateway-listen or \
         gateway.listen"
    )]
    GatewayListen {
        /// The address as configured.
        address: SocketAddr,
        /// The error of the operating system.
        problem: io::Error,
    },
    /// Spans cannot be sent as configured.
    #[error("failed to start traces: {0}")]
    Traces(#[from] traces::StartError),
    /// The stored state cannot be used.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Reflection rejects the schema: a bug.
    #[error("failed to start the reflection service: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The shared log, or this broker's place in its cluster, cannot be used.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The engine has ended by itself: a bug, with details in the log.
    #[error("the broker's engine has failed; start the broker again. No acknowledged message is lost")]
    Engine,
}

/// The state of a broker at the moment it accepts connections.
/// Has no `Debug`, because the code is a secret.
pub struct Ready {
    /// The bound address.
    pub address: SocketAddr,
    /// The data folder.
    pub data: PathBuf,
    /// The certificate of the CA that clients must trust, if the broker created one.
    pub ca: Option<PathBuf>,
    /// The certificate of the broker, and its key.
    pub certificate: TlsFiles,
    /// The file of the operator's token.
    pub operator_token: PathBuf,
    /// The address of `GET /metrics`. `None`: off.
    pub metrics: Option<SocketAddr>,
    /// The port of the gateway. `None`: no gateway.
    pub gateway: Option<TcpListener>,
    /// Whether the broker takes connections without TLS.
    pub plaintext_allowed: bool,
    /// The number of registered agents.
    pub agents: usize,
    /// The number of handoffs that were open when the broker last stopped.
    pub open_handoffs: usize,
    /// A code for a login to the web console as the operator, if the port has one. A secret.
    pub login_code: Option<String>,
}

/// Runs a broker until `stop` is cancelled. `reload` makes it reload certificates, policies and keys; `ready` is called
/// once the broker accepts connections.
pub async fn run(
    config: Config,
    stop: CancellationToken,
    reload: Arc<Notify>,
    ready: Box<dyn FnOnce(Ready) + Send>,
) -> Result<(), ServerError> {
    if let Some(cluster) = config.cluster.clone() {
        return clustered::run(config, cluster, stop, reload, ready).await;
    }
    let (clock, ids): (Arc<dyn Clock>, Arc<dyn IdSource>) = (Arc::new(SteadyClock::new()), Arc::new(SystemIds));
    // Takes the lock of the folder first: everything below may write to it.
    let bucket = config.blob_bucket.as_ref().map(Bucket::open).transpose().map_err(ServerError::Bucket)?.map(Arc::new);
    supervisor::starting("opening the store");
    let folder = DataFolder::open(&config.data, &*ids, bucket.clone())?;
    let (setup, ca) = certificate(&config, &folder.tls_folder(), &*clock)?;
    let mut resources = Resources { blob_files: Some(folder.blobs.clone()), ..Resources::new(config.policies.clone()) };
    let watched = Watched::before_load(&config, &setup);
    watched.load_policies(&config, &resources);
    let tls = Arc::new(ArcSwap::from_pointee(setup.load()?));
    note_expiry(&setup, &resources.metrics);
    let operators = config.operators.as_ref().map(operator_keys).transpose()?;
    // Binds before the broker starts: a port in use is found before any stored deadline is applied.
    let listener = Listener::bind(config.listen).await?;
    let address = listener.local_addr();
    let metrics_endpoint = match config.metrics {
        Some(address) => Some(Endpoint::bind(address).await?),
        None => None,
    };
    let gateway = gateway::bind(&config.gateway).await?;
    resources.traces = Traces::start(&config.traces, resources.metrics.clone())?;
    if let Some(traces) = &resources.traces {
        tracing::info!(endpoint = traces.endpoint(), "sending spans");
    }
    let broker = Broker::start(
        folder.store.clone(),
        folder.identity.clone(),
        config.settings.clone(),
        resources.clone(),
        Identities::new(&folder.operator_token, operators),
        ids,
        clock,
    )?;
    let ready_state = Ready {
        address,
        data: config.data.clone(),
        plaintext_allowed: config.plaintext_allowed,
        ca,
        certificate: setup.files.clone(),
        operator_token: folder.operator_token_path(),
        metrics: metrics_endpoint.as_ref().map(Endpoint::address),
        gateway,
        agents: broker.directory().registered_count(),
        open_handoffs: broker.open_handoffs_at_start(),
        login_code: config.settings.console.then(|| operator_code(&broker, &folder.operator_token)).flatten(),
    };
    // Written before `ready`, because scripts read the file as soon as the broker reports ready.
    folder.write_address(address)?;
    if config.plaintext_allowed {
        tracing::warn!("connections without TLS are accepted: other programs on this machine can read them");
    }
    if let Some(address) = ready_state.metrics {
        tracing::info!(%address, "serving metrics");
    }
    ready(ready_state);
    supervisor::ready(address);
    let (_running, running) = watch::channel(Some(broker.clone()));
    let watched_engine = tokio::spawn(supervisor::watch_engine(running.clone()));
    // The audit log names the policies of each start, not only of each change.
    broker.note(policy_act(&config, &resources)).await;
    if let Some(bucket) = bucket {
        tokio::spawn(blobs::look_for_bucket(bucket));
    }
    let deleting = tokio::spawn(blobs::delete_removed(folder.store.clone(), folder.blobs.clone()));
    let fresh =
        tokio::spawn(reload::keep_fresh(broker.clone(), sources(&config, setup, watched, &tls, &broker), reload));
    let bounds = Bounds::new(&descriptors::bounded(config.settings.broker_limits));
    let report = tokio::spawn(report_refusals(bounds.clone(), resources.metrics.clone()));
    let (health, probed) = watch::channel(http::Health::Ready);
    let figures = Figured { metrics: resources.metrics.clone(), of_member: None };
    let metrics_task = metrics_endpoint.map(|endpoint| tokio::spawn(endpoint.serve(running, figures, probed.clone())));
    let port = Port { listener, tls, bounds, relayed: None, cluster: None };
    let served = serve(&config, &broker, port, Lead::alone(), (health, stop)).await;
    // Both end before the engine, to which the reload task sends its audit entries.
    report.abort();
    metrics_task.inspect(JoinHandle::abort);
    fresh.abort();
    deleting.abort();
    watched_engine.abort();
    // The engine stops after the sessions, so that their last commands are answered.
    let stopped = broker.stop().await;
    folder.remove_address();
    if let Some(traces) = resources.traces {
        // The last spans go after the last commit. It waits for the collector, on a thread that may wait.
        drop(tokio::task::spawn_blocking(move || traces.stop()).await);
    }
    match stopped {
        // A failure of the engine comes first: it may have caused the failure of serving.
        Ok(()) => served,
        Err(EngineError::Store(damaged)) => Err(damaged.into()),
        Err(EngineError::Panicked) => Err(ServerError::Engine),
    }
}

/// Checks whether a broker can start with this configuration, as far as its files tell: certificates, private keys, and
/// operators' keys. Policies are already read with the configuration. Changes nothing, and does not read the data
/// folder.
pub fn check(config: &Config) -> Result<(), ServerError> {
    if let Some(cluster) = &config.cluster {
        clustered::check(cluster)?;
    }
    if let TlsSource::Files { certificate, key, clients, minimum } = &config.tls {
        let files = TlsFiles { certificate: certificate.clone(), key: key.clone() };
        TlsSetup { files, clients: clients.clone(), minimum: *minimum }.load()?;
    }
    config.operators.as_ref().map(operator_keys).transpose().map(drop)
}

/// Makes a CA in the data folder if it has none, and a server certificate for these names and for this machine. Replaces no
/// file.
pub fn make_certificate(data: &Path, names: &[String]) -> Result<DevelopmentCa, ServerError> {
    folder::prepare(data)?;
    Ok(DevelopmentCa::make(&data.join("tls"), SteadyClock::new().now(), names)?)
}

/// The audit entry for the policies in force at start.
fn policy_act(config: &Config, resources: &Resources) -> AuditAct {
    AuditAct {
        actor: "the broker".to_owned(),
        action: AuditAction::PolicyLoaded,
        subject: config.policy.to_string(),
        details: describe(&resources.policies.load()),
    }
}

fn describe(policies: &Policies) -> String {
    for warning in policies.warnings() {
        tracing::debug!("policy: {warning}");
    }
    format!("{} rules, sha256 {}", policies.rule_ids().len(), hex::encode(policies.digest()))
}

/// The files that a change makes the broker load again.
struct Watched {
    certificates: reload::Files,
    /// `None`: the policies are none of a file.
    policies: Option<reload::Files>,
    operators: Option<reload::Files>,
}

impl Watched {
    /// Loads the policies of a file: the configuration was read before the folder was opened, which may take long.
    fn load_policies(&self, config: &Config, resources: &Resources) {
        if self.policies.is_none() {
            return;
        }
        match config.load_policies() {
            Ok(loaded) => resources.policies.store(loaded),
            Err(error) => {
                tracing::error!(%error, "failed to load the changed policies; the previous ones stay in force");
            }
        }
    }

    fn before_load(config: &Config, setup: &TlsSetup) -> Self {
        let (setup, policy) = (setup.clone(), config.policy.clone());
        Self {
            certificates: reload::Files::before_load(move || setup.paths().into_iter().map(Into::into).collect()),
            policies: matches!(policy, PolicySource::Path(_))
                .then(|| reload::Files::before_load(move || policy.files())),
            operators: config
                .operators
                .clone()
                .map(|tokens| reload::Files::before_load(move || vec![tokens.keys.clone()])),
        }
    }
}

/// The sources of configuration that can be reloaded.
fn sources(
    config: &Config,
    setup: TlsSetup,
    watched: Watched,
    tls: &Arc<ArcSwap<rustls::ServerConfig>>,
    broker: &Broker,
) -> Vec<reload::Source> {
    let tls = tls.clone();
    let Resources { metrics, policies, .. } = broker.resources().clone();
    let certificates = reload::Source {
        what: "certificates",
        files: watched.certificates,
        load: Box::new(move || {
            // Load, then store: an unusable certificate leaves the previous one in force.
            tls.store(Arc::new(setup.load().map_err(|error| error.to_string())?));
            note_expiry(&setup, &metrics);
            Ok(String::new())
        }),
        loaded: AuditAction::CertificatesLoaded,
        refused: AuditAction::CertificatesRefused,
    };
    let source = config.clone();
    let policy = watched.policies.map(|files| reload::Source {
        what: "policies",
        files,
        load: Box::new(move || {
            let loaded = source.load_policies().map_err(|error| error.to_string())?;
            let details = describe(&loaded);
            policies.store(loaded);
            Ok(details)
        }),
        loaded: AuditAction::PolicyLoaded,
        refused: AuditAction::PolicyRefused,
    });
    let operators = config.operators.clone().zip(watched.operators).map(|(tokens, files)| reload::Source {
        what: "keys of operators",
        files,
        load: {
            let broker = broker.clone();
            Box::new(move || {
                let keys = operator_keys(&tokens).map_err(|error| error.to_string())?;
                let details = format!("{keys:?}");
                broker.identities().set_operators(keys);
                Ok(details)
            })
        },
        loaded: AuditAction::OperatorKeysLoaded,
        refused: AuditAction::OperatorKeysRefused,
    });
    [Some(certificates), policy, operators].into_iter().flatten().collect()
}

/// Sets the figure of the end of the certificate's validity.
fn note_expiry(setup: &TlsSetup, metrics: &Metrics) {
    match setup.not_after() {
        Ok(Some(seconds)) => drop(metrics.certificate_expiry.set(seconds)),
        // TLS works without this program's own reading of the certificate.
        Ok(None) => tracing::warn!("failed to read the validity of the certificate for the metrics"),
        Err(error) => tracing::warn!(%error, "failed to read the certificate for the metrics"),
    }
}

fn operator_keys(tokens: &OperatorTokens) -> Result<OperatorKeys, ServerError> {
    let unusable = |problem: String| ServerError::OperatorKeys { path: tokens.keys.clone(), problem };
    let text = std::fs::read_to_string(&tokens.keys).map_err(|error| unusable(error.to_string()))?;
    let keys = OperatorKeys::parse(&text, tokens.terms.clone());
    keys.map_err(|error| unusable(error.to_string()))
}

fn certificate(
    config: &Config,
    tls_folder: &Path,
    clock: &dyn Clock,
) -> Result<(TlsSetup, Option<PathBuf>), ServerError> {
    match &config.tls {
        TlsSource::Development { names } => {
            let mut names = names.clone();
            // An unspecified address is no name that clients connect to.
            if !config.listen.ip().is_unspecified() {
                names.push(config.listen.ip().to_string());
            }
            let made = DevelopmentCa::load_or_create(tls_folder, clock.now(), &names)?;
            let setup = TlsSetup { files: made.server, clients: None, minimum: MinimumTls::default() };
            Ok((setup, Some(made.ca_certificate)))
        }
        TlsSource::Files { certificate, key, clients, minimum } => {
            // A warning only: the file belongs to the operator, who may share it on purpose.
            folder::warn_of_readers(key);
            let files = TlsFiles { certificate: certificate.clone(), key: key.clone() };
            Ok((TlsSetup { files, clients: clients.clone(), minimum: *minimum }, None))
        }
    }
}

/// A code with which a browser logs in to the web console as the operator.
fn operator_code(broker: &Broker, token: &str) -> Option<String> {
    let now = broker.now();
    let (operator, credential) = broker.identities().prove(token, broker.directory(), now).ok()?;
    Some(broker.identities().login_code(operator, credential, broker.ids(), now).0)
}

/// Logs and counts refusals periodically, in one line.
async fn report_refusals(bounds: Bounds, metrics: Arc<Metrics>) {
    let mut moments = tokio::time::interval(REPORT_INTERVAL);
    loop {
        moments.tick().await;
        bounds.report_refusals(&metrics);
    }
}

/// Where connections come from.
struct Port {
    listener: Listener,
    tls: Arc<ArcSwap<rustls::ServerConfig>>,
    bounds: Bounds,
    /// Connections that other brokers relay.
    relayed: Option<mpsc::Receiver<edge::Arrival>>,
    /// What the console shows of the cluster. `None`: the broker is alone.
    cluster: Option<console::cluster::ClusterSource>,
}

/// Whether the broker may answer. In a cluster the lease decides.
struct Lead {
    guard: LeadGuard,
    /// Whether the guard is held, as a change to wait for; and the end of the term. `None`: the broker is alone.
    of_term: Option<(watch::Receiver<View>, watch::Receiver<Option<Leave>>)>,
}

impl Lead {
    fn alone() -> Self {
        Self { guard: LeadGuard::alone(), of_term: None }
    }

    fn is_held(&self) -> bool {
        self.of_term.as_ref().is_none_or(|(view, _)| view.borrow().role == Role::Leading)
    }

    /// Waits for a change of the role, or for the end of the term, which is `true`.
    async fn changed(&mut self) -> bool {
        let Some((view, ended)) = &mut self.of_term else { return std::future::pending().await };
        let role = view.borrow_and_update().role;
        tokio::select! {
            biased;
            _ = ended.wait_for(Option::is_some) => true,
            changed = view.wait_for(|view| view.role != role) => changed.is_err(),
        }
    }
}

/// The paths whose answers say nothing of stored state: probes must learn that the broker leads no longer.
fn is_probe(path: &str) -> bool {
    path.starts_with("/grpc.health.v1.Health/") || matches!(path, "/healthz" | "/readyz")
}

/// Serves connections until `stop`, the end of the engine or the end of the term.
async fn serve(
    config: &Config,
    broker: &Broker,
    port: Port,
    mut lead: Lead,
    (ready, stop): (watch::Sender<http::Health>, CancellationToken),
) -> Result<(), ServerError> {
    let Port { listener, tls, bounds, relayed, cluster } = port;
    let (mut health, health_service) = tonic_health::server::health_reporter();
    // The empty name, which stands for the whole broker, begins as SERVING.
    for service in SERVICES.iter().copied() {
        health.set_service_status(service, ServingStatus::Serving).await;
    }
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let routes = grpc::routes(broker)
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    let closing = CancellationToken::new();
    let limits = &broker.settings().broker_limits;
    // As long as a lost HTTP/2 client needs to be noticed; a stalled one cannot be pinged.
    let stall_timeout = limits.keepalive_interval + limits.keepalive_timeout;
    let mut incoming = listener.incoming(tls, bounds.clone(), stall_timeout, closing.clone());
    if let Some(relayed) = relayed {
        incoming = incoming.with_relayed(relayed);
    }
    let plaintext_allowed = config.plaintext_allowed;
    // The first layer sees a request first, so requests that the later layers refuse count against the bounds too.
    let grpc = ServiceBuilder::new()
        .layer(BoundsLayer::new(bounds.clone(), grpc::client_streams(), grpc::overuse))
        .layer(RequireTlsLayer::new(plaintext_allowed, || status::of(&BrokerError::TlsRequired).into_http()))
        .layer(DeadlineLayer::new(status::deadline_exceeded))
        .service(routes.prepare());
    let http = ServiceBuilder::new()
        .layer(HttpBoundsLayer::new(bounds))
        .layer(RequireTlsLayer::new(plaintext_allowed, http::tls_required))
        .service(http::router(
            SERVICES.iter().copied().chain(grpc::COMMON_SERVICES),
            config.settings.console.then(|| console::router(broker.clone(), cluster)),
            ready.subscribe(),
        ));
    let service = Guarded::new(Dispatch::new(grpc, http), lead.guard.clone(), is_probe);
    let serving = tokio::spawn(edge::serve(incoming, HttpLimits::new(limits), service, closing.clone()));
    let mut takes_commands = broker.serving();
    let mut is_over = false;
    loop {
        // At the begin of a term, too: before it the probes were told that another broker leads.
        {
            let (takes_commands, is_held) = (*takes_commands.borrow_and_update(), lead.is_held());
            let status = if takes_commands && is_held { ServingStatus::Serving } else { ServingStatus::NotServing };
            ready.send_replace(match (takes_commands, is_held) {
                (false, _) => http::Health::StoreUnavailable,
                (true, false) => http::Health::NotLeading,
                (true, true) => http::Health::Ready,
            });
            for service in SERVICES.iter().copied().chain([""]) {
                health.set_service_status(service, status).await;
            }
        }
        tokio::select! {
            () = stop.cancelled() => break,
            over = lead.changed() => {
                is_over = over;
                if is_over {
                    break;
                }
            }
            () = broker.ended() => {
                tracing::error!("the engine has failed");
                break;
            }
            changed = takes_commands.changed() => {
                // The engine is gone; `broker.ended` has the reason.
                if changed.is_err() {
                    break;
                }
            }
        }
    }
    if is_over || lead.guard.state() == protocol_lead::Lead::Over {
        // Nothing of this term may leave any more, not even a go-away: clients see the connection end, as at a crash, and
        // find the broker that leads.
        serving.abort();
        drop(serving.await);
        return Ok(());
    }
    supervisor::stopping();
    // First health, so that load balancers send no new clients; then the sessions; then the socket.
    ready.send_replace(http::Health::Stopping);
    for service in SERVICES.iter().copied().chain([""]) {
        health.set_service_status(service, ServingStatus::NotServing).await;
    }
    broker.drain().await;
    closing.cancel();
    // Watchers of health have the new status. Ending their streams keeps them from delaying the stop.
    for service in SERVICES.iter().copied().chain([""]) {
        health.clear_service_status(service).await;
    }
    let abort = serving.abort_handle();
    match tokio::time::timeout(DRAIN_MAX, serving).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(failed)) => {
            tracing::error!(%failed, "the server's task has failed");
            Err(ServerError::Engine)
        }
        Err(_elapsed) => {
            tracing::warn!("closing the connections that did not end in time");
            // Cutting off is safe: a receipt is sent only after its commit.
            abort.abort();
            Ok(())
        }
    }
}
