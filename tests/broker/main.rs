//! The broker's pipeline in virtual time: engine and store, no threads, no sockets, no sleeps.

mod deliveries;
mod handoffs;
mod refusals;
mod restarts;
mod stories;
mod world;
