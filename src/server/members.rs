//! The brokers of a cluster as a person sees them: what the register has of each, and what each answers now.
//!
//! `baton cluster status` and the console show it. Must not know either.

use std::{sync::Arc, time::Duration};

use baton_cluster::{
    driver::ADVICE_DIVERGED,
    log::{Register, Settings, Unavailable},
    member_value::{self, MemberValue},
    requests::RequestCount,
    settings::{ClusterSettings, Engine},
    view::Role,
};
use baton_peers::{client, proto::GetStatusResponse, tls::PeerTls};
use tokio::sync::Mutex;

use crate::{
    time::{Clock as _, SystemClock, Timestamp},
    wire::console::cluster::{BrokerShown, ClusterShown},
};

/// A member: its value in the register, and its present answer.
pub(crate) struct Member {
    /// What it has written last.
    pub(crate) written: MemberValue,
    /// What it answers, or why it does not.
    pub(crate) answer: Result<GetStatusResponse, String>,
    /// By how much its clock is ahead of this machine's, in milliseconds. Only of one that answers.
    pub(crate) clock_ahead_ms: i64,
}

impl Member {
    /// The name of its role; "gone" of one that does not answer.
    pub(crate) fn role(&self) -> &str {
        match &self.answer {
            Ok(answer) => &answer.role,
            Err(_) if self.written.forgotten => "forgotten",
            Err(_) => "gone",
        }
    }

    /// The last entry that its tables have, as far as is known.
    pub(crate) fn position(&self) -> u64 {
        self.answer.as_ref().map_or(self.written.position, |answer| answer.position)
    }

    /// The last entry that the checkpoint on its disk has, as far as is known.
    pub(crate) fn flushed_upto(&self) -> u64 {
        self.answer.as_ref().map_or(self.written.flushed_upto, |answer| answer.flushed_upto)
    }

    /// The number of takeovers that it has applied, as far as is known.
    pub(crate) fn term(&self) -> u64 {
        self.answer.as_ref().map_or(self.written.term, |answer| answer.term)
    }

    /// Its requests to the bucket of the shared log. `None`: it does not answer, or the engine is another.
    pub(crate) fn requests(&self) -> Option<RequestCount> {
        let requests = self.answer.as_ref().ok()?.log_requests?;
        let time = Duration::from_millis(requests.time_ms);
        Some(RequestCount { writes: requests.writes, reads: requests.reads, time })
    }

    /// Whether it says that it and the shared log differ.
    pub(crate) fn has_diverged(&self) -> bool {
        self.answer.as_ref().is_ok_and(|answer| Role::named(&answer.role) == Some(Role::Diverged))
    }

    /// Whether it says that it leads.
    pub(crate) fn leads(&self) -> bool {
        self.answer.as_ref().is_ok_and(|answer| Role::named(&answer.role) == Some(Role::Leading))
    }
}

/// All members of the register, in the order of their names. They are asked at the same time: four seconds at most.
///
/// # Errors
///
/// The register does not answer.
pub(crate) async fn members(register: &dyn Register, tls: &PeerTls) -> Result<Vec<Member>, Unavailable> {
    let mut asked = tokio::task::JoinSet::new();
    for name in register.names(member_value::PREFIX).await? {
        let Some((_, value)) = register.read(&name).await? else { continue };
        let Some(written) = MemberValue::parse(&value) else { continue };
        let tls = tls.clone();
        asked.spawn(async move {
            let answer = client::status(&written.peer_address, &tls).await;
            let now = SystemClock.now().unix_milliseconds();
            let answer = match answer {
                // Another broker may have got its address since.
                Ok(answer) if answer.broker != written.broker => {
                    Err(format!("broker {} is at its address", answer.broker))
                }
                Ok(answer) => Ok(answer),
                Err(error) => Err(error.to_string()),
            };
            let clock = answer.as_ref().map_or(now, |answer| i64::try_from(answer.clock_ms).unwrap_or(now));
            Member { written, answer, clock_ahead_ms: clock - now }
        });
    }
    let mut members = asked.join_all().await;
    members.sort_by(|a, b| a.written.broker.cmp(&b.written.broker));
    Ok(members)
}

/// That the shared log has more bytes than it should, in words for an operator.
pub(crate) fn above_bound(settings: &ClusterSettings, bytes: u64) -> Option<String> {
    let bytes_max = settings.log_bytes_max;
    (bytes > bytes_max).then(|| {
        format!(
            "the log has {bytes} bytes, above cluster.log_bytes_max ({bytes_max}): it keeps only what two brokers have not on \
             their disks; look which broker is behind, and `baton cluster forget` one that is gone"
        )
    })
}

