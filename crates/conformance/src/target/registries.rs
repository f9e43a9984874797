//! SPEC 5: the owners of graphs, schemas and specs.

use tonic::Code;

use super::{
    check::{Answer, Checks, Refusal, Verdict, answered},
    world::{Actor, World},
};
use baton_client::proto::v1::{self, Registry};

cases! {
    "registry.names-have-owners" "5"
        "Another agent's revision of a graph, version of a schema, or change of a name is refused with PERMISSION_DENIED; the same graph again changes nothing; a revision on an old etag is refused with CONFLICT."
        names_have_owners;
    "registry.a-name-is-handed-over" "5"
        "A name that its owner offers belongs to its receiver once it takes it, and the former owner changes it no more."
        is_handed_over;
    "registry.a-retired-name-takes-no-new-use" "5"
        "A retired graph takes no revision and starts no run: NAME_RETIRED."
        is_retired;
    "registry.a-removed-name-stays-with-its-owner" "5"
        "A removed graph is GRAPH_UNKNOWN, its runs go on, and only its owner registers it again, with a higher revision; a removed version of a schema never comes back with another text."
        is_removed;
    "registry.prompts-are-for-their-readers" "5"
        "An agent without readSpec sees a spec without its prompt, and is told so; an operator sees all of it."
        prompts;
}

const DENIED: Refusal = Refusal(Code::PermissionDenied, "PERMISSION_DENIED");

fn graph(id: &str, steps_max: u32) -> v1::Graph {
    let node = v1::Node { node_id: "n".to_owned(), output_nodes: vec!["end".to_owned()], ..Default::default() };
    v1::Graph {
        graph_id: id.to_owned(),
        entry_node_ids: vec!["n".to_owned()],
        nodes: vec![node],
        steps_max,
        ..Default::default()
    }
}

async fn register(who: &Actor, graph: v1::Graph, etag: &str) -> Answer<v1::RegisterGraphResponse> {
    let request = v1::RegisterGraphRequest { graph: Some(graph), etag: etag.to_owned() };
    who.call(async { who.client.answer(who.client.routing().register_graph(request).await) }).await
}

async fn start(who: &Actor, graph: &str, run_id: &str) -> Answer<v1::StartRunResponse> {
    let request = v1::StartRunRequest { graph_id: graph.to_owned(), run_id: run_id.to_owned(), ..Default::default() };
    who.call(async { who.client.answer(who.client.routing().start_run(request).await) }).await
}

async fn transfer(who: &Actor, name: &str, to: &str) -> Answer<v1::TransferRegistrationResponse> {
    let request = v1::TransferRegistrationRequest {
        registry: Registry::Graphs.into(),
        name: name.to_owned(),
        to: to.to_owned(),
        ..Default::default()
    };
    who.call(async { who.client.answer(who.client.registries().transfer_registration(request).await) }).await
}

async fn retire(who: &Actor, name: &str) -> Answer<v1::RetireRegistrationResponse> {
    let request = v1::RetireRegistrationRequest {
        registry: Registry::Graphs.into(),
        name: name.to_owned(),
        ..Default::default()
    };
    who.call(async { who.client.answer(who.client.registries().retire_registration(request).await) }).await
}

async fn remove(who: &Actor, registry: Registry, name: &str, version: &str) -> Answer<v1::RemoveRegistrationResponse> {
    let request = v1::RemoveRegistrationRequest {
        registry: registry.into(),
        name: name.to_owned(),
        schema_version: version.to_owned(),
        ..Default::default()
    };
    who.call(async { who.client.answer(who.client.registries().remove_registration(request).await) }).await
}

async fn names_have_owners(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let (id, schema) = (world.id("graph"), world.id("schema"));
    let first = answered("a graph is registered", register(&alice, graph(&id, 7), "").await)?;
    let name = first.registration.unwrap_or_default();
    let mut checks = Checks::of("a name of another agent");
    checks.same("owner_id", alice.id(), name.owner_id.as_str());
    checks.refused("another revision", register(&bob, graph(&id, 8), "").await, DENIED);
    checks.refused("its retirement", retire(&bob, &id).await, DENIED);
    checks.refused("its removal", remove(&bob, Registry::Graphs, &id, "").await, DENIED);
    checks.refused("its transfer", transfer(&bob, &id, bob.id()).await, DENIED);
    let again = answered("the same graph again", register(&bob, graph(&id, 7), "").await)?;
    checks.same("revision", 1, again.graph.unwrap_or_default().revision);
    answered("a schema is registered", alice.call(alice.client.register_schema(&schema, "1", "{}")).await)?;
    checks.refused("the next version", bob.call(bob.client.register_schema(&schema, "2", "{}")).await, DENIED);
    let second = answered("the owner's revision", register(&alice, graph(&id, 8), &name.etag).await)?;
    checks.same("revision", 2, second.graph.unwrap_or_default().revision);
    let conflict = Refusal(Code::Aborted, "CONFLICT");
    checks.refused("a revision on the old etag", register(&alice, graph(&id, 9), &name.etag).await, conflict);
    checks.done()
}

