//! The gRPC services, one file each, and their shared helpers.

mod agents;
mod agents_watch;
mod audit;
mod auth;
mod blobs;
pub mod bounds;
mod contexts;
mod dead_letters;
pub mod deadline;
mod handoffs;
mod handoffs_watch;
mod log_watch;
mod messages;
mod negotiations;
mod outgoing;
mod plans;
mod registries;
mod responses;
mod routing;
mod schemas;
mod session;
mod tasks;
mod threads;
mod tool_shapes;
mod unpacking;
mod workspaces;

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use prost::Message as _;
use tonic::{Status, codec::CompressionEncoding, service::Routes};

pub(crate) use self::messages::fate;
pub use self::tool_shapes::tool_json;
use self::{
    bounds::{ClientStream, Overuse},
    unpacking::UnpackError,
};
use super::{edge, status};
use crate::{
    broker::{
        Broker, BrokerError, Refused,
        access::Caller,
        places::WorkSize,
        preparation::{Prepared, PreparedMessage},
        queries::View,
        refused,
    },
    codes::{FieldViolation, Refusal},
    envelope::{Checks, EnvelopeError, FRAME_BYTES_MAX, Parsed, VerifiedEnvelope},
    ids::{AgentId, IdError, InstanceId},
    proto::{
        self,
        v1::{
            self, agent_service_server::AgentServiceServer, audit_service_server::AuditServiceServer,
            blob_service_server::BlobServiceServer, broker_service_server::BrokerServiceServer,
            context_service_server::ContextServiceServer, dead_letter_service_server::DeadLetterServiceServer,
            handoff_service_server::HandoffServiceServer, negotiation_service_server::NegotiationServiceServer,
            plan_service_server::PlanServiceServer, registry_service_server::RegistryServiceServer,
            routing_service_server::RoutingServiceServer, schema_service_server::SchemaServiceServer,
            task_service_server::TaskServiceServer, thread_service_server::ThreadServiceServer,
            workspace_service_server::WorkspaceServiceServer,
        },
    },
};

/// The full names of the broker's own services; the health service reports each.
pub const SERVICES: [&str; 15] = [
    "baton.v1.AgentService",
    "baton.v1.AuditService",
    "baton.v1.BlobService",
    "baton.v1.BrokerService",
    "baton.v1.ContextService",
    "baton.v1.DeadLetterService",
    "baton.v1.HandoffService",
    "baton.v1.NegotiationService",
    "baton.v1.PlanService",
    "baton.v1.RegistryService",
    "baton.v1.RoutingService",
    "baton.v1.SchemaService",
    "baton.v1.TaskService",
    "baton.v1.ThreadService",
    "baton.v1.WorkspaceService",
];

/// The full names of the other services on the same port.
pub const COMMON_SERVICES: [&str; 3] =
    ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];

/// The routes of all services of a broker.
pub fn routes(broker: &Broker) -> Routes {
    macro_rules! limited {
        ($server:expr) => {
            // Requests are unpacked before, by `bounds`, which also says whether an answer may be compressed.
            $server
                .max_decoding_message_size(FRAME_BYTES_MAX)
                .max_encoding_message_size(FRAME_BYTES_MAX)
                .send_compressed(CompressionEncoding::Gzip)
                .send_compressed(CompressionEncoding::Zstd)
        };
    }
    Routes::new(limited!(BrokerServiceServer::new(messages::Messages::new(broker.clone()))))
        .add_service(limited!(ContextServiceServer::new(contexts::Contexts::new(broker.clone()))))
        .add_service(limited!(HandoffServiceServer::new(handoffs::Handoffs::new(broker.clone()))))
        .add_service(limited!(PlanServiceServer::new(plans::Plans::new(broker.clone()))))
        .add_service(limited!(RegistryServiceServer::new(registries::Registries::new(broker.clone()))))
        .add_service(limited!(RoutingServiceServer::new(routing::Routing::new(broker.clone()))))
        .add_service(limited!(BlobServiceServer::new(blobs::Blobs::new(broker.clone()))))
        .add_service(limited!(SchemaServiceServer::new(schemas::Schemas::new(broker.clone()))))
        .add_service(limited!(TaskServiceServer::new(tasks::Tasks::new(broker.clone()))))
        .add_service(limited!(ThreadServiceServer::new(threads::Threads::new(broker.clone()))))
        .add_service(limited!(WorkspaceServiceServer::new(workspaces::Workspaces::new(broker.clone()))))
        .add_service(limited!(AgentServiceServer::new(agents::Agents::new(broker.clone()))))
        .add_service(limited!(AuditServiceServer::new(audit::Audit::new(broker.clone()))))
        .add_service(limited!(NegotiationServiceServer::new(negotiations::Negotiations::new(broker.clone()))))
        .add_service(limited!(DeadLetterServiceServer::new(dead_letters::DeadLetters::new(broker.clone()))))
}

