//! Generates the service of the peer port with protox, so that a build does not need protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["baton/peer/v1/peer.proto"], ["proto"])?;
    // The generated `connect` constructor would need another way to connect than this crate's.
    tonic_prost_build::configure().build_transport(false).compile_fds(files)?;
    Ok(())
}
