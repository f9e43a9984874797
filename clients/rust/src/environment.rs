//! The connection and the identity of an agent, from the environment and the profiles of the command line.
//!
//! A variable takes precedence over the value of the profile, as for `baton`. A profile is a TOML file of `baton profile
//! add`. It names a private key by its path, and holds no secret.

use std::{
    collections::BTreeMap,
    fs, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use super::{ClientCertificate, ClientError, Options, parse_server};

/// The address of `baton dev`.
pub(super) const SERVER: &str = "127.0.0.1:22866";
/// The data folder of `baton dev`.
const LOCAL_DATA: &str = "baton-data";
/// The id of an agent's key, if nothing names it.
pub(super) const KEY_ID: &str = "k1";
/// The fields of a profile. The output format and the credentials in files are the command line's alone.
const FIELDS: [&str; 9] = ["ca", "cert", "cert_key", "id", "key", "key_id", "output", "server", "token_file"];

/// What the environment names.
#[derive(Debug)]
pub(super) struct Settings {
    pub broker: Options,
    pub agent_id: String,
    pub key: PathBuf,
    pub key_id: String,
}

/// The variables of a process, or of a test.
pub(super) struct Environment<'a>(pub &'a dyn Fn(&str) -> Option<String>);

/// A profile; without a file an empty one.
#[derive(Debug, Default)]
struct Profile {
    values: BTreeMap<String, String>,
    file: PathBuf,
}

impl Profile {
    fn value(&self, field: &str) -> Option<(String, String)> {
        let value = self.values.get(field).filter(|value| !value.is_empty())?;
        Some((value.clone(), format!("`{field}` of {}", self.file.display())))
    }
}

