//! `baton handoff`: the answers. The request, the show, the list and the watch are in files of their own.

use std::{
    io::{self, BufRead as _, IsTerminal as _},
    time::Duration,
};

use clap::{Args, Subcommand, ValueEnum};
use prost::{Message, Name};

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs, OptionalIdentityArgs},
    context::{ContextArgs, Want},
    duration, handoff_request, handoff_show, handoffs_list, handoffs_watch,
    output::{self, Output},
    resolve::Prefix,
};
use baton_client::{
    ids::{AgentId, AgentType, MessageId, SystemIds},
    proto::v1::{self, MessageType, context_section::Content},
    time::{Clock as _, SystemClock},
    {About, Client, Composer, Trust, completion_of},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton handoff request --id alice --key alice.pem --to bob --task crash-7
  baton handoff accept crash-7 --id bob --key bob.pem
  baton handoff context crash-7 --id alice --key alice.pem --file context.json
  baton handoff complete crash-7 --id bob --key bob.pem
  baton handoff show crash-7")]
pub(super) enum HandoffCommand {
    Request(Box<handoff_request::RequestArgs>),
    /// Accept a handoff that is offered to this agent. The sender then sends the context.
    #[command(after_help = "Examples:
  baton handoff accept crash-7 --id bob --key bob.pem
  baton handoff accept crash-7 --id bob --key bob.pem --want goals --want history_log:last=5")]
    Accept {
        #[command(flatten)]
        answer: AnswerArgs,
        /// The time that the takeover will take. A longer time than the timeout of the completion replaces it.
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        estimate: Option<Duration>,
        /// A section of the context that this agent wants: NAME, NAME:last=NUMBER, NAME:without-tool-calls or
        /// NAME:summary. May be repeated. Default: all sections.
        #[arg(long = "want", value_name = "SECTION")]
        wants: Vec<Want>,
    },
    /// Reject a handoff that is offered to this agent. The broker then asks the next candidate.
    #[command(after_help = "Examples:
  baton handoff reject crash-7 --id bob --key bob.pem --reason overloaded --suggest carol
  baton handoff reject crash-7 --id bob --key bob.pem --reason no-skill --suggest type:rust")]
    Reject {
        #[command(flatten)]
        answer: AnswerArgs,
        /// The reason.
        #[arg(long, default_value = "other", value_name = "REASON")]
        reason: Reason,
        /// An explanation for people.
        #[arg(long, default_value = "", hide_default_value = true)]
        text: String,
        /// An agent that may be better suited, or the agents of a type, as type:NAME. May be repeated.
        #[arg(long = "suggest", value_name = "RECEIVER", value_parser = suggestion)]
        suggestions: Vec<String>,
        /// The time after which the broker asks this agent again, if no other candidate takes the task before.
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        retry_after: Option<Duration>,
    },
    /// Send the context of an accepted handoff.
    #[command(after_help = "Examples:
  echo '{\"collected_data\": {\"log\": [\"panicked at sync.rs:118\"]}}' > context.json
  baton handoff context crash-7 --id alice --key alice.pem --file context.json")]
    Context {
        #[command(flatten)]
        answer: AnswerArgs,
        #[command(flatten)]
        context: ContextArgs,
    },
    /// Complete a handoff. This agent then owns the task.
    ///
    /// Fetches the context, verifies the signature of the owner and the digest, and shows the context on stderr. On a
    /// terminal it asks before it signs; elsewhere it needs --yes.
    #[command(after_help = "Examples:
  baton handoff complete crash-7 --id bob --key bob.pem
  baton handoff complete crash-7 --id bob --key bob.pem --yes
  baton handoff complete crash-7 --id bob --key bob.pem --failed --details 'the log is cut off'")]
    Complete {
        #[command(flatten)]
        answer: AnswerArgs,
        /// Take the task over without a question.
        #[arg(long)]
        yes: bool,
        /// Report that the task could not be taken over. The sender keeps it.
        #[arg(long)]
        failed: bool,
        /// An explanation for people, for example what failed.
        #[arg(long, default_value = "", hide_default_value = true)]
        details: String,
    },
    /// Cancel a handoff that this agent requested.
    #[command(after_help = "Examples:
  baton handoff cancel crash-7 --id alice --key alice.pem")]
    Cancel(AnswerArgs),
    List(handoffs_list::ListArgs),
    /// Show one handoff: its state, whose turn it is, the time left, each offer with its outcome, and each step.
    #[command(after_help = "Examples:
  baton handoff show crash-7
  baton handoff show 0198c0de -o json")]
    Show {
        /// The handoff's id, or a unique prefix of it, or a task id for that task's latest handoff.
        id: Prefix,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    Watch(handoffs_watch::WatchArgs),
}

/// The handoff and the agent that answers.
#[derive(Debug, Args)]
pub(super) struct AnswerArgs {
    /// The handoff's id, the id of its task, or a prefix of either that is unique among the agent's handoffs.
    handoff: Prefix,
    #[command(flatten)]
    identity: IdentityArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Reason {
    NoSkill,
    Overloaded,
    NoPermission,
    WrongTaskType,
    Shutdown,
    TooLittleTime,
    Other,
}

/// Parses an agent's id, or `type:NAME`.
fn suggestion(text: &str) -> Result<String, String> {
    let parsed = match text.strip_prefix("type:") {
        Some(name) => AgentType::parse(name).map(drop),
        None => AgentId::parse(text).map(drop),
    };
    parsed.map(|()| text.to_owned()).map_err(|error| error.to_string())
}

pub(super) async fn run(command: HandoffCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        HandoffCommand::Request(args) => handoff_request::run(*args, connection, output).await,
        HandoffCommand::Accept { answer: args, estimate, wants } => {
            let payload = v1::HandoffAccept {
                estimated_handoff_time: span(estimate)?,
                wishes: wants.into_iter().map(Into::into).collect(),
                ..Default::default()
            };
            answer(&args, connection, output, MessageType::HandoffAccept, |_| payload).await
        }
        HandoffCommand::Reject { answer: args, reason, text, suggestions, retry_after } => {
            let payload = v1::HandoffReject {
                reason: reason.to_proto().into(),
                reason_text: text,
                retry_after: span(retry_after)?,
                alternative_agent_suggestions: suggestions,
            };
            answer(&args, connection, output, MessageType::HandoffReject, |_| payload).await
        }
        HandoffCommand::Context { answer: args, context } => {
            let payload = context.read()?;
            answer(&args, connection, output, MessageType::TaskContextTransfer, |_| payload).await
        }
        HandoffCommand::Complete { answer: args, failed: true, details, yes: _ } => {
            let payload =
                v1::HandoffComplete { outcome: v1::HandoffOutcome::Failure.into(), details, ..Default::default() };
            answer(&args, connection, output, MessageType::HandoffComplete, |_| payload).await
        }
        HandoffCommand::Complete { answer: args, failed: false, details, yes } => {
            complete(&args, (&details, yes), connection, output).await
        }
        HandoffCommand::Cancel(args) => {
            let payload = v1::HandoffCancel::default();
            answer(&args, connection, output, MessageType::HandoffCancel, |_| payload).await
        }
        HandoffCommand::List(args) => handoffs_list::run(args, connection, output).await,
        HandoffCommand::Show { id, identity } => {
            let client = identity.client(connection).await?;
            let handoff = get(&client, &id.handoff(&client).await?).await?;
            handoff_show::show(&handoff, output)
        }
        HandoffCommand::Watch(args) => handoffs_watch::run(args, connection, output).await,
    }
}

pub(super) fn span(span: Option<Duration>) -> Result<Option<prost_types::Duration>, Failure> {
    let to_proto = |span: Duration| {
        prost_types::Duration::try_from(span).map_err(|_| Failure::usage(format!("{span:?} is too long a time")))
    };
    span.map(to_proto).transpose()
}

/// Sends an answer to the other side of a handoff.
async fn answer<M: Message + Name>(
    args: &AnswerArgs,
    connection: &ConnectionArgs,
    output: &Output,
    kind: MessageType,
    payload: impl FnOnce(&v1::Handoff) -> M,
) -> Result<(), Failure> {
    let (client, composer) = as_agent(&args.identity, connection).await?;
    let handoff = get(&client, &args.handoff.handoff(&client).await?).await?;
    // The receiver is the other side of the handoff, else the broker refuses the message (SPEC 2).
    let to = match kind {
        MessageType::HandoffCancel | MessageType::TaskContextTransfer => &handoff.candidate_id,
        _ => &handoff.sender_id,
    };
    let about = About::handoff(&handoff.task_id, handoff.epoch, &handoff.handoff_id);
    send(&client, &composer, to, kind, &about, &payload(&handoff), output).await
}

/// Takes a task over: verifies its context, shows it, and asks before it signs.
async fn complete(
    args: &AnswerArgs,
    (details, yes): (&str, bool),
    connection: &ConnectionArgs,
    output: &Output,
) -> Result<(), Failure> {
    if !yes && !io::stdin().is_terminal() {
        return Err(Failure::usage("without a terminal to ask on, --yes is needed to take the task over"));
    }
    let (client, composer) = as_agent(&args.identity, connection).await?;
    let handoff_id = args.handoff.handoff(&client).await?.to_string();
    let request = v1::GetHandoffRequest { handoff_id, include_context: true };
    let found = client.answer(client.handoffs().get_handoff(request).await)?;
    let handoff = found.handoff.unwrap_or_default();
    // The broker refuses a completion in any other state, and its refusal names the state. No context has this digest.
    let mut payload = v1::HandoffComplete {
        outcome: v1::HandoffOutcome::Success.into(),
        context_digest: bytes::Bytes::from_static(&[0; 32]),
        ..Default::default()
    };
    if handoff.state() == v1::HandoffState::ContextSent {
        let context = verified_context(&client, &handoff, found.context).await?;
        payload = completion_of(&context);
        show_context(&handoff, &context);
        if !yes && !is_wanted(&handoff)? {
            return Err(Failure::failed("nothing was signed, and the task stays with its owner"));
        }
    }
    details.clone_into(&mut payload.details);
    let about = About::handoff(&handoff.task_id, handoff.epoch, &handoff.handoff_id);
    send(&client, &composer, &handoff.sender_id, MessageType::HandoffComplete, &about, &payload, output).await
}

/// The context of a handoff, after its signature and its digest are verified.
pub(super) async fn verified_context(
    client: &Client,
    handoff: &v1::Handoff,
    envelope: bytes::Bytes,
) -> Result<v1::TaskContextTransfer, Failure> {
    let wrong = |problem: &str| {
        Failure::refused("SIGNATURE_INVALID", format!("the context is not what the owner has sent: {problem}"))
    };
    if envelope.is_empty() {
        return Err(wrong("the broker shows none"));
    }
    let envelope = client.verified(envelope, &Trust::Broker, SystemClock.now()).await?;
    // The signature covers these fields, so the owner has sent this context for this handoff.
    let is_of_handoff = envelope.sender_id == handoff.sender_id
        && envelope.message_type() == MessageType::TaskContextTransfer
        && (envelope.task_id.as_str(), envelope.epoch) == (handoff.task_id.as_str(), handoff.epoch)
        && envelope.correlation_id == handoff.handoff_id;
    if !is_of_handoff {
        return Err(wrong("the broker shows a message of another agent or handoff"));
    }
    let payload = envelope.payload.unwrap_or_default();
    let context = v1::TaskContextTransfer::decode(payload.value).map_err(|error| wrong(&error.to_string()))?;
    let digest = completion_of(&context).context_digest;
    if digest != context.context_digest || digest != handoff.context_digest {
        return Err(wrong("its digest is another one"));
    }
    Ok(context)
}

fn show_context(handoff: &v1::Handoff, context: &v1::TaskContextTransfer) {
    tell!("context of task {} from {}, signature and digest verified", handoff.task_id, handoff.sender_id);
    for section in &context.sections {
        tell!("  {}: {}", output::line(&section.name), output::line(&content_of(section)));
    }
}

/// The content of a section in words.
pub(super) fn content_of(section: &v1::ContextSection) -> String {
    match &section.content {
        Some(Content::Json(json)) => json.clone(),
        Some(Content::Delta(_)) => "a change to an earlier version".to_owned(),
        Some(Content::Bytes(bytes)) => format!("{} bytes of {}", bytes.data.len(), bytes.media_type),
        Some(Content::Reference(reference)) => format!("see {}", reference.uri),
        None => String::new(),
    }
}

/// Asks the person at the terminal.
fn is_wanted(handoff: &v1::Handoff) -> Result<bool, Failure> {
    tell!("take over task {} from {}? [y/N]", handoff.task_id, handoff.sender_id);
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

pub(super) async fn send<M: Message + Name>(
    client: &Client,
    composer: &Composer,
    to: &str,
    kind: MessageType,
    about: &About,
    payload: &M,
    output: &Output,
) -> Result<(), Failure> {
    let receipt = client.send(composer.encode(to, kind, about, payload)).await?;
    output.one(&receipt, |receipt| {
        vec![
            ("handoff".into(), receipt.handoff_id.clone()),
            ("state".into(), output::short(receipt.handoff_state().as_str_name(), "HANDOFF_STATE_")),
            ("task".into(), receipt.task_id.clone()),
            ("owner".into(), receipt.owner_id.clone()),
            ("epoch".into(), receipt.epoch.to_string()),
            ("custody".into(), hex::encode(&receipt.custody_hash)),
        ]
    })
}

pub(super) async fn as_agent(
    identity: &IdentityArgs,
    connection: &ConnectionArgs,
) -> Result<(Client, Composer), Failure> {
    let (client, identity) = identity.sign_in(connection).await?;
    let composer = Composer { identity, clock: std::sync::Arc::new(SystemClock), ids: std::sync::Arc::new(SystemIds) };
    Ok((client, composer))
}

async fn get(client: &Client, id: &MessageId) -> Result<v1::Handoff, Failure> {
    let request = v1::GetHandoffRequest { handoff_id: id.to_string(), ..Default::default() };
    Ok(client.answer(client.handoffs().get_handoff(request).await)?.handoff.unwrap_or_default())
}

impl Reason {
    fn to_proto(self) -> v1::RejectReason {
        match self {
            Self::NoSkill => v1::RejectReason::NoSkill,
            Self::Overloaded => v1::RejectReason::Overloaded,
            Self::NoPermission => v1::RejectReason::NoPermission,
            Self::WrongTaskType => v1::RejectReason::WrongTaskType,
            Self::Shutdown => v1::RejectReason::Shutdown,
            Self::TooLittleTime => v1::RejectReason::TooLittleTime,
            Self::Other => v1::RejectReason::Other,
        }
    }
}
