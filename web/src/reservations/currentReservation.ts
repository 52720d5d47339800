/** The current reservation of one GPU as text. */
import type { Gpu } from '../api/types'
import { clockTime, plain } from '../ui/format'
import { sentence } from '../ui/apiErrors'

export interface ReservationText {
  /** Null where it has ended and its owner still uses the GPU. */
  id: number | null
  text: string | null
  /** Who uses the GPU although somebody else reserved it. */
  conflict: string | null
}

/** Null without a reservation and without a conflict. `now` is the hub's clock. */
export function reservationText(gpu: Gpu, now: number): ReservationText | null {
  const { reservation, reservation_conflict: conflict } = gpu
  if (!reservation && !conflict) return null
  return { id: reservation?.id ?? null, text: reservation ? words(reservation, now) : null, conflict: conflict ? sentence(plain(conflict)) : null }
}

function words({ kind, user, until, note }: NonNullable<Gpu['reservation']>, now: number): string {
  if (kind === 'claim') return plain(`Claimed by ${user}`)
  return plain(`Reserved by ${user} until ${clockTime(until, now)}${note ? `: ${note}` : ''}`)
}
