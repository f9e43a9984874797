//! Replays the fuzzer's corpora, so that fixed faults stay fixed. `docs/fuzzing.md` describes how they are made.

use std::{
    collections::BTreeSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use baton::{
    envelope::{keys::PrivateKey, sign},
    fuzzing::TARGETS,
    ids::{KeyId, TaskId},
    proto::v1,
    records::{LogItem, MessageRecord, TaskRecord},
    store::{Found, Table, read_all},
};
use prost::Message as _;

/// The most files and bytes of one corpus, because every test run reads all of it.
const FILES_MAX: usize = 200;
const BYTES_MAX: u64 = 300 * 1024;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_input_of_the_corpora_keeps_the_properties() {
    let mut broken = Vec::new();
    for (name, target) in TARGETS {
        for file in files(&corpus(name)) {
            let bytes = fs::read(&file).unwrap();
            if catch_unwind(AssertUnwindSafe(|| target(&bytes))).is_err() {
                broken.push(file);
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_target_has_a_corpus_of_a_bounded_size() {
    for (name, _) in TARGETS {
        let files = files(&corpus(name));
        assert!(!files.is_empty(), "fuzz/corpus/{name} has nothing in it");
        assert!(files.len() <= FILES_MAX, "fuzz/corpus/{name} has {} files: merge them", files.len());
        let bytes: u64 = files.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
        assert!(bytes <= BYTES_MAX, "fuzz/corpus/{name} has {bytes} bytes");
    }
    let known: BTreeSet<_> = TARGETS.iter().map(|(name, _)| corpus(name)).collect();
    let there: BTreeSet<_> = files(&corpus("")).into_iter().collect();
    assert_eq!(there, known, "each corpus is of a target");
}

/// Makes seeds from the store of a broker that has run. BATON_SEED_STORE is the path of its `store` folder.
#[test]
#[ignore = "writes into fuzz/corpus; only when new seeds are wanted"]
fn seeds_are_written() {
    let store = PathBuf::from(std::env::var("BATON_SEED_STORE").expect("BATON_SEED_STORE is a store"));
    let write = |target: &str, name: &str, parts: &[&[u8]]| {
        fs::create_dir_all(corpus(target)).unwrap();
        fs::write(corpus(target).join(format!("seed-{name}")), parts.concat()).unwrap();
    };
    let mut log: Vec<(TaskId, v1::CustodyLogEntry)> = Vec::new();
    let mut count = 0;
    read_all(&store, |found| {
        let Found::Record { table, key: place, record } = found else { return };
        count += 1;
        let kind = u8::try_from(Table::ALL.iter().position(|known| *known == table).unwrap()).unwrap();
        let length = u8::try_from(place.len()).unwrap();
        write("records", &count.to_string(), &[&[kind, length], &place, &record.value]);
        match table {
            Table::Envelopes => write_envelope(write, &count.to_string(), &record.value),
            Table::Messages => {
                let message = MessageRecord::decode(&record.value).unwrap();
                let receipt = message.receipt().unwrap();
                write("signing", &count.to_string(), &[&[1], &receipt.encode_to_vec()]);
                if let Some(logged) = message.logged() {
                    let envelope = logged.envelope.clone().unwrap_or_default();
                    write_envelope(write, &count.to_string(), &envelope);
                    let entry_bytes = logged.entry.bytes.clone();
                    let shown = v1::CustodyLogEntry { entry_bytes, envelope, ..Default::default() };
                    log.push((logged.task.clone(), shown));
                }
            }
            Table::Agents => {
                let card = Some(baton::records::AgentRecord::decode(&record.value).unwrap().card);
                let request = v1::RegisterAgentRequest { card, ..Default::default() };
                write("frame", &count.to_string(), &[&[1], &request.encode_to_vec()]);
            }
            Table::Tasks => {
                let task = TaskRecord::decode(&record.value).unwrap();
                for item in task.log_tail {
                    if let LogItem::Entry(entry) = item {
                        let shown = v1::CustodyLogEntry { entry_bytes: entry.bytes, ..Default::default() };
                        log.push((task.task.id.clone(), shown));
                    }
                }
            }
            _ => {}
        }
    })
    .unwrap();
    assert!(count > 0, "the store is empty");
    // One custody log per task, in the form in which a caller presents it.
    log.sort_by_key(|(task, shown)| {
        let entry = v1::CustodyEntry::decode(shown.entry_bytes.clone()).unwrap();
        (task.clone(), entry.number)
    });
    let mut logs = std::collections::BTreeMap::<Vec<u8>, Vec<u8>>::new();
    for (task, shown) in log {
        let task = task.as_str().as_bytes().to_vec();
        logs.entry(task).or_default().extend(shown.encode_length_delimited_to_vec());
    }
    for (task, log) in logs {
        write(
            "audit",
            &hex::encode(&task[task.len().saturating_sub(8)..]),
            &[&[u8::try_from(task.len()).unwrap()], &task, &log],
        );
    }
}

/// Writes seeds from an envelope.
fn write_envelope(write: impl Fn(&str, &str, &[&[u8]]), name: &str, encoded: &[u8]) {
    let key = PrivateKey::from_seed(&std::array::from_fn(|place| u8::try_from(place).unwrap()));
    let mut envelope = v1::Envelope::decode(encoded).unwrap();
    write("signing", name, &[&[0], encoded]);
    sign(&mut envelope, &KeyId::parse("k1").unwrap(), &key);
    let signed = envelope.encode_to_vec();
    write("envelope", name, &[&signed]);
    let request = Some(v1::connect_request::Request::Envelope(signed.into()));
    let frame = v1::ConnectRequest { request_id: 1, request };
    write("frame", name, &[&[0], &frame.encode_to_vec()]);
}
