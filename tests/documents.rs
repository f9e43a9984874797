//! Documents agree with the code: the tests that docs/security.md names exist, each alert has its section, the sample
//! configuration has every key, the specification has every section that is cited, links resolve, commands exist, and
//! so do the tests that the limits of nextest name.
//! Comments and pages use plain words.

#[path = "documents/alerts.rs"]
mod alerts;
#[path = "documents/commands.rs"]
mod commands;
#[path = "documents/links.rs"]
mod links;
#[path = "documents/nextest.rs"]
mod nextest;
#[path = "documents/pages.rs"]
mod pages;
#[path = "documents/prose.rs"]
mod prose;
mod suite;

use std::{
    fs,
    path::{Path, PathBuf},
};

use baton::config::Config;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(sources(&path)),
            false => found.push(path),
        }
    }
    found.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    found
}

/// The sources of the broker, of the conformance suite and of the client's crate.
fn library() -> Vec<PathBuf> {
    ["src", "crates", "clients/rust/src"].iter().flat_map(|folder| sources(&root().join(folder))).collect()
}

/// Whether `cargo test` with these words would run a test: `process access::agents_read`, `--lib jwt`, `damage`.
fn is_there(words: &str) -> bool {
    let (target, filter) = words.split_once(' ').unwrap_or((words, ""));
    let files = match target {
        "--lib" => library(),
        // The test of several processes lies with the others of a cluster.
        "process" => [sources(&root().join("tests/process")), vec![root().join("tests/cluster/processes.rs")]].concat(),
        target => {
            let singles = ["tests", "tests/cluster"].map(|folder| root().join(folder).join(format!("{target}.rs")));
            let single = singles.into_iter().find(|path| path.exists());
            single.map_or_else(|| sources(&root().join("tests").join(target)), |single| vec![single])
        }
    };
    let last = filter.rsplit("::").next().unwrap_or_default();
    let is_module = |file: &PathBuf| file.file_stem().is_some_and(|stem| *stem == *last);
    let has_test = |file: &PathBuf| fs::read_to_string(file).unwrap().contains(&format!("fn {last}"));
    !files.is_empty() && (last.is_empty() || files.iter().any(|file| is_module(file) || has_test(file)))
}

#[test]
fn each_package_has_the_licence() {
    let licence = fs::read(root().join("LICENSE")).unwrap();
    for client in ["python", "typescript", "go", "java", "rust"] {
        let copy = fs::read(root().join("clients").join(client).join("LICENSE"));
        assert_eq!(copy.ok().as_ref(), Some(&licence), "clients/{client}/LICENSE is not the repository's");
    }
}

#[test]
fn each_attack_has_its_test() {
    let text = fs::read_to_string(root().join("docs/security.md")).unwrap();
    let (_, table) = text.split_once("| attack | answer | test |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let rows: Vec<&str> = table.lines().skip(2).filter(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 30, "{} rows", rows.len());
    for row in rows {
        let tests = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap().trim();
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty() || tests == "the same", "{row}");
        for words in named {
            assert!(is_there(words), "{words:?} is no test: {row}");
        }
    }
}

#[test]
fn each_case_of_the_conformance_suite_is_in_its_table() {
    let text = fs::read_to_string(root().join("docs/conformance.md")).unwrap();
    let (_, table) = text.split_once("| case | SPEC | rule |\n|---|---|---|\n").unwrap();
    let table = table.split("\n\n").next().unwrap().trim_end();
    let row = |rule: &baton_conformance::report::Rule| {
        format!("| `{}` | {} | {} |", rule.name, rule.spec.join(", "), rule.rule.replace('|', "\\|"))
    };
    let rows: Vec<String> = baton_conformance::target::cases().iter().map(|case| row(&case.rule)).collect();
    assert!(table.lines().eq(rows.iter()), "the table in docs/conformance.md is to be:\n{}", rows.join("\n"));
}

#[test]
fn each_row_of_agent_restarts_is_tried() {
    let text = fs::read_to_string(root().join("docs/agent-restarts.md")).unwrap();
    let (steps, tried) = text.split_once("| row | scenario | case |\n|---|---|---|\n").unwrap();
    let rows: Vec<&str> = tried.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    let (_, steps) = steps.split_once("## When the sender dies").unwrap();
    let is_step = |line: &&str| line.starts_with("| ") && !line.starts_with("| where");
    let described: Vec<&str> = steps.lines().filter(is_step).filter_map(|line| line[2..].split(" | ").next()).collect();
    assert_eq!(described, rows);
    let targets = baton_conformance::target::cases().into_iter().map(|case| case.rule.name);
    let clients = baton_conformance::client::cases().into_iter().map(|case| case.name.to_owned());
    let known: Vec<String> = targets.chain(clients).collect();
    for name in tried.split('`').skip(1).step_by(2) {
        assert!(known.iter().any(|known| known == name), "{name} is no case");
    }
}

#[test]
fn names_of_cases_are_unique_and_begin_with_what_they_are_about() {
    let mut names: Vec<String> = baton_conformance::target::cases().into_iter().map(|case| case.rule.name).collect();
    let many = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), many);
    for name in names {
        let (about, what) = name.split_once('.').unwrap();
        let is_kebab = |part: &str| part.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        assert!(is_kebab(about) && is_kebab(what), "{name}");
    }
}

