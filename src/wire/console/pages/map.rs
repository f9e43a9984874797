//! The map: which agents hand tasks to which, how often, and how often in vain. It shows loops and bottlenecks.

use std::{
    collections::{BTreeMap, BTreeSet},
    f64::consts::TAU,
    time::Duration,
};

use askama::Template;
use axum::{
    Extension,
    extract::{Query, State},
    response::Response,
};
use serde::Deserialize;

use super::{invalid, lanes::shortened, lists::check_list, no_handoff, shown};
use crate::{
    broker::{
        access::{Caller, Purpose},
        queries::{HandoffFilter, View},
    },
    domain::handoff::State as HandoffState,
    wire::console::Console,
};

/// The reads of one page, and the handoffs of each read.
const READS: usize = 5;
const READ_AT_ONCE: usize = 200;
/// The most pairs of agents that the map shows, those with the most handoffs.
const PAIRS_MAX: usize = 60;
/// The most agents in the picture.
const AGENTS_MAX: usize = 24;
/// The letters of a name in the picture.
const NAME_LETTERS: usize = 20;
/// The picture, in pixels, and the circle of the agents in it.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 560.0;
const RADIUS: f64 = 220.0;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct MapQuery {
    /// `hour` or `day`. Empty: a day.
    span: String,
}

/// The handoffs from one agent to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    from: String,
    to: String,
    many: u64,
    /// The ones without a takeover.
    failed: u64,
    /// Those in the other direction.
    back: u64,
}

impl Pair {
    /// The class of its line.
    fn tone(&self) -> &'static str {
        match self.failed {
            0 => "run",
            few if few * 4 < self.many => "warn",
            _ => "bad",
        }
    }
}

#[derive(Debug, PartialEq)]
pub(super) struct Node {
    name: String,
    title: String,
    x: i64,
    y: i64,
    text_x: i64,
    text_y: i64,
    anchor: &'static str,
}

#[derive(Debug, PartialEq)]
pub(super) struct Line {
    title: String,
    tone: &'static str,
    width: u64,
    path: String,
}

#[derive(Debug, PartialEq)]
pub(super) struct Picture {
    nodes: Vec<Node>,
    lines: Vec<Line>,
}

#[derive(Template)]
#[template(path = "map.html")]
struct MapPage {
    who: String,
    is_hour: bool,
    pairs: Vec<Pair>,
    picture: Picture,
    /// The handoffs that were read.
    read: u64,
    /// Whether there were more than one page reads.
    is_cut: bool,
}

pub(super) async fn show(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<MapQuery>,
) -> Response {
    let (who, now) = (caller.to_string(), console.broker.now());
    let show = move |view: View<'_>| {
        let is_hour = match query.span.as_str() {
            "hour" => true,
            "" | "day" => false,
            _ => return Err(invalid("span", "must be hour or day")),
        };
        let begin = now.minus(Duration::from_secs(if is_hour { 3600 } else { 86_400 }));
        let (mut ends, mut read, mut token) = (Vec::new(), 0, String::new());
        let mut is_over = false;
        for _ in 0..READS {
            let page = view.handoffs(&HandoffFilter::default(), READ_AT_ONCE, &token)?;
            for handoff in &page.entries {
                is_over |= handoff.created_at < begin;
                if !is_over {
                    read += 1;
                    let failed = matches!(handoff.state, HandoffState::Rejected | HandoffState::Failed);
                    ends.push((handoff.sender.to_string(), handoff.candidate.to_string(), failed));
                }
            }
            token = page.next_token;
            is_over |= token.is_empty();
            if is_over {
                break;
            }
        }
        let no_such = || view.access.no_such_handoff(view.caller, no_handoff());
        check_list(view, Purpose::ReadHandoffs, ends.is_empty(), no_such)?;
        let pairs = pairs(ends);
        let picture = picture(&pairs);
        Ok(MapPage { who, is_hour, pairs, picture, read, is_cut: !is_over })
    };
    shown(&console, &caller, show).await
}

/// The pairs with the most handoffs, these first.
fn pairs(ends: impl IntoIterator<Item = (String, String, bool)>) -> Vec<Pair> {
    let mut counts: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
    for (from, to, failed) in ends {
        let count = counts.entry((from, to)).or_default();
        *count = (count.0 + 1, count.1 + u64::from(failed));
    }
    let back = |from: &str, to: &str| counts.get(&(to.to_owned(), from.to_owned())).map_or(0, |count| count.0);
    let pair = |((from, to), (many, failed)): (&(String, String), &(u64, u64))| Pair {
        from: from.clone(),
        to: to.clone(),
        many: *many,
        failed: *failed,
        back: if from == to { 0 } else { back(from, to) },
    };
    let mut all: Vec<Pair> = counts.iter().map(pair).collect();
    all.sort_by_key(|pair| std::cmp::Reverse(pair.many));
    all.truncate(PAIRS_MAX);
    all
}

