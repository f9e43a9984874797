//! Verifies in batches, appends and syncs in groups, answers and delivers. Two threads: one waits for the disk while
//! the other verifies the submissions that have arrived. A batch or group takes all waiting submissions, and never
//! waits for more.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Write as _},
    path::Path,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
};

use baton::proto::v1::{self, connect_response::Response};
use bytes::Bytes;
use ed25519_dalek::{Signature, VerifyingKey, verify_batch};
use tokio::sync::mpsc::UnboundedSender;

/// The most envelopes of one batch or one group.
const GROUP_MAX: usize = 1024;

/// The outgoing channel of a session. Each item is a burst of frames that are written together.
pub(crate) type Way = UnboundedSender<Vec<v1::ConnectResponse>>;

/// An envelope on its way through the pipeline.
pub(crate) struct Submission {
    pub request_id: u64,
    pub raw: Bytes,
    pub message_id: String,
    pub sender: Arc<str>,
    pub receiver: String,
    /// The signing input, the signature and the key; `None` in an unsigned run.
    pub signed: Option<(Vec<u8>, Signature, VerifyingKey)>,
}

pub(crate) struct Engine {
    pub submissions: Mutex<Sender<Submission>>,
    pub ways: Arc<Mutex<HashMap<Arc<str>, Way>>>,
}

impl Engine {
    pub(crate) fn start(path: &Path, syncs: bool) -> io::Result<Self> {
        let (submissions, unverified) = channel();
        let (verified, to_append) = channel();
        let ways = Arc::new(Mutex::new(HashMap::new()));
        let (log, ways_out) = (File::create(path)?, ways.clone());
        std::thread::spawn(move || verify(&unverified, &verified));
        std::thread::spawn(move || append(&to_append, log, syncs, &ways_out));
        Ok(Self { submissions: Mutex::new(submissions), ways })
    }
}

/// Takes all waiting submissions, at least one. `None` after the channel has closed.
fn gather(from: &Receiver<Vec<Submission>>) -> Option<Vec<Submission>> {
    let mut gathered = from.recv().ok()?;
    while gathered.len() < GROUP_MAX
        && let Ok(more) = from.try_recv()
    {
        gathered.extend(more);
    }
    Some(gathered)
}

fn verify(unverified: &Receiver<Submission>, verified: &Sender<Vec<Submission>>) {
    while let Ok(first) = unverified.recv() {
        let mut batch = vec![first];
        batch.extend(unverified.try_iter().take(GROUP_MAX - 1));
        let signed = || batch.iter().filter_map(|submission| submission.signed.as_ref());
        let inputs: Vec<&[u8]> = signed().map(|(input, ..)| input.as_slice()).collect();
        let signatures: Vec<Signature> = signed().map(|(_, signature, _)| *signature).collect();
        let keys: Vec<VerifyingKey> = signed().map(|(.., key)| *key).collect();
        if !inputs.is_empty() {
            verify_batch(&inputs, &signatures, &keys).expect("the bench signs well");
        }
        if verified.send(batch).is_err() {
            return;
        }
    }
}

fn append(verified: &Receiver<Vec<Submission>>, mut log: File, syncs: bool, ways: &Mutex<HashMap<Arc<str>, Way>>) {
    let (mut buffer, mut sequence) = (Vec::new(), 0);
    while let Some(group) = gather(verified) {
        buffer.clear();
        for submission in &group {
            buffer.extend_from_slice(&u32::try_from(submission.raw.len()).unwrap_or_default().to_le_bytes());
            buffer.extend_from_slice(&submission.raw);
        }
        log.write_all(&buffer).expect("the disk has room");
        if syncs {
            log.sync_data().expect("the disk is healthy");
        }
        let ways = ways.lock().expect("no holder panics");
        let mut bursts: HashMap<Arc<str>, Vec<v1::ConnectResponse>> = HashMap::new();
        for submission in group {
            sequence += 1;
            let Some((receiver, _)) = ways.get_key_value(submission.receiver.as_str()) else { continue };
            bursts.entry(receiver.clone()).or_default().push(delivery(&submission, sequence));
            bursts.entry(submission.sender.clone()).or_default().push(receipt(submission, sequence));
        }
        for (agent, burst) in bursts {
            // The send fails if the session has ended.
            let _ = ways.get(&agent).map(|way| way.send(burst));
        }
    }
}

fn delivery(submission: &Submission, sequence: u64) -> v1::ConnectResponse {
    let delivery = v1::Delivery {
        delivery_id: sequence.to_string(),
        envelope: submission.raw.clone(),
        attempt: 1,
        sequence,
        handoff_id: submission.message_id.clone(), // of a request; no reader uses it elsewhere
        ..Default::default()
    };
    v1::ConnectResponse { request_id: 0, response: Some(Response::Delivery(delivery)) }
}

fn receipt(submission: Submission, sequence: u64) -> v1::ConnectResponse {
    let receipt = v1::Receipt { message_id: submission.message_id, sequence, ..Default::default() };
    v1::ConnectResponse { request_id: submission.request_id, response: Some(Response::Receipt(receipt)) }
}
