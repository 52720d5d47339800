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

/** `now` is the hub's clock. `isCoarse`: a folded host shows when anything is booked, not each step of how much. */
export function marksOf(rows: readonly Row[], bookings: readonly Booking[], who: Asker, conflicts: ReadonlySet<string>, now: number, isCoarse = false): Mark[] {
  const shown = new Set(rows.filter(({ kind }) => kind === 'gpu').map(({ id }) => id))
  const folded = rows.filter((row): row is HostRow => row.kind === 'host' && !row.isOpen)
  const byHost = new Map<string, Booking[]>()
  for (const booking of folded.length === 0 ? [] : bookings) {
    for (const host of new Set(booking.gpus.map((gpu) => gpu.host))) byHost.set(host, [...(byHost.get(host) ?? []), booking])
  }
  return [
    ...bookings.flatMap((booking) => bookingMark(booking, shown, who, conflicts, now)),
    ...folded.flatMap((row) => countMarks(row, byHost.get(row.host) ?? [], now, isCoarse)),
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

interface Stretch {
  from: number
  until: number
  least: number
  most: number
}

/** How many GPUs of a host are booked from when to when. */
export function countMarks(row: HostRow, bookings: readonly Booking[], now: number, isCoarse = false): Mark[] {
  const steps = stretchesOf(row.host, bookings)
  return (isCoarse ? joined(steps) : steps).map((stretch) => countMark(row, stretch, now))
}

function stretchesOf(host: string, bookings: readonly Booking[]): Stretch[] {
  const steps = new Map<number, number>()
  const step = (at: number, by: number): unknown => steps.set(at, (steps.get(at) ?? 0) + by)
  for (const booking of bookings) {
    const own = booking.gpus.filter((gpu) => gpu.host === host).length
    step(booking.start, own)
    step(booking.end, -own)
  }
  const stretches: Stretch[] = []
  let count = 0
  let from = 0
  for (const [at, by] of [...steps].sort(([a], [b]) => a - b)) {
    if (by === 0) continue
    if (count > 0) stretches.push({ from, until: at, least: count, most: count })
    count += by
    from = at
  }
  return stretches
}

function joined(stretches: readonly Stretch[]): Stretch[] {
  const whole: Stretch[] = []
  for (const each of stretches) {
    const last = whole.at(-1)
    if (last?.until === each.from) whole[whole.length - 1] = { from: last.from, until: each.until, least: Math.min(last.least, each.least), most: Math.max(last.most, each.most) }
    else whole.push(each)
  }
  return whole
}

function countMark({ id, host, title, uuids }: HostRow, { from, until, least, most }: Stretch, now: number): Mark {
  const [start, end] = drawnSpan(from, until)
  const text = `${least === most ? most : `${least}–${most}`} of ${Math.max(uuids.length, most)}`
  const label = `${text} GPUs of ${title} booked, ${spanText(from, until, now)}. Unfold the host`
  return { id: `${id} ${from}`, start, end, resourceIds: [id], startEditable: false, durationEditable: false, classNames: ['count', ...(least >= uuids.length ? ['full'] : [])], extendedProps: { mark: { kind: 'count', host, text, label } } }
}
