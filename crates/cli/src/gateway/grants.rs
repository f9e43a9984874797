//! The folder of a gateway: a file for each grant, named by the SHA-256 of its token, so that a token is looked up without a
//! list. A file is written whole or not at all, and only its owner can read it.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    pin::Pin,
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use baton_client::{
    Identity,
    envelope::{keys::PrivateKey, signing},
    ids::{AgentId, IdSource as _, KeyId, SystemIds},
    time::Timestamp,
};
use baton_faces::http::{Grant, Grants, TokenDigest};
use serde::{Deserialize, Serialize};

use super::{super::Failure, files};

/// The names of lent keys begin with it.
const KEY_PREFIX: &str = "gateway.";
/// Tokens begin with it, so that a search for secrets finds them.
const TOKEN_PREFIX: &str = "baton_gw_";
/// The largest file of a grant, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// The name of a grant's file ends with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The gateway serves the token.
    Granted,
    /// The gateway refuses the token; the key may still be valid at the broker.
    Revoked,
}

impl State {
    const fn extension(self) -> &'static str {
        match self {
            Self::Granted => "json",
            Self::Revoked => "revoked",
        }
    }
}

/// A grant, as its file has it.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    identity: Identity,
    expire_time: Timestamp,
    token: TokenDigest,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    agent_id: String,
    key_id: String,
    /// The text of a PKCS#8 PEM file.
    private_key: String,
    /// RFC 3339.
    expire_time: String,
}

impl Stored {
    /// A grant with a fresh key and a fresh token, which is returned beside it.
    pub(super) fn draw(agent: &AgentId, expire_time: Timestamp) -> (Self, String) {
        let token = [SystemIds.random(), SystemIds.random()].concat();
        let token = format!("{TOKEN_PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(token));
        let key_id = format!("{KEY_PREFIX}{}", hex::encode(&SystemIds.random()[..8]));
        let key_id = KeyId::parse(&key_id).expect("a name of letters and digits");
        let identity = Identity { agent: agent.clone(), key_id, key: PrivateKey::generate(&SystemIds) };
        let digest = signing::sha256(&[token.as_bytes()]);
        (Self { identity, expire_time, token: digest }, token)
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity.clone()
    }

    pub(super) fn agent(&self) -> &str {
        self.identity.agent.as_str()
    }

    pub(super) fn key_id(&self) -> &str {
        self.identity.key_id.as_str()
    }

    pub(super) fn expire_time(&self) -> Timestamp {
        self.expire_time
    }

    fn parse(token: TokenDigest, text: &str) -> Result<Self, String> {
        let document: Document = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let agent = AgentId::parse(&document.agent_id).map_err(|error| format!("agent_id {error}"))?;
        let key_id = KeyId::parse(&document.key_id).map_err(|error| format!("key_id {error}"))?;
        let key = PrivateKey::from_pem(&document.private_key);
        let key = key.ok_or("private_key must be an ed25519 private key in PKCS#8 PEM")?;
        let time: Option<prost_types::Timestamp> = document.expire_time.parse().ok();
        let expire_time = time.and_then(|time| Timestamp::from_parts(time.seconds, time.nanos));
        let expire_time = expire_time.ok_or("expire_time must be a time of RFC 3339")?;
        Ok(Self { identity: Identity { agent, key_id, key }, expire_time, token })
    }
}

/// The folder of a gateway.
#[derive(Debug, Clone)]
pub(super) struct Folder(PathBuf);

/// The file of a grant.
#[derive(Debug)]
pub(super) struct GrantFile(PathBuf);

impl Folder {
    /// Opens the folder, and makes a missing one.
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        files::make_folder(path)?;
        Self::open(path)
    }

    /// Opens an existing folder. Fails if other users can read it.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        files::check_folder(path, "baton gateway grant")?;
        Ok(Self(path.to_owned()))
    }

    /// The place of what a gateway keeps beside the grants.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    fn file(&self, token: &TokenDigest, state: State) -> PathBuf {
        self.0.join(format!("{}.{}", hex::encode(token), state.extension()))
    }

    /// Writes a new grant.
    pub(super) fn add(&self, stored: &Stored) -> Result<GrantFile, Failure> {
        let file = self.file(&stored.token, State::Granted);
        let document = Document {
            agent_id: stored.agent().to_owned(),
            key_id: stored.key_id().to_owned(),
            private_key: stored.identity.key.to_pem().as_str().to_owned(),
            expire_time: stored.expire_time.to_string(),
        };
        let text = serde_json::to_string(&document).map_err(|error| Failure::failed(error.to_string()))?;
        files::write_new(&file, &text).map_err(|error| Failure::writing(&file, &error))?;
        Ok(GrantFile(file))
    }

    /// All grants, also the ended ones.
    pub(super) fn all(&self) -> Result<Vec<(Stored, State)>, Failure> {
        let mut all = Vec::new();
        for (token, state) in self.names().map_err(|error| Failure::file(&self.0, error))? {
            let path = self.file(&token, state);
            match read(&path) {
                Ok(Some(text)) => {
                    let stored = Stored::parse(token, &text);
                    all.push((stored.map_err(|problem| Failure::file(&path, problem))?, state));
                }
                // Another command has revoked it meanwhile.
                Ok(None) => {}
                Err(error) => return Err(Failure::file(&path, error)),
            }
        }
        Ok(all)
    }

    /// The grant with this key.
    pub(super) fn named(&self, key_id: &KeyId) -> Result<Option<(Stored, GrantFile)>, Failure> {
        let found = self.all()?.into_iter().find(|(stored, _)| stored.identity.key_id == *key_id);
        Ok(found.map(|(stored, state)| {
            let file = GrantFile(self.file(&stored.token, state));
            (stored, file)
        }))
    }

    /// For each agent the lent key with the latest end, of the grants that hold.
    pub(super) fn identities(&self, now: Timestamp) -> Result<HashMap<AgentId, Identity>, Failure> {
        let mut held: Vec<Stored> = Vec::new();
        for (stored, state) in self.all()? {
            if state == State::Granted && now < stored.expire_time {
                held.push(stored);
            }
        }
        // Of two entries for one agent the map keeps the last.
        held.sort_by_key(|stored| stored.expire_time);
        Ok(held.into_iter().map(|stored| (stored.identity.agent.clone(), stored.identity)).collect())
    }

    fn names(&self) -> io::Result<Vec<(TokenDigest, State)>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let name = entry?.file_name();
            let Some((digest, extension)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
            let state = [State::Granted, State::Revoked].into_iter().find(|state| state.extension() == extension);
            let digest: Option<TokenDigest> = hex::decode(digest).ok().and_then(|digest| digest.try_into().ok());
            // Files of others are left alone.
            names.extend(digest.zip(state));
        }
        Ok(names)
    }
}

