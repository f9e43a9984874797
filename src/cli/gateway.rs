//! The gateway in the broker's process: its settings, from those of the broker.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use baton_cli::{Failure, GatewaySettings, check_gateway_files, check_gateway_lists};

use crate::{
    config::{self, Config, ConfigError},
    server::tls::TlsFiles,
};

/// Checks the lists of the settings, and the files that they name. The broker checks its own files.
pub(super) fn check(config: &Config) -> Result<(), Failure> {
    let gateway = &config.gateway;
    check_gateway_lists(&gateway.allow_hosts, &gateway.tools, &gateway.a2a_publish).map_err(ConfigError::Refused)?;
    match gateway.enabled {
        true => check_gateway_files(gateway.ca.as_deref(), gateway.tls.as_ref()),
        false => Ok(()),
    }
}

/// The settings of the gateway of a broker with this bound address and this certificate.
pub(super) fn settings(
    gateway: config::GatewaySettings,
    broker: SocketAddr,
    certificate: &TlsFiles,
) -> GatewaySettings {
    let own_ca = certificate.certificate.with_file_name("ca.pem");
    // A token must not travel without TLS, except within this machine.
    let own_tls =
        (!gateway.listen.ip().is_loopback()).then(|| (certificate.certificate.clone(), certificate.key.clone()));
    GatewaySettings {
        server: gateway.server.unwrap_or_else(|| reached(broker).to_string()),
        ca: gateway.ca.or_else(|| own_ca.exists().then_some(own_ca)),
        data: gateway.data,
        tls: gateway.tls.or(own_tls),
        allow_hosts: gateway.allow_hosts,
        tools: gateway.tools,
        a2a_publish: gateway.a2a_publish,
        a2a_push: gateway.a2a_push,
        allow_local_targets: gateway.allow_local_targets,
    }
}

/// The address by which a program on this machine reaches the broker.
fn reached(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        let text = format!("data = \"d\"\n[tls]\ncertificate = \"c\"\nkey = \"k\"\n[gateway]\nenabled = true\n{text}");
        Config::parse("baton.toml".as_ref(), &text).unwrap()
    }

    #[test]
    fn the_gateway_reaches_the_broker_on_this_machine_and_has_its_certificate_where_others_reach_it() {
        for (text, bound, server, tls) in [
            ("", "0.0.0.0:7", "127.0.0.1:7", None),
            ("", "[::]:7", "[::1]:7", None),
            ("", "10.0.0.5:7", "10.0.0.5:7", None),
            ("server = \"b.example:1\"\n", "0.0.0.0:7", "b.example:1", None),
            ("listen = \"0.0.0.0:1\"\n", "127.0.0.1:7", "127.0.0.1:7", Some(("c", "k"))),
            ("tls_cert = \"tc\"\ntls_key = \"tk\"\n", "127.0.0.1:7", "127.0.0.1:7", Some(("tc", "tk"))),
        ] {
            let own = TlsFiles { certificate: "c".into(), key: "k".into() };
            let settings = settings(config(text).gateway, bound.parse().unwrap(), &own);
            let tls = tls.map(|(certificate, key)| (certificate.into(), key.into()));
            assert_eq!((settings.server.as_str(), settings.tls), (server, tls), "{text:?} {bound}");
        }
    }

    #[test]
    fn the_ca_is_the_one_beside_the_certificate_unless_another_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let own = TlsFiles { certificate: folder.path().join("server.pem"), key: folder.path().join("server.key") };
        let ca = |text: &str| settings(config(text).gateway, "127.0.0.1:7".parse().unwrap(), &own).ca;
        assert_eq!(ca(""), None);
        std::fs::write(folder.path().join("ca.pem"), "").unwrap();
        assert_eq!((ca(""), ca("ca = \"o\"\n")), (Some(folder.path().join("ca.pem")), Some("o".into())));
    }

    #[test]
    fn lists_and_files_are_checked_before_the_start() {
        for (text, part) in [
            ("tools = \"all\"\n", "gateway.tools"),
            ("a2a_publish = \"a,type:a\"\n", "a twice"),
            ("ca = \"no/such/ca\"\n", "no/such/ca"),
            ("tls_cert = \"no/such/certificate\"\ntls_key = \"k\"\n", "no/such/certificate"),
        ] {
            let failure = check(&config(text)).unwrap_err();
            assert!(failure.code == 3 && failure.to_string().contains(part), "{text:?} gives {failure}");
        }
        check(&config("")).unwrap();
    }
}
