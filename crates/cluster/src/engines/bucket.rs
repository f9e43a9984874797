//! A shared log and a register in a bucket of S3, or of a server that is compatible with it.
//!
//! An entry is the object `log/POSITION`, a value the object `register/NAME`, and `begin` says where the log begins. An
//! append creates its object with `If-None-Match: *`; a value changes with `If-Match`. So the server decides which of two
//! writers is first. It has read-after-write consistency, as S3 has: what is acknowledged is durable, and each later read
//! has it.
//!
//! Why the promises of [`crate::log`] hold:
//!
//! - **P1**, **P4**: a name that is taken is not created again. So the entry at a position stays, and a request that arrives
//!   late, or twice, changes nothing: 412, which is `Fenced`. A conflict (409), a timeout and a cut connection are
//!   `Unknown`. No request of this engine is repeated by the library below it.
//! - **P2**: nothing is written over an entry, and only `trim` deletes.
//! - **P3**: an append behind `after` is made only while the entry `after` is known to be in the log. So the log has no
//!   hole, and what is there is durable.
//! - **P5**: `If-Match` has the ETag of the expected version. An ETag is a hash of the content on most servers, so a value
//!   begins with random bytes: no version comes a second time.
//!
//! **Trimming frees names.** A writer that slept while others went on, and while its position was trimmed, could create that
//! object again. Three rules hold it off. `begin` is written before anything is deleted, and what lies in front of it is no
//! entry for any reader. An append looks at `begin` after it has created its object, and is `Unknown` if the position lies in
//! front of that. An append in a hurry omits this look: one whose predecessor this client appended less than
//! [`Pace::trusted`] ago. `trim` deletes no object that is younger than [`Pace::kept`], by the clock of the server: so
//! nothing behind that predecessor can be gone yet. The time is measured by the monotonic and by the wall clock, and the
//! server refuses a signature that is 15 minutes old: so neither a paused process nor a paused machine takes one for the
//! other.

mod objects;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use baton_protocol::{
    ids::{IdSource as _, SystemIds},
    time::{Clock as _, Moment, SystemClock, Timestamp},
};
use baton_store::bucket::BucketOptions;
use bytes::{Bytes, BytesMut};
use object_store::ObjectStore;
use tokio::{sync::OnceCell, task::JoinSet};

use self::objects::{Failure, Listed, Objects};
use crate::{
    log::{
        AppendError, Position, ReadError, Register, Settings, SharedLog, Unavailable, VALUE_BYTES_MAX, Version,
        WriteError, is_name,
    },
    requests::Requests,
};

/// The largest entry in bytes.
const ENTRY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The most entries of one read, so that it ends soon over a slow network.
const READ_ENTRIES_MAX: usize = 64;
/// The most entries of a read that are under way.
const READ_PARALLEL_MAX: usize = 16;
/// The most objects that one trim deletes. The next one goes on.
const TRIM_MAX: usize = 10_000;
/// The random bytes in front of a value.
const NONCE_BYTES: usize = 16;
/// Writers that create one name at the same time, to see whether the server compares and writes in one step.
const PROBE_RACERS: usize = 8;
/// The number of those races.
const PROBE_RACES: usize = 3;
/// How often the end is searched again when the log was trimmed meanwhile.
const SEARCHES_MAX: usize = 5;

const BEGIN: &str = "begin";

/// How long an append trusts what it knows, and how long trimmed entries stay.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// The time after the own append of an entry in which an append behind it makes no other request.
    pub trusted: Duration,
    /// The least age of an object that a trim deletes. Must be far longer than `trusted`, and longer than a server accepts a
    /// signature.
    pub kept: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { trusted: Duration::from_secs(30), kept: Duration::from_secs(20 * 60) }
    }
}

/// The last entry that this client knows.
#[derive(Debug, Clone, Copy)]
struct Tail {
    position: Position,
    /// When this client began to append it. `None`: it was read.
    appended: Option<(Moment, Timestamp)>,
}

/// A log and a register below a prefix of a bucket.
pub struct Bucket {
    objects: Objects,
    pace: Pace,
    tail: Mutex<Tail>,
    settings: OnceCell<Settings>,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Bucket")
    }
}

impl Bucket {
    /// Connects to a bucket, and makes nothing.
    ///
    /// # Errors
    ///
    /// The options cannot be used, the server does not answer, or there is no such bucket.
    pub async fn open(options: &BucketOptions, cluster: &str) -> Result<Self, Unavailable> {
        let bucket = Self::over(objects::connect(options)?, objects::prefix(options, cluster)?, Pace::default());
        bucket.objects.look().await?;
        Ok(bucket)
    }

