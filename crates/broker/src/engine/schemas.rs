//! Schemas: their registration.

use super::Engine;
use crate::{
    BrokerError,
    envelope::signing::sha256,
    proto::v1,
    records::{List, SchemaRecord},
    store::Order,
    time::Timestamp,
};

/// The most registered versions of schemas.
const SCHEMAS_MAX: usize = 4096;
impl Engine {
    /// Registers a version of a schema. The same text again changes nothing.
    pub(super) fn register_schema(&mut self, schema: v1::Schema, now: Timestamp) -> Result<v1::Schema, BrokerError> {
        let mut transaction = self.transaction();
        let key = SchemaRecord::key(&schema.schema_id, &schema.schema_version);
        if let Some(stored) = self.read(&mut transaction, &key)? {
            let known = SchemaRecord::decode(&stored.value)?.schema;
            return match known.schema_json == schema.schema_json {
                true => Ok(without_text(known)),
                false => Err(BrokerError::SchemaExists { schema: schema.schema_id, version: schema.schema_version }),
            };
        }
        self.check_room(&List::of_schemas(), SCHEMAS_MAX, "too many schemas are registered")?;
        let schema = v1::Schema {
            sha256: sha256(&[schema.schema_json.as_bytes()]).to_vec().into(),
            size_bytes: schema.schema_json.len() as u64,
            create_time: Some(now.into()),
            ..schema
        };
        let record = SchemaRecord { schema, sequence: self.new_sequence(&mut transaction) };
        let (place, value) = record.listing();
        transaction.put_new(place, value);
        transaction.put(key, record.encode(), None);
        self.stage(transaction);
        Ok(without_text(record.schema))
    }

    /// Fails if a registry is full. Counts the entries of its list, which are small, and not those of the batch in hand.
    pub(super) fn check_room(&self, list: &List, most: usize, what: &'static str) -> Result<(), BrokerError> {
        match self.env.store.scan(list.table, list.range(), Order::Ascending, most)?.len() < most {
            true => Ok(()),
            false => Err(BrokerError::LimitExceeded { what, retry_after: super::LIMIT_RETRY }),
        }
    }
}

fn without_text(schema: v1::Schema) -> v1::Schema {
    v1::Schema { schema_json: String::new(), ..schema }
}
