//! Settings from the environment, which take precedence over the file: `BATON__SECTION__KEY`, or `BATON__KEY` for a key
//! outside of sections. Owns the names and the reading of values. Must not know any key: the file's own rules decide.

use std::{collections::BTreeMap, env, ffi::OsString};

use toml::{Table, Value};

use super::{ConfigError, file::File};

/// What all names begin with. No other variable of baton has two underscores there.
const PREFIX: &str = "BATON__";
const SEPARATOR: &str = "__";

/// The settings of the environment.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// By the name of the variable.
    settings: BTreeMap<String, Setting>,
}

#[derive(Debug, Clone)]
struct Setting {
    section: Option<String>,
    key: String,
    value: Value,
}

impl Setting {
    /// The key without the unit of its value: a span has two keys, of which one may be set.
    fn stem(&self) -> &str {
        self.key.strip_suffix("_ms").unwrap_or(&self.key)
    }

    fn table_of<'a>(&self, root: &'a mut Table) -> Option<&'a mut Table> {
        match &self.section {
            None => Some(root),
            Some(section) => root.entry(section.clone()).or_insert_with(|| Value::Table(Table::new())).as_table_mut(),
        }
    }
}

impl Overrides {
    /// Reads the environment of this process.
    ///
    /// # Errors
    ///
    /// A variable with the prefix has no key's name or a value that its key does not take, or two set the same key.
    pub fn from_environment() -> Result<Self, ConfigError> {
        Self::of(env::vars_os())
    }

    /// The settings among these variables. An empty value counts as none.
    pub(super) fn of(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, ConfigError> {
        let mut settings: BTreeMap<String, Setting> = BTreeMap::new();
        for (name, value) in variables {
            let name = name.to_string_lossy().into_owned();
            let Some(path) = name.strip_prefix(PREFIX) else { continue };
            if value.is_empty() {
                continue;
            }
            let refused = |problem: String| Err(ConfigError::Environment { name: name.clone(), problem });
            let Ok(value) = value.into_string() else { return refused("its value is not UTF-8".to_owned()) };
            let setting = match read(path, &value) {
                Ok(setting) => setting,
                Err(problem) => return refused(problem),
            };
            let same = |other: &&Setting| other.section == setting.section && other.stem() == setting.stem();
            if settings.values().any(|other| same(&other)) {
                let stem = setting.stem();
                return refused(format!("another variable sets {stem} too; one of the two must go"));
            }
            settings.insert(name, setting);
        }
        Ok(Self { settings })
    }

    /// Whether the environment sets nothing.
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty()
    }

    /// The names of the variables, sorted, each with its key.
    pub fn names(&self) -> impl Iterator<Item = (&str, String)> {
        self.settings.iter().map(|(name, setting)| {
            let section = setting.section.as_ref().map(|section| format!("{section}.")).unwrap_or_default();
            (name.as_str(), format!("{section}{}", setting.key))
        })
    }

    /// Puts the settings into the table of a file. A key replaces both spellings of a span.
    pub(super) fn apply(&self, table: &mut Table) {
        for setting in self.settings.values() {
            // A file in which the section is no table is refused when it is read.
            let Some(section) = setting.table_of(table) else { continue };
            section.remove(setting.stem());
            section.remove(&format!("{}_ms", setting.stem()));
            section.insert(setting.key.clone(), setting.value.clone());
        }
    }
}

/// Reads one setting: the type of the key decides what the text is.
fn read(path: &str, text: &str) -> Result<Setting, String> {
    let is_name = |part: &str| {
        let letters = |letter: u8| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == b'_';
        !part.is_empty() && part.bytes().all(letters)
    };
    let parts: Vec<&str> = path.split(SEPARATOR).collect();
    let (section, key) = match parts[..] {
        [key] if is_name(key) => (None, key),
        [section, key] if is_name(section) && is_name(key) => (Some(section), key),
        _ => return Err("its name is neither BATON__KEY nor BATON__SECTION__KEY in upper case".to_owned()),
    };
    let (section, key) = (section.map(str::to_ascii_lowercase), key.to_ascii_lowercase());
    let mut problem = String::new();
    for value in candidates(text) {
        let setting = Setting { section: section.clone(), key: key.clone(), value };
        match fits(&setting) {
            Ok(()) => return Ok(setting),
            // That of the text itself, which comes last, says what the key takes.
            Err(found) => problem = found,
        }
    }
    Err(problem)
}

/// What the text can be: a truth value or a number if it reads as one, and always a text.
fn candidates(text: &str) -> Vec<Value> {
    let boolean = text.parse().ok().map(Value::Boolean);
    let integer = text.parse().ok().map(Value::Integer);
    let float = text.parse().ok().filter(|number: &f64| number.is_finite()).map(Value::Float);
    [boolean, integer, float, Some(Value::String(text.to_owned()))].into_iter().flatten().collect()
}

