//! Three brokers over one shared log, each a process: one is killed or stopped under load, and another leads; one comes after the
//! log was trimmed. See `tests/process/load` for the load, and for the record of what its clients saw.

#[path = "blobs.rs"]
mod blobs;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use baton::{
    ids::SystemIds,
    store::{KeyBytes, Order, Record, Store, Table},
    time::{Clock as _, SystemClock},
};
use baton_cluster::{
    engines::directory::Directory,
    entry::{self, Payload},
    log::SharedLog as _,
};
use baton_store::{CommitLog, Link, Mark, Position, Replica};

use crate::{
    broker::{Broker, baton, eventually, exit_of, identity, write},
    buckets::{CREDENTIALS, Server},
    console::{get, logged_in},
    load::Load,
    ports::HeldPort,
};

const SEED: u64 = 20_260_103;
pub(crate) const BROKERS: usize = 3;
const LEASE: Duration = Duration::from_secs(1);
/// The link in a broker's folder that leads to the shared log.
pub(crate) const LOG_LINK: &str = "shared-log";

/// The number of kills: BATON_CLUSTER_KILLS, or 5.
fn kills() -> u32 {
    std::env::var("BATON_CLUSTER_KILLS").map_or(5, |text| text.parse().expect("BATON_CLUSTER_KILLS is a number"))
}

/// Brokers of one cluster, by their places.
pub(crate) struct Cluster {
    /// First: their processes end before their folders are removed, in the order of the fields.
    pub(crate) brokers: BTreeMap<usize, Broker>,
    /// The server of the log. `None`: the log is in the folder.
    server: Option<Server>,
    /// The keys, the certificate and the log.
    pub(crate) folder: tempfile::TempDir,
    pub(crate) folders: Vec<Arc<tempfile::TempDir>>,
    /// Where brokers listen for their peers, one for each configuration.
    ports: Vec<HeldPort>,
}

