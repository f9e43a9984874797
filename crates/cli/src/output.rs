//! Prints data: a table for people, JSON and YAML for programs.
//!
//! All output of the command line to stdout and stderr passes through this file, and through `escape`. A reader that
//! goes away (`baton … | head`) ends a command silently; a broker or an agent continues.

use std::{
    borrow::Cow,
    fmt,
    io::{ErrorKind, IsTerminal as _, Write as _},
};

use clap::ValueEnum;
use prost::{Message, Name};
use serde_json::Value;

use super::{
    Failure, json,
    table::{self, Column},
};
use baton_client::ids::{IdSource as _, SystemIds};
use baton_protocol::escape;

/// Prints one line of data.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::output::write_line(format_args!($($text)*)) };
}

/// Prints several lines of data. A text from an agent must be escaped by `output::line` first.
#[macro_export]
macro_rules! say_lines {
    ($($text:tt)*) => { $crate::output::write_lines(format_args!($($text)*)) };
}

/// Prints lines without needing a reader: a broker continues after a failed write.
#[macro_export]
macro_rules! announce {
    ($($text:tt)*) => { $crate::output::try_write_lines(format_args!($($text)*)) };
}

/// Prints to stderr with the prefix `baton: `. A failed write is ignored, and the command continues.
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => { $crate::output::tell(format_args!($($text)*)) };
}

#[doc(hidden)]
pub fn write_line(text: fmt::Arguments<'_>) {
    write(&escape::line(&text.to_string()));
}

#[doc(hidden)]
pub fn write_lines(text: fmt::Arguments<'_>) {
    write(&escape::lines(&text.to_string()));
}

fn write(text: &str) {
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => {}
        // The reader has gone, as in `baton … | head`: not an error.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            tell(format_args!("failed to write to standard output: {error}"));
            std::process::exit(1);
        }
    }
}

#[doc(hidden)]
pub fn try_write_lines(text: fmt::Arguments<'_>) {
    // A failed write cannot be reported anywhere.
    drop(writeln!(std::io::stdout(), "{}", escape::lines(&text.to_string())));
}

#[doc(hidden)]
pub fn tell(text: fmt::Arguments<'_>) {
    drop(writeln!(std::io::stderr(), "baton: {}", escape::lines(&text.to_string())));
}

/// Escapes a text from an agent or a broker, as one line of a text of several lines.
pub(super) fn line(text: &str) -> Cow<'_, str> {
    escape::line(text)
}

/// Prints a document on one line.
pub(super) fn say_json(value: &Value) {
    write(&escape::json(&value.to_string()));
}

/// Sends control sequences of this program to the terminal, with lines that are escaped. A failed write is ignored: the
/// terminal has gone.
pub(super) fn control(text: &str) {
    let mut terminal = std::io::stdout().lock();
    drop(terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush()));
}

/// Prints an escaped text.
pub(super) fn say_text(text: &str) {
    write(text);
}

/// Prints JSON text of one line or several.
pub(super) fn say_json_text(text: &str) {
    write(&escape::json(text));
}

/// The format of printed data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Columns, or lines of names and values, for people.
    Table,
    /// One JSON document. Commands that stream print one document per line.
    Json,
    /// One JSON document per line.
    Jsonl,
    /// One YAML document. Commands that stream print one document per entry.
    Yaml,
    /// A diagram in the language of Graphviz. Only of commands that show a graph.
    Dot,
    /// A diagram in the language of Mermaid. Only of commands that show a graph.
    Mermaid,
}

impl Format {
    /// The name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Json => "json",
            Self::Jsonl => "jsonl",
            Self::Yaml => "yaml",
            Self::Dot => "dot",
            Self::Mermaid => "mermaid",
        }
    }
}

/// The language of a diagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Diagram {
    Dot,
    Mermaid,
}

/// The failure of a command that prints no diagram.
fn no_diagram() -> Failure {
    Failure::usage("this command prints no diagram; the formats are table, json, jsonl and yaml".to_owned())
}

/// The output format of a command.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    format: Format,
}

impl Output {
    /// `wanted`: the format that the flag names.
    pub(crate) fn new(wanted: Option<Format>) -> Self {
        // A pipe gets JSON, so that scripts need no flag.
        let default = if std::io::stdout().is_terminal() { Format::Table } else { Format::Json };
        Self { format: wanted.unwrap_or(default) }
    }

