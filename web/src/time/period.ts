/**
 * Which time a report is about, in the viewer's zone: days begin and end there, also where a day has 23 or 25 hours.
 *
 * In an address: `range=7d`, `range=last-month`, `range=5400` (the last 5400 seconds), `from=2026-03-01&to=2026-03-31`
 * (whole days, both of them), or `start=…&end=…` in Unix seconds, which is what a drag over a chart asks for.
 */
import { MONTHS, pad } from '../ui/format'

export interface Period {
  /** One of PERIODS, a number of seconds until now, `custom`, or `all`, which begins with time itself. */
  name: string
  /** Unix seconds. */
  start: number
  end: number
  /** It reaches until now, and goes along with the clock. */
  isOpen: boolean
}

export const PERIODS: readonly { name: string; label: string; title: string }[] = [
  { name: '1h', label: '1h', title: 'The last hour' },
  { name: '6h', label: '6h', title: 'The last 6 hours' },
  { name: '24h', label: '24h', title: 'The last 24 hours' },
  { name: '7d', label: '7d', title: 'The last 7 days' },
  { name: '30d', label: '30d', title: 'The last 30 days' },
  { name: 'month', label: 'this month', title: 'This month to date' },
  { name: 'last-month', label: 'last month', title: 'Last month' },
  { name: '90d', label: '90d', title: 'The last 90 days' },
  { name: '1y', label: '1y', title: 'The last year' },
]
export const USUAL_PERIOD = '7d'

const MINUTE = 60
const HOUR = 3600
const DAY = 24 * HOUR
const FIRST_YEAR = 2000

const unix = (date: Date): number => date.getTime() / 1000

/** `now` is the hub's clock. What makes no sense is the usual period. */
export function readPeriod(params: URLSearchParams, now: number, usual = USUAL_PERIOD): Period {
  return exactPeriod(params, now) ?? wholeDays(params.get('from'), params.get('to'), now) ?? namedPeriod(params.get('range') ?? usual, now) ?? (namedPeriod(usual, now) as Period)
}

function exactPeriod(params: URLSearchParams, now: number): Period | null {
  const start = Number(params.get('start') ?? NaN)
  const end = Math.min(Number(params.get('end') ?? NaN), toTheMinute(now))
  return start >= unix(new Date(FIRST_YEAR, 0, 1)) && end - start >= MINUTE ? { name: 'custom', start, end, isOpen: false } : null
}

/** From the beginning of one day to the end of another. Null where there is no such time, or it has not begun. */
export function wholeDays(from: string | null, to: string | null, now: number): Period | null {
  const start = dayStart(from)
  const end = dayStart(to, 1)
  if (start === null || end === null || end <= start || start >= now) return null
  return { name: 'custom', start, end: Math.min(end, toTheMinute(now)), isOpen: end > now }
}

function namedPeriod(name: string, now: number): Period | null {
  const start = startOf(name, now)
  if (start === null) return null
  const end = name === 'last-month' ? monthStart(now, 0) : toTheMinute(now)
  return { name, start, end, isOpen: name !== 'last-month' }
}

function startOf(name: string, now: number): number | null {
  const end = toTheMinute(now)
  switch (name) {
    case 'all':
      return 0
    case '1h':
      return end - HOUR
    case '6h':
      return end - 6 * HOUR
    case '24h':
      return end - DAY
    case '7d':
      return daysBefore(end, 7)
    case '30d':
      return daysBefore(end, 30)
    case '90d':
      return daysBefore(end, 90)
    case '1y':
      return yearBefore(end)
    case 'month':
      // In its first minute a month would be empty.
      return Math.min(monthStart(now, 0), end - MINUTE)
    case 'last-month':
      return monthStart(now, -1)
    default:
      return /^\d{2,9}$/.test(name) && Number(name) >= MINUTE ? end - Number(name) : null
  }
}

