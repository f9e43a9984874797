//! Progress on stderr, drawn only if that is a terminal.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Counts things whose number is not known before, like "1,204 records, 350.2/s".
pub(super) fn counting(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(what);
    let style = ProgressStyle::with_template("{spinner} {human_pos} {msg}, {per_sec}");
    bar.with_style(style.expect("the template is well-formed"))
}

/// Like [`counting`], beside data on stdout. Hidden if that is a terminal too: the lines themselves show the progress.
pub(super) fn beside_output(what: &'static str) -> ProgressBar {
    let bar = counting(what);
    if std::io::stdout().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}
