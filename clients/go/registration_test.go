package baton

import (
	"slices"
	"testing"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

func TestANameIsHandedOverRetiredAndRemoved(t *testing.T) {
	b := newBroker(t, "")
	alice, bob := b.agent(t, "alice"), b.agent(t, "bob")
	one, schemas := ok[*v1.Registration](t), v1.Registry_REGISTRY_SCHEMAS
	for _, version := range []string{"1", "2"} {
		ok[*v1.Schema](t)(alice.RegisterSchema(patient(t), "ticket", version, `{"maxLength":`+version+`}`))
	}
	ok[*v1.Schema](t)(alice.RegisterSchema(patient(t), "other", "1", "true"))
	first := one(alice.GetRegistration(patient(t), "", schemas, "ticket"))
	if first.GetOwnerId() != alice.ID() || first.GetEntries() != 2 {
		t.Error(first)
	}
	var names []string
	for registration, err := range bob.Registrations(patient(t), "", schemas, alice.ID()) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, registration.GetName())
	}
	if slices.Sort(names); !slices.Equal(names, []string{"other", "ticket"}) {
		t.Error(names)
	}

	// Another agent cannot take a name that it was not offered.
	_, err := bob.TransferRegistration(patient(t), "", schemas, "ticket", bob.ID(), "")
	refused(t, err, "PERMISSION_DENIED")
	offered := one(alice.TransferRegistration(patient(t), "", schemas, "ticket", bob.ID(), first.GetEtag()))
	if offered.GetOwnerId() != alice.ID() || offered.GetOfferedToId() != bob.ID() {
		t.Error(offered)
	}
	_, err = alice.TransferRegistration(patient(t), "", schemas, "ticket", alice.ID(), first.GetEtag())
	refused(t, err, "CONFLICT")
	if taken := one(bob.TransferRegistration(patient(t), "", schemas, "ticket", bob.ID(), "")); taken.GetOwnerId() != bob.ID() {
		t.Error(taken)
	}
	// An operator hands a name over at once.
	moved := one(alice.TransferRegistration(patient(t), b.operatorToken(t), schemas, "other", bob.ID(), ""))
	if moved.GetOwnerId() != bob.ID() {
		t.Error(moved)
	}

	_, err = alice.RetireRegistration(patient(t), "", schemas, "ticket", "")
	refused(t, err, "PERMISSION_DENIED")
	retired := one(bob.RetireRegistration(patient(t), "", schemas, "ticket", ""))
	if retired.GetState() != v1.RegistrationState_REGISTRATION_STATE_RETIRED {
		t.Error(retired)
	}
	left := one(bob.RemoveRegistration(patient(t), "", schemas, "ticket", "1", retired.GetEtag()))
	if left.GetEntries() != 1 || left.GetState() != v1.RegistrationState_REGISTRATION_STATE_RETIRED {
		t.Error(left)
	}
	gone := one(bob.RemoveRegistration(patient(t), "", schemas, "ticket", "2", ""))
	if gone.GetState() != v1.RegistrationState_REGISTRATION_STATE_REMOVED {
		t.Error(gone)
	}
	_, err = alice.GetRegistration(patient(t), "", schemas, "unknown")
	refused(t, err, "SCHEMA_UNKNOWN")
}
