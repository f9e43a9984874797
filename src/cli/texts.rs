//! Snapshots of all texts that the command line prints by itself: each help page, each error, each message in its source.
//!
//! They are in `snapshots/`, to be read as a whole. After a change of a text, `INSTA_UPDATE=always cargo test --lib texts`
//! writes them anew; review the difference.

use std::{fmt, fmt::Write as _, fs, io, path::Path, time::Duration};

use tonic::Code;

use super::{Cli, Failure};
use crate::{
    broker::{
        BrokerError, StartError,
        jwt::{OperatorKeysError, TokenFault},
    },
    codes::{FieldViolation, Refusal},
    config::{ConfigError, PolicySourceError},
    domain::{
        admission::AdmissionError,
        context::Rejection as ContextRejection,
        handoff::{Hop, PromptState, Rejection, State, TaskStatus},
        negotiation, routing, threads,
        workspace::{Rejection as WorkspaceRejection, WorkspaceId},
    },
    envelope::{EnvelopeError, keys::KeyFileError},
    ids::{AgentId, GraphId, KeyId, MessageId, NodeId, SpecId, TaskId},
    policy::{CaseError, PolicyError},
    server::{
        ClusterError, FolderError, ServerError,
        development_ca::{DevelopmentCaError, Remedy},
        tls::TlsError,
    },
    store::OpenError,
    time::Timestamp,
    wire::edge::BindError,
};
use baton_client::{ClientError, Refused};
use baton_cluster::{
    driver,
    member::{Divergence, Ending},
};

/// Samples of an error enum, one or more of each variant. A variant without a sample does not compile.
macro_rules! samples {
    ($error:ident { $($variant:pat => $($sample:expr),*;)* }) => {{
        /// Compiles only if the patterns cover each variant.
        #[expect(dead_code, reason = "only its exhaustiveness matters")]
        fn is_complete(error: &$error) {
            match error {
                $($variant => (),)*
            }
        }
        vec![$($($sample,)*)*]
    }};
}

/// All pages, each below its command. The flags that all commands share are printed once, with the first page.
fn help_pages() -> String {
    let mut root = <Cli as baton_cli::Program>::line().term_width(110);
    root = without_environment(root);
    root.build();
    let mut pages = String::new();
    let mut global_options = None;
    add_page(&mut root, "baton", &mut global_options, &mut pages);
    pages
}

/// Hides the values of environment variables, which differ between machines.
fn without_environment(command: clap::Command) -> clap::Command {
    command.mut_args(|arg| arg.hide_env_values(true)).mut_subcommands(without_environment)
}

fn add_page(command: &mut clap::Command, path: &str, global_options: &mut Option<String>, pages: &mut String) {
    let page = command.render_long_help().to_string();
    let (start, rest) = page.split_once("\nGlobal options:\n").expect("each page lists the global options");
    // A heading without indentation ends the list.
    let end = rest.lines().skip_while(|line| line.is_empty() || line.starts_with(' ')).collect::<Vec<_>>().join("\n");
    let options = rest.strip_suffix(end.as_str()).or_else(|| rest.trim_end().strip_suffix(end.as_str()));
    let options = options.expect("the end is a suffix").trim_end().to_owned();
    write!(pages, "==== {path}\n\n{}\n", start.trim_end()).unwrap();
    match global_options {
        None => {
            write!(pages, "\nGlobal options:\n{options}\n").unwrap();
            *global_options = Some(options);
        }
        Some(first) => assert_eq!(first, &options, "{path} has other global options"),
    }
    write!(pages, "\n{}\n\n", end.trim()).unwrap();
    for subcommand in command.get_subcommands_mut().filter(|subcommand| subcommand.get_name() != "help") {
        let path = format!("{path} {}", subcommand.get_name());
        add_page(subcommand, &path, global_options, pages);
    }
}

#[test]
fn help_pages_are_reviewed() {
    let pages = help_pages().lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    snapshot("help_pages", &pages);
}

