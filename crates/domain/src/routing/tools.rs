//! The tools with which a model chooses an output.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use super::{
    END,
    graph::{Graph, Node, is_end},
};
use crate::ids::NodeId;

/// The most characters of a tool's name.
pub const TOOL_NAME_LENGTH_MAX: usize = 40;
/// The beginning of each tool's name.
pub const TRANSFER_PREFIX: &str = "transfer_to_";
/// The most characters of a tool's description.
const DESCRIPTION_LENGTH_MAX: usize = 512;
/// The hexadecimal digits of a hash suffix.
const SUFFIX_LENGTH: usize = 8;

/// A tool that moves the run to an output of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    /// The name: [`TRANSFER_PREFIX`] and the output's id, at most [`TOOL_NAME_LENGTH_MAX`] characters of
    /// `a-z A-Z 0-9 _ -`.
    pub name: String,
    /// The output that the tool leads to.
    pub output: NodeId,
    /// The description for the model, without control characters.
    pub description: String,
}

impl Graph {
    /// The tools for the outputs of a node, in the order of the outputs. Whether a run offers them depends on the
    /// choices that the node has left.
    pub fn tools(&self, node: &Node) -> Vec<Tool> {
        let names = self.tool_names();
        let name = |output| names.get(output).cloned().unwrap_or_default();
        let description = |output| describe(output, self.node(output));
        node.outputs
            .iter()
            .map(|output| Tool { name: name(output), output: output.clone(), description: description(output) })
            .collect()
    }

    /// The name of the tool for each node and for [`END`]. No two are equal.
    fn tool_names(&self) -> BTreeMap<NodeId, String> {
        let end = NodeId::parse(END).expect("follows the grammar");
        let mut names = BTreeMap::new();
        let mut taken = BTreeSet::new();
        // Ids that need no change go first, so that no hash takes the name of another node.
        let all = || self.nodes.iter().map(|node| &node.id).chain([&end]);
        for id in all().filter(|id| is_plain(id)) {
            let name = format!("{TRANSFER_PREFIX}{id}");
            taken.insert(name.clone());
            names.insert(id.clone(), name);
        }
        for id in all().filter(|id| !is_plain(id)) {
            let name = (0u32..).map(|salt| hashed_name(id, salt)).find(|name| !taken.contains(name));
            let name = name.expect("some hash is free");
            taken.insert(name.clone());
            names.insert(id.clone(), name);
        }
        names
    }
}

/// Whether a model may mean a routing tool by this name, however it writes it.
pub fn may_route(name: &str) -> bool {
    forms(name).iter().any(|form| form.starts_with(&plain(TRANSFER_PREFIX)))
}

/// Whether the name is that of a routing tool, offered or not: an exact prefix, or another way to write an offered name.
pub(super) fn is_routing(offered: &[Tool], name: &str) -> bool {
    name.starts_with(TRANSFER_PREFIX) || find(offered, name).is_some()
}

/// The offered tool that a model means by this name: the one of that name, or else the only one that differs from it by a
/// provider's prefix, by case or by separators.
pub(super) fn find<'a>(offered: &'a [Tool], name: &str) -> Option<&'a Tool> {
    if let Some(exact) = offered.iter().find(|tool| tool.name == name) {
        return Some(exact);
    }
    if !may_route(name) {
        return None;
    }
    let forms = forms(name);
    let mut like = offered.iter().filter(|tool| forms.contains(&plain(&tool.name)));
    match (like.next(), like.next()) {
        (Some(only), None) => Some(only),
        (Some(_) | None, _) => None,
    }
}

/// The name without case and separators: as it is, and without what a provider puts before it.
fn forms(name: &str) -> Vec<String> {
    let bare = [".", ":", "/", "__"].iter().filter_map(|separator| name.rsplit_once(separator));
    bare.map(|(_, bare)| bare).chain([name]).map(plain).collect()
}

fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|it| it.to_ascii_lowercase()).collect()
}

/// Whether the id stands unchanged in the name of its tool.
fn is_plain(id: &NodeId) -> bool {
    TRANSFER_PREFIX.len() + id.as_str().len() <= TOOL_NAME_LENGTH_MAX && !id.as_str().contains('.')
}

/// The name for an id of too many characters, or has a character that tools do not have: its beginning, and a hash of
/// it.
fn hashed_name(id: &NodeId, salt: u32) -> String {
    let mut hash = Sha256::new();
    hash.update(id.as_str());
    // The first name depends on the id alone.
    if salt > 0 {
        hash.update(salt.to_be_bytes());
    }
    let suffix = hex::encode(hash.finalize());
    let room = TOOL_NAME_LENGTH_MAX - TRANSFER_PREFIX.len() - SUFFIX_LENGTH - 1;
    // An id is ASCII, so each byte is a character.
    let beginning: String = id.as_str().chars().take(room).map(|it| if it == '.' { '_' } else { it }).collect();
    format!("{TRANSFER_PREFIX}{beginning}_{}", &suffix[..SUFFIX_LENGTH])
}

