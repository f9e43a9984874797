//! `baton policy`: check, test and explain policies. Needs no broker.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::{Failure, output::Output};
use baton_broker_core::policy::{Asked, Cases, DEFAULT, DEVELOPMENT, Policies, SCHEMA, Source};

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

/// Decide one request and print the rules that decided it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton policy explain --principal agent:alice --action handOff --resource agent:bob --task-type refund
  baton policy explain --policy my.cedar --principal anonymous --action enroll --resource agent:carol")]
pub(super) struct ExplainArgs {
    #[command(flatten)]
    asked: Asked,
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
        PolicyCommand::Explain(args) => explain(&args, output),
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

fn explain(args: &ExplainArgs, output: &Output) -> Result<(), Failure> {
    let policies = load(args.policy.as_deref())?;
    let decision = args.asked.decide(&policies).map_err(|error| Failure::usage(error.to_string()))?;
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
