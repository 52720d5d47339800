import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import type { HubEvent } from '../api/events'
import type { Me } from '../api/types'
import { NOW } from '../testing/samples'
import { gpusOf, reservation } from './samples'
import { currentUserOf, eventsOf, gpusText, mayChange, slotText, stateOf, stateText, errorOf, useOf } from './texts'

beforeEach(() => void vi.stubEnv('TZ', 'UTC'))
afterEach(() => vi.unstubAllEnvs())

test('its state goes along with the clock', () => {
  const one = reservation()
  expect([NOW, one.start, one.end].map((now) => stateOf(one, now))).toEqual(['planned', 'running', 'ended'])
  expect(stateOf(reservation({ state: 'released' }), NOW)).toBe('released')
  expect(stateText(reservation({ state: 'released', release_reason: 'nobody used it' }), NOW)).toBe('released: nobody used it')
})

test('owners and admins change it, and nobody else', () => {
  const who = (changes: Partial<Me>) => currentUserOf({ name: 'ada', may_write: true, may_reserve: true, may_administer: false, ...changes } as Me)
  expect(mayChange(reservation(), who({}))).toBe(true)
  expect(mayChange(reservation(), who({ name: 'bob' }))).toBe(false)
  expect(mayChange(reservation(), who({ name: 'bob', may_administer: true }))).toBe(true)
  expect(mayChange(reservation(), who({ may_reserve: false }))).toBe(false)
  expect(mayChange(reservation({ created_by: '' }), who({ name: '' }))).toBe(true)
  expect(mayChange(reservation({ created_by: 'bob' }), who({ name: '' }))).toBe(false)
  expect(mayChange(reservation({ created_by: '' }), who({ name: '', may_reserve: false }))).toBe(false)
})

test('GPUs by their hosts', () => expect(gpusText([...gpusOf('gpu01', 0, 1), ...gpusOf('gpu02', 3)])).toBe('gpu01: 0, 1; gpu02: 3'))

test('whether it is used', () => {
  const running = reservation({ start: NOW - 1800, end: NOW + 3600 })
  expect(useOf(reservation(), [], NOW)).toEqual([])
  expect(useOf(running, [], NOW)[0]).toMatchObject({ isBad: true, text: expect.stringContaining('Not used yet (started 30m ago)') as string })
  expect(useOf({ ...running, used_at: NOW - 600 }, ['bob is on it', 'bob is on it'], NOW).map(({ isBad }) => isBad)).toEqual([true, false])
  expect(useOf({ ...running, end: NOW - 1 }, [], NOW)).toEqual([{ text: 'Never used.', isBad: false }])
})

test('a conflict names who is in the way and offers the next time', () => {
  const slot = { start: NOW, end: NOW + 3600, gpus: gpusOf('gpu01', 0) }
  const body = { error: { code: 'conflict', message: 'GPU 0 of gpu01 is reserved by ada: reservation 1.', hint: 'Begin later.' }, conflicts: [reservation({ note: 'paper' })], next_free: slot }
  const error = errorOf({ status: 409, message: body.error.message, body }, NOW)
  expect(error.text).toBe('GPU 0 of gpu01 is reserved by ada: reservation 1.')
  expect(error.conflicts).toEqual([{ id: 1, text: expect.stringMatching(/^ada reserved gpu01: 0, .* \(paper\)$/) as string }])
  expect(error.offer?.text).toBe(slotText(slot, NOW))
  expect(slotText(slot, NOW)).toMatch(/^gpu01: 0 · \d\d:\d\d – \d\d:\d\d \(1h\)$/)
})

test('a conflict without a free time has the hint instead', () => {
  const body = { error: { code: 'in_use', message: 'GPU 0 is in use by bob now.', hint: 'Ask them.' }, conflicts: [], next_free: null }
  expect(errorOf({ status: 409, message: body.error.message, body }, NOW)).toMatchObject({ text: 'GPU 0 is in use by bob now. Ask them.', offer: null, conflicts: [] })
})

test('what was changed meanwhile comes as it is now', () => {
  const newer = reservation({ version: 2 })
  expect(errorOf({ status: 409, message: 'changed', body: { error: {}, reservation: newer } }, NOW).newer).toBe(newer)
})

test('a stranger is asked to log in, and no answer is told as that', () => {
  expect(errorOf({ status: 401, message: 'log in first' }, NOW).needsLogIn).toBe(true)
  expect(errorOf({ status: null, message: '' }, NOW)).toMatchObject({ text: 'The hub is not responding. Try again later.', needsLogIn: false })
})

test('events of one reservation are not those of another with a longer number', () => {
  const event = (detail: string) => ({ detail }) as HubEvent
  expect(eventsOf(1, [event('Reservation 1 of ada.'), event('Reservation 12 of ada.'), event('')])).toHaveLength(1)
})
