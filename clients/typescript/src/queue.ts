/** A queue from one side to another, in order. After the last item it ends, if `close` was called, or throws, after `fail`. */
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

  /** Removes and returns all items at once. */
  drain(): T[] {
    return this.#items.splice(0);
  }

  /**
   * Waits for the next item and removes it; undefined after `close`. Throws the reason of a signal that aborts. One caller may
   * wait at a time.
   */
  async next(...signals: readonly (AbortSignal | undefined)[]): Promise<T | undefined> {
    for (;;) {
      for (const signal of signals) signal?.throwIfAborted();
      if (this.#items.length > 0) return this.#items.shift();
      if (this.#end !== undefined) {
        if ("error" in this.#end) throw this.#end.error;
        return undefined;
      }
      await new Promise<void>((resolve) => {
        const wake = (): void => {
          for (const signal of signals) signal?.removeEventListener("abort", wake);
          this.#wake = undefined;
          resolve();
        };
        this.#wake = wake;
        for (const signal of signals) signal?.addEventListener("abort", wake);
      });
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void> {
    for (let item = await this.next(); item !== undefined; item = await this.next()) yield item;
  }
}
