/** Contexts beyond one message: versions, and sections on demand. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { VerificationError } from "./errors.js";
import type { Caller } from "./following.js";
import { applyDelta, sha256 } from "./sections.js";
import { sectionDigest } from "./signing.js";
import * as v1 from "./v1.js";

const PAGE_SIZE = 50;
const KNOWN_LENGTH_MAX = 64 * 1024 * 1024;

/** The JSON that this process has sent or received, as bases of deltas: the latest of each section of a task. */
class KnownSections {
  readonly #texts = new Map<string, Map<string, string>>();
  #length = 0;

  get(taskId: string, name: string): string | undefined {
    return this.#texts.get(taskId)?.get(name);
  }

  /** Returns the text with this digest, if no later one exists. */
  find(taskId: string, name: string, digest: Uint8Array): string | undefined {
    const text = this.get(taskId, name);
    return text !== undefined && Buffer.compare(sha256(text), digest) === 0 ? text : undefined;
  }

  /** Stores the JSON sections of a context. Over 64 Mi characters, all other texts are dropped. */
  note(taskId: string, sections: readonly v1.ContextSection[]): void {
    for (const { name, content } of sections) {
      if (content.case !== "json") continue;
      this.#length += content.value.length - (this.get(taskId, name)?.length ?? 0);
      if (this.#length > KNOWN_LENGTH_MAX) {
        this.#texts.clear();
        this.#length = content.value.length;
      }
      const texts = this.#texts.get(taskId) ?? new Map<string, string>();
      this.#texts.set(taskId, texts.set(name, content.value));
    }
  }

  /** Drops the texts of a task. */
  forget(taskId: string): void {
    for (const text of this.#texts.get(taskId)?.values() ?? []) this.#length -= text.length;
    this.#texts.delete(taskId);
  }
}

/** The versions of contexts, as an agent sees them. All calls throw BatonError if the broker refuses. */
export class Contexts {
  /** @internal */
  readonly known = new KnownSections();
  readonly #caller: Caller;
  readonly #service: Client<typeof v1.ContextService>;

  /** @internal */
  constructor(caller: Caller, transport: Transport) {
    this.#caller = caller;
    this.#service = createClient(v1.ContextService, transport);
  }

  /** Returns one version of a task's context, by default the latest, without the contents of its sections. */
  async get(taskId: string, version = 0n): Promise<v1.ContextVersion> {
    const answer = await this.#caller.call((options) => this.#service.getContext({ taskId, version }, options));
    return answer.version ?? create(v1.ContextVersionSchema);
  }

  /** Yields the versions that this agent may read, the newest first. */
  async *versions(taskId: string): AsyncGenerator<v1.ContextVersion, void> {
    let pageToken = "";
    do {
      const request = { taskId, pageSize: PAGE_SIZE, pageToken };
      const page = await this.#caller.call((options) => this.#service.listContextVersions(request, options));
      yield* page.versions;
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /** Returns one section of a version, by default the latest: whole, a part by `filter`, or what `haveSha256` lacks. */
  async section(
    taskId: string,
    name: string,
    wanted: Pick<MessageInitShape<typeof v1.GetContextSectionRequestSchema>, "version" | "filter" | "haveSha256"> = {},
  ): Promise<v1.GetContextSectionResponse> {
    return this.#caller.call((options) => this.#service.getContextSection({ ...wanted, taskId, name }, options));
  }

  /** Returns the sections of the latest version, whole. Throws BatonError, for example CONTEXT_UNKNOWN without a version. */
  async latest(taskId: string): Promise<v1.ContextSection[]> {
    const version = await this.get(taskId);
    const sections = [];
    for (const info of version.sections) sections.push(await this.#fetch(version, info));
    return sections;
  }

  /** @internal Returns a section whole: a delta is resolved, and a section that was not sent is fetched. */
  async whole(taskId: string, name: string, sent: v1.ContextSection | undefined): Promise<v1.ContextSection | undefined> {
    if (sent !== undefined && sent.content.case !== "delta") return sent;
    const delta = sent?.content.case === "delta" ? sent.content.value : undefined;
    const base = delta && this.known.find(taskId, name, delta.baseSha256);
    if (delta !== undefined && base !== undefined) {
      const value = applyDelta(base, delta.mergePatch);
      if (Buffer.compare(sha256(value), delta.resultSha256) === 0) {
        return this.#noted(taskId, create(v1.ContextSectionSchema, { name, content: { case: "json", value } }));
      }
    }
    for await (const version of this.versions(taskId)) {
      if (version.digestsOnly) continue;
      const isWanted = (one: v1.SectionInfo): boolean => delta === undefined || Buffer.compare(one.sha256, delta.resultSha256) === 0;
      const info = version.sections.find((one) => one.name === name && isWanted(one));
      if (info !== undefined) return this.#fetch(version, info);
    }
    return undefined;
  }

  async #fetch({ taskId, version }: v1.ContextVersion, { name, sha256: digest, schemaId, schemaVersion }: v1.SectionInfo): Promise<v1.ContextSection> {
    const { content } = await this.section(taskId, name, { version });
    if (content.case === "json" || content.case === "bytes" || content.case === "reference") {
      const section = create(v1.ContextSectionSchema, { name, schemaId, schemaVersion, content });
      if (Buffer.compare(sectionDigest(section), digest) === 0) return this.#noted(taskId, section);
    }
    throw new VerificationError("CONTEXT_DIGEST_MISMATCH", `section ${name} is not the one that was sent`);
  }

  #noted(taskId: string, section: v1.ContextSection): v1.ContextSection {
    this.known.note(taskId, [section]);
    return section;
  }
}
