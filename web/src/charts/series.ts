/**
 * From the hub's points to the columns that a chart draws. Nothing is invented on the way: a step that nobody observed
 * stays a gap, and a gap is never a zero.
 */
import type { Point } from '../api/history'

/** `limit` is dashed and has no spread; `area` lies on the areas before it, where the chart is stacked. */
export type LineKind = 'line' | 'limit' | 'area'

export interface Line {
  /** Tells lines apart: the same from one answer to the next. */
  key: string
  label: string
  points: readonly Point[]
  /** Seconds that a point stands for. */
  step: number
  /** Any CSS colour, `var(--ink)` as well. Without one it is drawn in the accent. */
  colour?: string
  kind?: LineKind
  /** Draws the smallest and the largest value around the mean. */
  hasSpread?: boolean
}

/** Null ends the line; undefined lies between two points of a coarser line, which goes on. */
export type Column = (number | null | undefined)[]

export interface Aligned {
  times: number[]
  means: Column[]
  lows: Column[]
  highs: Column[]
}

/** Two points further apart than this many steps have a gap between them. */
const GAP_STEPS = 1.5

function isGap(from: Point, to: Point, step: number): boolean {
  return to[0] - from[0] > step * GAP_STEPS
}

/** All lines over the same times, in ascending order. A gap gets a time of its own, so that it is seen in each column. */
export function align(lines: readonly Line[]): Aligned {
  const times = timesOf(lines)
  const places = new Map(times.map((time, place) => [time, place]))
  const column = (line: Line, part: 1 | 2 | 3): Column => columnOf(line, part, places, times.length)
  return {
    times,
    means: lines.map((line) => column(line, 1)),
    lows: lines.map((line) => column(line, 2)),
    highs: lines.map((line) => column(line, 3)),
  }
}

function timesOf(lines: readonly Line[]): number[] {
  const times = new Set<number>()
  for (const { points, step } of lines) {
    points.forEach((point, at) => {
      times.add(point[0])
      const next = points[at + 1]
      if (next !== undefined && isGap(point, next, step)) times.add(point[0] + step)
    })
  }
  return [...times].sort((a, b) => a - b)
}

function columnOf({ points, step }: Line, part: 1 | 2 | 3, places: ReadonlyMap<number, number>, length: number): Column {
  const column: Column = new Array<number | null | undefined>(length).fill(null)
  points.forEach((point, at) => {
    const place = places.get(point[0]) ?? 0
    column[place] = point[part]
    const next = points[at + 1]
    if (next !== undefined && !isGap(point, next, step)) column.fill(undefined, place + 1, places.get(next[0]))
  })
  return column
}

/**
 * Each column laid upon those before it. Whoever is not there counts as nothing, as long as anybody or anything was
 * observed at that time: `observed` are columns that say so without being part of the pile.
 */
export function stack(columns: readonly Column[], observed: readonly Column[] = []): Column[] {
  const filled = [...columns, ...observed].map(fillForward)
  const length = filled[0]?.length ?? 0
  const isKnown = Array.from({ length }, (_, at) => filled.some((column) => column[at] != null))
  const heights = new Array<number>(length).fill(0)
  return filled.slice(0, columns.length).map((column) =>
    column.map((value, at) => (isKnown[at] ? (heights[at] = (heights[at] ?? 0) + (value ?? 0)) : null)),
  )
}

/** What lies between two points of a coarser line has the value of the one before. */
function fillForward(column: Column): Column {
  let last: number | null = null
  return column.map((value) => (value === undefined ? last : (last = value)))
}

/** The places of points with a gap on either side: no line leads to them, so they are drawn as dots. */
export function lonePlaces(column: Column): number[] {
  const known = column.flatMap((value, at) => (value == null ? [] : [at]))
  return known.filter((at) => before(column, at) === null && after(column, at) === null)
}

function before(column: Column, at: number): number | null {
  let place = at - 1
  while (place >= 0 && column[place] === undefined) place -= 1
  return column[place] ?? null
}

function after(column: Column, at: number): number | null {
  let place = at + 1
  while (place < column.length && column[place] === undefined) place += 1
  return column[place] ?? null
}

/** The place of the last time at which any of the columns is known; null where none ever is. */
export function lastKnown(columns: readonly Column[]): number | null {
  const length = columns[0]?.length ?? 0
  for (let at = length - 1; at >= 0; at -= 1) if (columns.some((column) => column[at] != null)) return at
  return null
}

/** The value there, or that of the coarser step that covers it; null in a gap. */
export function valueAt(column: Column, at: number): number | null {
  let place = at
  while (place > 0 && column[place] === undefined) place -= 1
  return column[place] ?? null
}

/** Those with the largest sums as they are, the rest together as one line: a chart with forty hues tells nothing. */
export function gatherSmall(lines: readonly Line[], most: number, label: (count: number) => string): Line[] {
  const bySize = [...lines].sort((a, b) => sizeOf(b) - sizeOf(a))
  const rest = bySize.slice(most - 1)
  if (lines.length <= most) return bySize
  return [...bySize.slice(0, most - 1), { ...addUp(rest), key: 'rest', label: label(rest.length), kind: 'area', colour: 'var(--muted)' }]
}

function sizeOf({ points }: Line): number {
  return points.reduce((sum, [, mean]) => sum + (mean ?? 0), 0)
}

function addUp(lines: readonly Line[]): Pick<Line, 'points' | 'step'> {
  const sums = new Map<number, number>()
  for (const { points } of lines) for (const [time, mean] of points) if (mean !== null) sums.set(time, (sums.get(time) ?? 0) + mean)
  const points = [...sums].sort(([a], [b]) => a - b).map(([time, sum]): Point => [time, sum, null, null])
  return { points, step: lines[0]?.step ?? 0 }
}

/** A line between the ends, one point a step: a figure that does not change, such as a limit. */
export function constantLine(key: string, label: string, value: number, start: number, end: number): Line {
  const step = end - start
  return { key, label, step, kind: 'limit', points: [[start, value, null, null], [end, value, null, null]] }
}
