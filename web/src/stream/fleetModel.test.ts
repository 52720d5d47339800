import { beforeEach, describe, expect, it } from 'vitest'
import { busyGpu, fleet, GIB, gpu, host, NOW, snapshot, someAlert, someProcess, totals } from '../testing/samples'
import { FleetModel } from './fleetModel'

let model: FleetModel

beforeEach(() => {
  model = new FleetModel()
  model.load(snapshot([host('gpu01', [gpu(), busyGpu('ann')]), host('gpu02', [gpu()])], { demo: true }))
})

const hostOf = (id: string) => model.entries.get(id)!.host
const gpusOf = (id: string) => hostOf(id).gpus

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

describe('alerts that need attention', () => {
  const disk = someAlert({ id: 'a1', host: 'gpu01', host_id: 'gpu01', severity: 'warning', title: '/data of gpu01 is 96 % full' })
  const told = () => [...model.entries.values()].map(({ alerts, level }) => [alerts.map(({ id }) => id), level])

  it('stand at their hosts, as many as the fleet counts, and go again', () => {
    const muted = someAlert({ id: 'a2', host: 'gpu02', host_id: 'gpu02', muted_by: 'm1' })
    const hub = someAlert({ id: 'a3', host: null, host_id: null })
    apply({ alerts: [disk, muted, hub], alert_counts: { total: 3, needs_attention: 2, critical: 1 } })
    expect(told()).toEqual([[['a1'], 'warning'], [[], 'ok']])
    const before = versions()
    apply({ alerts: [{ ...disk }, muted] })
    expect(versions()).toEqual(before)
    apply({ alerts: [{ ...disk, state: 'acknowledged' }] })
    expect(told()).toEqual([[[], 'ok'], [[], 'ok']])
  })

  it('make a host as bad as the worst of them', () => {
    apply({ alerts: [disk, someAlert({ id: 'a4', host: 'gpu01', host_id: 'gpu01', severity: 'critical' })] })
    expect(told()[0]).toEqual([['a1', 'a4'], 'critical'])
  })
})

const apply = (delta: object) => model.apply({ time: NOW + 1, totals: totals({ gpus: 3 }), ...delta })
const FITS = { reshaped: false, fits: true }
const versions = () => [...model.entries.values()].map((entry) => entry.version.read())

describe('a delta', () => {
  it('without changes only updates the totals', () => {
    expect(apply({})).toEqual(FITS)
    expect(model).toMatchObject({ time: NOW + 1, totals: { gpus: 3 } })
  })

  it('changes only the fields it names', () => {
    apply({ changes: [{ id: 'gpu01', os: 'Debian 14', gpus: [{ uuid: 'gpu01-1', health: 'warning' }] }] })
    expect(hostOf('gpu01')).toMatchObject({ os: 'Debian 14', memory_total_bytes: 2015 * GIB })
    expect(gpusOf('gpu01')).toMatchObject([{ health: 'ok' }, { health: 'warning', users: ['ann'] }])
  })

  it('finds each GPU by its name, in whatever order they come', () => {
    const changed = [
      { uuid: 'gpu01-1', since: 81 },
      { uuid: 'elsewhere', since: 99 },
      { uuid: 'gpu01-0', since: 31, users: ['bob'] },
    ]
    apply({ changes: [{ id: 'gpu01', gpus: changed }] })
    expect(gpusOf('gpu01')).toMatchObject([{ since: 31, users: ['bob'] }, { since: 81 }])
  })

  it('tells only what belongs to the changed host to draw again, and once', () => {
    const [first, second] = versions()
    apply({ changes: [{ id: 'gpu01', os: 'x' }], gpus: { rows: [0, 1], power_watts: [1, 2] }, reports: { rows: [0], last_report_at: [NOW] } })
    expect(versions()).toEqual([first! + 1, second])
  })

  it('inserts, replaces and removes whole hosts, and says that the board is another one', () => {
    expect(apply({ hosts: [host('gpu03', [gpu()]), host('gpu02', [gpu(), gpu()])], removed: ['gpu01'] })).toMatchObject({ reshaped: true })
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
    expect(apply({ changes: [{ id: 'gpu01', status: 'late' }] })).toEqual({ reshaped: true, fits: true })
  })

  it('passes over hosts and GPUs that it does not know', () => {
    expect(apply({ changes: [{ id: 'nowhere' }, { id: 'gpu01', gpus: [{ uuid: 'none', health: 'ok' }] }] })).toEqual(FITS)
  })

  it('passes over what it has never heard of', () => {
    const unheard = { weather: 'fine', gpus: { rows: [0], moon_phase: [3], power_watts: [70] }, reports: { rows: [0], tide: { at: [0], to: [1] } } }
    expect(apply(unheard)).toEqual(FITS)
    expect(gpusOf('gpu01')[0]).toMatchObject({ power_watts: 70 })
    expect(gpusOf('gpu01')[0]).not.toHaveProperty('moon_phase')
    expect(hostOf('gpu01')).not.toHaveProperty('tide')
  })
})

