//! Lists for operators and consoles: handoffs by their conditions, tasks by update, changes of handoffs, mailboxes.

use std::{sync::atomic::Ordering, time::Duration};

use baton_broker_core::{
    access::Caller,
    codes::{ErrorCode, Refusal as _},
    domain::handoff::State,
    ids::{AgentId, ConversationId, TaskId},
    proto::v1::{self, MessageType, TaskStatus},
    queries::{Backlog, HandoffFilter, LOOKED_AT_MAX, TaskFilter},
};

use crate::world::{World, assert_refused, operator};

fn id(name: &str) -> AgentId {
    AgentId::parse(name).unwrap()
}

fn agent(name: &str) -> Caller {
    Caller::Agent(id(name))
}

fn about(envelope: v1::Envelope, task: &str) -> v1::Envelope {
    v1::Envelope { task_id: task.into(), ..envelope }
}

impl World {
    /// Requests a handoff of a new task. Returns its id.
    fn ask_for(&mut self, from: &str, to: &str, task: &str, task_type: &str) -> String {
        let payload = v1::HandoffRequest { task_type: task_type.into(), ..Default::default() };
        let request = about(self.request_with(from, to, 1, &payload), task);
        self.send(request).unwrap().handoff_id
    }

    fn cancel_it(&mut self, from: &str, to: &str, task: &str, handoff: &str) {
        let cancel = about(self.cancel(from, to, handoff, 1), task);
        self.send(cancel).unwrap();
    }

    fn listed(&self, caller: &Caller, filter: &HandoffFilter) -> Vec<String> {
        let page = self.view(caller).handoffs(filter, 100, "").unwrap();
        page.entries.iter().map(|handoff| handoff.id.to_string()).collect()
    }

    /// The handoffs of a task, read one a page.
    fn handoffs_of(&self, task: &str) -> Vec<String> {
        let (caller, task) = (operator(), TaskId::parse(task).unwrap());
        let filter = HandoffFilter { task: Some(task), ..HandoffFilter::default() };
        let (mut handoffs, mut token) = (Vec::new(), String::new());
        loop {
            let page = self.view(&caller).handoffs(&filter, 1, &token).unwrap();
            handoffs.extend(page.entries.iter().map(|handoff| handoff.id.to_string()));
            if page.next_token.is_empty() {
                return handoffs;
            }
            token = page.next_token;
        }
    }

    fn tasks_by_update(&self) -> Vec<String> {
        let caller = operator();
        let filter = TaskFilter { by_update: true, ..TaskFilter::default() };
        let (mut tasks, mut token) = (Vec::new(), String::new());
        loop {
            let page = self.view(&caller).tasks(&filter, 2, &token).unwrap();
            tasks.extend(page.entries.iter().map(|record| record.task.id.to_string()));
            if page.next_token.is_empty() {
                return tasks;
            }
            token = page.next_token;
        }
    }

    /// The number of the latest change.
    fn latest(&self) -> u64 {
        *self.engine.handoff_changes().latest().borrow()
    }

    /// The handoffs with their states that a watcher gets from memory after this change.
    fn changes_after(&self, caller: &Caller, number: u64) -> Option<Vec<(String, State)>> {
        let changes = self.engine.handoff_changes().after(number, 100)?;
        let view = self.view(caller);
        let filter = HandoffFilter::default();
        let shown = changes.iter().filter_map(|change| view.changed(change, &filter).unwrap());
        Some(shown.map(|handoff| (handoff.id.to_string(), handoff.state)).collect())
    }

    fn backlog(&self, caller: &Caller, backlog: Backlog, after: u64) -> Vec<(String, State)> {
        let (mut found, filter) = (Vec::new(), HandoffFilter::default());
        let mut place = if backlog == Backlog::Open { 0 } else { after };
        loop {
            let page = self.view(caller).backlog(backlog, &filter, after, place, 2).unwrap();
            found.extend(page.handoffs.iter().map(|(_, handoff)| (handoff.id.to_string(), handoff.state)));
            match page.next {
                Some(next) => place = next,
                None => return found,
            }
        }
    }
}

