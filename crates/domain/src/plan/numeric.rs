//! The number in a response: `numeric_value` (SPEC 9). `vectors/numeric-v1.json` has the rule as cases.

use unicode_normalization::UnicodeNormalization as _;

/// The one distinct number of a response. `None`: it has none, or several.
///
/// A percent sign is dropped, groups of three may be separated, and full-width digits count. A number does not count if
/// it touches a Latin letter, or is a part of a date, a time, a version or a range.
pub fn numeric_value(response: &str) -> Option<f64> {
    let text = normalised(response);
    let numbers = numbers(&text);
    let mut values = numbers.iter().map(|number| number.value);
    // The same number several times is one number. Two different ones leave no way to choose, and a wrong number is
    // worse than none.
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}

/// Separates the digits of a group, in the normalised text.
const THIN_SPACE: char = '\u{2009}';

/// The characters of the text in compatibility form, without turning any other character into a digit.
fn normalised(text: &str) -> Vec<char> {
    let mut all = Vec::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            // The compatibility form would make a common space of them.
            '\u{2009}' | '\u{202f}' => all.push(THIN_SPACE),
            // The full-width comma ends a clause, and groups nothing.
            '，' => all.push(';'),
            '\u{2212}' => all.push('-'),
            '’' => all.push('\''),
            // An exponent, a fraction or the number of an item is no number of its own.
            _ if letter.is_numeric() && !letter.is_ascii_digit() && !is_plain_digit(letter) => all.push('x'),
            _ => all.extend(letter.nfkc()),
        }
    }
    all
}

/// Whether the compatibility form of the character is one decimal digit, and it stands on the line.
fn is_plain_digit(letter: char) -> bool {
    matches!(letter, '０'..='９' | '\u{1d7ce}'..='\u{1d7ff}')
}

/// A number that counts so far, at `start..end` of the text, with its sign and percent sign.
struct Number {
    start: usize,
    end: usize,
    value: f64,
}

/// A part of the text that begins with a digit.
enum Piece {
    /// A number that counts so far.
    Number(Number),
    /// A part of a date, a time, a version or a word: `start..end`.
    Other(usize, usize),
}

impl Piece {
    fn place(&self) -> (usize, usize) {
        match self {
            Self::Number(number) => (number.start, number.end),
            Self::Other(start, end) => (*start, *end),
        }
    }
}

fn numbers(text: &[char]) -> Vec<Number> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < text.len() {
        if !text[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let end = end_of_chunk(text, at);
        at = read_chunk(text, at, end, &mut pieces);
    }
    drop_ranges(text, &mut pieces);
    drop_dates(text, &mut pieces);
    pieces
        .into_iter()
        .filter_map(|piece| match piece {
            Piece::Number(number) => Some(number),
            Piece::Other(..) => None,
        })
        .collect()
}

/// The end of the digits from here, with the characters that stand between two digits and bind them.
fn end_of_chunk(text: &[char], start: usize) -> usize {
    let binds = |letter: char| matches!(letter, '.' | ',' | '\'' | '_' | THIN_SPACE | ':' | '/' | '\u{2044}' | '-');
    let mut end = start;
    loop {
        while text.get(end).is_some_and(char::is_ascii_digit) {
            end += 1;
        }
        let goes_on = text.get(end).copied().is_some_and(binds) && text.get(end + 1).is_some_and(char::is_ascii_digit);
        if !goes_on {
            return end;
        }
        end += 1;
    }
}

/// Adds the pieces of a chunk. Returns the place behind it.
fn read_chunk(text: &[char], start: usize, end: usize, pieces: &mut Vec<Piece>) -> usize {
    let chunk: String = text[start..end].iter().collect();
    if let Some(value) = plain_value(&chunk) {
        let (piece, end) = finish(text, start, end, value);
        pieces.push(piece);
        return end;
    }
    // Commas that group nothing separate numbers.
    let parts: Vec<&str> = chunk.split(',').collect();
    let are_numbers = parts.len() > 1 && parts.iter().all(|part| plain_value(part).is_some());
    if !are_numbers {
        pieces.push(Piece::Other(start, end));
        return end;
    }
    let mut from = start;
    let mut last = end;
    for part in parts {
        let to = from + part.chars().count();
        let (piece, behind) = finish(text, from, to, plain_value(part).unwrap_or_default());
        pieces.push(piece);
        (from, last) = (to + 1, behind);
    }
    last.max(end)
}

/// The value of digits with groups of three and decimals. `None`: the text is something else.
fn plain_value(text: &str) -> Option<f64> {
    let (whole, decimals) = match text.split_once('.') {
        Some((whole, decimals)) => (whole, Some(decimals)),
        None => (text, None),
    };
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if decimals.is_some_and(|decimals| !are_digits(decimals)) {
        return None;
    }
    let separators = [',', '\'', '_', THIN_SPACE];
    let digits = match separators.into_iter().find(|separator| whole.contains(*separator)) {
        None => are_digits(whole).then(|| whole.to_owned())?,
        Some(separator) => {
            let mut groups = whole.split(separator);
            let first = groups.next().filter(|first| are_digits(first) && first.len() <= 3)?;
            let others: Vec<&str> = groups.collect();
            // Groups have one kind of separator, so 1,234'567 is no single number.
            let are_groups = others.iter().all(|group| group.len() == 3 && are_digits(group));
            are_groups.then(|| format!("{first}{}", others.concat()))?
        }
    };
    format!("{digits}.{}", decimals.unwrap_or("0")).parse().ok().filter(|value: &f64| value.is_finite())
}