/// Why no broker leads, in words for an operator.
pub(crate) fn why_nobody_leads(members: &[Member]) -> String {
    let told = members.iter().filter_map(|member| {
        let answer = member.answer.as_ref().ok()?;
        (!answer.why_nobody_leads.is_empty()).then(|| format!("{}: {}", answer.broker, answer.why_nobody_leads))
    });
    let told: Vec<String> = told.collect();
    match members.iter().any(|member| member.answer.is_ok()) {
        false => "no broker answers".to_owned(),
        true if told.is_empty() => "a takeover is under way".to_owned(),
        true => told.join("; "),
    }
}

/// The members whose configuration differs from that of the leader, or from that of the first member where none leads.
pub(crate) fn has_other_configuration(members: &[Member], member: &Member) -> bool {
    let model = members.iter().find(|member| member.leads()).or(members.first());
    model.is_some_and(|model| {
        let model = &model.written.configuration;
        !model.is_empty() && member.written.configuration != *model
    })
}

/// The cluster for the pages of the console. Keeps its connection to the shared log, and opens it when it is first asked.
pub(super) struct Look {
    settings: ClusterSettings,
    tls: PeerTls,
    engine: Mutex<Option<Arc<Engine>>>,
}

impl Look {
    pub(super) fn new(settings: ClusterSettings, tls: PeerTls) -> Self {
        Self { settings, tls, engine: Mutex::new(None) }
    }

    /// The present state, or why the shared log does not tell it.
    pub(super) async fn now(&self) -> Result<ClusterShown, String> {
        let shown = self.read().await;
        if shown.is_err() {
            // The next page tries a connection of its own.
            *self.engine.lock().await = None;
        }
        shown.map_err(|error| error.to_string())
    }

    async fn read(&self) -> Result<ClusterShown, Unavailable> {
        let engine = self.engine().await?;
        let end = engine.log.end().await?;
        let Settings { unsafe_ones, warnings } = engine.log.settings().await?;
        let above = above_bound(&self.settings, engine.log.size_bytes().await?);
        let members = members(&*engine.register, &self.tls).await?;
        let leader = members.iter().find(|member| member.leads());
        Ok(ClusterShown {
            name: self.settings.name.clone(),
            log: self.settings.log.to_string(),
            end,
            leader: leader.map(|member| member.written.broker.clone()).unwrap_or_default(),
            term: leader.map_or(0, Member::term),
            why_nobody_leads: if leader.is_none() { why_nobody_leads(&members) } else { String::new() },
            problems: unsafe_ones.into_iter().chain(warnings).chain(above).collect(),
            advice: members.iter().any(Member::has_diverged).then_some(ADVICE_DIVERGED),
            brokers: members
                .iter()
                .map(|member| shown(member, end, has_other_configuration(&members, member)))
                .collect(),
        })
    }

    async fn engine(&self) -> Result<Arc<Engine>, Unavailable> {
        let mut kept = self.engine.lock().await;
        if let Some(engine) = &*kept {
            return Ok(engine.clone());
        }
        let opened = Arc::new(self.settings.log.open(&self.settings.name).await?);
        *kept = Some(opened.clone());
        Ok(opened)
    }
}

fn shown(member: &Member, end: u64, has_other_configuration: bool) -> BrokerShown {
    let (written, answer) = (&member.written, member.answer.as_ref());
    let other = has_other_configuration.then(|| "its configuration differs from that of the leader".to_owned());
    let seen_at = match answer {
        Ok(_) => SystemClock.now(),
        Err(_) => Timestamp::from_unix_nanoseconds(
            i64::try_from(written.clock_ms).unwrap_or(i64::MAX).saturating_mul(1_000_000),
        ),
    };
    BrokerShown {
        name: written.broker.clone(),
        role: member.role().to_owned(),
        position: member.position(),
        behind: end.saturating_sub(member.position()),
        lag_ms: answer.ok().map(|answer| answer.lag_ms),
        flushed_upto: member.flushed_upto(),
        relayed: answer.ok().map(|answer| answer.relayed_connections),
        version: written.version.clone(),
        address: written.peer_address.clone(),
        seen_at,
        answers: answer.is_ok(),
        problem: answer.err().cloned().into_iter().chain(other).collect::<Vec<_>>().join("; "),
    }
}
