//! The contents of context sections: canonical JSON, deltas and filters.
//!
//! Clients make deltas and filters, and the broker checks them by the same functions. `vectors/deltas-v1.json` and
//! `vectors/filters-v1.json` have the rules as examples for every language. This module knows no state and no message
//! beyond the sections.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{
    history,
    json::{self, JsonError, Numbers},
    signing,
};
use crate::proto::v1::{self, HistoryFilter, context_section::Content};

/// The largest absolute value of a number in a delta or a filtered section: 2^53 - 1. Every language has all smaller
/// integers.
pub const NUMBER_MAX: f64 = 9_007_199_254_740_991.0;
/// The deepest nesting of a section that a delta or a filter works on.
const DEPTH_MAX: usize = 127;

/// The reason why a content has no canonical form, or why a filter does not fit it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SectionError {
    /// The text is no JSON that a delta or a filter can work on: it is not valid, has a name twice in one object, nests
    /// deeper than 127 levels, or has a number beyond 2^53 - 1.
    #[error("{what} cannot be used: {problem}")]
    Json {
        /// The text: "the base", "the patch" or "the section".
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The result of a delta is neither an object nor a list.
    #[error("the result must be a JSON object or list")]
    Result,
    /// The filter does not fit the section.
    #[error("{problem}")]
    Filter {
        /// What does not fit.
        problem: String,
    },
}

/// Parses JSON with the rules for deltas and filters. `what` names the text in the error.
///
/// # Errors
///
/// [`SectionError::Json`].
pub fn parse(what: &'static str, text: &str) -> Result<Value, SectionError> {
    let wrong = |error: JsonError| SectionError::Json { what, problem: error.to_string() };
    json::read(text, DEPTH_MAX, Numbers::Within(NUMBER_MAX)).map_err(wrong)
}

/// The canonical JSON of a value (RFC 8785).
pub fn canonical(value: &Value) -> String {
    // A value in memory has string keys and finite numbers, and nothing else can fail.
    serde_json_canonicalizer::to_string(value).expect("a JSON value has a canonical form")
}

/// Applies a JSON Merge Patch (RFC 7396) to a base. Returns the result as canonical JSON.
///
/// # Errors
///
/// [`SectionError::Json`] for the base or the patch, and [`SectionError::Result`].
pub fn apply(base: &str, patch: &str) -> Result<String, SectionError> {
    let patch = parse("the patch", patch)?;
    let mut value = parse("the base", base)?;
    json_patch::merge(&mut value, &patch);
    match value {
        Value::Object(_) | Value::Array(_) => Ok(canonical(&value)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(SectionError::Result),
    }
}

/// The delta from a base to a target, and the target as canonical JSON. `None`: no merge patch gives the target, because
/// a changed object of it has a member that is null, or because one of the two is no JSON that a delta can work on.
pub fn delta(base: &str, target: &str) -> Option<(v1::ContextDelta, String)> {
    let (from, to) = (parse("the base", base).ok()?, parse("the section", target).ok()?);
    let patch = canonical(&patch_between(&from, &to));
    let result = canonical(&to);
    // A null in the target means "remove" in a patch, so the patch is tried.
    if apply(base, &patch).ok()? != result {
        return None;
    }
    let delta = v1::ContextDelta {
        base_sha256: signing::sha256(&[base.as_bytes()]).to_vec().into(),
        merge_patch: patch,
        result_sha256: signing::sha256(&[result.as_bytes()]).to_vec().into(),
    };
    Some((delta, result))
}

fn patch_between(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else { return to.clone() };
    let mut patch = Map::new();
    for name in from.keys().filter(|name| !to.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, value) in to {
        match from.get(name) {
            Some(same) if same == value => {}
            Some(other) => drop(patch.insert(name.clone(), patch_between(other, value))),
            None => drop(patch.insert(name.clone(), value.clone())),
        }
    }
    Value::Object(patch)
}

/// The part of a JSON section that a filter keeps, as canonical JSON. `summary` is that of the section.
///
/// # Errors
///
/// [`SectionError::Json`] for the section, and [`SectionError::Filter`].
pub fn filtered(text: &str, filter: &v1::ContextFilter, summary: &str) -> Result<String, SectionError> {
    let wrong = |problem: &str| SectionError::Filter { problem: problem.to_owned() };
    check_filter(filter).map_err(wrong)?;
    let value = parse("the section", text)?;
    if !filter.json_pointers.is_empty() {
        let found = |pointer: &String| Some((pointer.clone(), value.pointer(pointer)?.clone()));
        return Ok(canonical(&Value::Object(filter.json_pointers.iter().filter_map(found).collect())));
    }
    let entries =
        history::entries(value).map_err(|error| wrong(&format!("a history filter needs a history: {error}")))?;
    let last = filter.last as usize;
    let part = match filter.history() {
        HistoryFilter::Unspecified | HistoryFilter::Full => Value::Array(entries),
        HistoryFilter::Last => Value::Array(history::latest(entries, last)),
        HistoryFilter::WithoutToolCalls => {
            let kept = history::without_tool_calls(entries);
            Value::Array(if last == 0 { kept } else { history::latest(kept, last) })
        }
        HistoryFilter::Summary => serde_json::json!({"summary": summary, "entries": entries.len()}),
    };
    Ok(canonical(&part))
}

/// Checks the form of a filter.
///
/// # Errors
///
/// The problem, for a person to read.
pub fn check_filter(filter: &v1::ContextFilter) -> Result<(), &'static str> {
    let Ok(history) = HistoryFilter::try_from(filter.history) else { return Err("the history filter is unknown") };
    let has_pointers = !filter.json_pointers.is_empty();
    match history {
        HistoryFilter::Unspecified if !has_pointers => return Err("a filter needs history or json_pointers"),
        HistoryFilter::Unspecified => {}
        _ if has_pointers => return Err("a filter has either history or json_pointers"),
        HistoryFilter::Last if filter.last == 0 => return Err("LAST needs the number of entries, at least 1"),
        HistoryFilter::Last | HistoryFilter::WithoutToolCalls => {}
        HistoryFilter::Full | HistoryFilter::Summary if filter.last > 0 => {
            return Err("last is for LAST and WITHOUT_TOOL_CALLS");
        }
        HistoryFilter::Full | HistoryFilter::Summary => {}
    }
    if history == HistoryFilter::Unspecified && filter.last > 0 {
        return Err("last is for LAST and WITHOUT_TOOL_CALLS");
    }
    if filter.json_pointers.len() > 64 {
        return Err("a filter has at most 64 pointers");
    }
    let mut known = BTreeSet::new();
    for pointer in &filter.json_pointers {
        if pointer.len() > 1024 || !(pointer.is_empty() || pointer.starts_with('/')) || has_bad_escape(pointer) {
            return Err("a pointer is not a JSON Pointer of at most 1024 bytes");
        }
        if !known.insert(pointer) {
            return Err("a pointer is given twice");
        }
    }
    Ok(())
}

