//! The values of the members in the register: the own one, the check of its name, and the trimming that they permit.
//!
//! A process takes its name by writing the member's value. A living process with the same name finds that at its next write,
//! and takes the name back: so the newer one learns that the name is in use, and ends. Meanwhile it claims no lease.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use baton_protocol::time::{Clock, Moment};
use baton_store::Replica;
use bytes::Bytes;
use tokio::{sync::watch, time::timeout};

use super::{CALL_MAX, Handle, Input};
use crate::{
    entry::{Chain, Position},
    figures::Figures,
    log::{Register, SharedLog, Unavailable, Version, WriteError},
    member::Config,
    member_value::{MemberValue, PREFIX, name_of},
    view::{Role, View},
};

/// The pause after a measure of the log, in parts of the time that it took: the engine has other work.
const MEASURE_PAUSE: u32 = 20;

/// The member's value.
pub(super) struct Names {
    register: Arc<dyn Register>,
    broker: String,
    process: Bytes,
    is_new: bool,
    /// The version that this process wrote last.
    version: Mutex<Option<Version>>,
    value: Mutex<MemberValue>,
}

/// What a member says of itself, beside its place in the log.
pub(super) struct About {
    pub(super) config: Config,
    pub(super) configuration: Bytes,
    pub(super) clock: Arc<dyn Clock>,
}

impl About {
    /// The value of a member with this role, whose tables have the log up to `chain`.
    pub(super) fn value(&self, role: Role, chain: Chain, flushed_upto: Position) -> MemberValue {
        let config = &self.config;
        MemberValue {
            broker: config.broker.clone(),
            process: config.process.clone(),
            peer_address: config.peer_address.clone(),
            version: config.version.clone(),
            level: config.expected.level.into(),
            role: role.name().into(),
            term: chain.term,
            position: chain.position,
            hash: Bytes::copy_from_slice(&chain.hash.0),
            flushed_upto,
            clock_ms: u64::try_from(self.clock.now().unix_milliseconds()).unwrap_or(0),
            configuration: self.configuration.clone(),
            forgotten: false,
        }
    }
}

/// What a write of the own value found.
#[derive(Debug, PartialEq, Eq)]
enum Written {
    Own,
    /// Another process had written it.
    Foreign,
}

impl Names {
    /// Takes the name of a member for the process of this value, which the register then has.
    pub(super) async fn take(value: MemberValue, register: Arc<dyn Register>) -> Result<Self, Unavailable> {
        let found = read(&*register, &value.broker).await?;
        let is_living = |found: &MemberValue| found.process != value.process && found.role != Role::Leaving.name();
        let is_new = found.as_ref().is_none_or(|(_, found)| found.as_ref().is_none_or(|found| !is_living(found)));
        let names = Self {
            register,
            broker: value.broker.clone(),
            process: value.process.clone(),
            is_new,
            version: Mutex::new(found.map(|(version, _)| version)),
            value: Mutex::new(value.clone()),
        };
        names.write(value).await?;
        Ok(names)
    }

    /// Whether no other process had the name, as far as its value says.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// The values of the other members.
    pub(super) async fn others(&self) -> Vec<MemberValue> {
        let values = all(&*self.register).await.unwrap_or_default();
        values.into_iter().map(|(_, value)| value).filter(|value| value.broker != self.broker).collect()
    }

    /// Says that this process has ended.
    pub(super) async fn leave(&self, view: &View, chain: Chain) {
        let value = MemberValue {
            role: Role::Leaving.name().into(),
            position: chain.position,
            hash: Bytes::copy_from_slice(&chain.hash.0),
            flushed_upto: view.flushed_upto,
            ..self.value.lock().expect("no holder panics").clone()
        };
        // Without it the next process with this name waits a little longer.
        drop(self.write_if_own(value).await);
    }

    /// Writes the value over the former one. The result says whose that was.
    async fn write(&self, value: MemberValue) -> Result<Written, Unavailable> {
        let (name, mut found) = (name_of(&self.broker), Written::Own);
        loop {
            let expected = self.version.lock().expect("no holder panics").clone();
            let call = self.register.write(&name, expected.as_ref(), value.to_bytes());
            match timeout(CALL_MAX, call).await {
                Ok(Ok(version)) => {
                    *self.version.lock().expect("no holder panics") = Some(version);
                    *self.value.lock().expect("no holder panics") = value;
                    return Ok(found);
                }
                Ok(Err(WriteError::Unknown(words))) => return Err(Unavailable(words)),
                Err(_) => return Err(Unavailable(super::late())),
                Ok(Err(WriteError::Changed)) => {
                    let present = read(&*self.register, &self.broker).await?;
                    let is_foreign =
                        |value: &Option<MemberValue>| value.as_ref().is_some_and(|value| value.process != self.process);
                    if present.as_ref().is_some_and(|(_, value)| is_foreign(value)) {
                        found = Written::Foreign;
                    }
                    *self.version.lock().expect("no holder panics") = present.map(|(version, _)| version);
                }
            }
        }
    }

