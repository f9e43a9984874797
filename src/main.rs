//! The `baton` command: everything is in the library.

use std::process::ExitCode;

/// A handoff takes some hundred short-lived pieces of memory on each of several threads: see docs/performance.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    ExitCode::from(baton::cli::run().await)
}