#[test]
fn every_help_page_has_examples() {
    let pages = help_pages();
    let bare = pages.split("==== ").skip(1).filter(|page| !page.contains("\nExamples:\n"));
    assert_eq!(bare.map(|page| page.lines().next().unwrap()).collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn the_page_of_exit_codes_has_each_code_in_its_row() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md")).unwrap();
    for (code, names) in baton_cli::exit::CODES {
        let row = page.lines().find(|line| line.starts_with(&format!("| {code} |"))).expect("each exit code has a row");
        assert!(names.iter().all(|name| row.contains(name)), "{names:?} are not all in {row}");
    }
}

#[test]
fn errors_are_reviewed() {
    let mut text = String::new();
    let mut add = |title: &str, lines: Vec<String>| write!(text, "==== {title}\n\n{}\n\n", lines.join("\n")).unwrap();
    add("refusals: envelopes", refusals(envelope_errors()));
    add("refusals: admission", refusals(admission_errors()));
    add("refusals: state machine", refusals(rejections()));
    add("refusals: workspaces", refusals(workspace_rejections()));
    add("refusals: contexts", refusals(context_rejections()));
    add("refusals: runs", refusals(routing_rejections()));
    add("refusals: threads", refusals(thread_rejections()));
    add("refusals: negotiations", refusals(negotiation_rejections()));
    add("refusals: calls", refusals(broker_errors()));
    add("policies", plain(policy_errors()));
    add("policy tests", plain(case_errors()));
    add("operator keys", plain(operator_keys_errors()));
    add("client", failures(client_errors()));
    add("configuration", failures(config_errors()));
    add("key files", failures(key_file_errors()));
    add("store", failures(open_errors()));
    add("server", failures(server_errors()));
    // The number of the store's format changes often, and its text does not.
    let (before, after) = text.split_once("\"baton-store ").expect("a sample names the format");
    let after = after.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let text = format!("{before}\"baton-store NUMBER{after}");
    snapshot("errors", text.trim_end());
}

/// The messages of failures in the sources of the command line. Values are shown by their names.
#[test]
fn failures_in_the_source_are_reviewed() {
    let mut text = String::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/cli/src")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                None => folders.push(path),
                Some(extension) if extension == "rs" && !path.ends_with("texts.rs") => files.push(path),
                Some(_) => {}
            }
        }
    }
    files.sort();
    for path in files {
        let source = fs::read_to_string(&path).unwrap();
        let code = source.split("#[cfg(test)]").next().unwrap();
        for (at, call) in code.match_indices("Failure::") {
            let arguments = arguments_of(&code[at + call.len()..]);
            for message in literals_of(arguments) {
                writeln!(text, "{}: {message}", path.file_stem().unwrap().display()).unwrap();
            }
        }
    }
    snapshot("failures", text.trim_end());
}

/// The text between the first opening parenthesis and its closing one; empty if the text is not a call.
fn arguments_of(text: &str) -> &str {
    let name_length = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(0);
    let Some(rest) = text[name_length..].strip_prefix('(') else { return "" };
    let mut depth = 1;
    for (at, letter) in rest.char_indices() {
        depth += match letter {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        if depth == 0 {
            return &rest[..at];
        }
    }
    rest
}

/// The string literals in a piece of code, with continued lines joined.
fn literals_of(code: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut letters = code.chars();
    while letters.any(|letter| letter == '"') {
        let mut literal = String::new();
        while let Some(letter) = letters.next().filter(|letter| *letter != '"') {
            literal.push(letter);
            if letter == '\\' {
                literal.extend(letters.next());
            }
        }
        let joined: Vec<&str> = literal.split("\\\n").map(str::trim_start).collect();
        literals.push(joined.concat());
    }
    literals
}

fn snapshot(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

fn plain<E: fmt::Display>(errors: Vec<E>) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn refusals<E: Refusal + fmt::Display>(errors: Vec<E>) -> Vec<String> {
    errors.iter().map(|error| format!("{}: {error}", error.code().name())).collect()
}

fn failures<E: Into<Failure>>(errors: Vec<E>) -> Vec<String> {
    let failures = errors.into_iter().map(Into::into);
    failures.map(|failure| format!("exit code {}: {failure}", failure.code)).collect()
}

fn agent(id: &str) -> AgentId {
    AgentId::parse(id).unwrap()
}

fn key_id() -> KeyId {
    KeyId::parse("k1").unwrap()
}

fn message() -> MessageId {
    MessageId::parse("0198c0de-0000-7000-8000-000000000001").unwrap()
}

fn task() -> TaskId {
    TaskId::parse("crash-7").unwrap()
}

fn absent() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "No such file or directory")
}

fn violations() -> Vec<FieldViolation> {
    vec![FieldViolation { path: "envelope.task_id".into(), problem: "must not be empty".into() }]
}

fn envelope_errors() -> Vec<EnvelopeError> {
    let (sender, key_id) = (agent("alice"), key_id());
    samples!(EnvelopeError {
        EnvelopeError::Malformed { .. } => EnvelopeError::Malformed { part: "payload", problem: "unexpected end".into() };
        EnvelopeError::Fields { .. } => EnvelopeError::Fields { violations: violations() };
        EnvelopeError::NotSupported { .. } => EnvelopeError::NotSupported { path: "envelope.payload.award_rule".into() };
        EnvelopeError::PayloadTypeMismatch { .. } => EnvelopeError::PayloadTypeMismatch {
            expected: "baton.v1.HandoffAccept", found: "baton.v1.Info".into() };
        EnvelopeError::PayloadTooLarge { .. } => EnvelopeError::PayloadTooLarge { bytes: 1_048_577 };
        EnvelopeError::EntryTooLarge { .. } => EnvelopeError::EntryTooLarge { bytes: 1_048_577 };
        EnvelopeError::FrameTooLarge { .. } => EnvelopeError::FrameTooLarge { bytes: 4_194_305 };
        EnvelopeError::UnpacksTooLarge => EnvelopeError::UnpacksTooLarge;
        EnvelopeError::ContextDigestMismatch { .. } => EnvelopeError::ContextDigestMismatch { expected: [7; 32] };
        EnvelopeError::SignatureVersionUnknown { .. } => EnvelopeError::SignatureVersionUnknown { version: 9 };
        EnvelopeError::SignatureMissing => EnvelopeError::SignatureMissing;
        EnvelopeError::SignatureInvalid { .. } => EnvelopeError::SignatureInvalid {
            sender: sender.clone(), key_id: key_id.clone() };
        EnvelopeError::KeyUnknown { .. } => EnvelopeError::KeyUnknown { sender: sender.clone(), key_id: key_id.clone() };
        EnvelopeError::KeyNotValid { .. } => EnvelopeError::KeyNotValid { sender, key_id };
    })
}