impl GrantFile {
    /// Makes the gateway refuse the token.
    pub(super) fn mark_as_revoked(self) -> Result<Self, Failure> {
        let marked = self.0.with_extension(State::Revoked.extension());
        if marked != self.0 {
            fs::rename(&self.0, &marked).map_err(|error| Failure::writing(&self.0, &error))?;
        }
        Ok(Self(marked))
    }

    /// Removes the grant with its key.
    pub(super) fn remove(self) -> Result<(), Failure> {
        files::remove(&self.0).map(drop).map_err(|error| Failure::writing(&self.0, &error))
    }
}

/// The text of a grant's file; `None` without a file.
fn read(path: &Path) -> io::Result<Option<String>> {
    files::read(path, FILE_BYTES_MAX)
}

impl Grants for Folder {
    fn find<'a>(&'a self, token: &'a TokenDigest) -> Pin<Box<dyn Future<Output = Option<Grant>> + Send + 'a>> {
        Box::pin(async move {
            let (path, token) = (self.file(token, State::Granted), *token);
            let found = files::on_thread(move || {
                let text = read(&path).map_err(|error| error.to_string())?;
                text.map(|text| Stored::parse(token, &text)).transpose()
            });
            match found.await {
                Ok(found) => found.map(|stored| Grant { identity: stored.identity, expire_time: stored.expire_time }),
                Err(error) => {
                    tracing::error!(%error, file = %self.file(&token, State::Granted).display(), "a grant is not readable");
                    None
                }
            }
        })
    }

    fn all(&self) -> Pin<Box<dyn Future<Output = Option<HashSet<TokenDigest>>> + Send + '_>> {
        Box::pin(async move {
            let folder = self.clone();
            match files::on_thread(move || folder.names().map_err(|error| error.to_string())).await {
                Ok(names) => {
                    let granted = names.into_iter().filter(|(_, state)| *state == State::Granted);
                    Some(granted.map(|(token, _)| token).collect())
                }
                Err(error) => {
                    tracing::error!(%error, folder = %self.0.display(), "the grants are not readable");
                    None
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use baton_client::time::{Clock as _, SystemClock};

    use super::*;

    #[tokio::test]
    async fn a_grant_is_found_by_its_token_until_it_is_revoked() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("gateway");
        assert!(Folder::open(&path).unwrap_err().to_string().contains("baton gateway grant"));
        let folder = Folder::create(&path).unwrap();
        let agent = AgentId::parse("alice").unwrap();
        let (stored, token) = Stored::draw(&agent, SystemClock.now());
        folder.add(&stored).unwrap();
        let digest = signing::sha256(&[token.as_bytes()]);
        assert!(token.len() == TOKEN_PREFIX.len() + 43 && stored.key_id().starts_with("gateway."), "{token}");
        let found = folder.find(&digest).await.unwrap();
        assert_eq!((found.identity.agent.as_str(), found.expire_time), ("alice", stored.expire_time()));
        assert_eq!(found.identity.key.public(), stored.identity().key.public());
        assert_eq!(Grants::all(&folder).await, Some(HashSet::from([digest])));
        assert!(folder.find(&[7; 32]).await.is_none());

        let file = path.join(format!("{}.json", hex::encode(digest)));
        assert_eq!(
            (fs::metadata(&file).unwrap().mode() & 0o777, fs::metadata(&path).unwrap().mode() & 0o777),
            (0o600, 0o700)
        );
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains(&token), "the token itself is not stored");

        let (_, file) = folder.named(&stored.identity().key_id).unwrap().unwrap();
        let file = file.mark_as_revoked().unwrap();
        assert!(folder.find(&digest).await.is_none() && Grants::all(&folder).await.unwrap().is_empty());
        assert_eq!(folder.all().unwrap()[0].1, State::Revoked, "the command can go on");
        file.remove().unwrap();
        assert!(folder.all().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_damaged_grant_is_none_and_a_readable_folder_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder::create(&parent.path().join("gateway")).unwrap();
        fs::write(folder.file(&[7; 32], State::Granted), "{").unwrap();
        fs::write(folder.0.join("README"), "mine").unwrap();
        assert!(folder.find(&[7; 32]).await.is_none());
        assert_eq!(folder.all().unwrap_err().code, crate::exit::CONFIGURATION);
        fs::set_permissions(&folder.0, std::os::unix::fs::PermissionsExt::from_mode(0o750)).unwrap();
        let refused = Folder::open(&folder.0).unwrap_err();
        assert!(refused.to_string().contains("chmod 700"), "{refused}");
    }
}
