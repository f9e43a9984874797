//! Hostile clients: the cost of each kind for the broker, the undisturbed work of honest clients, and the release of
//! all resources afterwards. Each test is an attack with a number of open objects and a bound for the broker's memory.

mod calls;
mod connections;
pub(crate) mod frames;
mod http;
pub(crate) mod raw;

use std::{fs::DirBuilder, os::unix::fs::DirBuilderExt as _, process::Command, sync::Arc};

use baton::proto::v1::{self, MessageType};
use baton_client::{About, session::Agent};

use crate::broker::{Broker, PATIENCE, baton, write};

pub(crate) const MIB: u64 = 1024;

/// Starts a broker with these limits in a new folder.
pub(crate) fn start(limits: &str) -> Broker {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let path = |name: &str| folder.path().join(name);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    // The broker refuses a folder that other users can access.
    DirBuilder::new().recursive(true).mode(0o700).create(path("data/tls")).unwrap();
    write(&path("data/tls/ca.pem"), &made.cert.pem());
    write(&path("server.key"), &made.signing_key.serialize_pem());
    let config = format!(
        "listen = \"127.0.0.1:0\"\ndata = {:?}\nenrollment = \"open\"\n[tls]\ncertificate = {:?}\nkey = {:?}\n{limits}",
        path("data"),
        path("data/tls/ca.pem"),
        path("server.key"),
    );
    write(&path("baton.toml"), &config);
    let mut command: Command = baton();
    command.args(["serve", "--config"]).arg(path("baton.toml"));
    Broker::spawn(command, folder)
}

/// Two honest agents that work during the attack.
pub(crate) struct Honest {
    a: Agent,
    b: Agent,
}

impl Honest {
    pub(crate) async fn come(broker: &Broker) -> Self {
        Self { a: broker.agent("honest-a").await, b: broker.agent("honest-b").await }
    }

    /// Sends a message and receives it: the broker serves the honest agents.
    pub(crate) async fn work(&self) {
        let work = async {
            let text = v1::Info { text: "x".into(), ..Default::default() };
            self.a.send("honest-b", MessageType::Info, &About::default(), &text).await.unwrap();
            let delivery = self.b.next().await.unwrap();
            self.b.session.ack(&delivery.delivery.delivery_id).await.unwrap();
        };
        tokio::time::timeout(PATIENCE, work).await.expect("an honest agent is served");
    }
}

/// The resident memory of the broker's process, in KiB.
pub(crate) fn resident_kib(broker: &Broker) -> u64 {
    status_kib(broker, "VmRSS:")
}

fn status_kib(broker: &Broker, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", broker.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("Linux says how much is resident");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Asserts that the peak of resident memory exceeds `before` (KiB) by at most `most_more`.
#[track_caller]
pub(crate) fn assert_bounded(broker: &Broker, before: u64, most_more: u64) {
    let peak = status_kib(broker, "VmHWM:");
    println!("{before} KiB before, {peak} KiB at most");
    assert!(peak <= before + most_more, "it grew from {before} to {peak} KiB, over {most_more} KiB more");
}
