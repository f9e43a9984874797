//! The engine over a bucket: over a store in memory always, and over a server if `tests/cluster/bucket.sh` has started one and
//! says in `BATON_BUCKET` where it is.

use std::{
    collections::BTreeMap,
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use baton_cluster::{
    conformance::{self, Fixture},
    engines::{
        bucket::{Bucket, Pace},
        directory::Directory,
    },
    log::{AppendError, ReadError, Register, SharedLog, WriteError},
};
use baton_protocol::time::Moment;
use baton_store::bucket::BucketOptions;
use bytes::Bytes;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt as _,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, memory::InMemory, path::Path,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};
use tokio_stream::{Stream, StreamExt as _};

/// Trims at once, and trusts nothing.
const CAREFUL: Pace = Pace { trusted: Duration::ZERO, kept: Duration::ZERO };

/// Each name is a prefix of one store.
struct InStore(Arc<dyn ObjectStore>, Pace);

impl InStore {
    fn named(&self, name: &str) -> Arc<Bucket> {
        Arc::new(Bucket::over(self.0.clone(), format!("logs/{name}"), self.1))
    }
}

#[async_trait]
impl Fixture for InStore {
    async fn log(&self, name: &str) -> Arc<dyn SharedLog> {
        self.named(name)
    }

    async fn register(&self, name: &str) -> Arc<dyn Register> {
        self.named(name)
    }
}

fn entry(number: u64) -> Bytes {
    Bytes::from(format!("entry {number}"))
}

