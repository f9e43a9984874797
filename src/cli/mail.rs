//! `baton mail receive`.

use clap::Subcommand;
use prost::Message as _;
use tokio_stream::StreamExt as _;

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs},
    json,
    output::{self, Output},
};
use crate::proto::v1::{self, acknowledgement::Outcome};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton mail receive --id alice --key alice.pem --ack")]
pub(super) enum MailCommand {
    /// Print deliveries as they arrive, each with its envelope and payload, as JSON lines unless -o says otherwise.
    #[command(after_help = "Examples:
  baton mail receive --id alice --key alice.pem --max 1 --ack
  baton mail receive --id alice --key alice.pem -o table
  baton mail receive --id alice --key alice.pem -o jsonl | jq .envelope.payload")]
    Receive {
        #[command(flatten)]
        identity: IdentityArgs,
        /// Stop after this number of deliveries. Default: wait for more until ctrl-C.
        #[arg(long, value_name = "NUMBER")]
        max: Option<u32>,
        /// Acknowledge each delivery. The broker delivers an unacknowledged message again.
        #[arg(long)]
        ack: bool,
    },
}

pub(super) async fn run(command: MailCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let MailCommand::Receive { identity, max, ack } = command;
    let client = connection.client_without_token().await?;
    let client = client.with_token(&client.prove(&identity.load()?).await?)?;
    let request = v1::ReceiveRequest { max_deliveries: max.unwrap_or(0), max_outstanding: 0 };
    let mut deliveries = client.answer(client.messages().receive(request).await)?;
    while let Some(received) = deliveries.next().await {
        let received = client.answer(received.map(tonic::Response::new))?;
        let delivery = received.delivery.unwrap_or_default();
        // Shown before the ack: if the output fails, the message comes again.
        show(&delivery, *output)?;
        if ack {
            let outcome = Some(Outcome::Ack(v1::Ack {}));
            let acknowledgement = v1::Acknowledgement { delivery_id: delivery.delivery_id, outcome };
            let request = v1::AckRequest { acknowledgement: Some(acknowledgement) };
            client.answer(client.messages().ack(request).await)?;
        }
    }
    Ok(())
}

fn show(delivery: &v1::Delivery, output: Output) -> Result<(), Failure> {
    let value = json::of_bytes("baton.v1.Delivery", &delivery.encode_to_vec())?;
    if !output.is_table() {
        return output.next(&value);
    }
    let envelope = v1::Envelope::decode(delivery.envelope.clone()).unwrap_or_default();
    let lines = [
        ("delivery", format!("{}, attempt {}", delivery.delivery_id, delivery.attempt)),
        ("type", output::short(envelope.message_type().as_str_name(), "MESSAGE_TYPE_")),
        ("from", envelope.sender_id.clone()),
        ("sent", output::time(envelope.timestamp.as_ref())),
        ("task", envelope.task_id.clone()),
        ("epoch", if envelope.epoch == 0 { String::new() } else { envelope.epoch.to_string() }),
        ("handoff", if delivery.handoff_id.is_empty() { envelope.correlation_id } else { delivery.handoff_id.clone() }),
    ];
    for (name, text) in lines.iter().filter(|(_, text)| !text.is_empty()) {
        say!("{name:<14}{text}");
    }
    for (name, value) in
        value["envelope"]["payload"].as_object().into_iter().flatten().filter(|(name, _)| *name != "@type")
    {
        match value.as_str() {
            Some(text) => say!("  {name}: {text}"),
            None => say!("  {name}: {value}"),
        }
    }
    say!("");
    Ok(())
}
