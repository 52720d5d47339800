import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { daysOf, partOf, snapped, ticksOf } from './axis'
import { viewAround } from './views'

const at = (text: string): number => Date.parse(text) / 1000
const HOUR = 3600
const SPRING = at('2026-03-29T12:00+02:00')
const AUTUMN = at('2026-10-25T12:00+01:00')

beforeEach(() => void vi.stubEnv('TZ', 'Europe/Berlin'))
afterEach(() => vi.unstubAllEnvs())

test('a day is as wide as it is long, also one of 23 hours or of 25', () => {
  const lengths = (moment: number) => daysOf(viewAround('week', moment)).map(({ start, end }) => (end - start) / HOUR)
  expect(lengths(AUTUMN)).toEqual([25, 24, 24, 24, 24, 24, 24])
  expect(lengths(SPRING - 24 * HOUR)).toEqual([24, 23, 24, 24, 24, 24, 24])
  expect(partOf(at('2026-10-25T02:30+01:00'), viewAround('day', AUTUMN))).toBeCloseTo(3.5 / 25)
  expect(partOf(AUTUMN + 99 * HOUR, viewAround('day', AUTUMN))).toBe(1)
})

test('lines stand where the clock shows a full hour, twice where it does so twice', () => {
  const ticks = ticksOf(viewAround('day', AUTUMN))
  expect(ticks).toHaveLength(25)
  expect(ticks.slice(0, 6).map(({ text }) => text)).toEqual(['00:00', '', '02:00', '', '', '04:00'])
  expect(ticksOf(viewAround('day', SPRING)).map(({ text }) => text).filter((text) => text !== '').slice(0, 3)).toEqual(['00:00', '04:00', '06:00'])
  expect(ticksOf(viewAround('week', AUTUMN)).filter(({ text }) => text !== '').map(({ text }) => text).slice(0, 4)).toEqual(['0', '12', '0', '12'])
  expect(ticksOf(viewAround('week', SPRING)).filter(({ text }) => text !== '').map(({ text }) => text).slice(0, 4)).toEqual(['0', '12', '0', '12'])
  expect(ticksOf(viewAround('month', AUTUMN))).toEqual([])
})

test('what snaps does so to what the clock shows', () => {
  expect(snapped(at('2026-10-25T09:40+01:00'), 6 * HOUR, Math.round)).toBe(at('2026-10-25T12:00+01:00'))
  expect(snapped(at('2026-10-25T03:40+01:00'), 6 * HOUR, Math.floor)).toBe(at('2026-10-25T00:00+02:00'))
  expect(snapped(at('2026-03-29T01:40+01:00'), 6 * HOUR, Math.ceil)).toBe(at('2026-03-29T06:00+02:00'))
  expect(snapped(at('2026-10-25T02:20+01:00'), HOUR, Math.floor)).toBe(at('2026-10-25T02:00+01:00'))
  vi.stubEnv('TZ', 'Asia/Kathmandu')
  expect(snapped(at('2026-10-25T09:40+05:45'), HOUR, Math.floor)).toBe(at('2026-10-25T09:00+05:45'))
})
