//! Bearer tokens of operators: JSON Web Tokens (RFC 7519), signed by an issuer that the broker's operator trusts.
//!
//! The algorithm follows from the key, never from the token. A token must have an expiry (`exp`), an audience (`aud`)
//! and a subject (`sub`); its times are checked by the broker's clock, with a leeway.

use std::time::Duration;

use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header, errors::ErrorKind, jwk};
use serde::Deserialize;
use serde_json::Value;

use super::access::{LOCAL_OPERATOR, Operator};
use crate::time::Timestamp;

/// The most bytes of an operator's name and of a group, the same as OpenID Connect permits for a `sub`.
const NAME_BYTES_MAX: usize = 255;
/// The most groups of a token. Large identity providers put at most 200 into one.
const GROUPS_MAX: usize = 256;

/// What a token must have, besides the signature of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenTerms {
    /// The required `aud`.
    pub audience: String,
    /// The required `iss`. `None`: the keys alone say which tokens are good.
    pub issuer: Option<String>,
    /// How far the clocks of the issuer and of the broker may differ.
    pub leeway: Duration,
    /// The claim with the groups of the operator, by its name, or by a JSON pointer (RFC 6901) if it begins with `/`.
    /// `None`: operators have no groups.
    pub groups_claim: Option<String>,
}

/// The keys that sign tokens of operators, and the claims that a token must have.
pub struct OperatorKeys {
    keys: Vec<SigningKey>,
    terms: TokenTerms,
}

struct SigningKey {
    id: Option<String>,
    key: DecodingKey,
    algorithms: Vec<Algorithm>,
}

#[derive(Debug, Deserialize)]
struct Claims {
    sub: Option<String>,
    /// A NumericDate: seconds since 1970, which may have a fraction.
    exp: f64,
    nbf: Option<f64>,
}

/// The reasons why a token is refused. All but the first three are told only of a token that a configured key has signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    /// It does not parse, or a claim has the wrong type.
    #[error("is malformed")]
    Malformed,
    /// No configured key has its key id.
    #[error("names a key (kid) that is not configured")]
    KeyUnknown,
    /// The signature is not of a configured key, or has another algorithm.
    #[error("is not signed by a configured key")]
    SignatureInvalid,
    /// A required claim is absent.
    #[error("has no {0}")]
    ClaimMissing(&'static str),
    /// `aud` is for another service.
    #[error("is for another audience (aud)")]
    AudienceWrong,
    /// `iss` is another issuer.
    #[error("is of another issuer (iss)")]
    IssuerWrong,
    /// `exp` has passed.
    #[error("has expired")]
    Expired,
    /// `nbf` has not come.
    #[error("is not valid yet (nbf)")]
    NotYetValid,
    /// `sub` can be no name.
    #[error("has a subject (sub) that can be no name of an operator")]
    NameInvalid,
    /// The claim of groups has another form, or too many groups.
    #[error("has groups that are not at most 256 names")]
    GroupsInvalid,
}

/// The reasons why a file of keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OperatorKeysError {
    /// The file is neither a PEM file nor a key set.
    #[error("the file has no public key; it must be a PEM file (Ed25519, EC or RSA) or a JSON Web Key Set")]
    NoKey,
    /// No entry of the key set is a key for signatures. This is the first of them.
    #[error("key {id:?} of the key set cannot be used, and no other can: {problem}")]
    Unusable {
        /// The id of the key.
        id: String,
        /// The reason why the key does not fit, for a person to read.
        problem: String,
    },
}

impl std::fmt::Debug for OperatorKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} keys of operators for {}", self.keys.len(), self.terms.audience)
    }
}