fn admission_errors() -> Vec<AdmissionError> {
    samples!(AdmissionError {
        AdmissionError::TimestampOutsideWindow { .. } => AdmissionError::TimestampOutsideWindow {
            off_by: Duration::from_secs(3600), window: Duration::from_secs(300) };
        AdmissionError::TimestampForgotten { .. } => AdmissionError::TimestampForgotten {
            upto: Timestamp::from_unix_nanoseconds(1_784_000_000_000_000_000) };
        AdmissionError::MessageExpired { .. } => AdmissionError::MessageExpired {
            expired_at: Timestamp::from_unix_nanoseconds(1_784_000_000_000_000_000) };
        AdmissionError::MessageIdReused { .. } => AdmissionError::MessageIdReused { message_id: message() };
        AdmissionError::NotOwner { .. } => AdmissionError::NotOwner { sender: agent("alice"), task: task() };
        AdmissionError::NotCandidate { .. } => AdmissionError::NotCandidate { sender: agent("bob"), task: task() };
        AdmissionError::NotAsked { .. } => AdmissionError::NotAsked { sender: agent("bob"), task: task() };
        AdmissionError::FieldInvalid { .. } => AdmissionError::FieldInvalid { violation: violations().remove(0) };
        AdmissionError::ReceiverUnknown { .. } => AdmissionError::ReceiverUnknown { receiver: "bob".into() };
        AdmissionError::ReceiverInvalid { .. } => AdmissionError::ReceiverInvalid {
            receiver: "all:expert".into(), problem: "a handoff needs one receiver".into() };
        AdmissionError::Rejected(_) => AdmissionError::Rejected(Rejection::TaskUnknown);
    })
}

fn context_rejections() -> Vec<ContextRejection> {
    let section = || "notes".to_owned();
    samples!(ContextRejection {
        ContextRejection::BaseUnknown { .. } => ContextRejection::BaseUnknown { section: section(), known: Some([7; 32]) };
        ContextRejection::DeltaInvalid { .. } => ContextRejection::DeltaInvalid {
            section: section(),
            problem: "the base is bytes, and only JSON can be changed".into(),
            expected: None,
        };
        ContextRejection::VersionUnknown { .. } => ContextRejection::VersionUnknown {
            task: TaskId::parse("crash-7").unwrap(),
            what: "version 9 of its context".into(),
        };
    })
}

fn workspace_rejections() -> Vec<WorkspaceRejection> {
    let workspace = || WorkspaceId::parse("task:crash-7").unwrap();
    samples!(WorkspaceRejection {
        WorkspaceRejection::Unknown { .. } => WorkspaceRejection::Unknown { workspace: workspace() };
        WorkspaceRejection::Closed { .. } => WorkspaceRejection::Closed { workspace: workspace() };
        WorkspaceRejection::SequenceConflict { .. } => WorkspaceRejection::SequenceConflict { expected: 7, last: 9 };
        WorkspaceRejection::QuotaExceeded { .. } => WorkspaceRejection::QuotaExceeded {
            what: "topics", limit: 256, retry_after: Duration::from_secs(3600) };
    })
}

fn rejections() -> Vec<Rejection> {
    samples!(Rejection {
        Rejection::TaskUnknown => Rejection::TaskUnknown;
        Rejection::HandoffUnknown => Rejection::HandoffUnknown;
        Rejection::HandoffExists => Rejection::HandoffExists;
        Rejection::NotOwner { .. } => Rejection::NotOwner { owner: agent("alice") };
        Rejection::NotCandidate => Rejection::NotCandidate;
        Rejection::StaleEpoch { .. } => Rejection::StaleEpoch { claimed: 1, current: 2 };
        Rejection::EpochAhead { .. } => Rejection::EpochAhead { claimed: 3, current: 2 };
        Rejection::HandoffOpen { .. } => Rejection::HandoffOpen { handoff: message() };
        Rejection::WrongState { .. } => Rejection::WrongState { state: State::Requested };
        Rejection::Final { .. } => Rejection::Final { state: State::Completed };
        Rejection::Expired { .. } => Rejection::Expired { state: State::Failed };
        Rejection::LoopLimit { .. } => Rejection::LoopLimit { limit: "handoffs_max", value: 16, hops: vec![Hop {
            handoff: message(), sender: agent("alice"), receiver: agent("bob"), epoch: 2 }] };
        Rejection::ChainLimit { .. } => Rejection::ChainLimit {
            limit: "handoffs_per_pair_max", value: 4, agents: vec![agent("alice"), agent("bob"), agent("alice")] };
        Rejection::NotDelegator => Rejection::NotDelegator;
        Rejection::LoanFixed => Rejection::LoanFixed;
        Rejection::NotLent { .. } => Rejection::NotLent { handoff: message() };
        Rejection::NotAsked => Rejection::NotAsked;
        Rejection::InputTaken => Rejection::InputTaken;
        Rejection::InputExpired { .. } => Rejection::InputExpired { state: PromptState::Expired };
        Rejection::TermDiffers { .. } => Rejection::TermDiffers { violation: violations().remove(0) };
        Rejection::TaskExists => Rejection::TaskExists;
        Rejection::TaskFinal { .. } => Rejection::TaskFinal { status: TaskStatus::Completed };
        Rejection::DigestMismatch { .. } => Rejection::DigestMismatch { expected: [7; 32] };
        Rejection::NoCandidate => Rejection::NoCandidate;
    })
}

