//! `baton status`: one broker as its caller sees it.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs},
    duration, exit,
    output::{self, Output},
    probe::{Health, Seen, Target},
};
use baton_client::{
    Client, ClientError,
    proto::v1,
    time::{Clock as _, SystemClock, Timestamp},
};

const DAY: i64 = 24 * 60 * 60;
/// A certificate with less validity left is worth a warning.
const RENEWAL_DAYS: i64 = 30;

/// Show a broker: address, version, health, clock, store, certificate, and who you are to it.
///
/// The version needs an identity, and the store an operator's. The clock's difference is that between this machine and the
/// broker. A broker that is not ready, or whose certificate is not trusted, is shown as far as it answers.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton status
  baton status --server broker.example.com:22866 --ca ca.pem --id alice --key alice.pem
  baton status -o json | jq .certificate.days_left

Exit codes: 1 if the broker is not ready, 8 if it refuses the identity, 9 if it is not reached or not trusted.")]
pub(super) struct StatusArgs {
    #[command(flatten)]
    identity: OptionalIdentityArgs,
    /// How long to wait for each answer.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = duration::parse)]
    timeout: Duration,
}

/// What is known of a broker.
struct Status {
    server: String,
    seen: Seen,
    broker: Option<v1::BrokerStatus>,
    /// By how many milliseconds the broker's clock is ahead, and how much of that the way of the answer may explain.
    clock: Option<(f64, f64)>,
    /// The agent that calls.
    agent: Option<v1::Agent>,
    /// Why the identity does not count.
    refused: Option<Failure>,
    now: Timestamp,
}

pub(super) async fn run(args: StatusArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let target = Target::of(&connection.options()?);
    let seen = target.look(args.timeout).await?;
    let mut status = Status {
        server: target.server().to_owned(),
        seen,
        broker: None,
        clock: None,
        agent: None,
        refused: None,
        now: SystemClock.now(),
    };
    if matches!(status.seen.health, Health::Ready | Health::NotReady(_)) {
        let asked = tokio::time::timeout(args.timeout, status.ask(&args.identity, connection)).await;
        match asked {
            Ok(asked) => asked?,
            Err(_elapsed) => {
                status.seen.health = Health::Unreachable(format!("a call has no answer within {:?}", args.timeout));
            }
        }
    }
    match output.is_table() {
        true => status.lines().iter().for_each(|(name, value)| say!("{name:<14}{value}")),
        false => output.value(&status.document())?,
    }
    status.seen.health.require_ready(&status.server)?;
    status.refused.map_or(Ok(()), Err)
}

impl Status {
    /// Asks the broker who it is, and who the caller is.
    async fn ask(&mut self, identity: &OptionalIdentityArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
        let client = match identity.client(connection).await {
            Ok(client) => client,
            Err(failure) if failure.code == exit::REFUSED => {
                return self.ask_without_identity(connection, failure).await;
            }
            Err(failure) => return Err(failure),
        };
        match self.ask_as(&client).await {
            Ok(()) => {}
            Err(error @ ClientError::Refused(_)) => return self.ask_without_identity(connection, error.into()).await,
            Err(error) => return Err(error.into()),
        }
        let caller = self.broker.as_ref().map(|broker| broker.caller.clone()).unwrap_or_default();
        if let Some(id) = caller.strip_prefix("agent ") {
            let request = v1::GetAgentRequest { agent_id: id.to_owned() };
            // A policy may hide the directory, also from the agent itself.
            self.agent = client.agents().get_agent(request).await.ok().and_then(|answer| answer.into_inner().agent);
        }
        Ok(())
    }

    async fn ask_without_identity(&mut self, connection: &ConnectionArgs, refused: Failure) -> Result<(), Failure> {
        self.refused = Some(refused);
        let client = connection.client_without_any_token().await?;
        Ok(self.ask_as(&client).await?)
    }

