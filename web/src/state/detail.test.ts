import { describe, expect, it } from 'vitest'
import catalog from '../api/catalog.json'
import type { Process } from '../api/types'
import { busyGpu, GIB, gpu, host, NOW, someProcess } from '../samples'
import { cudaVisibleDevices, gpuDetail, inUnit } from './detail'

const up = host('gpu01', [])
const on = (...processes: Partial<Process>[]) =>
  gpuDetail(busyGpu('ann', { processes: processes.map((facts) => ({ ...someProcess, ...facts })) }), up, NOW)

describe('metrics', () => {
  it('are all those of the catalog', () => {
    const labels = catalog.filter((metric) => metric.scope === 'gpu').map((metric) => metric.label)
    expect(gpuDetail(gpu(), up, NOW).metrics.map((metric) => metric.label)).toEqual(labels)
  })

  it('carry the reason where they are unknown', () => {
    const { metrics } = gpuDetail(gpu({ fan_percent: null, reasons: { fan_percent: 'has no fan' } }), up, NOW)
    expect(metrics.find((metric) => metric.label === 'Fan')?.figure).toEqual({ text: '–', title: 'has no fan' })
  })

  it.each([
    [97.4, 'percent', '97 %'],
    [80 * GIB, 'bytes', '80 GiB'],
    [68, 'celsius', '68 °C'],
    [312.4, 'watts', '312 W'],
    [1980, 'megahertz', '1980 MHz'],
    [7200, 'seconds', '2 h'],
    [4, 'count', '4'],
    [12, 'furlongs', '12 furlongs'],
  ])('%d %s reads %s', (value, unit, expected) => {
    expect(inUnit(value, unit)).toBe(expected)
  })
})

describe('people', () => {
  it('come with their memory and longest run, most memory first', () => {
    const detail = on(
      { pid: 1, user: 'bob', memory_used_bytes: GIB, started_at: NOW - 60 },
      { pid: 2, user: 'ann', memory_used_bytes: 20 * GIB, started_at: NOW - 60 },
      { pid: 3, user: 'ann', memory_used_bytes: 30 * GIB, started_at: NOW - 7200 },
    )
    expect(detail.people).toEqual([
      { user: { text: 'ann', title: undefined }, memory: '50 GiB', runtime: '2 h' },
      { user: { text: 'bob', title: undefined }, memory: '1.0 GiB', runtime: '1 min' },
    ])
  })

  it('have unknown memory as soon as a part of it is unknown', () => {
    const detail = on({ pid: 1, user: 'ann', memory_used_bytes: GIB }, { pid: 2, user: 'ann' })
    expect(detail.people).toMatchObject([{ memory: '–', runtime: '–' }])
  })

  it('do not include the display server', () => {
    expect(on({ pid: 1, user: 'root', display: true }).people).toEqual([])
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

it('says how old the picture of a silent host is', () => {
  const silent = host('gpu01', [], { status: 'down', last_report_at: NOW - 180 })
  expect(gpuDetail(gpu({ availability: 'unknown', last_seen: 'free' }), silent, NOW).state).toBe('unknown; free 3 min ago, when the host last reported')
})

it('names the device so that CUDA finds it', () => {
  expect(cudaVisibleDevices(gpu({ uuid: 'GPU-abc' }))).toBe('CUDA_VISIBLE_DEVICES=GPU-abc')
})