impl Environment<'_> {
    /// Reads the settings, with the profile that is named, or else in use. `profile` takes precedence over
    /// `BATON_PROFILE`.
    pub(super) fn settings(&self, profile: Option<&str>) -> Result<Settings, ClientError> {
        let saved = self.profile(profile)?;
        let server = match self.either("BATON_SERVER", &saved, "server") {
            Some((text, source)) => {
                parse_server(&text).map_err(|problem| wrong(format!("{source}: {text} {problem}")))?
            }
            None => SERVER.to_owned(),
        };
        let (agent_id, key, key_id) = self.identity(&saved)?;
        let ca = match self.either("BATON_CA", &saved, "ca") {
            Some((file, source)) => Some(checked_ca(PathBuf::from(file), &source)?),
            None => local_ca(&server),
        };
        let token = self.variable("BATON_TOKEN").map(|token| token.trim().to_owned());
        let broker = Options { server, ca, token, certificate: self.certificate()?, ..Options::default() };
        Ok(Settings { broker, agent_id, key, key_id })
    }

    /// A variable. An empty one counts as absent.
    fn variable(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    /// A value, and where it is from: the variable, else the field of the profile.
    fn either(&self, variable: &str, saved: &Profile, field: &str) -> Option<(String, String)> {
        self.variable(variable).map(|value| (value, variable.to_owned())).or_else(|| saved.value(field))
    }

    fn profile(&self, named: Option<&str>) -> Result<Profile, ClientError> {
        let folder = self.folder();
        let (name, source) = match (named, self.variable("BATON_PROFILE"), &folder) {
            (Some(name), _, _) => (name.to_owned(), "the profile".to_owned()),
            (None, Some(name), _) => (name, "BATON_PROFILE".to_owned()),
            (None, None, Some(folder)) => match current(&folder.join("current"))? {
                Some(name) => (name, folder.join("current").display().to_string()),
                None => return Ok(Profile::default()),
            },
            (None, None, None) => return Ok(Profile::default()),
        };
        // A name becomes part of a path, so it must not lead out of the folder.
        let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
        let begins_well = name.starts_with(|first: char| first.is_ascii_alphanumeric());
        if !begins_well || name.len() > 64 || !name.chars().all(is_of_name) {
            let rule = "1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or a digit";
            return Err(wrong(format!("{source}: {name:?} is not a name: {rule}")));
        }
        let Some(folder) = folder else {
            return Err(wrong(format!("{source}: there is no folder for profiles: set HOME or XDG_CONFIG_HOME")));
        };
        read_profile(folder.join(format!("{name}.toml")), &format!("{source} names {name}"))
    }

    /// The folder of all profiles.
    fn folder(&self) -> Option<PathBuf> {
        let set = |name| self.variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
        Some(base.join("baton/profiles"))
    }

    /// The agent's id, the file of its key and the key's id.
    fn identity(&self, saved: &Profile) -> Result<(String, PathBuf, String), ClientError> {
        let key_id = self.variable("BATON_AGENT_KEY_ID");
        // A variable alone does not borrow the other value: the key of a profile is another agent's.
        match (self.variable("BATON_AGENT_ID"), self.variable("BATON_AGENT_KEY")) {
            (Some(id), Some(key)) => {
                let key = checked_private(PathBuf::from(key), "BATON_AGENT_KEY")?;
                Ok((id, key, key_id.unwrap_or_else(|| KEY_ID.to_owned())))
            }
            (None, None) => match (saved.value("id"), saved.value("key")) {
                (Some((id, _)), Some((key, source))) => {
                    let key = checked_private(PathBuf::from(key), &source)?;
                    let key_id = key_id.or_else(|| saved.value("key_id").map(|(key_id, _)| key_id));
                    Ok((id, key, key_id.unwrap_or_else(|| KEY_ID.to_owned())))
                }
                _ => Err(without_identity(saved)),
            },
            (id, _) => {
                let (given, absent) = if id.is_some() { ("id", "key") } else { ("key", "id") };
                let advice = "set both BATON_AGENT_ID and BATON_AGENT_KEY";
                Err(wrong(format!("the agent's {given} is set, but not its {absent}: {advice}")))
            }
        }
    }

    fn certificate(&self) -> Result<Option<ClientCertificate>, ClientError> {
        match (self.variable("BATON_CERT"), self.variable("BATON_CERT_KEY")) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => {
                let key = checked_private(PathBuf::from(key), "BATON_CERT_KEY")?;
                Ok(Some(ClientCertificate { certificate: PathBuf::from(certificate), key }))
            }
            (certificate, _) => {
                let absent = if certificate.is_some() { "BATON_CERT_KEY" } else { "BATON_CERT" };
                Err(wrong(format!("{absent} is absent: set both BATON_CERT and BATON_CERT_KEY, or neither")))
            }
        }
    }
}

fn wrong(problem: String) -> ClientError {
    ClientError::Settings(problem)
}

fn without_identity(saved: &Profile) -> ClientError {
    let which = match saved.file.as_os_str().is_empty() {
        true => "no agent is named, and no profile is in use".to_owned(),
        false => format!("{} names no agent", saved.file.display()),
    };
    let profile = "`baton profile add NAME --id AGENT --key FILE --use`";
    wrong(format!("{which}: set BATON_AGENT_ID, and BATON_AGENT_KEY to a file of `baton keygen`, or run {profile}"))
}

