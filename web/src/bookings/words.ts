/** A booking in words, and who may do what about it. */
import type { Booking, BookedGpu, RefusedBooking, Slot } from '../api/reservations'
import type { Refusal } from '../api/ask'
import type { HubEvent } from '../api/events'
import type { Me } from '../api/types'
import { canEnter } from '../state/access'
import { duration, plain } from '../state/format'
import { explain, sentence } from '../state/refusal'
import { lengthText, spanText, timeText } from './times'

export interface Asker {
  name: string
  mayBook: boolean
  mayAdminister: boolean
  /** Whether logging in may help. */
  canLogIn: boolean
}

/** A hub that has not said who asks decides when it is asked to book. */
export function askerOf(me: Me | null): Asker {
  return { name: me?.name ?? '', mayBook: me?.may_book ?? true, mayAdminister: me?.may_administer ?? false, canLogIn: canEnter(me) }
}

export type BookingState = Booking['state']

/** What it is by now: the hub said what it was when it was asked. */
export function stateOf({ state, start, end }: Booking, now: number): BookingState {
  if (state === 'released' || state === 'cancelled') return state
  if (now < start) return 'planned'
  return now < end ? 'running' : 'ended'
}

export function isOver(booking: Booking, now: number): boolean {
  return !['planned', 'running'].includes(stateOf(booking, now))
}

export function mayChange(booking: Booking, who: Asker): boolean {
  // Who has no account has no name here, and shares what was booked without one.
  const isOwn = who.name === '' ? booking.created_by === '' : booking.user === who.name
  return who.mayAdminister || (who.mayBook && isOwn)
}

/** `gpu07: 0, 1; gpu08: 3` */
export function gpusText(gpus: readonly BookedGpu[]): string {
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
export function useOf(booking: Booking, conflicts: readonly string[], now: number): Use[] {
  const state = stateOf(booking, now)
  const uses = [...new Set(conflicts)].map((text) => ({ text: sentence(plain(text)), isBad: true }))
  if (state === 'planned') return uses
  if (booking.used_at !== null) return [...uses, { text: `In use since ${timeText(booking.used_at, now)}.`.replace('In use', state === 'running' ? 'In use' : 'Was used, first'), isBad: false }]
  const late = duration(Math.max(0, (state === 'running' ? now : booking.end) - booking.start))
  return [...uses, { text: state === 'running' ? `Nobody has used it yet, for ${late}. What is not used may be given back by the hub.` : 'Nobody used it.', isBad: state === 'running' && now - booking.start > 60 }]
}

const STATES: Record<BookingState, string> = { planned: 'planned', running: 'now', ended: 'over', released: 'given back', cancelled: 'cancelled' }

export function stateText(booking: Booking, now: number): string {
  const state = stateOf(booking, now)
  const reason = booking.release_reason
  return state === 'released' || state === 'cancelled' ? `${STATES[state]}${reason ? `: ${plain(reason)}` : ''}` : STATES[state]
}

/** Those of the hub's events that tell of this booking. */
export function eventsOf(id: number, events: readonly HubEvent[]): HubEvent[] {
  return events.filter(({ detail }) => detail.startsWith(`Reservation ${id} of `))
}

/** What to say of a refusal, and what could be had instead. */
export interface BookingTrouble {
  text: string
  conflicts: { id: number; text: string }[]
  /** The first time at which as much is free for as long. */
  offer: { slot: Slot; text: string } | null
  /** What it is by now, where somebody changed it meanwhile. */
  newer: Booking | null
  needsLogIn: boolean
}

const MOST_CONFLICTS = 5

export function troubleOf(refusal: Refusal, now: number): BookingTrouble {
  const said = (refusal.body ?? {}) as Partial<RefusedBooking>
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

function conflictText(booking: Booking, now: number): string {
  const note = booking.note === '' ? '' : ` (${plain(booking.note)})`
  return `${plain(booking.user)} has ${gpusText(booking.gpus)}, ${spanText(booking.start, booking.end, now)}${note}`
}

/** `gpu07: 0, 1 · 14:00 – 18:00 (4h)` */
export function slotText(slot: Slot, now: number): string {
  return `${gpusText(slot.gpus)} · ${spanText(slot.start, slot.end, now)} (${lengthText(slot.end - slot.start)})`
}
