/** What one side puts in and the other takes out, in order. Ends after `close`, throws after `fail`; both once it is empty. */
export class Queue<T> implements AsyncIterable<T> {
  readonly #items: T[] = [];
  #wake: (() => void) | undefined;
  #end: { error?: unknown } | undefined;

  push(item: T): void {
    if (this.#end === undefined) {
      this.#items.push(item);
      this.#wake?.();
    }
  }

  close(): void {
    this.#end ??= {};
    this.#wake?.();
  }

  fail(error: unknown): void {
    this.#end ??= { error };
    this.#wake?.();
  }

  /** Takes what is there at once. */
  drain(): T[] {
    return this.#items.splice(0);
  }

  /** The next one; undefined once it is closed. For one taker at a time. */
  async next(signal?: AbortSignal): Promise<T | undefined> {
    for (;;) {
      signal?.throwIfAborted();
      if (this.#items.length > 0) return this.#items.shift();
      if (this.#end !== undefined) {
        if ("error" in this.#end) throw this.#end.error;
        return undefined;
      }
      await new Promise<void>((resolve) => {
        const wake = (): void => {
          signal?.removeEventListener("abort", wake);
          this.#wake = undefined;
          resolve();
        };
        this.#wake = wake;
        signal?.addEventListener("abort", wake);
      });
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void> {
    for (let item = await this.next(); item !== undefined; item = await this.next()) yield item;
  }
}
