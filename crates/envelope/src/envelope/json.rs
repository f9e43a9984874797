//! JSON texts of agents: results, answers, inputs and the values of specs.
//!
//! A text is carried and shown as it was sent, byte for byte, so this module reads texts and writes none. It has the one
//! reader of such texts: every reader of a text that it accepts finds the same values, because a name that is there twice,
//! a number that is none and half of a character are refused. It must not know what a text is for.

use std::fmt::{self, Write as _};

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::Checks;

/// The deepest nesting of a result, of an answer and of an input.
pub const JSON_DEPTH_MAX: usize = 128;

/// The most levels that a section of a context has around a result.
const LEVELS_AROUND: usize = 8;

/// The reason why a text is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}{}", if pointer.is_empty() { String::new() } else { format!(", at {pointer}") })]
pub struct JsonError {
    /// The JSON pointer of the value. Empty: the text as a whole.
    pub pointer: String,
    /// What is wrong, as a continuation of "the value".
    pub problem: String,
}

/// Which numbers a text may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Numbers {
    /// Any. 64-bit integers are read exactly.
    All,
    /// Those up to this absolute value, read as doubles.
    Within(f64),
}

/// Reads the text of a result, of an answer or of an input. 64-bit integers are exact, and 42 is no fraction.
///
/// # Errors
///
/// The place and the reason: the text is not JSON, has a name twice in an object, or nests deeper than
/// [`JSON_DEPTH_MAX`] levels.
pub fn read_json(text: &str) -> Result<Value, JsonError> {
    read(text, JSON_DEPTH_MAX, Numbers::All)
}

/// Reads a text that may have such texts within: a section of a context, for example.
///
/// # Errors
///
/// As [`read_json`], at a few levels more.
pub fn read_checked_json(text: &str) -> Result<Value, JsonError> {
    read(text, JSON_DEPTH_MAX + LEVELS_AROUND, Numbers::All)
}

/// The members of an object, each value as its text. `None`: the text is no JSON object. A member is not read, so its
/// numbers stay as they were written.
pub fn json_members(text: &str) -> Option<Vec<(String, &str)>> {
    let mut members = Vec::new();
    let mut rest = text.trim_ascii_start().strip_prefix('{')?.trim_ascii_start();
    if rest.trim_ascii() == "}" {
        return Some(members);
    }
    loop {
        let mut names = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let name = names.next()?.ok()?;
        rest = rest[names.byte_offset()..].trim_ascii_start().strip_prefix(':')?.trim_ascii_start();
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        values.next()?.ok()?;
        let (value, after) = rest.split_at(values.byte_offset());
        members.push((name, value));
        rest = after.trim_ascii_start();
        match rest.strip_prefix(',') {
            Some(after) => rest = after.trim_ascii_start(),
            None => return (rest.trim_ascii_end() == "}").then_some(members),
        }
    }
}

impl Checks {
    /// Checks the text of a JSON object of at most `bytes_max` bytes, and returns the object. `advice` tells the sender of a
    /// larger one what to do. `None`: the text is empty or invalid.
    pub fn json_object(&mut self, path: &str, text: &str, bytes_max: usize, advice: &str) -> Option<Value> {
        if text.is_empty() {
            return None;
        }
        // Before it is read: an oversized text costs no reading.
        if text.len() > bytes_max {
            let bytes = text.len();
            self.wrong(path, format!("has {bytes} bytes, over the limit of {bytes_max}; {advice}"));
            return None;
        }
        match read_json(text) {
            Ok(value) if value.is_object() => Some(value),
            Ok(_) => {
                self.wrong(path, "must be a JSON object");
                None
            }
            Err(JsonError { pointer, problem }) => {
                self.wrong(format!("{path}{pointer}"), problem);
                None
            }
        }
    }
}

/// Reads a text of at most `depth_max` levels.
pub(super) fn read(text: &str, depth_max: usize, numbers: Numbers) -> Result<Value, JsonError> {
    let mut place = Place { pointer: String::new(), levels_left: depth_max, depth_max, numbers };
    let mut reader = serde_json::Deserializer::from_str(text);
    // The place counts the levels.
    reader.disable_recursion_limit();
    let value = Seed(&mut place).deserialize(&mut reader);
    let value = value.and_then(|value| reader.end().map(|()| value));
    value.map_err(|error| JsonError { problem: problem_of(&error, text), pointer: place.pointer })
}

/// The words for an error of the parser.
fn problem_of(error: &serde_json::Error, text: &str) -> String {
    if error.is_syntax() || error.is_eof() {
        let line = text.split('\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
        let rest = line.get(error.column().saturating_sub(1)..).unwrap_or_default();
        if let Some(name) = ["NaN", "Infinity"].iter().find(|name| rest.starts_with(**name)) {
            return format!("has {name} at line {} column {}: JSON has no such number", error.line(), error.column());
        }
        return format!("is not JSON: {error}");
    }
    error.to_string()
}

/// The value that is read, and the levels that may be below it.
struct Place {
    pointer: String,
    levels_left: usize,
    depth_max: usize,
    numbers: Numbers,
}

impl Place {
    /// Reads a member or an element, whose part of the pointer is `name`. After an error the pointer stays as it is.
    fn within<T, E>(&mut self, name: fmt::Arguments<'_>, read: impl FnOnce(Seed<'_>) -> Result<T, E>) -> Result<T, E> {
        let before = self.pointer.len();
        // A text takes all that is written to it.
        let _ = write!(self.pointer, "/{name}");
        let value = read(Seed(self))?;
        self.pointer.truncate(before);
        Ok(value)
    }

    fn enter<E: serde::de::Error>(&mut self) -> Result<(), E> {
        let below = self.levels_left.checked_sub(1);
        let deep = || E::custom(format_args!("is more than {} levels deep", self.depth_max));
        self.levels_left = below.ok_or_else(deep)?;
        Ok(())
    }
}

