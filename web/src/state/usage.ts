/** Who used how much in a period, in words and bars. Hours are GPU-hours. */
import type { Usage, UsageBy, UsageDay, UsageRow } from '../api/types'
import { bytes, DASH, MONTHS, plain } from './format'
import type { Figure } from './lines'
import { dayOf } from './period'

export const BYS: readonly { by: UsageBy; label: string; one: string }[] = [
  { by: 'user', label: 'person', one: 'Person' },
  { by: 'group', label: 'group', one: 'Group' },
  { by: 'host', label: 'host', one: 'Host' },
  { by: 'model', label: 'model', one: 'Model' },
]

export function readBy(text: string | null): UsageBy {
  return BYS.find(({ by }) => by === text)?.by ?? 'user'
}

/** Whether groups were asked for where nobody is in one. */
export function isUngrouped({ by, rows }: Usage): boolean {
  return by === 'group' && rows.every(({ group }) => group == null)
}

export const USAGE_SORTS = ['held', 'name', 'worked', 'idle', 'energy', 'cost', 'peak'] as const
export type UsageSort = (typeof USAGE_SORTS)[number]

export interface UsageOrder {
  by: UsageSort
  isTurned: boolean
}

/** `-idle` is the column turned round. */
export function readUsageOrder(text: string | null): UsageOrder {
  const isTurned = text?.startsWith('-') ?? false
  const by = USAGE_SORTS.find((known) => known === text?.slice(isTurned ? 1 : 0))
  return by === undefined ? { by: 'held', isTurned: false } : { by, isTurned }
}

export function turnUsageOrder(order: UsageOrder, by: UsageSort): string {
  const isTurned = order.by === by && !order.isTurned
  return `${isTurned ? '-' : ''}${by}`.replace(/^held$/, '')
}

const RANKS: Record<Exclude<UsageSort, 'name'>, (row: UsageRow) => number | null | undefined> = {
  held: (row) => row.gpu_hours,
  worked: (row) => row.worked_hours,
  idle: (row) => row.idle_held_hours,
  energy: (row) => row.energy_kwh,
  cost: (row) => row.cost,
  peak: (row) => row.peak_memory_bytes,
}

const byName = new Intl.Collator('en', { numeric: true, sensitivity: 'base' })

/** What is not known comes last, whichever way. */
export function sortUsage(rows: readonly UsageRow[], by: UsageBy, { by: column, isTurned }: UsageOrder): UsageRow[] {
  const turn = isTurned ? -1 : 1
  const name = (row: UsageRow): string => nameOf(row, by) ?? ''
  return [...rows].sort((a, b) => {
    if (column === 'name') return Number(nameOf(a, by) === null) - Number(nameOf(b, by) === null) || turn * byName.compare(name(a), name(b))
    const [left, right] = [RANKS[column](a) ?? null, RANKS[column](b) ?? null]
    if (left === null || right === null) return Number(left === null) - Number(right === null) || byName.compare(name(a), name(b))
    return turn * (right - left) || byName.compare(name(a), name(b))
  })
}

/** Null for those whom nobody could name, and for those without a group. */
export function nameOf(row: UsageRow, by: UsageBy): string | null {
  return row.unknown ? null : (row[by] ?? null)
}

export interface UsageText {
  key: string
  /** Null where there is nothing behind the name that could be opened. */
  name: string | null
  title: Figure
  held: string
  /** Of the row with the most, 0…1, and the part of it that worked. */
  heldPart: number
  workedPart: number
  share: Figure
  worked: Figure
  idle: string
  energy: Figure
  cost: string
  peak: string
}

/** A row in words; `most` is the largest number of hours that any row has. */
export function usageText(row: UsageRow, by: UsageBy, most: number, currency: string): UsageText {
  const name = nameOf(row, by)
  const part = (hours: number | null): number => (most > 0 ? Math.min(1, Math.max(0, (hours ?? 0) / most)) : 0)
  return {
    key: `${row.unknown ? '?' : name === null ? '-' : '='}${name ?? ''}`,
    name,
    title: titleOf(row, by),
    held: amount(row.gpu_hours),
    heldPart: part(row.gpu_hours),
    workedPart: part(row.worked_hours),
    share: row.share === null ? { text: DASH, title: 'nothing was observed' } : { text: percentage(row.share), title: 'of all GPU-hours that were observed' },
    worked: workedText(row),
    idle: amount(row.idle_held_hours),
    energy: row.energy_kwh === null ? { text: DASH, title: 'no GPU of theirs tells its power' } : { text: amount(row.energy_kwh), title: undefined },
    cost: costText(row.cost ?? null, currency),
    peak: bytes(row.peak_memory_bytes),
  }
}