    /// Prints a list: as a table of these columns, or as documents with all fields.
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
        self.documents(entries)
    }

    /// Prints a list with further lines below each row of the table. The documents are those of [`Self::list`].
    pub(super) fn list_with<M: Message + Name>(
        self,
        columns: &[Column],
        entries: &[M],
        row: impl Fn(&M) -> Vec<String>,
        below: impl Fn(&M) -> Vec<String>,
    ) -> Result<(), Failure> {
        if self.format == Format::Table {
            table::print_with(columns, entries.iter().map(row), |at| below(&entries[at]));
            return Ok(());
        }
        self.documents(entries)
    }

    fn documents<M: Message + Name>(self, entries: &[M]) -> Result<(), Failure> {
        let values = entries.iter().map(json::of).collect::<Result<Vec<_>, _>>()?;
        if self.format == Format::Jsonl {
            values.iter().for_each(say_json);
            return Ok(());
        }
        self.value(&Value::Array(values))
    }

    /// Prints one message: as lines of names and values, or as a document with all fields.
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

    /// Prints a document in the chosen format.
    pub fn value(self, value: &Value) -> Result<(), Failure> {
        match self.format {
            Format::Dot | Format::Mermaid => return Err(no_diagram()),
            Format::Yaml => write(yaml(value)?.trim_end()),
            Format::Jsonl => say_json(value),
            // A command without columns prints a document in the table format too.
            Format::Json | Format::Table => {
                let text = serde_json::to_string_pretty(value).map_err(|error| Failure::failed(error.to_string()))?;
                say_json_text(&text);
            }
        }
        Ok(())
    }

    /// Prints one document of a stream.
    pub(super) fn next(self, value: &Value) -> Result<(), Failure> {
        match self.format {
            Format::Dot | Format::Mermaid => return Err(no_diagram()),
            Format::Yaml => write(&format!("---\n{}", yaml(value)?.trim_end())),
            Format::Json | Format::Jsonl | Format::Table => say_json(value),
        }
        Ok(())
    }

    /// The language of the diagram that the caller asks for. `None`: another format.
    pub(super) fn diagram(self) -> Option<Diagram> {
        match self.format {
            Format::Dot => Some(Diagram::Dot),
            Format::Mermaid => Some(Diagram::Mermaid),
            Format::Table | Format::Json | Format::Jsonl | Format::Yaml => None,
        }
    }

    /// Whether the format is the table for people.
    pub fn is_table(self) -> bool {
        self.format == Format::Table
    }
}

/// YAML escapes only inside quotes, and the YAML writer quotes only where YAML itself requires it. A string with a
/// dangerous character is therefore written as a placeholder first, which is then replaced by the quoted string.
fn yaml(value: &Value) -> Result<String, Failure> {
    // Random, so that a text of an agent cannot contain the mark and be replaced with another text.
    let mark = format!("baton{}", hex::encode(SystemIds.random()));
    let mut strings = Vec::new();
    let marked = with_marks(value, &mark, &mut strings);
    let text = serde_yaml_ng::to_string(&marked).map_err(|error| Failure::failed(error.to_string()))?;
    let with_string = |text: String, (number, string): (usize, &String)| {
        text.replace(&format!("{mark}x{number}x"), &escape::yaml_string(string))
    };
    Ok(strings.iter().enumerate().fold(text, with_string))
}

fn with_marks(value: &Value, mark: &str, strings: &mut Vec<String>) -> Value {
    let mut marked = |text: &str| {
        if !escape::is_dangerous_in_yaml(text) {
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

/// Gets pages until there are `limit` items or no further page. `page` gets a size and a token, and returns the items
/// of the page with the token of the next one.
pub(super) async fn pages<T>(
    limit: u32,
    mut page: impl AsyncFnMut(u32, String) -> Result<(Vec<T>, String), Failure>,
) -> Result<Vec<T>, Failure> {
    let (mut items, mut page_token) = (Vec::new(), String::new());
    while let Some(size) = page_size(limit, items.len()) {
        let (more, next) = page(size, page_token).await?;
        items.extend(more);
        page_token = next;
        if page_token.is_empty() {
            break;
        }
    }
    Ok(items)
}

/// The size of the next page when `there` of at most `limit` entries have been read; `None` if `limit` is reached. A
/// page may have fewer entries than requested although more follow.
pub(super) fn page_size(limit: u32, there: usize) -> Option<u32> {
    let missing = limit.saturating_sub(u32::try_from(there).unwrap_or(u32::MAX));
    // 1000 is the broker's maximum for one page.
    (missing > 0).then_some(missing.min(1000))
}

/// An enum's name in the schema, without its prefix.
pub(super) fn short(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_owned()
}

/// A time to the second, like 2026-11-22T07:38:41Z; empty for `None`.
pub(super) fn time(time: Option<&prost_types::Timestamp>) -> String {
    time.map(|time| prost_types::Timestamp { nanos: 0, ..*time }.to_string()).unwrap_or_default()
}

/// A time to the millisecond, for steps in quick succession; empty for `None`.
pub(super) fn moment(time: Option<&prost_types::Timestamp>) -> String {
    let Some(time) = time else { return String::new() };
    let second = self::time(Some(time));
    format!("{}.{:03}Z", second.trim_end_matches('Z'), time.nanos / 1_000_000)
}

/// A time for a table column, in UTC: for today the time of day, otherwise the date.
pub(super) fn brief(time: Option<&prost_types::Timestamp>, now: baton_client::time::Timestamp) -> String {
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
    use baton_client::time::Timestamp;

    #[test]
    fn yaml_keeps_its_meaning_and_no_terminal_obeys_it() {
        let nasty = "a\u{1b}[2J\r\nforged: yes\u{85}\u{9b}\u{202e}\"\\ \u{e0041}";
        let value = json!({ nasty: [nasty, "plain\ntext"], "n": 1, "empty": [], "z": null });
        let text = yaml(&value).unwrap();
        assert_eq!(escape::lines(&text), text);
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
