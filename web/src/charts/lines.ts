/** From the hub's answers to the lines of a chart. */
import type { Past, PastSeries } from '../api/history'
import { orderColour, userColour } from '../ui/colours'
import { gatherSmall, type Line } from './series'
import type { Point } from '../api/history'

type Look = Pick<Line, 'colour' | 'kind' | 'hasSpread'>

/** The one series of an answer under this label; nothing where there is no answer, or nothing in it. */
export function lineOf(past: Past | null, label: string, look: Look = {}): Line[] {
  return (past?.series ?? []).slice(0, 1).map(({ points }) => ({ key: label, label, points, step: past?.step ?? 0, ...look }))
}

const MOST_USERS = 10
/** Steps. What is rarer than this is no line any more. */
const RAREST = 6
const MOST_GPUS = 64

/** How long a point stands for: no less than its step, and as long as the points lie apart where they were taken rarely. */
export function cadence(points: readonly Point[], step: number): number {
  const apart = points.slice(1).map((point, at) => point[0] - (points[at]?.[0] ?? 0))
  const nearest = Math.min(...apart)
  return apart.length >= 2 && nearest <= step * RAREST ? Math.max(step, nearest) : step
}

/** One area per user, no two alike; the smallest are summed up. */
export function userLines(past: Past | null): Line[] {
  const lines = (past?.series ?? []).map(({ user, points }) => ({
    key: user === undefined || user === null ? '?' : `user ${user}`,
    label: user ?? 'unknown user',
    points,
    // Use by user comes from samples, which may be rarer than the steps asked for.
    step: cadence(points, past?.step ?? 0),
    kind: 'area' as const,
  }))
  const shown = gatherSmall(lines, MOST_USERS, (count) => `${count} others`).sort((a, b) => place(a) - place(b))
  return shown.map((line) => (line.key === 'rest' ? line : { ...line, colour: userColour(place(line) === 0 ? line.label : null) }))
}

/** Those without a name of their own lie on top. */
function place({ key }: Pick<Line, 'key'>): number {
  return key === 'rest' ? 2 : key === '?' ? 1 : 0
}

/** One line a GPU of a host, in the order of their labels. */
export function gpuLines(past: Past | null): Line[] {
  const byLabel = new Intl.Collator('en', { numeric: true })
  const name = ({ label, gpu }: PastSeries): string => label ?? gpu ?? ''
  const series = [...(past?.series ?? [])].sort((a, b) => byLabel.compare(name(a), name(b))).slice(0, MOST_GPUS)
  return series.map((each, at) => ({ key: each.gpu ?? name(each), label: `GPU ${name(each)}`, points: each.points, step: past?.step ?? 0, colour: orderColour(at) }))
}
