package dev.baton;

import dev.baton.v1.GetRegistrationRequest;
import dev.baton.v1.ListRegistrationsRequest;
import dev.baton.v1.ListRegistrationsResponse;
import dev.baton.v1.Registration;
import dev.baton.v1.Registry;
import dev.baton.v1.RemoveRegistrationRequest;
import dev.baton.v1.RetireRegistrationRequest;
import dev.baton.v1.TransferRegistrationRequest;
import java.util.ArrayList;
import java.util.List;

/**
 * The names in the registries: of graphs, schemas and specs. The owner of a name, or an operator, hands it over, retires
 * and removes it. A change with an etag fails with CONFLICT if the name has changed since it was read with this etag; an
 * empty one is any. {@link Agent#registrations} returns it.
 */
public final class Registrations {
    private static final int PAGE_SIZE = 200;

    private final Connection connection;

    Registrations(Connection connection) {
        this.connection = connection;
    }

    /**
     * Returns a name with its owner. Throws {@link BatonException}: GRAPH_UNKNOWN, SCHEMA_UNKNOWN or SPEC_UNKNOWN.
     */
    public Registration get(Registry registry, String name) {
        GetRegistrationRequest request = GetRegistrationRequest.newBuilder()
                .setRegistry(registry)
                .setName(name)
                .build();
        return connection.registries(stub -> stub.getRegistration(request)).getRegistration();
    }

    /**
     * Returns the names of a registry, or of all for REGISTRY_UNSPECIFIED, newest first and with the removed ones. If the
     * id of the owner, an agent or {@code operator:NAME}, is not empty, only the names of this owner.
     */
    public List<Registration> list(Registry registry, String ownerId) {
        List<Registration> found = new ArrayList<>();
        ListRegistrationsRequest.Builder request = ListRegistrationsRequest.newBuilder()
                .setPageSize(PAGE_SIZE)
                .setRegistry(registry)
                .setOwnerId(ownerId);
        do {
            ListRegistrationsRequest asked = request.build();
            ListRegistrationsResponse page = connection.registries(stub -> stub.listRegistrations(asked));
            found.addAll(page.getRegistrationsList());
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        return found;
    }

    /**
     * Offers a name of this agent to another one, which takes it by the same call; the owner withdraws the offer by naming
     * itself. An operator hands the name over at once. Throws {@link BatonException}, for example PERMISSION_DENIED,
     * AGENT_UNKNOWN, CONFLICT.
     */
    public Registration transfer(Registry registry, String name, String toAgentId, String etag) {
        TransferRegistrationRequest request = TransferRegistrationRequest.newBuilder()
                .setRegistry(registry)
                .setName(name)
                .setTo(toAgentId)
                .setEtag(etag)
                .build();
        return connection.registries(stub -> stub.transferRegistration(request)).getRegistration();
    }

    /** Ends the changes and the new uses of a name for good; what uses it goes on. */
    public Registration retire(Registry registry, String name, String etag) {
        RetireRegistrationRequest request = RetireRegistrationRequest.newBuilder()
                .setRegistry(registry)
                .setName(name)
                .setEtag(etag)
                .build();
        return connection.registries(stub -> stub.retireRegistration(request)).getRegistration();
    }

    /**
     * Removes a graph, a spec, or one version of a schema; the version is empty for a graph and a spec. Only the owner may
     * register the name again. Runs and threads that use it go on.
     */
    public Registration remove(Registry registry, String name, String schemaVersion, String etag) {
        RemoveRegistrationRequest request = RemoveRegistrationRequest.newBuilder()
                .setRegistry(registry)
                .setName(name)
                .setSchemaVersion(schemaVersion)
                .setEtag(etag)
                .build();
        return connection.registries(stub -> stub.removeRegistration(request)).getRegistration();
    }
}
