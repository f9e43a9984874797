//! `baton cluster forget`: a lost broker holds no trimming any more.

use baton_cli::{Failure, exit, output::Output, say};
use baton_cluster::{
    log::WriteError,
    member_value::{MemberValue, name_of},
    settings,
};
use baton_peers::client;
use clap::Args;
use serde_json::json;

use super::{ConfigArgs, open, peer_tls, unreachable};

#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    /// The name of the broker in the cluster.
    #[arg(value_name = "NAME")]
    broker: String,
    #[command(flatten)]
    of: ConfigArgs,
}

pub(super) async fn run(args: &ForgetArgs, output: &Output) -> Result<(), Failure> {
    let cluster = args.of.settings()?;
    let tls = peer_tls(&cluster)?;
    let register = open(&cluster).await?.register;
    let broker = &args.broker;
    let refused = |problem: String| Failure::new(exit::REFUSED, problem);
    let unknown = || refused(format!("no broker of the cluster {} has the name {broker:?}", cluster.name));
    if !settings::is_name(broker) {
        return Err(unknown());
    }
    let name = name_of(broker);
    let found = register.read(&name).await.map_err(|error| unreachable(&error.to_string()))?;
    let (version, value) = found.ok_or_else(unknown)?;
    let written =
        MemberValue::parse(&value).unwrap_or_else(|| MemberValue { broker: broker.clone(), ..Default::default() });
    if let Ok(answer) = client::status(&written.peer_address, &tls).await
        && answer.broker == *broker
    {
        return Err(refused(format!("broker {broker} answers at {}: stop it first", written.peer_address)));
    }
    let forgotten = MemberValue { forgotten: true, ..written };
    match register.write(&name, Some(&version), forgotten.to_bytes()).await {
        Ok(_) => {}
        Err(WriteError::Changed) => {
            return Err(refused(format!("broker {broker} has written just now: it is not gone")));
        }
        Err(error @ WriteError::Unknown(_)) => return Err(unreachable(&format!("{error}; try again"))),
    }
    match output.is_table() {
        true => say!("forgot broker {broker}: the log keeps nothing for it"),
        false => output.value(&json!({ "forgotten": broker }))?,
    }
    Ok(())
}
