//! The broker: one pipeline for everything that changes state.
//!
//! Owns the order in which commands are applied, what is committed together, sessions and mailboxes in memory, the
//! directory, identities and access. Must not know gRPC, protobuf services or the command line.
//!
//! A command goes to the [`engine::Engine`], which computes a change and what is to be done once the change is durable;
//! changes are committed in groups, and only then are receipts answered and deliveries handed out. The engine has no
//! clock, no thread and no channel of its own; the [`driver`] runs it on a thread, behind a bounded [`queue`], and sends its
//! [`output`]. Signatures are
//! verified before that, by the task that received the envelope.

pub mod access;
mod answer;
pub mod directory;
mod driver;
pub mod engine;
mod error;
pub mod identity;
pub mod jwt;
pub mod limits;
mod output;
pub mod queries;
mod queue;
mod settings;

pub use answer::{Acknowledged, Answer, Answered, Credited, Refused, Reply, SessionReply, refused};
pub use driver::{Broker, EngineError, OpenConsumer, OpenWatch, StartError};
pub use error::BrokerError;
pub use output::{Event, Events, OutgoingDelivery, Output, Update, Updates, WatcherId, send_outputs};
pub use settings::{AgentLimits, BrokerIdentity, BrokerLimits, Retention, Settings};
