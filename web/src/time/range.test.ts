import { expect, test } from 'vitest'
import { boundsOf, pan, PRESETS, presetOf, rangeOf, readRange, settle, SHORTEST, writeRange, zoom } from './range'

const NOW = 1_800_000_000
const HOUR = 3600
const read = (text: string): ReturnType<typeof readRange> => readRange(new URLSearchParams(text), '24h', () => NOW)
const write = (range: ReturnType<typeof readRange>, from = ''): string => writeRange(new URLSearchParams(from), range).toString()

test('an address without a range is the usual one, and one that is chosen is written', () => {
  expect(read('')).toEqual({ seconds: 24 * HOUR, end: null })
  expect(write(read(''))).toBe('range=24h')
})

test('days and months of a report are ranges of a chart too', () => {
  const [from, to] = [new Date(2027, 0, 4).getTime() / 1000, new Date(2027, 0, 6).getTime() / 1000]
  expect(read('from=2027-01-04&to=2027-01-05')).toEqual({ seconds: to - from, end: to })
  const month = read('range=month')
  expect(month.end).toBeNull()
  expect(month.seconds % HOUR).toBe(0)
  expect(NOW - month.seconds).toBeLessThanOrEqual(new Date(2027, 0, 1).getTime() / 1000)
  expect(write(read('range=7d'), 'from=2027-01-04&to=2027-01-05&by=host')).toBe('by=host&range=7d')
})

test('every button has an address that leads back to it', () => {
  for (const { name } of PRESETS) expect(presetOf(read(write(read(`range=${name}`))))).toBe(name)
})

test('a zoomed range survives its address, and other parameters stay', () => {
  const range = rangeOf({ start: NOW - 5 * HOUR, end: NOW - 2 * HOUR }, NOW)
  const address = write(range, 'x=1&range=7d')
  expect(address).toBe(`x=1&start=${NOW - 5 * HOUR}&end=${NOW - 2 * HOUR}`)
  expect(read(address)).toEqual(range)
})

test('a live range of any length survives its address', () => {
  expect(read(write({ seconds: 5400, end: null }))).toEqual({ seconds: 5400, end: null })
})

test('an address that makes no sense is the usual range', () => {
  for (const text of ['range=soon', 'start=5', 'start=9&end=3', 'range=-5', 'start=x&end=y']) expect(read(text)).toEqual({ seconds: 24 * HOUR, end: null })
})

test('a live range ends now', () => {
  expect(boundsOf({ seconds: HOUR, end: null }, NOW)).toEqual({ start: NOW - HOUR, end: NOW })
  expect(boundsOf({ seconds: HOUR, end: 5000 }, NOW)).toEqual({ start: 1400, end: 5000 })
})

test('a range that reaches until now becomes live, one before it does not', () => {
  expect(rangeOf({ start: NOW - HOUR, end: NOW + 1 }, NOW)).toEqual({ seconds: HOUR + 1, end: null })
  expect(rangeOf({ start: NOW - 2 * HOUR, end: NOW - HOUR }, NOW)).toEqual({ seconds: HOUR, end: NOW - HOUR })
})

test('nobody zooms in further than there is something to see', () => {
  expect(rangeOf({ start: 1000, end: 1001 }, NOW)).toEqual({ seconds: SHORTEST, end: 1061 })
})

test('a zoom leaves what is pointed at where it is', () => {
  expect(zoom({ start: 0, end: 4000 }, 0.5, 1000)).toEqual({ start: 500, end: 2500 })
  expect(zoom({ start: 0, end: 4000 }, 2)).toEqual({ start: -2000, end: 6000 })
})

test('pan keeps the length', () => {
  expect(pan({ start: 100, end: 300 }, -50)).toEqual({ start: 50, end: 250 })
})

test('a live end moves on in whole steps', () => {
  expect([settle(101, 10), settle(110, 10), settle(111, 10)]).toEqual([110, 110, 120])
})