    async fn ask_as(&mut self, client: &Client) -> Result<(), ClientError> {
        let request = || v1::GetAgentRequest { agent_id: "baton".to_owned() };
        // The first call also waits for the connection, which the difference of the clocks must not include.
        client.answer(client.agents().get_agent(request()).await)?;
        let before = SystemClock.now();
        let answer = client.answer(client.agents().get_agent(request()).await)?;
        let after = SystemClock.now();
        let time = answer.broker.as_ref().and_then(|broker| broker.clock_time);
        let time = time.and_then(|time| Timestamp::from_parts(time.seconds, time.nanos));
        self.clock = time.map(|time| {
            let half = after.since(before) / 2;
            (milliseconds_between(before.plus(half), time), half.as_secs_f64() * 1000.0)
        });
        self.broker = answer.broker;
        Ok(())
    }

    /// The days until the certificate ends. Negative: it has ended.
    fn days_left(&self) -> Option<i64> {
        self.seen.certificate_end.map(|end| (end - self.now.to_parts().0).div_euclid(DAY))
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let broker = self.broker.clone().unwrap_or_default();
        let mut lines = vec![
            ("address", self.server.clone()),
            ("health", output::line(&self.seen.health.to_string()).into_owned()),
        ];
        if self.broker.is_some() {
            let untold = "not told to a caller without an identity";
            let version = if broker.version.is_empty() { untold.to_owned() } else { broker.version.clone() };
            lines.push(("version", version));
        }
        if broker.start_time.is_some() {
            lines.push(("started", output::time(broker.start_time.as_ref())));
        }
        if self.broker.is_some() {
            lines.push(("identity", self.identity()));
        }
        if let Some((difference, uncertainty)) = self.clock {
            lines.push(("clock", clock_text(difference, uncertainty)));
        }
        if let Some(store) = &broker.store {
            lines.push(("store", store_text(store)));
        }
        if let Some((end, days)) = self.seen.certificate_end.zip(self.days_left()) {
            lines.push(("certificate", certificate_text(end, days)));
        }
        lines
    }

    fn identity(&self) -> String {
        let caller = self.broker.as_ref().map(|broker| broker.caller.as_str()).unwrap_or_default();
        match (&self.refused, caller, &self.agent) {
            (Some(_), _, _) => "refused; see below".to_owned(),
            (None, "", _) => "none".to_owned(),
            (None, caller, None) => caller.to_owned(),
            (None, caller, Some(agent)) => {
                let presence = output::short(agent.presence().as_str_name(), "PRESENCE_");
                let letters = agent.mailbox.as_ref().and_then(|mailbox| mailbox.letter_count);
                let letters = letters.map(|count| format!(", letters that wait: {count}")).unwrap_or_default();
                format!("{caller}: {presence}, sessions: {}{letters}", agent.session_count)
            }
        }
    }

    fn document(&self) -> Value {
        let broker = self.broker.clone().unwrap_or_default();
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let reason = match &self.seen.health {
            Health::Ready => None,
            Health::NotReady(reason) | Health::Untrusted(reason) | Health::Unreachable(reason) => Some(reason),
        };
        let agent = self.agent.as_ref().map(|agent| {
            json!({
                "id": agent.card.as_ref().map(|card| card.agent_id.clone()),
                "presence": output::short(agent.presence().as_str_name(), "PRESENCE_"),
                "sessions": agent.session_count,
                "letters": agent.mailbox.as_ref().and_then(|mailbox| mailbox.letter_count),
            })
        });
        let clock = self.clock.map(|(difference, uncertainty)| {
            json!({"ahead_ms": rounded(difference), "uncertainty_ms": rounded(uncertainty)})
        });
        let store = broker.store.as_ref().map(|store| {
            let most = Some(store.size_bytes_max).filter(|most| *most > 0);
            json!({"format": store.format, "size_bytes": store.size_bytes, "size_bytes_max": most})
        });
        let certificate = self.seen.certificate_end.zip(self.days_left());
        json!({
            "server": self.server,
            "health": self.seen.health.word(),
            "reason": reason,
            "version": text(&broker.version),
            "start_time": text(&output::time(broker.start_time.as_ref())),
            "caller": text(&broker.caller),
            "agent": agent,
            "clock": clock,
            "store": store,
            "certificate": certificate.map(|(end, days)| json!({"end_time": day_text(end), "days_left": days})),
        })
    }
}

