import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { Glances, GLANCE_SECONDS } from './glances.svelte'

let answers: (number | null)[]
let glances: Glances

beforeEach(() => {
  vi.useFakeTimers()
  answers = []
  glances = new Glances(() => {
    const free = answers.shift() ?? null
    return Promise.resolve(free === null ? null : { free })
  })
})

afterEach(() => {
  glances.stop()
  vi.useRealTimers()
})

const minute = () => vi.advanceTimersByTimeAsync(GLANCE_SECONDS * 1000)

it('begins with what was known, and asks once a minute', async () => {
  answers = [7, 9]
  glances.start(5)
  const seen = [glances.free]
  for (let time = 0; time < 2; time++) {
    await minute()
    seen.push(glances.free)
  }
  expect(seen).toEqual([5, 7, 9])
})

it('says nothing while the hub does not answer', async () => {
  answers = [null, 4]
  glances.start(5)
  await minute()
  expect(glances.free).toBeNull()
  await minute()
  expect(glances.free).toBe(4)
})

it('asks no more when it is stopped, and takes no late answer', async () => {
  answers = [7]
  let late = (_: { free: number }): void => {}
  const slow = new Glances(() => new Promise((resolve) => (late = resolve)))
  slow.start(5)
  await minute()
  slow.stop()
  late({ free: 9 })
  await minute()
  expect(slow.free).toBe(5)
})
