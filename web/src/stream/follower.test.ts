import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { fleet, totals } from '../samples'
import { Follower, type ReadFleet } from './follower'

const seen: string[] = []
let answers: ((text: string) => void)[]
let follower: Follower

const readFleet: ReadFleet = () => new Promise((resolve) => answers.push((text) => resolve({ text })))
const whole = (time: number) => JSON.stringify(fleet([], { time }))
const snapshot = (id: string, time: number) => follower.take({ kind: 'snapshot', id, text: whole(time) })
const delta = (id: string, time: number) => follower.take({ kind: 'delta', id, text: JSON.stringify({ time, totals: totals() }) })

async function answer(text: string): Promise<void> {
  answers.shift()?.(text)
  await vi.waitFor(() => undefined)
}

beforeEach(() => {
  vi.spyOn(console, 'warn').mockImplementation(() => {})
  seen.length = 0
  answers = []
  follower = new Follower(
    {
      snapshot: ({ time }) => seen.push(`snapshot ${time}`),
      delta: ({ time }) => seen.push(`delta ${time}`),
      trouble: (trouble) => seen.push(trouble),
    },
    readFleet,
  )
})

afterEach(() => {
  vi.restoreAllMocks()
})

describe('from the beginning', () => {
  it('hands over snapshots and deltas in order', () => {
    snapshot('a-1', 1)
    delta('a-2', 2)
    expect(seen).toEqual(['snapshot 1', 'delta 2'])
    expect(answers).toEqual([])
  })

  it('takes an event once', () => {
    snapshot('a-1', 1)
    delta('a-2', 2)
    delta('a-2', 2)
    delta('a-1', 1)
    expect(seen).toEqual(['snapshot 1', 'delta 2'])
  })

  it('takes events without a number as they come', () => {
    snapshot('', 1)
    delta('', 2)
    delta('', 3)
    expect(seen).toEqual(['snapshot 1', 'delta 2', 'delta 3'])
  })
})

describe('in the middle', () => {
  it('asks for the whole fleet once, and goes on from there', async () => {
    delta('a-7', 7)
    delta('a-8', 8)
    expect(answers).toHaveLength(1)
    await answer(whole(7))
    delta('a-9', 9)
    expect(seen).toEqual(['snapshot 7', 'delta 8', 'delta 9'])
  })

  it('asks before the first delta where it knows that others have the stream', async () => {
    void follower.catchUp()
    await answer(whole(7))
    delta('a-8', 8)
    expect(seen).toEqual(['snapshot 7', 'delta 8'])
  })

  it('leaves an answer that is older than a snapshot', async () => {
    void follower.catchUp()
    snapshot('b-1', 9)
    await answer(whole(7))
    delta('b-2', 10)
    expect(seen).toEqual(['snapshot 9', 'delta 10'])
  })
})

describe('what was missed', () => {
  beforeEach(() => snapshot('a-1', 1))

  it.each([['a-3', 'a-4'], ['b-2', 'b-3']])('is asked for as a whole (%s)', async (first, second) => {
    delta(first, 3)
    expect(seen).toEqual(['snapshot 1'])
    await answer(whole(3))
    delta(second, 4)
    expect(seen).toEqual(['snapshot 1', 'snapshot 3', 'delta 4'])
  })

  it('is asked for again where more was missed meanwhile', async () => {
    delta('a-3', 3)
    delta('a-9', 9)
    await answer(whole(3))
    expect(seen).toEqual(['snapshot 1'])
    await answer(whole(9))
    delta('a-10', 10)
    expect(seen).toEqual(['snapshot 1', 'snapshot 9', 'delta 10'])
  })

  it('is asked for after an event that cannot be read', async () => {
    follower.take({ kind: 'delta', id: 'a-2', text: '{"time":' })
    await answer(whole(2))
    delta('a-3', 3)
    expect(seen).toEqual(['snapshot 1', 'snapshot 2', 'delta 3'])
  })

  it('is asked for again with the next delta where the answer is no fleet', async () => {
    delta('a-3', 3)
    await answer('<html>')
    delta('a-4', 4)
    await answer(whole(4))
    expect(seen).toEqual(['snapshot 1', 'failing', 'snapshot 4'])
  })
})
