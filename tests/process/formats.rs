//! The data folders in `tests/formats`, one for each format of the store that was released: this version opens or converts each, and
//! finds what is in it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use baton::proto::v1::{self, MessageType};
use baton_client::{About, context_of};
use baton_store::FORMAT;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{
    broker::{Broker, a_request, baton, eventually, exit_of, new_task},
    plans::{Submitter, example},
};

/// What to do when a test here fails.
const ADVICE: &str = "\nA store that this version writes must be read by the next one. If the meaning of bytes in the store has changed: \
raise FORMAT in crates/store/src/layout.rs, add the step from the former number to CONVERSIONS in crates/store/src/convert.rs, and make \
the folder of the new number by `cargo test --test process formats::make -- --ignored`. docs/storage.md says more. If only a name \
in proto/baton/storage has changed, facts.json is to have the records that are shown above";

/// What a folder has, in its file `facts.json`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Facts {
    /// A task whose handoff from a to b is completed.
    completed: String,
    /// A task whose handoff from a to b was open.
    open: String,
    /// A dead letter of b.
    dead_letter: String,
    /// For each table the number of records, and the SHA-256 of what `baton store export` shows of them.
    records: BTreeMap<String, (u64, String)>,
}

fn formats() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats")
}

/// The numbers of the folders.
fn numbers() -> Vec<u32> {
    let names = fs::read_dir(formats()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut numbers: Vec<u32> = names.filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

fn facts(folder: &Path) -> Facts {
    serde_json::from_str(&fs::read_to_string(folder.join("facts.json")).unwrap()).unwrap()
}

fn copy(from: &Path, to: &Path) {
    if !from.is_dir() {
        fs::copy(from, to).unwrap();
        return;
    }
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        copy(&path, &to.join(path.file_name().unwrap()));
    }
}

/// Each table's records, as `baton store export` shows them.
fn records(data: &Path) -> BTreeMap<String, (u64, String)> {
    let output = baton().args(["store", "export", "--data"]).arg(data).output().unwrap();
    assert!(output.status.success(), "{}{ADVICE}", String::from_utf8_lossy(&output.stderr));
    let mut tables = BTreeMap::<String, (u64, Sha256)>::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let mut shown: Value = serde_json::from_str(line).unwrap();
        // The other fields show what the bytes mean.
        if !shown["value"].is_null() {
            shown.as_object_mut().unwrap().remove("bytes");
        }
        shown.sort_all_objects();
        let (count, digest) = tables.entry(shown["table"].as_str().unwrap().to_owned()).or_default();
        *count += 1;
        digest.update(format!("{shown}\n"));
    }
    tables.into_iter().map(|(table, (count, digest))| (table, (count, hex::encode(digest.finalize())))).collect()
}

#[test]
fn the_folder_of_the_present_format_is_there_and_reads_as_it_was_written() {
    assert_eq!(numbers().last(), Some(&FORMAT), "the newest folder of tests/formats{ADVICE}");
    let folder = formats().join(FORMAT.to_string());
    let data = tempfile::tempdir().unwrap();
    copy(&folder, data.path());
    let (found, written) = (records(data.path()), facts(&folder).records);
    assert!(found == written, "{}{ADVICE}", serde_json::to_string_pretty(&found).unwrap());
    // Otherwise the folder would show little of the format.
    for table in ["tasks", "handoffs", "messages", "mailbox", "dead_letters", "plans", "plan_log", "timers", "audit"] {
        assert!(found.contains_key(table), "there is a record in {table}");
    }
    assert!(fs::read_dir(folder.join("store/tables")).unwrap().count() > 2, "there are table files");
}

