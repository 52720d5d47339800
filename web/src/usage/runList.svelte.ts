/** The runs over a range of time, newest first, page by page; renewed while the range is live. */
import type { Refusal } from '../api/request'
import { readRuns, type Run, type RunsQuestion } from '../api/history'
import { boundsOf, type Range } from '../time/range'

const PAGE = 300
const AGAIN_MS = 20_000

export class RunList {
  runs = $state.raw<readonly Run[]>([])
  refused = $state.raw<Refusal | null>(null)
  isLoading = $state(true)
  hasMore = $state(false)
  private next: number | null = null
  private range: Range | null = null
  private underWay = new AbortController()
  private timer: ReturnType<typeof setInterval> | undefined

  /** `whose` says of which GPU or host; `now` is the hub's clock. */
  constructor(
    private readonly whose: RunsQuestion,
    private readonly now: () => number,
  ) {}

  show(range: Range): void {
    this.stop()
    this.range = range
    this.runs = []
    this.next = null
    this.hasMore = false
    this.isLoading = true
    void this.readFirst()
    if (range.end === null) this.timer = setInterval(() => void (document.visibilityState === 'visible' && this.readFirst()), AGAIN_MS)
  }

  stop(): void {
    clearInterval(this.timer)
    this.underWay.abort()
    this.underWay = new AbortController()
  }

  async showMore(): Promise<void> {
    if (this.next !== null) await this.read(this.next)
  }

  private readFirst(): Promise<void> {
    return this.read(null)
  }

  private async read(before: number | null): Promise<void> {
    if (this.range === null) return
    const { start, end } = boundsOf(this.range, this.now())
    const { signal } = this.underWay
    const answer = await readRuns({ ...this.whose, start: Math.round(start), end: Math.ceil(end), limit: PAGE, ...(before === null ? {} : { before }) }, signal)
    if (signal.aborted) return
    this.isLoading = false
    this.refused = 'refused' in answer ? answer.refused : null
    if ('done' in answer) this.take(answer.done.runs, answer.done.next ?? null, before !== null)
  }

  /** A renewed first page keeps the older pages that were asked for. */
  private take(runs: readonly Run[], next: number | null, isOlder: boolean): void {
    const known = new Set(runs.map(({ id }) => id))
    const others = this.runs.filter(({ id }) => !known.has(id))
    const oldest = runs.at(-1)?.id ?? 0
    const hadOlder = !isOlder && others.some(({ id }) => id < oldest)
    this.runs = isOlder ? [...others, ...runs] : [...runs, ...(next === null ? [] : others.filter(({ id }) => id < oldest))]
    if (!hadOlder) this.next = next
    this.hasMore = this.next !== null
  }
}
