//! The condition of a subtask: one comparison over the result of a subtask that it depends on.
//!
//! This module owns the comparison and the place in a result. It must not know when a condition is looked at: that is in
//! `machine`.

use std::fmt;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Deserializer, Number, Value};

use super::Report;

/// The most bytes of a pointer, and of the value that a result is compared with.
pub const CONDITION_BYTES_MAX: usize = 1024;

/// A comparison over the result of a subtask. It decides whether another subtask runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// The id of the subtask that has the result.
    pub subtask: String,
    /// The place of the value in the result, a JSON pointer. Empty: the whole result.
    pub pointer: String,
    /// The comparison.
    pub comparison: Comparison,
    /// Whether the subtask runs where the comparison does not hold.
    pub is_negated: bool,
}

/// What must hold for a value.
#[derive(Debug, Clone, PartialEq)]
pub enum Comparison {
    /// The value is this text, number, truth value or null, as JSON text. Numbers are compared as numbers.
    Equal(String),
    /// The value is a number, and less than this one.
    Less(f64),
    /// A value is there. `null` is a value.
    Present,
}

/// A list in the result of a subtask. Another subtask runs once for each element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForEach {
    /// The id of the subtask that has the result.
    pub subtask: String,
    /// The place of the list in the result, a JSON pointer.
    pub pointer: String,
}

impl ForEach {
    /// The elements of the list, as JSON text, at most this many. `None`: the value is missing or no list.
    pub fn elements(&self, report: Option<&Report>, most: usize) -> Option<Vec<String>> {
        let text = value_at(report?, &self.pointer)?;
        let mut rest = text.trim_ascii().strip_prefix('[')?.trim_ascii_start();
        let mut elements = Vec::new();
        while elements.len() < most && !rest.starts_with(']') {
            let mut values = Deserializer::from_str(rest).into_iter::<IgnoredAny>();
            values.next()?.ok()?;
            let (value, after) = rest.split_at(values.byte_offset());
            elements.push(value.to_owned());
            let after = after.trim_ascii_start();
            rest = after.strip_prefix(',').map_or(after, str::trim_ascii_start);
        }
        Some(elements)
    }

    /// The problem of its own fields. `None`: it has none.
    pub(super) fn problem(&self) -> Option<(&'static str, String)> {
        pointer_problem(&self.pointer).map(|problem| ("pointer", problem))
    }
}

impl Condition {
    /// Whether the subtask runs. `report`: of the other subtask, if it has completed.
    pub fn holds(&self, report: Option<&Report>) -> bool {
        let value = report.and_then(|report| value_at(report, &self.pointer));
        let holds = match (&self.comparison, value) {
            (_, None) => false,
            (Comparison::Present, Some(_)) => true,
            (Comparison::Less(bound), Some(text)) => read::<f64>(&text).is_some_and(|number| number < *bound),
            (Comparison::Equal(expected), Some(text)) => match (read::<Value>(expected), read::<Value>(&text)) {
                (Some(Value::Number(one)), Some(Value::Number(other))) => are_equal(&one, &other),
                (one, other) => one.is_some() && one == other,
            },
        };
        holds != self.is_negated
    }

    /// The problem of its own fields. `None`: it has none.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        if let Some(problem) = pointer_problem(&self.pointer) {
            return Some(("pointer", problem));
        }
        match &self.comparison {
            Comparison::Equal(text) if text.len() > CONDITION_BYTES_MAX => {
                Some(("equal_json", format!("has {} bytes, and may have {CONDITION_BYTES_MAX}", text.len())))
            }
            Comparison::Equal(text) => match read::<Value>(text) {
                Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => None,
                Some(Value::Array(_) | Value::Object(_)) | None => {
                    Some(("equal_json", "must be a text, a number, true, false or null, as JSON".to_owned()))
                }
            },
            Comparison::Less(bound) if !bound.is_finite() => Some(("less", "must be a finite number".to_owned())),
            Comparison::Less(_) | Comparison::Present => None,
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.pointer.is_empty() { "the result" } else { &self.pointer };
        let not = if self.is_negated { "not " } else { "" };
        write!(formatter, "{not}({place} of {} ", self.subtask)?;
        match &self.comparison {
            Comparison::Equal(text) => write!(formatter, "equal {text})"),
            Comparison::Less(bound) => write!(formatter, "less {bound})"),
            Comparison::Present => formatter.write_str("present)"),
        }
    }
}

fn pointer_problem(pointer: &str) -> Option<String> {
    if pointer.len() > CONDITION_BYTES_MAX {
        return Some(format!("has {} bytes, and may have {CONDITION_BYTES_MAX}", pointer.len()));
    }
    let escapes = pointer.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    let is_one = (pointer.is_empty() || pointer.starts_with('/')) && escapes;
    (!is_one).then(|| format!("{pointer:?} is no JSON pointer, such as \"/result/score\""))
}

/// The value at the place, as JSON text, in a result as dependents get it.
fn value_at(report: &Report, pointer: &str) -> Option<String> {
    let mut tokens = pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~"));
    let Some(first) = tokens.next() else { return Some("{}".to_owned()) };
    let json = |value: Value| Some(value.to_string());
    let top = match first.as_str() {
        "response" => json(report.response.as_str().into()),
        "tokens" => json(report.tokens.into()),
        "success" => json(report.success.into()),
        "tools_used" => json(report.tools_used.clone().into()),
        "numeric_value" => {
            let number = report.numeric_value?;
            // As the result writes it: a double may not have all of its digits.
            let stated = member(&report.result, "numeric_value").filter(|text| *text != "null");
            stated.map(str::to_owned).or_else(|| json(number.into()))
        }
        "result" => (!report.result.is_empty()).then(|| report.result.clone()),
        _ => None,
    }?;
    let mut text = top.as_str();
    for token in tokens {
        text = member(text, &token)?;
    }
    Some(text.to_owned())
}

