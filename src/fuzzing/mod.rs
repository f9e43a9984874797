//! What the fuzzer calls: one function for each place where foreign bytes are read, with what must hold there.
//!
//! Owns the properties. Is no part of the program: `fuzz/` drives it with made-up bytes, and `tests/corpora.rs` with all
//! that is checked in under `fuzz/corpus/`. A function panics where a property does not hold.

mod reference;
mod stored;
mod text;
mod wire;

/// A target: its name, and what it does with some bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All of them. Each has a folder of its name in `fuzz/corpus/`.
pub const TARGETS: [Target; 13] = [
    ("audit", stored::audit),
    ("certificate", wire::certificate),
    ("config", text::config),
    ("envelope", wire::envelope),
    ("frame", wire::frame),
    ("keys", text::keys),
    ("opening", wire::opening),
    ("page_token", text::page_token),
    ("policy", text::policy),
    ("records", stored::records),
    ("signing", wire::signing),
    ("store_files", stored::store_files),
    ("token", text::token),
];

/// The first byte, which says what the others are.
fn split(bytes: &[u8]) -> Option<(usize, &[u8])> {
    bytes.split_first().map(|(first, rest)| (usize::from(*first), rest))
}