/** So that the same question is asked for a minute, not another one every second. */
function toTheMinute(now: number): number {
  return Math.floor(now / MINUTE) * MINUTE
}

/** The same time on the clock so many days ago. */
function daysBefore(end: number, days: number): number {
  const date = new Date(end * 1000)
  date.setDate(date.getDate() - days)
  return unix(date)
}

function yearBefore(end: number): number {
  const date = new Date(end * 1000)
  date.setFullYear(date.getFullYear() - 1)
  return unix(date)
}

function monthStart(now: number, months: number): number {
  const date = new Date(now * 1000)
  return unix(new Date(date.getFullYear(), date.getMonth() + months, 1))
}

const DATE = /^(\d{4})-(\d{2})-(\d{2})$/

/** When that day begins here, or the one `later` days after it. Null where there is no such day. */
export function dayStart(text: string | null, later = 0): number | null {
  const parts = DATE.exec(text ?? '')
  if (parts === null) return null
  const [year, month, day] = [Number(parts[1]), Number(parts[2]) - 1, Number(parts[3])]
  const date = new Date(year, month, day)
  if (year < FIRST_YEAR || date.getMonth() !== month || date.getDate() !== day) return null
  return unix(new Date(year, month, day + later))
}

/** The day at a moment, as an address and a date field have it: `2026-03-31`. */
export function dayOf(moment: number): string {
  const date = new Date(moment * 1000)
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`
}

/** The first and the last day that have a part in it. */
export function daysOf({ start, end }: Period): { from: string; to: string } {
  return { from: dayOf(start), to: dayOf(Math.max(start, end - 1)) }
}

/** Every day that has a part in it, in order. */
export function allDays(period: Period): string[] {
  const { from, to } = daysOf(period)
  const days = [from]
  for (let at = 1; days.at(-1) !== to && at < MOST_DAYS; at += 1) days.push(dayOf(dayStart(from, at) as number))
  return days
}

/** Of more days than that the hub does not tell each by itself. */
export const MOST_DAYS = 400

/** What stands in the address for it. */
export function addressOf(period: Period): Record<string, string> {
  const none = { range: '', from: '', to: '', start: '', end: '' }
  if (period.name !== 'custom') return { ...none, range: period.name }
  const { from, to } = daysOf(period)
  const isWhole = dayStart(from) === period.start && (period.isOpen || dayStart(to, 1) === period.end)
  return isWhole ? { ...none, from, to } : { ...none, start: String(Math.round(period.start)), end: String(Math.round(period.end)) }
}

/** `Mar 1 – 31, 2026`, `Mar 28, 2026 – Apr 3, 2026`; with times where it does not begin and end with a day. */
export function periodText({ start, end }: Period): string {
  const isWhole = isDayStart(start) && isDayStart(end)
  if (!isWhole) return `${dateText(start)}, ${timeText(start)} – ${dateText(end)}, ${timeText(end)}`
  const [first, last] = [new Date(start * 1000), new Date((end - 1) * 1000)]
  if (dateText(start) === dateText(end - 1)) return dateText(start)
  const isOneMonth = first.getMonth() === last.getMonth() && first.getFullYear() === last.getFullYear()
  return isOneMonth ? `${MONTHS[first.getMonth()]} ${first.getDate()} – ${last.getDate()}, ${first.getFullYear()}` : `${dateText(start)} – ${dateText(end - 1)}`
}

function isDayStart(moment: number): boolean {
  return dayStart(dayOf(moment)) === moment
}

function dateText(moment: number): string {
  const date = new Date(moment * 1000)
  return `${MONTHS[date.getMonth()]} ${date.getDate()}, ${date.getFullYear()}`
}

function timeText(moment: number): string {
  const date = new Date(moment * 1000)
  return `${pad(date.getHours())}:${pad(date.getMinutes())}`
}

/** The zone in which the viewer's days begin, by its IANA name. */
export function viewerZone(): string {
  return new Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC'
}
