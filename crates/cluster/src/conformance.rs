//! What every engine of a shared log must do: the promises P1 to P5 of [`crate::log`], each a function.
//!
//! Owns the suite that the tests of each engine run, and that a command can run over the engine of an operator. Must not
//! know an engine.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll};

use async_trait::async_trait;
use bytes::Bytes;

use crate::log::{AppendError, Position, ReadError, Register, SharedLog, Version, WriteError};

/// A promise that an engine did not keep.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{law} does not hold: {found}")]
pub struct Violation {
    /// The promise: P1 to P5, or the part of the interface.
    pub law: &'static str,
    /// What the engine did.
    pub found: String,
}

/// Opens clients of an engine.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// A new client of the log with this name. A name that was never used has an empty log.
    async fn log(&self, name: &str) -> Arc<dyn SharedLog>;

    /// A new client of the register with this name. A name that was never used has no values.
    async fn register(&self, name: &str) -> Arc<dyn Register>;
}

type Outcome = Result<(), Violation>;

/// Racing clients.
const RACERS: usize = 8;
/// Entries that the racers bring in together.
const RACES: Position = 24;
/// Appends that are given up in the middle.
const GIVEN_UP: usize = 40;

fn hold(law: &'static str, holds: bool, found: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Violation { law, found: found() }) }
}

fn answered<T, E: std::fmt::Display>(law: &'static str, outcome: Result<T, E>) -> Result<T, Violation> {
    outcome.map_err(|error| Violation { law, found: error.to_string() })
}

/// All entries of a log from `from` on.
async fn all(law: &'static str, log: &dyn SharedLog, from: Position) -> Result<Vec<(Position, Bytes)>, Violation> {
    let mut found: Vec<(Position, Bytes)> = Vec::new();
    loop {
        let next = found.last().map_or(from, |(position, _)| position + 1);
        let more = answered(law, log.read(next, 64 * 1024).await)?;
        let Some((first, _)) = more.first() else { return Ok(found) };
        hold(law, *first == next, || format!("a read from {next} begins at {first}"))?;
        let has_gaps = more.windows(2).any(|pair| pair[0].0 + 1 != pair[1].0);
        hold(law, !has_gaps, || format!("a read from {next} has a gap"))?;
        found.extend(more);
    }
}

/// Appends until the outcome is known, as a leader does: the same bytes behind the same entry. `true`: the entry is in.
async fn settle(law: &'static str, log: &dyn SharedLog, after: Position, entry: &Bytes) -> Result<bool, Violation> {
    for _ in 0..100 {
        match log.append(after, entry.clone()).await {
            Ok(()) => return Ok(true),
            Err(AppendError::Unknown(_)) => {}
            Err(AppendError::Fenced) => {
                let found = answered(law, log.read(after + 1, 1).await)?;
                return Ok(found.first().is_some_and(|(_, found)| found == entry));
            }
            Err(error @ AppendError::TooLarge { .. }) => {
                return Err(Violation { law, found: error.to_string() });
            }
        }
    }
    Err(Violation { law, found: "an append has no known outcome after 100 trials".into() })
}

/// The whole suite of a log.
pub async fn check_log(fixture: &dyn Fixture) -> Outcome {
    interface(fixture).await?;
    sizes(fixture).await?;
    p1_one_successor(fixture).await?;
    p2_acknowledged_stays(fixture).await?;
    p3_nothing_before_is_missing(fixture).await?;
    p4_late_appends_are_fenced(fixture).await?;
    trimming(fixture).await
}

/// The whole suite of a register.
pub async fn check_register(fixture: &dyn Fixture) -> Outcome {
    values(fixture).await?;
    p5_one_writer(fixture).await
}

