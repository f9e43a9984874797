//! Damaged and lost stores: a broker does not start with one, and does not go on with one.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use baton::proto::v1::{self, MessageType};
use baton_client::About;

use crate::broker::{Broker, baton, composer, eventually, exit_of};

/// Sends letters of 30 kB to `b` until a table file has some of them, and kills the broker.
async fn with_mail_in_tables() -> Arc<tempfile::TempDir> {
    let broker = Broker::start();
    let (client, _a) = (broker.client().await, broker.agent("a").await);
    drop(broker.agent("b").await);
    let is_flushed = async || {
        let text: String = (0..30_000_u32).map(|at| char::from(b'a' + (at * at % 23) as u8)).collect();
        let info = v1::Info { text, ..Default::default() };
        let envelope = composer("a").encode("b", MessageType::Info, &About::default(), &info);
        client.answer(client.messages().send(v1::SendRequest { envelope, ..Default::default() }).await).unwrap();
        // A file is there before the list names it.
        let list = std::fs::read_to_string(broker.data().join("store/tables/MANIFEST.copy"));
        list.is_ok_and(|list| list.contains("envelopes"))
    };
    eventually("letters are in a table file", is_flushed).await;
    broker.kill()
}

/// The largest file of a table.
fn largest_table(data: &Path, table: &str) -> Option<PathBuf> {
    let files = std::fs::read_dir(data.join("store/tables")).ok()?.map(|entry| entry.unwrap().path());
    let of_table = files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(table));
    of_table.max_by_key(|path| std::fs::metadata(path).map_or(0, |found| found.len()))
}

fn lose_a_bit(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Starts a broker that must not start. Returns its exit code and stderr.
fn refused(data: &Path) -> (Option<i32>, String) {
    exit_of(baton().args(["dev", "--port", "0", "--data"]).arg(data))
}

#[tokio::test]
async fn a_broker_does_not_start_with_one_bit_lost_in_a_table_file() {
    let folder = with_mail_in_tables().await;
    let data = folder.path().join("data");
    let path = largest_table(&data, "envelopes.").unwrap();
    lose_a_bit(&path, 100);
    let (code, said) = refused(&data);
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains(path.to_str().unwrap()) && said.contains("baton store check"), "{said}");
    let (code, checked) = exit_of(baton().args(["store", "check", "--data"]).arg(&data));
    assert_eq!(code, Some(6), "{checked}");
    lose_a_bit(&path, 100);
    drop(Broker::start_in(folder, &[]));
}

#[tokio::test]
async fn a_running_broker_that_reads_a_damaged_table_file_stops_and_says_so() {
    let folder = with_mail_in_tables().await;
    let path = largest_table(&folder.path().join("data"), "envelopes.").unwrap();
    let broker = Broker::start_in(folder.clone(), &[]);
    // Most of the file: what the broker has read at its start is in memory.
    let length = std::fs::metadata(&path).unwrap().len();
    (0..length * 9 / 10).step_by(2000).for_each(|at| lose_a_bit(&path, at));
    let b = broker.agent_session("b").await;
    // The letters are read now, and cannot be.
    let reading = tokio::spawn(async move { while b.take().await.is_ok() {} });
    let stopped = tokio::task::spawn_blocking(move || broker.wait());
    let stopped = tokio::time::timeout(crate::broker::PATIENCE, stopped).await.expect("the broker stops").unwrap();
    assert_eq!(stopped.code(), Some(6));
    reading.abort();
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(log.contains(path.to_str().unwrap()), "{log}");
}

#[tokio::test]
async fn a_data_folder_that_has_lost_its_store_is_refused_until_an_empty_one_is_made() {
    let broker = Broker::start();
    drop(broker.agent("a").await);
    let (data, folder) = (broker.data(), broker.kill());
    std::fs::remove_dir_all(data.join("store")).unwrap();
    let (code, said) = refused(&data);
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("baton store create"), "{said}");
    assert!(!data.join("store").exists());
    let create = || exit_of(baton().args(["store", "create", "--data"]).arg(&data));
    assert_eq!(create().0, Some(0));
    let broker = Broker::start_in(folder, &[]);
    let (code, said) = create();
    assert!(code == Some(1) && said.contains("has a store"), "{said}");
    let agents = broker.lines(&["agent", "list"]);
    assert!(agents.iter().all(|agent| agent["card"]["agentId"] != "a"), "{agents:?}");
}
