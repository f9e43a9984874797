//! JSON Schemas of answers and of contexts: whether a text is a permitted schema, and whether data fits it.
//!
//! A check may take long, so it runs beside the engine, and this module bounds its work. A schema could otherwise take
//! exponential time: it may refer to the same part of itself many times, and the part again to others. One [`Work`] pays
//! for all checks of a message or of a call. This module must not know what the data is for.

mod cost;
mod formats;
mod patterns;

use std::sync::Arc;

use jsonschema::{Draft, Keyword, Validator, error::ValidationErrorKind};
use quick_cache::{Weighter, sync::Cache};
use serde_json::Value;

use self::{cost::Cost, formats::UNCHECKED, patterns::Pattern};
use crate::{codes::FieldViolation, envelope::signing::sha256};

/// The most violations that the refusal of an answer lists.
pub const LISTED_MAX: usize = 16;
/// The most bytes of a registered schema.
pub const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// The most violations that the check of a context lists.
pub const VIOLATIONS_MAX: usize = 64;
/// The most characters of the description of a violation.
const DESCRIBED_MAX: usize = 300;
/// The bytes of a text that count as one value: a comparison reads all of it.
const TEXT_BYTES_A_VALUE: usize = 64;
/// The most bytes of all compiled patterns of a schema.
const PATTERNS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The most values of data for which all violations are collected. Of larger data the first one is told, because each
/// violation keeps memory.
const COLLECTED_VALUES_MAX: usize = 20_000;
/// The most bytes of compiled schemas that the broker keeps in memory.
const COMPILED_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The bytes that a compiled schema takes for each of its values, about.
const COMPILED_BYTES_A_VALUE: usize = 512;

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// The work that the checks of one message, or of one call, may cause together. A unit is one value of the data against
/// one value of the schema, or one byte of a text against one state of a pattern: some nanoseconds.
#[derive(Debug)]
pub struct Work {
    left: u64,
}

impl Work {
    /// The work of one message, or of one call.
    pub const MAX: u64 = 50_000_000;

    /// The whole work of one message, or of one call.
    pub const fn new() -> Self {
        Self { left: Self::MAX }
    }

    /// Takes some work. Returns false, and takes all that is left, if it is less.
    fn take(&mut self, units: u64) -> bool {
        let left = self.left.checked_sub(units);
        self.left = left.unwrap_or(0);
        left.is_some()
    }
}

impl Default for Work {
    fn default() -> Self {
        Self::new()
    }
}

/// The compiled schemas in memory, by the SHA-256 of their texts. A text that is not here is compiled by the caller, once
/// for all callers that ask for it at the same time.
#[derive(Debug)]
pub struct CompiledSchemas(Cache<[u8; 32], Arc<JsonSchema>, BytesOfSchema>);

#[derive(Debug, Clone)]
struct BytesOfSchema;

impl Weighter<[u8; 32], Arc<JsonSchema>> for BytesOfSchema {
    fn weight(&self, _: &[u8; 32], schema: &Arc<JsonSchema>) -> u64 {
        schema.bytes as u64
    }
}

impl Default for CompiledSchemas {
    fn default() -> Self {
        Self(Cache::with_weighter(1024, COMPILED_BYTES_MAX, BytesOfSchema))
    }
}

impl CompiledSchemas {
    /// The compiled schema of a text. The error names the problem, as a continuation of "the schema".
    pub fn get(&self, text: &str) -> Result<Arc<JsonSchema>, String> {
        self.0.get_or_insert_with(&sha256(&[text.as_bytes()]), || JsonSchema::parse(text).map(Arc::new))
    }
}

/// A compiled schema of draft 2020-12 within the bounds.
pub struct JsonSchema {
    cost: Cost,
    unchecked_formats: Vec<String>,
    /// The states of the patterns for names of members.
    name_states: u64,
    /// The memory that the compiled schema takes, about.
    bytes: usize,
    validator: Validator,
}

impl JsonSchema {
    /// Parses and compiles a text. The error names the problem, as a continuation of "the schema".
    pub fn parse(schema: &str) -> Result<Self, String> {
        let schema = parse(schema)?;
        let cost = Cost::of(&schema)?;
        let mut patterns = Patterns::default();
        patterns.add_all(&schema)?;
        let bytes = cost.values() * COMPILED_BYTES_A_VALUE + patterns.bytes;
        let unchecked_formats = formats::unchecked(&schema);
        let (name_states, validator) = (patterns.name_states, compile(&schema)?);
        Ok(Self { cost, unchecked_formats, name_states, bytes, validator })
    }

