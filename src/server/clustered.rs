//! A broker of a cluster: follows, leads for a term, and follows again, in one process.
//!
//! Owns the change of roles as the program sees it. Must not know how a role is reached: the driver of `baton-cluster` gives
//! each term. A takeover is a start of the broker over tables that are open already.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use baton_cluster::{
    driver::{self, CheckpointPieces, Ended, Handle, Options, Peers, Term},
    entry::{Chain, ChainKey, Expected, Hash, Position},
    figures::Figures,
    member::{Config as MemberConfig, Ending, PeerPosition},
    settings::ClusterSettings,
    view::{Role, View},
};
use baton_peers::{
    checkpoint, client,
    port::{self, PeerPort},
    relay::{Relay, RelayCount},
    tls::{PeerTls, PeerTlsError},
};
use bytes::Bytes;
use tokio::{
    sync::{Notify, mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    Lead, Port, Ready, ServerError, TlsSetup, Watched, blobs, certificate, folder,
    folder::SharedKeys,
    gateway,
    members::Look,
    metrics::{Endpoint, Figured, OfMember},
    note_expiry, operator_keys, policy_act, relay, reload, report_refusals, serve, sources, supervisor,
};
use crate::{
    blobs::Bucket,
    broker::{Broker, BrokerIdentity, EngineError, Resources, identity::Identities},
    config::Config,
    envelope::signing,
    ids::{IdSource, SystemIds},
    proto::v1::AuditAction,
    records::AuditAct,
    store::{CheckpointFile, CheckpointHead, FORMAT, OpenError},
    time::{Clock, SteadyClock},
    traces::Traces,
    wire::{
        bounds::Bounds,
        console::cluster::ClusterSource,
        edge::{Arrival, Listener},
        http,
    },
};

/// The longest lag of a follower that counts as ready.
const LAG_MAX: Duration = Duration::from_secs(10);

/// The time for the answer of one peer to a broker about to lead.
const PEER_MAX: Duration = Duration::from_millis(400);
/// The most relayed connections that wait to be opened.
const ARRIVALS_MAX: usize = 256;

/// The reason why a broker is no member of its cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The certificate of the brokers cannot be used.
    #[error(transparent)]
    PeerTls(#[from] PeerTlsError),
    /// The address for other brokers cannot be bound.
    #[error(
        "failed to listen on {address} for other brokers: {problem}; choose another address with cluster.peer_listen"
    )]
    PeerListen {
        /// The address as configured.
        address: SocketAddr,
        /// The error of the operating system.
        problem: io::Error,
    },
    /// The shared log cannot be used.
    #[error(transparent)]
    Start(#[from] driver::StartError),
    /// The member has ended by itself.
    #[error("the broker left its cluster: {0}")]
    Ended(Ended),
}