/// Adds sign, leading point, exponent and percent sign to a value, and looks at what the number touches.
fn finish(text: &[char], start: usize, end: usize, value: f64) -> (Piece, usize) {
    let (mut start, mut end, mut value) = (start, end, value);
    let before = |at: usize| at.checked_sub(1).map(|at| text[at]);
    // `.5` is a half.
    if before(start) == Some('.') && text[start..end].iter().all(char::is_ascii_digit) {
        let decimals: String = text[start..end].iter().collect();
        value = format!("0.{decimals}").parse().unwrap_or(value);
        start -= 1;
    }
    if let Some((exponent, behind)) = exponent(text, end) {
        // An exponent too large for the type gives infinity, which is refused below and not cut to a finite value.
        let power = format!("{value}e{exponent}").parse().unwrap_or(f64::INFINITY);
        (value, end) = (power, behind);
    }
    // A sign between a word and a number is a hyphen: COVID-19.
    let is_joined = |letter: Option<char>| letter.is_some_and(|letter| is_latin(letter) || letter == '_');
    if let Some(sign @ ('-' | '+')) = before(start) {
        let touches = before(start - 1);
        if is_joined(touches) {
            return (Piece::Other(start, end), end);
        }
        // Behind a digit, a bracket or a percent sign it subtracts, and is no sign of the number.
        if !touches.is_some_and(|letter| letter.is_ascii_digit() || matches!(letter, ')' | '%')) {
            start -= 1;
            value = if sign == '-' { -value } else { value };
        }
    }
    let after = text.get(end).copied();
    let hyphen_and_letter = after == Some('-') && text.get(end + 1).copied().is_some_and(is_latin);
    if is_joined(before(start)) || is_joined(after) || hyphen_and_letter || !value.is_finite() {
        return (Piece::Other(start, end), end);
    }
    // The words around the number decide, so this comes after the sign and the exponent, which are parts of the number.
    if is_part_of_time(text, start, end) || is_version(text, start) {
        return (Piece::Other(start, end), end);
    }
    let percent = text[end..].iter().position(|letter| *letter != ' ' && *letter != THIN_SPACE);
    if let Some(at) = percent.filter(|at| *at <= 1 && matches!(text[end + at], '%' | '‰')) {
        end += at + 1;
    }
    // Zero loses its sign: -0 and 0 are the same number to a reader.
    (Piece::Number(Number { start, end, value: if value == 0.0 { 0.0 } else { value } }), end)
}

fn exponent(text: &[char], at: usize) -> Option<(i32, usize)> {
    text.get(at).filter(|letter| matches!(letter, 'e' | 'E'))?;
    let signed = matches!(text.get(at + 1), Some('+' | '-'));
    let first = at + 1 + usize::from(signed);
    let length = text[first.min(text.len())..].iter().take_while(|letter| letter.is_ascii_digit()).count();
    let digits: String = text.get(at + 1..first + length)?.iter().collect();
    if length == 0 {
        return None;
    }
    digits.parse().ok().map(|exponent| (exponent, first + length))
}

fn is_latin(letter: char) -> bool {
    letter.is_ascii_alphabetic() || (letter.is_alphabetic() && matches!(letter, '\u{c0}'..='\u{24f}'))
}

/// The word that ends before this place, in lower case, after one space.
fn word_before(text: &[char], at: usize) -> String {
    let end = text[..at].iter().rposition(|letter| !matches!(letter, ' ' | ',' | ':')).map_or(0, |last| last + 1);
    let begin = text[..end].iter().rposition(|letter| !is_latin(*letter)).map_or(0, |last| last + 1);
    text[begin..end].iter().collect::<String>().to_lowercase()
}

