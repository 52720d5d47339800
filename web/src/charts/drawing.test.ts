import { expect, test } from 'vitest'
import { draw, shapeOf } from './drawing'
import type { Line } from './series'

const flat = (key: string, value: number, more: Partial<Line> = {}): Line => ({ key, label: key, step: 10, points: [[0, value, value - 1, value + 1]], ...more })

test('a line with a spread is drawn over the field between its extremes', () => {
  const { tracks, columns, fills } = draw([flat('a', 5, { hasSpread: true })], false)
  expect(tracks.map(({ part }) => part)).toEqual(['high', 'low', 'mean'])
  expect(columns).toEqual([[6], [4], [5]])
  expect(fills).toEqual([{ upper: 0, lower: 1, line: 0, isSpread: true }])
})

test('areas lie on each other, and lines lie over them all', () => {
  const { tracks, columns, fills } = draw([flat('a', 1), flat('b', 2), flat('sum', 4, { kind: 'line' })], true)
  expect(tracks.map(({ line }) => line)).toEqual([1, 0, 2])
  expect(columns).toEqual([[3], [1], [4]])
  expect(fills).toEqual([{ upper: 0, lower: 1, line: 1, isSpread: false }])
})

test('a readout tells a part by itself, not the height at which it lies', () => {
  expect(draw([flat('a', 1), flat('b', 2)], true).values.means).toEqual([[1], [2]])
})

test('a limit is no part of the pile', () => {
  expect(draw([flat('a', 1), flat('limit', 9, { kind: 'limit' })], true).columns).toEqual([[1], [9]])
})

test('new figures keep the shape; other lines change it', () => {
  expect(shapeOf([flat('a', 1)], false, 'percent')).toBe(shapeOf([flat('a', 2)], false, 'percent'))
  expect(shapeOf([flat('a', 1)], false, 'percent')).not.toBe(shapeOf([flat('b', 1)], false, 'percent'))
  expect(shapeOf([flat('a', 1)], false, 'percent')).not.toBe(shapeOf([flat('a', 1)], true, 'percent'))
})