fn has_bad_escape(pointer: &str) -> bool {
    pointer.split('~').skip(1).any(|after| !after.starts_with(['0', '1']))
}

/// The sections that a candidate has asked for, out of all sections of a context: the named ones, filtered, and as deltas
/// where the candidate has a base that `known` finds by its digest and the delta is smaller. A section that the filter
/// does not fit is left out: whole it would have what the filter is to keep back.
pub fn for_wishes(
    sections: Vec<v1::ContextSection>,
    accept: &v1::HandoffAccept,
    known: impl Fn(&str, &[u8]) -> Option<String>,
) -> Vec<v1::ContextSection> {
    let wants_all = accept.wanted_sections.is_empty() && accept.wishes.is_empty();
    let wish_for = |name: &str| accept.wishes.iter().find(|wish| wish.name == name);
    sections
        .into_iter()
        .filter_map(|section| {
            let Some(wish) = wish_for(&section.name) else {
                return (wants_all || accept.wanted_sections.contains(&section.name)).then_some(section);
            };
            let reads = |version: &String| *version == section.schema_version;
            let has_other_schema = !section.schema_id.is_empty() && !wish.schema_versions.is_empty();
            if has_other_schema && !wish.schema_versions.iter().any(reads) {
                return None;
            }
            let Some(Content::Json(text)) = &section.content else { return wish.filter.is_none().then_some(section) };
            let (text, is_other) = match &wish.filter {
                Some(filter) => (filtered(text, filter, &section.summary).ok()?, gives_other_shape(filter)),
                None => (text.clone(), false),
            };
            let smaller = known(&section.name, &wish.have_sha256)
                .and_then(|base| delta(&base, &text))
                .filter(|(delta, _)| delta.merge_patch.len() + 96 < text.len());
            let content = match smaller {
                Some((delta, _)) => Content::Delta(delta),
                None => Content::Json(text),
            };
            let section = v1::ContextSection { content: Some(content), ..section };
            Some(if is_other { without_schema(section) } else { section })
        })
        .collect()
}

/// Whether a filter gives a value of another shape, which the section's schema is not about.
fn gives_other_shape(filter: &v1::ContextFilter) -> bool {
    !filter.json_pointers.is_empty() || filter.history() == HistoryFilter::Summary
}

