//! Members over a log in a folder, with short leases, in real time.

use std::{
    path::Path,
    sync::{
        Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use baton_protocol::{
    ids::{IdSource as _, SystemIds},
    lead::Lead,
    time::SystemClock,
};
use baton_store::{Change, CommitError, Key, OpenError, Outgoing, Record, Table, Write};

use super::*;
use crate::{
    entry::{ChainKey, Expected},
    member_value::{MemberValue, name_of},
};

const LEASE: Duration = Duration::from_millis(400);
const CLUSTER: [u8; 16] = [7; 16];
/// Far above what the slowest machine needs.
const PATIENCE: Duration = Duration::from_secs(120);

struct Broker {
    handle: Handle,
    terms: mpsc::UnboundedReceiver<Term>,
    replica: Weak<Replica>,
}

/// Its folder goes next: a broker that runs on would find its log lost, and write its tables out beside the removal.
impl Drop for Broker {
    fn drop(&mut self) {
        self.handle.stop();
        self.handle.service_ended();
        let ended = async {
            self.handle.ended().await;
            while self.replica.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // Another thread may be about to end the merges of the tables.
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        // A term that the test still has keeps the tables.
        let waits = timeout(Duration::from_secs(2), ended);
        let _patience = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(waits));
    }
}

async fn try_start(folder: &Path, log: &Path, broker: &str) -> Result<Broker, StartError> {
    start_beside(folder, log, broker, Arc::new(NoPeers)).await
}

async fn start_beside(folder: &Path, log: &Path, broker: &str, peers: Arc<dyn Peers>) -> Result<Broker, StartError> {
    let options = options(folder, log, broker, peers);
    let replica = Arc::downgrade(&options.replica);
    let (handle, terms) = start(options, std::future::pending()).await?;
    Ok(Broker { handle, terms, replica })
}

fn options(folder: &Path, log: &Path, broker: &str, peers: Arc<dyn Peers>) -> Options {
    Options {
        member: Config {
            broker: broker.into(),
            process: Bytes::copy_from_slice(&SystemIds.random()),
            peer_address: format!("{broker}:22867"),
            version: "0".into(),
            lease: LEASE,
            entry_bytes_max: 0,
            expected: Expected {
                key: ChainKey::derive(b"secret"),
                cluster: Bytes::from_static(&CLUSTER),
                keys: Vec::new(),
                level: 1,
            },
        },
        name: "test".into(),
        log: LogAddress::Directory(log.into()),
        log_keep: Duration::from_secs(3600),
        log_bytes_max: 1 << 30,
        replica: Arc::new(Replica::open(&folder.join(broker), &CLUSTER).unwrap()),
        configuration: Bytes::from_static(b"configuration"),
        peers,
        clock: Arc::new(SystemClock),
        figures: Arc::default(),
    }
}

async fn started(folder: &Path, broker: &str) -> Broker {
    try_start(folder, &folder.join("log"), broker).await.unwrap()
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("never: {what}"))
}

impl Broker {
    async fn leads(&mut self) -> Term {
        let term = within("it leads", self.terms.recv()).await.unwrap();
        within("the guard is held", async {
            while term.guard.state() != Lead::Held {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        term
    }

    /// Waits until this one leads in place of another. While this one is slow to claim, the other may lead again, and then
    /// steps down once more.
    async fn leads_in_place_of(&mut self, other: &mut Self) -> Term {
        let taking = async {
            loop {
                tokio::select! {
                    term = self.terms.recv() => return term.unwrap(),
                    again = other.terms.recv() => {
                        let mut ended = again.unwrap().ended;
                        other.handle.step_down();
                        ended.wait_for(Option::is_some).await.unwrap();
                        other.handle.service_ended();
                    }
                }
            }
        };
        within("it leads in place of the other", taking).await
    }

    async fn shows(&self, what: &str, holds: impl Fn(&View) -> bool) {
        within(what, self.handle.view().wait_for(|view| holds(view))).await.unwrap();
    }

    /// Ends a leader.
    async fn leaves(self) {
        self.handle.stop();
        self.handle.service_ended();
        within("it ends", self.handle.ended()).await;
    }

    async fn stops(self) -> Ended {
        self.handle.stop();
        within("it ends", self.handle.ended()).await
    }
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        match path.is_dir() {
            true => copy_all(&path, &to.join(name)),
            false => drop(std::fs::copy(&path, to.join(name)).unwrap()),
        }
    }
}

/// Waits for the thread of the lease, which has the folder a moment longer.
async fn is_free(folder: &Path, broker: &str) {
    within("the folder is free", async {
        while let Err(OpenError::InUse { .. }) = Replica::open(&folder.join(broker), &CLUSTER) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

fn key(name: &str) -> Key {
    Key { table: Table::Tasks, key: name.as_bytes().into() }
}

/// Commits on a thread of its own, as the engine does.
async fn commit(term: &Term, name: &str) -> Result<(), CommitError> {
    let record = Some(Record { revision: 1, value: Bytes::from_static(b"x") });
    let change = Change { expectations: Vec::new(), writes: vec![Write { key: key(name), record, is_new: true }] };
    let store = term.store.clone();
    let committed = tokio::task::spawn_blocking(move || store.commit(vec![change]));
    within("the commit ends", committed).await.unwrap().map(drop)
}

fn has(term: &Term, name: &str) -> bool {
    term.store.get(&key(name)).unwrap().is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_has_all_groups_and_leads_when_the_leader_steps_down() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = started(folder.path(), "b1").await;
    let former = first.leads().await;
    let mut second = started(folder.path(), "b2").await;
    for name in ["a", "b", "c"] {
        commit(&former, name).await.unwrap();
    }
    let end = first.handle.chain().await.unwrap();
    second
        .shows("it follows", |view| {
            view.position >= end.position && view.leader.as_ref().is_some_and(|leader| leader.name == "b1")
        })
        .await;
    first.handle.step_down();
    let mut ended = former.ended.clone();
    within("the term ends", ended.wait_for(Option::is_some)).await.unwrap();
    assert_eq!((*ended.borrow(), former.guard.state()), (Some(Leave::SteppedDown), Lead::Over));
    assert!(matches!(commit(&former, "late").await, Err(CommitError::Deposed { .. })));
    assert!(matches!(former.store.recover(), Err(OpenError::Deposed { .. })));
    first.handle.service_ended();
    let term = second.leads_in_place_of(&mut first).await;
    assert!(term.number > former.number);
    assert!(["a", "b", "c"].iter().all(|name| has(&term, name)) && !has(&term, "late"));
    commit(&term, "d").await.unwrap();
    // The former leader follows in the same process, and leads again.
    let end = second.handle.chain().await.unwrap();
    first.shows("it follows", |view| view.role == view::Role::Following && view.position >= end.position).await;
    second.handle.step_down();
    second.handle.service_ended();
    let term = first.leads_in_place_of(&mut second).await;
    assert!(has(&term, "d"));
    commit(&term, "e").await.unwrap();
    first.handle.stop();
    first.handle.service_ended();
    assert_eq!(within("it ends", first.handle.ended()).await, Ended::Member(Ending::Stopped));
    assert_eq!(second.stops().await, Ended::Member(Ending::Stopped));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_reads_what_its_checkpoint_lacks_from_the_log() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let mut broker = started(folder.path(), "b1").await;
        let term = broker.leads().await;
        assert!((0..round).all(|round| has(&term, &round.to_string())));
        commit(&term, &round.to_string()).await.unwrap();
        if round == 1 {
            term.store.give_space_back();
        }
        drop(term);
        broker.leaves().await;
        is_free(folder.path(), "b1").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_says_in_the_register_what_its_checkpoint_has() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = started(folder.path(), "b1").await;
    let term = broker.leads().await;
    commit(&term, "a").await.unwrap();
    term.store.give_space_back();
    let replica = broker.replica.upgrade().unwrap();
    within("the checkpoint is written", async {
        while replica.flushed_upto() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let checkpoint = chain_of(replica.end());
    drop(replica);
    commit(&term, "b").await.unwrap();
    // As a power cut leaves it: a broker that stops writes all that it has.
    let crashed = tempfile::tempdir().unwrap();
    copy_all(&folder.path().join("b1"), &crashed.path().join("b1"));
    drop(term);
    broker.leaves().await;
    // The driver does not run yet: the value is that of the start.
    let options = options(crashed.path(), &folder.path().join("log"), "b1", Arc::new(NoPeers));
    let (engine, _names) = open(&options).await.unwrap();
    let (_, found) = engine.register.read(&name_of("b1")).await.unwrap().unwrap();
    let value = MemberValue::parse(&found).unwrap();
    assert_eq!((value.process, value.role.as_str()), (options.member.process, "following"));
    assert_eq!((value.position, value.flushed_upto, value.term), (2, 2, 1));
    assert_eq!((value.position, &value.hash[..]), (checkpoint.position, &checkpoint.hash.0[..]));
    assert_eq!(&value.configuration[..], b"configuration", "status finds no difference");
    assert!(value.clock_ms > 1_600_000_000_000, "milliseconds since 1970");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_processes_with_one_name_the_newer_one_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = started(folder.path(), "b1").await;
    let term = first.leads().await;
    let log = folder.path().join("log");
    let newer = try_start(&folder.path().join("other"), &log, "b1").await.unwrap();
    assert_eq!(within("it ends", newer.handle.ended()).await, Ended::NameInUse("b1".into()));
    commit(&term, "a").await.unwrap();
    assert!(term.ended.borrow().is_none(), "the older one leads on");
    first.handle.stop();
    first.handle.service_ended();
    within("it ends", first.handle.ended()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_lost_its_end_is_answered_by_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = started(folder.path(), "b1").await;
    let term = broker.leads().await;
    commit(&term, "a").await.unwrap();
    drop(term);
    broker.handle.stop();
    broker.handle.service_ended();
    within("it ends", broker.handle.ended()).await;
    drop(broker);
    std::fs::remove_file(folder.path().join(format!("log/test/log/{:020}", 2))).unwrap();
    let broker = within("the folder is free", async {
        loop {
            match Replica::open(&folder.path().join("b1"), &CLUSTER) {
                Ok(replica) => break drop(replica),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        started(folder.path(), "b1").await
    })
    .await;
    // It has not followed yet: its process ends.
    let ended = within("it ends", broker.handle.ended()).await;
    assert_eq!(ended, Ended::Diverged(Divergence::WentBack { position: 2 }));
    assert!(broker.handle.view().borrow().why_nobody_leads.clone().unwrap().contains("lacks the entry at 2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_whose_log_loses_its_end_stays_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = started(folder.path(), "b1").await;
    let term = first.leads().await;
    commit(&term, "a").await.unwrap();
    let second = started(folder.path(), "b2").await;
    second.shows("it follows", |view| view.position >= 2 && view.leader.is_some()).await;
    // The leader holds the lease, so that the follower does not claim.
    std::fs::remove_file(folder.path().join(format!("log/test/log/{:020}", 2))).unwrap();
    second.shows("it has diverged", |view| view.role == view::Role::Diverged).await;
    let why = second.handle.view().borrow().why_nobody_leads.clone().unwrap();
    assert!(why.contains("lacks the entry at 2"), "{why}");
    // Its folder has what the log lacks, before it is told to end.
    second.shows("it has written all of it", |view| view.flushed_upto == view.position).await;
    assert_eq!(second.stops().await, Ended::Member(Ending::Stopped));
    drop(term);
    first.handle.stop();
    first.handle.service_ended();
    within("it ends", first.handle.ended()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn above_its_bound_the_log_drops_what_a_third_broker_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    // Two brokers that are away: one has the first three entries on its disk, and one has none.
    let engine = LogAddress::Directory(log.clone()).open("test").await.unwrap();
    for (broker, flushed_upto) in [("b2", 3), ("b3", 0)] {
        let value = MemberValue { broker: broker.into(), flushed_upto, ..MemberValue::default() };
        engine.register.write(&name_of(broker), None, value.to_bytes()).await.unwrap();
    }
    let begins = async || engine.log.read(1, 1).await.err();
    for (log_bytes_max, first) in [(1 << 30, None), (300, Some(4))] {
        let options = Options { log_bytes_max, ..options(folder.path(), &log, "b1", Arc::new(NoPeers)) };
        let (figures, replica) = (options.figures.clone(), Arc::downgrade(&options.replica));
        let (handle, terms) = start(options, std::future::pending()).await.unwrap();
        let mut broker = Broker { handle, terms, replica };
        let term = broker.leads().await;
        for name in ["a", "b", "c"] {
            commit(&term, &format!("{name} {log_bytes_max}")).await.unwrap();
        }
        term.store.give_space_back();
        let measured = || {
            let page = figures.encode(&broker.handle.view().borrow(), 0);
            let line = page.lines().find_map(|line| line.strip_prefix("baton_cluster_log_bytes ")).unwrap();
            line.parse::<u64>().unwrap()
        };
        within("the log is measured after the checkpoint", async {
            while broker.replica.upgrade().unwrap().flushed_upto() < 4 || measured() < 300 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        within("the log begins where it should", async {
            while begins().await != first.map(|first| ReadError::Trimmed { first }) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        drop(term);
        broker.leaves().await;
        is_free(folder.path(), "b1").await;
    }
    assert!(engine.log.size_bytes().await.unwrap() > 0, "what only one broker has stays");
}

/// A peer in this process, which is cut off in the first attempt behind its manifest and its first file, and has the wrong
/// cluster in the second.
struct Beside {
    replica: Weak<Replica>,
    attempts: AtomicUsize,
}

struct Sent {
    outgoing: Outgoing,
    left: usize,
}

#[async_trait]
impl CheckpointPieces for Sent {
    async fn next(&mut self) -> Result<Option<Bytes>, String> {
        if self.left == 0 {
            return Err("it was cut off".into());
        }
        self.left -= 1;
        Ok(self.outgoing.next_piece().unwrap())
    }
}

#[async_trait]
impl Peers for Beside {
    async fn positions(&self, _: Vec<(String, String)>) -> Vec<PeerPosition> {
        Vec::new()
    }

    async fn checkpoint(
        &self,
        address: &str,
        upto: Position,
        has: &[CheckpointFile],
    ) -> Result<(CheckpointHead, Box<dyn CheckpointPieces>), String> {
        assert_eq!(address, "b1:22867");
        let mut outgoing = self.replica.upgrade().unwrap().send().unwrap();
        outgoing.omit(has);
        let mut head = outgoing.head().clone();
        assert!(head.mark.position >= upto && upto > 0);
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        if attempt == 1 {
            head.cluster = "00".into();
        }
        // The file of the first attempt is not sent again, also after a peer that was refused.
        assert_eq!((has.len(), head.omitted.len()), if attempt == 0 { (0, 0) } else { (1, 1) });
        let left = if attempt == 0 { 2 } else { usize::MAX };
        Ok((head, Box::new(Sent { outgoing, left })))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_comes_after_the_log_was_trimmed_has_the_checkpoint_of_a_peer() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut first = started(folder.path(), "b1").await;
    let former = first.leads().await;
    for name in ["a", "b", "c"] {
        commit(&former, name).await.unwrap();
    }
    former.store.give_space_back();
    let entry = folder.path().join(format!("log/test/log/{:020}", 2));
    within("the log is trimmed", async {
        while entry.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    commit(&former, "d").await.unwrap();
    // Without a peer it goes on trying.
    let alone = try_start(folder.path(), &log, "b3").await.unwrap();
    alone.shows("it restores", |view| view.role == view::Role::Restoring && view.leader.is_some()).await;
    assert_eq!(alone.stops().await, Ended::Member(Ending::Stopped));
    let peer = Arc::new(Beside { replica: first.replica.clone(), attempts: AtomicUsize::new(0) });
    let mut second = start_beside(folder.path(), &log, "b2", peer.clone()).await.unwrap();
    let end = first.handle.chain().await.unwrap();
    second.shows("it follows", |view| view.role == view::Role::Following && view.position >= end.position).await;
    assert_eq!(peer.attempts.load(Ordering::Relaxed), 3);
    assert!(second.handle.view().borrow().flushed_upto >= 4, "the checkpoint is its own");
    first.handle.stop();
    first.handle.service_ended();
    within("it ends", first.handle.ended()).await;
    let term = second.leads().await;
    assert!(["a", "b", "c", "d"].iter().all(|name| has(&term, name)));
    commit(&term, "e").await.unwrap();
    second.handle.stop();
    second.handle.service_ended();
    within("it ends", second.handle.ended()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_stops_leaves_all_that_it_has_in_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = started(folder.path(), "b1").await;
    let term = broker.leads().await;
    commit(&term, "a").await.unwrap();
    drop(term);
    broker.leaves().await;
    is_free(folder.path(), "b1").await;
    std::fs::remove_dir_all(folder.path().join("log")).unwrap();
    let replica = Replica::open(&folder.path().join("b1"), &CLUSTER).unwrap();
    assert_eq!((replica.end().position, replica.known().position), (2, 2), "takeover and group, without the log");
}

#[test]
fn a_claim_in_vain_is_logged_once_and_then_once_a_minute() {
    use view::Role::{Claiming, Following, Leading, Leaving};
    let mut log = RoleLog::default();
    let mut at = Duration::ZERO;
    let mut told = Vec::new();
    // Two claims a second for two minutes.
    while at < CLAIM_TOLD_AGAIN * 2 {
        for role in [Claiming, Following] {
            if log.tells(at, role, 3) {
                told.push((at.as_secs(), role));
            }
        }
        at += Duration::from_millis(500);
    }
    assert_eq!(told, [(0, Claiming), (0, Following), (60, Claiming), (60, Following)]);
    // All other changes are logged, and so is a claim that follows from them.
    assert!(!log.tells(CLAIM_TOLD_AGAIN, Claiming, 3));
    for (role, term) in [(Leading, 4), (Leaving, 4), (Following, 4), (Claiming, 4), (Following, 4), (Claiming, 5)] {
        assert!(log.tells(at, role, term), "{role:?} {term}");
    }
    assert!(!log.tells(at, Following, 4));
}