fn describe(output: &NodeId, node: Option<&Node>) -> String {
    if is_end(output) {
        return "End the run: the work is done.".to_owned();
    }
    let text = format!("Transfer to {output}. {}", node.map_or("", |node| &node.description));
    // The description is part of a model's prompt.
    let text: String =
        text.chars().map(|it| if it.is_control() { ' ' } else { it }).take(DESCRIPTION_LENGTH_MAX).collect();
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::graph::tests::{graph, id},
        *,
    };

    fn names(graph: &Graph, node: usize) -> Vec<String> {
        graph.tools(&graph.nodes[node]).into_iter().map(|tool| tool.name).collect()
    }

    #[test]
    fn a_tool_is_named_and_described_after_its_target() {
        let mut graph = graph(&["checker 3: searcher end", "searcher: checker"]);
        graph.nodes[1].description = "Finds\npages.".to_owned();
        let tools = graph.tools(&graph.nodes[0]);
        assert_eq!(tools[0].name, "transfer_to_searcher");
        assert_eq!(tools[0].description, "Transfer to searcher. Finds pages.");
        assert_eq!((tools[1].name.as_str(), &tools[1].output), ("transfer_to_end", &id("end")));
    }

    #[test]
    fn names_that_would_collide_after_cutting_get_a_hash() {
        let long = "x".repeat(60);
        let (one, two) = (format!("{long}1"), format!("{long}2"));
        let lines = [format!("hub 1: {one} {two} a.b a_b"), format!("{one}: end"), format!("{two}: end")];
        let lines: Vec<&str> = lines.iter().map(String::as_str).chain(["a.b: end", "a_b: end"]).collect();
        let graph = graph(&lines);
        let found = names(&graph, 0);
        assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), 4, "{found:?}");
        assert!(found.iter().all(|name| name.len() <= TOOL_NAME_LENGTH_MAX), "{found:?}");
        assert_eq!(found[3], "transfer_to_a_b");
        assert_eq!(found, names(&graph, 0), "stable");
    }

    #[test]
    fn a_node_with_the_name_of_a_hash_keeps_it_and_the_other_gets_a_further_one() {
        let taken = hashed_name(&id("a.b"), 0).strip_prefix(TRANSFER_PREFIX).unwrap().to_owned();
        let lines = [format!("hub 1: a.b {taken}"), "a.b: end".to_owned(), format!("{taken}: end")];
        let graph = graph(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        let found = names(&graph, 0);
        assert_eq!(found[1], format!("{TRANSFER_PREFIX}{taken}"));
        assert_ne!(found[0], found[1]);
    }

    #[test]
    fn a_name_that_a_model_writes_otherwise_is_that_of_the_only_tool_like_it() {
        let graph = graph(&["hub 1: billing tax_law end", "billing: end", "tax_law: end"]);
        let offered = graph.tools(&graph.nodes[0]);
        let found = |name| find(&offered, name).map(|tool| tool.output.as_str());
        let like = ["transfer_to_billing", "functions.transfer_to_billing", "default_api:transfer_to_billing"];
        let further =
            ["mcp__baton__transfer_to_billing", "Transfer-To-Billing", "transferToBilling", "transfer to billing"];
        for name in like.iter().chain(&further) {
            assert_eq!(found(name), Some("billing"), "{name}");
            assert!(is_routing(&offered, name), "{name}");
        }
        assert_eq!(found("transferToTaxLaw"), Some("tax_law"));
        // Tools of the runtime, and a target that is not offered.
        for name in ["bank_transfer_to_billing", "transfer_billing", "billing", "transferToNowhere"] {
            assert_eq!(found(name), None, "{name}");
            assert!(!is_routing(&offered, name), "{name}");
        }
        assert!(is_routing(&offered, "transfer_to_nowhere"));
    }

    #[test]
    fn a_name_that_is_like_two_tools_is_none_of_them() {
        let graph = graph(&["hub 1: a_b ab end", "a_b: end", "ab: end"]);
        let offered = graph.tools(&graph.nodes[0]);
        assert_eq!(find(&offered, "TransferToAB"), None);
        assert_eq!(find(&offered, "transfer_to_ab").map(|tool| tool.output.as_str()), Some("ab"));
    }

    #[test]
    fn a_long_description_is_cut_at_512_characters() {
        let mut graph = graph(&["a 1: b end", "b: end"]);
        graph.nodes[1].description = "ä".repeat(1000);
        assert_eq!(graph.tools(&graph.nodes[0])[0].description.chars().count(), 512);
    }

    proptest! {
        #[test]
        fn names_of_any_ids_are_valid_and_differ(ids in prop::collection::btree_set("[a-z][a-z._-]{0,50}", 2..20)) {
            let ids: Vec<String> = ids.into_iter().filter(|id| id != END).collect();
            let lines: Vec<String> = ids.iter().map(|id| format!("{id} 1: {}", ids.join(" "))).collect();
            let graph = graph(&lines.iter().map(String::as_str).collect::<Vec<_>>());
            let found = names(&graph, 0);
            prop_assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), ids.len());
            for name in found {
                prop_assert!(name.len() <= TOOL_NAME_LENGTH_MAX);
                prop_assert!(name.chars().all(|it| it.is_ascii_alphanumeric() || it == '_' || it == '-'));
            }
        }
    }
}
