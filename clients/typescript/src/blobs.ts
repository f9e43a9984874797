/** Blobs: content too large for a message, written and read with progress, and continued after a break. */
import { createHash } from "node:crypto";
import { type FileHandle, open, rename, rm } from "node:fs/promises";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { BatonError, isPassing, VerificationError } from "./errors.js";
import { type Caller, type CallOptions, delayOf } from "./following.js";
import { sleep } from "./session.js";
import * as v1 from "./v1.js";

const PAGE_SIZE = 200;
const PART_BYTES = 256 * 1024;
/** How often a write or a read is continued after a break without any progress. */
const BREAKS_MAX = 5;

/** Gets the bytes that are done, and all bytes. */
export type OnProgress = (done: number, all: number) => void;

/** The options of a write or a read of a whole blob. */
export interface BlobOptions extends CallOptions {
  onProgress?: OnProgress;
}

/** A part of a blob. */
export interface BlobRange extends CallOptions {
  /** The offset of the first byte; default 0. */
  offset?: number;
  /** The number of bytes; default 0, all from the offset on. */
  length?: number;
}

/** Returns the reference to a blob, for a section of a context or an entry of a workspace. */
export function blobReference({ sha256, sizeBytes, mediaType }: v1.Blob): v1.ContextReference {
  return create(v1.ContextReferenceSchema, { uri: `baton:blob/${Buffer.from(sha256).toString("hex")}`, sha256, sizeBytes, mediaType });
}

/** The blobs, as an agent sees them. All calls throw BatonError if the broker refuses: BLOB_UNKNOWN, PERMISSION_DENIED. */
export class Blobs {
  readonly #caller: Caller;
  readonly #service: Client<typeof v1.BlobService>;

  /** @internal */
  constructor(caller: Caller, transport: Transport) {
    this.#caller = caller;
    this.#service = createClient(v1.BlobService, transport);
  }

  /**
   * Writes a file, or bytes, as a blob that the workspace holds from then on, for example `task:crash-7`. Continues an unfinished
   * write of the same bytes, also that of an earlier process, and continues by itself after a break of the connection. Throws
   * BatonError, for example WORKSPACE_UNKNOWN, PERMISSION_DENIED, QUOTA_EXCEEDED, or the last break after five without progress;
   * VerificationError if the file has changed meanwhile.
   */
  async put(
    source: string | Uint8Array,
    workspaceId: string,
    { mediaType = "application/octet-stream", onProgress = (): void => undefined, signal }: { mediaType?: string } & BlobOptions = {},
  ): Promise<v1.Blob> {
    const content = await Content.of(source);
    try {
      const { digest: sha256, size } = await content.measure();
      const blob = { sha256, sizeBytes: BigInt(size), mediaType };
      let furthest = 0;
      for (let breaks = 0; ;) {
        try {
          const offset = await this.#written(sha256);
          if (offset > furthest) [breaks, furthest] = [0, offset];
          onProgress(offset, size);
          const first = { blob, workspaceId, writeOffset: BigInt(offset) };
          const stored = await this.#write(() => content.parts(first, size, onProgress), signal);
          if (stored === undefined) throw new VerificationError("BLOB_DIGEST_MISMATCH", "the file has changed while it was written");
          onProgress(size, size);
          return stored;
        } catch (error) {
          await this.#pause(error, breaks++, signal);
        }
      }
    } finally {
      await content.close();
    }
  }

  /**
   * Yields the bytes of a blob, or of a range of it, in parts of at most 256 KiB. Continues by itself after a break of the
   * connection. The reader compares the digest: `get` does so. Throws BatonError, for example BLOB_OUT_OF_RANGE, or the last
   * break after five without progress.
   */
  async *read(sha256: Uint8Array, { offset = 0, length = 0, signal }: BlobRange = {}): AsyncGenerator<Uint8Array, void> {
    let done = 0;
    for (let breaks = 0; length === 0 || done < length;) {
      const request = { sha256, readOffset: BigInt(offset + done), readLength: BigInt(length === 0 ? 0 : length - done) };
      try {
        for await (const { data } of this.#caller.stream((options) => this.#service.readBlob(request, options), signal)) {
          if (data.length === 0) continue;
          done += data.length;
          breaks = 0;
          yield data;
        }
        return;
      } catch (error) {
        await this.#pause(error, breaks++, signal);
      }
    }
  }

  /** Returns a blob, or a range of it. Throws as `read`; VerificationError if a whole blob is another one. */
  async get(sha256: Uint8Array, range: BlobRange = {}): Promise<Uint8Array> {
    const parts: Uint8Array[] = [];
    for await (const part of this.read(sha256, range)) parts.push(part);
    const data = Buffer.concat(parts);
    if (!range.offset && !range.length) check(createHash("sha256").update(data).digest(), sha256);
    return data;
  }

