//! How a caller proves who it is: challenges signed with a registered key, and the tokens that they are changed for.
//!
//! In memory only: after a restart everybody proves it again. Tokens are kept as digests, so that neither a dump of the
//! memory nor a log line gives one away.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use arc_swap::ArcSwapOption;

use super::{
    BrokerError,
    access::{Caller, LOCAL_OPERATOR},
    directory::Directory,
    jwt::OperatorKeys,
};
use crate::{
    envelope::{KeyRing, signing},
    ids::{AgentId, IdSource, KeyId},
    time::Timestamp,
};

/// How long a challenge can be answered.
pub const CHALLENGE_LIFETIME: Duration = Duration::from_secs(60);
/// How long a token is good.
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
const CHALLENGES_MAX: usize = 10_000;
const TOKENS_MAX: usize = 100_000;

type Digest = [u8; 32];
/// An agent, and the key that it proved itself with.
type Proven = (AgentId, KeyId);

/// Challenges and tokens that are out. See the module.
#[derive(Debug)]
pub struct Identities {
    operator: Digest,
    operators: ArcSwapOption<OperatorKeys>,
    challenges: Mutex<HashMap<[u8; 32], (AgentId, Timestamp)>>,
    tokens: Mutex<HashMap<Digest, (Proven, Timestamp)>>,
}

impl Identities {
    /// With this operator's token, and the keys of whoever else signs tokens of operators.
    pub fn new(operator_token: &str, operators: Option<OperatorKeys>) -> Self {
        Self {
            operator: digest(operator_token),
            operators: ArcSwapOption::from_pointee(operators),
            challenges: Mutex::default(),
            tokens: Mutex::default(),
        }
    }

    /// Takes other keys of those who sign tokens of operators. Tokens that the old ones have signed are good no more.
    pub fn set_operators(&self, operators: OperatorKeys) {
        self.operators.store(Some(Arc::new(operators)));
    }

    /// Something to sign, and until when.
    pub fn challenge(
        &self,
        agent: &AgentId,
        directory: &Directory,
        ids: &dyn IdSource,
        now: Timestamp,
    ) -> Result<([u8; 32], Timestamp), BrokerError> {
        if !directory.is_registered(agent) {
            return Err(BrokerError::AgentUnknown { agent: agent.to_string() });
        }
        let challenge = random_bytes(ids);
        let expires_at = now.plus(CHALLENGE_LIFETIME);
        let mut challenges = self.challenges.lock().expect("no holder panics");
        make_room(&mut challenges, CHALLENGES_MAX, now, "too many challenges are open")?;
        challenges.insert(challenge, (agent.clone(), expires_at));
        Ok((challenge, expires_at))
    }

    /// Changes a signed challenge for a token. A challenge is good for one try.
    pub fn token(
        &self,
        proof: &Proof<'_>,
        directory: &Directory,
        ids: &dyn IdSource,
        now: Timestamp,
    ) -> Result<(String, Timestamp), BrokerError> {
        let issued = self.challenges.lock().expect("no holder panics").remove(proof.challenge);
        let (agent, expires_at) = issued.ok_or(BrokerError::ChallengeFailed)?;
        let key = directory.key(proof.agent, proof.key_id, now).map_err(|_| BrokerError::ChallengeFailed)?;
        let input = signing::session_input(proof.agent.as_str(), proof.key_id.as_str(), proof.challenge);
        if agent != *proof.agent || expires_at <= now || !key.verifies(&input, proof.signature) {
            return Err(BrokerError::ChallengeFailed);
        }
        let token = hex::encode(random_bytes(ids));
        let expires_at = now.plus(TOKEN_LIFETIME);
        let mut tokens = self.tokens.lock().expect("no holder panics");
        make_room(&mut tokens, TOKENS_MAX, now, "too many tokens are out")?;
        tokens.insert(digest(&token), ((agent, proof.key_id.clone()), expires_at));
        Ok((token, expires_at))
    }

    /// Who has this token. That of an agent is good for as long as the key is that it was got with.
    pub fn caller(&self, token: Option<&str>, directory: &Directory, now: Timestamp) -> Result<Caller, BrokerError> {
        let Some(token) = token else { return Ok(Caller::Anonymous) };
        let digest = digest(token);
        // Digests are compared, and so the time it takes says nothing about the token.
        if digest == self.operator {
            return Ok(Caller::Operator(LOCAL_OPERATOR.to_owned()));
        }
        if let Some(name) = self.operators.load().as_ref().and_then(|keys| keys.operator(token, now)) {
            return Ok(Caller::Operator(name));
        }
        match self.tokens.lock().expect("no holder panics").get(&digest) {
            Some(((agent, key_id), expires_at)) if *expires_at > now && directory.key(agent, key_id, now).is_ok() => {
                Ok(Caller::Agent(agent.clone()))
            }
            Some(_) | None => Err(BrokerError::TokenInvalid),
        }
    }
}

