//! A broker that is killed and stopped again and again under load, and a ledger beside it of everything that it ever said.
//!
//! `BATON_KILLS` says how often it is killed or stopped (default 20; 100 before every merge).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use baton::{
    client::{About, Agent, Client, ClientError, Delivered, Options, context_of},
    ids::SystemIds,
    proto::v1::{self, MessageType as T},
    time::{Clock as _, SystemClock},
};
use bytes::Bytes;
use prost::Message as _;
use tokio::sync::watch;

use crate::broker::{Broker, a_request, card, composer, identity, new_task};

const AGENTS: [&str; 4] = ["a", "b", "c", "d"];

/// What agents were told and saw. Nothing in it comes from the broker's own books.
#[derive(Default)]
struct Ledger {
    /// Every message with its receipt, in the order in which the receipts came.
    receipts: Vec<(Bytes, v1::Receipt)>,
    by_sequence: BTreeMap<u64, String>,
    owners: HashMap<(String, u64), String>,
    epochs: HashMap<String, u64>,
    /// Who is to get what.
    promised: BTreeSet<(String, String)>,
    delivered: HashSet<(String, String)>,
    acked: HashSet<(String, String)>,
    deliveries: u64,
    redeliveries: u64,
}

impl Ledger {
    fn told(&mut self, envelope: &Bytes, receipt: &v1::Receipt) {
        let id = receipt.message_id.clone();
        let first = self.by_sequence.insert(receipt.sequence, id.clone());
        assert!(first.is_none_or(|first| first == id), "two messages have the sequence {}", receipt.sequence);
        if !receipt.task_id.is_empty() {
            let of_epoch = (receipt.task_id.clone(), receipt.epoch);
            let owner = self.owners.entry(of_epoch).or_insert(receipt.owner_id.clone());
            assert_eq!(*owner, receipt.owner_id, "two owners of {} at epoch {}", receipt.task_id, receipt.epoch);
            let epoch = self.epochs.entry(receipt.task_id.clone()).or_default();
            *epoch = receipt.epoch.max(*epoch);
        }
        let said = v1::Envelope::decode(envelope.clone()).unwrap();
        if said.message_type() != T::HandoffRequest {
            self.promised.insert((id, said.receiver_id));
        }
        self.receipts.push((envelope.clone(), receipt.clone()));
    }

    fn saw(&mut self, agent: &str, delivered: &Delivered) -> (String, String) {
        let mail = (delivered.envelope.message_id.clone(), agent.to_owned());
        assert!(!self.acked.contains(&mail), "{mail:?} was delivered after its ack was answered");
        self.deliveries += 1;
        if !self.delivered.insert(mail.clone()) {
            self.redeliveries += 1;
        }
        mail
    }
}

/// Where the broker is, while it is anywhere; and whether agents are to begin anything new.
#[derive(Clone)]
struct Stage {
    address: watch::Receiver<Option<Options>>,
    begins: watch::Receiver<bool>,
    ledger: Arc<Mutex<Ledger>>,
    progress: watch::Sender<usize>,
}

