//! `baton mail receive`.

use clap::Subcommand;
use prost::Message as _;
use tokio_stream::StreamExt as _;

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs},
    json,
};
use crate::proto::v1::{self, acknowledgement::Outcome};

#[derive(Debug, Subcommand)]
pub(super) enum MailCommand {
    /// Print deliveries as JSON lines, each envelope with its payload.
    #[command(after_help = "Examples:
  baton mail receive --id alice --key alice.pem --max 1 --ack
  baton mail receive --id alice --key alice.pem | jq .envelope.payload")]
    Receive {
        #[command(flatten)]
        identity: IdentityArgs,
        /// Stop after this many; without it, wait for more.
        #[arg(long, value_name = "NUMBER")]
        max: Option<u32>,
        /// Ack each one. Without it they come again.
        #[arg(long)]
        ack: bool,
    },
}

pub(super) async fn run(command: MailCommand, connection: &ConnectionArgs) -> Result<(), Failure> {
    let MailCommand::Receive { identity, max, ack } = command;
    let client = connection.client_without_token().await?;
    let client = client.with_token(&client.prove(&identity.load()?).await?)?;
    let request = v1::ReceiveRequest { max_deliveries: max.unwrap_or(0), max_outstanding: 0 };
    let mut deliveries = client.answer(client.messages().receive(request).await)?;
    while let Some(received) = deliveries.next().await {
        let received = client.answer(received.map(tonic::Response::new))?;
        let delivery = received.delivery.unwrap_or_default();
        say!("{}", json::of_bytes("baton.v1.Delivery", &delivery.encode_to_vec())?);
        if ack {
            let outcome = Some(Outcome::Ack(v1::Ack {}));
            let acknowledgement = v1::Acknowledgement { delivery_id: delivery.delivery_id, outcome };
            let request = v1::AckRequest { acknowledgement: Some(acknowledgement) };
            client.answer(client.messages().ack(request).await)?;
        }
    }
    Ok(())
}
