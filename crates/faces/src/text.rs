//! Texts of other agents, as a model may read them: bounded, and without characters that hide or steer.

use serde_json::Value;

/// The longest text of an agent's description, in bytes.
pub(crate) const DESCRIPTION_MAX: usize = 512;
/// The longest text of a summary or of details, in bytes.
pub(crate) const TEXT_MAX: usize = 4096;
/// The largest data of others in one answer, as bytes of JSON.
pub(crate) const DATA_MAX: usize = 65_536;

/// The text without control and bidirectional characters, cut at `max` bytes.
pub(crate) fn clean(text: &str, max: usize) -> String {
    let steers = |letter: char| {
        (letter.is_control() && !matches!(letter, '\n' | '\t'))
            || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    let clean: String = text.chars().filter(|letter| !steers(*letter)).collect();
    if clean.len() <= max {
        return clean;
    }
    format!("{} … (cut, {} bytes)", &clean[..clean.floor_char_boundary(max)], clean.len())
}

/// The JSON text as a value with clean texts. A value over `max` bytes becomes its beginning.
pub(crate) fn clean_json(json: &str, max: usize) -> Value {
    match serde_json::from_str(json) {
        Ok(value) if json.len() <= max => clean_value(value),
        _ => Value::String(clean(json, max.min(TEXT_MAX))),
    }
}

fn clean_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(clean(&text, usize::MAX)),
        Value::Array(values) => values.into_iter().map(clean_value).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(name, value)| (clean(&name, usize::MAX), clean_value(value))).collect()
        }
        other => other,
    }
}

/// The name of an enum's value without the prefix of its type.
pub(crate) fn short(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_text_is_bounded_and_hides_nothing() {
        assert_eq!(clean("a\u{202e}b\u{7}c\u{200b}\n", 10), "abc\n");
        assert_eq!(clean("äöü", 3), "ä … (cut, 6 bytes)");
        assert_eq!(clean_json("{\"a\\u202e\": [\"b\\u0007\", 1]}", 100), serde_json::json!({"a": ["b", 1]}));
        let cut = clean_json(&format!("[\"{}\"]", "x".repeat(100)), 20);
        assert_eq!(cut, serde_json::json!(format!("[\"{} … (cut, 104 bytes)", "x".repeat(18))));
    }
}
