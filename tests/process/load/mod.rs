//! Load on a broker that is killed or restarted during it, with an independent record of the observations.

mod actor;
mod audit;
mod ledger;
mod rng;

use std::{fmt, sync::Arc, time::Duration};

use baton::{
    proto::v1,
    time::{Clock as _, SystemClock},
};
use baton_client::Options;
use tokio::{sync::watch, task::JoinSet};

pub(crate) use self::rng::Rng;
use self::{
    actor::Actor,
    ledger::{Ledger, Progress},
};
use crate::broker::{Broker, PATIENCE, card};

const AGENTS: [&str; 6] = ["ann", "ben", "cem", "dan", "eve", "fay"];

/// Whether the agents start new work, or only finish open work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Load,
    Drain,
}

/// Agents that work whenever a broker is up, over any number of restarts.
pub(crate) struct Load {
    ledger: Arc<Ledger>,
    pub rng: Rng,
    /// The address of the broker.
    server: watch::Sender<Option<Options>>,
    phase: watch::Sender<Phase>,
    agents: JoinSet<()>,
    restarts: Vec<Duration>,
}

impl Load {
    /// Registers the agents. They start at the first [`Self::is_served_by`].
    pub(crate) async fn on(broker: &Broker, seed: u64) -> Self {
        let client = broker.client().await;
        for name in AGENTS {
            let card = Some(card(name, ""));
            client
                .answer(client.agents().register_agent(v1::RegisterAgentRequest { card, ..Default::default() }).await)
                .unwrap();
        }
        let (ledger, server) = (Arc::new(Ledger::default()), watch::Sender::new(None));
        let (phase, mut agents) = (watch::Sender::new(Phase::Load), JoinSet::new());
        for (name, number) in AGENTS.into_iter().zip(1..) {
            let actor = Actor::new(name, &AGENTS, seed + number, ledger.clone(), phase.subscribe());
            agents.spawn(Arc::new(actor).live(server.subscribe()));
        }
        let load = Self { ledger, rng: Rng::new(seed), server, phase, agents, restarts: Vec::new() };
        load.is_served_by(broker);
        load
    }

    /// Gives the agents the address of the broker.
    pub(crate) fn is_served_by(&self, broker: &Broker) {
        let options = Options { server: broker.address.clone(), ca: Some(broker.ca()), ..Default::default() };
        self.server.send_replace(Some(options));
    }

    /// Sets the text that later faults start with.
    pub(crate) fn begin_chapter(&self, chapter: String) {
        self.ledger.begin_chapter(chapter);
    }

    /// Starts a broker, and records the time until it is ready.
    pub(crate) fn restart(&mut self, start: impl FnOnce() -> Broker) -> Broker {
        let before = SystemClock.now();
        let broker = start();
        self.restarts.push(SystemClock.now().since(before));
        broker
    }

    /// The number of handoffs known to be completed.
    pub(crate) fn completed(&self) -> usize {
        self.ledger.finals().get("COMPLETED").copied().unwrap_or(0)
    }

    /// Waits for this number of further receipts.
    pub(crate) async fn goes_on(&mut self, receipts: usize) {
        let before = self.ledger.now().receipts;
        self.wait("more receipts", |progress| progress.receipts >= before + receipts).await;
    }

    async fn wait(&mut self, what: &str, mut holds: impl FnMut(&Progress) -> bool) {
        let mut progress = self.ledger.progress();
        let held = progress.wait_for(|progress| progress.faults > 0 || holds(progress));
        let in_time = tokio::time::timeout(PATIENCE, held).await.map(drop);
        self.assert_lawful();
        let (now, open) = (self.ledger.now(), self.ledger.open_mail());
        assert!(in_time.is_ok(), "{what}: not within {PATIENCE:?}; {now:?}, open mail {open:?}");
    }

    /// Asserts that no law is broken and that no agent has panicked.
    #[track_caller]
    pub(crate) fn assert_lawful(&mut self) {
        if let Some(ended) = self.agents.try_join_next() {
            ended.expect("no agent panics");
            panic!("an agent has ended by itself");
        }
        let faults = self.ledger.faults();
        assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    }
}

impl fmt::Display for Load {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { receipts, receipts_compared, refusals, deliveries, redeliveries, .. } = self.ledger.now();
        let mut restarts = self.restarts.clone();
        restarts.sort();
        let milliseconds = |span: Option<&Duration>| span.map_or(0, Duration::as_millis);
        write!(
            formatter,
            "{receipts} receipts, {receipts_compared} compared again, {refusals} refusals, {deliveries} deliveries, \
             {redeliveries} redeliveries, handoffs {:?}, {} starts took {} to {} ms, mostly {}",
            self.ledger.finals(),
            restarts.len(),
            milliseconds(restarts.first()),
            milliseconds(restarts.last()),
            milliseconds(restarts.get(restarts.len() / 2)),
        )
    }
}