struct Seed<'p>(&'p mut Place);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Seed<'_> {
    fn number<E: serde::de::Error>(&self, exact: Number, number: f64) -> Result<Value, E> {
        match self.0.numbers {
            Numbers::All => Ok(Value::Number(exact)),
            Numbers::Within(most) if number.abs() > most => {
                Err(E::custom(format_args!("the number {number} is beyond {most}")))
            }
            Numbers::Within(_) => {
                let number = Number::from_f64(number).ok_or_else(|| E::custom("a number is not finite"))?;
                Ok(Value::Number(number))
            }
        }
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    #[expect(clippy::cast_precision_loss, reason = "a number that loses precision is refused")]
    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Value, E> {
        self.number(number.into(), number as f64)
    }

    #[expect(clippy::cast_precision_loss, reason = "a number that loses precision is refused")]
    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Value, E> {
        self.number(number.into(), number as f64)
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Value, E> {
        let exact = Number::from_f64(number).ok_or_else(|| E::custom("a number is not finite"))?;
        self.number(exact, number)
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let Self(place) = self;
        place.enter()?;
        let mut values = Vec::new();
        while let Some(value) = place.within(format_args!("{}", values.len()), |seed| list.next_element_seed(seed))? {
            values.push(value);
        }
        place.levels_left += 1;
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let Self(place) = self;
        place.enter()?;
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let escaped = name.replace('~', "~0").replace('/', "~1");
            let value = place.within(format_args!("{escaped}"), |seed| {
                if object.contains_key(&name) {
                    return Err(A::Error::custom(format_args!("the name {name:?} occurs twice")));
                }
                members.next_value_seed(seed)
            })?;
            object.insert(name, value);
        }
        place.levels_left += 1;
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        let text = "[1234567890123456789,-9223372036854775808,18446744073709551615,42,42.0]";
        assert_eq!(read_json(text).unwrap().to_string(), text);
        assert_eq!(read_json("[0.1, 1e2, -0, null, true]").unwrap(), json!([0.1, 100.0, -0.0, null, true]));
    }

    #[test]
    fn texts_with_two_meanings_are_refused_with_their_place() {
        for (text, pointer, problem) in [
            (r#"{"a":{"b":1,"b":2}}"#, "/a/b", r#"the name "b" occurs twice at line 1 column 15"#),
            (r#"{"a":[1,NaN]}"#, "/a/1", "has NaN at line 1 column 9: JSON has no such number"),
            (r#"{"a":-Infinity}"#, "/a", "has Infinity at line 1 column 7: JSON has no such number"),
            (r#"{"a/b":"\ud800"}"#, "/a~1b", "is not JSON: unexpected end of hex escape at line 1 column 15"),
            (r#"{"a":1e999}"#, "/a", "is not JSON: number out of range at line 1 column 10"),
            ("{\"a\":1", "", "is not JSON: EOF while parsing an object at line 1 column 6"),
            ("{} {}", "", "is not JSON: trailing characters at line 1 column 4"),
        ] {
            assert_eq!(read_json(text).unwrap_err(), JsonError { pointer: pointer.into(), problem: problem.into() });
        }
    }

    #[test]
    fn the_depth_is_bounded() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(read_json(&nested(128)).is_ok());
        let error = read_json(&nested(129)).unwrap_err();
        assert_eq!(error.problem, "is more than 128 levels deep at line 1 column 130");
        assert_eq!(error.pointer, "/0".repeat(128));
        assert!(read_checked_json(&nested(136)).is_ok());
        assert!(read_checked_json(&nested(100_000)).is_err());
    }

    #[test]
    fn members_are_parts_of_the_text() {
        let text = r#" { "a" : 1e2 , "b":{"c":[1 ]}, "\u0063":"}" } "#;
        let all = [("a", "1e2"), ("b", r#"{"c":[1 ]}"#), ("c", r#""}""#)];
        assert_eq!(json_members(text), Some(all.map(|(name, value)| (name.to_owned(), value)).to_vec()));
        assert_eq!(json_members("{ }"), Some(Vec::new()));
        for text in ["", "[1]", r#"{"a":1"#, r#"{"a":1}}"#, r#"{"a":1,}"#, r#"{"a" 1}"#] {
            assert_eq!(json_members(text), None, "{text}");
        }
    }

    #[test]
    fn a_text_over_its_bound_and_one_of_another_kind_are_refused() {
        for (text, problem) in
            [(r#"{"a":1234567890}"#, "has 16 bytes, over the limit of 10; send less"), ("[1]", "must be a JSON object")]
        {
            let mut checks = Checks::default();
            assert_eq!(checks.json_object("p", text, 10, "send less"), None);
            assert!(checks.finish().unwrap_err().to_string().contains(problem), "{problem}");
        }
        let mut checks = Checks::default();
        assert_eq!(checks.json_object("p", "", 7, ""), None);
        assert_eq!(checks.json_object("p", r#"{"a":1}"#, 7, ""), Some(json!({"a": 1})));
        assert!(checks.finish().is_ok());
    }
}
