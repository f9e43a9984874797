//! How data is printed: a table for people, JSON and YAML for programs.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use prost::{Message, Name};
use serde_json::Value;

use super::{Failure, json};

/// How data is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people.
    Table,
    /// One document.
    Json,
    /// One document a line.
    Jsonl,
    /// One document.
    Yaml,
}

/// Where data is printed, and how.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    format: Format,
}

impl Output {
    pub(super) fn new(wanted: Option<Format>) -> Self {
        let default = if std::io::stdout().is_terminal() { Format::Table } else { Format::Json };
        Self { format: wanted.unwrap_or(default) }
    }

    /// A list: as a table of these columns, or whole.
    pub(super) fn list<M: Message + Name>(
        self,
        columns: &[&str],
        entries: &[M],
        row: impl Fn(&M) -> Vec<String>,
    ) -> Result<(), Failure> {
        if self.format == Format::Table {
            print_table(columns, entries.iter().map(row));
            return Ok(());
        }
        let values = entries.iter().map(json::of).collect::<Result<Vec<_>, _>>()?;
        if self.format == Format::Jsonl {
            values.iter().for_each(|value| println!("{value}"));
            return Ok(());
        }
        self.value(&Value::Array(values))
    }

    /// One thing: as lines of names and values, or whole.
    pub(super) fn one<M: Message + Name>(
        self,
        message: &M,
        lines: impl FnOnce(&M) -> Vec<(&'static str, String)>,
    ) -> Result<(), Failure> {
        if self.format == Format::Table {
            for (name, value) in lines(message) {
                println!("{name:<14}{value}");
            }
            return Ok(());
        }
        self.value(&json::of(message)?)
    }

    /// A document.
    pub(super) fn value(self, value: &Value) -> Result<(), Failure> {
        match self.format {
            Format::Yaml => print!("{}", serde_yaml_ng::to_string(value).map_err(|e| Failure::failed(e.to_string()))?),
            Format::Jsonl => println!("{value}"),
            Format::Json | Format::Table => {
                println!("{}", serde_json::to_string_pretty(value).map_err(|e| Failure::failed(e.to_string()))?);
            }
        }
        Ok(())
    }

    /// Whether people read it.
    pub(super) fn is_table(self) -> bool {
        self.format == Format::Table
    }
}

pub(super) fn print_table(columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_header(columns);
    for row in rows {
        table.add_row(row);
    }
    println!("{table}");
}

/// An enum's name in the schema, without its prefix.
pub(super) fn short(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_owned()
}

/// A time as text, or nothing.
pub(super) fn time(time: Option<&prost_types::Timestamp>) -> String {
    time.map(ToString::to_string).unwrap_or_default()
}
