//! `baton cluster refound`: the shared log went back under three brokers, and a new one begins with what one of them has.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use baton_cluster::{
    engines::directory::Directory,
    log::{Register as _, SharedLog as _},
    member_value::{MemberValue, name_of},
};
use serde_json::Value;

use crate::{
    broker::{baton, eventually, exit_of, write},
    cluster::{BROKERS, Cluster, LOG_LINK, records, signal},
    load::Load,
};

const SEED: u64 = 20_261_128;
const RENEWED: &str = "cluster-2";

impl Cluster {
    fn config(&self, place: usize) -> PathBuf {
        self.folders[place].path().join("baton.toml")
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join("log").join(name)
    }

    /// The files of the last entries of the log, the last one first.
    fn last_entries(&self, count: usize) -> Vec<PathBuf> {
        let files = fs::read_dir(self.log("cluster").join("log")).unwrap().map(|entry| entry.unwrap().path());
        let is_entry = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().parse::<u64>().is_ok();
        let mut files: Vec<PathBuf> = files.filter(is_entry).collect();
        files.sort();
        files.into_iter().rev().take(count).collect()
    }

    /// Stops the process of a leader while it appends nothing. An append that is under way has looked for the entry before
    /// it already, and would leave a gap in front of its own.
    async fn stop_between_entries(&self, leader: usize) {
        let (broker, drafts) = (&self.brokers[&leader], self.log("cluster").join("drafts"));
        eventually("the leader is stopped, and no append is under way", async || {
            signal(broker, "-STOP");
            let state = fs::read_to_string(format!("/proc/{}/stat", broker.pid())).unwrap();
            let is_stopped = state.rsplit(") ").next().unwrap().starts_with('T');
            let is_between = is_stopped && fs::read_dir(&drafts).unwrap().next().is_none();
            if !is_between {
                signal(broker, "-CONT");
            }
            is_between
        })
        .await;
    }

