//! The text that benches send. It compresses as English does: with LZ4 to 0.7 of its length in blocks of 4 KiB, and to 0.55
//! where the block is large. A letter that is repeated would make a store with compression look better than it is.

/// The words that a text has. The first ones are the most frequent.
const WORDS: u64 = 2000;
const SYLLABLES: [&str; 48] = [
    "ba", "be", "bi", "bo", "da", "de", "di", "do", "fa", "fe", "fi", "ga", "ge", "go", "ka", "ke", "ki", "ko", "la",
    "le", "li", "lo", "ma", "me", "mi", "mo", "na", "ne", "ni", "no", "pa", "pe", "po", "ra", "re", "ri", "ro", "sa",
    "se", "si", "so", "ta", "te", "ti", "to", "va", "ve", "vi",
];

/// A source of texts, the same ones for the same seed.
pub(super) struct Texts(u64);

impl Texts {
    pub(super) fn of(seed: u64) -> Self {
        Self(seed)
    }

    /// A text of this length: words of small letters, with spaces between them.
    pub(super) fn text(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 16);
        while text.len() < bytes {
            self.0 += 1;
            // The cube of a number from 0 to 1.
            let chance = (mixed(self.0) >> 32) as f64 / f64::from(u32::MAX);
            push_word(&mut text, (chance.powi(3) * WORDS as f64) as u64);
            text.push(' ');
        }
        text.truncate(bytes);
        text
    }
}

fn push_word(text: &mut String, number: u64) {
    // Of a seed that no source of texts begins with.
    let mut random = mixed(u64::MAX - number);
    for _ in 0..[1, 2, 2, 3, 3, 4][(random % 6) as usize] {
        random /= 64;
        text.push_str(SYLLABLES[(random % 48) as usize]);
    }
}

/// The finaliser of SplitMix64: each bit of the result depends on each bit of the number.
fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of a text's bytes that LZ4 leaves.
    fn share(bytes: usize) -> f64 {
        let text = Texts::of(7).text(bytes);
        assert_eq!(text.len(), bytes);
        lz4_flex::block::compress(text.as_bytes()).len() as f64 / bytes as f64
    }

    #[test]
    fn a_text_compresses_as_english_does() {
        assert!((0.65..0.85).contains(&share(2048)), "{}", share(2048));
        assert!((0.5..0.65).contains(&share(50_000)), "{}", share(50_000));
    }

    #[test]
    fn texts_of_one_source_differ_and_come_again() {
        let mut texts = Texts::of(1);
        let (first, second) = (texts.text(100), texts.text(100));
        assert_ne!(first, second);
        assert_eq!(Texts::of(1).text(100), first);
        assert_ne!(Texts::of(1 << 32).text(100), first);
    }
}
