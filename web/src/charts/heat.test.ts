import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { cellAt, heatOf, heatTicks, mostOf, ROW_PX, rowsInSight, shadeOf, SHADES, stepCell } from './heat'
import type { Line } from './series'

beforeEach(() => void vi.stubEnv('TZ', 'Europe/Berlin'))
afterEach(() => vi.unstubAllEnvs())

const HOUR = 3600

test('shades go from nothing to the most', () => {
  expect([shadeOf(0, 100), shadeOf(100, 100), shadeOf(250, 100), shadeOf(-1, 100)]).toEqual([0, SHADES - 1, SHADES - 1, 0])
})

test('a share is measured against the whole, anything else against the highest', () => {
  expect(mostOf([{ values: [20, null] }], 'percent')).toBe(100)
  expect(mostOf([{ values: [20, null] }, { values: [35] }], 'watts')).toBe(35)
  expect(mostOf([{ values: [null] }], 'watts')).toBe(1)
})

test('of a thousand rows only those in sight are drawn', () => {
  const { from, until } = rowsInSight(500 * ROW_PX, 480, 1000)
  expect(from).toBe(499)
  expect(until).toBeLessThanOrEqual(533)
})

test('a pointer means the cell under it, and outside of the map none', () => {
  expect(cellAt(50, ROW_PX + 1, 100, 10, 4)).toEqual({ row: 1, column: 5 })
  expect([cellAt(-1, 0, 100, 10, 4), cellAt(100, 0, 100, 10, 4), cellAt(0, 4 * ROW_PX, 100, 10, 4)]).toEqual([null, null, null])
})

test('keys begin at the newest cell and stop at the edges', () => {
  expect(stepCell(null, 'ArrowRight', 10, 4)).toEqual({ row: 0, column: 9 })
  expect(stepCell({ row: 0, column: 9 }, 'ArrowRight', 10, 4)).toEqual({ row: 0, column: 9 })
  expect(stepCell({ row: 0, column: 9 }, 'PageDown', 10, 4)).toEqual({ row: 3, column: 9 })
  expect(stepCell({ row: 2, column: 5 }, 'Home', 10, 4)).toEqual({ row: 2, column: 0 })
  expect(stepCell(null, 'x', 10, 4)).toBeNull()
})

test('times below the map are round where the viewer lives', () => {
  const start = Date.parse('2026-11-14T20:00Z') / 1000
  const times = Array.from({ length: 48 }, (_, at) => start + at * HOUR)
  expect(heatTicks(times, HOUR, 480).map(({ text }) => text)).toEqual(['Nov 15', '12:00', 'Nov 16', '12:00'])
})

test('a time that the edge would cut is left out', () => {
  const midnight = Date.UTC(2026, 10, 14, 23) / 1000
  const times = Array.from({ length: 25 }, (_, hour) => midnight + hour * HOUR)
  expect(heatTicks(times, HOUR, 250).map(({ text }) => text)).toEqual(['Nov 15', '12:00'])
})

test('lines become rows over the same steps, and what is missing stays unknown', () => {
  const lines: Line[] = [{ key: 'GPU-1', label: 'GPU 0', step: 10, points: [[20, 50, null, null]] }]
  expect(heatOf(lines, 'percent', { start: 15, end: 35 })).toEqual({ metric: '', unit: 'percent', step: 10, times: [10, 20, 30], rows: [{ host: 'GPU-1', name: 'GPU 0', values: [null, 50, null] }] })
})
