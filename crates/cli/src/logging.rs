//! Logs: on stderr, as text on a terminal and as JSON lines otherwise.

use std::{
    fmt,
    io::{self, IsTerminal as _, Write},
};

use tracing_subscriber::{
    EnvFilter,
    field::MakeExt as _,
    fmt::{
        FormatFields, MakeWriter,
        format::{self, Writer},
    },
};

use baton_protocol::escape;

/// The log filter unless BATON_LOG is set. The storage engine does not log: the store logs the errors that it returns.
const DEFAULT_FILTER: &str = "info,lsm_tree=off,rmcp=warn";

/// Starts logging. `BATON_LOG` takes `tracing` filters, for example `debug` or `baton=debug`.
pub fn start() {
    let filter = EnvFilter::try_from_env("BATON_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    // After a failed write (a full disk), the subscriber's own message on stderr would fail too and panic the broker.
    let logs = tracing_subscriber::fmt().with_env_filter(filter).log_internal_errors(false);
    let on_terminal = io::stderr().is_terminal();
    let with_colour = on_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if on_terminal {
        logs.with_writer(io::stderr).fmt_fields(fields()).with_ansi(with_colour).init();
    } else {
        logs.with_writer(EscapedJson(io::stderr)).json().init();
    }
}

/// Formats fields as text. The escaping happens here, because colour codes are added around each field afterwards.
fn fields() -> impl for<'w> FormatFields<'w> + Send + Sync + 'static {
    format::debug_fn(|writer: &mut Writer<'_>, field, value: &dyn fmt::Debug| {
        let text = format!("{value:?}");
        let text = escape::line(&text);
        if field.name() == "message" { write!(writer, "{text}") } else { write!(writer, "{field}={text}") }
    })
    .delimited(" ")
}

/// Writes JSON lines with every dangerous character escaped. Each write is one whole line.
struct EscapedJson<M>(M);

struct EscapedLine<W>(W);

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for EscapedJson<M> {
    type Writer = EscapedLine<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        EscapedLine(self.0.make_writer())
    }
}

impl<W: Write> Write for EscapedLine<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self.0.write_all(escape::json(&text).as_bytes())?;
        // The length of the input, not of the escaped text: a larger number would break the contract of `write`.
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A hostile field value from an agent.
    const NASTY: &str = "a\u{1b}]0;owned\u{7}\r\n2026-11-22 ERROR forged\u{9b}2J\u{202e}b";

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Kept {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn log_a_nasty_event() {
        let span = tracing::info_span!("session", agent = %NASTY);
        span.in_scope(|| tracing::warn!(reason = %NASTY, debugged = ?NASTY, plain = NASTY, "refused: {NASTY}"));
    }

    #[test]
    fn a_text_log_is_not_obeyed_by_a_terminal_and_has_one_line_an_event() {
        let kept = Kept::default();
        let writer = kept.clone();
        let logs = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).fmt_fields(fields());
        tracing::subscriber::with_default(logs.finish(), log_a_nasty_event);
        let text = kept.text();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert_eq!(escape::lines(&text), text);
        assert!(text.contains("reason=a\\u{1b}]0;owned\\u{7}\\r\\n2026"), "{text}");
    }

    #[test]
    fn a_json_log_is_not_obeyed_by_a_terminal_and_keeps_what_was_said() {
        let kept = Kept::default();
        let writer = kept.clone();
        let logs = tracing_subscriber::fmt().with_writer(EscapedJson(move || writer.clone())).json();
        tracing::subscriber::with_default(logs.finish(), log_a_nasty_event);
        let text = kept.text();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert_eq!(escape::lines(&text), text);
        let event: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(event["fields"]["reason"], NASTY);
    }
}
