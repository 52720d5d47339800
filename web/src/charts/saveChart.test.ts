import { expect, test } from 'vitest'
import { legendRows, pointRows } from './saveChart'
import { align, type Line } from './series'

const line = (changes: Partial<Line>): Line => ({ key: 'a', label: 'GPU 0', points: [], step: 60, ...changes })

test('each point in sight is a row, and a gap is empty, never zero', () => {
  const lines = [line({ points: [[0, 1, 0, 2], [60, 2, 1, 3], [120, 3, 2, 4]] }), line({ key: 'b', label: '=evil', hasSpread: true, points: [[120, 0, 0, 5]] })]
  expect(pointRows(align(lines), lines, 'percent', { start: 60, end: 600 })).toEqual([
    ['time_utc', 'GPU 0 (percent)', '=evil (percent)', '=evil min (percent)', '=evil max (percent)'],
    ['1970-01-01T00:01:00Z', 2, null, null, null],
    ['1970-01-01T00:02:00Z', 3, 0, 0, 5],
  ])
})

test('a legend goes on in the next line', () => {
  const legend = ['one', 'two', 'three'].map((label) => ({ label, colour: 'red' }))
  expect(legendRows(legend, 100, () => 20).map((row) => row.map(({ label, left }) => [label, left]))).toEqual([[['one', 0], ['two', 50]], [['three', 0]]])
  expect(legendRows([], 100, () => 20)).toEqual([])
})
