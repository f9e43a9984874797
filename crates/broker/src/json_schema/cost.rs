//! The cost of a schema: the most of its values that one value of the data is checked against.
//!
//! A check takes at most the values of the data times this cost, so the product bounds the work before it begins. A schema
//! that refers to a part that contains the reference costs more for deeper data, and is checked to the depth that its cost
//! allows. This module only counts; it compiles nothing.

use std::ptr;

use serde_json::Value;

/// The deepest nesting of a schema, with the parts that references name in their place.
const DEPTH_MAX: usize = 64;
/// The most values of a schema, with the parts that references name in their place, each once.
pub(super) const VALUES_MAX: usize = 10_000;
/// The most values of a recursive schema, with the parts that references name as often as the data nests.
const UNFOLDED_MAX: usize = 1_000_000;
/// The deepest data of a recursive schema.
const DATA_DEPTH_MAX: usize = 64;
/// The deepest nesting of a recursive schema at the deepest data. It bounds the stack of this count and of the check.
const UNFOLDED_DEPTH_MAX: usize = 512;
/// The fewest values that a pattern of a schema counts as. A longer one counts as many as it has bytes, which bounds the
/// bytes of all patterns together.
const PATTERN_VALUES_MIN: usize = 50;

/// The cost of a schema.
pub(super) struct Cost {
    values: usize,
    /// The cost for data of 0, 1, 2 … levels. Empty: the schema is not recursive, and its cost is that of its values.
    at_depths: Vec<usize>,
}

impl Cost {
    /// The cost of a schema. The error names the problem, as a continuation of "the schema".
    pub(super) fn of(schema: &Value) -> Result<Self, String> {
        let mut count = Count::new(schema, VALUES_MAX, DEPTH_MAX, None);
        count.part(schema, true, 0, 0)?;
        let mut cost = Self { values: VALUES_MAX - count.left, at_depths: Vec::new() };
        if count.is_recursive {
            cost.at_depths = (0..=DATA_DEPTH_MAX)
                .map_while(|depth| {
                    let mut count = Count::new(schema, UNFOLDED_MAX, UNFOLDED_DEPTH_MAX, Some(depth));
                    count.part(schema, true, 0, 0).ok()?;
                    Some(UNFOLDED_MAX - count.left)
                })
                .collect();
        }
        Ok(cost)
    }

    /// The values of the schema, with the parts that references name in their place, and more for each pattern.
    pub(super) const fn values(&self) -> usize {
        self.values
    }

    /// The cost for data of this depth. The error is the deepest data that the schema is checked with.
    pub(super) fn at(&self, depth: usize) -> Result<usize, usize> {
        match self.at_depths.last() {
            None => Ok(self.values),
            Some(_) => self.at_depths.get(depth).copied().ok_or(self.at_depths.len() - 1),
        }
    }
}

/// A walk over a schema, with the parts that references name in their place.
struct Count<'s> {
    root: &'s Value,
    // One budget for the whole walk: references repeat parts, so their number alone bounds nothing.
    left: usize,
    values_max: usize,
    depth_max: usize,
    /// The levels of the data. `None`: any, and a part within itself counts once.
    data_depth: Option<usize>,
    /// The parts that references name around the place of the walk, and the level of the data where each begins.
    around: Vec<(*const Value, usize)>,
    is_recursive: bool,
}

impl<'s> Count<'s> {
    fn new(root: &'s Value, values_max: usize, depth_max: usize, data_depth: Option<usize>) -> Self {
        let around = vec![(ptr::from_ref(root), 0)];
        Self { root, left: values_max, values_max, depth_max, data_depth, around, is_recursive: false }
    }

    /// Counts a schema, or a list of schemas, at a level of the data.
    fn part(&mut self, part: &'s Value, is_root: bool, depth: usize, level: usize) -> Result<(), String> {
        if depth >= self.depth_max {
            return Err(format!("is more than {DEPTH_MAX} levels deep"));
        }
        self.take(1)?;
        match part {
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
            Value::Array(parts) => parts.iter().try_for_each(|part| self.part(part, false, depth + 1, level)),
            Value::Object(fields) => {
                fields.iter().try_for_each(|(name, value)| self.keyword(name, value, is_root, depth, level))
            }
        }
    }

