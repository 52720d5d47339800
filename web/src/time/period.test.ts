import { afterEach, beforeEach, describe, expect, it, test, vi } from 'vitest'
import { addressOf, allDays, dayOf, daysOf, dayStart, periodText, readPeriod, wholeDays } from './period'

const HOUR = 3600
const DAY = 24 * HOUR
const at = (text: string): number => Date.parse(text) / 1000
const read = (query: string, now: number) => readPeriod(new URLSearchParams(query), now)

beforeEach(() => void vi.stubEnv('TZ', 'Europe/Berlin'))
afterEach(() => vi.unstubAllEnvs())

describe('a period by its name', () => {
  const now = at('2026-04-15T12:34:56+02:00')

  it('ends at this minute', () => expect(read('range=24h', now)).toEqual({ name: '24h', start: now - 56 - DAY, end: now - 56, isOpen: true }))
  it('is the last seven days without one', () => expect(read('', now).name).toBe('7d'))
  it('is the usual one for nonsense', () => expect(read('range=constructor', now).name).toBe('7d'))
  it('goes back by days, not by hours: one of these had 23', () => {
    const { start, end } = read('range=30d', now)
    expect(start).toBe(at('2026-03-16T12:34+01:00'))
    expect(end - start).toBe(30 * DAY - HOUR)
  })
  it('begins with the month', () => expect(read('range=month', now).start).toBe(at('2026-04-01T00:00+02:00')))
  it('is the whole of the last month, with the hour that is missing there', () => {
    expect(read('range=last-month', now)).toEqual({ name: 'last-month', start: at('2026-03-01T00:00+01:00'), end: at('2026-04-01T00:00+02:00'), isOpen: false })
  })
  it('knows that the month before January is December', () => {
    expect(read('range=last-month', at('2026-01-01T00:00:10+01:00'))).toMatchObject({ start: at('2025-12-01T00:00+01:00'), end: at('2026-01-01T00:00+01:00') })
  })
  it('is never empty, also in the first minute of a month', () => {
    const { start, end } = read('range=month', at('2026-04-01T00:00:10+02:00'))
    expect(end).toBeGreaterThan(start)
  })
  it('goes back a year, a leap day or not', () => expect(read('range=1y', at('2028-02-29T10:00+01:00')).start).toBe(at('2027-03-01T10:00+01:00')))
})

describe('dates', () => {
  const now = at('2026-11-15T12:00+01:00')

  it('are whole days, both of them', () => {
    expect(wholeDays('2026-10-25', '2026-10-25', now)).toEqual({ name: 'custom', start: at('2026-10-25T00:00+02:00'), end: at('2026-10-26T00:00+01:00'), isOpen: false })
  })
  it('that reach today go on until now', () => expect(wholeDays('2026-11-15', '2026-11-20', now)).toMatchObject({ end: now, isOpen: true }))
  test.each([
    ['2026-11-02', '2026-11-01'],
    ['2026-02-30', '2026-03-05'],
    ['2026-12-01', '2026-12-02'],
    ['', ''],
    ['1999-01-01', '2026-01-01'],
    ['26-1-1', '2026-01-01'],
  ])('%s to %s is no period', (from, to) => expect(wholeDays(from, to, now)).toBeNull())
  it('are each there once, also when the clock is turned', () => {
    expect(allDays(wholeDays('2026-10-24', '2026-10-27', now) as never)).toEqual(['2026-10-24', '2026-10-25', '2026-10-26', '2026-10-27'])
    expect(allDays(wholeDays('2026-10-24', '2026-10-24', now) as never)).toEqual(['2026-10-24'])
  })
  it('are days here', () => {
    expect(dayOf(at('2026-11-14T23:30Z'))).toBe('2026-11-15')
    expect(dayStart('2026-11-15', 1)).toBe(at('2026-11-16T00:00+01:00'))
  })
})

describe('the address', () => {
  const now = at('2026-11-15T12:00+01:00')
  test.each(['range=24h', 'range=last-month', 'from=2026-03-01&to=2026-03-31', 'from=2026-11-01&to=2026-11-15', 'start=1790000000&end=1790003600'])('%s leads to the same period again', (query) => {
    const period = read(query, now)
    const written = Object.entries(addressOf(period)).filter(([, value]) => value !== '')
    expect(read(new URLSearchParams(written).toString(), now)).toEqual(period)
    expect(new URLSearchParams(written).toString()).toBe(query)
  })
  test.each(['start=1790003600&end=1790000000', 'start=0&end=99', 'start=x&end=y', 'start=9e99&end=9e99'])('%s is no period', (query) => expect(read(query, now).name).toBe('7d'))
})

describe('in words', () => {
  const now = at('2026-11-15T12:00+01:00')
  test.each([
    ['range=last-month', 'Oct 1 – 31, 2026'],
    ['from=2026-03-28&to=2026-04-03', 'Mar 28, 2026 – Apr 3, 2026'],
    ['from=2026-03-28&to=2026-03-28', 'Mar 28, 2026'],
    ['range=24h', 'Nov 14, 2026, 12:00 – Nov 15, 2026, 12:00'],
  ])('%s is %s', (query, text) => expect(periodText(read(query, now))).toBe(text))
  it('has the days for the date fields', () => expect(daysOf(read('range=last-month', now))).toEqual({ from: '2026-10-01', to: '2026-10-31' }))
})