    /// A log and a register below a prefix of this store, whose names have no empty part.
    pub fn over(store: Arc<dyn ObjectStore>, prefix: String, pace: Pace) -> Self {
        let tail = Mutex::new(Tail { position: 0, appended: None });
        Self { objects: Objects::new(store, prefix), pace, tail, settings: OnceCell::new() }
    }

    /// The requests of this client.
    pub fn requests(&self) -> Arc<Requests> {
        self.objects.requests.clone()
    }

    /// Deletes log and register.
    ///
    /// # Errors
    ///
    /// The server does not answer, or refuses. Some objects may be gone.
    pub async fn discard(&self) -> Result<(), Unavailable> {
        loop {
            let found = self.objects.list("", None, TRIM_MAX).await?;
            if found.is_empty() {
                return Ok(());
            }
            self.objects.delete(found.into_iter().map(|object| object.name).collect()).await?;
        }
    }

    fn tail(&self) -> Tail {
        *self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an entry that is in the log. Does not forget that a later one is.
    fn seen(&self, position: Position) {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        if position > tail.position {
            *tail = Tail { position, appended: None };
        }
    }

    /// Whether this client appended the entry at `after` so lately that nothing behind it is trimmed yet.
    fn trusts(&self, after: Position) -> bool {
        let Tail { position, appended } = self.tail();
        position == after
            && appended.is_some_and(|(moment, time)| {
                moment.elapsed() < self.pace.trusted && SystemClock.now().since(time) < self.pace.trusted
            })
    }

    /// Where the log begins.
    async fn begin(&self) -> Result<Position, Unavailable> {
        Ok(self.begin_object().await?.map_or(1, |(_, begin)| begin))
    }

    async fn begin_object(&self) -> Result<Option<(String, Position)>, Unavailable> {
        let Some((version, value)) = self.objects.get(BEGIN).await? else { return Ok(None) };
        let begin = value.get(NONCE_BYTES..).and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
        let begin = begin.ok_or_else(|| Unavailable(format!("the object {BEGIN:?} is no position")))?;
        Ok(Some((version, begin)))
    }

    /// Whether the log has an entry at `after`, or is empty if that is 0.
    async fn reaches(&self, after: Position) -> Result<bool, Unavailable> {
        if self.begin().await? > after.max(1) {
            return Ok(false);
        }
        Ok(after == 0 || self.objects.has(&entry(after)).await?)
    }

    async fn append_entry(&self, after: Position, bytes: Bytes) -> Result<(), AppendError> {
        let unknown = |error: Unavailable| AppendError::Unknown(error.0);
        let (position, began) = (after + 1, (Moment::now(), SystemClock.now()));
        if !self.trusts(after) && !self.reaches(after).await.map_err(unknown)? {
            return Err(AppendError::Fenced);
        }
        match self.objects.create(&entry(position), bytes).await {
            Ok(_) => {}
            Err(Failure::Unknown(words)) => return Err(AppendError::Unknown(words)),
            // A conflict of two writers may have none who wrote.
            Err(Failure::Refused) => {
                return match self.objects.has(&entry(position)).await.map_err(unknown)? {
                    true => Err(AppendError::Fenced),
                    false => Err(AppendError::Unknown("the server refused, and has no such entry".to_owned())),
                };
            }
        }
        // In this order: it is the look behind the write that counts.
        if !self.trusts(after) && self.begin().await.map_err(unknown)? > position {
            return Err(AppendError::Unknown("the log was trimmed meanwhile".to_owned()));
        }
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        if position > tail.position {
            *tail = Tail { position, appended: Some(began) };
        }
        Ok(())
    }

    /// The entries at these positions, up to the first that is not there.
    async fn entries(&self, positions: std::ops::Range<Position>) -> Result<Vec<Bytes>, Unavailable> {
        let mut calls = JoinSet::new();
        for position in positions.clone() {
            let objects = self.objects.clone();
            calls.spawn(async move { (position, objects.get(&entry(position)).await) });
        }
        let mut found = calls.join_all().await;
        found.sort_by_key(|(position, _)| *position);
        let mut entries = Vec::new();
        for (_, outcome) in found {
            let Some((_, bytes)) = outcome? else { break };
            entries.push(bytes);
        }
        Ok(entries)
    }

    /// The end between an entry that is there and one that is not.
    async fn search(&self, mut first: Position) -> Result<Position, Unavailable> {
        let mut step = 1;
        let mut missing = loop {
            if !self.objects.has(&entry(first + step)).await? {
                break first + step;
            }
            (first, step) = (first + step, step * 2);
        };
        while missing - first > 1 {
            let middle = first.midpoint(missing);
            match self.objects.has(&entry(middle)).await? {
                true => first = middle,
                false => missing = middle,
            }
        }
        Ok(first)
    }

    /// Says where the log begins, and returns that. `None`: another broker says it at the same time.
    async fn write_begin(&self, begin: Position) -> Result<Option<Position>, Unavailable> {
        let found = self.begin_object().await?;
        // Written also where it stays: its time is the present one of the server.
        let begin = found.as_ref().map_or(begin, |(_, before)| begin.max(*before));
        let value = with_nonce(begin.to_string().as_bytes());
        let written = match found {
            None => self.objects.create(BEGIN, value).await,
            Some((version, _)) => self.objects.update(BEGIN, &version, value).await,
        };
        match written {
            Ok(_) => Ok(Some(begin)),
            Err(Failure::Refused) => Ok(None),
            Err(Failure::Unknown(words)) => Err(Unavailable(words)),
        }
    }

    /// Writes objects of its own to see whether the server compares.
    async fn probe(&self) -> Result<Settings, Unavailable> {
        let mut problems = Vec::new();
        let name = || format!("probe/{}", hex::encode(SystemIds.random()));
        let first = name();
        let (one, two) = (Bytes::from_static(b"one"), Bytes::from_static(b"two"));
        let version = match self.objects.create(&first, one.clone()).await {
            Ok(version) => version,
            Err(Failure::Unknown(words)) => return Err(Unavailable(words)),
            Err(Failure::Refused) => return Err(Unavailable("the server refuses to create an object".to_owned())),
        };
        if self.objects.create(&first, two.clone()).await.is_ok() {
            problems.push(
                "the server of the bucket ignores `If-None-Match: *`: a second writer replaces an entry; use one that has \
                 conditional writes"
                    .to_owned(),
            );
        }
        let (next, late) = (
            self.objects.update(&first, &version, two).await,
            self.objects.update(&first, &version, Bytes::from_static(b"three")).await,
        );
        if next.is_ok() && late.is_ok() {
            problems.push(
                "the server of the bucket ignores `If-Match`: two brokers can hold the lease; use one that has conditional \
                 writes"
                    .to_owned(),
            );
        }
        if problems.is_empty()
            && let Err(failure) = next
        {
            return Err(Unavailable(format!("the server refuses `If-Match` with the present ETag: {failure}")));
        }
        let mut names = vec![first];
        for _ in 0..PROBE_RACES {
            let contended = name();
            let mut racers = JoinSet::new();
            for racer in 0..PROBE_RACERS {
                let (objects, contended) = (self.objects.clone(), contended.clone());
                racers.spawn(async move { objects.create(&contended, vec![b'0'; racer].into()).await.is_ok() });
            }
            let won = racers.join_all().await.into_iter().filter(|won| *won).count();
            names.push(contended);
            if won > 1 && problems.is_empty() {
                problems.push(format!(
                    "the server of the bucket compares and writes in two steps: {won} of {PROBE_RACERS} writers created one \
                     object; use one that does it in one step"
                ));
            }
        }
        let deleted = self.objects.delete(names).await;
        if problems.is_empty() {
            deleted?;
        }
        Ok(Settings { unsafe_ones: problems, warnings: Vec::new() })
    }
}

/// The name of an entry's object.
fn entry(position: Position) -> String {
    format!("log/{position:020}")
}

/// The position of the object with this name.
fn position_of(name: &str) -> Option<Position> {
    name.strip_prefix("log/")?.parse().ok()
}

fn with_nonce(value: &[u8]) -> Bytes {
    let mut bytes = BytesMut::from(&SystemIds.random()[..NONCE_BYTES]);
    bytes.extend_from_slice(value);
    bytes.freeze()
}

#[async_trait]
impl SharedLog for Bucket {
    async fn append(&self, after: Position, entry: Bytes) -> Result<(), AppendError> {
        if entry.len() > ENTRY_BYTES_MAX {
            return Err(AppendError::TooLarge { bytes: entry.len(), bytes_max: ENTRY_BYTES_MAX });
        }
        self.append_entry(after, entry).await
    }

