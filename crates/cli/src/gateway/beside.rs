//! The gateway in the process of its broker: the same gateway, a client of the broker by its address, with settings of the
//! broker's configuration in place of flags.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use baton_client::{Client, ClientError, Options};
use baton_faces::http::Published;
use clap::ValueEnum as _;
use tokio::{
    net::TcpListener,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    super::{Failure, connection::check_ca, mcp::ToolSet},
    REQUESTS_MAX, REQUESTS_PER_AGENT_MAX, parse_host,
    serve::{Prepared, Serving, Settings, acceptor, check_names},
};

/// The pause before the broker is tried again.
const CONNECT_AGAIN: Duration = Duration::from_secs(1);
/// The time that the gateway has to end before its broker does. Requests have ended before it.
const END_MAX: Duration = Duration::from_secs(10);

/// The settings of a gateway beside its broker. Lists are texts with commas, as flags have them.
#[derive(Debug, Clone)]
pub struct GatewaySettings {
    /// The broker, as HOST:PORT.
    pub server: String,
    /// The CA of the broker's certificate. `None`: the CAs of the system.
    pub ca: Option<PathBuf>,
    /// The folder of the grants.
    pub data: PathBuf,
    /// The certificate with its chain, and its private key. `None`: no TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The names and addresses by which clients reach the gateway, without a port, beside those of this machine.
    pub allow_hosts: String,
    /// The sets of tools at `/mcp`.
    pub tools: String,
    /// What A2A clients reach.
    pub a2a_publish: String,
    /// Whether A2A clients may name addresses for push notifications.
    pub a2a_push: bool,
    /// Whether requests of the gateway itself also go to this machine.
    pub allow_local_targets: bool,
}

/// Checks a list of the settings, which `key` names.
///
/// # Errors
///
/// The problem in words.
pub fn check_gateway_lists(allow_hosts: &str, tools: &str, a2a_publish: &str) -> Result<(), String> {
    Lists::read(allow_hosts, tools, a2a_publish).map(drop)
}

/// Checks the files of a gateway: a CA, and a certificate with its key.
///
/// # Errors
///
/// A file cannot be used.
pub fn check_gateway_files(ca: Option<&Path>, tls: Option<&(PathBuf, PathBuf)>) -> Result<(), Failure> {
    if let Some(ca) = ca {
        check_ca(ca)?;
    }
    tls.map_or(Ok(()), |(certificate, key)| acceptor(certificate, key).map(drop))
}

struct Lists {
    hosts: Vec<String>,
    tools: Vec<ToolSet>,
    published: Vec<Published>,
}

impl Lists {
    fn read(allow_hosts: &str, tools: &str, a2a_publish: &str) -> Result<Self, String> {
        let about = |key: &str, entry: &str, problem: String| format!("gateway.{key}: {entry:?} {problem}");
        let hosts =
            entries(allow_hosts).map(|entry| parse_host(entry).map_err(|problem| about("allow_hosts", entry, problem)));
        let tools = entries(tools).map(|entry| {
            let unknown = |_| about("tools", entry, format!("is no set of tools; there are {}", names_of_sets()));
            ToolSet::from_str(entry, false).map_err(unknown)
        });
        let published = entries(a2a_publish)
            .map(|entry| Published::parse(entry).map_err(|problem| about("a2a_publish", entry, problem)));
        let lists = Self {
            hosts: hosts.collect::<Result<_, _>>()?,
            tools: tools.collect::<Result<_, _>>()?,
            published: published.collect::<Result<_, _>>()?,
        };
        if lists.tools.is_empty() {
            return Err(format!("gateway.tools is empty; there are {}", names_of_sets()));
        }
        check_names(&lists.published).map_err(|problem| format!("gateway.a2a_publish {problem}"))?;
        Ok(lists)
    }
}

fn entries(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}

fn names_of_sets() -> String {
    let names = ToolSet::value_variants().iter().filter_map(|set| Some(set.to_possible_value()?.get_name().to_owned()));
    names.collect::<Vec<_>>().join(", ")
}

impl GatewaySettings {
    fn settings(self) -> Result<Settings, Failure> {
        let lists = Lists::read(&self.allow_hosts, &self.tools, &self.a2a_publish).map_err(Failure::usage)?;
        Ok(Settings {
            broker: Options { server: self.server, ca: self.ca, ..Options::default() },
            data: self.data,
            tls: self.tls,
            hosts: lists.hosts,
            tools: lists.tools,
            published: lists.published,
            pushes: self.a2a_push,
            allows_local_targets: self.allow_local_targets,
            requests_max: REQUESTS_MAX as usize,
            requests_per_agent_max: REQUESTS_PER_AGENT_MAX as usize,
        })
    }
}

