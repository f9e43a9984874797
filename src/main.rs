//! The `baton` command: everything is in the library.

use std::process::ExitCode;

/// A third of the engine's time went into glibc's malloc; docs/performance.md has the figures.
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> ExitCode {
    ExitCode::from(baton::cli::run().await)
}
