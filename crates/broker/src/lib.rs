//! The broker: one pipeline for everything that changes state.
//!
//! This crate owns the order of commands, the commit batches, sessions and mailboxes in memory, the directory, identities
//! and access, and the rooms below them: records, policies, blobs, metrics, traces. It must not know gRPC services or the
//! command line.
//!
//! A command goes to the [`engine::Engine`], which computes a change and the actions that follow it. The engine commits
//! the changes of many commands together, and only then answers receipts and dispatches deliveries. The engine has no
//! clock, thread or channel: the [`driver`] runs it on a thread behind a bounded [`queue`], and sends its [`output`].
//! Signatures are verified before that, by the task that received the envelope.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod access;
mod answer;
pub mod blobs;
pub mod changes;
mod contexts;
mod custody;
pub mod directory;
mod driver;
pub mod engine;
mod error;
pub mod explain;
mod figures;
mod finding;
pub mod identity;
pub mod json_schema;
pub mod jwt;
pub mod limits;
pub mod metrics;
mod output;
pub mod places;
pub mod policy;
pub mod preparation;
pub mod proto;
pub mod queries;
mod queue;
pub mod records;
mod resources;
mod settings;
mod stored;
pub mod traces;
mod turns;

use baton_store::disk;

pub use baton_domain as domain;
pub use baton_protocol::{codes, ids, time};
pub use baton_replay::{envelope, replay};
pub use baton_store as store;

pub use answer::{
    Acknowledged, Answer, Answered, Credited, PROCESSES_SHOWN, Reassigned, Refused, Reply, RunningProcess,
    SessionReply, refused,
};
pub use driver::{Broker, EngineError, OpenConsumer, OpenWatch, StartError};
pub use error::BrokerError;
pub use output::{Away, Event, Events, OutgoingDelivery, Output, Update, Updates, WatcherId, send_outputs};
pub use resources::Resources;
pub use settings::{
    AgentLimits, BlobLimits, BrokerIdentity, BrokerLimits, DEFAULT_DATA, DEFAULT_LISTEN, NegotiationTimes,
    OFFERS_TIMEOUT_MAX, Retention, Services, Settings, Signer,
};
