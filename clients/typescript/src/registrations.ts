/** The owners of shared names: of graphs, schemas and specs. */
import { create } from "@bufbuild/protobuf";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import type { AdministeringCaller, CallOptions, KeyCallOptions } from "./following.js";
import { pages } from "./watching.js";
import * as v1 from "./v1.js";

const PAGE_SIZE = 200;

/** A change of a name: `etag` refuses it with CONFLICT if the name has changed since it was read with this etag. */
export interface RegistrationChange extends KeyCallOptions {
  etag?: string;
}

/**
 * The names in the registries. The owner of a name, or an operator, hands it over, retires and removes it. All calls throw BatonError
 * if the broker refuses.
 */
export class Registrations {
  readonly #caller: AdministeringCaller;
  readonly #service: Client<typeof v1.RegistryService>;

  /** @internal */
  constructor(caller: AdministeringCaller, transport: Transport) {
    this.#caller = caller;
    this.#service = createClient(v1.RegistryService, transport);
  }

  /** Returns a name with its owner. Throws GRAPH_UNKNOWN, SCHEMA_UNKNOWN or SPEC_UNKNOWN. */
  async get(registry: v1.Registry, name: string, { operatorToken }: KeyCallOptions = {}): Promise<v1.Registration> {
    const answer = await this.#caller.administer(operatorToken, (options) => this.#service.getRegistration({ registry, name }, options));
    return answer.registration ?? create(v1.RegistrationSchema);
  }

  /**
   * Yields the names of a registry, by default of all, the newest first, with the removed ones. With `ownerId`, an agent's id or
   * `operator:NAME`, only those of this owner.
   */
  list(
    { registry = v1.Registry.UNSPECIFIED, ownerId = "" }: { registry?: v1.Registry; ownerId?: string } = {},
    { operatorToken, ...options }: KeyCallOptions & CallOptions = {},
  ): AsyncGenerator<v1.Registration, void> {
    return pages(async (pageToken) => {
      const request = { registry, ownerId, pageSize: PAGE_SIZE, pageToken };
      const { registrations: items, nextPageToken } = await this.#caller.administer(operatorToken, (wire) =>
        this.#service.listRegistrations(request, wire),
      );
      return { items, nextPageToken };
    }, options);
  }

  /**
   * Offers a name of this agent to another one, which takes it by the same call. The owner withdraws the offer by naming itself. An
   * operator hands the name over at once.
   */
  async transfer(
    registry: v1.Registry,
    name: string,
    toAgentId: string,
    { etag = "", operatorToken }: RegistrationChange = {},
  ): Promise<v1.Registration> {
    const request = { registry, name, to: toAgentId, etag };
    const answer = await this.#caller.administer(operatorToken, (options) => this.#service.transferRegistration(request, options));
    return answer.registration ?? create(v1.RegistrationSchema);
  }

  /** Ends the changes and the new uses of a name for good; what uses it goes on. */
  async retire(registry: v1.Registry, name: string, { etag = "", operatorToken }: RegistrationChange = {}): Promise<v1.Registration> {
    const request = { registry, name, etag };
    const answer = await this.#caller.administer(operatorToken, (options) => this.#service.retireRegistration(request, options));
    return answer.registration ?? create(v1.RegistrationSchema);
  }

  /**
   * Removes a graph, a spec, or the version `schemaVersion` of a schema. Only the owner may register the name again. Runs and threads
   * that use it go on.
   */
  async remove(
    registry: v1.Registry,
    name: string,
    { schemaVersion = "", etag = "", operatorToken }: { schemaVersion?: string } & RegistrationChange = {},
  ): Promise<v1.Registration> {
    const request = { registry, name, schemaVersion, etag };
    const answer = await this.#caller.administer(operatorToken, (options) => this.#service.removeRegistration(request, options));
    return answer.registration ?? create(v1.RegistrationSchema);
  }
}
