package dev.baton;

import dev.baton.v1.CheckSchemaRequest;
import dev.baton.v1.GetSchemaRequest;
import dev.baton.v1.ListSchemasRequest;
import dev.baton.v1.ListSchemasResponse;
import dev.baton.v1.RegisterSchemaRequest;
import dev.baton.v1.Schema;
import dev.baton.v1.SchemaViolation;
import java.util.ArrayList;
import java.util.List;

/** The JSON Schemas of contexts and their sections. {@link Agent#schemas} returns it. */
public final class Schemas {
    private static final int PAGE_SIZE = 200;

    private final Agent agent;
    private final Connection connection;

    Schemas(Agent agent, Connection connection) {
        this.agent = agent;
        this.connection = connection;
    }

    /**
     * Registers a version of a JSON Schema of draft 2020-12, and returns it without its text. The same text again
     * changes nothing. Throws {@link BatonException}: SCHEMA_REJECTED for a text that is no schema within the bounds,
     * SCHEMA_EXISTS if the version has another text.
     */
    public Schema register(String id, String version, String json) throws InterruptedException {
        RegisterSchemaRequest request = RegisterSchemaRequest.newBuilder()
                .setSchema(Schema.newBuilder().setSchemaId(id).setSchemaVersion(version).setSchemaJson(json))
                .build();
        return agent.persist(() -> connection.schemas(stub -> stub.registerSchema(request)))
                .getSchema();
    }

    /** Returns one version of a schema with its text. Throws {@link BatonException}, SCHEMA_UNKNOWN. */
    public Schema get(String id, String version) {
        GetSchemaRequest request =
                GetSchemaRequest.newBuilder().setSchemaId(id).setSchemaVersion(version).build();
        return connection.schemas(stub -> stub.getSchema(request)).getSchema();
    }

    /**
     * Returns the versions of the schema with this id, or all schemas for an empty one, the latest registration first
     * and without their texts.
     */
    public List<Schema> list(String id) {
        List<Schema> schemas = new ArrayList<>();
        ListSchemasRequest.Builder request =
                ListSchemasRequest.newBuilder().setSchemaId(id).setPageSize(PAGE_SIZE);
        do {
            ListSchemasRequest asked = request.build();
            ListSchemasResponse page = connection.schemas(stub -> stub.listSchemas(asked));
            schemas.addAll(page.getSchemasList());
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        return schemas;
    }

    /**
     * Checks JSON text against a registered schema, as the broker checks a context. Returns the errors of the data, at
     * most 64; none if it fits. Throws {@link BatonException}: SCHEMA_UNKNOWN, and FIELD_INVALID if the text is not
     * JSON.
     */
    public List<SchemaViolation> check(String id, String version, String json) {
        CheckSchemaRequest request = CheckSchemaRequest.newBuilder()
                .setSchemaId(id)
                .setSchemaVersion(version)
                .setDataJson(json)
                .build();
        return connection.schemas(stub -> stub.checkSchema(request)).getViolationsList();
    }
}
