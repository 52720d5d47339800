/** What is drawn on the rows: bookings on GPUs, and on a folded host how many of its GPUs are booked when. */
import type { Booking } from '../api/reservations'
import { plain } from '../state/format'
import type { HostRow, Row } from './rows'
import { spanText } from './times'
import { isOver, mayChange, stateOf, type Asker } from './words'

interface Drawn {
  /** Among all that is drawn. */
  key: string
  /** Unix seconds. */
  start: number
  end: number
  /** The rows that it lies on. */
  rows: string[]
  classes: string
  /** All of it in one sentence, for a hover and for those who hear the page. */
  label: string
}

export interface BookingMark extends Drawn {
  kind: 'booking'
  id: number
  user: string
  note: string
  canMove: boolean
  /** At its end; at its start as well where it can be moved. */
  canStretch: boolean
  isGroup: boolean
}

export interface CountMark extends Drawn {
  kind: 'count'
  host: string
  text: string
}

/** One thing on the timeline. */
export type Mark = BookingMark | CountMark

/** `now` is the hub's clock. `isCoarse`: a folded host shows when anything is booked, not each step of how much. */
export function marksOf(rows: readonly Row[], bookings: readonly Booking[], who: Asker, conflicts: ReadonlySet<string>, now: number, isCoarse = false): Mark[] {
  const shown = new Set(rows.filter(({ kind }) => kind === 'gpu').map(({ id }) => id))
  const folded = rows.filter((row): row is HostRow => row.kind === 'host' && !row.isOpen)
  const byHost = new Map<string, Booking[]>()
  for (const booking of folded.length === 0 ? [] : bookings) {
    for (const host of new Set(booking.gpus.map((gpu) => gpu.host))) {
      const others = byHost.get(host)
      if (others === undefined) byHost.set(host, [booking])
      else others.push(booking)
    }
  }
  return [
    ...bookings.flatMap((booking) => bookingMark(booking, shown, who, conflicts, now)),
    ...folded.flatMap((row) => countMarks(row, byHost.get(row.host) ?? [], now, isCoarse)),
  ]
}

function bookingMark(booking: Booking, shown: ReadonlySet<string>, who: Asker, conflicts: ReadonlySet<string>, now: number): Mark[] {
  const uuids = booking.gpus.map(({ uuid }) => uuid)
  const rows = uuids.filter((uuid) => shown.has(uuid))
  if (rows.length === 0) return []
  const state = stateOf(booking, now)
  const isEditable = mayChange(booking, who) && !isOver(booking, now) && booking.kind === 'booking'
  const isConflict = state === 'running' && uuids.some((uuid) => conflicts.has(uuid))
  const user = plain(booking.user)
  const note = plain(booking.note)
  const label = `${user}, ${spanText(booking.start, booking.end, now)}${note === '' ? '' : `: ${note}`}${isConflict ? '. Somebody else is on it' : ''}`
  const classes = [state, booking.kind, ...(booking.user === who.name ? ['own'] : []), ...(isConflict ? ['conflict'] : [])].join(' ')
  const { id, start, end } = booking
  return [{ kind: 'booking', key: String(id), id, start, end, rows, classes, label, user, note, canMove: isEditable && state === 'planned', canStretch: isEditable, isGroup: uuids.length > 1 }]
}

interface Stretch {
  from: number
  until: number
  least: number
  most: number
}

/** How many GPUs of a host are booked from when to when. */
export function countMarks(row: HostRow, bookings: readonly Booking[], now: number, isCoarse = false): CountMark[] {
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

function countMark({ id, host, title, uuids }: HostRow, { from, until, least, most }: Stretch, now: number): CountMark {
  const text = `${least === most ? most : `${least}–${most}`} of ${Math.max(uuids.length, most)}`
  const label = `${text} GPUs of ${title} booked, ${spanText(from, until, now)}. Unfold the host`
  return { kind: 'count', key: `${id} ${from}`, start: from, end: until, rows: [id], classes: least >= uuids.length ? 'count full' : 'count', label, host, text }
}

/** What lies on each row. */
export function byRow(marks: readonly Mark[]): Map<string, Mark[]> {
  const found = new Map<string, Mark[]>()
  for (const mark of marks) {
    for (const row of mark.rows) {
      const others = found.get(row)
      if (others === undefined) found.set(row, [mark])
      else others.push(mark)
    }
  }
  return found
}