/// All entries from a position on.
async fn all(log: &Bucket, from: u64) -> Vec<(u64, Bytes)> {
    let mut found: Vec<(u64, Bytes)> = Vec::new();
    loop {
        let next = found.last().map_or(from, |(position, _)| position + 1);
        let more = SharedLog::read(log, next, usize::MAX).await.unwrap();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

async fn names(store: &dyn ObjectStore, folder: &str) -> Vec<String> {
    let listed =
        store.list(Some(&Path::from(folder))).map(|object| object.unwrap().location.filename().unwrap().to_owned());
    listed.collect().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_conforms() {
    for pace in [Pace::default(), CAREFUL] {
        let fixture = InStore(Arc::new(InMemory::new()), pace);
        conformance::check_log(&fixture).await.unwrap();
        conformance::check_register(&fixture).await.unwrap();
    }
}

#[tokio::test]
async fn a_trim_deletes_what_is_old_enough() {
    for (kept, left) in [(Duration::ZERO, 2), (Duration::from_secs(3600), 6)] {
        let store = Arc::new(InMemory::new());
        let log = InStore(store.clone(), Pace { kept, ..CAREFUL }).named("trim");
        for after in 0..6 {
            log.append(after, entry(after)).await.unwrap();
        }
        log.trim(5).await.unwrap();
        assert_eq!(names(&*store, "logs/trim/log").await.len(), left, "objects of an age below {kept:?} stay");
        assert_eq!(
            SharedLog::read(&*log, 4, 1).await,
            Err(ReadError::Trimmed { first: 5 }),
            "for a reader all are gone"
        );
        assert_eq!(log.size_bytes().await, Ok(14));
        // A trim to an earlier place changes nothing.
        log.trim(2).await.unwrap();
        assert_eq!(SharedLog::read(&*log, 4, 1).await, Err(ReadError::Trimmed { first: 5 }));
    }
}

/// A writer that slept between its look and its write: the name was used and trimmed meanwhile, and is free again.
#[tokio::test]
async fn an_object_in_front_of_the_beginning_is_no_entry() {
    let store = Arc::new(InMemory::new());
    let fixture = InStore(store.clone(), CAREFUL);
    let log = fixture.named("late");
    for after in 0..6 {
        log.append(after, entry(after)).await.unwrap();
    }
    log.trim(5).await.unwrap();
    let object = Path::from(format!("logs/late/log/{:020}", 3));
    store.put(&object, "late".into()).await.unwrap();
    assert_eq!(SharedLog::read(&*log, 3, 1).await, Err(ReadError::Trimmed { first: 5 }));
    for after in [0, 2, 3] {
        let late = fixture.named("late").append(after, entry(0)).await;
        assert_eq!(late, Err(AppendError::Fenced), "behind {after}");
    }
    assert_eq!((fixture.named("late").end().await, log.size_bytes().await), (Ok(6), Ok(14)));
    log.trim(6).await.unwrap();
    assert_eq!(names(&*store, "logs/late/log").await, [format!("{:020}", 6)]);
}

/// The write of the former test, through the engine: it is held while others go on and trim.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_creates_a_trimmed_entry_again_is_not_acknowledged() {
    let store = Arc::new(Odd::new(Oddity::Holds));
    let slow = InStore(store.clone(), CAREFUL).named("held");
    let other = InStore(store.inner.clone(), CAREFUL).named("held");
    other.append(0, entry(0)).await.unwrap();
    let held = tokio::spawn(async move { slow.append(1, Bytes::from_static(b"held")).await });
    store.arrived.acquire().await.unwrap().forget();
    for after in 1..5 {
        other.append(after, entry(after)).await.unwrap();
    }
    other.trim(5).await.unwrap();
    store.released.add_permits(1);
    let outcome = held.await.unwrap();
    assert!(matches!(&outcome, Err(AppendError::Unknown(words)) if words.contains("trimmed")), "{outcome:?}");
    assert_eq!(all(&other, 5).await, [(5, entry(4))]);
}

#[tokio::test]
async fn the_end_is_found_in_few_requests() {
    let fixture = InStore(Arc::new(InMemory::new()), Pace::default());
    let log = fixture.named("end");
    for after in 0..300 {
        log.append(after, entry(after)).await.unwrap();
    }
    let count = log.requests().count();
    assert_eq!((count.writes, count.reads), (300, 2), "an append is one write; only the first looks before it");
    let other = fixture.named("end");
    assert_eq!(other.end().await, Ok(300));
    let of_search = other.requests().count().reads;
    assert!(of_search < 25, "{of_search} requests");
    assert_eq!(other.end().await, Ok(300));
    let again = other.requests().count().reads - of_search;
    assert_eq!(again, 4, "the second time it begins where the first has ended");
    assert_eq!(all(&other, 1).await.len(), 300);
}

#[tokio::test]
async fn a_store_that_does_not_compare_is_unsafe() {
    for (oddity, words) in [
        (Oddity::OverwritesNew, "ignores `If-None-Match: *`"),
        (Oddity::OverwritesOld, "ignores `If-Match`"),
        (Oddity::LooksThenWrites, "in two steps"),
    ] {
        let fixture = InStore(Arc::new(Odd::new(oddity)), Pace::default());
        let found = fixture.named("odd").settings().await.unwrap();
        assert!(found.unsafe_ones.len() == 1 && found.unsafe_ones[0].contains(words), "{found:?}");
    }
    let store = Arc::new(InMemory::new());
    let found = InStore(store.clone(), Pace::default()).named("safe").settings().await.unwrap();
    assert_eq!(found.unsafe_ones, Vec::<String>::new());
    assert_eq!(names(&*store, "logs").await, Vec::<String>::new(), "the check leaves nothing behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_finds_a_store_that_looks_then_writes() {
    let fixture = InStore(Arc::new(Odd::new(Oddity::LooksThenWrites)), Pace::default());
    conformance::p1_one_successor(&fixture).await.unwrap_err();
    conformance::p5_one_writer(&fixture).await.unwrap_err();
}

/// A conflict of two writers, of whom none may have written: a fence would say that the entry of another is there.
#[tokio::test]
async fn a_conflict_is_unknown_and_not_fenced() {
    let log = InStore(Arc::new(Odd::new(Oddity::Conflicts)), Pace::default()).named("conflict");
    let outcome = log.append(0, entry(0)).await;
    assert!(matches!(outcome, Err(AppendError::Unknown(_))), "{outcome:?}");
    let outcome = log.write("leader", Some(&baton_cluster::log::Version("1".into())), entry(0)).await;
    assert!(matches!(outcome, Err(WriteError::Unknown(_))), "{outcome:?}");
}

#[tokio::test]
async fn the_same_value_has_another_version_each_time() {
    let store = Arc::new(InMemory::new());
    let register = InStore(store.clone(), Pace::default()).named("same");
    register.write("leader", None, entry(0)).await.unwrap();
    let bytes = async || store.get(&Path::from("logs/same/register/leader")).await.unwrap().bytes().await.unwrap();
    let before = bytes().await;
    let (version, _) = Register::read(&*register, "leader").await.unwrap().unwrap();
    register.write("leader", Some(&version), entry(0)).await.unwrap();
    // A server that takes the ETag from the content gives others.
    assert_ne!(bytes().await, before);
    for name in ["", "../log/1", "member/", "a//b", "ä"] {
        assert!(register.write(name, None, Bytes::new()).await.is_err(), "{name}");
        assert!(Register::read(&*register, name).await.is_err(), "{name}");
    }
}

/// What is wrong with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Oddity {
    /// A second creation replaces the first.
    OverwritesNew,
    /// An update needs no version.
    OverwritesOld,
    /// The comparison and the write are two steps.
    LooksThenWrites,
    /// Each conditional write ends as 409 does.
    Conflicts,
    /// A creation waits until it is released.
    Holds,
}

/// A store in memory with one fault.
#[derive(Debug)]
struct Odd {
    inner: Arc<InMemory>,
    oddity: Oddity,
    arrived: tokio::sync::Semaphore,
    released: tokio::sync::Semaphore,
}

type Listing<T> = Pin<Box<dyn Stream<Item = object_store::Result<T>> + Send>>;

impl Odd {
    fn new(oddity: Oddity) -> Self {
        let none = || tokio::sync::Semaphore::new(0);
        Self { inner: Arc::default(), oddity, arrived: none(), released: none() }
    }
}

impl fmt::Display for Odd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self:?}")
    }
}

