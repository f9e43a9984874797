//! The gRPC services, one file each, and their shared helpers.

mod agents;
mod agents_watch;
mod audit;
mod blobs;
pub mod bounds;
mod call;
mod contexts;
mod dead_letters;
pub mod deadline;
mod frames;
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
mod serve;
mod session;
mod tasks;
mod threads;
mod tool_shapes;
mod unpacking;
mod workspaces;

use std::sync::Arc;

use bytes::Bytes;
use tonic::Status;

pub(crate) use self::messages::fate;
use self::{bounds::Overuse, call::Call, unpacking::UnpackError};
pub use self::{
    serve::{client_streams, routes},
    tool_shapes::tool_json,
};
use super::{edge, status};
use crate::{
    broker::{
        Broker, BrokerError, Refused,
        access::Caller,
        places::WorkSize,
        preparation::{Prepared, PreparedMessage},
        refused,
    },
    codes::{FieldViolation, Refusal},
    envelope::{Checks, EnvelopeError, Parsed, VerifiedEnvelope},
    ids::{AgentId, IdError, InstanceId},
    proto::v1,
};

/// The full names of the other services on the same port.
pub const COMMON_SERVICES: [&str; 3] =
    ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];

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

/// The bytes from which on a request or a message is parsed and verified beside the threads of connections.
const LARGE_BYTES: usize = 64 * 1024;

/// A message that takes long to check.
enum Unprepared {
    /// Bytes that are large.
    Raw(Bytes),
    /// A message whose content takes long.
    Verified(Box<VerifiedEnvelope>),
}

/// Verifies a message and makes its checks, if they are short. Otherwise returns what [`prepared`] takes. In a session,
/// the session's agent must be the sender.
fn short(
    broker: &Broker,
    raw: Bytes,
    session: Option<&AgentId>,
) -> Result<Result<PreparedMessage, Unprepared>, Refused> {
    if raw.len() > LARGE_BYTES {
        return Ok(Err(Unprepared::Raw(raw)));
    }
    let envelope = broker.verify(raw, session)?;
    Ok(PreparedMessage::of_short(envelope).map_err(Unprepared::Verified))
}

/// Makes the longer checks of a message that [`short`] has returned, beside the threads of connections.
async fn prepared(broker: &Broker, message: Unprepared, session: Option<&AgentId>) -> Result<PreparedMessage, Refused> {
    let mut envelope = match message {
        Unprepared::Verified(envelope) => envelope,
        Unprepared::Raw(raw) => {
            // The message names a sender, but only its signature proves that. Until then the agent of the session or of
            // the token pays for the work.
            let caller = session.map_or(Caller::Anonymous, |agent| Caller::Agent(agent.clone()));
            let (verifier, session) = (broker.clone(), session.cloned());
            let verify = move || verifier.verify(raw, session.as_ref()).map(PreparedMessage::of_short);
            match broker.workers().run(&caller, WorkSize::Large, verify).await.map_err(refused)?? {
                Ok(message) => return Ok(message),
                Err(envelope) => envelope,
            }
        }
    };
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

/// Verifies an envelope, makes its longer checks, and returns the signed receipt once the message is stored. An agent that
/// calls must be its sender. `process` is the process of the agent, if it has said which.
async fn submit(call: &Call, raw: Bytes, process: Option<InstanceId>) -> Result<v1::Receipt, Status> {
    let (broker, sender) = (&call.broker, call.caller.as_agent());
    let message = match short(broker, raw, sender).map_err(refuse_shared)? {
        Ok(message) => message,
        Err(message) => prepared(broker, message, sender).await.map_err(refuse_shared)?,
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
