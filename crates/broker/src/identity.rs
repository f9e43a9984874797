//! Authentication of callers: challenges signed with a registered key, and the tokens given for them.
//!
//! All of it is in memory only: after a restart every agent authenticates again. Tokens are kept as digests, so that
//! neither a dump of the memory nor a log line reveals one.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;

use super::{
    BrokerError,
    access::{Caller, LOCAL_OPERATOR, Operator},
    directory::Directory,
    jwt::OperatorKeys,
};
use crate::{
    envelope::{KeyRing, signing},
    ids::{AgentId, IdSource, KeyId},
    time::Timestamp,
};

/// The time in which a challenge can be answered.
pub const CHALLENGE_LIFETIME: Duration = Duration::from_secs(60);
/// The lifetime of a token.
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
/// The most open challenges. Any client can ask for one, so the oldest is dropped instead of refusing a new one.
const CHALLENGES_MAX: usize = 65_536;
/// The most tokens. Of the agent with the most, the oldest gives way to a new one, so that no agent is refused.
const TOKENS_MAX: usize = 100_000;
/// The lifetime of a code for a login to the web console.
pub const LOGIN_CODE_LIFETIME: Duration = Duration::from_secs(60);
/// The most codes. The oldest gives way to a new one, after those of the same caller.
const LOGIN_CODES_MAX: usize = 1024;
/// The most codes of one caller, so that no caller can end those of the others.
const LOGIN_CODES_OF_ONE_MAX: usize = 16;
/// The most tokens of one agent. A new token replaces the oldest, so that no agent can use up the tokens of all.
const TOKENS_OF_ONE_MAX: usize = 1024;

type Digest = [u8; 32];
/// An agent, and the key that it authenticated with.
type Proven = (AgentId, KeyId);

/// What proves the caller of a console session again at each request, so that a session ends with the token that began
/// it.
#[derive(Clone)]
pub enum Credential {
    /// The digest of a token that the broker gave, or of the operator's token.
    Given([u8; 32]),
    /// A signed token. Only its text can be checked again: for its expiry, and against the present keys.
    Signed(String),
    /// The client certificate of a connection, which named this agent.
    Certificate(AgentId),
}

/// Never shows the token.
impl std::fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Given(_) => "a token by its digest",
            Self::Signed(_) => "a signed token",
            Self::Certificate(_) => "a client certificate",
        })
    }
}

/// The open challenges and the valid tokens. See the module.
#[derive(Debug)]
pub struct Identities {
    operator: Digest,
    operators: ArcSwapOption<OperatorKeys>,
    /// The second of the latest log line about a token of an operator.
    fault_logged_at: AtomicI64,
    challenges: Mutex<Challenges>,
    tokens: Mutex<Tokens>,
    /// The codes that no login has used, oldest first.
    login_codes: Mutex<VecDeque<LoginCode>>,
}

#[derive(Debug)]
struct LoginCode {
    digest: Digest,
    caller: Caller,
    credential: Credential,
    expires_at: Timestamp,
}

#[derive(Debug, Default)]
struct Challenges {
    open: HashMap<[u8; 32], (AgentId, Timestamp)>,
    /// The challenges in the order in which they were issued and expire. Some may be used already.
    order: VecDeque<[u8; 32]>,
}

impl Challenges {
    fn add(&mut self, challenge: [u8; 32], agent: AgentId, expires_at: Timestamp, now: Timestamp) {
        while let Some(oldest) = self.order.front() {
            // Used and expired challenges go first; a valid one goes only if the table is full.
            // A challenge that was used is in `order` alone, and leaves it here.
            let is_over = self.open.get(oldest).is_none_or(|(_, expires_at)| *expires_at <= now);
            if !is_over && self.order.len() < CHALLENGES_MAX {
                break;
            }
            self.open.remove(oldest);
            self.order.pop_front();
        }
        self.order.push_back(challenge);
        self.open.insert(challenge, (agent, expires_at));
    }
}

