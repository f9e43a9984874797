//! Each alert has a section that says what to do, and leads there.

use std::fs;

use serde::Deserialize;

use super::{pages::Page, root};

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    alert: String,
    labels: Labels,
    annotations: Annotations,
}

#[derive(Deserialize)]
struct Labels {
    severity: String,
}

#[derive(Deserialize)]
struct Annotations {
    runbook_url: String,
}

const PAGE: &str = "docs/alerts.md";
/// The parts of each section.
const PARTS: [&str; 3] = ["**What people notice:** ", "**What to look at:** ", "**What to do:**"];

/// The alerts of the page, each with its section.
fn sections(text: &str) -> Vec<(&str, &str)> {
    text.split("\n## ").skip(1).map(|section| section.split_once("\n\n").unwrap_or((section, ""))).collect()
}

/// What a section lacks.
fn problem(rule: &Rule, sections: &[(&str, &str)]) -> Option<String> {
    let Some((_, section)) = sections.iter().find(|(alert, _)| *alert == rule.alert) else {
        return Some("it has no section".to_owned());
    };
    if !section.starts_with(&format!("`{}`. ", rule.labels.severity)) {
        return Some(format!("its section begins with another severity than {}", rule.labels.severity));
    }
    if rule.annotations.runbook_url != format!("{PAGE}#{}", rule.alert.to_lowercase()) {
        return Some(format!("{} is not its section", rule.annotations.runbook_url));
    }
    PARTS.iter().find(|part| !section.contains(*part)).map(|part| format!("its section lacks {part:?}"))
}

#[test]
fn each_alert_has_a_section_that_says_what_to_do() {
    let rules = fs::read_to_string(root().join("deploy/prometheus/rules.yml")).unwrap();
    let rules: Rules = serde_yaml_ng::from_str(&rules).unwrap();
    let rules: Vec<Rule> = rules.groups.into_iter().flat_map(|group| group.rules).collect();
    assert!(rules.len() >= 9, "{} alerts", rules.len());
    let page = Page::read(root().join(PAGE));
    let sections = sections(&page.text);
    let problems = rules.iter().filter_map(|rule| Some(format!("{}: {}", rule.alert, problem(rule, &sections)?)));
    let problems: Vec<String> = problems.collect();
    assert!(problems.is_empty(), "mend {PAGE} or deploy/prometheus/rules.yml:\n{}", problems.join("\n"));
    let names: Vec<&str> = sections.iter().map(|(alert, _)| *alert).collect();
    assert!(names.iter().copied().eq(rules.iter().map(|rule| rule.alert.as_str())), "{names:?} are not the alerts");
}

#[test]
fn an_alert_without_a_whole_section_is_found() {
    let rule = |url: &str| Rule {
        alert: "BatonX".into(),
        labels: Labels { severity: "page".into() },
        annotations: Annotations { runbook_url: url.into() },
    };
    let whole = "# Alerts\n\n## BatonX\n\n`page`. It is X.\n\n**What people notice:** X.\n\n**What to look at:** X.\n\n\
                 **What to do:** X.\n";
    let found = |text: &str, url: &str| problem(&rule(url), &sections(text));
    assert_eq!(found(whole, "docs/alerts.md#batonx"), None);
    assert!(found(whole, "docs/metrics.md#batonx").is_some());
    for (from, to) in [("## BatonX", "## BatonY"), ("`page`", "`ticket`"), ("**What to do:**", "")] {
        assert!(found(&whole.replace(from, to), "docs/alerts.md#batonx").is_some(), "{to:?}");
    }
}
