import { describe, expect, it } from 'vitest'
import { busyGpu, GIB, gpu, host, NOW } from '../testing/samples'
import { gpuCell, gpuLine } from './gpuLine'

const up = host('gpu01', [])
const silent = host('gpu01', [], { status: 'late', last_report_at: NOW - 14 })

describe('a busy GPU', () => {
  const line = gpuLine(busyGpu('alice', { temperature_celsius: 68 }), up, NOW)

  it('says who, how much and since when', () => {
    expect(line).toMatchObject({
      state: 'busy',
      who: { text: 'alice' },
      users: ['alice'],
      utilization: { text: '97%' },
      utilizationFraction: 0.97,
      memory: { text: '71/80G' },
      memoryFraction: 71 / 80,
      temperature: { text: '68°' },
      power: { text: '60 W' },
      since: { text: '3h' },
    })
  })

  it('speaks the whole line', () => {
    expect(line.spoken).toBe('GPU 0 alice 97% 71/80G 68° 60 W 3h, busy')
  })

  it('names everybody on it', () => {
    expect(gpuLine(busyGpu('x', { users: ['alice', 'bob'] }), up, NOW).who).toEqual({ text: 'alice, bob', title: 'alice, bob' })
  })

  it('says why nobody is named', () => {
    const orphan = gpuLine(busyGpu('x', { users: [], availability_reason: 'memory is held, but no process is on it' }), up, NOW)
    expect(orphan.who).toEqual({ text: 'no process', title: 'memory is held, but no process is on it' })
    const blind = gpuLine(busyGpu('x', { users: [], processes: null, reasons: { processes: 'no permission' } }), up, NOW)
    expect(blind.who).toEqual({ text: '–', title: 'no permission' })
  })
})

describe('other states', () => {
  it('free shows its size and no figures of work', () => {
    expect(gpuLine(gpu(), up, NOW)).toMatchObject({ state: 'free', who: { text: 'free' }, utilization: { text: '' }, utilizationFraction: null, memory: { text: '80G' }, memoryFraction: null, users: [] })
  })

  it('held says so in a word', () => {
    expect(gpuLine(busyGpu('carol', { availability: 'idle' }), up, NOW)).toMatchObject({ word: 'idle', who: { text: 'carol' } })
  })

  it('in use and reserved says by whom', () => {
    const reservation = { id: 1, kind: 'reservation' as const, user: 'dan', until: NOW + 3600, note: '', scheduler: null }
    expect(gpuLine(busyGpu('ann', { reservation }), up, NOW).reserved?.text).toBe('reserved: dan')
    expect(gpuLine(busyGpu('ann', { reservation }), up, NOW).spoken).toContain('reserved: dan')
    expect(gpuLine(busyGpu('dan', { reservation }), up, NOW).reserved?.text).toBe('reserved')
    expect(gpuLine(gpu({ availability: 'reserved', reservation }), up, NOW).reserved).toBeNull()
    expect(gpuLine(busyGpu('ann'), up, NOW).reserved).toBeNull()
  })

  it('reserved says by whom and until when', () => {
    const end = new Date(NOW * 1000)
    end.setHours(23, 5)
    const line = gpuLine(gpu({ availability: 'reserved', reservation: { id: 1, kind: 'reservation', user: 'dan', until: end.getTime() / 1000, note: '', scheduler: null } }), up, NOW)
    expect(line.who.text).toBe('reserved by dan until 23:05')
  })

  it('unknown gives its reason in the place of a name', () => {
    expect(gpuLine(gpu({ availability: 'unknown', availability_reason: 'fell off the bus', utilization_percent: null }), up, NOW).who.text).toBe('fell off the bus')
  })
})

it('shows an unknown figure as a dash with its reason, never as zero', () => {
  const blind = busyGpu('ann', { utilization_percent: null, temperature_celsius: null, memory_used_bytes: null, reasons: { utilization_percent: 'not readable under MIG' } })
  const line = gpuLine(blind, up, NOW)
  expect(line.utilization).toEqual({ text: '–', title: 'not readable under MIG' })
  expect(line.temperature).toEqual({ text: '–', title: 'not reported' })
  expect(line.memory.text).toBe('–/80G')
  expect(line.memoryFraction).toBeNull()
  expect(line.utilizationFraction).toBeNull()
})

describe('a GPU of a silent host', () => {
  it('is unknown and shows what was last', () => {
    const line = gpuLine(busyGpu('bob', { availability: 'unknown', last_seen: 'busy' }), silent, NOW)
    expect(line).toMatchObject({ state: 'unknown', isPast: true, who: { text: 'last: bob' }, users: [], utilization: { text: '97%' }, since: { text: '' } })
  })

  it('never looks free, whatever it was', () => {
    const line = gpuLine(gpu({ availability: 'unknown', last_seen: 'free' }), silent, NOW)
    expect(line).toMatchObject({ state: 'unknown', who: { text: 'last: free' } })
  })
})

describe('health', () => {
  it('is quiet when well or not known', () => {
    expect(gpuLine(gpu(), up, NOW).alarm).toBeUndefined()
    expect(gpuLine(gpu({ health: 'unknown' }), up, NOW).alarm).toBeUndefined()
  })

  it('says what is wrong and what to do', () => {
    const hot = gpu({ health: 'warning', health_reason: '91 °C', health_action: 'Check the fans.' })
    expect(gpuLine(hot, up, NOW)).toMatchObject({ alarm: 'warning: 91 °C. Check the fans.', isHot: true, isCritical: false })
  })

  it('says that a fault is past where the GPU is reporting again', () => {
    const fault = { at: NOW - 3 * 3600, code: 79, kind: 'critical' as const, text: '', message: '', process: null, user: null }
    const fallen = { health: 'critical' as const, health_reason: 'XID 79: it fell off the bus', health_action: null, events: [fault] }
    expect(gpuLine(gpu({ ...fallen, availability: 'busy' }), up, NOW).alarm).toBe('critical: XID 79: it fell off the bus, 3h ago; it is reporting again')
    expect(gpuLine(gpu({ ...fallen, availability: 'unknown' }), up, NOW).alarm).toBe('critical: XID 79: it fell off the bus')
  })

  it('blames the temperature only where it is to blame', () => {
    const ill = (health_reason: string) => gpuLine(gpu({ health: 'critical', health_reason }), up, NOW).isHot
    expect([ill('XID 79: it has fallen off the bus'), ill('NVLink: 2 down'), ill('96 °C')]).toEqual([false, false, true])
  })
})

describe('a cell of the table', () => {
  it('speaks state and user', () => {
    expect(gpuCell(busyGpu('alice'), up, NOW)).toMatchObject({ state: 'busy', hasAlarm: false, spoken: 'GPU 0, busy, alice' })
    expect(gpuCell(gpu(), up, NOW).spoken).toBe('GPU 0, free')
  })

  it('speaks of what is wrong', () => {
    const hot = gpu({ health: 'critical', health_reason: '96 °C' })
    expect(gpuCell(hot, up, NOW)).toMatchObject({ hasAlarm: true, isCritical: true, spoken: 'GPU 0, free, critical: 96 °C' })
  })

  it('of a silent host is unknown', () => {
    const line = gpuCell(gpu({ availability: 'unknown', last_seen: 'free' }), silent, NOW)
    expect(line).toMatchObject({ state: 'unknown', spoken: 'GPU 0, unknown, last: free' })
  })
})

it('takes the sting out of names that turn the text around', () => {
  expect(gpuLine(busyGpu('\u202eevil', { memory_used_bytes: GIB }), up, NOW).who.text).toBe('\ufffdevil')
})
