//! The section of the gateway in the broker's process.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{Config, ConfigError, TlsSource};

/// The address of a gateway, unless another is set.
pub const DEFAULT_GATEWAY_LISTEN: &str = "127.0.0.1:22869";
/// The folder of the gateway in the data folder, unless another is set.
const FOLDER: &str = "gateway";
/// The set of tools, unless others are set.
const TOOLS: &str = "core";

/// The gateway in the broker's process. Lists are texts with commas, as the flags of `baton gateway` have them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewaySettings {
    /// Whether the process has a gateway.
    pub enabled: bool,
    /// The listen address; port 0 selects a free port.
    pub listen: SocketAddr,
    /// The folder of the grants.
    pub data: PathBuf,
    /// The broker as the gateway reaches it, HOST:PORT. `None`: the broker's own address.
    pub server: Option<String>,
    /// The CA of the broker's certificate. `None`: that of the data folder, or the CAs of the system.
    pub ca: Option<PathBuf>,
    /// The certificate with its chain, and its private key. `None`: the broker's, or no TLS on a loopback address.
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

impl GatewaySettings {
    /// The defaults, for a broker with this data folder.
    pub(super) fn of_data(data: &Path) -> Self {
        Self {
            enabled: false,
            listen: DEFAULT_GATEWAY_LISTEN.parse().expect("the default is an address"),
            data: data.join(FOLDER),
            server: None,
            ca: None,
            tls: None,
            allow_hosts: String::new(),
            tools: TOOLS.to_owned(),
            a2a_publish: String::new(),
            a2a_push: false,
            allow_local_targets: false,
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GatewaySection {
    enabled: Option<bool>,
    listen: Option<SocketAddr>,
    data: Option<PathBuf>,
    server: Option<String>,
    ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    allow_hosts: Option<String>,
    tools: Option<String>,
    a2a_publish: Option<String>,
    a2a_push: Option<bool>,
    allow_local_targets: Option<bool>,
}

impl GatewaySection {
    /// The settings of the section, with its defaults and before its checks.
    pub(super) fn settings(self, data: &Path) -> Result<GatewaySettings, ConfigError> {
        let defaults = GatewaySettings::of_data(data);
        let tls = match (self.tls_cert, self.tls_key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(ConfigError::Refused("gateway.tls_cert and gateway.tls_key need each other".to_owned())),
        };
        Ok(GatewaySettings {
            enabled: self.enabled.unwrap_or(defaults.enabled),
            listen: self.listen.unwrap_or(defaults.listen),
            data: self.data.unwrap_or(defaults.data),
            server: self.server,
            ca: self.ca,
            tls,
            allow_hosts: self.allow_hosts.unwrap_or(defaults.allow_hosts),
            tools: self.tools.unwrap_or(defaults.tools),
            a2a_publish: self.a2a_publish.unwrap_or(defaults.a2a_publish),
            a2a_push: self.a2a_push.unwrap_or(defaults.a2a_push),
            allow_local_targets: self.allow_local_targets.unwrap_or(defaults.allow_local_targets),
        })
    }

    /// The section of these settings.
    pub(super) fn of(settings: &GatewaySettings) -> Self {
        let settings = settings.clone();
        let (tls_cert, tls_key) = settings.tls.unzip();
        Self {
            enabled: Some(settings.enabled),
            listen: Some(settings.listen),
            data: Some(settings.data),
            server: settings.server,
            ca: settings.ca,
            tls_cert,
            tls_key,
            allow_hosts: Some(settings.allow_hosts),
            tools: Some(settings.tools),
            a2a_publish: Some(settings.a2a_publish),
            a2a_push: Some(settings.a2a_push),
            allow_local_targets: Some(settings.allow_local_targets),
        }
    }
}

/// Checks what the keys of the section need beside them.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let gateway = &config.gateway;
    let refused = |problem: &str| Err(ConfigError::Refused(problem.to_owned()));
    if gateway.a2a_push && gateway.a2a_publish.is_empty() {
        return refused("gateway.a2a_push needs gateway.a2a_publish");
    }
    let requires_certificates =
        matches!(&config.tls, TlsSource::Files { clients: Some(clients), .. } if clients.required);
    if gateway.enabled && requires_certificates {
        return refused(
            "gateway.enabled needs tls.client_certificate = \"optional\": the gateway in the broker's process has no client \
             certificate; `baton gateway` as a process of its own takes one with --cert and --cert-key",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        let text = format!("data = \"d\"\n[tls]\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n{text}");
        Config::parse("baton.toml".as_ref(), &text).map_err(|error| error.to_string())
    }

    #[test]
    fn there_is_none_unless_it_is_enabled_and_its_folder_is_in_the_data_folder() {
        let gateway = read("").unwrap().gateway;
        assert_eq!(
            (gateway.enabled, gateway.data.to_str(), gateway.tools.as_str()),
            (false, Some("d/gateway"), "core")
        );
        assert_eq!(gateway.listen.to_string(), DEFAULT_GATEWAY_LISTEN);
        assert!(read("[gateway]\nenabled = true\n").unwrap().gateway.enabled);
    }

    #[test]
    fn what_is_printed_is_read_as_the_same() {
        let text = "[gateway]\nenabled = true\nlisten = \"0.0.0.0:1\"\ndata = \"g\"\nserver = \"b.example:2\"\nca = \"a\"\n\
                    tls_cert = \"tc\"\ntls_key = \"tk\"\nallow_hosts = \"h\"\ntools = \"core,plans\"\na2a_publish = \"p\"\n\
                    a2a_push = true\nallow_local_targets = true\n";
        let config = read(text).unwrap();
        let printed = config.to_toml();
        for line in text.lines().skip(1) {
            assert!(printed.lines().any(|printed| printed == line), "{line} is not in {printed}");
        }
        assert_eq!(Config::parse("baton.toml".as_ref(), &printed).unwrap().gateway, config.gateway);
    }

    #[test]
    fn keys_that_lack_what_they_need_are_refused() {
        for (text, part) in [
            ("[gateway]\ntls_cert = \"c\"\n", "gateway.tls_key"),
            ("[gateway]\ntls_key = \"c\"\n", "gateway.tls_cert"),
            ("[gateway]\na2a_push = true\n", "gateway.a2a_publish"),
            ("[gateway]\nport = 1\n", "port"),
            ("client_ca = \"a\"\nclient_certificate = \"required\"\n[gateway]\nenabled = true\n", "client certificate"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{text:?} gives {error:?}");
        }
        let optional = "client_ca = \"a\"\n[gateway]\nenabled = true\n";
        assert!(read(optional).is_ok());
    }
}
