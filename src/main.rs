//! The `baton` command: everything is in the library.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    ExitCode::from(baton::cli::run().await)
}
