//! `baton health`: one word and an exit code, for probes.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    path::Path,
    process::Command,
};

use tonic_health::ServingStatus;

use crate::{
    broker::{Broker, baton},
    foreign::{GOOD, Stranger, free_port},
};

/// Runs the command. Returns its exit code, the word and stderr.
pub(crate) fn asked(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn health(server: &str, ca: &Path) -> Command {
    let mut command = baton();
    command.args(["health", "--server", server, "--ca"]).arg(ca);
    command
}

#[track_caller]
fn check(command: &mut Command, code: i32, word: &str, reason: &str) {
    let (found, said, stderr) = asked(command);
    assert_eq!((found, said), (Some(code), format!("{word}\n")), "{stderr}");
    assert!(stderr.contains(reason), "{stderr:?} lacks {reason:?}");
}

#[test]
fn a_broker_that_takes_messages_is_ready() {
    let broker = Broker::start();
    check(&mut health(&broker.address, &broker.ca()), 0, "ready", "");
    check(baton().args(["health", "--data"]).arg(broker.data()), 0, "ready", "");
    let plaintext = Broker::start_in(Broker::start().kill(), &["--plaintext"]);
    check(baton().args(["health", "--server", &format!("http://{}", plaintext.address)]), 0, "ready", "");
}

#[test]
fn a_broker_that_is_not_there_is_unreachable() {
    let broker = Broker::start();
    let (address, data, ca) = (broker.address.clone(), broker.data(), broker.ca());
    // The folder of a killed broker still has its address.
    let _folder = broker.kill();
    check(&mut health(&address, &ca), 9, "unreachable", &address);
    check(baton().args(["health", "--data"]).arg(&data), 9, "unreachable", &address);
    let empty = tempfile::tempdir().unwrap();
    check(baton().args(["health", "--data"]).arg(empty.path()), 9, "unreachable", "no broker runs on");
}

#[test]
fn a_server_that_does_not_answer_is_unreachable_after_the_timeout() {
    let listener = free_port();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let mut command = baton();
    command.args(["health", "--server", &server, "--timeout", "100ms"]);
    check(&mut command, 9, "unreachable", "no answer within 100ms");
}

#[test]
fn an_answer_that_is_cut_off_is_none() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _request = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nready").unwrap();
    });
    check(baton().args(["health", "--server", &server]), 9, "unreachable", &server);
    serving.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_not_trusted_is_named() {
    let (broker, other) = (Broker::start(), Broker::start());
    check(&mut health(&broker.address, &other.ca()), 9, "untrusted", "certificate");
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    let expired = Stranger::over_tls(free_port(), &ca, (2020, 2021));
    check(&mut health(&expired.address.to_string(), &ca), 9, "untrusted", "expired");
    assert_eq!(expired.calls().len(), 0, "nothing is asked of it");
    let stranger = Stranger::over_tls(free_port(), &ca, GOOD);
    check(&mut health(&stranger.address.to_string(), &ca), 9, "unreachable", "another program answers");
    let missing = folder.path().join("missing.pem");
    let (code, said, stderr) = asked(&mut health(&broker.address, &missing));
    assert_eq!((code, said.as_str()), (Some(3), ""), "{stderr}");
}

/// A proxy that passes gRPC only.
#[tokio::test(flavor = "multi_thread")]
async fn where_only_grpc_is_served_its_health_service_is_asked() {
    let folder = Broker::start().kill();
    let file = |name: &str| folder.path().join("data/tls").join(name);
    let pem = |name: &str| std::fs::read(file(name)).unwrap();
    let (reporter, service) = tonic_health::server::health_reporter();
    let identity = tonic::transport::Identity::from_pem(pem("server.pem"), pem("server.key"));
    let tls = tonic::transport::ServerTlsConfig::new().identity(identity);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap().to_string();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let serving = tonic::transport::Server::builder().tls_config(tls).unwrap().add_service(service);
    tokio::spawn(serving.serve_with_incoming(incoming));
    check(&mut health(&server, &file("ca.pem")), 0, "ready", "");
    reporter.set_service_status("", ServingStatus::NotServing).await;
    check(&mut health(&server, &file("ca.pem")), 1, "unavailable", "not ready");
}
