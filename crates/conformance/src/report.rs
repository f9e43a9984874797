//! The report of a run: each case with its rule and outcome, and each failure with expected and observed values.

use std::{fmt::Write as _, io, time::Duration};

use quick_xml::{Writer, events::BytesText};
use serde::Serialize;

/// A testable rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// The stable name, for example `handoff.late-accept-is-refused`.
    pub name: String,
    /// The chapters of the specification that state the rule, for example `3`.
    pub spec: Vec<String>,
    /// The rule as a sentence.
    pub rule: String,
}

/// A deviation from the rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The field that differs, for example `reason` or `receipt.epoch`.
    pub field: String,
    /// The value that the rule requires.
    pub expected: String,
    /// The observed value.
    pub seen: String,
}

/// Why a case failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// The step during which it failed.
    pub step: String,
    /// The deviations; at least one.
    pub differences: Vec<Difference>,
}

/// The outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum Outcome {
    /// The rule holds.
    Passed,
    /// The rule does not hold.
    Failed(Failed),
    /// The case could not be run.
    Skipped {
        /// The reason.
        why: String,
    },
}

/// A case that was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CaseResult {
    /// The rule under test.
    #[serde(flatten)]
    pub rule: Rule,
    /// Whether the target kept the rule.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The duration of the case; milliseconds in JSON.
    #[serde(rename = "duration_ms", serialize_with = "milliseconds")]
    pub duration: Duration,
}

/// The results of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The subject under test: a broker's address, or a client's command.
    pub subject: String,
    /// The number of cases that passed.
    pub passed: usize,
    /// The number of cases that failed.
    pub failed: usize,
    /// The number of cases that could not be run.
    pub skipped: usize,
    /// The duration of the run; milliseconds in JSON.
    #[serde(rename = "duration_ms", serialize_with = "milliseconds")]
    pub duration: Duration,
    /// The results, in the order of the list.
    pub cases: Vec<CaseResult>,
}

/// A pattern that matches no case.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no case matches {pattern:?}; --list shows the names, and * stands for any characters")]
pub struct UnknownPattern {
    pattern: String,
}

impl Failed {
    /// A failure with one difference.
    pub fn new(step: impl Into<String>, field: &str, expected: impl Into<String>, seen: impl Into<String>) -> Self {
        let difference = Difference { field: field.to_owned(), expected: expected.into(), seen: seen.into() };
        Self { step: step.into(), differences: vec![difference] }
    }
}

impl Report {
    /// A report of these results.
    pub fn new(subject: impl Into<String>, cases: Vec<CaseResult>, duration: Duration) -> Self {
        let count = |is: fn(&Outcome) -> bool| cases.iter().filter(|case| is(&case.outcome)).count();
        Self {
            subject: subject.into(),
            passed: count(|outcome| matches!(outcome, Outcome::Passed)),
            failed: count(|outcome| matches!(outcome, Outcome::Failed(_))),
            skipped: count(|outcome| matches!(outcome, Outcome::Skipped { .. })),
            duration,
            cases,
        }
    }

    /// The report as text for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for case in &self.cases {
            write_case(&mut text, case);
        }
        let Self { subject, passed, failed, skipped, duration, .. } = self;
        let seconds = duration.as_secs_f64();
        let _ = writeln!(text, "{subject}: {passed} passed, {failed} failed, {skipped} skipped in {seconds:.1} s");
        text
    }

    /// The report as JSON.
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("strings and numbers are JSON");
        text.push('\n');
        text
    }

    /// The report as JUnit XML, with one test suite.
    pub fn junit(&self) -> String {
        let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
        write_junit(&mut writer, self).expect("a vector takes what is written");
        let xml = String::from_utf8(writer.into_inner()).expect("strings were written");
        format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{xml}\n")
    }
}

/// The rules that at least one pattern matches, in their order; all of them without a pattern.
pub fn select<T>(
    all: Vec<T>,
    patterns: &[String],
    name: impl for<'a> Fn(&'a T) -> &'a str,
) -> Result<Vec<T>, UnknownPattern> {
    let useless = patterns.iter().find(|pattern| !all.iter().any(|each| fits(pattern, name(each))));
    // A mistyped name must not pass as a run of no case.
    if let Some(pattern) = useless {
        return Err(UnknownPattern { pattern: pattern.clone() });
    }
    let is_wanted = |each: &T| patterns.is_empty() || patterns.iter().any(|pattern| fits(pattern, name(each)));
    Ok(all.into_iter().filter(is_wanted).collect())
}

/// The list of rules as text for people.
pub fn list(rules: &[Rule]) -> String {
    rules.iter().fold(String::new(), |mut text, Rule { name, spec, rule }| {
        let _ = writeln!(text, "{name}\n    SPEC {}. {rule}", spec.join(", "));
        text
    })
}

/// Whether a name matches the pattern, in which `*` matches any text.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            // Each length of the text for `*` is tried: the shortest need not lead to a match.
            let ends = name.char_indices().map(|(place, _)| place).chain([name.len()]);
            ends.into_iter().any(|place| fits(rest, &name[place..]))
        }),
    }
}

