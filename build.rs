//! Compiles `proto/` with protox, so that a build does not need protoc.
//!
//! The build has three results: the descriptor set as published (for reflection and JSON), the broker's side of the
//! services, and the records on disk. The messages of the services are those of the client's crate.

use std::{env, fs, path::PathBuf};

use protox::prost::Message as _;

const SOURCES: &[&str] = &[
    "baton/v1/agent.proto",
    "baton/v1/agent_service.proto",
    "baton/v1/audit.proto",
    "baton/v1/audit_service.proto",
    "baton/v1/broker_service.proto",
    "baton/v1/context.proto",
    "baton/v1/custody.proto",
    "baton/v1/dead_letter.proto",
    "baton/v1/dead_letter_service.proto",
    "baton/v1/envelope.proto",
    "baton/v1/error.proto",
    "baton/v1/handoff.proto",
    "baton/v1/handoff_service.proto",
    "baton/v1/negotiation.proto",
    "baton/v1/routing.proto",
    "baton/v1/routing_service.proto",
    "baton/v1/task.proto",
    "baton/v1/task_service.proto",
    "baton/v1/workspace.proto",
    "baton/v1/workspace_service.proto",
    // For clients that work by reflection: they can show error details and write any payload.
    "google/protobuf/empty.proto",
    "google/protobuf/wrappers.proto",
    "google/rpc/error_details.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);

    let published = protox::compile(SOURCES, ["proto"])?;
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
