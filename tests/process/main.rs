//! The real thing: broker processes, real TLS, real clients, kill -9.

mod broker;
mod commands;
mod crashes;
mod refusals;
mod sessions;
