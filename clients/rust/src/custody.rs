//! Verification of a task's custody log: its chain, the broker's receipts, and the envelopes.

use prost::Message as _;

use super::{ClientError, Link, session::Agent};
use crate::{
    envelope::{
        keys::PublicKey,
        signing::{self, Digest32},
    },
    ids::AgentId,
    proto::v1::{self, MessageType, custody_entry::Event},
};

const PAGE: u32 = 200;
const DIGEST_BYTES: usize = 32;

/// A custody log in which every entry follows from the one before, and every accepted envelope is its sender's.
#[derive(Debug, Clone, PartialEq)]
pub struct VerifiedLog {
    /// The entries, oldest first.
    pub entries: Vec<v1::CustodyLogEntry>,
    /// The head of the chain, 32 bytes; equal to the hash in the task and in its latest receipt.
    pub custody_hash: Digest32,
}

impl Link {
    /// Reads and verifies the custody log of a task of which this agent is or was a party: the chain of hashes, the broker's
    /// receipt for each accepted envelope, and the senders' signatures. Of a context that this agent may not read the log
    /// has only the digest, and the receipt is what is verified.
    ///
    /// # Errors
    ///
    /// [`ClientError::Unverified`] with `CUSTODY_INVALID`, or with the reason of an invalid signature, also `KEY_NOT_VALID`
    /// for a key that was revoked later; as [`Link::get_task`] if the log cannot be read.
    pub async fn verify_custody(&self, task_id: &str) -> Result<VerifiedLog, ClientError> {
        let broker_keys = self.broker_keys().await?;
        let agent = self.live().await?;
        let mut log = VerifiedLog { entries: Vec::new(), custody_hash: [0; DIGEST_BYTES] };
        loop {
            let after_number = log.entries.len() as u64;
            let request = v1::GetCustodyLogRequest {
                task_id: task_id.to_owned(),
                after_number,
                page_size: PAGE,
                include_envelopes: true,
            };
            let page = self.ask(|client| {
                let request = request.clone();
                async move { client.answer(client.tasks().get_custody_log(request).await) }
            });
            let page = page.await?;
            let is_empty = page.entries.is_empty();
            for entry in page.entries {
                let number = log.entries.len() as u64 + 1;
                log.custody_hash = check_chain(&entry, number, &log.custody_hash)?;
                check_accepted(&entry, number, &broker_keys)?;
                check_sender(&agent, &entry).await?;
                log.entries.push(entry);
            }
            let length = log.entries.len() as u64;
            if length >= page.custody_length {
                return Ok(log);
            }
            if is_empty {
                return Err(invalid(length + 1, "it is missing"));
            }
        }
    }

    /// The keys that sign receipts: the pinned ones, or those of the directory.
    async fn broker_keys(&self) -> Result<Vec<PublicKey>, ClientError> {
        if let Some(pinned) = self.inner.options.trust.pins_of(&AgentId::broker()) {
            return Ok(pinned.clone());
        }
        let broker = self.ask(|client| async move { client.get_agent(AgentId::broker().as_str()).await }).await?;
        let keys = broker.card.unwrap_or_default().keys;
        Ok(keys.iter().filter_map(|key| PublicKey::parse(&key.public_key).ok()).collect())
    }
}

/// Checks that the entry has this number and follows this head. Returns the next head.
fn check_chain(found: &v1::CustodyLogEntry, number: u64, head: &Digest32) -> Result<Digest32, ClientError> {
    let entry =
        v1::CustodyEntry::decode(found.entry_bytes.clone()).map_err(|_| invalid(number, "it does not parse"))?;
    let next = signing::custody_hash(head, &found.entry_bytes);
    let follows = entry.number == number && found.custody_hash == next[..];
    // The chain covers the bytes alone, so the readable form must agree with them.
    let agrees = found.entry.as_ref().is_none_or(|shown| *shown == entry);
    match follows && agrees {
        true => Ok(next),
        false => Err(invalid(number, "it does not follow from the one before")),
    }
}

/// Checks the receipt of an accepted envelope, and that the log shows this envelope.
fn check_accepted(found: &v1::CustodyLogEntry, number: u64, keys: &[PublicKey]) -> Result<(), ClientError> {
    let entry =
        v1::CustodyEntry::decode(found.entry_bytes.clone()).map_err(|_| invalid(number, "it does not parse"))?;
    let Some(Event::Accepted(accepted)) = entry.event else { return Ok(()) };
    let Some(receipt) = &found.receipt else { return Err(invalid(number, "it has no receipt")) };
    if receipt.message_id != accepted.message_id || receipt.custody_hash != found.custody_hash {
        return Err(invalid(number, "the receipt is not its own"));
    }
    let input = signing::receipt_input(receipt);
    if !keys.iter().any(|key| key.verifies(&input, &receipt.signature)) {
        return Err(ClientError::unverified(format!("the receipt of entry {number} is not signed by the broker")));
    }
    if found.envelope.is_empty() && is_hidden(&accepted) {
        return Ok(());
    }
    let digest = v1::Envelope::decode(found.envelope.clone())
        .map(|envelope| signing::sha256(&[&signing::envelope_input(&envelope)]));
    match digest {
        Ok(digest) if accepted.content_digest == digest[..] => Ok(()),
        Ok(_) | Err(_) => Err(invalid(number, "the envelope is not its own")),
    }
}

