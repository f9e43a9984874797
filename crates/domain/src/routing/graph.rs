//! Graphs, and the problems of a graph.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    ids::{AgentId, AgentType, GraphId, NodeId},
    numbered,
};

/// The most nodes of a graph.
pub const NODES_MAX: usize = 256;
/// The most outputs of a node.
pub const OUTPUTS_MAX: usize = 32;
/// The most choices of a node in one run.
pub const HANDOFFS_MAX: u32 = 100;
/// The most super-steps of a run, where the graph names no limit.
pub const STEPS_DEFAULT: u32 = 100;
/// The most super-steps that a graph may allow.
pub const STEPS_MAX: u32 = 1000;
/// The most bytes of the description of a graph or of a node.
pub const DESCRIPTION_BYTES_MAX: usize = 2048;
/// The most graphs of a broker.
pub const GRAPHS_MAX: usize = 1000;
/// The output that ends a run. No node has this id.
pub const END: &str = "end";

/// Whether the output ends the run.
pub fn is_end(output: &NodeId) -> bool {
    output.as_str() == END
}

/// A graph of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph {
    /// The id, the same for all revisions.
    pub id: GraphId,
    /// The purpose of the graph, for a person to read.
    pub description: String,
    /// The nodes, 1 to [`NODES_MAX`].
    pub nodes: Vec<Node>,
    /// The nodes that are active first. At least one.
    pub entries: Vec<NodeId>,
    /// The most super-steps of a run, 1 to [`STEPS_MAX`].
    pub steps_max: u32,
    /// 1 for the first registered version of the graph, and 1 more for each further one. 0: not registered.
    pub revision: u64,
}

/// A node of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The id, unique in the graph.
    pub id: NodeId,
    /// The purpose of the node. The tools of other nodes show it to their models.
    pub description: String,
    /// The agent that works at the node. `None`: any agent that the run permits.
    pub agent: Option<AgentId>,
    /// The type of the agents that work at the node. `None`: any type.
    pub agent_type: Option<AgentType>,
    /// The number of choices that the model has in one run, 1 to [`HANDOFFS_MAX`]. `None`: a plain node, without a
    /// choice.
    pub handoffs: Option<u32>,
    /// The nodes that may follow, at most [`OUTPUTS_MAX`], each once. [`END`] ends the run.
    pub outputs: Vec<NodeId>,
}

/// The weight of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The graph cannot be registered.
    Error,
    /// The graph can be registered.
    Warning,
}

/// The kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemCode {
    /// The graph has no node.
    Empty,
    /// The graph has more than [`NODES_MAX`] nodes. No other problem of it is looked for.
    TooManyNodes,
    /// Two nodes have the same id.
    NodeDoubled,
    /// A node has the id [`END`].
    NodeReserved,
    /// The graph names no entry.
    NoEntry,
    /// An entry is no node of the graph.
    EntryUnknown,
    /// An entry is named twice.
    EntryDoubled,
    /// An output is no node of the graph.
    OutputUnknown,
    /// A node names an output twice.
    OutputDoubled,
    /// A node has more than [`OUTPUTS_MAX`] outputs.
    TooManyOutputs,
    /// A node has choices, and fewer than two outputs.
    TooFewOutputs,
    /// The number of choices of a node is 0 or more than [`HANDOFFS_MAX`].
    HandoffsOutOfRange,
    /// The number of super-steps is more than [`STEPS_MAX`].
    StepsOutOfRange,
    /// A node names both an agent and a type.
    AgentAndType,
    /// What runs without a choice has a cycle, so that a run would not end.
    PlainCycle,
    /// A warning: a node has choices and no forward output, so that a run ends at it once no choice is left.
    NoExit,
    /// A warning: a node that a tool leads to has no description for the model.
    NoDescription,
    /// A warning: no path leads from an entry to the node.
    Unreachable,
}

numbered! {
    Severity { Error = 1, Warning = 2, }
    ProblemCode {
        Empty = 1, TooManyNodes = 2, NodeDoubled = 3, NodeReserved = 4, NoEntry = 5, EntryUnknown = 6,
        EntryDoubled = 7, OutputUnknown = 8, OutputDoubled = 9, TooManyOutputs = 10, TooFewOutputs = 11,
        HandoffsOutOfRange = 12, StepsOutOfRange = 13, AgentAndType = 14, PlainCycle = 15, NoExit = 16,
        NoDescription = 17, Unreachable = 18,
    }
}

