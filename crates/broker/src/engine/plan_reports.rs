//! The reports of subtasks: the well-known keys of a result, and a result as the next subtasks read it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    codes::FieldViolation,
    domain::{
        handoff::TaskStatus,
        plan::{Report, SUMMARY_BYTES_MAX},
    },
    envelope::json_members,
    proto::v1,
};

/// A result with its well-known keys, as JSON. `of`: the subtask, and the element of its list, if the result names them.
pub(super) fn result_text(report: &Report, of: Option<(&str, Option<usize>)>) -> String {
    let Report { response, tokens, success, tools_used, result, .. } = report;
    let mut all = Map::new();
    all.insert("response".to_owned(), response.as_str().into());
    all.insert("tokens".to_owned(), (*tokens).into());
    all.insert("success".to_owned(), (*success).into());
    all.insert("tools_used".to_owned(), tools_used.clone().into());
    if let Some((subtask, element)) = of {
        all.insert("subtask_id".to_owned(), subtask.into());
        if let Some(index) = element {
            all.insert("element".to_owned(), index.into());
        }
        // Of an agent that gives none, the beginning of its answer.
        let summary = if report.summary.is_empty() { beginning(response) } else { &report.summary };
        all.insert("summary".to_owned(), summary.into());
    }
    let mut text = Value::Object(all).to_string();
    text.pop();
    if let Some(number) = number_text(report) {
        text.push_str(",\"numeric_value\":");
        text.push_str(&number);
    }
    // The whole result may be large. It is JSON already, so it is joined and not parsed.
    if !result.is_empty() {
        text.push_str(",\"result\":");
        text.push_str(result.trim_ascii());
    }
    text.push('}');
    text
}

/// The beginning of a text, as long as a summary may be.
fn beginning(text: &str) -> &str {
    let end = (0..=SUMMARY_BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

/// The largest integer of which a double holds all smaller ones.
const INTEGER_MAX: f64 = 9_007_199_254_740_992.0;

/// The number of a result as JSON: as the result writes it, or as the broker has found it.
pub(super) fn number_text(report: &Report) -> Option<String> {
    let found = report.numeric_value?;
    if let Some(stated) = known_keys(&report.result).get("numeric_value") {
        return Some((*stated).to_owned());
    }
    let is_integer = found.fract() == 0.0 && found.abs() <= INTEGER_MAX;
    // An integer has no fraction.
    #[expect(clippy::cast_possible_truncation, reason = "an integer of at most 53 bits")]
    let text = if is_integer { (found as i64).to_string() } else { Value::from(found).to_string() };
    Some(text)
}

/// The keys of a result that plans know.
const KNOWN_KEYS: [&str; 6] = ["response", "tokens", "success", "tools_used", "numeric_value", "summary"];

/// The members of a result with a key that plans know and with a value, each as its text. The others may be large, and are
/// not read.
fn known_keys(result: &str) -> BTreeMap<&'static str, &str> {
    let members = json_members(result).unwrap_or_default().into_iter();
    let known = |(name, value): (String, _)| Some((*KNOWN_KEYS.iter().find(|known| **known == name)?, value));
    members.filter_map(known).filter(|(_, value)| *value != "null").collect()
}

fn read<'de, T: Deserialize<'de>>(known: &BTreeMap<&str, &'de str>, name: &str) -> Option<T> {
    serde_json::from_str(known.get(name)?).ok()
}

/// The well-known keys of a result that have the wrong type.
pub(super) fn wrong_keys(result: &str) -> Vec<FieldViolation> {
    let known = known_keys(result);
    let is_right = |name: &str| match name {
        "response" => read::<String>(&known, name).is_some(),
        "tokens" => read::<u64>(&known, name).is_some(),
        "success" => read::<bool>(&known, name).is_some(),
        // Agents use this key for other forms, too. Such a one is no summary.
        "summary" => true,
        "tools_used" => read::<Vec<String>>(&known, name).is_some(),
        _ => read::<f64>(&known, name).is_some(),
    };
    let problem = |name: &str| match name {
        "response" => "must be a text",
        "tokens" => "must be an integer from 0 on",
        "success" => "must be true or false",
        "tools_used" => "must be a list of texts",
        _ => "must be a number",
    };
    let wrong = KNOWN_KEYS.iter().filter(|name| known.contains_key(**name) && !is_right(name));
    let violation = |name: &&str| {
        let path = format!("envelope.payload.result_json/{name}");
        FieldViolation { path, problem: problem(name).to_owned() }
    };
    wrong.map(violation).collect()
}

pub(super) fn report_of(update: v1::TaskStatusUpdate) -> Report {
    let v1::TaskStatusUpdate { status, details, result_json, .. } = update;
    let known = known_keys(&result_json);
    let summary = read::<String>(&known, "summary").unwrap_or_default();
    let (response, summary) = match read::<String>(&known, "response") {
        Some(response) if summary.is_empty() => (response, details),
        Some(response) => (response, summary),
        None if !details.is_empty() => (details, summary),
        None => (result_json.clone(), summary),
    };
    Report {
        response,
        tokens: read(&known, "tokens").unwrap_or(0),
        success: read(&known, "success").unwrap_or(status == TaskStatus::Completed.number()),
        tools_used: read(&known, "tools_used").unwrap_or_default(),
        numeric_value: read(&known, "numeric_value"),
        result: result_json,
        summary: beginning(&summary).to_owned(),
    }
}
