//! The `baton` command. All code is in the library.

use std::process::ExitCode;

/// With glibc's malloc, the engine spent a third of its time there; docs/performance.md has the figures.
#[cfg(all(feature = "jemalloc", not(target_env = "msvc")))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The allocator reads its options from this symbol. It returns freed memory to the system after a second, because
/// retained memory adds to the bounds on the memory that clients may hold (docs/configuration.md).
#[cfg(all(feature = "jemalloc", not(target_env = "msvc")))]
#[expect(unsafe_code, reason = "the allocator knows its options by this name only")]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static MALLOC_CONF: &[u8; 37] = b"dirty_decay_ms:1000,muzzy_decay_ms:0\0";

fn main() -> ExitCode {
    ExitCode::from(baton::cli::run())
}
