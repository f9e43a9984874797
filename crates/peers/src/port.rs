//! The peer port: takes relayed connections and calls from the other brokers of the cluster.
//!
//! Owns the listener and the work of the calls. Must not know what becomes of a relayed connection: the program gets it with its
//! client's address. A connection without the certificate of the cluster ends in the handshake.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use baton_cluster::{
    figures::Figures,
    view::{Role, View},
};
use baton_protocol::time::Clock;
use baton_store::Replica;
use hyper::server::conn::http2;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tracing::{debug, warn};

use crate::{
    checkpoint::{self, SENT_MAX},
    origin,
    proto::{
        GetCheckpointRequest, GetCheckpointResponse, GetStatusRequest, GetStatusResponse, LogRequests, StepDownRequest,
        StepDownResponse,
        peer_service_server::{PeerService, PeerServiceServer},
    },
    relay::RelayCount,
    tls::{PeerTls, RELAY},
};

/// The most connections that have not shown the certificate yet. Further ones wait in the socket's backlog.
const HANDSHAKES_MAX: usize = 256;
/// The time for the TLS handshake and the head of a relayed connection.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);
/// The time in which a leader leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause in accepting while the machine lacks file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection of a client that another broker relays.
#[derive(Debug)]
pub struct Relayed {
    /// The client's bytes, below its own TLS.
    pub stream: TlsStream<TcpStream>,
    /// The client's address.
    pub client: SocketAddr,
}

/// The broker behind a port, as its peers see it.
#[derive(Clone)]
pub struct Broker {
    /// The name of the cluster.
    pub cluster: String,
    /// The name of the broker.
    pub name: String,
    /// The id of its process.
    pub process: Vec<u8>,
    /// The version of its program.
    pub version: String,
    /// What its member shows.
    pub view: watch::Receiver<View>,
    /// Takes the wish that it leads no longer. Bounded: one wish is enough.
    pub step_down: mpsc::Sender<()>,
    /// The number of connections that it relays.
    pub relays: RelayCount,
    /// Its tables, whose checkpoint others receive.
    pub tables: Arc<Replica>,
    /// The clock of [`GetStatusResponse::clock_ms`].
    pub clock: Arc<dyn Clock>,
    /// The figures of its member, with the requests to the engine.
    pub figures: Arc<Figures>,
}

/// A bound peer port.
#[derive(Debug)]
pub struct PeerPort {
    listener: TcpListener,
}

impl PeerPort {
    /// Binds the address; port 0 selects a free port.
    ///
    /// # Errors
    ///
    /// The operating system refuses, for example because the port is in use.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address).await? })
    }

    /// The bound address.
    ///
    /// # Errors
    ///
    /// The operating system does not tell it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves peers until `stop`. Relayed connections go to `relayed`; without a receiver there they are closed.
    pub async fn serve(self, tls: PeerTls, broker: Broker, relayed: mpsc::Sender<Relayed>, stop: CancellationToken) {
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        let calls = Calls { broker, sending: Arc::new(Semaphore::new(SENT_MAX)) };
        let mut connections = JoinSet::new();
        loop {
            let room = handshakes.clone().acquire_owned();
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = async {
                    let room = room.await.expect("the semaphore is never closed");
                    Ok::<_, io::Error>((self.listener.accept().await?, room))
                } => accepted,
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok(((stream, peer), room)) => {
                    let opened = open(stream, tls.clone(), calls.clone(), relayed.clone(), room);
                    connections.spawn(async move {
                        if let Err(problem) = opened.await {
                            debug!(%peer, %problem, "a connection to the peer port ended");
                        }
                    });
                }
                Err(problem) => {
                    warn!(%problem, "failed to accept a connection of a peer; trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

async fn open(
    stream: TcpStream,
    tls: PeerTls,
    calls: Calls,
    relayed: mpsc::Sender<Relayed>,
    room: OwnedSemaphorePermit,
) -> io::Result<()> {
    // A connection without the option works too, so a failure is ignored.
    let _ = stream.set_nodelay(true);
    let opening = async {
        let mut stream = tls.acceptor().accept(stream).await?;
        let client = match stream.get_ref().1.alpn_protocol() == Some(RELAY) {
            true => Some(origin::read(&mut stream).await?),
            false => None,
        };
        Ok::<_, io::Error>((stream, client))
    };
    let (stream, client) = timeout(OPENING_TIMEOUT, opening).await??;
    drop(room);
    if let Some(client) = client {
        let sent = relayed.send(Relayed { stream, client }).await;
        // The receiver ends with the broker.
        return sent.map_err(|_| io::ErrorKind::BrokenPipe.into());
    }
    let service = TowerToHyperService::new(PeerServiceServer::new(calls));
    let served = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
    served.await.map_err(io::Error::other)
}

#[derive(Clone)]
struct Calls {
    broker: Broker,
    /// The places for checkpoints under way.
    sending: Arc<Semaphore>,
}

#[tonic::async_trait]
impl PeerService for Calls {
    type GetCheckpointStream = ReceiverStream<Result<GetCheckpointResponse, Status>>;

    async fn get_checkpoint(
        &self,
        request: Request<GetCheckpointRequest>,
    ) -> Result<Response<Self::GetCheckpointStream>, Status> {
        let place = self.sending.clone().try_acquire_owned();
        let place = place.map_err(|_| Status::resource_exhausted("it sends its checkpoint to others"))?;
        let pieces = checkpoint::send(self.broker.tables.clone(), request.into_inner(), place).await?;
        Ok(Response::new(ReceiverStream::new(pieces)))
    }

    async fn get_status(&self, _: Request<GetStatusRequest>) -> Result<Response<GetStatusResponse>, Status> {
        let Broker { cluster, name, process, version, view, relays, clock, figures, .. } = self.broker.clone();
        let view = view.borrow().clone();

        Ok(Response::new(GetStatusResponse {
            cluster,
            broker: name,
            process,
            version,
            role: view.role.name().to_owned(),
            term: view.term,
            position: view.position,
            hash: view.hash.0.to_vec(),
            flushed_upto: view.flushed_upto,
            leader: view.leader.map(|leader| leader.name).unwrap_or_default(),
            why_nobody_leads: view.why_nobody_leads.unwrap_or_default(),
            lag_ms: u64::try_from(view.lag.as_millis()).unwrap_or(u64::MAX),
            clock_ms: u64::try_from(clock.now().unix_milliseconds()).unwrap_or_default(),
            relayed_connections: relays.now(),
            log_requests: figures.requests().map(|count| LogRequests {
                writes: count.writes,
                reads: count.reads,
                time_ms: u64::try_from(count.time.as_millis()).unwrap_or(u64::MAX),
            }),
        }))
    }

    async fn step_down(&self, _: Request<StepDownRequest>) -> Result<Response<StepDownResponse>, Status> {
        let leads = |view: &View| matches!(view.role, Role::Leading | Role::Suspended | Role::Leaving);
        let mut view = self.broker.view.clone();
        let role = view.borrow_and_update().role;
        if !role.serves_clients() {
            return Err(Status::failed_precondition(format!(
                "broker {} does not lead: it is {}",
                self.broker.name,
                role.name()
            )));
        }
        // A wish that waits already is enough.
        let _ = self.broker.step_down.try_send(());
        match timeout(LEAVE_TIMEOUT, view.wait_for(|view| !leads(view))).await {
            // The channel ends with the member, which leads no longer.
            Ok(_) => Ok(Response::new(StepDownResponse {})),
            Err(_) => Err(Status::deadline_exceeded("the broker still leads")),
        }
    }
}
