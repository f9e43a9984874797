//! `baton policy`: check, test and explain policies. Needs no broker.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::{Failure, output::Output};
use baton_broker_core::{
    ids::{AgentId, AgentType},
    policy::{Asked, Cases, DEFAULT, DEVELOPMENT, Policies, SCHEMA, Source},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton policy show default > baton.cedar
  baton policy check baton.cedar
  baton policy test --policy baton.cedar cases.toml")]
pub(super) enum PolicyCommand {
    /// Print the policy schema or a built-in policy, as a start for your own.
    #[command(after_help = "Examples:
  baton policy show default > /etc/baton/policy/baton.cedar
  baton policy show schema")]
    Show {
        /// The text to print.
        what: BuiltIn,
    },
    Check(CheckArgs),
    Test(TestArgs),
    Explain(Box<ExplainArgs>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum BuiltIn {
    /// The Cedar schema: all principals, actions and resources.
    Schema,
    /// The policy of a broker without a configured one.
    Default,
    /// The rules that open enrollment (`baton dev`) adds to the default.
    Development,
}

/// Check policies: their syntax, their types against the schema, and rules that have no effect.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton policy check /etc/baton/policy
  baton policy check --deny-warnings refunds.cedar

Exit code 3 if a policy cannot be used. A rule that is valid but has no effect is a warning.")]
pub(super) struct CheckArgs {
    /// A policy file (.cedar), or a folder of them.
    path: PathBuf,
    /// Treat warnings as errors.
    #[arg(long)]
    deny_warnings: bool,
}

/// Test policies: decide each case of a file and compare the decision with the expected one.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton policy test --policy /etc/baton/policy cases.toml

A case:
  [[case]]
  name = \"refunds go to billing only\"
  principal = \"agent:alice\"
  action = \"handOff\"
  resource = \"agent:bob\"
  resource_types = [\"shipping\"]
  task_type = \"refund\"
  expect = \"deny\"
  rule = \"refunds-to-billing-only\"   # the rule that must decide; optional

The other keys have the names of the flags of `baton policy explain`. Exit code 1 if a case fails.")]
pub(super) struct TestArgs {
    /// The test cases, a TOML file.
    cases: PathBuf,
    /// A policy file (.cedar), or a folder of them. Default: the built-in policy.
    #[arg(long, value_name = "PATH")]
    policy: Option<PathBuf>,
}

/// A question in writing.
#[derive(Debug, Args)]
struct AskedArgs {
    /// The caller: agent:ID, operator:NAME, or anonymous.
    #[arg(long, value_name = "WHO")]
    principal: String,
    /// A type of the calling agent. May be repeated.
    #[arg(long = "principal-type", value_name = "TYPE")]
    principal_types: Vec<AgentType>,
    /// A group of the calling operator. May be repeated.
    #[arg(long = "principal-group", value_name = "GROUP")]
    principal_groups: Vec<String>,
    /// The action, for example handOff. `baton policy show schema` lists all actions.
    #[arg(long, value_name = "ACTION")]
    action: String,
    /// The object of the action: agent:ID, type:NAME, task:ID, handoff:ID, negotiation:ID, dead-letter:ID,
    /// workspace:ID, run:ID, thread:ID, plan:ID, registration:KIND:NAME (KIND is graph, schema, agent-spec or
    /// model-spec), or broker.
    #[arg(long, value_name = "WHAT")]
    resource: String,
    /// A type of the agent that is the resource. May be repeated.
    #[arg(long = "resource-type", value_name = "TYPE")]
    resource_types: Vec<AgentType>,
    /// A participant of the task, handoff or workspace, or the owner of the registration, an agent's id. May be repeated.
    #[arg(long = "participant", value_name = "ID")]
    participants: Vec<AgentId>,
    /// For handOff: the task's type.
    #[arg(long, value_name = "TYPE", default_value = "", hide_default_value = true)]
    task_type: String,
    /// For handOff: the mode, TRANSFER or DELEGATE.
    #[arg(long, value_name = "MODE", default_value = "TRANSFER")]
    mode: String,
    /// For send and sendToAll: the message type, for example INFO.
    #[arg(long, value_name = "TYPE", default_value = "INFO")]
    message_type: String,
    /// For appendWorkspace and readWorkspace: the topic, normalised.
    #[arg(long, value_name = "TOPIC", default_value = "", hide_default_value = true)]
    topic: String,
    /// For deregister: whether the agent may have open tasks and offers.
    #[arg(long)]
    force: bool,
    /// For assignType: the id of the agent that gets the type.
    #[arg(long, value_name = "ID")]
    agent: Option<AgentId>,
    /// For registerGraph and startRun: the id of the graph.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    graph_id: String,
    /// For registerSchema: the id of the schema.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    schema_id: String,
    /// For manageSpecs and readSpec: the id of the spec.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    spec_id: String,
    /// For submitPlan: the id of the plan.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    plan_id: String,
}

impl From<AskedArgs> for Asked {
    fn from(asked: AskedArgs) -> Self {
        Self {
            principal: asked.principal,
            principal_types: asked.principal_types,
            principal_groups: asked.principal_groups,
            action: asked.action,
            resource: asked.resource,
            resource_types: asked.resource_types,
            participants: asked.participants,
            task_type: asked.task_type,
            mode: asked.mode,
            message_type: asked.message_type,
            topic: asked.topic,
            force: asked.force,
            agent: asked.agent,
            graph_id: asked.graph_id,
            schema_id: asked.schema_id,
            spec_id: asked.spec_id,
            plan_id: asked.plan_id,
        }
    }
}

/// Decide one request and print the rules that decided it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton policy explain --principal agent:alice --action handOff --resource agent:bob --task-type refund
  baton policy explain --policy my.cedar --principal anonymous --action enroll --resource agent:carol")]
pub(super) struct ExplainArgs {
    #[command(flatten)]
    asked: AskedArgs,
    /// A policy file (.cedar), or a folder of them. Default: the built-in policy.
    #[arg(long, value_name = "PATH")]
    policy: Option<PathBuf>,
}

pub(super) fn run(command: PolicyCommand, output: &Output) -> Result<(), Failure> {
    match command {
        PolicyCommand::Show { what } => {
            let text = match what {
                BuiltIn::Schema => SCHEMA,
                BuiltIn::Default => DEFAULT,
                BuiltIn::Development => DEVELOPMENT,
            };
            say_lines!("{}", text.trim_end());
            Ok(())
        }
        PolicyCommand::Check(args) => check(&args),
        PolicyCommand::Test(args) => test(&args),
        PolicyCommand::Explain(args) => explain(*args, output),
    }
}

fn load(path: Option<&Path>) -> Result<std::sync::Arc<Policies>, Failure> {
    let Some(path) = path else { return Ok(Policies::built_in()) };
    let policies = Source::read(path).and_then(|sources| Policies::parse(&sources));
    policies.map(std::sync::Arc::new).map_err(|error| Failure::file(path, error))
}

fn check(args: &CheckArgs) -> Result<(), Failure> {
    let policies = load(Some(&args.path))?;
    for warning in policies.warnings() {
        tell!("warning: {warning}");
    }
    if args.deny_warnings && !policies.warnings().is_empty() {
        return Err(Failure::file(
            &args.path,
            format!("{} warnings, refused by --deny-warnings", policies.warnings().len()),
        ));
    }
    say!("{}: {} rules, {} warnings", args.path.display(), policies.rule_ids().len(), policies.warnings().len());
    Ok(())
}

fn test(args: &TestArgs) -> Result<(), Failure> {
    let policies = load(args.policy.as_deref())?;
    let text = std::fs::read_to_string(&args.cases).map_err(|error| Failure::file(&args.cases, error))?;
    let cases: Cases = toml::from_str(&text).map_err(|error| Failure::file(&args.cases, error))?;
    let mut failed = 0;
    for case in &cases.cases {
        let title = case.title();
        let checked = case.check(&policies).map_err(|error| Failure::file(&args.cases, format!("{title}: {error}")))?;
        match &checked.problem {
            None => say_lines!("ok      {title}: {}", checked.decision),
            Some(problem) => {
                failed += 1;
                say_lines!("FAILED  {title}: {problem}");
            }
        }
    }
    match failed {
        0 => Ok(()),
        failed => Err(Failure::failed(format!("{failed} of {} cases failed", cases.cases.len())).named("CASES_FAILED")),
    }
}

fn explain(args: ExplainArgs, output: &Output) -> Result<(), Failure> {
    let policies = load(args.policy.as_deref())?;
    let decision = Asked::from(args.asked).decide(&policies).map_err(|error| Failure::usage(error.to_string()))?;
    if output.is_table() {
        let word = if decision.is_allowed { "allowed" } else { "denied" };
        say_lines!("{word}: {decision}");
        for rule in &decision.rules {
            say_lines!("\n{}", policies.rule(rule).unwrap_or_default().trim());
        }
        return Ok(());
    }
    let rules: Vec<_> = decision
        .rules
        .iter()
        .map(|rule| json!({"id": rule, "text": policies.rule(rule).unwrap_or_default()}))
        .collect();
    output.value(&json!({
        "allowed": decision.is_allowed,
        "why": decision.to_string(),
        "rules": rules,
        "failures": decision.failures,
    }))
}
