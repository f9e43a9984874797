//! Schemas: their registration.

use super::{Engine, registries::Entry};
use crate::{
    BrokerError,
    access::Caller,
    envelope::signing::sha256,
    proto::v1::{self, AuditAction},
    records::{RegistrationName, RegistrationRecord, Registry, RemovedSchema, SchemaRecord},
    time::Timestamp,
};

impl Engine {
    /// Registers a version of a schema. The same text again changes nothing. Returns the schema without its text, and its
    /// name.
    pub(super) fn register_schema(
        &mut self,
        schema: v1::Schema,
        caller: &Caller,
        etag: &str,
        now: Timestamp,
    ) -> Result<(v1::Schema, RegistrationRecord), BrokerError> {
        let mut transaction = self.transaction();
        let name = RegistrationName::new(Registry::Schemas, &schema.schema_id);
        let sha256 = sha256(&[schema.schema_json.as_bytes()]);
        let key = SchemaRecord::key(&schema.schema_id, &schema.schema_version);
        let removed_key = RemovedSchema::key(&schema.schema_id, &schema.schema_version);
        let registration = self.registration(&mut transaction, &name)?;
        let stored = self.read(&mut transaction, &key)?;
        let stored = stored.map(|stored| SchemaRecord::decode(&stored.value)).transpose()?;
        let removed = self.read(&mut transaction, &removed_key)?;
        let removed = removed.map(|removed| RemovedSchema::decode(&removed.value)).transpose()?;
        let is_other = stored.as_ref().is_some_and(|known| known.schema.schema_json != schema.schema_json)
            || removed.is_some_and(|removed| removed.sha256 != sha256);
        if is_other {
            // A caller that may not register schemas must not learn which versions exist.
            self.access().may_register(caller, &name)?;
            return Err(BrokerError::SchemaExists { schema: schema.schema_id, version: schema.schema_version });
        }
        let entry = match (&stored, &removed) {
            (Some(_), _) => Entry::Same,
            (None, Some(_)) => Entry::Again,
            (None, None) => Entry::New,
        };
        let name = self.admit_entry(&mut transaction, registration, name, entry, (caller, etag), now)?;
        if let Some(known) = stored {
            return Ok((without_text(known.schema), name));
        }
        let schema = v1::Schema {
            sha256: sha256.to_vec().into(),
            size_bytes: schema.schema_json.len() as u64,
            registrar: caller.to_string(),
            create_time: Some(now.into()),
            ..schema
        };
        let details = format!("version {}", schema.schema_version);
        let record = SchemaRecord { schema, sequence: self.new_sequence(&mut transaction) };
        let (place, value) = record.listing();
        transaction.put_new(place, value);
        transaction.put(key, record.encode(), None);
        if removed.is_some() {
            transaction.delete(removed_key);
        }
        self.record_name(&mut transaction, &name, AuditAction::NameRegistered, details, caller, now)?;
        self.stage(transaction);
        Ok((without_text(record.schema), name))
    }
}

fn without_text(schema: v1::Schema) -> v1::Schema {
    v1::Schema { schema_json: String::new(), ..schema }
}