fn write_case(text: &mut String, case: &CaseResult) {
    let Rule { name, spec, rule } = &case.rule;
    let (chapter, took) = (spec.join(", "), case.duration.as_millis());
    let _ = match &case.outcome {
        Outcome::Passed => writeln!(text, "passed   {name}  (SPEC {chapter}, {took} ms)"),
        Outcome::Skipped { why } => writeln!(text, "skipped  {name}  (SPEC {chapter})\n         {why}"),
        Outcome::Failed(failed) => {
            writeln!(text, "FAILED   {name}  (SPEC {chapter}, {took} ms)\n{}", account(rule, failed))
        }
    };
}

/// The expected and observed values of a failure, indented.
fn account(rule: &str, failed: &Failed) -> String {
    let mut text = format!("         rule      {rule}\n         step      {}", failed.step);
    for Difference { field, expected, seen } in &failed.differences {
        let _ = write!(
            text,
            "\n         {field}\n           expected  {}\n           seen      {}",
            indented(expected),
            indented(seen)
        );
    }
    text
}

fn indented(text: &str) -> String {
    text.replace('\n', "\n                     ")
}

fn write_junit(writer: &mut Writer<Vec<u8>>, report: &Report) -> io::Result<()> {
    let (tests, failures) = (report.cases.len().to_string(), report.failed.to_string());
    let (skipped, time) = (report.skipped.to_string(), seconds(report.duration));
    let counts = [
        ("name", report.subject.as_str()),
        ("tests", &tests),
        ("failures", &failures),
        ("skipped", &skipped),
        ("time", &time),
    ];
    writer.create_element("testsuites").with_attributes([("name", "baton conformance")]).write_inner_content(
        |writer| {
            writer.create_element("testsuite").with_attributes(counts).write_inner_content(|writer| {
                report.cases.iter().try_for_each(|case| write_junit_case(writer, case))
            })?;
            Ok(())
        },
    )?;
    Ok(())
}

fn write_junit_case(writer: &mut Writer<Vec<u8>>, case: &CaseResult) -> io::Result<()> {
    let chapters = format!("baton.v1 SPEC {}", case.rule.spec.join(", "));
    let time = seconds(case.duration);
    let attributes = [("name", case.rule.name.as_str()), ("classname", &chapters), ("time", &time)];
    let element = writer.create_element("testcase").with_attributes(attributes);
    match &case.outcome {
        Outcome::Passed => element.write_empty()?,
        Outcome::Skipped { why } => element.write_inner_content(|writer| {
            writer.create_element("skipped").with_attributes([("message", xml_text(why).as_str())]).write_empty()?;
            Ok(())
        })?,
        Outcome::Failed(failed) => element.write_inner_content(|writer| {
            let text = xml_text(&account(&case.rule.rule, failed));
            let message = xml_text(&failed.step);
            let failure = writer.create_element("failure").with_attributes([("message", message.as_str())]);
            failure.write_text_content(BytesText::new(&text))?;
            Ok(())
        })?,
    };
    Ok(())
}

/// Removes characters that XML does not allow. The text may come from a foreign program.
fn xml_text(text: &str) -> String {
    let is_text = |letter: &char| matches!(letter, '\n' | '\t' | ' '..) && !matches!(letter, '\u{fffe}' | '\u{ffff}');
    text.chars().filter(is_text).collect()
}

fn seconds(duration: Duration) -> String {
    format!("{:.3}", duration.as_secs_f64())
}

fn milliseconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u128(duration.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str, outcome: Outcome) -> CaseResult {
        let rule = Rule { name: name.into(), spec: vec!["3".into()], rule: "A late accept is refused.".into() };
        CaseResult { rule, outcome, duration: Duration::from_millis(12) }
    }

    fn report() -> Report {
        let mut failed = Failed::new("bob accepts <late>", "reason", "HANDOFF_EXPIRED", "a receipt & \u{1}more");
        failed.differences.push(Difference {
            field: "code".into(),
            expected: "FAILED_PRECONDITION".into(),
            seen: "OK".into(),
        });
        let skipped = Outcome::Skipped { why: "no operator token".into() };
        let cases =
            vec![case("a.one", Outcome::Passed), case("b.two", Outcome::Failed(failed)), case("c.three", skipped)];
        Report::new("127.0.0.1:1", cases, Duration::from_millis(1500))
    }

    #[test]
    fn people_read_what_was_expected_and_seen() {
        insta::assert_snapshot!(report().text());
    }

    #[test]
    fn build_servers_read_the_same_without_characters_that_xml_has_not() {
        insta::assert_snapshot!(report().junit());
    }

    #[test]
    fn programs_read_the_same() {
        insta::assert_snapshot!(report().json());
    }

    #[test]
    fn patterns_select_and_a_pattern_without_a_case_is_an_error() {
        let all = vec!["handoff.late-accept", "handoff.cancel", "mail.order"];
        let by = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            select(all.clone(), &patterns, |name| name)
        };
        assert_eq!(by(&[]), Ok(all.clone()));
        assert_eq!(by(&["mail.order"]), Ok(vec!["mail.order"]));
        assert_eq!(by(&["*.order", "handoff.c*l"]), Ok(vec!["handoff.cancel", "mail.order"]));
        assert_eq!(by(&["handoff.*"]), Ok(vec!["handoff.late-accept", "handoff.cancel"]));
        assert_eq!(by(&["mail"]), Err(UnknownPattern { pattern: "mail".into() }));
        assert_eq!(by(&["*", "nothing*"]), Err(UnknownPattern { pattern: "nothing*".into() }));
    }
}
