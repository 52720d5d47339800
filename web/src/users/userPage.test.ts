import { describe, expect, it } from 'vitest'
import type { Run } from '../api/history'
import { activeUsers, busyGpu, GIB, host, NOW, someProcess } from '../testing/samples'
import { userGpus, runBounds, sortRuns } from './userPage'

const run = (id: number, changes: Partial<Run> = {}): Run => ({ id, host: 'a', host_name: 'gpu01', pid: 1, user: 'ann', command: 'train', command_reason: null, verdict: null, container: null, job: null, gpus: ['GPU-1'], labels: ['0'], model: null, started_at: null, seen_at: NOW - 1000, ended_at: NOW - 500, gpu_seconds: 500, peak_memory_bytes: null, mean_memory_bytes: null, mean_utilization_percent: null, idle_seconds: 0, energy_joules: null, ...changes })

describe('their GPUs', () => {
  const process = { ...someProcess, user: 'ann', command: 'python train.py', memory_used_bytes: 8 * GIB, started_at: NOW - 7200 }
  it('have a row each, in the order of hosts and labels', () => {
    const people = activeUsers([host('gpu10', [busyGpu('ann', { processes: [process] })]), host('gpu2', [busyGpu('ann', { processes: [process], since: NOW - 60 })])])
    const rows = userGpus(people[0], NOW)
    expect(rows.map(({ place }) => place)).toEqual(['gpu2: 0', 'gpu10: 0'])
    expect(rows[0]).toMatchObject({ stateText: 'busy for 1m', memory: { text: '8.0 GiB of 80 GiB' }, commands: ['python train.py'] })
  })
  it('say why a command is not shown, and what a silent host last told', () => {
    const hidden = { ...process, command: null, reasons: { command: 'shown to its owner only' } }
    const silent = host('gpu01', [busyGpu('ann', { processes: [hidden], availability: 'unknown', last_seen: 'busy' })], { status: 'down', last_report_at: NOW - 120 })
    const [row] = userGpus(activeUsers([silent])[0], NOW)
    expect(row).toMatchObject({ isPast: true, state: 'unknown', stateText: 'no report for 2m; was busy', commands: ['process 1: shown to its owner only'] })
  })
  it('are none of somebody who is not there', () => expect(userGpus(undefined, NOW)).toEqual([]))
})

describe('runs', () => {
  it('that go on come first, then the latest, whatever their ids', () => {
    const runs = [run(9, { seen_at: NOW - 9000 }), run(2, { seen_at: NOW - 100 }), run(1, { ended_at: null }), run(9, { seen_at: NOW - 9000 })]
    expect(sortRuns(runs).map(({ id }) => id)).toEqual([1, 2, 9])
  })
  it('have a time to be drawn over, also those of a moment', () => {
    expect(runBounds(run(1, { seen_at: NOW, ended_at: NOW }), NOW)).toEqual({ start: NOW - 60, end: NOW + 1 })
    expect(runBounds(run(1, { ended_at: null }), NOW)).toEqual({ start: NOW - 1000, end: NOW + 1 })
  })
})