fn routing_rejections() -> Vec<routing::Rejection> {
    use routing::Rejection;
    let (node, choice) = (NodeId::parse("checker").unwrap(), routing::TurnId(message()));
    let graph = GraphId::parse("search").unwrap();
    samples!(Rejection {
        Rejection::GraphUnknown { .. } => Rejection::GraphUnknown { graph: graph.clone() };
        Rejection::RunUnknown => Rejection::RunUnknown;
        Rejection::RunExists => Rejection::RunExists;
        Rejection::RunFinal { .. } => Rejection::RunFinal { state: routing::RunState::Completed };
        Rejection::TaskUnknown { .. } => Rejection::TaskUnknown { task: task() };
        Rejection::TaskFinal { .. } => Rejection::TaskFinal { task: task(), status: TaskStatus::Completed };
        Rejection::NotOwner { .. } => Rejection::NotOwner { task: task() };
        Rejection::NotStarter => Rejection::NotStarter;
        Rejection::NodeOfAnother { .. } => Rejection::NodeOfAnother { node: node.clone(), by: "bob".into() };
        Rejection::NodeNotActive { .. } => Rejection::NodeNotActive {
            node: "checker".into(), state: "DONE", active: vec!["searcher".into()] };
        Rejection::TurnIdReused { .. } => Rejection::TurnIdReused { turn: choice };
        Rejection::TooManyTurns => Rejection::TooManyTurns;
        Rejection::ChoiceMismatch { .. } => Rejection::ChoiceMismatch {
            choice, problem: "the choice is for another receiver" };
    })
}

fn thread_rejections() -> Vec<threads::Rejection> {
    use threads::Rejection;
    let spec = || SpecId::parse("writer").unwrap();
    let run = threads::ThreadRunId(message());
    samples!(Rejection {
        Rejection::ThreadUnknown => Rejection::ThreadUnknown;
        Rejection::ThreadExists => Rejection::ThreadExists;
        Rejection::TooManyRevisions { .. } => Rejection::TooManyRevisions { spec: spec() };
        Rejection::ResolveFailed { .. } => Rejection::ResolveFailed { spec: spec(), why: threads::Unresolved::NoModel };
        Rejection::PluginMissing { .. } => Rejection::PluginMissing { spec: spec(), list: "hook_filter" };
        Rejection::ActionIdReused { .. } => Rejection::ActionIdReused { action: threads::ActionId(message()) };
        Rejection::RunOpen { .. } => Rejection::RunOpen { run, until: Timestamp::default() };
        Rejection::RunEnded { .. } => Rejection::RunEnded { run };
        Rejection::WrongStep { .. } => Rejection::WrongStep { claimed: 7, current: 2 };
        Rejection::TaskUnknown { .. } => Rejection::TaskUnknown { task: task() };
        Rejection::NotOwner { .. } => Rejection::NotOwner { task: task() };
    })
}

fn negotiation_rejections() -> Vec<negotiation::Rejection> {
    use negotiation::Rejection as R;
    samples!(R {
        R::Unknown => R::Unknown;
        R::Exists => R::Exists;
        R::Fields { .. } => R::Fields { violations: violations() };
        R::TooManyAsked { .. } => R::TooManyAsked { found: 1001, most: 1000 };
        R::NotAsked { .. } => R::NotAsked { problem: "only an agent that was asked may offer" };
        R::Closed { .. } => R::Closed { state: negotiation::State::Settled };
        R::NotStanding { .. } => R::NotStanding { problem: "the bidder's offer stands, and the requester is on turn" };
        R::OfferUnknown { .. } => R::OfferUnknown { offer: message() };
        R::RoundLimit { .. } => R::RoundLimit { round: 4 };
    })
}

