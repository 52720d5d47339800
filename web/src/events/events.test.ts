import { describe, expect, it } from 'vitest'
import type { HubEvent } from '../api/events'
import { byDay, eventText, fits, isFiltered, merge, questionOf, readFilter } from './events'

const at = (day: number, hour = 12): number => new Date(2026, 10, day, hour, 5, 9).getTime() / 1000
const NOW = at(15, 20)

function event(changes: Partial<HubEvent> = {}): HubEvent {
  const base = { at: NOW, kind: 'host_down', severity: 'critical', host: 'gpu01', host_id: 'm1', gpu: null, label: null, user: null } as const
  return { id: 'a', title: 'gpu01 has stopped reporting', detail: '', ...base, ...changes }
}

const read = (query: string) => readFilter(new URLSearchParams(query), 1_800_000_000)

describe('the filter', () => {
  it('is asked of the hub as the address says, and the worse with the bad', () => {
    expect(questionOf(read('kind=xid&severity=warning&host=gpu01&q=%20mmu%20'))).toEqual({ kind: 'xid', severity: 'warning,critical', host: 'gpu01', q: 'mmu' })
  })
  it('is nothing where the address says nothing that makes sense', () => {
    expect(isFiltered(read('severity=dreadful&q=%20&other=1'))).toBe(false)
  })
  it.each([
    ['', true],
    ['kind=host_up,host_down', true],
    ['kind=xid', false],
    ['severity=warning', true],
    ['host=gpu01', true],
    ['host=m1', true],
    ['host=gpu02', false],
    ['gpu=GPU-1', false],
    ['user=bob', false],
    ['q=STOPPED', true],
    ['q=nothing', false],
  ])('lets in live what the hub would find: %s', (query, isIn) => {
    expect(fits(event(), read(query))).toBe(isIn)
  })
})

describe('the list', () => {
  it('has each event once, the newest first', () => {
    const told = merge([event({ id: 'c' }), event({ id: 'a' })], [event({ id: 'b' }), event({ id: 'a' })])
    expect(told.map(({ id }) => id)).toEqual(['c', 'b', 'a'])
  })
  it('stands under the days of the viewer', () => {
    const days = byDay([event({ at: at(15) }), event({ at: at(15, 0) }), event({ at: at(14, 23) }), event({ at: at(2) })], NOW)
    expect(days.map(({ title, events }) => [title, events.length])).toEqual([
      ['Today · Sunday, Nov 15', 2],
      ['Yesterday · Saturday, Nov 14', 1],
      ['Monday, Nov 2', 1],
    ])
  })
  it('names the year of what is long ago', () => {
    expect(byDay([event({ at: at(15) - 400 * 86_400 })], NOW)[0]?.title).toMatch(/, 2025$/)
  })
})

describe('an event', () => {
  it('shows hostile names harmlessly', () => {
    expect(eventText(event({ title: 'a\u202eb', detail: '\u0007' }), NOW)).toMatchObject({ title: 'a\ufffdb', detail: '\ufffd' })
  })
  it('has its time to the second', () => {
    expect(eventText(event({ at: at(15) }), NOW).time).toBe('12:05:09')
  })
  it('of an alert says so, and keeps its number for those who hover', () => {
    const { title, detail, utc } = eventText(event({ kind: 'alert_fired', detail: 'host_down, c4eca6ac52. Look at it.' }), NOW)
    expect([title, detail]).toEqual(['Alert: gpu01 has stopped reporting', 'Look at it.'])
    expect(utc).toContain('host_down, c4eca6ac52')
    expect(eventText(event({ kind: 'alert_resolved', detail: 'host_down, c4eca6ac52.' }), NOW).detail).toBe('')
  })
})