/// The paths of calls whose client sends a stream, with the kind of the stream.
pub fn client_streams() -> HashMap<String, ClientStream> {
    // Read from the schema, so that a new call with a client stream is bounded without a change here.
    let files = prost_types::FileDescriptorSet::decode(proto::DESCRIPTORS).expect("it was made by the build");
    let mut paths = HashMap::from(REFLECTION_STREAMS.map(|path| (path.to_owned(), ClientStream::Foreign)));
    for file in files.file {
        for service in &file.service {
            for method in service.method.iter().filter(|method| method.client_streaming()) {
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                paths.insert(path, ClientStream::Session);
            }
        }
    }
    paths
}

/// The paths of streams of other services.
const REFLECTION_STREAMS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// The status of a call over a bound: LIMIT_EXCEEDED with the time to wait; or PAYLOAD_TOO_LARGE, MALFORMED or
/// NOT_SUPPORTED, which are final.
pub fn overuse(overuse: Overuse) -> Status {
    let what = match overuse {
        Overuse::FrameTooLarge(bytes) => return refuse(EnvelopeError::FrameTooLarge { bytes }),
        Overuse::Unpacking(UnpackError::TooLarge) => return refuse(EnvelopeError::UnpacksTooLarge),
        Overuse::Unpacking(UnpackError::Broken(encoding)) => {
            let problem = format!("it is not exactly one stream of {} with a window of at most 8 MiB", encoding.name());
            return refuse(EnvelopeError::Malformed { part: "compressed gRPC message", problem });
        }
        Overuse::EncodingUnknown => return refuse(EnvelopeError::NotSupported { path: "grpc-encoding".to_owned() }),
        Overuse::Calls => "too many calls are under way",
        Overuse::FrameBytes => "too many bytes are under way",
        Overuse::UnreadBytes => "too many streams are left whose answers are not taken",
        Overuse::FrameTimeout => "the frame has not arrived in time",
    };
    refuse(BrokerError::LimitExceeded { what, retry_after: status::RETRY_OVERUSE_AFTER })
}

/// The agent named by a certificate; for the fuzzer.
pub(crate) fn certificate_agent(der: &[u8]) -> Option<AgentId> {
    edge::agent_of(&der.into())
}

fn refuse(error: impl Refusal) -> Status {
    status::of(&error)
}

fn refuse_shared(error: Arc<dyn Refusal + Send + Sync>) -> Status {
    status::of(&*error)
}

/// Fails with all violations that the checks found.
fn checked(checks: Checks) -> Result<(), Status> {
    checks.finish().map_err(refuse)
}

/// Ends the checks with the values that they have parsed. Fails as [`checked`] does. A field that may be absent does not
/// belong here.
fn checked_with<P: Parsed>(checks: Checks, parsed: P) -> Result<P::Values, Status> {
    checks.finish_with(parsed).map_err(refuse)
}

/// Parses an id that is checked alone.
fn parsed_id<T>(path: &str, text: &str, parse: fn(&str) -> Result<T, IdError>) -> Result<T, Status> {
    let mut checks = Checks::default();
    let id = checks.id(path, text, parse);
    checked_with(checks, id)
}

/// A refusal for one invalid field.
fn field(path: &str, problem: &str) -> BrokerError {
    BrokerError::Fields { violations: vec![FieldViolation { path: path.to_owned(), problem: problem.to_owned() }] }
}

/// The most entries of a page.
const PAGE_SIZE_MAX: usize = 1000;