fn broker_errors() -> Vec<BrokerError> {
    let key_id = || "k1".to_owned();
    samples!(BrokerError {
        BrokerError::Fields { .. } => BrokerError::Fields { violations: violations() };
        BrokerError::NotAdmitted(_) => BrokerError::NotAdmitted(Rejection::TaskUnknown.into());
        BrokerError::Context(_) => BrokerError::Context(ContextRejection::VersionUnknown {
            task: TaskId::parse("crash-7").unwrap(),
            what: "version 9 of its context".into(),
        });
        BrokerError::SectionSecret { .. } => BrokerError::SectionSecret { caller: "operator ops".into() };
        BrokerError::GraphUnknown { .. } => BrokerError::GraphUnknown { graph: "search".into() };
        BrokerError::BlobUnknown { .. } => BrokerError::BlobUnknown { blob: "9f86".into() };
        BrokerError::UploadUnknown { .. } => BrokerError::UploadUnknown { blob: "9f86".into() };
        BrokerError::BlobIncomplete { .. } => BrokerError::BlobIncomplete { blob: "9f86".into() };
        BrokerError::BlobDigestMismatch { .. } => BrokerError::BlobDigestMismatch { found: "60303ae2".into() };
        BrokerError::BlobDamaged { .. } => BrokerError::BlobDamaged { blob: "ab".repeat(32) };
        BrokerError::BlobOutOfRange { .. } => BrokerError::BlobOutOfRange { committed: 1_048_576 };
        BrokerError::BlobQuota { .. } => BrokerError::BlobQuota {
            what: "unfinished uploads of an agent", limit: 64 };
        BrokerError::BlobHolderClosed { .. } => BrokerError::BlobHolderClosed { workspace: "task:crash-7".into() };
        BrokerError::SchemaUnknown { .. } => BrokerError::SchemaUnknown {
            schema: "log".into(), version: "1".into(), violations: Vec::new() };
        BrokerError::SchemaNameUnknown { .. } => BrokerError::SchemaNameUnknown { schema: "log".into() };
        BrokerError::SchemaExists { .. } => BrokerError::SchemaExists { schema: "log".into(), version: "1".into() };
        BrokerError::SchemaRejected { .. } => BrokerError::SchemaRejected {
            problem: "has a $ref to \"https://example.com/log\", which is no part of it".into() };
        BrokerError::FilterNotApplicable { .. } => BrokerError::FilterNotApplicable {
            section: "history_log".into(), problem: "\"/1/role\" must be system, user, assistant or tool".into() };
        BrokerError::NameRetired { .. } => BrokerError::NameRetired {
            name: "graph:search".into(), owner: "alice".into() };
        BrokerError::ContextSchemaViolation { .. } => BrokerError::ContextSchemaViolation { violations: violations() };
        BrokerError::PlanUnknown { .. } => BrokerError::PlanUnknown { plan: "q3".into() };
        BrokerError::PlanInvalid { .. } => BrokerError::PlanInvalid { violations: vec![FieldViolation {
            path: "plan.subtasks".into(), problem: "EMPTY: the plan has no subtask".into() }] };
        BrokerError::RunUnknown { .. } => BrokerError::RunUnknown { run: message().to_string() };
        BrokerError::SpecUnknown { .. } => BrokerError::SpecUnknown {
            kind: "agent", spec: "writer".into(), revision: 3 };
        BrokerError::ThreadUnknown { .. } => BrokerError::ThreadUnknown { thread: "support".into() };
        BrokerError::GraphInvalid { .. } => BrokerError::GraphInvalid { violations: vec![FieldViolation {
            path: "graph.nodes".into(), problem: "EMPTY: the graph has no node".into() }] };
        BrokerError::SenderMismatch { .. } => BrokerError::SenderMismatch { sender: agent("alice"), agent: agent("bob") };
        BrokerError::SenderNoAgent { .. } => BrokerError::SenderNoAgent { caller: "operator ops".into() };
        BrokerError::AgentUnknown { .. } => BrokerError::AgentUnknown { agent: "bob".into() };
        BrokerError::AgentBusy { .. } => BrokerError::AgentBusy { agent: agent("bob"), tasks: 2, offers: 1 };
        BrokerError::AgentExists { .. } => BrokerError::AgentExists { agent: agent("bob") };
        BrokerError::InvitationInvalid => BrokerError::InvitationInvalid;
        BrokerError::KeyTaken { .. } => BrokerError::KeyTaken { key_id: key_id() };
        BrokerError::AgentKeyUnknown { .. } => BrokerError::AgentKeyUnknown { agent: agent("bob"), key_id: key_id() };
        BrokerError::KeyExists { .. } => BrokerError::KeyExists { agent: agent("bob"), key_id: key_id() };
        BrokerError::KeyRevoked { .. } => BrokerError::KeyRevoked { key_id: key_id() };
        BrokerError::KeyWeak { .. } => BrokerError::KeyWeak {
            key_id: key_id(), problem: crate::envelope::keys::PublicKeyError::Weak.to_string() };
        BrokerError::AgentGone { .. } => BrokerError::AgentGone { agent: "carol".into() };
        BrokerError::CoordinatorKey { .. } => BrokerError::CoordinatorKey { problem: "key coordinator-1 is revoked".into() };
        BrokerError::TaskUnknown { .. } => BrokerError::TaskUnknown { task: "crash-7".into() };
        BrokerError::HandoffUnknown { .. } => BrokerError::HandoffUnknown { handoff: message().to_string() };
        BrokerError::WorkspaceUnknown { .. } => BrokerError::WorkspaceUnknown { workspace: "task:crash-7".into() };
        BrokerError::NegotiationUnknown { .. } => BrokerError::NegotiationUnknown { negotiation: message().to_string() };
        BrokerError::DeliveryUnknown { .. } => BrokerError::DeliveryUnknown { delivery: "17-1".into() };
        BrokerError::DeadLetterUnknown { .. } => BrokerError::DeadLetterUnknown { dead_letter: "17".into() };
        BrokerError::DeadLetterSettled { .. } => BrokerError::DeadLetterSettled { dead_letter: 17, state: "DISCARDED" };
        BrokerError::DeadLetterNotAMessage { .. } => BrokerError::DeadLetterNotAMessage { dead_letter: 17 };
        BrokerError::NothingMatches => BrokerError::NothingMatches;
        BrokerError::IdentityMissing => BrokerError::IdentityMissing;
        BrokerError::IdentityConflict { .. } => BrokerError::IdentityConflict {
            agent: agent("alice"), certified: agent("bob") };
        BrokerError::TokenInvalid => BrokerError::TokenInvalid;
        BrokerError::JwtInvalid { .. } => BrokerError::JwtInvalid { fault: TokenFault::Malformed },
            BrokerError::JwtInvalid { fault: TokenFault::KeyUnknown },
            BrokerError::JwtInvalid { fault: TokenFault::SignatureInvalid },
            BrokerError::JwtInvalid { fault: TokenFault::ClaimMissing("exp") },
            BrokerError::JwtInvalid { fault: TokenFault::AudienceWrong },
            BrokerError::JwtInvalid { fault: TokenFault::IssuerWrong },
            BrokerError::JwtInvalid { fault: TokenFault::Expired },
            BrokerError::JwtInvalid { fault: TokenFault::NotYetValid },
            BrokerError::JwtInvalid { fault: TokenFault::NameInvalid },
            BrokerError::JwtInvalid { fault: TokenFault::GroupsInvalid };
        BrokerError::ChallengeFailed => BrokerError::ChallengeFailed;
        // Its text is a decision of the policies, which `crates/broker/src/access.rs` tests.
        BrokerError::PermissionDenied(_) => ;
        BrokerError::AgentsOnly { .. } => BrokerError::AgentsOnly { caller: "operator ops".into() };
        BrokerError::PageTokenInvalid => BrokerError::PageTokenInvalid;
        BrokerError::Conflict => BrokerError::Conflict;
        BrokerError::EtagChanged => BrokerError::EtagChanged;
        BrokerError::TlsRequired => BrokerError::TlsRequired;
        BrokerError::LimitExceeded { .. } => BrokerError::LimitExceeded {
            what: "the receiver's mailbox is full", retry_after: Duration::from_secs(1) };
        BrokerError::ShuttingDown => BrokerError::ShuttingDown;
        BrokerError::IdentityEnded { .. } => BrokerError::IdentityEnded { why: crate::broker::Away::KeyRevoked };
        BrokerError::StoreUnavailable => BrokerError::StoreUnavailable;
        BrokerError::NotSupported { .. } => BrokerError::NotSupported { what: "TaskAccept" };
        BrokerError::Internal => BrokerError::Internal;
    })
}

