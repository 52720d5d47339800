import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { dayTitle, readView, stepView, viewAround, viewParams, viewTitle } from './views'

const at = (text: string): number => Date.parse(text) / 1000
const HOUR = 3600
const NOW = at('2026-11-15T12:00+01:00')
const read = (query: string) => readView(new URLSearchParams(query), NOW)

beforeEach(() => void vi.stubEnv('TZ', 'Europe/Berlin'))
afterEach(() => vi.unstubAllEnvs())

test('seven days from today on, unless the address says otherwise', () => {
  expect(read('')).toEqual({ name: 'week', start: at('2026-11-15T00:00+01:00'), end: at('2026-11-22T00:00+01:00'), days: 7 })
  expect(read('view=nonsense&day=2026-02-31').start).toBe(read('').start)
  expect(read('view=day&day=2026-12-24')).toMatchObject({ start: at('2026-12-24T00:00+01:00'), days: 1 })
  expect(read('view=month&day=2026-12-24')).toMatchObject({ start: at('2026-12-01T00:00+01:00'), days: 31 })
})

test('a day of 23 hours and one of 25 are days', () => {
  const spring = viewAround('day', at('2026-03-29T12:00+02:00'))
  const autumn = viewAround('day', at('2026-10-25T12:00+01:00'))
  expect((spring.end - spring.start) / HOUR).toBe(23)
  expect((autumn.end - autumn.start) / HOUR).toBe(25)
  expect(stepView(stepView(spring, 1), -1)).toEqual(spring)
  expect(stepView(autumn, -1).start).toBe(at('2026-10-24T00:00+02:00'))
})

test.each(['day', 'week', 'month'] as const)('a %s forth and one back is where it began', (name) => {
  const here = viewAround(name, NOW)
  expect(stepView(here, 1).start).toBe(here.end)
  expect(stepView(stepView(here, 1), -1)).toEqual(here)
})

test('an address of now needs no day', () => {
  expect(viewParams(viewAround('week', NOW), NOW)).toEqual({ view: '', day: '' })
  expect(viewParams(viewAround('month', NOW), NOW)).toEqual({ view: 'month', day: '' })
  expect(viewParams(stepView(viewAround('week', NOW), 1), NOW)).toEqual({ view: '', day: '2026-11-22' })
})

test('titles', () => {
  expect(viewTitle(viewAround('day', NOW))).toBe('Sunday, Nov 15, 2026')
  expect(viewTitle(viewAround('week', NOW))).toBe('Nov 15 – 21, 2026')
  expect(viewTitle(viewAround('week', at('2026-12-30T12:00Z')))).toBe('Dec 30 2026 – Jan 5, 2027')
  expect(viewTitle(viewAround('month', NOW))).toBe('Nov 2026')
  expect(dayTitle(new Date(NOW * 1000), 'week')).toEqual(['Sun 15', ''])
  expect(dayTitle(new Date(NOW * 1000), 'month')).toEqual(['15', 'Su'])
})