#[tokio::test]
async fn a_broker_starts_on_a_folder_of_each_format_and_goes_on() {
    for number in numbers() {
        let folder = formats().join(number.to_string());
        let facts = facts(&folder);
        // What has ended stays, however old the folder is.
        let data = Broker::serve("", "[retention]\nended_tasks = \"0s\"\nidle_tasks = \"0s\"\n").kill();
        for part in ["store", "keys"] {
            let target = data.path().join("data").join(part);
            fs::remove_dir_all(&target).unwrap();
            copy(&folder.join(part), &target);
        }
        let broker = Broker::serve_again(data);
        let shown = broker.lines(&["task", "show", &facts.completed]).remove(0);
        assert_eq!((&shown["ownerId"], &shown["epoch"]), (&"b".into(), &"2".into()), "format {number}{ADVICE}");
        let audited = broker.lines(&["task", "audit", &facts.completed]).remove(0);
        assert_eq!(audited["refusals"], 0, "{audited}");
        assert_eq!(broker.lines(&["task", "show", &facts.open])[0]["ownerId"], "a");
        assert_eq!(broker.lines(&["dlq", "show", &facts.dead_letter])[0]["agentId"], "b");
        let plan = broker.lines(&["plan", "show", "report"]).remove(0);
        assert_eq!(plan["subtasks"].as_array().unwrap().len(), 4, "{plan}");
        let client = broker.operator().await;
        let request = v1::GetAgentRequest { agent_id: "b".into() };
        let agent = client.answer(client.agents().get_agent(request).await).unwrap().agent.unwrap();
        let waiting = agent.mailbox.unwrap().letter_count.unwrap();
        let dead = broker.lines(&["dlq", "list", "--agent", "b", "--state", "all"]).len();
        assert!(waiting + dead as u64 >= 3, "the mail waits, or has expired: {waiting} and {dead}");
        // The agents have their keys, and a handoff goes on from the same sequence.
        let (a, b) = (broker.agent_session("a").await, broker.agent_session("b").await);
        let task = new_task();
        a.request("b", &task, 1, &a_request()).await.unwrap();
        let offer = loop {
            let delivered = b.take().await.unwrap();
            if delivered.kind() == MessageType::HandoffRequest && delivered.envelope.task_id == task {
                break delivered;
            }
        };
        b.accept(&offer).await.unwrap();
        drop((a, b, client));
        let data = broker.kill();
        let (code, said) = exit_of(baton().args(["store", "check", "--data"]).arg(data.path().join("data")));
        assert_eq!(code, Some(0), "{said}");
        let kept = fs::read_to_string(data.path().join("data/store/FORMAT")).unwrap();
        assert_eq!(kept, format!("baton-store {FORMAT}\n"));
    }
}

#[tokio::test]
#[ignore = "makes the folder of the present format"]
async fn make_the_folder_of_the_present_format() {
    let to = formats().join(FORMAT.to_string());
    assert!(!to.exists(), "{} is there: a folder that was released never changes", to.display());
    let broker = Broker::start();
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    let poison = v1::Nack { cause: v1::NackCause::Poison.into(), reason_text: "poison".into(), ..Default::default() };
    a.send("b", MessageType::Info, &About::default(), &v1::Info::default()).await.unwrap();
    let delivered = b.next().await.unwrap();
    b.session.nack(&delivered.delivery.delivery_id, poison).await.unwrap();
    let completed = new_task();
    a.request("b", &completed, 1, &a_request()).await.unwrap();
    b.accept(&b.take().await.unwrap()).await.unwrap();
    let context = context_of([("collected_data", r#"{"crash":"segfault"}"#.to_owned())]);
    a.send_context(&a.take().await.unwrap(), &context).await.unwrap();
    b.complete(&b.take().await.unwrap()).await.unwrap();
    // The former handoff of a task has a record of its own.
    b.request("a", &completed, 2, &a_request()).await.unwrap();
    for (name, of_type) in [("fei", "fetcher"), ("guo", "analyst"), ("hua", "analyst"), ("wen", "writer")] {
        drop(broker.agent_with(name, of_type, 0).await);
    }
    Submitter::new(&broker, "report", &example("report")).submit(&broker);
    let open = new_task();
    a.request("b", &open, 1, &a_request()).await.unwrap();
    drop(b);
    // Mail that waits, and enough of it that the tables get files.
    for _ in 0..7 {
        let info = v1::Info { text: "x".repeat(60_000), ..Default::default() };
        a.send("b", MessageType::Info, &About::default(), &info).await.unwrap();
    }
    let tables = broker.data().join("store/tables");
    eventually("the tables have files", async || fs::read_dir(&tables).unwrap().count() > 2).await;
    let dead_letter = broker.lines(&["dlq", "list"])[0]["deadLetterId"].as_str().unwrap().to_owned();
    let folder = broker.kill();
    let mut backup = baton();
    backup.args(["backup", "--data"]).arg(folder.path().join("data")).arg("--out").arg(&to);
    assert_eq!(exit_of(&mut backup).0, Some(0));
    fs::remove_dir_all(to.join("tls")).unwrap();
    fs::remove_file(to.join("operator.token")).unwrap();
    let facts = Facts { completed, open, dead_letter, records: records(&to) };
    fs::write(to.join("facts.json"), serde_json::to_string_pretty(&facts).unwrap() + "\n").unwrap();
}