fn policy_errors() -> Vec<PolicySourceError> {
    let path = || "/etc/baton/policy".into();
    let mut errors: Vec<PolicySourceError> = samples!(PolicyError {
        PolicyError::Read { .. } => PolicyError::Read { path: path(), problem: absent() };
        PolicyError::Empty { .. } => PolicyError::Empty { path: path() };
        PolicyError::Thread(_) => PolicyError::Thread(absent());
        PolicyError::Problems(_) => PolicyError::Problems(vec!["refunds.cedar:3: unexpected token".into()]);
    })
    .into_iter()
    .map(PolicySourceError::Policy)
    .collect();
    errors.extend(samples!(PolicySourceError {
        PolicySourceError::Policy(_) => ;
        PolicySourceError::TooOpen { .. } => PolicySourceError::TooOpen {
            what: "open enrollment", listen: "0.0.0.0:22866".parse().unwrap() };
        PolicySourceError::TooOpenInCluster { .. } => PolicySourceError::TooOpenInCluster {
            what: "open enrollment", listen: "0.0.0.0:22867".parse().unwrap(), address: "b1.internal:22867".into() };
    }));
    errors
}

fn case_errors() -> Vec<CaseError> {
    samples!(CaseError {
        CaseError::Principal(_) => CaseError::Principal("alice".into());
        CaseError::Resource(_) => CaseError::Resource("bob".into());
        CaseError::Action(_) => CaseError::Action("handoff".into());
        CaseError::AgentMissing => CaseError::AgentMissing;
        CaseError::NotInSchema(_) => CaseError::NotInSchema("handOff on broker".into());
    })
}

fn operator_keys_errors() -> Vec<OperatorKeysError> {
    samples!(OperatorKeysError {
        OperatorKeysError::NoKey => OperatorKeysError::NoKey;
        OperatorKeysError::Unusable { .. } => OperatorKeysError::Unusable {
            id: "ops-1".into(), problem: "its algorithm is not supported".into() };
    })
}

