//! The formats of a schema: which a check asserts, and which it only carries.

use std::collections::BTreeSet;

use serde_json::Value;

/// The formats that are asserted.
const ASSERTED: [&str; 8] = ["date-time", "date", "time", "email", "uuid", "uri", "ipv4", "ipv6"];

/// The formats of draft 2020-12 that are not asserted.
pub(super) const UNCHECKED: [&str; 11] = [
    "duration",
    "hostname",
    "idn-email",
    "idn-hostname",
    "iri",
    "iri-reference",
    "json-pointer",
    "regex",
    "relative-json-pointer",
    "uri-reference",
    "uri-template",
];

/// The formats that a schema names and that are not asserted, each once and in order.
pub(super) fn unchecked(schema: &Value) -> Vec<String> {
    let mut found = BTreeSet::new();
    add(schema, &mut found);
    found.into_iter().map(ToOwned::to_owned).collect()
}

fn add<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        Value::Array(values) => values.iter().for_each(|value| add(value, found)),
        Value::Object(fields) => fields.iter().for_each(|(name, value)| match (name.as_str(), value) {
            ("format", Value::String(format)) if !ASSERTED.contains(&format.as_str()) => {
                found.insert(format);
            }
            _ => add(value, found),
        }),
    }
}
