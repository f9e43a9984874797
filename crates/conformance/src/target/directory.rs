//! SPEC 6: the directory. Cards are changed, watched and ended, and agents are found with the reasons for their rank.

use tokio_stream::StreamExt as _;
use tonic::Code;

use super::{
    check::{Answer, Checks, Refusal, Verdict, answered, fail, refused, same},
    story::a_request,
    world::{Actor, CREDIT, World, card},
};
use baton_client::{
    About,
    proto::v1::{self, watch_agents_response::Event},
};

cases! {
    "directory.agent-changes-its-card" "6"
        "UpdateAgent replaces the fields in the mask alone, and gives the card another etag." changes_its_card;
    "directory.update-needs-the-present-etag" "6"
        "UpdateAgent with an old etag is refused with CONFLICT, with an unknown path with FIELD_INVALID; nothing changes."
        old_etag;
    "directory.card-is-ones-own-to-change" "6"
        "An agent may not change or end the card of another one." card_of_another;
    "directory.skills-are-bounded" "6"
        "A card with 65 skills is refused with FIELD_INVALID, at registration and at an update." skills_are_bounded;
    "directory.find-explains-the-score" "6"
        "FindAgents returns the agents with the skill, or a more specific one, best first; the weighted factors add up to the score."
        find_explains;
    "directory.find-checks-its-filters" "6"
        "FindAgents for another agent, with 33 skills, or with a token of other filters is refused." find_is_checked;
    "directory.agent-with-work-stays" "6"
        "DeregisterAgent is refused with AGENT_BUSY while the agent owns an open task." busy_agent_stays;
    "directory.deregistered-agent-is-gone-for-good" "6"
        "A deregistered agent keeps its readable card, gets no message, and its id is never registered again." gone_for_good;
    "directory.broker-is-not-deregistered" "6"
        "DeregisterAgent of the broker or its coordinator is refused with FIELD_INVALID, also by an operator with force." broker_stays;
    "directory.usage-counts-messages" "5"
        "GetAgent shows the bytes that an agent stores: those of its mail until the ack." usage_counts_messages;
    "directory.watch-catches-up-and-goes-on" "6"
        "WatchAgents sends the agents that are there, caught_up once, then changes; after a cursor it sends only later ones."
        watch_goes_on;
    "directory.watch-tells-who-leaves" "6"
        "WatchAgents names an agent that no longer matches the filters, and checks its filters." watch_tells_who_leaves;
}

const INVALID: Refusal = Refusal(Code::InvalidArgument, "FIELD_INVALID");
const DENIED: Refusal = Refusal(Code::PermissionDenied, "PERMISSION_DENIED");

fn skilled(name: &str) -> v1::AgentSkill {
    v1::AgentSkill { name: name.to_owned(), ..Default::default() }
}

async fn update(by: &Actor, card: v1::AgentCard, paths: &[&str], etag: &str) -> Answer<v1::Agent> {
    let paths = paths.iter().map(ToString::to_string).collect();
    let update_mask = Some(prost_types::FieldMask { paths });
    let request = v1::UpdateAgentRequest { card: Some(card), update_mask, etag: etag.to_owned() };
    let answer = by.call(async { by.client.answer(by.client.agents().update_agent(request).await) }).await?;
    Ok(answer.agent.unwrap_or_default())
}

async fn get(by: &Actor, agent: &str) -> Verdict<v1::Agent> {
    let request = v1::GetAgentRequest { agent_id: agent.to_owned() };
    let answer = by.call(async { by.client.answer(by.client.agents().get_agent(request).await) }).await;
    Ok(answered("the card is read", answer)?.agent.unwrap_or_default())
}

async fn stored_bytes(of: &Actor) -> Verdict<u64> {
    Ok(get(of, of.id()).await?.usage.unwrap_or_default().stored_bytes)
}

async fn deregister(by: &Actor, agent: &str) -> Answer<v1::DeregisterAgentResponse> {
    let request = v1::DeregisterAgentRequest { agent_id: agent.to_owned(), ..Default::default() };
    by.call(async { by.client.answer(by.client.agents().deregister_agent(request).await) }).await
}

async fn find(by: &Actor, request: v1::FindAgentsRequest) -> Answer<v1::FindAgentsResponse> {
    by.call(async { by.client.answer(by.client.agents().find_agents(request).await) }).await
}

/// An agent with this skill, and its card.
async fn with_skill(world: &World, name: &str, skill: &str) -> Verdict<Actor> {
    let identity = world.identity(name);
    let card = v1::AgentCard { skills: vec![skilled(skill)], capacity: 4, ..card(&identity, &[]) };
    answered(&format!("{name} is registered"), world.register(&world.registrar(), card).await)?;
    world.connect(&identity, CREDIT).await
}

