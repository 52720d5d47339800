/** The same figures as a table, for whoever reads rather than looks: a few rows, each the mean over its part of the range. */
import { DASH } from '../ui/format'
import type { Aligned, Column, Line } from './series'
import { readoutText } from './units'

const MOST_ROWS = 24

export interface TableRow {
  /** When it begins. */
  time: number
  cells: string[]
}

export function tableOf({ times, means }: Aligned, lines: readonly Line[], unit: string, most = MOST_ROWS): TableRow[] {
  const each = Math.max(1, Math.ceil(times.length / most))
  const rows: TableRow[] = []
  for (let at = 0; at < times.length; at += each) {
    rows.push({ time: times[at] ?? 0, cells: lines.map((_, line) => cellOf(means[line] ?? [], at, at + each, unit)) })
  }
  return rows.filter(({ cells }) => cells.some((cell) => cell !== DASH))
}

function cellOf(column: Column, from: number, until: number, unit: string): string {
  const known = column.slice(from, until).filter((value) => value != null)
  return readoutText(known.length === 0 ? null : known.reduce((sum, value) => sum + value, 0) / known.length, unit)
}
