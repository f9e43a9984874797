//! `baton mail`: receive, send.

use std::time::Duration;

use clap::{Args, Subcommand};
use prost::Message as _;
use tokio_stream::StreamExt as _;

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs},
    duration, handoff, json,
    output::{self, Output},
};
use baton_client::{
    About,
    ids::TaskId,
    proto::v1::{self, MessageType, acknowledgement::Outcome},
    time::{Clock as _, SystemClock},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton mail receive --id alice --key alice.pem --ack
  baton mail send --id alice --key alice.pem --to bob --text hello")]
pub(super) enum MailCommand {
    /// Print the deliveries that wait, each with its envelope and payload, as JSON lines unless -o says otherwise. They stay
    /// in the mailbox, and no attempt counts. With --ack, take them, and wait for more.
    #[command(
        after_help = "Exit code 1, with NO_MAIL on stderr, if the time of --wait ends before the first delivery; 0 if it ends later.

Examples:
  baton mail receive --id alice --key alice.pem --max 1 --ack --wait 10s
  baton mail receive --id alice --key alice.pem -o table
  baton mail receive --id alice --key alice.pem -o jsonl | jq .envelope.payload"
    )]
    Receive(ReceiveArgs),
    Send(Box<SendArgs>),
}

/// The mailbox, and how long to read it.
#[derive(Debug, Args)]
pub(super) struct ReceiveArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// Stop after this number of deliveries. Default: all that wait; with --ack, until the end of --wait, or ctrl-C.
    #[arg(long, value_name = "NUMBER")]
    max: Option<u32>,
    /// Acknowledge each delivery, as it arrives. The broker does not deliver it again.
    #[arg(long)]
    ack: bool,
    /// The time to wait for the next delivery, at least 1s. Default: 30s with --max, otherwise until ctrl-C.
    #[arg(long, value_name = "TIME", value_parser = parse_wait, requires = "ack")]
    wait: Option<Duration>,
}

/// How long a command with --max waits for the next delivery.
const WAIT_DEFAULT: Duration = Duration::from_secs(30);

fn parse_wait(text: &str) -> Result<Duration, String> {
    let wait = duration::parse(text)?;
    // The broker reads a mailbox before it says that there is nothing in it, which takes a moment.
    if wait < Duration::from_secs(1) { Err("must be at least 1s".to_owned()) } else { Ok(wait) }
}

/// Send mail to agents: an Info, or a Delegation of work. No ownership moves.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton mail send --id alice --key alice.pem --to bob --text 'the build is green'
  baton mail send --id alice --key alice.pem --to all:analyst --topic prices --data '{\"gold\": 2391}'
  baton mail send --id alice --key alice.pem --to bob --delegation --text 'count the lines' --data '{\"file\": \"a.txt\"}'")]
pub(super) struct SendArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// The receiver: an agent, type:TYPE for the best agent of a type, or all:TYPE for each.
    #[arg(long, value_name = "RECEIVER")]
    to: String,
    /// The information, or the work of a delegation, for people to read.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", required_unless_present = "data")]
    text: String,
    /// The information, or the input of a delegation, for programs: a JSON object.
    #[arg(long, value_name = "JSON", value_parser = json::object_text)]
    data: Option<String>,
    /// The topic of the information.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TOPIC", conflicts_with = "delegation")]
    topic: String,
    /// Send a Delegation: an order of work. To lend a task, use `baton handoff request --delegate`.
    #[arg(long)]
    delegation: bool,
    /// The time from now before which it is not delivered, at most 30d. Default: none.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    after: Option<Duration>,
    /// A task of this agent that the mail is about.
    #[arg(long, value_name = "TASK")]
    task: Option<TaskId>,
}

pub(super) async fn run(command: MailCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        MailCommand::Receive(args) => receive(args, connection, output).await,
        MailCommand::Send(args) => send(*args, connection, output).await,
    }
}

async fn receive(args: ReceiveArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let (client, _) = args.identity.sign_in(connection).await?;
    let wait = args.wait.or(args.max.map(|_| WAIT_DEFAULT)).filter(|_| args.ack);
    let max_deliveries = args.max.unwrap_or(0);
    // A look without an ack would count as an attempt, and end in a dead letter.
    let request = v1::ReceiveRequest { max_deliveries, peek: !args.ack, ..v1::ReceiveRequest::default() };
    let mut deliveries = client.answer(client.messages().receive(request).await)?;
    let mut shown = 0;
    loop {
        let next = match wait {
            Some(wait) => match tokio::time::timeout(wait, deliveries.next()).await {
                Ok(next) => next,
                Err(_) => return waited(wait, shown),
            },
            None => deliveries.next().await,
        };
        let Some(received) = next else { return Ok(()) };
        let received = client.answer(received.map(tonic::Response::new))?;
        let delivery = received.delivery.unwrap_or_default();
        // Shown before the ack: if the output fails, the message comes again.
        show(&delivery, *output)?;
        shown += 1;
        if args.ack {
            let outcome = Some(Outcome::Ack(v1::Ack {}));
            let acknowledgement = v1::Acknowledgement { delivery_id: delivery.delivery_id, outcome };
            let request = v1::AckRequest { acknowledgement: Some(acknowledgement) };
            client.answer(client.messages().ack(request).await)?;
        }
    }
}

/// The end of a wait after this number of deliveries.
fn waited(wait: Duration, shown: u32) -> Result<(), Failure> {
    let wait = humantime::format_duration(wait);
    if shown == 0 {
        return Err(
            Failure::failed(format!("no mail has arrived within {wait}; --wait TIME waits longer")).named("NO_MAIL")
        );
    }
    tell!("no further mail has arrived within {wait}");
    Ok(())
}

async fn send(args: SendArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let (client, composer) = handoff::as_agent(&args.identity, connection).await?;
    let about = args.task.map(|task| About::task(task.as_str(), 0)).unwrap_or_default();
    let data_json = args.data.unwrap_or_default();
    let deliver_after = args.after.map(|span| SystemClock.now().plus(span).into());
    let envelope = if args.delegation {
        let payload = v1::Delegation { description: args.text, input_json: data_json, deliver_after };
        composer.encode(&args.to, MessageType::Delegation, &about, &payload)
    } else {
        let payload = v1::Info { topic: args.topic, text: args.text, data_json, deliver_after };
        composer.encode(&args.to, MessageType::Info, &about, &payload)
    };
    let receipt = client.send(envelope).await?;
    output.one(&receipt, |receipt| vec![("message".into(), receipt.message_id.clone())])
}

/// The delivery and its attempt. A message that is only looked at has no delivery.
fn delivery_of(delivery: &v1::Delivery) -> String {
    match (delivery.delivery_id.as_str(), delivery.attempt.saturating_sub(1)) {
        ("", 0) => "waits".to_owned(),
        ("", attempts) => format!("waits, after {attempts} attempts"),
        (id, _) => format!("{id}, attempt {}", delivery.attempt),
    }
}

fn show(delivery: &v1::Delivery, output: Output) -> Result<(), Failure> {
    let value = json::of_bytes("baton.v1.Delivery", &delivery.encode_to_vec())?;
    if !output.is_table() {
        return output.next(&value);
    }
    let envelope = v1::Envelope::decode(delivery.envelope.clone()).unwrap_or_default();
    let lines = [
        ("delivery", delivery_of(delivery)),
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