/// The word that begins behind this place, in lower case, after spaces.
fn word_after(text: &[char], at: usize) -> String {
    let rest = text[at..].iter().skip_while(|letter| **letter == ' ');
    rest.take_while(|letter| is_latin(**letter)).collect::<String>().to_lowercase()
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

fn is_month(word: &str) -> bool {
    MONTHS.iter().any(|month| word == *month || (word.len() == 3 && month.starts_with(word))) || word == "sept"
}

/// Whether the number has a word of a date or of a time of day beside it.
fn is_part_of_time(text: &[char], start: usize, end: usize) -> bool {
    let first_after = |at: usize| text[at..].iter().position(|letter| *letter != ' ').map(|skip| text[at + skip]);
    let next = first_after(end);
    if matches!(next, Some('年' | '月' | '日' | '号')) {
        return true;
    }
    // 3点30分 and 3时30分 are times of day, and 15.3点 and 30分 are not.
    if matches!(next, Some('点' | '时')) {
        let behind = text[end..].iter().position(|letter| matches!(letter, '点' | '时')).map_or(end, |at| end + at + 1);
        let goes_on = first_after(behind).is_some_and(|letter| letter.is_ascii_digit() || "半整钟".contains(letter));
        if goes_on {
            return true;
        }
    }
    let hour_before = start.checked_sub(1).is_some_and(|at| matches!(text[at], '点' | '时'));
    let digit_before = start.checked_sub(2).is_some_and(|at| text[at].is_ascii_digit());
    if hour_before && digit_before {
        return true;
    }
    let (before, after) = (word_before(text, start), word_after(text, end));
    let after_noon: String =
        text[end..].iter().filter(|letter| **letter != ' ').take(4).collect::<String>().to_lowercase();
    let is_hour = matches!(after.as_str(), "am" | "pm") || after_noon.starts_with("o'");
    let is_hour = is_hour || matches!(after_noon.as_str(), "a.m." | "p.m.");
    is_month(&before) || is_month(&after) || is_hour
}

/// Whether the word before the number announces a version.
fn is_version(text: &[char], start: usize) -> bool {
    // Only the end of the text before the number counts, so that many numbers in a text take linear time.
    let end = text[..start].iter().rposition(|letter| !matches!(letter, ' ' | ':')).map_or(0, |last| last + 1);
    word_before(text, start) == "version"
        || text[..end].ends_with(&['版', '本'])
        || text[..end].ends_with(&['版', '本', '号'])
}

/// Takes out both ends of each range.
fn drop_ranges(text: &[char], pieces: &mut [Piece]) {
    for place in 1..pieces.len() {
        let ((_, end), (start, _)) = (pieces[place - 1].place(), pieces[place].place());
        let between: String = text.get(end..start).map(|between| between.iter().collect()).unwrap_or_default();
        let between = between.trim().trim_start_matches('%').trim();
        let is_range = matches!(between, "-" | "–" | "—" | "‐" | "~" | "〜" | "to" | "至" | "到" | ".." | "..." | "…");
        // A minus sign in front of the second number: 10 -20 is no range, and 10-20 is one chunk already.
        if is_range {
            for piece in &mut pieces[place - 1..=place] {
                let (start, end) = piece.place();
                *piece = Piece::Other(start, end);
            }
        }
    }
}

/// Takes out the year behind a day: March 5, 2024.
fn drop_dates(text: &[char], pieces: &mut [Piece]) {
    for place in 1..pieces.len() {
        let Piece::Other(first, end) = pieces[place - 1] else { continue };
        let (start, last) = pieces[place].place();
        let between: String = text.get(end..start).map(|between| between.iter().collect()).unwrap_or_default();
        let is_year = last - start == 4;
        let after_date = is_month(&word_before(text, first)) || is_month(&word_after(text, end));
        let month_between = is_month(between.trim_matches([' ', ',', '.']).to_lowercase().as_str());
        if is_year && after_date && (matches!(between.as_str(), ", " | " ") || month_between) {
            pieces[place] = Piece::Other(start, last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Row(String, Option<f64>);

    /// The rows of the vectors: a response and its number, or null.
    fn rows() -> Vec<Row> {
        let all: serde_json::Value = serde_json::from_str(include_str!("../../../../vectors/numeric-v1.json")).unwrap();
        let rows = all["cases"].as_array().unwrap();
        rows.iter()
            .map(|row| Row(row["response"].as_str().unwrap().to_owned(), row["numeric_value"].as_f64()))
            .collect()
    }

    #[test]
    fn the_number_of_each_vector_is_found() {
        let rows = rows();
        assert!(rows.len() >= 60, "{} rows", rows.len());
        let wrong: Vec<_> = rows.iter().filter(|row| numeric_value(&row.0) != row.1).collect();
        let found: Vec<_> = wrong.iter().map(|row| (row, numeric_value(&row.0))).collect();
        assert!(wrong.is_empty(), "{found:#?}");
    }

    #[test]
    fn a_text_of_many_numbers_takes_linear_time() {
        // Linear time is a second, quadratic time is many minutes.
        for text in ["1 ", "1 o ", "1:  ,"] {
            assert_eq!(numeric_value(&text.repeat(256 * 1024 / text.len())), Some(1.0));
        }
    }

    #[test]
    fn an_hour_is_no_number() {
        assert_eq!(numeric_value("At 3 o'clock, or at 4 O’Clock."), None);
        assert_eq!(numeric_value("The 3 o in the name 'foo'."), Some(3.0));
    }

    proptest::proptest! {
        #[test]
        fn any_text_has_at_most_one_finite_number(text in "[\\-+0-9.,'_:/年月 %ea①½０９ \u{2009}至到~–]{0,24}|\\PC{0,40}") {
            assert!(numeric_value(&text).is_none_or(f64::is_finite));
        }

        #[test]
        fn a_plain_number_is_its_own_value(number in -1_000_000_000i64..1_000_000_000) {
            assert_eq!(numeric_value(&format!("约为 {number} 元。")), Some(number as f64));
        }
    }
}
