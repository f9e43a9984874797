//! Pages use plain words.

use super::{pages::pages, root};

/// The most vague words in 1,000 words of all pages, and of one page.
const VAGUE_MAX: usize = 4;
const VAGUE_OF_A_PAGE_MAX: usize = 10;

/// The words of a text, in lower case.
fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

#[test]
fn pages_use_plain_words() {
    let list = include_str!("../vague_words.txt");
    let vague: Vec<&str> = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let (mut all, mut all_found, mut report) = (0, 0, Vec::new());
    for page in pages(root()) {
        let (mut count, mut found) = (0, Vec::new());
        for (number, line) in page.prose().filter(|(_, line)| !line.starts_with("    ")) {
            let line: Vec<String> = words(&line).collect();
            count += line.len();
            let padded = format!(" {} ", line.join(" "));
            let of_line = vague.iter().filter(|phrase| padded.contains(&format!(" {phrase} ")));
            found.extend(of_line.map(|phrase| format!("{}:{number}: {phrase}", page.path.display())));
        }
        // One or two in a short page are no habit.
        assert!(found.len() <= 2 + count * VAGUE_OF_A_PAGE_MAX / 1000, "of {count} words:\n{}", found.join("\n"));
        all += count;
        all_found += found.len();
        report.extend(found);
    }
    assert!(all_found * 1000 <= all * VAGUE_MAX, "{all_found} of {all} words:\n{}", report.join("\n"));
}
