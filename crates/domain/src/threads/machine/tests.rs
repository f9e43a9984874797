//! Tests of specs and threads in virtual time.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::{
    codes::{ErrorCode, Refusal as _},
    ids::MessageId,
    threads::{IDLE, PLUGIN},
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_parts(seconds, 0).unwrap()
}

fn spec_id(name: &str) -> SpecId {
    SpecId::parse(name).unwrap()
}

fn run_id(byte: u8) -> ThreadRunId {
    ThreadRunId(MessageId::from_bytes([byte; 16]))
}

fn agent(name: &str) -> AgentId {
    AgentId::parse(name).unwrap()
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

/// Stored entities, and the whole log of one thread.
#[derive(Default)]
struct World {
    entities: BTreeMap<EntityId, Entity>,
    log: Vec<ThreadEntry>,
    now: i64,
}

impl Reader for World {
    fn entity(&mut self, id: &EntityId) -> Result<Option<Entity>, ReadError> {
        Ok(self.entities.get(id).cloned())
    }

    fn is_gone(&mut self, _agent: &AgentId) -> bool {
        false
    }
}

impl World {
    /// A thread with the base spec `base`, and the specs `researcher` and `writer`.
    fn new() -> Self {
        let mut world = Self { now: 1000, ..Self::default() };
        world.put_model("large");
        world.put("base", &[PLUGIN, "notes"], &[]);
        world.put("researcher", &[PLUGIN, "search"], &[]);
        world.put("writer", &["spelling"], &[]);
        world.create("base", None).unwrap();
        world
    }

    fn apply(&mut self, about: &EntityId, input: &crate::Input) -> Result<bool, Rejection> {
        let now = at(self.now);
        let made = match crate::step(about, input, self, now) {
            Ok(made) => made,
            Err(StepError::Thread(rejection)) => return Err(rejection),
            Err(error) => panic!("{error}"),
        };
        let has_changed = !made.is_empty();
        for entity in made.writes {
            if let Entity::ThreadEntry(entry) = &entity {
                self.log.push(ThreadEntry::clone(entry));
            }
            self.entities.insert(entity.id(), entity);
        }
        for effect in made.effects {
            let Effect::Remove(id) = effect else { panic!("a thread has no other effect: {effect:?}") };
            assert!(self.entities.remove(&id).is_some(), "{id}");
        }
        Ok(has_changed)
    }

    fn put_spec(&mut self, spec: Spec) -> Result<bool, Rejection> {
        let about = EntityId::Spec(spec.kind, spec.id.clone());
        self.apply(&about, &crate::Input::Thread(Input::PutSpec { spec, removed: 0, deleted: 0 }))
    }

    /// Registers a spec whose revisions up to `removed` are removed, and those up to `deleted` are not stored any more.
    fn put_spec_again(&mut self, spec: Spec, removed: u64, deleted: u64) -> Result<bool, Rejection> {
        let about = EntityId::Spec(spec.kind, spec.id.clone());
        self.apply(&about, &crate::Input::Thread(Input::PutSpec { spec, removed, deleted }))
    }

    fn put_model(&mut self, name: &str) {
        let (model, plugins, hook_filter) = (None, Vec::new(), Vec::new());
        let content = Arc::from(&b""[..]);
        self.put_spec(Spec {
            kind: SpecKind::Model,
            id: spec_id(name),
            revision: 0,
            model,
            plugins,
            hook_filter,
            content,
        })
        .unwrap();
    }

    fn put(&mut self, name: &str, plugins: &[&str], hook_filter: &[&str]) {
        self.put_with("large", name, plugins, hook_filter);
    }

    fn put_with(&mut self, model: &str, name: &str, plugins: &[&str], hook_filter: &[&str]) {
        let spec = Spec {
            kind: SpecKind::Agent,
            id: spec_id(name),
            revision: 0,
            model: Some(spec_id(model)),
            plugins: texts(plugins),
            hook_filter: texts(hook_filter),
            content: Arc::from(name.as_bytes()),
        };
        self.put_spec(spec).unwrap();
    }

    fn step(&mut self, input: Input) -> Result<bool, Rejection> {
        self.apply(&EntityId::Thread(ThreadId::parse("th").unwrap()), &crate::Input::Thread(input))
    }

    fn pass_time(&mut self) -> bool {
        self.apply(&EntityId::Thread(ThreadId::parse("th").unwrap()), &crate::Input::Time).unwrap()
    }

    fn create(&mut self, base: &str, by: Option<&str>) -> Result<bool, Rejection> {
        let (base, by) = (spec_id(base), by.map(agent));
        self.step(Input::Create(Create { base, by, task: None, participants: BTreeSet::new() }))
    }

    fn act(&mut self, action: Action) -> Result<bool, Rejection> {
        self.step(Input::Act { id: None, action, by: None })
    }

    fn act_once(&mut self, id: u8, action: Action) -> Result<bool, Rejection> {
        let id = Some(ActionId(MessageId::from_bytes([id; 16])));
        self.step(Input::Act { id, action, by: None })
    }

    fn request(&mut self, spec: &str) -> Result<bool, Rejection> {
        self.act(Action::Request(spec_id(spec)))
    }

    fn begin(&mut self, run: u8) -> Result<bool, Rejection> {
        self.step(Input::BeginRun { run: run_id(run), runner: None })
    }

    fn end_step(&mut self, run: u8, step: u64) -> Result<bool, Rejection> {
        self.step(Input::EndStep { run: run_id(run), runner: None, step })
    }

    fn end_run(&mut self, run: u8) -> Result<bool, Rejection> {
        self.step(Input::EndRun { run: run_id(run), runner: None })
    }

    fn thread(&self) -> &Thread {
        match self.entities.get(&EntityId::Thread(ThreadId::parse("th").unwrap())) {
            Some(Entity::Thread(thread)) => thread,
            other => panic!("no thread: {other:?}"),
        }
    }

    fn in_force(&self) -> &str {
        self.thread().in_force.spec.as_str()
    }

    /// The plugins that the last boundary turns off and on.
    fn plugins(&self) -> (Vec<String>, Vec<String>) {
        let boundary = self.thread().boundary.clone().expect("a boundary");
        (boundary.deactivate, boundary.activate)
    }

    fn ends(&self) -> Vec<RequestEnd> {
        let end = |entry: &ThreadEntry| match &entry.event {
            Event::RequestEnded(ended) => Some(ended.end),
            _ => None,
        };
        self.log.iter().filter_map(end).collect()
    }
}

#[test]
fn a_request_is_promoted_at_the_next_boundary_with_the_difference_of_the_plugins() {
    let mut world = World::new();
    world.begin(1).unwrap();
    assert_eq!(world.plugins(), (vec![], vec![]));
    world.request("researcher").unwrap();
    assert_eq!(world.in_force(), "base", "until the boundary");
    world.end_step(1, 1).unwrap();
    assert_eq!(world.in_force(), "researcher");
    assert_eq!(world.plugins(), (texts(&["notes"]), texts(&["search"])));
    assert_eq!(world.ends(), [RequestEnd::Promoted]);
    world.act(Action::Clear).unwrap();
    world.end_step(1, 2).unwrap();
    assert_eq!((world.in_force(), world.plugins()), ("base", (texts(&["search"]), texts(&["notes"]))));
    assert!(!world.act(Action::Clear).unwrap(), "nothing is left to clear");
}

#[test]
fn an_unknown_spec_fails_at_the_boundary_and_the_active_one_stays() {
    let mut world = World::new();
    world.put_with("absent", "halfway", &[PLUGIN], &[]);
    world.act(Action::Activate(spec_id("researcher"))).unwrap();
    for (run, name, why) in [(1, "unknown", Unresolved::NoSpec), (2, "halfway", Unresolved::NoModel)] {
        world.request(name).unwrap();
        assert_eq!(world.thread().requested.as_ref().unwrap().warning, Some(why));
        world.begin(run).unwrap();
        assert_eq!((world.in_force(), world.ends().pop()), ("researcher", Some(RequestEnd::Failed(why))));
        assert_eq!(world.thread().requested, None);
        assert_eq!(world.thread().active, Some(spec_id("researcher")));
        world.end_run(run).unwrap();
    }
    let refused = world.act(Action::Activate(spec_id("unknown"))).unwrap_err();
    assert_eq!(refused.to_string(), "handoff resolve failed: unknown (no spec)");
    assert_eq!(refused.code(), ErrorCode::HandoffResolveFailed);
}

#[test]
fn a_spec_that_is_put_before_the_boundary_resolves() {
    let mut world = World::new();
    world.request("later").unwrap();
    world.put("later", &[], &[]);
    world.begin(1).unwrap();
    assert_eq!(world.in_force(), "later");
}

#[test]
fn a_request_that_waits_is_replaced_on_record() {
    let mut world = World::new();
    world.request("writer").unwrap();
    world.request("researcher").unwrap();
    world.act(Action::Activate(spec_id("writer"))).unwrap();
    world.request("researcher").unwrap();
    world.act(Action::Clear).unwrap();
    assert_eq!(world.ends(), [RequestEnd::Replaced, RequestEnd::Replaced, RequestEnd::Cleared]);
}

#[test]
fn an_action_needs_the_plugin_in_the_spec_in_force_and_in_its_hook_filter() {
    let mut world = World::new();
    world.request("writer").unwrap();
    world.begin(1).unwrap();
    let missing = |list| Err(Rejection::PluginMissing { spec: spec_id("writer"), list });
    assert_eq!(world.request("base"), missing("plugin_ids"));
    assert_eq!(world.act(Action::Clear), missing("plugin_ids"));
    // A further revision counts from the next boundary on.
    world.put("writer", &[PLUGIN], &["other"]);
    assert_eq!(world.request("base"), missing("plugin_ids"));
    world.end_step(1, 1).unwrap();
    assert_eq!(world.act(Action::Activate(spec_id("base"))), missing("hook_filter"));
    world.put("writer", &[PLUGIN], &["other", PLUGIN]);
    world.end_step(1, 2).unwrap();
    assert_eq!(world.request("base"), Ok(true));
}

#[test]
fn one_run_is_open_at_a_time_until_its_lease_is_over() {
    let mut world = World::new();
    world.begin(1).unwrap();
    let open = |until| Err(Rejection::RunOpen { run: run_id(1), until: at(until) });
    assert_eq!(world.begin(2), open(1060));
    assert_eq!(world.end_step(2, 1), open(1060));
    assert_eq!(world.step(Input::EndStep { run: run_id(1), runner: Some(agent("eve")), step: 1 }), open(1060));
    world.now = 1050;
    world.end_step(1, 1).unwrap();
    world.now = 1109;
    assert!(!world.pass_time());
    world.now = 1110;
    assert_eq!(world.end_step(1, 2), Err(Rejection::RunEnded { run: run_id(1) }));
    assert_eq!(world.begin(2), Ok(true));
    assert!(world.log.iter().any(|entry| entry.event == Event::RunEnded { run: run_id(1), lease_over: true }));
    assert_eq!(world.begin(1), Err(Rejection::RunOpen { run: run_id(2), until: at(1170) }));
    world.now = 1170;
    assert!(world.pass_time());
    assert!(!world.pass_time());
    assert_eq!(world.end_run(1), Err(Rejection::RunEnded { run: run_id(1) }));
    assert_eq!(world.begin(2), Err(Rejection::RunEnded { run: run_id(2) }), "a late call opens no run again");
}

#[test]
fn a_repeat_of_a_boundary_renews_the_lease_and_nothing_else() {
    let mut world = World::new();
    world.begin(1).unwrap();
    assert_eq!(world.begin(1), Ok(false));
    world.end_step(1, 1).unwrap();
    assert_eq!(world.end_step(1, 1), Ok(false));
    let (logged, boundary) = (world.log.len(), world.thread().boundary.clone());
    world.now += 59;
    assert_eq!(world.end_step(1, 1), Ok(true));
    assert_eq!((world.log.len(), world.thread().boundary.clone()), (logged, boundary));
    world.now += 59;
    assert_eq!(world.end_step(1, 7), Err(Rejection::WrongStep { claimed: 7, current: 2 }));
    assert_eq!(world.end_step(1, u64::MAX), Err(Rejection::WrongStep { claimed: u64::MAX, current: 2 }));
    assert_eq!((world.end_run(1), world.end_run(1)), (Ok(true), Ok(false)));
    assert_eq!(world.create("base", None), Ok(false));
    assert_eq!(world.create("writer", None), Err(Rejection::ThreadExists));
    assert_eq!(world.create("base", Some("eve")), Err(Rejection::ThreadExists));
    // What would be refused of a new thread is refused of a known one in the same words.
    let refused = world.create("no-spec", Some("eve")).unwrap_err();
    assert_eq!(
        (refused.code(), World::default().create("no-spec", Some("eve"))),
        (ErrorCode::HandoffResolveFailed, Err(refused))
    );
}

#[test]
fn a_late_repeat_of_a_clear_that_found_nothing_clears_nothing() {
    let mut world = World::new();
    world.act_once(1, Action::Clear).unwrap();
    world.act_once(2, Action::Request(spec_id("researcher"))).unwrap();
    assert_eq!(world.act_once(1, Action::Clear), Ok(false));
    assert!(world.thread().requested.is_some(), "the request stands");
}

#[test]
fn an_action_with_an_id_counts_once() {
    let mut world = World::new();
    let request = |name| Action::Request(spec_id(name));
    world.act_once(1, request("researcher")).unwrap();
    world.begin(1).unwrap();
    world.act_once(2, request("base")).unwrap();
    world.end_step(1, 1).unwrap();
    assert_eq!(world.act_once(1, request("researcher")), Ok(false), "a late repeat does not switch back");
    assert!(matches!(world.act_once(1, Action::Clear), Err(Rejection::ActionIdReused { .. })));
    for id in 3..40 {
        world.act_once(id, request("researcher")).unwrap();
    }
    assert_eq!(world.thread().actions.len(), ACTIONS_KNOWN);
}

#[test]
fn every_input_to_an_absent_thread_is_refused() {
    let mut world = World::default();
    assert_eq!(world.request("base"), Err(Rejection::ThreadUnknown));
    assert_eq!(world.begin(1), Err(Rejection::ThreadUnknown));
    assert_eq!(world.end_step(1, 1), Err(Rejection::ThreadUnknown));
    assert_eq!(world.end_run(1), Err(Rejection::ThreadUnknown));
    assert!(!world.pass_time());
    assert!(matches!(world.create("base", None), Err(Rejection::ResolveFailed { why: Unresolved::NoSpec, .. })));
}

#[test]
fn a_revision_never_changes_and_the_same_spec_is_the_same_revision() {
    let mut world = World::new();
    let revision = |world: &World, number| match world.entities.get(&EntityId::SpecRevision(
        SpecKind::Agent,
        spec_id("base"),
        number,
    )) {
        Some(Entity::SpecRevision(spec)) => Some(spec.plugins.clone()),
        _ => None,
    };
    world.put("base", &[PLUGIN, "notes"], &[]);
    assert_eq!(revision(&world, 2), None);
    world.put("base", &[PLUGIN], &[]);
    assert_eq!((revision(&world, 1), revision(&world, 2)), (Some(texts(&[PLUGIN, "notes"])), Some(texts(&[PLUGIN]))));
    for name in 2..REVISIONS_MAX {
        world.put("base", &[PLUGIN, &name.to_string()], &[]);
    }
    let spec = Spec {
        kind: SpecKind::Agent,
        id: spec_id("base"),
        revision: 0,
        model: None,
        plugins: Vec::new(),
        hook_filter: Vec::new(),
        content: Arc::from(&b""[..]),
    };
    assert_eq!(world.put_spec(spec.clone()).unwrap_err().code(), ErrorCode::LimitExceeded);
    // A spec that comes back after its removal goes on with its numbers, and only stored revisions count.
    world.entities.remove(&EntityId::Spec(SpecKind::Agent, spec_id("base")));
    let again = world.put_spec_again(spec.clone(), REVISIONS_MAX, 0);
    assert_eq!(again.unwrap_err().code(), ErrorCode::LimitExceeded);
    assert_eq!(world.put_spec_again(spec, REVISIONS_MAX, REVISIONS_MAX), Ok(true));
    assert_eq!(revision(&world, REVISIONS_MAX + 1), Some(Vec::new()));
}

#[test]
fn the_log_keeps_its_last_thousand_entries() {
    let mut world = World::new();
    world.begin(1).unwrap();
    for step in 1..=600 {
        world.request(if step % 2 == 0 { "base" } else { "researcher" }).unwrap();
        world.end_step(1, step).unwrap();
    }
    let kept = world.entities.keys().filter(|id| matches!(id, EntityId::ThreadEntry(..))).count();
    assert_eq!(kept as u64, LOG_KEPT);
    let thread = world.thread();
    assert_eq!(thread.log_length - thread.first_number() + 1, LOG_KEPT);
    assert!(world.entities.contains_key(&EntityId::ThreadEntry(thread.id.clone(), thread.first_number())));
}

#[test]
fn a_thread_ends_when_it_is_idle_for_thirty_days() {
    let mut world = World::new();
    world.now += 100;
    world.begin(1).unwrap();
    world.now += 60;
    assert!(world.pass_time(), "the lease is over");
    let ended_at = world.now;
    world.now = ended_at + i64::try_from(IDLE.as_secs()).unwrap() - 1;
    assert!(!world.pass_time());
    world.now += 1;
    assert!(world.pass_time());
    assert!(world.thread().has_ended);
    assert_eq!(world.begin(2), Err(Rejection::ThreadUnknown));
    assert_eq!(world.create("base", None), Err(Rejection::ThreadExists));
    assert!(!world.pass_time());
}

fn any_input() -> impl Strategy<Value = (Option<Input>, i64)> {
    let spec = prop::sample::select(vec!["base", "researcher", "writer", "unknown"]).prop_map(spec_id);
    let act = |action| Input::Act { id: None, action, by: None };
    let runner = || prop::option::of(Just(agent("alice")));
    let input = prop_oneof![
        spec.clone().prop_map(move |spec| Some(act(Action::Request(spec)))),
        spec.prop_map(move |spec| Some(act(Action::Activate(spec)))),
        Just(Some(act(Action::Clear))),
        (1u8..4, runner()).prop_map(|(run, runner)| Some(Input::BeginRun { run: run_id(run), runner })),
        (1u8..4, 1u64..6, runner()).prop_map(|(run, step, runner)| Some(Input::EndStep {
            run: run_id(run),
            runner,
            step
        })),
        (1u8..4, runner()).prop_map(|(run, runner)| Some(Input::EndRun { run: run_id(run), runner })),
        Just(None),
    ];
    (input, 0i64..40)
}

proptest! {
    /// Law 15: the spec in force changes only at a boundary and only to one that resolves; each request ends exactly
    /// once; one run is open at a time; the log is dense.
    #[test]
    fn the_spec_in_force_changes_only_at_boundaries(inputs in prop::collection::vec(any_input(), 0..120)) {
        let mut world = World::new();
        let (mut waiting, mut ended, mut open) = (BTreeSet::new(), BTreeSet::new(), None);
        for (input, pause) in inputs {
            world.now += pause;
            let (before, logged) = (world.thread().in_force.clone(), world.log.len());
            match input {
                Some(input) => drop(world.step(input)),
                None => drop(world.pass_time()),
            }
            let new = world.log[logged..].to_vec();
            let is_boundary = new.iter().any(|entry| matches!(entry.event, Event::Boundary(_)));
            let after = world.thread().in_force.clone();
            prop_assert!(is_boundary || before == after);
            let revision = EntityId::SpecRevision(SpecKind::Agent, after.spec, after.revision);
            prop_assert!(world.entities.contains_key(&revision));
            for entry in new {
                match entry.event {
                    Event::Requested { .. } => prop_assert!(waiting.insert(entry.number)),
                    Event::RequestEnded(request) => {
                        prop_assert!(waiting.remove(&request.number) && ended.insert(request.number));
                    }
                    Event::RunBegan { run, .. } => prop_assert_eq!(open.replace(run), None),
                    Event::RunEnded { run, .. } => prop_assert_eq!(open.take(), Some(run)),
                    Event::Created { .. } | Event::Activated { .. } | Event::Cleared { .. } | Event::Boundary(_) => {}
                }
            }
            prop_assert!(waiting.len() <= 1);
            let requested = world.thread().requested.as_ref().map(|request| request.number);
            prop_assert_eq!(requested, waiting.first().copied());
        }
        prop_assert!(world.log.iter().map(|entry| entry.number).eq(1..=world.log.len() as u64));
    }
}
