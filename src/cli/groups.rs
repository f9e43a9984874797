//! The groups of the commands on the first page of help.

use std::fmt::Write as _;

use clap::Command;

/// The groups in their order, and the commands of each.
pub(super) const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Every day",
        &["dev", "demo", "inbox", "console", "handoff", "task", "mail", "context", "agent", "mcp", "keygen", "profile"],
    ),
    ("Work of many", &["plan", "negotiation", "workspace", "blob", "thread", "graph", "run", "spec", "schema"]),
    (
        "Operate",
        &["serve", "cluster", "gateway", "a2a", "status", "health", "top", "dlq", "audit", "policy", "backup", "store"],
    ),
    ("Tools", &["token", "envelope", "bench", "conformance", "completions", "manual", "version", "help"]),
];

/// The columns of a command's name.
const NAME_WIDTH: usize = 13;

/// The same command, whose help lists its subcommands in groups. The parser of this library knows no groups, so the list
/// is a part of the template, and the subcommands are hidden from the list that it would print.
pub(super) fn grouped(root: Command) -> Command {
    let mut list = String::new();
    for (group, names) in GROUPS {
        write!(list, "\n\u{1b}[1m\u{1b}[4m{group}:\u{1b}[0m\n").expect("a text grows");
        for name in names {
            let about = root.find_subcommand(name).and_then(|command| command.get_about().map(ToString::to_string));
            let about = about.unwrap_or_else(|| "Print this page, or the page of a command".to_owned());
            // The first sentence is enough for a list, and the page of the command has the rest.
            let about = about.split(". ").next().unwrap_or_default();
            writeln!(list, "  \u{1b}[1m{name:<NAME_WIDTH$}\u{1b}[0m{about}").expect("a text grows");
        }
    }
    let template = format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{list}\n{{all-args}}{{after-help}}"
    );
    root.override_usage("baton [OPTIONS] <COMMAND>")
        .mut_subcommands(|command| command.hide(true))
        .help_template(template)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn each_command_is_in_one_group() {
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut root = Cli::command();
        root.build();
        let commands: BTreeSet<&str> = root.get_subcommands().map(Command::get_name).collect();
        assert_eq!(grouped.len(), commands.len(), "a command is in two groups");
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), commands);
        assert!(grouped.iter().all(|name| name.len() < NAME_WIDTH - 1));
    }

    #[test]
    fn the_first_page_lists_each_group_and_its_commands() {
        let page = grouped(Cli::command()).render_long_help().to_string();
        for (group, names) in GROUPS {
            let (_, rest) = page.split_once(&format!("\n{group}:\n")).expect("each group has a heading");
            let list: Vec<&str> = rest.lines().map_while(|line| line.split_whitespace().next()).collect();
            assert_eq!(list, names, "{page}");
        }
        assert!(!page.contains("\nCommands:"), "{page}");
    }
}
