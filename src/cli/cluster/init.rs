//! `baton cluster init`: a broker that was alone becomes the first one of a cluster.

use baton_cli::{Failure, exit, output::Output, say_lines};
use serde_json::json;

use super::{ConfigArgs, unreachable};
use crate::server::cluster_init::{self, InitError};

pub(super) async fn run(args: &ConfigArgs, output: &Output) -> Result<(), Failure> {
    let (config, settings) = args.read()?;
    cluster_init::init(&config, &settings).await?;
    if !output.is_table() {
        return output.value(&json!({ "broker": settings.broker, "cluster": settings.name }));
    }
    say_lines!(
        "Broker {} is the first one of the cluster {}, with all that {} has.

Start it, then start the others with the same [cluster] settings and keys, and with empty data folders:
  baton serve --config {}
  baton cluster status --config {}",
        settings.broker,
        settings.name,
        config.data.display(),
        args.config.display(),
        args.config.display(),
    );
    Ok(())
}

impl From<InitError> for Failure {
    fn from(error: InitError) -> Self {
        let code = match error {
            InitError::Unavailable(_) | InitError::Unknown(_) => return unreachable(&error.to_string()),
            InitError::Store(ref error) => exit::of_store(error),
            InitError::NotEmpty { .. } => exit::REFUSED,
            InitError::Record(_) => exit::DATA_DAMAGED,
            InitError::NoStore(_)
            | InitError::OtherKeys { .. }
            | InitError::Blobs(_)
            | InitError::Unsafe(_)
            | InitError::Folder(_)
            | InitError::Read(_)
            | InitError::Files(_)
            | InitError::TooLarge(_)
            | InitError::Entry(_) => exit::CONFIGURATION,
        };
        Self::new(code, error.to_string())
    }
}