    /// The status as JSON, and the exit code.
    fn status(&self) -> (Option<i32>, Value) {
        let mut command = baton();
        command.args(["cluster", "status", "-o", "json", "--config"]).arg(self.config(0));
        let output = command.output().unwrap();
        (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
    }

    fn refound(&self, place: usize, more: &[&str]) -> (Option<i32>, String) {
        said(&mut self.refounding(place, RENEWED, more))
    }

    fn refounding(&self, place: usize, name: &str, more: &[&str]) -> Command {
        let mut command = baton();
        command.args(["cluster", "refound", "-o", "table", "--from", &format!("b{place}"), "--name", name]).args(more);
        command.arg("--config").arg(self.config(place));
        command
    }

    /// Gives all brokers the new name, and those that receive a copy an empty store.
    fn rename(&self, first: usize) {
        for place in 0..BROKERS {
            let (config, folder) = (self.config(place), self.folders[place].path());
            let text = fs::read_to_string(&config).unwrap();
            write(&config, &text.replace("name = \"cluster\"", &format!("name = {RENEWED:?}")));
            fs::remove_file(folder.join(LOG_LINK)).unwrap();
            std::os::unix::fs::symlink(self.log(RENEWED), folder.join(LOG_LINK)).unwrap();
            if place != first && folder.join("data/store").exists() {
                fs::rename(folder.join("data/store"), folder.join("data/store-before")).unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_log_went_back_three_brokers_go_on_with_what_one_of_them_has() {
    let mut cluster = Cluster::started().await;
    let leader = cluster.leader().await;
    let mut load = Load::on(&cluster.brokers[&leader], SEED).await;
    load.goes_on(150).await;
    load.audit(&cluster.brokers[&leader]).await;
    cluster.stop_between_entries(leader).await;
    cluster.last_entries(5).into_iter().for_each(|entry| fs::remove_file(entry).unwrap());
    signal(&cluster.brokers[&leader], "-CONT");
    let (mut code, mut status) = (None, Value::Null);
    eventually("all brokers have noticed, and have all that they know on their disks", async || {
        (code, status) = cluster.status();
        status["members"].as_array().unwrap().iter().filter(|member| is_safe(member)).count() == BROKERS
    })
    .await;
    assert_eq!((code, &status["leader"]), (Some(1), &Value::Null));
    assert!(status["advice"].as_str().unwrap().contains("`baton cluster refound`"), "{status}");
    assert!(cluster.brokers[&leader].log().contains("baton cluster refound"));
    let position = |place: usize| status["members"][place]["position"].as_u64().unwrap();
    let highest = (0..BROKERS).max_by_key(|place| position(*place)).unwrap();
    let (code, text) = cluster.refound(highest, &[]);
    assert_eq!(code, Some(4), "{text}");
    let former = cluster.brokers.remove(&highest).unwrap();
    former.stop().await;
    let (code, text) = cluster.refound(highest, &[]);
    assert_eq!(code, Some(8), "{text}");
    assert!(text.contains("is diverged") && text.contains("stop it first, and all others"), "{text}");
    for (_, broker) in std::mem::take(&mut cluster.brokers) {
        broker.stop().await;
    }
    let (code, text) = cluster.refound(highest, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(&format!("up to {}", position(highest))), "{text}");
    assert!(
        text.contains("No entry is known to be missing") && text.contains("cluster.name = \"cluster-2\""),
        "{text}"
    );
    // Once more, as after a command that was cut off behind its last step.
    let (code, text) = cluster.refound(highest, &[]);
    assert_eq!(code, Some(0), "{text}");
    // No broker mixes the two logs.
    let serve = |place: usize| exit_of(baton().args(["serve", "--config"]).arg(cluster.config(place)));
    let (code, text) = serve(highest);
    assert!(code == Some(3) && text.contains("belongs to cluster"), "{code:?} {text}");
    cluster.rename(highest);
    let other = (highest + 1) % BROKERS;
    let stores = ["store", "store-before"].map(|name| cluster.folders[other].path().join("data").join(name));
    fs::rename(&stores[1], &stores[0]).unwrap();
    let (code, text) = serve(other);
    assert!(code == Some(3) && text.contains("belongs to cluster"), "{code:?} {text}");
    fs::rename(&stores[0], &stores[1]).unwrap();
    (0..BROKERS).for_each(|place| cluster.start(place));
    let leader = cluster.leader().await;
    load.is_served_by(&cluster.brokers[&leader]);
    load.audit(&cluster.brokers[&leader]).await;
    load.goes_on(50).await;
    for place in (0..BROKERS).filter(|place| *place != highest) {
        let broker = &cluster.brokers[&place];
        let received = async || broker.log().contains("received the checkpoint of another broker");
        eventually("it has the state of the first one", received).await;
    }
    // Each of the others leads as well.
    cluster.brokers.remove(&leader).unwrap().kill();
    let leader = cluster.leader().await;
    load.is_served_by(&cluster.brokers[&leader]);
    load.audit(&cluster.brokers[&leader]).await;
    load.goes_on(20).await;
    let last = cluster.brokers.remove(&leader).unwrap();
    let mut served: Vec<usize> = cluster.brokers.keys().copied().collect();
    served.push(leader);
    for (_, broker) in std::mem::take(&mut cluster.brokers) {
        broker.stop().await;
    }
    load.drain(last).await;
    println!("{load}");
    let of: BTreeMap<usize, _> =
        served.into_iter().map(|place| (place, records(cluster.folders[place].path()))).collect();
    assert!(of.values().all(|found| *found == of[&leader]), "the brokers have the same records");
}

/// The exit code of a command, and what it says on both outputs.
fn said(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// Whether a member that has diverged has all its entries on its disk.
fn is_safe(member: &Value) -> bool {
    member["role"] == "diverged" && member["position"] == member["flushed_upto"]
}

/// A cluster of one broker that is stopped, and whose log has lost its last entry. Returns the file of the entry, beside the log.
async fn whose_log_went_back() -> (Cluster, PathBuf) {
    let mut cluster = Cluster::new();
    cluster.start(0);
    cluster.leader().await;
    drop(cluster.brokers[&0].agent("someone").await);
    cluster.brokers.remove(&0).unwrap().stop().await;
    let (code, text) = cluster.refound(0, &[]);
    assert_eq!(code, Some(8), "{text}");
    assert!(text.contains("nothing is lost") && text.contains("Start the brokers"), "{text}");
    let last = cluster.last_entries(1).remove(0);
    let aside = cluster.folder.path().join("aside");
    fs::rename(last, &aside).unwrap();
    (cluster, aside)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_log_begins_while_another_broker_may_have_more_or_the_command_does_not_fit() {
    let (mut cluster, _) = whose_log_went_back().await;
    let refused = |cluster: &Cluster, place: usize, name: &str, more: &[&str], code: i32, words: &str| {
        let (found, text) = said(&mut cluster.refounding(place, name, more));
        assert_eq!(found, Some(code), "{words}: {text}");
        assert!(text.contains(words), "{text}");
    };
    refused(&cluster, 0, "cluster", &[], 3, "needs a name of its own");
    refused(&cluster, 0, "a/b", &[], 3, "is no name of a cluster");
    refused(&cluster, 1, RENEWED, &[], 3, "has no store of a broker");
    let own = fs::read_to_string(cluster.config(0)).unwrap();
    write(&cluster.config(0), &own.replace("broker = \"b0\"", "broker = \"b7\""));
    refused(&cluster, 0, RENEWED, &[], 3, "is that of broker \"b7\"");
    let (keys, others) = (cluster.folder.path().join("keys"), cluster.folder.path().join("others"));
    assert_eq!(exit_of(baton().args(["cluster", "keys", "--out"]).arg(&others)).0, Some(0));
    write(&cluster.config(0), &own.replace(&format!("keys = {keys:?}"), &format!("keys = {others:?}")));
    refused(&cluster, 0, RENEWED, &[], 3, "belongs to cluster");
    write(&cluster.config(0), &own.replace("log = \"file:///", "log = \"file:///dev/null/"));
    refused(&cluster, 0, RENEWED, &[], 9, "the shared log cannot be reached");
    write(&cluster.config(0), &own);
    // One that is gone, and had more.
    let register = Directory::open(&cluster.log("cluster")).unwrap();
    let b9 =
        MemberValue { broker: "b9".into(), position: 900, peer_address: "127.0.0.1:1".into(), ..Default::default() };
    register.write(&name_of("b9"), None, b9.to_bytes()).await.unwrap();
    refused(&cluster, 0, RENEWED, &["--accept-loss"], 8, "broker b9 had the entries up to 900");
    let mut forget = baton();
    forget.args(["cluster", "forget", "b9", "--config"]).arg(cluster.config(0));
    assert_eq!(exit_of(&mut forget).0, Some(0));
    refused(&cluster, 0, RENEWED, &[], 8, "to 900 of the former log are missing");
    let (code, text) = cluster.refound(0, &["--dry-run"]);
    assert!(code == Some(0) && text.contains("to 900 are missing") && text.contains("Nothing was changed"), "{text}");
    // The new log is another's.
    let taken = Directory::open(&cluster.log("taken")).unwrap();
    taken.append(0, bytes::Bytes::from_static(b"of others")).await.unwrap();
    refused(&cluster, 0, "taken", &["--accept-loss"], 8, "the shared log of taken has entries already");
    assert_eq!(taken.end().await.unwrap(), 1);
    let (code, text) = cluster.refound(0, &["--accept-loss"]);
    assert!(code == Some(0) && text.contains("to 900 are missing"), "{code:?} {text}");
    cluster.rename(0);
    cluster.start(0);
    cluster.leader().await;
    // It is still known: a session needs no registration.
    drop(cluster.brokers[&0].agent_session("someone").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_its_entries_back_the_former_log_goes_on_after_a_look() {
    let (mut cluster, aside) = whose_log_went_back().await;
    let (code, text) = cluster.refound(0, &["--dry-run"]);
    assert!(code == Some(0) && text.contains("No entry is known to be missing"), "{code:?} {text}");
    fs::rename(aside, cluster.last_entries(1)[0].with_file_name(next(&cluster))).unwrap();
    cluster.start(0);
    cluster.leader().await;
}

/// The name of the file behind the last entry.
fn next(cluster: &Cluster) -> String {
    let last: u64 = cluster.last_entries(1)[0].file_name().unwrap().to_str().unwrap().parse().unwrap();
    format!("{:020}", last + 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_with_content_gets_new_keys_and_brokers_with_the_former_ones_are_no_members() {
    let mut cluster = Cluster::started().await;
    let leader = cluster.leader().await;
    drop(cluster.brokers[&leader].agent("someone").await);
    let (keys, new) = (cluster.folder.path().join("keys"), cluster.folder.path().join("new"));
    let mut make = baton();
    make.args(["cluster", "keys", "--in-place-of"]).arg(&keys).arg("--out").arg(&new);
    assert_eq!(exit_of(&mut make).0, Some(0));
    let with_new = ["--new-keys", new.to_str().unwrap()];
    let (code, text) = cluster.refound(leader, &with_new);
    assert_eq!(code, Some(4), "it runs: {text}");
    for (_, broker) in std::mem::take(&mut cluster.brokers) {
        broker.stop().await;
    }
    let (code, text) = cluster.refound(leader, &[]);
    assert!(code == Some(8) && text.contains("nothing is lost"), "{code:?} {text}");
    let (code, text) = cluster.refound(leader, &with_new);
    assert!(code == Some(0) && text.contains("No entry is known to be missing"), "{code:?} {text}");
    assert!(text.contains("cluster.keys"), "{text}");
    cluster.rename(leader);
    // Under the new name the former keys are those of another cluster.
    let serve = |place: usize| exit_of(baton().args(["serve", "--config"]).arg(cluster.config(place)));
    let (code, text) = serve(leader);
    assert!(code == Some(3) && text.contains("belongs to cluster"), "{code:?} {text}");
    for place in 0..BROKERS {
        let text = fs::read_to_string(cluster.config(place)).unwrap();
        write(&cluster.config(place), &text.replace(&format!("keys = {keys:?}"), &format!("keys = {new:?}")));
    }
    (0..BROKERS).for_each(|place| cluster.start(place));
    let leads = cluster.leader().await;
    // It is still known: a session needs no registration.
    drop(cluster.brokers[&leads].agent_session("someone").await);
    for place in (0..BROKERS).filter(|place| *place != leader) {
        let broker = &cluster.brokers[&place];
        let received = async || broker.log().contains("received the checkpoint of another broker");
        eventually("it has the state of the first one", received).await;
    }
    cluster.brokers.remove(&leads).unwrap().kill();
    let leads = cluster.leader().await;
    drop(cluster.brokers[&leads].agent_session("someone").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_cut_off_anywhere_is_finished_by_the_next_one() {
    let (mut cluster, _) = whose_log_went_back().await;
    let (mut cut_off, mut finished) = (0, false);
    for step in 1..400 {
        let mut command = cluster.refounding(0, RENEWED, &[]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        tokio::time::sleep(Duration::from_millis(4) * step).await;
        child.kill().unwrap();
        finished = child.wait().unwrap().success();
        if finished {
            break;
        }
        cut_off += 1;
    }
    assert!(finished && cut_off > 0, "{cut_off}");
    println!("cut off {cut_off} times");
    let (code, text) = cluster.refound(0, &[]);
    assert_eq!(code, Some(0), "{text}");
    // The log has one beginning.
    assert_eq!(Directory::open(&cluster.log(RENEWED)).unwrap().end().await.unwrap(), 1);
    cluster.rename(0);
    cluster.start(0);
    cluster.start(1);
    let leader = cluster.leader().await;
    // It is still known: a session needs no registration.
    drop(cluster.brokers[&leader].agent_session("someone").await);
}
