/** Who used how much in a period, in words and bars. Hours are GPU-hours. */
import type { Usage, UsageBy, UsageDay, UsageRow } from '../api/types'
import { bytes, clockTime, DASH, MONTHS, plain } from '../ui/format'
import type { Figure } from '../ui/format'
import { dayOf } from '../time/period'

export const BYS: readonly { by: UsageBy; label: string; one: string }[] = [
  { by: 'user', label: 'user', one: 'User' },
  { by: 'group', label: 'group', one: 'Group' },
  { by: 'host', label: 'host', one: 'Host' },
  { by: 'model', label: 'model', one: 'Model' },
  { by: 'account', label: 'account', one: 'Account' },
  { by: 'partition', label: 'partition', one: 'Partition' },
  { by: 'namespace', label: 'namespace', one: 'Namespace' },
]
/** What only a scheduler knows. */
export const OF_JOBS: ReadonlySet<UsageBy> = new Set(['account', 'partition', 'namespace'])

export function readBy(text: string | null): UsageBy {
  return BYS.find(({ by }) => by === text)?.by ?? 'user'
}

/** Whether groups were asked for where nobody is in one. */
export function isUngrouped({ by, rows }: Usage): boolean {
  return by === 'group' && rows.every(({ group }) => group == null)
}

export const USAGE_SORTS = ['hours', 'name', 'active', 'idle', 'energy', 'cost', 'peak', 'allocated', 'unused'] as const
export type UsageSort = (typeof USAGE_SORTS)[number]

export interface UsageOrder {
  by: UsageSort
  isTurned: boolean
}

/** `-idle` is the column turned round. */
export function readUsageOrder(text: string | null): UsageOrder {
  const isTurned = text?.startsWith('-') ?? false
  const by = USAGE_SORTS.find((known) => known === text?.slice(isTurned ? 1 : 0))
  return by === undefined ? { by: 'hours', isTurned: false } : { by, isTurned }
}

export function turnUsageOrder(order: UsageOrder, by: UsageSort): string {
  const isTurned = order.by === by && !order.isTurned
  return `${isTurned ? '-' : ''}${by}`.replace(/^hours$/, '')
}

const RANKS: Record<Exclude<UsageSort, 'name'>, (row: UsageRow) => number | null | undefined> = {
  hours: (row) => row.gpu_hours,
  active: (row) => row.active_hours,
  idle: (row) => row.idle_hours,
  energy: (row) => row.energy_kwh,
  cost: (row) => row.cost,
  peak: (row) => row.peak_memory_bytes,
  allocated: (row) => row.allocated_hours,
  unused: (row) => row.unused_hours,
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

/** Null for unknown users, and for users without a group. */
export function nameOf(row: UsageRow, by: UsageBy): string | null {
  return row.unknown ? null : (row[by] ?? null)
}

export interface UsageText {
  key: string
  /** Null where there is nothing behind the name that could be opened. */
  name: string | null
  title: Figure
  hours: string
  /** Of the row with the most, 0…1, and the active part of it. */
  hoursPart: number
  activePart: number
  share: Figure
  active: Figure
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
    hours: amount(row.gpu_hours),
    hoursPart: part(row.gpu_hours),
    activePart: part(row.active_hours),
    share: row.share === null ? { text: DASH, title: 'nothing was monitored' } : { text: percentage(row.share), title: 'of all monitored GPU-hours' },
    active: activeText(row),
    idle: row.idle_hours === null ? DASH : amount(row.idle_hours),
    energy: row.energy_kwh === null ? { text: DASH, title: 'power not reported' } : { text: amount(row.energy_kwh), title: undefined },
    cost: costText(row.cost ?? null, currency),
    peak: bytes(row.peak_memory_bytes),
  }
}

function titleOf(row: UsageRow, by: UsageBy): Figure {
  const name = nameOf(row, by)
  if (name !== null) return { text: plain(name), title: undefined }
  if (row.unknown) return { text: 'unknown user', title: 'the user could not be determined' }
  return { text: `no ${by}`, title: by === 'group' ? 'users without a group' : undefined }
}

function activeText(row: UsageRow): Figure {
  if (row.active_hours === null) return { text: DASH, title: 'utilization not measured' }
  return { text: amount(row.active_hours), title: `utilization ${utilizationText(row)}${measuredText(row)}` }
}

/** Active hours of the hours whose utilization was measured: `62.0 %`; a dash where none were. */
export function utilizationText(row: UsageRow): string {
  return row.active_hours === null || row.measured_hours <= 0 ? DASH : percentage(row.active_hours / row.measured_hours)
}

