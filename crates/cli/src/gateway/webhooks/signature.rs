//! Signatures of webhooks, as Standard Webhooks has them: HMAC-SHA256 over id, time and body.

use aws_lc_rs::hmac;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use baton_client::ids::{IdSource as _, SystemIds};
use http::{HeaderMap, HeaderName, HeaderValue};

/// The text of a secret begins with it.
const PREFIX: &str = "whsec_";
/// The length of a secret, in bytes.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The secret that a gateway shares with a receiver.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret")
    }
}

impl Secret {
    /// A fresh one of 32 bytes.
    pub(super) fn draw() -> Self {
        Self([SystemIds.random(), SystemIds.random()].concat())
    }

    /// Reads `whsec_` with base64.
    ///
    /// # Errors
    ///
    /// The problem in words.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let encoded = text.trim().strip_prefix(PREFIX).ok_or("a secret begins with whsec_")?;
        let bytes = BASE64_STANDARD.decode(encoded).map_err(|_| "a secret is whsec_ and base64")?;
        match BYTES.contains(&bytes.len()) {
            true => Ok(Self(bytes)),
            false => Err(format!("a secret has {} to {} bytes", BYTES.start(), BYTES.end())),
        }
    }

    pub(super) fn text(&self) -> String {
        format!("{PREFIX}{}", BASE64_STANDARD.encode(&self.0))
    }

    /// The headers of a request with this id at this time, in seconds.
    pub(super) fn head(&self, id: &str, seconds: i64, body: &[u8]) -> HeaderMap {
        let mut head = HeaderMap::new();
        for (name, text) in [
            ("webhook-id", id.to_owned()),
            ("webhook-timestamp", seconds.to_string()),
            ("webhook-signature", self.sign(id, seconds, body)),
        ] {
            // Ids and signatures are letters and digits.
            if let Ok(value) = HeaderValue::from_str(&text) {
                head.insert(HeaderName::from_static(name), value);
            }
        }
        head
    }

    fn sign(&self, id: &str, seconds: i64, body: &[u8]) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let signed = [format!("{id}.{seconds}.").as_bytes(), body].concat();
        format!("v1,{}", BASE64_STANDARD.encode(hmac::sign(&key, &signed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_that_of_standard_webhooks() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        let head = secret.head("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(head["webhook-signature"], "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(head["webhook-id"], "msg_p5jXN8AQM9LWM0D4loKWxJek");
        assert_eq!(head["webhook-timestamp"], "1614265330");
    }

    #[test]
    fn a_secret_is_read_as_it_is_written_and_shown_nowhere() {
        let secret = Secret::draw();
        assert_eq!(Secret::parse(&secret.text()).unwrap(), secret);
        assert_ne!(Secret::draw(), secret);
        assert_eq!(format!("{secret:?}"), "Secret");
        for wrong in ["", "whsec_", "whsec_!", "whsec_c2hvcnQ=", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
            assert!(Secret::parse(wrong).is_err(), "{wrong}");
        }
    }
}
