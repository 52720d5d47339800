import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { busyGpu, fleet, gpu, host, NOW, snapshot as rowed, totals } from '../testing/samples'
import { readSnapshot } from '../stream/fleetStream'
import { FakeBrowser } from '../stream/fakeBrowser'
import { alone } from '../stream/connection'
import { FleetStore } from './fleetStore.svelte'

let browser: FakeBrowser
let store: FleetStore

function start(search = ''): void {
  browser = new FakeBrowser()
  store = new FleetStore((listener) => alone('api/v1/stream', listener, browser), search, () => readSnapshot('api/v1/stream', browser))
  store.start()
}

beforeEach(() => {
  vi.useFakeTimers({ now: NOW * 1000 })
  start()
})

afterEach(() => {
  store.stop()
  vi.useRealTimers()
})

const snapshot = () => browser.last.send('snapshot', fleet([host('a', [gpu()]), host('b', [gpu(), gpu()])]))
const ids = () => store.placed.map(({ entry }) => entry.id)
const makeBusy = (...uuids: string[]) => ({ time: NOW, totals: totals(), changes: [{ id: 'b', gpus: uuids.map((uuid) => ({ uuid, availability: 'busy' })) }] })

async function beat(seconds: number, delta: object = { time: NOW, totals: totals() }): Promise<void> {
  for (let i = 0; i < seconds; i++) {
    await vi.advanceTimersByTimeAsync(1000)
    browser.last.send('delta', delta)
  }
}

describe('order', () => {
  it('follows the figures while nobody is at work', async () => {
    snapshot()
    expect(ids()).toEqual(['b', 'a'])
    await beat(3, makeBusy('b-0', 'b-1'))
    expect(ids()).toEqual(['a', 'b'])
  })

  it('stays while somebody points at the board, and the figures change all the same', async () => {
    snapshot()
    store.attend()
    await beat(3, makeBusy('b-0', 'b-1'))
    expect(ids()).toEqual(['b', 'a'])
    expect(store.placed[0]?.entry.summary.counts.busy).toBe(2)
    await beat(4)
    expect(ids()).toEqual(['a', 'b'])
  })

  it('stays also where a host falls silent under the pointer', async () => {
    snapshot()
    store.attend()
    const silent = { id: 'b', status: 'late', gpus: ['b-0', 'b-1'].map((uuid) => ({ uuid, availability: 'unknown' })) }
    await beat(1, { time: NOW, totals: totals(), changes: [silent] })
    expect(ids()).toEqual(['b', 'a'])
    await beat(7)
    expect(ids()).toEqual(['a', 'b'])
  })

  it('follows at once when a host goes', async () => {
    snapshot()
    store.attend()
    await beat(1, { time: NOW, totals: totals(), removed: ['b'] })
    expect(ids()).toEqual(['a'])
  })

  it('keeps its place in memory when nothing moved', async () => {
    snapshot()
    const before = store.placed
    await beat(5)
    expect(store.placed).toBe(before)
  })
})

describe('search', () => {
  it('answers at once', () => {
    snapshot()
    store.search('host:b')
    expect(ids()).toEqual(['b'])
    expect(store.shownGpus).toBe(2)
  })

  it('takes a state by a click as by a word', () => {
    snapshot()
    store.toggleState('busy')
    expect([store.text, ids()]).toEqual(['busy', []])
    store.toggleState('busy')
    expect(ids()).toHaveLength(2)
  })

  it('begins with what the address says', () => {
    start('?q=host:a&view=table&sort=name')
    snapshot()
    expect([ids(), store.view, store.sort]).toEqual([['a'], 'table', 'name'])
  })
})

describe('an address', () => {
  it('is applied again when a person goes back to it', () => {
    snapshot()
    store.search('host:b')
    store.show('table')
    store.visit('?q=host:a&sort=name')
    expect([ids(), store.text, store.view, store.sort]).toEqual([['a'], 'host:a', 'cards', 'name'])
  })

  it('is told apart from one that is still being typed', () => {
    store.type('fre')
    expect(store.isTyped).toBe(true)
    store.toggleState('busy')
    expect(store.isTyped).toBe(false)
  })
})

