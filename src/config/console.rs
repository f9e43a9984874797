//! `[console]`: whether the port has the web console.

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConsoleSection {
    #[serde(default)]
    enabled: bool,
}

impl ConsoleSection {
    pub(super) const fn is_enabled(&self) -> bool {
        self.enabled
    }
}

pub(super) fn to_toml(is_enabled: bool) -> toml::Table {
    super::print::table([("enabled", is_enabled.into())])
}