async fn changes_its_card(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let before = get(&alice, alice.id()).await?;
    let card = v1::AgentCard {
        agent_id: alice.id().to_owned(),
        description: "writes".to_owned(),
        capacity: 7,
        ..Default::default()
    };
    let after = answered("alice changes her capacity", update(&alice, card, &["capacity"], &before.etag).await)?;
    let read = get(&alice, alice.id()).await?;
    let mut checks = Checks::of("alice reads her card");
    let (was, is) = (before.card.unwrap_or_default(), read.card.clone().unwrap_or_default());
    checks.same("capacity", 7, is.capacity);
    checks.same("description, which the mask leaves out", &was.description, &is.description);
    checks.same("keys", &was.keys, &is.keys);
    checks.holds("etag", read.etag != before.etag && !read.etag.is_empty(), "another one", &read.etag);
    checks.same("etag of the answer", &after.etag, &read.etag);
    checks.done()
}

async fn old_etag(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let old = get(&alice, alice.id()).await?.etag;
    let card = |capacity| v1::AgentCard { agent_id: alice.id().to_owned(), capacity, ..Default::default() };
    answered("alice changes her capacity", update(&alice, card(7), &["capacity"], &old).await)?;
    let mut checks = Checks::of("alice changes it again");
    let conflict = Refusal(Code::Aborted, "CONFLICT");
    checks.refused("with the old etag", update(&alice, card(8), &["capacity"], &old).await, conflict);
    checks.refused("with an unknown path", update(&alice, card(8), &["capcity"], "").await, INVALID);
    checks.refused("with the path of the keys", update(&alice, card(8), &["keys"], "").await, INVALID);
    checks.same("capacity", 7, get(&alice, alice.id()).await?.card.unwrap_or_default().capacity);
    checks.done()
}

async fn card_of_another(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let card = v1::AgentCard { agent_id: alice.id().to_owned(), capacity: 1, ..Default::default() };
    let mut checks = Checks::of("bob acts on alice's card");
    checks.refused("a change", update(&bob, card, &["capacity"], "").await, DENIED);
    checks.refused("an end", deregister(&bob, alice.id()).await, DENIED);
    checks.done()?;
    let after = get(&alice, alice.id()).await?;
    same("alice reads her card", "deregister_time", None, after.deregister_time)
}

async fn skills_are_bounded(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let skills: Vec<_> = (0..65).map(|number| skilled(&format!("skill-{number}"))).collect();
    let identity = world.identity("versatile");
    let mut checks = Checks::of("a card with 65 skills");
    let versatile = v1::AgentCard { skills: skills.clone(), ..card(&identity, &[]) };
    checks.refused("registered", world.register(&world.registrar(), versatile).await, INVALID);
    let of_alice = v1::AgentCard { agent_id: alice.id().to_owned(), skills, ..Default::default() };
    checks.refused("updated", update(&alice, of_alice, &["skills"], "").await, INVALID);
    checks.done()?;
    same("alice reads her card", "skills", 0, get(&alice, alice.id()).await?.card.unwrap_or_default().skills.len())
}

async fn find_explains(world: World) -> Verdict {
    let skill = world.id("finance");
    let general = with_skill(&world, "general", &skill).await?;
    let special = with_skill(&world, "special", &format!("{skill}.tax")).await?;
    let asker = world.agent("asker").await?;
    let asked = async |skill: String| {
        let request = v1::FindAgentsRequest { required_skills: vec![skill], ..Default::default() };
        answered("the asker finds agents", find(&asker, request).await)
    };
    let found = asked(skill.clone()).await?.matches;
    let mut checks = Checks::of("the asker finds agents by the general skill");
    let mut ids: Vec<&str> = found.iter().map(|found| found.agent_id.as_str()).collect();
    ids.sort_unstable();
    let mut expected = vec![general.id(), special.id()];
    expected.sort_unstable();
    checks.same("agents", expected, ids);
    for (place, found) in found.iter().enumerate() {
        let sum: f64 = found.factors.iter().map(|factor| factor.value * factor.weight).sum();
        let weights: f64 = found.factors.iter().map(|factor| factor.weight).sum();
        checks.same("rank", place + 1, found.rank as usize);
        checks.holds("score", (sum - found.score).abs() < 1e-6, "the sum of value * weight", (found.score, sum));
        checks.holds("weights", (weights - 1.0).abs() < 1e-6, "1 in all", weights);
        let is_said = found.factors.iter().all(|factor| !factor.text.is_empty());
        checks.holds("factors", !found.factors.is_empty() && is_said, "each with words", &found.factors);
    }
    checks.done()?;
    let found = asked(format!("{skill}.tax")).await?.matches;
    let ids: Vec<&str> = found.iter().map(|found| found.agent_id.as_str()).collect();
    same("the asker finds agents by the specific skill", "agents", vec![special.id()], ids)
}

