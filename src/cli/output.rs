//! How data is printed: a table for people, JSON and YAML for programs.
//!
//! Everything that the command line writes to stdout or stderr goes through this file, and through `harmless`. A reader
//! that goes away (`baton … | head`) ends a command without a word; for a broker or an agent it makes no difference.

use std::{
    borrow::Cow,
    fmt,
    io::{ErrorKind, IsTerminal as _, Write as _},
};

use clap::ValueEnum;
use prost::{Message, Name};
use serde_json::Value;

use super::{
    Failure, harmless, json,
    table::{self, Column},
};
use crate::ids::{IdSource as _, SystemIds};

/// Prints one line of data.
macro_rules! say {
    ($($text:tt)*) => { $crate::cli::output::write_line(format_args!($($text)*)) };
}

/// Prints several lines of data. A text of an agent in it must be a harmless line before: see `output::line`.
macro_rules! say_lines {
    ($($text:tt)*) => { $crate::cli::output::write_lines(format_args!($($text)*)) };
}

/// Prints lines that need no reader: a broker goes on when nothing reads its output.
macro_rules! announce {
    ($($text:tt)*) => { $crate::cli::output::try_write_lines(format_args!($($text)*)) };
}

/// Prints to stderr, as baton. Without a reader it is lost, and the command goes on.
macro_rules! tell {
    ($($text:tt)*) => { $crate::cli::output::tell(format_args!($($text)*)) };
}

pub(super) fn write_line(text: fmt::Arguments<'_>) {
    write(&harmless::line(&text.to_string()));
}

pub(super) fn write_lines(text: fmt::Arguments<'_>) {
    write(&harmless::lines(&text.to_string()));
}

fn write(text: &str) {
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            tell(format_args!("failed to write to standard output: {error}"));
            std::process::exit(1);
        }
    }
}

pub(super) fn try_write_lines(text: fmt::Arguments<'_>) {
    // There is nothing that a failure could be told to.
    drop(writeln!(std::io::stdout(), "{}", harmless::lines(&text.to_string())));
}

pub(super) fn tell(text: fmt::Arguments<'_>) {
    drop(writeln!(std::io::stderr(), "baton: {}", harmless::lines(&text.to_string())));
}

/// A text that an agent or a broker wrote, for a place in a text of several lines.
pub(super) fn line(text: &str) -> Cow<'_, str> {
    harmless::line(text)
}

/// A document on one line.
pub(super) fn say_json(value: &Value) {
    write(&harmless::json(&value.to_string()));
}

/// A text that is harmless already.
pub(super) fn say_text(text: &str) {
    write(text);
}

/// A text that is JSON already, of one line or several.
pub(super) fn say_json_text(text: &str) {
    write(&harmless::json(text));
}

/// How data is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people.
    Table,
    /// One document; of what comes one by one, a document a line.
    Json,
    /// One document a line.
    Jsonl,
    /// One document; of what comes one by one, a document each.
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
        columns: &[Column],
        entries: &[M],
        row: impl Fn(&M) -> Vec<String>,
    ) -> Result<(), Failure> {
        if self.format == Format::Table {
            table::print(columns, entries.iter().map(row));
            return Ok(());
        }
        let values = entries.iter().map(json::of).collect::<Result<Vec<_>, _>>()?;
        if self.format == Format::Jsonl {
            values.iter().for_each(say_json);
            return Ok(());
        }
        self.value(&Value::Array(values))
    }

    /// One thing: as lines of names and values, or whole.
    pub(super) fn one<M: Message + Name>(
        self,
        message: &M,
        lines: impl FnOnce(&M) -> Vec<(Cow<'static, str>, String)>,
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
            Format::Yaml => write(yaml(value)?.trim_end()),
            Format::Jsonl => say_json(value),
            Format::Json | Format::Table => {
                let text = serde_json::to_string_pretty(value).map_err(|error| Failure::failed(error.to_string()))?;
                say_json_text(&text);
            }
        }
        Ok(())
    }

    /// One of several documents that come one by one.
    pub(super) fn next(self, value: &Value) -> Result<(), Failure> {
        match self.format {
            Format::Yaml => write(&format!("---\n{}", yaml(value)?.trim_end())),
            Format::Json | Format::Jsonl | Format::Table => say_json(value),
        }
        Ok(())
    }

    /// Whether people read it.
    pub(super) fn is_table(self) -> bool {
        self.format == Format::Table
    }
}