fn client_errors() -> Vec<ClientError> {
    let server = || "broker.example:22866".to_owned();
    let refused = |reason: &str| {
        ClientError::from(Refused {
            code: Code::ResourceExhausted,
            reason: reason.to_owned(),
            message: "the broker's message".to_owned(),
            metadata: Default::default(),
            violations: vec![("agent_id".to_owned(), "must not be empty".to_owned())],
            retry_after: Some(Duration::from_secs(1)),
        })
    };
    let address = tonic::transport::Endpoint::from_shared("http://[").unwrap_err();
    samples!(ClientError {
        ClientError::Certificate { .. } => ClientError::Certificate { path: "alice.pem".into(), source: absent() };
        ClientError::Ca { .. } => ClientError::Ca { path: "ca.pem".into(), source: absent() };
        ClientError::Address { .. } => ClientError::Address { server: "[".into(), source: address };
        ClientError::PlaintextAfar { .. } => ClientError::PlaintextAfar { server: "http://broker.example".into() };
        ClientError::File { .. } => ClientError::File { path: "crash.core".into(), source: absent() };
        ClientError::Token => ClientError::Token;
        ClientError::Unreachable { .. } => ClientError::Unreachable {
            server: server(), problem: "Connection refused (os error 111)".into() };
        ClientError::Untrusted { .. } => ClientError::Untrusted {
            server: server(), problem: "invalid peer certificate: UnknownIssuer".into() };
        ClientError::Untimely { .. } => ClientError::Untimely {
            server: server(), problem: "invalid peer certificate: certificate expired".into() };
        ClientError::Refused(_) => refused("LIMIT_EXCEEDED"), refused("IDENTITY_MISSING"), refused("TOKEN_INVALID"),
            refused("TIMESTAMP_OUTSIDE_WINDOW"), refused("TLS_REQUIRED"), refused("STALE_EPOCH"), refused("HANDOFF_STATE"),
            refused("RECEIVER_UNKNOWN"), refused("DEAD_LETTER_UNKNOWN"), refused("AGENT_BUSY");
        ClientError::Answer(_) => ClientError::Answer("it has no receipt".into());
        ClientError::Unverified { .. } => ClientError::Unverified {
            reason: "SIGNATURE_INVALID", problem: "the receipt is not signed by the broker".into() };
        ClientError::Settings(_) => ClientError::Settings(
            "the agent's id is set, but not its key: set both BATON_AGENT_ID and BATON_AGENT_KEY".into());
        ClientError::Key(_) => ClientError::Key(KeyFileError::NotAKey { path: "alice.pem".into() });
        ClientError::Section { .. } => ClientError::Section { name: "goals".into(), problem: "is not there".into() };
        ClientError::SessionEnded(_) => ClientError::SessionEnded("the broker is stopping".into());
    })
}

fn config_errors() -> Vec<ConfigError> {
    let path = || "baton.toml".into();
    let toml = "listen = 1".parse::<toml::Table>().unwrap().try_into::<Vec<u8>>().unwrap_err();
    samples!(ConfigError {
        ConfigError::Read { .. } => ConfigError::Read { path: path(), source: absent() };
        ConfigError::Parse { .. } => ConfigError::Parse { path: path(), source: Box::new(toml) };
        ConfigError::Environment { .. } => ConfigError::Environment {
            name: "BATON__LISTN".into(), problem: "unknown field `listn`".into() };
        ConfigError::Refused(_) => ConfigError::Refused(
            "delivery.ack_wait and session.heartbeat_interval must not be 0".into());
    })
}

fn key_file_errors() -> Vec<KeyFileError> {
    let path = || "alice.pem".into();
    samples!(KeyFileError {
        KeyFileError::Read { .. } => KeyFileError::Read { path: path(), source: absent() };
        KeyFileError::Write { .. } => KeyFileError::Write { path: path(), source: absent() };
        KeyFileError::Exists { .. } => KeyFileError::Exists { path: path() };
        KeyFileError::NotAKey { .. } => KeyFileError::NotAKey { path: path() };
    })
}

fn open_errors() -> Vec<OpenError> {
    let path = || "baton-data/store".into();
    samples!(OpenError {
        OpenError::InUse { .. } => OpenError::InUse { path: path(), pid: "4711".into() };
        OpenError::Format { .. } => OpenError::Format { path: path(), found: "baton 0".into() };
        OpenError::NotAStore { .. } => OpenError::NotAStore { path: path() };
        OpenError::Unfinished { .. } => OpenError::Unfinished { path: path() };
        OpenError::OfCluster { .. } => OpenError::OfCluster { path: path(), cluster: "0c".repeat(16) };
        OpenError::NotOfCluster { .. } => OpenError::NotOfCluster { path: path() };
        OpenError::Founding { .. } => OpenError::Founding { path: path() };
        OpenError::NotFlushed { .. } => OpenError::NotFlushed { path: path() };
        OpenError::OtherCluster { .. } => OpenError::OtherCluster {
            path: path(), found: "0c".repeat(16), cluster: "0d".repeat(16) };
        OpenError::Deposed { .. } => OpenError::Deposed { path: path() };
        OpenError::ReplicaFailed { .. } => OpenError::ReplicaFailed { path: path() };
        OpenError::Conversion { .. } => OpenError::Conversion {
            path: path(), from: 22, copy: "baton-data/store.before-format-23".into(), source: absent().into() };
        OpenError::LostWrites { .. } => OpenError::LostWrites {
            path: path(), log: "baton-data/store/wal/1".into(), end: 7, commit_mark: 9 };
        OpenError::Damaged { .. } => OpenError::Damaged { path: path(), problem: "a checksum differs".into() };
        OpenError::File { .. } => OpenError::File { path: path(), source: absent() };
        OpenError::Engine { .. } => OpenError::Engine { path: path(), source: absent().into() };
    })
}

fn folder_errors() -> Vec<FolderError> {
    samples!(FolderError {
        FolderError::File { .. } => FolderError::File { path: "baton-data".into(), source: absent() };
        FolderError::Shared { .. } => FolderError::Shared {
            path: "baton-data".into(), mode: 0o755, why: "it has no store and is not empty".into() };
        FolderError::StoreLost { .. } => FolderError::StoreLost { path: "baton-data".into(), found: "keys/broker.pem" };
        FolderError::Key(_) => FolderError::Key(KeyFileError::NotAKey { path: "baton-data/keys/broker.pem".into() });
        FolderError::Store(_) => FolderError::Store(OpenError::NotAStore { path: "baton-data/store".into() });
    })
}

