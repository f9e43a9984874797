//! A broker that is killed repeatedly under load, while its clients keep a ledger of its answers; see `load`.

use std::{process::Stdio, sync::Arc, time::Duration};

use crate::{
    broker::{Broker, baton},
    load::Load,
};

const SEED: u64 = 20_260_101;
/// The most receipts between a start and the kill.
const RECEIPTS_MAX: u64 = 60;

/// The number of kills: BATON_KILLS, or 20. `.ci/run` makes 25, and `.ci/long` 100.
fn kills() -> u32 {
    std::env::var("BATON_KILLS").map_or(20, |text| text.parse().expect("BATON_KILLS is a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_a_client_saw_is_undone_by_any_number_of_kills() {
    let mut broker = Broker::start();
    let mut load = Load::on(&broker, SEED).await;
    let mut kills_while_starting = 0;
    for kill in 1..=kills() {
        load.begin_chapter(format!("after {} kills", kill - 1));
        load.is_served_by(&broker);
        // One round in eight kills the broker without an audit.
        if !load.rng.one_in(8) {
            load.audit(&broker).await;
        }
        let receipts = load.rng.roll(RECEIPTS_MAX);
        load.goes_on(usize::try_from(receipts).unwrap()).await;
        let folder = broker.kill();
        if load.rng.one_in(10) {
            kill_while_it_starts(&folder, load.rng.roll(20)).await;
            kills_while_starting += 1;
        }
        broker = load.restart(|| Broker::start_in(folder, &[]));
    }
    load.drain(broker).await;
    println!("{} kills, {kills_while_starting} more while it started, {load}", kills());
    assert!(load.completed() > kills() as usize, "the agents get somewhere");
}

async fn kill_while_it_starts(folder: &Arc<tempfile::TempDir>, milliseconds: u64) {
    let mut command = baton();
    command.args(["dev", "--port", "0", "--data"]).arg(folder.path().join("data"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // A fixed delay instead of a wait for readiness, so that the kill can hit any moment of the start.
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    child.kill().unwrap();
    child.wait().unwrap();
}
