//! The endpoint for Prometheus: what it serves, what it refuses, and what docs/metrics.md says of it.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};

use baton::proto::v1;

use crate::broker::{Broker, a_request, baton, eventually, exit_of, new_task, write};

/// A broker with metrics on a free port, and the address of them.
fn measured() -> (Broker, String) {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let broker = Broker::start_in(folder, &["--metrics-listen", "127.0.0.1:0"]);
    let address = address_of(&broker);
    (broker, address)
}

/// The address of the metrics of a broker that was started with some.
pub(crate) fn address_of(broker: &Broker) -> String {
    let log = broker.log();
    let line = log.lines().find(|line| line.contains("serving metrics")).unwrap_or_else(|| panic!("no address: {log}"));
    let (_, address) = line.split_once("127.0.0.1:").unwrap();
    let port: String = address.chars().take_while(char::is_ascii_digit).collect();
    format!("127.0.0.1:{port}")
}

/// The answer to a request, with its head.
fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("{request}Host: baton\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

pub(crate) fn figures(address: &str) -> String {
    let answer = ask(address, "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// The sum of all series of this name whose labels contain the text.
pub(crate) fn sum(page: &str, name: &str, labels: &str) -> f64 {
    let of_name = page.lines().filter(|line| line.split(['{', ' ']).next() == Some(name) && line.contains(labels));
    of_name.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

async fn hand_over(broker: &Broker) {
    let (alice, bob) = (broker.agent("alice").await, broker.agent("bob").await);
    let task = new_task();
    alice.request("bob", &task, 1, &a_request()).await.unwrap();
    let offer = bob.take().await.unwrap();
    let reason = v1::RejectReason::Other.into();
    bob.reject(&offer, &v1::HandoffReject { reason, ..Default::default() }).await.unwrap();
    alice.take().await.unwrap();
}

#[tokio::test]
async fn the_page_counts_what_the_broker_has_committed() {
    let (broker, address) = measured();
    let before = figures(&address);
    assert_eq!(sum(&before, "baton_handoffs_total", ""), 0.0);
    hand_over(&broker).await;
    let after = figures(&address);
    assert_eq!(sum(&after, "baton_handoffs_total", r#"outcome="REJECTED""#), 1.0, "{after}");
    assert_eq!(sum(&after, "baton_handoffs_total", r#"mode="TRANSFER",reason="NO_CANDIDATE""#), 1.0, "{after}");
    assert_eq!(sum(&after, "baton_handoff_seconds_count", r#"outcome="REJECTED""#), 1.0);
    assert_eq!(sum(&after, "baton_messages_total", r#"type="HANDOFF_REQUEST",result="ACCEPTED""#), 1.0, "{after}");
    assert_eq!(sum(&after, "baton_dead_letters_total", r#"reason="NO_CANDIDATE""#), 1.0, "{after}");
    assert_eq!(sum(&after, "baton_handoffs_open", ""), 0.0);
    assert!(sum(&after, "baton_agents", r#"presence="ALIVE""#) >= 1.0, "{after}");
    assert!(after.contains(r#"baton_agents{presence="UNSEEN"}"#), "{after}");
    assert!(sum(&after, "baton_certificate_expiry_timestamp_seconds", "") > 1.7e9);
    assert!(sum(&after, "baton_commit_seconds_count", "") > 0.0);
    assert!(sum(&after, "baton_acks_total", r#"outcome="ACKED""#) >= 2.0, "{after}");
    assert!(!after.contains("alice"), "an id is no label: {after}");
}

#[tokio::test]
async fn open_handoffs_are_known_after_a_kill() {
    let (broker, address) = measured();
    let (alice, _bob) = (broker.agent("alice").await, broker.agent("bob").await);
    alice.request("bob", &new_task(), 1, &a_request()).await.unwrap();
    assert_eq!(sum(&figures(&address), "baton_handoffs_open", ""), 1.0);
    let folder = broker.kill();
    let broker = Broker::start_in(folder, &["--metrics-listen", &address]);
    // The first commits after a start count what is stored.
    let is_counted = async || sum(&figures(&address), "baton_handoffs_open", "") == 1.0;
    eventually("the open handoff is counted", is_counted).await;
    let page = figures(&address);
    assert_eq!(sum(&page, "baton_deliveries_in_flight", ""), 0.0, "{page}");
    drop(broker);
}

#[tokio::test]
async fn every_figure_is_documented_and_every_documented_figure_is_there() {
    let (broker, address) = measured();
    let demo = broker.command(&["demo"]).output().unwrap();
    assert!(demo.status.success(), "{}", String::from_utf8_lossy(&demo.stderr));
    hand_over(&broker).await;
    let page = figures(&address);
    let served: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md")).unwrap();
    // The table of a broker alone comes first.
    let (text, _) = text.split_once("## Of a cluster").unwrap();
    let cell = |line: &str| Some(line.strip_prefix("| `")?.split(['`', '{']).next()?.to_owned());
    let documented: BTreeSet<String> = text.lines().filter_map(cell).collect();
    let without_end =
        |name: &String| name.strip_suffix("_total").or(name.strip_suffix("_info")).unwrap_or(name).to_owned();
    let documented: BTreeSet<String> = documented.iter().map(without_end).collect();
    assert_eq!(documented.iter().map(String::as_str).collect::<BTreeSet<_>>(), served);
}

#[test]
fn other_paths_methods_and_formats_are_answered() {
    let (_broker, address) = measured();
    assert!(ask(&address, "GET / HTTP/1.1\r\n").starts_with("HTTP/1.1 404 "));
    for (path, word) in [("/healthz", "alive"), ("/readyz", "ready")] {
        let answer = ask(&address, &format!("GET {path} HTTP/1.1\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(&format!("{word}\n")), "{answer}");
        assert!(ask(&address, &format!("POST {path} HTTP/1.1\r\n")).starts_with("HTTP/1.1 405 "));
    }
    let answer = ask(&address, "POST /metrics HTTP/1.1\r\n");
    assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("allow: GET, HEAD"), "{answer}");
    // `ask` adds a host.
    assert!(ask(&address, "GET /metrics HTTP/1.1\r\nHost: other\r\n").starts_with("HTTP/1.1 400 "));
    // An idle connection of a client that would keep it holds no place.
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: baton\r\n\r\n").unwrap();
    stream.read_to_string(&mut String::new()).expect("the connection ends with its answer");
    let plain = ask(&address, "GET /metrics HTTP/1.1\r\n");
    assert!(plain.contains("content-type: text/plain; version=0.0.4"), "{plain}");
    assert!(plain.contains("# TYPE baton_verifications_total counter"), "{plain}");
}

#[test]
fn an_address_in_use_and_a_public_one_are_refused_with_what_to_do() {
    let (_broker, address) = measured();
    let folder = tempfile::tempdir().unwrap();
    let (code, text) = exit_of(
        baton().args(["dev", "--port", "0", "--metrics-listen", &address, "--data"]).arg(folder.path().join("data")),
    );
    assert_eq!(code, Some(7), "{text}");
    assert!(text.contains(&address) && text.contains("--metrics-listen"), "{text}");
    let config = folder.path().join("baton.toml");
    write(&config, "[tls]\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n[metrics]\nlisten = \"0.0.0.0:22868\"\n");
    let (code, text) = exit_of(baton().args(["serve", "--config"]).arg(&config));
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("metrics.allow_public"), "{text}");
}