  /**
   * Reads a blob into a file. The bytes go to a file beside it that ends in `.part`, where a later call continues; once they have
   * the digest, the file gets its name. Throws as `read`; VerificationError if the bytes have another digest.
   */
  async getTo(sha256: Uint8Array, file: string, { onProgress = (): void => undefined, signal }: BlobOptions = {}): Promise<v1.Blob> {
    const part = `${file}.part`;
    const blob = await this.stat(sha256);
    const all = Number(blob.sizeBytes);
    const out = await open(part, "a+");
    let digest: Buffer;
    try {
      let { size: done } = await out.stat();
      if (done > all) {
        await out.truncate(0);
        done = 0;
      }
      onProgress(done, all);
      for await (const data of this.read(sha256, { offset: done, ...(signal && { signal }) })) {
        await out.appendFile(data);
        done += data.length;
        onProgress(done, all);
      }
      ({ digest } = await new Content(out).measure());
    } finally {
      await out.close();
    }
    if (Buffer.compare(digest, sha256) !== 0) await rm(part);
    check(digest, sha256);
    await rename(part, file);
    return blob;
  }

  /** Returns what the broker knows of a blob. */
  async stat(sha256: Uint8Array): Promise<v1.Blob> {
    const { blob } = await this.#caller.call((options) => this.#service.getBlob({ sha256 }, options));
    return blob ?? create(v1.BlobSchema);
  }

  /** Returns those of at most 1,000 blobs that this agent cannot read: it writes them before it refers to them. */
  async missing(sha256s: Uint8Array[]): Promise<Uint8Array[]> {
    return (await this.#caller.call((options) => this.#service.findMissingBlobs({ sha256s }, options))).sha256s;
  }

  /** Yields the blobs that a workspace holds, by digest. */
  async *list(workspaceId: string): AsyncGenerator<v1.Blob, void> {
    let pageToken = "";
    do {
      const request = { workspaceId, pageSize: PAGE_SIZE, pageToken };
      const page = await this.#caller.call((options) => this.#service.listBlobs(request, options));
      yield* page.blobs;
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /** Ends the hold of one workspace. The blob stays while another one holds it. */
  async delete(sha256: Uint8Array, workspaceId: string): Promise<void> {
    await this.#caller.call((options) => this.#service.deleteBlob({ sha256, workspaceId }, options));
  }

  /** Makes one stream of a write. Returns the blob if it is whole. */
  async #write(parts: () => AsyncIterable<Part>, signal?: AbortSignal): Promise<v1.Blob | undefined> {
    const service = this.#service;
    const answers = this.#caller.stream(async function* (options) {
      yield await service.writeBlob(parts(), options);
    }, signal);
    for await (const { blob } of answers) return blob;
    return undefined;
  }

  /** Returns the number of bytes that an unfinished write has stored. */
  async #written(sha256: Uint8Array): Promise<number> {
    try {
      const { committedBytes } = await this.#caller.call((options) => this.#service.getBlobWrite({ sha256 }, options));
      return Number(committedBytes);
    } catch (caught) {
      const error = BatonError.of(caught);
      if (error.reason !== "UPLOAD_UNKNOWN") throw error;
      return 0;
    }
  }

  /** Waits after a break, or throws the error that ended a write or a read. */
  async #pause(caught: unknown, breaks: number, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    if (caught instanceof VerificationError) throw caught;
    const error = BatonError.of(caught);
    // For the broker the stream before may not have ended yet, which is a CONFLICT.
    const isOver = error.reason === "QUOTA_EXCEEDED" || !isPassing(error) || this.#caller.life.aborted;
    if (isOver || breaks >= BREAKS_MAX) throw error;
    const over = AbortSignal.any([this.#caller.life, ...(signal ? [signal] : [])]);
    await sleep(Math.max(error.retryDelayMs ?? 0, delayOf(breaks)), over);
  }
}

type Part = MessageInitShape<typeof v1.WriteBlobRequestSchema>;

/** The content of a blob: a file or bytes. */
class Content {
  constructor(readonly source: FileHandle | Uint8Array) {}

  static async of(source: string | Uint8Array): Promise<Content> {
    return new Content(typeof source === "string" ? await open(source, "r") : source);
  }

  async close(): Promise<void> {
    if (!(this.source instanceof Uint8Array)) await this.source.close();
  }

  /** Returns the SHA-256 and the size. */
  async measure(): Promise<{ digest: Buffer; size: number }> {
    const hash = createHash("sha256");
    let size = 0;
    for (let data = await this.#at(0); data.length > 0; data = await this.#at(size)) {
      hash.update(data);
      size += data.length;
    }
    return { digest: hash.digest(), size };
  }

  /** Yields the messages of a write, from the offset in the first one on. */
  async *parts(first: Part & { writeOffset: bigint }, size: number, onProgress: OnProgress): AsyncGenerator<Part, void> {
    let offset = Number(first.writeOffset);
    yield first;
    for (let data = await this.#at(offset); data.length > 0; data = await this.#at(offset)) {
      yield { writeOffset: BigInt(offset), data };
      offset += data.length;
      onProgress(Math.min(offset, size), size);
    }
  }

  async #at(offset: number): Promise<Uint8Array> {
    if (this.source instanceof Uint8Array) return this.source.subarray(offset, offset + PART_BYTES);
    const { buffer, bytesRead } = await this.source.read(Buffer.alloc(PART_BYTES), 0, PART_BYTES, offset);
    return buffer.subarray(0, bytesRead);
  }
}

function check(digest: Buffer, sha256: Uint8Array): void {
  if (Buffer.compare(digest, sha256) !== 0) throw new VerificationError("BLOB_DIGEST_MISMATCH", `the bytes have the digest ${digest.toString("hex")}`);
}