impl ProblemCode {
    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "EMPTY",
            Self::TooManyNodes => "TOO_MANY_NODES",
            Self::NodeDoubled => "NODE_DOUBLED",
            Self::NodeReserved => "NODE_RESERVED",
            Self::NoEntry => "NO_ENTRY",
            Self::EntryUnknown => "ENTRY_UNKNOWN",
            Self::EntryDoubled => "ENTRY_DOUBLED",
            Self::OutputUnknown => "OUTPUT_UNKNOWN",
            Self::OutputDoubled => "OUTPUT_DOUBLED",
            Self::TooManyOutputs => "TOO_MANY_OUTPUTS",
            Self::TooFewOutputs => "TOO_FEW_OUTPUTS",
            Self::HandoffsOutOfRange => "HANDOFFS_OUT_OF_RANGE",
            Self::StepsOutOfRange => "STEPS_OUT_OF_RANGE",
            Self::AgentAndType => "AGENT_AND_TYPE",
            Self::PlainCycle => "PLAIN_CYCLE",
            Self::NoExit => "NO_EXIT",
            Self::NoDescription => "NO_DESCRIPTION",
            Self::Unreachable => "UNREACHABLE",
        }
    }

    /// The weight of the problem.
    pub const fn severity(self) -> Severity {
        match self {
            Self::NoExit | Self::NoDescription | Self::Unreachable => Severity::Warning,
            Self::Empty
            | Self::TooManyNodes
            | Self::NodeDoubled
            | Self::NodeReserved
            | Self::NoEntry
            | Self::EntryUnknown
            | Self::EntryDoubled
            | Self::OutputUnknown
            | Self::OutputDoubled
            | Self::TooManyOutputs
            | Self::TooFewOutputs
            | Self::HandoffsOutOfRange
            | Self::StepsOutOfRange
            | Self::AgentAndType
            | Self::PlainCycle => Severity::Error,
        }
    }
}

/// A problem of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The kind of the problem.
    pub code: ProblemCode,
    /// The path of the field in the graph, for example `nodes[2].output_nodes`.
    pub path: String,
    /// The nodes that have the problem. Those of a cycle are in the order of the cycle.
    pub nodes: Vec<NodeId>,
    /// The problem, for a person to read.
    pub message: String,
}

impl Problem {
    /// Whether the graph cannot be registered.
    pub fn is_error(&self) -> bool {
        self.code.severity() == Severity::Error
    }
}

impl Graph {
    /// A revision of which only the id and the number are known.
    pub fn without_nodes(id: GraphId, revision: u64) -> Self {
        Self {
            id,
            description: String::new(),
            nodes: Vec::new(),
            entries: Vec::new(),
            steps_max: STEPS_DEFAULT,
            revision,
        }
    }