#[derive(Debug, Default)]
struct Tokens {
    out: HashMap<Digest, (Proven, Timestamp)>,
    /// The tokens of each agent, in the order in which they were issued.
    of: HashMap<AgentId, VecDeque<Digest>>,
    /// The tokens by their expiry, and the agents by the number of their tokens: a login must not search all tokens.
    by_expiry: BTreeSet<(Timestamp, Digest)>,
    by_count: BTreeSet<(usize, AgentId)>,
}

impl Tokens {
    fn add(&mut self, token: Digest, (agent, key_id): Proven, expires_at: Timestamp, now: Timestamp) {
        while let Some((_, ended)) = self.by_expiry.first().copied().filter(|(expires_at, _)| *expires_at <= now) {
            self.remove(&ended);
        }
        // Earlier processes of an agent may have left their tokens without a use.
        let gives_way = match self.of.get(&agent) {
            Some(own) if own.len() >= TOKENS_OF_ONE_MAX => Some(&agent),
            Some(_) | None if self.out.len() >= TOKENS_MAX => self.by_count.last().map(|(_, agent)| agent),
            Some(_) | None => None,
        };
        if let Some(oldest) = gives_way.and_then(|agent| self.of.get(agent)?.front().copied()) {
            self.remove(&oldest);
        }
        self.change(&agent, |tokens| tokens.push_back(token));
        self.by_expiry.insert((expires_at, token));
        self.out.insert(token, ((agent, key_id), expires_at));
    }

    fn remove(&mut self, token: &Digest) {
        let Some(((agent, _), expires_at)) = self.out.remove(token) else { return };
        self.by_expiry.remove(&(expires_at, *token));
        self.change(&agent, |tokens| tokens.retain(|other| other != token));
    }

    /// Changes the tokens of an agent, and their count.
    fn change(&mut self, agent: &AgentId, change: impl FnOnce(&mut VecDeque<Digest>)) {
        let mut tokens = self.of.remove(agent).unwrap_or_default();
        self.by_count.remove(&(tokens.len(), agent.clone()));
        change(&mut tokens);
        if !tokens.is_empty() {
            self.by_count.insert((tokens.len(), agent.clone()));
            self.of.insert(agent.clone(), tokens);
        }
    }
}

impl Identities {
    /// Starts with the operator's token and the keys of other issuers of operator tokens.
    pub fn new(operator_token: &str, operators: Option<OperatorKeys>) -> Self {
        Self {
            operator: digest(operator_token),
            operators: ArcSwapOption::from_pointee(operators),
            fault_logged_at: AtomicI64::default(),
            challenges: Mutex::default(),
            tokens: Mutex::default(),
            login_codes: Mutex::default(),
        }
    }

    /// Replaces the keys of issuers of operator tokens. Tokens signed with the former keys are no longer valid.
    pub fn set_operators(&self, operators: OperatorKeys) {
        self.operators.store(Some(Arc::new(operators)));
    }

    /// A challenge to sign, and its expiry. Any id gets one, so that the answer does not reveal which agents are
    /// registered.
    pub fn challenge(&self, agent: &AgentId, ids: &dyn IdSource, now: Timestamp) -> ([u8; 32], Timestamp) {
        let challenge = random_bytes(ids);
        let expires_at = now.plus(CHALLENGE_LIFETIME);
        self.challenges.lock().expect("no holder panics").add(challenge, agent.clone(), expires_at, now);
        (challenge, expires_at)
    }

