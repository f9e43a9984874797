//! `baton cluster check`: the promises P1 to P5 over the engine of an operator.

use std::sync::Arc;

use baton_cli::{Failure, exit, output::Output, say};
use baton_cluster::{
    conformance::{self, Fixture, Violation},
    log::{AppendError, Position, ReadError, Register, Settings, SharedLog, Unavailable, Version, WriteError},
    settings::{ClusterSettings, LogAddress},
};
use bytes::Bytes;
use serde_json::json;
use tonic::async_trait;

use super::{of_engine, open};
use crate::ids::{IdSource as _, SystemIds};

pub(super) async fn run(settings: &ClusterSettings, output: &Output) -> Result<(), Failure> {
    let found = open(settings).await?.log.settings().await.map_err(|error| of_engine(settings, &error))?;
    let tested = InEngine::new(settings);
    let checked = tested.check().await;
    tested.discard().await.map_err(|error| of_engine(settings, &error))?;
    if output.is_table() {
        for words in &found.unsafe_ones {
            say!("unsafe   {words}");
        }
        for words in &found.warnings {
            say!("warning  {words}");
        }
        match &checked {
            Ok(()) => say!("ok       {} keeps the promises of a shared log", settings.log),
            Err(violation) => say!("broken   {violation}"),
        }
    } else {
        let violation = checked.as_ref().err();
        let violation = violation.map(|violation| json!({ "promise": violation.law, "found": violation.found }));
        output.value(&json!({
            "log": settings.log.to_string(), "unsafe": found.unsafe_ones, "warnings": found.warnings, "violation": violation,
        }))?;
    }
    match (checked, found.unsafe_ones.len()) {
        (Err(violation), _) => {
            let problem = format!("the engine breaks a promise: {violation}");
            Err(Failure::new(exit::FAILED, problem).named("CASES_FAILED"))
        }
        (Ok(()), 0) => Ok(()),
        (Ok(()), many) => Err(Failure::new(exit::CONFIGURATION, format!("{many} settings of the engine are unsafe"))),
    }
}

/// Logs and registers that are made for one check.
struct InEngine {
    log: LogAddress,
    /// The beginning of their names.
    prefix: String,
    names: std::sync::Mutex<Vec<String>>,
}

impl InEngine {
    fn new(settings: &ClusterSettings) -> Self {
        let prefix = format!("check-{}", hex::encode(&SystemIds.random()[..8]));
        Self { log: settings.log.clone(), prefix, names: std::sync::Mutex::default() }
    }

    async fn check(&self) -> Result<(), Violation> {
        conformance::check_log(self).await?;
        conformance::check_register(self).await
    }

    fn name(&self, name: &str) -> String {
        let name = format!("{}-{name}", self.prefix);
        self.names.lock().expect("no holder panics").push(name.clone());
        name
    }

    /// Deletes all that the check has made.
    async fn discard(&self) -> Result<(), Unavailable> {
        let mut names = std::mem::take(&mut *self.names.lock().expect("no holder panics"));
        names.sort();
        names.dedup();
        for name in names {
            self.log.discard(&name).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Fixture for InEngine {
    async fn log(&self, name: &str) -> Arc<dyn SharedLog> {
        match self.log.open(&self.name(name)).await {
            Ok(engine) => engine.log,
            Err(error) => Arc::new(Lost(error)),
        }
    }

    async fn register(&self, name: &str) -> Arc<dyn Register> {
        match self.log.open(&self.name(name)).await {
            Ok(engine) => engine.register,
            Err(error) => Arc::new(Lost(error)),
        }
    }
}

/// An engine that was lost in the middle of the check: each call fails with this error.
struct Lost(Unavailable);

#[async_trait]
impl SharedLog for Lost {
    async fn append(&self, _: Position, _: Bytes) -> Result<(), AppendError> {
        Err(AppendError::Unknown(self.0.0.clone()))
    }

    async fn end(&self) -> Result<Position, Unavailable> {
        Err(self.0.clone())
    }

    async fn read(&self, _: Position, _: usize) -> Result<Vec<(Position, Bytes)>, ReadError> {
        Err(self.0.clone().into())
    }

    async fn trim(&self, _: Position) -> Result<(), Unavailable> {
        Err(self.0.clone())
    }

    async fn size_bytes(&self) -> Result<u64, Unavailable> {
        Err(self.0.clone())
    }

    fn entry_bytes_max(&self) -> usize {
        0
    }

    async fn settings(&self) -> Result<Settings, Unavailable> {
        Err(self.0.clone())
    }
}

#[async_trait]
impl Register for Lost {
    async fn read(&self, _: &str) -> Result<Option<(Version, Bytes)>, Unavailable> {
        Err(self.0.clone())
    }

    async fn write(&self, _: &str, _: Option<&Version>, _: Bytes) -> Result<Version, WriteError> {
        Err(WriteError::Unknown(self.0.0.clone()))
    }

    async fn names(&self, _: &str) -> Result<Vec<String>, Unavailable> {
        Err(self.0.clone())
    }
}
