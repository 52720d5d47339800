import { expect, test } from 'vitest'
import type { Run } from '../api/history'
import { GIB, NOW } from '../testing/samples'
import { latestFirst, runBars, runRow } from './runs'

function run(id: number, changes: Partial<Run> = {}): Run {
  return {
    id,
    host: 'h1',
    host_name: 'gpu01',
    pid: 100 + id,
    user: 'alice',
    command: 'python train.py',
    container: null,
    job: null,
    gpus: ['GPU-1'],
    labels: ['0'],
    model: 'NVIDIA H200',
    started_at: NOW - 3600,
    seen_at: NOW - 3600,
    ended_at: null,
    gpu_seconds: 3600,
    peak_memory_bytes: 71 * GIB,
    mean_memory_bytes: 70 * GIB,
    mean_utilization_percent: 96.6,
    idle_seconds: 0,
    energy_joules: 3.6e6,
    command_reason: null,
    verdict: null,
    ...changes,
  }
}

test('a run that is there lasts until now', () => {
  expect(runRow(run(1), NOW)).toMatchObject({ isRunning: true, lasted: '1h', utilization: { text: '97%' }, memory: { text: '71 GiB' }, energy: '1.00 kWh' })
})

test('a run that has ended lasted until its end', () => {
  expect(runRow(run(1, { ended_at: NOW - 1800 }), NOW)).toMatchObject({ isRunning: false, lasted: '30m' })
})

test('what nobody knows of a run is a dash with its reason', () => {
  const row = runRow(run(1, { user: null, command: null, command_reason: 'only for its owner', mean_utilization_percent: null, peak_memory_bytes: null, energy_joules: null }), NOW)
  expect(row).toMatchObject({ name: { text: '–' }, command: { text: '–', title: 'only for its owner' }, utilization: { text: '–' }, memory: { text: '–' }, energy: '–' })
})

test('a hostile command turns nothing around', () => {
  expect(runRow(run(1, { command: 'a\u202eb' }), NOW).command.text).toBe('a\ufffdb')
})

test('runs are listed by when they started, whatever their ids', () => {
  expect(latestFirst([run(1, { seen_at: 5 }), run(2, { seen_at: 9 }), run(3, { seen_at: 7 })]).map(({ id }) => id)).toEqual([2, 3, 1])
})

test('runs at the same time lie in different lanes, and lanes are used again', () => {
  const runs = [run(1, { seen_at: 0, ended_at: 50 }), run(2, { seen_at: 10, ended_at: 20 }), run(3, { seen_at: 60, ended_at: 90 })]
  const { bars, lanes } = runBars(runs, { start: 0, end: 100 }, 1000)
  expect(bars.map(({ id, lane, from, width }) => [id, lane, from, width])).toEqual([[1, 0, 0, 0.5], [2, 1, 0.1, 0.1], [3, 0, 0.6, 0.3]])
  expect(lanes).toBe(2)
})

test('bars end where the range does, and runs outside of it have none', () => {
  const runs = [run(1, { seen_at: -50, ended_at: null }), run(2, { seen_at: -50, ended_at: -10 }), run(3, { seen_at: 200 })]
  expect(runBars(runs, { start: 0, end: 100 }, 150).bars.map(({ id, from, width }) => [id, from, width])).toEqual([[1, 0, 1]])
})