    async fn write_if_own(&self, value: MemberValue) -> Result<(), WriteError> {
        let expected = self.version.lock().expect("no holder panics").clone();
        self.register.write(&name_of(&self.broker), expected.as_ref(), value.to_bytes()).await.map(drop)
    }

    /// Whether the value in the register is that of another process.
    async fn is_taken(&self) -> Result<bool, Unavailable> {
        let found = read(&*self.register, &self.broker).await?.and_then(|(_, value)| value);
        Ok(found.is_some_and(|value| value.process != self.process))
    }
}

/// The value of a member with its version; a damaged one is `None`.
async fn read(register: &dyn Register, broker: &str) -> Result<Option<(Version, Option<MemberValue>)>, Unavailable> {
    let read = timeout(CALL_MAX, register.read(&name_of(broker))).await;
    let found = read.unwrap_or_else(|_| Err(Unavailable(super::late())))?;
    Ok(found.map(|(version, value)| (version, MemberValue::parse(&value))))
}

/// The values of all members, each with its version.
async fn all(register: &dyn Register) -> Result<Vec<(Version, MemberValue)>, Unavailable> {
    let mut values = Vec::new();
    for name in register.names(PREFIX).await? {
        let found = register.read(&name).await?;
        values.extend(found.and_then(|(version, value)| Some((version, MemberValue::parse(&value)?))));
    }
    Ok(values)
}

/// Keeps the own value fresh, and trims the log while this broker leads.
pub(super) struct Keeper {
    pub(super) names: Arc<Names>,
    pub(super) about: About,
    pub(super) interval: Duration,
    pub(super) log_keep: Duration,
    pub(super) log_bytes_max: u64,
    pub(super) figures: Arc<Figures>,
    pub(super) began: Moment,
    pub(super) view: watch::Receiver<View>,
    pub(super) handle: Handle,
    pub(super) replica: Arc<Replica>,
    pub(super) log: Arc<dyn SharedLog>,
}

impl Keeper {
    pub(super) async fn run(self) {
        // A process that took the name of another looks twice as often whether that one lives.
        let mut is_established = self.names.is_new();
        let mut written_at = Duration::ZERO;
        let mut seen = Seen::default();
        loop {
            tokio::time::sleep(if is_established { self.interval } else { self.interval / 2 }).await;
            let now = self.began.elapsed();
            if !is_established {
                match self.names.is_taken().await {
                    Ok(true) => return self.give_up(),
                    // A claim may begin from here on.
                    Ok(false) => is_established = now >= self.interval * 2,
                    Err(error) => tracing::debug!(%error, "failed to read the value of this member"),
                }
                if !is_established {
                    continue;
                }
            }
            match self.names.write(self.value().await).await {
                Ok(Written::Own) => written_at = now,
                // The other process cannot know of this one, which was silent for long.
                Ok(Written::Foreign) if now > written_at + self.interval * 3 => return self.give_up(),
                Ok(Written::Foreign) => {
                    written_at = now;
                    tracing::error!(
                        broker = self.names.broker,
                        "another process was started with the name of this broker"
                    );
                }
                Err(error) => tracing::debug!(%error, "failed to write the value of this member"),
            }
            let leads = self.view.borrow().role == Role::Leading;
            if leads && let Err(error) = self.trim(&mut seen, now).await {
                tracing::warn!(%error, "failed to trim the shared log");
            }
        }
    }

    fn give_up(&self) {
        drop(self.handle.inputs.send(Input::NameInUse));
    }

    async fn value(&self) -> MemberValue {
        let chain = self.handle.chain().await.unwrap_or(Chain::EMPTY);
        let role = self.view.borrow().role;
        self.about.value(role, chain, self.replica.flushed_upto())
    }

