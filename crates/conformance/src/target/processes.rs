//! SPEC 3: several processes of one agent. Each gets what belongs to what it has begun.

use std::time::Duration;

use prost::Message as _;
use tonic::Code;

use super::{
    check::{Checks, Refusal, Verdict, answered, fail, refused, same},
    story::{a_request, give},
    world::{Actor, CREDIT, World},
};
use baton_client::{
    About, Delivered, completion_of, context_of,
    proto::v1::{self, MessageType},
};

cases! {
    "process.gets-what-it-began" "3"
        "Accept, completion and result of a loan go to the process that sent its request, also if another process has more room."
        gets_what_it_began;
    "process.that-accepts-gets-the-context" "3"
        "The context goes to the process that accepted, also if another process of the agent has acked the offer."
        gets_the_context;
    "process.that-requests-gets-the-reject" "3"
        "A reject goes to the process that sent the request." gets_the_reject;
    "process.that-asks-gets-the-answer" "3"
        "An answer goes to the process that asked." gets_the_answer;
    "process.that-opens-a-negotiation-gets-the-offers" "3"
        "The offers of a negotiation and its close go to the process that sent its request." gets_the_offers;
    "process.that-offers-gets-the-answer" "3"
        "Counter-offers, the award of work without a task and the close go to the process that made the latest offer."
        gets_the_answer_to_its_offer;
    "process.that-offers-gets-the-award" "3"
        "The award of a task goes to the process that made the offer: by the requester, and by the rule of its mandate."
        gets_the_award;
    "process.that-submits-a-plan-gets-its-notice" "3"
        "The notice of a failed plan goes to the process that submitted it." gets_the_notice_of_its_plan;
    "process.is-named-by-calls-too" "3"
        "Send and Receive name the process by instance_id: what belongs to its request comes to its Receive, beside an open session of the agent."
        by_calls;
    "process.is-gone-and-another-gets-it" "3"
        "What belongs to a process that is gone goes to another process of its agent." another_gets_it;
    "process.gets-new-work-if-it-has-room" "3"
        "New work goes to the process with the most free slots." with_the_most_room;
    "process.capacities-add-up" "3"
        "The capacity of an agent is the sum of what its processes state in heartbeats." capacities_add_up;
    "process.is-listed-with-its-work" "3"
        "ListProcesses names the processes with an open session in their order, and the tasks that each lists, of those that the caller may see."
        is_listed;
}

/// Two processes of a new agent.
async fn two(world: &World, name: &str) -> Verdict<(Actor, Actor)> {
    let identity = world.enrol(name, &[]).await?;
    Ok((world.connect(&identity, CREDIT).await?, world.connect(&identity, CREDIT).await?))
}

fn lent() -> v1::HandoffRequest {
    v1::HandoffRequest { mode: v1::HandoffMode::Delegate.into(), ..a_request() }
}

/// Acks the next delivery of a process, which must have this type and be about this task.
async fn takes(process: &Actor, kind: MessageType, task: &str) -> Verdict<Delivered> {
    let delivered = process.take(kind).await?;
    same(&format!("process {} takes a {kind:?}", process.process), "task_id", task, &delivered.envelope.task_id)?;
    Ok(delivered)
}

/// Requests a loan of a new task. Returns the id of the handoff.
async fn request(by: &Actor, to: &Actor, task: &str) -> Verdict<String> {
    Ok(by.tell(to.id(), &About::task(task, 1), &lent()).await?.handoff_id)
}

async fn accept(by: &Actor, to: &Actor, task: &str, handoff: &str) -> Verdict {
    by.tell(to.id(), &About::handoff(task, 1, handoff), &v1::HandoffAccept::default()).await.map(drop)
}

