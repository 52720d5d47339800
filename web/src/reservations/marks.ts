/** What is drawn on the rows: reservations on GPUs, and on a collapsed host how many of its GPUs are reserved when. */
import type { MaintenanceWindow } from '../api/maintenance'
import type { Reservation } from '../api/reservations'
import { plain } from '../ui/format'
import type { HostRow, Row } from './rows'
import { spanText, timeText } from './times'
import { isOver, mayChange, sourceText, stateOf, type CurrentUser } from './texts'

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

export interface ReservationMark extends Drawn {
  kind: 'reservation'
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
export type Mark = ReservationMark | CountMark

/** `now` is the hub's clock. `isCoarse`: a collapsed host shows when anything is reserved, not each step of how much. */
export function marksOf(rows: readonly Row[], reservations: readonly Reservation[], who: CurrentUser, conflicts: ReadonlySet<string>, now: number, isCoarse = false): Mark[] {
  const shown = new Set(rows.filter(({ kind }) => kind === 'gpu').map(({ id }) => id))
  const collapsed = rows.filter((row): row is HostRow => row.kind === 'host' && !row.isOpen)
  const byHost = new Map<string, Reservation[]>()
  for (const reservation of collapsed.length === 0 ? [] : reservations) {
    for (const host of new Set(reservation.gpus.map((gpu) => gpu.host))) {
      const others = byHost.get(host)
      if (others === undefined) byHost.set(host, [reservation])
      else others.push(reservation)
    }
  }
  return [
    ...reservations.flatMap((reservation) => reservationMark(reservation, shown, who, conflicts, now)),
    ...collapsed.flatMap((row) => countMarks(row, byHost.get(row.host) ?? [], now, isCoarse)),
  ]
}

function reservationMark(reservation: Reservation, shown: ReadonlySet<string>, who: CurrentUser, conflicts: ReadonlySet<string>, now: number): Mark[] {
  const uuids = reservation.gpus.map(({ uuid }) => uuid)
  const rows = uuids.filter((uuid) => shown.has(uuid))
  if (rows.length === 0) return []
  const state = stateOf(reservation, now)
  const isEditable = mayChange(reservation, who) && !isOver(reservation, now) && reservation.kind === 'reservation'
  const isConflict = state === 'running' && uuids.some((uuid) => conflicts.has(uuid))
  const user = plain(reservation.user)
  const note = plain(reservation.note)
  const source = sourceText(reservation)
  const label = `${source === null ? '' : `${source}: `}${user}, ${spanText(reservation.start, reservation.end, now)}${note === '' ? '' : `: ${note}`}${isConflict ? '. In use by another user' : ''}`
  const classes = [state, reservation.kind, ...(reservation.user === who.name ? ['own'] : []), ...(isConflict ? ['conflict'] : []), ...(source === null ? [] : ['foreign'])].join(' ')
  const { id, start, end } = reservation
  return [{ kind: 'reservation', key: String(id), id, start, end, rows, classes, label, user, note, canMove: isEditable && state === 'planned', canStretch: isEditable, isGroup: uuids.length > 1 }]
}

interface Stretch {
  from: number
  until: number
  least: number
  most: number
}

/** How many GPUs of a host are reserved from when to when. */
export function countMarks(row: HostRow, reservations: readonly Reservation[], now: number, isCoarse = false): CountMark[] {
  const steps = stretchesOf(row.host, reservations)
  return (isCoarse ? joined(steps) : steps).map((stretch) => countMark(row, stretch, now))
}

function stretchesOf(host: string, reservations: readonly Reservation[]): Stretch[] {
  const steps = new Map<number, number>()
  const step = (at: number, by: number): unknown => steps.set(at, (steps.get(at) ?? 0) + by)
  for (const reservation of reservations) {
    const own = reservation.gpus.filter((gpu) => gpu.host === host).length
    step(reservation.start, own)
    step(reservation.end, -own)
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
  const label = `${text} GPUs of ${title} reserved, ${spanText(from, until, now)}. Expand the host`
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

/** Maintenance on a row: nothing can be reserved then. */
export interface ClosedSpan {
  key: number
  start: number
  /** Infinity where it has no end yet. */
  end: number
  label: string
}

/** Of a host as a whole on its row and on those of its GPUs, of a GPU on its own. */
export function closedOn(row: Row, windows: readonly MaintenanceWindow[], now: number): ClosedSpan[] {
  return windows
    .filter(({ host, gpu }) => host === row.host && (gpu === null || gpu === row.id))
    .map(({ id, start, end, reason }) => ({ key: id, start, end: end ?? Infinity, label: plain(`Maintenance ${end === null ? `from ${timeText(start, now)}, no end planned` : spanText(start, end, now)}: ${reason}`) }))
}