    /// The formats that the schema names and a check does not assert, each once.
    pub fn unchecked_formats(&self) -> &[String] {
        &self.unchecked_formats
    }

    /// The violations of this data, at most `most`. Empty: the data fits. Each path is `path` and the JSON pointer of the
    /// value. A check that would need more work than is left ends with that violation.
    pub fn misfits(&self, data: &Value, path: &str, most: usize, work: &mut Work) -> Vec<FieldViolation> {
        let violation = |pointer: &str, problem: String| FieldViolation { path: format!("{path}{pointer}"), problem };
        let too_much = || {
            let problem = "has too many values, or too long texts, for the size and the patterns of its schema";
            vec![violation("", problem.to_owned())]
        };
        // In the worst case every value is checked against every part of the schema; the product bounds the work before
        // it begins.
        let Size { values, name_bytes, depth } = size(data);
        let cost = match self.cost.at(depth) {
            Ok(cost) => cost,
            Err(most) => {
                let problem = format!("nests {depth} levels deep; data of this recursive schema may nest {most}");
                return vec![violation("", problem)];
            }
        };
        let values_by_parts = (values as u64).saturating_mul(cost as u64);
        if !work.take(values_by_parts.saturating_add(name_bytes.saturating_mul(self.name_states))) {
            return too_much();
        }
        let describe = |error: jsonschema::ValidationError<'_>| {
            let problem: String = error.to_string().chars().take(DESCRIBED_MAX).collect();
            match error.kind() {
                // The place of a missing member is the member's own.
                ValidationErrorKind::Required { property: Value::String(name) } => {
                    let name = name.replace('~', "~0").replace('/', "~1");
                    violation(&format!("{}/{name}", error.instance_path().as_str()), problem)
                }
                _ => violation(error.instance_path().as_str(), problem),
            }
        };
        let (found, left) = patterns::within(work.left, || match values > COLLECTED_VALUES_MAX {
            false => self.validator.iter_errors(data).take(most).map(describe).collect(),
            true => self.validator.validate(data).err().into_iter().take(most).map(describe).collect(),
        });
        work.left = left.unwrap_or(0);
        if left.is_some() { found } else { too_much() }
    }
}

impl std::fmt::Debug for JsonSchema {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "a schema of {} values", self.cost.values())
    }
}

/// What the patterns of a schema take.
#[derive(Default)]
struct Patterns {
    bytes: usize,
    name_states: u64,
}

impl Patterns {
    fn add_all(&mut self, value: &Value) -> Result<(), String> {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
            Value::Array(values) => values.iter().try_for_each(|value| self.add_all(value)),
            Value::Object(fields) => fields.iter().try_for_each(|(name, value)| match (name.as_str(), value) {
                ("pattern", Value::String(pattern)) => self.add(pattern).map(drop),
                ("patternProperties", Value::Object(parts)) => parts.iter().try_for_each(|(pattern, part)| {
                    self.name_states += self.add(pattern)?;
                    self.add_all(part)
                }),
                _ => self.add_all(value),
            }),
        }
    }

    /// Counts a pattern, and returns its states.
    fn add(&mut self, pattern: &str) -> Result<u64, String> {
        let compiled = Pattern::compile(pattern).ok_or_else(|| no_pattern(pattern))?;
        self.bytes += compiled.bytes();
        match self.bytes <= PATTERNS_BYTES_MAX {
            true => Ok(compiled.states()),
            false => Err(format!("has patterns of more than {PATTERNS_BYTES_MAX} bytes, compiled")),
        }
    }
}

fn no_pattern(pattern: &str) -> String {
    let start: String = pattern.chars().take(64).collect();
    format!("has a pattern that is none, is too large, or needs look-around or back-references: {start:?}")
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
    let options = jsonschema::options()
        .with_draft(Draft::Draft202012)
        .offline()
        .should_validate_formats(true)
        // For names of members. This engine needs linear time for any pattern.
        .with_pattern_options(jsonschema::PatternOptions::regex())
        .with_keyword("pattern", |_, pattern, _| match pattern.as_str().map(|text| (text, Pattern::compile(text))) {
            Some((_, Some(compiled))) => Ok(Box::new(compiled) as Box<dyn for<'i> Keyword<'i>>),
            Some((text, None)) => Err(jsonschema::ValidationError::schema(no_pattern(text))),
            None => Err(jsonschema::ValidationError::schema("a pattern must be a text")),
        });
    // The library asserts more formats than this broker promises, one of them by compiling a pattern of the data.
    let options = UNCHECKED.iter().fold(options, |options, format| options.with_format(*format, |_| true));
    options.build(schema).map_err(|error| {
        let pointer = error.instance_path().as_str().to_owned();
        let problem: String = error.to_string().chars().take(DESCRIBED_MAX).collect();
        format!("is no valid schema at {pointer:?}: {problem}")
    })
}

