import { beforeEach, describe, expect, it } from 'vitest'
import { busyGpu, fleet, GIB, gpu, host, NOW, totals } from '../samples'
import { FleetModel } from './fleet'

let model: FleetModel

beforeEach(() => {
  model = new FleetModel()
  model.load(fleet([host('gpu01', [gpu(), busyGpu('ann')]), host('gpu02', [gpu()])], { demo: true }))
})

describe('a snapshot', () => {
  it('brings hosts, totals, time and whether all this is a demo', () => {
    expect([...model.entries.keys()]).toEqual(['gpu01', 'gpu02'])
    expect(model).toMatchObject({ demo: true, time: NOW, totals: { hosts: 2 } })
  })

  it('replaces everything: a host that is not in it is gone', () => {
    model.load(fleet([host('gpu02', [gpu()])]))
    expect([...model.entries.keys()]).toEqual(['gpu02'])
  })

  it('keeps the entry of a host that stays, so that what is drawn for it stays', () => {
    const before = model.entries.get('gpu02')
    model.load(fleet([host('gpu02', [busyGpu('bob')])]))
    expect(model.entries.get('gpu02')).toBe(before)
    expect(before?.host.gpus[0]?.users).toEqual(['bob'])
  })
})

describe('a delta', () => {
  const apply = (delta: object) => model.apply({ time: NOW + 1, totals: totals({ gpus: 3 }), ...delta })

  it('without changes only beats', () => {
    expect(apply({})).toBe(false)
    expect(model).toMatchObject({ time: NOW + 1, totals: { gpus: 3 } })
  })

  it('changes only the fields it names', () => {
    apply({ changes: [{ id: 'gpu01', cpu_percent: 50, gpus: [{ uuid: 'gpu01-1', utilization_percent: 12 }] }] })
    const changed = model.entries.get('gpu01')?.host
    expect(changed).toMatchObject({ cpu_percent: 50, memory_total_bytes: 2015 * GIB })
    expect(changed?.gpus[1]).toMatchObject({ utilization_percent: 12, users: ['ann'] })
    expect(changed?.gpus[0]).toMatchObject({ utilization_percent: 0 })
  })

  it('finds each GPU by its name, in whatever order they come', () => {
    const changed = [
      { uuid: 'gpu01-1', temperature_celsius: 81 },
      { uuid: 'elsewhere', temperature_celsius: 99 },
      { uuid: 'gpu01-0', temperature_celsius: 31, memory_used_bytes: 7 * GIB },
    ]
    apply({ changes: [{ id: 'gpu01', gpus: changed }] })
    expect(model.entries.get('gpu01')?.host.gpus).toMatchObject([{ temperature_celsius: 31, memory_used_bytes: 7 * GIB }, { temperature_celsius: 81 }])
  })

  it('takes over every field, whether it changes often or once a year', () => {
    const shown = model.entries.get('gpu02')!.host.gpus[0]!
    const change = Object.fromEntries(Object.keys(shown).map((name, i) => [name, name === 'uuid' ? shown.uuid : i + 0.5]))
    apply({ changes: [{ id: 'gpu02', gpus: [change] }] })
    expect(model.entries.get('gpu02')?.host.gpus[0]).toEqual(change)
  })

  it('tells only what belongs to the changed host to draw again', () => {
    const versions = () => [...model.entries.values()].map((entry) => entry.version.read())
    const [first, second] = versions()
    apply({ changes: [{ id: 'gpu01', cpu_percent: 51 }] })
    expect(versions()).toEqual([first! + 1, second])
  })

  it('makes a value unknown when it becomes null', () => {
    apply({ changes: [{ id: 'gpu01', gpus: [{ uuid: 'gpu01-0', power_watts: null, reasons: { power_watts: 'gone' } }] }] })
    expect(model.entries.get('gpu01')?.host.gpus[0]).toMatchObject({ power_watts: null, reasons: { power_watts: 'gone' } })
  })

  it('inserts, replaces and removes whole hosts, and says that the board is another one', () => {
    expect(apply({ hosts: [host('gpu03', [gpu()]), host('gpu02', [gpu(), gpu()])], removed: ['gpu01'] })).toBe(true)
    expect([...model.entries].map(([id, entry]) => [id, entry.host.gpus.length])).toEqual([
      ['gpu02', 2],
      ['gpu03', 1],
    ])
  })

  it('brings the hub\u2019s own problems where they changed', () => {
    apply({ problems: ['hosts.txt cannot be read'] })
    apply({})
    expect(model.problems).toEqual(['hosts.txt cannot be read'])
    apply({ problems: [] })
    expect(model.problems).toEqual([])
  })

  it('says that the board is another one when a host falls silent', () => {
    expect(apply({ changes: [{ id: 'gpu01', status: 'late' }] })).toBe(true)
  })

  it('passes over hosts and GPUs that it does not know', () => {
    expect(apply({ changes: [{ id: 'nowhere' }, { id: 'gpu01', gpus: [{ uuid: 'none', utilization_percent: 3 }] }] })).toBe(false)
  })
})

describe('a summary of a host', () => {
  it('counts states and adds up what is known', () => {
    model.load(
      fleet([host('gpu01', [busyGpu('ann', { temperature_celsius: 68, power_watts: 300 }), gpu({ temperature_celsius: null, utilization_percent: null, power_watts: null })])]),
    )
    expect(model.entries.get('gpu01')?.summary).toMatchObject({
      counts: { free: 1, busy: 1, held: 0, booked: 0, unknown: 0 },
      users: ['ann'],
      utilization: 97,
      hottest: 68,
      power: 300,
    })
  })

  it('is unknown where no GPU knows', () => {
    model.load(fleet([host('gpu01', [gpu({ utilization_percent: null, temperature_celsius: null, power_watts: null })])]))
    expect(model.entries.get('gpu01')?.summary).toMatchObject({ utilization: null, hottest: null, power: null })
  })

  it('follows a change', () => {
    const entry = model.entries.get('gpu02')
    expect(entry?.summary.counts.free).toBe(1)
    entry?.change({ id: 'gpu02', gpus: [{ uuid: 'gpu02-0', availability: 'held', health: 'critical' }] })
    expect(entry?.summary).toMatchObject({ counts: { free: 0, held: 1 }, health: 'critical' })
  })
})

it('ranks hosts by name as people count', () => {
  model.load(fleet(['gpu10', 'gpu9', 'GPU1'].map((name) => host(name, []))))
  const byRank = [...model.entries.values()].sort((a, b) => a.rank - b.rank)
  expect(byRank.map((entry) => entry.id)).toEqual(['GPU1', 'gpu9', 'gpu10'])
})
