//! JSON Schemas of answers and of contexts: whether a text is a permitted schema, and whether data fits it.
//!
//! The checks run on the engine's thread, so this module bounds their work. A schema could otherwise take exponential
//! time: it may refer to the same part of itself many times, and the part again to others. It must not know what the
//! data is for.

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;

use crate::codes::FieldViolation;

/// The deepest nesting of a schema, with the parts that references name in their place.
const DEPTH_MAX: usize = 64;
/// The most values of a schema, with the parts that references name in their place.
const VALUES_MAX: usize = 10_000;
/// The most checks of some data: the values of the data times those of the schema.
const CHECKS_MAX: usize = 2_000_000;
/// The most violations that the refusal of an answer lists.
const LISTED_MAX: usize = 16;
/// The most bytes of a registered schema.
pub const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// The most violations that the check of a context lists.
pub const VIOLATIONS_MAX: usize = 64;
/// The most characters of the description of a violation.
const DESCRIBED_MAX: usize = 300;
/// The bytes of a text that count as one value: a check of a text reads all of it.
const TEXT_BYTES_A_VALUE: usize = 64;
/// The fewest values that a pattern of a schema counts as. A longer one counts as many as it has bytes, which bounds the
/// bytes of all patterns together.
const PATTERN_VALUES_MIN: usize = 50;
/// The largest compiled regular expression of a schema, in bytes.
const PATTERN_BYTES_MAX: usize = 256 * 1024;

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Checks that a text is a schema of draft 2020-12 within the bounds. The error names the problem.
pub fn check(schema: &str) -> Result<(), String> {
    JsonSchema::parse(schema).map(drop)
}

/// A compiled schema of draft 2020-12 within the bounds.
pub struct JsonSchema {
    /// The values of the schema, with the parts that references name in their place, and more for each pattern.
    cost: usize,
    validator: Validator,
}

impl JsonSchema {
    /// Parses and compiles a text. The error names the problem, as a continuation of "the schema".
    pub fn parse(schema: &str) -> Result<Self, String> {
        let schema = parse(schema)?;
        Ok(Self { cost: cost(&schema)?, validator: compile(&schema)? })
    }

    /// The violations of this data, at most `most`. Empty: the data fits. Each path is `path` and the JSON pointer of the
    /// value.
    pub fn misfits(&self, data: &Value, path: &str, most: usize) -> Vec<FieldViolation> {
        let violation = |pointer: &str, problem: String| FieldViolation { path: format!("{path}{pointer}"), problem };
        // In the worst case every value is checked against every part of the schema; the product bounds the work before
        // it begins.
        if count(data).saturating_mul(self.cost) > CHECKS_MAX {
            return vec![violation("", "has too many values for the size of its schema".to_owned())];
        }
        let describe = |error: jsonschema::ValidationError<'_>| {
            let problem: String = error.to_string().chars().take(DESCRIBED_MAX).collect();
            violation(error.instance_path().as_str(), problem)
        };
        self.validator.iter_errors(data).take(most).map(describe).collect()
    }
}

impl std::fmt::Debug for JsonSchema {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "a schema of {} values", self.cost)
    }
}

/// The violations of this data under a schema that [`check`] has accepted; at most 16. Empty: the data fits. Each path is
/// `path` and the JSON pointer of the value. `None` is no data, which fits no schema.
pub fn misfits(schema: &str, data: Option<&Value>, path: &str) -> Vec<FieldViolation> {
    let violation = |pointer: &str, problem: String| FieldViolation { path: format!("{path}{pointer}"), problem };
    let Some(data) = data else { return vec![violation("", "must be set: the question asks for data".to_owned())] };
    match JsonSchema::parse(schema) {
        Ok(schema) => schema.misfits(data, path, LISTED_MAX),
        Err(problem) => vec![violation("", format!("cannot be checked: {problem}"))],
    }
}

fn parse(schema: &str) -> Result<Value, String> {
    let schema: Value = serde_json::from_str(schema).map_err(|error| format!("is not JSON: {error}"))?;
    // The two forms of a schema in draft 2020-12.
    if !schema.is_object() && !schema.is_boolean() {
        return Err("must be a JSON object".to_owned());
    }
    match schema.get("$schema") {
        None => Ok(schema),
        Some(Value::String(draft)) if draft.trim_end_matches('#') == DRAFT => Ok(schema),
        Some(other) => Err(format!("must be of draft 2020-12, not {other}")),
    }
}

fn compile(schema: &Value) -> Result<Validator, String> {
    // This engine needs linear time for any pattern, which excludes look-around and back-references.
    let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
    let options = jsonschema::options().with_draft(Draft::Draft202012).offline().with_pattern_options(patterns);
    options.build(schema).map_err(|error| {
        let pointer = error.instance_path().as_str().to_owned();
        let problem: String = error.to_string().chars().take(DESCRIBED_MAX).collect();
        format!("is no valid schema at {pointer:?}: {problem}")
    })
}

/// The number of values of a schema, with the parts that references name in their place, and more for each pattern.
fn cost(schema: &Value) -> Result<usize, String> {
    let mut left = VALUES_MAX;
    spend(schema, schema, true, DEPTH_MAX, &mut left)?;
    Ok(VALUES_MAX - left)
}

