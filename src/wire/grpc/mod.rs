//! The gRPC services: one file a service, and what they share.

mod agents;
mod audit;
mod auth;
mod connection;
mod dead_letters;
pub mod deadline;
mod handoffs;
pub mod listener;
mod messages;
pub mod require_tls;
mod session;
mod tasks;

use std::sync::Arc;

use tonic::{Status, service::Routes};

use super::status;
use crate::{
    broker::{Broker, BrokerError},
    codes::{FieldViolation, Refusal},
    envelope::{Checks, FRAME_BYTES_MAX},
    proto::v1::{
        agent_service_server::AgentServiceServer, audit_service_server::AuditServiceServer,
        broker_service_server::BrokerServiceServer, dead_letter_service_server::DeadLetterServiceServer,
        handoff_service_server::HandoffServiceServer, task_service_server::TaskServiceServer,
    },
};

/// Names of all our services, for health.
pub const SERVICES: [&str; 6] = [
    "baton.v1.AgentService",
    "baton.v1.AuditService",
    "baton.v1.BrokerService",
    "baton.v1.DeadLetterService",
    "baton.v1.HandoffService",
    "baton.v1.TaskService",
];

/// The services of a broker.
pub fn routes(broker: &Broker) -> Routes {
    macro_rules! limited {
        ($server:expr) => {
            $server.max_decoding_message_size(FRAME_BYTES_MAX).max_encoding_message_size(FRAME_BYTES_MAX)
        };
    }
    Routes::new(limited!(BrokerServiceServer::new(messages::Messages::new(broker.clone()))))
        .add_service(limited!(HandoffServiceServer::new(handoffs::Handoffs::new(broker.clone()))))
        .add_service(limited!(TaskServiceServer::new(tasks::Tasks::new(broker.clone()))))
        .add_service(limited!(AgentServiceServer::new(agents::Agents::new(broker.clone()))))
        .add_service(limited!(AuditServiceServer::new(audit::Audit::new(broker.clone()))))
        .add_service(limited!(DeadLetterServiceServer::new(dead_letters::DeadLetters::new(broker.clone()))))
}

fn refuse(error: impl Refusal) -> Status {
    status::of(&error)
}

fn refuse_shared(error: Arc<dyn Refusal + Send + Sync>) -> Status {
    status::of(&*error)
}

/// The outcome of field checks.
fn checked(checks: Checks) -> Result<(), Status> {
    checks.finish().map_err(refuse)
}

/// One field that is wrong.
fn field(path: &str, problem: &str) -> BrokerError {
    BrokerError::Fields { violations: vec![FieldViolation { path: path.to_owned(), problem: problem.to_owned() }] }
}

/// The size of a page: 50 if nothing is asked for.
fn page_size(wanted: u32) -> Result<usize, Status> {
    match wanted {
        0 => Ok(50),
        1..=1000 => Ok(wanted as usize),
        _ => Err(refuse(field("page_size", "must be at most 1000"))),
    }
}

/// Does what reads much from the store on a thread that nobody waits for.
async fn blocking<T: Send + 'static>(read: impl FnOnce() -> Result<T, Status> + Send + 'static) -> Result<T, Status> {
    tokio::task::spawn_blocking(read).await.map_err(|_| refuse(BrokerError::Internal))?
}

/// The values of these numbers, each of which must be one that is known.
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