    /// Exchanges a signed challenge for a token. A challenge allows one attempt.
    pub fn token(
        &self,
        proof: &Proof<'_>,
        directory: &Directory,
        ids: &dyn IdSource,
        now: Timestamp,
    ) -> Result<(String, Timestamp), BrokerError> {
        let mut challenges = self.challenges.lock().expect("no holder panics");
        // The challenge is removed before any check, so that it allows one attempt.
        let issued = challenges.open.remove(proof.challenge);
        drop(challenges);
        let (agent, expires_at) = issued.ok_or(BrokerError::ChallengeFailed)?;
        // The broker runs the coordinator in itself: it has no session.
        if proof.agent.is_reserved() {
            return Err(BrokerError::ChallengeFailed);
        }
        // One error for an unknown agent, a revoked key and a wrong signature: the answer must not reveal which agents
        // exist.
        let key = directory.key(proof.agent, proof.key_id, now).map_err(|_| BrokerError::ChallengeFailed)?;
        let input = signing::session_input(proof.agent.as_str(), proof.key_id.as_str(), proof.challenge);
        let in_time = is_in_time(expires_at, CHALLENGE_LIFETIME, now);
        if agent != *proof.agent || !in_time || !key.verifies(&input, proof.signature) {
            return Err(BrokerError::ChallengeFailed);
        }
        let token = hex::encode(random_bytes(ids));
        let expires_at = now.plus(TOKEN_LIFETIME);
        let of = (agent, proof.key_id.clone());
        self.tokens.lock().expect("no holder panics").add(digest(&token), of, expires_at, now);
        Ok((token, expires_at))
    }

    /// The caller with this token. An agent's token is valid as long as the key that it was obtained with.
    pub fn caller(&self, token: Option<&str>, directory: &Directory, now: Timestamp) -> Result<Caller, BrokerError> {
        // No token is no error: the policies permit some calls to any caller. A wrong token is one.
        let Some(token) = token else { return Ok(Caller::Anonymous) };
        self.prove(token, directory, now).map(|(caller, _)| caller)
    }

    /// The caller with this token, and what proves it again later.
    ///
    /// # Errors
    /// TOKEN_INVALID if no caller has the token, or with the fault of a JSON Web Token.
    pub fn prove(
        &self,
        token: &str,
        directory: &Directory,
        now: Timestamp,
    ) -> Result<(Caller, Credential), BrokerError> {
        let digest = digest(token);
        // Before the table of agents' tokens, because the text of a signed token is in no table. The tokens that the broker
        // gives have no dot.
        if digest != self.operator && token.contains('.') {
            return Ok((self.signed_for(token, now)?, Credential::Signed(token.to_owned())));
        }
        Ok((self.given_to(digest, directory, now)?, Credential::Given(digest)))
    }

    /// The caller of an earlier proof, if the proof still holds.
    ///
    /// # Errors
    /// TOKEN_INVALID once the token has expired, its key is revoked, or its signer's keys are replaced.
    pub fn prove_again(
        &self,
        credential: &Credential,
        directory: &Directory,
        now: Timestamp,
    ) -> Result<Caller, BrokerError> {
        match credential {
            Credential::Given(digest) => self.given_to(*digest, directory, now),
            Credential::Signed(token) => self.signed_for(token, now),
            Credential::Certificate(agent) if directory.is_registered(agent) => Ok(Caller::Agent(agent.clone())),
            Credential::Certificate(_) => Err(BrokerError::TokenInvalid),
        }
    }

    /// A code with which a browser becomes this caller once, and its expiry.
    pub fn login_code(
        &self,
        caller: Caller,
        credential: Credential,
        ids: &dyn IdSource,
        now: Timestamp,
    ) -> (String, Timestamp) {
        let code = hex::encode(random_bytes(ids));
        let expires_at = now.plus(LOGIN_CODE_LIFETIME);
        let mut codes = self.login_codes.lock().expect("no holder panics");
        codes.retain(|code| is_in_time(code.expires_at, LOGIN_CODE_LIFETIME, now));
        let of_one = codes.iter().filter(|code| code.caller == caller).count();
        let gives_way = match (of_one >= LOGIN_CODES_OF_ONE_MAX, codes.len() >= LOGIN_CODES_MAX) {
            (true, _) => codes.iter().position(|code| code.caller == caller),
            (false, true) => Some(0),
            (false, false) => None,
        };
        gives_way.and_then(|place| codes.remove(place));
        codes.push_back(LoginCode { digest: digest(&code), caller, credential, expires_at });
        (code, expires_at)
    }

