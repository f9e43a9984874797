//! Every call of the broker's services: without an identity, by an agent that has no part in the object of the call, and by
//! an operator with and without the right.

use std::collections::{BTreeMap, HashMap};

use baton::{
    broker::access::LOCAL_OPERATOR,
    proto::v1,
    wire::operations::{OPERATIONS, Right},
};
use baton_client::{About, Client};
use bytes::{Buf as _, BufMut as _, Bytes};
use prost::Message;
use tonic::{
    Code, Request, Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};
use tonic_types::StatusExt as _;

use crate::broker::{Broker, a_request, card, composer, eventually, identity, new_task, write};

/// What a call requires of its caller.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Asks {
    /// Nothing: the call itself authenticates, or its message does.
    Nothing,
    /// An identity. The answer concerns the caller, or is visible to every agent.
    Identity,
    /// Participation in the named object, or permission for every object.
    Permission,
}

/// A call, its requirement, and its request for an existing and for an unknown object.
struct Row(&'static str, Asks, Bytes, Bytes);

fn row<M: Message>(path: &'static str, asks: Asks, of_known: &M, of_unknown: &M) -> Row {
    Row(path, asks, of_known.encode_to_vec().into(), of_unknown.encode_to_vec().into())
}

/// The ids of objects, which exist or do not exist.
struct Ids {
    agent: String,
    task: String,
    handoff: String,
    dead_letter: String,
    run: String,
    thread: String,
    plan: String,
    graph: String,
}

fn a_plan(id: &str) -> v1::Plan {
    let subtasks = vec![baton_client::subtask("fetch", "fetcher")];
    v1::Plan { plan_id: id.to_owned(), subtasks, ..Default::default() }
}

fn rows(known: &Ids, unknown: &Ids) -> Vec<Row> {
    use Asks::{Identity, Nothing, Permission};
    macro_rules! both {
        ($path:literal, $asks:expr, |$ids:ident| $request:expr) => {{
            let request = |$ids: &Ids| $request;
            row(concat!("/baton.v1.", $path), $asks, &request(known), &request(unknown))
        }};
    }
    let of_agent = |ids: &Ids| Some(v1::DeadLetterFilter { agent_id: ids.agent.clone(), ..Default::default() });
    let forged = |ids: &Ids| {
        let mut envelope =
            composer("forger").compose("b", v1::MessageType::Info, &About::default(), &v1::Info::default());
        envelope.sender_id.clone_from(&ids.agent);
        // The same id for both envelopes, so that only the sender differs.
        envelope.message_id = "0198c0de-0000-7000-8000-000000000001".to_owned();
        envelope.encode_to_vec().into()
    };
    let append = |ids: &Ids| {
        let append = v1::WorkspaceAppend { workspace_id: "task:t".to_owned(), ..Default::default() };
        let mut envelope = composer("forger").compose("", v1::MessageType::WorkspaceAppend, &About::default(), &append);
        envelope.sender_id.clone_from(&ids.agent);
        envelope.message_id = "0198c0de-0000-7000-8000-000000000001".to_owned();
        envelope.encode_to_vec().into()
    };
    let submission = |ids: &Ids| {
        let payload = v1::PlanSubmission { plan: Some(a_plan(&ids.plan)), ..Default::default() };
        let kind = v1::MessageType::PlanSubmission;
        let mut envelope = composer("forger").compose("", kind, &About::default(), &payload);
        envelope.sender_id.clone_from(&ids.agent);
        envelope.message_id = "0198c0de-0000-7000-8000-000000000001".to_owned();
        envelope.encode_to_vec().into()
    };
    let extension = |ids: &Ids| {
        let extension = v1::PlanExtension { plan_id: ids.plan.clone(), ..Default::default() };
        let payload = v1::PlanSubmission { extension: Some(extension), ..Default::default() };
        let kind = v1::MessageType::PlanSubmission;
        let mut envelope = composer("forger").compose("", kind, &About::default(), &payload);
        envelope.sender_id.clone_from(&ids.agent);
        envelope.message_id = "0198c0de-0000-7000-8000-000000000001".to_owned();
        envelope.encode_to_vec().into()
    };
    let checkpoint = |ids: &Ids| {
        let context = baton_client::context_of([("goals", "[]".to_owned())]);
        let about = About::task(&ids.task, 1);
        let mut envelope = composer("forger").compose("", v1::MessageType::ContextCheckpoint, &about, &context);
        envelope.sender_id.clone_from(&ids.agent);
        envelope.message_id = "0198c0de-0000-7000-8000-000000000001".to_owned();
        envelope.encode_to_vec().into()
    };
    vec![
        both!("BrokerService/Connect", Identity, |_ids| v1::ConnectRequest::default()),
        both!("BrokerService/Send", Nothing, |ids| v1::SendRequest { envelope: forged(ids), ..Default::default() }),
        both!("BrokerService/Receive", Identity, |_ids| v1::ReceiveRequest::default()),
        both!("BrokerService/Ack", Identity, |_ids| v1::AckRequest::default()),
        both!("HandoffService/GetHandoff", Permission, |ids| v1::GetHandoffRequest {
            handoff_id: ids.handoff.clone(),
            ..Default::default()
        }),
        both!("HandoffService/ListHandoffs", Permission, |ids| v1::ListHandoffsRequest {
            task_id: ids.task.clone(),
            ..Default::default()
        }),
        both!("HandoffService/WatchHandoff", Permission, |ids| v1::WatchHandoffRequest {
            handoff_id: ids.handoff.clone()
        }),
        both!("HandoffService/WatchHandoffs", Identity, |ids| v1::WatchHandoffsRequest {
            task_id: ids.task.clone(),
            ..Default::default()
        }),
        both!("NegotiationService/GetNegotiation", Permission, |ids| v1::GetNegotiationRequest {
            negotiation_id: ids.handoff.clone()
        }),
        both!("NegotiationService/ListNegotiations", Permission, |ids| v1::ListNegotiationsRequest {
            agent_id: ids.agent.clone(),
            ..Default::default()
        }),
        both!("NegotiationService/WatchNegotiation", Permission, |ids| v1::WatchNegotiationRequest {
            negotiation_id: ids.handoff.clone()
        }),
        both!("NegotiationService/CancelNegotiation", Permission, |ids| v1::CancelNegotiationRequest {
            negotiation_id: ids.handoff.clone()
        }),
        both!("TaskService/GetTask", Permission, |ids| v1::GetTaskRequest { task_id: ids.task.clone() }),
        both!("TaskService/ListTasks", Permission, |ids| v1::ListTasksRequest {
            owner_id: ids.agent.clone(),
            ..Default::default()
        }),
        both!("TaskService/GetCustodyLog", Permission, |ids| v1::GetCustodyLogRequest {
            task_id: ids.task.clone(),
            ..Default::default()
        }),
        both!("TaskService/WatchTask", Permission, |ids| v1::WatchTaskRequest {
            task_id: ids.task.clone(),
            ..Default::default()
        }),
        both!("TaskService/ResumeTasks", Identity, |_ids| v1::ResumeTasksRequest::default()),
        both!("TaskService/ReassignTask", Permission, |ids| v1::ReassignTaskRequest {
            task_id: ids.task.clone(),
            expected_epoch: 1,
            to: ids.agent.clone(),
            ..Default::default()
        }),
        both!("DeadLetterService/GetDeadLetter", Permission, |ids| v1::GetDeadLetterRequest {
            dead_letter_id: ids.dead_letter.clone()
        }),
        both!("DeadLetterService/ListDeadLetters", Permission, |ids| v1::ListDeadLettersRequest {
            filter: of_agent(ids),
            ..Default::default()
        }),
        both!("DeadLetterService/ExportDeadLetters", Permission, |ids| v1::ExportDeadLettersRequest {
            filter: of_agent(ids)
        }),
        both!("DeadLetterService/RedriveDeadLetter", Permission, |ids| v1::RedriveDeadLetterRequest {
            dead_letter_id: ids.dead_letter.clone(),
            ..Default::default()
        }),
        both!("DeadLetterService/RedriveDeadLetters", Permission, |ids| v1::RedriveDeadLettersRequest {
            filter: of_agent(ids),
            ..Default::default()
        }),
        both!("DeadLetterService/DiscardDeadLetter", Permission, |ids| v1::DiscardDeadLetterRequest {
            dead_letter_id: ids.dead_letter.clone(),
            ..Default::default()
        }),
        both!("AgentService/RegisterAgent", Permission, |ids| v1::RegisterAgentRequest {
            card: Some(v1::AgentCard { agent_id: ids.agent.clone(), ..card("impostor", "") }),
            ..Default::default()
        }),
        both!("AgentService/AddAgentKey", Permission, |ids| v1::AddAgentKeyRequest {
            agent_id: ids.agent.clone(),
            key: Some(identity("impostor").agent_key()),
            ..Default::default()
        }),
        both!("AgentService/RevokeAgentKey", Permission, |ids| v1::RevokeAgentKeyRequest {
            agent_id: ids.agent.clone(),
            key_id: "k1".to_owned(),
            ..Default::default()
        }),
        both!("AgentService/VouchForAgentKey", Permission, |ids| v1::VouchForAgentKeyRequest {
            agent_id: ids.agent.clone(),
            key_id: "k1".to_owned(),
            voucher: Some(v1::KeyVoucher {
                operator_key_id: "o".to_owned(),
                signature: vec![0; 64].into(),
                ..Default::default()
            }),
        }),
        both!("AgentService/CreateInvitation", Permission, |ids| v1::CreateInvitationRequest {
            agent_id: ids.agent.clone(),
            ..Default::default()
        }),
        // The built-in policy lets every agent read the directory.
        both!("AgentService/GetAgent", Identity, |ids| v1::GetAgentRequest { agent_id: ids.agent.clone() }),
        both!("AgentService/ListProcesses", Identity, |ids| v1::ListProcessesRequest { agent_id: ids.agent.clone() }),
        both!("AgentService/UpdateAgent", Permission, |ids| v1::UpdateAgentRequest {
            card: Some(v1::AgentCard { agent_id: ids.agent.clone(), ..card("impostor", "") }),
            ..Default::default()
        }),
        both!("AgentService/DeregisterAgent", Permission, |ids| v1::DeregisterAgentRequest {
            agent_id: ids.agent.clone(),
            ..Default::default()
        }),
        both!("AgentService/FindAgents", Identity, |_ids| v1::FindAgentsRequest::default()),
        both!("AgentService/WatchAgents", Identity, |_ids| v1::WatchAgentsRequest::default()),
        both!("BlobService/WriteBlob", Permission, |ids| v1::WriteBlobRequest {
            blob: Some(v1::Blob { sha256: vec![0; 32].into(), size_bytes: 1, ..Default::default() }),
            workspace_id: format!("task:{}", ids.task),
            ..Default::default()
        }),
        both!("BlobService/GetBlobWrite", Identity, |_ids| v1::GetBlobWriteRequest::default()),
        both!("BlobService/ReadBlob", Identity, |_ids| v1::ReadBlobRequest::default()),
        both!("BlobService/GetBlob", Identity, |_ids| v1::GetBlobRequest::default()),
        both!("BlobService/FindMissingBlobs", Identity, |_ids| v1::FindMissingBlobsRequest::default()),
        both!("BlobService/ListBlobs", Permission, |ids| v1::ListBlobsRequest {
            workspace_id: format!("task:{}", ids.task),
            ..Default::default()
        }),
        both!("BlobService/DeleteBlob", Permission, |ids| v1::DeleteBlobRequest {
            workspace_id: format!("task:{}", ids.task),
            sha256: vec![0; 32].into(),
        }),
        // The built-in policy lets every agent register and read schemas.
        both!("SchemaService/RegisterSchema", Identity, |_ids| v1::RegisterSchemaRequest::default()),
        both!("SchemaService/GetSchema", Identity, |_ids| v1::GetSchemaRequest::default()),
        both!("SchemaService/ListSchemas", Identity, |_ids| v1::ListSchemasRequest::default()),
        both!("SchemaService/CheckSchema", Identity, |_ids| v1::CheckSchemaRequest::default()),
        both!("RoutingService/RegisterGraph", Identity, |_ids| v1::RegisterGraphRequest::default()),
        both!("RoutingService/ValidateGraph", Identity, |_ids| v1::ValidateGraphRequest::default()),
        both!("RoutingService/GetGraph", Identity, |_ids| v1::GetGraphRequest::default()),
        both!("RoutingService/ListGraphs", Identity, |_ids| v1::ListGraphsRequest::default()),
        // Over a task of another agent, which no start of the stranger can have.
        both!("RoutingService/StartRun", Permission, |ids| v1::StartRunRequest {
            graph_id: "g".to_owned(),
            run_id: ids.run.clone(),
            task_id: ids.task.clone(),
            ..Default::default()
        }),
        both!("RoutingService/GetRun", Permission, |ids| v1::GetRunRequest { run_id: ids.run.clone() }),
        both!("RoutingService/ListRuns", Permission, |ids| v1::ListRunsRequest {
            task_id: ids.task.clone(),
            ..Default::default()
        }),
        both!("RoutingService/WatchRun", Permission, |ids| v1::WatchRunRequest {
            run_id: ids.run.clone(),
            ..Default::default()
        }),
        both!("RoutingService/CancelRun", Permission, |ids| v1::CancelRunRequest {
            run_id: ids.run.clone(),
            ..Default::default()
        }),
        both!("RoutingService/GetNodeTools", Permission, |ids| v1::GetNodeToolsRequest {
            run_id: ids.run.clone(),
            node_id: "n".to_owned(),
            ..Default::default()
        }),
        both!("RoutingService/RecordTurn", Permission, |ids| v1::RecordTurnRequest {
            run_id: ids.run.clone(),
            node_id: "n".to_owned(),
            turn_id: "0198c0de-0000-7000-8000-0000000000aa".to_owned(),
            finished: true,
            ..Default::default()
        }),
        // The built-in policy lets every agent read who owns which name.
        both!("RegistryService/GetRegistration", Identity, |_ids| v1::GetRegistrationRequest::default()),
        both!("RegistryService/ListRegistrations", Identity, |_ids| v1::ListRegistrationsRequest::default()),
        both!("RegistryService/TransferRegistration", Permission, |ids| v1::TransferRegistrationRequest {
            registry: v1::Registry::Graphs.into(),
            name: ids.graph.clone(),
            to: "c".to_owned(),
            ..Default::default()
        }),
        both!("RegistryService/RetireRegistration", Permission, |ids| v1::RetireRegistrationRequest {
            registry: v1::Registry::Graphs.into(),
            name: ids.graph.clone(),
            ..Default::default()
        }),
        both!("RegistryService/RemoveRegistration", Permission, |ids| v1::RemoveRegistrationRequest {
            registry: v1::Registry::Graphs.into(),
            name: ids.graph.clone(),
            ..Default::default()
        }),
        both!("PlanService/ValidatePlan", Identity, |_ids| v1::ValidatePlanRequest::default()),
        both!("PlanService/SubmitPlan", Nothing, |ids| v1::SubmitPlanRequest { envelope: submission(ids) }),
        both!("PlanService/ExtendPlan", Nothing, |ids| v1::ExtendPlanRequest { envelope: extension(ids) }),
        both!("PlanService/GetPlan", Permission, |ids| v1::GetPlanRequest {
            plan_id: ids.plan.clone(),
            ..Default::default()
        }),
        both!("PlanService/ListPlans", Permission, |_ids| v1::ListPlansRequest::default()),
        both!("PlanService/ListPlanResults", Permission, |ids| v1::ListPlanResultsRequest {
            plan_id: ids.plan.clone(),
            ..Default::default()
        }),
        both!("PlanService/WatchPlan", Permission, |ids| v1::WatchPlanRequest {
            plan_id: ids.plan.clone(),
            ..Default::default()
        }),
        both!("PlanService/CancelPlan", Permission, |ids| v1::CancelPlanRequest {
            plan_id: ids.plan.clone(),
            ..Default::default()
        }),
        both!("PlanService/CancelSubtask", Permission, |ids| v1::CancelSubtaskRequest {
            plan_id: ids.plan.clone(),
            subtask_id: "a".to_owned(),
            ..Default::default()
        }),
        both!("PlanService/RetrySubtask", Permission, |ids| v1::RetrySubtaskRequest {
            plan_id: ids.plan.clone(),
            subtask_id: "a".to_owned(),
        }),
        both!("PlanService/ReassignSubtask", Permission, |ids| v1::ReassignSubtaskRequest {
            plan_id: ids.plan.clone(),
            subtask_id: "a".to_owned(),
            to: "agent-a".to_owned(),
            ..Default::default()
        }),
        both!("PlanService/RetryPlan", Permission, |ids| v1::RetryPlanRequest { plan_id: ids.plan.clone() }),
        both!("ThreadService/PutAgentSpec", Permission, |_ids| v1::PutAgentSpecRequest::default()),
        both!("ThreadService/GetAgentSpec", Identity, |_ids| v1::GetAgentSpecRequest::default()),
        both!("ThreadService/ListAgentSpecs", Identity, |_ids| v1::ListAgentSpecsRequest::default()),
        both!("ThreadService/PutModelSpec", Permission, |_ids| v1::PutModelSpecRequest::default()),
        both!("ThreadService/ListModelSpecs", Identity, |_ids| v1::ListModelSpecsRequest::default()),
        both!("ThreadService/CreateThread", Permission, |ids| v1::CreateThreadRequest {
            base_spec_id: "s".to_owned(),
            thread_id: ids.thread.clone(),
            task_id: ids.task.clone(),
            ..Default::default()
        }),
        both!("ThreadService/GetThread", Permission, |ids| v1::GetThreadRequest { thread_id: ids.thread.clone() }),
        both!("ThreadService/ListThreads", Permission, |_ids| v1::ListThreadsRequest::default()),
        both!("ThreadService/WatchThread", Permission, |ids| v1::WatchThreadRequest {
            thread_id: ids.thread.clone(),
            ..Default::default()
        }),
        both!("ThreadService/ApplyHandoffAction", Permission, |ids| v1::ApplyHandoffActionRequest {
            thread_id: ids.thread.clone(),
            action: Some(v1::apply_handoff_action_request::Action::Clear(true)),
            ..Default::default()
        }),
        both!("ThreadService/BeginRun", Permission, |ids| v1::BeginRunRequest {
            thread_id: ids.thread.clone(),
            run_id: "0198c0de-0000-7000-8000-0000000000aa".into(),
        }),
        both!("ThreadService/EndStep", Permission, |ids| v1::EndStepRequest {
            thread_id: ids.thread.clone(),
            run_id: "0198c0de-0000-7000-8000-0000000000aa".into(),
            step: 1,
        }),
        both!("ThreadService/EndRun", Permission, |ids| v1::EndRunRequest {
            thread_id: ids.thread.clone(),
            run_id: "0198c0de-0000-7000-8000-0000000000aa".into(),
        }),
        both!("AgentService/ListAgents", Identity, |_ids| v1::ListAgentsRequest::default()),
        // The answer is random; `a_challenge_is_given_for_every_id` checks it.
        both!("AgentService/CreateChallenge", Nothing, |_ids| v1::CreateChallengeRequest::default()),
        both!("AgentService/CreateToken", Nothing, |ids| v1::CreateTokenRequest {
            agent_id: ids.agent.clone(),
            key_id: "k1".to_owned(),
            challenge: vec![1; 32].into(),
            signature: vec![1; 64].into(),
        }),
        // The broker of this test has no console, so the answer is the same for all callers with an identity.
        both!("AgentService/CreateLoginCode", Identity, |_ids| v1::CreateLoginCodeRequest {}),
        both!("ContextService/GetContext", Permission, |ids| v1::GetContextRequest {
            task_id: ids.task.clone(),
            version: 0,
        }),
        both!("ContextService/GetContextSection", Permission, |ids| v1::GetContextSectionRequest {
            task_id: ids.task.clone(),
            name: "goals".to_owned(),
            ..Default::default()
        }),
        both!("ContextService/ListContextVersions", Permission, |ids| v1::ListContextVersionsRequest {
            task_id: ids.task.clone(),
            ..Default::default()
        }),
        both!("ContextService/CheckpointContext", Nothing, |ids| v1::CheckpointContextRequest {
            envelope: checkpoint(ids),
        }),
        both!("WorkspaceService/AppendEntry", Nothing, |ids| v1::AppendEntryRequest { envelope: append(ids) }),
        both!("WorkspaceService/ListEntries", Permission, |ids| v1::ListEntriesRequest {
            workspace_id: format!("task:{}", ids.task),
            ..Default::default()
        }),
        both!("WorkspaceService/WatchEntries", Permission, |ids| v1::WatchEntriesRequest {
            workspace_id: format!("task:{}", ids.task),
            ..Default::default()
        }),
        both!("WorkspaceService/ListTopics", Permission, |ids| v1::ListTopicsRequest {
            workspace_id: format!("task:{}", ids.task)
        }),
        both!("WorkspaceService/GetWorkspace", Permission, |ids| v1::GetWorkspaceRequest {
            workspace_id: format!("task:{}", ids.task)
        }),
        both!("AuditService/ListAuditEntries", Permission, |_ids| v1::ListAuditEntriesRequest::default()),
    ]
}

/// A codec that passes messages as bytes, so that one test can make every call.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, frame: &mut EncodeBuf<'_>) -> Result<(), Status> {
        frame.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, frame: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(frame.copy_to_bytes(frame.remaining())))
    }
}

