/**
 * The time machine: which moment of the past is shown, and the fleet of that moment in a store of its own, which the
 * fleet page draws like the live one.
 */
import { readEvents, type HubEvent } from '../api/events'
import { readPastFleet, type PastFleet } from '../api/pastFleet'
import type { Answer } from '../api/request'
import { explain, type Refused } from '../ui/apiErrors'
import { FleetStore } from './fleetStore.svelte'

export const SPANS = [
  { name: '6h', label: '6h', seconds: 6 * 3600, step: 60 },
  { name: '24h', label: '24h', seconds: 86_400, step: 300 },
  { name: '7d', label: '7d', seconds: 7 * 86_400, step: 1800 },
  { name: '30d', label: '30d', seconds: 30 * 86_400, step: 7200 },
] as const
export type SpanName = (typeof SPANS)[number]['name']

/** Seconds to which moments are rounded: that far apart are samples. */
const GRID = 10
const MOST_KEPT = 24
/** Milliseconds for which a moment has to stay chosen before it is asked for, and between two moments that are played. */
const SETTLE_MS = 60
const FRAME_MS = 700
const LARGE_HOSTS = 300
const MOST_MARKS = '500'

export interface Mark {
  at: number
  title: string
  isCritical: boolean
}

export type ReadPast = (at: number, isLarge: boolean, signal?: AbortSignal) => Promise<Answer<PastFleet>>
export type ReadMarks = (start: number, end: number, signal: AbortSignal) => Promise<Answer<{ events: HubEvent[] }>>

const readMarks: ReadMarks = (start, end, signal) =>
  readEvents({ start: String(Math.floor(start)), end: String(Math.ceil(end)), severity: 'critical,warning', limit: MOST_MARKS }, signal)

export class TimeMachine {
  /** The moment that was chosen; null: the live fleet is shown. */
  at = $state<number | null>(null)
  span = $state<SpanName>('24h')
  /** The end of the slider, Unix seconds. */
  end = $state(0)
  /** What is shown of the moment; null until it has come. */
  shown = $state.raw<Pick<PastFleet, 'as_of' | 'coverage' | 'resolution'> | null>(null)
  refused = $state.raw<Refused | null>(null)
  isLoading = $state(false)
  isPlaying = $state(false)
  marks = $state.raw<readonly Mark[]>([])
  readonly store: FleetStore

  private readonly kept = new Map<number, PastFleet>()
  /** Questions under way, by their moment: a neighbour that is fetched ahead may be chosen before its answer is here. */
  private readonly underWay = new Map<number, { calling: AbortController; answer: Promise<Answer<PastFleet>> }>()
  /** 1 where the last move was towards now, else -1. */
  private direction = 1
  private marking = new AbortController()
  private timer: ReturnType<typeof setTimeout> | undefined
  private player: ReturnType<typeof setInterval> | undefined

  /** `now` is the hub's clock, `hosts` how many the live fleet has. */
  constructor(
    private readonly now: () => number,
    private readonly hosts: () => number,
    private readonly read: ReadPast = readPastFleet,
    private readonly readEvents: ReadMarks = readMarks,
  ) {
    this.store = new FleetStore(() => ({ start: () => {}, stop: () => {}, want: () => {} }), '')
  }

  get step(): number {
    return SPANS.find(({ name }) => name === this.span)!.step
  }

  get start(): number {
    return this.end - SPANS.find(({ name }) => name === this.span)!.seconds
  }

  /** What is shown is of the moment that was chosen, or why it cannot be shown is. */
  get isCurrent(): boolean {
    return this.shown?.as_of === this.at || (this.refused !== null && !this.isLoading)
  }

  /** Shows the fleet at that moment, or at the nearest that can be shown. */
  go(at: number): void {
    if (this.at === null || at < this.start || at > this.end) this.reach(at)
    const before = this.at
    this.at = Math.round(Math.min(at, this.now()) / GRID) * GRID
    if (before !== null && before !== this.at) this.direction = Math.sign(this.at - before)
    clearTimeout(this.timer)
    const kept = this.kept.get(this.at)
    if (kept !== undefined) this.showKept(this.at, kept)
    else this.timer = setTimeout(() => void this.load(), SETTLE_MS)
  }

  /** Where the slider stands, in whole steps from here: what lies a step away was fetched ahead. */
  slide(at: number): void {
    if (this.at !== null) this.move(Math.round((at - this.at) / this.step))
  }

  /** Some steps earlier or later. */
  move(steps: number): void {
    if (this.at !== null) this.go(this.at + steps * this.step)
  }

  choose(span: SpanName): void {
    this.span = span
    this.reach(this.at ?? this.now())
  }