fn copy(from: &Path, to: PathBuf) {
    baton::disk::make_folder(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap();
}

impl Cluster {
    /// Makes the folders, and starts no broker.
    pub(crate) fn new() -> Self {
        Self::over(None)
    }

    /// Likewise, with the log in the bucket of this server.
    fn over(server: Option<Server>) -> Self {
        let single = Broker::start();
        Self::with_keys(server, &single.data(), baton().args(["cluster", "keys"]))
    }

    /// Makes the folders with the keys that this command makes, and with the certificate and the CA of a broker alone.
    fn with_keys(server: Option<Server>, data: &Path, make: &mut Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys");
        let (code, text) = exit_of(make.arg("--out").arg(&keys));
        assert_eq!(code, Some(0), "{text}");
        for name in ["server.pem", "server.key"] {
            copy(&data.join("tls").join(name), keys.join(name));
        }
        let mut cluster = Self {
            brokers: BTreeMap::new(),
            server,
            folder,
            folders: (0..BROKERS).map(|_| Arc::new(tempfile::tempdir().unwrap())).collect(),
            ports: Vec::new(),
        };
        for (place, folder) in cluster.folders.clone().iter().enumerate() {
            copy(&data.join("tls/ca.pem"), folder.path().join("data/tls/ca.pem"));
            write(&folder.path().join("baton.toml"), &cluster.configuration(place, "cluster"));
            let log = match &cluster.server {
                None => cluster.folder.path().join("log/cluster"),
                // The server names a file as its object, and so does the engine of folders.
                Some(server) => server.bucket().join("logs/cluster"),
            };
            std::os::unix::fs::symlink(log, folder.path().join(LOG_LINK)).unwrap();
        }
        cluster
    }

    /// The configuration of the broker at a place in a cluster of this name.
    fn configuration(&mut self, place: usize, name: &str) -> String {
        let (data, keys) = (self.folders[place].path().join("data"), self.folder.path().join("keys"));
        let (certificate, key) = (keys.join("server.pem"), keys.join("server.key"));
        let blobs = self.server.as_ref().map_or_else(String::new, |server| {
            let endpoint = server.endpoint();
            format!("[blobs]\nurl = \"s3://blobs/kept\"\nendpoint = {endpoint:?}\nallow_http = true\n")
        });
        let log = match &self.server {
            None => format!("log = \"file://{}\"", self.folder.path().join("log").display()),
            Some(server) => {
                let endpoint = server.endpoint();
                format!("log = \"s3://blobs/logs\"\nlog_endpoint = {endpoint:?}\nlog_allow_http = true")
            }
        };
        let port = HeldPort::new();
        let peers = port.address();
        self.ports.push(port);
        // No limit of CPU time: the audit of a load reads long lists, one after the other.
        format!(
            "listen = \"127.0.0.1:0\"\ndata = {data:?}\nenrollment = \"open\"\n\
             [tls]\ncertificate = {certificate:?}\nkey = {key:?}\n\
             [limits]\ncpu_ms_per_second = 0\n\
             [cluster]\nname = \"{name}\"\nbroker = \"b{place}\"\n{log}\nkeys = {keys:?}\n\
             peer_listen = {peers:?}\npeer_address = {peers:?}\nlease = \"{}s\"\n{blobs}",
            LEASE.as_secs(),
        )
    }

    pub(crate) fn start(&mut self, place: usize) {
        let folder = self.folders[place].clone();
        let broker = match &self.server {
            None => Broker::serve_again(folder),
            Some(server) => server.broker(folder),
        };
        self.brokers.insert(place, broker);
    }

    /// All brokers, once one of them leads.
    pub(crate) async fn started() -> Self {
        Self::new().all_started().await
    }

    async fn all_started(mut self) -> Self {
        (0..BROKERS).for_each(|place| self.start(place));
        self.leader().await;
        self
    }

    /// The place of the broker that leads, by its log.
    pub(crate) async fn leader(&self) -> usize {
        let leads = |broker: &Broker| {
            let log = broker.log();
            log.rfind("this broker leads") > log.rfind("this broker stops leading")
        };
        let mut leader = None;
        eventually("a broker leads", async || {
            let mut leading = self.brokers.iter().filter(|(_, broker)| leads(broker)).map(|(place, _)| *place);
            leader = leading.next().filter(|_| leading.next().is_none());
            leader.is_some()
        })
        .await;
        leader.unwrap()
    }

    /// The first entry that the shared log has.
    fn log_begins(&self) -> u64 {
        let entries = fs::read_dir(self.folder.path().join("log/cluster/log")).unwrap();
        let position = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        entries.filter_map(|entry| position(entry.unwrap())).min().unwrap()
    }

    /// The last entry that the checkpoint of a stopped broker has.
    fn checkpoint_of(&self, place: usize) -> u64 {
        let manifest = self.folders[place].path().join("data/store/tables/MANIFEST");
        // A broker without a checkpoint has no manifest.
        let Ok(text) = fs::read_to_string(manifest) else { return 0 };
        let manifest: serde_json::Value = serde_json::from_str(text.split_once('\n').unwrap().1).unwrap();
        manifest["flushed_upto"].as_u64().unwrap()
    }

    /// Starts a broker that lacks entries which the log has dropped, and waits until it follows.
    async fn restores(&mut self, place: usize) {
        self.start(place);
        let broker = &self.brokers[&place];
        eventually("it follows from the checkpoint of another broker", async || {
            let log = broker.log();
            let received = log.rfind("received the checkpoint of another broker");
            received.is_some() && log.rfind("\"role\":\"following\"") > received
        })
        .await;
    }
}

/// Every record of a stopped broker, with what the shared log has behind its checkpoint.
pub(crate) fn records(folder: &Path) -> BTreeMap<(Table, KeyBytes), Record> {
    let store = open_stopped(folder);
    let everything = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
    let of = |table| store.scan(table, everything.clone(), Order::Ascending, usize::MAX).unwrap();
    Table::ALL
        .into_iter()
        .flat_map(|table| of(table).into_iter().map(move |(key, record)| ((table, key), record)))
        .collect()
}

/// The store of a stopped broker, up to the end of the shared log.
pub(crate) fn open_stopped(folder: &Path) -> Arc<dyn Store> {
    struct Closed(Mark);

    impl CommitLog for Closed {
        fn append(&mut self, _: Position, _: &[u8]) -> Result<Mark, baton_store::AppendError> {
            Err(baton_store::AppendError::Deposed)
        }

        fn end(&self) -> Mark {
            self.0
        }

        fn entry_bytes_max(&self) -> usize {
            0
        }
    }

    let store = folder.join("data/store");
    let mut cluster = [0; 16];
    hex::decode_to_slice(fs::read_to_string(store.join("CLUSTER")).unwrap().trim(), &mut cluster).unwrap();
    let replica = Replica::open(&store, &cluster).unwrap();
    let log = Directory::open(&fs::canonicalize(folder.join(LOG_LINK)).unwrap()).unwrap();
    let read = async { log.read(replica.end().position + 1, usize::MAX).await.unwrap() };
    // On a thread of its own: the caller may be inside a runtime.
    let block = || tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(read);
    let entries = std::thread::scope(|scope| scope.spawn(block).join().unwrap());
    for (position, bytes) in entries {
        let entry = entry::parse(&bytes).unwrap();
        let group = match &entry.payload {
            Payload::Group(group) => Some(group.as_ref()),
            Payload::Takeover(_) | Payload::Foundation(_) | Payload::Confirmation => None,
        };
        let link = Some(Link { hash: [0; 32], term: entry.term, level: entry.level });
        replica.apply(Mark { position, link }, group).unwrap();
    }
    let end = replica.end();
    replica.lead(Box::new(Closed(end)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_missing_after_any_number_of_kills_of_the_leader() {
    survives_kills_of_the_leader(Cluster::started().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_missing_over_a_bucket() {
    let outer = tempfile::tempdir().unwrap();
    let Some(server) = Server::start(outer.path()).await else { return };
    survives_kills_of_the_leader(Cluster::over(Some(server)).all_started().await).await;
}

/// What a command of `baton cluster` prints with the configuration of the first broker, and its exit code.
fn told(cluster: &Cluster, args: &[&str]) -> (Option<i32>, String) {
    let mut command = baton();
    command.arg("cluster").args(args).arg("--config").arg(cluster.folders[0].path().join("baton.toml"));
    let output = command.envs(CREDENTIALS).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_is_checked_and_its_requests_are_shown() {
    let outer = tempfile::tempdir().unwrap();
    let Some(server) = Server::start(outer.path()).await else { return };
    let bucket = server.bucket();
    let mut cluster = Cluster::over(Some(server));
    let (code, text) = told(&cluster, &["check", "-o", "table"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("ok       s3://blobs/logs keeps the promises"), "{text}");
    let left: Vec<_> = fs::read_dir(&bucket).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name == "logs"), "nothing of the check stays: {left:?}");
    cluster.start(0);
    cluster.leader().await;
    let (code, text) = told(&cluster, &["status", "-o", "table"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("cost     known a minute after the start"), "{text}");
    let (_, text) = told(&cluster, &["status", "-o", "json"]);
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    let requests = &status["members"][0]["log_requests"];
    assert!(requests["writes"].as_u64() > Some(0) && requests["reads"].as_u64() > Some(0), "{text}");
    assert!(!cluster.brokers[&0].log().contains(CREDENTIALS[1].1), "the log has no credentials");
}

#[cfg(feature = "s3")]
#[test]
fn a_broker_over_a_bucket_without_conditional_writes_does_not_start() {
    let mut cluster = Cluster::new();
    let port = crate::buckets::careless_server();
    let log = format!("log = \"file://{}\"", cluster.folder.path().join("log").display());
    let bucket =
        format!("log = \"s3://blobs/logs\"\nlog_endpoint = \"http://127.0.0.1:{port}\"\nlog_allow_http = true");
    let text = cluster.configuration(0, "cluster").replace(&log, &bucket);
    let file = cluster.folders[0].path().join("baton.toml");
    write(&file, &text);
    let (code, text) = exit_of(baton().args(["serve", "--config"]).arg(&file).envs(CREDENTIALS));
    assert_eq!(code, Some(3), "{text}");
    assert!(
        text.contains("ignores `If-None-Match: *`") && text.contains("use one that has conditional writes"),
        "{text}"
    );
}

#[cfg(not(feature = "s3"))]
#[test]
fn a_build_without_s3_refuses_a_log_in_a_bucket() {
    let mut cluster = Cluster::new();
    let log = format!("file://{}", cluster.folder.path().join("log").display());
    let text = cluster.configuration(0, "cluster").replace(&log, "s3://blobs/logs");
    let file = cluster.folders[0].path().join("baton.toml");
    write(&file, &text);
    let (code, text) = exit_of(baton().args(["serve", "--config"]).arg(&file));
    assert!(code == Some(3) && text.contains("the feature s3"), "{code:?} {text}");
}

async fn survives_kills_of_the_leader(mut cluster: Cluster) {
    let mut leader = cluster.leader().await;
    let mut load = Load::on(&cluster.brokers[&leader], SEED).await;
    let mut gaps = Vec::new();
    for kill in 1..=kills() {
        load.begin_chapter(format!("after {} kills", kill - 1));
        load.audit(&cluster.brokers[&leader]).await;
        let receipts = load.rng.roll(60);
        load.goes_on(usize::try_from(receipts).unwrap()).await;
        // One round in four kills a follower beside the leader.
        if load.rng.one_in(4) {
            let follower = (leader + 1) % BROKERS;
            cluster.brokers.remove(&follower).unwrap().kill();
            cluster.start(follower);
        }
        let before = SystemClock.now();
        cluster.brokers.remove(&leader).unwrap().kill();
        let killed = leader;
        leader = cluster.leader().await;
        assert_ne!(leader, killed);
        load.is_served_by(&cluster.brokers[&leader]);
        load.goes_on(1).await;
        gaps.push(SystemClock.now().since(before));
        cluster.start(killed);
    }
    load.audit(&cluster.brokers[&leader]).await;
    let last = cluster.brokers.remove(&leader).unwrap();
    // The others stop first, so that none of them leads in the end.
    for (_, broker) in std::mem::take(&mut cluster.brokers) {
        broker.stop().await;
    }
    load.drain(last).await;
    gaps.sort();
    println!("{} kills, gaps of {gaps:?} at a lease of {LEASE:?}, {load}", kills());
    assert!(load.completed() > kills() as usize, "the agents get somewhere");
    let [first, others @ ..] = &cluster.folders[..] else { panic!("there are brokers") };
    let wanted = records(first.path());
    assert!(others.iter().all(|other| records(other.path()) == wanted), "all brokers have the same records");
}

fn copy_all(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        match path.is_dir() {
            true => copy_all(&path, &to.join(name)),
            false => copy(&path, to.join(name)),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_alone_becomes_the_first_of_a_cluster_with_all_that_it_has() {
    let single = Broker::start();
    let mut load = Load::on(&single, SEED + 9).await;
    load.goes_on(100).await;
    load.audit(&single).await;
    let init = |config: &Path| exit_of(baton().args(["cluster", "init", "--config"]).arg(config));
    let mut cluster =
        Cluster::with_keys(None, &single.data(), baton().args(["cluster", "keys", "--from"]).arg(single.data()));
    let path = cluster.folders[0].path().join("data");
    let config = cluster.folders[0].path().join("baton.toml");
    // While it runs its store is its own.
    let of_running = cluster.folders[0].path().join("running.toml");
    let named = fs::read_to_string(&config).unwrap().replace(&format!("{path:?}"), &format!("{:?}", single.data()));
    write(&of_running, &named);
    let (code, text) = init(&of_running);
    assert_eq!(code, Some(4), "{text}");
    let alone = single.kill();
    fs::remove_dir_all(&path).unwrap();
    copy_all(&alone.path().join("data"), &path);
    // Keys of another cluster would make all receipts those of a stranger.
    let others = cluster.folder.path().join("others");
    assert_eq!(exit_of(baton().args(["cluster", "keys", "--out"]).arg(&others)).0, Some(0));
    let of_others = cluster.folders[0].path().join("others.toml");
    let keys = cluster.folder.path().join("keys");
    write(
        &of_others,
        &fs::read_to_string(&config).unwrap().replace(&format!("keys = {keys:?}"), &format!("keys = {others:?}")),
    );
    let (code, text) = init(&of_others);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("are not those of the broker in"), "{text}");
    let (code, text) = init(&config);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = init(&config);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("it belongs to cluster"), "{text}");
    // Brokers without its content wait for it, and never lead.
    cluster.start(1);
    eventually("it waits for a checkpoint", async || cluster.brokers[&1].log().contains("\"role\":\"restoring\""))
        .await;
    cluster.start(0);
    cluster.start(2);
    // One that has received the content may be the first to lead.
    let first = cluster.leader().await;
    load.is_served_by(&cluster.brokers[&first]);
    load.audit(&cluster.brokers[&first]).await;
    load.goes_on(50).await;
    for place in 1..BROKERS {
        let broker = &cluster.brokers[&place];
        eventually("it has the checkpoint", async || {
            broker.log().contains("received the checkpoint of another broker")
        })
        .await;
        let log = broker.log();
        let leads = log.find("this broker leads").unwrap_or(usize::MAX);
        assert!(log.find("received the checkpoint of another broker").unwrap() < leads, "{log}");
    }
    cluster.brokers.remove(&first).unwrap().kill();
    let leader = cluster.leader().await;
    load.is_served_by(&cluster.brokers[&leader]);
    load.audit(&cluster.brokers[&leader]).await;
    load.goes_on(20).await;
    let last = cluster.brokers.remove(&leader).unwrap();
    for (_, broker) in std::mem::take(&mut cluster.brokers) {
        broker.stop().await;
    }
    load.drain(last).await;
    println!("{load}");
}

#[test]
fn a_log_with_entries_gets_no_first_broker() {
    let single = Broker::start();
    let cluster =
        Cluster::with_keys(None, &single.data(), baton().args(["cluster", "keys", "--from"]).arg(single.data()));
    let alone = single.kill();
    let (path, config) = (cluster.folders[0].path().join("data"), cluster.folders[0].path().join("baton.toml"));
    let init = || exit_of(baton().args(["cluster", "init", "--config"]).arg(&config));
    let (code, text) = init();
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("has no store of a broker"), "{text}");
    fs::remove_dir_all(&path).unwrap();
    copy_all(&alone.path().join("data"), &path);
    let log = Directory::open(&cluster.folder.path().join("log/cluster")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(log.append(0, bytes::Bytes::from_static(b"of others"))).unwrap();
    let (code, text) = init();
    assert_eq!(code, Some(8), "{text}");
    assert!(text.contains("the shared log of cluster has entries already"), "{text}");
    // Its broker goes on alone.
    drop(Broker::start_in(alone, &[]));
}

pub(crate) fn signal(broker: &Broker, name: &str) {
    assert!(Command::new("kill").args([name, &broker.pid().to_string()]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_paused_for_three_leases_follows_and_its_sessions_end() {
    let mut cluster = Cluster::started().await;
    let paused = cluster.leader().await;
    let mut load = Load::on(&cluster.brokers[&paused], SEED + 1).await;
    load.goes_on(50).await;
    signal(&cluster.brokers[&paused], "-STOP");
    let former = cluster.brokers.remove(&paused).unwrap();
    // Long enough for any answer that the paused broker had in hand.
    tokio::time::sleep(LEASE * 3).await;
    let leader = cluster.leader().await;
    // Each receipt of the former leader is there, and the new one makes others.
    load.audit(&cluster.brokers[&leader]).await;
    load.is_served_by(&cluster.brokers[&leader]);
    signal(&former, "-CONT");
    load.goes_on(50).await;
    eventually("the former leader follows", async || {
        let log = former.log();
        log.contains("this broker stops leading") && log.rfind("following") > log.rfind("this broker stops leading")
    })
    .await;
    assert_eq!(cluster.leader().await, leader, "the same broker leads on");
    load.audit(&cluster.brokers[&leader]).await;
    former.stop().await;
    let last = cluster.brokers.remove(&leader).unwrap();
    for (_, broker) in std::mem::take(&mut cluster.brokers) {
        broker.stop().await;
    }
    load.drain(last).await;
    println!("{load}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_stops_in_order_hands_the_lead_over_at_once() {
    let mut cluster = Cluster::started().await;
    let first = cluster.leader().await;
    let mut load = Load::on(&cluster.brokers[&first], SEED + 2).await;
    load.goes_on(20).await;
    cluster.brokers.remove(&first).unwrap().stop().await;
    let second = cluster.leader().await;
    load.is_served_by(&cluster.brokers[&second]);
    load.goes_on(20).await;
    load.audit(&cluster.brokers[&second]).await;
    let log = cluster.brokers[&second].log();
    assert!(log.contains("\"message\":\"this broker leads\",\"term\":2"), "{log}");
    // The audit log says who took over from whom, through any broker.
    let any = cluster.brokers.values().next().unwrap();
    let token = fs::read_to_string(cluster.folder.path().join("keys/operator.token")).unwrap();
    let mut audit = baton();
    audit.args(["audit", "--output", "jsonl", "--server", &any.address, "--token", token.trim(), "--ca"]).arg(any.ca());
    let output = audit.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let entries = String::from_utf8(output.stdout).unwrap();
    let entries = entries.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["entry"].clone());
    let takeovers: Vec<_> = entries.filter(|entry| entry["action"] == "AUDIT_ACTION_TOOK_OVER").collect();
    let subjects: Vec<_> = takeovers.iter().map(|entry| entry["subject"].as_str().unwrap()).collect();
    assert_eq!(subjects, [format!("b{first}"), format!("b{second}")]);
    assert_eq!(takeovers[0]["details"], "from no broker, at entry 1 of the shared log, term 1");
    let details = takeovers[1]["details"].as_str().unwrap();
    assert!(details.starts_with(&format!("from b{first}, at entry ")) && details.ends_with("term 2"), "{details}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_shows_the_brokers_and_who_leads() {
    let mut cluster = Cluster::new();
    for folder in &cluster.folders {
        let path = folder.path().join("baton.toml");
        let text = fs::read_to_string(&path).unwrap();
        write(&path, &format!("{text}[console]\nenabled = true\n"));
    }
    (0..BROKERS).for_each(|place| cluster.start(place));
    let leader = cluster.leader().await;
    let token = fs::read_to_string(cluster.folder.path().join("keys/operator.token")).unwrap();
    let cookie = logged_in(&cluster.brokers[&leader], token.trim()).await;
    let page = async |path: &str| get(&cluster.brokers[&leader], path, &cookie).await;
    assert!(page("/overview").await.body.contains("href=\"/cluster\""));
    let (followers, mut body): (Vec<usize>, _) =
        ((0..BROKERS).filter(|place| *place != leader).collect(), String::new());
    eventually("each broker has written who it is, and follows", async || {
        let answer = page("/cluster").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        body = answer.body;
        body.matches("Following").count() == followers.len()
    })
    .await;
    assert!(body.contains("<h1>Cluster cluster</h1>"), "{body}");
    assert!(body.contains(&format!("id=\"leader\">b{leader}, since takeover 1<")), "{body}");
    assert!(body.contains("Leading") && body.contains("file://"), "{body}");
    for place in 0..BROKERS {
        assert!(body.contains(&format!("id=\"broker-b{place}\"")), "{body}");
    }
    // One that is gone stays on the page, with the time at which it was seen last.
    let gone = cluster.brokers.remove(&followers[0]).unwrap();
    drop(gone.kill());
    let cookie = logged_in(&cluster.brokers[&leader], token.trim()).await;
    let after = get(&cluster.brokers[&leader], "/cluster", &cookie).await.body;
    let row = after.split("<tr ").find(|row| row.contains(&format!("id=\"broker-b{}\"", followers[0]))).unwrap();
    assert!(row.contains("Gone") && row.contains("failed to reach the broker") && row.contains("<time"), "{row}");
    // An agent has no right to it, and a broker that is alone has no such page and no link.
    let name = "a-reader";
    let agent = cluster.brokers[&leader].agent(name).await;
    let proven = agent.client.prove(&identity(name)).await.unwrap();
    let cookie = logged_in(&cluster.brokers[&leader], &proven).await;
    let refused = get(&cluster.brokers[&leader], "/cluster", &cookie).await;
    assert!(refused.status == 403 && refused.body.contains("readAuditLog"), "{}", refused.body);
    assert!(!get(&cluster.brokers[&leader], "/overview", &cookie).await.body.contains("/cluster"));
    let alone = Broker::start();
    let cookie = logged_in(&alone, &alone.operator_token()).await;
    assert_eq!(get(&alone, "/cluster", &cookie).await.status, 404);
    assert!(!get(&alone, "/overview", &cookie).await.body.contains("/cluster"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_has_an_entry_which_the_log_lacks_ends_with_exit_code_6() {
    let mut cluster = Cluster::new();
    cluster.start(0);
    cluster.leader().await;
    cluster.brokers.remove(&0).unwrap().stop().await;
    let log = cluster.folder.path().join("log/cluster/log");
    let positions = fs::read_dir(&log).unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let last = positions.filter(|name| name.parse::<u64>().is_ok()).max().unwrap();
    fs::rename(log.join(&last), cluster.folder.path().join(&last)).unwrap();
    let config = cluster.folders[0].path().join("baton.toml");
    let (code, text) = exit_of(baton().args(["serve", "--config"]).arg(&config));
    assert_eq!(code, Some(6), "{text}");
    assert!(text.contains("the log lacks the entry at") && text.contains("nothing was changed"), "{text}");
    // With the entry back it leads again.
    fs::rename(cluster.folder.path().join(&last), log.join(&last)).unwrap();
    cluster.start(0);
    cluster.leader().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_that_come_after_a_trim_have_the_checkpoint_of_another_one_and_lead() {
    let mut cluster = Cluster::new();
    (0..2).for_each(|place| cluster.start(place));
    let leader = cluster.leader().await;
    let mut load = Load::on(&cluster.brokers[&leader], SEED + 3).await;
    while cluster.log_begins() == 1 {
        load.goes_on(50).await;
    }
    // A new broker.
    cluster.restores(2).await;
    load.goes_on(20).await;
    // One that was away, and that an operator has called gone.
    let away = 1 - leader;
    cluster.brokers.remove(&away).unwrap().kill();
    let config = cluster.folders[leader].path().join("baton.toml");
    let name = format!("b{away}");
    let (code, text) = exit_of(baton().args(["cluster", "forget", &name, "--config"]).arg(&config));
    assert_eq!(code, Some(0), "{text}");
    let had = cluster.checkpoint_of(away);
    while cluster.log_begins() <= had + 1 {
        load.goes_on(50).await;
    }
    cluster.restores(away).await;
    // Each of them leads, and has all that the others have.
    let mut last = leader;
    for next in [2, away] {
        let others = (0..BROKERS).filter(|place| *place != next && *place != last);
        for other in others.collect::<Vec<_>>() {
            cluster.brokers.remove(&other).unwrap().stop().await;
        }
        cluster.brokers.remove(&last).unwrap().stop().await;
        assert_eq!(cluster.leader().await, next);
        load.is_served_by(&cluster.brokers[&next]);
        load.goes_on(30).await;
        load.audit(&cluster.brokers[&next]).await;
        (0..BROKERS).filter(|place| *place != next).for_each(|place| cluster.start(place));
        cluster.leader().await;
        last = next;
    }
    let last = cluster.brokers.remove(&last).unwrap();
    for (_, broker) in std::mem::take(&mut cluster.brokers) {
        broker.stop().await;
    }
    load.drain(last).await;
    println!("{load}");
    let [first, others @ ..] = &cluster.folders[..] else { panic!("there are brokers") };
    let wanted = records(first.path());
    assert!(others.iter().all(|other| records(other.path()) == wanted), "all brokers have the same records");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_a_name_and_keys_are_those_of_one_broker_of_one_cluster() {
    let mut cluster = Cluster::new();
    cluster.start(0);
    cluster.leader().await;
    // A second process with the name of the first, and a folder of its own.
    let namesake = cluster.configuration(1, "cluster").replace("\"b1\"", "\"b0\"");
    write(&cluster.folders[1].path().join("baton.toml"), &namesake);
    let folders = cluster.folders.clone();
    let serve = |place: usize| {
        let mut command = baton();
        command.args(["serve", "--config"]).arg(folders[place].path().join("baton.toml"));
        command
    };
    let (code, text) = exit_of(&mut serve(1));
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("has the name \"b0\""), "{text}");
    // The folder of a broker in another cluster.
    write(&cluster.folders[1].path().join("baton.toml"), &cluster.configuration(1, "other"));
    let (code, text) = exit_of(&mut serve(1));
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("belongs to cluster"), "{text}");
    // A broker without [cluster].
    let data = cluster.folders[1].path().join("data");
    let (code, text) = exit_of(baton().args(["dev", "--port", "0", "--data"]).arg(&data));
    assert_eq!(code, Some(3), "{text}");
    // Other keys: the first takeover of the log has others.
    let key = baton::envelope::keys::PrivateKey::generate(&SystemIds);
    let path = cluster.folder.path().join("keys/coordinator.pem");
    fs::remove_file(&path).unwrap();
    key.write(&path).unwrap();
    let (code, text) = exit_of(&mut serve(2));
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("has other keys"), "{text}");
}
