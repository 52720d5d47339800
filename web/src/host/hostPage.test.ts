import { expect, test } from 'vitest'
import type { Past } from '../api/history'
import type { QueryState } from '../charts/historyFeed'
import { busyGpu, GIB, gpu, host, NOW, someProcess } from '../testing/samples'
import { HostEntry } from '../stream/fleetModel'
import { hostCharts, hostHeat, hostQuestions } from './hostCharts'
import { hostPageText } from './hostPage'

const text = (changes: Parameters<typeof host>[2] = {}, gpus = [gpu()]): ReturnType<typeof hostPageText> => hostPageText(new HostEntry(host('gpu01', gpus, changes), NOW), NOW)

test('every GPU has its processes', () => {
  const { gpus } = text({}, [busyGpu('alice', { processes: [{ ...someProcess, user: 'alice' }] }), gpu({ processes: null, reasons: { processes: 'no right to look' } })])
  expect(gpus[0]?.processes?.map(({ user }) => user)).toEqual(['alice'])
  expect(gpus[1]).toMatchObject({ processes: null, why: 'no right to look' })
})

test('a host that is well has no problems and no test to run', () => {
  expect(text()).toMatchObject({ notes: [], test: null })
})

test('a host that is down says since when, and which command tells more', () => {
  const silent = text({ status: 'down', last_report_at: NOW - 180 })
  expect(silent.notes[0]?.level).toBe('critical')
  expect(silent.notes[0]?.text).toMatch(/^No report for 3m \(last at .*\)\. Check that the host is on and that gpudeck agent is running\.$/)
  expect(silent.test).toBe('gpudeck hosts test gpu01')
})

test('all problems are listed once, however many there are', () => {
  const problems = ['one', 'two', 'three']
  expect(text({ problems }).notes).toEqual(problems.map((text) => ({ text, level: 'warning' })))
})

test('unknown figures of the host are dashes with their reasons', () => {
  const { figures } = text({ cpu_percent: null, reasons: { cpu_percent: 'the exporter does not tell' } })
  expect(figures[0]).toMatchObject({ label: 'CPU', text: '–', title: 'the exporter does not tell', fraction: null })
})

test('disks and labels are shown harmlessly', () => {
  const shown = text({ labels: { room: '<b>\u202e' }, disks: [{ mount: '/scratch', used_bytes: GIB, total_bytes: 4 * GIB }] as never })
  expect(shown.labels).toEqual([{ key: 'room', value: '<b>\ufffd' }])
  expect(shown.disks).toEqual([{ mount: '/scratch', text: '1.0 GiB of 4.0 GiB', fraction: 0.25 }])
})

const nothing: QueryState = { past: null, refused: null, isLoading: true }
const BOUNDS = { start: 0, end: 20 }

test('RAM and disk are drawn below what is installed', () => {
  const charts = hostCharts(() => nothing, host('gpu01', []), BOUNDS)
  expect(charts.find(({ title }) => title === 'RAM')?.series).toMatchObject([{ label: 'installed', kind: 'limit', points: [[0, 2015 * GIB, null, null], [20, 2015 * GIB, null, null]] }])
  expect(hostCharts(() => nothing, undefined, BOUNDS).flatMap(({ series }) => series)).toEqual([])
})

test('GPUs stand below each other by their numbers', () => {
  const series = ['10', '2'].map((label) => ({ gpu: `GPU-${label}`, label, points: [[0, 50, 50, 50]] }))
  const past = { metric: '', unit: 'percent', step: 10, start: 0, end: 20, resolution: 'raw', series } as unknown as Past
  const heat = hostHeat(() => ({ past, refused: null, isLoading: false }), BOUNDS)
  expect(heat?.rows).toEqual([{ host: 'GPU-2', name: 'GPU 2', values: [50, null] }, { host: 'GPU-10', name: 'GPU 10', values: [50, null] }])
  expect(hostHeat(() => nothing, BOUNDS)).toBeNull()
})

test('everything that a chart needs is asked for', () => {
  const asked = new Set<string>()
  hostCharts((name) => (asked.add(name), nothing), undefined, BOUNDS)
  expect(Object.keys(hostQuestions('gpu01'))).toEqual(expect.arrayContaining([...asked]))
})

test('figures that no delta keeps current are shown when they have been read', () => {
  const rates = (readAt: number) => hostPageText(new HostEntry(host('gpu01', [], { network_receive_bytes_per_second: 5e6, swap_used_bytes: 7 }), readAt), NOW)
  expect(rates(NOW).figures[3]?.text).toBe('5 MB/s')
  expect(rates(NOW - 60).figures[3]?.text).toBe('…')
  expect(rates(NOW - 60).detail.facts.find(({ label }) => label === 'Swap used')?.text).toBe('…')
})