it('shows what came with the page until the stream has more, and does not take it for the stream', () => {
  store.look(fleet([host('a', [gpu()])]))
  expect([ids(), store.link.phase, store.isStreamed]).toEqual([['a'], 'live', false])
  snapshot()
  expect([ids(), store.isStreamed]).toEqual([['b', 'a'], true])
})

it('keeps room for hosts that are on their way, but not where a search may not want them', () => {
  store.look({ ...fleet([host('a', [gpu()])], { totals: totals({ hosts: 3 }) }), is_whole: false })
  expect([store.isWhole, store.awaited]).toEqual([false, 2])
  store.search('free')
  expect([store.isWhole, store.awaited]).toEqual([false, 0])
  store.search('')
  snapshot()
  expect([store.isWhole, store.awaited]).toEqual([true, 0])
})

describe('rest', () => {
  it('has no stream, and shows nothing as current', async () => {
    snapshot()
    store.rest()
    await vi.advanceTimersByTimeAsync(600_000)
    expect([browser.sources.length, browser.last.closed]).toEqual([1, true])
    expect(store.link).toMatchObject({ phase: 'connecting', greyed: true })
  })

  it('ends with the first event, without an alarm', async () => {
    snapshot()
    store.rest()
    await vi.advanceTimersByTimeAsync(600_000)
    store.wake()
    expect(store.link).toMatchObject({ phase: 'connecting', greyed: true })
    snapshot()
    expect(store.link).toMatchObject({ phase: 'live', greyed: false })
  })

  it('keeps an eye on the free GPUs, and forgets none of it while it wakes', async () => {
    let free: number | null = 5
    store.stop()
    store = new FleetStore((listener) => alone('api/v1/stream', listener, browser), '', undefined, () => Promise.resolve(free === null ? null : { free }))
    store.start()
    browser.last.send('snapshot', fleet([host('a', [gpu()])], { totals: totals({ free: 3 }) }))
    store.rest()
    const seen = [store.free]
    for (free of [5, null, 7]) {
      await vi.advanceTimersByTimeAsync(60_000)
      seen.push(store.free)
    }
    store.wake()
    expect([...seen, store.free]).toEqual([3, 5, null, 7, 7])
  })

  it('is no excuse for a hub that stays silent', async () => {
    snapshot()
    store.rest()
    store.wake()
    await vi.advanceTimersByTimeAsync(11_000)
    expect(store.link).toMatchObject({ phase: 'lost', greyed: true })
  })
})

describe('view', () => {
  it('is cards for a small fleet and the table for a large one', () => {
    snapshot()
    expect(store.view).toBe('cards')
    browser.last.send('snapshot', fleet(Array.from({ length: 101 }, (_, i) => host(`h${i}`, [busyGpu('ann')]))))
    expect(store.view).toBe('table')
  })
})

describe('time', () => {
  it('is the hub’s, whatever the clock of this machine says', async () => {
    browser.last.send('snapshot', fleet([], { time: NOW + 500 }))
    await beat(3, { time: NOW + 503, totals: totals() })
    expect(store.hubNow).toBeCloseTo(NOW + 503)
  })

  it('ticks on when the connection is lost, and says so', async () => {
    snapshot()
    await vi.advanceTimersByTimeAsync(11_000)
    expect(store.link).toMatchObject({ phase: 'lost', greyed: true })
    expect(store.hubNow).toBeCloseTo(NOW + 11)
  })

  it('is not called live two seconds after the hub has died', async () => {
    snapshot()
    browser.last.fail()
    await vi.advanceTimersByTimeAsync(1000)
    expect(store.link.phase).toBe('live')
    await vi.advanceTimersByTimeAsync(1000)
    expect(store.link).toMatchObject({ phase: 'waiting', greyed: false })
  })

  it('stays live while events of a slow network come late', async () => {
    snapshot()
    const phases: string[] = []
    for (const pause of [1.2, 2.4, 0.1, 2.8, 0.2]) {
      await vi.advanceTimersByTimeAsync(pause * 1000)
      phases.push(store.link.phase)
      snapshot()
    }
    expect(new Set(phases)).toEqual(new Set(['live']))
  })

  it('is live again with the next event', async () => {
    snapshot()
    await vi.advanceTimersByTimeAsync(11_000)
    snapshot()
    expect(store.link.phase).toBe('live')
  })
})

