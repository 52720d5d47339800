import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import type { Answer } from '../api/request'
import type { Host } from '../api/types'
import { entry, gpu, host, NOW } from '../testing/samples'
import { keepRead, READ_SECONDS } from './slowMetrics'

let asked: string[]
let answer: (said: Answer<Host>) => void
const page = Object.assign(new EventTarget(), { visibilityState: 'visible' })
const now = () => Date.now() / 1000
const read = (id: string) => {
  asked.push(id)
  return new Promise<Answer<Host>>((resolve) => (answer = resolve))
}
const done = (joules: number): Answer<Host> => ({ done: host('gpu01', [gpu({ energy_joules: joules })]) })

beforeEach(() => {
  vi.useFakeTimers({ now: (NOW + 60) * 1000 })
  vi.stubGlobal('document', page)
  page.visibilityState = 'visible'
  asked = []
})

afterEach(() => {
  vi.useRealTimers()
  vi.unstubAllGlobals()
})

it('reads the host at once, and again every few seconds until it is stopped', async () => {
  const shown = entry('gpu01')
  const stop = keepRead(shown, now, read)
  answer(done(5))
  await vi.advanceTimersByTimeAsync(0)
  expect(shown.host.gpus[0]?.energy_joules).toBe(5)
  expect(shown.isRead(now())).toBe(true)
  await vi.advanceTimersByTimeAsync(READ_SECONDS * 1000)
  answer(done(6))
  await vi.advanceTimersByTimeAsync(READ_SECONDS * 1000 - 1)
  expect(shown.host.gpus[0]?.energy_joules).toBe(6)
  stop()
  await vi.advanceTimersByTimeAsync(60_000)
  expect(asked).toEqual(['gpu01', 'gpu01'])
})

it('waits where it was just read', async () => {
  const shown = entry('gpu01')
  shown.readAt = now() - 1
  const stop = keepRead(shown, now, read)
  expect(asked).toEqual([])
  await vi.advanceTimersByTimeAsync(READ_SECONDS * 1000)
  expect(asked).toEqual(['gpu01'])
  stop()
})

it('asks one question at a time', async () => {
  const stop = keepRead(entry('gpu01'), now, read)
  await vi.advanceTimersByTimeAsync(60_000)
  expect(asked).toEqual(['gpu01'])
  stop()
})

it('asks nothing while nobody sees the page, and at once when somebody does', async () => {
  const shown = entry('gpu01')
  const stop = keepRead(shown, now, read)
  answer(done(5))
  page.visibilityState = 'hidden'
  await vi.advanceTimersByTimeAsync(60_000)
  expect(asked).toEqual(['gpu01'])
  page.visibilityState = 'visible'
  page.dispatchEvent(new Event('visibilitychange'))
  expect(asked).toEqual(['gpu01', 'gpu01'])
  stop()
})

it('keeps what it has where the hub does not answer, or answers too late', async () => {
  const shown = entry('gpu01')
  const stop = keepRead(shown, now, read)
  answer({ refused: { status: 503, message: '' } })
  await vi.advanceTimersByTimeAsync(READ_SECONDS * 1000)
  stop()
  answer(done(5))
  await vi.advanceTimersByTimeAsync(0)
  expect(shown.host.gpus[0]?.energy_joules).toBe(null)
  expect(shown.isRead(now())).toBe(false)
})
