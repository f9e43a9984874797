//! The command line.

use clap::{Parser, Subcommand};

pub mod dev;
pub mod exit;
pub mod logging;
pub mod serve;

/// The handoff broker for AI agents.
#[derive(Debug, Parser)]
#[command(name = "baton", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a broker for development.
    Dev(dev::DevArgs),
    /// Start a broker with a configuration file.
    Serve(serve::ServeArgs),
}

/// Runs the command line; returns the exit code.
pub async fn run() -> u8 {
    logging::start();
    match Cli::parse().command {
        Command::Dev(args) => dev::run(args).await,
        Command::Serve(args) => serve::run(args).await,
    }
}