/// An empty log, an end, and reads by size.
pub async fn interface(fixture: &dyn Fixture) -> Outcome {
    const LAW: &str = "the interface of a log";
    let (log, other) = (fixture.log("interface").await, fixture.log("interface").await);
    let end = answered(LAW, log.end().await)?;
    hold(LAW, end == 0, || format!("a new log ends at {end}"))?;
    let found = answered(LAW, log.read(1, 1000).await)?;
    hold(LAW, found.is_empty(), || "a new log has entries".into())?;
    let ahead = log.append(1, Bytes::from_static(b"ahead")).await;
    hold(LAW, ahead == Err(AppendError::Fenced), || format!("an append behind the end: {ahead:?}"))?;
    for after in 0..5 {
        answered(LAW, log.append(after, Bytes::from(vec![b'a'; 100])).await)?;
        let end = answered(LAW, other.end().await)?;
        hold(LAW, end == after + 1, || format!("another client sees the end {end} after {}", after + 1))?;
    }
    let found = answered(LAW, other.read(2, 150).await)?;
    let positions: Vec<Position> = found.iter().map(|(position, _)| *position).collect();
    hold(LAW, positions.starts_with(&[2]) && positions.len() < 4, || format!("150 bytes from 2: {positions:?}"))?;
    let found = answered(LAW, other.read(5, 1).await)?.len();
    hold(LAW, found == 1, || format!("a read of one byte has {found} entries, and one was there"))?;
    let found = answered(LAW, other.read(6, 100).await)?.len();
    hold(LAW, found == 0, || format!("a read behind the end has {found} entries"))
}

/// Entries of 0 bytes to the limit, and one over it.
pub async fn sizes(fixture: &dyn Fixture) -> Outcome {
    const LAW: &str = "the sizes of entries";
    let log = fixture.log("sizes").await;
    let bytes_max = log.entry_bytes_max();
    hold(LAW, bytes_max >= 4 * 1024 * 1024, || format!("the limit is {bytes_max} bytes, below 4 MiB"))?;
    let made = |bytes: usize| -> Bytes { (0..bytes).map(|at| (at % 251) as u8).collect::<Vec<u8>>().into() };
    let sizes = [0, 16 * 1024, 4 * 1024 * 1024, bytes_max];
    for (after, bytes) in (0..).zip(sizes) {
        let inside = settle(LAW, &*log, after, &made(bytes)).await?;
        hold(LAW, inside, || format!("an entry of {bytes} bytes is not in the log"))?;
    }
    for (after, bytes) in (0..).zip(sizes) {
        let found = answered(LAW, log.read(after + 1, 1).await)?;
        hold(LAW, found.first() == Some(&(after + 1, made(bytes))), || format!("{bytes} bytes come back changed"))?;
    }
    let over = log.append(4, made(bytes_max + 1)).await;
    let refused = matches!(over, Err(AppendError::TooLarge { .. }));
    hold(LAW, refused, || format!("an entry over the limit: {:?}", over.err()))?;
    let end = answered(LAW, log.end().await)?;
    hold(LAW, end == 4, || format!("the log ends at {end} after a refused entry"))
}

/// P1: of two appends behind the same entry, at most one is ever in the log.
pub async fn p1_one_successor(fixture: &dyn Fixture) -> Outcome {
    const LAW: &str = "P1";
    let log = fixture.log("p1").await;
    let mut racers = Vec::new();
    for racer in 0..RACERS {
        let log = fixture.log("p1").await;
        racers.push(tokio::spawn(async move {
            let mut acknowledged = Vec::new();
            loop {
                let after = answered(LAW, log.end().await)?;
                if after >= RACES {
                    return Ok::<_, Violation>(acknowledged);
                }
                let entry = Bytes::from(format!("{racer} behind {after}"));
                match log.append(after, entry.clone()).await {
                    Ok(()) => acknowledged.push((after + 1, entry)),
                    Err(AppendError::Fenced) => {}
                    Err(error) => return Err(Violation { law: LAW, found: error.to_string() }),
                }
            }
        }));
    }
    let mut acknowledged = Vec::new();
    for racer in racers {
        acknowledged.extend(answered(LAW, racer.await)??);
    }
    acknowledged.sort();
    let found = all(LAW, &*log, 1).await?;
    hold(LAW, found == acknowledged, || {
        format!("{} appends were acknowledged, and the log has {} entries", acknowledged.len(), found.len())
    })
}

