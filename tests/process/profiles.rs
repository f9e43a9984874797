//! Profiles: `--id`, `--key`, `--server`, `--ca` and credentials are given once.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use serde_json::Value;

use crate::broker::{Broker, baton, exit_of};

fn in_folder(config: &Path, args: &[&str]) -> Command {
    let mut command = baton();
    command.env("XDG_CONFIG_HOME", config).args(args);
    command
}

#[track_caller]
fn printed(mut command: Command) -> Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

/// A broker, a folder for profiles, and the agents alice and bob with a profile each.
fn world() -> (Broker, tempfile::TempDir) {
    let (broker, config) = (Broker::start(), tempfile::tempdir().unwrap());
    let ca = broker.data().join("tls/ca.pem");
    let token = fs::read_to_string(broker.data().join("operator.token")).unwrap();
    for agent in ["alice", "bob"] {
        let key = config.path().join(format!("{agent}.pem"));
        let (key, ca) = (key.to_str().unwrap(), ca.to_str().unwrap());
        let connection = ["--server", &broker.address, "--ca", ca];
        printed(in_folder(config.path(), &["keygen", "--out", key]));
        let mut register = in_folder(config.path(), &["agent", "register", "--id", agent, "--key", key]);
        register.args(connection).args(["--token", token.trim()]);
        printed(register);
        let mut add = in_folder(config.path(), &["profile", "add", agent, "--id", agent, "--key", key]);
        add.args(connection);
        printed(add);
    }
    (broker, config)
}

#[test]
fn a_handoff_needs_no_flags_for_the_connection() {
    let (_broker, config) = world();
    let config = config.path();
    printed(in_folder(config, &["profile", "use", "alice"]));
    let sent = printed(in_folder(config, &["handoff", "request", "--to", "bob", "--task", "t1"]));
    assert_eq!(sent["ownerId"], "alice", "{sent}");
    // The flag and the environment take precedence over the connection in use.
    let taken = printed(in_folder(config, &["--profile", "bob", "handoff", "accept", "t1"]));
    assert_eq!(taken["handoffState"], "HANDOFF_STATE_ACCEPTED", "{taken}");
    // A call without an identity of its own acts as the agent of the connection.
    let mut list = in_folder(config, &["task", "list"]);
    list.env("BATON_PROFILE", "alice");
    assert_eq!(printed(list)[0]["taskId"], "t1");
    let listed = printed(in_folder(config, &["profile", "list"]));
    assert_eq!((&listed[0]["name"], &listed[0]["isUsed"]), (&"alice".into(), &true.into()), "{listed}");
    assert_eq!((&listed[1]["name"], &listed[1]["isUsed"]), (&"bob".into(), &false.into()), "{listed}");
    printed(in_folder(config, &["profile", "use", "--none"]));
    let (code, stderr) = exit_of(&mut in_folder(config, &["handoff", "accept", "t1"]));
    assert!(code == Some(2) && stderr.contains("--id"), "{stderr}");
}

#[test]
fn the_files_are_private_and_a_shared_one_is_refused() {
    let (_broker, config) = world();
    let config = config.path();
    let file = config.join("baton/profiles/alice.toml");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let (code, stderr) = exit_of(&mut in_folder(config, &["--profile", "alice", "task", "list"]));
    assert!(code == Some(3) && stderr.contains("chmod 600"), "{stderr}");
}

#[test]
fn a_flag_for_the_agent_alone_does_not_borrow_the_saved_key() {
    let (_broker, config) = world();
    let mut command = in_folder(config.path(), &["--profile", "alice", "handoff", "accept", "t1", "--id", "bob"]);
    let (code, stderr) = exit_of(&mut command);
    assert!(code == Some(2) && stderr.contains("--key"), "{stderr}");
}

