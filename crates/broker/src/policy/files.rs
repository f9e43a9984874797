//! Policy files: reads them, and gives each rule an id that shows its origin.

use std::{
    io,
    path::{Path, PathBuf},
    str::FromStr as _,
};

use cedar_policy::{PolicyId, PolicySet};

use super::depth::{DEPTH_MAX, too_deep};

/// A policy file, or a built-in policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The name, for messages.
    pub name: String,
    /// The text of the policy.
    pub text: String,
}

/// The reason why policies are refused.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// A file or folder cannot be read.
    #[error("failed to read the policy {}: {problem}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        problem: io::Error,
    },
    /// A folder contains no policy.
    #[error("{} has no policy file; the names of policy files end in .cedar", path.display())]
    Empty {
        /// The path of the folder.
        path: PathBuf,
    },
    /// The operating system gives no thread to check the policies on.
    #[error("failed to start a thread that checks the policies: {0}")]
    Thread(io::Error),
    /// The problems found, one line each.
    #[error("the policy is not valid:\n  {}", .0.join("\n  "))]
    Problems(Vec<String>),
}

impl Source {
    /// A source with this name and text.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into() }
    }

    /// Reads a file, or all `*.cedar` files of a folder in the order of their names.
    pub fn read(path: &Path) -> Result<Vec<Self>, PolicyError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |problem| PolicyError::Read { path, problem }
        };
        let files = Self::files(path)?;
        let read = |file: &PathBuf| {
            let text = std::fs::read_to_string(file).map_err(failed(file))?;
            let name = file.file_name().unwrap_or(file.as_os_str());
            Ok(Self::new(name.to_string_lossy(), text))
        };
        files.iter().map(read).collect()
    }

    /// The files that [`Self::read`] reads.
    pub fn files(path: &Path) -> Result<Vec<PathBuf>, PolicyError> {
        let failed = |problem| PolicyError::Read { path: path.to_owned(), problem };
        if !std::fs::metadata(path).map_err(failed)?.is_dir() {
            return Ok(vec![path.to_owned()]);
        }
        let entries = std::fs::read_dir(path).map_err(failed)?;
        let paths: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
        let mut paths = paths.map_err(failed)?;
        paths.retain(|file| file.extension().is_some_and(|extension| extension == "cedar"));
        // `read_dir` has no order, and the digest of the policies depends on it.
        paths.sort();
        if paths.is_empty() {
            return Err(PolicyError::Empty { path: path.to_owned() });
        }
        Ok(paths)
    }
}

/// Parses all rules. A rule's id is its `@id`, or its file and its place there.
pub(super) fn parse(sources: &[Source]) -> Result<PolicySet, PolicyError> {
    let mut all = PolicySet::new();
    let mut problems = Vec::new();
    for source in sources {
        if let Some(line) = too_deep(&source.text) {
            problems.push(format!(
                "{}, line {line}: an expression has over {DEPTH_MAX} levels: brackets, and operators in a row, are counted; use \
                 a set, or split the rule",
                source.name
            ));
            continue;
        }
        let parsed = match PolicySet::from_str(&source.text) {
            Ok(parsed) => parsed,
            Err(errors) => {
                problems.extend(errors.iter().map(|error| explain(source, error)));
                // The other sources are parsed all the same, so that one report has all problems.
                continue;
            }
        };
        if parsed.templates().next().is_some() {
            problems.push(format!(
                "{}: has a template (?principal or ?resource), which baton does not instantiate",
                source.name
            ));
        }
        let mut rules: Vec<_> = parsed.policies().cloned().collect();
        // Cedar names the rules policy0, policy1 and so on, in the order of the file.
        rules.sort_by_key(|rule| rule.id().to_string().trim_start_matches("policy").parse::<usize>().unwrap_or(0));
        for (place, rule) in rules.into_iter().enumerate() {
            let id = match rule.annotation("id") {
                Some(id) if !id.is_empty() => id.to_owned(),
                Some(_) | None => format!("{} rule {}", source.name, place + 1),
            };
            if all.add(rule.new_id(PolicyId::new(&id))).is_err() {
                problems.push(format!("{}: the id {id:?} is used twice", source.name));
            }
        }
    }
    if problems.is_empty() { Ok(all) } else { Err(PolicyError::Problems(problems)) }
}

/// An error with its line; Cedar reports only an offset in the text.
fn explain(source: &Source, error: &(impl miette::Diagnostic + ?Sized)) -> String {
    let place = error.labels().and_then(|mut labels| labels.next()).map(|label| label.offset());
    let line = place.map(|place| source.text.bytes().take(place).filter(|byte| *byte == b'\n').count() + 1);
    match line {
        Some(line) => format!("{}, line {line}: {error}", source.name),
        None => format!("{}: {error}", source.name),
    }
}