#[async_trait]
impl ObjectStore for Odd {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> object_store::Result<PutResult> {
        match (self.oddity, &options.mode) {
            (Oddity::OverwritesNew, PutMode::Create) | (Oddity::OverwritesOld, PutMode::Update(_)) => {
                options.mode = PutMode::Overwrite;
            }
            (Oddity::LooksThenWrites, PutMode::Create) => {
                if let Ok(meta) = self.inner.head(location).await {
                    let source = format!("{meta:?}").into();
                    return Err(object_store::Error::AlreadyExists { path: location.to_string(), source });
                }
                tokio::task::yield_now().await;
                options.mode = PutMode::Overwrite;
            }
            (Oddity::LooksThenWrites, PutMode::Update(version)) => {
                let present = self.inner.head(location).await?;
                if present.e_tag != version.e_tag {
                    let source = format!("{present:?}").into();
                    return Err(object_store::Error::Precondition { path: location.to_string(), source });
                }
                tokio::task::yield_now().await;
                options.mode = PutMode::Overwrite;
            }
            (Oddity::Conflicts, PutMode::Create | PutMode::Update(_)) => {
                let source = "409".into();
                return Err(object_store::Error::AlreadyExists { path: location.to_string(), source });
            }
            (Oddity::Holds, PutMode::Create) => {
                self.arrived.add_permits(1);
                self.released.acquire().await.unwrap().forget();
            }
            _ => {}
        }
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: Listing<Path>) -> Listing<Path> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> Listing<ObjectMeta> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// The port of a server on 127.0.0.1 with the bucket `logs`. Its credentials are in the environment.
fn port() -> Option<u16> {
    std::env::var("BATON_BUCKET").ok().map(|port| port.parse().unwrap())
}

/// A bucket of the server at this port, and a prefix.
struct AtServer(u16, &'static str);

impl AtServer {
    async fn named(&self, name: &str) -> Arc<Bucket> {
        let options = BucketOptions {
            url: format!("s3://{}", self.1),
            endpoint: Some(format!("http://127.0.0.1:{}", self.0)),
            region: None,
            allow_http: true,
        };
        Arc::new(Bucket::open(&options, name).await.unwrap())
    }
}

#[async_trait]
impl Fixture for AtServer {
    async fn log(&self, name: &str) -> Arc<dyn SharedLog> {
        self.named(name).await
    }

    async fn register(&self, name: &str) -> Arc<dyn Register> {
        self.named(name).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_conforms() {
    let Some(port) = port() else { return };
    let fixture = AtServer(port, "logs/suite");
    assert_eq!(fixture.named("settings").await.settings().await.unwrap().unsafe_ones, Vec::<String>::new());
    conformance::check_log(&fixture).await.unwrap();
    conformance::check_register(&fixture).await.unwrap();
    let trimmed = fixture.named("trim").await;
    trimmed.discard().await.unwrap();
    assert_eq!(trimmed.size_bytes().await, Ok(0));
}

#[tokio::test]
async fn a_bucket_that_is_not_there_is_unavailable() {
    let Some(port) = port() else { return };
    let endpoint = Some(format!("http://127.0.0.1:{port}"));
    let options = BucketOptions { url: "s3://missing".into(), endpoint, region: None, allow_http: true };
    Bucket::open(&options, "any").await.unwrap_err();
}

/// What the proxy does with a request.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Passes,
    Delayed,
    /// The server never gets it.
    Lost,
    /// The server gets it, and its answer is lost.
    Unanswered,
    /// The server gets it twice, and the client the second answer.
    Doubled,
    /// The client is told at once that the connection has ended, and the server gets it later.
    Late,
}

/// A proxy before a server. Each connection has one request.
struct Proxy {
    port: u16,
    /// Requests that are on their way to the server.
    late: Arc<Mutex<Vec<JoinHandle<()>>>>,
    fates: Arc<[AtomicUsize; 5]>,
}

impl Proxy {
    async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = Self { port, late: Arc::default(), fates: Arc::default() };
        let (late, fates) = (proxy.late.clone(), proxy.fates.clone());
        tokio::spawn(async move {
            let mut writes = 0_usize;
            while let Ok((mut client, _)) = listener.accept().await {
                let Some(request) = request_of(&mut client).await else { continue };
                // Only writes have an outcome to be settled.
                writes += usize::from(request.starts_with(b"PUT "));
                let fate = match (request.starts_with(b"PUT "), writes % 9) {
                    (true, 1) => Fate::Delayed,
                    (true, 3) => Fate::Lost,
                    (true, 4 | 6) => Fate::Unanswered,
                    (true, 7) => Fate::Doubled,
                    (true, 8) => Fate::Late,
                    _ => Fate::Passes,
                };
                if !matches!(fate, Fate::Passes) {
                    fates[fate as usize - 1].fetch_add(1, Ordering::SeqCst);
                }
                let call = tokio::spawn(serve(client, server, request, fate));
                if matches!(fate, Fate::Late) {
                    late.lock().unwrap().push(call);
                }
            }
        });
        proxy
    }

    /// Waits until the server has each request, and says how often each fate was met.
    async fn settled(&self) -> [usize; 5] {
        let late = std::mem::take(&mut *self.late.lock().unwrap());
        for call in late {
            call.await.unwrap();
        }
        std::array::from_fn(|fate| self.fates[fate].load(Ordering::SeqCst))
    }
}

async fn serve(mut client: TcpStream, server: u16, request: Vec<u8>, fate: Fate) {
    match fate {
        Fate::Lost => {}
        Fate::Passes => answer(&mut client, &call(server, &request).await).await,
        Fate::Delayed => {
            tokio::time::sleep(Duration::from_millis(40)).await;
            answer(&mut client, &call(server, &request).await).await;
        }
        Fate::Unanswered => drop(call(server, &request).await),
        Fate::Doubled => {
            call(server, &request).await;
            answer(&mut client, &call(server, &request).await).await;
        }
        Fate::Late => {
            drop(client);
            tokio::time::sleep(Duration::from_millis(10)).await;
            call(server, &request).await;
        }
    }
}

async fn answer(client: &mut TcpStream, bytes: &[u8]) {
    // A client that has given up needs none.
    drop(client.write_all(bytes).await);
    drop(client.shutdown().await);
}

/// A request with its body. The server is asked to close the connection after its answer.
async fn request_of(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if client.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return None;
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length =
        text.lines().find_map(|line| line.strip_prefix("content-length:")).map_or(0, |v| v.trim().parse().unwrap());
    while bytes.len() < head + length {
        if client.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return None;
        }
    }
    let line = bytes.windows(2).position(|window| window == b"\r\n").unwrap() + 2;
    bytes.splice(line..line, *b"Connection: close\r\n");
    Some(bytes)
}

async fn call(server: u16, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    answer
}

/// The leader appends through the proxy and settles each outcome, as its log does; in one round of five another broker appends
/// meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_late_lost_doubled_or_unanswered_settle() {
    let Some(port) = port() else { return };
    let proxy = Proxy::to(port).await;
    let direct = AtServer(port, "logs/proxy").named("settle").await;
    let behind = AtServer(proxy.port, "logs/proxy").named("settle").await;
    let (mut expected, mut unknown, mut found_by_reading) = (Vec::new(), 0, 0);
    for after in 0..500 {
        let (own, other) = (entry(after), Bytes::from(format!("other {after}")));
        let mut round = JoinSet::new();
        if after % 5 == 0 {
            let (direct, other) = (direct.clone(), other.clone());
            round.spawn(async move { direct.append(after, other).await });
        }
        let own_is_in = loop {
            match behind.append(after, own.clone()).await {
                Ok(()) => break true,
                Err(AppendError::Unknown(_)) => unknown += 1,
                Err(AppendError::Fenced) => {
                    let found = SharedLog::read(&*direct, after + 1, 1).await.unwrap();
                    let [(position, found)] = &found[..] else { panic!("a fence at {after}, and nothing there") };
                    assert_eq!(*position, after + 1);
                    found_by_reading += usize::from(*found == own);
                    break *found == own;
                }
                Err(error) => panic!("{error}"),
            }
        };
        let others_is_in = round.join_all().await == [Ok(())];
        assert_ne!(own_is_in, others_is_in, "round {after}: one of the two is in the log");
        expected.push((after + 1, if own_is_in { own } else { other }));
    }
    let fates = proxy.settled().await;
    assert!(fates.iter().all(|count| *count > 20), "{fates:?}");
    assert!(unknown > 50 && found_by_reading > 20, "{unknown} unknown, {found_by_reading} of them in");
    assert_eq!(all(&direct, 1).await, expected, "each entry is there once, and none is missing");
    println!(
        "{unknown} unknown outcomes, {found_by_reading} of them in; delayed, lost, unanswered, doubled, late: {fates:?}"
    );
}

