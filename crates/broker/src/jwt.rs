//! Bearer tokens of operators: JSON Web Tokens (RFC 7519), signed by an issuer that the broker's operator trusts.
//!
//! The algorithm follows from the key, never from the token. A token must have an expiry (`exp`), an audience (`aud`)
//! and a subject (`sub`); its times are checked by the broker's clock.

use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header, jwk};
use serde::Deserialize;

use super::access::LOCAL_OPERATOR;
use crate::time::Timestamp;

/// The most bytes of an operator's name, the same as OpenID Connect permits for a `sub`.
const NAME_BYTES_MAX: usize = 255;

/// The keys that sign tokens of operators, and the claims that a token must have.
pub struct OperatorKeys {
    keys: Vec<SigningKey>,
    audience: String,
    issuer: Option<String>,
}

struct SigningKey {
    id: Option<String>,
    key: DecodingKey,
    algorithms: Vec<Algorithm>,
}

#[derive(Debug, Deserialize)]
struct Claims {
    sub: String,
    exp: i64,
    nbf: Option<i64>,
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
        write!(formatter, "{} keys of operators for {}", self.keys.len(), self.audience)
    }
}

impl OperatorKeys {
    /// Parses a PEM file with one public key, or a JSON Web Key Set. Ignores keys of a set that are not understood or not
    /// for signatures, as RFC 7517, section 5, requires: a set may gain a key for another use.
    pub fn parse(text: &str, audience: String, issuer: Option<String>) -> Result<Self, OperatorKeysError> {
        let keys = match serde_json::from_str::<KeySet>(text) {
            Ok(set) => usable(set)?,
            Err(_) => vec![from_pem(text.as_bytes()).ok_or(OperatorKeysError::NoKey)?],
        };
        if keys.is_empty() {
            return Err(OperatorKeysError::NoKey);
        }
        Ok(Self { keys, audience, issuer })
    }

    /// The name of the operator, if the token is valid at this time.
    pub fn operator(&self, token: &str, now: Timestamp) -> Option<String> {
        let header = decode_header(token).ok()?;
        // Where the key or the token has no id, the signature alone decides.
        let fits = |key: &&SigningKey| key.id.is_none() || header.kid.is_none() || key.id == header.kid;
        let claims = self.keys.iter().filter(fits).find_map(|key| self.claims(token, &header, key))?;
        let (seconds, _) = now.to_parts();
        // By the broker's clock, which tests and the simulator set.
        let in_time = claims.exp > seconds && claims.nbf.is_none_or(|not_before| not_before <= seconds);
        (in_time && is_name(&claims.sub)).then_some(claims.sub)
    }

    fn claims(&self, token: &str, header: &Header, key: &SigningKey) -> Option<Claims> {
        // A token could otherwise name a symmetric algorithm, with the public key as the shared secret.
        if !key.algorithms.contains(&header.alg) {
            return None;
        }
        let mut validation = Validation::new(header.alg);
        validation.algorithms.clone_from(&key.algorithms);
        validation.set_audience(&[&self.audience]);
        // Without a configured issuer the keys alone say who may sign.
        if let Some(issuer) = &self.issuer {
            validation.set_issuer(&[issuer]);
        }
        let required = ["exp", "aud", "sub"].into_iter().chain(self.issuer.as_ref().map(|_| "iss"));
        validation.set_required_spec_claims(&required.collect::<Vec<_>>());
        // The broker's clock decides about the times, in the caller of this function.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        decode::<Claims>(token, &key.key, &validation).ok().map(|token| token.claims)
    }
}

