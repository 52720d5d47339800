import { expect, test } from 'vitest'
import { bandsAt, bandsOf, lanesOf } from './bands'
import type { Point } from '../api/history'

const flags = (...values: [number, number | null][]): { points: Point[]; step: number; label: string } => ({
  points: values.map(([time, share]): Point => [time, share, null, null]),
  step: 10,
  label: 'thermal throttling',
})

test('neighbouring steps are one band, and a step without it ends the band', () => {
  expect(bandsOf(flags([0, 1], [10, 0.2], [20, 0], [30, 1])).map(({ start, end }) => [start, end])).toEqual([[0, 20], [30, 40]])
})

test('a gap ends a band: nobody knows what was there', () => {
  expect(bandsOf(flags([0, 1], [30, 1], [40, null])).map(({ start, end }) => [start, end])).toEqual([[0, 10], [30, 40]])
})

test('a state counts where it took most of the step', () => {
  expect(bandsOf(flags([0, 0.4], [10, 0.6]), 0.5).map(({ start }) => start)).toEqual([10])
})

test('each kind of band has one lane', () => {
  const bands = [...bandsOf(flags([0, 1], [30, 1])), ...bandsOf({ ...flags([0, 1]), label: 'other' })]
  expect(lanesOf(bands).map(({ label }) => label)).toEqual(['thermal throttling', 'other'])
})

test('what was so at a time is found, its end not included', () => {
  const bands = bandsOf(flags([0, 1]))
  expect([bandsAt(bands, 0).length, bandsAt(bands, 9).length, bandsAt(bands, 10).length]).toEqual([1, 1, 0])
})
