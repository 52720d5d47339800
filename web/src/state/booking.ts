/** What is booked at one GPU now, in words. */
import type { Gpu } from '../api/types'
import { clockTime, plain } from './format'
import { sentence } from './refusal'

export interface BookingText {
  /** The booking's number. Null where it has ended, and its owner stays. */
  id: number | null
  text: string | null
  /** Who is on it and should not be. */
  conflict: string | null
}

/** Null where nothing is booked and nobody is in anybody's way. `now` is the hub's clock. */
export function bookingText(gpu: Gpu, now: number): BookingText | null {
  const { reservation, reservation_conflict: conflict } = gpu
  if (!reservation && !conflict) return null
  return { id: reservation?.id ?? null, text: reservation ? words(reservation, now) : null, conflict: conflict ? sentence(plain(conflict)) : null }
}

function words({ kind, user, until, note }: NonNullable<Gpu['reservation']>, now: number): string {
  if (kind === 'hold') return plain(`Taken by ${user}, starting`)
  return plain(`Booked by ${user} until ${clockTime(until, now)}${note ? `: ${note}` : ''}`)
}
