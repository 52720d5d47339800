import { expect, test } from 'vitest'
import { align, type Line } from './series'
import { tableOf } from './table'

const line = (count: number): Line => ({ key: 'a', label: 'a', step: 10, points: Array.from({ length: count }, (_, at) => [at * 10, at % 2 === 0 ? 10 : 30, null, null] as const) })

test('a table has a few rows, each the mean over its part', () => {
  const rows = tableOf(align([line(100)]), [line(100)], 'percent', 10)
  expect(rows).toHaveLength(10)
  expect(rows[0]).toEqual({ time: 0, cells: ['20 %'] })
})

test('a row in which nothing is known is left out', () => {
  const gap: Line = { ...line(1), points: [[0, 5, null, null], [100, 5, null, null]] }
  expect(tableOf(align([gap]), [gap], 'percent', 100).map(({ time }) => time)).toEqual([0, 100])
})
