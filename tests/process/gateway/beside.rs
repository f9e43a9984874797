//! The gateway in the process of its broker: of `baton dev`, and of `baton serve` with `[gateway]`.

use std::{
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use baton::proto::v1;
use baton_client::{Client, Options};
use serde_json::{Value, json};

use super::{
    Gateway,
    mcp::{legacy, result},
    register,
};
use crate::{
    broker::{Broker, baton, card, eventually, exit_of, identity, write},
    cluster::{BROKERS, Cluster},
    ports::HeldPort,
};

/// Registers the agent and lends a key to the gateway with this folder. Returns the token.
async fn granted(broker: &Broker, name: &str, data: &Path) -> String {
    register(broker, name).await;
    lent(broker, name, data)
}

/// Lends a key of a registered agent. Returns the token.
fn lent(broker: &Broker, name: &str, data: &Path) -> String {
    let mut command = grant(broker.folder.path(), name);
    command.args(["--server", &broker.address, "--ca"]).arg(broker.ca()).arg("--data").arg(data);
    token_of(&mut command)
}

/// The command that lends a key of the agent, whose own key is written into the folder.
fn grant(folder: &Path, name: &str) -> Command {
    let key = folder.join(format!("{name}.pem"));
    identity(name).key.write(&key).unwrap();
    let mut command = baton();
    command.args(["gateway", "grant", "-o", "json", "--id", name, "--key"]).arg(key);
    command
}

fn token_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    shown["token"].as_str().unwrap().to_owned()
}

