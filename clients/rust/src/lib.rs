//! Agents in Rust for [baton](https://docs.rs/baton-broker), a gRPC handoff broker: one AI agent hands a task to
//! another, signed, durable, with exactly one owner at every moment.
//!
//! [`Link`] is an agent that stays connected: it serves its mail by a [`Handler`], hands tasks over
//! ([`Link::hand_over`]), lends them ([`Link::delegate`]) and goes on where an earlier process of the agent ended. Below
//! it, each a step nearer to the wire: [`Agent`] is an agent on one session, [`Session`] the stream of frames,
//! [`Client`] the connection with a stub of each service, and [`Composer`] makes signed envelopes.
//!
//! Every receipt is verified with the broker's key, and every delivery with its sender's ([`Trust`]).
//!
//! An agent that accepts what it is offered, and ends the tasks that an earlier process left:
//!
//! ```no_run
//! use std::{path::PathBuf, sync::Arc, time::Duration};
//!
//! use baton_client::{
//!     ClientError, Delivered, Handler, Identity, Link, LinkOptions, NotTaken, Options, OwnedTask, Trust,
//!     envelope::keys::PrivateKey,
//!     ids::{AgentId, KeyId, SystemIds},
//!     proto::v1::{self, MessageType},
//!     time::SystemClock,
//! };
//! use tokio_util::sync::CancellationToken;
//!
//! struct Mail;
//!
//! impl Handler for Mail {
//!     async fn handle(&self, link: Link, delivered: Delivered) -> Result<(), NotTaken> {
//!         match delivered.kind() {
//!             MessageType::HandoffRequest => link.accept(&delivered, &v1::HandoffAccept::default()).await?,
//!             MessageType::TaskContextTransfer => {
//!                 let context: v1::TaskContextTransfer = delivered.payload();
//!                 println!("{} sections", context.sections.len());
//!                 let task = link.complete(&delivered).await?;
//!                 task.finish(None).await?;
//!             }
//!             _ => {} // news
//!         }
//!         Ok(())
//!     }
//!
//!     async fn resumed(&self, _: Link, task: OwnedTask, _: v1::TaskContextTransfer) -> Result<(), NotTaken> {
//!         task.finish(None).await?; // an earlier process took it over and did not end it
//!         Ok(())
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let options = LinkOptions {
//!         broker: Options {
//!             server: "127.0.0.1:22866".to_owned(),
//!             ca: Some(PathBuf::from("baton-data/tls/ca.pem")),
//!             ..Default::default()
//!         },
//!         identity: Identity {
//!             agent: AgentId::parse("bob")?,
//!             key_id: KeyId::parse("k1")?,
//!             key: PrivateKey::read("bob.pem".as_ref())?,
//!         },
//!         credit: 8,
//!         trust: Trust::Broker,
//!         handler_timeout: None,
//!         stop_grace: Duration::from_secs(10),
//!         resume: true,
//!     };
//!     let link = Link::connect(options, Arc::new(SystemClock), Arc::new(SystemIds)).await?;
//!     Ok(link.serve(Mail, CancellationToken::new()).await?)
//! }
//! ```
//!
//! The broker is a program of its own; `baton dev` starts one for development. The rules of the protocol are in its
//! repository, in `docs/specification.md`, and the error codes in `docs/errors.md`.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod agent;
mod blob;
mod compose;
mod connection;
mod contexts;
mod error;
mod finding;
mod handoffs;
mod limits;
mod link;
mod loans;
mod negotiations;
mod pipeline;
mod plans;
mod questions;
mod runs;
mod schemas;
mod scope;
#[cfg(test)]
mod script;
mod serve;
mod session;
mod threads;
mod trace;
mod trust;
mod waiting;
mod watching;
mod work;
mod workspace;

pub use baton_envelope::envelope;
pub use baton_protocol::{codes, ids, protocol, time};

pub use agent::{Agent, Delivered};
pub use blob::BlobProgress;
pub use compose::{About, Composer, completion_of, context_of};
pub use connection::{Authorized, Client, ClientCertificate, Compression, Identity, Options, Token, parse_server};
pub use contexts::{Takeover, want, want_last};
pub use envelope::context_of_sections;
pub use error::{ClientError, Refused};
pub use handoffs::{HandOverError, HandedOver, OwnedTask, Rejection};
pub use link::{Link, LinkOptions};
pub use loans::{LOAN_TIMEOUT, RecallReason, Recalled, Returned};
pub use negotiations::{Bid, BidEnd, BidOutcome, Heard, Negotiation, Offer};
pub use pipeline::Pipeline;
pub use plans::{Plan, SubtaskInputs, SubtaskResults, subtask, subtask_result};
pub use protocol::TraceContext;
pub use questions::{Answer, Asked};
pub use runs::{Run, Turn};
pub use scope::{in_task, without_parent};
pub use serve::{Handler, NotTaken};
pub use session::Session;
pub use threads::{Step, Thread, ThreadRun};
pub use trace::{current_trace, in_trace};
pub use trust::{Trust, vouch};
pub use watching::{Watch, Watched};
pub use workspace::{Workspace, WorkspaceUpdate};

/// The schema: its messages, with a client of each service.
pub mod proto {
    pub use baton_envelope::proto::{Any, DESCRIPTORS, Status};
    pub use baton_services::v1;
}

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