/// The size of a page: 50 by default, at most [`PAGE_SIZE_MAX`].
fn page_size(wanted: u32) -> usize {
    match wanted {
        0 => 50,
        // A larger page is capped, as AIP-158 has it: the token of the next page says that more follows.
        _ => (wanted as usize).min(PAGE_SIZE_MAX),
    }
}

/// Runs a large read or check of a caller on a thread for such work.
async fn read_large<T: Send + 'static>(
    broker: &Broker,
    caller: &Caller,
    read: impl FnOnce(View<'_>) -> Result<T, BrokerError> + Send + 'static,
) -> Result<T, BrokerError> {
    read_beside(broker, caller, WorkSize::Large, read).await
}

/// Runs a small read of a caller on a thread for such work.
async fn read_small<T: Send + 'static>(
    broker: &Broker,
    caller: &Caller,
    read: impl FnOnce(View<'_>) -> Result<T, BrokerError> + Send + 'static,
) -> Result<T, BrokerError> {
    read_beside(broker, caller, WorkSize::Small, read).await
}

async fn read_beside<T: Send + 'static>(
    broker: &Broker,
    caller: &Caller,
    size: WorkSize,
    read: impl FnOnce(View<'_>) -> Result<T, BrokerError> + Send + 'static,
) -> Result<T, BrokerError> {
    let (reader, reading) = (broker.clone(), caller.clone());
    broker.workers().run(caller, size, move || read(reader.view(&reading))).await?
}

/// Makes the longer checks of a message that [`PreparedMessage::of_short`] has returned. They run as [`read_large`] does.
async fn prepared(broker: &Broker, mut envelope: Box<VerifiedEnvelope>) -> Result<PreparedMessage, Refused> {
    // The work is that of the sender, whose signature is verified.
    let sender = Caller::Agent(envelope.header().sender.clone());
    for is_last in [false, true] {
        let preparing = broker.clone();
        let prepare = move || preparing.preparation().prepare(envelope, is_last);
        let outcome = broker.workers().run(&sender, WorkSize::Large, prepare).await.and_then(|outcome| outcome);
        envelope = match outcome.map_err(refused)? {
            Prepared::Ready(message) => return Ok(message),
            Prepared::Behind(envelope) => envelope,
        };
        // The store may lack what the sender's last message has begun.
        broker.settle().await?;
    }
    Err(refused(BrokerError::Internal))
}

/// Verifies an envelope, makes its longer checks, and returns the signed receipt once the message is stored. `sender` is
/// the agent that the caller has proven to be, and `process` its process, if it has said which.
async fn submit(
    broker: &Broker,
    raw: Bytes,
    sender: Option<&AgentId>,
    process: Option<InstanceId>,
) -> Result<v1::Receipt, Status> {
    let envelope = broker.verify(raw, sender).map_err(refuse_shared)?;
    let message = match PreparedMessage::of_short(envelope) {
        Ok(message) => message,
        Err(envelope) => prepared(broker, envelope).await.map_err(refuse_shared)?,
    };
    broker.submit(message.from_process(process), sender.is_some()).await.map_err(refuse_shared)
}

/// The process that a call names, if it names one.
fn instance(id: &str) -> Result<Option<InstanceId>, Status> {
    if id.is_empty() {
        return Ok(None);
    }
    InstanceId::parse(id).map(Some).map_err(|error| refuse(field("instance_id", &error.to_string())))
}

/// Runs the large work of a whole call, as [`read_large`] does.
async fn run_large<T: Send + 'static>(
    broker: &Broker,
    caller: &Caller,
    work: impl FnOnce(&Broker, &Caller) -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    let (worker, working) = (broker.clone(), caller.clone());
    broker.workers().run(caller, WorkSize::Large, move || work(&worker, &working)).await.map_err(refuse)?
}

/// Converts enum numbers to values. Adds a violation for each number that `value` does not know.
fn numbered<T>(
    checks: &mut Checks,
    path: &str,
    known: &str,
    numbers: &[i32],
    value: impl Fn(i32) -> Option<T>,
) -> Vec<T> {
    let mut values = Vec::with_capacity(numbers.len());
    for number in numbers {
        match value(*number) {
            Some(value) => values.push(value),
            None => checks.wrong(path, format!("must be {known}, not {number}")),
        }
    }
    values
}
