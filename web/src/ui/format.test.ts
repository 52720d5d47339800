import { describe, expect, it } from 'vitest'
import { bytes, celsius, clockTime, count, duration, elapsed, fraction, memoryPair, moment, percent, plain, shortDuration, utcTime, watts } from './format'

const GIB = 2 ** 30

it('shows the unknown as a dash and a zero as a zero', () => {
  expect([percent(null), celsius(null), watts(null), bytes(null), memoryPair(null, null)]).toEqual(['–', '–', '–', '–', '–'])
  expect([percent(0), celsius(0), watts(0), bytes(0), memoryPair(0, 80 * GIB)]).toEqual(['0%', '0°', '0 W', '0 GiB', '0/80G'])
})

it.each([
  [312.4, '312 W'],
  [9999, '9999 W'],
  [61_200, '61.2 kW'],
  [1_513_500, '1.51 MW'],
])('%d watts read %s', (value, expected) => {
  expect(watts(value)).toBe(expected)
})

it.each([
  [GIB / 200, '5 MiB'],
  [9.75 * GIB, '9.8 GiB'],
  [9.97 * GIB, '10 GiB'],
  [71.2 * GIB, '71 GiB'],
  [20_480 * GIB, '20.0 TiB'],
])('%d bytes read %s', (value, expected) => {
  expect(bytes(value)).toBe(expected)
})

it('keeps the known half of a pair', () => {
  expect([memoryPair(null, 80 * GIB), memoryPair(GIB, null), memoryPair(GIB / 200, GIB)]).toEqual(['–/80G', '1.0/–G', '0/1.0G'])
})

it('fills a bar between nothing and all of it, or draws none', () => {
  expect([fraction(40, 80), fraction(90, 80), fraction(null, 80), fraction(1, null), fraction(0, 0)]).toEqual([0.5, 1, null, null, null])
})

describe('durations', () => {
  it.each([
    [-3, '0s', '0s'],
    [45, '45s', '45s'],
    [12 * 60 + 59, '12m', '12m'],
    [3 * 3600 + 12 * 60, '3h', '3h 12m'],
    [47 * 3600, '47h', '1d 23h'],
    [9 * 86400 + 4 * 3600, '9d', '9d 4h'],
    [2 * 86400, '2d', '2d'],
  ])('%d s read %s or %s', (seconds, short, long) => {
    expect([shortDuration(seconds), duration(seconds)]).toEqual([short, long])
  })
})

describe('moments', () => {
  const now = new Date(2026, 0, 5, 18, 0).getTime() / 1000

  it('of today need no date', () => {
    expect(clockTime(new Date(2026, 0, 5, 14, 2).getTime() / 1000, now)).toBe('14:02')
  })

  it('of another day have one', () => {
    expect(clockTime(new Date(2026, 0, 3, 9, 30).getTime() / 1000, now)).toBe('Jan 3, 09:30')
  })

  it.each([-1e308, 1e308, NaN, Infinity, null, 8.64e12 + 1])('that are none, such as %s, read as unknown', (moment) => {
    const age = elapsed(moment, now)
    expect([clockTime(moment, now), utcTime(moment), duration(age), shortDuration(age)]).toEqual(['–', '–', '–', '–'])
  })

  it('in a far year are a date, but no age', () => {
    expect(utcTime(253_402_300_800)).toBe('+010000-01-01 00:00:00 UTC')
    expect(duration(elapsed(253_402_300_800, now))).toBe('–')
  })

  it('are the same for everybody in UTC', () => {
    expect(utcTime(0)).toBe('1970-01-01 00:00:00 UTC')
  })
})

it('counts one and many', () => {
  expect([count(1, 'GPU'), count(1234, 'host'), count(0, 'user', 'people')]).toEqual(['1 GPU', '1,234 hosts', '0 people'])
})

it('makes unseen characters visible and leaves all others alone', () => {
  expect(plain('a\u202eb\u0007c 日本 🦊 <b>')).toBe('a\ufffdb\ufffdc 日本 🦊 <b>')
})

it('names the year of a moment in another one', () => {
  const now = new Date(2026, 10, 15, 12).getTime() / 1000
  expect(moment(now - 60, now)).toBe('11:59')
  expect(moment(new Date(2027, 1, 3, 12).getTime() / 1000, now)).toBe('Feb 3, 2027')
  expect(moment(null, now)).toBe('–')
})