async fn gets_what_it_began(world: World) -> Verdict {
    let ((first, second), bob) = (two(&world, "alice").await?, world.agent("bob").await?);
    // What any process could get would go to the first one.
    says_room(&first, 99, 0).await?;
    says_room(&second, 99, 90).await?;
    for round in 0..3 {
        let mut loans = Vec::new();
        for (name, process) in [("first", &first), ("second", &second)] {
            let task = world.id(&format!("{name}-{round}"));
            let handoff = request(process, &bob, &task).await?;
            takes(&bob, MessageType::HandoffRequest, &task).await?;
            accept(&bob, process, &task, &handoff).await?;
            loans.push((process, task, handoff));
        }
        // The second process goes on first.
        for (process, task, handoff) in loans.iter().rev() {
            takes(process, MessageType::HandoffAccept, task).await?;
            let about = About::handoff(task, 1, handoff);
            let context = context_of([]);
            process.tell(bob.id(), &about, &context).await?;
            takes(&bob, MessageType::TaskContextTransfer, task).await?;
            bob.tell(process.id(), &about, &completion_of(&context)).await?;
            takes(process, MessageType::HandoffComplete, task).await?;
            let done = v1::TaskStatusUpdate { status: v1::TaskStatus::Completed.into(), ..Default::default() };
            bob.tell("", &About::task(task, 2), &done).await?;
            takes(process, MessageType::TaskStatusUpdate, task).await?;
        }
    }
    Ok(())
}

async fn gets_the_context(world: World) -> Verdict {
    let (alice, identity) = (world.agent("alice").await?, world.enrol("bob", &[]).await?);
    let first = world.connect(&identity, CREDIT).await?;
    // Without credit, so that the first process gets the offers.
    let second = world.connect(&identity, 0).await?;
    let (tasks, mut handoffs) = ([world.id("task-1"), world.id("task-2")], Vec::new());
    for task in &tasks {
        handoffs.push(request(&alice, &first, task).await?);
        takes(&first, MessageType::HandoffRequest, task).await?;
    }
    answered("the second process gives credit", second.call(second.agent.session.credit(CREDIT)).await)?;
    for (place, by) in [(0, &second), (1, &first)] {
        let (task, handoff) = (&tasks[place], &handoffs[place]);
        accept(by, &alice, task, handoff).await?;
        alice.tell(by.id(), &About::handoff(task, 1, handoff), &context_of([])).await?;
        takes(by, MessageType::TaskContextTransfer, task).await?;
    }
    Ok(())
}

async fn gets_the_reject(world: World) -> Verdict {
    let ((first, second), bob) = (two_of(&world, "alice", &[]).await?, world.agent("bob").await?);
    for (name, process) in [("second", &second), ("first", &first)] {
        let task = world.id(name);
        let handoff = request(process, &bob, &task).await?;
        takes(&bob, MessageType::HandoffRequest, &task).await?;
        let reject = v1::HandoffReject { reason: v1::RejectReason::Other.into(), ..Default::default() };
        bob.tell(process.id(), &About::handoff(&task, 1, &handoff), &reject).await?;
        takes(process, MessageType::HandoffReject, &task).await?;
    }
    Ok(())
}

async fn gets_the_answer(world: World) -> Verdict {
    let ((first, second), bob) = (two(&world, "alice").await?, world.agent("bob").await?);
    for (round, process) in [&second, &first, &second].into_iter().enumerate() {
        let task = world.id(&format!("task-{round}"));
        let handoff = request(process, &bob, &task).await?;
        process.tell(bob.id(), &About::handoff(&task, 1, &handoff), &v1::HandoffCancel::default()).await?;
        let prompt =
            v1::TaskPrompt { question: "which colour?".into(), answer_by: bob.id().to_owned(), ..Default::default() };
        let status = v1::TaskStatus::WaitingForInput.into();
        let asking = v1::TaskStatusUpdate { status, prompt: Some(prompt), ..Default::default() };
        let question = process.tell("", &About::task(&task, 1), &asking).await?.message_id;
        let answer = v1::TaskInput { text: "blue".into(), ..Default::default() };
        bob.tell("", &About::handoff(&task, 1, &question), &answer).await?;
        takes(process, MessageType::TaskInput, &task).await?;
    }
    Ok(())
}

