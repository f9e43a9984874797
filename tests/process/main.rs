//! End-to-end tests: broker processes, TLS, clients, kill -9.

mod access;
mod agents;
mod bench;
mod broker;
mod certificates;
mod commands;
mod conformance;
mod crashes;
mod dead_letters;
mod every_call;
mod foreign;
mod forged;
mod full_disk;
mod hostile;
mod http;
mod kill_loop;
mod load;
mod many_agents;
mod metrics;
mod pauses;
mod reassign;
mod refusals;
mod restarts;
mod sessions;
mod shown;
mod workspaces;
