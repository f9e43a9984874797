//! ed25519 keys: parsing, strict verification, signing, key files. Must not know whose a key is.
//!
//! Every signature that baton checks is checked by [`PublicKey::verifies`], on every processor. Its answer is that of strict
//! verification: it takes a signature (R, s) of a message M under a key A if
//!
//! - s is canonical, that is less than the order L of the base point B,
//! - A and R are canonical encodings of points, and neither point is of small order,
//! - R is the encoding of sB - kA, with k = SHA-512(R, A, M) modulo L.
//!
//! AWS-LC checks s and computes the encoding of sB - kA, which it compares with R byte for byte; so R is canonical if it is
//! taken at all. The rest is checked here: A when it is parsed, R by comparing it with the eight points of small order.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, ParsedPublicKey};
use curve25519_dalek::constants::EIGHT_TORSION;
use ed25519_dalek::{
    SigningKey, VerifyingKey,
    pkcs8::{DecodePrivateKey, EncodePrivateKey, KeypairBytes, spki::der::pem::LineEnding},
};

use crate::disk;

/// The encodings of the points of small order. A signature whose R is one of them can verify for messages that its signer
/// never saw.
static SMALL_ORDER: LazyLock<[[u8; 32]; 8]> = LazyLock::new(|| EIGHT_TORSION.map(|point| point.compress().to_bytes()));

/// A public key of an agent or a broker: a canonical encoding of a point that is not of small order. Clones share it.
#[derive(Clone)]
pub struct PublicKey {
    bytes: [u8; 32],
    parsed: Arc<ParsedPublicKey>,
}

/// Why bytes are not a public key that baton takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeyError {
    /// Not 32 bytes, not a point, or not its canonical encoding.
    #[error("must be an ed25519 public key of 32 bytes")]
    NotAKey,
    /// Of small order: many libraries accept forged signatures under it.
    #[error("is a weak key, under which signatures can be forged; make a new one with `baton keygen`")]
    Weak,
}

impl PublicKey {
    /// Parses 32 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, PublicKeyError> {
        let bytes: [u8; 32] = bytes.try_into().map_err(|_| PublicKeyError::NotAKey)?;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| PublicKeyError::NotAKey)?;
        if key.is_weak() {
            return Err(PublicKeyError::Weak);
        }
        // A second encoding of the same point would be a second key for the same signer.
        if key.to_edwards().compress().to_bytes() != bytes {
            return Err(PublicKeyError::NotAKey);
        }
        Self::of(bytes)
    }

    fn of(bytes: [u8; 32]) -> Result<Self, PublicKeyError> {
        let parsed = ParsedPublicKey::new(&ED25519, bytes).map_err(|_| PublicKeyError::NotAKey)?;
        Ok(Self { bytes, parsed: Arc::new(parsed) })
    }

    /// Whether the 64 bytes are this key's signature over the input. Strict: see the module.
    pub fn verifies(&self, input: &[u8], signature: &[u8]) -> bool {
        let Some((r, _)) = signature.split_first_chunk() else { return false };
        !SMALL_ORDER.contains(r) && self.parsed.verify_sig(input, signature).is_ok()
    }

    /// Its 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.bytes
    }
}

impl PartialEq for PublicKey {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for PublicKey {}

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
        PublicKey::of(self.key.verifying_key().to_bytes()).expect("the public half of a private key is a key")
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
mod tests;
