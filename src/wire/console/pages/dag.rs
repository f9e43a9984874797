//! The picture of a plan: its subtasks in layers, each behind all that it waits for. Pure: places in a picture, out of
//! the links of the subtasks.

use std::collections::BTreeSet;

/// The size of the box of a subtask, in pixels.
pub(super) const NODE_WIDTH: u32 = 160;
pub(super) const NODE_HEIGHT: u32 = 44;
/// The space between two layers, and between two boxes of a layer, in pixels.
const LAYER_SPACE: u32 = 56;
const NODE_SPACE: u32 = 16;
/// The space around the picture, in pixels.
const MARGIN: u32 = 4;
/// The most subtasks of a picture. A larger plan has its table alone.
pub(super) const NODES_MAX: usize = 64;
/// The most lines of a picture.
const LINES_MAX: usize = 200;

/// The picture, in pixels from the upper left corner.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dag {
    pub(super) width: u32,
    pub(super) height: u32,
    /// The upper left corners of the boxes, in the order of the plan.
    pub(super) nodes: Vec<(u32, u32)>,
    pub(super) lines: Vec<Line>,
    /// The lines over the most of a picture.
    pub(super) lines_left_out: usize,
}

/// A line from the right side of a box to the left side of another one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) from: (u32, u32),
    pub(super) to: (u32, u32),
    /// Where the line bends.
    pub(super) middle_x: u32,
}

/// The picture of subtasks whose direct dependencies are `direct`. In `order` each stands behind its dependencies.
/// `None`: there are none, or too many.
pub(super) fn dag(direct: &[BTreeSet<usize>], order: &[usize]) -> Option<Dag> {
    if direct.is_empty() || direct.len() > NODES_MAX {
        return None;
    }
    let layers = layers(direct, order);
    let mut heights: Vec<u32> = Vec::new();
    let mut nodes = Vec::with_capacity(direct.len());
    for layer in &layers {
        heights.resize(heights.len().max(layer + 1), 0);
        let place = heights[*layer];
        heights[*layer] += 1;
        nodes.push((left_of(*layer), MARGIN + place * (NODE_HEIGHT + NODE_SPACE)));
    }
    let mut lines: Vec<Line> = Vec::new();
    for (place, needs) in direct.iter().enumerate() {
        // A need of another need is drawn through that one alone.
        let is_direct = |need: &&usize| !needs.iter().any(|other| reaches(direct, &layers, *other, **need));
        lines.extend(needs.iter().filter(is_direct).map(|need| line(nodes[*need], nodes[place])));
    }
    let lines_left_out = lines.len().saturating_sub(LINES_MAX);
    lines.truncate(LINES_MAX);
    let highest = heights.iter().copied().max().unwrap_or(0);
    Some(Dag {
        width: left_of(heights.len()) - LAYER_SPACE + MARGIN,
        height: 2 * MARGIN + highest * (NODE_HEIGHT + NODE_SPACE) - NODE_SPACE,
        nodes,
        lines,
        lines_left_out,
    })
}

fn left_of(layer: usize) -> u32 {
    MARGIN + u32::try_from(layer).unwrap_or(0) * (NODE_WIDTH + LAYER_SPACE)
}

/// The layer of each subtask: the number of subtasks on the longest path to it.
fn layers(direct: &[BTreeSet<usize>], order: &[usize]) -> Vec<usize> {
    let mut layers = vec![0; direct.len()];
    for place in order {
        layers[*place] = direct[*place].iter().map(|need| layers[*need] + 1).max().unwrap_or(0);
    }
    layers
}

/// Whether a subtask waits for another one, directly or not.
fn reaches(direct: &[BTreeSet<usize>], layers: &[usize], from: usize, need: usize) -> bool {
    let mut seen = vec![false; direct.len()];
    let mut left = vec![from];
    while let Some(place) = left.pop() {
        for next in &direct[place] {
            if *next == need {
                return true;
            }
            // All needs of a subtask are in earlier layers.
            if layers[*next] > layers[need] && !std::mem::replace(&mut seen[*next], true) {
                left.push(*next);
            }
        }
    }
    false
}

fn line(from: (u32, u32), to: (u32, u32)) -> Line {
    let (from, to) = ((from.0 + NODE_WIDTH, from.1 + NODE_HEIGHT / 2), (to.0, to.1 + NODE_HEIGHT / 2));
    Line { from, to, middle_x: u32::midpoint(from.0, to.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direct(all: &[&[usize]]) -> Vec<BTreeSet<usize>> {
        all.iter().map(|needs| needs.iter().copied().collect()).collect()
    }

    fn places(dag: &Dag) -> Vec<(u32, u32)> {
        let place = |(x, y): &(u32, u32)| {
            ((x - MARGIN) / (NODE_WIDTH + LAYER_SPACE), (y - MARGIN) / (NODE_HEIGHT + NODE_SPACE))
        };
        dag.nodes.iter().map(place).collect()
    }

    #[test]
    fn a_subtask_is_behind_the_longest_path_to_it() {
        // 0 → 1 → 3, 0 → 2, 2 and 3 → 4; listed in another order than they run.
        let dag = dag(&direct(&[&[], &[0], &[0], &[1], &[2, 3]]), &[0, 1, 2, 3, 4]).unwrap();
        assert_eq!(places(&dag), [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0)]);
        assert_eq!(dag.lines.len(), 5);
        assert_eq!(dag.height, 2 * MARGIN + 2 * NODE_HEIGHT + NODE_SPACE);
    }

    #[test]
    fn the_order_of_the_plan_may_be_another_one() {
        let dag = dag(&direct(&[&[1], &[2], &[]]), &[2, 1, 0]).unwrap();
        assert_eq!(places(&dag), [(2, 0), (1, 0), (0, 0)]);
        assert!(dag.lines.iter().all(|line| line.from.0 < line.to.0), "{:?}", dag.lines);
    }

    #[test]
    fn a_need_of_a_need_has_no_line_of_its_own() {
        let dag = dag(&direct(&[&[], &[0], &[0, 1], &[0, 1, 2]]), &[0, 1, 2, 3]).unwrap();
        assert_eq!(dag.lines.len(), 3);
    }

    #[test]
    fn a_picture_is_bounded() {
        assert_eq!(dag(&[], &[]), None);
        let order: Vec<usize> = (0..=NODES_MAX).collect();
        assert_eq!(dag(&vec![BTreeSet::new(); NODES_MAX + 1], &order), None);
        // Half of the subtasks wait for each of the other half.
        let half = NODES_MAX / 2;
        let needs = |place: usize| if place < half { BTreeSet::new() } else { (0..half).collect() };
        let all: Vec<_> = (0..NODES_MAX).map(needs).collect();
        let dag = dag(&all, &order[..NODES_MAX]).unwrap();
        assert_eq!((dag.lines.len(), dag.lines_left_out), (LINES_MAX, half * half - LINES_MAX));
    }
}
