import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { rangeText, stepText, tickTexts } from './timeText'

beforeEach(() => void vi.stubEnv('TZ', 'Europe/Berlin'))
afterEach(() => vi.unstubAllEnvs())

const at = (text: string): number => Date.parse(text) / 1000

test('ticks are in the zone of the viewer, and a day is named where it begins', () => {
  expect(tickTexts([at('2026-11-14T22:00Z'), at('2026-11-14T23:00Z'), at('2026-11-15T00:30Z')], 3600)).toEqual(['23:00', 'Nov 15', '01:30'])
})

test('far ticks are days, then months, then years', () => {
  expect(tickTexts([at('2026-11-14T23:00Z')], 2 * 86_400)).toEqual(['Nov 15'])
  expect(tickTexts([at('2026-11-30T23:00Z'), at('2026-12-31T23:00Z')], 30 * 86_400)).toEqual(['Dec', '2027'])
})

test('near ticks have seconds', () => {
  expect(tickTexts([at('2026-11-15T12:00:10Z')], 10)).toEqual(['13:00:10'])
})

test('a step is told from its beginning to its end', () => {
  const noon = at('2026-11-15T11:00Z')
  expect([stepText(noon, 10), stepText(noon, 900), stepText(at('2026-11-14T23:00Z'), 86_400), stepText(at('2026-11-08T23:00Z'), 7 * 86_400)]).toEqual([
    'Nov 15, 12:00:00',
    'Nov 15, 12:00–12:15',
    'Nov 15',
    'Nov 9 – Nov 15',
  ])
})

test('a range names its days where they differ, and its years where those do', () => {
  expect(rangeText(at('2026-11-15T08:00Z'), at('2026-11-15T10:00Z'))).toBe('Nov 15, 09:00–11:00')
  expect(rangeText(at('2026-11-14T08:00Z'), at('2026-11-15T10:00Z'))).toBe('Nov 14, 09:00 – Nov 15, 11:00')
  expect(rangeText(at('2025-11-14T08:00Z'), at('2026-11-15T10:00Z'))).toBe('Nov 14, 2025 – Nov 15')
})