function titleOf(row: UsageRow, by: UsageBy): Figure {
  const name = nameOf(row, by)
  if (name !== null) return { text: plain(name), title: undefined }
  if (row.unknown) return { text: 'not known', title: 'nobody could say who it was' }
  return { text: `no ${by}`, title: by === 'group' ? 'people without a group' : undefined }
}

function workedText(row: UsageRow): Figure {
  if (row.worked_hours === null) return { text: DASH, title: 'no utilization was known' }
  const asFarAsKnown = row.measured_hours < 0.995 * row.gpu_hours ? ' with a known utilization' : ''
  return { text: amount(row.worked_hours), title: `${workedShare(row)} of the time held${asFarAsKnown}` }
}

/** How much of the held time worked, as far as that is known: `62 %`; a dash where nothing is. */
export function workedShare(row: UsageRow): string {
  return row.worked_hours === null || row.measured_hours <= 0 ? DASH : percentage(row.worked_hours / row.measured_hours)
}

/** `0.4`, `12.5`, `1,234`. What is more than nothing is never a zero. */
export function amount(value: number): string {
  if (value > 0 && value < 0.05) return '< 0.1'
  const digits = Math.abs(value) < 100 ? 1 : 0
  return value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits })
}

/** 0…1 as percent. Neither is a little nothing, nor almost all everything. */
export function percentage(part: number): string {
  if (part > 0 && part < 0.001) return '< 0.1 %'
  const percent = part < 1 ? Math.min(99.9, Math.round(part * 1000) / 10) : Math.round(part * 1000) / 10
  return `${percent.toFixed(percent === 0 || percent >= 100 ? 0 : 1)} %`
}

function costText(cost: number | null, currency: string): string {
  if (cost === null) return DASH
  const text = cost.toLocaleString('en', { minimumFractionDigits: 2, maximumFractionDigits: 2 })
  return currency === '' ? text : `${text} ${plain(currency)}`
}

/** Whether anything has a price. */
export function isPriced(usage: Usage): boolean {
  return usage.rows.some((row) => row.cost != null)
}

/** How much of the period the figures stand for, as sentences. `began` is the first moment that anything tells of. */
export function coverageText(usage: Usage, began: number | null = null): string {
  if (usage.coverage === null) return `No GPU was known in this period${usage.known_since ? `: the records begin ${dayLabel(dayOf(usage.known_since))}` : ''}.`
  const observed = `${amount(usage.observed_gpu_hours)} GPU-hours`
  const isLate = began !== null && began - usage.start > (usage.end - usage.start) / 50
  const time = isLate ? `the time since ${dayLabel(dayOf(began))}, when the records begin` : 'the period'
  if (usage.coverage >= 1) return `Observed 100 % of ${time}: ${observed}.`
  return `Observed ${percentage(usage.coverage)} of ${time}: ${observed}. What nobody observed is in no figure.`
}

/** A day as a bar. */
export interface DayBar {
  day: string
  label: string
  held: number
  worked: number | null
  /** 0…1 of the height. */
  heldPart: number
  workedPart: number
  title: string
}

/** A bar a day, also for those in between that have none: a person may rest. `days` are in order. */
export function dayBars(days: readonly UsageDay[], all: readonly string[]): DayBar[] {
  const found = new Map(days.map((day) => [day.day, day]))
  const most = days.reduce((most, day) => Math.max(most, day.gpu_hours), 0)
  const part = (value: number): number => (most > 0 ? value / most : 0)
  return all.map((day) => {
    const { gpu_hours: held, worked_hours: worked } = found.get(day) ?? { gpu_hours: 0, worked_hours: null }
    return { day, label: dayLabel(day), held, worked, heldPart: part(held), workedPart: part(worked ?? 0), title: dayTitle(day, held, worked) }
  })
}

/** `Nov 3`, from the date as the hub writes it: no clock of ours may move it to another day. */
export function dayLabel(day: string): string {
  const [, month = '', date = ''] = day.split('-')
  return `${MONTHS[Number(month) - 1] ?? ''} ${Number(date)}`
}

function dayTitle(day: string, held: number, worked: number | null): string {
  if (held === 0) return `${dayLabel(day)}: nothing`
  return `${dayLabel(day)}: ${amount(held)} GPU-hours held, ${worked === null ? 'work not known' : `${amount(worked)} worked`}`
}
