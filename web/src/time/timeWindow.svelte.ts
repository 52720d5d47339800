/** The range of time that a page shows: it lives in the address, and knows the way back from a zoom. */
import { boundsOf, isSameRange, rangeOf, readRange, settle, writeRange, type Range } from './range'
import type { Bounds } from '../api/history'

/** What a page opens with. */
export const USUAL_RANGE = '24h'
/** About so many times while a live range passes by its own length is a chart moved on. */
const MOVES = 500

export class TimeWindow {
  readonly range: Range
  readonly bounds: Bounds
  private readonly before: Range[] = []

  /** `params` are those of the address now, `go` writes others there, `now` is the hub's clock. */
  constructor(
    private readonly params: () => URLSearchParams,
    private readonly go: (params: URLSearchParams) => void,
    private readonly now: () => number,
  ) {
    const asked = $derived(readRange(params(), USUAL_RANGE, now))
    // Derived again: an address that says the same by other words changes nothing.
    let last: Range | null = null
    const range = $derived((last = last !== null && isSameRange(last, asked) ? last : asked))
    const moved = $derived(settle(now(), Math.max(1, range.seconds / MOVES)))
    this.range = $derived(range)
    this.bounds = $derived(boundsOf(range, moved))
  }

  choose(range: Range): void {
    if (isSameRange(range, this.range)) return
    this.before.push(this.range)
    this.go(writeRange(this.params(), range))
  }

  /** Somebody zoomed or panned; null: back to the range before, or to the usual one. */
  drag = (bounds: Bounds | null): void => {
    if (bounds !== null) return this.choose(rangeOf(bounds, this.now()))
    const range = this.before.pop() ?? readRange(new URLSearchParams(), USUAL_RANGE)
    this.go(writeRange(this.params(), range))
  }
}
