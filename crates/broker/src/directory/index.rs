//! The indexes of the directory: the agents with a type, a skill, a tag, a language or a task type, so that a lookup
//! among many agents does not scan all of them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::Entry;
use crate::ids::AgentId;

/// The agents under one name, in the order of their ids.
pub(super) type Set = BTreeMap<AgentId, Arc<Entry>>;

/// The part of a card that a name is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Type,
    Skill,
    Tag,
    Language,
    TaskType,
}

/// The agents to look up: an agent has to match every field with a value.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter<'a> {
    /// The type of the agents. Empty: any.
    pub agent_type: &'a str,
    /// Dotted names of skills that the agents have, by the same or a more specific name.
    pub skills: &'a [String],
    /// Tags that skills of the agents list.
    pub tags: &'a [String],
    /// Languages that skills of the agents list.
    pub languages: &'a [String],
    /// The task type that a skill of the agents lists. Empty: any.
    pub task_type: &'a str,
}

impl<'a> Filter<'a> {
    fn terms(self) -> impl Iterator<Item = (Part, &'a str)> {
        let one = |part, name: &'a str| (!name.is_empty()).then_some((part, name));
        let all = |part, names: &'a [String]| names.iter().map(move |name| (part, name.as_str()));
        let single = [one(Part::Type, self.agent_type), one(Part::TaskType, self.task_type)];
        let skills = all(Part::Skill, self.skills);
        let listed = all(Part::Tag, self.tags).chain(all(Part::Language, self.languages));
        single.into_iter().flatten().chain(skills).chain(listed)
    }
}

/// The agents that a lookup has to examine.
pub(super) enum Selected<'a> {
    /// Every agent: the filter is empty.
    All,
    /// The agents of one set, which has all matches.
    Of(&'a Set),
    /// No agent matches.
    Nothing,
}

/// The indexes. See the module.
#[derive(Debug, Default)]
pub(super) struct Index {
    sets: [HashMap<Box<str>, Set>; 5],
}

impl Index {
    pub(super) fn insert(&mut self, entry: &Arc<Entry>) {
        for (part, name) in terms_of(entry) {
            let names = &mut self.sets[part as usize];
            // Only a new name is copied.
            match names.get_mut(name) {
                Some(set) => set,
                None => names.entry(name.into()).or_default(),
            }
            .insert(entry.id.clone(), entry.clone());
        }
    }

    pub(super) fn remove(&mut self, entry: &Entry) {
        for (part, name) in terms_of(entry) {
            let names = &mut self.sets[part as usize];
            let Some(set) = names.get_mut(name) else { continue };
            set.remove(&entry.id);
            // Otherwise cards that come and go would leave an entry for each name ever used.
            if set.is_empty() {
                names.remove(name);
            }
        }
    }

    /// The smallest set that has all agents which match the filter.
    pub(super) fn select(&self, filter: Filter<'_>) -> Selected<'_> {
        let mut smallest: Option<&Set> = None;
        for (part, name) in filter.terms() {
            match self.sets[part as usize].get(name) {
                // All terms must match, so one name without agents decides.
                None => return Selected::Nothing,
                Some(set) if smallest.is_none_or(|smallest| set.len() < smallest.len()) => smallest = Some(set),
                Some(_) => {}
            }
        }
        smallest.map_or(Selected::All, Selected::Of)
    }

    /// Whether an agent is under every name of the filter.
    pub(super) fn matches(&self, agent: &AgentId, filter: Filter<'_>) -> bool {
        filter.terms().all(|(part, name)| self.sets[part as usize].get(name).is_some_and(|set| set.contains_key(agent)))
    }
}

/// The names that an agent is found under, each once. A deregistered agent has none.
fn terms_of(entry: &Entry) -> BTreeSet<(Part, &str)> {
    let mut terms = BTreeSet::new();
    // So a lookup finds registered agents without a look at each record.
    if entry.record.deregistered_at.is_some() {
        return terms;
    }
    terms.extend(entry.types.iter().map(|name| (Part::Type, name.as_str())));
    for skill in &entry.record.card.skills {
        // An agent with a.b.c also has a.b and a.
        let general = skill.name.match_indices('.').map(|(end, _)| &skill.name[..end]);
        terms.extend(general.chain([skill.name.as_str()]).map(|name| (Part::Skill, name)));
        terms.extend(skill.tags.iter().map(|name| (Part::Tag, name.as_str())));
        terms.extend(skill.languages.iter().map(|name| (Part::Language, name.as_str())));
        terms.extend(skill.task_types.iter().map(|name| (Part::TaskType, name.as_str())));
    }
    terms
}