/// Verifies the signature of an entry's envelope.
async fn check_sender(agent: &Agent, found: &v1::CustodyLogEntry) -> Result<(), ClientError> {
    if found.envelope.is_empty() {
        return Ok(());
    }
    let delivery = v1::Delivery { envelope: found.envelope.clone(), ..v1::Delivery::default() };
    agent.check(delivery).await.map(drop)
}

/// Whether the log may leave the envelope out: a context, which this agent may not read. Its digest is there.
fn is_hidden(accepted: &v1::CustodyEnvelope) -> bool {
    let is_context =
        matches!(accepted.message_type(), MessageType::TaskContextTransfer | MessageType::ContextCheckpoint);
    is_context && accepted.context_digest.len() == DIGEST_BYTES
}

fn invalid(number: u64, problem: &str) -> ClientError {
    ClientError::Unverified { reason: "CUSTODY_INVALID", problem: format!("entry {number}: {problem}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{envelope::keys::PrivateKey, ids::SystemIds};

    /// Two entries of a log, the second one accepted with a receipt by this key.
    fn log(broker: &PrivateKey) -> Vec<v1::CustodyLogEntry> {
        let mut head = [0; DIGEST_BYTES];
        let mut entry = |number, event, envelope: bytes::Bytes| {
            let entry = v1::CustodyEntry { number, event, ..Default::default() };
            let entry_bytes: bytes::Bytes = entry.encode_to_vec().into();
            head = signing::custody_hash(&head, &entry_bytes);
            let custody_hash = head.to_vec().into();
            v1::CustodyLogEntry { entry: Some(entry), entry_bytes, custody_hash, receipt: None, envelope }
        };
        let envelope = v1::Envelope { message_id: "m".to_owned(), ..Default::default() };
        let content_digest = signing::sha256(&[&signing::envelope_input(&envelope)]).to_vec().into();
        let accepted = v1::CustodyEnvelope { message_id: "m".to_owned(), content_digest, ..Default::default() };
        let first = entry(1, Some(Event::Gone(Default::default())), bytes::Bytes::new());
        let mut second = entry(2, Some(Event::Accepted(accepted)), envelope.encode_to_vec().into());
        let custody_hash = second.custody_hash.clone();
        let mut receipt = v1::Receipt { message_id: "m".to_owned(), custody_hash, ..Default::default() };
        receipt.signature = broker.sign(&signing::receipt_input(&receipt)).to_vec().into();
        second.receipt = Some(receipt);
        vec![first, second]
    }

    fn verify(entries: &[v1::CustodyLogEntry], keys: &[PublicKey]) -> Result<Digest32, String> {
        let mut head = [0; DIGEST_BYTES];
        for (entry, number) in entries.iter().zip(1..) {
            head = check_chain(entry, number, &head).map_err(|error| error.to_string())?;
            check_accepted(entry, number, keys).map_err(|error| error.to_string())?;
        }
        Ok(head)
    }

    #[test]
    fn each_change_of_a_log_is_noticed() {
        let broker = PrivateKey::generate(&SystemIds);
        let (good, keys) = (log(&broker), [broker.public()]);
        assert_eq!(verify(&good, &keys).unwrap()[..], good[1].custody_hash);
        type Change = fn(&mut Vec<v1::CustodyLogEntry>);
        let changes: [(Change, &str); 6] = [
            (|log| log.swap(0, 1), "entry 1: it does not follow"),
            (|log| drop(log.remove(0)), "entry 1: it does not follow"),
            (|log| log[1].custody_hash = vec![7; DIGEST_BYTES].into(), "entry 2: it does not follow"),
            (|log| log[0].entry = Some(Default::default()), "entry 1: it does not follow"),
            (|log| log[1].receipt = None, "entry 2: it has no receipt"),
            (|log| log[1].envelope = bytes::Bytes::new(), "entry 2: the envelope is not its own"),
        ];
        for (change, expected) in changes {
            let mut changed = good.clone();
            change(&mut changed);
            let problem = verify(&changed, &keys).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
        let problem = verify(&good, &[PrivateKey::generate(&SystemIds).public()]).unwrap_err();
        assert!(problem.contains("the receipt of entry 2 is not signed by the broker"), "{problem}");
    }
}
