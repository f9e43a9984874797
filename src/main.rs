//! The `baton` command: everything is in the library.

use std::process::ExitCode;

/// A third of the engine's time went into glibc's malloc; docs/performance.md has the figures.
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The loader calls what is in this section before Rust's own start.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[used]
#[unsafe(link_section = ".init_array")]
static FIRST: extern "C" fn() = {
    extern "C" fn first() {
        baton::processor::check();
    }
    first
};

#[tokio::main]
async fn main() -> ExitCode {
    ExitCode::from(baton::cli::run().await)
}
