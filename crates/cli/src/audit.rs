//! `baton audit`: the log of administrative actions, and the verification of its hash chain.

use std::time::Duration;

use clap::Args;
use prost::Message as _;

use super::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs},
    json,
    output::{self, Output},
    span_of_time::SpanArgs,
    table::Column,
};
use baton_client::{
    Client, ClientError,
    envelope::signing,
    proto::v1,
    time::{Clock as _, SystemClock},
};

/// Print the log of administrative acts, oldest first, and verify its hash chain.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton audit
  baton audit --since 7d -o jsonl > acts.jsonl
  baton audit --since 2026-11-01 --until 2026-12-01
  baton audit --follow --after 1204 -o jsonl
  baton audit --id lead --key lead.pem
  baton audit -o jsonl | jq 'select(.entry.action == \"AUDIT_ACTION_KEY_REVOKED\")'

Exit code 1 if the hash chain is broken.")]
pub(super) struct AuditArgs {
    /// Show only acts after this number.
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "NUMBER")]
    after: u64,
    #[command(flatten)]
    span: SpanArgs,
    /// Print each further act as it happens, until ctrl-C. Goes on over restarts of the broker, and prints each act once.
    #[arg(long, conflicts_with = "until")]
    follow: bool,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// How often `--follow` asks for further acts, and whether the broker is back.
const EVERY: Duration = Duration::from_secs(1);
const PAGE_SIZE: u32 = 1000;

