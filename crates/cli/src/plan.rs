//! `baton plan`: validate, submit, extend, list, show, results, watch, cancel, retry, subtask.

mod live;
mod subtask;

use std::{
    borrow::Cow,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use self::subtask::SubtaskCommand;
use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs, OptionalIdentityArgs},
    duration, handoff, json,
    output::{self, Diagram, Output},
    table::Column,
};
use baton_client::{
    ids::PlanId,
    proto::v1::{self, MessageType, PlanState, SubtaskState, plan_entry::Event, watch_plan_response::Update},
    time::{Clock as _, SystemClock},
    {About, Client},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton plan validate report.json
  baton plan submit report.json --id alice --key alice.pem
  baton plan watch report
  baton plan show report -o mermaid")]
pub(super) enum PlanCommand {
    /// Print all problems of a plan, without submitting it.
    #[command(after_help = "The file has a plan as JSON, an object with subtasks or a bare list of them:
  [{\"id\": \"fetch\", \"agent_type\": \"fetcher\", \"produces\": [\"data\"]},
   {\"id\": \"growth\", \"agent_type\": \"analyst\", \"consumes\": [\"data\"]}]
Without a plan_id, the name of the file without its ending is the id of the plan.

Exit code 1 if the plan has an error.

Examples:
  baton plan validate report.json
  baton plan validate steps.json --agent type:analyst
  baton plan validate report.json -o json")]
    Validate {
        /// A plan as JSON.
        file: PathBuf,
        #[command(flatten)]
        defaults: DefaultsArgs,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Submit a plan as an agent. The coordinator then hands out its subtasks with the rights of this agent.
    #[command(after_help = "Examples:
  baton plan submit report.json --id alice --key alice.pem
  baton plan submit report.json --plan-id q3 --id alice --key alice.pem
  baton plan submit steps.json --agent type:analyst --attempts 2 --id alice --key alice.pem")]
    Submit(Box<SubmitArgs>),
    /// Add subtasks to a running plan, as the agent that has submitted it.
    #[command(
        after_help = "The file has the new subtasks as JSON, an object with subtasks or a bare list of them. They may depend on
the subtasks that the plan has:
  [{\"id\": \"translate\", \"agent_type\": \"translator\", \"dependencies\": [\"report\"]}]

Examples:
  baton plan extend report more.json --id alice --key alice.pem
  baton plan extend report more.json --agent type:analyst --id alice --key alice.pem"
    )]
    Extend(Box<ExtendArgs>),
    /// List plans, newest first.
    #[command(after_help = "Examples:
  baton plan list")]
    List {
        /// The most plans to list.
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Show one plan with its subtasks, also as a diagram.
    #[command(after_help = "Examples:
  baton plan show report
  baton plan show report -o dot | dot -Tsvg > report.svg
  baton plan show report -o mermaid")]
    Show(PlanArgs),
    /// Print the results of the subtasks that have completed.
    #[command(after_help = "Examples:
  baton plan results report
  baton plan results report -o json | jq '.[].numericValue'")]
    Results(PlanArgs),
    /// Watch a plan until it has ended: on a terminal a line for each subtask and a bar, else each change.
    #[command(
        after_help = "Exit code 1 if the plan has failed or was cancelled. With --after, and where the output is no terminal, each \
change is a line.

Examples:
  baton plan watch report
  baton plan watch report --after 12 -o jsonl"
    )]
    Watch {
        #[command(flatten)]
        plan: PlanArgs,
        /// Print the log after this number, one change a line. 0 starts with the first entry.
        #[arg(long, value_name = "NUMBER")]
        after: Option<u64>,
    },
    /// End a plan at once: take its tasks back.
    #[command(after_help = "Examples:
  baton plan cancel report --id alice --key alice.pem
  baton plan cancel report --reason 'no longer needed'")]
    Cancel {
        #[command(flatten)]
        plan: PlanArgs,
        /// The reason, for people to read.
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
    },
    /// Start again what did not complete in an ended plan.
    #[command(after_help = "Examples:
  baton plan retry report --id alice --key alice.pem")]
    Retry(PlanArgs),
    /// Cancel, retry or give away one subtask of a running plan.
    #[command(
        subcommand,
        after_help = "Examples:
  baton plan subtask cancel report growth --id alice --key alice.pem
  baton plan subtask reassign report growth --to type:analyst --id alice --key alice.pem"
    )]
    Subtask(SubtaskCommand),
}

/// The new subtasks of a plan and its submitter.
#[derive(Debug, Args)]
pub(super) struct ExtendArgs {
    /// The id of the plan.
    plan: PlanId,
    /// The subtasks as JSON.
    file: PathBuf,
    #[command(flatten)]
    defaults: DefaultsArgs,
    #[command(flatten)]
    identity: IdentityArgs,
}

/// The plan and its submitter.
#[derive(Debug, Args)]
pub(super) struct SubmitArgs {
    /// A plan as JSON.
    file: PathBuf,
    /// The id of the plan, in place of the one in the file.
    #[arg(long, value_name = "PLAN")]
    plan_id: Option<PlanId>,
    #[command(flatten)]
    defaults: DefaultsArgs,
    #[command(flatten)]
    identity: IdentityArgs,
}

/// What stands for the fields that a subtask leaves out, in place of the defaults in the file.
#[derive(Debug, Default, Args)]
pub(super) struct DefaultsArgs {
    /// The agent, or type:NAME, of each subtask that names no agent, no type and no skill.
    #[arg(long, value_name = "AGENT|type:NAME")]
    agent: Option<String>,
    /// A skill that the same subtasks require. Repeatable.
    #[arg(long = "skill", value_name = "SKILL")]
    skills: Vec<String>,
    /// The time of each subtask that names none, from the takeover on.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// The most attempts of each subtask that names none.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    attempts: Option<u32>,
}

impl DefaultsArgs {
    /// Writes the flags over the defaults of a plan.
    fn apply(&self, plan: &mut v1::Plan) {
        let Self { agent, skills, timeout, attempts } = self;
        if agent.is_none() && skills.is_empty() && timeout.is_none() && attempts.is_none() {
            return;
        }
        let defaults = plan.defaults.get_or_insert_default();
        // An agent and a type in the file would go before skills of the command line.
        if agent.is_some() || !skills.is_empty() {
            (defaults.agent_id, defaults.agent_type) = Default::default();
            defaults.required_skills.clone_from(skills);
        }
        match agent.as_deref().map(|agent| (agent, agent.strip_prefix("type:"))) {
            Some((_, Some(kind))) => kind.clone_into(&mut defaults.agent_type),
            Some((agent, None)) => agent.clone_into(&mut defaults.agent_id),
            None => {}
        }
        if let Some(timeout) = timeout {
            defaults.timeout = prost_types::Duration::try_from(*timeout).ok();
        }
        if let Some(attempts) = attempts {
            defaults.attempts_max = *attempts;
        }
    }
}

/// A plan, and the caller.
#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    /// The id of the plan.
    plan: PlanId,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

pub(super) async fn run(command: PlanCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        PlanCommand::Validate { file, defaults, identity } => {
            let plan = Some(read(&file, None, &defaults)?);
            let client = identity.client(connection).await?;
            let request = v1::ValidatePlanRequest { plan };
            validate(&client.answer(client.plans().validate_plan(request).await)?.problems, *output)
        }
        PlanCommand::Submit(args) => {
            let plan = Some(read(&args.file, args.plan_id.as_ref(), &args.defaults)?);
            let payload = v1::PlanSubmission { plan, extension: None };
            send(&args.identity, &payload, connection, *output).await
        }
        PlanCommand::Extend(args) => {
            let v1::Plan { plan_id, subtasks, defaults, .. } = read(&args.file, Some(&args.plan), &args.defaults)?;
            let extension = Some(v1::PlanExtension { plan_id, subtasks, defaults });
            let payload = v1::PlanSubmission { plan: None, extension };
            send(&args.identity, &payload, connection, *output).await
        }
        PlanCommand::Subtask(command) => subtask::run(command, connection, *output).await,
        PlanCommand::List { limit, identity } => list(&identity.client(connection).await?, limit, *output).await,
        PlanCommand::Show(args) => show(&args.identity.client(connection).await?, &args.plan, *output).await,
        PlanCommand::Results(args) => {
            let client = args.identity.client(connection).await?;
            let results = output::pages(u32::MAX, async |page_size, page_token| {
                let request = v1::ListPlanResultsRequest { plan_id: args.plan.to_string(), page_size, page_token };
                let page = client.answer(client.plans().list_plan_results(request).await)?;
                Ok((page.results, page.next_page_token))
            })
            .await?;
            let columns = [
                Column::Id("SUBTASK"),
                Column::Whole("SUCCESS"),
                Column::Whole("NUMBER"),
                Column::Whole("TOKENS"),
                Column::Text("RESPONSE"),
            ];
            output.list(&columns, &results, |result| {
                vec![
                    result.subtask_id.clone(),
                    result.success.to_string(),
                    result.numeric_value.map_or("-".to_owned(), |value| value.to_string()),
                    result.tokens.to_string(),
                    result.response.clone(),
                ]
            })
        }
        PlanCommand::Watch { plan, after } => {
            watch(&plan.identity.client(connection).await?, &plan.plan, after, output).await
        }
        PlanCommand::Cancel { plan, reason } => {
            let client = plan.identity.client(connection).await?;
            let request = v1::CancelPlanRequest { plan_id: plan.plan.to_string(), reason_text: reason };
            output.one(&client.answer(client.plans().cancel_plan(request).await)?.plan.unwrap_or_default(), lines)
        }
        PlanCommand::Retry(args) => {
            let client = args.identity.client(connection).await?;
            let request = v1::RetryPlanRequest { plan_id: args.plan.to_string() };
            output.one(&client.answer(client.plans().retry_plan(request).await)?.plan.unwrap_or_default(), lines)
        }
    }
}

/// Signs and sends a submission, and prints the plan.
async fn send(
    identity: &IdentityArgs,
    payload: &v1::PlanSubmission,
    connection: &ConnectionArgs,
    output: Output,
) -> Result<(), Failure> {
    let (client, composer) = handoff::as_agent(identity, connection).await?;
    let envelope = composer.encode("", MessageType::PlanSubmission, &About::default(), payload);
    let receipt = client.send(envelope).await?;
    let plan_id = receipt.resource.trim_start_matches("plan:").to_owned();
    let request = v1::GetPlanRequest { plan_id, ..Default::default() };
    output.one(&client.answer(client.plans().get_plan(request).await)?.plan.unwrap_or_default(), lines)
}

fn read(path: &Path, id: Option<&PlanId>, defaults: &DefaultsArgs) -> Result<v1::Plan, Failure> {
    let value = json::read_file(path)?;
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let mut plan = parse(value, id.map_or(stem.as_str(), PlanId::as_str), id.is_some())
        .map_err(|error| Failure::file(path, error.message()))?;
    defaults.apply(&mut plan);
    Ok(plan)
}

/// A plan from an object with subtasks or from a bare list. `id` is that of a plan without one, or of any plan.
fn parse(value: Value, id: &str, replaces: bool) -> Result<v1::Plan, Failure> {
    let mut value = if value.is_array() { json!({"subtasks": value}) } else { value };
    let enums = [
        ("mode", "PLAN_MODE_", "baton.v1.PlanMode"),
        ("dataFlowCheck", "DATA_FLOW_CHECK_", "baton.v1.DataFlowCheck"),
        ("data_flow_check", "DATA_FLOW_CHECK_", "baton.v1.DataFlowCheck"),
        ("priority", "PRIORITY_", "baton.v1.Priority"),
    ];
    for (name, prefix, schema) in enums {
        let Some(text) = value.get(name).and_then(Value::as_str) else { continue };
        // People write the value without the prefix that the schema gives it.
        let word = text.strip_prefix(prefix).unwrap_or(text).to_uppercase();
        let words = json::words(schema, prefix);
        if word != "UNSPECIFIED" && !words.contains(&word) {
            return Err(Failure::usage(format!("{name} {text:?} is unknown; it can be {}", words.join(", "))));
        }
        value[name] = format!("{prefix}{word}").into();
    }
    json::object_as_text(&mut value, "input")?;
    let schemas = if value.get("topicSchemas").is_some() { "topicSchemas" } else { "topic_schemas" };
    for schema in value.get_mut(schemas).and_then(Value::as_array_mut).into_iter().flatten() {
        json::object_as_text(schema, "schema")?;
    }
    for subtask in value.get_mut("subtasks").and_then(Value::as_array_mut).into_iter().flatten() {
        json::object_as_text(subtask, "input")?;
        if let Some(compensation) = subtask.get_mut("compensate") {
            json::object_as_text(compensation, "input")?;
        }
        // Any scalar, where the schema has the text of it.
        if let Some(when) = subtask.get_mut("when").and_then(Value::as_object_mut)
            && let Some(value) = when.remove("equal")
        {
            when.insert("equalJson".to_owned(), value.to_string().into());
        }
    }
    let mut plan: v1::Plan = json::parse(value)?;
    if plan.plan_id.is_empty() || replaces {
        id.clone_into(&mut plan.plan_id);
    }
    Ok(plan)
}

fn validate(problems: &[v1::PlanProblem], output: Output) -> Result<(), Failure> {
    let columns =
        [Column::Whole("SEVERITY"), Column::Whole("PROBLEM"), Column::Whole("FIELD"), Column::Text("MESSAGE")];
    output.list(&columns, problems, |problem| {
        vec![
            output::short(problem.severity().as_str_name(), "PROBLEM_SEVERITY_"),
            problem.code.clone(),
            problem.field.clone(),
            problem.message.clone(),
        ]
    })?;
    match problems.iter().filter(|problem| problem.severity() == v1::ProblemSeverity::Error).count() {
        0 => Ok(()),
        1 => Err(Failure::failed("the plan has 1 error").named("DATA_INVALID")),
        errors => Err(Failure::failed(format!("the plan has {errors} errors")).named("DATA_INVALID")),
    }
}

async fn list(client: &Client, limit: u32, output: Output) -> Result<(), Failure> {
    let plans = output::pages(limit, async |page_size, page_token| {
        let request = v1::ListPlansRequest { page_size, page_token, states: Vec::new() };
        let page = client.answer(client.plans().list_plans(request).await)?;
        Ok((page.plans, page.next_page_token))
    })
    .await?;
    let columns = [
        Column::Id("PLAN"),
        Column::Whole("STATE"),
        Column::Whole("ROUND"),
        Column::Id("SUBMITTER"),
        Column::Whole("UPDATED"),
        Column::Text("REASON"),
    ];
    let now = SystemClock.now();
    output.list(&columns, &plans, |plan| {
        vec![
            plan.plan_id.clone(),
            state(plan.state()),
            plan.round.to_string(),
            plan.submitter_id.clone(),
            output::brief(plan.update_time.as_ref(), now),
            plan.reason.clone(),
        ]
    })
}

async fn show(client: &Client, plan: &PlanId, output: Output) -> Result<(), Failure> {
    let diagram = output.diagram();
    let include_submission = diagram.is_some();
    let request = v1::GetPlanRequest { plan_id: plan.to_string(), include_submission, ..Default::default() };
    let answer = client.answer(client.plans().get_plan(request).await)?;
    let run = answer.plan.unwrap_or_default();
    let Some(diagram) = diagram else { return output.one(&run, lines) };
    let unreadable = || Failure::failed("the submission cannot be read");
    let mut submitted = submitted(&answer.submission).and_then(|sent| sent.plan).ok_or_else(unreadable)?;
    for extension_id in &run.extension_ids {
        let (plan_id, extension_id) = (plan.to_string(), extension_id.clone());
        let request = v1::GetPlanRequest { plan_id, include_submission: true, extension_id };
        let answer = client.answer(client.plans().get_plan(request).await)?;
        let sent = self::submitted(&answer.submission).and_then(|sent| sent.extension).ok_or_else(unreadable)?;
        submitted.subtasks.extend(sent.subtasks);
    }
    match diagram {
        Diagram::Dot => say_lines!("{}", dot(&submitted, &run)),
        Diagram::Mermaid => say_lines!("{}", mermaid(&submitted, &run)),
    }
    Ok(())
}

/// The content of a signed submission.
fn submitted(envelope: &[u8]) -> Option<v1::PlanSubmission> {
    use prost::Message as _;
    let payload = v1::Envelope::decode(envelope).ok()?.payload?;
    v1::PlanSubmission::decode(payload.value).ok()
}

async fn watch(client: &Client, plan: &PlanId, after: Option<u64>, output: &Output) -> Result<(), Failure> {
    let end = match after {
        None if output.is_table() && std::io::stdout().is_terminal() => Some(live::follow(client, plan).await?),
        after => print_log(client, plan, after.unwrap_or(0), output).await?,
    };
    match end {
        Some(ended @ (PlanState::Failed | PlanState::Cancelled)) => {
            Err(Failure::failed(format!("the plan is {}", state(ended))))
        }
        Some(_) | None => Ok(()),
    }
}

/// Prints the entries of a plan's log. Returns the final state, if the last entries have it.
async fn print_log(client: &Client, plan: &PlanId, after: u64, output: &Output) -> Result<Option<PlanState>, Failure> {
    let request = v1::WatchPlanRequest { plan_id: plan.to_string(), after_number: after };
    let mut updates = super::watching::open(client, request).await?;
    let mut end = None;
    while let Some(update) = updates.next().await? {
        if let Some(Update::Entry(v1::PlanEntry { event: Some(event), .. })) = &update.update {
            end = match event {
                Event::Ended(ended) => Some(ended.state()),
                Event::Retried(_) => None,
                Event::Submitted(_)
                | Event::Extended(_)
                | Event::Subtask(_)
                | Event::Element(_)
                | Event::Reassigned(_)
                | Event::Compensation(_)
                | Event::NotAppended(_) => end,
            };
        }
        match &update.update {
            Some(Update::Entry(entry)) if output.is_table() => {
                say!("{:>5}  {}  {}", entry.number, output::moment(entry.time.as_ref()), event_text(entry));
            }
            Some(Update::Gap(gap)) if output.is_table() => {
                say!("{:>5}  (entries {} to {} are gone)", "", gap.first_number, gap.last_number);
            }
            Some(Update::CaughtUp(_)) if output.is_table() => {}
            Some(_) => output.next(&json::of(&update)?)?,
            // An update of a later version of the schema.
            None => {}
        }
    }
    Ok(end)
}

fn event_text(entry: &v1::PlanEntry) -> String {
    match &entry.event {
        Some(Event::Submitted(submitted)) => format!("submitted by {}", submitted.submitter_id),
        Some(Event::Subtask(change)) => change_text(change, ""),
        Some(Event::Compensation(change)) => change_text(change, "compensation "),
        Some(Event::Element(change)) => {
            change_text(change, &format!("element {} ", change.element.unwrap_or_default()))
        }
        Some(Event::Extended(extended)) => format!("extended by {}", extended.subtask_ids.join(", ")),
        Some(Event::Reassigned(given)) => {
            let reason = if given.reason_text.is_empty() { String::new() } else { format!(": {}", given.reason_text) };
            format!("{:<16} given to {} by {}{reason}", given.subtask_id, given.to, given.caller)
        }
        Some(Event::NotAppended(not)) => {
            format!("{:<16} result not appended to {}: {}", not.subtask_id, not.topic, not.text)
        }
        Some(Event::Retried(retried)) if retried.subtask_id.is_empty() => {
            format!("round {}, asked for by {}", retried.round, retried.caller)
        }
        Some(Event::Retried(retried)) => {
            format!("{:<16} again in round {}, asked for by {}", retried.subtask_id, retried.round, retried.caller)
        }
        Some(Event::Ended(ended)) if ended.reason.is_empty() => state(ended.state()),
        Some(Event::Ended(ended)) => format!("{}: {}", state(ended.state()), ended.reason),
        None => String::new(),
    }
}

fn change_text(change: &v1::SubtaskChanged, what: &str) -> String {
    let by = if change.agent_id.is_empty() { String::new() } else { format!(" by {}", change.agent_id) };
    let cause = if change.cause.is_empty() { String::new() } else { format!(": {}", change.cause) };
    let number = change.result.as_ref().and_then(|result| result.numeric_value);
    let number = number.map_or(String::new(), |number| format!(" = {number}"));
    format!("{:<16} {what}{}{by}{number}{cause}", change.subtask_id, subtask_state(change.state()))
}

fn state(state: PlanState) -> String {
    output::short(state.as_str_name(), "PLAN_STATE_")
}

fn subtask_state(state: SubtaskState) -> String {
    output::short(state.as_str_name(), "SUBTASK_STATE_")
}

/// A bar of the subtasks that have ended.
fn bar(plan: &v1::PlanRun) -> String {
    let is_done = |subtask: &&v1::SubtaskStatus| subtask.end_time.is_some();
    let (done, all) = (plan.subtasks.iter().filter(is_done).count(), plan.subtasks.len().max(1));
    let filled = done * 20 / all;
    format!("[{}{}] {done} of {}", "#".repeat(filled), ".".repeat(20 - filled), plan.subtasks.len())
}

fn lines(plan: &v1::PlanRun) -> Vec<(Cow<'static, str>, String)> {
    let mut lines = vec![
        ("plan".into(), plan.plan_id.clone()),
        ("state".into(), state(plan.state())),
        ("reason".into(), plan.reason.clone()),
        ("submitter".into(), plan.submitter_id.clone()),
        ("round".into(), plan.round.to_string()),
        ("deadline".into(), output::moment(plan.deadline.as_ref())),
        ("progress".into(), bar(plan)),
    ];
    for subtask in &plan.subtasks {
        lines.push(("subtask".into(), format!("{} {}", subtask.id, status_text(subtask))));
    }
    // In the order in which they run: the subtask that has completed last comes first.
    let mut undoing: Vec<&v1::SubtaskStatus> =
        plan.subtasks.iter().filter(|subtask| subtask.compensation.is_some()).collect();
    undoing.sort_by_key(|subtask| std::cmp::Reverse(subtask.result_entry));
    for (id, status) in undoing.iter().filter_map(|subtask| Some((&subtask.id, subtask.compensation.as_deref()?))) {
        lines.push(("compensation".into(), format!("{id} {}", status_text(status))));
    }
    lines
}

/// The state of a subtask or of a compensation, with its agent, its work, and what it waits for or failed from.
fn status_text(status: &v1::SubtaskStatus) -> String {
    let by = if status.agent_id.is_empty() { String::new() } else { format!(" by {}", status.agent_id) };
    let number = status.numeric_value.map_or(String::new(), |number| format!(" = {number}"));
    let detail = match (status.waiting_for.is_empty(), status.cause.is_empty()) {
        (false, _) => format!(", waits for {}", status.waiting_for.join(", ")),
        (true, false) => format!(": {}", status.cause),
        (true, true) => String::new(),
    };
    let work = work(status).map(|text| format!(", {text}")).unwrap_or_default();
    format!("{}{by}{number}{work}{detail}", subtask_state(status.state()))
}

/// What an active subtask says of its work: the progress, whose turn it is, and the details. `None`: nothing.
fn work(subtask: &v1::SubtaskStatus) -> Option<String> {
    let progress = subtask.progress.map(|progress| format!("{:.0} %", progress * 100.0));
    let ended = subtask.elements.iter().filter(|element| element.end_time.is_some()).count();
    let elements = (!subtask.elements.is_empty()).then(|| format!("{ended} of {} elements", subtask.elements.len()));
    let assigned = Some(subtask.assigned_to.as_str()).filter(|to| !to.is_empty() && *to != subtask.agent_id);
    let assigned = assigned.filter(|_| subtask.end_time.is_none()).map(|to| format!("given to {to}"));
    let turn = Some(subtask.turn_agent_id.as_str()).filter(|agent| !agent.is_empty() && *agent != subtask.agent_id);
    let turn = turn.map(|agent| format!("turn of {agent}"));
    let details = Some(subtask.details.clone()).filter(|details| !details.is_empty());
    let parts: Vec<String> = elements.into_iter().chain(progress).chain(assigned).chain(turn).chain(details).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Which subtask leads to which: dependencies, and topics with their names.
fn edges(plan: &v1::Plan) -> Vec<(usize, usize, String)> {
    let mut edges = Vec::new();
    for (to, subtask) in plan.subtasks.iter().enumerate() {
        for (from, other) in plan.subtasks.iter().enumerate().filter(|(from, _)| *from != to) {
            if subtask.dependencies.contains(&other.id) {
                edges.push((from, to, String::new()));
            }
            let topics = subtask.consumes.iter().filter(|topic| other.produces.contains(topic));
            edges.extend(topics.map(|topic| (from, to, topic.clone())));
        }
    }
    edges
}

/// The label of a subtask: its id and its state. Ids have no character that a diagram gives a meaning.
fn label(plan: &v1::Plan, run: &v1::PlanRun, place: usize, line_break: &str) -> String {
    let known = run.subtasks.get(place).map(|subtask| subtask_state(subtask.state())).unwrap_or_default();
    format!("{}{line_break}{known}", plan.subtasks[place].id)
}

fn quoted(topic: &str) -> String {
    topic.replace(['"', '\\', '\n', '|'], " ")
}

/// The plan in the language of Graphviz.
fn dot(plan: &v1::Plan, run: &v1::PlanRun) -> String {
    let mut lines = vec![format!("digraph \"{}\" {{", plan.plan_id)];
    for place in 0..plan.subtasks.len() {
        lines.push(format!("  n{place} [shape=box, label=\"{}\"];", label(plan, run, place, "\\n")));
    }
    for (from, to, topic) in edges(plan) {
        let label = if topic.is_empty() { String::new() } else { format!(" [label=\"{}\"]", quoted(&topic)) };
        lines.push(format!("  n{from} -> n{to}{label};"));
    }
    lines.push("}".to_owned());
    lines.join("\n")
}

/// The plan in the language of Mermaid.
fn mermaid(plan: &v1::Plan, run: &v1::PlanRun) -> String {
    let mut lines = vec!["flowchart TD".to_owned()];
    for place in 0..plan.subtasks.len() {
        lines.push(format!("  n{place}[\"{}\"]", label(plan, run, place, "<br/>")));
    }
    for (from, to, topic) in edges(plan) {
        let arrow = if topic.is_empty() { "-->".to_owned() } else { format!("-->|\"{}\"|", quoted(&topic)) };
        lines.push(format!("  n{from} {arrow} n{to}"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn story() -> v1::Plan {
        let list = json!([
            {"id": "fetch", "agent_type": "fetcher", "produces": ["data"]},
            {"id": "growth", "agentType": "analyst", "consumes": ["data"], "attempts_max": 2},
            {"id": "report", "agent_id": "carol", "dependencies": ["growth"]},
        ]);
        parse(list, "q3", false).unwrap()
    }

    #[test]
    fn a_bare_list_and_both_spellings_of_fields_are_read() {
        let plan = story();
        assert_eq!((plan.plan_id.as_str(), plan.subtasks.len()), ("q3", 3));
        assert_eq!(
            (plan.subtasks[0].agent_type.as_str(), plan.subtasks[1].agent_type.as_str()),
            ("fetcher", "analyst")
        );
        assert_eq!(plan.subtasks[1].attempts_max, 2);
    }

    #[test]
    fn an_object_has_terms_in_the_words_of_people() {
        let value = json!({"plan_id": "own", "mode": "hybrid", "data_flow_check": "LENIENT", "priority": "HIGH",
            "whole_timeout": "90s", "subtasks": []});
        let plan = parse(value.clone(), "file", false).unwrap();
        assert_eq!((plan.plan_id.as_str(), plan.mode()), ("own", v1::PlanMode::Hybrid));
        assert_eq!((plan.data_flow_check(), plan.priority()), (v1::DataFlowCheck::Lenient, v1::Priority::High));
        assert_eq!(parse(value, "flag", true).unwrap().plan_id, "flag");
        assert!(parse(json!({"subtask": []}), "x", false).is_err(), "an unknown field is named");
        let unknown = parse(json!({"mode": "BOGUS", "subtasks": []}), "x", false).unwrap_err().to_string();
        assert!(unknown.contains("mode \"BOGUS\"") && unknown.contains("HYBRID"), "{unknown}");
    }

    #[test]
    fn a_schema_of_a_topic_is_an_object() {
        let value = json!({"subtasks": [], "topic_schemas": [{"topic": "t", "schema": {"type": "object"}}]});
        let plan = parse(value, "x", false).unwrap();
        assert_eq!(plan.topic_schemas[0].schema_json, r#"{"type":"object"}"#);
        let wrong = json!({"subtasks": [], "topic_schemas": [{"topic": "t", "schema": "text"}]});
        assert!(parse(wrong, "x", false).is_err());
    }

    #[test]
    fn a_condition_compares_with_any_scalar() {
        use v1::condition::Comparison;
        let of = |when: Value| {
            let list = json!([{"id": "a"}, {"id": "b", "dependencies": ["a"], "when": when}]);
            parse(list, "x", false).map(|plan| plan.subtasks[1].when.clone().unwrap().comparison)
        };
        for (scalar, text) in
            [(json!("good"), "\"good\""), (json!(42), "42"), (json!(true), "true"), (Value::Null, "null")]
        {
            let comparison = of(json!({"subtask_id": "a", "pointer": "/result/x", "equal": scalar})).unwrap();
            assert_eq!(comparison, Some(Comparison::EqualJson(text.to_owned())));
        }
        assert_eq!(of(json!({"subtaskId": "a", "less": 0.5, "negate": true})).unwrap(), Some(Comparison::Less(0.5)));
        assert_eq!(of(json!({"subtask_id": "a", "present": true})).unwrap(), Some(Comparison::Present(true)));
        assert!(of(json!({"subtask_id": "a", "equal": 1, "less": 2})).is_err(), "one comparison");
        assert!(of(json!({"subtask_id": "a", "greater": 2})).is_err(), "an unknown field is named");
    }

    #[test]
    fn flags_stand_for_what_subtasks_leave_out() {
        let list = json!([{"id": "A", "dependencies": []}, {"id": "B", "dependencies": ["A"]}]);
        let object = json!({"subtasks": list, "defaults": {"agent_id": "bob", "attempts_max": 2, "timeout": "9s"}});
        let with = |value: &Value, args: DefaultsArgs| {
            let mut plan = parse(value.clone(), "x", false).unwrap();
            args.apply(&mut plan);
            plan.defaults
        };
        let of_type = || DefaultsArgs { agent: Some("type:analyst".to_owned()), ..Default::default() };
        assert_eq!(with(&list, DefaultsArgs::default()), None);
        assert_eq!(with(&list, of_type()).unwrap().agent_type, "analyst");
        let both = with(&object, of_type()).unwrap();
        assert_eq!((both.agent_id.as_str(), both.agent_type.as_str(), both.attempts_max), ("", "analyst", 2));
        let args = DefaultsArgs { attempts: Some(4), timeout: Some(Duration::from_secs(7)), ..Default::default() };
        let times = with(&object, args).unwrap();
        assert_eq!((times.agent_id.as_str(), times.attempts_max, times.timeout.unwrap().seconds), ("bob", 4, 7));
    }

    #[test]
    fn inputs_are_objects_whose_numbers_stay() {
        let value = json!({"input": {"id": 1234567890123456789_u64, "n": 42}, "subtasks": [
            {"id": "a", "input": {"none": null}, "compensate": {"agent_type": "x", "input": {"n": 42}}},
            {"id": "b", "inputJson": "{ }"}]});
        let plan = parse(value, "x", false).unwrap();
        assert_eq!(plan.subtasks[0].compensate.as_ref().unwrap().input_json, r#"{"n":42}"#);
        assert_eq!(json::object_text(&plan.input_json).as_ref(), Ok(&plan.input_json));
        assert!(plan.input_json.contains("1234567890123456789") && plan.input_json.contains(r#""n":42"#));
        let inputs: Vec<&str> = plan.subtasks.iter().map(|subtask| subtask.input_json.as_str()).collect();
        assert_eq!(inputs, [r#"{"none":null}"#, "{ }"]);
        for wrong in [json!({"input": [1]}), json!({"input": {}, "input_json": "{}"})] {
            parse(json!({"subtasks": [wrong]}), "x", false).unwrap_err();
        }
    }

    #[test]
    fn a_plan_shows_the_work_and_the_compensations_the_latest_completed_subtask_first() {
        let status = |id: &str, state: SubtaskState| v1::SubtaskStatus {
            id: id.to_owned(),
            state: state.into(),
            ..Default::default()
        };
        let undone = |id: &str, result_entry, compensation| v1::SubtaskStatus {
            result_entry,
            compensation: Some(Box::new(compensation)),
            ..status(id, SubtaskState::Completed)
        };
        let running = v1::SubtaskStatus {
            agent_id: "fei".to_owned(),
            progress: Some(0.5),
            turn_agent_id: "alice".to_owned(),
            details: "asks for a password".to_owned(),
            ..status("seat", SubtaskState::Running)
        };
        let failed = v1::SubtaskStatus { cause: "no refund".to_owned(), ..status("room", SubtaskState::Failed) };
        let run = v1::PlanRun {
            plan_id: "trip".to_owned(),
            subtasks: vec![undone("seat", 4, running), undone("room", 7, failed)],
            ..Default::default()
        };
        let shown: Vec<String> =
            lines(&run).into_iter().skip(7).map(|(name, text)| format!("{name}: {text}")).collect();
        assert_eq!(
            shown,
            [
                "subtask: seat COMPLETED",
                "subtask: room COMPLETED",
                "compensation: room FAILED: no refund",
                "compensation: seat RUNNING by fei, 50 %, turn of alice, asks for a password",
            ]
        );
    }

    #[test]
    fn a_plan_is_drawn() {
        let (plan, run) = (story(), v1::PlanRun::default());
        assert!(dot(&plan, &run).contains("n0 -> n1 [label=\"data\"];"), "{}", dot(&plan, &run));
        assert!(mermaid(&plan, &run).contains("n0 -->|\"data\"| n1\n  n1 --> n2"), "{}", mermaid(&plan, &run));
    }
}
