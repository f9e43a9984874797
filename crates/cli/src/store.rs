//! `baton store`: verifies a store that no broker has open, dumps its readable records, and makes an empty one.

use std::{collections::BTreeMap, path::PathBuf};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    Failure, json,
    output::{Format, Output},
    progress,
};
use baton_broker_core::{
    DEFAULT_DATA,
    records::{self, AuditHead},
};
use baton_store::{EmbeddedStore, Found, Record, Table, disk, read_all};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton store check --data baton-data
  baton store export --data baton-data > records.jsonl")]
pub(super) enum StoreCommand {
    /// Read and check each record of a store. Changes nothing. Exit code 6 if a record is damaged.
    #[command(after_help = "Examples:
  baton store check
  baton store check --data /var/lib/baton")]
    Check(StoreArgs),
    /// Write each readable record of a store to stdout, as JSON lines. Changes nothing. Exit code 6 if a record is
    /// damaged.
    #[command(after_help = "Examples:
  baton store export --data /var/lib/baton > records.jsonl")]
    Export(StoreArgs),
    /// Make an empty store in a data folder that has lost its own. The broker keeps its keys and the operator's token, and
    /// loses all tasks, messages and blobs. Changes nothing if there is a store.
    #[command(after_help = "Examples:
  baton store create --data /var/lib/baton

A broker does not start in a data folder with its keys and without a store (exit code 6).")]
    Create(StoreArgs),
}

#[derive(Debug, Args)]
pub(super) struct StoreArgs {
    /// The broker's data folder. Stop the broker first.
    #[arg(long, env = "BATON_DATA", default_value = DEFAULT_DATA, value_name = "FOLDER")]
    data: PathBuf,
}

pub(super) fn run(command: StoreCommand, output: &Output) -> Result<(), Failure> {
    match command {
        StoreCommand::Check(args) => check(&args, output),
        StoreCommand::Export(args) => export(&args),
        StoreCommand::Create(args) => create(&args),
    }
}

fn create(args: &StoreArgs) -> Result<(), Failure> {
    let path = args.data.join("store");
    let is_there = match std::fs::read_dir(&path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return Err(Failure::file(&path, error)),
    };
    if is_there {
        return Err(Failure::failed(format!("{} has a store, or other files; nothing was changed", path.display())));
    }
    disk::keep_to_owner();
    drop(EmbeddedStore::open(&path)?);
    say!("made an empty store in {}", path.display());
    Ok(())
}

#[derive(Debug, Default)]
struct Count {
    records: u64,
    damaged: u64,
}

fn check(args: &StoreArgs, output: &Output) -> Result<(), Failure> {
    let mut counts: BTreeMap<&str, Count> = Table::ALL.iter().map(|table| (table.name(), Count::default())).collect();
    let mut damages = Vec::new();
    let bar = progress::counting("records");
    read_all(&args.data.join("store"), |found| match found {
        Found::Record { table, key, record } => {
            let count = counts.entry(table.name()).or_default();
            count.records += 1;
            bar.inc(1);
            if let Err(problem) = records::check(table, &key, &record.value) {
                count.damaged += 1;
                damages.push(damage(&args.data, Some(table), &key, &problem.to_string()));
            }
        }
        Found::Damaged { path, table, key, problem } => {
            counts.entry(table.map_or("log", Table::name)).or_default().damaged += 1;
            damages.push(damage(&path, table, &key, &problem));
        }
    })?;
    bar.finish_and_clear();
    if output.is_table() {
        say!("{:<22}{:>10}{:>10}", "TABLE", "RECORDS", "DAMAGED");
        counts.iter().for_each(|(table, count)| say!("{table:<22}{:>10}{:>10}", count.records, count.damaged));
        damages.iter().for_each(|damage| say!("damaged: {}", line(damage)));
    } else {
        let tables = counts
            .iter()
            .map(|(table, count)| json!({"table": table, "records": count.records, "damaged": count.damaged}));
        output.value(&json!({"tables": tables.collect::<Vec<_>>(), "damages": damages}))?;
    }
    verdict(damages.len())
}

fn export(args: &StoreArgs) -> Result<(), Failure> {
    let mut damaged = 0;
    let out = Output::new(Some(Format::Jsonl));
    let mut failed = None;
    let bar = progress::beside_output("records");
    read_all(&args.data.join("store"), |found| match found {
        Found::Record { table, key, record } => {
            let shown = json!({
                "table": table.name(), "key": hex::encode(&key), "revision": record.revision,
                "value": readable(table, &key, &record), "bytes": BASE64.encode(&record.value),
            });
            bar.inc(1);
            let written = out.value(&shown);
            // Keeps the first failure and reads on, so that later damage is reported too.
            failed = failed.take().or(written.err());
            if let Err(problem) = records::check(table, &key, &record.value) {
                damaged += 1;
                let damage = damage(&args.data, Some(table), &key, &problem.to_string());
                bar.suspend(|| tell!("damaged: {}", line(&damage)));
            }
        }
        Found::Damaged { path, table, key, problem } => {
            damaged += 1;
            bar.suspend(|| tell!("damaged: {}", line(&damage(&path, table, &key, &problem))));
        }
    })?;
    bar.finish_and_clear();
    match failed {
        Some(failure) => Err(failure),
        None => verdict(damaged),
    }
}

