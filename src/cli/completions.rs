//! `baton completions`.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use baton_cli::{Failure, say_lines};

use super::Cli;

/// Print a completion script for a shell.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton completions bash > /etc/bash_completion.d/baton
  baton completions zsh > ~/.zfunc/_baton")]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of all commands")]
pub(super) fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "baton", &mut script);
    say_lines!("{}", String::from_utf8_lossy(&script).trim_end());
    Ok(())
}
