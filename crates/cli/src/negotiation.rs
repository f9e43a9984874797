//! `baton negotiation`: request, offer, decline, accept, list, show, watch, cancel.

use std::{borrow::Cow, time::Duration};

use clap::{Args, Subcommand, ValueEnum};

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs, OptionalIdentityArgs},
    duration, handoff, json,
    output::{self, Output},
    table::Column,
};
use baton_client::{
    ids::{AgentId, TaskId},
    proto::v1::{self, MessageType},
    time::{Clock as _, SystemClock, Timestamp},
    {About, Client},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton negotiation request --id alice --key alice.pem --to all:analyst --description \"the sums of march\"
  baton negotiation offer NEGOTIATION --id bob --key bob.pem --confidence 0.9 --cost 3
  baton negotiation show NEGOTIATION --id alice --key alice.pem")]
pub(super) enum NegotiationCommand {
    Request(Box<RequestArgs>),
    Offer(OfferArgs),
    /// Decline: a request as an agent that was asked, or an offer as its requester.
    #[command(after_help = "Examples:
  baton negotiation decline NEGOTIATION --id bob --key bob.pem
  baton negotiation decline NEGOTIATION --id alice --key alice.pem --to bob --text 'too late'")]
    Decline {
        #[command(flatten)]
        answer: AnswerArgs,
        /// The reason for people.
        #[arg(long, default_value = "", hide_default_value = true)]
        text: String,
    },
    /// Accept a standing offer. With a task, this also requests the handoff of the task to the bidder.
    #[command(after_help = "Examples:
  baton negotiation accept NEGOTIATION --id alice --key alice.pem --to bob
  baton negotiation accept NEGOTIATION --id alice --key alice.pem --to bob --task sums --epoch 2")]
    Accept {
        #[command(flatten)]
        answer: AnswerArgs,
        /// The task to hand over. A new id creates the task. Default: the work is no task.
        #[arg(long, value_name = "TASK")]
        task: Option<TaskId>,
        /// The epoch of the task as this agent knows it.
        #[arg(long, default_value_t = 1, value_name = "EPOCH", requires = "task")]
        epoch: u64,
        /// Lend the task: it returns to this agent with its final status.
        #[arg(long, requires = "task")]
        delegate: bool,
    },
    /// List negotiations, newest first.
    #[command(after_help = "Examples:
  baton negotiation list
  baton negotiation list --agent alice --state open -o json")]
    List {
        /// List only negotiations with this agent as requester or bidder.
        #[arg(long, value_name = "AGENT")]
        agent: Option<AgentId>,
        /// List only negotiations in this state. May be repeated.
        #[arg(long = "state", value_name = "STATE")]
        states: Vec<StateArg>,
        /// The most negotiations to list.
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(flatten)]
        reader: OptionalIdentityArgs,
    },
    /// Show one negotiation: its state, its deadlines and each bid.
    #[command(after_help = "Examples:
  baton negotiation show NEGOTIATION
  baton negotiation show NEGOTIATION --id bob --key bob.pem -o json")]
    Show {
        /// The id of the negotiation.
        negotiation: String,
        #[command(flatten)]
        reader: OptionalIdentityArgs,
    },
    /// Print a negotiation after each step, until it ends.
    #[command(after_help = "Examples:
  baton negotiation watch NEGOTIATION")]
    Watch {
        /// The id of the negotiation.
        negotiation: String,
        #[command(flatten)]
        reader: OptionalIdentityArgs,
    },
    /// Cancel a negotiation that this agent requested, before it is awarded.
    #[command(after_help = "Examples:
  baton negotiation cancel NEGOTIATION --id alice --key alice.pem")]
    Cancel {
        /// The id of the negotiation.
        negotiation: String,
        #[command(flatten)]
        identity: IdentityArgs,
    },
}

