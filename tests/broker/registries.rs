//! The owners of names in the registries: revisions, transfers, retirement, removal, and the shares of agents.

use std::sync::Arc;

use baton_broker_core::{
    AgentLimits, Reply, Settings,
    access::Caller,
    codes::{ErrorCode, Refusal as _},
    domain::{
        routing::Graph,
        threads::{Action, IDLE, PLUGIN, Spec, SpecKind},
    },
    engine::{Command, NameChange, Revision},
    ids::{AgentId, GraphId, SpecId},
    policy::{DEFAULT, Policies, Source},
    proto::v1,
    queries::NameFilter,
    records::{RegistrationName, RegistrationRecord, Registry},
    store::{Order, Store as _, Table},
};

use crate::{
    runs::{story, turn},
    threads::{model, persona},
    world::{Refusal, World, assert_refused, operator},
};

fn agent(name: &str) -> Caller {
    Caller::Agent(AgentId::parse(name).unwrap())
}

fn name(registry: Registry, name: &str) -> RegistrationName {
    RegistrationName::new(registry, name)
}

fn graph(id: &str, steps_max: u32) -> Revision {
    Revision::Graph(Graph { id: GraphId::parse(id).unwrap(), steps_max, ..story() })
}

impl World {
    pub(crate) fn register_by(
        &mut self,
        caller: Caller,
        revision: Revision,
        etag: &str,
    ) -> Result<RegistrationRecord, Refusal> {
        let (revision, etag) = (Box::new(revision), etag.to_owned());
        self.ask(|reply| Command::RegisterRevision { revision, caller, etag, reply })
    }

    /// Registers a revision as an operator. Returns false if it changes nothing.
    pub(crate) fn register_revision(&mut self, revision: Revision) -> Result<bool, Refusal> {
        let (caller, name) = (operator(), revision.name());
        let before = self.view(&caller).registration(&name).map(|known| known.changes).unwrap_or_default();
        self.register_by(caller, revision, "").map(|after| after.changes != before)
    }

    fn change(
        &mut self,
        caller: Caller,
        name: RegistrationName,
        change: NameChange,
        etag: &str,
    ) -> Result<RegistrationRecord, Refusal> {
        let etag = etag.to_owned();
        self.ask(|reply| Command::ChangeName { name, change, caller, etag, reply })
    }

    fn transfer(&mut self, by: Caller, to: &str) -> Result<RegistrationRecord, Refusal> {
        self.change(by, name(Registry::Graphs, "g"), NameChange::Transfer(AgentId::parse(to).unwrap()), "")
    }

    fn remove(&mut self, by: Caller, of: RegistrationName) -> Result<RegistrationRecord, Refusal> {
        self.change(by, of, NameChange::Remove(String::new()), "")
    }

    fn register_schema(&mut self, by: &str, id: &str, version: &str, text: &str) -> Result<(), Refusal> {
        let schema = Box::new(v1::Schema {
            schema_id: id.to_owned(),
            schema_version: version.to_owned(),
            schema_json: text.to_owned(),
            ..Default::default()
        });
        let (caller, etag) = (agent(by), String::new());
        self.ask(|reply| Command::RegisterSchema { schema, caller, etag, reply }).map(drop)
    }

    fn remove_version(&mut self, by: &str, id: &str, version: &str) -> Result<RegistrationRecord, Refusal> {
        self.change(agent(by), name(Registry::Schemas, id), NameChange::Remove(version.to_owned()), "")
    }

    /// The latest acts in the audit log, each with its actor, the name of its kind, its object and its details.
    fn last_acts(&self, many: usize) -> Vec<(String, String, String, String)> {
        let caller = operator();
        let page = self.view(&caller).audit_log(0, 1000).unwrap();
        let acts = page.entries.into_iter().map(|shown| shown.entry.unwrap());
        let acts: Vec<_> = acts
            .map(|act| (act.actor.clone(), act.action().as_str_name().to_owned(), act.subject, act.details))
            .collect();
        acts[acts.len() - many..].to_vec()
    }

