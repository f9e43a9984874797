//! Tables that fit a line of 80 columns, or a wider terminal.
//!
//! An id is shown whole, or as a prefix that is unique in its column; every command accepts that prefix. The prefix of
//! an id that the broker or a client has made keeps its whole time, so that an id outside the list has the same prefix only
//! if it was made in the same millisecond. A text that does not fit ends in an ellipsis; `-o json` prints it whole.

use std::collections::BTreeSet;

use comfy_table::{ContentArrangement, Table, presets};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use baton_client::ids::MessageId;
use baton_protocol::escape;

/// The width that every table must fit.
const WIDTH_MIN: usize = 80;
/// The gap between two columns, in characters.
const GAP: u16 = 2;
/// The shortest length of a shortened id or text, in characters.
const CELL_MIN: usize = 6;
/// The length of the time in an id of a message (UUIDv7), in characters.
const ID_TIME: usize = 13;
/// Marks the end of a shortened id or text. Commands accept an id with it.
pub(super) const ELLIPSIS: char = '…';

/// A column, by how its cells may be shortened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Ids, shortened to a unique prefix in the column.
    Id(&'static str),
    /// Texts, cut at the end.
    Text(&'static str),
    /// Cells that are never shortened.
    Whole(&'static str),
}

impl Column {
    fn title(self) -> &'static str {
        match self {
            Self::Id(title) | Self::Text(title) | Self::Whole(title) => title,
        }
    }
}

pub(super) fn print(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>) {
    let terminal = Table::new().width().map_or(0, usize::from);
    say_lines!("{}", render(columns, rows.into_iter().collect(), terminal.max(WIDTH_MIN)));
}

/// Prints a table with lines below each row, indented and cut at the width. `below` gets the number of the row.
pub fn print_with(
    columns: &[Column],
    rows: impl IntoIterator<Item = Vec<String>>,
    below: impl Fn(usize) -> Vec<String>,
) {
    let terminal = Table::new().width().map_or(0, usize::from).max(WIDTH_MIN);
    say_lines!("{}", lines_with(columns, rows, below, terminal).join("\n"));
}

fn lines_with(
    columns: &[Column],
    rows: impl IntoIterator<Item = Vec<String>>,
    below: impl Fn(usize) -> Vec<String>,
    width: usize,
) -> Vec<String> {
    let mut all = lines(columns, rows, width).into_iter();
    let mut printed: Vec<String> = all.next().into_iter().collect();
    for (at, row) in all.enumerate() {
        printed.push(row);
        for text in below(at) {
            let mut line = format!("    {}", escape::line(&text));
            cut(&mut line, width);
            printed.push(line);
        }
    }
    printed
}

/// The lines of a table that fits this width, the header first.
pub(super) fn lines(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>, width: usize) -> Vec<String> {
    render(columns, rows.into_iter().collect(), width).lines().map(|line| line.trim_end().to_owned()).collect()
}

fn render(columns: &[Column], mut rows: Vec<Vec<String>>, width: usize) -> String {
    for cell in rows.iter_mut().flatten() {
        // Escapes first: an escape is wider than the character, and the widths below must count it.
        *cell = escape::line(cell).into_owned();
    }
    fit(columns, &mut rows, width);
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|column| column.title()));
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
    }
    table.trim_fmt()
}

/// Shortens the widest id column, then the next, then texts, until the rows fit or no column is left.
fn fit(columns: &[Column], rows: &mut [Vec<String>], width: usize) {
    // Ids go first: a shortened id still works in a command, a shortened text loses its meaning.
    let mut left: Vec<usize> = (0..columns.len()).filter(|at| matches!(columns[*at], Column::Id(_))).collect();
    let mut shortened = Vec::new();
    while let Some(place) = widest(columns, rows, &left).filter(|_| total(columns, rows) > width) {
        let at = left.remove(place);
        let ids = ShortIds::of(rows, at);
        ids.show(rows, 0);
        shortened.push(ids);
    }
    grow(columns, rows, width, &shortened);
    left = (0..columns.len()).filter(|at| matches!(columns[*at], Column::Text(_))).collect();
    while let Some(place) = widest(columns, rows, &left).filter(|_| total(columns, rows) > width) {
        let at = left.remove(place);
        let others = total(columns, rows) - width_of(columns, rows, at);
        // A column keeps a minimum, so on a very narrow terminal the table is wider than the terminal.
        let room = width.saturating_sub(others).max(CELL_MIN);
        rows.iter_mut().for_each(|row| cut(&mut row[at], room));
    }
}