impl OperatorKeys {
    /// Parses a PEM file with one public key, or a JSON Web Key Set. Ignores keys of a set that are not understood or not
    /// for signatures, as RFC 7517, section 5, requires: a set may gain a key for another use.
    pub fn parse(text: &str, terms: TokenTerms) -> Result<Self, OperatorKeysError> {
        let keys = match serde_json::from_str::<KeySet>(text) {
            Ok(set) => usable(set)?,
            Err(_) => vec![from_pem(text.as_bytes()).ok_or(OperatorKeysError::NoKey)?],
        };
        if keys.is_empty() {
            return Err(OperatorKeysError::NoKey);
        }
        Ok(Self { keys, terms })
    }

    /// The operator of a token that is valid at this time.
    ///
    /// # Errors
    /// The first fault of the token.
    pub fn operator(&self, token: &str, now: Timestamp) -> Result<Operator, TokenFault> {
        let header = decode_header(token).map_err(|error| match error.kind() {
            // Such as `none`, which the library does not know.
            ErrorKind::InvalidAlgorithmName | ErrorKind::InvalidAlgorithm => TokenFault::SignatureInvalid,
            _ => TokenFault::Malformed,
        })?;
        // Where the key or the token has no id, the signature alone decides.
        let fits = |key: &&SigningKey| key.id.is_none() || header.kid.is_none() || key.id == header.kid;
        let mut fault = TokenFault::KeyUnknown;
        for key in self.keys.iter().filter(fits) {
            match self.claims(token, &header, key) {
                Ok(claims) => return self.accepted(claims, now),
                // Another key may have signed it. A fault behind a signature says more than one of a signature.
                Err(TokenFault::SignatureInvalid) if fault != TokenFault::KeyUnknown => {}
                Err(found) => fault = found,
            }
        }
        Err(fault)
    }

    /// The claims of a token that this key has signed.
    fn claims(&self, token: &str, header: &Header, key: &SigningKey) -> Result<Value, TokenFault> {
        // A token could otherwise name a symmetric algorithm, with the public key as the shared secret.
        if !key.algorithms.contains(&header.alg) {
            return Err(TokenFault::SignatureInvalid);
        }
        let mut validation = Validation::new(header.alg);
        validation.algorithms.clone_from(&key.algorithms);
        validation.set_audience(&[&self.terms.audience]);
        // Without a configured issuer the keys alone say who may sign.
        if let Some(issuer) = &self.terms.issuer {
            validation.set_issuer(&[issuer]);
        }
        let required = ["aud", "sub"].into_iter().chain(self.terms.issuer.as_ref().map(|_| "iss"));
        validation.set_required_spec_claims(&required.collect::<Vec<_>>());
        // The broker's clock decides about the times, in the caller of this function.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        let decoded = decode::<Value>(token, &key.key, &validation);
        decoded.map(|token| token.claims).map_err(|error| match error.kind() {
            ErrorKind::InvalidSignature => TokenFault::SignatureInvalid,
            ErrorKind::InvalidAudience => TokenFault::AudienceWrong,
            ErrorKind::InvalidIssuer => TokenFault::IssuerWrong,
            ErrorKind::MissingRequiredClaim(claim) => {
                let known = ["aud", "iss", "sub"].into_iter().find(|known| known == claim);
                known.map_or(TokenFault::Malformed, TokenFault::ClaimMissing)
            }
            _ => TokenFault::Malformed,
        })
    }

    /// The operator of signed claims that hold at this time.
    fn accepted(&self, claims: Value, now: Timestamp) -> Result<Operator, TokenFault> {
        let groups = self.groups(&claims)?;
        if claims.get("exp").is_none_or(Value::is_null) {
            return Err(TokenFault::ClaimMissing("exp"));
        }
        let Claims { sub, exp, nbf } = serde_json::from_value(claims).map_err(|_| TokenFault::Malformed)?;
        // By the broker's clock, which tests and the simulator set.
        let now = Duration::from_nanos(u64::try_from(now.unix_nanoseconds()).unwrap_or(0)).as_secs_f64();
        let leeway = self.terms.leeway.as_secs_f64();
        if exp + leeway <= now {
            return Err(TokenFault::Expired);
        }
        if nbf.is_some_and(|not_before| not_before > now + leeway) {
            return Err(TokenFault::NotYetValid);
        }
        match sub {
            Some(name) if is_name(&name) && name != LOCAL_OPERATOR => Ok(Operator { name, groups: groups.into() }),
            Some(_) | None => Err(TokenFault::NameInvalid),
        }
    }