/// Ask agents for offers. The printed negotiation id is the id of the request.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton negotiation request --id alice --key alice.pem --to all:analyst --description 'the sums of march'
  baton negotiation request --id alice --key alice.pem --to all:analyst --description 'the sums of march' \\
    --award lowest-cost --max-cost 5 --deadline 10s --task sums")]
pub(super) struct RequestArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// The agents to ask: all:TYPE, type:TYPE for the best one, or one agent.
    #[arg(long, value_name = "RECEIVER")]
    to: String,
    /// The work.
    #[arg(long, value_name = "TEXT")]
    description: String,
    /// The kind of work, in the agents' own terms. Policies about the handoff of an award can depend on it.
    #[arg(long, default_value = "task", value_name = "TYPE")]
    task_type: String,
    /// Ask only agents with this skill. May be repeated.
    #[arg(long = "skill", value_name = "SKILL")]
    skills: Vec<String>,
    /// The time for offers, at most 1h. Default: 30s.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    deadline: Option<Duration>,
    /// Close when this number of offers stands.
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "NUMBER")]
    wanted: u32,
    /// The time to decide after the close, from 1s to 1h. Default: 60s.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "award")]
    decision: Option<Duration>,
    /// Let the broker award by this rule at the close. Default: this agent decides.
    #[arg(long, value_name = "RULE")]
    award: Option<RuleArg>,
    /// The least confidence of an offer that counts, from 0 to 1.
    #[arg(long, default_value_t = 0.0, hide_default_value = true, value_name = "NUMBER")]
    min_confidence: f64,
    /// The highest cost of an offer that counts.
    #[arg(long, default_value_t = 0.0, hide_default_value = true, value_name = "NUMBER")]
    max_cost: f64,
    /// The task that an award hands over. With --award, the request is the broker's mandate to do so.
    #[arg(long, value_name = "TASK")]
    task: Option<TaskId>,
    /// The epoch of the task as this agent knows it.
    #[arg(long, default_value_t = 1, value_name = "EPOCH", requires = "task")]
    epoch: u64,
}

/// Offer to do the work, answer a counter-offer, or counter an offer as the requester (with --to).
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton negotiation offer NEGOTIATION --id bob --key bob.pem --confidence 0.9 --cost 3 --estimate 20m
  baton negotiation offer NEGOTIATION --id alice --key alice.pem --to bob --cost 2
  baton negotiation offer NEGOTIATION --id bob --key bob.pem --withdraw")]
pub(super) struct OfferArgs {
    #[command(flatten)]
    answer: AnswerArgs,
    /// The confidence that the work can be done, from 0 to 1.
    #[arg(long, default_value_t = 1.0, value_name = "NUMBER")]
    confidence: f64,
    /// The price, in a unit that the agents have agreed on.
    #[arg(long, default_value_t = 0.0, value_name = "NUMBER")]
    cost: f64,
    /// The time that the work would take.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    estimate: Option<Duration>,
    /// The conditions, for people.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    conditions: String,
    /// The time for which the offer stands. Default: until the negotiation ends.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    valid_for: Option<Duration>,
    /// Withdraw this agent's offer.
    #[arg(long, conflicts_with_all = ["to", "estimate", "conditions", "valid_for"])]
    withdraw: bool,
}

/// The negotiation and the sender of an answer.
#[derive(Debug, Args)]
pub(super) struct AnswerArgs {
    /// The id of the negotiation.
    negotiation: String,
    #[command(flatten)]
    identity: IdentityArgs,
    /// The bidder, for messages of the requester. Default: the requester of the negotiation.
    #[arg(long, value_name = "AGENT")]
    to: Option<AgentId>,
}

/// A rule by which the broker awards.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum RuleArg {
    /// The offer with the highest confidence.
    HighestConfidence,
    /// The offer with the shortest estimate.
    Soonest,
    /// The offer of the least loaded agent.
    LeastLoaded,
    /// The offer with the lowest cost.
    LowestCost,
}

