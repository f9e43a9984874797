//! The `baton` commands in the code blocks of the pages name subcommands and flags that exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use super::{
    pages::{Line, Page, pages},
    root,
};

/// What `--help` says of a command.
#[derive(Default)]
struct Help {
    subcommands: BTreeSet<String>,
    /// Each flag, and whether it takes a value.
    flags: BTreeMap<String, bool>,
}

/// The headings of the lists of subcommands: of a command, and the groups of the first page.
const SECTIONS: [&str; 5] = ["Commands:", "Every day:", "Work of many:", "Operate:", "Tools:"];

impl Help {
    fn of(path: &[String]) -> Self {
        if path.first().is_some_and(|command| command == "conformance") {
            super::suite::built(); // its help is that of the program
        }
        let output = Command::new(env!("CARGO_BIN_EXE_baton")).args(path).arg("--help").output().unwrap();
        Self::parse(&String::from_utf8(output.stdout).unwrap())
    }

    fn parse(text: &str) -> Self {
        let mut help = Self::default();
        let mut section = "";
        for line in text.lines() {
            if !line.starts_with(' ') && !line.is_empty() {
                section = line;
            }
            let is_item = line.starts_with("  ") && line.as_bytes().get(2).is_some_and(u8::is_ascii_lowercase);
            if SECTIONS.contains(&section) && is_item {
                help.subcommands.extend(line.split_whitespace().next().map(str::to_owned));
            }
            let line = line.trim_start();
            if line.starts_with('-') {
                let takes_value = line.contains(" <");
                let flags = line.split([',', ' ']).take_while(|word| word.is_empty() || word.starts_with('-'));
                let flags = flags.filter(|word| !word.is_empty());
                help.flags.extend(flags.map(|flag| (flag.to_owned(), takes_value)));
            }
        }
        help
    }
}

/// The command lines in the code blocks of a page: of blocks `sh`, of the prompts of blocks `console`, and of indented
/// blocks. Lines that end with a backslash are joined.
fn command_lines(page: &Page) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut joined = String::new();
    for (number, line) in page.lines() {
        let code = match line {
            Line::Code("sh", line) => Some(line),
            Line::Code("console", line) => line.strip_prefix("$ "),
            Line::Prose(line) => line.strip_prefix("    "),
            Line::Code(..) | Line::Fence => None,
        };
        let Some(code) = code else { continue };
        joined.push_str(code);
        if joined.ends_with('\\') {
            joined.pop();
            continue;
        }
        found.push((number, std::mem::take(&mut joined)));
    }
    found
}

/// The calls of `baton` in a command line, each as its arguments. Quotes are taken off, and a comment is left out.
fn calls(line: &str) -> Vec<Vec<String>> {
    let line = line.split(" # ").next().unwrap_or_default();
    let is_assignment = |word: &str| word.split_once('=').is_some_and(|(name, _)| !name.contains('-'));
    let is_prefix = |word: &&str| is_assignment(word) || ["sudo", "-u", "export", "then", "do", "if"].contains(word);
    let mut calls = Vec::new();
    for part in line.replace("$(", "|").split(['|', '&', ';', '(', ')', '`']) {
        let part = part.replace(['"', '\''], " ");
        let words: Vec<&str> = part.split_whitespace().collect();
        let sudo = words.windows(2).any(|pair| pair[0] == "-u" && pair[1] == "baton");
        let mut words = words.into_iter().skip_while(is_prefix);
        if sudo {
            words.next();
        }
        if words.next().is_some_and(|program| program == "baton" || program == "baton-new") {
            calls.push(words.map(str::to_owned).collect());
        }
    }
    calls
}

/// What is wrong with a call, if anything is.
fn problem(call: &[String], helps: &mut BTreeMap<Vec<String>, Help>) -> Option<String> {
    let mut path: Vec<String> = Vec::new();
    let mut words = call.iter();
    let mut has_argument = false;
    while let Some(word) = words.next() {
        let help = helps.entry(path.clone()).or_insert_with_key(|path| Help::of(path));
        if word == "--" {
            // What follows is the command of another program.
            return None;
        }
        if word.starts_with('-') && word.len() > 1 {
            let (flag, value) = word.split_once('=').map_or((word.as_str(), None), |(flag, value)| (flag, Some(value)));
            match help.flags.get(flag) {
                None => return Some(format!("baton {} has no flag {flag}", path.join(" "))),
                Some(true) if value.is_none() => drop(words.next()),
                Some(_) => {}
            }
        } else if !has_argument && help.subcommands.contains(word) {
            path.push(word.clone());
        } else if !has_argument && !help.subcommands.is_empty() {
            return Some(format!("baton {} has no subcommand {word}", path.join(" ")));
        } else {
            has_argument = true;
        }
    }
    None
}

#[test]
fn each_command_of_a_page_exists() {
    let mut helps = BTreeMap::new();
    let (mut count, mut wrong) = (0, Vec::new());
    for page in pages(root()) {
        for (number, line) in command_lines(&page) {
            for call in calls(&line) {
                count += 1;
                let found = problem(&call, &mut helps);
                wrong.extend(found.map(|why| format!("{}:{number}: {why}", page.path.display())));
            }
        }
    }
    assert!(count > 60, "{count} commands");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let mut helps = BTreeMap::new();
    let mut check = |line: &str| calls(line).iter().find_map(|call| problem(call, &mut helps));
    assert_eq!(check("sudo -u baton baton serve --config baton.toml --check   # prints it"), None);
    assert_eq!(check("BATON_CA=ca.pem baton --token \"$(baton token --id a --key a.pem)\" task list"), None);
    assert_eq!(check("grpcurl -d @ && echo baton talks"), None);
    assert_eq!(check("baton dlq mend 7").as_deref(), Some("baton dlq has no subcommand mend"));
    assert_eq!(check("true | baton dlq list --purple").as_deref(), Some("baton dlq list has no flag --purple"));
}
