//! Escapes texts from agents and brokers, so that they cannot control a terminal or forge a line of output.
//!
//! Owns the set of dangerous characters and their escapes in each output format. Everything that the command line
//! prints or logs passes through here: its modules `output` and `logging`.

use std::borrow::Cow;

/// Whether a character has an effect beyond its glyph: control characters (C0, DEL, C1), line separators, marks that
/// change the text direction, and invisible characters. Joiners of letters and emoji are not dangerous.
fn is_dangerous(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

fn replace(text: &str, is_replaced: impl Fn(char) -> bool, write: impl Fn(char, &mut String)) -> Cow<'_, str> {
    // Almost every text is harmless, and is not copied.
    if !text.contains(&is_replaced) {
        return Cow::Borrowed(text);
    }
    let mut harmless = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if is_replaced(letter) { write(letter, &mut harmless) } else { harmless.push(letter) }
    }
    Cow::Owned(harmless)
}

/// Escapes a text to one line: a line feed becomes `\n`, an escape character `\u{1b}`.
pub fn line(text: &str) -> Cow<'_, str> {
    replace(text, is_dangerous, |letter, out| out.extend(letter.escape_default()))
}

/// Escapes a text of several lines, in which line feeds stay. Its parts must be escaped already.
pub fn lines(text: &str) -> Cow<'_, str> {
    replace(text, |letter| letter != '\n' && is_dangerous(letter), |letter, out| out.extend(letter.escape_default()))
}

/// Escapes JSON text without changing its meaning: a dangerous character that JSON allows becomes `\u202e` or similar.
pub fn json(text: &str) -> Cow<'_, str> {
    replace(
        text,
        |letter| letter != '\n' && is_dangerous(letter),
        |letter, out| {
            // JSON has escapes of 16 bits only: a character beyond them is a surrogate pair.
            for unit in letter.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        },
    )
}

/// Quotes a string for YAML, with escapes.
pub fn yaml_string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if is_dangerous(letter) => quoted.push_str(&format!("\\U{:08x}", u32::from(letter))),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// Whether the YAML writer could print a character of the text that a terminal obeys.
pub fn is_dangerous_in_yaml(text: &str) -> bool {
    text.contains(|letter| !matches!(letter, '\n' | '\t') && is_dangerous(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_a_line_and_no_terminal_obeys_it() {
        let nasty = "a\u{1b}[2J\r\nFAKE\tb\u{7f}\u{9b}31m\u{202e}c\u{2066}\u{200b}\u{feff}\u{e0041}";
        let shown = line(nasty);
        assert_eq!(shown, "a\\u{1b}[2J\\r\\nFAKE\\tb\\u{7f}\\u{9b}31m\\u{202e}c\\u{2066}\\u{200b}\\u{feff}\\u{e0041}");
        assert_eq!(lines("a\nb\r"), "a\nb\\r");
    }

    #[test]
    fn what_people_write_stays_as_it_is() {
        for text in ["Grüße, 客服 👩\u{200d}🚒", "می\u{200c}خواهم", "e\u{301}", "a\u{a0}b\u{3000}c", "C:\\new"]
        {
            assert!(matches!(line(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    #[test]
    fn json_keeps_its_meaning() {
        let nasty = "\u{1b}\r\n\u{7f}\u{85}\u{9b}\u{202e}\u{e0041} ü";
        let text = serde_json::to_string_pretty(&serde_json::json!({ "a": nasty })).unwrap();
        let shown = json(&text);
        assert!(!shown.contains(|letter| letter != '\n' && is_dangerous(letter)), "{shown:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap()["a"], nasty);
    }
}
