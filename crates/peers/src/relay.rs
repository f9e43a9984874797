//! The relay of a follower: copies a client's connection to the leader's peer port and back, below the client's TLS.
//!
//! Owns the way of a connection, and its end. Must not know what the client says, nor how connections are accepted.

use std::{
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_cluster::view::{Leader, View};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy, split},
    net::TcpStream,
    sync::watch,
    time::timeout,
};
use tokio_rustls::client::TlsStream;

use crate::{client, origin, tls::PeerTls};

/// How long a connection waits for a leader.
pub const WAIT_MAX: Duration = Duration::from_secs(3);
/// The pause before the same leader is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How long a client may take to end its side once the leader has ended the connection. A lost client never does.
const LINGER: Duration = Duration::from_secs(2);

/// The number of connections that are relayed at a time.
#[derive(Debug, Clone, Default)]
pub struct RelayCount(Arc<AtomicU64>);

impl RelayCount {
    /// The present number.
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn one(&self) -> Counted {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted(self.clone())
    }
}

struct Counted(RelayCount);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What becomes of a client's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// This broker serves it.
    Serve,
    /// It goes to the leader.
    Relay(Leader),
    /// No leader is known yet.
    Wait,
}

/// The way of a connection at the broker with this name.
pub fn way(broker: &str, view: &View) -> Way {
    match &view.leader {
        _ if view.role.serves_clients() => Way::Serve,
        // The lease of a former process of this broker would lead back here.
        Some(leader) if leader.name != broker => Way::Relay(leader.clone()),
        Some(_) | None => Way::Wait,
    }
}

/// The relay of a broker.
#[derive(Debug, Clone)]
pub struct Relay {
    broker: String,
    tls: PeerTls,
    view: watch::Receiver<View>,
    count: RelayCount,
}

/// How a connection ended that this broker does not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Client or leader have ended it.
    BySides,
    /// Another broker leads now.
    ByTakeover,
    /// No leader was found in time.
    WithoutLeader,
}

impl Relay {
    /// The relay of the broker with this name.
    pub fn new(broker: String, tls: PeerTls, view: watch::Receiver<View>, count: RelayCount) -> Self {
        Self { broker, tls, view, count }
    }

    /// Carries a client's connection to its end. `Err`: this broker has come to lead, and gets the connection back, of which
    /// nothing was read.
    pub async fn carry(self, client: TcpStream, peer: SocketAddr) -> Result<Ended, TcpStream> {
        let Self { broker, tls, mut view, count } = self;
        let found = timeout(WAIT_MAX, find(&broker, &tls, &mut view, &client, peer)).await;
        let Ok((leader, stream)) = found else { return Ok(Ended::WithoutLeader) };
        let Some(stream) = stream else { return Err(client) };
        let _counted = count.one();
        let takeover = async {
            // The channel ends with the broker.
            let is_other =
                |view: &View| view.role.serves_clients() || view.leader.as_ref().is_some_and(|now| *now != leader);
            drop(view.wait_for(is_other).await);
        };
        // Small frames go at once. A connection without the option works too, so a failure is ignored.
        let _ = client.set_nodelay(true);
        tokio::select! {
            () = copied(client, stream) => Ok(Ended::BySides),
            () = takeover => Ok(Ended::ByTakeover),
        }
    }
}

/// Finds the leader and opens a connection to it; without one if this broker serves itself. Tries until the future is
/// dropped.
async fn find(
    broker: &str,
    tls: &PeerTls,
    view: &mut watch::Receiver<View>,
    client: &TcpStream,
    peer: SocketAddr,
) -> (Leader, Option<Box<TlsStream<TcpStream>>>) {
    loop {
        let now = way(broker, &view.borrow_and_update());
        match now {
            Way::Serve => {
                let leader = Leader { name: broker.to_owned(), peer_address: String::new() };
                return (leader, None);
            }
            Way::Relay(leader) => match open(&leader, tls, client, peer).await {
                Ok(stream) => return (leader, Some(Box::new(stream))),
                Err(problem) => {
                    tracing::debug!(leader = leader.name, %problem, "failed to reach the leader for a client; trying again");
                    // Another leader may be known before the pause is over.
                    drop(timeout(AGAIN_AFTER, view.changed()).await);
                }
            },
            Way::Wait => {
                if view.changed().await.is_err() {
                    // The broker ends.
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

async fn open(
    leader: &Leader,
    tls: &PeerTls,
    client: &TcpStream,
    peer: SocketAddr,
) -> io::Result<TlsStream<TcpStream>> {
    let mut stream = client::open(&leader.peer_address, tls.for_relays()).await?;
    stream.write_all(&origin::header(peer, client.local_addr()?)?).await?;
    stream.flush().await?;
    Ok(stream)
}

/// Copies both ways, until the leader's side has ended and the client has had time to end its own.
async fn copied(client: impl AsyncRead + AsyncWrite + Unpin, leader: impl AsyncRead + AsyncWrite + Unpin) {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_leader, mut to_leader) = split(leader);
    let mut up = pin!(async {
        let copied = copy(&mut from_client, &mut to_leader).await;
        // The leader reads the end, answers, and ends its side.
        drop(to_leader.shutdown().await);
        copied.is_err()
    });
    let mut down = pin!(async {
        drop(copy(&mut from_leader, &mut to_client).await);
        drop(to_client.shutdown().await);
    });
    tokio::select! {
        () = &mut down => drop(timeout(LINGER, up).await),
        // A lost client gets no answer.
        is_broken = &mut up => if !is_broken {
            down.await;
        },
    }
}
