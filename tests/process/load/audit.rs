//! Checks that the broker still confirms the observations of the clients.

use std::{sync::Arc, time::Duration};

use baton::{
    ids::AgentId,
    proto::v1::{self, HandoffState, MessageType},
    records::DeadLetterRecord,
    store::{EmbeddedStore, Order, Store, Table},
};
use baton_client::{About, Client};
use bytes::Bytes;
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;

use super::{AGENTS, Load, Phase, ledger::Left};
use crate::{
    broker::{Broker, PATIENCE, composer},
    cluster,
};

/// The most concurrent requests.
const UNDER_WAY_MAX: usize = 64;
/// Old receipts, tasks and handoffs to check after each start.
const OLD_MAX: usize = 10;
/// Old receipts, tasks and handoffs to check at the end.
const OLD_MAX_IN_THE_END: usize = 3000;
/// How much later than its whole timeout a handoff may end: the broker may be down at that moment, and a busy machine
/// starts it slowly. `tests/broker` and the simulator check the exact times, in virtual time.
const ENDS_LATE_BY_MAX: Duration = Duration::from_secs(120);

// Audits under load.
impl Load {
    /// Compares all receipts that were not compared yet, and checks a sample of older receipts, tasks and handoffs.
    pub(crate) async fn audit(&mut self, broker: &Broker) {
        let client = broker.client().await;
        self.compare_receipts(&client, OLD_MAX).await;
        self.look_at_tasks(&client).await;
        self.look_at_handoffs(&client).await;
        self.assert_lawful();
    }

    async fn compare_receipts(&mut self, client: &Client, old_max: usize) {
        let envelopes = self.ledger.to_compare(&mut self.rng, old_max);
        for some in envelopes.chunks(UNDER_WAY_MAX) {
            let mut answers = JoinSet::new();
            for envelope in some.iter().cloned() {
                let client = client.clone();
                answers.spawn(async move { send(&client, envelope).await });
            }
            while let Some(receipt) = answers.join_next().await {
                self.ledger.receipted(&receipt.unwrap());
            }
        }
    }

    async fn look_at_tasks(&mut self, client: &Client) {
        let tasks = self.ledger.tasks();
        for _ in 0..OLD_MAX.min(tasks.len()) {
            let task_id = self.rng.pick(&tasks).clone();
            let known = self.ledger.epoch_of(&task_id);
            let found = client.answer(client.tasks().get_task(v1::GetTaskRequest { task_id }).await);
            self.ledger.task_seen(&found.expect("a task with a receipt is there").task.unwrap(), known);
        }
    }

    async fn look_at_handoffs(&mut self, client: &Client) {
        let handoffs: Vec<_> = self.ledger.handoffs().into_iter().collect();
        for _ in 0..OLD_MAX.min(handoffs.len()) {
            let handoff_id = self.rng.pick(&handoffs).clone();
            let known = self.ledger.final_of(&handoff_id);
            let request = v1::GetHandoffRequest { handoff_id, ..Default::default() };
            let found = client.answer(client.handoffs().get_handoff(request).await);
            let handoff = found.expect("a handoff with a receipt is there").handoff.unwrap();
            self.ledger.handoff_seen(&handoff.handoff_id, handoff.state(), known);
        }
    }
}

async fn send(client: &Client, envelope: Bytes) -> v1::Receipt {
    let answer = client.answer(client.messages().send(v1::SendRequest { envelope, ..Default::default() }).await);
    answer.expect("what has a receipt gets it again").receipt.unwrap()
}

// The audit at the end.
impl Load {
    /// Starts no further activity, and waits until each message with a receipt and each handoff has ended. The broker
    /// must be new, without earlier agents. Then stops the broker, and checks that its store is empty.
    pub(crate) async fn drain(&mut self, broker: Broker) {
        self.phase.send_replace(Phase::Drain);
        self.begin_chapter("in the end".to_owned());
        self.is_served_by(&broker);
        let client = broker.client().await;
        self.wait("an answer to everything", |progress| progress.unanswered == 0).await;
        self.wait_for_handoffs(&client).await;
        self.wait_for_mail(&client).await;
        self.compare_receipts(&client, OLD_MAX_IN_THE_END).await;
        self.check_tasks(&client).await;
        self.check_handoffs(&client).await;
        drop(client);
        self.server.send_replace(None);
        let folder = broker.folder.clone();
        broker.stop().await;
        self.ledger.close(&what_is_left(folder.path()));
        self.assert_lawful();
    }

    async fn wait_for_handoffs(&mut self, client: &Client) {
        for handoff in self.ledger.handoffs() {
            if self.ledger.final_of(&handoff).is_none() {
                let end = tokio::time::timeout(PATIENCE, end_of(client, &handoff)).await;
                let end = end.unwrap_or_else(|_| panic!("the handoff {handoff} does not end"));
                self.ledger.handoff_seen(&handoff, end, None);
            }
        }
    }

