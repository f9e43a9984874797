//! The stream of `WatchAgents` over the wire.

use std::time::Duration;

use baton::{
    proto::v1::{self, watch_agents_response::Event},
    time::Moment,
};
use baton_client::Client;
use tonic::Streaming;

use crate::broker::{Broker, PATIENCE, card};

const INTERVAL: Duration = Duration::from_millis(500);

struct Watch(Streaming<v1::WatchAgentsResponse>);

impl Watch {
    async fn begin(client: &Client, request: v1::WatchAgentsRequest) -> Self {
        Self(client.answer(client.agents().watch_agents(request).await).unwrap())
    }

    async fn next(&mut self) -> (Event, u64) {
        let next = tokio::time::timeout(PATIENCE, self.0.message()).await.expect("an event in time");
        let response = next.unwrap().expect("the watch goes on");
        (response.event.unwrap(), response.cursor)
    }

    /// The events up to the next `caught_up`, and its cursor.
    async fn catches_up(&mut self) -> (Vec<Event>, u64) {
        let mut events = Vec::new();
        loop {
            match self.next().await {
                (Event::CaughtUp(_), cursor) => return (events, cursor),
                (event, _) => events.push(event),
            }
        }
    }
}

fn with_skill(name: &str, skill: &str) -> v1::AgentCard {
    let skills = vec![v1::AgentSkill { name: skill.to_owned(), ..Default::default() }];
    v1::AgentCard { skills, ..card(name, "") }
}

async fn register(operator: &Client, card: v1::AgentCard) {
    let request = v1::RegisterAgentRequest { card: Some(card), ..Default::default() };
    operator.answer(operator.agents().register_agent(request).await).unwrap();
}

/// Changes the card of an agent. An empty skill removes all skills.
async fn update(operator: &Client, name: &str, skill: &str, capacity: u32) {
    let card = v1::AgentCard { capacity, ..with_skill(name, skill) };
    let card = if skill.is_empty() { v1::AgentCard { skills: Vec::new(), ..card } } else { card };
    let paths = vec!["skills".to_owned(), "capacity".to_owned()];
    let update_mask = Some(prost_types::FieldMask { paths });
    let request = v1::UpdateAgentRequest { card: Some(card), update_mask, ..Default::default() };
    operator.answer(operator.agents().update_agent(request).await).unwrap();
}

fn named(event: &Event) -> String {
    match event {
        Event::Agent(agent) => agent.card.as_ref().unwrap().agent_id.clone(),
        Event::LeftAgentId(agent) => format!("left {agent}"),
        Event::CaughtUp(_) => "caught up".to_owned(),
        Event::Activities(_) => "activities".to_owned(),
    }
}

#[tokio::test]
async fn presence_and_load_are_told_at_most_once_a_heartbeat_interval() {
    let broker = Broker::serve("", "[session]\nheartbeat_interval = \"500ms\"\n");
    let operator = broker.operator().await;
    register(&operator, card("busy", "")).await;
    let busy = broker.agent_session("busy").await;
    let mut watch = Watch::begin(&operator, v1::WatchAgentsRequest::default()).await;
    watch.catches_up().await;
    let began = Moment::now();
    let beats = async {
        // Each heartbeat changes the load.
        for active_tasks in 1..=200 {
            busy.session.heartbeat(v1::Heartbeat { active_tasks, capacity: 1000, ..Default::default() }).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let told = async {
        let mut messages = 0;
        loop {
            let (Event::Activities(told), _) = watch.next().await else { continue };
            messages += 1;
            let of_busy = |activity: &&v1::AgentActivity| activity.agent_id == "busy";
            let loads: Vec<_> = told.activities.iter().filter(of_busy).filter_map(|activity| activity.load).collect();
            assert!(loads.len() <= 1, "an agent is told of once in a message: {loads:?}");
            if loads.first().is_some_and(|load| load.in_use == 200) {
                return messages;
            }
        }
    };
    let ((), messages) = tokio::join!(beats, told);
    let most = began.elapsed().as_millis().div_ceil(INTERVAL.as_millis()) + 1;
    assert!(messages <= most, "{messages} messages in {most} intervals");
}

#[tokio::test]
async fn a_watch_tells_of_the_leaving_of_those_alone_that_matched() {
    let broker = Broker::serve("", "");
    let operator = broker.operator().await;
    for (name, skill) in [("sales", "sales"), ("tax", "tax"), ("tax-too", "tax")] {
        register(&operator, with_skill(name, skill)).await;
    }
    let request = v1::WatchAgentsRequest { skill: "tax".into(), cards_only: true, ..Default::default() };
    let mut watch = Watch::begin(&operator, request.clone()).await;
    let (there, cursor) = watch.catches_up().await;
    assert_eq!(there.iter().map(named).collect::<Vec<_>>(), ["tax", "tax-too"]);
    update(&operator, "sales", "sales", 5).await;
    update(&operator, "tax", "", 5).await;
    update(&operator, "tax", "", 6).await;
    update(&operator, "tax-too", "tax", 7).await;
    assert_eq!(named(&watch.next().await.0), "left tax");
    assert_eq!(named(&watch.next().await.0), "tax-too");

    // A watch that goes on knows the agents of the earlier call, also those that have not changed since.
    let mut again = Watch::begin(&operator, v1::WatchAgentsRequest { after_cursor: cursor, ..request }).await;
    let (changed, _) = again.catches_up().await;
    let changed: Vec<_> = changed.iter().map(named).collect();
    assert!(changed.contains(&"left tax".to_owned()) && changed.contains(&"tax-too".to_owned()), "{changed:?}");
    update(&operator, "sales", "sales", 8).await;
    update(&operator, "tax-too", "", 8).await;
    assert_eq!(named(&again.next().await.0), "left tax-too");
}
