//! Profiles of the command line: which files they are, which one is in use, and how it fills in flags.
//!
//! A profile is a TOML file that only its user can read. It names a private key, a token and a certificate by
//! their paths, and holds no secret. Its values are defaults: flags and environment variables take precedence.

use std::{
    ffi::OsString,
    fs,
    io::{ErrorKind, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use clap::{Arg, Command, builder::ArgPredicate, builder::OsStr};
use serde::{Deserialize, Serialize};

use super::Failure;

/// The environment variable that names the profile to use.
pub(super) const VARIABLE: &str = "BATON_PROFILE";
/// The file that names the profile in use.
const CURRENT: &str = "current";

/// The name of a profile: 1 to 64 characters of `A-Z a-z 0-9 . _ -`, the first a letter or a digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name(String);

impl std::str::FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
        let begins_well = text.starts_with(|first: char| first.is_ascii_alphanumeric());
        // A name becomes part of a path, so it must not lead out of the folder.
        if !begins_well || text.len() > 64 || !text.chars().all(is_of_name) {
            return Err("is not a name: 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or a digit".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The values of a profile. Each is a default of the flag with its name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ca: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cert: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cert_key: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output: Option<String>,
}

impl Saved {
    /// The command with these values as the defaults of its flags. The flags of an identity are no longer required.
    pub(super) fn as_defaults_of(&self, command: Command) -> Command {
        command.mut_args(|arg| self.as_default_of(arg)).mut_subcommands(|below| self.as_defaults_of(below))
    }

    fn as_default_of(&self, arg: Arg) -> Arg {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| OsStr::from(path.clone().into_os_string()));
        let text = |text: &Option<String>| text.as_ref().map(|text| OsStr::from(text.clone()));
        let value = match arg.get_id().as_str() {
            "server" => text(&self.server),
            "ca" => path(&self.ca),
            "token_file" => path(&self.token_file),
            "cert" => path(&self.cert),
            "cert_key" => path(&self.cert_key),
            "output" => text(&self.output),
            "acting_id" => text(&self.id),
            "acting_key" => path(&self.key),
            "acting_key_id" => {
                // The name belongs to the saved key, and not to a key that a flag names.
                let is_given = |arg: Arg| arg.default_value_if("acting_key", ArgPredicate::IsPresent, "k1");
                return match text(&self.key_id) {
                    Some(name) => is_given(arg.default_value(name)),
                    None => arg,
                };
            }
            _ => None,
        };
        match value {
            Some(value) => arg.required(false).default_value(value),
            None => arg,
        }
    }
}

/// The profile that a command uses.
#[derive(Debug)]
pub(super) struct Chosen {
    /// Its name.
    pub(super) name: Name,
    /// Its values.
    pub(super) saved: Saved,
    /// Whether `--profile` or the environment names it. Otherwise `baton profile use` has chosen it earlier.
    pub(super) is_named: bool,
}

/// The profile that these arguments, the environment or the folder name. `None`: no one is in use.
///
/// # Errors
///
/// The name is invalid, or the file cannot be used.
pub(super) fn chosen(args: &[OsString]) -> Result<Option<Chosen>, Failure> {
    let in_environment = || std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
    let named = flag(args).or_else(in_environment);
    let is_named = named.is_some();
    let name = match named {
        Some(name) => name.parse::<Name>().map_err(|problem| Failure::usage(format!("--profile {name} {problem}")))?,
        None => match current()? {
            Some(name) => name,
            None => return Ok(None),
        },
    };
    Ok(Some(Chosen { saved: read(&name)?, name, is_named }))
}

/// The value of `--profile`. The flags of the command depend on it, so it is read before they are parsed.
fn flag(args: &[OsString]) -> Option<String> {
    let mut texts = args.iter().skip(1).map(|arg| arg.to_str().unwrap_or_default()).take_while(|arg| *arg != "--");
    while let Some(arg) = texts.next() {
        if arg == "--profile" {
            return texts.next().map(str::to_owned);
        }
        if let Some(name) = arg.strip_prefix("--profile=") {
            return Some(name.to_owned());
        }
    }
    None
}

/// The folder of all profiles: `$XDG_CONFIG_HOME/baton/profiles`, or `~/.config/baton/profiles`.
fn folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(base.join("baton/profiles"))
}

fn some_folder() -> Result<PathBuf, Failure> {
    folder().ok_or_else(|| Failure::usage("there is no folder for profiles: set HOME or XDG_CONFIG_HOME"))
}

fn file_of(folder: &Path, name: &Name) -> PathBuf {
    folder.join(format!("{name}.toml"))
}

/// The profile that `baton profile use` has chosen. `None`: no one is chosen.
pub(super) fn current() -> Result<Option<Name>, Failure> {
    let Some(path) = folder().map(|folder| folder.join(CURRENT)) else { return Ok(None) };
    match fs::read_to_string(&path) {
        Ok(name) => name.trim().parse().map(Some).map_err(|problem| Failure::file(&path, problem)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::file(&path, error)),
    }
}

/// Chooses a profile for the commands to come. `None`: chooses none.
pub(super) fn choose(name: Option<&Name>) -> Result<(), Failure> {
    let folder = some_folder()?;
    match name {
        Some(name) => {
            read(name)?;
            write(&folder, &folder.join(CURRENT), &format!("{name}\n"), true)
        }
        None => match fs::remove_file(folder.join(CURRENT)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Failure::file(&folder.join(CURRENT), error)),
            Ok(()) | Err(_) => Ok(()),
        },
    }
}