describe('the arrays of a delta', () => {
  it('hold one value for each row', () => {
    expect(apply({ gpus: { rows: [1, 2], utilization_percent: [12, 34], power_watts: [100, 200] } })).toEqual(FITS)
    expect(gpusOf('gpu01')).toMatchObject([{ utilization_percent: 0 }, { utilization_percent: 12, power_watts: 100, users: ['ann'] }])
    expect(gpusOf('gpu02')).toMatchObject([{ utilization_percent: 34, power_watts: 200 }])
  })

  it('or the values at some of them', () => {
    apply({ gpus: { rows: [0, 1, 2], power_watts: [1, 2, 3], temperature_celsius: { at: [2, 0], to: [50, null] } } })
    expect([...gpusOf('gpu01'), ...gpusOf('gpu02')]).toMatchObject([
      { power_watts: 1, temperature_celsius: null },
      { power_watts: 2, temperature_celsius: 31 },
      { power_watts: 3, temperature_celsius: 50 },
    ])
  })

  it('make a value unknown with null; its reason stands beside it', () => {
    apply({ changes: [{ id: 'gpu01', gpus: [{ uuid: 'gpu01-0', reasons: { power_watts: 'gone' } }] }], gpus: { rows: [0], power_watts: [null] } })
    expect(gpusOf('gpu01')[0]).toMatchObject({ power_watts: null, reasons: { power_watts: 'gone' } })
  })

  it('say which hosts reported, and what', () => {
    apply({ reports: { rows: [1, 0], last_report_at: [NOW + 1, NOW + 2], cpu_percent: { at: [1], to: [50] } } })
    expect([hostOf('gpu01'), hostOf('gpu02')]).toMatchObject([
      { last_report_at: NOW + 2, cpu_percent: 50 },
      { last_report_at: NOW + 1, cpu_percent: 22 },
    ])
  })

  it('hold the numbers of processes', () => {
    const processes = [{ ...someProcess }, { ...someProcess, pid: 2, memory_used_bytes: 5 }]
    apply({ changes: [{ id: 'gpu01', gpus: [{ uuid: 'gpu01-1', processes }] }], processes: { rows: [1], memory_used_bytes: [[7, null]], utilization_percent: [[1, 2]] } })
    expect(gpusOf('gpu01')[1]?.processes).toMatchObject([
      { pid: 1, memory_used_bytes: 7, utilization_percent: 1 },
      { pid: 2, memory_used_bytes: null, utilization_percent: 2 },
    ])
  })

  it('do not fit where a GPU has other processes; those that fit are written', () => {
    apply({ changes: [{ id: 'gpu02', gpus: [{ uuid: 'gpu02-0', processes: [{ ...someProcess }] }] }] })
    expect(apply({ processes: { rows: [0, 2], memory_used_bytes: [[7], [8]], utilization_percent: [[1], [2]] } })).toMatchObject({ fits: false })
    expect(gpusOf('gpu02')[0]?.processes).toMatchObject([{ memory_used_bytes: 8 }])
  })

  it.each(['gpus', 'reports'])('do not fit where a row belongs to nobody; those that fit are written (%s)', (part) => {
    expect(apply({ [part]: { rows: [0, 9], memory_used_bytes: [1, 2] } })).toMatchObject({ fits: false })
    expect(part === 'gpus' ? gpusOf('gpu01')[0] : hostOf('gpu01')).toMatchObject({ memory_used_bytes: 1 })
  })

  it('may be applied twice', () => {
    const delta = { gpus: { rows: [1], power_watts: [7] } }
    apply(delta)
    expect(apply(delta)).toEqual(FITS)
    expect(gpusOf('gpu01')[1]).toMatchObject({ power_watts: 7 })
  })

  it('change the inventory with the memory', () => {
    apply({ changes: [{ id: 'gpu02', gpus: [{ uuid: 'gpu02-0', display_name: 'A100' }] }] })
    expect(model.entries.get('gpu02')?.inventory).toBe('1× A100 80G')
    apply({ gpus: { rows: [2], memory_total_bytes: [40 * GIB] } })
    expect(model.entries.get('gpu02')?.inventory).toBe('1× A100 40G')
  })
})

