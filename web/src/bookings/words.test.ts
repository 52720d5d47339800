import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import type { HubEvent } from '../api/events'
import type { Me } from '../api/types'
import { NOW } from '../samples'
import { booked, booking } from './samples'
import { askerOf, eventsOf, gpusText, mayChange, slotText, stateOf, stateText, troubleOf, useOf } from './words'

beforeEach(() => void vi.stubEnv('TZ', 'UTC'))
afterEach(() => vi.unstubAllEnvs())

test('its state goes along with the clock', () => {
  const one = booking()
  expect([NOW, one.start, one.end].map((now) => stateOf(one, now))).toEqual(['planned', 'running', 'ended'])
  expect(stateOf(booking({ state: 'released' }), NOW)).toBe('released')
  expect(stateText(booking({ state: 'released', release_reason: 'nobody used it' }), NOW)).toBe('given back: nobody used it')
})

test('owners and admins change it, and nobody else', () => {
  const who = (changes: Partial<Me>) => askerOf({ name: 'ada', may_write: true, may_book: true, may_administer: false, ...changes } as Me)
  expect(mayChange(booking(), who({}))).toBe(true)
  expect(mayChange(booking(), who({ name: 'bob' }))).toBe(false)
  expect(mayChange(booking(), who({ name: 'bob', may_administer: true }))).toBe(true)
  expect(mayChange(booking(), who({ may_book: false }))).toBe(false)
  expect(mayChange(booking({ created_by: '' }), who({ name: '' }))).toBe(true)
  expect(mayChange(booking({ created_by: 'bob' }), who({ name: '' }))).toBe(false)
  expect(mayChange(booking({ created_by: '' }), who({ name: '', may_book: false }))).toBe(false)
})

test('GPUs by their hosts', () => expect(gpusText([...booked('gpu01', 0, 1), ...booked('gpu02', 3)])).toBe('gpu01: 0, 1; gpu02: 3'))

test('whether it is used', () => {
  const running = booking({ start: NOW - 1800, end: NOW + 3600 })
  expect(useOf(booking(), [], NOW)).toEqual([])
  expect(useOf(running, [], NOW)[0]).toMatchObject({ isBad: true, text: expect.stringContaining('Nobody has used it yet, for 30 min') as string })
  expect(useOf({ ...running, used_at: NOW - 600 }, ['bob is on it', 'bob is on it'], NOW).map(({ isBad }) => isBad)).toEqual([true, false])
  expect(useOf({ ...running, end: NOW - 1 }, [], NOW)).toEqual([{ text: 'Nobody used it.', isBad: false }])
})

test('a conflict names who is in the way and offers the next time', () => {
  const slot = { start: NOW, end: NOW + 3600, gpus: booked('gpu01', 0) }
  const body = { error: { code: 'conflict', message: 'GPU 0 of gpu01 is booked by ada: reservation 1.', hint: 'Begin later.' }, conflicts: [booking({ note: 'paper' })], next_free: slot }
  const trouble = troubleOf({ status: 409, message: body.error.message, body }, NOW)
  expect(trouble.text).toBe('GPU 0 of gpu01 is booked by ada: reservation 1.')
  expect(trouble.conflicts).toEqual([{ id: 1, text: expect.stringMatching(/^ada has gpu01: 0, .* \(paper\)$/) as string }])
  expect(trouble.offer?.text).toBe(slotText(slot, NOW))
  expect(slotText(slot, NOW)).toMatch(/^gpu01: 0 · \d\d:\d\d – \d\d:\d\d \(1h\)$/)
})

test('a conflict without a free time has the hint instead', () => {
  const body = { error: { code: 'in_use', message: 'GPU 0 is in use by bob now.', hint: 'Ask them.' }, conflicts: [], next_free: null }
  expect(troubleOf({ status: 409, message: body.error.message, body }, NOW)).toMatchObject({ text: 'GPU 0 is in use by bob now. Ask them.', offer: null, conflicts: [] })
})

test('what was changed meanwhile comes as it is now', () => {
  const newer = booking({ version: 2 })
  expect(troubleOf({ status: 409, message: 'changed', body: { error: {}, reservation: newer } }, NOW).newer).toBe(newer)
})

test('a stranger is asked to log in, and no answer is told as that', () => {
  expect(troubleOf({ status: 401, message: 'log in first' }, NOW).needsLogIn).toBe(true)
  expect(troubleOf({ status: null, message: '' }, NOW)).toMatchObject({ text: 'The hub does not answer. Try again when it is back.', needsLogIn: false })
})

test('events of one booking are not those of another with a longer number', () => {
  const event = (detail: string) => ({ detail }) as HubEvent
  expect(eventsOf(1, [event('Reservation 1 of ada.'), event('Reservation 12 of ada.'), event('')])).toHaveLength(1)
})
