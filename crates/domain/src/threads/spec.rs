//! The specs that threads run with: of agents and of models.

use std::{fmt, sync::Arc};

use crate::ids::SpecId;

/// The plugin that permits actions: it is among the plugins of the spec in force, and in its hook filter unless that is
/// empty.
pub const PLUGIN: &str = "agent_handoff";
/// The most specs of each kind in the registry.
pub const SPECS_MAX: usize = 1000;
/// The most revisions of one spec.
pub const REVISIONS_MAX: u64 = 1000;
/// The most plugins of a spec, and the most entries of its hook filter.
pub const PLUGINS_MAX: usize = 64;

/// The kinds of specs. Each kind has its own names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpecKind {
    /// A persona: a prompt, tools and plugins, and the spec of a model.
    Agent,
    /// A model with its parameters.
    Model,
}

impl SpecKind {
    /// The kind as a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Model => "model",
        }
    }
}

/// One revision of a spec. A revision never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Whether the spec is of an agent or of a model.
    pub kind: SpecKind,
    /// The id, one name for all revisions.
    pub id: SpecId,
    /// The revision, starting at 1; 0 before the registration.
    pub revision: u64,
    /// Agent specs only: the spec of the model.
    pub model: Option<SpecId>,
    /// Agent specs only: the plugins, each once, at most [`PLUGINS_MAX`].
    pub plugins: Vec<String>,
    /// Agent specs only: the plugins whose hooks run. Empty: all.
    pub hook_filter: Vec<String>,
    /// The whole spec in an encoding that no rule reads.
    pub content: Arc<[u8]>,
}

impl Spec {
    /// The list that lacks the plugin which permits actions. `None`: actions are permitted.
    pub fn missing_in(&self) -> Option<&'static str> {
        let has = |list: &[String]| list.iter().any(|name| name == PLUGIN);
        if !has(&self.plugins) {
            return Some("plugin_ids");
        }
        // An empty filter lets every plugin pass.
        (!self.hook_filter.is_empty() && !has(&self.hook_filter)).then_some("hook_filter")
    }
}

/// The reason why a spec does not resolve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unresolved {
    /// No spec has the id.
    NoSpec,
    /// The spec names an unregistered model.
    NoModel,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::NoSpec => "no spec",
            Self::NoModel => "no model",
        })
    }
}