/// YAML escapes nothing outside of quotes, and its writer sets quotes only where YAML itself needs them. A string with a
/// dangerous character is therefore written as a mark first, in whose place the string comes in quotes.
fn yaml(value: &Value) -> Result<String, Failure> {
    let mark = format!("baton{}", hex::encode(SystemIds.random()));
    let mut strings = Vec::new();
    let marked = with_marks(value, &mark, &mut strings);
    let text = serde_yaml_ng::to_string(&marked).map_err(|error| Failure::failed(error.to_string()))?;
    let with_string = |text: String, (number, string): (usize, &String)| {
        text.replace(&format!("{mark}x{number}x"), &harmless::yaml_string(string))
    };
    Ok(strings.iter().enumerate().fold(text, with_string))
}

fn with_marks(value: &Value, mark: &str, strings: &mut Vec<String>) -> Value {
    let mut marked = |text: &str| {
        if !harmless::is_dangerous_in_yaml(text) {
            return text.to_owned();
        }
        strings.push(text.to_owned());
        format!("{mark}x{}x", strings.len() - 1)
    };
    match value {
        Value::String(text) => Value::String(marked(text)),
        Value::Array(values) => values.iter().map(|value| with_marks(value, mark, strings)).collect(),
        Value::Object(fields) => {
            let names: Vec<String> = fields.keys().map(|name| marked(name)).collect();
            names.into_iter().zip(fields.values().map(|value| with_marks(value, mark, strings))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// How many to ask for next, where so many of at most `limit` are there; `None` if that is all. A page may have fewer than
/// were asked for, also where more follow.
pub(super) fn page_size(limit: u32, there: usize) -> Option<u32> {
    let missing = limit.saturating_sub(u32::try_from(there).unwrap_or(u32::MAX));
    (missing > 0).then_some(missing.min(1000))
}

/// An enum's name in the schema, without its prefix.
pub(super) fn short(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_owned()
}

/// A time to the second, like 2026-11-22T07:38:41Z, or nothing.
pub(super) fn time(time: Option<&prost_types::Timestamp>) -> String {
    time.map(|time| prost_types::Timestamp { nanos: 0, ..*time }.to_string()).unwrap_or_default()
}

/// A time to the millisecond, for steps that follow each other closely, or nothing.
pub(super) fn moment(time: Option<&prost_types::Timestamp>) -> String {
    let Some(time) = time else { return String::new() };
    let second = self::time(Some(time));
    format!("{}.{:03}Z", second.trim_end_matches('Z'), time.nanos / 1_000_000)
}

/// A time for a column of a table, in UTC: of today the time, else the date.
pub(super) fn brief(time: Option<&prost_types::Timestamp>, now: crate::time::Timestamp) -> String {
    let (seconds, _) = now.to_parts();
    let now = self::time(Some(&prost_types::Timestamp { seconds, nanos: 0 }));
    match (self::time(time).split_once('T'), now.split_once('T')) {
        (Some((date, moment)), Some((today, _))) if date == today => moment.to_owned(),
        (Some((date, _)), _) => date.to_owned(),
        (None, _) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::time::Timestamp;

    #[test]
    fn yaml_keeps_its_meaning_and_no_terminal_obeys_it() {
        let nasty = "a\u{1b}[2J\r\nforged: yes\u{85}\u{9b}\u{202e}\"\\ \u{e0041}";
        let value = json!({ nasty: [nasty, "plain\ntext"], "n": 1, "empty": [], "z": null });
        let text = yaml(&value).unwrap();
        assert_eq!(harmless::lines(&text), text);
        assert_eq!(serde_yaml_ng::from_str::<Value>(&text).unwrap(), value, "{text}");
    }

    #[test]
    fn times_have_no_nanoseconds() {
        let at = prost_types::Timestamp { seconds: 1_800_000_000, nanos: 123_456_789 };
        assert_eq!(time(Some(&at)), "2027-01-15T08:00:00Z");
        assert_eq!(moment(Some(&at)), "2027-01-15T08:00:00.123Z");
        let now = |seconds| Timestamp::from_parts(seconds, 0).unwrap();
        assert_eq!(brief(Some(&at), now(1_800_000_100)), "08:00:00Z");
        assert_eq!(brief(Some(&at), now(1_800_100_000)), "2027-01-15");
        assert_eq!((time(None), moment(None), brief(None, now(0))), Default::default());
    }
}
