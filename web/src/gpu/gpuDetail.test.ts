import { describe, expect, it } from 'vitest'
import catalog from '../api/catalog.json'
import type { GpuEvent, Process } from '../api/types'
import { busyGpu, GIB, gpu, host, NOW, someProcess } from '../testing/samples'
import { gpuDetail } from './gpuDetail'
import { inUnit } from '../ui/format'
import { isMissing } from './deviceVariable'

const up = host('gpu01', [])
const on = (...processes: Partial<Process>[]) =>
  gpuDetail(busyGpu('ann', { processes: processes.map((facts) => ({ ...someProcess, ...facts })) }), up, NOW)

describe('metrics', () => {
  const names = catalog.filter((metric) => metric.scope === 'gpu').map((metric) => metric.name)
  const allKnown = Object.fromEntries(names.map((name) => [name, 1]))

  it('are all those of the catalog where all are known', () => {
    const { metrics, notKnown } = gpuDetail(gpu(allKnown), up, NOW)
    expect([metrics.length, notKnown]).toEqual([names.length, null])
  })

  it('share one line where they are unknown, with their reasons', () => {
    const { metrics, notKnown } = gpuDetail(gpu({ ...allKnown, fan_percent: null, nvlink_active_count: null, reasons: { fan_percent: 'has no fan' } }), up, NOW)
    expect(metrics.map((metric) => metric.label)).not.toContain('Fan speed')
    expect(notKnown).toEqual({ text: 'not reported: fan speed, active NVLinks', title: 'Fan speed: has no fan\nActive NVLinks: not reported' })
  })

  it('name only a few of many unknown ones', () => {
    expect(gpuDetail(gpu(), up, NOW).notKnown?.text).toMatch(/^not reported: fan speed, video encoder, .*, \d+ more$/)
  })

  it('says that a figure is being read, rather than show an old one that no delta keeps current', () => {
    const { metrics } = gpuDetail(gpu(allKnown), up, NOW, false)
    const textOf = (title: string) => metrics.find((metric) => metric.title === title)?.text
    expect(metrics).toHaveLength(gpuDetail(gpu(allKnown), up, NOW).metrics.length)
    expect([textOf('Total energy'), textOf('SM clock')]).toEqual(['…', '…'])
    expect(metrics.slice(0, 1)).toEqual(gpuDetail(gpu(allKnown), up, NOW).metrics.slice(0, 1))
  })

  it('have short names, the whole one on demand', () => {
    const { metrics } = gpuDetail(gpu({ performance_state: 0 }), up, NOW)
    expect(metrics).toContainEqual({ label: 'Performance state', title: 'Performance state (0 is fastest)', text: '0' })
  })

  it.each([
    [97.4, 'percent', '97 %'],
    [80 * GIB, 'bytes', '80 GiB'],
    [68, 'celsius', '68 °C'],
    [312.4, 'watts', '312 W'],
    [1980, 'megahertz', '1980 MHz'],
    [7200, 'seconds', '2h'],
    [4, 'count', '4'],
    [0, 'flag', 'no'],
    [1, 'flag', 'yes'],
    [2, 'state', '2'],
    [1_000_000, 'joules', '278 Wh'],
    [72e6, 'joules', '20 kWh'],
    [12_000, 'bytes_per_second', '12 kB/s'],
    [2.5e9, 'bytes_per_second', '2.5 GB/s'],
    [12, 'furlongs', '12 furlongs'],
  ])('%d %s reads %s', (value, unit, expected) => {
    expect(inUnit(value, unit)).toBe(expected)
  })
})

describe('users', () => {
  it('come with their memory and longest run, most memory first', () => {
    const detail = on(
      { pid: 1, user: 'bob', memory_used_bytes: GIB, started_at: NOW - 60 },
      { pid: 2, user: 'ann', memory_used_bytes: 20 * GIB, started_at: NOW - 60 },
      { pid: 3, user: 'ann', memory_used_bytes: 30 * GIB, started_at: NOW - 7200 },
    )
    expect(detail.users).toEqual([
      { login: 'ann', user: { text: 'ann', title: undefined }, memory: '50 GiB', runtime: '2h' },
      { login: 'bob', user: { text: 'bob', title: undefined }, memory: '1.0 GiB', runtime: '1m' },
    ])
  })

  it('have unknown memory as soon as a part of it is unknown', () => {
    const detail = on({ pid: 1, user: 'ann', memory_used_bytes: GIB }, { pid: 2, user: 'ann' })
    expect(detail.users).toMatchObject([{ memory: '–', runtime: '–' }])
  })

  it('are cut where there are too many, with their number', () => {
    const detail = on(...Array.from({ length: 40 }, (_, pid) => ({ pid, user: `user${pid}` })))
    expect([detail.users.length, detail.moreUsers]).toEqual([8, 32])
  })

  it('do not include the display server', () => {
    expect(on({ pid: 1, user: 'root', display: true }).users).toEqual([])
  })
})

