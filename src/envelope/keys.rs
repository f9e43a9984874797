//! ed25519 keys: parsing, strict verification, signing, key files. Must not know whose a key is.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use aws_lc_rs::signature::Ed25519KeyPair;
use curve25519_dalek::EdwardsPoint;
use ed25519_dalek::{
    Signature, SigningKey, VerifyingKey,
    pkcs8::{DecodePrivateKey, EncodePrivateKey, KeypairBytes, spki::der::pem::LineEnding},
};

use crate::{
    disk,
    faults::{Fault, is_on},
};

/// A public key under which nobody can forge: a point on the curve, and not of small order.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

/// Why 32 bytes are not a public key that we take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeyError {
    /// Not 32 bytes, or not a point.
    #[error("must be an ed25519 public key of 32 bytes")]
    NotAKey,
    /// Of small order: many libraries accept forged signatures under it.
    #[error("is a weak key, under which signatures can be forged; make a new one with `baton keygen`")]
    Weak,
}

impl PublicKey {
    /// Parses 32 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, PublicKeyError> {
        let bytes = bytes.try_into().map_err(|_| PublicKeyError::NotAKey)?;
        let key = VerifyingKey::from_bytes(bytes).map_err(|_| PublicKeyError::NotAKey)?;
        let is_refused = key.is_weak() && !is_on(Fault::TakesWeakKeys);
        if is_refused { Err(PublicKeyError::Weak) } else { Ok(Self(key)) }
    }

    /// Whether the signature is this key's over the input, by the strict rules: canonical encodings only.
    pub fn verifies(&self, input: &[u8], signature: &[u8]) -> bool {
        let Ok(signature) = Signature::from_slice(signature) else { return false };
        self.0.verify_strict(input, &signature).is_ok()
    }

    /// Its point. Not of small order, though it may have a component that is.
    pub(super) fn point(&self) -> EdwardsPoint {
        self.0.to_edwards()
    }

    /// Its 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(self.as_bytes()))
    }
}

/// A private key. Zeroed when it is dropped, and never printed.
#[derive(Clone)]
pub struct PrivateKey {
    key: SigningKey,
    /// The same key for AWS-LC, which signs in a third of the time. Signatures are deterministic: those of both are equal.
    pair: Arc<Ed25519KeyPair>,
}

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read.
    #[error("failed to read the key file {path}: {source}; make one with `baton keygen`")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It cannot be written.
    #[error("failed to write the key file {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is there already; keys are never overwritten.
    #[error("failed to write the key file {path}: it exists, and keys are never overwritten; name another file")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// It is not a key.
    #[error("failed to read the key file {path}: it is not an ed25519 private key in PKCS#8 PEM")]
    NotAKey {
        /// The file.
        path: PathBuf,
    },
}

impl PrivateKey {
    /// A new key from the operating system's random numbers.
    pub fn generate(ids: &dyn crate::ids::IdSource) -> Self {
        let mut seed = zeroize::Zeroizing::new([0; 32]);
        seed[..16].copy_from_slice(&ids.random());
        seed[16..].copy_from_slice(&ids.random());
        Self::from_seed(&seed)
    }

    /// The key of a seed of 32 bytes.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self::from(SigningKey::from_bytes(seed))
    }

    /// Signs; the same input always gives the same 64 bytes.
    pub fn sign(&self, input: &[u8]) -> [u8; 64] {
        self.pair.sign(input).as_ref().try_into().expect("a signature has 64 bytes")
    }

    /// Its public half.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.key.verifying_key())
    }

    /// Reads a PKCS#8 PEM file, as `baton keygen` and `openssl genpkey -algorithm ed25519` write it.
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        let text = std::fs::read_to_string(path)
            .map(zeroize::Zeroizing::new)
            .map_err(|source| KeyFileError::Read { path: path.into(), source })?;
        Self::from_pem(&text).ok_or_else(|| KeyFileError::NotAKey { path: path.into() })
    }

    /// From the text of such a file.
    pub fn from_pem(text: &str) -> Option<Self> {
        SigningKey::from_pkcs8_pem(text).map(Self::from).ok()
    }

    /// Writes a new PKCS#8 PEM file that only its owner can read.
    pub fn write(&self, path: &Path) -> Result<(), KeyFileError> {
        use std::io::Write as _;
        // Without the public half: version 2 of the format, which has it, is refused by OpenSSL.
        let pair = KeypairBytes { secret_key: self.key.to_bytes(), public_key: None };
        let text = pair.to_pkcs8_pem(LineEnding::LF).expect("32 bytes always encode");
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let written = options.open(path).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            // Where a folder cannot be synced, the key is there all the same.
            drop(disk::sync_folder(disk::folder_around(path)));
            Ok(())
        });
        written.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => KeyFileError::Exists { path: path.into() },
            _ => KeyFileError::Write { path: path.into(), source },
        })
    }
}

impl From<SigningKey> for PrivateKey {
    fn from(key: SigningKey) -> Self {
        let pair = Ed25519KeyPair::from_seed_and_public_key(key.as_bytes(), key.verifying_key().as_bytes());
        Self { pair: Arc::new(pair.expect("the halves belong together")), key }
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PrivateKey(of {:?})", self.public())
    }
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::Signer as _;

    use super::*;

    #[test]
    fn both_libraries_make_the_same_signature() {
        for number in 0..64_u8 {
            let key = PrivateKey::from_seed(&[number; 32]);
            let input = vec![number; usize::from(number) * 7];
            assert_eq!(key.sign(&input), key.key.sign(&input).to_bytes());
        }
    }
}
