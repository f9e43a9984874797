//! SPEC 5: the keys of an agent.

use std::time::Duration;

use tonic::Code;

use super::{
    check::{Answer, Checks, NoAnswer, Problem, Refusal, Verdict, answered, refused, same},
    world::{Actor, World, card},
};
use baton_client::{
    envelope::keys::PrivateKey,
    ids::SystemIds,
    proto::v1::{self, MessageType},
};

cases! {
    "key.weak-is-refused" "2"
        "A small-order public key is refused at registration with KEY_WEAK, in every encoding." weak_is_refused;
    "key.several-at-a-time" "5"
        "An agent may have several keys, and sign with each." several_at_a_time;
    "key.rotated-out-ends-after-its-grace" "5"
        "A replaced key is accepted within its grace period, and then refused with KEY_NOT_VALID."
        rotated_out;
    "key.revoked-is-refused" "5"
        "A signature by a revoked key is refused with KEY_NOT_VALID at once, and so is a new proof of identity."
        revoked;
    "key.before-its-time-is-refused" "5"
        "A key is not valid before its not_before_time, nor after its not_after_time." before_its_time;
    "key.directory-shows-what-signs" "2"
        "The directory has each agent's key as it was registered, so that a receiver can check a message end to end."
        directory_shows;
    "key.taken-or-known-is-refused" "5"
        "A key of another agent, or a key_id that the agent has, cannot be added." taken_or_known;
}

/// Public keys of small order: the identity, orders 2, 4 and 8, and encodings that are not canonical.
const WEAK: [&str; 8] = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
];

async fn weak_is_refused(world: World) -> Verdict {
    let mut checks = Checks::of("a card with a weak key is registered");
    for (number, weak) in WEAK.iter().enumerate() {
        let mut card = card(&world.identity(&format!("weak-{number}")), &[]);
        card.keys[0].public_key = hex::decode(weak).unwrap_or_default().into();
        let answer = world.register(&world.registrar(), card).await;
        checks.refused(weak, answer, Refusal(Code::InvalidArgument, "KEY_WEAK"));
    }
    checks.done()
}

fn key(key_id: &str, private: &PrivateKey) -> v1::AgentKey {
    let public_key = private.public().as_bytes().to_vec().into();
    v1::AgentKey { key_id: key_id.to_owned(), public_key, ..Default::default() }
}

const MINUTE: Duration = Duration::from_secs(60);

async fn add(who: &Actor, key: v1::AgentKey, replaced: &[&str], grace: Duration) -> Answer<v1::AddAgentKeyResponse> {
    let request = v1::AddAgentKeyRequest {
        agent_id: who.id().to_owned(),
        key: Some(key),
        replaced_key_ids: replaced.iter().map(ToString::to_string).collect(),
        grace: prost_types::Duration::try_from(grace).ok(),
    };
    who.call(async { who.client.answer(who.client.agents().add_agent_key(request).await) }).await
}

/// Unwraps the answer to a change of keys. Skips the case if the policy forbids agents to change their own keys.
fn permitted<T>(step: &str, answer: Answer<T>) -> Verdict<T> {
    match answer {
        Err(NoAnswer::Refused(refused)) if refused.reason == "PERMISSION_DENIED" => {
            Err(Problem::Skipped(format!("the policy does not let agents change their keys: {}", refused.message)))
        }
        answer => answered(step, answer),
    }
}

/// Sends an Info to bob that is signed by this key.
async fn signed_by(alice: &Actor, bob: &Actor, key_id: &str, private: &PrivateKey) -> Answer<v1::Receipt> {
    let mut envelope = alice.info(bob.id(), "signed");
    let key_id = key_id.parse().expect("key ids of cases follow the grammar");
    baton_client::envelope::sign(&mut envelope, &key_id, private);
    alice.submit(&envelope).await
}

const NOT_VALID: Refusal = Refusal(Code::Unauthenticated, "KEY_NOT_VALID");

async fn pair(world: &World) -> Verdict<(Actor, Actor)> {
    Ok((world.agent("alice").await?, world.agent("bob").await?))
}

async fn several_at_a_time(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let second = PrivateKey::generate(&SystemIds);
    permitted("alice adds a key", add(&alice, key("k2", &second), &[], MINUTE).await)?;
    answered("alice signs with her first key", signed_by(&alice, &bob, "k1", &alice.identity.key).await)?;
    answered("alice signs with her second key", signed_by(&alice, &bob, "k2", &second).await)?;
    let crossed = signed_by(&alice, &bob, "k1", &second).await;
    let invalid = Refusal(Code::Unauthenticated, "SIGNATURE_INVALID");
    refused("alice signs with the second key under the first one's id", crossed, invalid)?;
    for key_id in ["k1", "k2"] {
        let delivered = bob.take(MessageType::Info).await?;
        same("bob takes and verifies them", "key_id", key_id, &delivered.envelope.key_id)?;
    }
    Ok(())
}