    /// The caller of a code, and what proves it again later. A code is valid once.
    ///
    /// # Errors
    /// TOKEN_INVALID if the code is unknown, used or expired, or if its caller has lost what proved it.
    pub fn log_in(
        &self,
        code: &str,
        directory: &Directory,
        now: Timestamp,
    ) -> Result<(Caller, Credential), BrokerError> {
        let digest = digest(code);
        let mut codes = self.login_codes.lock().expect("no holder panics");
        let place = codes.iter().position(|code| code.digest == digest).ok_or(BrokerError::TokenInvalid)?;
        let code = codes.remove(place).ok_or(BrokerError::TokenInvalid)?;
        drop(codes);
        let in_time = is_in_time(code.expires_at, LOGIN_CODE_LIFETIME, now);
        let caller = self.prove_again(&code.credential, directory, now)?;
        if in_time && caller == code.caller { Ok((caller, code.credential)) } else { Err(BrokerError::TokenInvalid) }
    }

    /// The operator of a JSON Web Token.
    fn signed_for(&self, token: &str, now: Timestamp) -> Result<Caller, BrokerError> {
        let keys = self.operators.load();
        let keys = keys.as_ref().ok_or(BrokerError::TokenInvalid)?;
        keys.operator(token, now).map(Caller::Operator).map_err(|fault| {
            // Any client can cause this at will, so the log has at most one line a second.
            let (second, _) = now.to_parts();
            if self.fault_logged_at.swap(second, Ordering::Relaxed) != second {
                tracing::warn!("refused a token of an operator: it {fault}");
            }
            BrokerError::JwtInvalid { fault }
        })
    }

    fn given_to(&self, digest: Digest, directory: &Directory, now: Timestamp) -> Result<Caller, BrokerError> {
        // Digests are compared, so the duration of the comparison reveals nothing about the token.
        if digest == self.operator {
            return Ok(Caller::Operator(Operator::named(LOCAL_OPERATOR)));
        }
        match self.tokens.lock().expect("no holder panics").out.get(&digest) {
            Some(((agent, key_id), expires_at))
                if is_in_time(*expires_at, TOKEN_LIFETIME, now) && directory.key(agent, key_id, now).is_ok() =>
            {
                Ok(Caller::Agent(agent.clone()))
            }
            Some(_) | None => Err(BrokerError::TokenInvalid),
        }
    }
}

/// Whether the expiry lies between now and one lifetime from now. A later expiry comes from a clock that was ahead and
/// has been set right; without this check it would be valid for longer than its lifetime.
fn is_in_time(expires_at: Timestamp, lifetime: Duration, now: Timestamp) -> bool {
    now < expires_at && expires_at <= now.plus(lifetime)
}

/// An agent's proof of its identity.
#[derive(Debug)]
pub struct Proof<'a> {
    /// The agent that the caller claims to be.
    pub agent: &'a AgentId,
    /// The key of the signature.
    pub key_id: &'a KeyId,
    /// The challenge that the caller has signed, of any length.
    pub challenge: &'a [u8],
    /// The ed25519 signature over agent, key id and challenge.
    pub signature: &'a [u8],
}

/// 32 bytes that no client can predict: a challenge, a token or an invitation.
pub fn random_bytes(ids: &dyn IdSource) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&ids.random());
    bytes[16..].copy_from_slice(&ids.random());
    bytes
}

