//! `baton cluster status`: the members, their roles, and their places in the log.

use std::time::Duration;

use baton_cli::{
    Failure, exit,
    output::Output,
    say,
    table::{self, Column},
};
use baton_cluster::{
    log::{Register, Settings},
    member_value::{self, MemberValue},
    settings::ClusterSettings,
    view::Role,
};
use baton_peers::{client, proto::GetStatusResponse, tls::PeerTls};
use serde_json::{Value, json};

use super::{leader, of_engine, open, peer_tls, unreachable};
use crate::time::{Clock as _, SystemClock};

/// A member: its value in the register, and its present answer.
struct Member {
    written: MemberValue,
    answer: Result<GetStatusResponse, String>,
    /// By how much its clock is ahead of this machine's, in milliseconds. Only of one that answers.
    clock_ahead_ms: i64,
}

impl Member {
    fn role(&self) -> &str {
        match &self.answer {
            Ok(answer) => &answer.role,
            Err(_) if self.written.forgotten => "forgotten",
            Err(_) => "gone",
        }
    }

    fn position(&self) -> u64 {
        self.answer.as_ref().map_or(self.written.position, |answer| answer.position)
    }

    fn flushed_upto(&self) -> u64 {
        self.answer.as_ref().map_or(self.written.flushed_upto, |answer| answer.flushed_upto)
    }

    fn term(&self) -> u64 {
        self.answer.as_ref().map_or(self.written.term, |answer| answer.term)
    }

    fn leads(&self) -> bool {
        self.answer.as_ref().is_ok_and(|answer| Role::named(&answer.role) == Some(Role::Leading))
    }

    fn value(&self, end: u64, has_other_configuration: bool) -> Value {
        let written = &self.written;
        let answer = self.answer.as_ref();
        json!({
            "broker": written.broker, "role": self.role(), "term": self.term(), "position": self.position(),
            "behind": end.saturating_sub(self.position()), "flushed_upto": self.flushed_upto(),
            "lag_ms": answer.ok().map(|answer| answer.lag_ms), "version": written.version,
            "level": written.level, "peer_address": written.peer_address,
            "relayed_connections": answer.ok().map(|answer| answer.relayed_connections),
            "clock_ahead_ms": answer.ok().map(|_| self.clock_ahead_ms),
            "has_other_configuration": has_other_configuration, "problem": answer.err(),
        })
    }
}

pub(super) async fn run(settings: &ClusterSettings, output: &Output) -> Result<(), Failure> {
    let tls = peer_tls(settings)?;
    let engine = open(settings).await?;
    let failed = |error| of_engine(settings, &error);
    let end = engine.log.end().await.map_err(failed)?;
    let Settings { unsafe_ones, warnings } = engine.log.settings().await.map_err(failed)?;
    let members = members(&*engine.register, &tls).await?;
    let lease = leader(&*engine.register).await?;
    let leads = members.iter().find(|member| member.leads());
    let why = why_nobody_leads(&members);
    // The configuration of the leader is the one to compare with, or that of the first member.
    let model = leads.or(members.first()).map(|member| member.written.configuration.clone()).unwrap_or_default();
    let is_other = |member: &Member| !model.is_empty() && member.written.configuration != model;
    if output.is_table() {
        say!("cluster  {} in {}", settings.name, settings.log);
        match (leads, &lease) {
            (Some(member), _) => say!("leader   {} since takeover {}", member.written.broker, member.term()),
            (None, Some(lease)) => say!("leader   none; the latest was {}", lease.broker),
            (None, None) => say!("leader   none; no broker has led yet"),
        }
        if leads.is_none() {
            say!("why      {why}");
        }
        say!("log      ends at {end}");
        for words in &unsafe_ones {
            say!("unsafe   {words}");
        }
        for words in &warnings {
            say!("warning  {words}");
        }
        print(&members, end, is_other);
    } else {
        output.value(&json!({
            "cluster": settings.name, "log": settings.log.to_string(), "end": end,
            "leader": leads.map(|member| &member.written.broker), "term": leads.map(Member::term),
            "why_nobody_leads": leads.is_none().then_some(&why), "unsafe": unsafe_ones, "warnings": warnings,
            "members": members.iter().map(|member| member.value(end, is_other(member))).collect::<Vec<_>>(),
        }))?;
    }
    match leads {
        Some(_) => Ok(()),
        None => Err(Failure::new(exit::FAILED, format!("no broker leads: {why}")).named("NOT_READY")),
    }
}

fn print(members: &[Member], end: u64, is_other: impl Fn(&Member) -> bool) {
    if members.is_empty() {
        return;
    }
    let columns = [
        Column::Whole("BROKER"),
        Column::Whole("ROLE"),
        Column::Whole("POSITION"),
        Column::Whole("BEHIND"),
        Column::Whole("FLUSHED"),
        Column::Text("VERSION"),
        Column::Text("ADDRESS"),
    ];
    let row = |member: &Member| {
        vec![
            member.written.broker.clone(),
            member.role().to_owned(),
            member.position().to_string(),
            end.saturating_sub(member.position()).to_string(),
            member.flushed_upto().to_string(),
            member.written.version.clone(),
            member.written.peer_address.clone(),
        ]
    };
    table::print_with(&columns, members.iter().map(row), |at| {
        let member = &members[at];
        let clock = Duration::from_millis(member.clock_ahead_ms.unsigned_abs());
        [
            member.answer.as_ref().err().cloned(),
            is_other(member).then(|| "its configuration differs from that of the leader".to_owned()),
            (clock >= Duration::from_secs(2))
                .then(|| format!("its clock differs by {clock:?} from that of this machine")),
        ]
        .into_iter()
        .flatten()
        .collect()
    });
}

/// All members of the register, in the order of their names. They are asked at the same time.
async fn members(register: &dyn Register, tls: &PeerTls) -> Result<Vec<Member>, Failure> {
    let lost = |error: baton_cluster::log::Unavailable| unreachable(&error.to_string());
    let mut asked = tokio::task::JoinSet::new();
    for name in register.names(member_value::PREFIX).await.map_err(lost)? {
        let Some((_, value)) = register.read(&name).await.map_err(lost)? else { continue };
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

fn why_nobody_leads(members: &[Member]) -> String {
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
