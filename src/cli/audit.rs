//! `baton audit`: the log of administrative acts, and whether its chain holds.

use clap::Args;

use super::{
    Failure,
    connection::ConnectionArgs,
    output::{self, Output},
};
use crate::{envelope::signing, proto::v1};

/// Show the log of administrative acts, oldest first, and check its chain.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton audit
  baton audit -o jsonl | jq 'select(.entry.action == \"AUDIT_ACTION_KEY_REVOKED\")'

Exit code 1 if the chain does not hold.")]
pub(super) struct AuditArgs {}

pub(super) async fn run(connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let client = connection.client().await?;
    let mut entries: Vec<v1::AuditLogEntry> = Vec::new();
    loop {
        let request = v1::ListAuditEntriesRequest { page_size: 1000, after_number: entries.len() as u64 };
        let page = client.answer(client.audit().list_audit_entries(request).await)?;
        let is_last = page.entries.is_empty();
        entries.extend(page.entries);
        if is_last || entries.len() as u64 >= page.log_length {
            break;
        }
    }
    output.list(&["NUMBER", "TIME", "ACTOR", "ACTION", "SUBJECT", "DETAILS"], &entries, |shown| {
        let entry = shown.entry.clone().unwrap_or_default();
        vec![
            entry.number.to_string(),
            output::time(entry.entry_time.as_ref()),
            entry.actor.clone(),
            output::short(entry.action().as_str_name(), "AUDIT_ACTION_"),
            entry.subject.clone(),
            entry.details.clone(),
        ]
    })?;
    check(&entries)
}

fn check(entries: &[v1::AuditLogEntry]) -> Result<(), Failure> {
    use prost::Message as _;
    let mut hash = [0; 32];
    for (place, shown) in entries.iter().enumerate() {
        let number = place as u64 + 1;
        hash = signing::audit_hash(&hash, &shown.entry_bytes);
        let decoded = v1::AuditEntry::decode(shown.entry_bytes.clone()).ok();
        let is_whole = decoded.is_some() && decoded == shown.entry;
        let is_next = shown.entry.as_ref().is_some_and(|entry| entry.number == number);
        if shown.chain_hash[..] != hash || !is_whole || !is_next {
            return Err(Failure::failed(format!("the audit log does not hold at entry {number}")));
        }
    }
    Ok(())
}
