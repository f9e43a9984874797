//! Faces of baton: programs that do not speak `baton.v1` act as agents through them.
//!
//! A face is a client. It keeps no state: each answer comes from the records of the broker, and a face may be killed at
//! any point. [`acts`] has what an agent can do, each act once, with one input and one output type. [`mcp`] offers them
//! as tools of the Model Context Protocol, and [`http`] serves both over HTTP to agents that have lent it a key. Must not know a broker's insides, nor the command line.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub(crate) mod a2a;
pub mod acts;
mod contexts;
mod face;
pub mod http;
mod long_work;
pub mod mcp;
mod prompts;
mod questions;
mod refusal;
mod resources;
mod steps;
mod text;
mod transfers;

pub use face::Face;
pub use refusal::ActError;
pub use transfers::Fixed;
