//! Threads: boundaries over restarts, leases, workspaces, and the removal of idle threads.

use std::{collections::BTreeSet, ops::Bound::Unbounded, sync::atomic::Ordering::Relaxed, time::Duration};

use baton_broker_core::{
    Settings,
    access::Caller,
    codes::{ErrorCode, Refusal as _},
    domain::{
        EntityId, Input,
        threads::{self, Action, ActionId, Create, IDLE, PLUGIN, Spec, SpecKind, Thread, ThreadRunId},
        workspace::WorkspaceId,
    },
    engine::{Command, Revision},
    ids::{AgentId, MessageId, SpecId, TaskId, ThreadId},
    proto::v1::{self, thread_entry::Event},
    queries::ThreadFilter,
    records::{agent_spec, model_spec},
    store::{Order, Store as _, Table},
};

use crate::world::{Refusal, World, assert_refused, caller_of, operator};

const RUN: ThreadRunId = ThreadRunId(MessageId::from_bytes([7; 16]));
const OTHER_RUN: ThreadRunId = ThreadRunId(MessageId::from_bytes([8; 16]));

fn spec_id(name: &str) -> SpecId {
    SpecId::parse(name).unwrap()
}

fn agent(name: &str) -> AgentId {
    AgentId::parse(name).unwrap()
}

pub(crate) fn thread_id() -> ThreadId {
    ThreadId::parse("th").unwrap()
}

fn request(name: &str) -> Action {
    Action::Request(spec_id(name))
}