async fn find_is_checked(world: World) -> Verdict {
    let skill = world.id("finance");
    let (_one, _two) = (with_skill(&world, "one", &skill).await?, with_skill(&world, "two", &skill).await?);
    let (asker, other) = (world.agent("asker").await?, world.agent("other").await?);
    let request =
        |size| v1::FindAgentsRequest { required_skills: vec![skill.clone()], page_size: size, ..Default::default() };
    let first = answered("the first page", find(&asker, request(1)).await)?;
    let rest = v1::FindAgentsRequest { page_token: first.next_page_token.clone(), ..request(1) };
    let second = answered("the second page", find(&asker, rest.clone()).await)?;
    let mut checks = Checks::of("the asker finds agents");
    let ids: Vec<&str> = [&first, &second].iter().flat_map(|page| &page.matches).map(|m| m.agent_id.as_str()).collect();
    checks.holds("two pages of one", ids.len() == 2 && ids[0] != ids[1], "each agent once", &ids);
    let many = v1::FindAgentsRequest { required_skills: vec![skill.clone(); 33], ..Default::default() };
    checks.refused("with 33 skills", find(&asker, many).await, INVALID);
    let others = v1::FindAgentsRequest { as_sender_id: other.id().to_owned(), ..request(1) };
    let mismatch = Refusal(Code::PermissionDenied, "SENDER_MISMATCH");
    checks.refused("for another agent", find(&asker, others).await, mismatch);
    let strange = v1::FindAgentsRequest { required_skills: vec![], ..rest };
    let token = Refusal(Code::InvalidArgument, "PAGE_TOKEN_INVALID");
    checks.refused("with a token of other filters", find(&asker, strange).await, token);
    checks.done()
}

async fn busy_agent_stays(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let task = world.id("task");
    alice.tell(bob.id(), &About::task(&task, 1), &a_request()).await?;
    let busy = Refusal(Code::FailedPrecondition, "AGENT_BUSY");
    refused("alice, who owns a task, leaves", deregister(&alice, alice.id()).await, busy)?;
    refused("bob, who is asked to take it, leaves", deregister(&bob, bob.id()).await, busy)?;
    let after = get(&alice, alice.id()).await?;
    same("alice reads her card", "deregister_time", None, after.deregister_time)
}

async fn usage_counts_messages(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let before = stored_bytes(&alice).await?;
    alice.tell(bob.id(), &About::default(), &v1::Info { text: "x".repeat(2000), ..Default::default() }).await?;
    let waits = stored_bytes(&alice).await?;
    let mut checks = Checks::of("after alice's Info");
    checks.holds("usage.stored_bytes", waits >= before + 2000, &format!("at least {}", before + 2000), waits);
    bob.take(v1::MessageType::Info).await?;
    let after = stored_bytes(&alice).await?;
    checks.holds("usage.stored_bytes after the ack", after == before, &before.to_string(), after);
    checks.done()
}

async fn gone_for_good(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    answered("bob leaves", deregister(&bob, bob.id()).await)?;
    let left = get(&alice, bob.id()).await?;
    let mut checks = Checks::of("after bob has left");
    checks.holds("deregister_time", left.deregister_time.is_some(), "a time", left.deregister_time);
    let keys = left.card.unwrap_or_default().keys;
    checks.holds("keys", keys.iter().all(|key| key.revoke_time.is_some()), "all revoked", &keys);
    let unknown = Refusal(Code::NotFound, "RECEIVER_UNKNOWN");
    checks.refused("mail to bob", alice.submit(&alice.info(bob.id(), "hello")).await, unknown);
    let again = world.register(&world.registrar(), card(&bob.identity, &[])).await;
    checks.holds("a registration under his id", again.is_err(), "refused", &again);
    let proven = world.call(world.anonymous.prove(&bob.identity)).await;
    checks.holds("a proof with his key", proven.is_err(), "refused", proven.is_ok());
    checks.done()
}

