//! `baton handoff watch`: the steps of one handoff, or the changes of all.

use clap::Args;

use super::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs},
    handoff_show::say_step,
    json,
    output::{self, Output},
    resolve::{self, Prefix},
};
use baton_client::{
    Client,
    proto::v1::{self, watch_handoffs_response::Event},
};

/// Print the steps of one handoff as they happen, until it ends; or the changes of all handoffs.
///
/// Without a handoff: first all open handoffs that the caller may read, then each change, until ctrl-C. Each line begins
/// with a cursor. --after continues behind it, also after a restart of the broker.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton handoff watch crash-7
  baton handoff watch
  baton handoff watch --from alice --task-type support -o jsonl
  baton handoff watch --after 1204
  baton handoff watch crash-7 --id bob --key bob.pem")]
pub(super) struct WatchArgs {
    #[command(flatten)]
    identity: OptionalIdentityArgs,
    /// The handoff's id, or a unique prefix of it, or a task id for that task's latest handoff. Default: all handoffs.
    id: Option<Prefix>,
    /// Show only changes after this cursor.
    #[arg(long, default_value_t = 0, value_name = "CURSOR", conflicts_with = "id")]
    after: u64,
    /// Show only handoffs of this task: its id, or a unique prefix of it.
    #[arg(long, value_name = "TASK", conflicts_with = "id")]
    task: Option<Prefix>,
    /// Show only handoffs with this agent as sender: its id, or a unique prefix of it.
    #[arg(long, value_name = "AGENT", conflicts_with = "id")]
    from: Option<Prefix>,
    /// Show only handoffs of this task type.
    #[arg(long, value_name = "TYPE", conflicts_with = "id")]
    task_type: Option<String>,
}

pub(super) async fn run(args: WatchArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let client = args.identity.client(connection).await?;
    match args.id {
        Some(id) => watch_one(&client, &id, output).await,
        None => watch_all(&client, args, output).await,
    }
}

async fn watch_one(client: &Client, id: &Prefix, output: &Output) -> Result<(), Failure> {
    let request = v1::WatchHandoffRequest { handoff_id: id.handoff(client).await?.to_string() };
    let mut updates = super::watching::open(client, request).await?;
    let mut printed = 0;
    while let Some(update) = updates.next().await? {
        let handoff = update.handoff.unwrap_or_default();
        if output.is_table() {
            // Each update has every step so far, and only the new ones are printed.
            handoff.transitions.iter().skip(printed).for_each(say_step);
        } else {
            output.next(&json::of(&handoff)?)?;
        }
        printed = handoff.transitions.len();
    }
    Ok(())
}

async fn watch_all(client: &Client, args: WatchArgs, output: &Output) -> Result<(), Failure> {
    let request = v1::WatchHandoffsRequest {
        after_cursor: args.after,
        task_id: resolve::task_filter(args.task.as_ref(), client).await?,
        sender_id: resolve::agent_filter(args.from.as_ref(), client).await?,
        task_type: args.task_type.unwrap_or_default(),
    };
    let mut updates = super::watching::open(client, request).await?;
    while let Some(update) = updates.next().await? {
        match &update.event {
            Some(event) if output.is_table() => say_event(update.cursor, event),
            Some(_) => output.next(&json::of(&update)?)?,
            // An event of a later version of the schema.
            None => {}
        }
    }
    Ok(())
}

fn say_event(cursor: u64, event: &Event) {
    match event {
        Event::Handoff(handoff) => say!(
            "{cursor:>8}  {:<12}  {}  {} to {}, task {}",
            output::short(handoff.state().as_str_name(), "HANDOFF_STATE_"),
            handoff.handoff_id,
            handoff.sender_id,
            handoff.candidate_id,
            handoff.task_id,
        ),
        Event::Gap(gap) => {
            say!("{cursor:>8}  (changes {} to {} cannot be shown)", gap.first_number, gap.last_number);
        }
        Event::CaughtUp(_) => say!("{cursor:>8}  (up to date)"),
    }
}