fn spend(root: &Value, value: &Value, is_root: bool, depth: usize, left: &mut usize) -> Result<(), String> {
    let depth =
        depth.checked_sub(1).ok_or_else(|| format!("is more than {DEPTH_MAX} levels deep, or refers to itself"))?;
    // One budget for the whole walk: references repeat parts, so their number alone bounds nothing.
    take(left, 1)?;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        Value::Array(values) => values.iter().try_for_each(|value| spend(root, value, false, depth, left)),
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| match (name.as_str(), value) {
            // Only references within the schema: the broker fetches none, and could not bound what it does not have.
            ("$ref", Value::String(target)) => {
                let part = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
                let part = part.ok_or_else(|| format!("has a $ref to {target:?}, which is no part of it"))?;
                spend(root, part, false, depth, left)
            }
            // These change what a reference names, so its cost would be unknown.
            ("$dynamicRef" | "$recursiveRef" | "$anchor" | "$dynamicAnchor", Value::String(_)) => {
                Err(format!("must not have {name}"))
            }
            ("$id", Value::String(_)) if !is_root => Err("must have no $id but its own".to_owned()),
            ("pattern", Value::String(pattern)) => take(left, pattern.len().max(PATTERN_VALUES_MIN)),
            ("patternProperties", Value::Object(parts)) => parts.iter().try_for_each(|(pattern, part)| {
                take(left, pattern.len().max(PATTERN_VALUES_MIN))?;
                spend(root, part, false, depth, left)
            }),
            _ => spend(root, value, false, depth, left),
        }),
    }
}

fn take(left: &mut usize, values: usize) -> Result<(), String> {
    let taken = left.checked_sub(values);
    *left = taken.ok_or_else(|| format!("has more than {VALUES_MAX} values, references and patterns included"))?;
    Ok(())
}

/// The number of values in some data, and more for long texts.
fn count(data: &Value) -> usize {
    let of_text = |text: &str| text.len() / TEXT_BYTES_A_VALUE;
    1 + match data {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => of_text(text),
        Value::Array(values) => values.iter().map(count).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| of_text(name) + count(value)).sum(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(schema: &Value) -> String {
        check(&schema.to_string()).expect_err("a refusal")
    }

    fn paths(schema: &Value, data: &Value) -> Vec<String> {
        misfits(&schema.to_string(), Some(data), "data").into_iter().map(|violation| violation.path).collect()
    }

    #[test]
    fn data_that_does_not_fit_is_told_where() {
        let schema = json!({
            "type": "object",
            "required": ["approved"],
            "properties": {"approved": {"type": "boolean"}, "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}}},
            "$defs": {"line": {"type": "object", "properties": {"amount": {"type": "integer", "minimum": 0}}}},
        });
        check(&schema.to_string()).unwrap();
        assert_eq!(paths(&schema, &json!({"approved": true, "lines": [{"amount": 3}]})), Vec::<String>::new());
        assert_eq!(
            paths(&schema, &json!({"approved": "yes", "lines": [{}, {"amount": -1}]})),
            ["data/approved", "data/lines/1/amount"]
        );
        assert_eq!(paths(&schema, &json!({})), ["data"]);
        assert_eq!(misfits(&schema.to_string(), None, "data").len(), 1);
    }

    #[test]
    fn a_schema_that_is_none_is_refused() {
        for schema in [
            json!([]),
            json!({"type": "nothing"}),
            json!({"$schema": "http://json-schema.org/draft-07/schema#"}),
            json!({"$ref": "https://example.com/schema.json"}),
            json!({"$ref": "#/$defs/none"}),
            json!({"properties": {"a": {"$id": "https://example.com/a"}}}),
            json!({"$dynamicRef": "#meta"}),
            json!({"pattern": "(a)\\1"}),
            json!({"pattern": "(((a{100}){100}){100}){100}"}),
        ] {
            refusal(&schema);
        }
        assert!(check("{").is_err());
    }

    #[test]
    fn a_schema_of_exponential_work_is_refused() {
        let mut defs = serde_json::Map::new();
        for level in 0..14 {
            let next = json!({"$ref": format!("#/$defs/{}", level + 1)});
            defs.insert(level.to_string(), json!({"anyOf": [next, next]}));
        }
        defs.insert("14".into(), json!({"type": "string"}));
        assert!(refusal(&json!({"$ref": "#/$defs/0", "$defs": defs})).contains("values"));
        assert!(refusal(&json!({"properties": {"next": {"$ref": "#"}}})).contains("itself"));
        let deep = (0..70).fold(json!(true), |inner, _| json!({"not": inner}));
        assert!(refusal(&deep).contains("deep"));
    }

    #[test]
    fn data_of_too_many_values_for_its_schema_is_refused() {
        let schema = json!({"properties": {"a": {"items": {"enum": (0..500).collect::<Vec<_>>()}}}});
        check(&schema.to_string()).unwrap();
        let data = json!({"a": vec![1; 10_000]});
        let problems = misfits(&schema.to_string(), Some(&data), "data");
        assert!(problems[0].problem.contains("too many values"), "{problems:?}");
    }

    #[test]
    fn long_texts_and_patterns_count_as_many_values() {
        let patterns = |count: usize| -> serde_json::Map<String, Value> {
            (0..count).map(|number| (format!("^{number}$"), json!(true))).collect()
        };
        assert!(refusal(&json!({"patternProperties": patterns(200)})).contains("patterns"));
        assert!(refusal(&json!({"pattern": "a".repeat(VALUES_MAX)})).contains("patterns"));
        let schema = json!({"allOf": vec![json!({"pattern": "(a|b)*c"}); 100]}).to_string();
        let of = |bytes: usize| misfits(&schema, Some(&json!("a".repeat(bytes))), "data");
        assert_eq!(of(300).len(), LISTED_MAX);
        assert!(of(64 * 1024)[0].problem.contains("too many values"));
        let named = json!({"k".repeat(64 * 1024): 1});
        let schema = json!({"patternProperties": patterns(100)}).to_string();
        assert!(misfits(&schema, Some(&named), "data")[0].problem.contains("too many values"));
    }
}