fn dev(folder: &Arc<tempfile::TempDir>, port: &HeldPort) -> Broker {
    Broker::start_in(folder.clone(), &["--gateway-listen", &port.address()])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_development_broker_serves_agents_over_http_and_knows_their_grants_after_a_restart() {
    let (port, folder) = (HeldPort::new(), Arc::new(tempfile::tempdir().unwrap()));
    let broker = dev(&folder, &port);
    let data = broker.data().join("gateway");
    let (alice, bob) = (granted(&broker, "alice", &data).await, granted(&broker, "bob", &data).await);
    let gateway = Gateway::beside(&broker, port.address(), false);
    let lend = json!({"to": "bob", "summary": "one", "context": {"n": [1]}, "wait_seconds": 0});
    let lend = json!({"name": "delegate", "arguments": lend});
    let lent = result(&gateway, legacy(&alice, "tools/call", lend)).await["structuredContent"].clone();
    let inbox = gateway.act(&bob, "inbox", json!({})).await;
    assert_eq!(inbox["offers"][0]["handoff_id"], lent["handoff_id"]);

    broker.stop().await;
    let broker = dev(&folder, &port);
    // The gateway is there as soon as the broker says that it is ready, and sends the context of alice, who does not call.
    let taken = gateway.act(&bob, "take_task", json!({"handoff_id": lent["handoff_id"]})).await;
    assert_eq!((&taken["owner_id"], &taken["context"]["n"]), (&json!("bob"), &json!([1])));
    gateway.act(&bob, "report", json!({"task_id": lent["task_id"], "status": "COMPLETED"})).await;
    assert_eq!(gateway.act(&alice, "wait", json!({"id": lent["handoff_id"]})).await["state"], "RETURNED");
    broker.stop().await;
    gateway.try_act(&alice, "inbox", json!({})).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_is_answered_before_the_broker_ends() {
    let (port, folder) = (HeldPort::new(), Arc::new(tempfile::tempdir().unwrap()));
    let broker = dev(&folder, &port);
    let data = broker.data().join("gateway");
    let (alice, bob) = (granted(&broker, "alice", &data).await, granted(&broker, "bob", &data).await);
    let gateway = Gateway::beside(&broker, port.address(), false);
    let waiting = gateway.try_act(&alice, "delegate", json!({"to": "bob", "summary": "s", "wait_seconds": 240}));
    let stopping = async {
        eventually("the request is under way", async || {
            !gateway.act(&bob, "inbox", json!({})).await["offers"].as_array().unwrap().is_empty()
        })
        .await;
        let pid = broker.pid().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    };
    let (answer, ()) = tokio::join!(waiting, stopping);
    let answer = answer.unwrap();
    assert_eq!((answer.status, answer.reason()), (503, "SHUTTING_DOWN".to_owned()));
    broker.ends_in_order().await;
}

#[test]
fn a_port_in_use_ends_the_start_and_says_how_to_choose_another() {
    let (taken, folder) = (TcpListener::bind("127.0.0.1:0").unwrap(), tempfile::tempdir().unwrap());
    let address = taken.local_addr().unwrap().to_string();
    let mut dev = baton();
    dev.args(["dev", "--port", "0", "--gateway-listen", &address, "--data"]).arg(folder.path().join("data"));
    let (code, said) = exit_of(&mut dev);
    assert!(code == Some(7) && said.contains("--gateway-listen") && said.contains(&address), "{code:?} {said}");
    // Without the gateway the broker starts.
    let folder = Arc::new(folder);
    let broker = Broker::start_in(folder.clone(), &["--no-gateway"]);
    assert!(!broker.data().join("gateway").exists() && !broker.log().contains("serving the gateway"));
    // A second broker on the folder is told of the folder, and not of the port.
    let (code, said) = exit_of(&mut dev);
    assert!(code == Some(4), "{code:?} {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configured_broker_has_a_gateway_only_where_it_is_enabled() {
    let port = HeldPort::new();
    let listen = format!("[gateway]\nlisten = \"0.0.0.0:{}\"\n", port.number);
    let _without = Broker::serve("", &listen);
    assert!(std::net::TcpStream::connect(port.address()).is_err());
    // On an address that other machines reach it has TLS, by the certificate of the broker.
    let broker = Broker::serve("", &format!("{listen}enabled = true\nallow_hosts = \"gateway.example\"\n"));
    let alice = granted(&broker, "alice", &broker.data().join("gateway")).await;
    let gateway = Gateway::beside(&broker, port.address(), true);
    gateway.act(&alice, "inbox", json!({})).await;
    for (host, status) in [("gateway.example", 200), ("other.example", 403)] {
        let mut request = super::post("/api/v1/acts/inbox", Some(&alice), &json!({}));
        request.headers_mut().insert("host", host.parse().unwrap());
        assert_eq!(gateway.send(request).await.unwrap().status, status, "{host}");
    }
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_the_gateway_cannot_trust_is_named_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let other = Broker::start();
    let ca = folder.path().join("other.pem");
    std::fs::copy(other.ca(), &ca).unwrap();
    let gateway = format!("[gateway]\nenabled = true\nlisten = \"127.0.0.1:0\"\nca = {ca:?}\n");
    let broker = Broker::serve("", &gateway);
    eventually("the log names the keys", async || broker.log().contains("gateway.server and gateway.ca")).await;
    broker.stop().await;
}

#[test]
fn settings_that_cannot_be_used_end_the_start() {
    let folder = Broker::serve("", "").kill();
    let file = folder.path().join("baton.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let open = folder.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let enabled = "[gateway]\nenabled = true\nlisten = \"127.0.0.1:0\"\n";
    for (more, is_seen_by_check, words) in [
        ("tools = \"all\"\n".to_owned(), true, "gateway.tools"),
        ("tls_cert = \"none.pem\"\ntls_key = \"none.key\"\n".to_owned(), true, "none.pem"),
        ("a2a_push = true\n".to_owned(), true, "gateway.a2a_publish"),
        // It is found while the broker starts, which then ends in order.
        (format!("data = {open:?}\n"), false, "chmod 700"),
    ] {
        write(&file, &format!("{text}{enabled}{more}"));
        let serve = |more: &[&str]| exit_of(baton().args(["serve", "--config"]).arg(&file).args(more));
        let (code, said) = serve(&[]);
        assert!(code == Some(3) && said.contains(words), "{more}: {code:?} {said}");
        let (code, said) = serve(&["--check"]);
        assert_eq!(code, Some(if is_seen_by_check { 3 } else { 0 }), "{more}: {said}");
    }
    let mut dev = baton();
    dev.args(["dev", "--port", "0", "--gateway-listen", "0.0.0.0:0", "--data"]).arg(folder.path().join("data"));
    let (code, said) = exit_of(&mut dev);
    assert!(code == Some(3) && said.contains("--allow-network"), "{code:?} {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_needs_no_flag_to_lend_the_development_broker_a_key() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let (port, at, printed) = (HeldPort::new(), folder.path(), folder.path().join("printed"));
    let mut dev = baton();
    dev.current_dir(at).args(["dev", "--port", "0", "--gateway-listen", &port.address()]);
    let log = std::fs::File::create(at.join("log")).unwrap();
    let mut child = dev.stdout(std::fs::File::create(&printed).unwrap()).stderr(log).spawn().unwrap();
    let said = || std::fs::read_to_string(&printed).unwrap();
    eventually("the broker says what to do next", async || said().contains("Ctrl-C stops the broker")).await;
    let line = format!("  gateway http://{}/mcp for MCP, and JSON; for a token: ", port.address());
    assert!(said().lines().any(|said| said.starts_with(&line)), "{}", said());
    let server = said().strip_prefix("baton is ready on ").unwrap().split(' ').next().unwrap().to_owned();

    let run = |arguments: &[&str]| {
        let output = baton().current_dir(at).args(arguments).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["keygen", "--out", "alice.pem"]);
    run(&["agent", "register", "--id", "alice", "--key", "alice.pem", "--server", &server]);
    run(&["gateway", "grant", "--id", "alice", "--key", "alice.pem", "--server", &server]);
    let of = |folder: &str| std::fs::read_dir(at.join(folder)).into_iter().flatten().count();
    assert_eq!((of("baton-data/gateway"), of("baton-gateway")), (1, 0));
    assert!(run(&["gateway", "list", "-o", "json"]).contains("\"alice\""));
    // The gateway of this broker has no use for the key of another broker.
    let other = Broker::start();
    register(&other, "bob").await;
    let ca = other.ca();
    let mut elsewhere = grant(at, "bob");
    token_of(elsewhere.current_dir(at).args(["--server", &other.address, "--ca"]).arg(ca));
    assert_eq!((of("baton-data/gateway"), of("baton-gateway")), (1, 1));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_of_a_follower_serves_its_agents_also_under_another_leader() {
    let (mut cluster, port) = (Cluster::new(), HeldPort::new());
    (0..BROKERS - 1).for_each(|place| cluster.start(place));
    cluster.leader().await;
    let follower = BROKERS - 1;
    let folder = cluster.folders[follower].clone();
    let (file, ca) = (folder.path().join("baton.toml"), folder.path().join("data/tls/ca.pem"));
    let text = std::fs::read_to_string(&file).unwrap();
    write(&file, &format!("{text}[gateway]\nenabled = true\nlisten = {:?}\nca = {ca:?}\n", port.address()));
    cluster.start(follower);
    let broker = &cluster.brokers[&follower];
    let options = Options { server: broker.address.clone(), ca: Some(ca), ..Options::default() };
    eventually("the follower relays", async || {
        let Ok(client) = Client::connect(&options).await else { return false };
        let request = v1::RegisterAgentRequest { card: Some(card("alice", "")), ..Default::default() };
        client.answer(client.agents().register_agent(request).await).is_ok()
    })
    .await;
    let alice = lent(broker, "alice", &broker.data().join("gateway"));
    let gateway = Gateway::beside(broker, port.address(), false);
    gateway.act(&alice, "inbox", json!({})).await;
    let leader = cluster.leader().await;
    assert_ne!(leader, follower);
    cluster.brokers.remove(&leader).unwrap().kill();
    eventually("another broker leads", async || cluster.leader().await != leader).await;
    eventually("the gateway serves under it", async || {
        gateway.try_act(&alice, "inbox", json!({})).await.is_ok_and(|answer| answer.status == 200)
    })
    .await;
    cluster.brokers.remove(&follower).unwrap().stop().await;
}