fn verdict(damaged: usize) -> Result<(), Failure> {
    match damaged {
        0 => Ok(()),
        _ => {
            Err(Failure::damaged(format!("the store has {damaged} damaged records or files; restore it from a backup")))
        }
    }
}

fn damage(path: &std::path::Path, table: Option<Table>, key: &Bytes, problem: &str) -> Value {
    json!({
        "path": path.display().to_string(), "table": table.map(Table::name), "key": hex::encode(key),
        "problem": problem,
    })
}

fn line(damage: &Value) -> String {
    let text = |name: &str| damage[name].as_str().unwrap_or("-").to_owned();
    format!("{}: table {}, key {:?}: {}", text("path"), text("table"), text("key"), text("problem"))
}

/// The value as JSON; `None` if its table has no message type.
fn readable(table: Table, key: &[u8], record: &Record) -> Option<Value> {
    let value = match table {
        Table::Audit => AuditHead::decode_entry(&record.value).ok()?.1,
        _ => record.value.clone(),
    };
    let name = match table {
        // This table has records of two types, and only decoding tells them apart.
        Table::Meta => match AuditHead::decode(&value) {
            Ok(_) => "baton.storage.v1.AuditHeadRecord",
            Err(_) => "baton.storage.v1.SequenceRecord",
        },
        Table::Agents => "baton.storage.v1.AgentRecord",
        Table::AgentUsage => "baton.storage.v1.AgentUsageRecord",
        Table::AgentStatistics => "baton.storage.v1.AgentStatisticsRecord",
        Table::Tasks => "baton.storage.v1.TaskRecord",
        Table::Handoffs => "baton.storage.v1.HandoffRecord",
        Table::Negotiations => "baton.storage.v1.NegotiationRecord",
        Table::NegotiationBids => "baton.storage.v1.BidsRecord",
        Table::Messages => "baton.storage.v1.MessageRecord",
        Table::Mailbox => "baton.storage.v1.LetterRecord",
        Table::DeadLetters => "baton.storage.v1.DeadLetterRecord",
        Table::Envelopes => "baton.v1.Envelope",
        Table::Custody => "baton.storage.v1.LogPageRecord",
        Table::Invitations => "baton.storage.v1.InvitationRecord",
        Table::Audit => "baton.v1.AuditEntry",
        Table::SharedEnvelopes => "baton.storage.v1.SharedEnvelopeRecord",
        Table::RemovedTasks => "baton.storage.v1.RemovedTaskRecord",
        Table::Workspaces => "baton.storage.v1.WorkspaceRecord",
        Table::ContextVersions => "baton.storage.v1.ContextVersionRecord",
        Table::ContextSections => "baton.storage.v1.ContextSectionRecord",
        Table::WorkspaceEntries => "baton.storage.v1.WorkspaceEntryRecord",
        Table::Graphs => "baton.storage.v1.GraphRecord",
        Table::Runs => "baton.storage.v1.RunRecord",
        Table::RunLog => "baton.v1.RunEntry",
        Table::RunTurns => "baton.storage.v1.RunTurnRecord",
        Table::Schemas => "baton.storage.v1.SchemaRecord",
        Table::Specs | Table::SpecRevisions => "baton.storage.v1.SpecRecord",
        Table::Threads => "baton.storage.v1.ThreadRecord",
        Table::ThreadLog => "baton.v1.ThreadEntry",
        Table::Plans => "baton.storage.v1.PlanRecord",
        Table::PlanSpecs => "baton.storage.v1.PlanSpecRecord",
        Table::PlanLog => "baton.v1.PlanEntry",
        // The other rows are numbers, whose keys have one byte more.
        Table::GraphRevisions => "baton.v1.Graph",
        // The first byte of a key names the kind of the record.
        Table::Registrations => match key.first() {
            Some(b'v') => "baton.storage.v1.RemovedSchemaRecord",
            Some(b'c') => "baton.storage.v1.RegistrationCountRecord",
            _ => "baton.storage.v1.RegistrationRecord",
        },
        Table::Outbox | Table::Listings | Table::Blobs | Table::Timers | Table::Expirations => {
            return None;
        }
    };
    let mut shown = json::of_bytes(name, &value).ok()?;
    show_encoded(&mut shown);
    Some(shown)
}

/// Replaces encoded custody entries and envelopes in a record by their JSON.
fn show_encoded(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(show_encoded),
        Value::Object(fields) => {
            for (field, value) in fields {
                let name = match field.as_str() {
                    "entry" => "baton.v1.CustodyEntry",
                    "envelope" => "baton.v1.Envelope",
                    _ => {
                        show_encoded(value);
                        continue;
                    }
                };
                let encoded = value.as_str().and_then(|text| BASE64.decode(text).ok());
                if let Some(shown) = encoded.and_then(|encoded| json::of_bytes(name, &encoded).ok()) {
                    *value = shown;
                }
            }
        }
        _ => {}
    }
}