async fn gets_the_offers(world: World) -> Verdict {
    let types = [world.id("analyst")];
    let ((first, second), bob) = (two(&world, "alice").await?, world.agent_of("bob", &types, CREDIT).await?);
    for process in [&second, &first, &second] {
        let asked = process.tell(&format!("all:{}", types[0]), &About::default(), &v1::TaskRequest::default()).await?;
        let negotiation = asked.message_id;
        let about = About::handoff("", 0, &negotiation);
        bob.tell(process.id(), &about, &v1::TaskOffer { confidence: 0.5, ..Default::default() }).await?;
        // The only agent that was asked has answered, so the negotiation closes.
        for kind in [MessageType::TaskOffer, MessageType::NegotiationClosed] {
            let delivered = process.take(kind).await?;
            let step = format!("the process takes a {kind:?}");
            same(&step, "correlation_id", &negotiation, &delivered.envelope.correlation_id)?;
        }
    }
    Ok(())
}

/// Two processes of a new agent, of which the first one gets what any process may get.
async fn two_of(world: &World, name: &str, types: &[String]) -> Verdict<(Actor, Actor)> {
    let identity = world.enrol(name, types).await?;
    let (first, second) = (world.connect(&identity, CREDIT).await?, world.connect(&identity, CREDIT).await?);
    says_room(&first, 99, 0).await?;
    says_room(&second, 99, 90).await?;
    Ok((first, second))
}

/// Makes an offer from a process. Returns its id.
async fn offers(process: &Actor, to: &Actor, negotiation: &str, round: u32, confidence: f64) -> Verdict<String> {
    let offer = v1::TaskOffer { confidence, round, ..Default::default() };
    Ok(process.tell(to.id(), &About::handoff("", 0, negotiation), &offer).await?.message_id)
}

/// Acks the next delivery of a process, which must have this type and belong to this negotiation.
async fn takes_of(process: &Actor, kind: MessageType, negotiation: &str) -> Verdict<Delivered> {
    let delivered = process.take(kind).await?;
    let step = format!("process {} takes a {kind:?}", process.process);
    same(&step, "correlation_id", negotiation, &delivered.envelope.correlation_id)?;
    Ok(delivered)
}

async fn gets_the_answer_to_its_offer(world: World) -> Verdict {
    let types = [world.id("analyst")];
    let (alice, carol) = (world.agent("alice").await?, world.agent_of("carol", &types, CREDIT).await?);
    let (first, second) = two_of(&world, "bob", &types).await?;
    for wins in [true, false] {
        let asked = alice.tell(&format!("all:{}", types[0]), &About::default(), &v1::TaskRequest::default()).await?;
        let negotiation = asked.message_id;
        first.take(MessageType::TaskRequest).await?;
        carol.take(MessageType::TaskRequest).await?;
        offers(&second, &alice, &negotiation, 0, 0.5).await?;
        alice.take(MessageType::TaskOffer).await?;
        offers(&alice, &second, &negotiation, 1, 0.5).await?;
        takes_of(&second, MessageType::TaskOffer, &negotiation).await?;
        let by_second = offers(&second, &alice, &negotiation, 1, 0.5).await?;
        let by_carol = offers(&carol, &alice, &negotiation, 0, 0.9).await?;
        // All have answered, so the negotiation closes.
        for kind in [MessageType::TaskOffer, MessageType::TaskOffer, MessageType::NegotiationClosed] {
            alice.take(kind).await?;
        }
        let (winner, offer_id) = if wins { (&second, by_second) } else { (&carol, by_carol) };
        let award = v1::TaskAccept { offer_id, ..Default::default() };
        alice.tell(winner.id(), &About::handoff("", 0, &negotiation), &award).await?;
        let (of_second, of_carol) = match wins {
            true => (MessageType::TaskAccept, MessageType::NegotiationClosed),
            false => (MessageType::NegotiationClosed, MessageType::TaskAccept),
        };
        takes_of(&second, of_second, &negotiation).await?;
        takes_of(&carol, of_carol, &negotiation).await?;
    }
    Ok(())
}

