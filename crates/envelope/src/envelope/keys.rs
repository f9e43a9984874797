//! ed25519 keys: parsing, strict verification, signing, key files. This module must not know the owner of a key.
//!
//! [`PublicKey::verifies`] checks every signature in baton, on every processor. It verifies strictly: it accepts a
//! signature (R, s) of a message M under a key A if
//!
//! - s is canonical, which means less than the order L of the base point B,
//! - A and R are canonical encodings of points, and neither point is of small order,
//! - R is the encoding of sB - kA, with k = SHA-512(R, A, M) modulo L.
//!
//! AWS-LC checks s, computes the encoding of sB - kA, and compares it with R byte for byte; so an accepted R is
//! canonical. This module checks the rest: A when it is parsed, and R by a comparison with the eight points of small
//! order.

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

/// The encodings of the points of small order. A signature whose R is one of them can verify for messages that its
/// signer never signed.
static SMALL_ORDER: LazyLock<[[u8; 32]; 8]> = LazyLock::new(|| EIGHT_TORSION.map(|point| point.compress().to_bytes()));

/// A public key of an agent or a broker: a canonical encoding of a point not of small order. Clones share the parsed
/// key.
#[derive(Clone)]
pub struct PublicKey {
    bytes: [u8; 32],
    parsed: Arc<ParsedPublicKey>,
}

/// The reasons why bytes are not an accepted public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeyError {
    /// The bytes are not 32, not a point, or not its canonical encoding.
    #[error("must be an ed25519 public key of 32 bytes")]
    NotAKey,
    /// The point is of small order: many libraries accept forged signatures under it.
    #[error("is a weak key, for which signatures can be forged; generate another with `baton keygen`")]
    Weak,
}

impl PublicKey {
    /// Parses the 32 bytes of a compressed point.
    pub fn parse(bytes: &[u8]) -> Result<Self, PublicKeyError> {
        let bytes: [u8; 32] = bytes.try_into().map_err(|_| PublicKeyError::NotAKey)?;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| PublicKeyError::NotAKey)?;
        if key.is_weak() {
            return Err(PublicKeyError::Weak);
        }
        // A second encoding of the same point would be a second key of the same signer.
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

    /// The 32 bytes of the key.
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

/// A private key. Zeroed on drop, and never printed.
#[derive(Clone)]
pub struct PrivateKey {
    key: SigningKey,
    /// The same key for AWS-LC, which signs in a third of the time. Signatures are deterministic: both libraries make
    /// equal ones.
    pair: Arc<Ed25519KeyPair>,
}

/// The reasons why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read.
    #[error("failed to read the key file {path}: {source}; `baton keygen` creates one")]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("failed to write the key file {path}: {source}")]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file exists already; keys are never overwritten.
    #[error(
        "failed to write the key file {path}: the file exists, and baton never overwrites a key; name another file"
    )]
    Exists {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file is not a key.
    #[error("failed to read the key file {path}: it is not an ed25519 private key in PKCS#8 PEM")]
    NotAKey {
        /// The path of the file.
        path: PathBuf,
    },
}

impl PrivateKey {
    /// Generates a key from the operating system's random numbers.
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

    /// Signs the input; equal inputs give the same 64 bytes.
    pub fn sign(&self, input: &[u8]) -> [u8; 64] {
        self.pair.sign(input).as_ref().try_into().expect("a signature has 64 bytes")
    }

    /// The public half of the key.
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

    /// Parses the text of a PKCS#8 PEM file.
    pub fn from_pem(text: &str) -> Option<Self> {
        SigningKey::from_pkcs8_pem(text).map(Self::from).ok()
    }

    /// The text of a PKCS#8 PEM file. Zeroed on drop.
    pub fn to_pem(&self) -> zeroize::Zeroizing<String> {
        // The file omits the public key: OpenSSL refuses version 2 of the format, which includes it.
        let pair = KeypairBytes { secret_key: self.key.to_bytes(), public_key: None };
        pair.to_pkcs8_pem(LineEnding::LF).expect("32 bytes always encode")
    }

    /// Writes a new PKCS#8 PEM file that only its owner can read.
    pub fn write(&self, path: &Path) -> Result<(), KeyFileError> {
        use std::io::Write as _;
        let text = self.to_pem();
        let mut options = std::fs::OpenOptions::new();
        // The mode is set at the creation, so the file is never readable by others. `create_new` fails for a file that
        // exists.
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let written = options.open(path).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            // Where a folder cannot be synced, the key file exists all the same.
            drop(sync_folder_around(path));
            Ok(())
        });
        written.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => KeyFileError::Exists { path: path.into() },
            _ => KeyFileError::Write { path: path.into(), source },
        })
    }
}

/// Syncs the folder of a file, so that the file's name survives a power cut.
fn sync_folder_around(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    std::fs::File::open(folder)?.sync_all()
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
