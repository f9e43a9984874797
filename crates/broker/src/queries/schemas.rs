//! Queries of registered schemas.

use bytes::Bytes;

use super::{Page, View};
use crate::{
    BrokerError,
    envelope::{history, signing::sha256},
    proto::v1,
    records::{List, SchemaRecord},
    store::{Key, Table},
};

impl View<'_> {
    /// One version of a schema, with its text. That of histories is there without a registration.
    pub fn schema(&self, id: &str, version: &str) -> Result<v1::Schema, BrokerError> {
        self.access.may_see_directory(self.caller)?;
        if history::is_schema(id, version) {
            return Ok(v1::Schema {
                schema_id: id.to_owned(),
                schema_version: version.to_owned(),
                schema_json: history::SCHEMA_JSON.to_owned(),
                sha256: sha256(&[history::SCHEMA_JSON.as_bytes()]).to_vec().into(),
                size_bytes: history::SCHEMA_JSON.len() as u64,
                ..Default::default()
            });
        }
        let stored = self.store.get(&SchemaRecord::key(id, version))?;
        let stored = stored.map(|record| SchemaRecord::decode(&record.value)).transpose()?;
        stored.map(|record| record.schema).ok_or_else(|| BrokerError::SchemaUnknown {
            schema: id.to_owned(),
            version: version.to_owned(),
            violations: Vec::new(),
        })
    }

    /// The registered schemas without their texts, the latest first. `id`: only the versions of this schema; empty: all.
    pub fn schemas(&self, id: &str, size: usize, token: &str) -> Result<Page<v1::Schema>, BrokerError> {
        self.access.may_see_directory(self.caller)?;
        let prefix = [id.as_bytes(), &[0]].concat();
        let read = |_, value: &Bytes| {
            // The entry names the schema, so a version of another one costs no read of its record.
            if !id.is_empty() && !value.starts_with(&prefix) {
                return Ok(None);
            }
            let stored = self.store.get(&Key { table: Table::Schemas, key: (&**value).into() })?;
            let stored = stored.map(|record| SchemaRecord::decode(&record.value)).transpose()?;
            Ok(stored.map(|record| v1::Schema { schema_json: String::new(), ..record.schema }))
        };
        self.page(Some(&List::of_schemas()), &format!("schemas {id:?}"), size, token, read)
    }
}
