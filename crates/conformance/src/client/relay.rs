//! A TCP relay between the client and the broker. Its port can be closed, and its connections can be cut.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// Forwards every connection on its port.
#[derive(Debug)]
pub(super) struct Relay {
    /// The address that clients connect to.
    pub address: SocketAddr,
    to: SocketAddr,
    accepting: JoinSet<()>,
    connections: Arc<Mutex<JoinSet<()>>>,
    /// Cancelled to silence the present connections; replaced by a new token for later connections.
    silence: Arc<Mutex<CancellationToken>>,
}

impl Relay {
    /// Opens a relay on a free port.
    pub(crate) async fn open(to: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (connections, silence) = (Arc::default(), Arc::default());
        let mut relay = Self { address, to, accepting: JoinSet::new(), connections, silence };
        relay.accept(listener);
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
