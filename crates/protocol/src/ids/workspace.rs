//! The ids of workspaces, and the topics of their entries.

use std::{fmt, sync::Arc};

use super::{IdError, NAME_LENGTH_MAX, check_name};

/// The kinds of owners of a workspace. A workspace exists with its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkspaceOwner {
    /// A task.
    Task,
    /// A plan.
    Plan,
    /// A thread.
    Thread,
    /// A run of a graph.
    Run,
}

impl WorkspaceOwner {
    const ALL: [Self; 4] = [Self::Task, Self::Plan, Self::Thread, Self::Run];

    /// The prefix in the ids of its workspaces, without the colon.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Plan => "plan",
            Self::Thread => "thread",
            Self::Run => "run",
        }
    }
}

/// The id of a workspace: the kind of its owner, a colon, and the owner's id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkspaceId {
    // First, because ids are in the order of their texts.
    text: Arc<str>,
    owner: WorkspaceOwner,
}

impl WorkspaceId {
    /// Parses the text of an id.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let (prefix, name) = text.split_once(':').ok_or(IdError::Workspace)?;
        let owner = WorkspaceOwner::ALL.into_iter().find(|owner| owner.prefix() == prefix);
        let owner = owner.ok_or(IdError::Workspace)?;
        check_name(name)?;
        Ok(Self { text: text.into(), owner })
    }

    /// The workspace of the owner with this id, which must be a name.
    pub fn of(owner: WorkspaceOwner, id: &str) -> Result<Self, IdError> {
        Self::parse(&format!("{}:{id}", owner.prefix()))
    }

    /// The kind of the owner, and the owner's id.
    pub fn owner(&self) -> (WorkspaceOwner, &str) {
        // After the prefix and the colon.
        (self.owner, &self.text[self.owner.prefix().len() + 1..])
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for WorkspaceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl fmt::Debug for WorkspaceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", &*self.text)
    }
}

/// A topic of a workspace, normalised (SPEC 8): trimmed, in lower case, each run of white space one `_`; then 1 to 128
/// letters, digits, `_`, `-` and `.`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Topic(Arc<str>);

impl Topic {
    /// Normalises a name. Fails if the result is empty, too long, or has another character.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let normal = text.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>().join("_");
        let is_permitted = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.');
        match normal.chars().count() {
            0 => Err(IdError::Topic),
            1..=NAME_LENGTH_MAX if normal.chars().all(is_permitted) => Ok(Self(normal.into())),
            1..=NAME_LENGTH_MAX => Err(IdError::Topic),
            _ => Err(IdError::TooLong),
        }
    }

    /// The normalised name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Topic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", &*self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_owner() {
        let id = WorkspaceId::parse("task:crash-7").unwrap();
        assert_eq!(id.owner(), (WorkspaceOwner::Task, "crash-7"));
        assert_eq!(WorkspaceId::of(WorkspaceOwner::Plan, "q3").unwrap().as_str(), "plan:q3");
        for bad in ["", "crash-7", "task:", "task:a:b", "team:x", "Task:x", ":x", "task:-x", "task: x"] {
            assert!(WorkspaceId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_are_in_the_order_of_their_texts() {
        let texts = ["plan:b", "run:a", "task:a", "task:b", "thread:a"];
        assert!(texts.map(|text| WorkspaceId::parse(text).unwrap()).is_sorted());
    }

    #[test]
    fn names_that_normalise_alike_are_one_topic() {
        for spelling in ["growth_metrics", "Growth Metrics", "  GROWTH \t\n metrics ", "growth\u{a0}metrics"] {
            assert_eq!(Topic::parse(spelling).unwrap().as_str(), "growth_metrics", "{spelling:?}");
        }
        assert_eq!(Topic::parse("ÄRGER Größe").unwrap().as_str(), "ärger_größe");
        assert_eq!(Topic::parse("任务.1-a").unwrap().as_str(), "任务.1-a");
    }

    #[test]
    fn a_name_that_is_no_topic_is_refused() {
        for empty in ["", " ", "\t\n"] {
            assert_eq!(Topic::parse(empty), Err(IdError::Topic), "{empty:?}");
        }
        for bad in ["a/b", "a:b", "a\0b", "a\u{7}", "a\u{200b}b", "🚀"] {
            assert_eq!(Topic::parse(bad), Err(IdError::Topic), "{bad:?}");
        }
        assert!(Topic::parse(&"é".repeat(128)).is_ok(), "letters count, not bytes");
        assert_eq!(Topic::parse(&"a".repeat(129)), Err(IdError::TooLong));
    }
}