    /// Mail in doubt may or may not be redelivered. Once only new mail arrives, no old mail is left.
    async fn wait_for_mail(&mut self, client: &Client) {
        loop {
            self.wait("the end of all mail", |p| p.mail_open == 0 && p.ends_under_way == 0).await;
            let before = self.ledger.now().deliveries;
            for to in AGENTS {
                let info = v1::Info { text: "the last one".into(), ..Default::default() };
                let envelope = composer("ann").compose(to, MessageType::Info, &About::default(), &info);
                let raw = self.ledger.composed(envelope);
                self.ledger.receipted(&send(client, raw).await);
            }
            self.wait("the end of the last mail", |p| p.mail_open == 0 && p.ends_under_way == 0).await;
            if self.ledger.now().deliveries == before + AGENTS.len() {
                return;
            }
        }
    }

    async fn check_tasks(&mut self, client: &Client) {
        let mut request = v1::ListTasksRequest { page_size: 1000, ..Default::default() };
        loop {
            let page = client.answer(client.tasks().list_tasks(request.clone()).await).unwrap();
            for task in &page.tasks {
                self.ledger.task_seen(task, self.ledger.epoch_of(&task.task_id));
                assert_eq!(task.open_handoff_id, "", "{task:?}");
            }
            if page.next_page_token.is_empty() {
                return;
            }
            request.page_token = page.next_page_token;
        }
    }

    async fn check_handoffs(&mut self, client: &Client) {
        let mut missing = self.ledger.handoffs();
        let mut request = v1::ListHandoffsRequest { page_size: 1000, ..Default::default() };
        loop {
            let page = client.answer(client.handoffs().list_handoffs(request.clone()).await).unwrap();
            for handoff in &page.handoffs {
                missing.remove(&handoff.handoff_id);
                let known = self.ledger.final_of(&handoff.handoff_id);
                self.ledger.handoff_seen(&handoff.handoff_id, handoff.state(), known);
                check_in_time(handoff);
            }
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        assert!(missing.is_empty(), "handoffs with a receipt that the broker does not have: {missing:?}");
    }
}

fn is_final(state: HandoffState) -> bool {
    use HandoffState as S;
    matches!(state, S::Completed | S::Rejected | S::Failed | S::Cancelled)
}

async fn end_of(client: &Client, handoff: &str) -> HandoffState {
    let request = v1::WatchHandoffRequest { handoff_id: handoff.to_owned() };
    let mut updates = client.answer(client.handoffs().watch_handoff(request).await).unwrap();
    let mut last = HandoffState::Unspecified;
    while let Some(update) = updates.next().await {
        last = update.unwrap().handoff.unwrap().state();
    }
    assert!(is_final(last), "watching {handoff} ends with {last:?}");
    last
}

fn check_in_time(handoff: &v1::Handoff) {
    let nanoseconds = |time: &Option<prost_types::Timestamp>| {
        let time = time.as_ref().expect("it is set");
        i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos)
    };
    let end = handoff.transitions.iter().find(|transition| is_final(transition.state()));
    let end = end.unwrap_or_else(|| panic!("it has not ended: {handoff:?}"));
    let late_by = nanoseconds(&end.transition_time) - nanoseconds(&handoff.whole_deadline);
    let late_by_max = i128::try_from(ENDS_LATE_BY_MAX.as_nanos()).unwrap();
    assert!(late_by < late_by_max, "it ended {late_by} ns after its whole time: {handoff:?}");
}

/// Reads the store of a stopped broker.
fn what_is_left(folder: &std::path::Path) -> Left {
    let store: Arc<dyn Store> = match folder.join("data/store/CLUSTER").exists() {
        true => cluster::open_stopped(folder),
        false => Arc::new(EmbeddedStore::open(&folder.join("data/store")).unwrap()),
    };
    let all = |table| {
        let everything = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        store.scan(table, everything, Order::Ascending, usize::MAX).unwrap()
    };
    // A mailbox keeps its timer until the timer fires. No timer of a handoff may be left.
    let timers = store.scan(Table::Timers, baton::records::entity_timers(), Order::Ascending, usize::MAX).unwrap();
    let mut left = Left { timers: timers.len(), ..Left::default() };
    for agent in AGENTS {
        let range = baton::records::mailbox_range(&AgentId::parse(agent).unwrap());
        for (key, record) in store.scan(Table::Mailbox, range, Order::Ascending, usize::MAX).unwrap() {
            let letter = baton::records::decode_letter(&key, &record.value).unwrap();
            left.mail.push((agent.to_owned(), letter.message.to_string()));
        }
    }
    for (key, record) in all(Table::DeadLetters) {
        let dead = DeadLetterRecord::decode(&key, &record.value).unwrap();
        // A delivered request that no candidate accepted is a dead letter too, but not of a mailbox.
        if dead.letter.is_none() {
            continue;
        }
        let key = (dead.agent.to_string(), dead.summary.message_id.clone());
        left.dead_letters.insert(key, format!("{:?}", dead.reason));
    }
    left
}
