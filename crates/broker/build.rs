//! Compiles the schema of the records on disk with protox, so that a build does not need protoc.

use std::{env, fs, path::PathBuf};

use protox::prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let storage = protox::compile(["baton/storage/v1/storage.proto"], ["proto"])?;
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("storage.bin"), storage.encode_to_vec())?;
    prost_build::Config::new().bytes(["."]).compile_fds(storage)?;
    Ok(())
}
