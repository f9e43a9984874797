//! A bare pipeline of the same shape as the broker: frames in, batch verification, one synced append a group, frames
//! out. It has no state, directory, custody or retries, and its receipts are unsigned. It shows the cost without a
//! broker's logic, and is the baseline for measurements of the broker.
//!
//! It implements just enough of the protocol for `baton bench handoff` and `idle` to drive it like a broker:
//!
//! ```text
//! cargo bench --bench pipeline -- handoff --pairs 8 --window 32        the flags of `baton bench handoff`
//! cargo bench --bench pipeline -- handoff --unsigned --no-sync         neither signatures nor disk
//! cargo bench --bench pipeline -- idle                                 what sessions cost without a broker behind them
//! ```

mod engine;
mod service;

use std::{path::Path, process::Command, sync::Arc};

use baton::{
    ids::{IdSource as _, SystemIds},
    proto::v1::{agent_service_server::AgentServiceServer, broker_service_server::BrokerServiceServer},
    server::development_ca::DevelopmentCa,
    time::{Clock as _, SystemClock},
};
use tokio::net::TcpListener;
use tonic::transport::{Identity, Server, ServerTlsConfig, server::TcpIncoming};

use self::{engine::Engine, service::Service};

/// The same allocator as the broker's.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    // Cargo adds --bench. All other arguments except --no-sync go to the bench clients.
    let own = ["--bench", "--no-sync"];
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let syncs = !arguments.iter().any(|argument| argument == "--no-sync");
    let of_clients: Vec<_> = arguments.into_iter().filter(|argument| !own.contains(&argument.as_str())).collect();
    let Some((bench, flags)) = of_clients.split_first() else { return Ok(()) }; // as `cargo test --benches` calls it

    let folder = tempfile::Builder::new().prefix("bare-pipeline-").tempdir()?;
    let engine = Engine::start(&folder.path().join("log"), syncs)?;
    let socket = TcpListener::bind("127.0.0.1:0").await?;
    let address = socket.local_addr()?;
    let (tls, ca) = certificate(folder.path())?;
    tokio::spawn(serve(Service::new(Arc::new(engine)), tls, socket));

    let mut clients = Command::new(env!("CARGO_BIN_EXE_baton"));
    clients.args(["bench", bench, "--server", &address.to_string(), "--ca", &ca]);
    clients.args(["--broker-pid", &std::process::id().to_string()]).args(flags);
    let ended = tokio::task::spawn_blocking(move || clients.status()).await??;
    if ended.success() { Ok(()) } else { Err(format!("the clients ended with {ended}").into()) }
}

fn certificate(folder: &Path) -> Result<(ServerTlsConfig, String), Failure> {
    let made = DevelopmentCa::load_or_create(&folder.join("tls"), SystemClock.now(), &["127.0.0.1".to_owned()])?;
    let read = |path: &Path| std::fs::read(path);
    let identity = Identity::from_pem(read(&made.server.certificate)?, read(&made.server.key)?);
    Ok((ServerTlsConfig::new().identity(identity), made.ca_certificate.display().to_string()))
}

async fn serve(service: Service, tls: ServerTlsConfig, socket: TcpListener) -> Result<(), Failure> {
    const WINDOW_BYTES: u32 = 1 << 20;
    let service = Arc::new(service);
    Server::builder()
        .tls_config(tls)?
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .add_service(BrokerServiceServer::from_arc(service.clone()))
        .add_service(AgentServiceServer::from_arc(service))
        .serve_with_incoming(TcpIncoming::from(socket).with_nodelay(Some(true)))
        .await?;
    Ok(())
}

/// A key for the welcome, which signs nothing.
fn idle_key() -> baton::envelope::keys::PublicKey {
    let mut seed = [0; 32];
    seed[..16].copy_from_slice(&SystemIds.random());
    baton::envelope::keys::PrivateKey::from_seed(&seed).public()
}