async fn gets_the_award(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let (first, second) = two_of(&world, "bob", &[]).await?;
    let task = world.id("by-hand");
    let asked = alice.tell(first.id(), &About::default(), &v1::TaskRequest::default()).await?;
    first.take(MessageType::TaskRequest).await?;
    let offer_id = offers(&second, &alice, &asked.message_id, 0, 0.5).await?;
    let award = v1::TaskAccept { offer_id, handoff: Some(a_request()), ..Default::default() };
    alice.tell(first.id(), &About::handoff(&task, 1, &asked.message_id), &award).await?;
    takes(&second, MessageType::TaskAccept, &task).await?;
    let task = world.id("by-rule");
    let mandate = v1::TaskRequest {
        handoff: Some(a_request()),
        award_rule: v1::AwardRule::HighestConfidence.into(),
        ..Default::default()
    };
    let asked = alice.tell(first.id(), &About::task(&task, 1), &mandate).await?;
    first.take(MessageType::TaskRequest).await?;
    // The only agent that was asked has answered, so the negotiation closes and the rule awards.
    offers(&second, &alice, &asked.message_id, 0, 0.5).await?;
    takes_of(&second, MessageType::NegotiationClosed, &asked.message_id).await?;
    Ok(())
}

async fn gets_the_notice_of_its_plan(world: World) -> Verdict {
    let types = [world.id("worker")];
    let ((_first, second), bob) = (two_of(&world, "alice", &[]).await?, world.agent_of("bob", &types, CREDIT).await?);
    let subtask = v1::Subtask {
        id: "only".into(),
        description: "a part".into(),
        agent_type: types[0].clone(),
        attempts_max: 1,
        ..Default::default()
    };
    let plan_id = world.id("plan");
    let plan = v1::Plan { plan_id, description: "a report".into(), subtasks: vec![subtask], ..Default::default() };
    second.tell("", &About::default(), &v1::PlanSubmission { plan: Some(plan), ..Default::default() }).await?;
    let offer = bob.take(MessageType::HandoffRequest).await?;
    let reject = v1::HandoffReject { reason: v1::RejectReason::NoSkill.into(), ..Default::default() };
    bob.tell("baton.coordinator", &offer.about(), &reject).await?;
    let notice = second.take(MessageType::ErrorNotification).await?;
    let code = v1::ErrorNotification::decode(&*notice.envelope.payload.unwrap_or_default().value)
        .map(|notice| notice.error_code())
        .unwrap_or_default();
    same("the process that submitted the plan takes a notice", "error_code", v1::ErrorCode::PlanFailed, code)
}