#[test]
fn each_condition_of_a_list_of_handoffs_holds_alone_and_with_others() {
    let mut world = World::with(&["a", "b", "c"]);
    let first = world.ask_for("a", "b", "t1", "billing");
    world.pass(Duration::from_secs(60));
    let second = world.ask_for("b", "a", "t2", "billing");
    let third = world.ask_for("a", "c", "t3", "shipping");
    let ended = world.ask_for("a", "b", "t4", "shipping");
    world.cancel_it("a", "b", "t4", &ended);
    let all = HandoffFilter::default;
    let open = HandoffFilter { open_only: true, ..all() };
    let due = world.handoff(&first).next_deadline().unwrap();
    let before = |at| HandoffFilter { deadline_before: Some(at), ..all() };
    for restarted in [false, true] {
        if restarted {
            world.restart();
        }
        let caller = operator();
        for (filter, expected) in [
            (open.clone(), vec![&third, &second, &first]),
            (HandoffFilter { sender: Some(id("a")), ..all() }, vec![&ended, &third, &first]),
            (HandoffFilter { sender: Some(id("a")), ..open.clone() }, vec![&third, &first]),
            (HandoffFilter { candidate: Some(id("a")), ..all() }, vec![&second]),
            (HandoffFilter { agent: Some(id("a")), candidate: Some(id("b")), ..all() }, vec![&ended, &first]),
            (HandoffFilter { task_type: Some("billing".into()), ..all() }, vec![&second, &first]),
            (HandoffFilter { task_type: Some("billing".into()), sender: Some(id("b")), ..open.clone() }, vec![&second]),
            (HandoffFilter { task: Some(TaskId::parse("t3").unwrap()), ..all() }, vec![&third]),
            (HandoffFilter { task: Some(TaskId::parse("none").unwrap()), ..all() }, vec![]),
            (HandoffFilter { states: vec![State::Requested], ..all() }, vec![&third, &second, &first]),
            (HandoffFilter { states: vec![State::Cancelled], ..open.clone() }, vec![]),
            (before(due), vec![]),
            (before(due.plus(Duration::from_nanos(1))), vec![&first]),
        ] {
            assert_eq!(world.listed(&caller, &filter), expected.into_iter().cloned().collect::<Vec<_>>(), "{filter:?}");
        }
        assert_eq!(world.listed(&agent("c"), &open), std::slice::from_ref(&third), "an agent sees its own");
        let of_others = HandoffFilter { task: Some(TaskId::parse("t1").unwrap()), ..all() };
        assert_eq!(world.listed(&agent("c"), &of_others), [""; 0]);
    }
}

#[test]
fn open_handoffs_and_those_of_a_task_are_found_among_many_ended_ones() {
    let mut world = World::with(&["a", "b"]);
    let first = world.ask_for("a", "b", "first", "x");
    for number in 0..LOOKED_AT_MAX + 10 {
        let task = format!("t{number}");
        let handoff = world.ask_for("a", "b", &task, "x");
        world.cancel_it("a", "b", &task, &handoff);
    }
    let open = HandoffFilter { open_only: true, ..HandoffFilter::default() };
    let of_task = HandoffFilter { task: Some(TaskId::parse("first").unwrap()), ..HandoffFilter::default() };
    for filter in [open, of_task] {
        let before = world.disk.reads.load(Ordering::Relaxed);
        assert_eq!(world.listed(&operator(), &filter), std::slice::from_ref(&first));
        assert!(world.disk.reads.load(Ordering::Relaxed) - before < 10);
    }
}

