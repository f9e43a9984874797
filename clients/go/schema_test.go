package baton

import (
	"slices"
	"testing"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

func TestASchemaIsRegisteredOnceAndChecksData(t *testing.T) {
	b := newBroker(t, "")
	alice, text := b.agent(t, "alice"), string(routerSchema)
	first := ok[*v1.Schema](t)(alice.RegisterSchema(patient(t), "ticket", "1", text))
	b.kill()
	b.restart(t)
	again := ok[*v1.Schema](t)(alice.RegisterSchema(patient(t), "ticket", "1", text))
	if first.GetSchemaVersion() != "1" || string(again.GetSha256()) != string(first.GetSha256()) {
		t.Error(first, again)
	}
	_, err := alice.RegisterSchema(patient(t), "ticket", "1", "true")
	refused(t, err, "SCHEMA_EXISTS")
	_, err = alice.RegisterSchema(patient(t), "ticket", "2", `{"type":7}`)
	refused(t, err, "SCHEMA_REJECTED")
	ok[*v1.Schema](t)(alice.RegisterSchema(patient(t), "ticket", "2", "true"))
	if shown := ok[*v1.Schema](t)(alice.GetSchema(patient(t), "ticket", "1")); shown.GetSchemaJson() != text {
		t.Error(shown)
	}
	_, err = alice.GetSchema(patient(t), "ticket", "3")
	refused(t, err, "SCHEMA_UNKNOWN")
	var versions []string
	for schema, err := range alice.Schemas(patient(t), "ticket") {
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, schema.GetSchemaVersion())
	}
	if !slices.Equal(versions, []string{"2", "1"}) {
		t.Error(versions)
	}
	wrong := ok[[]*v1.SchemaViolation](t)(alice.CheckSchema(patient(t), "ticket", "1", `{"router":"three"}`))
	if len(wrong) != 1 || wrong[0].GetJsonPointer() != "/router" {
		t.Error(wrong)
	}
	if none := ok[[]*v1.SchemaViolation](t)(alice.CheckSchema(patient(t), "ticket", "1", `{"router":3}`)); len(none) != 0 {
		t.Error(none)
	}
	_, err = alice.CheckSchema(patient(t), "ticket", "1", "{")
	refused(t, err, "FIELD_INVALID")
}
