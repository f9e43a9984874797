//! An operator's token is sent only to its own broker: foreign servers record what they receive.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject as _};
use tokio::net::TcpStream;

use crate::broker::{Broker, baton, exit_of, write};

/// A server that answers every call with UNIMPLEMENTED, and records the authorization of each call.
pub(crate) struct Stranger {
    pub address: SocketAddr,
    calls: Arc<Mutex<Vec<Option<String>>>>,
}

/// The validity of the server's certificate, in years.
pub(crate) const GOOD: (i32, i32) = (2020, 2100);

impl Stranger {
    /// Serves over TLS with a certificate of its own CA, which it writes to this file.
    pub(crate) fn over_tls(listener: TcpListener, ca: &Path, years: (i32, i32)) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        write(ca, &issuer.pem());
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(years.0, 1, 1), date_time_ymd(years.1, 1, 1));
        let certificate = params.signed_by(&key, &issuer).unwrap().der().clone();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let provider = baton::server::tls::provider();
        let builder =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self::start(listener, Some(tokio_rustls::TlsAcceptor::from(Arc::new(config))))
    }

    pub(crate) fn in_plaintext(listener: TcpListener) -> Self {
        Self::start(listener, None)
    }

    fn start(listener: TcpListener, tls: Option<tokio_rustls::TlsAcceptor>) -> Self {
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, seen) = (tls.clone(), Arc::clone(&seen));
                tokio::spawn(async move {
                    match tls {
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                answer(stream, &seen).await;
                            }
                        }
                        None => answer::<TcpStream>(stream, &seen).await,
                    }
                });
            }
        });
        Self { address, calls }
    }

    /// The authorization of each call so far.
    pub(crate) fn calls(&self) -> Vec<Option<String>> {
        self.calls.lock().unwrap().clone()
    }
}

async fn answer<S>(stream: S, seen: &Mutex<Vec<Option<String>>>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let token = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
        seen.lock().unwrap().push(token);
        let response = http::Response::builder().header("content-type", "application/grpc").header("grpc-status", "12");
        // The text of a broker is as untrusted as the text of an agent.
        let response = response.header("grpc-message", "%1B%5B2J%0AFORGED%C2%9B");
        drop(respond.send_response(response.body(()).unwrap(), true));
    }
}

pub(crate) fn free_port() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// A folder in which ./baton-data is this broker's data folder.
fn checkout_of(broker: &Broker) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(broker.data(), folder.path().join("baton-data")).unwrap();
    folder
}

fn in_folder(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = baton();
    command.current_dir(folder).args(arguments);
    command
}

/// Makes calls of all kinds: for operators, for everyone, for agents.
async fn call(folder: &Path, connection: &[&str]) {
    let folder = folder.to_owned();
    let connection: Vec<String> = connection.iter().map(ToString::to_string).collect();
    let calls = move || {
        let key = folder.join("key.pem");
        if !key.exists() {
            assert_eq!(exit_of(&mut in_folder(&folder, &["keygen", "--out", "key.pem"])).0, Some(0));
        }
        for arguments in [
            &["audit"][..],
            &["agent", "list"],
            &["agent", "register", "--id", "a", "--key", "key.pem"],
            &["demo"],
            &["dlq", "list"],
            &["dlq", "redrive", "--all"],
            &["task", "show", "t"],
            &["token", "--id", "a", "--key", "key.pem"],
        ] {
            let (code, stderr) = exit_of(in_folder(&folder, arguments).args(&connection));
            assert!(matches!(code, Some(8 | 9)), "{arguments:?}: {code:?} {stderr}");
            let is_obeyed =
                stderr.contains(['\u{1b}', '\u{9b}']) || stderr.lines().any(|line| line.starts_with("FORGED"));
            assert!(!is_obeyed, "{arguments:?}: {stderr:?}");
        }
    };
    tokio::task::spawn_blocking(calls).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_broker_never_sees_the_operators_token() {
    let broker = Broker::start();
    let folder = checkout_of(&broker);
    let ca = folder.path().join("foreign-ca.pem");
    let elsewhere = Stranger::over_tls(free_port(), &ca, GOOD);
    let server = elsewhere.address.to_string();
    call(folder.path(), &["--server", &server, "--ca", ca.to_str().unwrap()]).await;
    // The server has no certificate of the folder's CA, so that CA does not make it trusted either.
    call(folder.path(), &["--server", &server, "--ca", "baton-data/tls/ca.pem"]).await;
    call(folder.path(), &["--server", &server]).await;
    assert!(elsewhere.calls().len() >= 8, "it was called");
    assert_eq!(elsewhere.calls().into_iter().flatten().collect::<Vec<_>>(), Vec::<String>::new());

    // Without TLS no certificate shows whose broker it is.
    let plain = Stranger::in_plaintext(free_port());
    call(folder.path(), &["--server", &format!("http://{}", plain.address)]).await;
    assert!(plain.calls().len() >= 8, "it was called");
    assert_eq!(plain.calls().into_iter().flatten().collect::<Vec<_>>(), Vec::<String>::new());

    // A killed broker leaves its address file behind. A foreign server then listens on that address.
    let address: SocketAddr = broker.address.parse().unwrap();
    let _data = broker.kill();
    let heir = Stranger::over_tls(TcpListener::bind(address).unwrap(), &ca, GOOD);
    call(folder.path(), &["--server", &address.to_string()]).await;
    assert_eq!(heir.calls(), Vec::new(), "its certificate is not of the folder's CA");
    call(folder.path(), &["--server", &address.to_string(), "--ca", ca.to_str().unwrap()]).await;
    assert!(heir.calls().len() >= 8, "it was called");
    assert_eq!(heir.calls().into_iter().flatten().collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn the_broker_of_the_folder_gets_the_operators_token_without_a_flag() {
    let broker = Broker::start();
    let folder = checkout_of(&broker);
    let port = broker.address.rsplit_once(':').unwrap().1;
    for server in [&broker.address, &format!("localhost:{port}")] {
        let (code, stderr) = exit_of(&mut in_folder(folder.path(), &["audit", "--server", server]));
        assert_eq!(code, Some(0), "{stderr}");
    }
    let with_ca = ["audit", "--server", &broker.address, "--ca", "baton-data/tls/ca.pem"];
    assert_eq!(exit_of(&mut in_folder(folder.path(), &with_ca)).0, Some(0));
    // From another folder the same broker has no implicit operator.
    let mut elsewhere = baton();
    elsewhere.args(["audit", "--server", &broker.address, "--ca"]).arg(broker.ca());
    let (code, stderr) = exit_of(&mut elsewhere);
    assert!(code == Some(8) && stderr.contains("IDENTITY_MISSING"), "{code:?} {stderr}");
}
