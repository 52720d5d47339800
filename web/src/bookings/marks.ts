/** What is drawn on the rows: bookings on GPUs, and on a folded host how many of its GPUs are booked when. */
import type { Booking } from '../api/reservations'
import { plain } from '../state/format'
import type { HostRow, Row } from './rows'
import { drawnSpan, spanText } from './times'
import { isOver, mayChange, stateOf, type Asker } from './words'

/** One thing on the timeline, as @event-calendar takes it. */
export interface Mark {
  id: string
  start: Date
  end: Date
  resourceIds: string[]
  startEditable: boolean
  durationEditable: boolean
  classNames: string[]
  extendedProps: { mark: BookingMark | CountMark }
}

export interface BookingMark {
  kind: 'booking'
  id: number
  user: string
  note: string
  /** All of it in one sentence, for a hover and for those who hear the page. */
  label: string
  isGroup: boolean
  isRunning: boolean
}

export interface CountMark {
  kind: 'count'
  host: string
  text: string
  label: string
}

/** `now` is the hub's clock. */
export function marksOf(rows: readonly Row[], bookings: readonly Booking[], who: Asker, conflicts: ReadonlySet<string>, now: number): Mark[] {
  const shown = new Set(rows.filter(({ kind }) => kind === 'gpu').map(({ id }) => id))
  const folded = rows.filter((row): row is HostRow => row.kind === 'host' && !row.isOpen)
  const byHost = new Map<string, Booking[]>()
  for (const booking of folded.length === 0 ? [] : bookings) {
    for (const host of new Set(booking.gpus.map((gpu) => gpu.host))) byHost.set(host, [...(byHost.get(host) ?? []), booking])
  }
  return [
    ...bookings.flatMap((booking) => bookingMark(booking, shown, who, conflicts, now)),
    ...folded.flatMap((row) => countMarks(row, byHost.get(row.host) ?? [], now)),
  ]
}

function bookingMark(booking: Booking, shown: ReadonlySet<string>, who: Asker, conflicts: ReadonlySet<string>, now: number): Mark[] {
  const uuids = booking.gpus.map(({ uuid }) => uuid)
  const resourceIds = uuids.filter((uuid) => shown.has(uuid))
  if (resourceIds.length === 0) return []
  const state = stateOf(booking, now)
  const isEditable = mayChange(booking, who) && !isOver(booking, now) && booking.kind === 'booking'
  const isConflict = state === 'running' && uuids.some((uuid) => conflicts.has(uuid))
  const user = plain(booking.user)
  const note = plain(booking.note)
  const label = `${user}, ${spanText(booking.start, booking.end, now)}${note === '' ? '' : `: ${note}`}${isConflict ? '. Somebody else is on it' : ''}`
  const [start, end] = drawnSpan(booking.start, booking.end)
  return [
    {
      id: String(booking.id),
      start,
      end,
      resourceIds,
      startEditable: isEditable && state === 'planned',
      durationEditable: isEditable,
      classNames: [state, booking.kind, ...(booking.user === who.name ? ['own'] : []), ...(isConflict ? ['conflict'] : [])],
      extendedProps: { mark: { kind: 'booking', id: booking.id, user, note, label, isGroup: uuids.length > 1, isRunning: state !== 'planned' } },
    },
  ]
}

/** How many GPUs of a host are booked from when to when. */
export function countMarks({ id, host, title, uuids }: HostRow, bookings: readonly Booking[], now: number): Mark[] {
  const steps = new Map<number, number>()
  const step = (at: number, by: number): unknown => steps.set(at, (steps.get(at) ?? 0) + by)
  for (const booking of bookings) {
    const own = booking.gpus.filter((gpu) => gpu.host === host).length
    step(booking.start, own)
    step(booking.end, -own)
  }
  const marks: Mark[] = []
  let count = 0
  let since = 0
  for (const [at, by] of [...steps].sort(([a], [b]) => a - b)) {
    if (by === 0) continue
    if (count > 0) marks.push(countMark(id, host, title, count, uuids.length, since, at, now))
    count += by
    since = at
  }
  return marks
}

function countMark(row: string, host: string, title: string, count: number, all: number, from: number, until: number, now: number): Mark {
  const [start, end] = drawnSpan(from, until)
  const text = `${count} of ${Math.max(all, count)}`
  const label = `${text} GPUs of ${title} booked, ${spanText(from, until, now)}. Unfold the host`
  return { id: `${row} ${from}`, start, end, resourceIds: [row], startEditable: false, durationEditable: false, classNames: ['count', ...(count >= all ? ['full'] : [])], extendedProps: { mark: { kind: 'count', host, text, label } } }
}
