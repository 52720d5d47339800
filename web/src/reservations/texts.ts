/** A reservation in words, and who may do what about it. */
import type { Reservation, ReservedGpu, RefusedReservation, Slot } from '../api/reservations'
import type { Refusal } from '../api/request'
import type { HubEvent } from '../api/events'
import type { Me } from '../api/types'
import { canEnter } from '../account/access'
import { duration, plain } from '../ui/format'
import { explain, sentence } from '../ui/apiErrors'
import { lengthText, spanText, timeText } from './times'

export interface CurrentUser {
  name: string
  mayReserve: boolean
  mayAdminister: boolean
  /** Whether logging in may help. */
  canLogIn: boolean
}

/** A hub that has not said who asks decides when it is asked to reserve. */
export function currentUserOf(me: Me | null): CurrentUser {
  return { name: me?.name ?? '', mayReserve: me?.may_reserve ?? true, mayAdminister: me?.may_administer ?? false, canLogIn: canEnter(me) }
}

/** Where it was made, of one that a scheduler has: `Slurm reservation maint1`. */
export function sourceText({ scheduler, name }: Reservation): string | null {
  return scheduler === null ? null : plain(`${scheduler} reservation${name === null ? '' : ` ${name}`}`)
}

export type ReservationState = Reservation['state']

/** What it is by now: the hub said what it was when it was asked. */
export function stateOf({ state, start, end }: Reservation, now: number): ReservationState {
  if (state === 'released' || state === 'cancelled') return state
  if (now < start) return 'planned'
  return now < end ? 'running' : 'ended'
}

export function isOver(reservation: Reservation, now: number): boolean {
  return !['planned', 'running'].includes(stateOf(reservation, now))
}

export function mayChange(reservation: Reservation, who: CurrentUser): boolean {
  if (reservation.is_read_only) return false
  // Who has no account has no name here, and shares what was reserved without one.
  const isOwn = who.name === '' ? reservation.created_by === '' : reservation.user === who.name
  return who.mayAdminister || (who.mayReserve && isOwn)
}

/** `gpu07: 0, 1; gpu08: 3` */
export function gpusText(gpus: readonly ReservedGpu[]): string {
  const hosts = new Map<string, string[]>()
  for (const { host, label } of gpus) hosts.set(host, [...(hosts.get(host) ?? []), label])
  return plain([...hosts].map(([host, labels]) => `${host}: ${labels.join(', ')}`).join('; '))
}

export interface Use {
  text: string
  /** It wants somebody's attention. */
  isBad: boolean
}

/** `conflicts` are the hub's sentences about who is on its GPUs and should not be. */
export function useOf(reservation: Reservation, conflicts: readonly string[], now: number): Use[] {
  const state = stateOf(reservation, now)
  const uses = [...new Set(conflicts)].map((text) => ({ text: sentence(plain(text)), isBad: true }))
  // Of a scheduler's the hub does not know which jobs use it.
  if (state === 'planned' || reservation.is_read_only) return uses
  if (reservation.used_at !== null) return [...uses, { text: `${state === 'running' ? 'In use since' : 'First used at'} ${timeText(reservation.used_at, now)}.`, isBad: false }]
  const late = duration(Math.max(0, (state === 'running' ? now : reservation.end) - reservation.start))
  return [...uses, { text: state === 'running' ? `Not used yet (started ${late} ago). The hub may release unused reservations.` : 'Never used.', isBad: state === 'running' && now - reservation.start > 60 }]
}

const STATES: Record<ReservationState, string> = { planned: 'planned', running: 'running', ended: 'ended', released: 'released', cancelled: 'cancelled' }

export function stateText(reservation: Reservation, now: number): string {
  const state = stateOf(reservation, now)
  const reason = reservation.release_reason
  return state === 'released' || state === 'cancelled' ? `${STATES[state]}${reason ? `: ${plain(reason)}` : ''}` : STATES[state]
}

/** Those of the hub's events that tell of this reservation. */
export function eventsOf(id: number, events: readonly HubEvent[]): HubEvent[] {
  return events.filter(({ detail }) => detail.startsWith(`Reservation ${id} of `))
}

/** What to say of a refusal, and what could be had instead. */
export interface ReservationError {
  text: string
  conflicts: { id: number; text: string }[]
  /** The first time at which as much is free for as long. */
  offer: { slot: Slot; text: string } | null
  /** What it is by now, where somebody changed it meanwhile. */
  newer: Reservation | null
  needsLogIn: boolean
}

const MOST_CONFLICTS = 5

export function errorOf(refusal: Refusal, now: number): ReservationError {
  const said = (refusal.body ?? {}) as Partial<RefusedReservation>
  const conflicts = said.conflicts ?? []
  const hint = said.error?.hint ?? ''
  const slot = said.next_free ?? null
  const isCalm = refusal.status !== null && refusal.status !== 401 && refusal.status !== 403
  return {
    text: `${explain(refusal).text.replace(/^\p{Ll}/u, (letter) => letter.toUpperCase())}${isCalm && hint !== '' && slot === null ? ` ${sentence(plain(hint))}` : ''}`,
    conflicts: conflicts.slice(0, MOST_CONFLICTS).map((each) => ({ id: each.id, text: conflictText(each, now) })),
    offer: slot === null ? null : { slot, text: slotText(slot, now) },
    newer: said.reservation ?? null,
    needsLogIn: refusal.status === 401,
  }
}

export function conflictText(reservation: Reservation, now: number): string {
  const note = reservation.note === '' ? '' : ` (${plain(reservation.note)})`
  return `${plain(reservation.user)} reserved ${gpusText(reservation.gpus)}, ${spanText(reservation.start, reservation.end, now)}${note}`
}

/** `gpu07: 0, 1 · 14:00 – 18:00 (4h)` */
export function slotText(slot: Slot, now: number): string {
  return `${gpusText(slot.gpus)} · ${spanText(slot.start, slot.end, now)} (${lengthText(slot.end - slot.start)})`
}
