//! Tells the program what it was built for: `baton version` prints it. The schema is compiled in `crates/envelope` and
//! `crates/services`, the records on disk in `crates/broker`.

use std::env;

fn main() -> Result<(), env::VarError> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=BATON_COMMIT");
    println!("cargo:rustc-env=BATON_TARGET={}", env::var("TARGET")?);
    // Cargo names the two profiles that it knows: `dist` is a release, too.
    println!("cargo:rustc-env=BATON_BUILD_PROFILE={}", env::var("PROFILE")?);
    // Only a build for others names its commit: a clone would compile the program anew after each commit.
    println!("cargo:rustc-env=BATON_COMMIT={}", env::var("BATON_COMMIT").unwrap_or_default());
    Ok(())
}
