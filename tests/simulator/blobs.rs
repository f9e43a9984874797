//! Law 11, of blobs: a blob that is held is there, whole. The checker counts holds and quotas by itself, and reads the files.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use baton_broker_core::{
    BlobLimits,
    blobs::{BlobDigest, BlobFiles, BlobPlace, Removed},
    envelope::signing,
    ids::{AgentId, TaskId, WorkspaceId},
    records::{BlobRecord, BlobUsage, HoldKeys, UploadRecord},
    store::{Change, Record, Store, Table},
    time::Timestamp,
};

use crate::contexts::Contexts;

/// How much later than allowed a removal may happen: retention retries a deferred removal after a minute.
const LATE_BY_MAX: Duration = Duration::from_secs(120);

/// The blobs as stored.
#[derive(Debug, Default)]
pub(crate) struct Blobs {
    files: Option<Arc<BlobFiles>>,
    limits: BlobLimits,
    blobs: BTreeMap<BlobDigest, BlobRecord>,
    uploads: BTreeMap<(AgentId, BlobDigest), UploadRecord>,
    usage: BTreeMap<Vec<u8>, BlobUsage>,
    /// The holds as the lists of workspaces and of blobs tell them.
    held: BTreeSet<(String, BlobDigest)>,
    holders: BTreeSet<(String, BlobDigest)>,
}

/// The kinds of records in the table of blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Blob,
    Hold,
    Holder,
    Upload,
    Usage,
    UploadName,
}

impl Kind {
    fn of(key: &[u8]) -> Self {
        let (agent, workspace) = (AgentId::parse("a").unwrap(), WorkspaceId::parse("task:a").unwrap());
        let samples = [
            (BlobRecord::key(&[0; 32]), Self::Blob),
            (HoldKeys::of(&workspace, &[0; 32]), Self::Hold),
            (HoldKeys::holder(&[0; 32], &workspace), Self::Holder),
            (UploadRecord::key(&agent, &[0; 32]), Self::Upload),
            (BlobUsage::key(&agent), Self::Usage),
            (UploadRecord::name_key(&[0; 32]), Self::UploadName),
        ];
        let found = samples.into_iter().find(|(sample, _)| sample.key[0] == key[0]);
        found.expect("a record of a known kind").1
    }
}

impl Blobs {
    pub(crate) fn new(files: Arc<BlobFiles>, limits: BlobLimits) -> Self {
        Self { files: Some(files), limits, ..Self::default() }
    }

    /// Checks a durable change.
    pub(crate) fn see_change(
        &mut self,
        change: &Change,
        befores: &[Option<Record>],
        now: Timestamp,
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        let (mut is_of_blobs, mut new, mut gone) = (false, Vec::new(), Vec::new());
        for (write, before) in change.writes.iter().zip(befores).filter(|(write, _)| write.key.table == Table::Blobs) {
            is_of_blobs = true;
            let (key, after) = (&write.key.key, write.record.as_ref().map(|record| &record.value));
            let before = before.as_ref().map(|record| &record.value);
            match Kind::of(key) {
                Kind::Blob => match after {
                    Some(value) => {
                        let blob = BlobRecord::decode(value).unwrap();
                        new.extend(before.is_none().then_some(blob.digest));
                        self.blobs.insert(blob.digest, blob);
                    }
                    None => {
                        let blob = BlobRecord::decode(before.unwrap()).unwrap();
                        self.blobs.remove(&blob.digest);
                        gone.push(blob);
                    }
                },
                Kind::Upload => match after {
                    Some(value) => {
                        let upload = UploadRecord::decode(value).unwrap();
                        self.uploads.insert((upload.agent.clone(), upload.digest), upload);
                    }
                    None => {
                        let upload = UploadRecord::decode(before.unwrap()).unwrap();
                        self.uploads.remove(&(upload.agent, upload.digest));
                    }
                },
                Kind::Usage => {
                    self.usage.insert(key[..].to_vec(), BlobUsage::decode(after.unwrap()).unwrap());
                }
                Kind::Hold => {
                    let name = std::str::from_utf8(&key[1..key.len() - 33]).unwrap().to_owned();
                    mark(&mut self.held, (name, HoldKeys::digest(key).unwrap()), after.is_some());
                }
                Kind::Holder => {
                    let (name, digest) =
                        (HoldKeys::workspace(key).unwrap().to_string(), key[1..33].try_into().unwrap());
                    mark(&mut self.holders, (name, digest), after.is_some());
                }
                Kind::UploadName => {}
            }
        }
        if !is_of_blobs {
            return;
        }
        self.check_holds();
        self.check_usage();
        for blob in new {
            self.check_file(&blob);
            *counts.entry("blobs stored").or_default() += 1;
        }
        for blob in gone {
            assert_eq!(blob.holds, 0, "law 11: a blob was removed that is held");
            let is_over = blob.unheld_since.plus(self.limits.unheld_lifetime) <= now;
            assert!(is_over, "law 11: a blob was removed before its time");
            *counts.entry("blobs removed").or_default() += 1;
        }
    }

