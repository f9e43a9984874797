//! The head of a relayed connection: a header of the PROXY protocol, version 2, with the client's address.
//!
//! Owns writing and reading it. Must not know the connection behind it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ppp::v2::{Addresses, Builder, Command, Header, Protocol, Version};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The bytes in front of the part whose length they tell.
const FIXED_BYTES: usize = 16;
/// The most bytes behind them. Addresses take 36, and the rest is room for later additions.
const REST_BYTES_MAX: usize = 512;

/// The header of a connection from `client` to a broker's `listen` address.
///
/// # Errors
///
/// None for addresses of the internet: the header cannot be too long.
pub fn header(client: SocketAddr, listen: SocketAddr) -> io::Result<Vec<u8>> {
    let client = SocketAddr::new(client.ip().to_canonical(), client.port());
    // Both addresses of a header are of one kind. The client's counts.
    let listen = match (client.ip(), listen.ip().to_canonical()) {
        (IpAddr::V4(_), IpAddr::V6(_)) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), listen.port()),
        (IpAddr::V6(_), IpAddr::V4(_)) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), listen.port()),
        (_, ip) => SocketAddr::new(ip, listen.port()),
    };
    Builder::with_addresses(Version::Two | Command::Proxy, Protocol::Stream, (client, listen)).build()
}

/// Reads a header, and no byte behind it. Returns the client's address.
///
/// # Errors
///
/// The stream ends, or does not begin with a header and an address of the internet.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<SocketAddr> {
    let mut bytes = vec![0; FIXED_BYTES];
    stream.read_exact(&mut bytes).await?;
    let rest = usize::from(u16::from_be_bytes([bytes[FIXED_BYTES - 2], bytes[FIXED_BYTES - 1]]));
    if rest > REST_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the head of a relayed connection is too long"));
    }
    bytes.resize(FIXED_BYTES + rest, 0);
    stream.read_exact(&mut bytes[FIXED_BYTES..]).await?;
    let header = Header::try_from(&bytes[..]).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    match header.addresses {
        Addresses::IPv4(of) => Ok((of.source_address, of.source_port).into()),
        Addresses::IPv6(of) => Ok((of.source_address, of.source_port).into()),
        Addresses::Unspecified | Addresses::Unix(_) => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the head of a relayed connection has no client address"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn the_client_is_read_as_it_was_written_and_the_next_byte_stays() {
        for (client, listen, read_as) in [
            ("10.1.2.3:4", "10.0.0.1:22866", "10.1.2.3:4"),
            ("10.1.2.3:4", "[::1]:22866", "10.1.2.3:4"),
            ("[::ffff:10.1.2.3]:4", "[::]:22866", "10.1.2.3:4"),
            ("[2001:db8::1]:65535", "0.0.0.0:1", "[2001:db8::1]:65535"),
        ] {
            let mut bytes = header(address(client), address(listen)).unwrap();
            bytes.push(0x16);
            let mut stream = &bytes[..];
            assert_eq!(read(&mut stream).await.unwrap(), address(read_as));
            assert_eq!(stream, [0x16]);
        }
    }

    #[tokio::test]
    async fn what_is_no_header_is_refused() {
        let good = header(address("10.1.2.3:4"), address("10.0.0.1:22866")).unwrap();
        for cut in 0..good.len() {
            assert_eq!(read(&mut &good[..cut]).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
        let changed = |place: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[place] = byte;
            bytes.resize(2048, 0);
            bytes
        };
        // Another protocol, another version, addresses of a local socket, none at all, and a length out of bounds.
        for bytes in [changed(0, b'G'), changed(12, 0x11), changed(13, 0x31), changed(13, 0x01), changed(14, 0xff)] {
            assert_eq!(read(&mut &bytes[..]).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