fn tls_errors() -> Vec<TlsError> {
    let (path, certificate, key) = (|| "tls.pem".into(), || "server.pem".into(), || "server.key".into());
    samples!(TlsError {
        TlsError::Read { .. } => TlsError::Read { path: path(), problem: absent() };
        TlsError::NotPem { .. } => TlsError::NotPem { path: path(), problem: rustls_pki_types::pem::Error::NoItemsFound };
        TlsError::NoCertificate { .. } => TlsError::NoCertificate { path: path() };
        TlsError::NoKey { .. } => TlsError::NoKey { path: path() };
        TlsError::KeyMismatch { .. } => TlsError::KeyMismatch { certificate: certificate(), key: key() };
        TlsError::ClientCa { .. } => TlsError::ClientCa { path: path(), problem: "it has no certificate".into() };
        TlsError::Unusable { .. } => TlsError::Unusable {
            certificate: certificate(), key: key(),
            problem: rustls::Error::InvalidCertificate(rustls::CertificateError::BadEncoding) };
    })
}

fn development_ca_errors() -> Vec<DevelopmentCaError> {
    let path = || "baton-data/tls/ca.key".into();
    let unusable = |remedy| DevelopmentCaError::Unusable { problem: TlsError::NoKey { path: path() }, remedy };
    samples!(DevelopmentCaError {
        DevelopmentCaError::File { .. } => DevelopmentCaError::File {
            action: "read", path: path(), problem: absent() };
        DevelopmentCaError::Unusable { .. } => unusable(Remedy::NewCa), unusable(Remedy::NewServerCertificate);
        DevelopmentCaError::CaKey { .. } => DevelopmentCaError::CaKey {
            path: path(), problem: rcgen::Error::CouldNotParseKeyPair };
        DevelopmentCaError::Ca { .. } => DevelopmentCaError::Ca {
            path: "baton-data/tls/ca.pem".into(), problem: rustls::Error::InvalidCertificate(rustls::CertificateError::BadEncoding) };
        DevelopmentCaError::Exists { .. } => DevelopmentCaError::Exists {
            path: "baton-data/tls/server.pem".into(), remedy: "move it away" };
        DevelopmentCaError::Name { .. } => DevelopmentCaError::Name { name: "not a name".into() };
        DevelopmentCaError::Generation { .. } => DevelopmentCaError::Generation { problem: rcgen::Error::RingUnspecified };
    })
}

fn bind_errors() -> Vec<BindError> {
    let address = || "127.0.0.1:22866".parse().unwrap();
    samples!(BindError {
        BindError::PortInUse { .. } => BindError::PortInUse { address: address() };
        BindError::Other { .. } => BindError::Other {
            address: address(), problem: io::Error::new(io::ErrorKind::PermissionDenied, "Permission denied") };
    })
}

fn server_errors() -> Vec<ServerError> {
    let mut errors: Vec<ServerError> = Vec::new();
    errors.extend(folder_errors().into_iter().map(ServerError::Folder));
    errors.extend(tls_errors().into_iter().map(ServerError::Tls));
    errors.extend(development_ca_errors().into_iter().map(ServerError::DevelopmentCa));
    errors.extend(bind_errors().into_iter().map(ServerError::Bind));
    errors.extend(samples!(ServerError {
        ServerError::Folder(_) => ;
        ServerError::Bucket(_) => ServerError::Bucket(io::Error::new(io::ErrorKind::InvalidInput, "must name a bucket"));
        ServerError::Store(_) => ServerError::Store(OpenError::NotAStore { path: "baton-data/store".into() });
        ServerError::DevelopmentCa(_) => ;
        ServerError::Tls(_) => ;
        ServerError::OperatorKeys { .. } => ServerError::OperatorKeys {
            path: "operators.pem".into(), problem: OperatorKeysError::NoKey.to_string() };
        ServerError::Bind(_) => ;
        ServerError::MetricsListen { .. } => ServerError::MetricsListen {
            address: "127.0.0.1:22868".parse().unwrap(),
            problem: io::Error::new(io::ErrorKind::AddrInUse, "Address already in use") };
        ServerError::GatewayListen { .. } => ServerError::GatewayListen {
            address: "127.0.0.1:22869".parse().unwrap(),
            problem: io::Error::new(io::ErrorKind::AddrInUse, "Address already in use") };
        ServerError::Traces(_) => ServerError::Traces(crate::traces::StartError::Endpoint {
            named_by: "traces.endpoint", endpoint: "localhost:4317".to_owned() });
        ServerError::Start(_) => ServerError::Start(StartError::Store(BrokerError::Internal)),
            ServerError::Start(StartError::Thread(absent()));
        // Only a wrong schema in the program makes one.
        ServerError::Reflection(_) => ;
        ServerError::Engine => ServerError::Engine;
        ServerError::Cluster(_) =>
            ServerError::Cluster(ClusterError::Start(driver::StartError::Unsafe(vec!["fsync is off: set it to on".into()]))),
            ServerError::Cluster(ClusterError::Start(driver::StartError::NameInUse("b1".into()))),
            ServerError::Cluster(ClusterError::Ended(driver::Ended::Member(Ending::DiskFailed))),
            ServerError::Cluster(ClusterError::Ended(driver::Ended::Diverged(Divergence::WentBack { position: 9 })));
    }));
    errors
}
