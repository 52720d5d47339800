import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import type { Answer } from '../api/request'
import type { Bounds, Past, Point, Question } from '../api/history'
import { forgetHistory, HistoryFeed, join, type QueryState } from './historyFeed'

const NOW = 1_800_000_000
const STEP = 10

function past(from: number, until: number, value = 1, more: Partial<Past> = {}): Past {
  const points: Point[] = []
  for (let time = Math.ceil(from / STEP) * STEP; time < until; time += STEP) points.push([time, value, value, value])
  return { metric: 'utilization_percent', unit: 'percent', step: STEP, start: from, end: until, resolution: 'raw', series: [{ gpu: 'GPU-1', points }], ...more }
}

interface Asked {
  question: Question
  bounds: Bounds
  signal: AbortSignal | undefined
  answer: (answer: Answer<Past>) => void
}

let asked: Asked[]
let states: QueryState[]
let now: number
let isVisible: boolean
let comeIntoSight: () => void

beforeEach(() => {
  vi.useFakeTimers()
  forgetHistory()
  asked = []
  states = []
  now = NOW
  isVisible = true
})
afterEach(() => void vi.useRealTimers())

function feed(): HistoryFeed {
  return new HistoryFeed({ gpu: 'GPU-1', metric: 'utilization_percent' }, (each) => states.push(each), {
    read: (question, bounds, signal) => new Promise((answer) => void asked.push({ question, bounds, signal, answer })),
    now: () => now,
    isVisible: () => isVisible,
    onVisible: (listener) => {
      comeIntoSight = listener
      return () => (comeIntoSight = () => {})
    },
  })
}

async function answer(at: number, given: Answer<Past>): Promise<void> {
  asked[at]?.answer(given)
  await vi.advanceTimersByTimeAsync(0)
}

async function pass(seconds: number): Promise<void> {
  now += seconds
  await vi.advanceTimersByTimeAsync(seconds * 1000)
}

const LIVE = { seconds: 3600, end: null }

test('an answer is states, and until then that it is under way', async () => {
  feed().show(LIVE)
  expect(states.at(-1)).toEqual({ past: null, refused: null, isLoading: true })
  expect(asked[0]?.bounds).toEqual({ start: NOW - 3600, end: NOW })
  await answer(0, { done: past(NOW - 3600, NOW) })
  expect(states.at(-1)).toMatchObject({ refused: null, isLoading: false })
  expect(states.at(-1)?.past?.series[0]?.points).toHaveLength(360)
})

test('another range calls off what is under way, and a late answer changes nothing', async () => {
  const one = feed()
  one.show(LIVE)
  one.show({ seconds: 7200, end: null })
  expect(asked[0]?.signal?.aborted).toBe(true)
  await answer(0, { done: past(NOW - 3600, NOW, 99) })
  expect(states.at(-1)?.past).toBeNull()
})

test('a live range is renewed at its right end only', async () => {
  feed().show(LIVE)
  await answer(0, { done: past(NOW - 3600, NOW) })
  await pass(STEP)
  expect(asked).toHaveLength(2)
  expect(asked[1]?.bounds).toEqual({ start: NOW - 3 * STEP, end: NOW + STEP })
  expect(asked[1]?.question.points).toBe(4)
  await answer(1, { done: past(NOW - 3 * STEP, NOW + STEP, 7) })
  const points = states.at(-1)?.past?.series[0]?.points ?? []
  expect(points).toHaveLength(360)
  expect(points.slice(-5).map(([, mean]) => mean)).toEqual([1, 7, 7, 7, 7])
})

test('nothing is asked while nobody looks, and at once when somebody does again', async () => {
  feed().show(LIVE)
  await answer(0, { done: past(NOW - 3600, NOW) })
  isVisible = false
  await pass(300)
  expect(asked).toHaveLength(1)
  isVisible = true
  comeIntoSight()
  expect(asked).toHaveLength(2)
})

test('a range that is over is asked once, and not again when it is seen again', async () => {
  const one = feed()
  const over = { seconds: 600, end: NOW - 3600 }
  one.show(over)
  await answer(0, { done: past(NOW - 4200, NOW - 3600) })
  await pass(600)
  expect(asked).toHaveLength(1)
  one.show(LIVE)
  one.show(over)
  expect(asked).toHaveLength(2)
  expect(states.at(-1)).toMatchObject({ isLoading: false })
  expect(states.at(-1)?.past?.end).toBe(NOW - 3600)
})

test('a hub that does not answer is asked again, and what is known stays', async () => {
  feed().show(LIVE)
  await answer(0, { done: past(NOW - 3600, NOW) })
  await pass(STEP)
  await answer(1, { refused: { status: null, message: '' } })
  expect(states.at(-1)).toMatchObject({ refused: { status: null }, isLoading: false })
  expect(states.at(-1)?.past).not.toBeNull()
  await pass(5)
  expect(asked).toHaveLength(3)
})

test('a hub that is busy is asked when it says so', async () => {
  feed().show(LIVE)
  await answer(0, { refused: { status: 503, message: 'too many', retryAfter: 30 } })
  await pass(29)
  expect(asked).toHaveLength(1)
  await pass(1)
  expect(asked).toHaveLength(2)
})

test('a question that has no answer is not asked again', async () => {
  feed().show(LIVE)
  await answer(0, { refused: { status: 404, message: 'no such GPU' } })
  await pass(600)
  expect(asked).toHaveLength(1)
})

test('a feed that is stopped asks nothing more', async () => {
  const one = feed()
  one.show(LIVE)
  await answer(0, { done: past(NOW - 3600, NOW) })
  one.stop()
  await pass(600)
  expect(asked).toHaveLength(1)
})

test('an end with other steps is no end: everything is asked anew', async () => {
  feed().show(LIVE)
  await answer(0, { done: past(NOW - 3600, NOW) })
  await pass(STEP)
  await answer(1, { done: past(NOW - 30, NOW, 1, { step: 60 }) })
  expect(asked).toHaveLength(3)
  expect(asked[2]?.bounds.start).toBe(NOW + STEP - 3600)
})

test('somebody who came since joins with their own line, and who left long ago goes', () => {
  const old = { ...past(NOW - 100, NOW), series: [{ user: 'gone', points: [[NOW - 100, 1, 1, 1]] as Point[] }, { user: 'stays', points: [[NOW - 10, 1, 1, 1]] as Point[] }] }
  const end = { ...past(NOW - 10, NOW + 10), series: [{ user: 'stays', points: [[NOW, 2, 2, 2]] as Point[] }, { user: 'new', points: [[NOW, 3, 3, 3]] as Point[] }] }
  expect(join(old, end, NOW - 80)?.series.map(({ user }) => user)).toEqual(['stays', 'new'])
})
