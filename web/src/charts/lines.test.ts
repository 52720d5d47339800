import { expect, test } from 'vitest'
import type { Past, PastSeries } from '../api/history'
import { cadence, gpuLines, lineOf, userLines } from './lines'
import { userColour } from '../ui/colours'
import type { Point } from '../api/history'

const points = (...times: number[]): Point[] => times.map((time): Point => [time, 1, 1, 1])
const past = (series: PastSeries[]): Past => ({ metric: 'm', unit: 'bytes', step: 10, start: 0, end: 100, resolution: 'raw', series })

test('an answer without a series is no line', () => {
  expect(lineOf(null, 'a')).toEqual([])
  expect(lineOf(past([]), 'a')).toEqual([])
})

test('a line takes its step from the answer', () => {
  expect(lineOf(past([{ gpu: 'x', points: points(0) }]), 'Power', { kind: 'limit' })).toEqual([{ key: 'Power', label: 'Power', points: points(0), step: 10, kind: 'limit' }])
})

test('points that were taken rarely stand for longer than a step', () => {
  expect(cadence(points(0, 20, 40), 10)).toBe(20)
  expect(cadence(points(0, 10, 40), 10)).toBe(10)
})

test('two points far apart are no line', () => {
  expect(cadence(points(0, 5000), 10)).toBe(10)
  expect(cadence(points(0, 5000, 10_000), 10)).toBe(10)
})

test('who is not known lies on top of the pile, in the colour of the unknown', () => {
  const lines = userLines(past([{ gpu: 'x', points: points(0, 10) }, { gpu: 'x', user: 'alice', points: points(0) }]))
  expect(lines.map(({ label }) => label)).toEqual(['alice', 'unknown user'])
  expect(lines[1]?.colour).toBe('var(--unknown)')
})

test('people on a chart have the colours that they have on the page', () => {
  const lines = userLines(past(['amara', 'bob'].map((user) => ({ gpu: 'x', user, points: points(0) }))))
  expect(lines.map(({ colour }) => colour)).toEqual([userColour('amara'), userColour('bob')])
})

test('a person who is called as the rest is somebody else', () => {
  expect(userLines(past([{ gpu: 'x', user: 'rest', points: points(0) }]))[0]?.key).toBe('user rest')
})

test('GPUs stand in the order of their numbers', () => {
  const lines = gpuLines(past(['10', '9', '1.2'].map((label) => ({ gpu: `GPU-${label}`, label, points: points(0) }))))
  expect(lines.map(({ label }) => label)).toEqual(['GPU 1.2', 'GPU 9', 'GPU 10'])
})
