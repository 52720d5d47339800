import { describe, expect, it } from 'vitest'
import type { Usage, UsageRow } from '../api/types'
import { totals } from '../testing/samples'
import { fleetKpis, usageKpis, type Kpi } from './kpis'

const row = (changes: Partial<UsageRow> = {}): UsageRow => ({ gpu_hours: 270, measured_hours: 248, active_hours: 115, idle_hours: 62.5, share: 1, peak_memory_bytes: null, energy_kwh: 58.9, unknown: false, ...changes })
const usage = (total: Partial<UsageRow> = {}, changes: Partial<Usage> = {}): Usage => ({ by: 'model', start: 0, end: 86_400, coverage: 1, monitored_gpu_hours: 376, currency: 'EUR', rows: [row(total)], total: row(total), known_since: null, allocated_since: null, unpriced_models: [], ...changes })
const NONE = { total: 0, needs_attention: 0, critical: 0 }
const loading = { usage: null, reason: 'loading' }
const known = (total: Partial<UsageRow> = {}, changes: Partial<Usage> = {}) => ({ usage: usage(total, changes), reason: '' })
const named = (kpis: readonly Kpi[], label: string): Kpi | undefined => kpis.find((kpi) => kpi.label === label)

describe('the fleet', () => {
  const now = totals({ gpus: 135, free: 36, idle: 20, hosts: 24, hosts_up: 23, power_watts: 24_300 })

  it('is told by figures that say of what they are', () => {
    const kpis = fleetKpis(now, 0, NONE, known())
    expect(kpis.map(({ label, text, note }) => `${label}: ${text} ${note}`)).toEqual([
      'Free now: 36 of 135 GPUs',
      'Idle now: 20 in use without work',
      'Utilization, 24 h: 46.4 % 115 of 248 measured hours',
      'GPU-hours, 24 h: 270 of 376 monitored',
      'Power: 24.3 kW 23 of 24 hosts up',
      'Problems: 0 nothing needs attention',
    ])
  })

  it('shows a dash and the reason for what is not known, never a zero', () => {
    const kpis = fleetKpis(totals({ power_watts: null }), 0, NONE, loading)
    expect(named(kpis, 'Utilization, 24 h')).toMatchObject({ text: '–', note: 'loading' })
    expect(named(kpis, 'GPU-hours, 24 h')).toMatchObject({ text: '–', note: 'loading' })
    expect(named(kpis, 'Power')).toMatchObject({ text: '–', note: 'no GPU reports power' })
    const unmonitored = fleetKpis(now, 0, NONE, known({ active_hours: null, measured_hours: 0 }, { coverage: null }))
    expect(named(unmonitored, 'GPU-hours, 24 h')).toMatchObject({ text: '–', note: 'nothing recorded yet' })
    expect(named(unmonitored, 'Utilization, 24 h')).toMatchObject({ text: '–', note: 'nothing recorded yet' })
    const unmeasured = fleetKpis(now, 0, NONE, known({ active_hours: null, measured_hours: 0 }))
    expect(named(unmeasured, 'Utilization, 24 h')).toMatchObject({ text: '–', note: 'not measured' })
  })

  it('counts MIG slices apart, and says how much of the day it knows', () => {
    const kpis = fleetKpis(now, 11, NONE, known({ measured_hours: 270 }, { coverage: 0.5 }))
    expect(named(kpis, 'Free now')?.note).toBe('of 124 GPUs, 11 MIG slices')
    expect(named(fleetKpis(now, 135, NONE, loading), 'Free now')?.note).toBe('of 135 MIG slices')
    expect(named(kpis, 'Utilization, 24 h')?.note).toBe('115 of 270 hours in use')
    expect(named(kpis, 'GPU-hours, 24 h')?.note).toBe('of 376 monitored · coverage 50 %')
  })

  it('writes large numbers alike', () => {
    const large = fleetKpis(totals({ gpus: 8000, free: 1190, hosts: 1000, hosts_up: 1000, power_watts: 9 }), 0, NONE, loading)
    expect(named(large, 'Free now')).toMatchObject({ text: '1,190', note: 'of 8,000 GPUs' })
    expect(named(large, 'Power')?.note).toBe('1,000 of 1,000 hosts up')
  })

  it('is red only where something is critical', () => {
    const problem = (needs_attention: number, critical: number) => named(fleetKpis(now, 0, { total: 9000, needs_attention, critical }, loading), 'Problems')
    expect(problem(0, 0)).toMatchObject({ text: '0', note: 'nothing needs attention' })
    expect(problem(0, 0)?.tone).toBeUndefined()
    expect(problem(2, 0)).toMatchObject({ text: '2', tone: 'warning', note: 'alerts: 2 warnings' })
    expect(problem(2, 1)).toMatchObject({ text: '2', tone: 'critical', note: 'alerts: 1 critical, 1 warning' })
    expect(problem(1200, 1200)).toMatchObject({ text: '1,200', note: 'alerts: 1,200 critical' })
  })

  it('is green only where something is free', () => {
    expect(named(fleetKpis(now, 0, NONE, loading), 'Free now')?.tone).toBe('free')
    expect(named(fleetKpis(totals({ free: 0 }), 0, NONE, loading), 'Free now')?.tone).toBeUndefined()
  })
})

describe('a period', () => {
  it('has its price where there is one', () => {
    expect(named(fleetKpis(totals(), 0, NONE, known({ cost: 123.4 })), 'GPU-hours, 24 h')?.note).toBe('123 EUR · of 376 monitored')
    expect(named(fleetKpis(totals(), 0, NONE, known({ cost: 123.4 }, { unpriced_models: ['NVIDIA L40S'] })), 'GPU-hours, 24 h')?.note).toBe('≥ 123 EUR · of 376 monitored')
    expect(named(usageKpis(known({ cost: 123.4 }), true), 'Cost')?.text).toBe('123 EUR')
    expect(named(usageKpis(known({ cost: 123.4 }, { unpriced_models: ['NVIDIA L40S'] }), true), 'Cost')?.note).toBe('of models with a price')
    expect(named(usageKpis(known(), false), 'Cost')).toBeUndefined()
  })

  it('has ratios that can be computed from what stands beside them', () => {
    const idle = named(usageKpis(known(), false), 'Idle hours')
    expect(idle).toMatchObject({ text: '62.5', note: '23.1 % of the GPU-hours' })
    expect((62.5 / 270) * 100).toBeCloseTo(23.1, 1)
  })

  it('is unknown as long as it is loading', () => {
    expect(usageKpis(loading, true).map(({ text }) => text)).toEqual(['–', '–', '–', '–', '–'])
  })
})