fn serve(settings: GatewaySettings, listener: TcpListener, stop: &CancellationToken) -> Result<Serving, Failure> {
    if let Some(ca) = &settings.ca {
        check_ca(ca)?;
    }
    let settings = settings.settings()?;
    let broker = settings.broker.clone();
    let serving = Prepared::new(settings)?.start(listener, stop.clone())?;
    tokio::spawn(stop.clone().run_until_cancelled_owned(warn_if_untrusted(broker)));
    Ok(serving)
}

/// Connects once to the broker, and says so if its certificate is not trusted: each request would fail by it.
async fn warn_if_untrusted(broker: Options) {
    loop {
        match Client::connect(&broker).await {
            Ok(_) => return,
            Err(problem @ (ClientError::Untrusted { .. } | ClientError::Untimely { .. })) => {
                tracing::error!(%problem, "gateway.server and gateway.ca name the broker as the gateway reaches it");
                return;
            }
            // A broker of a cluster may have to wait for its leader.
            Err(_) => sleep(CONNECT_AGAIN).await,
        }
    }
}

/// The gateway of a broker's process, from before its start until after its end.
#[derive(Debug, Default)]
pub struct GatewayBeside {
    stop: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Absent,
    Serving(JoinHandle<()>),
    Failed(Failure),
}

impl State {
    /// The task of a gateway that serves. A failure stays.
    fn take_task(&mut self) -> Option<JoinHandle<()>> {
        match std::mem::take(self) {
            Self::Serving(task) => Some(task),
            state => {
                *self = state;
                None
            }
        }
    }
}

impl GatewayBeside {
    /// Serves on this port. Returns the address of MCP; `None`: the gateway has not started, and [`Self::failure`] says why.
    pub fn start(&self, settings: GatewaySettings, listener: TcpListener) -> Option<String> {
        let (state, address) = match serve(settings, listener, &self.stop) {
            Ok(serving) => {
                tracing::info!(mcp = serving.mcp, "serving the gateway");
                (State::Serving(serving.task), Some(serving.mcp))
            }
            Err(failure) => (State::Failed(failure), None),
        };
        *self.lock() = state;
        address
    }

    /// Ends the gateway: requests are answered, sessions are closed. Cuts off what takes longer than some seconds.
    pub async fn end(&self) {
        self.stop.cancel();
        let Some(task) = self.lock().take_task() else { return };
        let abort = task.abort_handle();
        if timeout(END_MAX, task).await.is_err() {
            tracing::warn!("the gateway did not end in time, and is cut off");
            abort.abort();
        }
    }

    /// Why the gateway has not started.
    pub fn failure(&self) -> Option<Failure> {
        match std::mem::take(&mut *self.lock()) {
            State::Failed(failure) => Some(failure),
            State::Absent | State::Serving(_) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_gateway_that_has_not_started_or_has_ended_ends_at_once_and_keeps_its_failure() {
        let beside = GatewayBeside::default();
        beside.end().await;
        *beside.lock() = State::Serving(tokio::spawn(async {}));
        beside.end().await;
        beside.end().await;
        assert!(beside.failure().is_none());
        *beside.lock() = State::Failed(Failure::failed("no"));
        beside.end().await;
        assert!(beside.failure().is_some());
    }

    #[test]
    fn lists_have_commas_and_a_wrong_entry_is_named_with_its_key() {
        let lists = Lists::read("agents.example, 10.0.0.5", "core,plans", "type:sums,kiri").map_err(drop).unwrap();
        assert_eq!(lists.hosts, ["agents.example", "10.0.0.5"]);
        assert_eq!((lists.tools.len(), lists.published.len()), (2, 2));
        assert_eq!(check_gateway_lists("", "core", ""), Ok(()));
        for (hosts, tools, published, parts) in [
            ("a:1", "core", "", ["gateway.allow_hosts", "a:1"]),
            ("", "all", "", ["gateway.tools", "core, context"]),
            ("", " ,", "", ["gateway.tools", "empty"]),
            ("", "core", "type:", ["gateway.a2a_publish", "type:"]),
            ("", "core", "type:sums,sums", ["gateway.a2a_publish", "sums twice"]),
        ] {
            let problem = check_gateway_lists(hosts, tools, published).unwrap_err();
            assert!(parts.iter().all(|part| problem.contains(part)), "{problem}");
        }
    }
}