impl Stage {
    /// One agent's life: over any number of sessions.
    async fn live(mut self, name: &'static str) {
        let mut unanswered: Vec<Bytes> = Vec::new();
        let mut handled = HashSet::new();
        loop {
            let options = match self.address.wait_for(Option::is_some).await {
                Ok(options) => options.clone().expect("waited for"),
                Err(_) => return,
            };
            // Whatever breaks is the broker's end, and the next session tells the rest.
            if self.session(name, &options, &mut unanswered, &mut handled).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    async fn session(
        &self,
        name: &'static str,
        options: &Options,
        unanswered: &mut Vec<Bytes>,
        handled: &mut HashSet<(String, String)>,
    ) -> Result<(), ClientError> {
        let client = Client::connect(options).await?;
        let agent = Agent::connect(&client, identity(name), 16, Arc::new(SystemClock), Arc::new(SystemIds)).await?;
        while let Some(bytes) = unanswered.last().cloned() {
            self.send(&agent, bytes).await?;
            unanswered.pop();
        }
        let mut turns = tokio::time::interval(Duration::from_millis(40));
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let bytes = tokio::select! {
                biased; // what has come before what is new: otherwise it only piles up
                delivered = agent.next() => {
                    let delivered = delivered?;
                    let mail = self.ledger.lock().unwrap().saw(name, &delivered);
                    if let Some(bytes) = handled.insert(mail.clone()).then(|| answer(name, &delivered)).flatten() {
                        unanswered.push(bytes.clone());
                        self.send(&agent, bytes).await?;
                        unanswered.pop();
                    }
                    match agent.session.ack(&delivered.delivery.delivery_id).await {
                        Ok(()) => drop(self.ledger.lock().unwrap().acked.insert(mail)),
                        Err(ClientError::Refused(_)) => {} // too late: it comes again
                        Err(error) => return Err(error),
                    }
                    continue;
                }
                _ = turns.tick(), if *self.begins.borrow() => something_new(name),
            };
            unanswered.push(bytes.clone());
            self.send(&agent, bytes).await?;
            unanswered.pop();
        }
    }

    /// A refusal is an answer too.
    async fn send(&self, agent: &Agent, bytes: Bytes) -> Result<(), ClientError> {
        match agent.session.send(bytes.clone()).await {
            Ok(receipt) => {
                let mut ledger = self.ledger.lock().unwrap();
                ledger.told(&bytes, &receipt);
                self.progress.send_replace(ledger.receipts.len());
                Ok(())
            }
            Err(ClientError::Refused(refused)) if refused.code != tonic::Code::Unavailable => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn other(name: &str, number: u8) -> &'static str {
    let others: Vec<&'static str> = AGENTS.into_iter().filter(|other| *other != name).collect();
    others[usize::from(number) % others.len()]
}

fn something_new(name: &str) -> Bytes {
    use baton::ids::IdSource as _;
    let random = SystemIds.random();
    let to = other(name, random[0]);
    if random[1] < 100 {
        let info = v1::Info { text: "hello".into(), ..Default::default() };
        return composer(name).encode(to, T::Info, &About::default(), &info);
    }
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let timeouts =
        v1::HandoffTimeouts { accept: seconds(3), context: seconds(3), complete: seconds(3), whole: seconds(10) };
    let request = v1::HandoffRequest { timeouts: Some(timeouts), ..a_request() };
    composer(name).encode(to, T::HandoffRequest, &About::task(&new_task(), 1), &request)
}

fn answer(name: &str, delivered: &Delivered) -> Option<Bytes> {
    let (to, about) = (delivered.envelope.sender_id.as_str(), delivered.about());
    let context = || context_of([("goals", "{}".to_owned())]);
    let composer = composer(name);
    Some(match delivered.kind() {
        T::HandoffRequest => composer.encode(to, T::HandoffAccept, &about, &v1::HandoffAccept::default()),
        T::HandoffAccept => composer.encode(to, T::TaskContextTransfer, &about, &context()),
        T::TaskContextTransfer => {
            let complete = v1::HandoffComplete {
                outcome: v1::HandoffOutcome::Success.into(),
                context_digest: context().context_digest,
                ..Default::default()
            };
            composer.encode(to, T::HandoffComplete, &about, &complete)
        }
        _ => return None,
    })
}

/// What was answered before is answered the same again: all of the latest, and some of the old.
async fn check_receipts(broker: &Broker, ledger: &Arc<Mutex<Ledger>>, round: usize) {
    let client = broker.client().await;
    let sample: Vec<(Bytes, v1::Receipt)> = {
        let ledger = ledger.lock().unwrap();
        let latest = ledger.receipts.len().saturating_sub(60);
        let (old, new) = ledger.receipts.split_at(latest);
        let step = (old.len() / 20).max(1);
        new.iter().chain(old.iter().skip(round % step).step_by(step)).cloned().collect()
    };
    let mut checks = tokio::task::JoinSet::new();
    for (envelope, receipt) in sample {
        let client = client.clone();
        checks.spawn(async move {
            let again = client.messages().send(v1::SendRequest { envelope }).await;
            let again = again.unwrap_or_else(|error| panic!("round {round}: {} is gone: {error}", receipt.message_id));
            assert_eq!(again.into_inner().receipt, Some(receipt), "round {round}");
        });
    }
    while let Some(checked) = checks.join_next().await {
        checked.unwrap();
    }
}

/// All pages of a list.
async fn all_handoffs(client: &Client) -> Vec<v1::Handoff> {
    let (mut all, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = v1::ListHandoffsRequest { page_size: 1000, page_token, ..Default::default() };
        let page = client.handoffs().list_handoffs(request).await.unwrap().into_inner();
        all.extend(page.handoffs);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return all;
        }
    }
}

async fn dead_messages(client: &Client) -> HashSet<(String, String)> {
    use tokio_stream::StreamExt as _;
    let request = v1::ExportDeadLettersRequest::default();
    let entries = client.dead_letters().export_dead_letters(request).await.unwrap().into_inner();
    let entries: Vec<_> = entries.map(|entry| entry.unwrap().dead_letter.unwrap()).collect().await;
    entries.into_iter().map(|dead| (dead.message_id, dead.agent_id)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_was_answered_is_true_after_any_number_of_kills() {
    let kills: usize = std::env::var("BATON_KILLS").map_or(20, |text| text.parse().expect("a number"));
    let (publish, address) = watch::channel(None);
    let (begin, begins) = watch::channel(true);
    let (progress, mut receipts) = watch::channel(0);
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let stage = Stage { address, begins, ledger: ledger.clone(), progress };
    let mut broker = Broker::start();
    let client = broker.client().await;
    for name in AGENTS {
        let request = v1::RegisterAgentRequest { card: Some(card(name, "")), ..Default::default() };
        client.agents().register_agent(request).await.unwrap();
    }
    let mut agents = tokio::task::JoinSet::new();
    AGENTS.into_iter().for_each(|name| drop(agents.spawn(stage.clone().live(name))));
    let (mut stops, mut longest) = (0, Duration::ZERO);
    for round in 0..kills {
        let options = Options { server: broker.address.clone(), ca: Some(broker.ca()), token: None, certificate: None };
        publish.send_replace(Some(options));
        let wanted = *receipts.borrow_and_update() + 50 + round % 100;
        // What it waits for is locked as long as it is looked at: not for longer than this line.
        let enough =
            tokio::time::timeout(Duration::from_secs(30), receipts.wait_for(|count| *count >= wanted)).await.is_ok();
        assert!(enough, "round {round}: the agents get nowhere");
        assert!(agents.try_join_next().is_none(), "round {round}: an agent has found something wrong");
        publish.send_replace(None);
        let folder = if round % 10 == 9 {
            stops += 1;
            broker.ask_to_stop();
            let folder = broker.folder.clone();
            assert!(broker.wait().success(), "round {round}: a broker that is asked to stop does so in order");
            folder
        } else {
            broker.kill()
        };
        let began = SystemClock.now();
        broker = Broker::start_in(folder, &[]);
        longest = longest.max(SystemClock.now().since(began));
        check_receipts(&broker, &ledger, round).await;
    }

    // Nothing new, and nobody is killed: all that was begun ends, and all mail arrives.
    begin.send_replace(false);
    publish.send_replace(Some(Options {
        server: broker.address.clone(),
        ca: Some(broker.ca()),
        token: None,
        certificate: None,
    }));
    let client = broker.client().await;
    let mut waits = 0;
    let (handoffs, lost) = loop {
        let handoffs = all_handoffs(&client).await;
        let open =
            handoffs.iter().filter(|handoff| handoff.state() as i32 <= v1::HandoffState::ContextSent as i32).count();
        let dead = dead_messages(&client).await;
        let lost: Vec<_> = {
            let ledger = ledger.lock().unwrap();
            let arrived = |mail: &&(String, String)| !ledger.delivered.contains(*mail) && !dead.contains(*mail);
            ledger.promised.iter().filter(arrived).cloned().collect()
        };
        if open == 0 && lost.is_empty() || waits == 600 {
            assert_eq!(open, 0, "handoffs that do not end");
            break (handoffs, lost);
        }
        waits += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(agents.try_join_next().is_none(), "an agent has found something wrong");
    drop(publish);
    agents.abort_all();
    assert!(lost.is_empty(), "lost: {lost:?}");
    let ledger = ledger.lock().unwrap();
    for handoff in &handoffs {
        if handoff.state() == v1::HandoffState::Completed {
            let owner = ledger.owners.get(&(handoff.task_id.clone(), handoff.epoch + 1));
            assert!(owner.is_none_or(|owner| *owner == handoff.candidate_id), "{handoff:?}");
        }
    }
    let completed = handoffs.iter().filter(|handoff| handoff.state() == v1::HandoffState::Completed).count();
    println!(
        "{} kills and {stops} stops: {} receipts, {} deliveries, {} redeliveries, {completed} of {} handoffs completed, \
         all ended; the longest start took {longest:?}",
        kills - stops,
        ledger.receipts.len(),
        ledger.deliveries,
        ledger.redeliveries,
        handoffs.len(),
    );
    assert!(completed > kills / 2, "the agents get somewhere");
}
