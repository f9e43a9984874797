//! The terminal of `baton top`: the alternate screen, without a cursor.
//!
//! No mode of the terminal is changed, so ctrl-C, ctrl-Z and the echo work as before.

use comfy_table::Table;

use crate::output;

/// Switches to the alternate screen, and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
/// Shows the cursor, and switches back to the screen from before.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Moves to the first column of the first row.
const HOME: &str = "\x1b[H";
/// Clears the rest of a row.
const CLEAR_ROW: &str = "\x1b[K";
/// Clears the rest of the screen.
const CLEAR_REST: &str = "\x1b[J";
/// The size of a terminal that does not tell its own.
const USUAL: (usize, usize) = (80, 24);

/// The alternate screen. Its drop leaves it.
#[derive(Debug)]
pub(super) struct Screen(());

impl Screen {
    pub(super) fn enter() -> Self {
        output::control(ENTER);
        Self(())
    }

    /// The columns and the rows.
    #[expect(clippy::unused_self, reason = "only a screen has a number of rows")]
    pub(super) fn size(&self) -> (usize, usize) {
        size()
    }

    /// Draws the lines over the former ones, without a flicker: the screen is not cleared before.
    #[expect(clippy::unused_self, reason = "only a screen is drawn on")]
    pub(super) fn draw(&self, lines: &[String]) {
        let rows = lines.iter().map(|line| format!("{}{CLEAR_ROW}", output::line(line)));
        output::control(&format!("{HOME}{}{CLEAR_REST}", rows.collect::<Vec<_>>().join("\r\n")));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        output::control(LEAVE);
    }
}

/// The columns and the rows of the terminal.
pub(super) fn size() -> (usize, usize) {
    let columns = Table::new().width().map_or(USUAL.0, usize::from);
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    let rows = size.ok().map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 0);
    (columns.max(USUAL.0), rows.unwrap_or(USUAL.1))
}
