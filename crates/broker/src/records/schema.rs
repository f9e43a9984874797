//! Table schemas: the registered JSON Schemas, by id and version.

use bytes::Bytes;
use prost::Message as _;

use super::{DecodeError, List, Reader};
use crate::{
    proto::{storage, v1},
    store::{Key, Table},
};

/// A schema as stored. It never changes.
#[derive(Debug, Clone, PartialEq)]
pub struct SchemaRecord {
    /// The schema with its text.
    pub schema: v1::Schema,
    /// The sequence of the registration, its place in lists.
    pub sequence: u64,
}

impl SchemaRecord {
    /// The key of a version. Neither id nor version has a zero byte.
    pub fn key(id: &str, version: &str) -> Key {
        Key { table: Table::Schemas, key: [id.as_bytes(), &[0], version.as_bytes()].into() }
    }

    /// The place of the schema in the list of all, and its entry there.
    pub fn listing(&self) -> (Key, Bytes) {
        let key = Self::key(&self.schema.schema_id, &self.schema.schema_version);
        (List::of_schemas().place(self.sequence), Bytes::copy_from_slice(&key.key))
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let schema = self.schema.encode_to_vec().into();
        storage::SchemaRecord { schema, sequence: self.sequence }.encode_to_vec().into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("schemas");
        let stored: storage::SchemaRecord = reader.message(value)?;
        Ok(Self { schema: reader.message(&stored.schema)?, sequence: stored.sequence })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_comes_back_as_it_was_stored() {
        let schema = v1::Schema {
            schema_id: "https://example.com/log".into(),
            schema_version: "1.0".into(),
            schema_json: "{}".into(),
            ..Default::default()
        };
        let record = SchemaRecord { schema, sequence: 7 };
        assert_eq!(SchemaRecord::decode(&record.encode()), Ok(record.clone()));
        let (place, value) = record.listing();
        super::super::list::check_listing(&place.key, &value).unwrap();
    }
}
