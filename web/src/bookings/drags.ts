/** What a drag on the timeline asks of the hub. Pure: the timeline counts in wall clocks, bookings in seconds. */
import type { Booking, BookingChange } from '../api/reservations'

export interface Moved {
  /** Whether it lies at another time. */
  isLater: boolean
  start: Date
  /** The row it was taken to, and the one it came from; the same where it stayed in its row. */
  from: string | null
  to: string | null
}

/**
 * A move in time keeps the length, and one to another row alone keeps the time to the second: an hour that comes twice
 * would otherwise be mistaken. Of several GPUs all move in time, and none to another row. Null: nothing changes.
 */
export function moveBody(booking: Booking, { isLater, start, from, to }: Moved): BookingChange | null {
  const change: BookingChange = {}
  if (isLater) change.start = start.getTime() / 1000
  if (booking.gpus.length === 1 && from !== null && to !== null && from !== to) change.gpus = [to]
  return Object.keys(change).length === 0 ? null : { ...change, version: booking.version }
}

/** Another beginning alone would move it as it is: the end is named as well. */
export function stretchBody(booking: Booking, which: 'start' | 'end', to: Date): BookingChange {
  const at = to.getTime() / 1000
  return which === 'end' ? { end: at, version: booking.version } : { start: at, end: booking.end, version: booking.version }
}

/** An hour more: from its end, not from now. */
export function extendBody(booking: Booking, seconds: number): BookingChange {
  return { end: booking.end + seconds, version: booking.version }
}
