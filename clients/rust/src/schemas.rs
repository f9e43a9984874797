//! The schemas of contexts.

use super::{Client, ClientError};
use crate::proto::v1;

impl Client {
    /// Registers a version of a JSON Schema of draft 2020-12. The same text again changes nothing. Returns the schema as
    /// it is registered, without its text.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with SCHEMA_REJECTED for a text that is no schema within the bounds, and
    /// SCHEMA_EXISTS if the version has another text.
    pub async fn register_schema(&self, id: &str, version: &str, text: &str) -> Result<v1::Schema, ClientError> {
        let schema = Some(v1::Schema {
            schema_id: id.to_owned(),
            schema_version: version.to_owned(),
            schema_json: text.to_owned(),
            ..Default::default()
        });
        let request = v1::RegisterSchemaRequest { schema, ..Default::default() };
        Ok(self.answer(self.schemas().register_schema(request).await)?.schema.unwrap_or_default())
    }

    /// One version of a schema, with its text.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with SCHEMA_UNKNOWN.
    pub async fn schema(&self, id: &str, version: &str) -> Result<v1::Schema, ClientError> {
        let request = v1::GetSchemaRequest { schema_id: id.to_owned(), schema_version: version.to_owned() };
        Ok(self.answer(self.schemas().get_schema(request).await)?.schema.unwrap_or_default())
    }

    /// Checks JSON text against a registered schema, as the broker checks a context. Returns the errors, at most 64.
    /// Empty: the data fits.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with SCHEMA_UNKNOWN, and FIELD_INVALID if the text is not JSON.
    pub async fn check_schema(
        &self,
        id: &str,
        version: &str,
        data: &str,
    ) -> Result<Vec<v1::SchemaViolation>, ClientError> {
        let request = v1::CheckSchemaRequest {
            schema_id: id.to_owned(),
            schema_version: version.to_owned(),
            data_json: data.to_owned(),
            ..Default::default()
        };
        Ok(self.answer(self.schemas().check_schema(request).await)?.violations)
    }
}
