import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { Delta, Snapshot } from '../api/types'
import { fleet, totals } from '../testing/samples'
import { Follower, RENEW_SECONDS, type ReadSnapshot } from './follower'

const seen: string[] = []
let answers: ((answer: Awaited<ReturnType<ReadSnapshot>>) => void)[]
let follower: Follower<Snapshot, Delta>
let fits = true

const readSnapshot: ReadSnapshot = () => new Promise((resolve) => answers.push(resolve))
const whole = (time: number) => JSON.stringify(fleet([], { time }))
const snapshot = (id: string, time: number) => follower.take({ kind: 'snapshot', id, text: whole(time) })
const delta = (id: string, time: number) => follower.take({ kind: 'delta', id, text: JSON.stringify({ time, totals: totals() }) })

async function answer(id: string, text: string): Promise<void> {
  answers.shift()?.({ kind: 'snapshot', id, text })
  await vi.waitFor(() => undefined)
}

beforeEach(() => {
  vi.spyOn(console, 'warn').mockImplementation(() => {})
  seen.length = 0
  answers = []
  fits = true
  follower = new Follower(
    {
      snapshot: ({ time }) => seen.push(`snapshot ${time}`),
      delta: ({ time }) => {
        seen.push(`delta ${time}`)
        return fits
      },
      error: (error) => seen.push(error),
    },
    readSnapshot,
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
  it('asks for a snapshot once, and goes on from there', async () => {
    delta('a-7', 7)
    delta('a-8', 8)
    expect(answers).toHaveLength(1)
    await answer('a-7', whole(7))
    delta('a-9', 9)
    expect(seen).toEqual(['snapshot 7', 'delta 8', 'delta 9'])
  })

  it('asks before the first delta where it knows that others have the stream', async () => {
    void follower.catchUp()
    await answer('a-7', whole(7))
    delta('a-8', 8)
    expect(seen).toEqual(['snapshot 7', 'delta 8'])
  })

  it('leaves an answer that is older than a snapshot', async () => {
    void follower.catchUp()
    snapshot('b-1', 9)
    await answer('a-7', whole(7))
    delta('b-2', 10)
    expect(seen).toEqual(['snapshot 9', 'delta 10'])
  })
})

describe('what was missed', () => {
  beforeEach(() => snapshot('a-1', 1))

  it.each([['a-3', 'a-4'], ['b-2', 'b-3']])('is asked for as a whole (%s)', async (first, second) => {
    delta(first, 3)
    expect(seen).toEqual(['snapshot 1'])
    await answer(first, whole(3))
    delta(second, 4)
    expect(seen).toEqual(['snapshot 1', 'snapshot 3', 'delta 4'])
  })

  it('is asked for again where more was missed meanwhile', async () => {
    delta('a-3', 3)
    delta('a-9', 9)
    await answer('a-3', whole(3))
    expect(seen).toEqual(['snapshot 1'])
    await answer('a-9', whole(9))
    delta('a-10', 10)
    expect(seen).toEqual(['snapshot 1', 'snapshot 9', 'delta 10'])
  })

  it('is asked for after an event that cannot be read', async () => {
    follower.take({ kind: 'delta', id: 'a-2', text: '{"time":' })
    await answer('a-2', whole(2))
    delta('a-3', 3)
    expect(seen).toEqual(['snapshot 1', 'snapshot 2', 'delta 3'])
  })

  it('is asked for again with the next delta where the answer is no fleet', async () => {
    delta('a-3', 3)
    await answer('a-3', '<html>')
    delta('a-4', 4)
    await answer('a-4', whole(4))
    expect(seen).toEqual(['snapshot 1', 'failing', 'snapshot 4'])
  })

  it('is asked for again where the answer is older than what waits for it', async () => {
    delta('a-5', 5)
    await answer('a-3', whole(3))
    expect(seen).toEqual(['snapshot 1', 'snapshot 3'])
    await answer('a-5', whole(5))
    expect(seen).toEqual(['snapshot 1', 'snapshot 3', 'snapshot 5'])
  })

  it('is asked for again with the next delta where nothing answered, and nothing waits meanwhile', async () => {
    delta('a-3', 3)
    answers.shift()?.({ error: 'unreachable' })
    await vi.waitFor(() => expect(seen).toEqual(['snapshot 1', 'unreachable']))
    delta('a-4', 4)
    await answer('a-4', whole(4))
    expect(seen).toEqual(['snapshot 1', 'unreachable', 'snapshot 4'])
  })
})

describe('a delta that does not fit', () => {
  beforeEach(() => {
    vi.useFakeTimers({ toFake: ['Date'] })
    snapshot('a-1', 1)
    fits = false
  })

  afterEach(() => {
    vi.useRealTimers()
  })

  it('makes it ask for a snapshot, and go on from there', async () => {
    delta('a-2', 2)
    fits = true
    delta('a-3', 3)
    expect(answers).toHaveLength(1)
    await answer('a-2', whole(2))
    expect(seen).toEqual(['snapshot 1', 'delta 2', 'snapshot 2', 'delta 3'])
  })

  it('makes it ask now and then only, where none fits', async () => {
    delta('a-2', 2)
    await answer('a-2', whole(2))
    delta('a-3', 3)
    delta('a-4', 4)
    expect(answers).toEqual([])
    vi.setSystemTime(Date.now() + RENEW_SECONDS * 1000)
    delta('a-5', 5)
    expect(answers).toHaveLength(1)
    expect(seen).toEqual(['snapshot 1', 'delta 2', 'snapshot 2', 'delta 3', 'delta 4', 'delta 5'])
  })
})