#[test]
fn tasks_are_listed_by_their_latest_updates() {
    let mut world = World::with(&["a", "b"]);
    for task in ["t1", "t2", "t3"] {
        world.ask_for("a", "b", task, "x");
    }
    assert_eq!(world.tasks_by_update(), ["t3", "t2", "t1"]);
    let busy = about(world.status("a", "", 1, TaskStatus::InProgress), "t1");
    world.send(busy).unwrap();
    assert_eq!(world.tasks_by_update(), ["t1", "t3", "t2"]);
    world.restart();
    assert_eq!(world.tasks_by_update(), ["t1", "t3", "t2"]);
    let first = world.handoffs_of("t1").remove(0);
    let of_t2 = world.handoffs_of("t2").remove(0);
    world.cancel_it("a", "b", "t2", &of_t2);
    assert_eq!(world.tasks_by_update(), ["t2", "t1", "t3"], "the end of a handoff updates its task");
    world.cancel_it("a", "b", "t1", &first);
    let second = world.ask_for("a", "b", "t1", "x");
    assert_eq!(world.tasks_by_update(), ["t1", "t2", "t3"], "each task is listed once");
    assert_eq!(world.handoffs_of("t1"), [second.clone(), first.clone()]);
    world.cancel_it("a", "b", "t1", &second);
    let third = world.ask_for("a", "b", "t1", "x");
    world.restart();
    assert_eq!(world.tasks_by_update(), ["t1", "t2", "t3"]);
    assert_eq!(world.handoffs_of("t1"), [third, second, first]);
    let caller = operator();
    let by_update = TaskFilter { by_update: true, ..TaskFilter::default() };
    let view = world.view(&caller);
    let page = view.tasks(&by_update, 1, "").unwrap();
    let refused = view.tasks(&TaskFilter::default(), 1, &page.next_token).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::PageTokenInvalid, "the token of another order");
    let of_b = TaskFilter { owner: Some(id("b")), ..by_update.clone() };
    assert_eq!(view.tasks(&of_b, 9, "").unwrap().entries, []);
}

#[test]
fn a_watcher_gets_each_change_it_may_see_from_memory_and_after_a_restart_from_the_store() {
    let mut world = World::with(&["a", "b", "c"]);
    let begin = world.latest();
    let first = world.ask_for("a", "b", "t1", "x");
    let second = world.ask_for("a", "c", "t2", "x");
    world.cancel_it("a", "b", "t1", &first);
    let last = world.latest();
    let olga = operator();
    let cancelled = (first.clone(), State::Cancelled);
    let requested = (second.clone(), State::Requested);
    // Of two changes of one handoff only the latest is shown.
    assert_eq!(world.changes_after(&olga, begin), Some(vec![requested.clone(), cancelled.clone()]));
    assert_eq!(world.changes_after(&agent("c"), begin), Some(vec![requested.clone()]));
    assert_eq!(world.changes_after(&olga, last), Some(vec![]));
    world.restart();
    assert_eq!(world.changes_after(&olga, begin), None, "memory begins with the start");
    assert!(world.latest() >= last, "a cursor from before the restart is none of the future");
    assert_eq!(world.backlog(&olga, Backlog::Open, begin), std::slice::from_ref(&requested));
    assert_eq!(world.backlog(&olga, Backlog::Ended, begin), [cancelled]);
    assert_eq!(world.backlog(&agent("c"), Backlog::Ended, begin), []);
    assert_eq!(world.backlog(&olga, Backlog::Open, last), [], "nothing has changed since");
    assert_eq!(world.backlog(&olga, Backlog::Ended, last), []);
    let after = world.latest();
    world.cancel_it("a", "c", "t2", &second);
    assert_eq!(world.changes_after(&olga, after), Some(vec![(second, State::Cancelled)]));
}

#[test]
fn a_failed_commit_shows_no_change_and_watchers_read_the_store_again() {
    let mut world = World::with(&["a", "b"]);
    let begin = world.latest();
    world.disk.full.store(true, Ordering::Relaxed);
    world.send(world.request("a", "b", 1)).unwrap_err();
    assert_eq!(world.changes_after(&operator(), begin), Some(vec![]));
    world.disk.full.store(false, Ordering::Relaxed);
    world.recover();
    assert_eq!(world.backlog(&operator(), Backlog::Open, 0), []);
    let latest = world.latest();
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    assert_eq!(world.changes_after(&operator(), latest), Some(vec![(handoff, State::Requested)]));
}

