import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { fieldOf, lengthOf, lengthText, momentOf, offsetsText, offsetText, spanText, timeText } from './times'

const at = (text: string): number => Date.parse(text) / 1000
const HOUR = 3600

beforeEach(() => void vi.stubEnv('TZ', 'Europe/Berlin'))
afterEach(() => vi.unstubAllEnvs())

test.each([
  ['4h', 4 * HOUR],
  ['1d 6h', 30 * HOUR],
  ['90m', 5400],
  ['1.5H', 5400],
  ['2w', 14 * 24 * HOUR],
])('the length %s', (text, seconds) => expect(lengthOf(text)).toBe(seconds))

test.each(['', '4', 'h', '0h', '-4h', '4 hours', '1e3h', '4h until noon', '999999999h'])('%j is no length', (text) => expect(lengthOf(text)).toBeNull())

test.each([
  [4 * HOUR, '4h'],
  [30 * HOUR + 1800, '1d 6h 30m'],
  [59, '0m'],
])('%i seconds are written %s', (seconds, text) => expect(lengthText(seconds)).toBe(text))

test('a field shows the clock of the viewer', () => {
  expect(fieldOf(at('2026-11-16T08:00Z'))).toBe('2026-11-16T09:00')
  expect(momentOf('2026-11-16T09:00')).toBe(at('2026-11-16T08:00Z'))
})

test.each(['', '2026-11-16', '2026-13-01T00:00', '2026-02-30T10:00', 'tomorrow', '2026-11-16T25:00'])('%j is no time', (text) => expect(momentOf(text)).toBeNull())

test('a time that the clock skips does not exist', () => {
  expect(momentOf('2026-03-29T02:30')).toBeNull()
  expect(momentOf('2026-03-29T03:00')).toBe(at('2026-03-29T01:00Z'))
})

test('of a time that the clock shows twice the first is meant, and both are told apart', () => {
  const first = at('2026-10-25T02:30+02:00')
  expect(momentOf('2026-10-25T02:30')).toBe(first)
  expect(timeText(first, first)).toBe('02:30 (UTC+2)')
  expect(timeText(first + HOUR, first)).toBe('02:30 (UTC+1)')
  expect(timeText(first + 2 * HOUR, first)).toBe('03:30')
  expect(timeText(first - HOUR, first)).toBe('01:30')
})

test('a span names the day once, and the year where it is another', () => {
  const now = at('2026-11-15T12:00+01:00')
  expect(spanText(now, now + 4 * HOUR, now)).toBe('12:00 – 16:00')
  expect(spanText(now, now + 14 * HOUR, now)).toBe('12:00 – Nov 16, 02:00')
  expect(spanText(now + 24 * HOUR, now + 26 * HOUR, now)).toBe('Nov 16, 12:00 – 14:00')
  expect(timeText(at('2027-01-02T09:00+01:00'), now)).toBe('Jan 2 2027, 09:00')
})

test('a time in which the clock is changed has two offsets', () => {
  expect(offsetsText(at('2026-10-24T00:00Z'), at('2026-10-26T00:00Z'))).toBe('UTC+2, then UTC+1')
  expect(offsetsText(at('2026-07-01T00:00Z'), at('2026-07-08T00:00Z'))).toBe('UTC+2')
})

test('zones with half hours and behind UTC', () => {
  expect(offsetText(at('2026-07-01T00:00Z'))).toBe('UTC+2')
  vi.stubEnv('TZ', 'America/St_Johns')
  expect(offsetText(at('2026-01-01T00:00Z'))).toBe('UTC−3:30')
})