describe('rows', () => {
  it('follow a host that is sent again with other GPUs', () => {
    apply({ hosts: [host('gpu01', [gpu(), gpu(), gpu()])], rows: [['gpu01', 0, 3]], gpus: { rows: [5], power_watts: [7] } })
    expect(gpusOf('gpu01')).toMatchObject([{ power_watts: 60 }, { power_watts: 60 }, { power_watts: 7 }])
    expect(apply({ gpus: { rows: [0], power_watts: [9] } })).toMatchObject({ fits: false })
  })

  it('pass from one host to another in one delta', () => {
    const hosts = [host('gpu01', [gpu()]), host('gpu02', [gpu(), gpu()])]
    const delta = { hosts, rows: [['gpu01', 1, 2], ['gpu02', 0, 0]], gpus: { rows: [0, 1, 2], power_watts: [1, 2, 3] }, reports: { rows: [0, 1], cpu_percent: [10, 11] } }
    expect(apply(delta)).toMatchObject({ fits: true })
    expect(gpusOf('gpu02')).toMatchObject([{ power_watts: 1 }, { power_watts: 2 }])
    expect(gpusOf('gpu01')).toMatchObject([{ power_watts: 3 }])
    expect([hostOf('gpu01').cpu_percent, hostOf('gpu02').cpu_percent]).toEqual([11, 10])
  })

  it('stay with the host that claimed them when the one that had them before goes', () => {
    apply({ hosts: [host('gpu03', [gpu()])], rows: [['gpu03', 0, 1]] })
    apply({ removed: ['gpu01'] })
    expect(apply({ gpus: { rows: [1], power_watts: [7] }, reports: { rows: [0], cpu_percent: [9] } })).toEqual(FITS)
    expect(hostOf('gpu03')).toMatchObject({ cpu_percent: 9, gpus: [{ power_watts: 7 }] })
  })

  it('belong to nobody when their host is gone', () => {
    apply({ removed: ['gpu01'] })
    expect(apply({ gpus: { rows: [0], power_watts: [7] } })).toMatchObject({ fits: false })
    expect(apply({ gpus: { rows: [2], power_watts: [7] } })).toEqual(FITS)
  })

  it('are those of the last snapshot', () => {
    model.load(snapshot([host('gpu02', [gpu()]), host('gpu01', [gpu()])]))
    apply({ gpus: { rows: [0], power_watts: [7] } })
    expect([gpusOf('gpu02')[0]?.power_watts, gpusOf('gpu01')[0]?.power_watts]).toEqual([7, 60])
    model.load(fleet([host('gpu01', [gpu()])]))
    expect(apply({ gpus: { rows: [0], power_watts: [8] } })).toMatchObject({ fits: false })
  })
})

describe('what no delta brings', () => {
  const entry = () => model.entries.get('gpu01')!
  const read = host('gpu01', [gpu({ energy_joules: 5, power_watts: 999 }), gpu({ energy_joules: 6 })], { swap_used_bytes: 4, cpu_percent: 99 })

  it('is taken from the host that is read, and nothing else is', () => {
    const version = entry().version.read()
    entry().refresh(read, NOW + 5)
    expect(entry().host).toMatchObject({ swap_used_bytes: 4, cpu_percent: 22, gpus: [{ energy_joules: 5, power_watts: 60 }, { energy_joules: 6, users: ['ann'] }] })
    expect(entry().version.read()).toBe(version + 1)
  })

  it('stays where the host that is read no longer has the GPU', () => {
    entry().refresh(host('gpu01', []), NOW + 5)
    expect(entry().host.gpus).toMatchObject([{ clock_sm_mhz: 210 }, { clock_sm_mhz: 210 }])
  })

  it('is current for a while after a whole host came or was read', () => {
    expect([entry().isRead(NOW + 14), entry().isRead(NOW + 16)]).toEqual([true, false])
    entry().refresh(read, NOW + 5)
    expect(entry().isRead(NOW + 16)).toBe(true)
    apply({ time: NOW + 60, hosts: [read], rows: [['gpu01', 0, 0]] })
    expect(entry().isRead(NOW + 61)).toBe(true)
  })
})

describe('a summary of a host', () => {
  it('counts states and adds up what is known', () => {
    model.load(
      fleet([host('gpu01', [busyGpu('ann', { temperature_celsius: 68, power_watts: 300 }), gpu({ temperature_celsius: null, utilization_percent: null, power_watts: null })])]),
    )
    expect(model.entries.get('gpu01')?.summary).toMatchObject({
      counts: { free: 1, busy: 1, idle: 0, reserved: 0, drained: 0, unknown: 0 },
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
    apply({ changes: [{ id: 'gpu02', gpus: [{ uuid: 'gpu02-0', availability: 'idle', health: 'critical' }] }], gpus: { rows: [2], power_watts: [7] } })
    expect(entry?.summary).toMatchObject({ counts: { free: 0, idle: 1 }, health: 'critical', power: 7 })
  })
})

it('ranks hosts by name as people count', () => {
  model.load(fleet(['gpu10', 'gpu9', 'GPU1'].map((name) => host(name, []))))
  const byRank = [...model.entries.values()].sort((a, b) => a.rank - b.rank)
  expect(byRank.map((entry) => entry.id)).toEqual(['GPU1', 'gpu9', 'gpu10'])
})