    /// The groups of signed claims: a list of names, or one name. None if the claim is absent. Any other form is a fault,
    /// because a policy may forbid something to a group that would be lost.
    fn groups(&self, claims: &Value) -> Result<Vec<String>, TokenFault> {
        let Some(claim) = &self.terms.groups_claim else { return Ok(Vec::new()) };
        let found = if claim.starts_with('/') { claims.pointer(claim) } else { claims.get(claim) };
        let one = |value: &Value| {
            let name = value.as_str().filter(|name| is_name(name));
            name.map(str::to_owned).ok_or(TokenFault::GroupsInvalid)
        };
        match found {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(names)) if names.len() <= GROUPS_MAX => names.iter().map(one).collect(),
            Some(name) => Ok(vec![one(name)?]),
        }
    }
}

/// Whether a text can be the name of an operator or of a group. Names occur in the audit log, in line-based logs and on terminals: a
/// control character, a line break or a mark of writing direction could disguise a name as another text.
fn is_name(name: &str) -> bool {
    let is_permitted = |letter: char| letter.is_alphanumeric() || letter.is_ascii_graphic() || letter == ' ';
    let is_bounded = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
    is_bounded && name.trim() == name && name.chars().all(is_permitted)
}

fn from_pem(pem: &[u8]) -> Option<SigningKey> {
    let made =
        |key: DecodingKey, algorithms: &[Algorithm]| SigningKey { id: None, key, algorithms: algorithms.to_vec() };
    let ed = || DecodingKey::from_ed_pem(pem).ok().map(|key| made(key, &[Algorithm::EdDSA]));
    let ec = || DecodingKey::from_ec_pem(pem).ok().map(|key| made(key, &[Algorithm::ES256, Algorithm::ES384]));
    let rsa = || DecodingKey::from_rsa_pem(pem).ok().map(|key| made(key, &RSA));
    // A PEM file does not name the algorithm in a form that the library reads, so each kind is tried.
    ed().or_else(ec).or_else(rsa)
}

const RSA: [Algorithm; 6] =
    [Algorithm::RS256, Algorithm::RS384, Algorithm::RS512, Algorithm::PS256, Algorithm::PS384, Algorithm::PS512];

/// A key set whose keys may be of kinds that this program does not know.
#[derive(Deserialize)]
struct KeySet {
    keys: Vec<serde_json::Value>,
}

fn usable(set: KeySet) -> Result<Vec<SigningKey>, OperatorKeysError> {
    let (mut keys, mut first_problem) = (Vec::new(), None);
    for key in set.keys {
        match from_jwk(key) {
            Ok(key) => keys.push(key),
            Err(problem) => {
                tracing::debug!(%problem, "ignored a key of operators");
                first_problem.get_or_insert(problem);
            }
        }
    }
    if keys.is_empty() { Err(first_problem.unwrap_or(OperatorKeysError::NoKey)) } else { Ok(keys) }
}

