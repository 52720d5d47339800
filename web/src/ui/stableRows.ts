/** Rows of a live table that keep their places while somebody works on them. */

/** Seconds between two arrangements, and after the last sign of a person at work on the table. */
const SETTLE_SECONDS = 2
const ATTENDED_SECONDS = 5

export interface StableRow<T> {
  row: T
  /** The row is no longer there: its place stays until the table settles. */
  isGone: boolean
}

/** Who comes stands at the end while the table is attended, and who leaves keeps a place. A new question is answered at once. */
export class StableRows<T extends { key: string }> {
  private last = new Map<string, T>()
  private asked: string | null = null
  private arrangedAt = 0
  private attendedAt = -Infinity

  /** Somebody points at or walks through the rows. */
  attend(now: number): void {
    this.attendedAt = now
  }

  /** `sorted` as it would stand now; `asked` is what sort and search say; `now` in seconds. */
  arrange(sorted: readonly T[], asked: string, now: number): StableRow<T>[] {
    const current = new Map(sorted.map((row) => [row.key, row]))
    if (asked !== this.asked || this.isSettled(now)) {
      this.asked = asked
      this.arrangedAt = now
      this.last = current
    } else {
      this.last = new Map([...this.last, ...current])
    }
    return [...this.last].map(([key, row]) => ({ row, isGone: !current.has(key) }))
  }

  private isSettled(now: number): boolean {
    return now - this.arrangedAt >= SETTLE_SECONDS && now - this.attendedAt >= ATTENDED_SECONDS
  }
}
