//! Several brokers as one: the shared log, its engines, and the life of a broker.
//!
//! Owns the entry and its chain of hashes, the traits of a shared log and of a register with their conformance suites, the
//! engines behind them, and the state machine of a broker in a cluster. Must not know tasks, handoffs or calls: a group is
//! bytes here.
//!
//! The shared log decides. An answer leaves a broker only after its entry is in the log, behind the entry that the broker
//! knows as the last one. Leases and clocks decide which broker tries to lead, and never decide about entries.
//!
//! The program does not use this crate yet.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod conformance;
pub mod driver;
pub mod engines;
pub mod entry;
pub mod figures;
pub mod leader_log;
pub mod lease;
pub mod log;
pub mod member;
pub mod member_value;
pub mod requests;
pub mod settings;
pub mod view;
