//! Ports for servers that are restarted.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use socket2::{Domain, Socket, Type};

/// A port that stays the test's own while no server listens on it, until this is dropped.
///
/// The system gives a port in use to nobody who asks for any port, neither to a listener nor to a connection. A connection from
/// the port keeps it in use, and a server that names it can listen there (both with `SO_REUSEADDR`).
#[derive(Debug)]
pub(crate) struct HeldPort {
    pub number: u16,
    _ends: (TcpStream, TcpStream),
}

impl HeldPort {
    pub(crate) fn new() -> Self {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(any).unwrap();
        let near = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        near.set_reuse_address(true).unwrap();
        near.bind(&any.into()).unwrap();
        near.connect(&listener.local_addr().unwrap().into()).unwrap();
        let near = TcpStream::from(near);
        let number = near.local_addr().unwrap().port();
        Self { number, _ends: (near, listener.accept().unwrap().0) }
    }

    /// Its address, as `--listen` takes it.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }
}