    /// The node with this id.
    pub fn node(&self, id: &NodeId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == *id)
    }

    /// The distance of each reachable node from the entries, in outputs.
    pub fn distances(&self) -> BTreeMap<&NodeId, u32> {
        let nodes: BTreeMap<&NodeId, &Node> = self.nodes.iter().map(|node| (&node.id, node)).collect();
        let mut distances = BTreeMap::new();
        let mut queue: VecDeque<(&NodeId, u32)> = self.entries.iter().map(|entry| (entry, 0)).collect();
        while let Some((id, distance)) = queue.pop_front() {
            let Some(node) = nodes.get(id) else { continue };
            // A queue in the order of distance finds each node first on its shortest path.
            if distances.contains_key(&node.id) {
                continue;
            }
            distances.insert(&node.id, distance);
            queue.extend(node.outputs.iter().map(|output| (output, distance + 1)));
        }
        distances
    }

    /// The outputs that a run takes at this node without a choice: all outputs of a plain node, and the forward outputs
    /// of a node with choices. Forward is [`END`], and an output that is farther from the entries than the node.
    pub fn outputs_without_choice<'a>(&self, node: &'a Node) -> Vec<&'a NodeId> {
        self.without_choice(node, &self.distances())
    }

    fn without_choice<'a>(&self, node: &'a Node, distances: &BTreeMap<&NodeId, u32>) -> Vec<&'a NodeId> {
        let own = distances.get(&node.id);
        let is_forward = |output: &&NodeId| is_end(output) || distances.get(output) > own;
        node.outputs.iter().filter(|output| node.handoffs.is_none() || is_forward(output)).collect()
    }

    /// All problems of the graph. Without an error among them the graph can be registered.
    pub fn problems(&self) -> Vec<Problem> {
        let mut found = Found::default();
        if self.nodes.len() > NODES_MAX {
            let message = format!("the graph has {} nodes, and may have {NODES_MAX}", self.nodes.len());
            found.add(ProblemCode::TooManyNodes, "nodes", [], message);
            return found.0;
        }
        if self.nodes.is_empty() {
            found.add(ProblemCode::Empty, "nodes", [], "the graph has no node".to_owned());
        }
        if !(1..=STEPS_MAX).contains(&self.steps_max) {
            let message = format!("steps_max is {}, and may be at most {STEPS_MAX}", self.steps_max);
            found.add(ProblemCode::StepsOutOfRange, "steps_max", [], message);
        }
        let known: BTreeSet<&NodeId> = self.nodes.iter().map(|node| &node.id).collect();
        self.check_entries(&known, &mut found);
        let mut seen = BTreeSet::new();
        for (place, node) in self.nodes.iter().enumerate() {
            let path = format!("nodes[{place}]");
            if is_end(&node.id) {
                let message = format!("{END:?} ends a run, and is no node");
                found.add(ProblemCode::NodeReserved, &format!("{path}.node_id"), [&node.id], message);
            }
            if !seen.insert(&node.id) {
                let message = format!("the graph has another node {}", node.id);
                found.add(ProblemCode::NodeDoubled, &format!("{path}.node_id"), [&node.id], message);
            }
            check_node(node, &path, &known, &mut found);
        }
        // The paths through a graph with unknown or doubled nodes mean nothing.
        if !found.0.iter().any(Problem::is_error) {
            self.check_paths(&mut found);
        }
        found.0
    }

    fn check_entries(&self, known: &BTreeSet<&NodeId>, found: &mut Found) {
        if self.entries.is_empty() {
            found.add(ProblemCode::NoEntry, "entry_node_ids", [], "the graph names no entry".to_owned());
        }
        let mut seen = BTreeSet::new();
        for (place, entry) in self.entries.iter().enumerate() {
            let path = format!("entry_node_ids[{place}]");
            if !known.contains(entry) {
                found.add(ProblemCode::EntryUnknown, &path, [entry], format!("the graph has no node {entry}"));
            } else if !seen.insert(entry) {
                found.add(ProblemCode::EntryDoubled, &path, [entry], format!("{entry} is named twice"));
            }
        }
    }

    fn check_paths(&self, found: &mut Found) {
        let distances = self.distances();
        // Only a cycle without choices is an error: choices are counted, so a cycle through them ends.
        if let Some(cycle) = self.cycle_without_choice(&distances) {
            let names: Vec<&str> = cycle.iter().map(|id| id.as_str()).collect();
            let message = format!("without a choice the run goes round: {}", names.join(" → "));
            found.add(ProblemCode::PlainCycle, "nodes", cycle, message);
        }
        let offered: BTreeSet<&NodeId> =
            self.nodes.iter().filter(|node| node.handoffs.is_some()).flat_map(|node| &node.outputs).collect();
        for (place, node) in self.nodes.iter().enumerate() {
            let path = format!("nodes[{place}]");
            if !distances.contains_key(&node.id) {
                let message = format!("no path leads from an entry to {}", node.id);
                found.add(ProblemCode::Unreachable, &path, [&node.id], message);
            } else if node.handoffs.is_some() && self.without_choice(node, &distances).is_empty() {
                let message = format!("{} leads nowhere once its model has no choice left", node.id);
                found.add(ProblemCode::NoExit, &format!("{path}.output_nodes"), [&node.id], message);
            }
            if node.description.is_empty() && offered.contains(&node.id) {
                let message = format!("a model chooses {} by its description, which is empty", node.id);
                found.add(ProblemCode::NoDescription, &format!("{path}.description"), [&node.id], message);
            }
        }
    }

    /// A cycle in what runs without a choice, from one node back to the same node.
    fn cycle_without_choice<'a>(&'a self, distances: &BTreeMap<&NodeId, u32>) -> Option<Vec<&'a NodeId>> {
        let next: BTreeMap<&NodeId, Vec<&NodeId>> =
            self.nodes.iter().map(|node| (&node.id, self.without_choice(node, distances))).collect();
        let mut done = BTreeSet::new();
        for node in &self.nodes {
            // The path has each node with the number of its outputs that the search has followed.
            let mut path: Vec<(&NodeId, usize)> = vec![(&node.id, 0)];
            while let Some((id, followed)) = path.last_mut() {
                let Some(output) = next.get(*id).and_then(|outputs| outputs.get(*followed)).copied() else {
                    done.insert(*id);
                    path.pop();
                    continue;
                };
                *followed += 1;
                if let Some(first) = path.iter().position(|(id, _)| *id == output) {
                    return Some(path[first..].iter().map(|(id, _)| *id).chain([output]).collect());
                }
                // A node whose paths are all followed lies on no cycle, so each node is followed once and not once a
                // path.
                if !is_end(output) && !done.contains(output) {
                    path.push((output, 0));
                }
            }
        }
        None
    }
}