/// The size of some data.
#[derive(Default)]
struct Size {
    /// The values, and more for long texts.
    values: usize,
    /// The bytes of all names of members, and one more for each.
    name_bytes: u64,
    /// The objects and lists inside each other.
    depth: usize,
}

fn size(data: &Value) -> Size {
    fn add(size: &mut Size, data: &Value, depth: usize) {
        size.values += 1;
        size.depth = size.depth.max(depth);
        match data {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) => size.values += text.len() / TEXT_BYTES_A_VALUE,
            Value::Array(values) => values.iter().for_each(|value| add(size, value, depth + 1)),
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                size.values += name.len() / TEXT_BYTES_A_VALUE;
                size.name_bytes += name.len() as u64 + 1;
                add(size, value, depth + 1);
            }),
        }
    }
    let mut size = Size::default();
    add(&mut size, data, 0);
    size
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(schema: &Value) -> String {
        JsonSchema::parse(&schema.to_string()).expect_err("a refusal")
    }

    fn misfits(schema: &str, data: &Value) -> Vec<FieldViolation> {
        JsonSchema::parse(schema).unwrap().misfits(data, "data", LISTED_MAX, &mut Work::new())
    }

    fn paths(schema: &Value, data: &Value) -> Vec<String> {
        misfits(&schema.to_string(), data).into_iter().map(|violation| violation.path).collect()
    }

    #[test]
    fn data_that_does_not_fit_is_told_where() {
        let schema = json!({
            "type": "object",
            "required": ["approved"],
            "properties": {"approved": {"type": "boolean"}, "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}}},
            "$defs": {"line": {"type": "object", "properties": {"amount": {"type": "integer", "minimum": 0}}}},
        });
        JsonSchema::parse(&schema.to_string()).unwrap();
        assert_eq!(paths(&schema, &json!({"approved": true, "lines": [{"amount": 3}]})), Vec::<String>::new());
        assert_eq!(
            paths(&schema, &json!({"approved": "yes", "lines": [{}, {"amount": -1}]})),
            ["data/approved", "data/lines/1/amount"]
        );
        assert_eq!(paths(&schema, &json!({})), ["data/approved"], "the member that is missing");
        let slash = json!({"items": {"required": ["a/b~c"]}});
        assert_eq!(paths(&slash, &json!([{}])), ["data/0/a~1b~0c"]);
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
        assert!(JsonSchema::parse("{").is_err());
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
        let deep = (0..70).fold(json!(true), |inner, _| json!({"not": inner}));
        assert!(refusal(&deep).contains("deep"));
    }

    #[test]
    fn a_recursive_schema_is_checked_to_a_depth() {
        // As pydantic writes a tree.
        let tree = json!({
            "$defs": {"Node": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                },
                "required": ["name"],
            }},
            "$ref": "#/$defs/Node",
        });
        let nested = |levels: usize| {
            (0..levels).fold(json!({"name": "leaf"}), |child, _| json!({"name": "node", "children": [child]}))
        };
        assert_eq!(paths(&tree, &nested(20)), Vec::<String>::new());
        let wrong = json!({"name": "a", "children": [{"name": "b", "children": [{"name": 7}, {}]}]});
        assert_eq!(paths(&tree, &wrong), ["data/children/0/children/0/name", "data/children/0/children/1/name"]);
        let deep = misfits(&tree.to_string(), &nested(40));
        assert!(deep[0].problem.contains("may nest 64"), "{deep:?}");
        // Each level doubles the work: fewer levels are checked.
        let twice = json!({"anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}, {"type": "string"}]});
        let of = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
        assert!(paths(&twice, &of(5)).is_empty());
        assert!(misfits(&twice.to_string(), &of(40))[0].problem.contains("may nest"));
        let many = json!({"items": {"$ref": "#"}, "enum": (0..500).collect::<Vec<_>>()});
        assert!(misfits(&many.to_string(), &json!(vec![1; 200_000]))[0].problem.contains("too many values"));
    }

    #[test]
    fn a_schema_that_refers_to_itself_at_the_same_place_is_refused() {
        for schema in [
            json!({"$ref": "#"}),
            json!({"not": {"$ref": "#"}}),
            json!({"anyOf": [{"type": "string"}, {"$ref": "#"}]}),
            json!({"dependentSchemas": {"items": {"$ref": "#"}}}),
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"if": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}),
            json!({"$defs": {"properties": {"allOf": [{"$ref": "#/$defs/properties"}]}}, "items": {"$ref": "#/$defs/properties"}}),
        ] {
            assert!(refusal(&schema).contains("refers to itself"), "{schema}");
        }
    }

    #[test]
    fn formats_are_asserted_and_others_are_named() {
        let of = |format: &str, text: &str| paths(&json!({"format": format}), &json!(text)).is_empty();
        for (format, right, wrong) in [
            ("date-time", "2026-11-26T12:00:00Z", "tomorrow"),
            ("date", "2026-11-26", "2026-13-26"),
            ("time", "12:00:00Z", "noon"),
            ("email", "ann@example.com", "nobody"),
            ("uuid", "00000000-0000-0000-0000-000000000007", "7"),
            ("uri", "https://example.com/a", "not a uri"),
            ("ipv4", "127.0.0.1", "127.0.0.256"),
            ("ipv6", "::1", "1"),
        ] {
            assert_eq!((of(format, right), of(format, wrong)), (true, false), "{format}");
            assert_eq!(JsonSchema::parse(&json!({"format": format}).to_string()).unwrap().unchecked_formats(), [""; 0]);
        }
        for format in ["hostname", "regex", "duration", "json-pointer", "made-up"] {
            assert!(of(format, "(("), "{format}");
        }
        let schema = json!({"properties": {"a": {"format": "regex"}, "b": {"items": {"format": "phone"}}, "c": {"format": "regex"}}});
        assert_eq!(JsonSchema::parse(&schema.to_string()).unwrap().unchecked_formats(), ["phone", "regex"]);
    }

    #[test]
    fn data_of_too_many_values_for_its_schema_is_refused() {
        let schema = json!({"properties": {"a": {"items": {"enum": (0..500).collect::<Vec<_>>()}}}});
        JsonSchema::parse(&schema.to_string()).unwrap();
        let of = |values: usize| misfits(&schema.to_string(), &json!({"a": vec![1; values]}));
        assert_eq!(of(50_000), []);
        let problems = of(200_000);
        assert!(problems[0].problem.contains("too many values"), "{problems:?}");
    }

    #[test]
    fn patterns_count_as_many_values() {
        let patterns = |count: usize| -> serde_json::Map<String, Value> {
            (0..count).map(|number| (format!("^{number}$"), json!(true))).collect()
        };
        assert!(refusal(&json!({"patternProperties": patterns(200)})).contains("patterns"));
        assert!(refusal(&json!({"pattern": "a".repeat(cost::VALUES_MAX)})).contains("patterns"));
    }

    #[test]
    fn a_text_is_matched_for_as_much_work_as_a_message_may_cause() {
        let schema = json!({"properties": {"a": {"pattern": "a[ab]{3000}[^ab]"}}}).to_string();
        let of = |text: String| misfits(&schema, &json!({ "a": text }));
        assert!(of("ab".repeat(500))[0].problem.contains("does not match"));
        assert!(of("ab".repeat(500_000))[0].problem.contains("too long texts"));
        // A text that no pattern is for costs next to nothing.
        assert_eq!(misfits(&schema, &json!({"b": "ab".repeat(500_000)})), []);
        let usual = json!({"items": {"pattern": "^[A-Z]{2}-[0-9]{6}$"}}).to_string();
        assert_eq!(misfits(&usual, &json!(vec!["DE-123456"; 50_000])), []);
    }

    #[test]
    fn names_are_matched_for_as_much_work_as_a_message_may_cause() {
        let schema = json!({"patternProperties": {"a[ab]{3000}[^ab]": true}}).to_string();
        assert_eq!(misfits(&schema, &json!({"ab": 1})), []);
        assert!(misfits(&schema, &json!({"ab".repeat(50_000): 1}))[0].problem.contains("too long texts"));
    }

    #[test]
    fn one_work_pays_for_all_checks_of_a_message() {
        let schema = JsonSchema::parse(&json!({"pattern": "a[ab]{1000}[^ab]"}).to_string()).unwrap();
        let mut work = Work::new();
        let text = json!("ab".repeat(10_000));
        let mut check = || schema.misfits(&text, "data", 1, &mut work)[0].problem.contains("does not match");
        assert!(check());
        assert!(check());
        assert!(!check(), "the third is over the work of a message");
        assert!(!check(), "and nothing is left after it");
    }

    #[test]
    fn equal_texts_are_compiled_once() {
        let compiled = CompiledSchemas::default();
        let first = compiled.get("{\"type\": \"string\"}").unwrap();
        assert!(Arc::ptr_eq(&first, &compiled.get("{\"type\": \"string\"}").unwrap()));
        assert!(compiled.get("{\"type\": 1}").is_err());
    }
}
