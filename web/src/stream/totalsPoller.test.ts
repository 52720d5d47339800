import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { TotalsPoller, POLL_SECONDS } from './totalsPoller.svelte'

let answers: (number | null)[]
let poller: TotalsPoller

beforeEach(() => {
  vi.useFakeTimers()
  answers = []
  poller = new TotalsPoller(() => {
    const free = answers.shift() ?? null
    return Promise.resolve(free === null ? null : { free })
  })
})

afterEach(() => {
  poller.stop()
  vi.useRealTimers()
})

const minute = () => vi.advanceTimersByTimeAsync(POLL_SECONDS * 1000)

it('begins with what was known, and asks once a minute', async () => {
  answers = [7, 9]
  poller.start(5)
  const seen = [poller.free]
  for (let time = 0; time < 2; time++) {
    await minute()
    seen.push(poller.free)
  }
  expect(seen).toEqual([5, 7, 9])
})

it('says nothing while the hub does not answer', async () => {
  answers = [null, 4]
  poller.start(5)
  await minute()
  expect(poller.free).toBeNull()
  await minute()
  expect(poller.free).toBe(4)
})

it('asks no more when it is stopped, and takes no late answer', async () => {
  answers = [7]
  let late = (_: { free: number }): void => {}
  const slow = new TotalsPoller(() => new Promise((resolve) => (late = resolve)))
  slow.start(5)
  await minute()
  slow.stop()
  late({ free: 9 })
  await minute()
  expect(slow.free).toBe(5)
})
