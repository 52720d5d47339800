/** The measures of a heat map: which cell lies where, in which shade, and which times are written below it. */
import type { HeatMap } from '../api/history'
import type { Bounds } from '../api/history'
import type { Line } from './series'
import { tickTexts } from '../time/timeText'

export const ROW_PX = 16
export const SHADES = 12

/** Shades that differ in lightness above all: a print in grey and an eye without red tell the same. */
export function shadeColour(shade: number): string {
  const part = shade / (SHADES - 1)
  return `light-dark(oklch(${(0.95 - 0.6 * part).toFixed(3)} ${(0.02 + 0.1 * part).toFixed(3)} 255), oklch(${(0.27 + 0.63 * part).toFixed(3)} ${(0.02 + 0.09 * part).toFixed(3)} 255))`
}

/** 0 is the lowest. */
export function shadeOf(value: number, most: number): number {
  return Math.min(SHADES - 1, Math.max(0, Math.floor((value / (most || 1)) * SHADES)))
}

/** What the darkest shade stands for: of a share the whole, of anything else the highest there is. */
export function mostOf(rows: readonly { values: readonly (number | null)[] }[], unit: string): number {
  if (unit === 'percent') return 100
  if (unit === 'share') return 1
  let most = 0
  for (const { values } of rows) for (const value of values) if (value !== null && value > most) most = value
  return most || 1
}

/** The lines of a chart as rows of a map over its bounds: what would lie over each other there stands below each other. */
export function heatOf(lines: readonly Line[], unit: string, { start, end }: Bounds): HeatMap {
  const step = lines[0]?.step || end - start
  const first = Math.floor(start / step)
  const times = Array.from({ length: Math.max(1, Math.ceil(end / step) - first) }, (_, at) => (first + at) * step)
  const rows = lines.map(({ key, label, points }) => {
    const known = new Map(points.map(([time, mean]) => [time, mean]))
    return { host: key, name: label, values: times.map((time) => known.get(time) ?? null) }
  })
  return { metric: '', unit, step, times, rows }
}

/** The rows that are in sight, and one more on each side. */
export function rowsInSight(scrolled: number, height: number, count: number): { from: number; until: number } {
  return { from: Math.max(0, Math.floor(scrolled / ROW_PX) - 1), until: Math.min(count, Math.ceil((scrolled + height) / ROW_PX) + 1) }
}

export interface Cell {
  row: number
  column: number
}

export function cellAt(x: number, y: number, width: number, columns: number, rows: number): Cell | null {
  const column = Math.floor((x / width) * columns)
  const row = Math.floor(y / ROW_PX)
  return x < 0 || column >= columns || row < 0 || row >= rows ? null : { row, column }
}

/** Where a key leads; null for keys that are none of ours. Without a cell the newest of the first row is meant. */
export function stepCell(cell: Cell | null, key: string, columns: number, rows: number): Cell | null {
  const { row, column } = cell ?? { row: 0, column: columns - 1 }
  const page = 10
  const moves: Record<string, Cell> = {
    ArrowLeft: { row, column: column - 1 },
    ArrowRight: { row, column: column + 1 },
    ArrowUp: { row: row - 1, column },
    ArrowDown: { row: row + 1, column },
    PageUp: { row: row - page, column },
    PageDown: { row: row + page, column },
    Home: { row, column: 0 },
    End: { row, column: columns - 1 },
  }
  const to = moves[key]
  if (to === undefined) return null
  if (cell === null) return { row, column }
  return { row: Math.min(rows - 1, Math.max(0, to.row)), column: Math.min(columns - 1, Math.max(0, to.column)) }
}

const HOUR = 3600
const DAY = 24 * HOUR
const DISTANCES = [HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 91 * DAY]
const LEAST_PX = 64
/** Of a letter, rather too wide: a time that would be cut at the edge is left out. */
const LETTER_PX = 7

/** Times to be written below the columns, each with the column where it begins, in the viewer's zone. */
export function heatTicks(times: readonly number[], step: number, width: number): { column: number; text: string }[] {
  const perSecond = width / (times.length * step || 1)
  const distance = DISTANCES.find((each) => each >= step && each * perSecond >= LEAST_PX) ?? 91 * DAY
  const found = times.flatMap((time, column) => (isRound(time, distance, step) ? [column] : []))
  const texts = tickTexts(found.map((column) => times[column] ?? 0), Math.min(distance, DAY))
  const ticks = found.map((column, at) => ({ column, text: texts[at] ?? '' }))
  return ticks.filter(({ column, text }) => (times.length - column) * step * perSecond >= text.length * LETTER_PX)
}

function isRound(time: number, distance: number, step: number): boolean {
  const local = time - new Date(time * 1000).getTimezoneOffset() * 60
  // Steps are cut in UTC: the first one within the round time counts.
  return ((local % distance) + distance) % distance < Math.min(step, distance)
}