#[test]
fn the_sample_configuration_has_every_key_with_its_default() {
    let path = root().join("deploy/baton.toml");
    let sample = fs::read_to_string(&path).unwrap();
    let config = Config::parse(&path, &sample).unwrap().to_toml();
    // A default is a comment without a space before its key.
    let is_default = |line: &&str| line.starts_with(|first: char| first.is_ascii_lowercase());
    let uncommented: Vec<&str> =
        sample.lines().map(|line| line.strip_prefix('#').filter(is_default).unwrap_or(line)).collect();
    let uncommented = uncommented.join("\n");
    assert_eq!(Config::parse(&path, &uncommented).unwrap().to_toml(), config, "each comment has the default");
    let keys = keys_of(&uncommented);
    for key in keys_of(&config) {
        assert!(keys.contains(&key), "{key} is not in deploy/baton.toml");
    }
    for key in [
        "client_ca",
        "client_crl",
        "[policy]",
        "path",
        "[operators]",
        "keys",
        "audience",
        "issuer",
        "leeway",
        "groups_claim",
        "server",
        "ca",
        "tls_cert",
        "tls_key",
        "[cluster]",
        "broker",
        "log",
        "log_endpoint",
        "log_region",
        "log_allow_http",
        "peer_listen",
        "peer_address",
        "lease",
        "log_keep",
        "log_bytes_max",
    ] {
        assert!(sample.lines().any(|line| line.starts_with(&format!("# {key}"))), "{key} is not in deploy/baton.toml");
    }
}

/// The keys of a configuration, each with its section: `handoff.accept_timeout`.
fn keys_of(text: &str) -> Vec<String> {
    let mut keys = Vec::new();
    for (name, value) in toml::from_str::<toml::Table>(text).unwrap() {
        match value {
            toml::Value::Table(section) => keys.extend(section.keys().map(|key| format!("{name}.{key}"))),
            _ => keys.push(name),
        }
    }
    keys
}

/// The numbers that follow a word in a text: of `SPEC 3` and `SPEC 12`, 3 and 12.
fn numbers_after(text: &str, word: &str) -> Vec<u32> {
    let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>();
    text.split(word).skip(1).filter_map(|rest| digits(rest).parse().ok()).collect()
}

#[test]
fn each_section_of_the_specification_that_is_cited_is_there() {
    let specification = fs::read_to_string(root().join("docs/specification.md")).unwrap();
    let (_, laws) = specification.split_once("\n## 12. ").unwrap();
    let (laws, _) = laws.split_once("\n## ").unwrap();
    let mut cited = 0;
    for file in
        ["src", "crates", "tests", "examples", "clients/rust"].iter().flat_map(|folder| sources(&root().join(folder)))
    {
        let text = fs::read_to_string(&file).unwrap();
        for section in numbers_after(&text, "SPEC ") {
            cited += 1;
            let heading = format!("\n## {section}. ");
            assert!(specification.contains(&heading), "{} cites SPEC {section}", file.display());
        }
        for law in numbers_after(&text, "SPEC 12, law ") {
            assert!(laws.contains(&format!("\n{law}. ")), "{} cites law {law}", file.display());
        }
    }
    assert!(cited > 30, "{cited} citations");
}

/// Proptest writes the input of a failure into a file of the checkout, to be committed: for `src` and for a test with a
/// `main.rs` by itself, for a test of one file where the test says so.
#[test]
fn finds_of_proptest_have_a_file_that_git_does_not_ignore() {
    assert!(!fs::read_to_string(root().join(".gitignore")).unwrap().contains("proptest-regressions"));
    for entry in fs::read_dir(root().join("tests")).unwrap() {
        let path = entry.unwrap().path();
        let text = if path.is_file() { fs::read_to_string(&path).unwrap_or_default() } else { String::new() };
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if text.contains("\nproptest! {") {
            assert!(text.contains(&format!("/tests/proptest-regressions/{name}.txt")), "{}", path.display());
        }
    }
}

#[test]
fn comments_use_plain_words() {
    let list = include_str!("vague_words.txt");
    let vague: Vec<&str> = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let (mut words, mut found) = (0, Vec::new());
    for file in library() {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for line in code.lines().map(str::trim).filter(|line| line.starts_with("//")) {
            let line: Vec<String> =
                line.split(|letter: char| !letter.is_alphanumeric()).map(str::to_lowercase).collect();
            let line: Vec<&str> = line.iter().map(String::as_str).filter(|word| !word.is_empty()).collect();
            words += line.len();
            let padded = format!(" {} ", line.join(" "));
            let of_line = vague.iter().filter(|phrase| padded.contains(&format!(" {phrase} ")));
            found.extend(of_line.map(|phrase| format!("{}: {phrase}:{padded}", file.display())));
        }
    }
    assert!(found.len() * 1000 <= 4 * words, "{} in {words} words:\n{}", found.len(), found.join("\n"));
}

#[test]
fn a_test_that_is_not_there_is_found_out() {
    assert!(is_there("damage") && is_there("process access") && is_there("--lib jwt"));
    assert!(!is_there("process access::no_such_test") && !is_there("no_such_target"));
}