async fn rotated_out(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let (second, third) = (PrivateKey::generate(&SystemIds), PrivateKey::generate(&SystemIds));
    permitted(
        "alice replaces her key, with a grace of a minute",
        add(&alice, key("k2", &second), &["k1"], MINUTE).await,
    )?;
    answered("alice signs with the first key", signed_by(&alice, &bob, "k1", &alice.identity.key).await)?;
    answered(
        "alice replaces the second, without grace",
        add(&alice, key("k3", &third), &["k2"], Duration::from_nanos(1)).await,
    )?;
    let late = signed_by(&alice, &bob, "k2", &second).await;
    refused("alice signs with the second key", late, NOT_VALID)?;
    answered("alice signs with the third", signed_by(&alice, &bob, "k3", &third).await).map(drop)
}

async fn revoked(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let second = PrivateKey::generate(&SystemIds);
    permitted("alice adds a key", add(&alice, key("k2", &second), &[], MINUTE).await)?;
    answered("alice signs with it", signed_by(&alice, &bob, "k2", &second).await)?;
    let request = v1::RevokeAgentKeyRequest {
        agent_id: alice.id().to_owned(),
        key_id: "k2".to_owned(),
        reason_text: "a conformance case".to_owned(),
    };
    let client = &alice.client;
    let answer = alice.call(async { client.answer(client.agents().revoke_agent_key(request).await) }).await;
    let agent = answered("alice revokes it", answer)?.agent.unwrap_or_default();
    let shown = agent.card.unwrap_or_default().keys.into_iter().find(|key| key.key_id == "k2");
    let is_shown = shown.is_some_and(|key| key.revoke_time.is_some());
    same("alice revokes it", "revoke_time is set", true, is_shown)?;
    // The broker may have ended the agent's sessions with the revocation.
    let again = world.connect(&alice.identity, 0).await?;
    refused("alice signs with it", signed_by(&again, &bob, "k2", &second).await, NOT_VALID)?;
    let mut other = alice.identity.clone();
    other.key_id = "k2".parse().expect("it follows the grammar");
    other.key = second.clone();
    let proof = world.call(world.anonymous.prove(&other)).await;
    let mut checks = Checks::of("alice proves who she is with the revoked key");
    checks.holds("answer", proof.is_err(), "a refusal", &proof);
    checks.done()?;
    let back = add(&again, key("k3", &second), &[], MINUTE).await;
    let mut checks = Checks::of("alice adds the revoked key under another id");
    checks.holds("answer", back.is_err(), "a refusal", &back);
    checks.done()
}

async fn before_its_time(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let now = alice.info(bob.id(), "").timestamp.unwrap_or_default();
    let at = |seconds: i64| Some(prost_types::Timestamp { seconds: now.seconds + seconds, nanos: 0 });
    let (early, late) = (PrivateKey::generate(&SystemIds), PrivateKey::generate(&SystemIds));
    let tomorrow = v1::AgentKey { not_before_time: at(86_400), ..key("k2", &early) };
    permitted("alice adds a key that is good from tomorrow on", add(&alice, tomorrow, &[], MINUTE).await)?;
    refused("alice signs with it", signed_by(&alice, &bob, "k2", &early).await, NOT_VALID)?;
    let yesterday = v1::AgentKey { not_after_time: at(-86_400), ..key("k3", &late) };
    // A broker may refuse the expired key, or accept it and refuse its signatures.
    if add(&alice, yesterday, &[], MINUTE).await.is_ok() {
        refused("alice signs with a key of yesterday", signed_by(&alice, &bob, "k3", &late).await, NOT_VALID)?;
    }
    Ok(())
}

async fn directory_shows(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let request = v1::GetAgentRequest { agent_id: alice.id().to_owned() };
    let found = bob.call(async { bob.client.answer(bob.client.agents().get_agent(request).await) }).await;
    let keys = answered("bob looks alice up", found)?.agent.and_then(|agent| agent.card).unwrap_or_default().keys;
    let shown: Vec<String> = keys.iter().map(|key| hex::encode(&key.public_key)).collect();
    let hers = vec![hex::encode(alice.identity.key.public().as_bytes())];
    same("bob looks alice up", "public keys", hers, shown)?;
    answered("alice sends a message", alice.submit(&alice.info(bob.id(), "signed")).await)?;
    let delivered = bob.take(MessageType::Info).await?;
    let input = baton_client::envelope::signing::envelope_input(&delivered.envelope);
    let is_hers = alice.identity.key.public().verifies(&input, &delivered.envelope.signature);
    same("bob takes and verifies it", "signature is by alice's key", true, is_hers)
}

async fn taken_or_known(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let second = PrivateKey::generate(&SystemIds);
    permitted("alice adds a key", add(&alice, key("k2", &second), &[], MINUTE).await)?;
    let mut checks = Checks::of("alice adds another key");
    let theirs = add(&alice, key("k3", &bob.identity.key), &[], MINUTE).await;
    checks.refused("bob's", theirs, Refusal(Code::AlreadyExists, "KEY_TAKEN"));
    let known = add(&alice, key("k2", &PrivateKey::generate(&SystemIds)), &[], MINUTE).await;
    checks.refused("under an id that she has", known, Refusal(Code::AlreadyExists, "KEY_EXISTS"));
    checks.done()
}
