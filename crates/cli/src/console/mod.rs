//! `baton console`: the way into the web console, and a page to decide on with a key that stays on this machine.

mod desk;

use clap::Args;
use serde_json::json;

use super::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs},
    output::{self, Output},
};
use baton_client::proto::v1;

/// Print an address that opens the web console in a browser, without a token to paste.
///
/// The address is valid for one minute and one login. With an agent (--id and --key, or the profile) the console
/// shows what that agent may see, and the command also serves a page for its decisions: accept, reject, take over, answer,
/// finish. That page is on this machine only. The command signs each decision here and sends it; neither the browser nor
/// the broker sees the key.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton console                                log in as an operator
  baton console --id alice --key alice.pem     log in as alice, and decide as alice until ctrl-C")]
pub(super) struct ConsoleArgs {
    #[command(flatten)]
    identity: OptionalIdentityArgs,
    /// The port of the page for decisions, on 127.0.0.1. 0 selects a free port.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
}

pub(super) async fn run(args: ConsoleArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let client = args.identity.client(connection).await?;
    let request = v1::CreateLoginCodeRequest {};
    let made = client.answer(client.agents().create_login_code(request).await)?;
    let url = login_url(&connection.options_of_agent()?.server, &made.code);
    let identity = match args.identity.load()? {
        Some(identity) => Some(identity),
        None => connection.saved_identity()?,
    };
    let desk = match identity {
        Some(identity) => Some(desk::Desk::open(client, identity, args.port).await?),
        None => None,
    };
    if output.is_table() {
        say_lines!("Open within a minute, once:\n  {url}");
        if let Some(desk) = &desk {
            say_lines!("Decide as {}, until ctrl-C:\n  {}", desk.agent(), desk.url());
        }
    } else {
        let expire_time = output::time(made.expire_time.as_ref());
        output.next(&json!({"url": url, "expireTime": expire_time, "deskUrl": desk.as_ref().map(desk::Desk::url)}))?;
    }
    match desk {
        Some(desk) => desk.serve().await,
        None => Ok(()),
    }
}

/// The page of the login. The code is in the fragment, which a browser sends to no server.
pub fn login_url(server: &str, code: &str) -> String {
    let scheme = if server.starts_with("http://") { "" } else { "https://" };
    format!("{scheme}{server}/login#code={code}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_has_the_scheme_of_the_connection() {
        assert_eq!(login_url("127.0.0.1:22866", "ab"), "https://127.0.0.1:22866/login#code=ab");
        assert_eq!(login_url("http://127.0.0.1:1", "ab"), "http://127.0.0.1:1/login#code=ab");
    }
}
