//! `baton cluster status`: the members, their roles, and their places in the log.

use std::time::Duration;

use baton_cli::{
    Failure, exit,
    output::Output,
    say,
    table::{self, Column},
};
use baton_cluster::{driver::ADVICE_DIVERGED, log::Settings, requests::RequestCount, settings::ClusterSettings};
use serde_json::{Value, json};

use super::{leader, of_engine, open, peer_tls};
use crate::server::members::{Member, above_bound, has_other_configuration, members, why_nobody_leads};

/// A member as JSON.
fn value(member: &Member, end: u64, has_other_configuration: bool) -> Value {
    let written = &member.written;
    let answer = member.answer.as_ref();
    json!({
            "broker": written.broker, "role": member.role(), "term": member.term(), "position": member.position(),
            "behind": end.saturating_sub(member.position()), "flushed_upto": member.flushed_upto(),
            "lag_ms": answer.ok().map(|answer| answer.lag_ms), "version": written.version,
            "level": written.level, "peer_address": written.peer_address,
            "relayed_connections": answer.ok().map(|answer| answer.relayed_connections),
            "clock_ahead_ms": answer.ok().map(|_| member.clock_ahead_ms),
            "log_requests": member.requests().map(|count| json!({
                "writes": count.writes, "reads": count.reads, "time_ms": u64::try_from(count.time.as_millis()).unwrap_or(u64::MAX),
            })),
            "has_other_configuration": has_other_configuration, "problem": answer.err(),
    })
}

pub(super) async fn run(settings: &ClusterSettings, output: &Output) -> Result<(), Failure> {
    let tls = peer_tls(settings)?;
    let engine = open(settings).await?;
    let failed = |error| of_engine(settings, &error);
    let end = engine.log.end().await.map_err(failed)?;
    let log_bytes = engine.log.size_bytes().await.map_err(failed)?;
    let Settings { unsafe_ones, mut warnings } = engine.log.settings().await.map_err(failed)?;
    warnings.extend(above_bound(settings, log_bytes));
    let members = members(&*engine.register, &tls).await.map_err(failed)?;
    let lease = leader(&*engine.register).await?;
    let leads = members.iter().find(|member| member.leads());
    let why = why_nobody_leads(&members);
    let advice = members.iter().any(Member::has_diverged).then_some(ADVICE_DIVERGED);
    let is_other = |member: &Member| has_other_configuration(&members, member);
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
        if let Some(advice) = advice {
            say!("advice   {advice}");
        }
        say!("log      ends at {end}, has {log_bytes} bytes");
        if let Some(words) = cost(&members) {
            say!("cost     {words}");
        }
        for words in &unsafe_ones {
            say!("unsafe   {words}");
        }
        for words in &warnings {
            say!("warning  {words}");
        }
        print(&members, end, is_other);
    } else {
        output.value(&json!({
            "cluster": settings.name, "log": settings.log.to_string(), "end": end, "log_bytes": log_bytes,
            "leader": leads.map(|member| &member.written.broker), "term": leads.map(Member::term),
            "why_nobody_leads": leads.is_none().then_some(&why), "advice": advice,
            "unsafe": unsafe_ones, "warnings": warnings,
            "members": members.iter().map(|member| value(member, end, is_other(member))).collect::<Vec<_>>(),
        }))?;
    }
    match leads {
        Some(_) => Ok(()),
        None => Err(Failure::new(exit::FAILED, format!("no broker leads: {why}")).named("NOT_READY")),
    }
}

/// What the brokers that answer ask of a bucket, an hour, since each process was started.
fn cost(members: &[Member]) -> Option<String> {
    let counts: Vec<_> = members.iter().filter_map(Member::requests).collect();
    let hourly: Vec<_> = counts.iter().filter_map(RequestCount::hourly).collect();
    let (writes, reads) = hourly.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    match (counts.len(), hourly.len()) {
        (0, _) => None,
        (_, 0) => Some("known a minute after the start of a broker".to_owned()),
        (_, many) => {
            let brokers = if many == 1 { "1 broker" } else { &format!("{many} brokers") };
            Some(format!("{writes} writes and {reads} reads an hour by {brokers}, each since its process was started"))
        }
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