/// Runs a broker of a cluster until `stop` is cancelled.
pub(super) async fn run(
    config: Config,
    settings: ClusterSettings,
    stop: CancellationToken,
    reload: Arc<Notify>,
    ready: Box<dyn FnOnce(Ready) + Send>,
) -> Result<(), ServerError> {
    let (clock, ids): (Arc<dyn Clock>, Arc<dyn IdSource>) = (Arc::new(SteadyClock::new()), Arc::new(SystemIds));
    let keys = SharedKeys::read(&settings.keys)?;
    let (expected, cluster) = expected_of(&settings, &keys.identity);
    let bucket = config.blob_bucket.as_ref().map(|options| Bucket::open_shared(options, &keys.blobs));
    let bucket = bucket.transpose().map_err(ServerError::Bucket)?.map(Arc::new);
    supervisor::starting("opening the store");
    let replica = Arc::new(folder::open_replica(&config.data, &cluster)?);
    let (setup, ca) = certificate(&config, &folder::tls_folder(&config.data), &*clock)?;
    let tls = Arc::new(ArcSwap::from_pointee(setup.load()?));
    let mut resources = Resources::new(config.policies.clone());
    note_expiry(&setup, &resources.metrics);
    // Read again for each term: a start with unusable keys is refused here.
    config.operators.as_ref().map(operator_keys).transpose()?;
    let peer_tls = PeerTls::load(&settings.keys).map_err(ClusterError::from)?;
    let (peer_address, problem) =
        (settings.peer_listen, |problem| ClusterError::PeerListen { address: settings.peer_listen, problem });
    let peer_port = PeerPort::bind(peer_address).await.map_err(problem)?;
    let listener = Listener::bind(config.listen).await?;
    let address = listener.local_addr();
    let endpoint = match config.metrics {
        Some(address) => Some(Endpoint::bind(address).await?),
        None => None,
    };
    let gateway = gateway::bind(&config.gateway).await?;
    resources.traces = Traces::start(&config.traces, resources.metrics.clone())?;
    let process = Bytes::copy_from_slice(&ids.random());
    let figures = Arc::new(Figures::default());
    let options = Options {
        member: MemberConfig {
            broker: settings.broker.clone(),
            process: process.clone(),
            peer_address: settings.peer_address.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            lease: settings.lease,
            entry_bytes_max: 0,
            expected,
        },
        name: settings.name.clone(),
        log: settings.log.clone(),
        log_keep: settings.log_keep,
        log_bytes_max: settings.log_bytes_max,
        replica: replica.clone(),
        configuration: configuration_of(&config),
        peers: Arc::new(Network(peer_tls.clone())),
        clock: clock.clone(),
        figures: figures.clone(),
    };
    supervisor::starting("waiting for the shared log");
    let (handle, terms) = match driver::start(options, stop.clone().cancelled_owned()).await {
        Ok(started) => started,
        Err(driver::StartError::Stopped) => return Ok(()),
        Err(error) => return Err(ClusterError::from(error).into()),
    };
    let metrics_address = endpoint.as_ref().map(Endpoint::address);
    folder::write_address(&config.data, address)?;
    ready(Ready {
        address,
        data: config.data.clone(),
        ca,
        certificate: setup.files.clone(),
        operator_token: settings.keys.join("operator.token"),
        metrics: metrics_address,
        gateway,
        plaintext_allowed: config.plaintext_allowed,
        // The leader knows, and this broker follows yet.
        agents: 0,
        open_handoffs: 0,
        login_code: None,
    });
    supervisor::ready(address);
    let bounds = Bounds::new(&super::descriptors::bounded(config.settings.broker_limits));
    let (health, probed) = watch::channel(http::Health::NotLeading);
    let running = watch::channel(None).0;
    let (edge, term) = watch::channel(None);
    let relays = RelayCount::default();
    let (step_down, mut wishes) = mpsc::channel(1);
    let (relayed, arriving) = mpsc::channel(ARRIVALS_MAX);
    let look = Arc::new(Look::new(settings.clone(), peer_tls.clone()));
    let peer = port::Broker {
        cluster: settings.name.clone(),
        name: settings.broker.clone(),
        process: process.to_vec(),
        version: env!("CARGO_PKG_VERSION").into(),
        view: handle.view(),
        step_down,
        relays: relays.clone(),
        tables: replica,
        clock: clock.clone(),
        figures: figures.clone(),
    };
    let relay = Relay::new(settings.broker.clone(), peer_tls.clone(), handle.view(), relays.clone());
    let shown = handle.view();
    let of_member: OfMember = Arc::new(move || figures.encode(&shown.borrow(), relays.now()));
    let wished = handle.clone();
    if let Some(bucket) = bucket.clone() {
        tokio::spawn(blobs::look_for_bucket(bucket));
    }
    let tasks = [
        Some(tokio::spawn(report_refusals(bounds.clone(), resources.metrics.clone()))),
        Some(tokio::spawn(async move {
            while wishes.recv().await.is_some() {
                wished.step_down();
            }
        })),
        Some(tokio::spawn(relay::pass_on(arriving, term.clone()))),
        Some(tokio::spawn(peer_port.serve(peer_tls, peer, relayed, stop.clone()))),
        Some(tokio::spawn(show_health(handle.view(), health.clone()))),
        Some(tokio::spawn(supervisor::watch_engine(running.subscribe()))),
        endpoint.map(|endpoint| {
            let figures = Figured { metrics: resources.metrics.clone(), of_member: Some(of_member) };
            tokio::spawn(endpoint.serve(running.subscribe(), figures, probed))
        }),
    ];
    let member = Member {
        broker: settings.broker.clone(),
        config,
        setup,
        tls,
        resources,
        bucket,
        keys,
        clock,
        ids,
        listener,
        bounds,
        health,
        running,
        edge,
        term,
        relay,
        reload,
        look: Arc::new(move || {
            let look = look.clone();
            Box::pin(async move { look.now().await })
        }),
        handle,
        stop,
    };
    let ended = member.live(terms).await;
    tasks.iter().flatten().for_each(JoinHandle::abort);
    folder::remove_address(&member.config.data);
    if let Some(traces) = member.resources.traces {
        drop(tokio::task::spawn_blocking(move || traces.stop()).await);
    }
    ended
}

