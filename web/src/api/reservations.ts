/** Who has which GPUs when; booking, changing and giving back. */
import { ask, type Answer } from './ask'
import type { components } from './schema'

type Schemas = components['schemas']

export type Booking = Schemas['ShownReservation']
export type BookedGpu = Schemas['BookedGpu']
export type Slot = Schemas['ShownSlot']
export type BookingList = Schemas['ReservationList']
export type NewBooking = Partial<Schemas['NewReservation']>
export type BookingChange = Partial<Schemas['ReservationChange']>
export type AnyGpus = Partial<Schemas['AnyGpus']>
/** What a refusal may carry beside its words. */
export type RefusedBooking = Schemas['RefusedReservation']

const AT = 'api/v1/reservations'

/** Times in Unix seconds; `host` is a name, `gpu` a UUID. */
export interface BookingQuestion {
  start: number
  end?: number
  host?: string
  gpu?: string
  user?: string
  limit?: number
}

export function readBookings(question: BookingQuestion, signal?: AbortSignal): Promise<Answer<BookingList>> {
  return ask(`${AT}?${written({ ...question })}`, 'GET', undefined, undefined, signal)
}

export const readBooking = (id: number): Promise<Answer<Booking>> => ask(`${AT}/${id}`)
export const book = (booking: NewBooking): Promise<Answer<Booking>> => ask(AT, 'POST', booking)
export const changeBooking = (id: number, change: BookingChange): Promise<Answer<Booking>> => ask(`${AT}/${id}`, 'PATCH', change)
export const releaseBooking = (id: number): Promise<Answer<Booking>> => ask(`${AT}/${id}`, 'DELETE')

/** The first time at which so many are free for so long. `start` is the earliest, in Unix seconds. */
export function findSlot(wish: AnyGpus, length: string, start: number | null): Promise<Answer<Schemas['NextFree']>> {
  return ask(`${AT}/next?${written({ ...wish, for: length, start: start === null ? undefined : Math.ceil(start) })}`)
}

/** The address of a calendar to subscribe to; `token` where the hub shows nothing to strangers. */
export function calendarAddress(base: string, whose: { user?: string; host?: string }, token?: string): string {
  const query = written({ ...whose, token })
  return `${new URL(`${AT}.ics`, base).href}${query === '' ? '' : `?${query}`}`
}

function written(values: Record<string, unknown>): string {
  const kept = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== '')
  return new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString()
}