fn widest(columns: &[Column], rows: &[Vec<String>], among: &[usize]) -> Option<usize> {
    (0..among.len()).max_by_key(|place| width_of(columns, rows, among[*place]))
}

fn width_of(columns: &[Column], rows: &[Vec<String>], at: usize) -> usize {
    let widest = rows.iter().map(|row| row[at].width()).max();
    widest.unwrap_or_default().max(columns[at].title().width())
}

fn total(columns: &[Column], rows: &[Vec<String>]) -> usize {
    let cells: usize = (0..columns.len()).map(|at| width_of(columns, rows, at)).sum();
    cells + usize::from(GAP) * columns.len().saturating_sub(1)
}

/// Gives the room that is left to the shortened ids, one letter to each column in turn.
fn grow(columns: &[Column], rows: &mut [Vec<String>], width: usize, shortened: &[ShortIds]) {
    let (mut letters, mut has_grown) = (CELL_MIN, true);
    while has_grown {
        letters += 1;
        has_grown = false;
        for ids in shortened {
            let before: Vec<String> = rows.iter().map(|row| row[ids.at].clone()).collect();
            ids.show(rows, letters);
            let is_longer = rows.iter().zip(&before).any(|(row, before)| row[ids.at] != *before);
            if total(columns, rows) <= width {
                has_grown |= is_longer;
            } else {
                rows.iter_mut().zip(before).for_each(|(row, before)| row[ids.at] = before);
            }
        }
    }
}

/// The ids of a column, each with the fewest letters that may be shown of it.
struct ShortIds {
    at: usize,
    ids: Vec<(String, usize)>,
}

impl ShortIds {
    fn of(rows: &[Vec<String>], at: usize) -> Self {
        let all: BTreeSet<String> = rows.iter().map(|row| row[at].clone()).collect();
        let fewest = |id: &String| {
            // In sorted order, the ids with the longest common prefix are neighbours.
            let before =
                all.range::<str, _>((std::ops::Bound::Unbounded, std::ops::Bound::Excluded(id.as_str()))).next_back();
            let after =
                all.range::<str, _>((std::ops::Bound::Excluded(id.as_str()), std::ops::Bound::Unbounded)).next();
            let shared = before.into_iter().chain(after).map(|other| shared_letters(id, other)).max().unwrap_or(0);
            let least = if is_message_id(id) { ID_TIME } else { CELL_MIN };
            (shared + 1).max(least)
        };
        Self { at, ids: rows.iter().map(|row| (row[at].clone(), fewest(&row[at]))).collect() }
    }

    /// Shows at least this many letters of each id.
    fn show(&self, rows: &mut [Vec<String>], letters: usize) {
        for (row, (id, fewest)) in rows.iter_mut().zip(&self.ids) {
            let letters = letters.max(*fewest);
            row[self.at].clone_from(id);
            // A prefix as long as the id, with its ellipsis, would save nothing.
            if letters + 1 < id.chars().count() {
                row[self.at] = id.chars().take(letters).chain([ELLIPSIS]).collect();
            }
        }
    }
}

/// Whether the id has the form of an id that begins with the time at which it was made.
fn is_message_id(id: &str) -> bool {
    MessageId::parse(id).is_ok()
}

fn shared_letters(one: &str, other: &str) -> usize {
    one.chars().zip(other.chars()).take_while(|(left, right)| left == right).count()
}