async fn is_handed_over(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let id = world.id("graph");
    answered("a graph is registered", register(&alice, graph(&id, 7), "").await)?;
    let offered = answered("it is offered", transfer(&alice, &id, bob.id()).await)?.registration.unwrap_or_default();
    let mut checks = Checks::of("a name is handed over");
    checks.same("owner_id", alice.id(), offered.owner_id.as_str());
    checks.same("offered_to_id", bob.id(), offered.offered_to_id.as_str());
    let taken = answered("it is taken", transfer(&bob, &id, bob.id()).await)?.registration.unwrap_or_default();
    checks.same("owner_id", bob.id(), taken.owner_id.as_str());
    checks.refused("the former owner's revision", register(&alice, graph(&id, 8), "").await, DENIED);
    answered("the new owner's revision", register(&bob, graph(&id, 8), "").await)?;
    checks.done()
}

async fn is_retired(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let id = world.id("graph");
    answered("a graph is registered", register(&alice, graph(&id, 7), "").await)?;
    answered("it is retired", retire(&alice, &id).await)?;
    let retired = Refusal(Code::FailedPrecondition, "NAME_RETIRED");
    let mut checks = Checks::of("a graph is retired");
    checks.refused("a revision", register(&alice, graph(&id, 8), "").await, retired);
    checks.refused("a run", start(&alice, &id, "").await, retired);
    checks.done()
}

async fn is_removed(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let (id, schema) = (world.id("graph"), world.id("schema"));
    answered("a graph is registered", register(&alice, graph(&id, 7), "").await)?;
    let run = answered("a run starts", start(&bob, &id, "").await)?.run.unwrap_or_default();
    answered("the graph is removed", remove(&alice, Registry::Graphs, &id, "").await)?;
    answered("it is removed again", remove(&alice, Registry::Graphs, &id, "").await)?;
    let mut checks = Checks::of("a graph is removed");
    let unknown = Refusal(Code::NotFound, "GRAPH_UNKNOWN");
    checks.refused("a further run", start(&bob, &id, "").await, unknown);
    let again = answered("the run that has begun", start(&bob, &id, &run.run_id).await)?.run.unwrap_or_default();
    checks.same("state", run.state, again.state);
    checks.refused("a registration by another agent", register(&bob, graph(&id, 8), "").await, DENIED);
    let back = answered("its owner registers it again", register(&alice, graph(&id, 8), "").await)?;
    checks.same("revision", 2, back.graph.unwrap_or_default().revision);

    answered("a schema is registered", alice.call(alice.client.register_schema(&schema, "1", "{}")).await)?;
    answered("its version is removed", remove(&alice, Registry::Schemas, &schema, "1").await)?;
    let gone = alice.call(alice.client.schema(&schema, "1")).await;
    checks.refused("the version", gone, Refusal(Code::NotFound, "SCHEMA_UNKNOWN"));
    let exists = Refusal(Code::AlreadyExists, "SCHEMA_EXISTS");
    checks.refused("another text", alice.call(alice.client.register_schema(&schema, "1", "true")).await, exists);
    checks.done()
}

async fn prompts(world: World) -> Verdict {
    let operator = world.operator()?;
    let alice = world.agent("alice").await?;
    let spec_id = world.id("spec");
    let spec = v1::AgentSpec {
        spec_id: spec_id.clone(),
        model_id: world.id("model"),
        system_prompt: "You keep a secret.".to_owned(),
        description: "keeps a secret".to_owned(),
        ..Default::default()
    };
    let put = v1::PutAgentSpecRequest { spec: Some(spec), ..Default::default() };
    answered("a spec", world.call(async { operator.answer(operator.threads().put_agent_spec(put).await) }).await)?;
    let get = || v1::GetAgentSpecRequest { spec_id: spec_id.clone(), revision: 0 };
    let shown = alice.call(async { alice.client.answer(alice.client.threads().get_agent_spec(get()).await) }).await;
    let shown = answered("an agent reads it", shown)?;
    let mut checks = Checks::of("a spec is read");
    checks.same("prompt_hidden", true, shown.prompt_hidden);
    let shown = shown.spec.unwrap_or_default();
    checks.same("system_prompt", "", shown.system_prompt.as_str());
    checks.same("description", "keeps a secret", shown.description.as_str());
    let whole = world.call(async { operator.answer(operator.threads().get_agent_spec(get()).await) }).await;
    let whole = answered("an operator reads it", whole)?;
    checks.same("prompt_hidden", false, whole.prompt_hidden);
    checks.same("system_prompt", "You keep a secret.", whole.spec.unwrap_or_default().system_prompt.as_str());
    checks.done()
}