/// Everything that an answer reveals: the messages, or the status with its metadata in a fixed order.
type Answer = Result<Vec<Bytes>, (Code, String, String, BTreeMap<String, String>, String)>;

async fn call(broker: &Broker, token: Option<&str>, path: &str, request: Bytes) -> Answer {
    call_for(broker, token, path, request, usize::MAX).await
}

/// The same, which ends after this many messages.
async fn call_for(broker: &Broker, token: Option<&str>, path: &str, request: Bytes, most: usize) -> Answer {
    let mut grpc = tonic::client::Grpc::new(broker.channel().await);
    grpc.ready().await.unwrap();
    let mut request = Request::new(request);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    let path = http::uri::PathAndQuery::try_from(path).unwrap();
    let read = async {
        let mut answers = grpc.server_streaming(request, path, Raw).await?.into_inner();
        let mut all = Vec::new();
        while let Some(answer) = answers.message().await? {
            all.push(answer);
            if all.len() >= most {
                break;
            }
        }
        Ok(all)
    };
    read.await.map_err(|status: Status| {
        let details = status.get_error_details();
        let (reason, metadata) =
            details.error_info().map(|info| (info.reason.clone(), info.metadata.clone())).unwrap_or_default();
        let metadata = metadata.into_iter().collect();
        let rest = format!("{:?} {:?}", details.bad_request(), details.retry_info());
        (status.code(), status.message().to_owned(), reason, metadata, rest)
    })
}

