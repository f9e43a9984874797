//! `baton manual`.

use std::{fs, path::PathBuf};

use clap::{Args, CommandFactory as _};

use baton_cli::{Failure, exit};

use super::Cli;

/// Write the manual pages into a folder: baton.1, and one for each command.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton manual ~/.local/share/man/man1
  man baton-handoff-request")]
pub(super) struct ManualArgs {
    /// The folder. It is made if it is not there; files of the same names are replaced.
    folder: PathBuf,
}

pub(super) fn run(args: &ManualArgs) -> Result<(), Failure> {
    let folder = args.folder.display();
    let written =
        fs::create_dir_all(&args.folder).and_then(|()| clap_mangen::generate_to(Cli::command(), &args.folder));
    written.map_err(|error| Failure::new(exit::CONFIGURATION, format!("failed to write into {folder}: {error}")))
}