/// The profile that `baton profile use` has chosen; `None`: none is chosen.
fn current(file: &Path) -> Result<Option<String>, ClientError> {
    match fs::read_to_string(file) {
        Ok(name) => Ok(Some(name.trim().to_owned()).filter(|name| !name.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(wrong(format!("{}: {error}; `baton profile use` writes it", file.display()))),
    }
}

fn read_profile(file: PathBuf, source: &str) -> Result<Profile, ClientError> {
    let shown = file.display();
    let unusable = |problem: &dyn std::fmt::Display| {
        wrong(format!("{shown}: {problem}; `baton profile add --replace` writes it anew"))
    };
    let text = fs::read_to_string(&file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let advice = "`baton profile list` lists the profiles, and `baton profile add` makes one";
            wrong(format!("{source}, but there is no {shown}; {advice}"))
        }
        _ => unusable(&error),
    })?;
    // The file decides where this program connects.
    if let Some(mode) = mode_for_others(&file, false) {
        let problem = format!("other users can read or change this file (mode {mode:04o}); run chmod 600 {shown}");
        return Err(wrong(format!("{shown}: {problem}")));
    }
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| unusable(&error.message()))?;
    let mut values = BTreeMap::new();
    for (name, value) in table {
        // A misspelt name would leave a default in force, for example another broker.
        if !FIELDS.contains(&name.as_str()) {
            return Err(wrong(format!("{shown}: unknown field `{name}`; a profile has {}", FIELDS.join(", "))));
        }
        let toml::Value::String(text) = value else { return Err(unusable(&format!("`{name}` is not a text"))) };
        values.insert(name, text);
    }
    Ok(Profile { values, file })
}

fn checked_ca(file: PathBuf, source: &str) -> Result<PathBuf, ClientError> {
    let shown = file.display();
    let text = fs::read_to_string(&file).map_err(|error| {
        let advice = "`baton dev` creates a CA in its data folder, tls/ca.pem";
        wrong(format!("{source}: {shown}: {error}; {advice}"))
    })?;
    // TLS would accept an empty file and then trust no server.
    if !text.contains("-----BEGIN CERTIFICATE-----") {
        let problem = "has no certificate; a CA file has a BEGIN CERTIFICATE line";
        return Err(wrong(format!("{source}: {shown} {problem}")));
    }
    Ok(file)
}

/// Refuses the caller's own private key file if other users can read it, as ssh does.
pub(super) fn checked_private(file: PathBuf, source: &str) -> Result<PathBuf, ClientError> {
    let shown = file.display();
    match mode_for_others(&file, true) {
        Some(mode) => {
            let problem = format!("other users can read this private key (mode {mode:04o}); run chmod 600 {shown}");
            Err(wrong(format!("{source}: {shown}: {problem}")))
        }
        None => Ok(file),
    }
}

/// The mode of a file that other users can read or change. With `own` only of a file whose mode the caller can change.
#[cfg(unix)]
fn mode_for_others(file: &Path, own: bool) -> Option<u32> {
    use std::os::unix::fs::MetadataExt as _;
    // The read of the file says why there is no status.
    let status = fs::metadata(file).ok()?;
    let mode = status.mode() & 0o777;
    let is_own = || rustix::process::geteuid().as_raw() == status.uid();
    (mode & 0o077 != 0 && (!own || is_own())).then_some(mode)
}

#[cfg(not(unix))]
fn mode_for_others(_: &Path, _: bool) -> Option<u32> {
    None
}

/// The CA of `./baton-data`, if the broker that runs on it listens at this address.
pub(super) fn local_ca(server: &str) -> Option<PathBuf> {
    let data = std::path::absolute(LOCAL_DATA).ok()?;
    let ca = data.join("tls/ca.pem");
    let address = fs::read_to_string(data.join("address")).ok()?;
    (ca.exists() && listens_at(address.trim(), server)).then_some(ca)
}

