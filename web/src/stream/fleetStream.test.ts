import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { fleet, totals } from '../testing/samples'
import { FleetStream, readSnapshot, TIMEOUT_SECONDS, type ConnectionError } from './fleetStream'
import { FakeBrowser } from './fakeBrowser'

const seen: string[] = []
const errors: ConnectionError[] = []
let browser: FakeBrowser
let stream: FleetStream

beforeEach(() => {
  vi.useFakeTimers()
  seen.length = errors.length = 0
  browser = new FakeBrowser()
  stream = new FleetStream(
    'api/v1/stream',
    {
      event: ({ kind, id, text }) => seen.push(`${kind} ${id} ${(JSON.parse(text) as { time: number }).time}`),
      error: (error) => errors.push(error),
    },
    browser,
  )
  stream.start()
})

afterEach(() => {
  stream.stop()
  vi.useRealTimers()
})

const snapshot = (time: number) => fleet([], { time })
const delta = (time: number) => ({ time, totals: totals() })

describe('FleetStream', () => {
  it('hands over events in order, with their numbers', () => {
    browser.last.send('snapshot', snapshot(1), 'a-1')
    browser.last.send('delta', delta(2), 'a-2')
    expect(seen).toEqual(['snapshot a-1 1', 'delta a-2 2'])
  })

  it('leaves a broken line to the browser, which knows the last event', async () => {
    browser.last.send('snapshot', snapshot(1))
    browser.last.interrupt()
    await vi.advanceTimersByTimeAsync(2000)
    expect(browser.sources).toHaveLength(1)
  })

  it('opens a new connection when the browser has given up', async () => {
    browser.last.fail()
    await vi.advanceTimersByTimeAsync(2000)
    expect(browser.sources).toHaveLength(2)
  })

  it('opens a new connection when an open one has been silent for too long', async () => {
    browser.last.send('snapshot', snapshot(1))
    await vi.advanceTimersByTimeAsync((TIMEOUT_SECONDS + 2) * 1000)
    expect(browser.sources).toHaveLength(2)
    expect(browser.sources[0]?.closed).toBe(true)
  })

  it('stays on a line that keeps talking', async () => {
    browser.last.send('snapshot', snapshot(1))
    for (let second = 0; second < 30; second++) {
      await vi.advanceTimersByTimeAsync(1000)
      browser.last.send('delta', delta(second))
    }
    expect(browser.sources).toHaveLength(1)
  })

  it('waits longer after each failure, up to a limit', async () => {
    for (let failure = 0; failure < 8; failure++) {
      browser.last.fail()
      await vi.advanceTimersByTimeAsync(13_000)
    }
    const before = browser.sources.length
    browser.last.fail()
    await vi.advanceTimersByTimeAsync(5_000)
    expect(browser.sources).toHaveLength(before)
    await vi.advanceTimersByTimeAsync(8_000)
    expect(browser.sources).toHaveLength(before + 1)
  })

  it('hears nothing from a connection it has left', async () => {
    const old = browser.last
    old.fail()
    await vi.advanceTimersByTimeAsync(2000)
    old.send('snapshot', snapshot(9))
    expect(seen).toEqual([])
  })

  it.each<[number | null, ConnectionError]>([
    [401, 'refused'],
    [403, 'refused'],
    [404, 'not-found'],
    [502, 'failing'],
    [null, 'unreachable'],
  ])('finds out what an answer of %s means', async (status, error) => {
    browser.status = status
    browser.last.fail()
    await vi.advanceTimersByTimeAsync(0)
    expect(errors).toEqual([error])
  })

  it('is quiet after stop', async () => {
    stream.stop()
    await vi.advanceTimersByTimeAsync(60_000)
    expect(browser.sources).toHaveLength(1)
    expect(browser.last.closed).toBe(true)
  })
})

describe('readSnapshot', () => {
  it('reads the first event of a connection of its own, and closes it', async () => {
    const answer = readSnapshot('api/v1/stream', browser)
    const own = browser.last
    own.send('snapshot', snapshot(1), 'a-1')
    expect(await answer).toMatchObject({ kind: 'snapshot', id: 'a-1' })
    expect([own.closed, browser.sources.length]).toEqual([true, 2])
  })

  it('says why there is none', async () => {
    browser.status = 401
    const answer = readSnapshot('api/v1/stream', browser)
    browser.last.fail()
    expect(await answer).toEqual({ error: 'refused' })
    await vi.advanceTimersByTimeAsync(2000)
    expect(browser.sources.filter(({ closed }) => !closed)).toHaveLength(1)
  })
})