fn digest(token: &str) -> Digest {
    signing::sha256(&[b"baton token", token.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BrokerIdentity, directory::Entry, envelope::keys::PrivateKey, ids::SystemIds, proto::v1, records::AgentRecord,
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
        let entry = Entry::parse(AgentRecord::new(card, at(0))).unwrap();
        let broker = BrokerIdentity {
            key_id: KeyId::parse("b").unwrap(),
            key: PrivateKey::from_seed(&[2; 32]),
            coordinator: crate::Signer::new(PrivateKey::from_seed(&[77; 32])),
        };
        Case {
            identities: Identities::new("operator", None),
            directory: Directory::new(&broker, crate::Settings::default().presence_rule(Timestamp::default()), [entry]),
            key,
            agent: AgentId::parse("a").unwrap(),
            key_id: KeyId::parse("k").unwrap(),
        }
    }

    impl Case {
        fn challenge(&self, now: i64) -> [u8; 32] {
            self.identities.challenge(&self.agent, &SystemIds, at(now)).0
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
        assert_eq!(who(Some("operator")), Ok(Caller::Operator(Operator::named(LOCAL_OPERATOR))));
        assert_eq!(who(Some("guessed")), Err(BrokerError::TokenInvalid));
        assert_eq!(who(None), Ok(Caller::Anonymous));
    }

    #[test]
    fn what_was_given_by_a_clock_that_was_ahead_is_good_for_nothing_once_it_is_right() {
        let case = case();
        let challenge = case.challenge(86_400);
        let token = case.answer(&challenge, &challenge, 86_400).unwrap();
        assert_eq!(case.identities.caller(Some(&token), &case.directory, at(0)), Err(BrokerError::TokenInvalid));
        let challenge = case.challenge(86_400);
        assert_eq!(case.answer(&challenge, &challenge, 0), Err(BrokerError::ChallengeFailed));
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

    #[test]
    fn endless_challenges_shut_no_agent_out_and_hold_a_bounded_amount() {
        let case = case();
        let first = case.challenge(0);
        for _ in 0..CHALLENGES_MAX {
            case.challenge(1);
        }
        let challenge = case.challenge(2);
        assert_eq!(case.identities.challenges.lock().unwrap().open.len(), CHALLENGES_MAX);
        assert_eq!(case.answer(&first, &first, 2), Err(BrokerError::ChallengeFailed), "the oldest gave way");
        case.answer(&challenge, &challenge, 2).unwrap();
        case.challenge(1000);
        assert_eq!(case.identities.challenges.lock().unwrap().order.len(), 1, "those that are over are forgotten");
    }

    #[test]
    fn endless_tokens_of_one_agent_take_nothing_from_others() {
        let mut tokens = Tokens::default();
        let key_id = KeyId::parse("k").unwrap();
        let of = |number: usize| (AgentId::parse(&format!("a{number}")).unwrap(), key_id.clone());
        let token = |number: usize| digest(&number.to_string());
        for number in 0..TOKENS_MAX * 2 {
            tokens.add(token(number), of(0), at(10), at(0));
        }
        assert_eq!(tokens.out.len(), TOKENS_OF_ONE_MAX);
        assert!(tokens.out.contains_key(&token(TOKENS_MAX * 2 - 1)) && !tokens.out.contains_key(&token(0)));
        let others = TOKENS_MAX - TOKENS_OF_ONE_MAX;
        let of_other = |number: usize| digest(&format!("b{number}"));
        (0..others).for_each(|number| tokens.add(of_other(number), of(1 + number), at(20), at(0)));
        assert_eq!(tokens.out.len(), TOKENS_MAX);
        tokens.add(of_other(others), of(others + 1), at(20), at(9));
        assert_eq!(tokens.out.len(), TOKENS_MAX);
        assert_eq!(tokens.of[&of(0).0].len(), TOKENS_OF_ONE_MAX - 1, "the agent with the most gave up its oldest");
        assert!((0..=others).all(|number| tokens.out.contains_key(&of_other(number))));
        tokens.add(token(0), of(0), at(20), at(10));
        assert_eq!((tokens.of.len(), tokens.out.len()), (others + 2, others + 2), "what has ended is forgotten");
        assert_eq!((tokens.by_expiry.len(), tokens.by_count.len()), (others + 2, others + 2));
    }
}
