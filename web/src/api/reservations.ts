/** Who has which GPUs when; reservation, changing and giving back. */
import { ask, type Answer } from './ask'
import type { components } from './schema'

type Schemas = components['schemas']

export type Reservation = Schemas['ShownReservation']
export type ReservedGpu = Schemas['ReservedGpu']
export type Slot = Schemas['ShownSlot']
export type ReservationList = Schemas['ReservationList']
export type NewReservation = Partial<Schemas['NewReservation']>
export type ReservationChange = Partial<Schemas['ReservationChange']>
export type AnyGpus = Partial<Schemas['AnyGpus']>
export type ReservationPreview = Schemas['ReservationPreview']
export type PreviewedGpu = Schemas['PreviewedGpu']
/** What a refusal may carry beside its words. */
export type RefusedReservation = Schemas['RefusedReservation']

const AT = 'api/v1/reservations'

/** Times in Unix seconds; `host` is a name, `gpu` a UUID. */
export interface ReservationFilter {
  start: number
  end?: number
  host?: string
  gpu?: string
  user?: string
  limit?: number
}

export function readReservations(question: ReservationFilter, signal?: AbortSignal): Promise<Answer<ReservationList>> {
  return ask(`${AT}?${written({ ...question })}`, 'GET', undefined, undefined, signal)
}

export const readReservation = (id: number): Promise<Answer<Reservation>> => ask(`${AT}/${id}`)
export const createReservation = (reservation: NewReservation): Promise<Answer<Reservation>> => ask(AT, 'POST', reservation)
/** What `createReservation` would do now. */
export function previewReservation(reservation: NewReservation, signal?: AbortSignal): Promise<Answer<ReservationPreview>> {
  return ask(`${AT}/preview`, 'POST', reservation, undefined, signal)
}
export const changeReservation = (id: number, change: ReservationChange): Promise<Answer<Reservation>> => ask(`${AT}/${id}`, 'PATCH', change)
export const releaseReservation = (id: number): Promise<Answer<Reservation>> => ask(`${AT}/${id}`, 'DELETE')

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
