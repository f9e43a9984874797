//! How data is printed: a table for people, JSON and YAML for programs.

use std::{
    fmt,
    io::{ErrorKind, IsTerminal as _, Write as _},
};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use prost::{Message, Name};
use serde_json::Value;

use super::{Failure, json};

/// Prints a line of data. When nobody reads any more (`baton … | head`), the command is done.
macro_rules! say {
    ($($text:tt)*) => { $crate::cli::output::write_line(format_args!($($text)*)) };
}

/// Prints a line for whoever may be reading. A broker goes on when nobody is.
macro_rules! announce {
    ($($text:tt)*) => { $crate::cli::output::try_write_line(format_args!($($text)*)) };
}

pub(super) fn write_line(text: fmt::Arguments<'_>) {
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("baton: failed to write to standard output: {error}");
            std::process::exit(1);
        }
    }
}

pub(super) fn try_write_line(text: fmt::Arguments<'_>) {
    // There is nobody to tell of a failure.
    drop(writeln!(std::io::stdout(), "{text}"));
}

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
            values.iter().for_each(|value| say!("{value}"));
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
                say!("{name:<14}{value}");
            }
            return Ok(());
        }
        self.value(&json::of(message)?)
    }

    /// A document.
    pub(super) fn value(self, value: &Value) -> Result<(), Failure> {
        match self.format {
            Format::Yaml => say!("{}", serde_yaml_ng::to_string(value).map_err(|e| Failure::failed(e.to_string()))?),
            Format::Jsonl => say!("{value}"),
            Format::Json | Format::Table => {
                say!("{}", serde_json::to_string_pretty(value).map_err(|e| Failure::failed(e.to_string()))?);
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
    say!("{table}");
}

/// An enum's name in the schema, without its prefix.
pub(super) fn short(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_owned()
}

/// A time as text, or nothing.
pub(super) fn time(time: Option<&prost_types::Timestamp>) -> String {
    time.map(ToString::to_string).unwrap_or_default()
}
