//! The lanes of a task: a row an agent, a bar for each time that the agent owned the task, and a dashed bar above it for
//! an open handoff. Pure: places in a picture, out of agents and times.

use crate::time::Timestamp;

/// The width of the column with the names of the agents, in pixels.
const NAMES_WIDTH: u32 = 140;
/// The width of the whole time, in pixels.
const TIME_WIDTH: u32 = 332;
/// The width of the shortest bar, in pixels, so that it can be seen.
const BAR_WIDTH_MIN: u32 = 4;
/// The height of a row, in pixels: the dashed bars above, the bars of ownership below.
const LANE_HEIGHT: u32 = 46;
/// The height of the line with the times, in pixels.
const TIMES_HEIGHT: u32 = 24;
/// The letters of a name that fit into the column of names.
const NAME_LETTERS: usize = 17;
/// The width of a letter in a bar, in pixels, rounded up.
const LETTER_WIDTH: u32 = 9;

/// A time during which one agent owned the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ownership {
    pub(super) agent: String,
    pub(super) epoch: u64,
    pub(super) from: Timestamp,
    /// The begin of the next epoch. `None`: the agent owns the task now.
    pub(super) until: Option<Timestamp>,
}

/// A handoff that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenHandoff {
    pub(super) candidate: String,
    pub(super) state: &'static str,
    pub(super) from: Timestamp,
}

/// The picture, in pixels from the upper left corner.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lanes {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) begin_x: u32,
    pub(super) end_x: u32,
    /// The line of the texts with the first and the last time.
    pub(super) times_y: u32,
    pub(super) rows: Vec<Lane>,
}

/// The row of one agent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) agent: String,
    /// The agent's id, shortened.
    pub(super) name: String,
    pub(super) name_y: u32,
    pub(super) line_y: u32,
    pub(super) owned: Vec<Bar>,
    pub(super) open: Vec<Bar>,
}

/// A bar, with a label if it is wide enough for one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bar {
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) width: u32,
    pub(super) label: String,
    /// What the bar says, for the reader's pointer.
    pub(super) title: String,
}

/// The picture from the first ownership to `end`.
pub(super) fn lanes(owned: &[Ownership], open: &[OpenHandoff], end: Timestamp) -> Lanes {
    let begins = owned.iter().map(|owned| owned.from).chain(open.iter().map(|open| open.from));
    let begin = begins.min().unwrap_or(end);
    let scale = Scale { begin, whole: end.since(begin).as_micros().max(1) };
    let mut rows: Vec<Lane> = Vec::new();
    for owned in owned {
        let lane = lane_of(&mut rows, &owned.agent);
        let y = lane.line_y - 24;
        let title = format!("epoch {}: {}", owned.epoch, owned.agent);
        lane.owned.push(scale.bar(owned.from, owned.until.unwrap_or(end), y, &format!("epoch {}", owned.epoch), title));
    }
    for open in open {
        let lane = lane_of(&mut rows, &open.candidate);
        let y = lane.line_y - 42;
        let title = format!("open handoff to {}: {}", open.candidate, open.state);
        lane.open.push(scale.bar(open.from, end, y, open.state, title));
    }
    let bottom = height_of(rows.len());
    Lanes {
        width: NAMES_WIDTH + TIME_WIDTH + 2 * BAR_WIDTH_MIN,
        height: bottom + TIMES_HEIGHT,
        begin_x: NAMES_WIDTH,
        end_x: NAMES_WIDTH + TIME_WIDTH,
        times_y: bottom + 18,
        rows,
    }
}

fn height_of(rows: usize) -> u32 {
    u32::try_from(rows).unwrap_or(u32::MAX / LANE_HEIGHT / 2) * LANE_HEIGHT
}

/// The row of this agent, which a first bar adds.
fn lane_of<'a>(rows: &'a mut Vec<Lane>, agent: &str) -> &'a mut Lane {
    let place = rows.iter().position(|lane| lane.agent == agent).unwrap_or_else(|| {
        let line_y = height_of(rows.len() + 1);
        let name = shortened(agent, NAME_LETTERS);
        rows.push(Lane { agent: agent.to_owned(), name, name_y: line_y - 10, line_y, owned: vec![], open: vec![] });
        rows.len() - 1
    });
    &mut rows[place]
}