  leave(): void {
    this.pause()
    this.callOff([])
    this.marking.abort()
    clearTimeout(this.timer)
    this.at = this.shown = this.refused = null
    this.isLoading = false
    this.kept.clear()
  }

  play(): void {
    this.isPlaying = true
    clearInterval(this.player)
    this.player = setInterval(() => this.playOn(), FRAME_MS)
  }

  pause(): void {
    this.isPlaying = false
    clearInterval(this.player)
  }

  /** The next moment once this one is shown: none is left out, however slow the hub is. */
  private playOn(): void {
    if (this.at === null || this.at >= this.now() - this.step) this.pause()
    else if (this.isCurrent) this.move(1)
  }

  /** Moves the slider's ends so that `at` lies between them. */
  private reach(at: number): void {
    const now = this.now()
    if (this.at === null) this.span = SPANS.find(({ seconds }) => now - at < seconds)?.name ?? '30d'
    const half = (SPANS.find(({ name }) => name === this.span)!.seconds) / 2
    this.end = Math.min(now, Math.max(at + half, at))
    if (now - this.end < half) this.end = now
    void this.mark()
  }

  private async load(): Promise<void> {
    const { at } = this
    if (at === null) return
    this.callOff([at])
    this.isLoading = true
    const answer = await this.fetch(at)
    if (this.at !== at) return
    this.isLoading = false
    if ('refused' in answer) {
      this.refused = explain(answer.refused)
      this.pause()
      return
    }
    this.showKept(at, answer.done)
  }

  private showKept(at: number, fleet: PastFleet): void {
    this.isLoading = false
    this.show(fleet)
    void this.fetchAhead(at)
  }

  /** The neighbours, one after the other: first those that are likely to be next. */
  private async fetchAhead(at: number): Promise<void> {
    const { step, direction } = this
    const near = [direction, 2 * direction, -direction].map((steps) => at + steps * step).filter((moment) => moment <= this.now())
    this.callOff(near)
    for (const moment of near) if (!this.kept.has(moment) && this.at === at) await this.fetch(moment)
  }

  private fetch(at: number): Promise<Answer<PastFleet>> {
    const running = this.underWay.get(at)
    if (running !== undefined) return running.answer
    const calling = new AbortController()
    const answer = this.read(at, this.hosts() > LARGE_HOSTS, calling.signal).then((answer) => {
      if (calling.signal.aborted) return answer
      this.underWay.delete(at)
      if ('done' in answer) this.keep(at, answer.done)
      return answer
    })
    this.underWay.set(at, { calling, answer })
    return answer
  }

  /** What nobody waits for any more, but for these moments. */
  private callOff(wanted: readonly number[]): void {
    for (const [at, { calling }] of this.underWay) {
      if (wanted.includes(at)) continue
      calling.abort()
      this.underWay.delete(at)
    }
  }

  private keep(at: number, fleet: PastFleet): void {
    this.kept.set(at, fleet)
    if (this.kept.size > MOST_KEPT) this.kept.delete(this.kept.keys().next().value!)
  }

  private show(fleet: PastFleet): void {
    this.refused = null
    this.shown = { as_of: fleet.as_of, coverage: fleet.coverage, resolution: fleet.resolution }
    // Nothing changes it in place, as no deltas of it follow: it may be shown again.
    this.store.look({ ...fleet, is_whole: true })
  }

  private async mark(): Promise<void> {
    this.marking.abort()
    const { signal } = (this.marking = new AbortController())
    const answer = await this.readEvents(this.start, this.end, signal)
    if (signal.aborted || !('done' in answer)) return
    this.marks = answer.done.events
      .filter(({ kind }) => ['alert_fired', 'host_down', 'gpu_lost', 'xid'].includes(kind))
      .map(({ at, title, host, severity }) => ({ at, title: host === null || host === undefined ? title : `${host}: ${title}`, isCritical: severity === 'critical' }))
  }
}

const SECONDS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400 }

/** From the address: `?at=1794837842`, or `?at=-2h` as for curl; null where it names none. */
export function readAt(search: string, now = Date.now() / 1000): number | null {
  const text = new URLSearchParams(search).get('at') ?? ''
  const ago = /^-(\d+(?:\.\d+)?)([smhd])$/.exec(text)
  const at = ago === null ? Number(text || NaN) : Math.floor(now - Number(ago[1]) * SECONDS[ago[2]!]!)
  return at > 0 && Number.isFinite(at) ? at : null
}

/** The query part of an address with this moment in it; everything else in it stays. */
export function writeAt(search: string, at: number | null): string {
  const parameters = new URLSearchParams(search)
  if (at === null) parameters.delete('at')
  else parameters.set('at', String(at))
  const written = parameters.toString()
  return written === '' ? '' : `?${written}`
}