/// Whether a file may have this setting.
fn fits(setting: &Setting) -> Result<(), String> {
    // A section with keys that are required must have them beside this one.
    let mut table: Table = toml::from_str(
        "tls = { certificate = '', key = '' }\noperators = { keys = '', audience = '' }\npolicy = { path = '' }",
    )
    .expect("it is TOML");
    let Some(section) = setting.table_of(&mut table) else { return Err("it names no key".to_owned()) };
    section.insert(setting.key.clone(), setting.value.clone());
    let read: Result<File, toml::de::Error> = table.try_into();
    read.map(drop).map_err(|error| error.message().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use super::*;
    use crate::config::Config;

    const TLS: &str = "[tls]\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n";

    fn overrides(variables: &[(&str, &str)]) -> Result<Overrides, String> {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        Overrides::of(variables).map_err(|error| error.to_string())
    }

    fn config(text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
        let overrides = overrides(variables)?;
        Config::parse_with(Path::new("baton.toml"), text, &overrides).map_err(|error| error.to_string())
    }

    #[test]
    fn a_variable_takes_precedence_over_the_file() {
        let text = format!("listen = \"127.0.0.1:1\"\ndata = \"d\"\n{TLS}[handoff]\naccept_timeout = \"1s\"\n");
        let variables = [
            ("BATON__LISTEN", "127.0.0.1:2"),
            ("BATON__TLS__KEY", "other.pem"),
            ("BATON__TLS__ALLOW_PLAINTEXT", "true"),
            ("BATON__HANDOFF__ACCEPT_TIMEOUT_MS", "1500"),
            ("BATON__HANDOFF__WHOLE_TIMEOUT", "7m"),
            ("BATON__TRACES__SAMPLING_RATIO", "1"),
            ("BATON__LIMITS__MAILBOX_MAX", "5"),
            // A text, although it reads as a number.
            ("BATON__OPERATORS__AUDIENCE", "17"),
            ("BATON__OPERATORS__KEYS", "o"),
            // Other variables of baton, and those of a service named "baton" in Kubernetes.
            ("BATON_LOG", "debug"),
            ("BATON_DATA", "elsewhere"),
            ("BATON_PORT_22866_TCP", "tcp://10.0.0.1:22866"),
            // As an unset variable of a compose file is.
            ("BATON__METRICS__LISTEN", ""),
        ];
        let config = config(&text, &variables).unwrap();
        assert_eq!((config.listen.to_string().as_str(), config.data.to_str()), ("127.0.0.1:2", Some("d")));
        assert!(config.plaintext_allowed && config.metrics.is_none());
        assert_eq!(config.settings.timeouts.accept, Duration::from_millis(1500));
        assert_eq!(config.settings.timeouts.whole, Duration::from_secs(420));
        assert_eq!(config.settings.limits.mailbox_max, 5);
        assert_eq!(config.operators.unwrap().terms.audience, "17");
        let printed = format!("{:?}", config.tls);
        assert!(printed.contains("c.pem") && printed.contains("other.pem"), "{printed}");
    }

    #[test]
    fn required_keys_may_be_in_the_environment_alone() {
        let variables = [("BATON__TLS__CERTIFICATE", "c"), ("BATON__TLS__KEY", "k")];
        assert!(config("", &variables).is_ok());
        assert!(config("", &variables[..1]).unwrap_err().contains("key"));
    }

    #[test]
    fn a_variable_that_is_no_setting_is_refused_by_its_name() {
        for (name, value, part) in [
            ("BATON__LISTN", "127.0.0.1:1", "listn"),
            ("BATON__HANDOFF__NOTHING", "1", "nothing"),
            ("BATON__NOTHING__KEY", "1", "nothing"),
            ("BATON__", "1", "neither"),
            ("BATON__handoff__accept_timeout", "1s", "upper case"),
            ("BATON__HANDOFF__ACCEPT__TIMEOUT", "1s", "neither"),
            ("BATON__HANDOFF___ACCEPT_TIMEOUT", "1s", "_accept_timeout"),
            ("BATON__LISTEN__PORT", "1", "map"),
            ("BATON__LISTEN", "nowhere", "socket address"),
            ("BATON__TLS__ALLOW_PLAINTEXT", "yes", "boolean"),
            ("BATON__LIMITS__MAILBOX_MAX", "many", "many"),
            ("BATON__HANDOFF__ACCEPT_TIMEOUT", "30", "time unit"),
            ("BATON__TLS", "x", "invalid type"),
        ] {
            let error = overrides(&[(name, value)]).unwrap_err();
            assert!(error.contains(name) && error.contains(part), "{name}={value} gives {error:?}");
        }
        let both = [("BATON__HANDOFF__ACCEPT_TIMEOUT", "1s"), ("BATON__HANDOFF__ACCEPT_TIMEOUT_MS", "1000")];
        assert!(overrides(&both).unwrap_err().contains("another variable"));
    }

    #[test]
    fn the_bounds_hold_for_variables_too() {
        let error = config(TLS, &[("BATON__HANDOFF__HANDOFFS_MAX", "17")]).unwrap_err();
        assert!(error.contains("handoffs_max"), "{error}");
        let error = config(TLS, &[("BATON__LISTEN", "0.0.0.0:1"), ("BATON__ENROLLMENT", "open")]).unwrap_err();
        assert!(error.contains("loopback"), "{error}");
    }

    #[test]
    fn a_broken_file_is_still_refused_with_its_line() {
        let error = config(&format!("listen = \"nowhere\"\n{TLS}"), &[("BATON__DATA", "d")]).unwrap_err();
        assert!(error.contains("line 1"), "{error}");
    }
}
