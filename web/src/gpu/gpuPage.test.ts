import { expect, test } from 'vitest'
import type { Past, Run } from '../api/history'
import type { QueryState } from '../charts/historyFeed'
import type { Point } from '../api/history'
import { busyGpu, GIB, gpu, host, NOW } from '../testing/samples'
import { gpuCharts, gpuQuestions } from './gpuCharts'
import { gpuPageText, pastTitle } from './gpuPage'

const text = (changes: Parameters<typeof gpu>[0]): ReturnType<typeof gpuPageText> => gpuPageText(gpu(changes), host('gpu01', []), NOW)

test('the live figures have their whole beside them', () => {
  const { figures } = gpuPageText(busyGpu('alice', { power_watts: 200, power_limit_watts: 400, memory_used_bytes: 40 * GIB }), host('gpu01', []), NOW)
  expect(figures.slice(0, 3)).toMatchObject([
    { label: 'Utilization', text: '97%', fraction: 0.97 },
    { label: 'Memory', text: '40', of: 'of 80 GiB', fraction: 0.5 },
    { label: 'Power', text: '200 W', of: 'of 400 W', fraction: 0.5 },
  ])
})

test('an unknown figure is a dash with its reason, and has no bar', () => {
  expect(text({ power_watts: null, reasons: { power_watts: 'not supported' } }).figures[2]).toMatchObject({ text: '–', fraction: null, title: 'not supported' })
})

test('a figure that no delta keeps current is shown when it has been read', () => {
  const clock = (isRead: boolean) => gpuPageText(gpu(), host('gpu01', []), NOW, isRead).figures[4]
  expect([clock(true), clock(false)]).toMatchObject([{ text: '210 MHz' }, { text: '…' }])
})

test('what is wrong is said with what to do', () => {
  expect(text({ health: 'critical', health_reason: 'fell off the bus', health_action: 'Reboot the host' }).alarm).toEqual({ reason: 'fell off the bus', action: 'Reboot the host', isCritical: true })
  expect(text({}).alarm).toBeNull()
})

test('a GPU that cannot be reached is offered to nobody', () => {
  expect(text({}).variable).toBe('CUDA_VISIBLE_DEVICES=GPU-1')
  expect(text({ availability: 'unknown', health: 'critical', utilization_percent: null, memory_used_bytes: null, temperature_celsius: null, power_watts: null }).variable).toBeNull()
})

test('a reservation is said where there is one', () => {
  expect(text({}).reservation).toBeNull()
  expect(text({ reservation: { id: 1, kind: 'reservation', user: 'dan', until: NOW + 60, note: '', scheduler: null } }).reservation?.text).toMatch(/^Reserved by dan until /)
})

test('a GPU of the past is called what its last run called it', () => {
  const run = { gpus: ['GPU-8', 'GPU-9'], labels: ['2', '3'], model: 'NVIDIA H200', host_name: 'gpu01' } as Run
  expect(pastTitle('GPU-9', [run])).toEqual({ title: 'GPU 3 · NVIDIA H200', host: 'gpu01' })
  expect(pastTitle('GPU-9', [])).toEqual({ title: 'Removed GPU', host: null })
})

function told(points: Point[], more: object = {}): QueryState {
  const past = { metric: '', unit: '', step: 10, start: 0, end: 100, resolution: 'raw', series: [{ gpu: 'GPU-1', points, ...more }] } as Past
  return { past, refused: null, isLoading: false }
}
const nothing: QueryState = { past: null, refused: null, isLoading: true }

test('every chart is there before its answer is', () => {
  expect(gpuCharts(() => nothing).map(({ title, series, isLoading }) => [title, series.length, isLoading])).toEqual([
    ['Utilization', 0, true],
    ['Memory', 0, true],
    ['Power', 0, true],
    ['Temperature', 0, true],
    ['Clocks', 0, true],
  ])
})

test('activity has a chart where it is measured, and the time in which memory was busy stands for its bandwidth elsewhere', () => {
  const activity = (answers: Record<string, QueryState>) => gpuCharts((name) => answers[name] ?? nothing).find(({ title }) => title === 'Activity')
  const unmeasured = { sm_activity_percent: told([[0, null, null, null]]), dram_activity_percent: told([[0, null, null, null]]) }
  expect(activity(unmeasured)).toBeUndefined()
  const measured = { sm_activity_percent: told([[0, 5, 5, 5]]), tensor_activity_percent: told([[0, 0, 0, 0]]), dram_activity_percent: told([[0, 7, 7, 7]]) }
  expect(activity(measured)?.series.map(({ label }) => label)).toEqual(['SM', 'tensor cores', 'memory'])
  expect(activity({ ...unmeasured, memory_utilization_percent: told([[0, 9, 9, 9]]) })?.series.map(({ label }) => label)).toEqual(['memory busy'])
})

test('memory is a pile of people under the line of all', () => {
  const answers: Record<string, QueryState> = { users: told([[0, 5, 5, 5]], { user: 'alice' }), memory_used_bytes: told([[0, 6, 6, 6]]) }
  const memory = gpuCharts((name) => answers[name] ?? nothing)[1]
  expect(memory?.stacked).toBe(true)
  expect(memory?.series.map(({ label, kind }) => [label, kind])).toEqual([['alice', 'area'], ['total used', 'line']])
})

test('times in which it was slowed down are bands with the cause in words', () => {
  const answers: Record<string, QueryState> = { throttled_thermal: told([[0, 0, 0, 0], [10, 1, 1, 1]]) }
  const [utilization, , power, temperature] = gpuCharts((name) => answers[name] ?? nothing)
  expect(utilization?.bands).toMatchObject([{ start: 10, end: 20, label: 'thermal throttling' }])
  expect(temperature?.bands).toHaveLength(1)
  expect(power?.bands).toEqual([])
})

test('everything that a chart needs is asked for', () => {
  const asked = new Set<string>()
  gpuCharts((name) => (asked.add(name), nothing))
  expect(Object.keys(gpuQuestions('GPU-1'))).toEqual(expect.arrayContaining([...asked]))
})