/// All profiles, by name.
pub(super) fn all() -> Result<Vec<(Name, Saved)>, Failure> {
    let Some(folder) = folder() else { return Ok(Vec::new()) };
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::file(&folder, error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(|error| Failure::file(&folder, error))?.file_name();
        // Other files in the folder are none of this command's.
        let name = name.to_str().and_then(|name| name.strip_suffix(".toml")?.parse::<Name>().ok());
        names.extend(name);
    }
    names.sort();
    names.into_iter().map(|name| Ok((name.clone(), read(&name)?))).collect()
}

pub(super) fn read(name: &Name) -> Result<Saved, Failure> {
    let path = file_of(&some_folder()?, name);
    let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => none(&path, name),
        _ => Failure::file(&path, error),
    })?;
    check_own(&path)?;
    toml::from_str(&text).map_err(|error| Failure::file(&path, error))
}

/// Refuses a file that other users can read or change: it decides where the commands of this user go.
fn check_own(path: &Path) -> Result<(), Failure> {
    let mode = fs::metadata(path).map_err(|error| Failure::file(path, error))?.mode() & 0o777;
    match mode & 0o077 {
        0 => Ok(()),
        _ => {
            let shown = path.display();
            Err(Failure::file(
                path,
                format!("other users can read or change this file (mode {mode:04o}); run chmod 600 {shown}"),
            ))
        }
    }
}

/// Saves a profile. An existing one is refused unless `replace`.
pub(super) fn save(name: &Name, saved: &Saved, replace: bool) -> Result<PathBuf, Failure> {
    let folder = some_folder()?;
    let path = file_of(&folder, name);
    let text = toml::to_string(saved).map_err(|error| Failure::failed(error.to_string()))?;
    write(&folder, &path, &text, replace)?;
    Ok(path)
}

/// The file of a profile.
pub(super) fn path(name: &Name) -> Result<PathBuf, Failure> {
    Ok(file_of(&some_folder()?, name))
}

/// Removes a profile. If it is in use, no profile is in use any more.
pub(super) fn remove(name: &Name) -> Result<(), Failure> {
    let path = path(name)?;
    fs::remove_file(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => none(&path, name),
        _ => Failure::file(&path, error),
    })?;
    if current()?.as_ref() == Some(name) { choose(None) } else { Ok(()) }
}

fn none(path: &Path, name: &Name) -> Failure {
    Failure::file(path, format!("no profile has the name {name}; `baton profile list` lists them"))
}

/// Writes a file of mode 0600 as a whole or not at all.
fn write(folder: &Path, path: &Path, text: &str, replace: bool) -> Result<(), Failure> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| Failure::file(folder, error))?;
    // A temporary file has mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|error| Failure::file(folder, error))?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all());
    written.map_err(|error| Failure::file(path, error))?;
    if replace {
        return file.persist(path).map(drop).map_err(|error| Failure::file(path, error.error));
    }
    file.persist_noclobber(path).map(drop).map_err(|error| match error.error.kind() {
        ErrorKind::AlreadyExists => Failure::usage("a profile has this name; --replace replaces it"),
        _ => Failure::file(path, error.error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        ["baton"].iter().chain(words).map(OsString::from).collect()
    }

    #[test]
    fn the_flag_is_found_wherever_it_stands() {
        for args in [&["--profile", "prod", "task", "list"][..], &["task", "list", "--profile=prod"]] {
            assert_eq!(flag(&words(args)).as_deref(), Some("prod"), "{args:?}");
        }
        for args in [&["task", "list"][..], &["task", "--", "--profile", "prod"], &["task", "--profile"]] {
            assert_eq!(flag(&words(args)), None, "{args:?}");
        }
    }

    #[test]
    fn a_name_cannot_lead_out_of_the_folder() {
        for bad in ["", "..", ".hidden", "a/b", "../prod", "a b", &"x".repeat(65)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
        assert_eq!("prod-1.eu".parse::<Name>().unwrap().to_string(), "prod-1.eu");
    }

    #[test]
    fn a_saved_profile_comes_back_and_an_unknown_field_is_an_error() {
        let saved = Saved {
            server: Some("127.0.0.1:1".into()),
            ca: Some("/ca.pem".into()),
            token_file: Some("/operator.token".into()),
            cert: Some("/bob-tls.pem".into()),
            cert_key: Some("/bob-tls.key".into()),
            id: Some("bob".into()),
            key: Some("/bob.pem".into()),
            key_id: Some("k2".into()),
            output: Some("json".into()),
        };
        let text = toml::to_string(&saved).unwrap();
        assert_eq!(toml::from_str::<Saved>(&text).unwrap(), saved);
        assert!(toml::from_str::<Saved>("sever = \"127.0.0.1:1\"").is_err());
    }
}
