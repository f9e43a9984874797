//! Runs the target that BATON_FUZZ_TARGET names on whatever libFuzzer comes up with.

#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("BATON_FUZZ_TARGET").unwrap_or_default();
    let target = baton::fuzzing::TARGETS.into_iter().find(|(known, _)| *known == name);
    target.unwrap_or_else(|| panic!("BATON_FUZZ_TARGET is {name:?}, which is no target")).1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET(bytes));
