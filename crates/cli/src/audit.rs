//! `baton audit`: the log of administrative actions, and the verification of its hash chain.

use clap::Args;

use super::{
    Failure,
    connection::ConnectionArgs,
    output::{self, Output},
    table::Column,
};
use baton_client::{
    envelope::signing,
    proto::v1,
    time::{Clock as _, SystemClock},
};

/// Print the log of administrative acts, oldest first, and verify its hash chain.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton audit
  baton audit -o jsonl | jq 'select(.entry.action == \"AUDIT_ACTION_KEY_REVOKED\")'

Exit code 1 if the hash chain is broken.")]
pub(super) struct AuditArgs {}

pub(super) async fn run(connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let client = connection.client().await?;
    let mut entries: Vec<v1::AuditLogEntry> = Vec::new();
    // Taken from the first page. Retention may remove entries while later pages are read, but the first page has them.
    let mut before_first = None;
    loop {
        let after_number = entries.last().map_or(0, number_of);
        let request = v1::ListAuditEntriesRequest { page_size: 1000, after_number };
        let page = client.answer(client.audit().list_audit_entries(request).await)?;
        before_first.get_or_insert((page.first_number.max(1), page.hash_before_first));
        // An empty page ends the loop even if the log grows faster than its pages arrive.
        let is_last = page.entries.is_empty();
        entries.extend(page.entries);
        if is_last || entries.last().map_or(0, number_of) >= page.log_length {
            break;
        }
    }
    let columns = [
        Column::Whole("NUMBER"),
        Column::Whole("TIME"),
        Column::Text("ACTOR"),
        Column::Whole("ACTION"),
        Column::Text("SUBJECT"),
        Column::Text("DETAILS"),
    ];
    let now = SystemClock.now();
    output.list(&columns, &entries, |shown| {
        let entry = shown.entry.clone().unwrap_or_default();
        vec![
            entry.number.to_string(),
            output::brief(entry.entry_time.as_ref(), now),
            entry.actor.clone(),
            output::short(entry.action().as_str_name(), "AUDIT_ACTION_"),
            entry.subject.clone(),
            entry.details.clone(),
        ]
    })?;
    let (first, hash) = before_first.unwrap_or_default();
    check(&entries, first, &hash)
}

fn number_of(shown: &v1::AuditLogEntry) -> u64 {
    shown.entry.as_ref().map_or(0, |entry| entry.number)
}

/// Verifies the hash chain from the first retained entry. A broker that has removed none sends an empty hash, which
/// counts as zeros.
fn check(entries: &[v1::AuditLogEntry], first: u64, hash_before: &[u8]) -> Result<(), Failure> {
    use prost::Message as _;
    let mut hash: [u8; 32] = hash_before.try_into().unwrap_or_default();
    if first == 1 && hash != [0; 32] {
        return Err(Failure::failed(
            "the hash chain of the audit log is broken: its first entry is missing".to_owned(),
        ));
    }
    for (number, shown) in (first..).zip(entries) {
        hash = signing::audit_hash(&hash, &shown.entry_bytes);
        let decoded = v1::AuditEntry::decode(shown.entry_bytes.clone()).ok();
        // The hash covers the bytes, so the shown entry must be the decoded bytes and nothing else.
        let is_whole = decoded.is_some() && decoded == shown.entry;
        let is_next = shown.entry.as_ref().is_some_and(|entry| entry.number == number);
        if shown.chain_hash[..] != hash || !is_whole || !is_next {
            return Err(Failure::failed(format!("the hash chain of the audit log is broken at entry {number}"))
                .named("LOG_INVALID"));
        }
    }
    Ok(())
}