async fn by_calls(world: World) -> Verdict {
    let (session, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let instance_id = world.another_process();
    let step = "a process without a session calls Receive";
    let receive = v1::ReceiveRequest { instance_id: instance_id.clone(), ..Default::default() };
    let messages = || session.client.messages();
    let stream = session.call(async { session.client.answer(messages().receive(receive).await) }).await;
    let mut stream = answered(step, stream)?;
    let task = world.id("task");
    let envelope = session.envelope(bob.id(), &About::task(&task, 1), &lent()).encode_to_vec().into();
    let send = v1::SendRequest { envelope, instance_id };
    let sent = session.call(async { session.client.answer(messages().send(send).await) }).await;
    let handoff = answered("the process calls Send", sent)?.receipt.unwrap_or_default().handoff_id;
    let other = world.id("other");
    let other_handoff = request(&session, &bob, &other).await?;
    accept(&bob, &session, &task, &handoff).await?;
    accept(&bob, &session, &other, &other_handoff).await?;
    takes(&session, MessageType::HandoffAccept, &other).await?;
    let delivery = match answered(step, session.call(async { Ok(stream.message().await) }).await)? {
        Ok(Some(v1::ReceiveResponse { delivery: Some(delivery) })) => delivery,
        other => return fail(step, "delivery", "the accept", format!("{other:?}")),
    };
    let delivered = answered(step, session.call(session.agent.check(delivery)).await)?;
    let mut checks = Checks::of(step);
    checks.same("message_type", MessageType::HandoffAccept, delivered.kind());
    checks.same("task_id", &task, &delivered.envelope.task_id);
    checks.done()
}

async fn another_gets_it(world: World) -> Verdict {
    let ((first, second), bob) = (two(&world, "alice").await?, world.agent("bob").await?);
    let task = world.id("task");
    let handoff = request(&first, &bob, &task).await?;
    // The drop of the actor ends its session.
    drop(first);
    accept(&bob, &second, &task, &handoff).await?;
    // The broker gives the first process the time to come back.
    let delivered = second.take_within(MessageType::HandoffAccept, Duration::from_secs(5)).await?;
    same("the other process takes the accept", "task_id", &task, &delivered.envelope.task_id)
}

async fn says_room(process: &Actor, capacity: u32, active_tasks: u32) -> Verdict {
    let heartbeat = v1::Heartbeat { capacity, active_tasks, ..Default::default() };
    answered("a process sends a heartbeat", process.call(process.agent.session.heartbeat(heartbeat)).await)
}

async fn with_the_most_room(world: World) -> Verdict {
    let (alice, (first, second)) = (world.agent("alice").await?, two(&world, "bob").await?);
    says_room(&first, 4, 3).await?;
    says_room(&second, 4, 1).await?;
    for _ in 0..2 {
        alice.tell(second.id(), &About::default(), &v1::Info::default()).await?;
    }
    // Without acks between them, so that the second one finds one slot less.
    for _ in 0..2 {
        second.next("the process with more free slots takes the mail").await?;
    }
    Ok(())
}

async fn capacities_add_up(world: World) -> Verdict {
    let (alice, (first, second)) = (world.agent("alice").await?, two(&world, "bob").await?);
    says_room(&first, 1, 0).await?;
    says_room(&second, 2, 0).await?;
    let request_of_card = v1::GetAgentRequest { agent_id: first.id().to_owned() };
    let card = alice.call(async { alice.client.answer(alice.client.agents().get_agent(request_of_card).await) }).await;
    let load = answered("alice reads the card", card)?.agent.and_then(|agent| agent.load).unwrap_or_default();
    same("alice reads the card", "load.capacity", 3, load.capacity)?;
    let mut waits_for = Vec::new();
    for number in 0..4 {
        let handoff = request(&alice, &first, &world.id(&format!("task-{number}"))).await?;
        waits_for.push(answered("alice reads a handoff", alice.handoff(&handoff).await)?.waiting_for());
    }
    let (none, room) = (v1::WaitingFor::Unspecified, v1::WaitingFor::Capacity);
    same("alice requests four handoffs", "waiting_for", vec![none, none, none, room], waits_for)
}

async fn is_listed(world: World) -> Verdict {
    let (alice, carol, identity) =
        (world.agent("alice").await?, world.agent("carol").await?, world.enrol("bob", &[]).await?);
    let (silent, telling) = (world.connect(&identity, 0).await?, world.process(&identity, CREDIT, true).await?);
    let task = world.id("task");
    give(&alice, &telling, &task, &a_request()).await?;
    let heartbeat = v1::Heartbeat { working_on: vec![task.clone(), world.id("none")], ..Default::default() };
    answered("bob lists its work", telling.call(telling.agent.session.heartbeat(heartbeat)).await)?;
    for by in [&alice, &carol] {
        // The policy says whether carol, who has no part in the task, may see it.
        let seen: Vec<String> = by.task(&task).await.ok().map(|task| task.task_id).into_iter().collect();
        let listed = answered("the processes are listed", by.call(by.client.list_processes(silent.id())).await)?;
        let mut checks = Checks::of(format!("{} lists bob's processes", by.id()));
        let ids: Vec<&str> = listed.iter().map(|process| process.instance_id.as_str()).collect();
        checks.same("instance_id", vec![silent.process.as_str(), &telling.process], ids);
        checks.same("lists_work", vec![false, true], listed.iter().map(|process| process.lists_work).collect());
        checks.same("task_ids", seen, listed.last().map(|process| process.task_ids.clone()).unwrap_or_default());
        checks.same("task_count", vec![0, 2], listed.iter().map(|process| process.task_count).collect());
        checks.done()?;
    }
    let unknown = alice.call(alice.client.list_processes(&world.id("dave"))).await;
    refused("alice lists the processes of nobody", unknown, Refusal(Code::NotFound, "AGENT_UNKNOWN")).map(drop)
}
