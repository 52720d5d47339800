import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { HubEvent } from '../api/events'
import type { PastFleet } from '../api/pastFleet'
import { busyGpu, gpu, host, NOW, snapshot } from '../testing/samples'
import { readAt, TimeMachine, writeAt, type ReadMarks, type ReadPast } from './timeMachine.svelte'

let asked: number[]
let read: ReadPast
const noMarks: ReadMarks = () => Promise.resolve({ done: { events: [] } })

function past(at: number): PastFleet {
  const fleet = snapshot([host('gpu01', [busyGpu('ann'), gpu({ uuid: 'GPU-2' })])])
  return { ...fleet, time: at, as_of: at, coverage: 0.5, resolution: 'raw' }
}

beforeEach(() => {
  vi.useFakeTimers({ now: NOW * 1000 })
  asked = []
  read = (at) => {
    asked.push(at)
    return Promise.resolve({ done: past(at) })
  }
})

afterEach(() => vi.useRealTimers())

const settled = (): Promise<unknown> => vi.advanceTimersByTimeAsync(100)

describe('a moment', () => {
  it('is drawn like the live fleet, with its own clock', async () => {
    const machine = new TimeMachine(() => NOW, () => 1, read, noMarks)
    machine.go(NOW - 7200)
    await settled()
    expect(machine.shown).toEqual({ as_of: NOW - 7200, coverage: 0.5, resolution: 'raw' })
    expect(machine.store.hubNow).toBeCloseTo(NOW - 7200, 0)
    expect(machine.store.link.phase).toBe('live')
    expect(machine.store.placed.map(({ entry }) => entry.host.name)).toEqual(['gpu01'])
  })

  it('is asked for once, and so are its neighbours ahead', async () => {
    const machine = new TimeMachine(() => NOW, () => 1, read, noMarks)
    machine.go(NOW - 7200)
    await settled()
    const { step } = machine
    expect(asked.map((at) => (at - NOW + 7200) / step)).toEqual([0, 1, 2, -1])
    machine.move(1)
    expect(machine.shown?.as_of).toBe(NOW - 7200 + step)
    await settled()
    machine.move(-1)
    await settled()
    machine.slide(NOW - 7200 - 0.8 * step)
    expect(machine.shown?.as_of).toBe(NOW - 7200 - step)
    await settled()
    expect(asked.map((at) => (at - NOW + 7200) / step)).toEqual([0, 1, 2, -1, 3, -2, -3])
  })

  it('is not asked for while the slider still moves', async () => {
    const machine = new TimeMachine(() => NOW, () => 1, read, noMarks)
    for (let step = 0; step < 10; step += 1) machine.go(NOW - 7200 - 600 * step)
    await settled()
    expect(asked[0]).toBe(NOW - 12_600)
  })

  it('is never in the future', () => {
    const machine = new TimeMachine(() => NOW, () => 1, read, noMarks)
    machine.go(NOW + 5000)
    expect(machine.at).toBe(NOW)
  })

  it('that is refused says why, and the one before stays', async () => {
    const machine = new TimeMachine(() => NOW, () => 1, read, noMarks)
    machine.go(NOW - 7200)
    await settled()
    read = () => Promise.resolve({ refused: { status: 400, message: 'nothing was recorded then' } })
    const other = new TimeMachine(() => NOW, () => 1, (...all) => read(...all), noMarks)
    other.go(NOW - 90_000)
    await settled()
    expect(other.refused?.text).toBe('nothing was recorded then.')
    expect(other.shown).toBe(null)
    expect(machine.shown?.as_of).toBe(NOW - 7200)
  })

  it('that comes after the next one was chosen is not shown', async () => {
    const answers = new Map<number, () => void>()
    const machine = new TimeMachine(() => NOW, () => 1, (at) => new Promise((resolve) => answers.set(at, () => resolve({ done: past(at) }))), noMarks)
    machine.go(NOW - 7200)
    await settled()
    machine.go(NOW - 3600)
    await settled()
    answers.get(NOW - 3600)?.()
    answers.get(NOW - 7200)?.()
    await settled()
    expect(machine.shown?.as_of).toBe(NOW - 3600)
  })

  it('leaves nothing behind', async () => {
    const machine = new TimeMachine(() => NOW, () => 1, read, noMarks)
    machine.go(NOW - 7200)
    machine.leave()
    await settled()
    expect([machine.at, machine.shown, machine.isLoading, asked.length]).toEqual([null, null, false, 0])
  })
})

describe('the slider', () => {
  it('reaches as far as the moment that was asked for', () => {
    const machine = new TimeMachine(() => NOW, () => 1, read, noMarks)
    machine.go(NOW - 5 * 86_400)
    expect(machine.span).toBe('7d')
    expect([machine.start <= machine.at!, machine.end]).toEqual([true, NOW])
    machine.choose('6h')
    expect([machine.start <= machine.at!, machine.at! <= machine.end, machine.end - machine.start]).toEqual([true, true, 6 * 3600])
  })

  it('has marks of what went wrong, and of nothing else', async () => {
    const event: HubEvent = { id: '1', at: NOW - 60, kind: 'host_down', severity: 'critical', host: 'gpu01', host_id: 'h', gpu: null, label: null, user: null, title: 'has stopped reporting', detail: '' }
    const machine = new TimeMachine(() => NOW, () => 1, read, () => Promise.resolve({ done: { events: [event, { ...event, kind: 'host_up' }] } }))
    machine.go(NOW - 3600)
    await settled()
    expect(machine.marks).toEqual([{ at: NOW - 60, title: 'gpu01: has stopped reporting', isCritical: true }])
  })

  it('plays until now', async () => {
    const machine = new TimeMachine(() => NOW, () => 1, read, noMarks)
    machine.go(NOW - 200)
    await settled()
    machine.play()
    await vi.advanceTimersByTimeAsync(5000)
    expect([machine.isPlaying, machine.at! >= NOW - 120]).toEqual([false, true])
  })
})

describe('the address', () => {
  it.each([['?at=1794837842', 1_794_837_842], ['?q=free', null], ['?at=yesterday', null], ['?at=-5', null], ['?at=Infinity', null], ['?at=-2h', NOW - 7200], ['?at=-1.5d', NOW - 129_600]])('%s', (search, at) => {
    expect(readAt(search, NOW)).toBe(at)
  })

  it('keeps what else is in it', () => {
    expect(writeAt('?q=free', 5)).toBe('?q=free&at=5')
    expect(writeAt('?q=free&at=5', null)).toBe('?q=free')
    expect(writeAt('?at=5', null)).toBe('')
  })
})
