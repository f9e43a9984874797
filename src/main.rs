//! The `baton` command: everything is in the library.

use std::process::ExitCode;

/// A third of the engine's time went into glibc's malloc; docs/performance.md has the figures.
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The allocator reads its options from this symbol. Freed memory goes back to the system after a second: what the allocator
/// keeps comes on top of the bounds on what clients may hold (docs/configuration.md).
#[cfg(not(target_env = "msvc"))]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static MALLOC_CONF: &[u8; 37] = b"dirty_decay_ms:1000,muzzy_decay_ms:0\0";

#[tokio::main]
async fn main() -> ExitCode {
    ExitCode::from(baton::cli::run().await)
}
