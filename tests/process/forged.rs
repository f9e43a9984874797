//! Payloads that imitate the broker's files: recovery reads none of them as its own data, whenever the broker is
//! killed.

use std::{collections::BTreeSet, fs, path::Path};

use baton::{
    proto::v1::{self, MessageType, context_section::Content},
    store::groups_committed,
};
use baton_client::context_of_sections;
use prost::Message as _;
use serde_json::Value;

use crate::broker::{Broker, a_request, baton, exit_of, new_task};

const FORGED: &str = "forged-task";

/// A group of log format 1, whose checksum needs no secret. It writes a task, or nothing.
fn group_of_format_1(number: u64, is_empty: bool) -> Vec<u8> {
    const TASKS: u8 = 2;
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap().to_be_bytes();
    let write = [
        &[TASKS][..],
        &length(FORGED.as_bytes())[..],
        FORGED.as_bytes(),
        &1_u64.to_be_bytes(),
        &length(b"forged"),
        b"forged",
    ];
    let content = if is_empty { Vec::new() } else { write.concat() };
    let checked = [&length(&content)[..], &number.to_be_bytes(), &content].concat();
    let mut group = [&crc32c::crc32c(&checked).to_be_bytes()[..], &checked].concat();
    group.resize(group.len().next_multiple_of(8), 0);
    group
}

/// The contents of all files in a folder at this moment.
fn files(folder: &Path) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => all.extend(fs::read(path)), // the broker may have removed the file
        }
    }
    all
}

/// Payloads close to the broker's own files: invented images, and copies, although an agent cannot read those files.
fn payloads(store: &Path) -> Vec<Vec<u8>> {
    const COPY_BYTES_MAX: usize = 300_000;
    let next = groups_committed(store).unwrap() + 1;
    let images =
        |is_empty| (next..next + 288).flat_map(|number| group_of_format_1(number, is_empty)).collect::<Vec<u8>>();
    let mut copies: Vec<Vec<u8>> = files(&store.join("wal"));
    copies.extend(files(&store.join("tables")).into_iter().filter(|file| file.len() > 1000).take(4));
    copies.iter_mut().for_each(|copy| copy.truncate(COPY_BYTES_MAX));
    // Padding shifts an image to each offset at which the file format could place it.
    let shifted = |payload: &Vec<u8>, shift: usize| [vec![0; shift], payload.clone()].concat();
    let all = [vec![images(true), images(false)], copies].concat();
    all.iter().flat_map(|payload| [0, 3, 8, 52].map(|shift| shifted(payload, shift))).collect()
}

fn exported_tasks(data: &Path) -> BTreeSet<String> {
    let output = baton().args(["store", "export", "--data"]).arg(data).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let tasks = records.filter(|record| record["table"] == "tasks");
    tasks.map(|record| String::from_utf8(hex::decode(record["key"].as_str().unwrap()).unwrap()).unwrap()).collect()
}

#[tokio::test]
async fn payloads_that_look_like_the_brokers_files_are_never_read_as_those() {
    let mut folder = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let mut tasks = BTreeSet::new();
    for round in 0..3 {
        let broker = Broker::start_in(folder, &[]);
        let (a, b) = (broker.agent("a").await, broker.agent("b").await);
        let store = broker.data().join("store");
        for payload in payloads(&store) {
            let task = new_task();
            a.request("b", &task, 1, &a_request()).await.unwrap();
            b.accept(&b.take().await.unwrap()).await.unwrap();
            let bytes = v1::ContextBytes { media_type: "text/plain".to_owned(), data: payload.clone().into() };
            let section = v1::ContextSection {
                name: "history_log".to_owned(),
                content: Some(Content::Bytes(bytes)),
                ..Default::default()
            };
            let accept = a.take().await.unwrap();
            a.send_context(&accept, &context_of_sections(vec![section])).await.unwrap();
            let context = b.take().await.unwrap();
            assert_eq!(context.kind(), MessageType::TaskContextTransfer);
            let value = context.envelope.payload.clone().unwrap().value;
            let found = v1::TaskContextTransfer::decode(&*value).unwrap().sections.remove(0).content;
            assert!(matches!(found, Some(Content::Bytes(bytes)) if bytes.data == payload), "it is unchanged");
            b.complete(&context).await.unwrap();
            assert_eq!(a.take().await.unwrap().kind(), MessageType::HandoffComplete);
            tasks.insert(task);
        }
        folder = broker.kill();
        let data = folder.path().join("data");
        let (code, said) = exit_of(baton().args(["store", "check", "--data"]).arg(&data));
        assert_eq!((code, said.as_str()), (Some(0), ""), "round {round}");
        assert_eq!(exported_tasks(&data), tasks, "round {round}");
    }
    let broker = Broker::start_in(folder, &[]);
    let client = broker.operator().await;
    let refused = client.tasks().get_task(v1::GetTaskRequest { task_id: FORGED.to_owned() }).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound);
}