    fn rows_in(&self, table: Table) -> usize {
        use std::ops::Bound::Unbounded;
        self.disk.scan(table, (Unbounded, Unbounded), Order::Ascending, usize::MAX).unwrap().len()
    }
}

fn act(actor: &str, action: &str, subject: &str, details: &str) -> (String, String, String, String) {
    (actor.to_owned(), format!("AUDIT_ACTION_{action}"), subject.to_owned(), details.to_owned())
}

#[test]
fn only_the_owner_adds_revisions_and_each_is_audited() {
    let mut world = World::with(&["a", "b"]);
    let first = world.register_by(agent("a"), graph("g", 7), "").unwrap();
    assert_eq!((first.owner.as_str(), first.entries), ("a", 1));
    assert_refused(world.register_by(agent("b"), graph("g", 8), ""), ErrorCode::PermissionDenied);
    world.restart();
    assert_refused(world.register_by(agent("b"), graph("g", 8), ""), ErrorCode::PermissionDenied);
    // The same graph again changes nothing, so both sides of a task may register it at every start.
    assert_eq!(world.register_by(agent("b"), graph("g", 7), "").unwrap(), first);

    assert_refused(world.register_by(agent("a"), graph("g", 8), "7"), ErrorCode::Conflict);
    let second = world.register_by(agent("a"), graph("g", 8), &first.etag()).unwrap();
    assert_refused(world.register_by(agent("a"), graph("g", 9), &first.etag()), ErrorCode::Conflict);
    assert_ne!(second.etag(), first.etag());
    assert_refused(world.register_by(agent("a"), graph("new", 9), "1"), ErrorCode::Conflict);
    // An operator may, and the name stays with its owner.
    assert_eq!(world.register_by(operator(), graph("g", 9), "").unwrap().owner, "a");
    let acts = world.last_acts(3);
    assert_eq!(acts[0], act("agent a", "NAME_REGISTERED", "graph:g", "revision 1"));
    assert_eq!(acts[1], act("agent a", "NAME_REGISTERED", "graph:g", "revision 2"));
    assert_eq!((acts[2].2.as_str(), acts[2].3.as_str()), ("graph:g", "revision 3"));
}

#[test]
fn a_run_of_the_owner_has_the_texts_of_the_owner() {
    let mut world = World::with(&["a", "b"]);
    world.register_by(agent("a"), Revision::Graph(story()), "").unwrap();
    let mut foreign = story();
    foreign.nodes[1].description = "Does what b wants.".to_owned();
    assert_refused(world.register_by(agent("b"), Revision::Graph(foreign), ""), ErrorCode::PermissionDenied);
    world.start_run(Some("a"), None).unwrap();
    assert_eq!(world.run().graph.nodes, story().nodes);
}