    async fn end(&self) -> Result<Position, Unavailable> {
        for _ in 0..SEARCHES_MAX {
            let (begin, known) = (self.begin().await?, self.tail().position);
            let end = if known > begin && self.objects.has(&entry(known)).await? {
                self.search(known).await?
            } else if self.objects.has(&entry(begin)).await? {
                self.search(begin).await?
            } else if begin == 1 {
                0
            } else {
                continue; // The last entry always stays, so this one was trimmed.
            };
            // What the search missed in front of the beginning was there, and is trimmed.
            if self.begin().await? <= end.max(1) {
                self.seen(end);
                return Ok(end);
            }
        }
        Err(Unavailable("the log is trimmed faster than its end is found".to_owned()))
    }

    async fn read(&self, from: Position, bytes: usize) -> Result<Vec<(Position, Bytes)>, ReadError> {
        let (mut found, mut taken, mut parallel) = (Vec::new(), 0, 1);
        let mut next = from;
        while taken < bytes.max(1) && found.len() < READ_ENTRIES_MAX {
            // As many as fit, if they are as large as those before.
            let fit = found.len().saturating_mul(bytes.saturating_sub(taken)) / taken.max(1);
            let count = parallel.min(READ_ENTRIES_MAX - found.len()).min(fit.max(1)) as u64;
            let entries = self.entries(next..next + count).await?;
            let is_end = (entries.len() as u64) < count;
            for entry in entries {
                if taken < bytes.max(1) {
                    taken += entry.len().max(1);
                    found.push((next, entry));
                    next += 1;
                }
            }
            if is_end {
                break;
            }
            parallel = (parallel * 2).min(READ_PARALLEL_MAX);
        }
        // In this order: an object in front of the beginning is no entry, and was created after `begin` was written.
        let first = self.begin().await?;
        if from < first {
            return Err(ReadError::Trimmed { first });
        }
        if let Some((last, _)) = found.last() {
            self.seen(*last);
        }
        Ok(found)
    }