/// Replaces the ids of one set in the answer by the ids of the other.
fn in_place(answer: Answer, of: &Ids, by: &Ids) -> Answer {
    let pairs = [
        (&of.agent, &by.agent),
        (&of.task, &by.task),
        (&of.handoff, &by.handoff),
        (&of.dead_letter, &by.dead_letter),
        (&of.run, &by.run),
        (&of.thread, &by.thread),
        (&of.plan, &by.plan),
        (&of.graph, &by.graph),
    ];
    let replaced = |text: String| pairs.iter().fold(text, |text, (of, by)| text.replace(*of, by));
    answer.map_err(|(code, text, reason, metadata, rest)| {
        let metadata = metadata.into_iter().map(|(name, value)| (name, replaced(value))).collect();
        (code, replaced(text), reason, metadata, replaced(rest))
    })
}

/// A broker with agents "agent-a" and "agent-b" and a task, a handoff and a dead letter between them, and the token of
/// agent "c", which has no part in these.
async fn a_broker_with_a_stranger() -> (Broker, Ids, String) {
    with_a_stranger(Broker::serve("", "")).await
}

async fn with_a_stranger(broker: Broker) -> (Broker, Ids, String) {
    let operator = broker.operator().await;
    for name in ["agent-a", "agent-b", "c"] {
        let card = Some(card(name, ""));
        let request = v1::RegisterAgentRequest { card, ..Default::default() };
        operator.answer(operator.agents().register_agent(request).await).unwrap();
    }
    let (a, b) = (broker.agent_session("agent-a").await, broker.agent_session("agent-b").await);
    a.send("agent-b", v1::MessageType::Info, &About::default(), &v1::Info::default()).await.unwrap();
    let mail = b.next().await.unwrap();
    let poison = v1::Nack { cause: v1::NackCause::Poison.into(), ..Default::default() };
    b.session.nack(&mail.delivery.delivery_id, poison).await.unwrap();
    let task = new_task();
    let receipt = a.request("agent-b", &task, 1, &a_request()).await.unwrap();
    let listed = a.client.dead_letters().list_dead_letters(v1::ListDeadLettersRequest::default()).await;
    let dead_letter = a.client.answer(listed).unwrap().dead_letters.remove(0).dead_letter_id;
    let node = v1::Node {
        node_id: "n".into(),
        agent_id: "agent-a".into(),
        output_nodes: vec!["end".into()],
        ..Default::default()
    };
    let graph_id = "graph-of-a".to_owned();
    let graph = v1::Graph {
        graph_id: graph_id.clone(),
        nodes: vec![node],
        entry_node_ids: vec!["n".into()],
        ..Default::default()
    };
    let registered =
        operator.routing().register_graph(v1::RegisterGraphRequest { graph: Some(graph), ..Default::default() }).await;
    operator.answer(registered).unwrap();
    let run = "0198c0de-0000-7000-8000-0000000000dd".to_owned();
    let start = v1::StartRunRequest { graph_id: graph_id.clone(), run_id: run.clone(), ..Default::default() };
    operator.answer(operator.routing().start_run(start).await).unwrap();
    let model = v1::ModelSpec { model_id: "m".into(), model_name: "big".into(), ..Default::default() };
    let put = v1::PutModelSpecRequest { spec: Some(model), ..Default::default() };
    operator.answer(operator.threads().put_model_spec(put).await).unwrap();
    let spec = v1::AgentSpec { spec_id: "s".into(), model_id: "m".into(), ..Default::default() };
    let put = v1::PutAgentSpecRequest { spec: Some(spec), ..Default::default() };
    operator.answer(operator.threads().put_agent_spec(put).await).unwrap();
    let thread = "thread-of-a".to_owned();
    let create = v1::CreateThreadRequest { base_spec_id: "s".into(), thread_id: thread.clone(), ..Default::default() };
    operator.create_thread(create).await.unwrap();
    let plan = "plan-of-a".to_owned();
    a.client.submit_plan(&composer("agent-a"), a_plan(&plan)).await.unwrap();
    let handoff = receipt.handoff_id;
    let known = Ids { agent: "agent-a".to_owned(), task, handoff, dead_letter, run, thread, plan, graph: graph_id };
    let client: Client = broker.client().await;
    let token = client.prove(&identity("c")).await.unwrap();
    (broker, known, token)
}

