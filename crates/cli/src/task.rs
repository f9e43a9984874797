//! `baton task`: list, show, status, input, recall, audit. `extend` and `watch` are in files of their own.

use std::{borrow::Cow, path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs, OptionalIdentityArgs},
    duration,
    extend::{self, ExtendArgs},
    handoff, json,
    output::{self, Output},
    resolve::{self, Prefix},
    table::Column,
    task_create::{self, CreateArgs},
    task_watch::{self, percent},
};
use baton_broker_core::replay::{Replay, ReplayError};
use baton_client::{
    envelope::keys::PublicKey,
    ids::{AgentId, MessageId, TaskId},
    proto::v1::{self, MessageType},
    time::{Clock as _, SystemClock},
    {About, Client},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton task create crash-7 --id alice --key alice.pem --summary 'crash on start'
  baton task list --owner alice
  baton task show crash-7
  baton task audit crash-7")]
pub(super) enum TaskCommand {
    Create(CreateArgs),
    /// List tasks, newest first.
    #[command(after_help = "Examples:
  baton task list
  baton task list --owner alice --limit 10 -o json
  baton task list --by-update --status waiting-for-input
  baton task list --conversation chat-7 --parent crash-7
  baton task list --id alice --key alice.pem")]
    List {
        /// List only tasks that this agent owns: its id, or a unique prefix of it.
        #[arg(long, value_name = "AGENT")]
        owner: Option<Prefix>,
        /// List only parts of this task: its id, or a unique prefix of it.
        #[arg(long, value_name = "TASK")]
        parent: Option<Prefix>,
        /// List only tasks of this outer conversation.
        #[arg(long, value_name = "CONVERSATION")]
        conversation: Option<String>,
        /// List only tasks with this status. May be repeated.
        #[arg(long = "status", value_name = "STATUS", ignore_case = true)]
        statuses: Vec<ListedStatus>,
        /// List the latest updates first, and not the latest creations.
        #[arg(long)]
        by_update: bool,
        /// The most tasks to list.
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Show one task: its owner, its epoch, the handoffs that moved it, its open question, its result and its parts.
    #[command(after_help = "Examples:
  baton task show crash-7
  baton task show crash-7 --id bob --key bob.pem")]
    Show {
        /// The task's id, or a unique prefix of it.
        id: Prefix,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Print the entries of a task's custody log as they are written, until the task ends.
    #[command(after_help = "Examples:
  baton task watch crash-7
  baton task watch crash-7 --after 4 -o jsonl")]
    Watch {
        /// The task's id, or a unique prefix of it.
        id: Prefix,
        /// Start after this entry of the custody log. 0 starts with the first.
        #[arg(long, default_value_t = 0, value_name = "NUMBER")]
        after: u64,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Report the status of a task that this agent owns, with a result or a question.
    ///
    /// A final status (completed, failed, canceled) ends the task, or the loan if the task is lent. The status canceled
    /// also cancels the open parts of the task. A question is only for waiting-for-input, and is answered with `baton task
    /// input`.
    #[command(after_help = "Examples:
  baton task status crash-7 in-progress --id bob --key bob.pem --progress 0.5 --details 'reproduced'
  baton task status crash-7 completed --id bob --key bob.pem --result-json '{\"fixed_in\": \"1.2.4\"}'
  baton task status crash-7 canceled --id bob --key bob.pem --keep-parts
  baton task status crash-7 waiting-for-input --id bob --key bob.pem --question 'May I refund?' --answer-by type:human --answer-before 2h")]
    Status(StatusArgs),
    Extend(ExtendArgs),
    /// Answer a question about a task that was put to this agent. The first answer counts.
    #[command(after_help = "Examples:
  baton task input crash-7 --id carol --key carol.pem --text 'yes'
  baton task input crash-7 --id carol --key carol.pem --data-json '{\"refund\": true}'")]
    Input(InputArgs),
    /// Recall a task that this agent has delegated. The agent owns it again at once.
    ///
    /// The loan ends, and all loans within it. The present owner and the candidate of an open handoff are told to drop
    /// the task, and their late messages are refused with STALE_EPOCH.
    #[command(after_help = "Examples:
  baton task recall crash-7 --id alice --key alice.pem
  baton task recall crash-7 --id alice --key alice.pem --loan 0198c0de --reason 'solved meanwhile'")]
    Recall(RecallArgs),
    /// Take a task from its owner and hand it to another agent. For operators.
    ///
    /// The agent baton.coordinator owns the task at once, at the next epoch, and asks the new agent to take it, with the
    /// last context that the broker has. All loans end, an open handoff is cancelled, and the former owner is told to
    /// drop the task. If no agent takes the task, it stays with baton.coordinator, and the request is a dead letter.
    #[command(after_help = "Examples:
  baton task reassign crash-7 --to carol --reason 'bob is gone'
  baton task reassign crash-7 --to type:support --epoch 2
  baton task reassign crash-7 --to carol --id lead --key lead.pem")]
    Reassign(ReassignArgs),
    /// Verify a task's custody log.
    ///
    /// Checks the hash chain and the broker's receipts, replays the log from an empty state, and compares the result
    /// with the state that the broker reports. Exit code 1 if any check fails.
    #[command(after_help = "Examples:
  baton task audit crash-7")]
    Audit {
        /// The task's id, or a unique prefix of it.
        id: Prefix,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
}

/// The task and its new receiver.
#[derive(Debug, Args)]
pub(super) struct ReassignArgs {
    /// The task's id, or a unique prefix of it.
    task: Prefix,
    /// The agent that is to take the task: its id, or type:NAME for any able agent of a type.
    #[arg(long, value_name = "AGENT")]
    to: String,
    /// The task's epoch. Another one is refused: the task has moved since. The default is the present epoch.
    #[arg(long)]
    epoch: Option<u64>,
    /// The reason, for people to read.
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// The task, its delegator, and the loan.
#[derive(Debug, Args)]
pub(super) struct RecallArgs {
    /// The task's id, or a unique prefix of it.
    task: Prefix,
    #[command(flatten)]
    identity: IdentityArgs,
    /// The handoff that lent the task: its id, or a unique prefix of it. Required if the agent has lent the task more than
    /// once; `baton task show` lists the loans.
    #[arg(long, value_name = "HANDOFF")]
    loan: Option<Prefix>,
    /// The reason, for people to read.
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
}

/// The task, its owner, and what the owner reports.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// The task's id, or a unique prefix of it.
    task: Prefix,
    /// The new status.
    status: Status,
    #[command(flatten)]
    identity: IdentityArgs,
    /// The progress, from 0 to 1.
    #[arg(long, value_name = "NUMBER")]
    progress: Option<f64>,
    /// Details for people.
    #[arg(long, default_value = "", hide_default_value = true)]
    details: String,
    /// The result for programs, a JSON object.
    #[arg(long, value_name = "JSON", value_parser = json::object_text)]
    result_json: Option<String>,
    /// An agent that gets the report, or type:NAME, or all:NAME.
    #[arg(long, value_name = "RECEIVER", default_value = "", hide_default_value = true)]
    to: String,
    /// A question for people to read. Needs --answer-by.
    #[arg(long, value_name = "TEXT", requires = "answer_by")]
    question: Option<String>,
    /// The agent that is to answer, or type:NAME for one agent of that type.
    #[arg(long, value_name = "AGENT", requires = "question")]
    answer_by: Option<String>,
    /// The time from now after which the question expires, for example 2h. Default: never.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, requires = "question")]
    answer_before: Option<Duration>,
    /// A file with the JSON Schema that the answer's data must fit.
    #[arg(long, value_name = "FILE", requires = "question")]
    answer_schema: Option<PathBuf>,
    /// Leave the open parts of the task as they are. Only for canceled, which otherwise cancels them, too.
    #[arg(long)]
    keep_parts: bool,
}

/// A status of a list.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum ListedStatus {
    Created,
    #[value(alias = "in_progress")]
    InProgress,
    #[value(alias = "waiting_for_input")]
    WaitingForInput,
    Completed,
    Failed,
    Canceled,
}

impl ListedStatus {
    fn to_proto(self) -> v1::TaskStatus {
        match self {
            Self::Created => v1::TaskStatus::Created,
            Self::InProgress => v1::TaskStatus::InProgress,
            Self::WaitingForInput => v1::TaskStatus::WaitingForInput,
            Self::Completed => v1::TaskStatus::Completed,
            Self::Failed => v1::TaskStatus::Failed,
            Self::Canceled => v1::TaskStatus::Canceled,
        }
    }
}

/// A status that an owner reports.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Status {
    InProgress,
    WaitingForInput,
    Completed,
    Failed,
    Canceled,
}

/// The task, the agent that was asked, and its answer.
#[derive(Debug, Args)]
pub(super) struct InputArgs {
    /// The task's id, or a unique prefix of it.
    task: Prefix,
    #[command(flatten)]
    identity: IdentityArgs,
    /// The answer for people.
    #[arg(long, default_value = "", hide_default_value = true, required_unless_present = "data_json")]
    text: String,
    /// The answer for programs, a JSON object.
    #[arg(long, value_name = "JSON", value_parser = json::object_text)]
    data_json: Option<String>,
    /// The message_id of the question. Default: the open question of the task.
    #[arg(long, value_name = "MESSAGE", requires = "epoch")]
    question: Option<MessageId>,
    /// The epoch of the question. Default: that of the task.
    #[arg(long, requires = "question")]
    epoch: Option<u64>,
}

pub(super) async fn run(command: TaskCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        TaskCommand::Create(args) => task_create::run(args, connection, output).await,
        TaskCommand::Status(args) => report(args, connection, output).await,
        TaskCommand::Extend(args) => extend::run(args, connection, output).await,
        TaskCommand::Input(args) => input(args, connection, output).await,
        TaskCommand::Recall(args) => recall(args, connection, output).await,
        TaskCommand::Reassign(args) => reassign(args, connection, output).await,
        TaskCommand::List { owner, parent, conversation, statuses, by_update, limit, identity } => {
            let statuses: Vec<i32> = statuses.iter().map(|status| status.to_proto().into()).collect();
            let order = if by_update { v1::TaskOrder::Update } else { v1::TaskOrder::Unspecified };
            let client = identity.client(connection).await?;
            let owner_id = resolve::agent_filter(owner.as_ref(), &client).await?;
            let parent_task_id = resolve::task_filter(parent.as_ref(), &client).await?;
            let tasks = output::pages(limit, async |page_size, page_token| {
                let request = v1::ListTasksRequest {
                    page_size,
                    page_token,
                    owner_id: owner_id.clone(),
                    parent_task_id: parent_task_id.clone(),
                    statuses: Vec::clone(&statuses),
                    order: order.into(),
                    conversation_id: conversation.clone().unwrap_or_default(),
                    ..Default::default()
                };
                let page = client.answer(client.tasks().list_tasks(request).await)?;
                Ok((page.tasks, page.next_page_token))
            })
            .await?;
            let columns = [
                Column::Id("TASK"),
                Column::Text("TYPE"),
                Column::Id("OWNER"),
                Column::Whole("EPOCH"),
                Column::Whole("STATUS"),
                Column::Whole("HANDOFFS"),
                Column::Whole("UPDATED"),
            ];
            let now = SystemClock.now();
            output.list(&columns, &tasks, |task| {
                vec![
                    task.task_id.clone(),
                    task.task_type.clone(),
                    task.owner_id.clone(),
                    task.epoch.to_string(),
                    output::short(task.status().as_str_name(), "TASK_STATUS_"),
                    task.hops.len().to_string(),
                    output::brief(task.update_time.as_ref(), now),
                ]
            })
        }
        TaskCommand::Show { id, identity } => {
            let client = identity.client(connection).await?;
            let request = v1::GetTaskRequest { task_id: id.task(&client).await?.to_string() };
            let task = client.answer(client.tasks().get_task(request).await)?.task.unwrap_or_default();
            output.one(&task, lines)
        }
        TaskCommand::Watch { id, after, identity } => {
            let client = identity.client(connection).await?;
            task_watch::run(&client, &id.task(&client).await?, after, output).await
        }
        TaskCommand::Audit { id, identity } => {
            let client = identity.client(connection).await?;
            audit(&client, id.task(&client).await?, output).await
        }
    }
}

async fn report(args: StatusArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    if args.keep_parts && !matches!(args.status, Status::Canceled) {
        return Err(Failure::usage("--keep-parts is for the status canceled: no other status ends the parts"));
    }
    let (client, composer) = handoff::as_agent(&args.identity, connection).await?;
    let request = v1::GetTaskRequest { task_id: args.task.task(&client).await?.to_string() };
    let task = client.answer(client.tasks().get_task(request).await)?.task.unwrap_or_default();
    let payload = v1::TaskStatusUpdate {
        status: args.status.to_proto().into(),
        progress: args.progress,
        details: args.details.clone(),
        prompt: prompt(&args)?,
        keep_parts: args.keep_parts,
        result_json: args.result_json.unwrap_or_default(),
        ..Default::default()
    };
    let about = About::task(&task.task_id, task.epoch);
    handoff::send(&client, &composer, &args.to, MessageType::TaskStatusUpdate, &about, &payload, output).await
}

fn prompt(args: &StatusArgs) -> Result<Option<v1::TaskPrompt>, Failure> {
    let (Some(question), Some(answer_by)) = (&args.question, &args.answer_by) else { return Ok(None) };
    let answer_before = args.answer_before.map(|span| SystemClock.now().plus(span).into());
    let schema = args.answer_schema.as_ref();
    let schema = schema.map(|path| std::fs::read_to_string(path).map_err(|error| Failure::file(path, error)));
    Ok(Some(v1::TaskPrompt {
        question: question.clone(),
        answer_by: answer_by.clone(),
        answer_before,
        answer_schema_json: schema.transpose()?.unwrap_or_default(),
    }))
}

async fn input(args: InputArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let (client, composer) = handoff::as_agent(&args.identity, connection).await?;
    let task_id = args.task.task(&client).await?;
    let (question, epoch) = match (args.question, args.epoch) {
        (Some(question), Some(epoch)) => (question.to_string(), epoch),
        _ => {
            let request = v1::GetTaskRequest { task_id: task_id.to_string() };
            let task = client.answer(client.tasks().get_task(request).await)?.task.unwrap_or_default();
            let open = task.open_prompt.ok_or_else(|| {
                Failure::usage(format!("no question about task {task_id} is open; baton task show lists it"))
            })?;
            (open.message_id, task.epoch)
        }
    };
    let payload = v1::TaskInput { text: args.text, data_json: args.data_json.unwrap_or_default() };
    let about = About::handoff(task_id.as_str(), epoch, &question);
    handoff::send(&client, &composer, "", MessageType::TaskInput, &about, &payload, output).await
}

impl Status {
    fn to_proto(self) -> v1::TaskStatus {
        match self {
            Self::InProgress => v1::TaskStatus::InProgress,
            Self::WaitingForInput => v1::TaskStatus::WaitingForInput,
            Self::Completed => v1::TaskStatus::Completed,
            Self::Failed => v1::TaskStatus::Failed,
            Self::Canceled => v1::TaskStatus::Canceled,
        }
    }
}

async fn recall(args: RecallArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let (client, composer) = handoff::as_agent(&args.identity, connection).await?;
    let task_id = args.task.task(&client).await?.to_string();
    let loan = match &args.loan {
        Some(loan) => loan.handoff(&client).await?.to_string(),
        None => {
            let request = v1::GetTaskRequest { task_id: task_id.clone() };
            let task = client.answer(client.tasks().get_task(request).await)?.task.unwrap_or_default();
            only_loan(&task, args.identity.id())?
        }
    };
    // The broker takes a recall of any epoch: the delegator need not know how often the task was lent on.
    let about = About::handoff(&task_id, 1, &loan);
    let payload = v1::TaskRecall { reason_text: args.reason };
    handoff::send(&client, &composer, "", MessageType::TaskRecall, &about, &payload, output).await
}

async fn reassign(args: ReassignArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let client = args.identity.client(connection).await?;
    let task_id = args.task.task(&client).await?.to_string();
    let expected_epoch = match args.epoch {
        Some(epoch) => epoch,
        None => {
            let request = v1::GetTaskRequest { task_id: task_id.clone() };
            client.answer(client.tasks().get_task(request).await)?.task.unwrap_or_default().epoch
        }
    };
    let request = v1::ReassignTaskRequest { task_id, expected_epoch, to: args.to, reason_text: args.reason };
    let answer = client.answer(client.tasks().reassign_task(request).await)?;
    output.one(&answer, |answer| {
        let (task, handoff) = (answer.task.clone().unwrap_or_default(), answer.handoff.clone().unwrap_or_default());
        vec![
            ("task".into(), task.task_id),
            ("owner".into(), task.owner_id),
            ("epoch".into(), task.epoch.to_string()),
            ("handoff".into(), handoff.handoff_id.clone()),
            ("candidate".into(), handoff.candidate_id.clone()),
            ("state".into(), output::short(handoff.state().as_str_name(), "HANDOFF_STATE_")),
        ]
    })
}

/// The handoff of the only loan with this delegator.
fn only_loan(task: &v1::Task, delegator: &AgentId) -> Result<String, Failure> {
    let is_own = |loan: &&v1::TaskLoan| loan.delegator_id == delegator.as_str();
    let loans: Vec<&str> = task.loans.iter().filter(is_own).map(|loan| loan.handoff_id.as_str()).collect();
    let named = loans.join(", ");
    match loans[..] {
        [loan] => Ok(loan.to_owned()),
        [] => {
            Err(Failure::usage(format!("{delegator} has not lent task {}: it owns it, or gave it away", task.task_id)))
        }
        _ => Err(Failure::usage(format!(
            "{delegator} has lent task {} more than once; name a loan with --loan: {named}",
            task.task_id
        ))),
    }
}

async fn audit(client: &Client, id: TaskId, output: &Output) -> Result<(), Failure> {
    let request = v1::GetAgentRequest { agent_id: AgentId::broker().to_string() };
    let broker = client.answer(client.agents().get_agent(request).await)?.agent.and_then(|agent| agent.card);
    let key = broker.and_then(|card| card.keys.first().and_then(|key| PublicKey::parse(&key.public_key).ok()));
    let key = key.ok_or_else(|| Failure::failed("the broker publishes no key to verify its receipts with"))?;
    let broken = |error: ReplayError| {
        Failure::failed(format!("the custody log of {id} is not valid: {error}")).named("LOG_INVALID")
    };
    let mut replay = Replay::new(id.clone(), Some(key));
    loop {
        let request = v1::GetCustodyLogRequest {
            task_id: id.to_string(),
            after_number: replay.length(),
            page_size: 1000,
            include_envelopes: true,
        };
        let page = client.answer(client.tasks().get_custody_log(request).await)?;
        // A replay needs each entry from the first: without one, no later state can be verified.
        if let Some(gap) = page.gap {
            let problem = format!("entries {} to {} are missing", gap.first_number, gap.last_number);
            return Err(broken(ReplayError { number: gap.first_number, problem }));
        }
        page.entries.iter().try_for_each(|entry| replay.take(entry)).map_err(broken)?;
        if replay.length() >= page.custody_length {
            break;
        }
    }
    let request = v1::GetTaskRequest { task_id: id.to_string() };
    let task = client.answer(client.tasks().get_task(request).await)?.task.unwrap_or_default();
    // Entries may have been added since the log was read. Then the log is longer than the replay, and the task's state
    // cannot be compared.
    if task.custody_length == replay.length() {
        replay.compare(&task).map_err(broken)?;
    }
    let handoffs = replay.handoffs().count();
    if output.is_table() {
        say!(
            "the custody log of {id} is valid: {} entries, {} receipts, {} refusals",
            replay.length(),
            replay.receipts(),
            replay.refusals()
        );
        if replay.withheld() > 0 {
            say!("{} contexts are shown by their digests only", replay.withheld());
        }
        say!("the replay gives owner {} at epoch {}, {handoffs} handoffs", task.owner_id, task.epoch);
        say!("head {}", hex::encode(replay.hash()));
        return Ok(());
    }
    output.value(&serde_json::json!({
        "taskId": id.to_string(), "entries": replay.length(), "receipts": replay.receipts(),
        "refusals": replay.refusals(), "handoffs": handoffs, "ownerId": task.owner_id, "epoch": task.epoch,
        "custodyHash": hex::encode(replay.hash()),
    }))
}

/// A question that was answered, and its answer, each on one line.
fn answered(last: &v1::AnsweredPrompt) -> (String, String) {
    let question = last.question.clone().unwrap_or_default();
    let prompt = question.prompt.unwrap_or_default();
    let at = output::time(last.answer_time.as_ref());
    let answer = answer_text(&last.answer.clone().unwrap_or_default());
    (format!("{}, put to {}", prompt.question, question.asked_agent_id), format!("{answer} at {at}"))
}

/// The text and the data of an answer.
pub(crate) fn answer_text(answer: &v1::TaskInput) -> String {
    let data = Some(answer.data_json.clone()).filter(|data| !data.is_empty());
    let text = Some(answer.text.clone()).filter(|text| !text.is_empty());
    text.into_iter().chain(data).collect::<Vec<_>>().join(" ")
}

pub(super) fn lines(task: &v1::Task) -> Vec<(Cow<'static, str>, String)> {
    let question = task.open_prompt.as_ref().map(|open| {
        let prompt = open.prompt.clone().unwrap_or_default();
        let until = prompt.answer_before.map(|due| format!(" until {}", output::time(Some(&due))));
        let until = until.unwrap_or_default();
        (format!("{}, put to {}{until}", prompt.question, open.asked_agent_id), open.message_id.clone())
    });
    let (question, question_id) = question.unwrap_or_default();
    let (answered, answer) = task.last_answer.as_ref().map(answered).unwrap_or_default();
    let mut chain = task.hops.first().map(|hop| hop.sender_id.clone()).unwrap_or_default();
    for hop in &task.hops {
        chain.push_str(&format!(" → {}", hop.receiver_id));
    }
    let loan = |loan: &v1::TaskLoan| match &loan.due_time {
        Some(due) => format!("{} until {}", loan.delegator_id, output::time(Some(due))),
        None => loan.delegator_id.clone(),
    };
    let lent_by = task.loans.iter().map(loan).collect::<Vec<_>>().join(", ");
    vec![
        ("task".into(), task.task_id.clone()),
        ("type".into(), task.task_type.clone()),
        ("summary".into(), task.summary.clone()),
        ("owner".into(), task.owner_id.clone()),
        ("epoch".into(), task.epoch.to_string()),
        ("status".into(), output::short(task.status().as_str_name(), "TASK_STATUS_")),
        ("progress".into(), percent(task.progress)),
        ("details".into(), task.details.clone()),
        ("question".into(), question),
        ("question id".into(), question_id),
        ("last question".into(), answered),
        ("its answer".into(), answer),
        ("result".into(), task.result_json.clone()),
        ("part of".into(), task.parent_task_id.clone()),
        ("parts".into(), task.part_task_ids.join(", ")),
        ("conversation".into(), task.conversation_id.clone()),
        ("open handoff".into(), task.open_handoff_id.clone()),
        ("chain".into(), chain),
        ("lent by".into(), lent_by),
        ("custody".into(), format!("{} entries, the head is", task.custody_length)),
        ("".into(), hex::encode(&task.custody_hash)),
        ("created".into(), output::time(task.create_time.as_ref())),
        ("updated".into(), output::time(task.update_time.as_ref())),
    ]
}
