//! A TCP relay between the client and the broker. Its port can be closed, and its connections can be cut.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// Forwards every connection on its port.
#[derive(Debug)]
pub(super) struct Relay {
    /// The address that clients connect to.
    pub address: SocketAddr,
    /// A connection from that port, so that the system gives the port to nobody while it is closed.
    _held: (TcpStream, TcpStream),
    to: SocketAddr,
    accepting: JoinSet<()>,
    connections: Arc<Mutex<JoinSet<()>>>,
    /// Cancelled to silence the present connections; replaced by a new token for later connections.
    silence: Arc<Mutex<CancellationToken>>,
}

impl Relay {
    /// Opens a relay on a free port.
    pub(crate) async fn open(to: SocketAddr) -> io::Result<Self> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let other = TcpListener::bind(any).await?;
        // Where both have this option, a listener can have the port of a connection.
        let holder = TcpSocket::new_v4()?;
        holder.set_reuseaddr(true)?;
        holder.bind(any)?;
        let holder = holder.connect(other.local_addr()?).await?;
        let address = holder.local_addr()?;
        let held = (holder, other.accept().await?.0);
        let (connections, silence) = (Arc::default(), Arc::default());
        let mut relay = Self { address, _held: held, to, accepting: JoinSet::new(), connections, silence };
        relay.open_again().await?;
        Ok(relay)
    }

    /// Cuts every connection, with the data in transit.
    pub(crate) fn cut(&self) {
        self.connections.lock().expect("no holder panics").abort_all();
    }

    /// Stops forwarding on the present connections, and leaves them open.
    pub(crate) fn fall_silent(&self) {
        let mut silence = self.silence.lock().expect("no holder panics");
        std::mem::take(&mut *silence).cancel();
    }

    /// Closes the port and cuts every connection.
    pub(crate) async fn close(&mut self) {
        // Waits for the end of the task, which closes the port.
        self.accepting.shutdown().await;
        self.cut();
    }

    /// Listens again on the same port.
    pub(crate) async fn open_again(&mut self) -> io::Result<()> {
        let listener = TcpListener::bind(self.address).await?;
        self.accept(listener);
        Ok(())
    }

    fn accept(&mut self, listener: TcpListener) {
        let (to, connections, silence) = (self.to, Arc::clone(&self.connections), Arc::clone(&self.silence));
        self.accepting.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let silence = silence.lock().expect("no holder panics").clone();
                connections.lock().expect("no holder panics").spawn(pass_on(client, to, silence));
            }
        });
    }
}

async fn pass_on(mut client: TcpStream, to: SocketAddr, silence: CancellationToken) {
    let Ok(mut broker) = TcpStream::connect(to).await else { return };
    // Small frames must not wait for more data.
    let _ = (client.set_nodelay(true), broker.set_nodelay(true));
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut broker) => {}
        // Pending forever keeps both sockets open until the case is over.
        () = silence.cancelled() => std::future::pending().await,
    }
}
