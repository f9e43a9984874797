//! A receiver of the gateway's own requests, over HTTP or TLS.

use std::{
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
};

use aws_lc_rs::hmac;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::broker::{Broker, eventually};

/// A request that has come.
#[derive(Debug, Clone)]
pub(super) struct Heard {
    pub(super) head: HeaderMap,
    bytes: Bytes,
    pub(super) body: Value,
    pub(super) path: String,
}

impl Heard {
    pub(super) fn header(&self, name: &str) -> &str {
        self.head.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub(super) fn id(&self) -> &str {
        self.header("webhook-id")
    }

    pub(super) fn kind(&self) -> &str {
        self.body["type"].as_str().unwrap_or_default()
    }

    /// Whether the holder of this secret has signed it.
    pub(super) fn is_signed(&self, secret: &str) -> bool {
        let secret = BASE64_STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let signed = [format!("{}.{}.", self.id(), self.header("webhook-timestamp")).as_bytes(), &self.bytes].concat();
        let signature = BASE64_STANDARD.decode(self.header("webhook-signature").strip_prefix("v1,").unwrap()).unwrap();
        hmac::verify(&key, &signed, &signature).is_ok()
    }
}

type Answering = Pin<Box<dyn Future<Output = (u16, String)> + Send>>;

/// Answers each request by a function, which also gets the number of earlier requests with the same id.
pub(super) struct Receiver {
    pub(super) url: String,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl Receiver {
    /// On this machine, over HTTP.
    pub(super) async fn start(answer: impl Fn(&Heard, usize) -> (u16, String) + Send + Sync + 'static) -> Self {
        Self::waiting(move |heard, repeats| {
            let answer = answer(&heard, repeats);
            Box::pin(async move { answer })
        })
        .await
    }

    /// The same, where an answer may wait.
    pub(super) async fn waiting(answer: impl Fn(Heard, usize) -> Answering + Send + Sync + 'static) -> Self {
        Self::with(None, Arc::new(answer)).await
    }

    /// Over TLS, with the certificate of the broker.
    pub(super) async fn encrypted(
        broker: &Broker,
        answer: impl Fn(&Heard, usize) -> (u16, String) + Send + Sync + 'static,
    ) -> Self {
        let tls = broker.data().join("tls");
        let answer = move |heard: Heard, repeats| -> Answering {
            let answer = answer(&heard, repeats);
            Box::pin(async move { answer })
        };
        Self::with(Some(acceptor(&tls.join("server.pem"), &tls.join("server.key"))), Arc::new(answer)).await
    }

    async fn with(tls: Option<TlsAcceptor>, answer: Arc<dyn Fn(Heard, usize) -> Answering + Send + Sync>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}/hook", listener.local_addr().unwrap());
        let heard = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&heard);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (answer, heard, tls) = (Arc::clone(&answer), Arc::clone(&shared), tls.clone());
                let service = service_fn(move |request| respond(Arc::clone(&answer), Arc::clone(&heard), request));
                tokio::spawn(async move {
                    // A gateway that is killed, or that waits no longer, closes it.
                    drop(match tls {
                        None => http1::Builder::new().serve_connection(TokioIo::new(stream), service).await,
                        Some(tls) => {
                            let Ok(stream) = tls.accept(stream).await else { return };
                            http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
                        }
                    });
                });
            }
        });
        Self { url, heard }
    }

    pub(super) fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }

    /// The requests of this kind.
    pub(super) fn of(&self, kind: &str) -> Vec<Heard> {
        self.heard().into_iter().filter(|heard| heard.kind() == kind).collect()
    }

    /// Waits for so many requests of this kind.
    pub(super) async fn has(&self, kind: &str, count: usize) {
        eventually("the receiver has the request", async || self.of(kind).len() >= count).await;
    }
}

async fn respond(
    answer: Arc<dyn Fn(Heard, usize) -> Answering + Send + Sync>,
    all: Arc<Mutex<Vec<Heard>>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let bytes = body.collect().await?.to_bytes();
    let body = serde_json::from_slice(&bytes).unwrap_or_default();
    let heard = Heard { head: head.headers, bytes, body, path: head.uri.path().to_owned() };
    let repeats = {
        let mut all = all.lock().unwrap();
        all.push(heard.clone());
        all.iter().filter(|one| one.id() == heard.id()).count() - 1
    };
    let (status, text) = answer(heard, repeats).await;
    let location = ("location", "http://127.0.0.1:1/elsewhere");
    let response = Response::builder().status(status).header(location.0, location.1);
    Ok(response.body(Full::new(Bytes::from(text))).unwrap())
}

fn acceptor(certificate: &Path, key: &Path) -> TlsAcceptor {
    let chain = CertificateDer::pem_file_iter(certificate).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    TlsAcceptor::from(Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap()))
}