/// From `one` to `other`, in milliseconds.
fn milliseconds_between(one: Timestamp, other: Timestamp) -> f64 {
    let (ahead, behind) = (other.since(one), one.since(other));
    (ahead.as_secs_f64() - behind.as_secs_f64()) * 1000.0
}

/// To the microsecond.
fn rounded(milliseconds: f64) -> f64 {
    (milliseconds * 1000.0).round() / 1000.0
}

fn clock_text(difference: f64, uncertainty: f64) -> String {
    if difference.abs() <= uncertainty {
        return format!("the same as here, within {uncertainty:.1} ms");
    }
    let way = if difference > 0.0 { "ahead of" } else { "behind" };
    let size = difference.abs();
    let size = if size < 1000.0 { format!("{size:.1} ms") } else { format!("{:.1} s", size / 1000.0) };
    format!("{size} {way} this machine's, within {uncertainty:.1} ms")
}

fn store_text(store: &v1::StoreStatus) -> String {
    const MIB: f64 = 1024.0 * 1024.0;
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit after the point")]
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / MIB);
    let size = store.size_bytes.map_or_else(|| "size not known while it is compacted".to_owned(), mib);
    let most = if store.size_bytes_max == 0 { String::new() } else { format!(" of {}", mib(store.size_bytes_max)) };
    format!("{size}{most}, format {}", store.format)
}

fn certificate_text(end: i64, days: i64) -> String {
    match days {
        ..0 => format!("has expired, {}", day_text(end)),
        0..RENEWAL_DAYS => format!("until {}, {days} days left: renew it", day_text(end)),
        RENEWAL_DAYS.. => format!("until {}, {days} days left", day_text(end)),
    }
}

fn day_text(seconds: i64) -> String {
    output::time(Some(&prost_types::Timestamp { seconds, nanos: 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_counts_if_the_way_does_not_explain_it() {
        let at =
            |milliseconds: i64| Timestamp::from_unix_nanoseconds(1_800_000_000_000_000_000 + milliseconds * 1_000_000);
        assert_eq!(rounded(milliseconds_between(at(0), at(1500))), 1500.0);
        assert_eq!(rounded(milliseconds_between(at(1500), at(0))), -1500.0);
        assert_eq!(clock_text(0.4, 0.5), "the same as here, within 0.5 ms");
        assert_eq!(clock_text(1500.0, 0.5), "1.5 s ahead of this machine's, within 0.5 ms");
        assert_eq!(clock_text(-20.0, 0.5), "20.0 ms behind this machine's, within 0.5 ms");
    }

    #[test]
    fn a_certificate_that_ends_soon_says_so() {
        assert_eq!(certificate_text(1_800_000_000, 30), "until 2027-01-15T08:00:00Z, 30 days left");
        assert_eq!(certificate_text(1_800_000_000, 29), "until 2027-01-15T08:00:00Z, 29 days left: renew it");
        assert_eq!(certificate_text(1_800_000_000, -1), "has expired, 2027-01-15T08:00:00Z");
    }

    #[test]
    fn a_store_that_is_compacted_has_no_size() {
        let store = |size_bytes, size_bytes_max| {
            store_text(&v1::StoreStatus { format: "baton-store 1".to_owned(), size_bytes, size_bytes_max })
        };
        assert_eq!(store(Some(3 << 19), 0), "1.5 MiB, format baton-store 1");
        assert_eq!(store(Some(1 << 20), 1 << 30), "1.0 MiB of 1024.0 MiB, format baton-store 1");
        assert_eq!(store(None, 0), "size not known while it is compacted, format baton-store 1");
    }
}
