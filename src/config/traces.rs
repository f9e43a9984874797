//! `[traces]`: where spans go, and how many.

use serde::Deserialize;

use super::ConfigError;
use crate::traces::Options;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TracesSection {
    endpoint: Option<String>,
    sampling_ratio: Option<f64>,
}

impl TracesSection {
    pub(super) fn options(self) -> Options {
        Options { endpoint: self.endpoint, sampling_ratio: self.sampling_ratio }
    }
}

pub(super) fn to_toml(options: &Options) -> toml::Table {
    let mut section = toml::Table::new();
    section.extend(options.endpoint.clone().map(|endpoint| ("endpoint".to_owned(), endpoint.into())));
    section.extend(options.sampling_ratio.map(|ratio| ("sampling_ratio".to_owned(), ratio.into())));
    section
}

pub(super) fn check(options: &Options) -> Result<(), ConfigError> {
    match options.sampling_ratio {
        Some(ratio) if !(0.0..=1.0).contains(&ratio) => {
            Err(ConfigError::Refused(format!("traces.sampling_ratio is {ratio}, and must be from 0 to 1")))
        }
        Some(_) | None => Ok(()),
    }
}