pub(crate) fn persona(name: &str, model: &str, plugins: &[&str]) -> Spec {
    let message = v1::AgentSpec {
        spec_id: name.to_owned(),
        model_id: model.to_owned(),
        system_prompt: format!("You are {name}."),
        plugin_ids: plugins.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    agent_spec(spec_id(name), spec_id(model), message)
}

pub(crate) fn model(name: &str) -> Spec {
    let message = v1::ModelSpec { model_id: name.to_owned(), model_name: "big".to_owned(), ..Default::default() };
    model_spec(spec_id(name), message)
}

impl World {
    /// Agents a, b and c, and the thread `th` of a and b with the base `concierge`.
    pub(crate) fn with_thread() -> Self {
        Self::with_thread_under(Settings::default())
    }

    pub(crate) fn with_thread_under(settings: Settings) -> Self {
        let mut world = Self::with_settings(&["a", "b", "c"], settings);
        world.put_specs();
        world.create_thread(Some("a"), None).unwrap();
        world
    }

    /// Registers the specs of agents `concierge` and `researcher`, and their model.
    pub(crate) fn put_specs(&mut self) {
        self.put(model("large")).unwrap();
        self.put(persona("concierge", "large", &[PLUGIN, "notes"])).unwrap();
        self.put(persona("researcher", "large", &[PLUGIN, "search"])).unwrap();
    }

    pub(crate) fn say_to_thread(&mut self, input: threads::Input) -> Result<bool, Refusal> {
        let about = EntityId::Thread(thread_id());
        let input = Box::new(Input::Thread(input));
        self.ask(|reply| Command::Apply { about, caller: caller_of(&input), input, reply })
    }

    fn put(&mut self, spec: Spec) -> Result<bool, Refusal> {
        self.register_revision(Revision::Spec(spec))
    }

    pub(crate) fn create_thread(&mut self, by: Option<&str>, task: Option<&str>) -> Result<bool, Refusal> {
        let task = task.map(|task| TaskId::parse(task).unwrap());
        let participants = BTreeSet::from([agent("b")]);
        self.say_to_thread(threads::Input::Create(Create {
            base: spec_id("concierge"),
            by: by.map(agent),
            task,
            participants,
        }))
    }

    /// Creates a further thread with the base of the story.
    pub(crate) fn create_thread_named(&mut self, id: &str) -> Result<bool, Refusal> {
        let (base, participants) = (spec_id("concierge"), BTreeSet::new());
        let create = threads::Input::Create(Create { base, by: Some(agent("a")), task: None, participants });
        let about = EntityId::Thread(ThreadId::parse(id).unwrap());
        let input = Box::new(Input::Thread(create));
        self.ask(|reply| Command::Apply { about, caller: caller_of(&input), input, reply })
    }

    pub(crate) fn act(&mut self, action: Action) -> Result<bool, Refusal> {
        self.say_to_thread(threads::Input::Act { id: None, action, by: Some(agent("a")) })
    }

    pub(crate) fn begin(&mut self, run: ThreadRunId, runner: &str) -> Result<bool, Refusal> {
        self.say_to_thread(threads::Input::BeginRun { run, runner: Some(agent(runner)) })
    }

    pub(crate) fn end_step(&mut self, run: ThreadRunId, runner: &str, step: u64) -> Result<bool, Refusal> {
        self.say_to_thread(threads::Input::EndStep { run, runner: Some(agent(runner)), step })
    }

    pub(crate) fn thread(&self) -> Thread {
        let caller = operator();
        Thread::clone(&self.view(&caller).thread(&thread_id()).expect("the thread is known"))
    }

    pub(crate) fn thread_log(&self) -> Vec<v1::ThreadEntry> {
        let caller = operator();
        let page = self.view(&caller).thread_log(&thread_id(), 0, 2000).unwrap();
        assert_eq!(page.gap, None);
        assert!(page.entries.iter().map(|entry| entry.number).eq(1..=page.length));
        page.entries
    }

    fn rows_of_threads(&self, table: Table) -> usize {
        self.disk.scan(table, (Unbounded, Unbounded), Order::Ascending, usize::MAX).unwrap().len()
    }

    pub(crate) fn append_message(&mut self, from: &str, workspace: &str, text: &str) -> Result<v1::Receipt, Refusal> {
        let append = v1::WorkspaceAppend {
            workspace_id: workspace.to_owned(),
            topic: "messages".to_owned(),
            entry: Some(v1::workspace_append::Entry::Bytes(v1::ContextBytes {
                data: text.as_bytes().to_vec().into(),
                ..Default::default()
            })),
            ..Default::default()
        };
        let envelope = self.envelope(from, "", v1::MessageType::WorkspaceAppend, &append);
        self.send(envelope)
    }
}

#[test]
fn a_boundary_is_applied_once_over_a_kill() {
    let mut world = World::with_thread();
    world.begin(RUN, "a").unwrap();
    world.act(request("researcher")).unwrap();
    world.restart();
    assert_eq!(world.thread().in_force.spec, spec_id("concierge"));
    assert_eq!(world.thread().requested.unwrap().spec, spec_id("researcher"));
    assert!(world.end_step(RUN, "a", 1).unwrap());
    let first = world.thread().boundary.unwrap();
    assert_eq!(
        (first.deactivate.clone(), first.activate.clone()),
        (vec!["notes".to_owned()], vec!["search".to_owned()])
    );
    world.restart();
    let logged = world.thread_log().len();
    world.end_step(RUN, "a", 1).unwrap();
    assert_eq!((world.thread().boundary, world.thread_log().len()), (Some(first), logged));
    assert_eq!(world.thread().run.unwrap().step, 2);
}

#[test]
fn a_boundary_whose_commit_fails_leaves_nothing() {
    let mut world = World::with_thread();
    world.begin(RUN, "a").unwrap();
    world.act(request("researcher")).unwrap();
    world.disk.full.store(true, Relaxed);
    assert_refused(world.end_step(RUN, "a", 1), ErrorCode::StoreUnavailable);
    world.disk.full.store(false, Relaxed);
    world.recover();
    assert_eq!(world.thread().in_force.spec, spec_id("concierge"));
    assert!(world.end_step(RUN, "a", 1).unwrap());
    assert_eq!(world.thread().in_force.spec, spec_id("researcher"));
}

#[test]
fn refusals_have_their_codes_and_change_nothing() {
    let mut world = World::with_thread();
    world.begin(RUN, "a").unwrap();
    let before = world.snapshot();
    assert_refused(world.begin(OTHER_RUN, "b"), ErrorCode::RunOpen);
    assert_refused(world.end_step(OTHER_RUN, "b", 1), ErrorCode::RunOpen);
    assert_refused(world.end_step(RUN, "b", 1), ErrorCode::RunOpen);
    assert_refused(world.end_step(RUN, "a", 9), ErrorCode::SequenceConflict);
    assert_refused(world.act(Action::Activate(spec_id("unknown"))), ErrorCode::HandoffResolveFailed);
    assert_refused(world.create_thread(Some("b"), None), ErrorCode::ThreadExists);
    let other = EntityId::Thread(ThreadId::parse("other").unwrap());
    let begin = threads::Input::BeginRun { run: RUN, runner: None };
    let input = Box::new(Input::Thread(begin));
    assert_refused(
        world.ask(|reply| Command::Apply { about: other, caller: operator(), input, reply }),
        ErrorCode::ThreadUnknown,
    );
    assert_eq!(world.snapshot(), before);
    world.put(persona("researcher", "large", &["search"])).unwrap();
    world.act(request("researcher")).unwrap();
    world.end_step(RUN, "a", 1).unwrap();
    let refused = assert_refused(world.act(Action::Clear), ErrorCode::HandoffPluginMissing);
    assert!(refused.metadata().contains(&("list", "plugin_ids".to_owned())));
}

#[test]
fn a_lease_ends_by_its_timer_also_after_a_restart() {
    let mut world = World::with_thread();
    world.begin(RUN, "a").unwrap();
    world.pass(Duration::from_secs(59));
    world.restart();
    assert!(world.thread().run.is_some());
    world.pass(Duration::from_secs(2));
    assert!(world.thread().run.is_none());
    let last = world.thread_log().pop().unwrap();
    assert!(matches!(last.event, Some(Event::RunEnded(ended)) if ended.lease_over));
    assert_refused(world.end_step(RUN, "a", 1), ErrorCode::RunFinal);
    assert!(world.begin(OTHER_RUN, "b").unwrap());
}

#[test]
fn a_runner_that_repeats_a_boundary_holds_its_lease() {
    let mut world = World::with_thread();
    world.begin(RUN, "a").unwrap();
    for _ in 0..5 {
        world.pass(Duration::from_secs(50));
        assert!(world.begin(RUN, "a").unwrap());
    }
    assert!(world.end_step(RUN, "a", 1).unwrap());
}

#[test]
fn a_hundred_switches_cost_no_task_no_mail_and_no_new_thread() {
    let mut world = World::with_thread();
    let outside = |world: &World| {
        [Table::Tasks, Table::Mailbox, Table::Messages, Table::Threads, Table::Handoffs, Table::Timers]
            .map(|table| world.rows_of_threads(table))
    };
    world.begin(RUN, "a").unwrap();
    let before = outside(&world);
    for step in 1..=100 {
        world.act(request(if step % 2 == 0 { "concierge" } else { "researcher" })).unwrap();
        world.end_step(RUN, "a", step).unwrap();
        let boundary = world.thread().boundary.unwrap();
        assert!(boundary.switched && boundary.step == step + 1);
    }
    assert_eq!(outside(&world), before);
}

#[test]
fn participants_share_the_history_of_a_thread() {
    let mut world = World::with_thread();
    world.append_message("a", "thread:th", "hello").unwrap();
    assert_refused(world.append_message("c", "thread:th", "intruder"), ErrorCode::PermissionDenied);
    world.begin(RUN, "a").unwrap();
    world.act(request("researcher")).unwrap();
    world.end_step(RUN, "a", 1).unwrap();
    let receipt = world.append_message("b", "thread:th", "one numbering over all switches").unwrap();
    assert_eq!(receipt.resource_sequence, 2);
    let unknown = world.append_message("a", "thread:none", "lost").unwrap_err();
    assert_eq!(unknown.0, ErrorCode::PermissionDenied);
    let (id, caller) = (WorkspaceId::parse("thread:th").unwrap(), Caller::Agent(agent("b")));
    let view = world.view(&caller).workspace(&id).unwrap();
    assert_eq!(view.owner.participants, [agent("a"), agent("b")]);
    assert_eq!(view.record.workspace.last_sequence, 2);
}

#[test]
fn the_participants_of_a_task_join_its_thread() {
    let mut world = World::with_thread();
    let mut sessions = [world.connect("a"), world.connect("c")];
    let [from, to] = &mut sessions;
    world.hand_over(from, to, 1);
    let in_task = |world: &mut World, by: Option<&str>| {
        let create = Create {
            base: spec_id("concierge"),
            by: by.map(agent),
            task: Some(TaskId::parse("t").unwrap()),
            participants: BTreeSet::new(),
        };
        let about = EntityId::Thread(ThreadId::parse("of-t").unwrap());
        let input = Box::new(Input::Thread(threads::Input::Create(create)));
        world.ask(|reply| Command::Apply { about, caller: caller_of(&input), input, reply })
    };
    assert_refused(in_task(&mut world, Some("a")), ErrorCode::NotOwner);
    in_task(&mut world, None).unwrap();
    let (owner, stranger) = (Caller::Agent(agent("c")), Caller::Agent(agent("b")));
    let id = ThreadId::parse("of-t").unwrap();
    assert!(world.view(&owner).thread(&id).is_ok());
    assert!(world.view(&stranger).thread(&id).is_err());
    assert!(world.append_message("c", "thread:of-t", "mine").is_ok());
}

#[test]
fn an_agent_sees_and_lists_only_its_threads() {
    let world = World::with_thread();
    let seen = |name: &str| {
        let caller = Caller::Agent(agent(name));
        let view = world.view(&caller);
        (view.thread(&thread_id()).is_ok(), view.threads(&ThreadFilter::default(), 10, "").unwrap().entries.len())
    };
    assert_eq!((seen("a"), seen("b"), seen("c")), ((true, 1), (true, 1), (false, 0)));
}

#[test]
fn revisions_of_specs_survive_a_restart_and_never_change() {
    let mut world = World::with_thread();
    assert!(!world.put(persona("concierge", "large", &[PLUGIN, "notes"])).unwrap());
    assert!(world.put(persona("concierge", "small", &[PLUGIN])).unwrap());
    world.restart();
    let caller = operator();
    let view = world.view(&caller);
    let model_of = |revision| {
        let spec = view.spec(SpecKind::Agent, &spec_id("concierge"), revision).unwrap();
        (spec.revision, spec.model.clone().unwrap())
    };
    assert_eq!(model_of(0), (2, spec_id("small")));
    assert_eq!((model_of(1), model_of(2)), ((1, spec_id("large")), (2, spec_id("small"))));
    assert!(view.spec(SpecKind::Agent, &spec_id("concierge"), 3).is_err());
    let listed = view.specs(SpecKind::Agent, 10, "").unwrap().entries;
    assert_eq!(listed.iter().map(|spec| spec.id.as_str()).collect::<Vec<_>>(), ["researcher", "concierge"]);
    assert_eq!(view.specs(SpecKind::Model, 10, "").unwrap().entries.len(), 1);
    // The model "small" is not there, so the thread goes on with the revision in force.
    world.begin(RUN, "a").unwrap();
    assert_eq!(world.thread().in_force.revision, 1);
}

#[test]
fn the_registry_has_at_most_a_thousand_specs_of_each_kind() {
    let mut world = World::with(&["a"]);
    for number in 0..threads::SPECS_MAX {
        world.put(model(&format!("m{number}"))).unwrap();
    }
    assert_refused(world.put(model("one-more")), ErrorCode::LimitExceeded);
    assert!(world.put(persona("concierge", "m0", &[])).unwrap());
    assert!(!world.put(model("m7")).unwrap());
}

#[test]
fn an_idle_thread_is_removed_with_its_log_and_its_history() {
    let mut world = World::with_thread();
    world.append_message("a", "thread:th", "hello").unwrap();
    for number in 1..=300u16 {
        let id = Some(ActionId(MessageId::from_bytes([u8::try_from(number % 250).unwrap(); 16])));
        let action = request(if number % 2 == 0 { "concierge" } else { "researcher" });
        let _ = world.say_to_thread(threads::Input::Act { id, action, by: None });
    }
    world.pass(IDLE - Duration::from_secs(1));
    assert_eq!(world.rows_of_threads(Table::Threads), 1);
    world.pass(Duration::from_secs(2));
    world.pass(Duration::from_secs(120));
    for table in [Table::Threads, Table::ThreadLog, Table::Workspaces, Table::WorkspaceEntries] {
        assert_eq!(world.rows_of_threads(table), 0, "{table:?}");
    }
    assert_refused(world.begin(RUN, "a"), ErrorCode::ThreadUnknown);
    assert!(world.create_thread(Some("a"), None).unwrap(), "the id is free again");
}

#[test]
fn specs_are_shown_to_callers_with_a_right_to_them_or_to_their_thread() {
    let mut world = World::with_thread();
    world.begin(RUN, "a").unwrap();
    let spec = |caller: &Caller| world.view(caller).registered_spec(SpecKind::Agent, &spec_id("concierge"));
    let in_force = |caller: &Caller| world.view(caller).thread_with_specs(&thread_id());
    assert_eq!(spec(&operator()).unwrap().id, spec_id("concierge"));
    let shown = in_force(&Caller::Agent(agent("a"))).unwrap();
    assert_eq!((shown.spec.id.as_str(), shown.model.id.as_str()), ("concierge", "large"));
    for (caller, code) in
        [(Caller::Agent(agent("c")), ErrorCode::PermissionDenied), (Caller::Anonymous, ErrorCode::IdentityMissing)]
    {
        assert_eq!(spec(&caller).unwrap_err().code(), code);
        assert_eq!(in_force(&caller).unwrap_err().code(), code);
    }
}
