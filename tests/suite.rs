//! The program `baton-conformance`, for tests of other crates.

use std::{path::PathBuf, process::Command, sync::Once};

/// Builds the program beside `baton`, unless `cargo test` has built all programs, and returns its path. With
/// `BATON_PROGRAMS_BUILT` in the environment Cargo is not asked: it would wait for a build that goes on beside the tests.
pub(crate) fn built() -> PathBuf {
    static BUILT: Once = Once::new();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_baton")).with_file_name("baton-conformance");
    BUILT.call_once(|| {
        if std::env::var_os("BATON_PROGRAMS_BUILT").is_some() {
            return;
        }
        let mut build = Command::new(env!("CARGO"));
        let profile = program.parent().unwrap();
        build.args(["build", "--quiet", "--locked", "--bin", "baton-conformance", "--target-dir"]);
        build.arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    });
    program
}
