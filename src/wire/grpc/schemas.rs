//! `SchemaService`.

use std::sync::Arc;

use tonic::Status;

use super::{call::Call, checked, field, page_size, refuse, registries::check_etag};
use crate::{
    broker::{
        BrokerError,
        engine::Command,
        json_schema::{CompiledSchemas, JsonSchema, SCHEMA_BYTES_MAX, VIOLATIONS_MAX, Work},
    },
    envelope::{Checks, JsonError, PAYLOAD_BYTES_MAX, history, read_checked_json},
    proto::v1,
    records::{RegistrationName, Registry},
};

/// The most bytes of the id and of the version of a schema.
const NAME_BYTES_MAX: usize = 128;

pub(super) async fn register_schema(
    call: Call,
    request: v1::RegisterSchemaRequest,
) -> Result<v1::RegisterSchemaResponse, Status> {
    let v1::RegisterSchemaRequest { schema, etag } = request;
    let wanted = schema.unwrap_or_default();
    let mut checks = Checks::default();
    check_name(&mut checks, "schema.schema_id", &wanted.schema_id);
    check_name(&mut checks, "schema.schema_version", &wanted.schema_version);
    check_etag(&mut checks, &etag);
    if wanted.schema_id == history::SCHEMA_ID {
        checks.wrong("schema.schema_id", "must be another one: the broker has this schema itself");
    }
    checked(checks)?;
    let v1::Schema { schema_id, schema_version, schema_json, .. } = wanted;
    let name = RegistrationName::new(Registry::Schemas, &schema_id);
    call.broker.access().may_register(&call.caller, &name).map_err(refuse)?;
    let check = call.run_large(move |broker, _| {
        let unchecked_formats = compiled(&broker.resources().schemas, &schema_json)?.unchecked_formats().to_vec();
        Ok((schema_json, unchecked_formats))
    });
    let (schema_json, unchecked_formats) = check.await?;
    let schema = v1::Schema { schema_id, schema_version, schema_json, unchecked_formats, ..Default::default() };
    let schema = Box::new(schema);
    let (schema, registration) =
        call.ask(|caller, reply| Command::RegisterSchema { schema, caller, etag, reply }).await?;
    let (schema, registration) = (Some(schema), Some(registration.to_v1()));
    Ok(v1::RegisterSchemaResponse { schema, registration })
}

pub(super) async fn get_schema(call: Call, request: v1::GetSchemaRequest) -> Result<v1::GetSchemaResponse, Status> {
    let v1::GetSchemaRequest { schema_id, schema_version } = request;
    let schema = schema(&call, schema_id, schema_version).await?;
    Ok(v1::GetSchemaResponse { schema: Some(schema) })
}

pub(super) async fn list_schemas(
    call: Call,
    request: v1::ListSchemasRequest,
) -> Result<v1::ListSchemasResponse, Status> {
    call.run_large(move |broker, caller| {
        let size = page_size(request.page_size);
        let page = broker.view(caller).schemas(&request.schema_id, size, &request.page_token).map_err(refuse)?;
        Ok(v1::ListSchemasResponse { schemas: page.entries, next_page_token: page.next_token })
    })
    .await
}

pub(super) async fn check_schema(
    call: Call,
    request: v1::CheckSchemaRequest,
) -> Result<v1::CheckSchemaResponse, Status> {
    call.broker.access().may_see_directory(&call.caller).map_err(refuse)?;
    let v1::CheckSchemaRequest { schema_id, schema_version, schema_json, data_json } = request;
    if data_json.len() > PAYLOAD_BYTES_MAX {
        return Err(refuse(field("data_json", &format!("must have at most {PAYLOAD_BYTES_MAX} bytes"))));
    }
    let text = match (schema_id.is_empty(), schema_json.is_empty()) {
        (true, false) => schema_json,
        (false, true) => schema(&call, schema_id, schema_version).await?.schema_json,
        (true, true) | (false, false) => {
            return Err(refuse(field("schema_id", "must be set, or schema_json, and not both")));
        }
    };
    let violations = call.run_large(move |broker, _| {
        let schema = compiled(&broker.resources().schemas, &text)?;
        if data_json.is_empty() {
            return Ok(Vec::new());
        }
        let wrong = |JsonError { pointer, problem }| refuse(field(&format!("data_json{pointer}"), &problem));
        let data = read_checked_json(&data_json).map_err(wrong)?;
        let misfits = schema.misfits(&data, "", VIOLATIONS_MAX, &mut Work::new()).into_iter();
        let violation = |found: crate::codes::FieldViolation| v1::SchemaViolation {
            json_pointer: found.path,
            problem: found.problem,
        };
        Ok(misfits.map(violation).collect())
    });
    Ok(v1::CheckSchemaResponse { violations: violations.await? })
}

async fn schema(call: &Call, id: String, version: String) -> Result<v1::Schema, Status> {
    call.read_small(move |view| view.schema(&id, &version)).await
}

fn compiled(schemas: &CompiledSchemas, text: &str) -> Result<Arc<JsonSchema>, Status> {
    let rejected = |problem| refuse(BrokerError::SchemaRejected { problem });
    if text.len() > SCHEMA_BYTES_MAX {
        return Err(rejected(format!("has more than {SCHEMA_BYTES_MAX} bytes")));
    }
    schemas.get(text).map_err(rejected)
}

fn check_name(checks: &mut Checks, path: &str, name: &str) {
    let is_permitted = name.bytes().all(|byte| byte.is_ascii_graphic());
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !is_permitted {
        checks.wrong(path, "must have 1 to 128 printable ASCII characters without spaces");
    }
}
