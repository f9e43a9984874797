//! The groups and limits of nextest name tests that are there, and end a test that hangs.

use std::{fs, path::Path};

use super::{is_there, library, root, sources};

fn config() -> toml::Table {
    toml::from_str(&fs::read_to_string(root().join(".config/nextest.toml")).unwrap()).unwrap()
}

/// Whether a source below `tests` or a crate is this module, or in its folder.
fn is_module(name: &str) -> bool {
    let is_it = |path: &Path| path.with_extension("").iter().any(|part| part == name);
    library().iter().chain(&sources(&root().join("tests"))).any(|path| is_it(path))
}

#[test]
fn a_filter_names_a_test_program_or_a_module() {
    let config = config();
    for group in config["profile"]["default"]["overrides"].as_array().unwrap() {
        let filter = group["filter"].as_str().unwrap();
        for part in filter.split(['&', '|']).map(str::trim) {
            let program = part.strip_prefix("binary(").and_then(|part| part.strip_suffix(')'));
            let module = part.strip_prefix("test(/^").and_then(|part| part.strip_suffix("::/)"));
            let is_known = program.is_some_and(is_there) || module.is_some_and(is_module);
            assert!(is_known, "{part} of {filter} names no test");
        }
        if let Some(name) = group.get("test-group") {
            assert!(config["test-groups"].get(name.as_str().unwrap()).is_some(), "{name} is no group");
        }
    }
}

#[test]
fn a_test_that_hangs_ends_after_three_minutes() {
    let config = config();
    let limit = &config["profile"]["default"]["slow-timeout"];
    let period = limit["period"].as_str().unwrap().strip_suffix('s').unwrap().parse::<i64>().unwrap();
    assert_eq!(period * limit["terminate-after"].as_integer().unwrap(), 180);
}
