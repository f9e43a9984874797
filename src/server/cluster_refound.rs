//! A new shared log begins behind what one broker of a cluster has, because the former log is lost or went back, or because the
//! cluster gets new keys.
//!
//! Owns the comparison of what the former log, this broker and the others have, and the order of the steps: the tables take what the
//! former log still has, the store notes the first entry of the new log, the log gets it, and the store becomes one of the new
//! cluster. An interrupted call goes on with the next one. The new cluster has a name, and so an id, of its own: a broker with the former
//! store cannot take part in it, and changes nothing in it. Must not know how an entry or a table is kept.

use std::{ops::RangeInclusive, path::PathBuf};

use baton_cluster::{
    driver::{chain_of, mark_of},
    entry::{Chain, Expected, Payload, Position},
    log::{ReadError, SharedLog},
    member_value::MemberValue,
    settings::{ClusterSettings, NAME_LENGTH_MAX, is_name},
    view::Role,
};
use baton_peers::tls::{PeerTls, PeerTlsError};
use baton_store::{ApplyError, Replica};

use super::{
    cluster_init::{InitError, blocking, first_entry, ids_of, make_first},
    clustered::expected_of,
    folder::SharedKeys,
    members::{Member, members},
};
use crate::{
    config::Config,
    store::{Founding, OpenError},
};

/// The bytes of one read of the former log.
const READ_BYTES: usize = 4 * 1024 * 1024;

/// What an operator wants.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The broker whose folder has the highest entry.
    pub from: String,
    /// The name of the cluster with the new log.
    pub name: String,
    /// The folder of the keys of the new log, which are others than those of the former. `None`: it keeps the keys.
    pub new_keys: Option<PathBuf>,
    /// Whether entries may be given up that are known to have been in the former log, and that this broker lacks.
    pub accepts_loss: bool,
    /// Whether only to look.
    pub is_dry: bool,
}

/// What was found, and is in the new log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refounded {
    /// The last entry of the former log that the store has. `None`: an earlier call has looked, and this one finished it.
    pub position: Option<Position>,
    /// The entries that were in the former log, as far as is known, and that the store lacks.
    pub missing: Option<RangeInclusive<Position>>,
    /// The other brokers of the former register, and the last entry that each has written to have.
    pub others: Vec<(String, Position)>,
}