fn read<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}

fn are_equal(one: &Number, other: &Number) -> bool {
    match (one.as_i128(), other.as_i128()) {
        (Some(one), Some(other)) => one == other,
        _ => one.as_f64() == other.as_f64(),
    }
}

/// The member of an object with this name, or the element of a list at this place, as its text. The others are passed over
/// and not read, so their depth and their numbers do not matter.
fn member<'t>(text: &'t str, token: &str) -> Option<&'t str> {
    let text = text.trim_ascii_start();
    let is_object = text.starts_with('{');
    let mut rest = text.strip_prefix(['{', '['])?.trim_ascii_start();
    for place in 0_usize.. {
        let mut is_it = !is_object && token == place.to_string();
        if is_object {
            let mut names = Deserializer::from_str(rest).into_iter::<String>();
            is_it = names.next()?.ok()? == token;
            rest = rest[names.byte_offset()..].trim_ascii_start().strip_prefix(':')?.trim_ascii_start();
        }
        let mut values = Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        values.next()?.ok()?;
        let (value, after) = rest.split_at(values.byte_offset());
        if is_it {
            return Some(value);
        }
        rest = after.trim_ascii_start().strip_prefix(',')?.trim_ascii_start();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let nested = format!("{}{}", "[".repeat(127), "]".repeat(127));
        Report {
            response: "good".to_owned(),
            tokens: 7,
            success: true,
            tools_used: vec!["sql".to_owned()],
            numeric_value: Some(0.4),
            result: format!(
                r#"{{"deep": {nested}, "score": 0.7, "id": 9007199254740993, "a/b": {{"~": [1, null]}}, "word": "x"}}"#
            ),
            ..Report::default()
        }
    }

    fn holds(pointer: &str, comparison: Comparison) -> bool {
        let of = |is_negated| Condition {
            subtask: "a".to_owned(),
            pointer: pointer.to_owned(),
            comparison: comparison.clone(),
            is_negated,
        };
        let (plain, negated) = (of(false).holds(Some(&report())), of(true).holds(Some(&report())));
        assert_ne!(plain, negated, "one of two branches runs");
        plain
    }

    #[test]
    fn the_elements_of_a_list_stay_as_they_are_written() {
        let list = r#" [ 9007199254740993 , {"a": [1, 2]},"x,]", null,[] ] "#;
        let report = Report { result: format!(r#"{{"all": {list}, "none": [ ], "no": {{"0": 1}}}}"#), ..report() };
        let of = |pointer: &str, most| {
            ForEach { subtask: "a".to_owned(), pointer: pointer.to_owned() }.elements(Some(&report), most)
        };
        let expected = ["9007199254740993", r#"{"a": [1, 2]}"#, r#""x,]""#, "null", "[]"].map(str::to_owned);
        assert_eq!(of("/result/all", 256), Some(expected.to_vec()));
        assert_eq!(of("/result/all", 2), Some(expected[..2].to_vec()));
        assert_eq!(of("/result/none", 256), Some(Vec::new()));
        assert_eq!(of("/tools_used", 256), Some(vec!["\"sql\"".to_owned()]));
        for none in ["", "/result", "/result/no", "/response", "/nothing"] {
            assert_eq!(of(none, 256), None, "{none}");
        }
    }

    #[test]
    fn the_three_comparisons() {
        let equal = |pointer, text: &str| holds(pointer, Comparison::Equal(text.to_owned()));
        assert!(equal("/response", "\"good\"") && equal("/success", "true") && equal("/tools_used/0", "\"sql\""));
        assert!(equal("/result/score", "0.70") && equal("/tokens", "7.0") && equal("/result/a~1b/~0/1", "null"));
        assert!(equal("/result/id", "9007199254740993") && !equal("/result/id", "9007199254740992"));
        assert!(!equal("/result/word", "1") && !equal("/result/none", "null"));
        let less = |pointer, bound| holds(pointer, Comparison::Less(bound));
        assert!(less("/numeric_value", 0.5) && !less("/numeric_value", 0.4) && !less("/response", 9.0));
        let present = |pointer| holds(pointer, Comparison::Present);
        assert!(present("") && present("/result/a~1b/~0/1") && present("/result/deep/0/0"));
        assert!(!present("/result/none") && !present("/result/word/0") && !present("/nothing"));
    }

    #[test]
    fn without_a_result_only_a_negated_condition_holds() {
        let of = |is_negated| Condition {
            subtask: "a".to_owned(),
            pointer: String::new(),
            comparison: Comparison::Present,
            is_negated,
        };
        assert!(!of(false).holds(None) && of(true).holds(None));
    }

    #[test]
    fn a_condition_without_a_meaning_has_a_problem() {
        let field = |pointer: &str, comparison| {
            let condition =
                Condition { subtask: "a".to_owned(), pointer: pointer.to_owned(), comparison, is_negated: false };
            condition.problem().map(|(field, _)| field)
        };
        assert_eq!(field("/result/~01", Comparison::Present), None);
        for wrong in ["result", "/a~2", "/~"] {
            assert_eq!(field(wrong, Comparison::Present), Some("pointer"), "{wrong}");
        }
        for wrong in ["", "{}", "[1]", "yes", "NaN"] {
            assert_eq!(field("", Comparison::Equal(wrong.to_owned())), Some("equal_json"), "{wrong}");
        }
        assert_eq!(field("", Comparison::Less(f64::NAN)), Some("less"));
    }
}