fn check_node(node: &Node, path: &str, known: &BTreeSet<&NodeId>, found: &mut Found) {
    let outputs_path = format!("{path}.output_nodes");
    if node.agent.is_some() && node.agent_type.is_some() {
        let message = format!("{} names both an agent and a type", node.id);
        found.add(ProblemCode::AgentAndType, path, [&node.id], message);
    }
    if node.outputs.len() > OUTPUTS_MAX {
        let message = format!("{} has {} outputs, and may have {OUTPUTS_MAX}", node.id, node.outputs.len());
        found.add(ProblemCode::TooManyOutputs, &outputs_path, [&node.id], message);
        return;
    }
    let mut seen = BTreeSet::new();
    for output in &node.outputs {
        if !is_end(output) && !known.contains(output) {
            let message = format!("{} leads to {output}, which is no node", node.id);
            found.add(ProblemCode::OutputUnknown, &outputs_path, [&node.id, output], message);
        }
        if !seen.insert(output) {
            let message = format!("{} names the output {output} twice", node.id);
            found.add(ProblemCode::OutputDoubled, &outputs_path, [&node.id, output], message);
        }
    }
    let Some(handoffs) = node.handoffs else { return };
    if !(1..=HANDOFFS_MAX).contains(&handoffs) {
        let message = format!("{} has {handoffs} choices, and may have 1 to {HANDOFFS_MAX}", node.id);
        found.add(ProblemCode::HandoffsOutOfRange, &format!("{path}.handoffs"), [&node.id], message);
    }
    // A choice among one output is none, and would only use up the count.
    if seen.len() < 2 {
        let message = format!("{} has choices, and fewer than two outputs", node.id);
        found.add(ProblemCode::TooFewOutputs, &outputs_path, [&node.id], message);
    }
}

#[derive(Default)]
struct Found(Vec<Problem>);