pub(super) async fn run(args: AuditArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let span = args.span.checked()?;
    let client = args.identity.client(connection).await?;
    let mut chain = Chain::after(&client, args.after).await?;
    if args.follow {
        return follow(client, chain, &args, connection, *output).await;
    }
    let mut shown = Vec::new();
    loop {
        let page = page(&client, chain.last, PAGE_SIZE).await?;
        let (length, is_empty) = (page.log_length, page.entries.is_empty());
        let entries = chain.verify(page)?;
        let is_over = entries.last().is_some_and(|last| span.is_over(time_of(last)));
        shown.extend(entries.into_iter().filter(|entry| span.has(time_of(entry))));
        // An empty page ends the loop even if the log grows faster than its pages arrive.
        if is_empty || is_over || chain.last >= length {
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
    output.list(&columns, &shown, |shown| {
        let entry = shown.entry.clone().unwrap_or_default();
        vec![
            entry.number.to_string(),
            output::brief(entry.entry_time.as_ref(), now),
            entry.actor.clone(),
            output::short(entry.action().as_str_name(), "AUDIT_ACTION_"),
            entry.subject.clone(),
            entry.details.clone(),
        ]
    })
}

/// Prints each act, and each further one.
async fn follow(
    mut client: Client,
    mut chain: Chain,
    args: &AuditArgs,
    connection: &ConnectionArgs,
    output: Output,
) -> Result<(), Failure> {
    let mut said_after = None;
    loop {
        let answer = page(&client, chain.last, PAGE_SIZE).await;
        let wait = match answer {
            Ok(page) => {
                for entry in chain.verify(page)?.iter().filter(|entry| args.span.has(time_of(entry))) {
                    match output.is_table() {
                        true => say_act(&entry.entry.clone().unwrap_or_default()),
                        false => output.next(&json::of(entry)?)?,
                    }
                    said_after = None;
                }
                EVERY
            }
            Err(problem) if problem.is_passing() => {
                let is_signed_out = problem.reason() == Some("TOKEN_INVALID");
                if is_signed_out && args.identity.load()?.or(connection.saved_identity()?).is_none() {
                    return Err(problem.into());
                }
                if said_after.replace(chain.last) != Some(chain.last) {
                    tell!("{problem}\nthe command waits for the broker, and goes on after {}", chain.last);
                }
                if is_signed_out {
                    // The broker may be away again meanwhile; the next round tries again.
                    client = args.identity.client(connection).await.unwrap_or(client);
                }
                problem.retry_after().unwrap_or(EVERY)
            }
            Err(problem) => return Err(problem.into()),
        };
        tokio::time::sleep(wait).await;
    }
}

fn say_act(entry: &v1::AuditEntry) {
    say!(
        "{:>6}  {}  {}  {}  {}  {}",
        entry.number,
        output::time(entry.entry_time.as_ref()),
        entry.actor,
        output::short(entry.action().as_str_name(), "AUDIT_ACTION_"),
        entry.subject,
        entry.details,
    );
}

async fn page(client: &Client, after_number: u64, page_size: u32) -> Result<v1::ListAuditEntriesResponse, ClientError> {
    let request = v1::ListAuditEntriesRequest { page_size, after_number };
    client.answer(client.audit().list_audit_entries(request).await)
}

fn time_of(shown: &v1::AuditLogEntry) -> Option<&prost_types::Timestamp> {
    shown.entry.as_ref()?.entry_time.as_ref()
}

/// The hash chain up to an entry.
#[derive(Debug, Default)]
struct Chain {
    /// The number of that entry; 0: before the first one.
    last: u64,
    hash: [u8; 32],
}

impl Chain {
    /// The chain up to this entry, as the broker has it.
    async fn after(client: &Client, last: u64) -> Result<Self, Failure> {
        let Some(before) = last.checked_sub(1) else { return Ok(Self::default()) };
        let page = page(client, before, 1).await?;
        if page.log_length < last {
            return Err(ended_before(page.log_length, last));
        }
        let entry = page.entries.first().filter(|shown| shown.entry.as_ref().is_some_and(|entry| entry.number == last));
        // If the entry is removed, the first page begins with the hash of what is kept.
        let hash = entry.and_then(|shown| (*shown.chain_hash).try_into().ok()).unwrap_or_default();
        Ok(Self { last, hash })
    }

    /// Verifies the entries behind the last one, and returns them. Tells of entries that retention has removed.
    fn verify(&mut self, page: v1::ListAuditEntriesResponse) -> Result<Vec<v1::AuditLogEntry>, Failure> {
        if page.log_length < self.last {
            return Err(ended_before(page.log_length, self.last));
        }
        let first = page.first_number.max(1);
        // A broker that has removed no entry sends an empty hash, which counts as zeros.
        let hash_before_first: [u8; 32] = (*page.hash_before_first).try_into().unwrap_or_default();
        if first == 1 && hash_before_first != [0; 32] {
            let broken = "the hash chain of the audit log is broken: its first entry is missing";
            return Err(Failure::failed(broken).named("LOG_INVALID"));
        }
        if first > self.last + 1 {
            if self.last > 0 {
                tell!("the acts {} to {} are no longer kept", self.last + 1, first - 1);
            }
            *self = Self { last: first - 1, hash: hash_before_first };
        }
        for shown in &page.entries {
            let number = self.last + 1;
            let hash = signing::audit_hash(&self.hash, &shown.entry_bytes);
            let decoded = v1::AuditEntry::decode(shown.entry_bytes.clone()).ok();
            // The hash covers the bytes, so the shown entry must be the decoded bytes and nothing else.
            let is_whole = decoded.is_some() && decoded == shown.entry;
            let is_next = shown.entry.as_ref().is_some_and(|entry| entry.number == number);
            if shown.chain_hash[..] != hash || !is_whole || !is_next {
                let broken = format!("the hash chain of the audit log is broken at entry {number}");
                return Err(Failure::failed(broken).named("LOG_INVALID"));
            }
            *self = Self { last: number, hash };
        }
        Ok(page.entries)
    }
}

fn ended_before(length: u64, number: u64) -> Failure {
    Failure::failed(format!(
        "the audit log ends at number {length}, before number {number}: the broker is another one, or was restored from a \
         backup"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entries from one number to another of a log with `length` entries.
    fn page_of(log: &[v1::AuditLogEntry], first: u64, from: u64, upto: u64) -> v1::ListAuditEntriesResponse {
        let at = |number: u64| usize::try_from(number).unwrap();
        let hash_before_first = if first == 1 { vec![0; 32].into() } else { log[at(first) - 2].chain_hash.clone() };
        let entries = log[at(from) - 1..at(upto)].to_vec();
        v1::ListAuditEntriesResponse { entries, log_length: log.len() as u64, first_number: first, hash_before_first }
    }

    fn log(length: u64) -> Vec<v1::AuditLogEntry> {
        let mut hash = [0; 32];
        let entry = |number| v1::AuditEntry { number, subject: format!("subject {number}"), ..Default::default() };
        let mut chained = |entry: v1::AuditEntry| {
            let entry_bytes = entry.encode_to_vec();
            hash = signing::audit_hash(&hash, &entry_bytes);
            v1::AuditLogEntry { entry: Some(entry), entry_bytes: entry_bytes.into(), chain_hash: hash.to_vec().into() }
        };
        (1..=length).map(|number| chained(entry(number))).collect()
    }

    #[test]
    fn a_chain_goes_on_from_page_to_page_and_behind_removed_entries() {
        let log = log(9);
        let mut chain = Chain::default();
        assert_eq!(chain.verify(page_of(&log, 1, 1, 4)).unwrap().len(), 4);
        assert_eq!(chain.verify(page_of(&log, 3, 5, 6)).unwrap().len(), 2);
        assert_eq!(chain.last, 6);
        assert_eq!(chain.verify(page_of(&log, 8, 8, 9)).unwrap().len(), 2, "entry 7 is removed");
        assert_eq!(chain.verify(page_of(&log, 9, 9, 8)).unwrap(), [], "there is no further entry");
    }

    #[test]
    fn a_changed_a_missing_and_a_repeated_entry_are_found() {
        let whole = log(5);
        let broken = |change: &dyn Fn(&mut v1::ListAuditEntriesResponse)| {
            let mut page = page_of(&whole, 1, 1, 5);
            change(&mut page);
            Chain::default().verify(page).unwrap_err().to_string()
        };
        let at_3 = "failed: LOG_INVALID: the hash chain of the audit log is broken at entry 3";
        assert_eq!(broken(&|page| page.entries[2].entry.as_mut().unwrap().actor = "x".into()), at_3);
        assert_eq!(broken(&|page| drop(page.entries.remove(2))), at_3);
        assert_eq!(broken(&|page| page.entries.insert(2, page.entries[1].clone())), at_3);
        assert!(broken(&|page| page.hash_before_first = vec![1; 32].into()).contains("its first entry is missing"));
        let mut ahead = Chain { last: 6, hash: [0; 32] };
        assert!(ahead.verify(page_of(&whole, 1, 5, 4)).unwrap_err().to_string().contains("ends at number 5"));
    }
}