/// The text with at most this many letters, the last one an ellipsis if some are left out.
pub(super) fn shortened(text: &str, letters: usize) -> String {
    match text.char_indices().nth(letters) {
        None => text.to_owned(),
        Some(_) => text.chars().take(letters.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// The times as places in the picture.
struct Scale {
    begin: Timestamp,
    /// Microseconds, at least 1.
    whole: u128,
}

impl Scale {
    fn x(&self, at: Timestamp) -> u32 {
        // A clock that was set back may have given times out of their order: they stay inside the picture.
        let after = at.since(self.begin).as_micros().min(self.whole);
        let x = after * u128::from(TIME_WIDTH) / self.whole;
        NAMES_WIDTH + u32::try_from(x).unwrap_or(TIME_WIDTH)
    }

    fn bar(&self, from: Timestamp, until: Timestamp, y: u32, label: &str, title: String) -> Bar {
        let x = self.x(from);
        let width = self.x(until).saturating_sub(x).max(BAR_WIDTH_MIN);
        let fits = width >= LETTER_WIDTH * u32::try_from(label.len()).unwrap_or(TIME_WIDTH);
        Bar { x, y, width, label: if fits { label.to_owned() } else { String::new() }, title }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(1_000_000 + seconds, 0).unwrap()
    }

    fn owned(agent: &str, epoch: u64, from: i64, until: Option<i64>) -> Ownership {
        Ownership { agent: agent.to_owned(), epoch, from: at(from), until: until.map(at) }
    }

    fn places(lane: &Lane) -> Vec<(u32, u32)> {
        lane.owned.iter().map(|bar| (bar.x, bar.width)).collect()
    }

    #[test]
    fn each_agent_has_one_row_in_the_order_of_the_first_ownerships() {
        let all = [owned("a", 1, 0, Some(10)), owned("b", 2, 10, Some(20)), owned("a", 3, 20, None)];
        let picture = lanes(&all, &[], at(40));
        let rows: Vec<_> = picture.rows.iter().map(|lane| (&*lane.agent, places(lane))).collect();
        let quarter = TIME_WIDTH / 4;
        let (begin, middle) = (NAMES_WIDTH, NAMES_WIDTH + TIME_WIDTH / 2);
        assert_eq!(
            rows,
            [("a", vec![(begin, quarter), (middle, 2 * quarter)]), ("b", vec![(begin + quarter, quarter)])]
        );
        assert_eq!(picture.rows[0].owned[0].label, "epoch 1");
        assert_eq!(picture.height, 2 * LANE_HEIGHT + TIMES_HEIGHT);
    }

    #[test]
    fn an_open_handoff_is_above_the_row_of_its_candidate() {
        let open = OpenHandoff { candidate: "b".to_owned(), state: "DECIDING", from: at(50) };
        let picture = lanes(&[owned("a", 1, 0, None)], &[open], at(100));
        assert_eq!(picture.rows.len(), 2);
        let (lane, bar) = (&picture.rows[1], &picture.rows[1].open[0]);
        assert_eq!((&*lane.agent, lane.owned.len(), &*bar.label), ("b", 0, "DECIDING"));
        assert_eq!((bar.x, bar.x + bar.width), (NAMES_WIDTH + TIME_WIDTH / 2, picture.end_x));
        assert!(bar.y > picture.rows[0].line_y && bar.y < lane.line_y);
    }

    #[test]
    fn a_short_time_has_a_bar_without_a_label() {
        let picture = lanes(&[owned("a", 1, 0, Some(0)), owned("b", 2, 0, None)], &[], at(1000));
        assert_eq!(
            (places(&picture.rows[0]), &*picture.rows[0].owned[0].label),
            (vec![(NAMES_WIDTH, BAR_WIDTH_MIN)], "")
        );
    }

    #[test]
    fn times_out_of_order_stay_in_the_picture() {
        let all = [owned("a", 1, 10, Some(5)), owned("b", 2, 5, Some(99)), owned("c", 3, 99, None)];
        let picture = lanes(&all, &[], at(20));
        for bar in picture.rows.iter().flat_map(|lane| &lane.owned) {
            assert!(bar.x >= NAMES_WIDTH && bar.x + bar.width <= picture.width, "{bar:?}");
        }
        assert_eq!(lanes(&[], &[], at(0)).rows, []);
    }

    #[test]
    fn a_long_name_is_shortened_between_letters() {
        assert_eq!(shortened("ääää", 4), "ääää");
        assert_eq!(shortened("ääääa", 4), "äää…");
    }
}
