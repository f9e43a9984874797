package baton

import (
	"context"
	"iter"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const schemasPerPage = 200

// RegisterSchema registers a version of a JSON Schema of draft 2020-12, and returns it without its text. The same text
// again changes nothing. It fails with an Error: SCHEMA_REJECTED for a text that is no schema within the bounds,
// SCHEMA_EXISTS if the version has another text.
func (a *Agent) RegisterSchema(ctx context.Context, id, version, text string) (*v1.Schema, error) {
	schema := &v1.Schema{SchemaId: id, SchemaVersion: version, SchemaJson: text}
	answer, err := persist(ctx, a, a.schemas.RegisterSchema, &v1.RegisterSchemaRequest{Schema: schema})
	return answer.GetSchema(), err
}

// GetSchema returns one version of a schema with its text. It fails with an Error, SCHEMA_UNKNOWN.
func (a *Agent) GetSchema(ctx context.Context, id, version string) (*v1.Schema, error) {
	answer, err := call(ctx, a, a.schemas.GetSchema, &v1.GetSchemaRequest{SchemaId: id, SchemaVersion: version})
	return answer.GetSchema(), err
}

// Schemas iterates over the versions of the schema with this id, or over all schemas for an empty one, the latest
// registration first and without their texts. It reads page by page, and ends with an error if a page cannot be read.
func (a *Agent) Schemas(ctx context.Context, id string) iter.Seq2[*v1.Schema, error] {
	return pages(func(token string) ([]*v1.Schema, string, error) {
		request := &v1.ListSchemasRequest{SchemaId: id, PageSize: schemasPerPage, PageToken: token}
		page, err := call(ctx, a, a.schemas.ListSchemas, request)
		return page.GetSchemas(), page.GetNextPageToken(), err
	})
}

// CheckSchema checks JSON text against a registered schema, as the broker checks a context, and returns the errors of the
// data, at most 64; none if it fits. It fails with an Error: SCHEMA_UNKNOWN, and FIELD_INVALID if the text is not JSON.
func (a *Agent) CheckSchema(ctx context.Context, id, version, data string) ([]*v1.SchemaViolation, error) {
	request := &v1.CheckSchemaRequest{SchemaId: id, SchemaVersion: version, DataJson: data}
	answer, err := call(ctx, a, a.schemas.CheckSchema, request)
	return answer.GetViolations(), err
}