/// What an agent shows for a token.
#[derive(Debug)]
pub struct Proof<'a> {
    /// Who it says it is.
    pub agent: &'a AgentId,
    /// The key that it signed with.
    pub key_id: &'a KeyId,
    /// What it signed.
    pub challenge: &'a [u8],
    /// The signature.
    pub signature: &'a [u8],
}

/// 32 bytes that nobody can guess.
pub fn random_bytes(ids: &dyn IdSource) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&ids.random());
    bytes[16..].copy_from_slice(&ids.random());
    bytes
}

fn digest(token: &str) -> Digest {
    signing::sha256(&[b"baton token", token.as_bytes()])
}

fn make_room<K: std::hash::Hash + Eq + Clone, V>(
    map: &mut HashMap<K, (V, Timestamp)>,
    most: usize,
    now: Timestamp,
    what: &'static str,
) -> Result<(), BrokerError> {
    if map.len() >= most {
        map.retain(|_, (_, expires_at)| *expires_at > now);
    }
    if map.len() >= most {
        return Err(BrokerError::LimitExceeded { what, retry_after: CHALLENGE_LIFETIME });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        broker::{BrokerIdentity, directory::Entry},
        envelope::keys::PrivateKey,
        ids::SystemIds,
        proto::v1,
        records::AgentRecord,
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 0).unwrap()
    }

    struct Case {
        identities: Identities,
        directory: Directory,
        key: PrivateKey,
        agent: AgentId,
        key_id: KeyId,
    }

    fn case() -> Case {
        let key = PrivateKey::from_seed(&[1; 32]);
        let public_key = key.public().as_bytes().to_vec().into();
        let card = v1::AgentCard {
            agent_id: "a".into(),
            keys: vec![v1::AgentKey { key_id: "k".into(), public_key, ..Default::default() }],
            ..Default::default()
        };
        let entry = Entry::parse(AgentRecord { card, created_at: at(0), updated_at: at(0) }).unwrap();
        let broker = BrokerIdentity { key_id: KeyId::parse("b").unwrap(), key: PrivateKey::from_seed(&[2; 32]) };
        Case {
            identities: Identities::new("operator", None),
            directory: Directory::new(
                &broker,
                crate::broker::Settings::default().presence_rule(Timestamp::default()),
                [entry],
            ),
            key,
            agent: AgentId::parse("a").unwrap(),
            key_id: KeyId::parse("k").unwrap(),
        }
    }

    impl Case {
        fn challenge(&self, now: i64) -> [u8; 32] {
            self.identities.challenge(&self.agent, &self.directory, &SystemIds, at(now)).unwrap().0
        }

        fn answer(&self, challenge: &[u8], signed: &[u8], now: i64) -> Result<String, BrokerError> {
            let signature = self.key.sign(&signing::session_input("a", "k", signed));
            let proof = Proof { agent: &self.agent, key_id: &self.key_id, challenge, signature: &signature };
            self.identities.token(&proof, &self.directory, &SystemIds, at(now)).map(|(token, _)| token)
        }
    }

    #[test]
    fn a_signed_challenge_gives_a_token_that_ends() {
        let case = case();
        let challenge = case.challenge(0);
        let token = case.answer(&challenge, &challenge, 59).unwrap();
        let caller = |seconds| case.identities.caller(Some(&token), &case.directory, at(seconds));
        assert_eq!(caller(60), Ok(Caller::Agent(case.agent.clone())));
        assert_eq!(caller(59 + 12 * 60 * 60), Err(BrokerError::TokenInvalid));
        let who = |token| case.identities.caller(token, &case.directory, at(0));
        assert_eq!(who(Some("operator")), Ok(Caller::Operator(LOCAL_OPERATOR.to_owned())));
        assert_eq!(who(Some("guessed")), Err(BrokerError::TokenInvalid));
        assert_eq!(who(None), Ok(Caller::Anonymous));
    }

    #[test]
    fn a_challenge_is_good_for_one_try_and_one_minute() {
        let case = case();
        let challenge = case.challenge(0);
        assert_eq!(case.answer(&challenge, b"something else", 1), Err(BrokerError::ChallengeFailed));
        assert_eq!(case.answer(&challenge, &challenge, 1), Err(BrokerError::ChallengeFailed), "it was used");
        let challenge = case.challenge(0);
        assert_eq!(case.answer(&challenge, &challenge, 60), Err(BrokerError::ChallengeFailed), "it is over");
        assert_eq!(case.answer(&[0; 32], &[0; 32], 1), Err(BrokerError::ChallengeFailed), "it was never given");
    }
}