/// What all terms of a process share.
struct Member {
    /// The name of this broker in the cluster.
    broker: String,
    config: Config,
    setup: TlsSetup,
    tls: Arc<ArcSwap<rustls::ServerConfig>>,
    resources: Resources,
    /// The bucket of blobs. `None`: the cluster keeps none.
    bucket: Option<Arc<Bucket>>,
    keys: SharedKeys,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    listener: Listener,
    bounds: Bounds,
    health: watch::Sender<http::Health>,
    /// The broker of the present term.
    running: watch::Sender<Option<Broker>>,
    /// The way of relayed connections into the edge of the present term.
    edge: watch::Sender<Option<mpsc::Sender<Arrival>>>,
    term: relay::Term,
    relay: Relay,
    reload: Arc<Notify>,
    /// What the console shows of the cluster.
    look: ClusterSource,
    handle: Handle,
    stop: CancellationToken,
}

impl Member {
    /// Follows and leads by turns, until the process is to end.
    async fn live(&self, mut terms: mpsc::UnboundedReceiver<Term>) -> Result<(), ServerError> {
        loop {
            let following = CancellationToken::new();
            let relaying = tokio::spawn(relay::follow(
                self.listener.clone(),
                self.relay.clone(),
                self.bounds.clone(),
                self.term.clone(),
                following.clone(),
            ));
            let term = tokio::select! {
                biased;
                term = terms.recv() => term,
                () = self.stop.cancelled() => None,
                _ = self.handle.ended() => None,
            };
            following.cancel();
            // It accepts nothing any more. The connections that it relays end by themselves.
            drop(relaying.await);
            let Some(term) = term else { break };
            let served = self.lead(term).await;
            // In this order: a broker that stops gives its lease back, and follows no more.
            if self.stop.is_cancelled() {
                self.handle.stop();
            }
            if served.is_err() {
                self.handle.disk_failed();
            }
            self.handle.service_ended();
            if served.is_err() {
                self.handle.ended().await;
                return served;
            }
        }
        if self.stop.is_cancelled() {
            supervisor::stopping();
            self.handle.stop();
        }
        match self.handle.ended().await {
            Ended::Member(Ending::Stopped) => Ok(()),
            ended => Err(ClusterError::Ended(ended).into()),
        }
    }

    /// The audit entry for the takeover of a term.
    fn takeover_act(&self, term: u64, position: Position, former: Option<&str>) -> AuditAct {
        let former = former.unwrap_or("no broker");
        AuditAct {
            actor: "the broker".to_owned(),
            action: AuditAction::TookOver,
            subject: self.broker.clone(),
            details: format!("from {former}, at entry {position} of the shared log, term {term}"),
        }
    }

    /// Serves one term to its end.
    async fn lead(&self, term: Term) -> Result<(), ServerError> {
        if term.ended.borrow().is_some() {
            return Ok(());
        }
        let blobs = match self.bucket.clone() {
            None => None,
            Some(bucket) => {
                let (data, store) = (self.config.data.clone(), term.store.clone());
                let open = move || folder::open_blobs(&data, &*store, Some(bucket));
                let opened = tokio::task::spawn_blocking(open).await.map_err(|_| ServerError::Engine)?;
                Some(Arc::new(opened?))
            }
        };
        let resources = Resources { schemas: Arc::default(), blob_files: blobs.clone(), ..self.resources.clone() };
        let watched = Watched::before_load(&self.config, &self.setup);
        watched.load_policies(&self.config, &resources);
        match self.setup.load() {
            Ok(loaded) => self.tls.store(Arc::new(loaded)),
            Err(error) => {
                tracing::error!(%error, "failed to load the certificate again; the previous one stays in force");
            }
        }
        let operators = self.config.operators.as_ref().and_then(|tokens| {
            let refused = |error: &ServerError| tracing::error!(%error, "tokens of operators are refused until the keys can be used");
            operator_keys(tokens).inspect_err(refused).ok()
        });
        tracing::info!(term = term.number, "this broker leads");
        let broker = Broker::start(
            term.store.clone(),
            self.keys.identity.clone(),
            self.config.settings.clone(),
            resources.clone(),
            Identities::new(&self.keys.operator_token, operators),
            self.ids.clone(),
            self.clock.clone(),
        )?;
        self.running.send_replace(Some(broker.clone()));
        // It waits for a place in the queue, and the term may end first.
        let noted = tokio::spawn({
            let takeover = self.takeover_act(term.number, term.position, term.former.as_deref());
            let (broker, acts) = (broker.clone(), [takeover, policy_act(&self.config, &resources)]);
            async move {
                for act in acts {
                    broker.note(act).await;
                }
            }
        });
        let sources = sources(&self.config, self.setup.clone(), watched, &self.tls, &broker);
        let of_blobs = blobs.into_iter().flat_map(|files| {
            let (store, guard, clock) = (term.store.clone(), term.guard.clone(), self.clock.clone());
            let deleting = tokio::spawn(blobs::delete_removed(store.clone(), files.clone()));
            [deleting, tokio::spawn(blobs::sweep_objects(store, files, guard, clock))]
        });
        let of_blobs: Vec<_> = of_blobs.collect();
        let fresh = tokio::spawn(reload::keep_fresh(broker.clone(), sources, self.reload.clone()));
        let (arriving, arrivals) = mpsc::channel(ARRIVALS_MAX);
        self.edge.send_replace(Some(arriving));
        let port = Port {
            listener: self.listener.clone(),
            tls: self.tls.clone(),
            bounds: self.bounds.clone(),
            relayed: Some(arrivals),
            cluster: Some(self.look.clone()),
        };
        let lead = Lead { guard: term.guard, of_term: Some((self.handle.view(), term.ended)) };
        let served = serve(&self.config, &broker, port, lead, (self.health.clone(), self.stop.clone())).await;
        self.edge.send_replace(None);
        noted.abort();
        fresh.abort();
        of_blobs.iter().for_each(JoinHandle::abort);
        let stopped = broker.stop().await;
        self.running.send_replace(None);
        match stopped {
            Ok(()) | Err(EngineError::Store(OpenError::Deposed { .. })) => served,
            Err(EngineError::Store(error)) => Err(error.into()),
            Err(EngineError::Panicked) => Err(ServerError::Engine),
        }
    }
}