fn from_jwk(key: serde_json::Value) -> Result<SigningKey, OperatorKeysError> {
    use jwk::{AlgorithmParameters, EllipticCurve};
    let id = key.get("kid").and_then(serde_json::Value::as_str).map(str::to_owned);
    let unusable = |problem: String| OperatorKeysError::Unusable { id: id.clone().unwrap_or_default(), problem };
    let key: jwk::Jwk = serde_json::from_value(key).map_err(|error| unusable(error.to_string()))?;
    if !matches!(key.common.public_key_use, None | Some(jwk::PublicKeyUse::Signature)) {
        return Err(unusable("its use must be \"sig\"".to_owned()));
    }
    let algorithms = match &key.algorithm {
        AlgorithmParameters::OctetKeyPair(parameters) if parameters.curve == EllipticCurve::Ed25519 => {
            vec![Algorithm::EdDSA]
        }
        AlgorithmParameters::EllipticCurve(parameters) if parameters.curve == EllipticCurve::P256 => {
            vec![Algorithm::ES256]
        }
        AlgorithmParameters::EllipticCurve(parameters) if parameters.curve == EllipticCurve::P384 => {
            vec![Algorithm::ES384]
        }
        AlgorithmParameters::RSA(_) => RSA.to_vec(),
        // With a shared secret, every party that can check a token could also make one.
        _ => return Err(unusable("it must be an Ed25519, P-256, P-384 or RSA public key".to_owned())),
    };
    let decoding = DecodingKey::from_jwk(&key).map_err(|error| unusable(error.to_string()))?;
    Ok(SigningKey { id, key: decoding, algorithms })
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{EncodingKey, encode};
    use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519};
    use serde_json::{Value, json};

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn now() -> Timestamp {
        Timestamp::from_parts(NOW, 0).unwrap()
    }

    fn claims() -> Value {
        json!({"sub": "olga", "aud": "baton", "iss": "https://id.example", "exp": NOW + 60})
    }

    /// Terms with a leeway of 60 s.
    fn terms(issuer: Option<&str>) -> TokenTerms {
        TokenTerms {
            audience: "baton".to_owned(),
            issuer: issuer.map(str::to_owned),
            leeway: Duration::from_secs(60),
            groups_claim: None,
        }
    }

    /// The name of the operator, or the fault.
    fn who(keys: &OperatorKeys, token: &str) -> Result<String, TokenFault> {
        keys.operator(token, now()).map(|operator| operator.name)
    }

    struct Signer {
        pair: KeyPair,
        algorithm: Algorithm,
    }

    impl Signer {
        fn new(algorithm: Algorithm) -> Self {
            let kind = if algorithm == Algorithm::EdDSA { &PKCS_ED25519 } else { &PKCS_ECDSA_P256_SHA256 };
            Self { pair: KeyPair::generate_for(kind).unwrap(), algorithm }
        }

        fn token(&self, claims: &Value) -> String {
            let pem = self.pair.serialize_pem();
            let key = match self.algorithm {
                Algorithm::EdDSA => EncodingKey::from_ed_pem(pem.as_bytes()),
                _ => EncodingKey::from_ec_pem(pem.as_bytes()),
            };
            encode(&Header::new(self.algorithm), claims, &key.unwrap()).unwrap()
        }

        fn keys(&self) -> OperatorKeys {
            OperatorKeys::parse(&self.pair.public_key_pem(), terms(Some("https://id.example"))).unwrap()
        }
    }

    fn without(name: &str) -> Value {
        let mut claims = claims();
        claims.as_object_mut().unwrap().remove(name);
        claims
    }

    fn with(name: &str, value: impl Into<Value>) -> Value {
        let mut claims = claims();
        claims[name] = value.into();
        claims
    }

    #[test]
    fn a_good_token_says_whose_it_is() {
        for algorithm in [Algorithm::EdDSA, Algorithm::ES256] {
            let signer = Signer::new(algorithm);
            assert_eq!(who(&signer.keys(), &signer.token(&claims())), Ok("olga".to_owned()), "{algorithm:?}");
        }
    }

    #[test]
    fn names_of_operators_as_identity_providers_give_them_are_taken() {
        let signer = Signer::new(Algorithm::EdDSA);
        for name in
            ["olga@example.com", "auth0|5f7c8ec7", "system:serviceaccount:ops:baton", "Jürgen Groß", "CN=Olga, O=Ops"]
        {
            assert_eq!(who(&signer.keys(), &signer.token(&with("sub", name))), Ok(name.to_owned()));
        }
    }

    #[test]
    fn what_a_token_must_say_is_checked() {
        let signer = Signer::new(Algorithm::EdDSA);
        let keys = signer.keys();
        use TokenFault::*;
        for (claims, fault) in [
            (with("exp", NOW - 60), Expired),
            (with("exp", (NOW - 60) as f64 - 0.5), Expired),
            (with("exp", "soon"), Malformed),
            (without("exp"), ClaimMissing("exp")),
            (with("nbf", NOW + 61), NotYetValid),
            (with("nbf", (NOW + 60) as f64 + 0.5), NotYetValid),
            (with("aud", "another-service"), AudienceWrong),
            (without("aud"), ClaimMissing("aud")),
            (with("iss", "https://evil.example"), IssuerWrong),
            (without("iss"), ClaimMissing("iss")),
            (without("sub"), ClaimMissing("sub")),
            (with("sub", ""), NameInvalid),
            (with("sub", LOCAL_OPERATOR), NameInvalid),
            (with("sub", format!(" {LOCAL_OPERATOR}")), NameInvalid),
            (with("sub", "olga\nagent a"), NameInvalid),
            (with("sub", "olga\ragent a"), NameInvalid),
            (with("sub", "olga\u{1b}[2J"), NameInvalid),
            (with("sub", "olga\u{9b}2J"), NameInvalid),
            (with("sub", "olga\u{202e}nimda"), NameInvalid),
            (with("sub", "olga\u{2028}agent a"), NameInvalid),
            (with("sub", "ol\u{200b}ga"), NameInvalid),
            (with("sub", "o".repeat(256)), NameInvalid),
        ] {
            assert_eq!(who(&keys, &signer.token(&claims)), Err(fault), "{claims}");
        }
    }

    #[test]
    fn clocks_may_differ_by_the_leeway_and_times_may_have_a_fraction() {
        let signer = Signer::new(Algorithm::EdDSA);
        let keys = signer.keys();
        for claims in [
            with("exp", NOW - 59),
            with("exp", (NOW - 60) as f64 + 0.5),
            with("exp", NOW as f64 + 0.25),
            with("nbf", NOW + 60),
            with("nbf", NOW as f64 + 59.5),
            with("nbf", Value::Null),
        ] {
            assert_eq!(who(&keys, &signer.token(&claims)), Ok("olga".to_owned()), "{claims}");
        }
        let strict = TokenTerms { leeway: Duration::ZERO, ..terms(None) };
        let strict = OperatorKeys::parse(&signer.pair.public_key_pem(), strict).unwrap();
        assert_eq!(who(&strict, &signer.token(&with("exp", NOW))), Err(TokenFault::Expired));
        assert_eq!(who(&strict, &signer.token(&with("exp", NOW + 1))), Ok("olga".to_owned()));
    }

    #[test]
    fn a_claim_can_name_the_groups_of_an_operator() {
        let signer = Signer::new(Algorithm::EdDSA);
        let groups = |claim: &str, claims: Value| {
            let terms = TokenTerms { groups_claim: Some(claim.to_owned()), ..terms(None) };
            let keys = OperatorKeys::parse(&signer.pair.public_key_pem(), terms).unwrap();
            keys.operator(&signer.token(&claims), now()).map(|operator| operator.groups.to_vec())
        };
        assert_eq!(groups("groups", with("groups", json!(["sre", "on call"]))).unwrap(), ["sre", "on call"]);
        assert_eq!(groups("groups", with("groups", "sre")).unwrap(), ["sre"]);
        let namespaced = "https://example.com/groups";
        assert_eq!(groups(namespaced, with(namespaced, json!(["sre"]))).unwrap(), ["sre"]);
        let nested = with("realm_access", json!({"roles": ["sre"]}));
        assert_eq!(groups("/realm_access/roles", nested).unwrap(), ["sre"]);
        assert_eq!(groups("groups", claims()).unwrap(), [""; 0]);
        for odd in [json!(7), json!([7]), json!(["a\nb"]), json!([""]), json!({"sre": true}), json!(vec!["g"; 257])] {
            assert_eq!(groups("groups", with("groups", odd.clone())), Err(TokenFault::GroupsInvalid), "{odd}");
        }
        let without = signer.keys().operator(&signer.token(&with("groups", json!(["sre"]))), now()).unwrap();
        assert_eq!(without.groups.len(), 0, "no claim is configured");
    }

    #[test]
    fn a_token_of_another_key_or_another_algorithm_is_none() {
        let signer = Signer::new(Algorithm::EdDSA);
        let keys = signer.keys();
        let good = signer.token(&claims());
        let unsigned = Err(TokenFault::SignatureInvalid);
        assert_eq!(who(&keys, &Signer::new(Algorithm::EdDSA).token(&claims())), unsigned, "another key");
        assert_eq!(who(&keys, &Signer::new(Algorithm::ES256).token(&claims())), unsigned, "another algorithm");
        // The public key as a shared secret: every client knows it.
        let secret = EncodingKey::from_secret(signer.pair.public_key_pem().as_bytes());
        let confused = encode(&Header::new(Algorithm::HS256), &claims(), &secret).unwrap();
        assert_eq!(who(&keys, &confused), unsigned, "a symmetric algorithm");
        let (_, rest) = good.split_once('.').unwrap();
        let (payload, _) = rest.split_once('.').unwrap();
        // {"alg":"none","typ":"JWT"}
        let none = format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{payload}.");
        who(&keys, &none).expect_err("alg none");
        who(&keys, &good[..good.len() - 2]).expect_err("cut off");
        assert_eq!(who(&keys, "nonsense"), Err(TokenFault::Malformed));
    }

    #[test]
    fn a_key_set_has_several_keys_and_no_secrets() {
        let signer = Signer::new(Algorithm::EdDSA);
        use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
        let x = BASE64.encode(signer.pair.public_key_raw());
        let set = |key: Value| json!({"keys": [key]}).to_string();
        let good = set(json!({"kty": "OKP", "crv": "Ed25519", "kid": "one", "x": x, "use": "sig"}));
        let keys = OperatorKeys::parse(&good, terms(None)).unwrap();
        assert_eq!(who(&keys, &signer.token(&claims())), Ok("olga".to_owned()));
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some("another".to_owned());
        let key = EncodingKey::from_ed_pem(signer.pair.serialize_pem().as_bytes()).unwrap();
        let of_another_key = encode(&header, &claims(), &key).unwrap();
        assert_eq!(who(&keys, &of_another_key), Err(TokenFault::KeyUnknown));
        let signs = json!({"kty": "OKP", "crv": "Ed25519", "kid": "one", "x": x});
        let encrypts = json!({"kty": "OKP", "crv": "Ed25519", "kid": "one", "x": x, "use": "enc"});
        let unknown = json!({"kty": "AKP", "alg": "ML-DSA-44", "kid": "three", "pub": "AAAA"});
        let mixed = json!({"keys": [unknown, encrypts, signs]}).to_string();
        let keys = OperatorKeys::parse(&mixed, terms(None)).unwrap();
        assert_eq!(keys.keys.len(), 1, "keys for other uses are ignored");
        assert_eq!(who(&keys, &signer.token(&claims())), Ok("olga".to_owned()));
        assert!(OperatorKeys::parse(&set(unknown), terms(None)).is_err());
        assert!(OperatorKeys::parse(&set(encrypts), terms(None)).is_err());
        let secret = set(json!({"kty": "oct", "kid": "two", "k": "c2VjcmV0"}));
        assert!(OperatorKeys::parse(&secret, terms(None)).is_err());
        assert!(OperatorKeys::parse("{\"keys\": []}", terms(None)).is_err());
        assert!(OperatorKeys::parse("nonsense", terms(None)).is_err());
    }
}
