//! Compiles `proto/` with protox: the descriptors, by which a scenario writes any message, and the broker's side of the
//! services, for the scripted broker. The messages are those of the client's crate.

use std::{collections::BTreeSet, env, fs, io, path::PathBuf};

use protox::prost::Message as _;

const PROTO: &str = "../../proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let schema = protox::compile(schema_files()?, [PROTO])?;
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("baton.bin"), schema.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_client(false)
        .extern_path(".baton.v1", "::baton_client::proto::v1")
        .extern_path(".google", "::tonic_types::pb")
        .compile_fds(schema)?;
    Ok(())
}

/// The files of the published schema, in the order of their names.
fn schema_files() -> io::Result<BTreeSet<String>> {
    let names = fs::read_dir(format!("{PROTO}/baton/v1"))?
        .map(|entry| Ok(format!("baton/v1/{}", entry?.file_name().to_string_lossy())))
        .collect::<io::Result<BTreeSet<String>>>()?;
    Ok(names.into_iter().filter(|name| name.ends_with(".proto")).collect())
}
