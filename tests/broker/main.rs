//! The broker's pipeline in virtual time: engine and store, no threads, no sockets, no sleeps.

mod audit;
mod clocks;
mod dead_letters;
mod deliveries;
mod fields;
mod handoffs;
mod keys;
mod limits;
mod loans;
mod matching;
mod participants;
mod policies;
mod presence;
mod privacy;
mod prompts;
mod reassign;
mod records;
mod refusals;
mod restarts;
mod results;
mod retention;
mod runs;
mod watchers;
mod workspaces;
mod world;
mod writers_of_clients;
