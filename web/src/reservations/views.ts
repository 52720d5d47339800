/**
 * Which time the page shows: a day, seven days or a month of the viewer's zone. In an address: `view=day&day=2026-11-16`.
 *
 * A week begins with the day that was asked for, today unless told otherwise: what is over is of little use to who reserves.
 */
import { MONTHS } from '../ui/format'
import { dayOf, dayStart } from '../time/period'

export const VIEWS = ['day', 'week', 'month'] as const
export type ViewName = (typeof VIEWS)[number]

export interface View {
  name: ViewName
  /** Unix seconds: the beginning of its first day, and of the day after its last. */
  start: number
  end: number
  days: number
}

const unix = (date: Date): number => date.getTime() / 1000

/** What makes no sense is the week from `now` on. */
export function readView(params: URLSearchParams, now: number): View {
  const name = VIEWS.find((known) => known === params.get('view')) ?? 'week'
  return viewAround(name, dayStart(params.get('day')) ?? now)
}

/** The day or month in which that moment is, or seven days from its day on. */
export function viewAround(name: ViewName, moment: number): View {
  const at = new Date(moment * 1000)
  const [year, month, day] = [at.getFullYear(), at.getMonth(), at.getDate()]
  if (name === 'month') return view(name, new Date(year, month, 1), new Date(year, month + 1, 0).getDate())
  if (name === 'day') return view(name, new Date(year, month, day), 1)
  return view(name, new Date(year, month, day), 7)
}

function view(name: ViewName, first: Date, days: number): View {
  const end = new Date(first.getFullYear(), first.getMonth(), first.getDate() + days)
  return { name, start: unix(first), end: unix(end), days }
}

/** The one before (-1) or after (1) it. */
export function stepView({ name, start, end }: View, step: -1 | 1): View {
  if (step === 1) return viewAround(name, end)
  const first = new Date(start * 1000)
  const back = name === 'week' ? 7 : 1
  return viewAround(name, unix(new Date(first.getFullYear(), first.getMonth(), first.getDate() - back)))
}

/** For an address: the view that now begins with needs no day. */
export function viewParams({ name, start }: View, now: number): Record<string, string> {
  return { view: name === 'week' ? '' : name, day: start === viewAround(name, now).start ? '' : dayOf(start) }
}

const WEEKDAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday']

/** `Sunday, Nov 15, 2026`, `Nov 16 – 22, 2026`, `November 2026` */
export function viewTitle({ name, start, end }: View): string {
  const first = new Date(start * 1000)
  const last = new Date(end * 1000 - 1)
  const month = MONTHS[first.getMonth()] ?? ''
  if (name === 'month') return `${month} ${first.getFullYear()}`
  if (name === 'day') return `${WEEKDAYS[first.getDay()]}, ${month} ${first.getDate()}, ${first.getFullYear()}`
  const year = first.getFullYear() === last.getFullYear() ? '' : ` ${first.getFullYear()}`
  const to = first.getMonth() === last.getMonth() ? String(last.getDate()) : `${MONTHS[last.getMonth()]} ${last.getDate()}`
  return `${month} ${first.getDate()}${year} – ${to}, ${last.getFullYear()}`
}

/** The head of a day's column; what has no room beside it stands below. */
export function dayTitle(date: Date, view: ViewName): [title: string, below: string] {
  const weekday = WEEKDAYS[date.getDay()] ?? ''
  if (view === 'month') return [String(date.getDate()), weekday.slice(0, 2)]
  return [view === 'day' ? `${weekday}, ${MONTHS[date.getMonth()]} ${date.getDate()}` : `${weekday.slice(0, 3)} ${date.getDate()}`, '']
}

export interface Grain {
  /** How finely the columns are divided, and to what a drag snaps; seconds. */
  slot: number
  snap: number
  /** Seconds between two labels; null: none. */
  label: number | null
  /** Pixels of a slot. */
  narrowest: number
}

export const GRAINS: Record<ViewName, Grain> = {
  day: { slot: 3600, snap: 900, label: 7200, narrowest: 28 },
  week: { slot: 21_600, snap: 3600, label: 43_200, narrowest: 24 },
  month: { slot: 86_400, snap: 21_600, label: null, narrowest: 22 },
}
