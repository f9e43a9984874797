//! Compiles `proto/` with protox, so that a build does not need protoc.
//!
//! In the Rust types every field of type `Envelope` is declared as `bytes`. On the wire both are the same
//! length-delimited field. So an envelope is held and forwarded byte for byte as received, without a copy.

use std::{collections::BTreeSet, env, fs, io, path::PathBuf};

use prost_types::{DescriptorProto, field_descriptor_proto::Type};
use protox::prost::Message as _;

/// Schemas of others in the published set. Clients that work by reflection need them to show error details and to
/// write any payload.
const COMMON: [&str; 3] =
    ["google/protobuf/empty.proto", "google/protobuf/wrappers.proto", "google/rpc/error_details.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let published = protox::compile(schema_files()?.into_iter().chain(COMMON.map(str::to_owned)), ["proto"])?;
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("baton.bin"), published.encode_to_vec())?;

    let mut files = protox::compile(schema_files()?, ["proto"])?;
    // Services are `baton-services`.
    files.file.iter_mut().for_each(|file| file.service.clear());
    for file in &mut files.file {
        file.message_type.iter_mut().for_each(keep_envelopes_as_bytes);
    }
    let mut config = prost_build::Config::new();
    config.boxed(".baton.v1.WatchHandoffsResponse.event.handoff");
    config.boxed(".baton.v1.WatchTaskResponse.update.entry");
    config.boxed(".baton.v1.WatchEntriesResponse.update.entry");
    config.enable_type_names().type_name_domain(["."], "type.googleapis.com");
    config
        .bytes(["."])
        .extern_path(".google.protobuf.Any", "crate::proto::Any")
        .extern_path(".google.rpc.Status", "crate::proto::Status")
        .compile_fds(files)?;
    Ok(())
}

fn keep_envelopes_as_bytes(message: &mut DescriptorProto) {
    for field in &mut message.field {
        if field.type_name() == ".baton.v1.Envelope" {
            field.set_type(Type::Bytes);
            field.type_name = None;
        }
    }
    message.nested_type.iter_mut().for_each(keep_envelopes_as_bytes);
}

/// The files of the published schema, in the order of their names.
fn schema_files() -> io::Result<Vec<String>> {
    let names = fs::read_dir("proto/baton/v1")?
        .map(|entry| Ok(format!("baton/v1/{}", entry?.file_name().to_string_lossy())))
        .collect::<io::Result<BTreeSet<String>>>()?;
    Ok(names.into_iter().filter(|name| name.ends_with(".proto")).collect())
}