/** ` of 12.5 measured` where the utilization of some GPU-hours was not measured; empty otherwise. */
export function measuredText(row: UsageRow): string {
  return row.active_hours === null || row.measured_hours >= 0.995 * row.gpu_hours ? '' : ` of ${amount(row.measured_hours)} measured`
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

export function costText(cost: number | null, currency: string, digits = 2): string {
  if (cost === null) return DASH
  const text = cost.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits })
  return currency === '' ? text : `${text} ${plain(currency)}`
}

/** Whether anything has a price. */
export function isPriced(usage: Usage): boolean {
  return usage.rows.some((row) => row.cost != null)
}

/** Which models the costs leave out. Without any cost it is a hint for those who can set prices, and else empty. */
export function priceNote(unpriced: readonly string[], hasCosts: boolean, mayAdminister: boolean): string {
  if (unpriced.length === 0) return ''
  if (hasCosts) return `Costs do not include models without a price: ${unpriced.map((model) => plain(model.replace(/^NVIDIA /, ''))).join(', ')}.`
  return mayAdminister ? 'There are no costs: no model used here has a price. Set prices in usage.prices of the configuration.' : ''
}

/** How much of the period was monitored. `began` is the first moment with data. */
export function coverageText(usage: Usage, began: number | null = null): string {
  if (usage.coverage === null) return `No GPU was monitored in this period${usage.known_since ? `; records begin ${dayLabel(dayOf(usage.known_since))}` : ''}.`
  const monitored = `${amount(usage.monitored_gpu_hours)} GPU-hours monitored.`
  const isLate = began !== null && began - usage.start > (usage.end - usage.start) / 50
  const since = isLate ? ` since records begin on ${dayLabel(dayOf(began))}` : ''
  if (usage.coverage >= 1) return `Coverage 100 %${since}: ${monitored}`
  return `Coverage ${percentage(usage.coverage)}${since}: ${monitored} Unmonitored time is excluded.`
}

/** What the figures of allocated time leave out. */
export function allocatedText({ allocated_since: since, total }: Usage): string {
  const told = since === null ? [] : [`Jobs are recorded since ${dayLabel(dayOf(since))}. Of the time before, only imported jobs are counted.`]
  if ((total.unmonitored_hours ?? 0) >= 0.05) told.push(`${amount(total.unmonitored_hours ?? 0)} of the allocated hours were not monitored: their use is unknown.`)
  if ((total.shared_hours ?? 0) >= 0.05) told.push(`${amount(total.shared_hours ?? 0)} of the allocated hours were on GPUs that others had or used too. They count for the job or pod that started first.`)
  return told.join(' ')
}

/** When the figures end, where that is well before the end of what was asked for: of large fleets, a quarter hour. */
export function untilText(until: number, end: number): string {
  return end - until < UNTIL_NOW_SECONDS ? '' : `Figures until ${clockTime(until, end)}.`
}

const UNTIL_NOW_SECONDS = 120

/** A day as a bar. */
export interface DayBar {
  day: string
  label: string
  hours: number
  active: number | null
  /** 0…1 of the height. */
  hoursPart: number
  activePart: number
  title: string
}

/** A bar a day, also for those in between that have none. `days` are in order. */
export function dayBars(days: readonly UsageDay[], all: readonly string[]): DayBar[] {
  const found = new Map(days.map((day) => [day.day, day]))
  const most = days.reduce((most, day) => Math.max(most, day.gpu_hours), 0)
  const part = (value: number): number => (most > 0 ? value / most : 0)
  return all.map((day) => {
    const { gpu_hours: hours, active_hours: active } = found.get(day) ?? { gpu_hours: 0, active_hours: null }
    return { day, label: dayLabel(day), hours, active, hoursPart: part(hours), activePart: part(active ?? 0), title: dayTitle(day, hours, active) }
  })
}

/** `Nov 3`, from the date as the hub writes it: no clock of ours may move it to another day. */
export function dayLabel(day: string): string {
  const [, month = '', date = ''] = day.split('-')
  return `${MONTHS[Number(month) - 1] ?? ''} ${Number(date)}`
}

function dayTitle(day: string, hours: number, active: number | null): string {
  if (hours === 0) return `${dayLabel(day)}: no usage`
  return `${dayLabel(day)}: ${amount(hours)} GPU-hours, ${active === null ? 'active hours unknown' : `${amount(active)} active`}`
}
