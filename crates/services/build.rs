//! Generates the services of `proto/` with protox, so that a build does not need protoc. The messages are those of
//! `baton-envelope`.

use std::{collections::BTreeSet, env, fs, io, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(schema_files()?, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for side in ["client", "server"] {
        let folder = out.join(side);
        fs::create_dir_all(&folder)?;
        let mut services = tonic_prost_build::configure()
            .build_client(side == "client")
            .build_server(side == "server")
            // The generated `connect` constructor would collide with the service's own method of that name.
            .build_transport(false)
            .extern_path(".baton.v1", "::baton_envelope::proto::v1")
            .extern_path(".google.protobuf.Any", "::baton_envelope::proto::Any")
            .extern_path(".google.rpc.Status", "::baton_envelope::proto::Status")
            .out_dir(folder);
        if side == "server" {
            services = services.codec_path("crate::codec::CheckedCodec");
        }
        services.compile_fds(files.clone())?;
    }
    Ok(())
}

/// The files of the published schema, in the order of their names.
fn schema_files() -> io::Result<Vec<String>> {
    let names = fs::read_dir("proto/baton/v1")?
        .map(|entry| Ok(format!("baton/v1/{}", entry?.file_name().to_string_lossy())))
        .collect::<io::Result<BTreeSet<String>>>()?;
    Ok(names.into_iter().filter(|name| name.ends_with(".proto")).collect())
}