fn without_schema(section: v1::ContextSection) -> v1::ContextSection {
    v1::ContextSection { schema_id: String::new(), schema_version: String::new(), ..section }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of `vectors/deltas-v1.json` or `vectors/filters-v1.json`.
    fn rows(text: &str) -> Vec<Value> {
        let file: Value = serde_json::from_str(text).unwrap();
        file["cases"].as_array().unwrap().clone()
    }

    fn text<'a>(row: &'a Value, name: &str) -> &'a str {
        row[name].as_str().unwrap_or_else(|| panic!("{name} is missing in {row}"))
    }

    #[test]
    fn deltas_are_those_of_the_vectors() {
        let rows = rows(include_str!("../../../../vectors/deltas-v1.json"));
        assert!(rows.len() >= 20);
        for row in rows {
            let found = apply(text(&row, "base"), text(&row, "patch"));
            match row["result"].as_str() {
                Some(result) => {
                    assert_eq!(found.as_deref(), Ok(result), "{row}");
                    let digest = hex::encode(signing::sha256(&[result.as_bytes()]));
                    assert_eq!(digest, text(&row, "result_sha256"), "{row}");
                }
                None => assert!(found.is_err(), "{row}"),
            }
        }
    }

    #[test]
    fn filters_are_those_of_the_vectors() {
        let rows = rows(include_str!("../../../../vectors/filters-v1.json"));
        assert!(rows.len() >= 20);
        for row in rows {
            let strings = |name: &str| row["filter"][name].as_array().cloned().unwrap_or_default();
            let history = row["filter"]["history"].as_str().unwrap_or("UNSPECIFIED");
            let history = HistoryFilter::from_str_name(&format!("HISTORY_FILTER_{history}")).expect("a known filter");
            let filter = v1::ContextFilter {
                history: history.into(),
                last: u32::try_from(row["filter"]["last"].as_u64().unwrap_or(0)).unwrap(),
                json_pointers: strings("json_pointers").iter().map(|at| at.as_str().unwrap().to_owned()).collect(),
            };
            let found = filtered(text(&row, "section"), &filter, row["summary"].as_str().unwrap_or(""));
            match row["result"].as_str() {
                Some(result) => assert_eq!(found.as_deref(), Ok(result), "{row}"),
                None => assert!(found.is_err(), "{row}"),
            }
        }
    }

    #[test]
    fn a_delta_gives_its_target_or_there_is_none() {
        for (base, target) in [
            (r#"{"a":1,"b":{"c":[1,2]}}"#, r#"{"b":{"c":[1,2],"d":true}}"#),
            (r#"{"a":1}"#, r#"[1]"#),
            (r#"[1]"#, r#"{"a":{}}"#),
            (r#"{}"#, r#"{ "z" : 1.50, "a" : "x" }"#),
        ] {
            let (delta, result) = delta(base, target).unwrap();
            assert_eq!(apply(base, &delta.merge_patch).as_ref(), Ok(&result));
            assert_eq!(parse("the section", target).map(|value| canonical(&value)), Ok(result));
        }
        // A null cannot be written by a merge patch, and a large integer has no form that all languages share.
        assert_eq!(delta(r#"{"a":1}"#, r#"{"a":null}"#), None);
        assert_eq!(delta(r#"{"a":1}"#, r#"{"a":9007199254740993}"#), None);
    }

    #[test]
    fn a_patch_of_a_hundred_thousand_levels_is_refused() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
        assert!(matches!(apply("{}", &deep), Err(SectionError::Json { what: "the patch", .. })));
    }

    #[test]
    fn wishes_select_filter_and_shorten() {
        let section = |name: &str, json: &str| v1::ContextSection {
            name: name.to_owned(),
            content: Some(Content::Json(json.to_owned())),
            ..Default::default()
        };
        let long = format!(r#"{{"text":"{}","n":1}}"#, "x".repeat(500));
        let newer = format!(r#"{{"text":"{}","n":2}}"#, "x".repeat(500));
        let history = r#"[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#;
        let goals = v1::ContextSection { schema_id: "goals".into(), ..section("goals", "[1]") };
        let all = vec![goals, section("history_log", history), section("notes", &newer)];
        let wish = |name: &str| v1::SectionWish { name: name.to_owned(), ..Default::default() };
        let filter = v1::ContextFilter { history: HistoryFilter::Last.into(), last: 1, ..Default::default() };
        let accept = v1::HandoffAccept {
            wishes: vec![
                v1::SectionWish { filter: Some(filter), ..wish("history_log") },
                v1::SectionWish { have_sha256: vec![1; 32].into(), ..wish("notes") },
            ],
            ..Default::default()
        };
        let found = for_wishes(all.clone(), &accept, |name, _| (name == "notes").then(|| long.clone()));
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].content, Some(Content::Json(r#"[{"content":"b","role":"assistant"}]"#.to_owned())));
        assert!(matches!(&found[1].content, Some(Content::Delta(delta)) if delta.merge_patch == r#"{"n":2}"#));
        assert_eq!(for_wishes(all.clone(), &v1::HandoffAccept::default(), |_, _| None), all);

        let filtered_goals = |filter: v1::ContextFilter| {
            let accept = v1::HandoffAccept {
                wishes: vec![v1::SectionWish { filter: Some(filter), ..wish("goals") }],
                ..Default::default()
            };
            for_wishes(all.clone(), &accept, |_, _| None)
        };
        let last = v1::ContextFilter { history: HistoryFilter::Last.into(), last: 1, ..Default::default() };
        assert_eq!(filtered_goals(last), [], "goals are no history, so nothing of them is sent");
        let part = filtered_goals(v1::ContextFilter { json_pointers: vec!["/0".into()], ..Default::default() });
        assert_eq!((&*part[0].schema_id, &part[0].content), ("", &Some(Content::Json(r#"{"/0":1}"#.into()))));
    }
}