fn cut(text: &mut String, room: usize) {
    if text.width() <= room {
        return;
    }
    let mut used = 1; // the ellipsis
    let fits = |letter: &char| {
        used += letter.width().unwrap_or_default();
        used <= room
    };
    *text = text.chars().take_while(fits).chain([ELLIPSIS]).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_table_that_fits_shows_ids_whole() {
        let text = render(&[Column::Id("TASK"), Column::Whole("OWNER")], vec![row(&["ticket-1", "bob"])], 80);
        assert_eq!(text, "TASK      OWNER\nticket-1  bob");
    }

    #[test]
    fn a_wide_table_fits_with_unique_beginnings_of_ids_and_texts_cut_off() {
        let columns = [Column::Id("HANDOFF"), Column::Id("TASK"), Column::Text("DETAILS"), Column::Whole("STATE")];
        let rows = vec![
            row(&[
                "01a1fc69-8f38-767d-bb03-87e07a0d875c",
                "a-task-with-a-rather-long-name-1",
                &"x".repeat(99),
                "COMPLETED",
            ]),
            row(&["01a1fc69-8f39-767d-bb03-87e07a0d875c", "b", "", "REQUESTED"]),
        ];
        let text = render(&columns, rows, 80);
        assert!(text.lines().all(|line| line.width() <= 80), "{text}");
        assert!(text.contains("01a1fc69-8f38…") && text.contains("01a1fc69-8f39…"), "{text}");
        assert!(text.contains("COMPLETED") && text.contains("xxx…"), "{text}");
    }

    #[test]
    fn a_shortened_id_of_a_message_keeps_its_time() {
        let columns = [Column::Id("HANDOFF"), Column::Text("DETAILS")];
        let id = "01a1fc69-8f38-767d-bb03-87e07a0d875c";
        let text = render(&columns, vec![row(&[id, &"x".repeat(99)])], 80);
        assert!(text.contains("01a1fc69-8f38… "), "{text}");
    }

    #[test]
    fn an_id_is_no_shorter_than_the_room_demands() {
        let columns = [Column::Id("TASK"), Column::Whole("STATE")];
        let text = render(&columns, vec![row(&["a-task-with-a-rather-long-name-1", "COMPLETED"])], 30);
        assert!(text.contains("a-task-with-a-rath…  COMPLETED"), "{text}");
        assert!(text.lines().all(|line| line.width() <= 30), "{text}");
    }

    #[test]
    fn columns_of_ids_share_the_room() {
        let columns = [Column::Id("FROM"), Column::Id("TO")];
        let text = render(&columns, vec![row(&["support-of-the-north", "billing-of-the-south"])], 26);
        assert!(text.ends_with("support-of-…  billing-of-…"), "{text}");
    }

    #[test]
    fn ids_that_differ_at_their_ends_alone_stay_whole() {
        let columns = [Column::Id("AGENT"), Column::Whole("X")];
        let ids = ["an-agent-of-the-department-for-bills-1", "an-agent-of-the-department-for-bills-2"];
        let text = render(&columns, vec![row(&[ids[0], "1"]), row(&[ids[1], "2"])], 20);
        assert!(ids.iter().all(|id| text.contains(id)), "{text}");
    }

    #[test]
    fn lines_below_a_row_are_indented_and_fit() {
        let below = |at: usize| if at == 1 { vec!["no\nFORGED".to_owned(), "x".repeat(99)] } else { Vec::new() };
        let printed = lines_with(&[Column::Id("TASK")], [row(&["one"]), row(&["two"])], below, 80);
        assert_eq!(printed[..4], ["TASK", "one", "two", "    no\\nFORGED"]);
        assert_eq!((printed.len(), printed[4].width()), (5, 80), "{printed:?}");
    }

    #[test]
    fn a_cell_stays_on_its_line_and_wide_letters_are_counted() {
        let rows = vec![row(&["a\nFORGED  ROW\u{1b}[2J", &"客".repeat(60)])];
        let text = render(&[Column::Text("A"), Column::Text("B")], rows, 80);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.lines().all(|line| line.width() <= 80) && !text.contains('\u{1b}'), "{text}");
    }
}
