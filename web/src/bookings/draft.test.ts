import { afterEach, beforeEach, describe, expect, it, test, vi } from 'vitest'
import { bookingBody, changeBody, draftOf, lengthShown, mistakesOf, newDraft, noWish, slotBody, slotChange, untilShown, type Draft } from './draft'
import { booked, booking } from './samples'

const at = (text: string): number => Date.parse(text) / 1000
const HOUR = 3600
const NOW = at('2026-11-15T12:00:20+01:00')

beforeEach(() => void vi.stubEnv('TZ', 'Europe/Berlin'))
afterEach(() => vi.unstubAllEnvs())

describe('a new booking', () => {
  it('begins now and lasts some hours where nobody said otherwise', () => {
    expect(bookingBody(newDraft(['a'], null, null, NOW), 'ada')).toEqual({ gpus: ['a'], for: 4 * HOUR, note: '' })
  })
  it('begins now where the drag began in the past', () => {
    const draft = newDraft(['a'], NOW - HOUR, NOW + 2 * HOUR, NOW)
    expect(bookingBody(draft, 'ada')).toEqual({ gpus: ['a'], end: NOW + 2 * HOUR - 20, note: '' })
    expect(lengthShown(draft, NOW)).toBe('1h 59m')
  })
  it('has the length that was typed, or the end', () => {
    const draft: Draft = { ...newDraft(['a'], NOW + HOUR, null, NOW), length: '1d 6h', note: 'paper' }
    expect(untilShown(draft, NOW)).toBe('2026-11-16T19:00')
    expect(bookingBody(draft, 'ada')).toEqual({ gpus: ['a'], start: NOW + HOUR - 20, for: 30 * HOUR, note: 'paper' })
  })
  it('is of any that fit', () => {
    const draft: Draft = { ...newDraft([], null, null, NOW), mode: 'any', wish: { count: '2', memory: ' 40GiB ', model: '', sameHost: true } }
    expect(bookingBody(draft, 'ada')).toEqual({ any: { gpus: 2, memory: '40GiB', same_host: true }, for: 4 * HOUR, note: '' })
  })
  it('names its owner only where that is somebody else', () => {
    expect(bookingBody({ ...newDraft(['a'], null, null, NOW), user: 'ada' }, 'ada')).not.toHaveProperty('user')
    expect(bookingBody({ ...newDraft(['a'], null, null, NOW), user: ' bob ' }, 'ada')).toMatchObject({ user: 'bob' })
  })
})

describe('what is wrong is said where it stands', () => {
  const wrong = (changes: Partial<Draft>): string[] => Object.keys(mistakesOf({ ...newDraft(['a'], null, null, NOW), ...changes }, NOW))
  test.each<[string, Partial<Draft>, string[]]>([
    ['nothing', {}, []],
    ['no GPU', { gpus: [] }, ['gpus']],
    ['a length of nothing', { length: '0h' }, ['length']],
    ['no number', { mode: 'any', wish: { ...noWish(), count: 'two' } }, ['count']],
    ['no memory', { mode: 'any', wish: { ...noWish(), memory: 'much' } }, ['memory']],
    ['a time that the clock skips', { isNow: false, from: '2027-03-28T02:30' }, ['from']],
    ['an end before the start', { isNow: false, from: '2026-11-16T10:00', by: 'until', until: '2026-11-16T09:00' }, ['until']],
    ['an end that is past', { by: 'until', until: '2026-11-15T11:00' }, ['until']],
    ['no end', { by: 'until', until: '' }, ['until']],
  ])('%s', (_, changes, fields) => expect(wrong(changes)).toEqual(fields))

  test('no name where there is no account to book by', () => {
    const named = (user: string): string[] => Object.keys(mistakesOf({ ...newDraft(['a'], null, null, NOW), user }, NOW, true))
    expect([named(' '), named('ada')]).toEqual([['user'], []])
  })
})

describe('a change', () => {
  const before = booking({ gpus: booked('gpu01', 0, 1), start: NOW + HOUR, end: NOW + 5 * HOUR, note: 'paper', version: 3 })
  const change = (changes: Partial<Draft>) => changeBody({ ...draftOf(before), ...changes }, before)

  it('is nothing where nothing was touched, though fields show no seconds', () => expect(change({})).toBeNull())
  it('sends what was touched, and which version was seen', () => {
    expect(change({ note: 'thesis' })).toEqual({ note: 'thesis', version: 3 })
    expect(change({ gpus: ['gpu01-1', 'gpu01-0'] })).toBeNull()
    expect(change({ gpus: ['gpu01-1'] })).toEqual({ gpus: ['gpu01-1'], version: 3 })
    expect(change({ by: 'length', length: '6h' })).toEqual({ for: 6 * HOUR, version: 3 })
  })
  it('of the start alone keeps the end that is shown', () => {
    expect(change({ from: '2026-11-15T14:00' })).toEqual({ start: at('2026-11-15T14:00+01:00'), end: before.end, version: 3 })
  })
  it('of the start with the same length moves it', () => {
    expect(change({ from: '2026-11-15T14:00', by: 'length' })).toEqual({ start: at('2026-11-15T14:00+01:00'), version: 3 })
  })
})

test('a free slot is taken to the second, on the GPUs that are free, and as long as it was', () => {
  const slot = { start: NOW + 0.5, end: NOW + HOUR, gpus: booked('gpu02', 3) }
  const draft = { ...newDraft(['a'], null, null, NOW), note: 'n' }
  expect(slotBody(draft, slot, 'ada', NOW)).toEqual({ gpus: ['gpu02-3'], start: slot.start, for: HOUR - 0.5, note: 'n' })
  expect(slotBody(draft, slot, 'ada', NOW + 20)).toEqual({ gpus: ['gpu02-3'], for: HOUR - 0.5, note: 'n' })
  expect(slotChange({ for: 60, note: 'n', version: 2 }, booking({ gpus: booked('gpu02', 3) }), slot, NOW)).toEqual({ start: slot.start, for: HOUR - 0.5, note: 'n', version: 2 })
  expect(slotChange({ gpus: ['x'], end: NOW, version: 2 }, booking(), slot, NOW + 20)).toEqual({ start: NOW + 20, for: HOUR - 0.5, gpus: ['gpu02-3'], version: 2 })
})
