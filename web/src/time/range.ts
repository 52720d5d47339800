/** Ranges of time: the buttons, the address, zoom and pan. Times are Unix seconds. */
import type { Bounds } from '../api/history'
import { readPeriod } from './period'

/** What was asked for. `end` null is live: it ends now, and goes along with the clock. */
export interface Range {
  seconds: number
  end: number | null
}

const HOUR = 3600
const DAY = 24 * HOUR

export const PRESETS: readonly { name: string; label: string; title: string; seconds: number }[] = [
  { name: '1h', label: '1h', title: 'The last hour', seconds: HOUR },
  { name: '6h', label: '6h', title: 'The last 6 hours', seconds: 6 * HOUR },
  { name: '24h', label: '24h', title: 'The last 24 hours', seconds: DAY },
  { name: '7d', label: '7d', title: 'The last 7 days', seconds: 7 * DAY },
  { name: '30d', label: '30d', title: 'The last 30 days', seconds: 30 * DAY },
  { name: '90d', label: '90d', title: 'The last 90 days', seconds: 90 * DAY },
  { name: '1y', label: '1y', title: 'The last year', seconds: 365 * DAY },
]

/** Nobody asks for more or less: below it there is a handful of points, above it the hub refuses. */
export const SHORTEST = 120
export const LONGEST = 3650 * DAY

export function presetRange(name: string): Range | null {
  const preset = PRESETS.find((each) => each.name === name)
  return preset === undefined ? null : { seconds: preset.seconds, end: null }
}

/** The button that this range belongs to; null for any other. */
export function presetOf(range: Range): string | null {
  return range.end === null ? (PRESETS.find((preset) => preset.seconds === range.seconds)?.name ?? null) : null
}

/** From the address: `range=24h`, `range=5400` (the last 5400 seconds), `start=…&end=…`, and all that `readPeriod` knows.
 * `now` is asked for days and months alone. */
export function readRange(params: URLSearchParams, otherwise: string, now: () => number = () => Date.now() / 1000): Range {
  const start = Number(params.get('start') ?? NaN)
  const end = Number(params.get('end') ?? NaN)
  if (start > 0 && end > start) return fixed({ start, end })
  const name = params.get('range') ?? otherwise
  const seconds = /^\d{1,10}$/.test(name) ? Number(name) : NaN
  if (params.has('from') || name.endsWith('month')) return ofPeriod(params, otherwise, now())
  if (seconds > 0) return { seconds: clampSpan(seconds), end: null }
  return presetRange(name) ?? presetRange(otherwise) ?? { seconds: DAY, end: null }
}

/** One that goes along with the clock begins up to an hour earlier, so that it is the same for an hour. */
function ofPeriod(params: URLSearchParams, otherwise: string, now: number): Range {
  const { start, end, isOpen } = readPeriod(params, now, otherwise)
  return isOpen ? { seconds: Math.ceil((now - start) / HOUR) * HOUR, end: null } : fixed({ start, end })
}

/** The address of this range; everything else in it stays. */
export function writeRange(params: URLSearchParams, range: Range): URLSearchParams {
  const written = new URLSearchParams(params)
  for (const name of ['range', 'from', 'to', 'start', 'end']) written.delete(name)
  const { start, end } = boundsOf(range, range.end ?? 0)
  if (range.end !== null) {
    written.set('start', String(Math.round(start)))
    written.set('end', String(Math.round(end)))
  } else written.set('range', presetOf(range) ?? String(Math.round(range.seconds)))
  return written
}

export function isSameRange(a: Range, b: Range): boolean {
  return a.seconds === b.seconds && a.end === b.end
}

export function boundsOf({ seconds, end }: Range, now: number): Bounds {
  return { start: (end ?? now) - seconds, end: end ?? now }
}

/** What a drag, a key or a finger asked for. A range that reaches until now is live; nobody looks into the future. */
export function rangeOf(bounds: Bounds, now: number): Range {
  const seconds = clampSpan(bounds.end - bounds.start)
  const middle = (bounds.start + bounds.end) / 2
  const end = middle + seconds / 2
  return end >= now ? { seconds, end: null } : fixed({ start: end - seconds, end })
}

function fixed({ start, end }: Bounds): Range {
  const seconds = clampSpan(end - start)
  return { seconds: Math.round(seconds), end: Math.round(start + seconds) }
}

function clampSpan(seconds: number): number {
  return Math.min(LONGEST, Math.max(SHORTEST, seconds))
}

/** Closer (`factor` below 1) or further away; `at` stays where it is. */
export function zoom({ start, end }: Bounds, factor: number, at = (start + end) / 2): Bounds {
  const span = clampSpan((end - start) * factor)
  const part = (at - start) / (end - start)
  return { start: at - part * span, end: at + (1 - part) * span }
}

export function pan({ start, end }: Bounds, seconds: number): Bounds {
  return { start: start + seconds, end: end + seconds }
}

/** Live bounds move in whole steps, so that a chart is drawn anew when there is something new, not every second. */
export function settle(now: number, step: number): number {
  return Math.ceil(now / step) * step
}
