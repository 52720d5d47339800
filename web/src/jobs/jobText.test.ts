import { expect, test } from 'vitest'
import type { JobReport } from '../api/jobs'
import { NOW } from '../testing/samples'
import { idleText, jobFacts, jobFigures, jobRow, jobState } from './jobText'

const JOB: JobReport = {
  job: '4711', scheduler: 'slurm', name: 'train', user: 'ada', account: 'physics', partition: 'gpu', qos: null, namespace: null, labels: {}, hosts: ['gpu01', 'gpu02', 'gpu03', 'gpu04'], gpu_count: 8,
  start: NOW - 7200, ended_at: null, until: NOW + 3600, last_seen: NOW, wall_seconds: 7200, state: 'running', outcome: null, allocated_hours: 16, unmonitored_hours: 0, used_hours: 4, unused_hours: 12, idle_hours: 1, active_hours: null,
  utilization_percent: null, utilization_peak_percent: null, memory_mean_bytes: null, memory_peak_bytes: null, energy_kwh: null, cost: null, coverage: 0.5, currency: 'EUR', gpus: [], nodes: [], verdict: null, state_reason: null,
}

test('a row says what was given and what of it was left unused', () => {
  expect(jobRow(JOB, NOW)).toMatchObject({ job: '4711', user: 'ada', place: 'physics, gpu', hosts: 'gpu01, gpu02 and 2 more', lasted: '2h', isRunning: true, isWasteful: true, unused: '12.0 (75.0 %)', utilization: '–' })
})

test('what is not known is not said, or is a dash', () => {
  expect(jobFacts(JOB, NOW).map(({ label }) => label)).toEqual(['Scheduler', 'Account', 'Partition', 'Started', 'Time limit', 'Wall time'])
  expect(jobFacts({ ...JOB, state: 'unknown' }, NOW).map(({ label }) => label)).toContain('Last seen')
  const figures = new Map(jobFigures(JOB).map(({ label, text }) => [label, text]))
  expect([figures.get('active'), figures.get('Energy'), figures.get('Cost'), figures.get('Coverage')]).toEqual(['–', '–', '–', '50.0 %'])
})

test('how it ended stands beside its state', () => {
  expect(jobState({ state: 'ended', outcome: 'FAILED (exit code 1)', state_reason: null })).toBe('ended: FAILED (exit code 1)')
  expect(jobState({ state: 'unknown', outcome: null, state_reason: 'Slurm cannot be read' })).toBe('unknown: Slurm cannot be read')
})

test('the longest idle stretch is named', () => {
  expect(idleText([[NOW - 7000, NOW - 6900], [NOW - 6000, NOW - 2400]], NOW)).toMatch(/^2 stretches, the longest 1h from /)
  expect([idleText([], NOW), idleText(null, NOW)]).toEqual(['none', '–'])
})
