/**
 * How far down each stop of the way was read: who goes back finds what they saw there.
 *
 * The browser's own memory does not help: it acts before the page that it is about has been drawn. A stop is known by a
 * number in its state, so a reload, which keeps that state, finds its place too.
 */

/** The parts of the browser that are used, so that a test can bring its own. */
export interface Stops {
  /** The state of the stop where the page is now. */
  state(): unknown
  mark(state: object): void
  scrolled(): number
  load(): string | null
  save(text: string): void
}

/** Stops whose place is remembered: the last ones. */
const MOST = 100

export class ScrollPositions {
  private heights: Map<number, number>
  private here = 0

  constructor(private readonly stops: Stops) {
    this.heights = read(stops)
    this.here = this.number()
  }

  /** Where the stop that the page opened at was left before a reload; null where it was not. */
  get opening(): number | null {
    return this.heights.get(this.here) ?? null
  }

  /** Call when the address has changed, before anything is drawn for it. Pixels from the top where the stop was left;
   * null for one that is new, or the same as before. */
  arrive(): number | null {
    const next = this.number()
    if (next === this.here) return null
    this.keep()
    this.here = next
    return this.heights.get(next) ?? null
  }

  /** Call when the page is left: what is not saved then is lost. */
  save(): void {
    this.keep()
    this.stops.save(JSON.stringify([...this.heights]))
  }

  private keep(): void {
    this.heights.delete(this.here)
    this.heights.set(this.here, this.stops.scrolled())
    for (const oldest of this.heights.keys()) if (this.heights.size > MOST) this.heights.delete(oldest)
  }

  /** A stop that has no number yet gets the next one. */
  private number(): number {
    const known = (this.stops.state() as { place?: unknown } | null)?.place
    if (typeof known === 'number') return known
    const next = Math.max(this.here, ...this.heights.keys()) + 1
    this.stops.mark({ place: next })
    return next
  }
}

function read(stops: Stops): Map<number, number> {
  try {
    const saved = JSON.parse(stops.load() ?? '[]') as unknown[]
    return new Map(saved.filter(isPlace))
  } catch {
    return new Map()
  }
}

function isPlace(saved: unknown): saved is [number, number] {
  return Array.isArray(saved) && saved.length === 2 && saved.every(Number.isFinite)
}
