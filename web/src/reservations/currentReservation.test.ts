import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { gpu, NOW } from '../testing/samples'
import { reservationText } from './currentReservation'

const reservation = { id: 7, kind: 'reservation', user: 'dan', until: NOW + 60, note: '', scheduler: null } as const

beforeEach(() => void vi.stubEnv('TZ', 'UTC'))
afterEach(() => vi.unstubAllEnvs())

test('nothing is said of a GPU that nobody has reserved', () => expect(reservationText(gpu(), NOW)).toBeNull())

test('who, until when and why', () => {
  expect(reservationText(gpu({ reservation }), NOW)).toEqual({ id: 7, text: 'Reserved by dan until 08:01', conflict: null })
  expect(reservationText(gpu({ reservation: { ...reservation, note: 'paper' } }), NOW)?.text).toBe('Reserved by dan until 08:01: paper')
  expect(reservationText(gpu({ reservation: { ...reservation, kind: 'claim' } }), NOW)?.text).toBe('Claimed by dan')
})

test('who is on it all the same is told, also after the end', () => {
  expect(reservationText(gpu({ reservation, reservation_conflict: 'bob is on it, though it is reserved by dan' }), NOW)?.conflict).toBe('bob is on it, though it is reserved by dan.')
  expect(reservationText(gpu({ reservation_conflict: 'dan is still on it' }), NOW)).toEqual({ id: null, text: null, conflict: 'dan is still on it.' })
})
