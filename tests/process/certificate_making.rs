//! Certificates that the program makes: of `baton serve --make-certificate`, and of `baton dev` for other machines.

use std::{fs, process::Command, sync::Arc};

use crate::{
    broker::{Broker, baton, exit_of, write},
    health::asked,
};

#[test]
fn a_broker_serves_with_the_certificate_that_serve_has_made() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let data = folder.path().join("data");
    let make = |names: &str| {
        let mut command = baton();
        command.args(["serve", "--make-certificate", names, "--data"]).arg(&data);
        command
    };
    let (code, _, stderr) = asked(&mut make("not a name"));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("not a name") && !data.join("tls").exists(), "{stderr}");

    let (code, said, stderr) = asked(&mut make("broker.test,10.1.2.3"));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(said.starts_with("Made a certificate for broker.test, 10.1.2.3 and localhost, valid"), "{said}");
    let file = |name: &str| data.join("tls").join(name);
    for name in ["ca.pem", "ca.key", "server.pem", "server.key"] {
        assert!(said.contains(file(name).to_str().unwrap()), "{said}");
    }
    let before = fs::read(file("server.pem")).unwrap();
    let (code, stderr) = exit_of(&mut make("other.test"));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("server.pem") && stderr.contains("never replaced"), "{stderr}");
    assert_eq!(fs::read(file("server.pem")).unwrap(), before);

    // The lines of the output are those of a configuration.
    let tls: String = said
        .lines()
        .skip_while(|line| line.trim() != "[tls]")
        .take(3)
        .map(|line| format!("{}\n", line.trim()))
        .collect();
    let text = format!("listen = \"127.0.0.1:0\"\ndata = {data:?}\n{tls}");
    write(&folder.path().join("baton.toml"), &text);
    let broker = Broker::serve_again(folder.clone());
    let mut health = baton();
    health.args(["health", "--server", &broker.address, "--ca"]).arg(file("ca.pem"));
    assert_eq!(asked(&mut health).1, "ready\n");
    // The configuration names the folder as well.
    let (code, stderr) =
        exit_of(baton().args(["serve", "--make-certificate", "a", "--config"]).arg(folder.path().join("baton.toml")));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("never replaced"), "{stderr}");
}

#[test]
fn a_certificate_for_this_machine_names_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut make = baton();
    make.args(["serve", "--make-certificate", "localhost", "--data"]).arg(folder.path());
    let (code, said, stderr) = asked(&mut make);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(said.starts_with("Made a certificate for localhost, valid"), "{said}");
}

#[test]
fn flags_of_certificates_that_do_not_go_together_are_wrong_usage() {
    for arguments in [
        &["serve"][..],
        &["serve", "--data", "d"],
        &["serve", "--make-certificate", "a"],
        &["serve", "--make-certificate", "a", "--data", "d", "--check"],
    ] {
        assert_eq!(exit_of(baton().args(arguments)).0, Some(2), "{arguments:?}");
    }
}

fn dev(folder: &tempfile::TempDir, arguments: &[&str]) -> Command {
    let mut command = baton();
    command.args(["dev", "--data"]).arg(folder.path().join("data")).args(arguments);
    command
}

#[test]
fn a_broker_for_development_is_for_other_machines_only_with_a_flag() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let (code, stderr) = exit_of(&mut dev(&folder, &["--listen", "0.0.0.0:0"]));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("loopback") && stderr.contains("--allow-network"), "{stderr}");
    for refused in ["--plaintext", "--allow-unsigned"] {
        let (code, stderr) = exit_of(&mut dev(&folder, &["--listen", "0.0.0.0:0", "--allow-network", refused]));
        assert_eq!(code, Some(3), "{stderr}");
        assert!(stderr.contains("loopback"), "{stderr}");
    }
    let command = dev(&folder, &["--listen", "0.0.0.0:0", "--allow-network", "--name", "broker.test,10.1.2.3"]);
    let broker = Broker::spawn(command, folder.clone());
    assert!(broker.log().contains("WARNING: every machine that reaches"), "{}", broker.log());
    // It is reached under its address, and its certificate has the names.
    let port = broker.address.rsplit_once(':').unwrap().1;
    let mut health = baton();
    health.args(["health", "--server", &format!("localhost:{port}"), "--ca"]).arg(broker.ca());
    assert_eq!(asked(&mut health).1, "ready\n");
    let pem = fs::read(broker.data().join("tls/server.pem")).unwrap();
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
    let certificate = pem.parse_x509().unwrap();
    let names = format!("{:?}", certificate.subject_alternative_name().unwrap().unwrap().value.general_names);
    assert!(names.contains("broker.test") && names.contains("10, 1, 2, 3"), "{names}");
}

#[test]
fn a_variable_of_the_environment_sets_a_key_and_check_says_so() {
    let folder = Broker::serve("", "").kill();
    let file = folder.path().join("baton.toml");
    let check = |name: &str, value: &str| {
        let mut command = baton();
        command.env(name, value).args(["serve", "--check", "--config"]).arg(&file);
        asked(&mut command)
    };
    let (code, said, stderr) = check("BATON__HANDOFF__ACCEPT_TIMEOUT", "7s");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(said.starts_with("# BATON__HANDOFF__ACCEPT_TIMEOUT sets handoff.accept_timeout\n"), "{said}");
    assert!(said.contains("accept_timeout = \"7s\"\n"), "{said}");
    let (code, _, stderr) = check("BATON__HANDOFF__ACEPT_TIMEOUT", "7s");
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("BATON__HANDOFF__ACEPT_TIMEOUT") && stderr.contains("acept_timeout"), "{stderr}");
    // A broker starts with the setting.
    let mut command = baton();
    command.env("BATON__CONSOLE__ENABLED", "true").args(["serve", "--config"]).arg(&file);
    let broker = Broker::spawn(command, folder);
    assert!(broker.log().contains("BATON__CONSOLE__ENABLED"), "{}", broker.log());
}