#[test]
fn letters_are_counted_as_they_come_and_go_and_again_after_a_restart() {
    let mut world = World::with(&["a", "b"]);
    for _ in 0..3 {
        world.send(world.info("a", "b", "hello")).unwrap();
        world.pass(Duration::from_secs(1));
    }
    let letters = |world: &World| world.engine.directory().letters(&id("b"));
    assert_eq!(letters(&world), Some(3));
    let mut b = world.connect("b");
    let delivered = b.deliveries();
    world.ack(&b, &delivered[0].0);
    assert_eq!(letters(&world), Some(2), "a letter in flight waits, too");
    world.restart();
    assert_eq!(letters(&world), None, "not counted yet");
    world.settle();
    assert_eq!(letters(&world), Some(2));
    let mut b = world.connect("b");
    for (delivery, _) in b.deliveries() {
        world.ack(&b, &delivery);
    }
    assert_eq!(letters(&world), Some(0));
    assert_eq!(world.engine.directory().letters(&id("a")), Some(0));
}

#[test]
fn many_letters_are_counted_in_parts_while_others_come_and_go() {
    let mut world = World::with(&["a", "b", "c"]);
    for number in 0..1200 {
        let to = if number % 2 == 0 { "b" } else { "c" };
        world.send(world.info("a", to, "hello")).unwrap();
    }
    world.restart();
    // Each commit counts a part; these letters fall before and behind the counted ones.
    for _ in 0..5 {
        world.send(world.info("a", "b", "more")).unwrap();
        world.send(world.info("a", "c", "more")).unwrap();
    }
    world.settle();
    let letters = |name: &str| world.engine.directory().letters(&id(name));
    assert_eq!((letters("b"), letters("c")), (Some(605), Some(605)));
}

#[test]
fn the_changes_of_handoffs_are_for_callers_with_an_identity() {
    let mut world = World::with(&["a", "b"]);
    let begin = world.latest();
    world.ask_for("a", "b", "t1", "x");
    let (nameless, filter) = (Caller::Anonymous, HandoffFilter::default());
    let view = world.view(&nameless);
    for backlog in [Backlog::Open, Backlog::Ended] {
        let refusal = view.backlog(backlog, &filter, 0, 0, 32).unwrap_err();
        assert_eq!(refusal.code(), ErrorCode::IdentityMissing);
    }
    let changes = world.engine.handoff_changes().after(begin, 100).unwrap();
    assert_eq!(view.changed(&changes[0], &filter).unwrap_err().code(), ErrorCode::IdentityMissing);
    assert_eq!(view.removed_handoff_changes().unwrap_err().code(), ErrorCode::IdentityMissing);
}

#[test]
fn an_agent_lists_its_own_tasks_by_update_and_no_others() {
    let mut world = World::with(&["a", "b", "c"]);
    let own = world.ask_for("a", "b", "t1", "x");
    world.ask_for("a", "c", "t2", "x");
    world.ask_for("c", "b", "t3", "x");
    let by_update = TaskFilter { by_update: true, ..TaskFilter::default() };
    let listed = |world: &World, name: &str| {
        let (caller, mut token, mut tasks) = (agent(name), String::new(), Vec::new());
        loop {
            let page = world.view(&caller).tasks(&by_update, 1, &token).unwrap();
            tasks.extend(page.entries.iter().map(|record| record.task.id.to_string()));
            token = page.next_token;
            if token.is_empty() {
                return tasks;
            }
        }
    };
    assert_eq!(listed(&world, "a"), ["t2", "t1"]);
    world.cancel_it("a", "b", "t1", &own);
    assert_eq!(listed(&world, "a"), ["t1", "t2"], "the latest change is first");
    assert_eq!(listed(&world, "c"), ["t3"], "a candidate has not owned the task");
    assert_eq!(listed(&world, "b"), Vec::<String>::new());
    world.restart();
    assert_eq!(listed(&world, "a"), ["t1", "t2"]);
}

