//! Calls to another broker of the cluster.
//!
//! Owns the connection. Each call has a time limit, so a lost broker delays a caller for seconds only. [`crate::checkpoint`] has
//! none: its caller limits the wait for each piece.

use std::{io, time::Duration};

use http::Uri;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::{Code, Status};
use tower::service_fn;

use crate::{
    proto::{GetStatusRequest, GetStatusResponse, StepDownRequest, peer_service_client::PeerServiceClient},
    tls::PeerTls,
};

/// The time for connecting, the TLS handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The time for the answer to [`status`].
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// The time for the answer to [`step_down`]: longer than the broker waits itself.
const STEP_DOWN_TIMEOUT: Duration = Duration::from_secs(15);

/// The bytes that a peer may send ahead.
const WINDOW_BYTES: u32 = 2 * 1024 * 1024;

/// The reason why a call to a peer failed.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The broker does not answer, or is none of the cluster.
    #[error("failed to reach the broker at {address}: {problem}")]
    Unreachable {
        /// Its address, host and port.
        address: String,
        /// The error.
        problem: String,
    },
    /// The broker refuses the call.
    #[error("the broker at {address} refuses: {}", status.message())]
    Refused {
        /// Its address, host and port.
        address: String,
        /// The status.
        status: Box<Status>,
    },
}

impl PeerError {
    pub(crate) fn unreachable(address: &str, problem: impl ToString) -> Self {
        Self::Unreachable { address: address.to_owned(), problem: problem.to_string() }
    }

    /// The error of a call. A connection that was cut has a status of the library.
    pub(crate) fn of(address: &str, status: Status) -> Self {
        match status.code() {
            Code::Unknown | Code::Unavailable | Code::Internal | Code::Cancelled => {
                Self::unreachable(address, status.message())
            }
            _ => Self::Refused { address: address.to_owned(), status: Box::new(status) },
        }
    }
}

/// Asks a broker for its role and its place in the log. Takes four seconds at most.
///
/// # Errors
///
/// No answer, or not from a broker of this cluster.
pub async fn status(address: &str, tls: &PeerTls) -> Result<GetStatusResponse, PeerError> {
    let answer = async {
        let mut client = connect(address, tls).await?;
        let answer = timeout(STATUS_TIMEOUT, client.get_status(GetStatusRequest {})).await;
        let answer = answer.map_err(|_| PeerError::unreachable(address, "it does not answer in time"))?;
        answer.map_err(|status| PeerError::of(address, status))
    };
    Ok(answer.await?.into_inner())
}

/// Ends the leadership of a broker, and returns when it has ended. Takes 17 seconds at most.
///
/// # Errors
///
/// No answer, or the broker does not lead.
pub async fn step_down(address: &str, tls: &PeerTls) -> Result<(), PeerError> {
    let mut client = connect(address, tls).await?;
    let answer = timeout(STEP_DOWN_TIMEOUT, client.step_down(StepDownRequest {})).await;
    let answer = answer.map_err(|_| PeerError::unreachable(address, "it does not answer in time"))?;
    answer.map(drop).map_err(|status| PeerError::of(address, status))
}

pub(crate) type Service =
    tower::util::BoxCloneService<http::Request<tonic::body::Body>, http::Response<hyper::body::Incoming>, hyper::Error>;

pub(crate) async fn connect(address: &str, tls: &PeerTls) -> Result<PeerServiceClient<Service>, PeerError> {
    let unreachable = |error: io::Error| PeerError::unreachable(address, error);
    let stream = open(address, tls.for_calls()).await.map_err(unreachable)?;
    // Windows of 64 KiB, the default, would make a checkpoint wait for each round trip.
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
    let connected = builder.handshake(TokioIo::new(stream)).await;
    let (sender, connection) = connected.map_err(|error| PeerError::unreachable(address, error))?;
    // Ends when the client is dropped.
    tokio::spawn(connection);
    let service = service_fn(move |request| {
        let mut sender = sender.clone();
        async move { sender.send_request(request).await }
    });
    // The address may be no name of a certificate: only the path of the origin counts.
    Ok(PeerServiceClient::with_origin(Service::new(service), Uri::from_static("https://baton-peer")))
}

/// Opens a connection to the peer port of a broker.
pub(crate) async fn open(address: &str, tls: TlsConnector) -> io::Result<TlsStream<TcpStream>> {
    let opened = timeout(CONNECT_TIMEOUT, async {
        let stream = TcpStream::connect(address).await?;
        // A connection without the option works too, so a failure is ignored.
        let _ = stream.set_nodelay(true);
        tls.connect(PeerTls::name(), stream).await
    });
    opened.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}
