//! `baton keygen`.

use std::path::PathBuf;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::Args;
use serde_json::json;

use super::{Failure, output::Output};
use baton_client::{envelope::keys::PrivateKey, ids::SystemIds};

/// Generate an ed25519 private key for an agent.
///
/// Writes a PKCS#8 PEM file that only the current user can read, and prints the public key. Never overwrites a file.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton keygen --out alice.pem
  baton keygen --out alice.pem -o json | jq -r .publicKey")]
pub(super) struct KeygenArgs {
    /// The file to create.
    #[arg(long, default_value = "agent.pem", value_name = "FILE")]
    out: PathBuf,
}

pub(super) fn run(args: KeygenArgs, output: &Output) -> Result<(), Failure> {
    let key = PrivateKey::generate(&SystemIds);
    key.write(&args.out)?;
    let public = key.public();
    let (hex, base64) = (hex::encode(public.as_bytes()), BASE64_STANDARD.encode(public.as_bytes()));
    if output.is_table() {
        say!("wrote {}", args.out.display());
        say!("public key  {hex}  (hex)");
        say!("            {base64}  (base64, for grpcurl)");
        return Ok(());
    }
    output.value(&json!({"file": args.out, "publicKey": base64, "publicKeyHex": hex}))
}
