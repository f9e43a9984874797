//! The signing layouts against `vectors/`, which the tests of every language run.

use baton_broker_core::{
    BrokerIdentity,
    directory::{Directory, Entry},
    envelope::{
        self, KeyRing, KeyRingError,
        keys::{PrivateKey, PublicKey, PublicKeyError},
        signing,
    },
    ids::{AgentId, KeyId},
    proto::{Any, v1},
    records::AgentRecord,
    time::Timestamp,
};
use serde_json::Value;

fn read(name: &str) -> Value {
    let path = format!("{}/../../vectors/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn bytes(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().unwrap()).unwrap()
}

fn seed(value: &Value) -> PrivateKey {
    PrivateKey::from_seed(&bytes(value).try_into().unwrap())
}

fn time(value: &Value) -> Option<prost_types::Timestamp> {
    let parts = value.as_array()?;
    Some(prost_types::Timestamp {
        seconds: parts[0].as_i64().unwrap(),
        nanos: i32::try_from(parts[1].as_i64().unwrap()).unwrap(),
    })
}

fn number(value: &Value) -> i32 {
    i32::try_from(value.as_i64().unwrap()).unwrap()
}

fn envelope(value: &Value) -> v1::Envelope {
    v1::Envelope {
        message_id: text(&value["message_id"]),
        sender_id: text(&value["sender_id"]),
        receiver_id: text(&value["receiver_id"]),
        timestamp: time(&value["timestamp"]),
        message_type: number(&value["message_type"]),
        correlation_id: text(&value["correlation_id"]),
        task_id: text(&value["task_id"]),
        epoch: value["epoch"].as_u64().unwrap(),
        expires_at: time(&value["expires_at"]),
        payload: Some(Any {
            type_url: text(&value["payload"]["type_url"]),
            value: bytes(&value["payload"]["value"]).into(),
        }),
        key_id: text(&value["key_id"]),
        ..Default::default()
    }
}

/// The pre-authentication encoding of a body of this type, computed independently.
fn pre_authentication(kind: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {kind} {} ", kind.len(), body.len());
    [head.as_bytes(), body].concat()
}

#[test]
fn envelopes_sign_as_the_vectors_say() {
    let vectors = read("signing-v1.json");
    let key = seed(&vectors["private_key_seed"]);
    assert_eq!(key.public().as_bytes().to_vec(), bytes(&vectors["public_key"]));
    for vector in list(&vectors, "vectors") {
        let name = &vector["name"];
        let mut envelope = envelope(&vector["envelope"]);
        let input = signing::envelope_input(&envelope);
        let expected = pre_authentication("application/vnd.baton.envelope.v1", &bytes(&vector["body"]));
        assert_eq!(input, expected, "{name}");
        assert_eq!(signing::sha256(&[&input]).to_vec(), bytes(&vector["signing_input_sha256"]), "{name}");
        let key_id = KeyId::parse(&envelope.key_id).unwrap();
        envelope::sign(&mut envelope, &key_id, &key);
        assert_eq!(envelope.signature.to_vec(), bytes(&vector["signature"]), "{name}");
        assert!(key.public().verifies(&input, &envelope.signature), "{name}");
    }
}

/// The reason for which a case must fail verification, by the functions that the broker uses; or "valid".
fn verdict(case: &Value) -> &'static str {
    let mut envelope = envelope(&case["envelope"]);
    envelope.signature = bytes(&case["signature"]).into();
    let public = match PublicKey::parse(&bytes(&case["public_key"])) {
        Ok(public) => public,
        Err(PublicKeyError::Weak) => return "KEY_WEAK",
        Err(PublicKeyError::NotAKey) => return "not a key",
    };
    if envelope.signature.is_empty() {
        return "SIGNATURE_MISSING";
    }
    if case["signature_version"].as_u64().unwrap() != u64::from(signing::SIGNATURE_VERSION) {
        return "SIGNATURE_VERSION_UNKNOWN";
    }
    let at = envelope.timestamp.unwrap();
    let now = Timestamp::from_parts(at.seconds, at.nanos).unwrap();
    match directory_with(case).key(&AgentId::parse("x").unwrap(), &KeyId::parse("k").unwrap(), now) {
        Err(KeyRingError::NotValid) => return "KEY_NOT_VALID",
        Err(KeyRingError::Unknown) => return "unknown",
        Ok(_) => {}
    }
    match public.verifies(&signing::envelope_input(&envelope), &envelope.signature) {
        true => "valid",
        false => "SIGNATURE_INVALID",
    }
}