/// A state of a negotiation.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum StateArg {
    /// Offers are taken.
    Open,
    /// The requester decides.
    Deciding,
    /// An offer was chosen, and its handoff is open.
    Awarded,
    /// An agent has the work.
    Settled,
    /// No agent has the work.
    Failed,
    /// The requester has cancelled.
    Cancelled,
}

pub(super) async fn run(
    command: NegotiationCommand,
    connection: &ConnectionArgs,
    output: &Output,
) -> Result<(), Failure> {
    match command {
        NegotiationCommand::Request(args) => request(*args, connection, output).await,
        NegotiationCommand::Offer(args) => offer(args, connection, output).await,
        NegotiationCommand::Decline { answer, text } => {
            let reason = v1::RejectReason::Other.into();
            let payload = v1::TaskDecline { reason, reason_text: text };
            let (client, composer) = handoff::as_agent(&answer.identity, connection).await?;
            let to = other_side(&client, &answer).await?;
            let about = About::handoff("", 0, &answer.negotiation);
            send(&client, composer.encode(&to, MessageType::TaskDecline, &about, &payload), output).await
        }
        NegotiationCommand::Accept { answer, task, epoch, delegate } => {
            let (client, composer) = handoff::as_agent(&answer.identity, connection).await?;
            let Some(to) = &answer.to else { return Err(Failure::usage("--to names the bidder".to_owned())) };
            let negotiation = get(&client, &answer.negotiation).await?;
            let bid = negotiation.bids.iter().find(|bid| bid.agent_id == to.as_str());
            let offer_id = bid.map(|bid| bid.offer_id.clone()).unwrap_or_default();
            if offer_id.is_empty() {
                return Err(Failure::usage(format!("{to} has made no offer")));
            }
            let mode = if delegate { v1::HandoffMode::Delegate } else { v1::HandoffMode::Transfer };
            let terms = v1::HandoffRequest {
                task_type: negotiation.task_type,
                priority: v1::Priority::Medium.into(),
                mode: mode.into(),
                ..Default::default()
            };
            let task_id = task.as_ref().map(ToString::to_string).unwrap_or_default();
            let about = About::handoff(&task_id, if task.is_some() { epoch } else { 0 }, &answer.negotiation);
            let payload = v1::TaskAccept { offer_id, details: String::new(), handoff: task.map(|_| terms) };
            send(&client, composer.encode(to.as_str(), MessageType::TaskAccept, &about, &payload), output).await
        }
        NegotiationCommand::List { agent, states, limit, reader } => {
            let client = reader.client(connection).await?;
            list(&client, agent.as_ref(), &states, limit, output).await
        }
        NegotiationCommand::Show { negotiation, reader } => {
            let client = reader.client(connection).await?;
            output.one(&get(&client, &negotiation).await?, lines)
        }
        NegotiationCommand::Watch { negotiation, reader } => {
            let client = reader.client(connection).await?;
            watch(&client, negotiation, output).await
        }
        NegotiationCommand::Cancel { negotiation, identity } => {
            let (client, _) = handoff::as_agent(&identity, connection).await?;
            let request = v1::CancelNegotiationRequest { negotiation_id: negotiation };
            let response = client.answer(client.negotiations().cancel_negotiation(request).await)?;
            output.one(&response.negotiation.unwrap_or_default(), lines)
        }
    }
}

async fn request(args: RequestArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let (client, composer) = handoff::as_agent(&args.identity, connection).await?;
    let terms = v1::HandoffRequest {
        task_type: args.task_type.clone(),
        priority: v1::Priority::Medium.into(),
        mode: v1::HandoffMode::Transfer.into(),
        initial_context_summary: args.description.clone(),
        ..Default::default()
    };
    let payload = v1::TaskRequest {
        description: args.description,
        task_type: args.task_type,
        required_skills: args.skills,
        offers_deadline: args.deadline.map(from_now),
        offers_wanted: args.wanted,
        award_rule: args.award.map_or(v1::AwardRule::Unspecified, RuleArg::to_proto).into(),
        min_confidence: args.min_confidence,
        max_cost: args.max_cost,
        handoff: args.task.as_ref().map(|_| terms),
        decision_timeout: span(args.decision)?,
        ..Default::default()
    };
    let about = args.task.map(|task| About::task(task.as_str(), args.epoch)).unwrap_or_default();
    send(&client, composer.encode(&args.to, MessageType::TaskRequest, &about, &payload), output).await
}

