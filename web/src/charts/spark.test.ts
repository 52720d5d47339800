import { expect, test } from 'vitest'
import type { Point } from '../api/history'
import { sparkPath } from './spark'

const points = (...values: [number, number | null][]): Point[] => values.map(([time, mean]): Point => [time, mean, null, null])

test('a line goes from edge to edge, the highest value at the top', () => {
  expect(sparkPath(points([0, 0], [10, 50], [20, 100]), 10, 20, 12).line).toBe('M0 11L10 6L20 1')
})

test('a gap stays a gap', () => {
  expect(sparkPath(points([0, 1], [10, 1], [40, 1], [50, 1]), 10, 50, 12).line.match(/M/g)).toHaveLength(2)
  expect(sparkPath(points([0, 1], [10, null], [20, 1]), 10, 20, 12).line.match(/M/g)).toHaveLength(2)
})

test('a lone point is a short dash, and nothing is nothing', () => {
  expect(sparkPath(points([0, 1]), 10, 20, 12).line).toMatch(/^M0 1h1$/)
  expect(sparkPath([], 10, 20, 12)).toEqual({ line: '', area: '' })
})

test('with an upper edge of its own it is never drawn beyond it', () => {
  expect(sparkPath(points([0, 50], [10, 200]), 10, 10, 12, 100).line).toBe('M0 6L10 1')
})