/// Whether HOST:PORT is this address. No name except localhost is resolved: it may name another machine.
fn listens_at(address: &str, server: &str) -> bool {
    let Ok(listening) = address.parse::<SocketAddr>() else { return false };
    let Some((host, port)) = server.rsplit_once(':') else { return false };
    let own = listening.ip();
    let is_asked = |asked: IpAddr| asked == own || (own.is_unspecified() && asked.is_loopback());
    port == listening.port().to_string()
        && match host {
            "localhost" => own.is_loopback() || own.is_unspecified(),
            host => host.trim_matches(['[', ']']).parse().is_ok_and(is_asked),
        }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    struct Home(tempfile::TempDir);

    impl Home {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn file(&self, name: &str, text: &str, mode: u32) -> String {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path.to_str().unwrap().to_owned()
        }

        fn read(&self, variables: &[(&str, &str)], profile: Option<&str>) -> Result<Settings, String> {
            let home = self.0.path().to_str().unwrap();
            let variable = |name: &str| {
                let given = variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
                given.or_else(|| (name == "XDG_CONFIG_HOME").then(|| home.to_owned()))
            };
            Environment(&variable).settings(profile).map_err(|error| error.to_string())
        }
    }

    #[test]
    fn a_variable_takes_precedence_over_the_profile() {
        let home = Home::new();
        let key = home.file("bob.pem", "", 0o600);
        let text = format!("server = \"broker:1\"\nid = \"bob\"\nkey = {key:?}\nkey_id = \"k2\"\noutput = \"json\"\n");
        home.file("baton/profiles/prod.toml", &text, 0o600);
        home.file("baton/profiles/current", "prod\n", 0o600);
        let found = home.read(&[("BATON_CA", "")], None).unwrap();
        assert_eq!((&*found.agent_id, &*found.key_id, &*found.broker.server), ("bob", "k2", "broker:1"));
        let other = [("BATON_SERVER", "other:2"), ("BATON_AGENT_ID", "eve"), ("BATON_AGENT_KEY", &key)];
        let found = home.read(&other, Some("prod")).unwrap();
        assert_eq!((&*found.agent_id, &*found.key_id, &*found.broker.server), ("eve", "k1", "other:2"));
        let alone = home.read(&[("BATON_AGENT_ID", "eve")], None).unwrap_err();
        assert!(alone.contains("set both BATON_AGENT_ID and BATON_AGENT_KEY"), "{alone}");
    }

    #[test]
    fn a_setting_that_cannot_be_used_is_named() {
        let home = Home::new();
        let key = home.file("bob.pem", "", 0o600);
        let shared = home.file("shared.pem", "", 0o644);
        let empty = home.file("ca.pem", "", 0o644);
        home.file("baton/profiles/odd.toml", "sever = \"broker:1\"\n", 0o600);
        home.file("baton/profiles/open.toml", "", 0o644);
        let agent = ("BATON_AGENT_ID", "bob");
        let cases: [(&[(&str, &str)], &str); 9] = [
            (&[], "no agent is named, and no profile is in use: set BATON_AGENT_ID"),
            (&[agent, ("BATON_AGENT_KEY", &shared)], "chmod 600"),
            (&[agent, ("BATON_AGENT_KEY", &key), ("BATON_SERVER", "broker")], "BATON_SERVER: broker has no port"),
            (&[agent, ("BATON_AGENT_KEY", &key), ("BATON_CA", &empty)], "BATON_CA"),
            (&[agent, ("BATON_AGENT_KEY", &key), ("BATON_CERT", "c.pem")], "BATON_CERT_KEY is absent"),
            (&[("BATON_PROFILE", "odd")], "unknown field `sever`"),
            (&[("BATON_PROFILE", "open")], "other users can read or change this file"),
            (&[("BATON_PROFILE", "none")], "BATON_PROFILE names none, but there is no"),
            (&[("BATON_PROFILE", "../odd")], "is not a name"),
        ];
        for (variables, expected) in cases {
            let problem = home.read(variables, None).unwrap_err();
            assert!(problem.contains(expected), "{variables:?}: {problem}");
        }
    }

    #[test]
    fn the_ca_of_the_folder_is_for_its_own_broker_alone() {
        for (address, server, is_it) in [
            ("127.0.0.1:22866", "localhost:22866", true),
            ("0.0.0.0:22866", "127.0.0.1:22866", true),
            ("127.0.0.1:22866", "127.0.0.1:1", false),
            ("127.0.0.1:22866", "broker.example:22866", false),
            ("[::1]:22866", "[::1]:22866", true),
        ] {
            assert_eq!(listens_at(address, server), is_it, "{server} at {address}");
        }
    }
}
