/**
 * A question about the past and its answers. They are kept for a while, so that a range that was seen a moment ago opens
 * at once; one that reaches until now is renewed at its right end, once a step and only while somebody looks.
 */
import { POINTS, readHistory, type Bounds, type Past, type PastSeries, type Question } from '../api/history'
import type { Answer, Refusal } from '../api/request'
import { boundsOf, type Range } from '../time/range'

/** What is known of the answer so far. An old answer stays while a new one is under way. */
export interface QueryState {
  past: Past | null
  refused: Refusal | null
  isLoading: boolean
}

export const INITIAL_QUERY_STATE: QueryState = { past: null, refused: null, isLoading: true }

/** The answers that were seen last, the latest at the end. */
const seen = new Map<string, Past>()
const MOST_SEEN = 80

function keep(key: string, past: Past): void {
  seen.delete(key)
  seen.set(key, past)
  if (seen.size > MOST_SEEN) seen.delete(seen.keys().next().value ?? '')
}

/** Nothing stays of what somebody else was shown. */
export function forgetHistory(): void {
  seen.clear()
}

/** The parts of the browser that are used, so that a test can bring its own. */
export interface Tools {
  read: typeof readHistory
  /** The hub's clock, Unix seconds. */
  now: () => number
  isVisible: () => boolean
  /** Calls back when the page comes into sight again; returns how to stop that. */
  onVisible: (listener: () => void) => () => void
}

export function browserTools(now: () => number): Tools {
  return {
    read: readHistory,
    now,
    isVisible: () => document.visibilityState === 'visible',
    onVisible: (listener) => {
      const onChange = (): void => void (document.visibilityState === 'visible' && listener())
      document.addEventListener('visibilitychange', onChange)
      return () => document.removeEventListener('visibilitychange', onChange)
    },
  }
}

/** Seconds between two looks at the right end. */
const SHORTEST_PAUSE = 10
const LONGEST_PAUSE = 300
/** Seconds until a question is asked again that the hub could not answer. */
const RETRY_SECONDS = 5
/** Steps that may still have been changing when they were answered. */
const UNSETTLED_STEPS = 2

/** One question whose range may change. Tells of everything that becomes known; ends with `stop`. */
export class HistoryFeed {
  state: QueryState = INITIAL_QUERY_STATE
  private range: Range | null = null
  private underWay: AbortController | null = null
  private timer: ReturnType<typeof setTimeout> | undefined
  private readonly leave: () => void

  constructor(
    private readonly question: Question,
    private readonly onState: (state: QueryState) => void,
    private readonly tools: Tools,
  ) {
    this.leave = tools.onVisible(() => void (this.isLive() && this.refresh()))
  }

  /** What is under way for another range is called off. */
  show(range: Range): void {
    this.range = range
    const known = seen.get(this.key(range)) ?? null
    this.update({ past: known ?? this.state.past, refused: null, isLoading: known === null })
    if (known === null) void this.readAll()
    else if (range.end === null) this.refresh()
    else this.halt()
  }

  stop(): void {
    this.halt()
    this.leave()
    this.range = null
  }

  private isLive(): boolean {
    return this.range?.end === null
  }

  private key(range: Range): string {
    return JSON.stringify([this.question, range])
  }

  private halt(): void {
    clearTimeout(this.timer)
    this.underWay?.abort()
    this.underWay = null
  }

  private update(state: QueryState): void {
    this.state = state
    this.onState(state)
  }

  private refresh(): void {
    const past = this.range === null ? null : (seen.get(this.key(this.range)) ?? null)
    if (past === null) void this.readAll()
    else void this.readEnd(past)
  }

  private async readAll(): Promise<void> {
    const { range } = this
    if (range === null) return
    const answer = await this.read(this.question, boundsOf(range, this.tools.now()))
    if (answer === null) return
    if ('done' in answer) this.take(answer.done)
    else this.refuse(answer.refused)
  }

  /** Only what may have changed since: the last steps. Their length is asked for by the number of points. */
  private async readEnd(past: Past): Promise<void> {
    const { range } = this
    if (range === null) return
    const now = this.tools.now()
    const start = endOf(past) - past.step * UNSETTLED_STEPS
    const points = Math.max(1, Math.round((now - start) / past.step))
    const bounds = { start: Math.max(start, now - range.seconds), end: now }
    const answer = points > POINTS || start >= now ? null : await this.read({ ...this.question, points }, bounds)
    if (this.range !== range) return
    if (answer !== null && 'refused' in answer) return this.refuse(answer.refused)
    const joined = answer === null ? null : join(past, answer.done, now - range.seconds)
    if (joined === null) await this.readAll()
    else this.take(joined)
  }

  /** Null where it was called off. */
  private async read(question: Question, bounds: Bounds): Promise<Answer<Past> | null> {
    this.halt()
    const own = (this.underWay = new AbortController())
    const answer = await this.tools.read(question, bounds, own.signal)
    return own.signal.aborted ? null : answer
  }

  private take(past: Past): void {
    if (this.range === null) return
    keep(this.key(this.range), past)
    this.update({ past, refused: null, isLoading: false })
    if (this.isLive()) this.wait(Math.min(LONGEST_PAUSE, Math.max(SHORTEST_PAUSE, past.step)))
  }

  private refuse(refused: Refusal): void {
    this.update({ past: this.state.past, refused, isLoading: false })
    const isPassing = refused.status === null || refused.status >= 500 || refused.status === 429
    if (isPassing) this.wait(Math.max(refused.retryAfter ?? 0, RETRY_SECONDS))
  }

  private wait(seconds: number): void {
    clearTimeout(this.timer)
    this.timer = setTimeout(() => {
      if (this.tools.isVisible()) this.refresh()
    }, seconds * 1000)
  }
}

function endOf(past: Past): number {
  const lasts = past.series.flatMap(({ points }) => points.at(-1)?.[0] ?? [])
  return lasts.length === 0 ? past.start : Math.max(...lasts)
}

const nameOf = ({ gpu, host, user, run, fleet }: PastSeries): string => JSON.stringify([gpu, host, user, run, fleet])

/** The old answer with a new right end, without what lies before `start`. Null where the steps do not fit. */
export function join(past: Past, end: Past, start: number): Past | null {
  if (end.step !== past.step) return null
  const from = Math.floor(end.start / end.step) * end.step
  const series = new Map(past.series.map((each) => [nameOf(each), { ...each, points: each.points.filter(([time]) => time < from && time > start - past.step) }]))
  for (const each of end.series) {
    const old = series.get(nameOf(each))
    series.set(nameOf(each), { ...each, points: [...(old?.points ?? []), ...each.points] })
  }
  return { ...past, start, end: end.end, series: [...series.values()].filter(({ points }) => points.length > 0) }
}
