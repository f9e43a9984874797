//! Two thousand connected agents, half of them asleep.
//!
//! `BATON_AGENTS` says how many (default 2000).

use std::{sync::Arc, time::Duration};

use baton::{
    client::{About, Agent, Client, context_of},
    ids::SystemIds,
    proto::v1::{self, MessageType as T},
    time::SystemClock,
};
use tokio::task::JoinSet;

use crate::broker::{Broker, a_request, card, identity};

/// Agents that share a TLS connection.
const SHARE: usize = 50;

async fn join(client: Client, name: String, credit: u32) -> Agent {
    let request = v1::RegisterAgentRequest { card: Some(card(&name, "")), ..Default::default() };
    client.answer(client.agents().register_agent(request).await).unwrap();
    Agent::connect(&client, identity(&name), credit, Arc::new(SystemClock), Arc::new(SystemIds)).await.unwrap()
}

/// Hands a task to its neighbour, who sits on another session, and sends mail to one who sleeps.
async fn work(giver: &Agent, taker: &Agent, sleeper: &str) {
    let task = format!("task-of-{}", giver.id());
    giver.request(taker.id().as_str(), &task, 1, &a_request()).await.unwrap();
    taker.accept(&taker.take().await.unwrap()).await.unwrap();
    let accept = giver.take().await.unwrap();
    giver.send_context(&accept, &context_of([("goals", "{}".to_owned())])).await.unwrap();
    let done = taker.complete(&taker.take().await.unwrap()).await.unwrap();
    assert_eq!((done.owner_id.as_str(), done.epoch), (taker.id().as_str(), 2));
    assert_eq!(giver.take().await.unwrap().kind(), T::HandoffComplete);
    let info = v1::Info { text: "when you wake up".into(), ..Default::default() };
    giver.send(sleeper, T::Info, &About::default(), &info).await.unwrap();
}

fn resident_memory_mib(broker: &Broker) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", broker.pid())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) / 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn half_of_two_thousand_agents_sleep_and_the_others_do_not_notice() {
    let many: usize = std::env::var("BATON_AGENTS").map_or(2000, |text| text.parse().expect("a number"));
    let broker = Broker::start();
    let before = resident_memory_mib(&broker);
    let mut joining = JoinSet::new();
    for block in 0..many.div_ceil(SHARE) {
        let client = broker.client().await;
        joining.spawn(async move {
            let mut agents = Vec::new();
            for number in block * SHARE..((block + 1) * SHARE).min(many) {
                // Of each four: two awake; one asleep that takes deliveries and does nothing; one that takes none.
                let credit = if number % 4 == 3 { 0 } else { 16 };
                agents.push((number, join(client.clone(), format!("agent-{number}"), credit).await));
            }
            agents
        });
    }
    let mut agents: Vec<(usize, Agent)> = joining.join_all().await.into_iter().flatten().collect();
    agents.sort_by_key(|(number, _)| *number);
    assert_eq!(agents.len(), many);
    println!("{many} agents connected: {before} MiB before, {} MiB with them", resident_memory_mib(&broker));

    let mut asleep = Vec::new();
    let mut awake = Vec::new();
    for (number, agent) in agents {
        if number % 4 < 2 { awake.push(agent) } else { asleep.push(agent) }
    }
    let mut working = JoinSet::new();
    let mut awake = awake.into_iter();
    let mut sleepers = asleep.iter().map(|agent| agent.id().to_string()).collect::<Vec<_>>().into_iter();
    while let (Some(giver), Some(taker), Some(sleeper)) = (awake.next(), awake.next(), sleepers.next()) {
        working.spawn(async move { work(&giver, &taker, &sleeper).await });
    }
    let pairs = working.len();
    let done = tokio::time::timeout(Duration::from_secs(120), working.join_all()).await;
    assert!(done.is_ok(), "those who are awake are held up");
    println!("{pairs} handoffs beside {} sleepers: {} MiB", asleep.len(), resident_memory_mib(&broker));

    // Whoever wakes up finds the mail.
    let client = broker.client().await;
    for sleeper in asleep.into_iter().take(20) {
        let name = sleeper.id().to_string();
        drop(sleeper);
        let woken = join(client.clone(), name, 16).await;
        assert_eq!(woken.take().await.unwrap().payload::<v1::Info>().text, "when you wake up");
    }
}