describe('processes', () => {
  it('show what is known and why the rest is not', () => {
    const detail = on({ pid: 7, container: 'trainer', job: '48213', reasons: { user: 'gone before it could be asked' } })
    expect(detail.processes).toMatchObject([
      { pid: 7, user: { text: '–', title: 'gone before it could be asked' }, memory: { text: '–' }, place: 'trainer · job 48213' },
    ])
  })

  it('are cut where there are too many, with their number', () => {
    const detail = on(...Array.from({ length: 11 }, (_, pid) => ({ pid })))
    expect([detail.processes?.length, detail.moreProcesses]).toEqual([8, 3])
  })

  it('that cannot be read are not an empty list', () => {
    const detail = gpuDetail(gpu({ processes: null, reasons: { processes: 'no permission' } }), up, NOW)
    expect([detail.processes, detail.processesReason]).toEqual([null, 'no permission'])
  })
})

describe('faults', () => {
  const fault = { at: NOW - 720, code: 79, kind: 'critical', text: 'it has fallen off the bus', message: 'GPU has fallen off the bus.', process: null, user: null } as const
  const failing = (...faults: Partial<GpuEvent>[]) => gpuDetail(gpu({ events: faults.map((facts) => ({ ...fault, ...facts })) }), up, NOW)

  it('have time, code and meaning, the driver\u2019s words on demand', () => {
    const [event] = failing({}).events
    expect(event).toMatchObject({ kind: 'critical', code: 'XID 79', text: { text: 'it has fallen off the bus', title: 'GPU has fallen off the bus.' } })
    expect(event?.time.title).toMatch(/^12m ago, .* UTC$/)
  })

  it.each([
    [null, null, undefined],
    [4711, null, 'process 4711'],
    [4711, 'ann', 'ann, process 4711'],
    [4711, 'a\u202eb', 'a\ufffdb, process 4711'],
  ])('of process %s and user %s name %s', (process, user, culprit) => {
    expect(failing({ process, user }).events[0]?.culprit).toBe(culprit)
  })

  it('come the newest first, older ones as a number', () => {
    const detail = failing(...Array.from({ length: 7 }, (_, code) => ({ code })))
    expect(detail.events.map((event) => event.code)).toEqual(['XID 6', 'XID 5', 'XID 4', 'XID 3', 'XID 2'])
    expect(detail.moreEvents).toBe(2)
  })

  it('of a driver without words have no title', () => {
    expect(failing({ message: '' }).events[0]?.text.title).toBeUndefined()
  })
})

it('says how old the last report of a host that is down is', () => {
  const silent = host('gpu01', [], { status: 'down', last_report_at: NOW - 180 })
  expect(gpuDetail(gpu({ availability: 'unknown', last_seen: 'free' }), silent, NOW).state).toBe('unknown; was free at the last report 3m ago')
  expect(gpuDetail(gpu({ availability: 'unknown', last_seen: 'unknown' }), silent, NOW).state).toBe('unknown; last report 3m ago')
  expect(gpuDetail(gpu({ availability: 'unknown', last_seen: null }), { ...silent, last_report_at: null }, NOW).state).toBe('unknown')
})

it('says nothing about an age that cannot be', () => {
  expect(gpuDetail(busyGpu('ann', { since: -1e308 }), up, NOW)).toMatchObject({ state: 'busy', stateTitle: '–' })
})

it('takes a GPU for missing only when nothing of it can be read', () => {
  const gone = { availability: 'unknown', utilization_percent: null, memory_used_bytes: null, temperature_celsius: null, power_watts: null } as const
  expect(isMissing(gpu({ ...gone, health: 'critical' }))).toBe(true)
  expect(isMissing(gpu({ ...gone, health: 'unknown', temperature_celsius: 40 }))).toBe(false)
  expect(isMissing(gpu({ health: 'critical', temperature_celsius: 97 }))).toBe(false)
})