    async fn trim(&self, before: Position) -> Result<(), Unavailable> {
        let begin = before.min(self.end().await?);
        if begin <= 1 {
            return Ok(());
        }
        let Some(begin) = self.write_begin(begin).await? else { return Ok(()) };
        let now = self.objects.time_of(BEGIN).await?;
        let found = self.objects.list("log/", None, TRIM_MAX).await?;
        let is_old = |object: &Listed| object.age(&now).is_some_and(|age| age >= self.pace.kept);
        let in_front = |object: &Listed| position_of(&object.name).is_some_and(|position| position < begin);
        let old = found.into_iter().filter(|object| in_front(object) && is_old(object));
        self.objects.delete(old.map(|object| object.name).collect()).await
    }

    async fn size_bytes(&self) -> Result<u64, Unavailable> {
        let begin = self.begin().await?;
        let found = self.objects.list("log/", Some(&entry(begin - 1)), usize::MAX).await?;
        Ok(found.iter().map(|object| object.bytes).sum())
    }

    fn entry_bytes_max(&self) -> usize {
        ENTRY_BYTES_MAX
    }

    async fn settings(&self) -> Result<Settings, Unavailable> {
        self.settings.get_or_try_init(|| self.probe()).await.cloned()
    }
}

#[async_trait]
impl Register for Bucket {
    async fn read(&self, name: &str) -> Result<Option<(Version, Bytes)>, Unavailable> {
        let Some((version, value)) = self.objects.get(&value_object(name)?).await? else { return Ok(None) };
        if value.len() < NONCE_BYTES {
            return Err(Unavailable(format!("the object of the value {name:?} was not written by a broker")));
        }
        Ok(Some((Version(version), value.slice(NONCE_BYTES..))))
    }

    async fn write(&self, name: &str, expected: Option<&Version>, value: Bytes) -> Result<Version, WriteError> {
        let object = value_object(name).map_err(|error| WriteError::Unknown(error.0))?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(WriteError::Unknown(format!("a value has at most {VALUE_BYTES_MAX} bytes")));
        }
        let value = with_nonce(&value);
        let written = match expected {
            None => self.objects.create(&object, value).await,
            Some(version) => self.objects.update(&object, &version.0, value).await,
        };
        match written {
            Ok(version) => Ok(Version(version)),
            Err(Failure::Refused) => Err(WriteError::Changed),
            Err(Failure::Unknown(words)) => Err(WriteError::Unknown(words)),
        }
    }

    async fn names(&self, prefix: &str) -> Result<Vec<String>, Unavailable> {
        let found = self.objects.list("register/", None, usize::MAX).await?;
        let names = found.iter().filter_map(|object| object.name.strip_prefix("register/"));
        let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).map(str::to_owned).collect();
        names.sort();
        Ok(names)
    }
}

fn value_object(name: &str) -> Result<String, Unavailable> {
    match is_name(name) {
        true => Ok(format!("register/{name}")),
        false => Err(Unavailable(format!("{name:?} is no name of a value"))),
    }
}
