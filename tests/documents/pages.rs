//! The Markdown pages of the repository, and the parts of one.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Names of folders that builds and package managers create.
const GENERATED: [&str; 6] = ["target", "node_modules", "build", "dist", "baton-data", "tutorial"];

/// A page.
pub(super) struct Page {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// A line of a page.
pub(super) enum Line<'a> {
    Prose(&'a str),
    /// A line in a fenced block, with the language of the block.
    Code(&'a str, &'a str),
    /// The first or last line of a fenced block.
    Fence,
}

impl Page {
    pub(super) fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap();
        Self { path, text }
    }

    /// The lines with their numbers from 1 on.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, Line<'_>)> {
        let mut language = None;
        self.text.lines().enumerate().map(move |(index, line)| {
            let kind = match (line.trim_start().strip_prefix("```"), language) {
                (Some(_), Some(_)) => {
                    language = None;
                    Line::Fence
                }
                (Some(opened), None) => {
                    language = Some(opened.trim());
                    Line::Fence
                }
                (None, Some(language)) => Line::Code(language, line),
                (None, None) => Line::Prose(line),
            };
            (index + 1, kind)
        })
    }

    /// The prose with each code span blanked, line by line.
    pub(super) fn prose(&self) -> impl Iterator<Item = (usize, String)> {
        self.lines().filter_map(|(number, line)| match line {
            Line::Prose(line) => Some((number, line.split('`').step_by(2).collect::<Vec<_>>().join(" "))),
            Line::Code(..) | Line::Fence => None,
        })
    }

    /// The anchors of the headings, as GitHub makes them.
    pub(super) fn anchors(&self) -> Vec<String> {
        let mut anchors: Vec<String> = Vec::new();
        for (_, line) in self.lines() {
            let Line::Prose(line) = line else { continue };
            let Some((_, heading)) =
                line.split_once("# ").filter(|(hashes, _)| hashes.bytes().all(|byte| byte == b'#'))
            else {
                continue;
            };
            let anchor = anchor(heading);
            let again = anchors.iter().filter(|known| **known == anchor).count();
            anchors.push(if again == 0 { anchor } else { format!("{anchor}-{again}") });
        }
        anchors
    }
}

fn anchor(heading: &str) -> String {
    let kept = |letter: char| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter => letter.is_alphanumeric().then_some(letter),
    };
    heading.trim().to_lowercase().chars().filter_map(kept).collect()
}

/// All pages below a folder, without those of generated and hidden folders.
pub(super) fn pages(folder: &Path) -> Vec<Page> {
    files(folder).into_iter().filter(|path| path.extension().is_some_and(|end| end == "md")).map(Page::read).collect()
}

/// All files below a folder, without those of generated and hidden folders.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_symlink() || name.starts_with('.') {
            continue;
        }
        match path.is_dir() {
            true if GENERATED.contains(&name) => {}
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

#[test]
fn anchors_are_those_of_github() {
    let text = "# A: `b-c`, d_e\n## Attacks, and answers\n```sh\n# no heading\n```\n## A: b-c, d_e\n#tag\n".to_owned();
    let page = Page { path: PathBuf::new(), text };
    assert_eq!(page.anchors(), ["a-b-c-d_e", "attacks-and-answers", "a-b-c-d_e-1"]);
}
