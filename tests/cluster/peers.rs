//! The relay and the peer port over real sockets and real TLS.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use baton_cluster::{
    driver::CheckpointPieces as _,
    entry::{Chain, Hash},
    view::{Leader, Role, View},
};
use baton_peers::{
    checkpoint,
    client::{self, PeerError},
    port::{Broker, PeerPort, Relayed},
    relay::{Ended, Relay, RelayCount, WAIT_MAX},
    tls::{self, PeerTls},
};
use baton_protocol::time::{Moment, SystemClock};
use baton_store::{
    AppendError, Change, CheckpointFile, CommitLog, Key, Link, Mark, Position, Record, Replica, Table, Write,
};
use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("takes far too long")
}

/// The keys of a cluster.
fn keys() -> (tempfile::TempDir, PeerTls) {
    let folder = tempfile::tempdir().unwrap();
    tls::make(folder.path()).unwrap();
    let loaded = PeerTls::load(folder.path()).unwrap();
    (folder, loaded)
}

fn view() -> View {
    View::at_start(Chain { position: 7, hash: Hash([3; 32]), term: 2, level: 1 }, 5)
}

/// A broker with its peer port.
struct Member {
    name: String,
    address: SocketAddr,
    tls: PeerTls,
    view: watch::Sender<View>,
    steps_down: mpsc::Receiver<()>,
    relayed: mpsc::Receiver<Relayed>,
    count: RelayCount,
    stop: CancellationToken,
    tables: Arc<Replica>,
    folder: tempfile::TempDir,
}

/// Its folder goes next: a checkpoint that is still sent would write beside the removal.
impl Drop for Member {
    fn drop(&mut self) {
        self.stop.cancel();
        let ended = async {
            while Arc::strong_count(&self.tables) > 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        // A test that fails may have the tables still.
        let waits = timeout(Duration::from_secs(10), ended);
        let _patience = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(waits));
    }
}

impl Member {
    async fn start(name: &str, tls: &PeerTls) -> Self {
        let port = PeerPort::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = port.local_addr().unwrap();
        let (view, views) = watch::channel(view());
        let (step_down, steps_down) = mpsc::channel(1);
        let (relay, relayed) = mpsc::channel(16);
        let folder = tempfile::tempdir().unwrap();
        let tables = Arc::new(Replica::open(&folder.path().join("store"), &[7; 16]).unwrap());
        let (count, stop) = (RelayCount::default(), CancellationToken::new());
        let broker = Broker {
            cluster: "test".into(),
            name: name.into(),
            process: vec![1; 16],
            version: "0.1.0".into(),
            view: views,
            step_down,
            relays: count.clone(),
            tables: tables.clone(),
            clock: Arc::new(SystemClock),
            figures: Arc::default(),
        };
        tokio::spawn(port.serve(tls.clone(), broker, relay, stop.clone()));
        Self { name: name.into(), address, tls: tls.clone(), view, steps_down, relayed, count, stop, tables, folder }
    }

    fn leader(&self) -> Leader {
        Leader { name: self.name.clone(), peer_address: self.address.to_string() }
    }

    fn knows(&self, leader: Option<Leader>) {
        self.view.send_modify(|view| view.leader = leader);
    }

    fn becomes(&self, role: Role) {
        self.view.send_modify(|view| view.role = role);
    }

    /// Takes a client's connection, which this broker carries.
    async fn carry(&self) -> (TcpStream, JoinHandle<Result<Ended, TcpStream>>) {
        let (client, accepted, peer) = connected().await;
        let relay = Relay::new(self.name.clone(), self.tls.clone(), self.view.subscribe(), self.count.clone());
        (client, tokio::spawn(relay.carry(accepted, peer)))
    }
}

/// Both sides of a connection, and the client's address.
async fn connected() -> (TcpStream, TcpStream, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (accepted, peer) = listener.accept().await.unwrap();
    (client, accepted, peer)
}

