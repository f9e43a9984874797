//! Logs: on stderr, as text on a terminal and as JSON lines otherwise.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// What is logged unless BATON_LOG says otherwise. The storage engine's own events only when something is wrong.
const DEFAULT_FILTER: &str = "info,fjall=warn,lsm_tree=warn";

/// Begins to log. `BATON_LOG` takes `tracing` filters, for example `debug` or `baton=debug`.
pub fn start() {
    let filter = EnvFilter::try_from_env("BATON_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    // Where a line cannot be written (a full disk), saying so on stderr cannot either, and would be the broker's end.
    let logs =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    let on_terminal = std::io::stderr().is_terminal();
    let with_colour = on_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if on_terminal {
        logs.with_ansi(with_colour).init();
    } else {
        logs.json().init();
    }
}
