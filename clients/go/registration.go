package baton

import (
	"context"
	"iter"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const registrationsPerPage = 200

// GetRegistration returns a name in a registry with its owner. It fails with an Error: GRAPH_UNKNOWN, SCHEMA_UNKNOWN or
// SPEC_UNKNOWN. Like the calls below, it authenticates as an operator, or as this agent if operatorToken is empty.
func (a *Agent) GetRegistration(
	ctx context.Context, operatorToken string, registry v1.Registry, name string,
) (*v1.Registration, error) {
	request := &v1.GetRegistrationRequest{Registry: registry, Name: name}
	answer, err := administer(ctx, a, operatorToken, a.registries.GetRegistration, request)
	return answer.GetRegistration(), err
}

// Registrations iterates over the names of a registry, or of all for REGISTRY_UNSPECIFIED, newest first and with the removed
// ones. If ownerID, an agent's id or "operator:NAME", is not empty, only over the names of this owner. It reads page by page,
// and ends with an error if a page cannot be read.
func (a *Agent) Registrations(
	ctx context.Context, operatorToken string, registry v1.Registry, ownerID string,
) iter.Seq2[*v1.Registration, error] {
	return pages(func(token string) ([]*v1.Registration, string, error) {
		request := &v1.ListRegistrationsRequest{
			Registry: registry, OwnerId: ownerID, PageSize: registrationsPerPage, PageToken: token,
		}
		page, err := administer(ctx, a, operatorToken, a.registries.ListRegistrations, request)
		return page.GetRegistrations(), page.GetNextPageToken(), err
	})
}

// TransferRegistration offers a name of this agent to another one, which takes it by the same call; the owner withdraws the
// offer by naming itself. An operator hands the name over at once. If etag is not empty and the name has changed since it was
// read with it, the call fails with CONFLICT.
func (a *Agent) TransferRegistration(
	ctx context.Context, operatorToken string, registry v1.Registry, name, toAgentID, etag string,
) (*v1.Registration, error) {
	request := &v1.TransferRegistrationRequest{Registry: registry, Name: name, To: toAgentID, Etag: etag}
	answer, err := administer(ctx, a, operatorToken, a.registries.TransferRegistration, request)
	return answer.GetRegistration(), err
}

// RetireRegistration ends the changes and the new uses of a name for good; what uses it goes on. etag is as that of
// TransferRegistration.
func (a *Agent) RetireRegistration(
	ctx context.Context, operatorToken string, registry v1.Registry, name, etag string,
) (*v1.Registration, error) {
	request := &v1.RetireRegistrationRequest{Registry: registry, Name: name, Etag: etag}
	answer, err := administer(ctx, a, operatorToken, a.registries.RetireRegistration, request)
	return answer.GetRegistration(), err
}

// RemoveRegistration removes a graph, a spec, or one version of a schema; schemaVersion is empty for a graph and a spec. Only
// the owner may register the name again. Runs and threads that use it go on. etag is as that of TransferRegistration.
func (a *Agent) RemoveRegistration(
	ctx context.Context, operatorToken string, registry v1.Registry, name, schemaVersion, etag string,
) (*v1.Registration, error) {
	request := &v1.RemoveRegistrationRequest{Registry: registry, Name: name, SchemaVersion: schemaVersion, Etag: etag}
	answer, err := administer(ctx, a, operatorToken, a.registries.RemoveRegistration, request)
	return answer.GetRegistration(), err
}
