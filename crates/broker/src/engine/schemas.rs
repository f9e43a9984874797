//! Schemas: their registration, and the check of a context against the schemas that it names.

use std::{collections::HashMap, sync::Arc};

use serde_json::{Value, json};

use super::{
    Engine,
    contexts::{DeltaResults, with_results},
};
use crate::{
    BrokerError,
    codes::FieldViolation,
    domain::{EntityId, Header},
    envelope::signing::sha256,
    json_schema::{JsonSchema, VIOLATIONS_MAX},
    proto::v1::{self, context_section::Content},
    records::{EntityRecord, List, SchemaRecord},
    store::Order,
    time::Timestamp,
};

/// The most registered versions of schemas.
const SCHEMAS_MAX: usize = 4096;
/// The most compiled schemas in memory.
const COMPILED_MAX: usize = 64;

/// The compiled schemas by the SHA-256 of their texts. So a registration whose commit fails leaves nothing wrong here.
#[derive(Debug, Default)]
pub(super) struct Compiled(HashMap<[u8; 32], Arc<JsonSchema>>);

impl Compiled {
    fn get(&mut self, schema: &v1::Schema) -> Result<Arc<JsonSchema>, BrokerError> {
        let digest = sha256(&[schema.schema_json.as_bytes()]);
        if let Some(known) = self.0.get(&digest) {
            return Ok(known.clone());
        }
        let compiled = JsonSchema::parse(&schema.schema_json).map_err(|problem| {
            tracing::error!(schema = schema.schema_id, problem, "a registered schema does not compile");
            BrokerError::Internal
        })?;
        if self.0.len() == COMPILED_MAX {
            self.0.clear();
        }
        let compiled = Arc::new(compiled);
        self.0.insert(digest, compiled.clone());
        Ok(compiled)
    }
}

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

    /// Checks the JSON of a context against the registered schemas that it names. The machine refuses the context of an
    /// agent that does not own the task, and its sender learns nothing about schemas. Returns the results of the deltas, if
    /// the check has applied them.
    pub(super) fn check_context_schemas(
        &mut self,
        header: &Header,
        context: &v1::TaskContextTransfer,
    ) -> Result<DeltaResults, BrokerError> {
        let Some(task) = &header.task else { return Ok(DeltaResults::default()) };
        let names_none = context.schema_id.is_empty() && context.sections.iter().all(|it| it.schema_id.is_empty());
        if names_none {
            return Ok(DeltaResults::default());
        }
        let stored = self.entity_record(&mut self.transaction(), &EntityId::Task(task.clone()))?;
        let record = stored.as_deref().and_then(EntityRecord::as_task);
        let Some(record) = record.filter(|record| record.task.owner == header.sender) else {
            return Ok(DeltaResults::default());
        };
        let results = self.results_of(record, context);
        let context = with_results(context.clone(), &results);
        let mut violations = Vec::new();
        for (index, section) in context.sections.iter().enumerate() {
            let path = format!("envelope.payload.sections[{index}]");
            let Some(schema) = self.schema_of(&section.schema_id, &section.schema_version, &path)? else { continue };
            if let Some(Content::Json(text)) = &section.content {
                self.check_data(&schema, text, &format!("{path}.json"), &mut violations)?;
            }
        }
        let path = "envelope.payload";
        if let Some(schema) = self.schema_of(&context.schema_id, &context.schema_version, path)? {
            let whole = self.schemas.get(&schema)?;
            let left = VIOLATIONS_MAX.saturating_sub(violations.len());
            violations.extend(whole.misfits(&whole_context(&context), &format!("{path}.sections"), left));
        }
        match violations.is_empty() {
            true => Ok(results),
            false => Err(BrokerError::ContextSchemaViolation { violations }),
        }
    }

    /// The registered schema with this id and version. `None`: no schema is named, or an unregistered one is permitted.
    pub(super) fn schema_of(&self, id: &str, version: &str, path: &str) -> Result<Option<v1::Schema>, BrokerError> {
        if id.is_empty() {
            return Ok(None);
        }
        if let Some(stored) = self.read(&mut self.transaction(), &SchemaRecord::key(id, version))? {
            return Ok(Some(SchemaRecord::decode(&stored.value)?.schema));
        }
        match self.env.settings.require_registered_schemas {
            false => Ok(None),
            true => Err(BrokerError::SchemaUnknown {
                schema: id.to_owned(),
                version: version.to_owned(),
                violations: vec![FieldViolation {
                    path: format!("{path}.schema_id"),
                    problem: "must name a registered schema".to_owned(),
                }],
            }),
        }
    }

    fn check_data(
        &mut self,
        schema: &v1::Schema,
        text: &str,
        path: &str,
        violations: &mut Vec<FieldViolation>,
    ) -> Result<(), BrokerError> {
        let left = VIOLATIONS_MAX.saturating_sub(violations.len());
        match serde_json::from_str(text) {
            Ok(data) => violations.extend(self.schemas.get(schema)?.misfits(&data, path, left)),
            // The text is JSON, so this is its depth.
            Err(error) if left > 0 => {
                let problem = format!("cannot be checked against its schema: {error}");
                violations.push(FieldViolation { path: path.to_owned(), problem });
            }
            Err(_) => {}
        }
        Ok(())
    }
}

fn without_text(schema: v1::Schema) -> v1::Schema {
    v1::Schema { schema_json: String::new(), ..schema }
}

/// The context as one object: the JSON of each section, or a description of a section of another kind.
fn whole_context(context: &v1::TaskContextTransfer) -> Value {
    let member = |section: &v1::ContextSection| {
        let value = match &section.content {
            // A text that is nested too deep for the parser fits no schema.
            Some(Content::Json(text)) => serde_json::from_str(text).unwrap_or(Value::Null),
            Some(Content::Bytes(bytes)) => json!({
                "media_type": bytes.media_type,
                "sha256": hex::encode(sha256(&[&bytes.data])),
                "size_bytes": bytes.data.len(),
            }),
            Some(Content::Reference(reference)) => json!({
                "media_type": reference.media_type,
                "sha256": hex::encode(&reference.sha256),
                "size_bytes": reference.size_bytes,
            }),
            Some(Content::Delta(_)) | None => Value::Null,
        };
        (section.name.clone(), value)
    };
    Value::Object(context.sections.iter().map(member).collect())
}
