/** What a drag on the timeline means, and what it asks of the hub. Pure. */
import type { Reservation, ReservationChange } from '../api/reservations'
import { snapped, wallOf } from './axis'
import type { ReservationMark } from './marks'
import { pickedGpus, type Row } from './rows'

/** A place on the timeline: a row by its number, a moment in Unix seconds that nothing has rounded. */
export interface Spot {
  row: number
  at: number
}

/** Free time is picked; a reservation is moved, or stretched at one of its ends. */
export type Drag = { from: Spot; to: Spot } & ({ kind: 'pick' } | { kind: 'move' | 'start' | 'end'; mark: ReservationMark })

/** What it would come to if it ended here. */
export interface DragResult {
  /** Rows that are drawn over. */
  rows: string[]
  /** UUIDs. */
  gpus: string[]
  start: number
  end: number
}

/** `snap` in seconds; null where nothing can be had so. */
export function dragResult(drag: Drag, rows: readonly Row[], snap: number, now: number): DragResult | null {
  if (drag.kind === 'pick') return pickResult(drag, rows, snap, now)
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
function rowMovedTo({ isGroup, rows }: ReservationMark, row: Row | undefined): string[] {
  return !isGroup && row?.kind === 'gpu' && row.isThere ? [row.id] : rows
}

function pickResult({ from, to }: Drag, rows: readonly Row[], snap: number, now: number): DragResult | null {
  const first = rows[from.row]
  if (first === undefined) return null
  const gpus = pickedGpus(rows, first.id, rows[to.row]?.id ?? first.id)
  const start = snapped(Math.min(from.at, to.at), snap, Math.floor)
  const end = snapped(Math.max(from.at, to.at), snap, Math.ceil)
  return gpus.length === 0 || end <= now || end <= start ? null : { rows: first.kind === 'host' ? [first.id] : gpus, gpus, start, end }
}

/** Only what became different: where it lies at its time, that is not sent. Null: nothing changes. */
export function changeOf(reservation: Reservation, kind: 'move' | 'start' | 'end', { gpus, start, end }: DragResult): ReservationChange | null {
  if (kind !== 'move') return stretchBody(reservation, kind, kind === 'end' ? end : start)
  const change: ReservationChange = {}
  if (start !== reservation.start) change.start = start
  if (reservation.gpus.length === 1 && gpus[0] !== undefined && gpus[0] !== reservation.gpus[0]?.uuid) change.gpus = [gpus[0]]
  return Object.keys(change).length === 0 ? null : { ...change, version: reservation.version }
}

/** Another beginning alone would move it as it is: the end is named as well. */
function stretchBody(reservation: Reservation, which: 'start' | 'end', to: number): ReservationChange | null {
  if (to === reservation[which]) return null
  return which === 'end' ? { end: to, version: reservation.version } : { start: to, end: reservation.end, version: reservation.version }
}

/** An hour more: from its end, not from now. */
export function extendBody(reservation: Reservation, seconds: number): ReservationChange {
  return { end: reservation.end + seconds, version: reservation.version }
}
