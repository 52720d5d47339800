import { describe, expect, it } from 'vitest'
import type { MaintenanceWindow } from '../api/maintenance'
import { drainAgain, endOf, maintenanceText, plannedText, windowText } from './maintenanceText'

const NOW = new Date(2026, 10, 16, 14, 0).getTime() / 1000
const HOUR = 3600

function made(changes: Partial<MaintenanceWindow> = {}): MaintenanceWindow {
  const own = { id: 1, host: 'gpu07', host_id: 'id7', gpu: null, label: null, start: NOW - HOUR, end: NOW + HOUR, reason: 'new fans' }
  return { ...own, created_at: NOW - HOUR, created_by: 'root', state: 'running', is_there: true, ...changes }
}

describe('maintenance in words', () => {
  it('says until when and why', () => {
    expect(maintenanceText({ id: 1, since: NOW, until: NOW + HOUR, reason: 'new fans', by: 'root' }, NOW)).toBe('In maintenance until 15:00: new fans')
    expect(maintenanceText({ id: 1, since: NOW, until: null, reason: 'a\u202eb', by: 'root' }, NOW)).toBe('In maintenance: a\ufffdb')
  })

  it('of a window says when it begins, where it has not, and that its host is gone', () => {
    expect(windowText(made(), NOW).when).toBe('until 15:00')
    expect(windowText(made({ gpu: 'GPU-1', label: '3', end: null }), NOW)).toMatchObject({ place: 'gpu07:3', when: 'until it is ended' })
    expect(windowText(made({ start: NOW + 60, state: 'planned', is_there: false }), NOW).when).toBe('from 14:01 until 15:00 · not in the fleet now')
  })

  it('names the users whose reservations are within it', () => {
    expect(plannedText({ maintenance: made(), reservations: [] }, NOW)).toBe('gpu07 is drained until 15:00')
    const reservations = ['ann', 'bob', 'ann'].map((user) => ({ user })) as never
    expect(plannedText({ maintenance: made(), reservations }, NOW)).toBe('gpu07 is drained until 15:00. 3 reservations within that time: ann, bob')
  })
})

it('ends when the form says, tomorrow by the clock of the viewer', () => {
  expect([endOf('2h', NOW), endOf('7d', NOW), endOf('open', NOW)]).toEqual([NOW + 2 * HOUR, NOW + 168 * HOUR, null])
  const morning = new Date(endOf('tomorrow', NOW)! * 1000)
  expect([morning.getDate(), morning.getHours(), morning.getMinutes()]).toEqual([17, 9, 0])
})

it('is drained again as it was, from now on where it had begun', () => {
  expect(drainAgain(made())).toEqual({ host: 'id7', end: NOW + HOUR, reason: 'new fans' })
  const planned = made({ gpu: 'GPU-1', start: NOW + 60, end: null, state: 'planned' })
  expect(drainAgain(planned)).toEqual({ host: 'id7', gpu: 'GPU-1', start: NOW + 60, reason: 'new fans' })
})
