//! `baton agent key`: the keys of a registered agent.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs, read_key},
    output::{self, Output},
    resolve::Prefix,
    table::Column,
};
use baton_client as client;
use baton_client::{
    envelope::keys::PublicKey,
    ids::{AgentId, KeyId},
    proto::v1,
    time::{Clock as _, SystemClock},
};

const DAY: i64 = 24 * 60 * 60;

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton agent key list alice
  baton agent key add alice k2 --key-file alice-2.pem --replaces k1
  baton agent key revoke alice k1 --reason 'laptop lost'")]
pub(super) enum KeyCommand {
    /// List an agent's keys.
    #[command(after_help = "Examples:
  baton agent key list alice")]
    List {
        /// The agent's id, or a unique prefix of it.
        agent: Prefix,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    Add(AddArgs),
    /// Revoke a key permanently.
    ///
    /// The broker refuses messages that are signed with it from then on, and ends the sessions and tokens that it
    /// opened. The key_id cannot be used again.
    #[command(after_help = "Examples:
  baton agent key revoke alice k1 --reason 'laptop lost'")]
    Revoke {
        /// The agent's id.
        agent: AgentId,
        /// The key's name (key_id).
        key_id: KeyId,
        /// The reason, recorded in the audit log.
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    Vouch(VouchArgs),
}

/// Add a key to an agent. With --replaces, rotate keys: the replaced keys end after a grace period.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton keygen --out alice-2.pem
  baton agent key add alice k2 --key-file alice-2.pem --replaces k1 --grace-hours 48
  baton agent key add alice k2 --key-file alice-2.pem --id alice --key alice.pem")]
pub(super) struct AddArgs {
    /// The agent's id.
    agent: AgentId,
    /// The new key's name (key_id). The agent must not have used it before.
    key_id: KeyId,
    #[command(flatten)]
    public: PublicArgs,
    /// The key_id of a key that the new one replaces. May be repeated.
    #[arg(long, value_name = "KEY_ID")]
    replaces: Vec<KeyId>,
    /// Grace period in hours: how long the replaced keys stay valid, at most 720.
    #[arg(long, default_value_t = 24, value_name = "HOURS")]
    grace_hours: u32,
    /// Validity of the new key in days. Default: no limit.
    #[arg(long, value_name = "DAYS")]
    days: Option<u32>,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// Sign, as an operator, that a public key belongs to an agent.
///
/// Receivers that trust the operator's key then need not trust the broker's directory. Get the public key from the
/// agent's own people, not from the broker.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton agent key vouch alice k1 --public-key 03a107bf…5531b8 --operator ops-2026 --operator-key ops.pem
  baton agent serve --id bob --key bob.pem --trust ops-2026=77f2a9…")]
pub(super) struct VouchArgs {
    /// The agent's id.
    agent: AgentId,
    /// The key's name (key_id).
    key_id: KeyId,
    #[command(flatten)]
    public: PublicArgs,
    /// The name under which receivers trust the operator's key.
    #[arg(long, value_name = "NAME")]
    operator: KeyId,
    /// The operator's key, a file from `baton keygen`.
    #[arg(long, value_name = "FILE")]
    operator_key: PathBuf,
    /// Validity of the voucher in days. Default: no limit.
    #[arg(long, value_name = "DAYS")]
    days: Option<u32>,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct PublicArgs {
    /// The key, a file from `baton keygen`. Only the public key is sent.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The public key, as 64 hex digits.
    #[arg(long, value_name = "HEX")]
    public_key: Option<String>,
}

impl PublicArgs {
    fn load(&self) -> Result<PublicKey, Failure> {
        match (&self.key_file, &self.public_key) {
            (Some(path), _) => Ok(read_key(path)?.public()),
            (None, hex) => parse_public_key(hex.as_deref().unwrap_or_default()),
        }
    }
}

/// Parses a public key in hex, as flags take it.
pub(super) fn parse_public_key(text: &str) -> Result<PublicKey, Failure> {
    let bytes = hex::decode(text).unwrap_or_default();
    PublicKey::parse(&bytes).map_err(|error| Failure::usage(format!("public key {text:?} {error}, as 64 hex digits")))
}

pub(super) async fn run(command: KeyCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let identity = match &command {
        KeyCommand::List { identity, .. } | KeyCommand::Revoke { identity, .. } => identity,
        KeyCommand::Add(args) => &args.identity,
        KeyCommand::Vouch(args) => &args.identity,
    };
    let client = identity.client(connection).await?;
    let agent = match command {
        KeyCommand::List { agent, .. } => {
            let request = v1::GetAgentRequest { agent_id: agent.agent(&client).await?.to_string() };
            client.answer(client.agents().get_agent(request).await)?.agent
        }
        KeyCommand::Add(args) => {
            let key = v1::AgentKey {
                key_id: args.key_id.to_string(),
                public_key: args.public.load()?.as_bytes().to_vec().into(),
                not_after_time: in_days(args.days),
                ..Default::default()
            };
            let request = v1::AddAgentKeyRequest {
                agent_id: args.agent.to_string(),
                key: Some(key),
                replaced_key_ids: args.replaces.iter().map(ToString::to_string).collect(),
                grace: Some(prost_types::Duration { seconds: i64::from(args.grace_hours) * 3600, nanos: 0 }),
            };
            client.answer(client.agents().add_agent_key(request).await)?.agent
        }
        KeyCommand::Revoke { agent, key_id, reason, .. } => {
            let (agent_id, key_id) = (agent.to_string(), key_id.to_string());
            let request = v1::RevokeAgentKeyRequest { agent_id, key_id, reason_text: reason };
            client.answer(client.agents().revoke_agent_key(request).await)?.agent
        }
        KeyCommand::Vouch(args) => {
            let (operator, days) = (read_key(&args.operator_key)?, in_days(args.days));
            let voucher =
                client::vouch(&operator, &args.operator, &args.agent, &args.key_id, &args.public.load()?, days);
            let (agent_id, key_id) = (args.agent.to_string(), args.key_id.to_string());
            let request = v1::VouchForAgentKeyRequest { agent_id, key_id, voucher: Some(voucher) };
            client.answer(client.agents().vouch_for_agent_key(request).await)?.agent
        }
    };
    let keys = agent.and_then(|agent| agent.card).unwrap_or_default().keys;
    let columns = [
        Column::Whole("KEY"),
        Column::Id("PUBLIC KEY"),
        Column::Whole("FROM"),
        Column::Whole("UNTIL"),
        Column::Whole("REVOKED"),
        Column::Text("VOUCHED BY"),
    ];
    let now = SystemClock.now();
    output.list(&columns, &keys, |key| {
        let vouchers: Vec<&str> = key.vouchers.iter().map(|voucher| voucher.operator_key_id.as_str()).collect();
        vec![
            key.key_id.clone(),
            hex::encode(&key.public_key),
            output::brief(key.not_before_time.as_ref(), now),
            output::brief(key.not_after_time.as_ref(), now),
            output::brief(key.revoke_time.as_ref(), now),
            vouchers.join(", "),
        ]
    })
}

fn in_days(days: Option<u32>) -> Option<prost_types::Timestamp> {
    let (seconds, _) = SystemClock.now().to_parts();
    days.map(|days| prost_types::Timestamp { seconds: seconds + i64::from(days) * DAY, nanos: 0 })
}
