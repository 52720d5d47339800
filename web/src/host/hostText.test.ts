import { describe, expect, it } from 'vitest'
import { busyGpu, entry, gpu, host, NOW } from '../testing/samples'
import { HostEntry } from '../stream/fleetModel'
import { hostText, rowText } from './hostText'
import { noteCount } from '../fleet/layout'

const text = (changes: Parameters<typeof entry>[2]) => hostText(entry('gpu01', ['free'], changes), NOW)

describe('a title', () => {
  it('names the host, what it carries and how long it is up', () => {
    expect(text({})).toMatchObject({ name: 'gpu01', inventory: '1× A100-SXM4-80GB', status: 'up 12d', isStale: false })
  })

  it('gives the age of a late host', () => {
    expect(text({ status: 'late', last_report_at: NOW - 14 })).toMatchObject({ status: 'late 14s', isStale: true })
  })

  it('says why a host shows no GPU', () => {
    expect(hostText(entry('gpu01', [], { reasons: { gpus: 'driver not loaded' } }), NOW).inventory).toBe('driver not loaded')
  })
})

describe('notes', () => {
  it('say what to do about a host that is down', () => {
    const [note] = text({ status: 'down', last_report_at: NOW - 180 }).notes
    expect(note).toMatch(/^No report for 3m \(last at .*\)\. Check that the host is on and that gpudeck agent is running\.$/)
  })

  it('say what to do about a host that never reported', () => {
    expect(text({ status: 'never_seen', last_report_at: null })).toMatchObject({ status: 'never seen', notes: ['No report yet. Start gpudeck agent on this host.'] })
  })

  it('say that nothing is known of a host at a moment of the past', () => {
    expect(text({ status: 'down', last_report_at: null })).toMatchObject({ status: 'down', notes: ['Nothing was recorded of this host at that moment.'] })
  })

  it.each([
    ['pull', 'that gpudeck agent is running.'],
    ['scrape', 'its exporter is running.'],
    ['ssh', 'Check that the host is on.'],
  ])('ask for what is at work on a host by %s', (via, check) => {
    expect(text({ status: 'down', via, last_report_at: NOW - 180 }).notes[0]).toMatch(new RegExp(`${check.replaceAll('.', '\\.')}$`))
  })

  it('say why a host that was never seen could not be read', () => {
    const never = entry('gpu01', [], { status: 'never_seen', via: 'ssh', last_report_at: null, problems: ['gpu01 refuses connections'] })
    expect(hostText(never, NOW)).toMatchObject({ inventory: 'via ssh', status: 'never seen', notes: ['gpu01 refuses connections'] })
  })

  it('count the problems that find no room', () => {
    expect(text({ problems: ['one', 'two', 'three'] }).notes).toEqual(['one', '2 more problems: two'])
  })

  it.each([
    ['up', []],
    ['late', ['a', 'b', 'c']],
    ['down', ['a']],
    ['never_seen', []],
    ['never_seen', ['a']],
  ] as const)('of a host that is %s are as many as the card has room for', (status, problems) => {
    const { notes } = text({ status, problems: [...problems] })
    expect(notes).toHaveLength(noteCount(entry('gpu01', [], { status, problems: [...problems] }).host))
  })
})

it('shows an unknown figure of the host as a dash with its reason', () => {
  const [cpu, , disk] = text({ cpu_percent: null, disk_used_bytes: null, reasons: { cpu_percent: 'no /proc/stat' } }).footer
  expect(cpu?.figure).toEqual({ text: '–', title: 'no /proc/stat' })
  expect(disk?.figure).toEqual({ text: '–', title: 'not reported' })
})

it('marks the temperature of a row only where it is too high', () => {
  const hot = gpu({ temperature_celsius: 93, health: 'warning', health_reason: '93 °C' })
  expect(rowText(new HostEntry(host('gpu01', [gpu(), hot])))).toMatchObject({ hottest: '93°', heat: 'GPU 1: warning: 93 °C', isCritical: false })
  expect(rowText(new HostEntry(host('gpu01', [gpu()])))).toMatchObject({ heat: undefined })
  const worn = gpu({ temperature_celsius: 40, health: 'warning', health_reason: 'memory rows wait to be replaced' })
  expect(rowText(new HostEntry(host('gpu01', [worn])))).toMatchObject({ heat: undefined, isCritical: false })
})

it('gives the notes of a host without GPUs the place of its figures', () => {
  expect(rowText(entry('gpu01', []), ['No report so far.', 'slow']).problems).toEqual({ text: 'No report so far. slow', title: 'No report so far.\nslow' })
})

it('adds up the GPUs of a row', () => {
  const row = rowText(new HostEntry(host('gpu01', [busyGpu('ann', { temperature_celsius: 70 }), gpu()])))
  expect(row).toMatchObject({ users: { text: 'ann' }, utilization: '49%', memory: '71/160G', hottest: '70°', power: '120 W', cpu: { text: '22%' } })
})