/// The other brokers, over their peer ports.
struct Network(PeerTls);

#[async_trait]
impl Peers for Network {
    async fn positions(&self, addresses: Vec<(String, String)>) -> Vec<PeerPosition> {
        let mut asked = JoinSet::new();
        for (peer, address) in addresses {
            let tls = self.0.clone();
            asked.spawn(async move {
                let status = timeout(PEER_MAX, client::status(&address, &tls)).await.ok()?.ok()?;
                let hash = Hash(status.hash.as_slice().try_into().ok()?);
                let chain = Chain { position: status.position, hash, term: status.term, level: 0 };
                Some(PeerPosition { peer, chain })
            });
        }
        asked.join_all().await.into_iter().flatten().collect()
    }

    async fn checkpoint(
        &self,
        address: &str,
        upto: Position,
        has: &[CheckpointFile],
    ) -> Result<(CheckpointHead, Box<dyn CheckpointPieces>), String> {
        match checkpoint::receive(address, &self.0, upto, has).await {
            Ok((head, pieces)) => Ok((head, Box::new(pieces))),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Checks the files of a broker in a cluster.
pub(super) fn check(settings: &ClusterSettings) -> Result<(), ServerError> {
    SharedKeys::read(&settings.keys)?;
    PeerTls::load(&settings.keys).map_err(ClusterError::from)?;
    Ok(())
}

/// Says what the probes get while this broker does not lead. A leader says it itself.
async fn show_health(mut view: watch::Receiver<View>, health: watch::Sender<http::Health>) {
    loop {
        let shown = {
            let view = view.borrow_and_update();
            match view.role {
                Role::Leading | Role::Suspended => None,
                Role::Following if view.leader.is_some() && view.lag < LAG_MAX => Some(http::Health::Following),
                _ => Some(http::Health::NotLeading),
            }
        };
        if let Some(shown) = shown {
            health.send_if_modified(|before| std::mem::replace(before, shown) != shown);
        }
        if view.changed().await.is_err() {
            return;
        }
    }
}

/// What entries of this cluster have, and the cluster's id. All of it comes from the name and the keys that the brokers
/// share.
pub(super) fn expected_of(settings: &ClusterSettings, identity: &BrokerIdentity) -> (Expected, [u8; 16]) {
    let id_of = |parts: &[&[u8]]| signing::sha256(parts);
    let (broker, coordinator) = (identity.key.public(), identity.coordinator.public_key().public_key);
    let cluster = id_of(&[b"baton cluster id\0", settings.name.as_bytes(), b"\0", broker.as_bytes()]);
    let cluster: [u8; 16] = std::array::from_fn(|at| cluster[at]);
    let keys = [&broker.as_bytes()[..], &coordinator].map(|key| Bytes::copy_from_slice(&id_of(&[key])[..16]));
    // Only the holder of the private key can make this signature, and each makes the same.
    let secret = identity.key.sign(b"baton cluster log, secret of the chain, 1");
    let expected = Expected {
        key: ChainKey::derive(&secret),
        cluster: Bytes::copy_from_slice(&cluster),
        keys: keys.into(),
        level: u16::try_from(FORMAT).expect("formats are few"),
    };
    (expected, cluster)
}

/// The hash of what should be equal at all members.
fn configuration_of(config: &Config) -> Bytes {
    let settings = format!("{:?}", (&config.settings, &config.policy, &config.operators, &config.blob_bucket));
    Bytes::copy_from_slice(&signing::sha256(&[settings.as_bytes()]))
}