/// Whether a `sub` can be an operator's name. Names occur in the audit log, in line-based logs and on terminals: a
/// control character, a line break or a mark of writing direction could disguise a name as another text.
fn is_name(sub: &str) -> bool {
    let is_permitted = |letter: char| letter.is_alphanumeric() || letter.is_ascii_graphic() || letter == ' ';
    let is_bounded = !sub.is_empty() && sub.len() <= NAME_BYTES_MAX;
    is_bounded && sub.trim() == sub && sub.chars().all(is_permitted) && sub != LOCAL_OPERATOR
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
            OperatorKeys::parse(&self.pair.public_key_pem(), "baton".into(), Some("https://id.example".into())).unwrap()
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
            let operator = signer.keys().operator(&signer.token(&claims()), now());
            assert_eq!(operator.as_deref(), Some("olga"), "{algorithm:?}");
        }
    }

    #[test]
    fn names_of_operators_as_identity_providers_give_them_are_taken() {
        let signer = Signer::new(Algorithm::EdDSA);
        for name in
            ["olga@example.com", "auth0|5f7c8ec7", "system:serviceaccount:ops:baton", "Jürgen Groß", "CN=Olga, O=Ops"]
        {
            let operator = signer.keys().operator(&signer.token(&with("sub", name)), now());
            assert_eq!(operator.as_deref(), Some(name));
        }
    }

    #[test]
    fn what_a_token_must_say_is_checked() {
        let signer = Signer::new(Algorithm::EdDSA);
        let keys = signer.keys();
        for (what, claims) in [
            ("over", with("exp", NOW)),
            ("without an end", without("exp")),
            ("not yet good", with("nbf", NOW + 1)),
            ("for another service", with("aud", "another-service")),
            ("without an audience", without("aud")),
            ("by another issuer", with("iss", "https://evil.example")),
            ("by no issuer", without("iss")),
            ("without a subject", without("sub")),
            ("of an empty name", with("sub", "")),
            ("of the broker's own operator", with("sub", LOCAL_OPERATOR)),
            ("of the broker's own operator, in disguise", with("sub", format!(" {LOCAL_OPERATOR}"))),
            ("of a name with a line break", with("sub", "olga\nagent a")),
            ("of a name with a carriage return", with("sub", "olga\ragent a")),
            ("of a name with an escape", with("sub", "olga\u{1b}[2J")),
            ("of a name with a C1 control", with("sub", "olga\u{9b}2J")),
            ("of a name with a mark of direction", with("sub", "olga\u{202e}nimda")),
            ("of a name with a line separator", with("sub", "olga\u{2028}agent a")),
            ("of a name with a character of no width", with("sub", "ol\u{200b}ga")),
            ("of a name that is too long", with("sub", "o".repeat(256))),
        ] {
            assert_eq!(keys.operator(&signer.token(&claims), now()), None, "a token {what}");
        }
    }

    #[test]
    fn a_token_of_another_key_or_another_algorithm_is_none() {
        let signer = Signer::new(Algorithm::EdDSA);
        let keys = signer.keys();
        let good = signer.token(&claims());
        assert_eq!(keys.operator(&Signer::new(Algorithm::EdDSA).token(&claims()), now()), None, "another key");
        assert_eq!(keys.operator(&Signer::new(Algorithm::ES256).token(&claims()), now()), None, "another algorithm");
        // The public key as a shared secret: every client knows it.
        let secret = EncodingKey::from_secret(signer.pair.public_key_pem().as_bytes());
        let confused = encode(&Header::new(Algorithm::HS256), &claims(), &secret).unwrap();
        assert_eq!(keys.operator(&confused, now()), None, "a symmetric algorithm");
        let (_, rest) = good.split_once('.').unwrap();
        let (payload, _) = rest.split_once('.').unwrap();
        // {"alg":"none","typ":"JWT"}
        let none = format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{payload}.");
        assert_eq!(keys.operator(&none, now()), None, "alg none");
        assert_eq!(keys.operator(&good[..good.len() - 2], now()), None, "cut off");
        assert_eq!(keys.operator("nonsense", now()), None);
    }

    #[test]
    fn a_key_set_has_several_keys_and_no_secrets() {
        let signer = Signer::new(Algorithm::EdDSA);
        use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
        let x = BASE64.encode(signer.pair.public_key_raw());
        let set = |key: Value| json!({"keys": [key]}).to_string();
        let good = set(json!({"kty": "OKP", "crv": "Ed25519", "kid": "one", "x": x, "use": "sig"}));
        let keys = OperatorKeys::parse(&good, "baton".into(), None).unwrap();
        assert_eq!(keys.operator(&signer.token(&claims()), now()).as_deref(), Some("olga"));
        let signs = json!({"kty": "OKP", "crv": "Ed25519", "kid": "one", "x": x});
        let encrypts = json!({"kty": "OKP", "crv": "Ed25519", "kid": "one", "x": x, "use": "enc"});
        let unknown = json!({"kty": "AKP", "alg": "ML-DSA-44", "kid": "three", "pub": "AAAA"});
        let mixed = json!({"keys": [unknown, encrypts, signs]}).to_string();
        let keys = OperatorKeys::parse(&mixed, "baton".into(), None).unwrap();
        assert_eq!(keys.keys.len(), 1, "keys for other uses are ignored");
        assert_eq!(keys.operator(&signer.token(&claims()), now()).as_deref(), Some("olga"));
        assert!(OperatorKeys::parse(&set(unknown), "baton".into(), None).is_err());
        assert!(OperatorKeys::parse(&set(encrypts), "baton".into(), None).is_err());
        let secret = set(json!({"kty": "oct", "kid": "two", "k": "c2VjcmV0"}));
        assert!(OperatorKeys::parse(&secret, "baton".into(), None).is_err());
        assert!(OperatorKeys::parse("{\"keys\": []}", "baton".into(), None).is_err());
        assert!(OperatorKeys::parse("nonsense", "baton".into(), None).is_err());
    }
}