async fn broker_stays(world: World) -> Verdict {
    let (operator, alice) = (world.operator()?, world.agent("alice").await?);
    for agent_id in ["baton", "baton.coordinator"] {
        let before = get(&alice, agent_id).await?;
        let request = v1::DeregisterAgentRequest { agent_id: agent_id.to_owned(), force: true, ..Default::default() };
        let ended = world.call(async { operator.answer(operator.agents().deregister_agent(request).await) }).await;
        refused(&format!("an operator deregisters {agent_id}"), ended, INVALID)?;
        same(&format!("alice reads {agent_id}"), "card", before.card, get(&alice, agent_id).await?.card)?;
    }
    Ok(())
}

type Watch = tonic::Streaming<v1::WatchAgentsResponse>;

async fn watch(by: &Actor, after_cursor: u64, skill: &str) -> Answer<Watch> {
    let request =
        v1::WatchAgentsRequest { after_cursor, skill: skill.to_owned(), cards_only: true, ..Default::default() };
    by.call(async { by.client.answer(by.client.agents().watch_agents(request).await) }).await
}

/// The next event: the agent's id and its capacity, "caught up", or "left ID". Then the cursor.
async fn event(by: &Actor, watch: &mut Watch) -> Verdict<(String, u64)> {
    // A watch may name agents that never matched its filters. Those of other cases end in other letters.
    let case = by.id().rsplit('-').next().unwrap_or_default();
    let update = loop {
        let next = by.call(async {
            match watch.next().await {
                Some(update) => by.client.answer(update.map(tonic::Response::new)),
                None => Ok(v1::WatchAgentsResponse::default()),
            }
        });
        let update = answered("the watch goes on", next.await)?;
        match &update.event {
            Some(Event::LeftAgentId(agent)) if !agent.ends_with(case) => {}
            _ => break update,
        }
    };
    let text = match update.event {
        Some(Event::Agent(agent)) => {
            let card = agent.card.unwrap_or_default();
            format!("{} with capacity {}", card.agent_id, card.capacity)
        }
        Some(Event::CaughtUp(_)) => "caught up".to_owned(),
        Some(Event::LeftAgentId(agent)) => format!("left {agent}"),
        Some(Event::Activities(_)) => return fail("a watch of cards", "event", "none of presence", "activities"),
        None => return fail("the watch goes on", "event", "an event", "the end"),
    };
    Ok((text, update.cursor))
}

async fn watch_goes_on(world: World) -> Verdict {
    let skill = world.id("skill");
    let alice = with_skill(&world, "alice", &skill).await?;
    let mut first = answered("alice watches", watch(&alice, 0, &skill).await)?;
    let (there, _) = event(&alice, &mut first).await?;
    same("the first event", "agent", format!("{} with capacity 4", alice.id()), there)?;
    let (caught_up, cursor) = event(&alice, &mut first).await?;
    same("the second event", "event", "caught up".to_owned(), caught_up)?;
    drop(first);
    // These changes come while the watch is cut off.
    let card = |capacity| v1::AgentCard { agent_id: alice.id().to_owned(), capacity, ..Default::default() };
    answered("alice changes her card", update(&alice, card(5), &["capacity"], "").await)?;
    let mut again = answered("alice watches again", watch(&alice, cursor, &skill).await)?;
    let mut events = vec![event(&alice, &mut again).await?.0, event(&alice, &mut again).await?.0];
    answered("alice changes her card", update(&alice, card(6), &["capacity"], "").await)?;
    events.push(event(&alice, &mut again).await?.0);
    let expected = ["5", "caught up", "6"].map(|what| match what {
        "caught up" => what.to_owned(),
        capacity => format!("{} with capacity {capacity}", alice.id()),
    });
    same("the watch after the cursor", "events", expected.to_vec(), events)
}

async fn watch_tells_who_leaves(world: World) -> Verdict {
    let skill = world.id("skill");
    let alice = with_skill(&world, "alice", &skill).await?;
    let mut updates = answered("alice watches", watch(&alice, 0, &skill).await)?;
    event(&alice, &mut updates).await?;
    event(&alice, &mut updates).await?;
    let card = v1::AgentCard { agent_id: alice.id().to_owned(), ..Default::default() };
    answered("alice drops the skill", update(&alice, card, &["skills"], "").await)?;
    let (left, _) = event(&alice, &mut updates).await?;
    same("alice no longer matches", "event", format!("left {}", alice.id()), left)?;
    // A stream may be refused with its first answer.
    let wrong = match watch(&alice, 0, "not a skill").await {
        Ok(mut updates) => alice
            .call(async {
                match updates.next().await {
                    Some(update) => alice.client.answer(update.map(tonic::Response::new)),
                    None => Ok(v1::WatchAgentsResponse::default()),
                }
            })
            .await
            .map(drop),
        Err(problem) => Err(problem),
    };
    refused("a watch of something that is no skill", wrong, INVALID).map(drop)
}
