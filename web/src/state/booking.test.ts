import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { gpu, NOW } from '../samples'
import { bookingText } from './booking'

const reservation = { id: 7, kind: 'booking', user: 'dan', until: NOW + 60, note: '' } as const

beforeEach(() => void vi.stubEnv('TZ', 'UTC'))
afterEach(() => vi.unstubAllEnvs())

test('nothing is said of a GPU that nobody has booked', () => expect(bookingText(gpu(), NOW)).toBeNull())

test('who, until when and why', () => {
  expect(bookingText(gpu({ reservation }), NOW)).toEqual({ id: 7, text: 'Booked by dan until 08:01', conflict: null })
  expect(bookingText(gpu({ reservation: { ...reservation, note: 'paper' } }), NOW)?.text).toBe('Booked by dan until 08:01: paper')
  expect(bookingText(gpu({ reservation: { ...reservation, kind: 'hold' } }), NOW)?.text).toBe('Taken by dan, starting')
})

test('who is on it all the same is told, also after the end', () => {
  expect(bookingText(gpu({ reservation, reservation_conflict: 'bob is on it, though it is booked by dan' }), NOW)?.conflict).toBe('bob is on it, though it is booked by dan.')
  expect(bookingText(gpu({ reservation_conflict: 'dan is still on it' }), NOW)).toEqual({ id: null, text: null, conflict: 'dan is still on it.' })
})
