//! Agents in Rust for [baton](https://docs.rs/baton-broker), a gRPC handoff broker: one AI agent hands a task to
//! another, signed, durable, with exactly one owner at every moment.
//!
//! [`Agent`] is an agent of a program: it connects with defaults or from the environment, registers itself, passes offers
//! and questions to functions, hands tasks over ([`Agent::hand_over`]), lends them ([`Agent::delegate`]) and goes on where
//! an earlier process of the agent ended. Below it, each a step nearer to the wire: [`Link`] stays connected and serves a
//! [`Handler`], [`session::Agent`] is an agent on one session, [`Session`] the stream of frames, [`Client`] the connection
//! with a stub of each service, and [`Composer`] makes signed envelopes.
//!
//! [`shapes`] converts conversations from and to the shapes of models.
//!
//! Every receipt is verified with the broker's key, and every delivery with its sender's ([`Trust`]).
//!
//! An agent that takes over what it is offered:
//!
//! ```no_run
//! use baton_client::{Agent, HandlerResult, Offer};
//!
//! async fn take(offer: Offer) -> HandlerResult {
//!     let takeover = offer.accept().await?; // waits for the context
//!     println!("{} sections", takeover.context().sections.len());
//!     let task = takeover.complete().await?; // from here on the task is bob's
//!     task.finish_with([("cause", "a loose cable")]).await?;
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let bob = Agent::builder("bob").ca("baton-data/tls/ca.pem").on_handoff(take).connect().await?;
//!     Ok(bob.run().await?)
//! }
//! ```
//!
//! The broker is a program of its own; `baton dev` starts one for development. The rules of the protocol are in its
//! repository, in `docs/specification.md`, and the error codes in `docs/errors.md`.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod agent;
mod authorized;
mod blob;
mod compose;
mod connection;
mod contexts;
mod custody;
mod directory;
mod encoded;
mod environment;
mod error;
mod finding;
mod handoffs;
mod limits;
mod link;
mod lists;
mod loans;
mod mail;
mod mailbox;
mod negotiations;
mod offers;
mod pipeline;
mod plans;
mod progress;
mod questions;
mod records;
mod registrations;
mod runs;
mod schemas;
mod scope;
#[cfg(test)]
mod script;
mod serve;
pub mod session;
mod session_agent;
pub mod shapes;
mod threads;
mod trace;
mod transfers;
mod trust;
mod turns;
mod waiting;
mod watching;
mod work;
mod workspace;

pub use baton_envelope::envelope;
pub use baton_protocol::{codes, ids, protocol, time};

pub use agent::{Agent, AgentBuilder, Delegation, Transfer};
pub use authorized::Authorized;
pub use blob::BlobProgress;
pub use compose::{About, Composer, completion_of, context_of, json_section, result_of};
pub use connection::{Client, ClientCertificate, Compression, Identity, Options, parse_server};
pub use contexts::{Takeover, want, want_last};
pub use custody::VerifiedLog;
pub use encoded::EncodedAnswers;
pub use envelope::context_of_sections;
pub use error::{ClientError, Refused};
pub use handoffs::{HandOverError, HandedOver, OwnedTask, Rejection};
pub use link::{Link, LinkOptions};
pub use lists::{Listed, Pages};
pub use loans::{LOAN_TIMEOUT, RecallReason, Recalled, Returned};
pub use mail::HandlerResult;
pub use negotiations::{Bid, BidEnd, BidOutcome, Heard, Negotiation, StandingOffer};
pub use offers::Offer;
pub use pipeline::Pipeline;
pub use plans::{Element, Plan, SubtaskInputs, SubtaskResults, subtask, subtask_result};
pub use progress::Progress;
pub use proto::v1;
pub use protocol::TraceContext;
pub use questions::{Answer, Asked, Question, question};
pub use records::Answers;
pub use runs::{Run, Turn};
pub use scope::{in_task, without_parent};
pub use serve::{Handler, NotTaken};
pub use session::Session;
pub use session_agent::Delivered;
pub use shapes::history_section;
pub use threads::{Step, Thread, ThreadRun};
pub use trace::{current_trace, in_trace};
pub use trust::{Trust, vouch};
pub use turns::{ModelTurn, NoResponse, ResponseShape};
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
