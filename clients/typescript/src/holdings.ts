/** The tasks that this process works on: their present epochs, and the list of them for heartbeats. */

/** The maximum number of tasks in one heartbeat. */
export const WORKING_ON_MAX = 1024;

/** A task of this agent in the hands of this process. */
export class Holding {
  /** Whether the task has ended, or was handed on or taken away. */
  isOver = false;
  /** Whether another agent has the task on loan. */
  isLent = false;

  constructor(
    readonly taskId: string,
    /** The epoch of this agent's ownership. It follows loans of this process that have come back. */
    public epoch: bigint,
  ) {}

  /** Whether this agent owns the task and may work on it. */
  get isOwned(): boolean {
    return !this.isOver && !this.isLent;
  }
}

/** The tasks that this process has taken over and works on. */
export class Holdings {
  readonly #byTask = new Map<string, Set<Holding>>();
  readonly #onChange: () => void;

  /** `onChange` is called after each change of the list of tasks. */
  constructor(onChange: () => void = () => undefined) {
    this.#onChange = onChange;
  }

  /** Adds a task that this process has taken over at this epoch. The same task and epoch again is the same holding. */
  begin(taskId: string, epoch: bigint): Holding {
    const known = this.find(taskId, epoch);
    if (known !== undefined) return known;
    const holding = new Holding(taskId, epoch);
    const others = this.#byTask.get(taskId);
    this.#byTask.set(taskId, (others ?? new Set()).add(holding));
    if (others === undefined) this.#onChange();
    return holding;
  }

  /** Returns the holding of a task at this epoch. */
  find(taskId: string, epoch: bigint): Holding | undefined {
    return [...(this.#byTask.get(taskId) ?? [])].find((holding) => holding.epoch === epoch);
  }

  /** Whether this process works on the task. */
  has(taskId: string): boolean {
    return this.#byTask.has(taskId);
  }

  /** Ends the work of this process on a task. */
  end(holding: Holding): void {
    const holdings = this.#byTask.get(holding.taskId);
    if (holdings?.delete(holding) !== true || holdings.size > 0) return;
    this.#byTask.delete(holding.taskId);
    this.#onChange();
  }

  /** Follows a task whose ownership came back to this agent. */
  moved(taskId: string, from: bigint, to: bigint): void {
    const holding = this.find(taskId, from);
    if (holding === undefined) return;
    holding.epoch = to;
    holding.isLent = false;
  }

  /** Notes whether another agent has the task on loan. */
  lent(taskId: string, epoch: bigint, isLent: boolean): void {
    const holding = this.find(taskId, epoch);
    if (holding !== undefined) holding.isLent = isLent;
  }

  /** Ends the holdings of a task, up to this epoch, that has ended or is no longer this agent's. */
  over(taskId: string, epoch: bigint): void {
    for (const holding of [...(this.#byTask.get(taskId) ?? [])]) {
      if (holding.epoch > epoch) continue;
      holding.isOver = true;
      this.end(holding);
    }
  }

  /**
   * Returns the tasks for the next heartbeat. Of more than 1024, each heartbeat has those that were not in a heartbeat for the
   * longest time.
   */
  listed(): string[] {
    const listed = [...this.#byTask.keys()].slice(0, WORKING_ON_MAX);
    if (listed.length < this.#byTask.size) {
      for (const taskId of listed) {
        const holdings = this.#byTask.get(taskId);
        if (holdings === undefined) continue;
        this.#byTask.delete(taskId);
        this.#byTask.set(taskId, holdings);
      }
    }
    return listed;
  }
}
