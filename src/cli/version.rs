//! `baton version`: what this program is.

use baton_cli::{Failure, output::Output, say};
use clap::Args;
use serde_json::json;

/// The optional parts of the program, and whether this build has them.
const FEATURES: [(&str, bool); 2] = [("jemalloc", cfg!(feature = "jemalloc")), ("s3", cfg!(feature = "s3"))];

/// Print the version, what the program was built for, and its features.
///
/// A build from a clone has s3; packages have all. jemalloc: less memory under load. s3: blobs, and the log of a cluster, in a bucket.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton version
  baton version -o json")]
pub(super) struct VersionArgs {}

pub(super) fn run(_args: VersionArgs, output: &Output) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let (target, profile, commit) = (env!("BATON_TARGET"), env!("BATON_BUILD_PROFILE"), env!("BATON_COMMIT"));
    if output.is_table() {
        say!("baton {version}");
        say!("commit    {}", if commit.is_empty() { "unknown" } else { commit });
        say!("target    {target}");
        say!("profile   {profile}");
        say!("features  {}", described());
        return Ok(());
    }
    let features: Vec<&str> = FEATURES.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    let commit = Some(commit).filter(|commit| !commit.is_empty());
    let value = json!({
        "version": version, "commit": commit, "target": target, "profile": profile, "features": features,
    });
    output.value(&value)
}

/// The features that this build has, and those that it lacks.
pub(super) fn described() -> String {
    let of =
        |wanted: bool| FEATURES.iter().filter(|(_, has)| *has == wanted).map(|(name, _)| *name).collect::<Vec<_>>();
    match (of(true).join(", "), of(false).join(", ")) {
        (has, lacks) if lacks.is_empty() => has,
        (has, lacks) if has.is_empty() => format!("none (this build lacks {lacks})"),
        (has, lacks) => format!("{has} (this build lacks {lacks})"),
    }
}
