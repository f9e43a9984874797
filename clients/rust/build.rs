//! Compiles `proto/` with protox, so that a build does not need protoc.
//!
//! In the Rust types every field of type `Envelope` is declared as `bytes`. On the wire both are the same
//! length-delimited field. So an envelope is held and forwarded byte for byte as received, without a copy.

use prost_types::{DescriptorProto, field_descriptor_proto::Type};

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
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut files = protox::compile(SOURCES, ["proto"])?;
    for file in &mut files.file {
        file.message_type.iter_mut().for_each(keep_envelopes_as_bytes);
    }
    let mut config = prost_build::Config::new();
    config.boxed(".baton.v1.WatchTaskResponse.update.entry");
    config.boxed(".baton.v1.WatchEntriesResponse.update.entry");
    config.enable_type_names().type_name_domain(["."], "type.googleapis.com");
    tonic_prost_build::configure()
        .build_server(false)
        // The generated `connect` constructor would collide with the service's own method of that name.
        .build_transport(false)
        .bytes(".")
        .extern_path(".google.protobuf.Any", "crate::proto::Any")
        .extern_path(".google.rpc", "::tonic_types::pb")
        .compile_fds_with_config(files, config)?;
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
