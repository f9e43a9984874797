//! `baton cluster refound`: a new shared log begins with what one broker has.

use std::path::PathBuf;

use baton_cli::{Failure, exit, output::Output, say, say_lines};
use clap::Args;
use serde_json::json;

use super::ConfigArgs;
use crate::server::cluster_refound::{self, RefoundError, Refounded, Wanted};

#[derive(Debug, Args)]
pub(crate) struct RefoundArgs {
    /// The name of the broker that has the highest entry. The configuration must be its own.
    #[arg(long, value_name = "NAME")]
    from: String,
    /// The name of the cluster with the new log. It must be another than the present one.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// The folder of new keys for the cluster, from `baton cluster keys --in-place-of`. The log need not be lost then.
    #[arg(long, value_name = "FOLDER")]
    new_keys: Option<PathBuf>,
    /// Go on although entries are missing that were in the lost log.
    #[arg(long)]
    accept_loss: bool,
    /// Say what this broker has and what is missing, and begin no log.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    of: ConfigArgs,
}

pub(super) async fn run(args: &RefoundArgs, output: &Output) -> Result<(), Failure> {
    let (config, settings) = args.of.read()?;
    let wanted = Wanted {
        from: args.from.clone(),
        name: args.name.clone(),
        new_keys: args.new_keys.clone(),
        accepts_loss: args.accept_loss,
        is_dry: args.dry_run,
    };
    let found = cluster_refound::refound(&config, &settings, &wanted).await?;
    if !output.is_table() {
        let others = found.others.iter().map(|(broker, position)| json!({ "broker": broker, "position": position }));
        return output.value(&json!({
            "broker": settings.broker, "cluster": args.name, "former_cluster": settings.name, "dry_run": args.dry_run,
            "position": found.position, "others": others.collect::<Vec<_>>(),
            "missing_from": found.missing.as_ref().map(|missing| missing.start()),
            "missing_upto": found.missing.as_ref().map(|missing| missing.end()),
        }));
    }
    let (name, data) = (&args.name, config.data.display());
    if let Some(position) = found.position {
        say!("Broker {} has the entries of the former log up to {position}.", settings.broker);
        tell(&found);
    }
    if args.dry_run {
        say!("Nothing was changed.");
        return Ok(());
    }
    let keys = args.new_keys.as_ref().map(|_| " Copy the new keys to each, and name them in cluster.keys.");
    let keys = keys.unwrap_or_default();
    say_lines!(
        "Broker {} is the first one of the cluster {name}, with all that {data} has.

Next:
  1. Set cluster.name = {name:?} in the configuration of each broker.{keys}
  2. Start this broker.
  3. Move the folder `store` in the data folder of each other broker away, and start it: it receives a copy.
The entries of the former log stay in the engine, under the name {}.",
        settings.broker,
        settings.name,
    );
    Ok(())
}

/// Says what was compared, and what is missing.
fn tell(found: &Refounded) {
    match found.others.is_empty() {
        true => say!("The register names no other broker: whether one has more is not known."),
        false => {
            let others = found.others.iter().map(|(broker, position)| format!("{broker} up to {position}"));
            say!("By the register the others had: {}.", others.collect::<Vec<_>>().join(", "));
        }
    }
    match &found.missing {
        None => say!("No entry is known to be missing."),
        Some(missing) => say!(
            "The entries {} to {} are missing. Agents may have receipts for what was in them.",
            missing.start(),
            missing.end()
        ),
    }
}

impl From<RefoundError> for Failure {
    fn from(error: RefoundError) -> Self {
        let code = match error {
            RefoundError::Init(error) => return error.into(),
            RefoundError::OtherBroker { .. }
            | RefoundError::SameName(_)
            | RefoundError::NoName(_)
            | RefoundError::SameKeys(_)
            | RefoundError::BlobsElsewhere { .. }
            | RefoundError::PeerTls(_) => exit::CONFIGURATION,
            RefoundError::Runs { .. }
            | RefoundError::Ahead { .. }
            | RefoundError::Whole { .. }
            | RefoundError::OtherEntry { .. }
            | RefoundError::Missing(_)
            | RefoundError::Nothing => exit::REFUSED,
            RefoundError::Apply(_) => exit::DATA_DAMAGED,
            RefoundError::Read(_) => exit::UNREACHABLE,
        };
        Self::new(code, error.to_string())
    }
}
