/** The JSON Schemas of contexts and of their sections. */
import { create } from "@bufbuild/protobuf";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import type { Caller } from "./following.js";
import { canonical } from "./sections.js";
import * as v1 from "./v1.js";

const PAGE_SIZE = 200;

/** The registry of JSON Schemas, as an agent sees it. All calls throw BatonError if the broker refuses. */
export class Schemas {
  readonly #caller: Caller;
  readonly #service: Client<typeof v1.SchemaService>;

  /** @internal */
  constructor(caller: Caller, transport: Transport) {
    this.#caller = caller;
    this.#service = createClient(v1.SchemaService, transport);
  }

  /**
   * Registers a version of a JSON Schema of draft 2020-12, and returns it without its text. The same text again changes nothing.
   * Throws SCHEMA_REJECTED for a text that is no schema within the bounds, SCHEMA_EXISTS if the version has another text.
   *
   *     await agent.schemas.register("ticket", "1", z.toJSONSchema(Ticket)); // Ticket is a schema of zod
   */
  async register(schemaId: string, schemaVersion: string, schema: object | string): Promise<v1.Schema> {
    const schemaJson = typeof schema === "string" ? schema : canonical(JSON.parse(JSON.stringify(schema)));
    const request = { schema: { schemaId, schemaVersion, schemaJson } };
    const answer = await this.#caller.call((options) => this.#service.registerSchema(request, options));
    return answer.schema ?? create(v1.SchemaSchema);
  }

  /** Returns one version of a schema with its text. Throws SCHEMA_UNKNOWN. */
  async get(schemaId: string, schemaVersion: string): Promise<v1.Schema> {
    const answer = await this.#caller.call((options) => this.#service.getSchema({ schemaId, schemaVersion }, options));
    return answer.schema ?? create(v1.SchemaSchema);
  }

  /** Yields the versions of a schema, or by default all schemas, the latest registration first and without their texts. */
  async *list(schemaId = ""): AsyncGenerator<v1.Schema, void> {
    let pageToken = "";
    do {
      const request = { schemaId, pageSize: PAGE_SIZE, pageToken };
      const page = await this.#caller.call((options) => this.#service.listSchemas(request, options));
      yield* page.schemas;
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /**
   * Checks a JSON value against a registered schema, as the broker checks a context. Returns the errors, at most 64; none: the
   * value fits. Throws SCHEMA_UNKNOWN.
   */
  async check(schemaId: string, schemaVersion: string, value: unknown): Promise<v1.SchemaViolation[]> {
    const request = { schemaId, schemaVersion, dataJson: JSON.stringify(value) };
    return (await this.#caller.call((options) => this.#service.checkSchema(request, options))).violations;
  }
}
