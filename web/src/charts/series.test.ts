import { expect, test } from 'vitest'
import { align, constantLine, gatherSmall, lastKnown, lonePlaces, stack, valueAt, type Line } from './series'
import type { Point } from '../api/history'

function line(key: string, step: number, ...values: [number, number | null][]): Line {
  return { key, label: key, step, points: values.map(([time, mean]): Point => [time, mean, mean === null ? null : mean - 1, mean === null ? null : mean + 1]) }
}

test('points of one line become columns of mean, low and high', () => {
  const aligned = align([line('a', 10, [10, 5], [20, 6])])
  expect(aligned).toEqual({ times: [10, 20], means: [[5, 6]], lows: [[4, 5]], highs: [[6, 7]] })
})

test('a time that nobody observed stays a gap and is never a zero', () => {
  const { times, means } = align([line('a', 10, [10, 5], [20, 6], [60, 7])])
  expect(times).toEqual([10, 20, 30, 60])
  expect(means[0]).toEqual([5, 6, null, 7])
})

test('a point without a value ends the line as a gap does', () => {
  expect(align([line('a', 10, [10, 5], [20, null], [30, 7])]).means[0]).toEqual([5, null, 7])
})

test('a line goes on over the finer steps of another one', () => {
  const { times, means } = align([line('fine', 10, [0, 1], [10, 2], [20, 3]), line('coarse', 20, [0, 9], [20, 8])])
  expect(times).toEqual([0, 10, 20])
  expect(means[1]).toEqual([9, undefined, 8])
})

test('a gap of one line does not cut the others', () => {
  const { means } = align([line('a', 10, [0, 1], [30, 1]), line('b', 10, [0, 2], [10, 2], [20, 2], [30, 2])])
  expect(means[0]).toEqual([1, null, null, 1])
  expect(means[1]).toEqual([2, 2, 2, 2])
})

test('no lines make no columns', () => {
  expect(align([])).toEqual({ times: [], means: [], lows: [], highs: [] })
})

test('a pile lies on what is below it, and who is absent adds nothing', () => {
  expect(stack([[1, null, 3], [10, 10, null]])).toEqual([[1, 0, 3], [11, 10, 3]])
})

test('a pile has a gap where nobody looked', () => {
  expect(stack([[1, null], [2, null]])).toEqual([[1, null], [3, null]])
})

test('a pile is empty, not a gap, where something else was observed', () => {
  expect(stack([[1, null]], [[5, 5]])).toEqual([[1, 0]])
})

test('a pile holds a coarser value until the next one', () => {
  expect(stack([[4, undefined, 4], [1, 2, 3]])).toEqual([[4, 4, 4], [5, 6, 7]])
})

test('points between gaps are drawn by themselves', () => {
  expect(lonePlaces([1, null, 2, 3, null, 4])).toEqual([0, 5])
  expect(lonePlaces([1, undefined, 2, null])).toEqual([])
})

test('the last known time is the last of any column', () => {
  expect(lastKnown([[1, null, null], [1, 2, null]])).toBe(1)
  expect(lastKnown([[null, null]])).toBeNull()
  expect(lastKnown([])).toBeNull()
})

test('a value within a coarser step is that of the step; in a gap there is none', () => {
  expect(valueAt([7, undefined, 8], 1)).toBe(7)
  expect(valueAt([7, null, 8], 1)).toBeNull()
})

test('the smallest lines are taken together', () => {
  const lines = [line('big', 10, [0, 9]), line('small', 10, [0, 1]), line('tiny', 10, [0, 0.5], [10, 0.5]), line('next', 10, [0, 5])]
  const gathered = gatherSmall(lines, 3, (count) => `${count} others`)
  expect(gathered.map(({ label }) => label)).toEqual(['big', 'next', '2 others'])
  expect(gathered[2]?.points).toEqual([[0, 1.5, null, null], [10, 0.5, null, null]])
})

test('as many lines as there is room for stay themselves', () => {
  expect(gatherSmall([line('a', 10, [0, 1]), line('b', 10, [0, 2])], 2, String).map(({ key }) => key)).toEqual(['b', 'a'])
})

test('a constant is one piece from end to end', () => {
  const { means } = align([constantLine('limit', 'limit', 700, 0, 100), line('a', 10, [40, 1], [50, 1])])
  expect(means[0]).toEqual([700, undefined, undefined, 700])
})
