/** What a drag on the timeline means, and what it asks of the hub. Pure. */
import type { Booking, BookingChange } from '../api/reservations'
import { snapped, wallOf } from './axis'
import type { BookingMark } from './marks'
import { pickedGpus, type Row } from './rows'

/** A place on the timeline: a row by its number, a moment in Unix seconds that nothing has rounded. */
export interface Spot {
  row: number
  at: number
}

/** Free time is picked; a booking is moved, or stretched at one of its ends. */
export type Drag = { from: Spot; to: Spot } & ({ kind: 'pick' } | { kind: 'move' | 'start' | 'end'; mark: BookingMark })

/** What it would come to if it ended here. */
export interface Reach {
  /** Rows that are drawn over. */
  rows: string[]
  /** UUIDs. */
  gpus: string[]
  start: number
  end: number
}

/** `snap` in seconds; null where nothing can be had so. */
export function reachOf(drag: Drag, rows: readonly Row[], snap: number, now: number): Reach | null {
  if (drag.kind === 'pick') return pickReach(drag, rows, snap, now)
  const { mark, from, to } = drag
  const { start, end } = mark
  const still = { rows: mark.rows, gpus: mark.rows }
  if (drag.kind === 'end') return { ...still, start, end: Math.max(snapped(to.at, snap, Math.round), start + snap) }
  if (drag.kind === 'start') return { ...still, start: Math.min(snapped(to.at, snap, Math.round), end - snap), end }
  const moved = snapped(start + to.at - from.at, snap, Math.round, wallOf(start))
  // Steps are whole seconds, which a start need not be: what stayed stays to the second.
  const begin = Math.abs(moved - start) < 1 ? start : moved
  const there = rowMovedTo(mark, rows[to.row])
  return { rows: there, gpus: there, start: begin, end: begin + end - start }
}

/** One GPU goes to another that is there; several stay on theirs. */
function rowMovedTo({ isGroup, rows }: BookingMark, row: Row | undefined): string[] {
  return !isGroup && row?.kind === 'gpu' && row.isThere ? [row.id] : rows
}

function pickReach({ from, to }: Drag, rows: readonly Row[], snap: number, now: number): Reach | null {
  const first = rows[from.row]
  if (first === undefined) return null
  const gpus = pickedGpus(rows, first.id, rows[to.row]?.id ?? first.id)
  const start = snapped(Math.min(from.at, to.at), snap, Math.floor)
  const end = snapped(Math.max(from.at, to.at), snap, Math.ceil)
  return gpus.length === 0 || end <= now || end <= start ? null : { rows: first.kind === 'host' ? [first.id] : gpus, gpus, start, end }
}

/** Only what became different: where it lies at its time, that is not sent. Null: nothing changes. */
export function changeOf(booking: Booking, kind: 'move' | 'start' | 'end', { gpus, start, end }: Reach): BookingChange | null {
  if (kind !== 'move') return stretchBody(booking, kind, kind === 'end' ? end : start)
  const change: BookingChange = {}
  if (start !== booking.start) change.start = start
  if (booking.gpus.length === 1 && gpus[0] !== undefined && gpus[0] !== booking.gpus[0]?.uuid) change.gpus = [gpus[0]]
  return Object.keys(change).length === 0 ? null : { ...change, version: booking.version }
}

/** Another beginning alone would move it as it is: the end is named as well. */
function stretchBody(booking: Booking, which: 'start' | 'end', to: number): BookingChange | null {
  if (to === booking[which]) return null
  return which === 'end' ? { end: to, version: booking.version } : { start: to, end: booking.end, version: booking.version }
}

/** An hour more: from its end, not from now. */
export function extendBody(booking: Booking, seconds: number): BookingChange {
  return { end: booking.end + seconds, version: booking.version }
}