    /// Lets the log drop what all members have on their disks, and above its bound what two of them have. A member that
    /// was silent for `log_keep` does not count.
    async fn trim(&self, seen: &mut Seen, now: Duration) -> Result<(), Unavailable> {
        let has = seen.checkpoints(all(&*self.names.register).await?, now, self.log_keep);
        self.trim_upto(seen, of_all(&has)).await?;
        if now < seen.measured_again_at {
            return Ok(());
        }
        let began = Moment::now();
        let bytes = self.log.size_bytes().await?;
        seen.measured_again_at = now + began.elapsed() * MEASURE_PAUSE;
        self.figures.log_has(bytes);
        let upto = of_two(&has);
        if bytes > self.log_bytes_max && upto > seen.trimmed {
            let behind: Vec<&str> = has.iter().filter(|has| has.1 < upto).map(|has| has.0.as_str()).collect();
            tracing::warn!(
                bytes,
                bytes_max = self.log_bytes_max,
                brokers = behind.join(", "),
                "the shared log is above its bound, and drops entries that these brokers lack: they receive a checkpoint"
            );
            self.trim_upto(seen, upto).await?;
        }
        Ok(())
    }

    async fn trim_upto(&self, seen: &mut Seen, upto: Position) -> Result<(), Unavailable> {
        if upto > seen.trimmed {
            self.log.trim(upto + 1).await?;
            seen.trimmed = upto;
        }
        Ok(())
    }
}

/// The name of a member, and the last entry that the checkpoint on its disk has.
type Has = (String, Position);

/// The last entry that every one of them has.
fn of_all(has: &[Has]) -> Position {
    has.iter().map(|has| has.1).min().unwrap_or(0)
}

/// The last entry that two of them have; 0 if there are no two.
fn of_two(has: &[Has]) -> Position {
    let mut positions: Vec<Position> = has.iter().map(|has| has.1).collect();
    positions.sort_unstable_by(|a, b| b.cmp(a));
    positions.get(1).copied().unwrap_or(0)
}

/// When each member was seen, by the clock of this process.
#[derive(Debug, Default)]
struct Seen {
    members: HashMap<String, (Version, Duration)>,
    trimmed: Position,
    /// The time of the next measure of the log.
    measured_again_at: Duration,
}

impl Seen {
    /// What each member has on its disk, of those seen in this time.
    fn checkpoints(&mut self, values: Vec<(Version, MemberValue)>, now: Duration, keep: Duration) -> Vec<Has> {
        let mut has = Vec::new();
        for (version, value) in values {
            let entry = self.members.entry(value.broker.clone()).or_insert_with(|| (version.clone(), now));
            if entry.0 != version {
                *entry = (version, now);
            }
            if !value.forgotten && now.saturating_sub(entry.1) <= keep {
                has.push((value.broker, value.flushed_upto));
            }
        }
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(broker: &str, flushed_upto: u64, forgotten: bool) -> MemberValue {
        MemberValue { broker: broker.into(), flushed_upto, forgotten, ..MemberValue::default() }
    }

    #[test]
    fn the_log_keeps_what_a_member_lacks_until_it_is_silent_for_long_or_forgotten() {
        let (keep, second) = (Duration::from_secs(60), Duration::from_secs(1));
        let values = |version: u64, forgotten| {
            vec![
                (Version(version.to_string()), value("b1", 90, false)),
                (Version("1".into()), value("b2", 40, forgotten)),
            ]
        };
        let mut seen = Seen::default();
        let upto = |seen: &mut Seen, values, now| of_all(&seen.checkpoints(values, now, keep));
        assert_eq!(upto(&mut seen, values(1, false), Duration::ZERO), 40);
        assert_eq!(upto(&mut seen, values(2, false), keep), 40);
        assert_eq!(upto(&mut seen, values(3, false), keep + second), 90, "b2 was silent for long");
        let mut back = values(4, false);
        back[1].0 = Version("2".into());
        assert_eq!(upto(&mut seen, back, keep + second * 2), 40, "it is back");
        assert_eq!(upto(&mut Seen::default(), values(1, true), Duration::ZERO), 90);
        assert_eq!(upto(&mut Seen::default(), Vec::new(), Duration::ZERO), 0);
    }

    #[test]
    fn above_its_bound_the_log_keeps_what_two_members_have() {
        let has = |positions: &[Position]| positions.iter().map(|has| ("b".into(), *has)).collect::<Vec<Has>>();
        assert_eq!(of_two(&has(&[10, 90, 60, 0])), 60);
        assert_eq!(of_two(&has(&[90, 90, 0])), 90);
        assert_eq!((of_two(&has(&[90, 0])), of_all(&has(&[90, 0]))), (0, 0), "two alone hold each other's");
        assert_eq!((of_two(&has(&[90])), of_two(&[])), (0, 0), "one alone is not two");
    }
}