#[test]
fn bad_names_and_absent_files_are_refused_and_a_broken_file_can_be_replaced() {
    let (_broker, config) = world();
    let config = config.path();
    let refused = |args: &[&str]| exit_of(&mut in_folder(config, args));
    assert_eq!(refused(&["profile", "add", "../x", "--server", "127.0.0.1:1"]).0, Some(2));
    assert_eq!(refused(&["--profile", "../x", "task", "list"]).0, Some(2));
    assert_eq!(refused(&["profile", "use", "nowhere"]).0, Some(3));
    assert_eq!(refused(&["--profile", "nowhere", "task", "list"]).0, Some(3));
    let (code, stderr) = refused(&["profile", "add", "alice", "--server", "127.0.0.1:1"]);
    assert!(code == Some(2) && stderr.contains("--replace"), "{stderr}");
    assert_eq!(refused(&["profile", "add", "empty"]).0, Some(2));
    printed(in_folder(config, &["profile", "use", "alice"]));
    fs::write(config.join("baton/profiles/alice.toml"), "sever = \"x\"").unwrap();
    let (code, stderr) = refused(&["task", "list"]);
    assert!(code == Some(3) && stderr.contains("sever"), "{stderr}");
    assert_eq!(refused(&["--help"]).0, Some(0));
    printed(in_folder(config, &["profile", "add", "alice", "--server", "127.0.0.1:1", "--replace"]));
    printed(in_folder(config, &["profile", "list"]));
}

#[test]
fn a_profile_holds_a_token_file_and_is_shown_tested_and_removed() {
    let (broker, config) = world();
    let config = config.path();
    let (token, ca) = (broker.data().join("operator.token"), broker.data().join("tls/ca.pem"));
    let (token, ca) = (token.to_str().unwrap(), ca.to_str().unwrap());
    let connection = ["--server", &broker.address, "--ca", ca];
    let mut add = in_folder(config, &["profile", "add", "ops", "--token-file", token, "--use"]);
    add.args(connection);
    printed(add);
    // An operator's call, without a flag.
    printed(in_folder(config, &["audit"]));
    let shown = printed(in_folder(config, &["profile", "show"]));
    assert_eq!((&shown["name"], &shown["tokenFile"], &shown["isUsed"]), (&"ops".into(), &token.into(), &true.into()));
    let tested = printed(in_folder(config, &["profile", "test"]));
    assert_eq!((&tested["credentials"], &tested["agent"]), (&"token".into(), &Value::Null), "{tested}");
    let tested = printed(in_folder(config, &["profile", "test", "bob"]));
    assert_eq!((&tested["credentials"], &tested["agent"]), (&Value::Null, &"bob".into()), "{tested}");
    // A flag takes precedence over the token of the profile.
    let (code, stderr) = exit_of(&mut in_folder(config, &["audit", "--token", "wrong"]));
    assert!(code == Some(8) && stderr.contains("TOKEN_INVALID"), "{stderr}");
    // The token goes to the broker of the profile alone.
    let other = Broker::start();
    let mut at_other = in_folder(config, &["audit", "--server", &other.address, "--ca"]);
    let (code, stderr) = exit_of(at_other.arg(other.ca()));
    assert!(code == Some(8) && stderr.contains("IDENTITY_MISSING"), "{stderr}");

    let wrong = config.join("wrong.token");
    let wrong = wrong.to_str().unwrap();
    fs::write(wrong, "wrong\n").unwrap();
    let add_wrong = || {
        let mut add = in_folder(config, &["profile", "add", "wrong", "--token-file", wrong, "--replace"]);
        add.args(connection);
        exit_of(&mut add)
    };
    fs::set_permissions(wrong, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, stderr) = add_wrong();
    assert!(code == Some(3) && stderr.contains("other users can read this token"), "{stderr}");
    fs::set_permissions(wrong, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(add_wrong().0, Some(0));
    let (code, stderr) = exit_of(&mut in_folder(config, &["profile", "test", "wrong"]));
    assert!(code == Some(8) && stderr.contains("TOKEN_INVALID"), "{stderr}");

    printed(in_folder(config, &["profile", "rm", "ops"]));
    let (code, stderr) = exit_of(&mut in_folder(config, &["profile", "show"]));
    assert!(code == Some(2) && stderr.contains("no profile is in use"), "{stderr}");
    let (code, stderr) = exit_of(&mut in_folder(config, &["profile", "rm", "ops"]));
    assert!(code == Some(3) && stderr.contains("no profile has the name ops"), "{stderr}");
    // Its CA stays.
    let _folder = broker.kill();
    assert_eq!(exit_of(&mut in_folder(config, &["profile", "test", "bob"])).0, Some(9));
}

#[test]
fn context_is_not_the_flag_of_a_profile() {
    let config = tempfile::tempdir().unwrap();
    for arguments in [&["bench", "handoff", "--context", "none"][..], &["task", "list", "--context", "none"]] {
        let (code, stderr) = exit_of(&mut in_folder(config.path(), arguments));
        assert!(code == Some(2) && stderr.contains("unexpected argument '--context'"), "{stderr}");
    }
}
