//! How deeply the expressions of a policy are nested, from its text. Cedar's parser and validator recurse, and have no
//! bound of their own: the parser ends the process, and the validator lets an expression pass that it has not checked.
//! Must not know the meaning of a policy.

/// The most levels of an expression: open brackets, and the operators in a row in each of them. An evaluation takes about
/// 3 KB of stack for each, in a build without optimisations 20 KB, and a thread of the broker has 2 MiB.
pub(super) const DEPTH_MAX: usize = 100;

/// An open bracket, or a rule as a whole.
#[derive(Default)]
struct Level {
    /// The operators that nest to the left or to the right: `||`, `&&`, `+`, `-`, `*`, `if`, and the conditions of a rule.
    operators: usize,
    /// The accesses and the `!` in a row.
    row: usize,
}

impl Level {
    fn depth(&self) -> usize {
        1 + self.operators + self.row
    }
}

/// The line, from 1, at which an expression of a text has over [`DEPTH_MAX`] levels. Never less than Cedar's own depth.
pub(super) fn too_deep(text: &str) -> Option<usize> {
    let mut levels = vec![Level::default()];
    // The depth of all levels but the last.
    let mut around = 0;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = token_length(rest, first);
        let (token, behind) = rest.split_at(length);
        let is_first = levels.len() == 1;
        let level = levels.last_mut().expect("the first level stays");
        match token {
            "(" | "[" | "{" => {
                // An index is an access, too: `a["b"]["c"]`.
                level.row += usize::from(token == "[");
                around += level.depth();
                levels.push(Level::default());
            }
            ")" | "]" | "}" if !is_first => {
                levels.pop();
                around -= levels.last().expect("the first level stays").depth();
            }
            "," | ";" => *level = Level::default(),
            "||" | "&&" | "+" | "-" | "*" | "if" | "when" | "unless" => {
                level.operators += 1;
                level.row = 0;
            }
            "==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "has" | "like" | "is" | "then" | "else" => level.row = 0,
            "." | "!" => level.row += 1,
            _ => {}
        }
        if around + levels.last().map_or(0, Level::depth) > DEPTH_MAX {
            let read = &text[..text.len() - behind.len()];
            return Some(1 + read.bytes().filter(|byte| *byte == b'\n').count());
        }
        rest = behind;
    }
    None
}

/// The bytes of the token that a text begins with: a string, a comment, a word, an operator, or one character.
fn token_length(text: &str, first: char) -> usize {
    let up_to = |end: Option<usize>| end.unwrap_or(text.len());
    match first {
        '"' => {
            let mut is_escaped = false;
            let end = text.char_indices().skip(1).find(|(_, character)| {
                let ends = *character == '"' && !is_escaped;
                is_escaped = *character == '\\' && !is_escaped;
                ends
            });
            up_to(end.map(|(at, _)| at + 1))
        }
        _ if text.starts_with("//") => up_to(text.find('\n')),
        _ if first.is_ascii_alphanumeric() || first == '_' => {
            up_to(text.find(|character: char| !character.is_ascii_alphanumeric() && character != '_'))
        }
        _ if ["||", "&&", "==", "!=", "<=", ">=", "::"].iter().any(|token| text.starts_with(token)) => 2,
        _ => first.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nests_counts_and_what_does_not_is_free() {
        let many = |what: &str| what.repeat(5000);
        for flat in [
            many("permit(principal, action, resource);\n"),
            format!("permit(principal in [{}], action, resource);", many("Agent::\"a\", ")),
            format!("permit(principal, action, resource) when {{ [{}].contains(1) }};", many("1, ")),
            format!("// {}\npermit(principal, action, resource);", many("((((")),
            format!("@why(\"{}\")\npermit(principal, action, resource);", many("\\\"((((")),
            many("@a(\"b\") permit(principal, action, resource) when { context.a.b.c || !context.d };"),
        ] {
            assert_eq!(too_deep(&flat), None, "{}", &flat[..40]);
        }
        let whole = |condition: &str| format!("permit(principal, action, resource)\nwhen {{\n{condition}\n}};");
        for deep in
            ["(", "[", "{", "!", "if ", "a || ", "a && ", "1 + ", "1 - ", "1 * ", "a.b", "a[\"b\"]", "f(", "a.f("]
        {
            for times in [DEPTH_MAX, 5000] {
                assert_eq!(too_deep(&whole(&deep.repeat(times))), Some(3), "{times} times {deep}");
            }
            assert_eq!(too_deep(&whole(&deep.repeat(DEPTH_MAX / 4))), None, "{deep}");
        }
        assert!(too_deep(&format!("permit(principal, action, resource) {};", many("when { true } "))).is_some());
        // Closing brackets without open ones are the parser's to refuse.
        assert_eq!(too_deep(&many(")")), None);
    }
}