    fn keyword(
        &mut self,
        name: &str,
        value: &'s Value,
        is_root: bool,
        depth: usize,
        level: usize,
    ) -> Result<(), String> {
        match (name, value) {
            ("$ref", Value::String(target)) => self.reference(target, depth, level),
            // These change what a reference names, so its cost would be unknown.
            ("$dynamicRef" | "$recursiveRef" | "$anchor" | "$dynamicAnchor", Value::String(_)) => {
                Err(format!("must not have {name}"))
            }
            ("$id", Value::String(_)) if !is_root => Err("must have no $id but its own".to_owned()),
            ("pattern", Value::String(pattern)) => self.pattern(pattern),
            ("patternProperties", Value::Object(parts)) => {
                self.take(1)?;
                parts.iter().try_for_each(|(pattern, part)| {
                    self.pattern(pattern)?;
                    self.below(part, depth + 1, level)
                })
            }
            // Their members have names of the data, and none of them is a keyword.
            ("properties", Value::Object(parts)) => {
                self.take(1)?;
                parts.values().try_for_each(|part| self.below(part, depth + 1, level))
            }
            ("dependentSchemas" | "dependencies", Value::Object(parts)) => {
                self.take(1)?;
                parts.values().try_for_each(|part| self.part(part, false, depth + 2, level))
            }
            // These apply where a reference names them, so data of a known depth meets none of them here. For any data
            // their values count, at a level of their own: a part may refer to the whole, in another place of the data.
            ("$defs" | "definitions", Value::Object(parts)) => {
                self.take(1)?;
                match self.data_depth {
                    Some(_) => Ok(()),
                    None => parts.values().try_for_each(|part| self.part(part, false, depth + 2, level + 1)),
                }
            }
            (
                "items"
                | "prefixItems"
                | "additionalItems"
                | "contains"
                | "additionalProperties"
                | "propertyNames"
                | "unevaluatedItems"
                | "unevaluatedProperties",
                _,
            ) => self.below(value, depth, level),
            _ => self.part(value, false, depth + 1, level),
        }
    }

    /// Counts a schema of members or elements.
    fn below(&mut self, part: &'s Value, depth: usize, level: usize) -> Result<(), String> {
        match self.data_depth {
            // The data has nothing there.
            Some(data_depth) if level >= data_depth => self.take(1),
            _ => self.part(part, false, depth + 1, level + 1),
        }
    }

    /// Counts the part that a reference names. Only references within the schema: the broker fetches none, and could not
    /// bound what it does not have.
    fn reference(&mut self, target: &str, depth: usize, level: usize) -> Result<(), String> {
        let part = target.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
        let part = part.ok_or_else(|| format!("has a $ref to {target:?}, which is no part of it"))?;
        let address = ptr::from_ref(part);
        if let Some((_, begin)) = self.around.iter().rev().find(|(known, _)| *known == address) {
            if *begin == level {
                return Err(format!("refers to itself at the same place of the data, by a $ref to {target:?}"));
            }
            self.is_recursive = true;
            if self.data_depth.is_none() {
                return self.take(1);
            }
        }
        self.around.push((address, level));
        self.part(part, ptr::eq(part, self.root), depth + 1, level)?;
        self.around.pop();
        Ok(())
    }

    fn pattern(&mut self, pattern: &str) -> Result<(), String> {
        self.take(pattern.len().max(PATTERN_VALUES_MIN))
    }

    fn take(&mut self, values: usize) -> Result<(), String> {
        let taken = self.left.checked_sub(values);
        let values_max = self.values_max;
        self.left =
            taken.ok_or_else(|| format!("has more than {values_max} values, references and patterns included"))?;
        Ok(())
    }
}