async fn offer(args: OfferArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let (client, composer) = handoff::as_agent(&args.answer.identity, connection).await?;
    let to = other_side(&client, &args.answer).await?;
    let negotiation = get(&client, &args.answer.negotiation).await?;
    let bidder = args.answer.to.as_ref().unwrap_or(args.answer.identity.id());
    let round = negotiation.bids.iter().find(|bid| bid.agent_id == bidder.as_str()).map_or(0, |bid| bid.round);
    let payload = v1::TaskOffer {
        confidence: args.confidence,
        estimated_duration: span(args.estimate)?,
        cost: args.cost,
        conditions: args.conditions,
        // A counter-offer begins a round, and the answer of the bidder has the same round.
        round: if args.answer.to.is_some() { round + 1 } else { round },
        withdrawn: args.withdraw,
        valid_until: args.valid_for.map(from_now),
    };
    let about = About::handoff("", 0, &args.answer.negotiation);
    send(&client, composer.encode(&to, MessageType::TaskOffer, &about, &payload), output).await
}

/// The receiver of an answer: the named bidder, else the requester.
async fn other_side(client: &Client, answer: &AnswerArgs) -> Result<String, Failure> {
    match &answer.to {
        Some(to) => Ok(to.to_string()),
        None => Ok(get(client, &answer.negotiation).await?.requester_id),
    }
}

async fn get(client: &Client, id: &str) -> Result<v1::Negotiation, Failure> {
    let request = v1::GetNegotiationRequest { negotiation_id: id.to_owned() };
    Ok(client.answer(client.negotiations().get_negotiation(request).await)?.negotiation.unwrap_or_default())
}

async fn list(
    client: &Client,
    agent: Option<&AgentId>,
    states: &[StateArg],
    limit: u32,
    output: &Output,
) -> Result<(), Failure> {
    let found = output::pages(limit, async |page_size, page_token| {
        let request = v1::ListNegotiationsRequest {
            page_size,
            page_token,
            agent_id: agent.map(ToString::to_string).unwrap_or_default(),
            states: states.iter().map(|state| state.to_proto().into()).collect(),
        };
        let page = client.answer(client.negotiations().list_negotiations(request).await)?;
        Ok((page.negotiations, page.next_page_token))
    })
    .await?;
    let columns = [
        Column::Id("NEGOTIATION"),
        Column::Whole("STATE"),
        Column::Id("REQUESTER"),
        Column::Text("RECEIVER"),
        Column::Whole("ASKED"),
        Column::Id("WINNER"),
        Column::Whole("CREATED"),
    ];
    let now = SystemClock.now();
    output.list(&columns, &found, |negotiation| {
        vec![
            negotiation.negotiation_id.clone(),
            state_of(negotiation),
            negotiation.requester_id.clone(),
            negotiation.receiver_id.clone(),
            negotiation.asked.to_string(),
            negotiation.winner_id.clone(),
            output::brief(negotiation.create_time.as_ref(), now),
        ]
    })
}

async fn watch(client: &Client, negotiation: String, output: &Output) -> Result<(), Failure> {
    let request = v1::WatchNegotiationRequest { negotiation_id: negotiation };
    let mut updates = super::watching::open(client, request).await?;
    while let Some(update) = updates.next().await? {
        let Some(negotiation) = &update.negotiation else { continue };
        if output.is_table() {
            let offers = negotiation.bids.iter().filter(|bid| !bid.offer_id.is_empty()).count();
            let time = output::moment(negotiation.update_time.as_ref());
            let winner = if negotiation.winner_id.is_empty() { "" } else { ", winner " };
            let (state, by) = (state_of(negotiation), &negotiation.winner_id);
            say!("{time}  {state}, {offers} of {} have offered{winner}{by}", negotiation.asked);
        } else {
            output.next(&json::of(&update)?)?;
        }
    }
    Ok(())
}