/// The lease through the proxy: an unknown outcome is settled by a read, and no other broker's value is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_whose_write_was_cut_off_is_settled_by_a_read() {
    let Some(port) = port() else { return };
    let proxy = Proxy::to(port).await;
    let direct = AtServer(port, "logs/proxy").named("values").await;
    let behind = AtServer(proxy.port, "logs/proxy").named("values").await;
    let (mut version, mut unknown) = (None, 0);
    for round in 0..120_u64 {
        let value = entry(round);
        version = loop {
            match behind.write("leader", version.as_ref(), value.clone()).await {
                Ok(next) => break Some(next),
                Err(WriteError::Unknown(_)) => unknown += 1,
                Err(WriteError::Changed) => {
                    // What is late comes in, or is refused, before this.
                    proxy.settled().await;
                    let found = Register::read(&*direct, "leader").await.unwrap();
                    let (found, bytes) = found.expect("a value that has changed is there");
                    assert_eq!(bytes, value, "the only other writes are those of this round");
                    break Some(found);
                }
            }
        };
    }
    proxy.settled().await;
    let found = Register::read(&*direct, "leader").await.unwrap().unwrap();
    assert_eq!(Some(found.0), version);
    assert_eq!(found.1, entry(119));
    assert!(unknown > 20, "{unknown}");
}

/// Prints the appends a second, one in flight, beside those of a folder.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: tests/cluster/bucket.sh VERSITYGW --measure"]
async fn measure_appends() {
    let port = port().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let directory: Arc<dyn SharedLog> = Arc::new(Directory::open(folder.path()).unwrap());
    for kib in [16_usize, 128] {
        let bucket: Arc<dyn SharedLog> = AtServer(port, "logs/measure").named(&format!("kib-{kib}")).await;
        let logs = BTreeMap::from([("bucket", bucket), ("folder", directory.clone())]);
        for (name, log) in logs {
            let (bytes, mut times) = (Bytes::from(vec![7; kib * 1024]), Vec::new());
            let mut after = log.end().await.unwrap();
            let began = Moment::now();
            while times.len() < 500 {
                let began = Moment::now();
                log.append(after, bytes.clone()).await.unwrap();
                times.push(began.elapsed());
                after += 1;
            }
            let rate = 500.0 / began.elapsed().as_secs_f64();
            times.sort();
            println!("{name} {kib} KiB: {rate:.0}/s, p50 {:?}, p99 {:?}", times[250], times[495]);
        }
    }
}