/// The reason why no new log begins.
#[derive(Debug, thiserror::Error)]
pub enum RefoundError {
    /// The configuration is that of another broker.
    #[error(
        "the configuration is that of broker {found:?}: run the command on the machine of {wanted:?}, with its configuration"
    )]
    OtherBroker {
        /// The broker of the configuration.
        found: String,
        /// The broker of `--from`.
        wanted: String,
    },
    /// The new log cannot have this name.
    #[error(
        "the cluster with the new log needs a name of its own, with --name: {0:?} is that of the log that is lost, which tells the \
         brokers that have its folders from those that have the new one"
    )]
    SameName(String),
    /// The new keys are those of the former log.
    #[error("the keys in {} are those that the cluster has: make others with `baton cluster keys --in-place-of`", .0.display())]
    SameKeys(PathBuf),
    /// With the new keys the brokers would look for the blobs elsewhere.
    #[error(
        "with the keys in {} the brokers would not find the blobs in the bucket: make the keys with `baton cluster keys --in-place-of {} \
         --out FOLDER`",
        new.display(), former.display()
    )]
    BlobsElsewhere {
        /// The folder of the new keys.
        new: PathBuf,
        /// The folder of the former keys.
        former: PathBuf,
    },
    /// The name is none.
    #[error(
        "{0:?} is no name of a cluster: it has 1 to {NAME_LENGTH_MAX} letters, digits, '.', '_' or '-', and begins with a letter or digit"
    )]
    NoName(String),
    /// Another broker of the cluster runs.
    #[error(
        "broker {broker} answers at {address}, is {role}, and has the entries up to {position}: {}",
        if *leads { "the shared log is not lost. Start this broker, and it follows" } else { "stop it first, and all others" }
    )]
    Runs {
        /// The name of the broker.
        broker: String,
        /// Its address.
        address: String,
        /// The name of its role.
        role: String,
        /// The last entry that it has.
        position: Position,
        /// Whether it leads.
        leads: bool,
    },
    /// Another broker has more.
    #[error(
        "broker {broker} had the entries up to {position}, as it wrote last, and this one has them up to {end}: run the command on the \
         machine of {broker}, with --from {broker}. If its disk is lost, run `baton cluster forget {broker}` first"
    )]
    Ahead {
        /// The name of the broker.
        broker: String,
        /// The last entry that it had.
        position: Position,
        /// The last entry that this broker has.
        end: Position,
    },
    /// The former log has all.
    #[error(
        "the shared log of {name} has all that is known to have been in it, up to entry {end}: nothing is lost, and nothing was \
         changed. Start the brokers"
    )]
    Whole {
        /// The name of the cluster.
        name: String,
        /// The end of the log.
        end: Position,
    },
    /// The former log goes on with other entries than this broker had.
    #[error(
        "the shared log has another entry at {position} than this broker had: another broker has led since. Begin the new log from \
         that one, or move the folder `store` of this broker away, so that it receives the state of another one"
    )]
    OtherEntry {
        /// The position of the entry.
        position: Position,
    },
    /// Entries are known to be missing.
    #[error(
        "the entries {} to {} of the former log are missing: this broker lacks them, and so does the log. Agents may have receipts for \
         what was in them. Look for a server of the log, or a disk of a broker, that has them; or go on without them, with --accept-loss",
        .0.start(), .0.end()
    )]
    Missing(RangeInclusive<Position>),
    /// The store has nothing.
    #[error("this broker has no entry of the shared log on its disk: no log can begin with what it has")]
    Nothing,
    /// An entry cannot be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The former log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The certificate of the brokers cannot be used.
    #[error(transparent)]
    PeerTls(#[from] PeerTlsError),
    /// The store cannot become the first one of the cluster.
    #[error(transparent)]
    Init(#[from] InitError),
}

impl From<OpenError> for RefoundError {
    fn from(error: OpenError) -> Self {
        Self::Init(error.into())
    }
}

/// Begins the log of the cluster `wanted.name` behind what the broker in `config.data`, which does not run, has.
pub async fn refound(config: &Config, settings: &ClusterSettings, wanted: &Wanted) -> Result<Refounded, RefoundError> {
    if settings.broker != wanted.from {
        return Err(RefoundError::OtherBroker { found: settings.broker.clone(), wanted: wanted.from.clone() });
    }
    if settings.name == wanted.name {
        return Err(RefoundError::SameName(wanted.name.clone()));
    }
    if !is_name(&wanted.name) {
        return Err(RefoundError::NoName(wanted.name.clone()));
    }
    let (data, store) = (&config.data, config.data.join("store"));
    if !store.join("FORMAT").exists() {
        return Err(InitError::NoStore(data.clone()).into());
    }
    let keys = SharedKeys::read(&settings.keys).map_err(InitError::from)?;
    let new_keys = new_keys(settings, &keys, wanted)?;
    let renewed = ClusterSettings { name: wanted.name.clone(), ..settings.clone() };
    let (former, former_id) = expected_of(settings, &keys.identity);
    let (expected, id) = expected_of(&renewed, &new_keys.as_ref().unwrap_or(&keys).identity);
    let folder = store.clone();
    let (founding, found) = match blocking(move || Founding::cut_off(&folder)).await?? {
        Some(founding) => (founding, Refounded::default()),
        None => {
            let folder = store.clone();
            let replica = match blocking(move || Replica::open(&folder, &former_id)).await? {
                Ok(replica) => replica,
                // An earlier call was cut off after its last step.
                Err(OpenError::OtherCluster { found, .. }) if found == hex::encode(id) => {
                    return Ok(Refounded::default());
                }
                Err(error) => return Err(error.into()),
            };
            let found = look(settings, &former, &replica, new_keys.is_some()).await?;
            if let (Some(missing), false) = (&found.missing, wanted.accepts_loss || wanted.is_dry) {
                return Err(RefoundError::Missing(missing.clone()));
            }
            if wanted.is_dry {
                return Ok(found);
            }
            // Before the store notes anything.
            let entry = first_entry(&renewed, &expected).await?;
            (blocking(move || Founding::begin_again(replica, || entry)).await??, found)
        }
    };
    make_first(&renewed, &expected, &id, founding).await?;
    Ok(found)
}

/// The keys of the new log, if they are others.
fn new_keys(
    settings: &ClusterSettings,
    former: &SharedKeys,
    wanted: &Wanted,
) -> Result<Option<SharedKeys>, RefoundError> {
    let Some(folder) = &wanted.new_keys else { return Ok(None) };
    let keys = SharedKeys::read(folder).map_err(InitError::from)?;
    PeerTls::load(folder)?;
    if ids_of(&keys.identity) == ids_of(&former.identity) {
        return Err(RefoundError::SameKeys(folder.clone()));
    }
    if keys.blobs != former.blobs {
        return Err(RefoundError::BlobsElsewhere { new: folder.clone(), former: settings.keys.clone() });
    }
    Ok(Some(keys))
}

/// Brings the tables to the end of what the former log has, and compares them with what the other brokers had. `may_be_whole`: the
/// former log may have all.
async fn look(
    settings: &ClusterSettings,
    expected: &Expected,
    replica: &Replica,
    may_be_whole: bool,
) -> Result<Refounded, RefoundError> {
    let tls = PeerTls::load(&settings.keys)?;
    let engine = settings.log.open(&settings.name).await.map_err(InitError::from)?;
    let members = members(&*engine.register, &tls).await.map_err(InitError::from)?;
    let (own, others): (Vec<Member>, Vec<Member>) =
        members.into_iter().partition(|member| member.written.broker == settings.broker);
    if let Some(runs) = others.iter().find_map(running) {
        return Err(runs);
    }
    let log_end = read_on(&*engine.log, expected, replica).await?;
    let (end, mark) = (replica.end().position, replica.known().position);
    let written = own.iter().chain(&others).map(|member| member.written.position);
    // What one of them says that it had. The mark in the folder may be older after a power cut.
    let known = written.fold(mark, Position::max);
    if log_end == Some(end) && known <= end && !may_be_whole {
        return Err(RefoundError::Whole { name: settings.name.clone(), end });
    }
    let written = others.iter().map(|member| &member.written).filter(|written| !written.forgotten);
    if let Some(MemberValue { broker, position, .. }) =
        written.filter(|written| written.position > end).max_by_key(|written| written.position)
    {
        return Err(RefoundError::Ahead { broker: broker.clone(), position: *position, end });
    }
    if end == 0 {
        return Err(RefoundError::Nothing);
    }
    let upto = known.max(log_end.unwrap_or(0));
    Ok(Refounded {
        position: Some(end),
        missing: (upto > end).then_some(end + 1..=upto),
        others: others.into_iter().map(|member| (member.written.broker, member.written.position)).collect(),
    })
}

fn running(member: &Member) -> Option<RefoundError> {
    let answer = member.answer.as_ref().ok()?;
    Some(RefoundError::Runs {
        broker: answer.broker.clone(),
        address: member.written.peer_address.clone(),
        role: answer.role.clone(),
        position: answer.position,
        leads: Role::named(&answer.role).is_some_and(Role::serves_clients),
    })
}

/// Applies the entries that the former log has behind the tables. Returns the log's end; `None` if it is not one of this chain.
async fn read_on(
    log: &dyn SharedLog,
    expected: &Expected,
    replica: &Replica,
) -> Result<Option<Position>, RefoundError> {
    let known = chain_of(replica.known());
    let mut chain = chain_of(replica.end());
    if chain.position > 0 {
        match log.read(chain.position, 1).await {
            Ok(entries) => match entries.first() {
                Some((_, own)) if expected.key.hash(own) == chain.hash => {}
                // It ends before, or has another entry.
                _ => return Ok(None),
            },
            // The next entry has the hash of this one.
            Err(ReadError::Trimmed { .. }) => {}
            Err(ReadError::Damaged(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    loop {
        let entries = match log.read(chain.position + 1, READ_BYTES).await {
            Ok(entries) if entries.is_empty() => return Ok(Some(chain.position)),
            Ok(entries) => entries,
            // The log begins behind the tables: they never had what is in between.
            Err(ReadError::Trimmed { .. }) => return Ok(Some(log.end().await.map_err(InitError::from)?)),
            Err(ReadError::Damaged(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        for (_, bytes) in entries {
            let mut next: Chain = chain;
            let Ok(entry) = next.follow(&bytes, expected) else { return Ok(None) };
            if next.position == known.position && next.hash != known.hash {
                return Err(RefoundError::OtherEntry { position: next.position });
            }
            let group = match &entry.payload {
                Payload::Group(group) => Some(group.as_ref()),
                Payload::Takeover(_) | Payload::Foundation(_) | Payload::Confirmation => None,
            };
            replica.apply(mark_of(next), group)?;
            chain = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use baton_cluster::entry::{EntryError, Takeover};
    use bytes::Bytes;

    use super::*;
    use crate::{
        config::Overrides,
        ids::SystemIds,
        server::cluster_keys::{self, Origin},
    };

    /// A broker whose store has the only entry of a log that is lost.
    fn whose_log_is_lost(folder: &Path) -> (Config, ClusterSettings) {
        let keys = folder.join("keys");
        cluster_keys::make(&keys, Origin::New, &SystemIds).unwrap();
        let (path, log) = (folder.join("baton.toml"), folder.join("log"));
        let text = format!(
            "data = {:?}\n[tls]\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n[cluster]\nname = \"former\"\nbroker = \"b1\"\n\
             log = \"file://{}\"\nkeys = {keys:?}\npeer_listen = \"127.0.0.1:1\"\npeer_address = \"127.0.0.1:1\"\n",
            folder.join("data"),
            log.display(),
        );
        std::fs::write(&path, text).unwrap();
        let mut config = Config::read(&path, &Overrides::default()).unwrap();
        let settings = config.cluster.take().unwrap();
        let (expected, id) = expected_of(&settings, &SharedKeys::read(&keys).unwrap().identity);
        let takeover = Payload::Takeover(Takeover {
            cluster: expected.cluster.clone(),
            broker: "b1".into(),
            process: Bytes::from_static(&[1; 16]),
            keys: expected.keys.clone(),
            ..Takeover::default()
        });
        let mut chain = Chain::EMPTY;
        chain.follow(&Chain::EMPTY.next(&takeover, &expected, 4096).unwrap(), &expected).unwrap();
        let replica = Replica::open(&config.data.join("store"), &id).unwrap();
        replica.apply(mark_of(chain), None).unwrap();
        replica.write_out().unwrap();
        (config, settings)
    }

    fn wanted(name: &str) -> Wanted {
        Wanted { from: "b1".into(), name: name.into(), new_keys: None, accepts_loss: false, is_dry: false }
    }

    #[tokio::test]
    async fn a_call_that_was_cut_off_goes_on_with_its_entry_and_its_name() {
        for is_appended in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let (config, settings) = whose_log_is_lost(folder.path());
            let renewed = ClusterSettings { name: "renewed".into(), ..settings.clone() };
            let identity = SharedKeys::read(&settings.keys).unwrap().identity;
            let ((_, former_id), (expected, id)) =
                (expected_of(&settings, &identity), expected_of(&renewed, &identity));
            let store = config.data.join("store");
            let (entry, replica) =
                (first_entry(&renewed, &expected).await.unwrap(), Replica::open(&store, &former_id).unwrap());
            drop(Founding::begin_again(replica, || entry.clone()).unwrap());
            let log = async |name: &str| settings.log.open(name).await.unwrap().log;
            if is_appended {
                log("renewed").await.append(0, entry.clone()).await.unwrap();
            }
            let error = refound(&config, &settings, &wanted("third")).await.unwrap_err();
            let is_foreign = matches!(
                error,
                RefoundError::Init(InitError::Entry(EntryError::ForeignCluster { .. } | EntryError::Chain { .. }))
            );
            assert!(is_foreign, "{error}");
            assert_eq!(log("third").await.end().await, Ok(0), "nothing of one cluster comes into the log of another");
            for _ in 0..2 {
                let found = refound(&config, &settings, &wanted("renewed")).await.unwrap();
                assert_eq!(found, Refounded::default(), "there is no second look");
            }
            assert_eq!(log("renewed").await.read(1, usize::MAX).await, Ok(vec![(1, entry)]));
            assert_eq!(Replica::open(&store, &id).unwrap().end().position, 1);
        }
    }

    #[tokio::test]
    async fn new_keys_are_others_and_keep_the_place_of_the_blobs() {
        let folder = tempfile::tempdir().unwrap();
        let (config, settings) = whose_log_is_lost(folder.path());
        let with = |keys: &Path| Wanted { new_keys: Some(keys.into()), ..wanted("renewed") };
        let error = refound(&config, &settings, &with(&settings.keys)).await.unwrap_err();
        assert!(matches!(error, RefoundError::SameKeys(_)), "{error}");
        let (foreign, new) = (folder.path().join("foreign"), folder.path().join("new"));
        cluster_keys::make(&foreign, Origin::New, &SystemIds).unwrap();
        let error = refound(&config, &settings, &with(&foreign)).await.unwrap_err();
        assert!(matches!(error, RefoundError::BlobsElsewhere { .. }), "{error}");
        cluster_keys::make(&new, Origin::InPlaceOf(&settings.keys), &SystemIds).unwrap();
        for expected in [Some(1), None] {
            let found = refound(&config, &settings, &with(&new)).await.unwrap();
            assert_eq!(found.position, expected, "a second call has nothing to do");
        }
        // The store is one of the new keys alone.
        let renewed = ClusterSettings { name: "renewed".into(), ..settings.clone() };
        let id_with = |keys: &Path| expected_of(&renewed, &SharedKeys::read(keys).unwrap().identity).1;
        let store = config.data.join("store");
        let refused = Replica::open(&store, &id_with(&settings.keys)).err();
        assert!(matches!(refused, Some(OpenError::OtherCluster { .. })), "{refused:?}");
        assert_eq!(Replica::open(&store, &id_with(&new)).unwrap().end().position, 1);
    }

    #[tokio::test]
    async fn a_log_with_entries_of_others_takes_none_and_the_store_stays_in_its_cluster() {
        let folder = tempfile::tempdir().unwrap();
        let (config, settings) = whose_log_is_lost(folder.path());
        let log = settings.log.open("renewed").await.unwrap().log;
        log.append(0, Bytes::from_static(b"of others")).await.unwrap();
        let error = refound(&config, &settings, &wanted("renewed")).await.unwrap_err();
        assert!(matches!(error, RefoundError::Init(InitError::NotEmpty { .. })), "{error}");
        let found = refound(&config, &settings, &wanted("another")).await.unwrap();
        assert_eq!(found, Refounded { position: Some(1), ..Refounded::default() });
    }
}