async fn read(stream: &mut (impl tokio::io::AsyncRead + Unpin), bytes: usize) -> Vec<u8> {
    let mut read = vec![0; bytes];
    in_time(stream.read_exact(&mut read)).await.unwrap();
    read
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_copied_both_ways_and_the_leader_knows_the_client() {
    let (_keys, tls) = keys();
    let (mut leader, follower) = (Member::start("b1", &tls).await, Member::start("b2", &tls).await);
    follower.knows(Some(leader.leader()));
    let (mut client, carried) = follower.carry().await;
    client.write_all(b"hello").await.unwrap();
    let Relayed { mut stream, client: told } = in_time(leader.relayed.recv()).await.unwrap();
    assert_eq!(told, client.local_addr().unwrap());
    assert_eq!(read(&mut stream, 5).await, b"hello");
    assert_eq!(follower.count.now(), 1);
    // Far more than any buffer between has room for.
    let answer = vec![7; 4 * 1024 * 1024];
    let (sent, got) = tokio::join!(stream.write_all(&answer), read(&mut client, answer.len()));
    sent.unwrap();
    assert_eq!(got, answer);
    // A client that has said all still gets its answer.
    client.shutdown().await.unwrap();
    assert_eq!(in_time(stream.read(&mut [0])).await.unwrap(), 0);
    stream.write_all(b"bye").await.unwrap();
    stream.shutdown().await.unwrap();
    drop(stream);
    assert_eq!(read(&mut client, 3).await, b"bye");
    assert_eq!(in_time(client.read(&mut [0])).await.unwrap(), 0);
    assert_eq!(in_time(carried).await.unwrap().unwrap(), Ended::BySides);
    assert_eq!(follower.count.now(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_gone_does_not_keep_a_connection_that_the_leader_has_ended() {
    let (_keys, tls) = keys();
    let (mut leader, follower) = (Member::start("b1", &tls).await, Member::start("b2", &tls).await);
    follower.knows(Some(leader.leader()));
    let (client, carried) = follower.carry().await;
    drop(in_time(leader.relayed.recv()).await.unwrap());
    // The client never ends its side.
    assert_eq!(in_time(carried).await.unwrap().unwrap(), Ended::BySides);
    drop(client);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_closes_relays() {
    let (_keys, tls) = keys();
    let (mut leader, follower) = (Member::start("b1", &tls).await, Member::start("b2", &tls).await);
    let other = Member::start("b3", &tls).await;
    for takes_over in ["another", "itself"] {
        follower.becomes(Role::Following);
        follower.knows(Some(leader.leader()));
        let (mut client, carried) = follower.carry().await;
        let relayed = in_time(leader.relayed.recv()).await.unwrap();
        // Nothing that leaves the same broker as leader ends the connection.
        follower.view.send_modify(|view| view.position += 1);
        follower.knows(None);
        follower.knows(Some(leader.leader()));
        match takes_over {
            "another" => follower.knows(Some(other.leader())),
            _ => follower.becomes(Role::Leading),
        }
        assert_eq!(in_time(carried).await.unwrap().unwrap(), Ended::ByTakeover, "{takes_over}");
        assert_eq!(in_time(client.read(&mut [0])).await.unwrap_or(0), 0);
        let Relayed { mut stream, .. } = relayed;
        assert!(!matches!(in_time(stream.read(&mut [0])).await, Ok(1..)), "the former leader sees the end");
        assert_eq!(follower.count.now(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_waits_for_a_leader() {
    let (_keys, tls) = keys();
    let (mut leader, follower) = (Member::start("b1", &tls).await, Member::start("b2", &tls).await);
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (mut client, _carried) = follower.carry().await;
    client.write_all(b"early").await.unwrap();
    // The lease of a former process of this broker, and one of a broker that is gone.
    follower.knows(Some(follower.leader()));
    follower.knows(Some(Leader { name: "b0".into(), peer_address: gone.to_string() }));
    tokio::task::yield_now().await;
    follower.knows(Some(leader.leader()));
    let Relayed { mut stream, .. } = in_time(leader.relayed.recv()).await.unwrap();
    assert_eq!(read(&mut stream, 5).await, b"early");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_comes_to_lead_gets_the_connections_that_wait() {
    let (_keys, tls) = keys();
    let follower = Member::start("b2", &tls).await;
    let (mut client, carried) = follower.carry().await;
    client.write_all(b"early").await.unwrap();
    follower.becomes(Role::Claiming);
    follower.becomes(Role::Leading);
    let mut back = in_time(carried).await.unwrap().unwrap_err();
    assert_eq!(read(&mut back, 5).await, b"early");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_leader_a_connection_is_closed_after_three_seconds() {
    let (_keys, tls) = keys();
    let follower = Member::start("b2", &tls).await;
    let began = Moment::now();
    let (mut client, carried) = follower.carry().await;
    assert_eq!(in_time(carried).await.unwrap().unwrap(), Ended::WithoutLeader);
    assert!(began.elapsed() >= WAIT_MAX, "closed too early");
    assert_eq!(client.read(&mut [0]).await.unwrap_or(0), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_of_another_cluster_is_not_let_in() {
    let ((_keys, tls), (_others, foreign)) = (keys(), keys());
    let mut leader = Member::start("b1", &tls).await;
    let refused = in_time(client::status(&leader.address.to_string(), &foreign)).await.unwrap_err();
    assert!(matches!(refused, PeerError::Unreachable { .. }), "{refused}");
    let intruder = Member::start("b2", &foreign).await;
    intruder.knows(Some(leader.leader()));
    let (_client, _carried) = intruder.carry().await;
    // Nor is a client that speaks no TLS, or says nothing.
    let mut plain = TcpStream::connect(leader.address).await.unwrap();
    let _silent = TcpStream::connect(leader.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let end = in_time(plain.read_to_end(&mut answer)).await;
    assert!(end.is_err() || answer.first().is_none_or(|first| *first == 21), "an alert at most: {answer:?}");
    // Its own are served meanwhile.
    in_time(client::status(&leader.address.to_string(), &tls)).await.unwrap();
    assert!(leader.relayed.try_recv().is_err(), "no relayed connection has come");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_tells_its_place() {
    let (_keys, tls) = keys();
    let member = Member::start("b2", &tls).await;
    member.knows(Some(Leader { name: "b1".into(), peer_address: "b1:1".into() }));
    let status = in_time(client::status(&member.address.to_string(), &tls)).await.unwrap();
    assert_eq!((status.cluster.as_str(), status.broker.as_str(), status.role.as_str()), ("test", "b2", "following"));
    assert_eq!((status.term, status.position, status.flushed_upto), (2, 7, 5));
    assert_eq!((status.hash, status.leader.as_str()), (vec![3; 32], "b1"));
    assert!(status.clock_ms > 1_600_000_000_000, "milliseconds since 1970");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_steps_down_and_a_follower_does_not() {
    let (_keys, tls) = keys();
    let mut member = Member::start("b1", &tls).await;
    let address = member.address.to_string();
    let refused = in_time(client::step_down(&address, &tls)).await.unwrap_err();
    assert!(refused.to_string().contains("b1 does not lead: it is following"), "{refused}");
    member.becomes(Role::Leading);
    let call = tokio::spawn(async move { client::step_down(&address, &tls).await });
    in_time(member.steps_down.recv()).await.unwrap();
    member.becomes(Role::Leaving);
    assert!(!call.is_finished());
    member.becomes(Role::Following);
    in_time(call).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_gone_is_named() {
    let (_keys, tls) = keys();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let error = in_time(client::status(&gone, &tls)).await.unwrap_err();
    assert!(matches!(&error, PeerError::Unreachable { address, .. } if *address == gone), "{error}");
    // One that is cut off in the middle of a call.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let cut = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        stream.read_exact(&mut [0; 16]).await?;
        io::Result::Ok(())
    });
    let error = in_time(client::status(&address, &tls)).await.unwrap_err();
    assert!(matches!(error, PeerError::Unreachable { .. }), "{error}");
    cut.await.unwrap().unwrap();
}

/// A log that accepts all, and keeps nothing.
struct Accepting(Mark);

impl CommitLog for Accepting {
    fn append(&mut self, after: Position, _: &[u8]) -> Result<Mark, AppendError> {
        let link = Link { hash: [3; 32], term: 2, level: 1 };
        self.0 = Mark { position: after + 1, link: Some(link) };
        Ok(self.0)
    }

    fn end(&self) -> Mark {
        self.0
    }

    fn entry_bytes_max(&self) -> usize {
        64 * 1024 * 1024
    }
}

fn key(number: u64) -> Key {
    Key { table: Table::Tasks, key: number.to_be_bytes().as_slice().into() }
}

impl Member {
    /// Writes this many records of 64 KiB into the tables, each in an entry of its own, and takes a checkpoint.
    async fn has_records(&self, records: u64) {
        let (tables, mut random) = (self.tables.clone(), 1_u64);
        let write = move || {
            let store = tables.lead(Box::new(Accepting(tables.end())));
            for number in 0..records {
                // No table file compresses it.
                let value: Bytes = std::iter::repeat_with(|| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 56) as u8
                })
                .take(64 * 1024)
                .collect();
                let record = Some(Record { revision: 1, value });
                let write = Write { key: key(number), record, is_new: true };
                store.commit(vec![Change { expectations: Vec::new(), writes: vec![write] }]).unwrap();
            }
            store.give_space_back();
            tables.follow();
        };
        in_time(tokio::task::spawn_blocking(write)).await.unwrap();
        in_time(async {
            while self.tables.flushed_upto() < records {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_receives_the_checkpoint_of_another_one() {
    let (_keys, tls) = keys();
    let (sender, receiver) = (Member::start("b1", &tls).await, Member::start("b2", &tls).await);
    sender.has_records(20).await;
    let (head, mut pieces) = in_time(checkpoint::receive(&sender.address.to_string(), &tls, 20, &[])).await.unwrap();
    assert_eq!((head.mark, head.mark.position), (sender.tables.end(), 20));
    let mut incoming = receiver.tables.receive(&head, 21, &mut None).unwrap();
    let mut count = 0;
    while let Some(piece) = in_time(pieces.next()).await.unwrap() {
        assert!(piece.len() <= 256 * 1024);
        incoming.add(&piece).unwrap();
        count += 1;
    }
    assert!(count > 5, "in pieces");
    receiver.tables.restore(incoming.finish().unwrap()).unwrap();
    assert_eq!((receiver.tables.end(), receiver.tables.flushed_upto()), (head.mark, 20));
    let [sent, own] = [&sender, &receiver].map(|member| member.tables.lead(Box::new(Accepting(member.tables.end()))));
    assert!((0..20).all(|number| own.get(&key(number)).unwrap() == sent.get(&key(number)).unwrap()));
    assert!(own.get(&key(19)).unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_is_too_old_is_refused_and_so_is_a_third_receiver() {
    let (_keys, tls) = keys();
    let sender = Member::start("b1", &tls).await;
    let address = sender.address.to_string();
    // More than the connections take ahead of a receiver.
    sender.has_records(128).await;
    let refused = in_time(checkpoint::receive(&address, &tls, 129, &[])).await.unwrap_err();
    assert!(refused.to_string().contains("has the entries up to 128, and those up to 129 are needed"), "{refused}");
    let mut receiving = Vec::new();
    for _ in 0..2 {
        receiving.push(in_time(checkpoint::receive(&address, &tls, 1, &[])).await.unwrap());
    }
    let refused = in_time(checkpoint::receive(&address, &tls, 1, &[])).await.unwrap_err();
    assert!(refused.to_string().contains("sends its checkpoint to others"), "{refused}");
    // One that goes away in the middle gives its place and the second names back.
    receiving.clear();
    in_time(async {
        while checkpoint::receive(&address, &tls, 1, &[]).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let sending = sender.folder.path().join("store/sending");
    in_time(async {
        while std::fs::read_dir(&sending).unwrap().count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_that_is_gone_in_the_middle_ends_the_stream_with_an_error() {
    let (_keys, tls) = keys();
    let sender = Member::start("b1", &tls).await;
    sender.has_records(128).await;
    // A connection through a port that is cut after some bytes.
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, behind) = (between.local_addr().unwrap().to_string(), sender.address);
    let cut = tokio::spawn(async move {
        let (mut client, _) = between.accept().await.unwrap();
        let mut broker = TcpStream::connect(behind).await.unwrap();
        let (mut from_client, mut to_client) = client.split();
        let (from_broker, mut to_broker) = broker.split();
        let mut some = from_broker.take(1024 * 1024);
        tokio::select! {
            _ = tokio::io::copy(&mut from_client, &mut to_broker) => {}
            _ = tokio::io::copy(&mut some, &mut to_client) => {}
        }
    });
    let (_, mut pieces) = in_time(checkpoint::receive(&address, &tls, 1, &[])).await.unwrap();
    let mut ended = Ok(Some(Bytes::new()));
    while let Ok(Some(_)) = ended {
        ended = in_time(pieces.next()).await;
    }
    ended.unwrap_err();
    cut.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_the_receiver_has_is_not_sent_again() {
    let (_keys, tls) = keys();
    let (sender, receiver) = (Member::start("b1", &tls).await, Member::start("b2", &tls).await);
    sender.has_records(20).await;
    let address = sender.address.to_string();
    let (head, mut pieces) = in_time(checkpoint::receive(&address, &tls, 20, &[])).await.unwrap();
    let (mut incoming, mut first) = (receiver.tables.receive(&head, 21, &mut None).unwrap(), 0);
    while let Some(piece) = in_time(pieces.next()).await.unwrap() {
        first += piece.len();
        incoming.add(&piece).unwrap();
    }
    // Its connection is cut behind the last file, before the end of the stream.
    let mut cut_off = Some(incoming.cut_off().unwrap());
    let files = cut_off.as_ref().unwrap().files();
    assert!(!files.is_empty() && head.omitted.is_empty());
    let damaged: Vec<_> = files.iter().cloned().map(|file| CheckpointFile { xxh3: !file.xxh3, ..file }).collect();
    let (other, _) = in_time(checkpoint::receive(&address, &tls, 20, &damaged)).await.unwrap();
    assert!(other.omitted.is_empty(), "another content of the same name is sent");
    let (head, mut pieces) = in_time(checkpoint::receive(&address, &tls, 20, &files)).await.unwrap();
    assert_eq!(head.omitted.len(), files.len());
    let (mut incoming, mut again) = (receiver.tables.receive(&head, 21, &mut cut_off).unwrap(), 0);
    while let Some(piece) = in_time(pieces.next()).await.unwrap() {
        again += piece.len();
        incoming.add(&piece).unwrap();
    }
    let manifest = usize::try_from(head.manifest_bytes).unwrap();
    assert!(again == manifest && first > 20 * 64 * 1024, "{first} bytes, then {again}");
    receiver.tables.restore(incoming.finish().unwrap()).unwrap();
    assert_eq!((receiver.tables.end(), receiver.tables.flushed_upto()), (head.mark, 20));
}
