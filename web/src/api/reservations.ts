/** Who has which GPUs when; reservation, changing and giving back. */
import { addressOf, request, type Answer } from './request'
import type { components } from './schema'

type Schemas = components['schemas']

export type Reservation = Schemas['ShownReservation']
export type ReservedGpu = Schemas['ReservedGpu']
export type Slot = Schemas['ShownSlot']
export type ReservationList = Schemas['ReservationList']
export type NewReservation = Schemas['NewReservation']
export type ReservationChange = Schemas['ReservationChange']
export type AnyGpus = Schemas['AnyGpus']
export type ReservationPreview = Schemas['ReservationPreview']
export type PreviewedGpu = Schemas['PreviewedGpu']
/** What a refusal may carry beside its words. */
export type RefusedReservation = Schemas['RefusedReservation']

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
  return request('get', '/api/v1/reservations', { query: question, signal })
}

export const readReservation = (id: number): Promise<Answer<Reservation>> => request('get', '/api/v1/reservations/{number}', { path: { number: id } })
export const createReservation = (reservation: NewReservation): Promise<Answer<Reservation>> => request('post', '/api/v1/reservations', { body: reservation })
/** What `createReservation` would do now. */
export function previewReservation(reservation: NewReservation, signal?: AbortSignal): Promise<Answer<ReservationPreview>> {
  return request('post', '/api/v1/reservations/preview', { body: reservation, signal })
}
export const changeReservation = (id: number, change: ReservationChange): Promise<Answer<Reservation>> => request('patch', '/api/v1/reservations/{number}', { path: { number: id }, body: change })
export const releaseReservation = (id: number): Promise<Answer<Reservation>> => request('delete', '/api/v1/reservations/{number}', { path: { number: id } })

/** The first time at which so many are free for so long. `start` is the earliest, in Unix seconds. */
export function findSlot(wish: AnyGpus, length: string, start: number | null): Promise<Answer<Schemas['NextFree']>> {
  return request('get', '/api/v1/reservations/next', { query: { ...wish, for: length, start: start === null ? undefined : Math.ceil(start) } })
}

/** The address of a calendar to subscribe to; `token` where the hub shows nothing to strangers. */
export function calendarAddress(base: string, whose: { user?: string; host?: string }, token?: string): string {
  return new URL(addressOf('/api/v1/reservations.ics', { query: { ...whose, token } }), base).href
}
