//! HTTP/1.1 and HTTP/2 by hand: byte sequences that no library sends, over TLS, from the attacker's address.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use baton_client::ClientCertificate;
use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore,
    client::WantsClientCert,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::broker::{Broker, PATIENCE};

/// The attacker's address. Honest agents use another one.
pub(crate) const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The largest window: the broker can send everything although the client reads nothing.
const WINDOW: u32 = 0x7fff_ffff;

pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A TCP connection from the attacker's address.
pub(crate) async fn tcp(broker: &Broker) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((ATTACKER, 0)))?;
    socket.connect(broker.address.parse().unwrap()).await
}

/// A TLS connection that offers HTTP/2.
pub(crate) async fn tls(broker: &Broker) -> std::io::Result<TlsStream<TcpStream>> {
    tls_offering(broker, &["h2"]).await
}

/// A TLS connection that offers HTTP/1.1.
pub(crate) async fn http1(broker: &Broker) -> TlsStream<TcpStream> {
    tls_offering(broker, &["http/1.1"]).await.unwrap()
}

/// A TLS connection that offers HTTP/1.1 and this client certificate, to a broker with a certificate of this CA.
pub(crate) async fn http1_as(broker: &Broker, ca: &Path, client: &ClientCertificate) -> TlsStream<TcpStream> {
    let chain = vec![CertificateDer::from_pem_file(&client.certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&client.key).unwrap();
    let config = trusting(ca).with_client_auth_cert(chain, key).unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(ServerName::try_from("127.0.0.1").unwrap(), tcp(broker).await.unwrap()).await.unwrap()
}

fn trusting(ca: &Path) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
}

/// A TLS connection that offers these protocols.
pub(crate) async fn tls_offering(broker: &Broker, protocols: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
    tls_trusting(broker, &broker.ca(), protocols).await
}

/// The same to a broker whose CA is in this file.
pub(crate) async fn tls_trusting(
    broker: &Broker,
    ca: &Path,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    tls_over(tcp(broker).await?, ca, protocols).await
}

/// TLS over this connection, to a server whose CA is in this file.
pub(crate) async fn tls_over(
    stream: TcpStream,
    ca: &Path,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut config = trusting(ca).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(ServerName::try_from("localhost").unwrap(), stream).await
}

/// An HTTP/2 connection after its preface and settings, with the largest windows.
pub(crate) async fn http2(broker: &Broker) -> TlsStream<TcpStream> {
    http2_with_window(broker, WINDOW).await
}

/// The same with this initial window for each stream, in bytes.
pub(crate) async fn http2_with_window(broker: &Broker, window: u32) -> TlsStream<TcpStream> {
    let mut stream = tls(broker).await.unwrap();
    let mut settings = 4_u16.to_be_bytes().to_vec(); // SETTINGS_INITIAL_WINDOW_SIZE
    settings.extend(window.to_be_bytes());
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &settings));
    bytes.extend(frame(WINDOW_UPDATE, 0, 0, &(WINDOW - 65_535).to_be_bytes()));
    stream.write_all(&bytes).await.unwrap();
    stream
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The kind, flags and stream of the next frame. Discards the payload.
pub(crate) async fn read_frame(stream: &mut TlsStream<TcpStream>) -> (u8, u8, u32) {
    let read = async {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let [a, b, c, kind, flags, of @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).await.unwrap();
        (kind, flags, u32::from_be_bytes(of))
    };
    tokio::time::timeout(PATIENCE, read).await.expect("the broker sends a frame")
}

/// A literal header that is not added to the dynamic table.
pub(crate) fn header(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        match text.len() {
            short @ 0..127 => bytes.push(u8::try_from(short).unwrap()),
            mut rest => {
                bytes.push(127);
                rest -= 127;
                while rest >= 128 {
                    bytes.push(u8::try_from(rest % 128 + 128).unwrap());
                    rest /= 128;
                }
                bytes.push(u8::try_from(rest).unwrap());
            }
        }
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// The headers of a gRPC call.
pub(crate) fn head(path: &str, token: Option<&str>) -> Vec<u8> {
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "https"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ] {
        headers.extend(header(name, value));
    }
    if let Some(token) = token {
        headers.extend(header("authorization", &format!("Bearer {token}")));
    }
    headers
}

/// A whole call with this message.
pub(crate) fn call(stream: u32, path: &str, token: Option<&str>, message: &[u8]) -> Vec<u8> {
    let mut bytes = frame(HEADERS, END_HEADERS, stream, &head(path, token));
    bytes.extend(frame(0, END_STREAM, stream, &grpc(message)));
    bytes
}

/// A message with its gRPC length prefix.
pub(crate) fn grpc(message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    bytes.extend(message);
    bytes
}

/// Writes until all is written, the broker closes the connection, or the broker has accepted nothing for a while.
pub(crate) async fn flood(stream: &mut TlsStream<TcpStream>, bytes: &[u8]) {
    const STALLED_AFTER: Duration = Duration::from_millis(500);
    for part in bytes.chunks(16 * 1024) {
        let write = async {
            stream.write_all(part).await?;
            stream.flush().await
        };
        if !matches!(tokio::time::timeout(STALLED_AFTER, write).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Writes all of the bytes and reads at the same time, until the broker closes the connection.
pub(crate) async fn flood_until_hung_up(stream: &mut TlsStream<TcpStream>, bytes: &[u8]) {
    let (mut answers, mut requests) = tokio::io::split(stream);
    let write = async {
        // The broker may close the connection before it has read all.
        drop(requests.write_all(bytes).await);
        drop(requests.flush().await);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = write => {}
        () = hung_up(&mut answers) => {}
    }
}

/// An HTTP/1.1 response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// Reads one response with a body of the declared length. `None`: the broker has closed the connection before its end.
pub(crate) async fn answer(stream: &mut (impl AsyncRead + Unpin)) -> Option<Answer> {
    let read = async {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |length| length.parse().expect("a length"));
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Some(Answer { status, head, body: String::from_utf8(body).unwrap() })
    };
    tokio::time::timeout(PATIENCE, read).await.expect("the broker answers or hangs up")
}

/// Reads until the broker closes the connection.
pub(crate) async fn hung_up(stream: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = [0; 4096];
    let read = async { while matches!(stream.read(&mut buffer).await, Ok(read) if read > 0) {} };
    tokio::time::timeout(PATIENCE, read).await.expect("the broker hangs up");
}