impl Found {
    fn add<'a>(&mut self, code: ProblemCode, path: &str, nodes: impl IntoIterator<Item = &'a NodeId>, message: String) {
        let nodes = nodes.into_iter().cloned().collect();
        self.0.push(Problem { code, path: path.to_owned(), nodes, message });
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::routing) fn id(name: &str) -> NodeId {
        NodeId::parse(name).unwrap()
    }

    /// A graph from lines like `searcher 2: checker end`: a node, the number of its choices, its outputs. The first node
    /// is the entry.
    pub(in crate::routing) fn graph(lines: &[&str]) -> Graph {
        let nodes: Vec<Node> = lines
            .iter()
            .map(|line| {
                let (head, outputs) = line.split_once(':').unwrap();
                let mut head = head.split_whitespace();
                let name = head.next().unwrap();
                Node {
                    id: id(name),
                    description: format!("Does the work of {name}."),
                    agent: None,
                    agent_type: None,
                    handoffs: head.next().map(|number| number.parse().unwrap()),
                    outputs: outputs.split_whitespace().map(id).collect(),
                }
            })
            .collect();
        let entries = nodes.first().map(|node| node.id.clone()).into_iter().collect();
        let graph_id = GraphId::parse("g").unwrap();
        Graph { id: graph_id, description: String::new(), nodes, entries, steps_max: STEPS_DEFAULT, revision: 0 }
    }

    #[track_caller]
    fn assert_problems(graph: &Graph, expected: &[&str]) {
        let found: Vec<&str> = graph.problems().iter().map(|problem| problem.code.name()).collect();
        assert_eq!(found, expected, "{:?}", graph.problems());
    }

    #[test]
    fn the_graph_of_a_searcher_and_a_checker_has_no_problem() {
        assert_problems(&graph(&["searcher: checker", "checker 3: searcher generator", "generator: end"]), &[]);
    }

    #[test]
    fn what_runs_without_a_choice_must_not_go_round() {
        let round = graph(&["a: b", "b: c", "c: a"]);
        assert_problems(&round, &["PLAIN_CYCLE"]);
        assert_eq!(round.problems()[0].message, "without a choice the run goes round: a → b → c → a");
        assert_problems(&graph(&["a: a"]), &["PLAIN_CYCLE"]);
        // The forward output of b, and the plain way back.
        assert_problems(&graph(&["a: b", "b 1: c end", "c: a"]), &["PLAIN_CYCLE"]);
        // The way back is a choice, and each choice is counted.
        assert_problems(&graph(&["a: b", "b 1: a end"]), &[]);
    }

    #[test]
    fn a_node_without_a_forward_output_is_a_warning() {
        let found = graph(&["a: b c", "b 2: a c", "c: end"]);
        assert_problems(&found, &["NO_EXIT"]);
        assert!(!found.problems()[0].is_error());
    }

    #[test]
    fn every_problem_is_named_at_once() {
        let mut bad = graph(&["a 0: a a", "b 101: end nowhere", "b: end", "end: a", "c 2: end"]);
        bad.entries = vec![id("z"), id("a"), id("a")];
        bad.steps_max = 1001;
        bad.nodes[0].agent = Some(AgentId::parse("x").unwrap());
        bad.nodes[0].agent_type = Some(AgentType::parse("t").unwrap());
        assert_problems(
            &bad,
            &[
                "STEPS_OUT_OF_RANGE",
                "ENTRY_UNKNOWN",
                "ENTRY_DOUBLED",
                "AGENT_AND_TYPE",
                "OUTPUT_DOUBLED",
                "HANDOFFS_OUT_OF_RANGE",
                "TOO_FEW_OUTPUTS",
                "OUTPUT_UNKNOWN",
                "HANDOFFS_OUT_OF_RANGE",
                "NODE_DOUBLED",
                "NODE_RESERVED",
                "TOO_FEW_OUTPUTS",
            ],
        );
        assert_eq!(bad.problems()[7].path, "nodes[1].output_nodes");
    }

    #[test]
    fn a_graph_without_a_node_or_an_entry_is_refused() {
        assert_problems(&graph(&[]), &["EMPTY", "NO_ENTRY"]);
    }

    #[test]
    fn a_graph_has_at_most_256_nodes_and_a_node_32_outputs() {
        let chain = |length: usize| -> Graph {
            let lines: Vec<String> =
                (0..length)
                    .map(|place| {
                        if place + 1 < length { format!("n{place}: n{}", place + 1) } else { format!("n{place}: end") }
                    })
                    .collect();
            graph(&lines.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert_problems(&chain(256), &[]);
        assert_problems(&chain(257), &["TOO_MANY_NODES"]);
        let wide = |width: usize| -> Graph {
            let leaves: Vec<String> = (0..width).map(|place| format!("n{place}")).collect();
            let lines: Vec<String> = [format!("hub: {}", leaves.join(" "))]
                .into_iter()
                .chain(leaves.iter().map(|leaf| format!("{leaf}: end")))
                .collect();
            graph(&lines.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert_problems(&wide(32), &[]);
        assert_problems(&wide(33), &["TOO_MANY_OUTPUTS"]);
    }

    #[test]
    fn unreachable_and_undescribed_nodes_are_warnings() {
        let mut found = graph(&["a 1: b end", "b: end", "c: end"]);
        found.nodes[1].description.clear();
        assert_problems(&found, &["NO_DESCRIPTION", "UNREACHABLE"]);
    }

    #[test]
    fn forward_is_farther_from_the_entry() {
        let graph = graph(&["searcher: checker", "checker 3: searcher generator", "generator: end"]);
        let forward = graph.outputs_without_choice(&graph.nodes[1]);
        assert_eq!(forward, [&id("generator")]);
    }
}