it('knows what kept it from starting, and forgets it when it works', async () => {
  browser.status = 403
  browser.last.fail()
  await vi.advanceTimersByTimeAsync(0)
  expect(store.connectionError).toBe('refused')
  await vi.advanceTimersByTimeAsync(2000)
  snapshot()
  expect(store.connectionError).toBeNull()
})

it.each([
  [401, 1],
  [403, 1],
  [502, 0],
  [null, 0],
])('asks who is here when the hub refuses to show the fleet, and only then: %s', async (status, times) => {
  store.onRefused = vi.fn()
  browser.status = status
  browser.last.fail()
  await vi.advanceTimersByTimeAsync(0)
  expect(store.onRefused).toHaveBeenCalledTimes(times)
})

describe('a stream as the hub writes it', () => {
  const SNAPSHOT = rowed([host('a', [gpu()]), host('b', [gpu(), gpu()])])
  const DELTA = {
    time: NOW + 1,
    totals: totals({ gpus: 3 }),
    changes: [{ id: 'b', gpus: [{ uuid: 'b-1', availability: 'busy', users: ['ann'], processes: [] }] }],
    gpus: { rows: [0, 2], power_watts: [61.5, 300], temperature_celsius: { at: [1], to: [70] } },
    reports: { rows: [0, 1], last_report_at: [NOW + 0.4, NOW + 0.9], cpu_percent: { at: [0], to: [null] } },
  }
  const hosts = () => [...store.fleet.entries.values()].map((entry) => entry.host)

  it('is applied, and goes on after a broken line', async () => {
    browser.last.send('snapshot', SNAPSHOT, 'a-7')
    browser.last.send('delta', DELTA, 'a-8')
    expect(hosts()).toMatchObject([
      { last_report_at: NOW + 0.4, cpu_percent: null, gpus: [{ power_watts: 61.5, temperature_celsius: 31 }] },
      { last_report_at: NOW + 0.9, cpu_percent: 22, gpus: [{ power_watts: 60 }, { power_watts: 300, temperature_celsius: 70, users: ['ann'] }] },
    ])
    // The browser connects again by itself and names the last event: what was missed comes, some of it again.
    browser.last.interrupt()
    browser.last.send('delta', DELTA, 'a-8')
    browser.last.send('delta', { time: NOW + 2, totals: totals(), gpus: { rows: [1], power_watts: [90] } }, 'a-9')
    expect(hosts()[1]?.gpus[0]?.power_watts).toBe(90)
    expect(browser.sources).toHaveLength(1)
  })

  it('is begun anew from a connection of its own where a row belongs to nobody', async () => {
    const line = browser.last
    line.send('snapshot', SNAPSHOT, 'a-7')
    line.send('delta', { ...DELTA, gpus: { rows: [0, 3], power_watts: [70, 80] } }, 'a-8')
    expect(hosts()[0]?.gpus[0]?.power_watts).toBe(70)
    expect(browser.sources).toHaveLength(2)
    line.send('delta', { time: NOW + 2, totals: totals(), gpus: { rows: [3], power_watts: [90] } }, 'a-9')
    browser.last.send('snapshot', rowed([host('a', [gpu()]), host('b', [gpu(), gpu()]), host('c', [gpu()])]), 'a-8')
    await vi.advanceTimersByTimeAsync(0)
    expect(hosts().map(({ id, gpus }) => [id, gpus[0]?.power_watts])).toEqual([['a', 60], ['b', 60], ['c', 90]])
    expect(browser.sources.map(({ closed }) => closed)).toEqual([false, true])
  })
})

it('folds and unfolds by hand', () => {
  snapshot()
  store.collapseAll(true)
  store.collapse('a', false)
  expect(store.placed.map(({ entry, collapsed }) => [entry.id, collapsed])).toEqual([
    ['b', true],
    ['a', false],
  ])
})

