//! `baton backup`: copies of data folders that brokers use.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use baton::proto::v1;
use sha2::{Digest as _, Sha256};

use crate::broker::{Broker, a_request, baton, eventually, exit_of, identity, new_task};

fn backup(data: &Path, out: &Path) -> Command {
    let mut command = baton();
    command.args(["backup", "--data"]).arg(data).arg("--out").arg(out);
    command
}

fn check(data: &Path) -> (Option<i32>, String) {
    exit_of(baton().args(["store", "check", "--data"]).arg(data))
}

fn partial(out: &Path) -> PathBuf {
    out.with_extension("partial")
}

/// Fails unless the folder counts as a backup that was cut off.
fn is_refused(partial: &Path) {
    for (code, said) in [check(partial), exit_of(baton().args(["dev", "--port", "0", "--data"]).arg(partial))] {
        assert!(code == Some(6) && said.contains("it is a backup that was cut off"), "{code:?} {said}");
    }
}

async fn has_all(broker: &Broker, receipts: &[v1::Receipt]) {
    let operator = broker.operator().await;
    for receipt in receipts {
        let request = v1::GetHandoffRequest { handoff_id: receipt.handoff_id.clone(), ..Default::default() };
        let found = operator.answer(operator.handoffs().get_handoff(request).await).unwrap().handoff.unwrap();
        assert_eq!(found.task_id, receipt.task_id);
    }
}

#[tokio::test]
async fn a_backup_under_load_has_everything_that_was_answered_before_it() {
    let broker = Broker::start();
    let a = Arc::new(broker.agent("a").await);
    broker.agent("b").await;
    let (key, content) = (broker.folder.path().join("a.pem"), broker.folder.path().join("content"));
    identity("a").key.write(&key).unwrap();
    fs::write(&content, "b".repeat(300_000)).unwrap();
    let task = new_task();
    a.request("b", &task, 1, &a_request()).await.unwrap();
    let as_a = ["--id", "a", "--key", key.to_str().unwrap()];
    let put = ["blob", "put", content.to_str().unwrap(), "--for", &format!("task:{task}")];
    broker.lines(&[&put[..], &as_a].concat());
    let digest = hex::encode(Sha256::digest(fs::read(&content).unwrap()));

    let (receipts, is_over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let mut load = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (a, receipts, is_over) = (a.clone(), receipts.clone(), is_over.clone());
        load.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                // The last requests fail: the broker is killed.
                if let Ok(receipt) = a.request("b", &new_task(), 1, &a_request()).await {
                    receipts.lock().unwrap().push(receipt);
                }
                tokio::task::yield_now().await;
            }
        });
    }
    let (data, mut broker, mut killed, mut copies) = (broker.data(), Some(broker), None, Vec::new());
    for round in 1..=3 {
        eventually("the load goes on", async || receipts.lock().unwrap().len() >= round * 40).await;
        let before = receipts.lock().unwrap().clone();
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let mut command = backup(&data, &folder.path().join("data"));
        let ended = tokio::task::spawn_blocking(move || exit_of(&mut command));
        // The last one goes on without its broker.
        if round == 3 {
            is_over.store(true, Ordering::Relaxed);
            killed = broker.take().map(Broker::kill);
        }
        let (code, said) = ended.await.unwrap();
        assert_eq!(code, Some(0), "{said}");
        copies.push((folder, before));
    }
    load.abort_all();
    for (folder, before) in copies {
        let data = folder.path().join("data");
        assert_eq!(check(&data).0, Some(0), "{:?}", check(&data));
        assert_eq!(fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(data.join("operator.token").exists() && !data.join("address").exists());
        assert!(!partial(&data).exists());
        let restored = Broker::start_in(folder, &[]);
        has_all(&restored, &before).await;
        let got = restored.folder.path().join("got");
        let get = ["blob", "get", &digest, "--out", got.to_str().unwrap()];
        restored.lines(&[&get[..], &as_a].concat());
        assert!(fs::read(&got).unwrap() == fs::read(&content).unwrap());
    }
    drop(killed);
}

#[tokio::test]
async fn a_backup_that_is_cut_off_is_recognised_and_made_again() {
    let broker = Broker::start();
    let a = broker.agent("a").await;
    broker.agent("b").await;
    let receipt = a.request("b", &new_task(), 1, &a_request()).await.unwrap();
    // The limit of a file's size ends the process in this file: among the first, and after the store.
    for name in ["blobs/large", "zz-large"] {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let out = folder.path().join("data");
        let large = broker.data().join(name);
        fs::write(&large, vec![7; 2_000_000]).unwrap();
        let mut limited = Command::new("bash");
        limited
            .args(["-c", "ulimit -c 0; ulimit -f 1000; exec \"$@\"", "-"])
            .arg(backup(&broker.data(), &out).get_program());
        limited.args(backup(&broker.data(), &out).get_args());
        let ended = limited.output().unwrap();
        assert!(!ended.status.success(), "{ended:?}");
        assert!(!out.exists(), "it has no name yet");
        is_refused(&partial(&out));
        fs::remove_file(&large).unwrap();
        let (code, said) = exit_of(&mut backup(&broker.data(), &out));
        assert_eq!(code, Some(0), "{said}");
        assert!(!partial(&out).exists() && !out.join(name).exists());
        has_all(&Broker::start_in(folder, &[]), std::slice::from_ref(&receipt)).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("data");
    let mut killed = backup(&broker.data(), &out).spawn().unwrap();
    while !partial(&out).join("store/UNFINISHED").exists() && !out.exists() {
        std::thread::yield_now();
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    if !out.exists() {
        is_refused(&partial(&out));
        assert_eq!(exit_of(&mut backup(&broker.data(), &out)).0, Some(0));
    }
    assert_eq!(check(&out).0, Some(0));
}

#[test]
fn a_backup_overwrites_nothing() {
    let broker = Broker::start();
    let folder = tempfile::tempdir().unwrap();
    let refused = |out: &Path, data: &Path, code: i32, words: &str| {
        let (ended, said) = exit_of(&mut backup(data, out));
        assert!(ended == Some(code) && said.contains(words), "{ended:?} {said}");
    };
    let (full, foreign, empty) =
        (folder.path().join("full"), folder.path().join("foreign"), folder.path().join("empty"));
    fs::create_dir_all(&full).unwrap();
    fs::write(full.join("photo"), "").unwrap();
    refused(&full, &broker.data(), 1, "is not empty; nothing was changed");
    fs::create_dir_all(partial(&foreign)).unwrap();
    fs::write(partial(&foreign).join("photo"), "").unwrap();
    refused(&foreign, &broker.data(), 1, "no backup that was cut off");
    assert!(full.join("photo").exists() && partial(&foreign).join("photo").exists() && !foreign.exists());
    refused(&broker.data().join("backup"), &broker.data(), 2, "inside one another");
    refused(&folder.path().join("none"), &folder.path().join("no-data"), 3, "FORMAT");
    fs::create_dir(&empty).unwrap();
    assert_eq!(exit_of(&mut backup(&broker.data(), &empty)).0, Some(0));
    assert_eq!(check(&empty).0, Some(0));
    refused(&empty, &broker.data(), 1, "is not empty");
}
