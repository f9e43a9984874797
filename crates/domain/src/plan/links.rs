//! Which subtask waits for which.

use std::collections::{BTreeMap, BTreeSet};

use fixedbitset::FixedBitSet;
use petgraph::{
    algo::tarjan_scc,
    graph::{DiGraph, NodeIndex},
};

use super::{EDGES_MAX, Mode, SUBTASKS_MAX, Spec};

/// The direct and indirect dependencies of each subtask, by place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Links {
    /// For each subtask its direct dependencies: declared, producers of its topics, or the one before it.
    pub direct: Vec<BTreeSet<usize>>,
    /// Of these, those that the subtask names: declared, or producers of its topics. The others are only its turn in a
    /// sequential plan.
    pub named: Vec<BTreeSet<usize>>,
    /// For each subtask its direct and indirect dependencies, by place.
    pub ancestors: Vec<FixedBitSet>,
    /// The subtasks in an order of execution: each stands behind its dependencies. Those of a cycle have no meaningful
    /// place.
    pub order: Vec<usize>,
    /// One cycle of each knot, in the order of the cycle: each waits for the next, and the last for the first.
    pub cycles: Vec<Vec<usize>>,
}

impl Links {
    /// The links of a plan. Unknown dependencies and topics without a producer link nothing.
    ///
    /// A plan over a limit has links for a part of it, or none: `problems` refuses it, and all its links would fill the
    /// memory.
    pub fn of(spec: &Spec) -> Self {
        if spec.subtasks.len() > SUBTASKS_MAX {
            return Self::default();
        }
        let named = named(spec);
        let with_turn = |(place, named): (usize, &BTreeSet<usize>)| {
            // A link to itself is left out: it has its own problem, and would count as a cycle of one.
            named.iter().copied().chain(earlier(spec, place)).filter(|need| *need != place).collect()
        };
        let direct: Vec<BTreeSet<usize>> = named.iter().enumerate().map(with_turn).collect();
        let mut graph = DiGraph::<(), ()>::new();
        let nodes: Vec<NodeIndex> = direct.iter().map(|_| graph.add_node(())).collect();
        for (place, needs) in direct.iter().enumerate() {
            for need in needs {
                graph.add_edge(nodes[place], nodes[*need], ());
            }
        }
        // The components come in reverse topological order of the edges, which lead to the needs: so needs come first.
        let components = tarjan_scc(&graph);
        let mut cycles = Vec::new();
        let mut order = Vec::with_capacity(direct.len());
        let mut ancestors = vec![FixedBitSet::with_capacity(direct.len()); direct.len()];
        for component in components {
            let places: BTreeSet<usize> = component.iter().map(|node| node.index()).collect();
            if places.len() > 1 {
                cycles.push(cycle_in(&places, &direct));
            }
            for place in places {
                let mut all = FixedBitSet::with_capacity(direct.len());
                for need in &direct[place] {
                    all.insert(*need);
                    // Complete for all but a cycle, because the components of the needs came before this one.
                    all.union_with(&ancestors[*need]);
                }
                ancestors[place] = all;
                order.push(place);
            }
        }
        Self { direct, named, ancestors, order, cycles }
    }
}

fn named(spec: &Spec) -> Vec<BTreeSet<usize>> {
    let mut places = BTreeMap::new();
    let mut producers: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (place, subtask) in spec.subtasks.iter().enumerate() {
        // Of a doubled id the first one counts. `problems` refuses the plan, and needs links to name its cycles.
        places.entry(subtask.id.as_str()).or_insert(place);
        for topic in subtask.produces.iter().take(EDGES_MAX) {
            producers.entry(topic).or_default().insert(place);
        }
    }
    let of = |(place, subtask): (usize, &super::Subtask)| -> BTreeSet<usize> {
        let declared = subtask.dependencies.iter().take(EDGES_MAX).filter_map(|id| places.get(id.as_str()).copied());
        let consumes = subtask.consumes.iter().take(EDGES_MAX);
        let of_topics = consumes.filter_map(|topic| producers.get(topic.as_str())).flatten().copied();
        declared.chain(of_topics).filter(|need| *need != place).collect()
    };
    spec.subtasks.iter().enumerate().map(of).collect()
}

/// The subtasks that a subtask of a SEQUENTIAL plan waits for because of its place: those before it, back to the latest one
/// that must complete. An optional one may be SKIPPED because that one failed, and then gives no sign of the failure.
fn earlier(spec: &Spec, place: usize) -> impl Iterator<Item = usize> {
    let is_sequential = spec.mode == Mode::Sequential;
    let before = spec.subtasks[..place].iter();
    let optional = before.rev().take_while(|subtask| subtask.is_optional).count();
    (place.saturating_sub(optional + 1)..place).filter(move |_| is_sequential)
}

/// A cycle among these places, each of which lies on one.
fn cycle_in(places: &BTreeSet<usize>, direct: &[BTreeSet<usize>]) -> Vec<usize> {
    let mut path: Vec<usize> = Vec::new();
    let mut next = *places.iter().next().expect("a component is not empty");
    loop {
        if let Some(first) = path.iter().position(|known| *known == next) {
            return path.split_off(first);
        }
        path.push(next);
        // Each place of a strongly connected component with several places leads to another place of it.
        next = *direct[next].iter().find(|need| places.contains(need)).expect("a place of a component leads on");
    }
}