/// P2: an acknowledged append is never lost, and every later read has it.
pub async fn p2_acknowledged_stays(fixture: &dyn Fixture) -> Outcome {
    const LAW: &str = "P2";
    let log = fixture.log("p2").await;
    for after in 0..20 {
        let entry = Bytes::from(format!("entry {after}"));
        answered(LAW, log.append(after, entry.clone()).await)?;
        // Another append at its place changes nothing, also with other content.
        for again in [&entry, &Bytes::from_static(b"other")] {
            let outcome = log.append(after, again.clone()).await;
            hold(LAW, outcome == Err(AppendError::Fenced), || format!("a second append at its place: {outcome:?}"))?;
        }
        for reader in [log.clone(), fixture.log("p2").await] {
            let found = answered(LAW, reader.read(after + 1, 1).await)?;
            hold(LAW, found.first() == Some(&(after + 1, entry.clone())), || {
                format!("a read after the acknowledgement of {} has {found:?}", after + 1)
            })?;
        }
    }
    Ok(())
}

/// P3: when an append at `p` is acknowledged, all entries before `p` are there. That they are as durable cannot be seen from
/// outside: the test of an engine cuts its power or kills its server.
pub async fn p3_nothing_before_is_missing(fixture: &dyn Fixture) -> Outcome {
    const LAW: &str = "P3";
    let clients = [fixture.log("p3").await, fixture.log("p3").await];
    for after in 0..20 {
        let writer = &clients[usize::from(after % 2 == 1)];
        answered(LAW, writer.append(after, Bytes::from(format!("entry {after}"))).await)?;
        let found = all(LAW, &*fixture.log("p3").await, 1).await?;
        hold(LAW, found.len() as u64 == after + 1, || {
            format!("{} entries are there when {} is acknowledged", found.len(), after + 1)
        })?;
    }
    Ok(())
}

/// P4: an append with an unknown outcome cannot come into the log once another entry is at its position. Also that it can be
/// settled: the same bytes behind the same entry are in the log once.
pub async fn p4_late_appends_are_fenced(fixture: &dyn Fixture) -> Outcome {
    const LAW: &str = "P4";
    let log = fixture.log("p4").await;
    let mut expected = Vec::new();
    for round in 0..GIVEN_UP {
        let after = expected.len() as Position;
        let entry = Bytes::from(format!("given up in round {round}"));
        give_up(&*fixture.log("p4").await, after, &entry, round % 8).await;
        let other = Bytes::from(format!("other in round {round}"));
        // Once the one settles its append, once another client appends at its place.
        let wanted = if round % 2 == 0 { &entry } else { &other };
        let inside = settle(LAW, &*log, after, wanted).await?;
        hold(LAW, inside || round % 2 == 1, || format!("the same bytes are fenced by others in round {round}"))?;
        expected.push(if inside { wanted.clone() } else { entry });
    }
    // Whatever is still on its way has its chance before this.
    answered(LAW, log.end().await)?;
    let found: Vec<Bytes> = all(LAW, &*log, 1).await?.into_iter().map(|(_, entry)| entry).collect();
    hold(LAW, found == expected, || format!("the log has {found:?}, and settled was {expected:?}"))
}