async fn send(client: &Client, envelope: bytes::Bytes, output: &Output) -> Result<(), Failure> {
    let receipt = client.send(envelope).await?;
    output.one(&receipt, |receipt| {
        let lines = [
            ("message", receipt.message_id.clone()),
            ("handoff", receipt.handoff_id.clone()),
            ("task", receipt.task_id.clone()),
        ];
        lines.into_iter().filter(|(_, text)| !text.is_empty()).map(|(name, text)| (name.into(), text)).collect()
    })
}

fn state_of(negotiation: &v1::Negotiation) -> String {
    output::short(negotiation.state().as_str_name(), "NEGOTIATION_STATE_")
}

fn lines(negotiation: &v1::Negotiation) -> Vec<(Cow<'static, str>, String)> {
    let mut lines: Vec<(Cow<'static, str>, String)> = vec![
        ("negotiation".into(), negotiation.negotiation_id.clone()),
        ("state".into(), state_of(negotiation)),
        ("requester".into(), negotiation.requester_id.clone()),
        ("receiver".into(), negotiation.receiver_id.clone()),
        ("task".into(), negotiation.task_id.clone()),
        (
            "award rule".into(),
            match negotiation.award_rule() {
                v1::AwardRule::Unspecified => "the requester decides".to_owned(),
                rule => output::short(rule.as_str_name(), "AWARD_RULE_"),
            },
        ),
        ("offers until".into(), output::time(negotiation.offers_deadline.as_ref())),
        ("decide until".into(), output::time(negotiation.decision_deadline.as_ref())),
        ("closed".into(), output::time(negotiation.close_time.as_ref())),
        ("winner".into(), negotiation.winner_id.clone()),
        ("handoff".into(), negotiation.handoff_id.clone()),
        ("failure".into(), negotiation.error_message.clone()),
    ];
    lines.retain(|(_, text)| !text.is_empty());
    for bid in &negotiation.bids {
        let state = output::short(bid.state().as_str_name(), "BID_STATE_");
        let offer = match bid.offer_id.is_empty() {
            true => String::new(),
            false => format!(", confidence {}, cost {}, round {}", bid.confidence, bid.cost, bid.round),
        };
        lines.push((Cow::Owned(format!("bid of {}", bid.agent_id)), format!("{state}{offer}")));
    }
    lines
}

fn from_now(span: Duration) -> prost_types::Timestamp {
    let at: Timestamp = SystemClock.now().plus(span);
    at.into()
}

fn span(span: Option<Duration>) -> Result<Option<prost_types::Duration>, Failure> {
    let to_proto = |span: Duration| {
        prost_types::Duration::try_from(span).map_err(|_| Failure::usage(format!("{span:?} is too long a time")))
    };
    span.map(to_proto).transpose()
}

impl RuleArg {
    fn to_proto(self) -> v1::AwardRule {
        match self {
            Self::HighestConfidence => v1::AwardRule::HighestConfidence,
            Self::Soonest => v1::AwardRule::Soonest,
            Self::LeastLoaded => v1::AwardRule::LeastLoaded,
            Self::LowestCost => v1::AwardRule::LowestCost,
        }
    }
}

impl StateArg {
    fn to_proto(self) -> v1::NegotiationState {
        match self {
            Self::Open => v1::NegotiationState::Open,
            Self::Deciding => v1::NegotiationState::Deciding,
            Self::Awarded => v1::NegotiationState::Awarded,
            Self::Settled => v1::NegotiationState::Settled,
            Self::Failed => v1::NegotiationState::Failed,
            Self::Cancelled => v1::NegotiationState::Cancelled,
        }
    }
}