#[test]
fn a_group_that_policy_names_shares_a_graph() {
    let mut world = World::with(&["a:team", "b:team", "c"]);
    let rule = "permit(principal in Type::\"team\", action == Action::\"registerGraph\", resource)
        when { context.graphId like \"team-*\" };";
    let policies = Policies::parse(&[Source::new("default", DEFAULT), Source::new("test.cedar", rule)]).unwrap();
    world.resources.policies.store(Arc::new(policies));
    world.register_by(agent("a"), graph("team-g", 7), "").unwrap();
    assert_eq!(world.register_by(agent("b"), graph("team-g", 8), "").unwrap().owner, "a");
    assert_refused(world.register_by(agent("c"), graph("team-g", 9), ""), ErrorCode::PermissionDenied);
    world.register_by(agent("a"), graph("own", 7), "").unwrap();
    assert_refused(world.register_by(agent("b"), graph("own", 8), ""), ErrorCode::PermissionDenied);
}

#[test]
fn a_name_is_handed_over_once_its_receiver_takes_it() {
    let limits = AgentLimits { graphs_max: 2, ..AgentLimits::default() };
    let mut world = World::with_settings(&["a", "b", "c"], Settings { limits, ..Settings::default() });
    world.register_by(agent("a"), graph("g", 7), "").unwrap();
    assert_refused(world.transfer(agent("b"), "b"), ErrorCode::PermissionDenied);
    assert_refused(world.transfer(agent("a"), "nobody"), ErrorCode::AgentUnknown);
    let offered = world.transfer(agent("a"), "b").unwrap();
    assert_eq!((offered.owner.as_str(), offered.offered_to), ("a", AgentId::parse("b").ok()));
    assert_refused(world.transfer(agent("c"), "c"), ErrorCode::PermissionDenied);
    assert_refused(world.register_by(agent("b"), graph("g", 8), ""), ErrorCode::PermissionDenied);
    // The owner withdraws the offer.
    assert_eq!(world.transfer(agent("a"), "a").unwrap().offered_to, None);
    assert_refused(world.transfer(agent("b"), "b"), ErrorCode::PermissionDenied);

    world.transfer(agent("a"), "b").unwrap();
    world.restart();
    for number in 0..2 {
        world.register_by(agent("b"), graph(&format!("b{number}"), 7), "").unwrap();
    }
    assert_refused(world.transfer(agent("b"), "b"), ErrorCode::LimitExceeded);
    world.remove(agent("b"), name(Registry::Graphs, "b0")).unwrap();
    assert_eq!(world.transfer(agent("b"), "b").unwrap().owner, "b");
    assert_refused(world.register_by(agent("a"), graph("g", 8), ""), ErrorCode::PermissionDenied);
    world.register_by(agent("b"), graph("g", 8), "").unwrap();
    // An operator hands it over at once, and it counts for its new owner.
    assert_eq!(world.transfer(operator(), "c").unwrap().owner, "c");
    let acts = world.last_acts(3);
    assert_eq!(acts[0], act("agent b", "NAME_TRANSFERRED", "graph:g", "to b"));
    assert_eq!((acts[2].1.as_str(), acts[2].3.as_str()), ("AUDIT_ACTION_NAME_TRANSFERRED", "to c"));
    world.register_by(agent("b"), graph("b2", 7), "").unwrap();
    world.register_by(agent("c"), graph("c1", 7), "").unwrap();
    assert_refused(world.register_by(agent("c"), graph("c2", 7), ""), ErrorCode::LimitExceeded);
}

#[test]
fn a_retired_graph_takes_no_revision_and_no_further_run() {
    let mut world = World::with(&["a", "b"]);
    world.register_by(agent("a"), Revision::Graph(story()), "").unwrap();
    world.start_run(Some("b"), None).unwrap();
    let retire = |world: &mut World, by| world.change(by, name(Registry::Graphs, "g"), NameChange::Retire, "");
    assert_refused(retire(&mut world, agent("b")), ErrorCode::PermissionDenied);
    let retired = retire(&mut world, agent("a")).unwrap();
    assert!(retired.is_retired);
    assert_eq!(retire(&mut world, agent("a")).unwrap(), retired, "again it changes nothing");
    world.restart();
    let refusal = assert_refused(world.register_by(agent("a"), graph("g", 9), ""), ErrorCode::NameRetired);
    assert_eq!(refusal.metadata(), [("owner_id", "a".to_owned())]);
    world.register_by(agent("a"), Revision::Graph(story()), "").expect("the same graph again changes nothing");
    assert_refused(world.start_other_run(Some("b")), ErrorCode::NameRetired);
    assert!(!world.start_run(Some("b"), None).unwrap(), "a repeat gets the run that has begun");
    assert!(world.report_turn(turn(1, "searcher", Some("b"), None)).unwrap());
    assert_eq!(world.last_acts(1)[0], act("agent a", "NAME_RETIRED", "graph:g", ""));
}

#[test]
fn a_removed_graph_leaves_its_runs_and_stays_with_its_owner() {
    let mut world = World::with(&["a", "b"]);
    let of_g = || name(Registry::Graphs, "g");
    world.register_by(agent("a"), Revision::Graph(story()), "").unwrap();
    world.start_run(Some("b"), None).unwrap();
    assert_refused(world.remove(agent("b"), of_g()), ErrorCode::PermissionDenied);
    assert_refused(world.remove(agent("b"), name(Registry::Graphs, "unknown")), ErrorCode::PermissionDenied);
    assert_refused(world.remove(operator(), name(Registry::Graphs, "unknown")), ErrorCode::GraphUnknown);
    let removed = world.remove(agent("a"), of_g()).unwrap();
    assert_eq!((removed.entries, removed.owner.as_str()), (0, "a"));
    assert_eq!(world.remove(agent("a"), of_g()).unwrap(), removed, "again it changes nothing");
    world.restart();
    let caller = operator();
    assert_eq!(world.view(&caller).graphs(10, "").unwrap().entries, []);
    assert_eq!(world.rows_in(Table::Graphs), 0);
    assert_refused(world.start_other_run(Some("b")), ErrorCode::GraphUnknown);
    assert!(world.report_turn(turn(1, "searcher", Some("b"), None)).unwrap(), "the run goes on");
    assert_refused(world.register_by(agent("b"), graph("g", 8), ""), ErrorCode::PermissionDenied);
    // A number stands for one content for ever.
    world.register_by(agent("a"), graph("g", 8), "").unwrap();
    assert_eq!(world.view(&caller).graph(&GraphId::parse("g").unwrap()).unwrap().revision, 2);
    let filter = NameFilter { registry: Some(Registry::Graphs), owner: "a".to_owned() };
    assert_eq!(world.view(&caller).registrations(&filter, 10, "").unwrap().entries.len(), 1);
    let filter = NameFilter { registry: None, owner: "b".to_owned() };
    assert_eq!(world.view(&caller).registrations(&filter, 10, "").unwrap().entries, []);
}

#[test]
fn an_agent_has_its_share_of_each_registry_and_the_batch_in_hand_counts() {
    let limits = AgentLimits { graphs_max: 2, schemas_max: 2, ..AgentLimits::default() };
    let mut world = World::with_settings(&["a", "b"], Settings { limits, ..Settings::default() });
    // Three registrations in one batch: none of them is in the store when the last one is checked.
    let mut answers = Vec::new();
    for number in 0..3 {
        let (reply, answer) = Reply::once();
        let revision = Box::new(graph(&format!("g{number}"), 7));
        let command = Command::RegisterRevision { revision, caller: agent("a"), etag: String::new(), reply };
        world.engine.handle(command, world.now);
        answers.push(answer);
    }
    world.settle();
    let codes: Vec<_> = answers.iter_mut().map(|answer| answer.try_recv().unwrap().err().map(|it| it.code())).collect();
    assert_eq!(codes, [None, None, Some(ErrorCode::LimitExceeded)]);
    world.restart();
    assert_refused(world.register_by(agent("a"), graph("g2", 7), ""), ErrorCode::LimitExceeded);
    world.register_by(agent("a"), graph("g0", 8), "").expect("a further revision takes no room");
    world.register_by(agent("b"), graph("other", 7), "").expect("the share of another agent");
    world.remove(agent("a"), name(Registry::Graphs, "g0")).unwrap();
    world.register_by(agent("a"), graph("g2", 7), "").expect("the removal has made room");
    assert_refused(world.register_by(agent("a"), graph("g0", 7), ""), ErrorCode::LimitExceeded);

    world.register_schema("a", "log", "1", "{}").unwrap();
    world.register_schema("a", "log", "2", "{}").unwrap();
    assert_refused(world.register_schema("a", "other", "1", "{}"), ErrorCode::LimitExceeded);
    world.register_schema("b", "other", "1", "{}").unwrap();
    world.remove_version("a", "log", "1").unwrap();
    world.register_schema("a", "log", "3", "{}").unwrap();
}

#[test]
fn a_registration_whose_commit_fails_leaves_nothing() {
    use std::sync::atomic::Ordering::Relaxed;
    let limits = AgentLimits { graphs_max: 1, ..AgentLimits::default() };
    let mut world = World::with_settings(&["a", "b"], Settings { limits, ..Settings::default() });
    world.disk.full.store(true, Relaxed);
    assert_refused(world.register_by(agent("a"), graph("g", 7), ""), ErrorCode::StoreUnavailable);
    assert_refused(world.remove(agent("a"), name(Registry::Graphs, "g")), ErrorCode::StoreUnavailable);
    world.disk.full.store(false, Relaxed);
    world.recover();
    assert_eq!(world.register_by(agent("b"), graph("g", 7), "").unwrap().owner, "b", "the name is free");
    world.register_by(agent("a"), graph("own", 7), "").expect("nothing counts for the agent");
}

#[test]
fn removed_names_of_an_agent_have_a_bound_of_their_own() {
    let limits = AgentLimits { graphs_max: 1, ..AgentLimits::default() };
    let mut world = World::with_settings(&["a", "b"], Settings { limits, ..Settings::default() });
    for number in 0..100 {
        let id = format!("g{number}");
        world.register_by(agent("a"), graph(&id, 7), "").unwrap();
        world.remove(agent("a"), name(Registry::Graphs, &id)).unwrap();
    }
    assert_refused(world.register_by(agent("a"), graph("one-more", 7), ""), ErrorCode::LimitExceeded);
    world.register_by(agent("a"), graph("g7", 8), "").expect("its own name again");
    world.register_by(agent("b"), graph("one-more", 7), "").expect("another agent");
}

#[test]
fn versions_of_a_schema_are_its_owners_and_a_removed_one_never_changes() {
    let mut world = World::with(&["a", "b"]);
    world.register_schema("a", "log", "1", "{}").unwrap();
    assert_refused(world.register_schema("b", "log", "2", "{}"), ErrorCode::PermissionDenied);
    world.register_schema("b", "log", "1", "{}").expect("the same text again");
    assert_refused(world.register_schema("b", "log", "1", "true"), ErrorCode::SchemaExists);
    world.register_schema("a", "log", "2", "{}").unwrap();
    assert_refused(world.remove_version("b", "log", "2"), ErrorCode::PermissionDenied);
    assert_refused(world.remove_version("a", "log", "3"), ErrorCode::SchemaUnknown);
    assert_eq!(world.remove_version("a", "log", "1").unwrap().entries, 1);
    world.restart();
    let caller = agent("b");
    assert_eq!(world.view(&caller).schema("log", "1").unwrap_err().code(), ErrorCode::SchemaUnknown);
    assert_eq!(world.view(&caller).schemas("log", 10, "").unwrap().entries.len(), 1);
    assert_eq!(world.remove_version("a", "log", "1").unwrap().entries, 1, "again it changes nothing");
    assert_refused(world.register_schema("a", "log", "1", "true"), ErrorCode::SchemaExists);
    assert_refused(world.register_schema("b", "log", "1", "{}"), ErrorCode::PermissionDenied);
    let retire = NameChange::Retire;
    world.change(agent("a"), name(Registry::Schemas, "log"), retire, "").unwrap();
    assert_refused(world.register_schema("a", "log", "1", "{}"), ErrorCode::NameRetired);
    world.view(&caller).schema("log", "2").expect("a retired schema still checks contexts");
    // With its last version the name is removed, and its owner begins anew.
    assert_eq!(world.remove_version("a", "log", "2").unwrap().entries, 0);
    world.register_schema("a", "log", "1", "{}").unwrap();
    assert_eq!(world.last_acts(2)[0], act("agent a", "NAME_REMOVED", "schema:log", "version 2"));
}

#[test]
fn a_removed_spec_is_kept_for_the_threads_that_have_it_in_force() {
    let mut world = World::with_thread();
    let caller = operator();
    let concierge = || name(Registry::AgentSpecs, "concierge");
    world.begin(RUN_OF_THREAD, "a").unwrap();
    let before = world.view(&caller).thread_with_specs(&crate::threads::thread_id()).unwrap();
    assert_refused(world.remove(agent("a"), concierge()), ErrorCode::PermissionDenied);
    world.remove(operator(), concierge()).unwrap();
    world.remove(operator(), name(Registry::ModelSpecs, "large")).unwrap();
    world.restart();
    let spec = |world: &World, revision| {
        world
            .view(&caller)
            .spec(SpecKind::Agent, &SpecId::parse("concierge").unwrap(), revision)
            .map(|spec| spec.revision)
    };
    assert_eq!(spec(&world, 0).unwrap_err().code(), ErrorCode::SpecUnknown);
    assert_refused(world.create_thread_named("other"), ErrorCode::HandoffResolveFailed);
    let after = world.view(&caller).thread_with_specs(&crate::threads::thread_id()).unwrap();
    assert_eq!((&after.spec, &after.model), (&before.spec, &before.model));
    world.end_step(RUN_OF_THREAD, "a", 1).expect("the spec stays in force as it was");
    // The name goes on with a new number, which the next boundary puts in force. Then nothing needs the old revision.
    assert!(world.register_revision(Revision::Spec(model("large"))).unwrap());
    assert!(world.register_revision(Revision::Spec(persona("concierge", "large", &[PLUGIN]))).unwrap());
    assert_eq!((spec(&world, 0).unwrap(), spec(&world, 1).unwrap()), (2, 1));
    world.end_step(RUN_OF_THREAD, "a", 2).unwrap();
    assert_eq!(world.thread().in_force.revision, 2);
    world.remove(operator(), concierge()).unwrap();
    let rows = world.rows_in(Table::SpecRevisions);
    world.pass(IDLE * 2);
    world.pass(std::time::Duration::from_secs(120));
    assert_eq!(rows - world.rows_in(Table::SpecRevisions), 3, "two revisions of concierge, and the first of its model");
}

#[test]
fn a_retired_spec_takes_no_revision_and_no_new_use() {
    let mut world = World::with_thread();
    let retire = NameChange::Retire;
    world.change(operator(), name(Registry::AgentSpecs, "researcher"), retire.clone(), "").unwrap();
    world.change(operator(), name(Registry::AgentSpecs, "concierge"), retire, "").unwrap();
    let revision = Revision::Spec(persona("researcher", "large", &["search"]));
    assert_refused(world.register_by(operator(), revision, ""), ErrorCode::NameRetired);
    let researcher = SpecId::parse("researcher").unwrap();
    assert_refused(world.act(Action::Request(researcher.clone())), ErrorCode::NameRetired);
    assert_refused(world.act(Action::Activate(researcher)), ErrorCode::NameRetired);
    assert_refused(world.create_thread_named("other"), ErrorCode::NameRetired);
    world.begin(RUN_OF_THREAD, "a").expect("the thread keeps its base");
}

#[test]
fn the_prompt_of_a_spec_is_for_its_owner_and_operators() {
    let mut world = World::with(&["a:writer", "b:writer", "c"]);
    let rule = "permit(principal in Type::\"writer\", action == Action::\"manageSpecs\", resource)
        when { resource.participants.contains(principal) };
        permit(principal == Agent::\"c\", action == Action::\"readSpec\", resource)
        when { context.specId like \"open-*\" };";
    let policies = Policies::parse(&[Source::new("default", DEFAULT), Source::new("test.cedar", rule)]).unwrap();
    world.resources.policies.store(Arc::new(policies));
    let mut put = |by: &str, spec: Spec| world.register_by(agent(by), Revision::Spec(spec), "");
    put("a", persona("mine", "large", &[])).unwrap();
    put("a", persona("open-one", "large", &[])).unwrap();
    assert_refused(put("b", persona("mine", "large", &["other"])), ErrorCode::PermissionDenied);
    assert_refused(put("c", persona("other", "large", &[])), ErrorCode::PermissionDenied);
    let may = |caller: &Caller, id: &str| world.view(caller).may_read_prompt(&SpecId::parse(id).unwrap()).unwrap();
    assert!(may(&agent("a"), "mine") && may(&operator(), "mine"));
    assert!(!may(&agent("b"), "mine") && !may(&agent("c"), "mine"));
    assert!(may(&agent("c"), "open-one"));
    assert!(!may(&agent("b"), "unknown"));
}

const RUN_OF_THREAD: baton_broker_core::domain::threads::ThreadRunId =
    baton_broker_core::domain::threads::ThreadRunId(baton_broker_core::ids::MessageId::from_bytes([7; 16]));