#[test]
fn tasks_are_listed_by_their_conversation() {
    let mut world = World::with(&["a", "b", "c"]);
    let ask = |world: &mut World, from: &str, task: &str, parent: &str, conversation: &str| {
        let payload = v1::HandoffRequest {
            task_type: "x".into(),
            parent_task_id: parent.into(),
            conversation_id: conversation.into(),
            ..Default::default()
        };
        let envelope = world.envelope(from, "b", MessageType::HandoffRequest, &payload);
        world.send(v1::Envelope { task_id: task.into(), epoch: 1, ..envelope })
    };
    let first = ask(&mut world, "a", "t1", "", "chat 7/ä").unwrap().handoff_id;
    ask(&mut world, "a", "t2", "t1", "chat 7/ä").unwrap();
    ask(&mut world, "a", "t3", "t1", "chat 8").unwrap();
    ask(&mut world, "c", "t4", "", "chat 7/ä").unwrap();
    let of = |world: &World, caller: &Caller, filter: &TaskFilter| {
        let page = world.view(caller).tasks(filter, 9, "").unwrap();
        page.entries.iter().map(|record| record.task.id.to_string()).collect::<Vec<_>>()
    };
    let chat = TaskFilter { conversation: Some(ConversationId::parse("chat 7/ä").unwrap()), ..TaskFilter::default() };
    let part = TaskFilter { parent: Some(TaskId::parse("t1").unwrap()), ..chat.clone() };
    let by_update = TaskFilter { by_update: true, ..chat.clone() };
    for _ in 0..2 {
        assert_eq!(of(&world, &operator(), &chat), ["t4", "t2", "t1"]);
        assert_eq!(of(&world, &agent("a"), &chat), ["t2", "t1"], "tasks of others stay hidden");
        assert_eq!(of(&world, &agent("a"), &by_update), ["t2", "t1"]);
        assert_eq!(of(&world, &operator(), &part), ["t2"]);
        world.restart();
    }
    // A later request names the same conversation or none, or is refused.
    world.cancel_it("a", "b", "t1", &first);
    for (conversation, is_taken) in [("chat 8", false), ("chat 7/ä", true)] {
        let asked = ask(&mut world, "a", "t1", "", conversation);
        match is_taken {
            true => drop(asked.unwrap()),
            false => drop(assert_refused(asked, ErrorCode::FieldInvalid)),
        }
    }
    for wrong in ["a\u{0}b", &"x".repeat(129)] {
        assert_refused(ask(&mut world, "a", "t9", "", wrong), ErrorCode::FieldInvalid);
    }
    world.audit("t1");
}

#[test]
fn a_later_request_lowers_the_loop_limits_of_its_task() {
    let mut world = World::with(&["a", "b"]);
    let ask = |world: &mut World, most: u32| {
        let limits = v1::LoopLimits { max_handoffs: most, max_handoffs_per_pair: 0 };
        let payload = v1::HandoffRequest { task_type: "x".into(), loop_limits: Some(limits), ..Default::default() };
        let envelope = world.envelope("a", "b", MessageType::HandoffRequest, &payload);
        world.send(v1::Envelope { task_id: "t1".into(), epoch: 1, ..envelope })
    };
    let limit = |world: &World| world.task("t1").task.loop_limits.handoffs_max;
    let first = ask(&mut world, 5).unwrap().handoff_id;
    world.cancel_it("a", "b", "t1", &first);
    let second = ask(&mut world, 3).unwrap().handoff_id;
    assert_eq!(limit(&world), 3);
    world.cancel_it("a", "b", "t1", &second);
    ask(&mut world, 16).unwrap();
    assert_eq!(limit(&world), 3, "a request never raises a limit");
    world.audit("t1");
}
