//! Links of the pages lead to files and headings that exist, and so do the names of pages in sources.

use std::path::Path;

use super::{
    pages::{Page, files, pages},
    root,
};

/// The targets of the links in a line of prose.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// Why a link of a page leads nowhere, if it does.
fn problem(page: &Page, target: &str) -> Option<&'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { page.path.clone() } else { page.path.parent()?.join(file) };
    if !path.exists() {
        return Some("no file");
    }
    let is_there = anchor.is_empty() || Page::read(path).anchors().iter().any(|known| known == anchor);
    if is_there { None } else { Some("no heading") }
}

#[test]
fn each_link_of_a_page_resolves() {
    let (mut links, mut broken) = (0, Vec::new());
    for page in pages(root()) {
        for (number, line) in page.prose() {
            for target in targets(&line) {
                links += 1;
                let found = problem(&page, target);
                broken.extend(found.map(|why| format!("{}:{number}: {target}: {why}", page.path.display())));
            }
        }
    }
    assert!(links > 150, "{links} links");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn each_page_that_a_source_names_is_there() {
    let is_source = |path: &Path| {
        let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
        ["rs", "proto", "toml", "md", "py", "go", "ts", "java", "sh"].contains(&end)
    };
    let (mut names, mut missing) = (0, Vec::new());
    for path in files(root()).into_iter().filter(|path| is_source(path)) {
        let text = std::fs::read_to_string(&path).unwrap();
        // A longer path or address that ends in docs/ is of another place.
        for (at, _) in text.match_indices("docs/").filter(|(at, _)| !text[..*at].ends_with('/')) {
            let is_of_name = |letter: &char| letter.is_ascii_alphanumeric() || "-_/.".contains(*letter);
            let name: String = text[at..].chars().take_while(is_of_name).collect();
            let Some((name, _)) = name.split_once(".md") else { continue };
            names += 1;
            if !root().join(format!("{name}.md")).exists() {
                missing.push(format!("{}: {name}.md", path.display()));
            }
        }
    }
    assert!(names > 100, "{names} names");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let path = root().join("docs/README.md");
    let page = Page { path, text: String::new() };
    assert_eq!(targets("[a](b.md), [c](d#e) and (f)").collect::<Vec<_>>(), ["b.md", "d#e"]);
    assert_eq!(problem(&page, "https://example.com/x"), None);
    assert_eq!(problem(&page, "errors.md#stale_epoch"), None);
    assert_eq!(problem(&page, "errors.md#no-such-heading"), Some("no heading"));
    assert_eq!(problem(&page, "no-such-page.md"), Some("no file"));
}
