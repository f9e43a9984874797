//! A whole broker: its folder, its certificate, its port, and the broker behind them.
//!
//! Owns starting and stopping in the right order. Must not know the command line: it is handed a configuration and a
//! token to stop by.

mod descriptors;
pub mod development_ca;
mod folder;
mod reload;
pub mod tls;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tower::ServiceBuilder;

pub use folder::FolderError;

use self::{
    development_ca::{DevelopmentCa, DevelopmentCaError},
    folder::DataFolder,
    tls::{TlsError, TlsFiles, TlsSetup},
};
use crate::{
    broker::{Broker, BrokerError, EngineError, StartError, identity::Identities, jwt::OperatorKeys},
    config::{Config, MinimumTls, OperatorTokens, PolicySource, TlsSource},
    ids::{IdSource, SystemIds},
    policy::Policies,
    proto::{self, v1::AuditAction},
    records::AuditAct,
    store::OpenError,
    time::{Clock, SteadyClock},
    wire::{
        bounds::Bounds,
        edge::{self, BindError, Dispatch, HttpLimits, Listener, RequireTlsLayer},
        grpc::{self, bounds::BoundsLayer, deadline::DeadlineLayer},
        http::{self, HttpBoundsLayer},
        status,
    },
};

/// How long connections have to end by themselves when the broker stops.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// Between two lines in the log about what was refused.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Why a broker does not run, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Its folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Its store.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// Its development certificate.
    #[error(transparent)]
    DevelopmentCa(#[from] DevelopmentCaError),
    /// Its certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The keys of those who sign tokens of operators.
    #[error("failed to use {}: {problem}", path.display())]
    OperatorKeys {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// Its port.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// What is stored.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Reflection has no sense of our schema: our bug.
    #[error("failed to serve reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The engine has ended by itself: our bug, and the log says more.
    #[error("the broker's engine has failed; start the broker again, nothing that was answered is lost")]
    Engine,
}

/// What a broker that is ready says of itself.
#[derive(Debug, Clone)]
pub struct Ready {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its folder.
    pub data: PathBuf,
    /// What clients are to trust, if it made that itself.
    pub ca: Option<PathBuf>,
    /// The operator's token.
    pub operator_token: PathBuf,
    /// Whether connections without TLS are taken too.
    pub plaintext_allowed: bool,
    /// Agents that are registered.
    pub agents: usize,
    /// Handoffs that were open when it stopped.
    pub open_handoffs: usize,
}

/// Runs a broker until it is told to stop. `reload` makes it take in its certificates anew; `ready` is called once it takes
/// connections.
pub async fn run(
    config: Config,
    stop: CancellationToken,
    reload: Arc<Notify>,
    ready: impl FnOnce(&Ready),
) -> Result<(), ServerError> {
    let (clock, ids): (Arc<dyn Clock>, Arc<dyn IdSource>) = (Arc::new(SteadyClock::new()), Arc::new(SystemIds));
    let folder = DataFolder::open(&config.data, &*ids)?;
    let (setup, ca) = certificate(&config, &folder, &*clock)?;
    let tls = Arc::new(ArcSwap::from_pointee(setup.load()?));
    let operators = config.operators.as_ref().map(operator_keys).transpose()?;
    let listener = Listener::bind(config.listen).await?;
    let address = listener.local_addr();
    let broker = Broker::start(
        folder.store.clone(),
        folder.identity.clone(),
        config.settings.clone(),
        Identities::new(&folder.operator_token, operators),
        ids,
        clock,
    )?;
    let ready_state = Ready {
        address,
        data: config.data.clone(),
        plaintext_allowed: config.plaintext_allowed,
        ca,
        operator_token: folder.operator_token_path(),
        agents: broker.directory().list(None, usize::MAX, None).len(),
        open_handoffs: broker.open_handoffs_at_start(),
    };
    folder.write_address(address)?;
    if config.plaintext_allowed {
        tracing::warn!("connections without TLS are taken: whoever can listen on this machine reads along");
    }
    ready(&ready_state);
    broker.note(policy_act(&config)).await;
    let fresh = tokio::spawn(reload::keep_fresh(broker.clone(), sources(&config, setup, &tls, &broker), reload));
    let bounds = Bounds::new(&descriptors::bounded(config.settings.broker_limits));
    let report = tokio::spawn(report_refusals(bounds.clone()));
    let served = serve(&config, &broker, listener, tls, bounds, stop).await;
    report.abort();
    fresh.abort();
    let stopped = broker.stop().await;
    folder.remove_address();
    match stopped {
        Ok(()) => served,
        Err(EngineError::Store(damaged)) => Err(damaged.into()),
        Err(EngineError::Panicked) => Err(ServerError::Engine),
    }
}

/// Whether a broker could start with this configuration, as far as its files say: certificates, keys, keys of operators.
/// Policies were read with the configuration. Makes and changes nothing, and does not look at the data folder.
pub fn check(config: &Config) -> Result<(), ServerError> {
    if let TlsSource::Files { certificate, key, clients, minimum } = &config.tls {
        let files = TlsFiles { certificate: certificate.clone(), key: key.clone() };
        TlsSetup { files, clients: clients.clone(), minimum: *minimum }.load()?;
    }
    config.operators.as_ref().map(operator_keys).transpose().map(drop)
}

/// Which policies are in force from the start.
fn policy_act(config: &Config) -> AuditAct {
    AuditAct {
        actor: "the broker".to_owned(),
        action: AuditAction::PolicyLoaded,
        subject: config.policy.to_string(),
        details: describe(&config.settings.policies.load()),
    }
}

fn describe(policies: &Policies) -> String {
    for warning in policies.warnings() {
        tracing::debug!("policy: {warning}");
    }
    format!("{} rules, sha256 {}", policies.rule_ids().len(), hex::encode(policies.digest()))
}

/// What can change while the broker runs.
fn sources(
    config: &Config,
    setup: TlsSetup,
    tls: &Arc<ArcSwap<rustls::ServerConfig>>,
    broker: &Broker,
) -> Vec<reload::Source> {
    let (tls, files) = (tls.clone(), setup.clone());
    let certificates = reload::Source {
        what: "certificates",
        files: Box::new(move || files.paths().into_iter().map(Into::into).collect()),
        load: Box::new(move || {
            tls.store(Arc::new(setup.load().map_err(|error| error.to_string())?));
            Ok(String::new())
        }),
        loaded: AuditAction::CertificatesLoaded,
        refused: AuditAction::CertificatesRefused,
    };
    let (source, listen, policies) = (config.policy.clone(), config.listen, config.settings.policies.clone());
    let policy = matches!(source, PolicySource::Path(_)).then(|| reload::Source {
        what: "policies",
        files: {
            let source = source.clone();
            Box::new(move || source.files())
        },
        load: Box::new(move || {
            let loaded = source.load(listen).map_err(|error| error.to_string())?;
            let details = describe(&loaded);
            policies.store(loaded);
            Ok(details)
        }),
        loaded: AuditAction::PolicyLoaded,
        refused: AuditAction::PolicyRefused,
    });
    let operators = config.operators.clone().map(|tokens| reload::Source {
        what: "keys of operators",
        files: {
            let path = tokens.keys.clone();
            Box::new(move || vec![path.clone()])
        },
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

fn operator_keys(tokens: &OperatorTokens) -> Result<OperatorKeys, ServerError> {
    let unusable = |problem: String| ServerError::OperatorKeys { path: tokens.keys.clone(), problem };
    let text = std::fs::read_to_string(&tokens.keys).map_err(|error| unusable(error.to_string()))?;
    let keys = OperatorKeys::parse(&text, tokens.audience.clone(), tokens.issuer.clone());
    keys.map_err(|error| unusable(error.to_string()))
}

fn certificate(
    config: &Config,
    folder: &DataFolder,
    clock: &dyn Clock,
) -> Result<(TlsSetup, Option<PathBuf>), ServerError> {
    match &config.tls {
        TlsSource::Development => {
            let names = match config.listen.ip() {
                ip if ip.is_unspecified() => Vec::new(),
                ip => vec![ip.to_string()],
            };
            let made = DevelopmentCa::load_or_create(&folder.tls_folder(), clock.now(), &names)?;
            let setup = TlsSetup { files: made.server, clients: None, minimum: MinimumTls::default() };
            Ok((setup, Some(made.ca_certificate)))
        }
        TlsSource::Files { certificate, key, clients, minimum } => {
            folder::warn_of_readers(key);
            let files = TlsFiles { certificate: certificate.clone(), key: key.clone() };
            Ok((TlsSetup { files, clients: clients.clone(), minimum: *minimum }, None))
        }
    }
}

/// Says now and then, in one line, what was over a bound.
async fn report_refusals(bounds: Bounds) {
    let mut moments = tokio::time::interval(REPORT_INTERVAL);
    loop {
        moments.tick().await;
        bounds.log_refusals();
    }
}

async fn serve(
    config: &Config,
    broker: &Broker,
    listener: Listener,
    tls: Arc<ArcSwap<rustls::ServerConfig>>,
    bounds: Bounds,
    stop: CancellationToken,
) -> Result<(), ServerError> {
    let (mut health, health_service) = tonic_health::server::health_reporter();
    for service in grpc::SERVICES {
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
    let stall_timeout = limits.keepalive_interval + limits.keepalive_timeout;
    let incoming = listener.incoming(tls, bounds.clone(), stall_timeout, closing.clone());
    let plaintext_allowed = config.plaintext_allowed;
    let grpc = ServiceBuilder::new()
        .layer(BoundsLayer::new(bounds.clone(), grpc::client_streams(), grpc::overuse))
        .layer(RequireTlsLayer::new(plaintext_allowed, || status::of(&BrokerError::TlsRequired).into_http()))
        .layer(DeadlineLayer::new(status::deadline_exceeded))
        .service(routes.prepare());
    let http = ServiceBuilder::new()
        .layer(HttpBoundsLayer::new(bounds))
        .layer(RequireTlsLayer::new(plaintext_allowed, http::tls_required))
        .service(http::router(grpc::SERVICES.into_iter().chain(grpc::COMMON_SERVICES)));
    let service = Dispatch::new(grpc, http);
    let serving = tokio::spawn(edge::serve(incoming, HttpLimits::new(limits), service, closing.clone()));
    let mut takes_commands = broker.serving();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = broker.ended() => {
                tracing::error!("the engine has ended by itself");
                break;
            }
            changed = takes_commands.changed() => {
                if changed.is_err() {
                    break;
                }
                let is_serving = *takes_commands.borrow_and_update();
                let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
                for service in grpc::SERVICES.into_iter().chain([""]) {
                    health.set_service_status(service, status).await;
                }
            }
        }
    }
    // Health first, so that nobody new is sent here; then the sessions; then the socket.
    for service in grpc::SERVICES.into_iter().chain([""]) {
        health.set_service_status(service, ServingStatus::NotServing).await;
    }
    broker.drain().await;
    closing.cancel();
    // Whoever watches health has been told, and the stream ends: the stop does not wait for it.
    for service in grpc::SERVICES.into_iter().chain([""]) {
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
            tracing::warn!("some connections did not end in time and are cut off");
            abort.abort();
            Ok(())
        }
    }
}