fn nothing() -> Ids {
    Ids {
        agent: "agent-z".to_owned(),
        task: "unknown-task".to_owned(),
        handoff: "0198c0de-0000-7000-8000-0000000000ff".to_owned(),
        dead_letter: "9876543210".to_owned(),
        run: "0198c0de-0000-7000-8000-0000000000ee".to_owned(),
        thread: "unknown-thread".to_owned(),
        plan: "unknown-plan".to_owned(),
        graph: "unknown-graph".to_owned(),
    }
}

#[tokio::test]
async fn every_call_asks_who_calls_before_it_tells_what_there_is() {
    let (broker, known, token) = a_broker_with_a_stranger().await;
    let unknown = nothing();
    let mut rows: HashMap<&str, Row> = rows(&known, &unknown).into_iter().map(|row| (row.0, row)).collect();
    for operation in OPERATIONS {
        let path = operation.path;
        let Row(_, asks, of_known, of_unknown) = rows.remove(path).unwrap_or_else(|| {
            panic!("{path} has no row here: say what it asks of its caller, and show that it tells strangers nothing")
        });
        let is_without_identity = matches!(operation.right, Right::Unproven | Right::Sender);
        assert_eq!(asks == Asks::Nothing, is_without_identity, "{path}");
        if asks != Asks::Nothing {
            for request in [&of_known, &of_unknown, &Bytes::new()] {
                let answer = call(&broker, None, path, request.clone()).await;
                let (code, _, reason, metadata, _) = answer.expect_err(path);
                assert_eq!((code, reason.as_str()), (Code::Unauthenticated, "IDENTITY_MISSING"), "{path}");
                assert_eq!(metadata, BTreeMap::new(), "{path}");
            }
        }
        let callers: &[Option<&str>] = match asks {
            Asks::Nothing => &[None],
            Asks::Identity => &[],
            Asks::Permission => &[Some(&token)],
        };
        for caller in callers {
            let answer = call(&broker, *caller, path, of_known.clone()).await;
            let other = call(&broker, *caller, path, of_unknown.clone()).await;
            assert_eq!(answer, in_place(other, &unknown, &known), "{path}");
        }
    }
    assert!(rows.is_empty(), "rows of calls that are not in the schema");
}