fn directory_with(case: &Value) -> Directory {
    let key = v1::AgentKey {
        key_id: "k".into(),
        public_key: bytes(&case["public_key"]).into(),
        not_before_time: time(&case["not_before"]),
        not_after_time: time(&case["not_after"]),
        revoke_time: time(&case["revoked_at"]),
        vouchers: Vec::new(),
    };
    let card = v1::AgentCard { agent_id: "x".into(), keys: vec![key], ..Default::default() };
    let record = AgentRecord::new(card, Timestamp::default());
    let broker = BrokerIdentity {
        key_id: KeyId::parse("b").unwrap(),
        key: PrivateKey::from_seed(&[1; 32]),
        coordinator: baton_broker_core::Signer::new(PrivateKey::from_seed(&[77; 32])),
    };
    let presence = baton_broker_core::Settings::default().presence_rule(baton_broker_core::time::Timestamp::default());
    Directory::new(&broker, presence, [Entry::parse(record).unwrap()])
}

#[test]
fn what_must_not_verify_does_not() {
    for case in list(&read("refusals-v1.json"), "cases") {
        assert_eq!(verdict(case), case["expect"].as_str().unwrap(), "{}: {}", case["name"], case["note"]);
    }
}

#[test]
fn context_digests_are_as_the_vectors_say() {
    for vector in list(&read("digests-v1.json"), "contexts") {
        let digests = vector["section_digests"].as_object().unwrap();
        let sections = digests.iter().map(|(name, digest)| (name.as_str(), bytes(digest).try_into().unwrap()));
        assert_eq!(signing::context_digest(sections).to_vec(), bytes(&vector["context_digest"]), "{}", vector["name"]);
    }
}

#[test]
fn proofs_receipts_and_chains_are_as_the_vectors_say() {
    let vectors = read("digests-v1.json");
    let key = seed(&vectors["private_key_seed"]);
    for vector in list(&vectors, "sessions") {
        let challenge = bytes(&vector["challenge"]);
        let input = signing::session_input(&text(&vector["agent_id"]), &text(&vector["key_id"]), &challenge);
        assert_eq!(key.sign(&input).to_vec(), bytes(&vector["signature"]), "{}", vector["name"]);
    }
    let broker = seed(&vectors["broker_private_key_seed"]);
    for vector in list(&vectors, "receipts").iter().chain(list(&vectors, "resource_receipts")) {
        let said = &vector["receipt"];
        let receipt = v1::Receipt {
            message_id: text(&said["message_id"]),
            sequence: said["sequence"].as_u64().unwrap(),
            accept_time: time(&said["accept_time"]),
            task_id: text(&said["task_id"]),
            task_status: number(&said["task_status"]),
            owner_id: text(&said["owner_id"]),
            epoch: said["epoch"].as_u64().unwrap(),
            handoff_id: text(&said["handoff_id"]),
            handoff_state: number(&said["handoff_state"]),
            custody_hash: bytes(&said["custody_hash"]).into(),
            key_id: text(&said["key_id"]),
            // Only a receipt of the second version of the layout names a resource.
            resource: said["resource"].as_str().unwrap_or_default().to_owned(),
            resource_sequence: said["resource_sequence"].as_u64().unwrap_or_default(),
            ..Default::default()
        };
        let signature = broker.sign(&signing::receipt_input(&receipt));
        assert_eq!(signature.to_vec(), bytes(&vector["signature"]), "{}", vector["name"]);
    }
    let operator = seed(&vectors["operator_private_key_seed"]);
    for vector in list(&vectors, "vouchers") {
        let public_key = bytes(&vector["public_key"]).into();
        let key = v1::AgentKey { key_id: text(&vector["key_id"]), public_key, ..Default::default() };
        let voucher = v1::KeyVoucher {
            operator_key_id: text(&vector["operator_key_id"]),
            not_after_time: time(&vector["not_after_time"]),
            ..Default::default()
        };
        let input = signing::voucher_input(&text(&vector["agent_id"]), &key, &voucher);
        assert_eq!(operator.sign(&input).to_vec(), bytes(&vector["signature"]), "{}", vector["name"]);
    }
    type Next = fn(&[u8; 32], &[u8]) -> [u8; 32];
    let chains: [(&str, Next); 2] = [("custody", signing::custody_hash), ("audit", signing::audit_hash)];
    for (chain, next) in chains {
        let mut hash = [0; 32];
        for (entry, expected) in list(&vectors[chain], "entries").iter().zip(list(&vectors[chain], "hashes")) {
            hash = next(&hash, &bytes(entry));
            assert_eq!(hash.to_vec(), bytes(expected), "{chain}");
        }
    }
    let mut hash = [0; 32];
    for entry in list(&vectors, "workspace") {
        let sequence = entry["sequence"].as_u64().unwrap();
        let envelope = bytes(&entry["envelope_sha256"]).try_into().unwrap();
        hash = signing::workspace_hash(&hash, sequence, time(&entry["create_time"]).as_ref(), &envelope);
        assert_eq!(hash.to_vec(), bytes(&entry["hash"]), "entry {sequence}");
    }
}