/// Begins an append and drops it after this many polls.
async fn give_up(log: &dyn SharedLog, after: Position, entry: &Bytes, polls: usize) {
    let mut append = pin!(log.append(after, entry.clone()));
    for _ in 0..=polls {
        if poll_fn(|context| Poll::Ready(append.as_mut().poll(context).is_ready())).await {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Readers behind a trim are told so, and an append goes on.
pub async fn trimming(fixture: &dyn Fixture) -> Outcome {
    const LAW: &str = "trimming";
    let log = fixture.log("trim").await;
    for after in 0..10 {
        answered(LAW, log.append(after, Bytes::from(format!("entry {after}"))).await)?;
    }
    let size = async || answered(LAW, log.size_bytes().await);
    // Ten entries of seven bytes each.
    let before = size().await?;
    hold(LAW, before == 70, || format!("the log says that 70 bytes are {before}"))?;
    answered(LAW, log.trim(6).await)?;
    let after = size().await?;
    hold(LAW, (35..=70).contains(&after), || {
        format!("the log says that the 35 bytes of the kept entries are {after}")
    })?;
    let behind = log.read(1, 1).await;
    hold(LAW, matches!(behind, Err(ReadError::Trimmed { first: 1..=6 }) | Ok(_)), || format!("{behind:?}"))?;
    let kept = all(LAW, &*log, 6).await?;
    hold(LAW, kept.len() == 5, || format!("{} of the five kept entries are there", kept.len()))?;
    // More than is there: the last entry stays, because the next append is behind it.
    answered(LAW, log.trim(100).await)?;
    let last = answered(LAW, log.read(10, 1).await)?.len();
    hold(LAW, last == 1, || "the last entry was trimmed".into())?;
    for after in [0, 3, 9] {
        let outcome = log.append(after, Bytes::from_static(b"late")).await;
        hold(LAW, outcome == Err(AppendError::Fenced), || format!("an append behind trimmed {after}: {outcome:?}"))?;
    }
    answered(LAW, log.append(10, Bytes::from_static(b"next")).await)?;
    let end = answered(LAW, fixture.log("trim").await.end().await)?;
    hold(LAW, end == 11, || format!("the log ends at {end}, and 11 was appended"))
}

/// Values, versions and names.
pub async fn values(fixture: &dyn Fixture) -> Outcome {
    const LAW: &str = "the interface of a register";
    let (register, other) = (fixture.register("values").await, fixture.register("values").await);
    let none = answered(LAW, register.read("leader").await)?;
    hold(LAW, none.is_none(), || format!("a new register has {none:?}"))?;
    let foreign = Version("no version".into());
    let early = register.write("leader", Some(&foreign), Bytes::from_static(b"early")).await;
    hold(LAW, early == Err(WriteError::Changed), || format!("a write over nothing: {early:?}"))?;
    let mut version = None;
    let mut versions = Vec::new();
    for round in 0..20 {
        let value = Bytes::from(format!("value {round}"));
        let next = answered(LAW, register.write("leader", version.as_ref(), value.clone()).await)?;
        hold(LAW, !versions.contains(&next), || format!("version {next:?} comes a second time"))?;
        let found = answered(LAW, other.read("leader").await)?;
        hold(LAW, found == Some((next.clone(), value)), || format!("a read after {next:?}: {found:?}"))?;
        for old in [None, version.as_ref()] {
            let late = register.write("leader", old, Bytes::from_static(b"late")).await;
            hold(LAW, late == Err(WriteError::Changed), || format!("a write over {old:?}: {late:?}"))?;
        }
        versions.push(next.clone());
        version = Some(next);
    }
    for name in ["member/b2", "member/b1", "members"] {
        answered(LAW, register.write(name, None, Bytes::from_static(b"here")).await)?;
    }
    let names = answered(LAW, other.names("member/").await)?;
    hold(LAW, names == ["member/b1", "member/b2"], || format!("the names of members: {names:?}"))
}

/// P5: of two writes of a register with the same expected version, at most one succeeds.
pub async fn p5_one_writer(fixture: &dyn Fixture) -> Outcome {
    const LAW: &str = "P5";
    let mut racers = Vec::new();
    for racer in 0..RACERS {
        let register = fixture.register("p5").await;
        racers.push(tokio::spawn(async move {
            let mut won = Vec::new();
            while won.len() < 3 {
                let present = answered(LAW, register.read("leader").await)?.map(|(version, _)| version);
                match register.write("leader", present.as_ref(), Bytes::from(format!("{racer}"))).await {
                    Ok(version) => won.push((present, version)),
                    Err(WriteError::Changed) => {}
                    Err(error) => return Err(Violation { law: LAW, found: error.to_string() }),
                }
            }
            Ok::<_, Violation>(won)
        }));
    }
    let mut won = Vec::new();
    for racer in racers {
        won.extend(answered(LAW, racer.await)??);
    }
    // The writes are one chain: each version was replaced by one.
    let mut last = None;
    for _ in 0..won.len() {
        let mut followers = won.iter().filter(|(before, _)| *before == last);
        let next = followers.next().map(|(_, version)| version.clone());
        hold(LAW, next.is_some() && followers.next().is_none(), || format!("{last:?} was replaced by two or none"))?;
        last = next;
    }
    Ok(())
}