#[tokio::test]
async fn an_operator_makes_every_call_with_the_right_and_learns_nothing_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.cedar");
    write(&policy, baton::policy::DEFAULT);
    let broker = Broker::serve("", &format!("[policy]\npath = {policy:?}\n"));
    let (broker, known, _) = with_a_stranger(broker).await;
    let (operator, unknown) = (broker.operator_token(), nothing());
    let rows: HashMap<&str, Row> = rows(&known, &unknown).into_iter().map(|row| (row.0, row)).collect();

    let forbidden = "@id(\"none\") forbid(principal is Operator, action, resource);";
    write(&policy, &format!("{}\n{forbidden}", baton::policy::DEFAULT));
    broker.hang_up();
    let directory = "/baton.v1.AgentService/ListAgents";
    let is_forbidden = async || call(&broker, Some(&operator), directory, Bytes::new()).await.is_err();
    eventually("the rule counts", is_forbidden).await;
    for operation in OPERATIONS {
        let Row(path, asks, of_known, of_unknown) = &rows[operation.path];
        if *asks == Asks::Permission {
            let answer = call(&broker, Some(&operator), path, of_known.clone()).await;
            let other = call(&broker, Some(&operator), path, of_unknown.clone()).await;
            assert_eq!(answer, in_place(other, &unknown, &known), "{path}");
        }
    }

    write(&policy, baton::policy::DEFAULT);
    broker.hang_up();
    eventually("the rule is gone", async || !is_forbidden().await).await;
    for operation in OPERATIONS {
        let Row(path, _, of_known, _) = &rows[operation.path];
        let answer = call_for(&broker, Some(&operator), path, of_known.clone(), 1).await;
        let reason = answer.err().map(|(_, _, reason, ..)| reason);
        let denials = ["IDENTITY_MISSING", "PERMISSION_DENIED", "SENDER_MISMATCH"];
        let is_denied = reason.as_deref().is_some_and(|reason| denials.contains(&reason));
        // An operator has neither mail nor an envelope to sign.
        let is_for_agents = matches!(operation.right, Right::Agent | Right::Sender);
        assert_eq!(is_denied, is_for_agents, "{path}: {reason:?}");
    }
}