/// The agents on a circle, and a line for each pair whose agents both are on it.
fn picture(pairs: &[Pair]) -> Picture {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for name in pairs.iter().flat_map(|pair| [&*pair.from, &*pair.to]) {
        if names.len() < AGENTS_MAX {
            names.insert(name);
        }
    }
    let place = |index: usize, radius: f64| {
        let turn = TAU * index as f64 / names.len().max(1) as f64 - TAU / 4.0;
        (WIDTH / 2.0 + radius * turn.cos(), HEIGHT / 2.0 + radius * turn.sin())
    };
    let node = |(index, name): (usize, &&str)| {
        let ((x, y), (text_x, _)) = (place(index, RADIUS), place(index, RADIUS + 14.0));
        let anchor = match x - WIDTH / 2.0 {
            left if left < -1.0 => "end",
            right if right > 1.0 => "start",
            _ => "middle",
        };
        // Above the highest one and below the lowest one there is room for a name of its own line.
        let y_of_text = if anchor == "middle" { y + (y - HEIGHT / 2.0).signum() * 14.0 } else { y };
        Node {
            name: shortened(name, NAME_LETTERS),
            title: (*name).to_owned(),
            x: rounded(x),
            y: rounded(y),
            text_x: rounded(text_x),
            text_y: rounded(y_of_text) + 4,
            anchor,
        }
    };
    let most = pairs.iter().map(|pair| pair.many).max().unwrap_or(1);
    let at = |name: &str| names.iter().position(|other| *other == name);
    let line = |pair: &Pair| {
        let (from, to) = (at(&pair.from)?, at(&pair.to)?);
        let ((x1, y1), (x2, y2)) = (place(from, RADIUS - 6.0), place(to, RADIUS - 10.0));
        // Bent to one side, so that the lines of both directions do not cover each other.
        let (middle_x, middle_y) = ((x1 + x2 + WIDTH) / 4.0, (y1 + y2 + HEIGHT) / 4.0);
        let (bend_x, bend_y) = (middle_x + (y1 - y2) * 0.12, middle_y + (x2 - x1) * 0.12);
        let path = [x1, y1, bend_x, bend_y, x2, y2].map(rounded);
        let [x1, y1, bend_x, bend_y, x2, y2] = path;
        Some(Line {
            title: format!("{} to {}: {} handoffs, {} in vain", pair.from, pair.to, pair.many, pair.failed),
            tone: pair.tone(),
            width: 1 + pair.many * 5 / most,
            path: format!("M{x1} {y1}Q{bend_x} {bend_y} {x2} {y2}"),
        })
    };
    Picture { nodes: names.iter().enumerate().map(node).collect(), lines: pairs.iter().filter_map(line).collect() }
}

fn rounded(place: f64) -> i64 {
    place.round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(from: &str, to: &str, failed: bool) -> (String, String, bool) {
        (from.to_owned(), to.to_owned(), failed)
    }

    #[test]
    fn a_pair_counts_its_handoffs_those_in_vain_and_those_back() {
        let all = pairs([ends("a", "b", false), ends("b", "a", true), ends("a", "b", true), ends("c", "c", false)]);
        let found: Vec<_> =
            all.iter().map(|pair| (&*pair.from, &*pair.to, pair.many, pair.failed, pair.back)).collect();
        assert_eq!(found, [("a", "b", 2, 1, 1), ("b", "a", 1, 1, 2), ("c", "c", 1, 0, 0)]);
        assert_eq!(all.iter().map(Pair::tone).collect::<Vec<_>>(), ["bad", "bad", "run"]);
    }

    #[test]
    fn the_picture_is_bounded_and_all_of_it_is_inside() {
        let many: Vec<_> = (0..200).map(|number| ends(&format!("agent-{number}"), "hub", number % 3 == 0)).collect();
        let pairs = pairs(many);
        assert_eq!(pairs.len(), PAIRS_MAX);
        let picture = picture(&pairs);
        assert_eq!(picture.nodes.len(), AGENTS_MAX);
        assert!(picture.lines.len() < AGENTS_MAX + 1 && picture.lines.iter().all(|line| line.width <= 6));
        assert!(picture.nodes.iter().all(|node| (0..=900).contains(&node.x) && (0..=560).contains(&node.y)));
        assert_eq!(super::picture(&[]).nodes, []);
    }
}
