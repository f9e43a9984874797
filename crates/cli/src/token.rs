//! `baton token`.

use clap::Args;

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs},
};

/// Authenticate as an agent and print a token for calls with other tools.
///
/// The token is valid for 12 hours, or until the broker restarts.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  grpcurl -cacert baton-data/tls/ca.pem -H \"authorization: Bearer $(baton token --id alice --key alice.pem)\" \\
      -d '{\"max_deliveries\": 1}' 127.0.0.1:22866 baton.v1.BrokerService/Receive")]
pub(super) struct TokenArgs {
    #[command(flatten)]
    identity: IdentityArgs,
}

pub(super) async fn run(args: TokenArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    let client = connection.client_without_token().await?;
    let identity = args.identity.load()?;
    let proven = client.prove(&identity).await;
    say!("{}", proven.map_err(|error| connection.not_signed_in(error, &identity, args.identity.key()))?);
    Ok(())
}