#[tokio::test]
async fn a_challenge_is_given_for_every_id() {
    let (broker, known, _) = a_broker_with_a_stranger().await;
    let client = broker.client().await;
    for agent_id in [known.agent, nothing().agent] {
        let made = client.agents().create_challenge(v1::CreateChallengeRequest { agent_id }).await.unwrap();
        assert_eq!(made.into_inner().challenge.len(), 32);
    }
}

#[tokio::test]
async fn the_brokers_key_is_for_everybody_and_verifies_receipts() {
    let (broker, known, _) = a_broker_with_a_stranger().await;
    let anonymous = broker.client().await;
    let get = |agent_id: &str| v1::GetAgentRequest { agent_id: agent_id.to_owned() };
    let found = anonymous.answer(anonymous.agents().get_agent(get("baton")).await).unwrap().agent.unwrap();
    let key = &found.card.unwrap().keys[0];
    // The receipt of a call without a token can be verified without a token.
    let about = About::default();
    let envelope = composer("c").encode("agent-b", v1::MessageType::Info, &about, &v1::Info::default());
    let sent =
        anonymous.answer(anonymous.messages().send(v1::SendRequest { envelope, ..Default::default() }).await).unwrap();
    let receipt = sent.receipt.unwrap();
    assert_eq!(receipt.key_id, key.key_id);
    let public = baton::envelope::keys::PublicKey::parse(&key.public_key).unwrap();
    assert!(public.verifies(&baton::envelope::signing::receipt_input(&receipt), &receipt.signature));
    for other in [known.agent.as_str(), LOCAL_OPERATOR, ""] {
        let refused = anonymous.agents().get_agent(get(other)).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated, "{other}");
    }
}

#[tokio::test]
async fn a_key_that_is_over_is_named_only_to_its_holder() {
    let (broker, known, _) = a_broker_with_a_stranger().await;
    let operator = broker.operator().await;
    let request =
        v1::RevokeAgentKeyRequest { agent_id: known.agent.clone(), key_id: "k1".to_owned(), ..Default::default() };
    operator.answer(operator.agents().revoke_agent_key(request).await).unwrap();
    let anonymous = broker.client().await;
    let send = async |sign_by: &str| {
        let mut envelope =
            composer(&known.agent).compose("c", v1::MessageType::Info, &About::default(), &v1::Info::default());
        let key = identity(sign_by).key;
        baton::envelope::sign(&mut envelope, &"k1".parse().unwrap(), &key);
        let envelope = envelope.encode_to_vec().into();
        let status = anonymous.messages().send(v1::SendRequest { envelope, ..Default::default() }).await.unwrap_err();
        status.get_error_details().error_info().unwrap().reason.clone()
    };
    assert_eq!(send(&known.agent).await, "KEY_NOT_VALID");
    assert_eq!(send("forger").await, "SIGNATURE_INVALID");
}