    fn check_holds(&self) {
        assert_eq!(self.held, self.holders, "law 11: the holds of workspaces and the holders of blobs");
        for (workspace, blob) in &self.held {
            assert!(self.blobs.contains_key(blob), "law 11: {workspace} holds a blob without a record");
        }
        for (digest, blob) in &self.blobs {
            let holds = self.held.iter().filter(|(_, held)| held == digest).count() as u64;
            assert_eq!(blob.holds, holds, "law 11: the number of holds of a blob");
        }
    }

    fn check_usage(&self) {
        let mut wanted: BTreeMap<Vec<u8>, BlobUsage> =
            self.usage.keys().map(|key| (key.clone(), BlobUsage::default())).collect();
        for blob in self.blobs.values() {
            wanted.entry(BlobUsage::key(&blob.writer).key[..].to_vec()).or_default().bytes += blob.size;
        }
        for upload in self.uploads.values() {
            let usage = wanted.entry(BlobUsage::key(&upload.agent).key[..].to_vec()).or_default();
            (usage.bytes, usage.uploads) = (usage.bytes + upload.size, usage.uploads + 1);
        }
        assert_eq!(self.usage, wanted, "law 11: what the agents use of their quotas");
        let (bytes_max, uploads_max) = (self.limits.agent_bytes_max, self.limits.agent_uploads_max);
        let is_over = |usage: &&BlobUsage| usage.bytes > bytes_max || usage.uploads > uploads_max;
        assert_eq!(self.usage.values().find(is_over), None, "an agent is over its quota");
    }

    fn files(&self) -> &Arc<BlobFiles> {
        self.files.as_ref().expect("the laws of a story know its files")
    }

    fn check_file(&self, digest: &BlobDigest) {
        let size = self.blobs[digest].size;
        let read = || self.files().read(&BlobPlace::alone(*digest), 0, size, size)?.next(size);
        let bytes = read().unwrap_or_else(|error| panic!("law 11: a blob has a record, and no whole file: {error}"));
        assert_eq!((bytes.len() as u64, signing::sha256(&[&bytes])), (size, *digest), "law 11: a blob is whole");
    }

    /// Reads the files of all blobs.
    pub(crate) fn check_files(&self) {
        self.blobs.keys().for_each(|digest| self.check_file(digest));
    }

    pub(crate) fn is_held(&self, workspace: &str, digest: &BlobDigest) -> bool {
        self.held.contains(&(workspace.to_owned(), *digest))
    }

    /// The holds: the workspaces with their blobs.
    pub(crate) fn holds(&self) -> Vec<(String, BlobDigest)> {
        self.held.iter().cloned().collect()
    }

    /// Checks whether an agent may see a blob.
    pub(crate) fn see_answer(&self, reader: &AgentId, digest: &BlobDigest, sees: bool, contexts: &Contexts) {
        let mut holders = self.held.iter().filter(|(_, held)| held == digest);
        let may_read = holders.any(|(workspace, _)| {
            let task = TaskId::parse(workspace.strip_prefix("task:").unwrap()).unwrap();
            contexts.participants(&task).is_some_and(|participants| participants.contains(reader))
        });
        assert_eq!(sees, may_read, "law 11: whether {reader} sees a blob");
    }

    /// Checks the store and the files long after the last fault: what nothing holds is gone.
    pub(crate) fn see_rest(&self, store: &dyn Store, now: Timestamp) {
        self.check_files();
        let is_late = |since: Timestamp| since.plus(self.limits.unheld_lifetime + LATE_BY_MAX) < now;
        let left = self.blobs.values().find(|blob| blob.holds == 0 && is_late(blob.unheld_since));
        assert_eq!(left, None, "a blob is kept for ever that nothing holds");
        let left = self.uploads.values().find(|upload| is_late(upload.touched_at));
        assert_eq!(left, None, "an upload is kept for ever");
        let left = self.files().sweep(|file| Ok(is_named(store, file))).unwrap();
        assert_eq!(left, 0, "the file of a removed blob or upload is left");
    }
}

/// Whether a record names the file of a blob or of an upload.
pub(crate) fn is_named(store: &dyn Store, file: Removed) -> bool {
    let key = match file {
        Removed::Blob(place) => BlobRecord::key(&place.digest),
        Removed::Upload(name) => UploadRecord::name_key(&name),
    };
    store.get(&key).expect("memory can be read").is_some()
}

fn mark(set: &mut BTreeSet<(String, BlobDigest)>, hold: (String, BlobDigest), is_there: bool) {
    match is_there {
        true => drop(set.insert(hold)),
        false => drop(set.remove(&hold)),
    }
}
