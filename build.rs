//! Compiles `proto/` with protox, so that a build does not need protoc.
//!
//! The build has three results: the descriptor set as published (for reflection and JSON), the broker's side of the
//! services, and the records on disk. The messages of the services are those of the client's crate.

use std::{collections::BTreeSet, env, fs, io, path::PathBuf};

use protox::prost::Message as _;

/// Schemas of others in the published set. Clients that work by reflection need them to show error details and to
/// write any payload.
const COMMON: [&str; 3] =
    ["google/protobuf/empty.proto", "google/protobuf/wrappers.proto", "google/rpc/error_details.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);

    let sources = schema_files()?.into_iter().chain(COMMON.map(str::to_owned));
    let published = protox::compile(sources, ["proto"])?;
    fs::write(out_dir.join("baton.bin"), published.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_client(false)
        .codec_path("crate::wire::codec::CheckedCodec")
        .extern_path(".baton.v1", "::baton_client::proto::v1")
        .extern_path(".google", "::tonic_types::pb")
        .compile_fds(published)?;

    let storage = protox::compile(["baton/storage/v1/storage.proto"], ["proto"])?;
    fs::write(out_dir.join("storage.bin"), storage.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").compile_fds(storage)?;
    Ok(())
}

/// The files of the published schema, in the order of their names.
fn schema_files() -> io::Result<Vec<String>> {
    let names = fs::read_dir("proto/baton/v1")?
        .map(|entry| Ok(format!("baton/v1/{}", entry?.file_name().to_string_lossy())))
        .collect::<io::Result<BTreeSet<String>>>()?;
    Ok(names.into_iter().filter(|name| name.ends_with(".proto")).collect())
}