describe('a large fleet', () => {
  const short = (name: string, gpus: object[] = [{ uuid: `${name}-0`, index: 0, label: '0', availability: 'free', since: NOW }], changes: object = {}) => ({
    ...{ id: name, name, display_name: name, status: 'up', via: 'push', labels: {}, problems: [], last_report_at: NOW },
    ...{ model: { name: 'NVIDIA H200', display_name: 'H200', vendor: 'nvidia', memory_total_bytes: 8 }, gpus, ...changes },
  })
  const overview = (...names: string[]) => ({ ...fleet([]), totals: totals({ hosts: names.length }), hosts: names.map((name) => short(name)), rows: names.map((name, row) => [name, row, row]) })
  const entry = (id: string) => store.fleet.entries.get(id)!
  const see = async (...hosts: string[]) => {
    store.see(hosts)
    await vi.advanceTimersByTimeAsync(200)
  }
  const beatAll = (delta: object = {}) => browser.at('shape=overview').send('delta', { time: NOW, totals: totals(), ...delta })

  beforeEach(() => {
    store.stop()
    browser = new FakeBrowser()
    const url = 'api/v1/stream?shape=overview'
    store = new FleetStore((listener) => alone(url, listener, browser), '', () => readSnapshot(url, browser), undefined, true)
    store.start()
    browser.at('shape=overview').send('snapshot', overview('a', 'b', 'c'))
  })

  it('shows all hosts without figures, and asks for those in view once the board stands still', async () => {
    expect(ids()).toEqual(['a', 'b', 'c'])
    expect([entry('a').isShort, entry('a').summary.counts.free, entry('a').summary.utilization]).toEqual([true, 1, null])
    store.see(['a'])
    store.see(['a', 'b'])
    await see('b', 'c')
    expect(browser.sources.map(({ url }) => url)).toEqual(['api/v1/stream?shape=overview', 'api/v1/stream?hosts=b,c'])
    browser.at('hosts=').send('snapshot', rowed([host('b', [gpu({ utilization_percent: 7 })])]))
    expect([entry('b').isShort, entry('b').summary.utilization, entry('a').isShort]).toEqual([false, 7, true])
    browser.at('hosts=').send('delta', { time: NOW, totals: totals(), gpus: { rows: [0], utilization_percent: [9] } })
    expect(entry('b').summary.utilization).toBe(9)
  })

  it('does not ask again for hosts that it has', async () => {
    store.see(['a'], ['a', 'b'])
    await vi.advanceTimersByTimeAsync(200)
    await see('b')
    await see('b', 'a')
    expect(browser.sources).toHaveLength(2)
    await see('c')
    expect(browser.sources.map(({ closed }) => closed)).toEqual([false, true, false])
  })

  it('has no figures of what went out of view', async () => {
    await see('a')
    browser.at('hosts=a').send('snapshot', rowed([host('a', [gpu()])]))
    await see('b')
    browser.at('hosts=b').send('snapshot', rowed([host('b', [gpu()])]))
    expect(['a', 'b', 'c'].map((id) => entry(id).isShort)).toEqual([true, false, true])
  })

  it('keeps states of all hosts right, in view or not', async () => {
    await see('a')
    browser.at('hosts=a').send('snapshot', rowed([host('a', [gpu()])]))
    const busy = (id: string) => ({ id, gpus: [{ uuid: `${id}-0`, availability: 'busy', users: ['ann'] }] })
    beatAll({ changes: [busy('a'), busy('b')] })
    expect(entry('b').summary).toMatchObject({ users: ['ann'], counts: { busy: 1 } })
    browser.at('hosts=a').send('delta', { time: NOW, totals: totals(), changes: [busy('a')] })
    expect(entry('a').summary.users).toEqual(['ann'])
    await see('c')
    browser.at('hosts=c').send('snapshot', rowed([host('c', [gpu()])]))
    expect(entry('a').summary).toMatchObject({ users: ['ann'], counts: { busy: 1 } })
    store.search('user:ann')
    expect(ids()).toEqual(['a', 'b'])
  })

  it('takes another set of GPUs from either stream first, and a host that left', async () => {
    await see('a')
    browser.at('hosts=').send('snapshot', rowed([host('a', [gpu()])]))
    const split = ['x', 'y'].map((uuid, index) => ({ uuid, index, label: `0.${index}`, availability: 'free', since: NOW }))
    browser.at('hosts=').send('delta', { time: NOW, totals: totals(), hosts: [host('a', [gpu(), gpu()])], rows: [['a', 0, 5]] })
    expect(entry('a').untracked.gpus).toHaveLength(2)
    beatAll({ hosts: [short('a', split)], rows: [['a', 0, 5]] })
    expect(entry('a').isShort).toBe(false)
    browser.at('hosts=').send('delta', { time: NOW, totals: totals(), gpus: { rows: [6], utilization_percent: [50] } })
    expect(entry('a').untracked.gpus.map((each) => each.utilization_percent)).toEqual([0, 50])
    beatAll({ removed: ['a'] })
    expect(ids()).toEqual(['b', 'c'])
    browser.at('hosts=').send('delta', { time: NOW, totals: totals(), removed: ['a'] })
    beatAll({ hosts: [short('a', split)], rows: [['a', 7, 9]] })
    expect([entry('a').isShort, entry('a').untracked.gpus.map(({ uuid }) => uuid)]).toEqual([true, ['x', 'y']])
  })

  it('has a host in full that came to the other stream first', async () => {
    await see('d')
    browser.at('hosts=').send('snapshot', rowed([host('d', [gpu({ utilization_percent: 3 })])]))
    expect(ids()).toEqual(['a', 'b', 'c'])
    beatAll({ hosts: [short('d')], rows: [['d', 3, 3]] })
    expect([entry('d').isShort, entry('d').summary.utilization]).toEqual([false, 3])
  })

  it('sorts by what the overview tells of the figures', () => {
    store.sortBy('utilization')
    beatAll({ summaries: { rows: [1, 2], utilization_percent: [10, 90], temperature_celsius: [50, 40] } })
    store.sortBy('utilization')
    expect(ids()).toEqual(['c', 'b', 'a'])
    store.sortBy('temperature')
    expect(ids()).toEqual(['b', 'c', 'a'])
    expect(entry('b').summary.utilization).toBeNull()
  })

  it('does not show figures that no longer come', async () => {
    await see('a')
    browser.at('hosts=').send('snapshot', rowed([host('a', [gpu()])]))
    await vi.advanceTimersByTimeAsync(4500)
    beatAll()
    await vi.advanceTimersByTimeAsync(4500)
    beatAll()
    expect(entry('a').isShort).toBe(false)
    await vi.advanceTimersByTimeAsync(2000)
    beatAll()
    expect(entry('a').isShort).toBe(true)
  })

  it('asks again for what does not fit, and after it has rested', async () => {
    await see('a')
    browser.at('hosts=').send('snapshot', rowed([host('a', [gpu()])]))
    browser.at('hosts=').send('delta', { time: NOW, totals: totals(), gpus: { rows: [77], utilization_percent: [1] } })
    await vi.advanceTimersByTimeAsync(0)
    expect(browser.sources.map(({ closed }) => closed)).toEqual([false, true, false])
    store.rest()
    expect(browser.sources.every(({ closed }) => closed)).toBe(true)
    store.wake()
    expect(browser.at('hosts=').url).toBe('api/v1/stream?hosts=a')
  })

  it('shows in full what came with the page until the stream has it', async () => {
    store.stop()
    store = new FleetStore((listener) => alone('api/v1/stream?shape=overview', listener, browser), '', undefined, undefined, true)
    store.look({ ...fleet([host('a', [gpu({ utilization_percent: 4 })])], { totals: totals({ hosts: 3 }) }), is_whole: false })
    store.start()
    browser.at('shape=overview').send('snapshot', overview('a', 'b', 'c'))
    expect([entry('a').summary.utilization, entry('b').isShort]).toEqual([4, true])
  })
})
