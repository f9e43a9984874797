//! The timeline of a plan as a picture: a bar for each subtask from its start to its end, a line from each dependency to
//! the subtask that waited for it, and the path that decided how long the plan took.

use std::collections::BTreeSet;

use super::lanes::shortened;
use crate::{
    domain::plan::{Plan, Spec, SubtaskRun, SubtaskState},
    time::Timestamp,
};

/// The most subtasks of a picture.
pub(super) const ROWS_MAX: usize = 60;
/// The most lines of a picture.
const LINES_MAX: usize = 300;
const NAMES_WIDTH: u32 = 170;
const TIME_WIDTH: u32 = 620;
const ROW_HEIGHT: u32 = 26;
const BAR_HEIGHT: u32 = 16;
const BAR_WIDTH_MIN: u32 = 4;
/// The letters of a name that fit beside the bars.
const NAME_LETTERS: usize = 24;

pub(super) struct Timeline {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) rows: Vec<Row>,
    pub(super) lines: Vec<Line>,
    pub(super) begin: String,
    pub(super) end: String,
    pub(super) times_y: u32,
}

/// A subtask. One that has not begun has no bar.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) name_y: u32,
    pub(super) bar: Option<(u32, u32, u32)>,
    pub(super) class: &'static str,
    pub(super) is_critical: bool,
    /// How often the subtask was tried, beyond the first time. Empty: never.
    pub(super) again: String,
    pub(super) again_x: u32,
}

pub(super) struct Line {
    pub(super) from: (u32, u32),
    pub(super) to: (u32, u32),
    pub(super) is_critical: bool,
}

/// The timeline of a plan. `None`: no subtask has begun, or the plan has too many.
pub(super) fn timeline(
    plan: &Plan,
    spec: &Spec,
    class_of: fn(SubtaskState) -> &'static str,
    now: Timestamp,
) -> Option<Timeline> {
    if plan.subtasks.len() > ROWS_MAX {
        return None;
    }
    let begin = plan.subtasks.iter().filter_map(|run| run.started_at).min()?;
    let ends = |run: &SubtaskRun| run.started_at.map(|_| run.ended_at.unwrap_or(now));
    let end = plan.subtasks.iter().filter_map(ends).max()?.max(begin);
    let whole = end.since(begin).as_micros().max(1);
    let x = |at: Timestamp| {
        // A clock that was set back may have given times out of their order: they stay inside the picture.
        let part = at.since(begin).as_micros().min(whole) * u128::from(TIME_WIDTH) / whole;
        NAMES_WIDTH + u32::try_from(part).unwrap_or(TIME_WIDTH)
    };
    let top = |place: usize| 6 + ROW_HEIGHT * u32::try_from(place).unwrap_or(0);
    let critical = critical(&plan.subtasks, &spec.links.direct);
    let row = |(place, run): (usize, &SubtaskRun)| {
        let bar = run.started_at.zip(ends(run)).map(|(from, until)| {
            let from = x(from);
            (from, top(place), x(until).saturating_sub(from).max(BAR_WIDTH_MIN))
        });
        let id = &spec.subtasks[place].id;
        Row {
            name: shortened(id, NAME_LETTERS),
            title: format!("{id}: {}", run.state.name()),
            name_y: top(place) + 12,
            again_x: bar.map_or(NAMES_WIDTH, |(x, _, width)| x + width + 6),
            bar,
            class: class_of(run.state),
            is_critical: critical.contains(&place),
            again: if run.attempts > 1 { format!("attempt {}", run.attempts) } else { String::new() },
        }
    };
    let rows: Vec<Row> = plan.subtasks.iter().enumerate().map(row).collect();
    let mut lines = Vec::new();
    for (place, needs) in spec.links.direct.iter().enumerate() {
        for need in needs {
            let ends = rows.get(*need).and_then(|row| row.bar).zip(rows.get(place).and_then(|row| row.bar));
            if let Some(((from, from_y, width), (to, to_y, _))) = ends.filter(|_| lines.len() < LINES_MAX) {
                let middle = BAR_HEIGHT / 2;
                let is_critical = critical.contains(&place) && critical.contains(need);
                lines.push(Line { from: (from + width, from_y + middle), to: (to, to_y + middle), is_critical });
            }
        }
    }
    let below = top(rows.len());
    Some(Timeline {
        width: NAMES_WIDTH + TIME_WIDTH + 90,
        height: below + 24,
        rows,
        lines,
        begin: begin.to_string(),
        end: end.to_string(),
        times_y: below + 14,
    })
}

/// The subtasks of the critical path: the one that ended last or still runs, and from it back each time the dependency
/// that ended last.
fn critical(runs: &[SubtaskRun], direct: &[BTreeSet<usize>]) -> Vec<usize> {
    // A subtask that runs ends after all that have ended.
    let end = |place: usize| {
        runs.get(place).filter(|run| run.started_at.is_some()).map(|run| (run.ended_at.is_none(), run.ended_at))
    };
    let begun = (0..runs.len()).filter(|place| end(*place).is_some());
    let mut path = Vec::new();
    let mut next = begun.max_by_key(|place| end(*place));
    while let Some(place) = next.filter(|place| !path.contains(place)) {
        path.push(place);
        let needs = direct.get(place).into_iter().flatten().copied().filter(|need| end(*need).is_some());
        next = needs.max_by_key(|need| end(*need));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(from: i64, until: Option<i64>) -> SubtaskRun {
        let at = |seconds| Timestamp::from_parts(1_000_000 + seconds, 0).unwrap();
        SubtaskRun { started_at: Some(at(from)), ended_at: until.map(at), ..SubtaskRun::pending(at(0)) }
    }

    #[test]
    fn the_critical_path_goes_back_over_the_dependencies_that_ended_last() {
        let runs = [ran(0, Some(10)), ran(0, Some(4)), ran(10, Some(12)), ran(12, None)];
        let needs =
            |all: &[&[usize]]| all.iter().map(|one| one.iter().copied().collect()).collect::<Vec<BTreeSet<_>>>();
        assert_eq!(critical(&runs, &needs(&[&[], &[], &[0, 1], &[1, 2]])), [3, 2, 0]);
        assert_eq!(critical(&runs[..2], &needs(&[&[], &[]])), [0]);
        let waits = SubtaskRun { started_at: None, ..ran(0, None) };
        assert!(critical(&[waits], &needs(&[&[]])).is_empty());
    }
}
