//! A `google.protobuf.Struct` as JSON.

use prost_types::{Struct, Value, value::Kind};
use serde_json::{Map, Number};

use super::Checks;

/// The largest integer of which a double holds all smaller ones.
const INTEGER_MAX: f64 = 9_007_199_254_740_992.0;

/// Checks a struct of at most `bytes_max` bytes as JSON, and returns it as JSON. `advice` tells the sender of a larger one
/// what to do. `None`: it is unset or invalid.
pub(super) fn checked(
    checks: &mut Checks,
    path: &str,
    value: Option<&Struct>,
    bytes_max: usize,
    advice: &str,
) -> Option<serde_json::Value> {
    let json = object(value?, &mut |problem| checks.wrong(path, problem));
    let bytes = serde_json::to_vec(&json).map_or(usize::MAX, |text| text.len());
    if bytes > bytes_max {
        checks.wrong(path, format!("has {bytes} bytes as JSON, over the limit of {bytes_max}; {advice}"));
        return None;
    }
    Some(json)
}

/// The struct as JSON. A number that JSON does not have becomes null.
pub fn json_of(value: &Struct) -> serde_json::Value {
    object(value, &mut |_| {})
}

/// A JSON object as a struct. `None`: the value is no object.
pub fn struct_of(value: &serde_json::Value) -> Option<Struct> {
    let fields = value.as_object()?;
    Some(Struct { fields: fields.iter().map(|(name, value)| (name.clone(), value_of(value))).collect() })
}

fn value_of(value: &serde_json::Value) -> Value {
    let kind = match value {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(flag) => Kind::BoolValue(*flag),
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        serde_json::Value::String(text) => Kind::StringValue(text.clone()),
        serde_json::Value::Array(list) => {
            Kind::ListValue(prost_types::ListValue { values: list.iter().map(value_of).collect() })
        }
        serde_json::Value::Object(_) => Kind::StructValue(struct_of(value).unwrap_or_default()),
    };
    Value { kind: Some(kind) }
}

fn object(object: &Struct, wrong: &mut dyn FnMut(String)) -> serde_json::Value {
    let field = |(name, value): (&String, &Value)| (name.clone(), json(value, wrong));
    serde_json::Value::Object(object.fields.iter().map(field).collect::<Map<_, _>>())
}

// The decoder of the message has bounded the depth.
fn json(value: &Value, wrong: &mut dyn FnMut(String)) -> serde_json::Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => serde_json::Value::Null,
        Some(Kind::BoolValue(flag)) => (*flag).into(),
        Some(Kind::StringValue(text)) => text.clone().into(),
        Some(Kind::NumberValue(number)) => self::number(*number).unwrap_or_else(|| {
            wrong(format!("must have finite numbers only, not {number}"));
            serde_json::Value::Null
        }),
        Some(Kind::StructValue(inner)) => object(inner, wrong),
        Some(Kind::ListValue(list)) => list.values.iter().map(|value| json(value, wrong)).collect(),
    }
}

fn number(number: f64) -> Option<serde_json::Value> {
    // An integer is written without a fraction, as JSON Schema and people expect it.
    if number.fract() == 0.0 && number.abs() <= INTEGER_MAX {
        #[expect(clippy::cast_possible_truncation, reason = "an integer of at most 53 bits")]
        return Some((number as i64).into());
    }
    Number::from_f64(number).map(serde_json::Value::Number)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn of(kind: Kind) -> Struct {
        Struct { fields: BTreeMap::from([("a".to_owned(), Value { kind: Some(kind) })]) }
    }

    #[test]
    fn a_struct_is_the_json_that_it_stands_for() {
        let list = prost_types::ListValue { values: vec![Value { kind: Some(Kind::BoolValue(true)) }] };
        assert_eq!(json_of(&of(Kind::NumberValue(3.0))), json!({"a": 3}));
        assert_eq!(json_of(&of(Kind::NumberValue(-0.5))), json!({"a": -0.5}));
        let all = json!({"a": [1, -0.5, true, null, "b", {"c": {}}]});
        assert_eq!(struct_of(&all).as_ref().map(json_of), Some(all));
        assert_eq!(struct_of(&json!([1])), None);
        assert_eq!(json_of(&of(Kind::NullValue(0))), json!({"a": null}));
        assert_eq!(json_of(&of(Kind::ListValue(list))), json!({"a": [true]}));
        assert_eq!(json_of(&of(Kind::StructValue(of(Kind::StringValue("b".into()))))), json!({"a": {"a": "b"}}));
    }

    #[test]
    fn a_struct_over_its_bound_and_numbers_without_json_are_refused() {
        for (kind, most) in [(Kind::StringValue("x".repeat(100)), 100), (Kind::NumberValue(f64::NAN), 100)] {
            let mut checks = Checks::default();
            checked(&mut checks, "p", Some(&of(kind)), most, "send less");
            assert!(checks.finish().is_err());
        }
        let mut checks = Checks::default();
        assert_eq!(checked(&mut checks, "p", Some(&of(Kind::NumberValue(1.0))), 7, ""), Some(json!({"a": 1})));
        assert!(checks.finish().is_ok());
    }
}
