import { describe, expect, it, test } from 'vitest'
import type { Mute } from '../api/alerts'
import { NOW, someAlert } from '../testing/samples'
import { groupAlerts, muteAgain, muteOf, muteText, ruleTitle, targetOf, targetText } from './alertGroups'

const alert = (id: string, rule: string, host: string | null, changes = {}) => someAlert({ id, rule, host, ...changes })

describe('alerts in groups', () => {
  it('stand by cause, then by host, those that need attention first', () => {
    const groups = groupAlerts([
      alert('1', 'host_down', 'gpu01', { state: 'acknowledged' }),
      alert('2', 'gpu_hot', 'gpu02', { severity: 'warning' }),
      alert('3', 'gpu_hot', 'gpu03', { severity: 'warning', muted_by: 'm' }),
      alert('4', 'gpu_hot', 'gpu02', { severity: 'warning' }),
      alert('5', 'gpu_idle', 'gpu02', { severity: 'info' }),
      alert('6', 'history_failing', null),
    ])
    expect(groups.map(({ rule }) => rule)).toEqual(['history_failing', 'gpu_hot', 'host_down', 'gpu_idle'])
    expect(groups.map(({ summary }) => summary)).toEqual(['1 alert', '3 alerts on 2 hosts, 1 muted', '1 alert on 1 host, 1 acknowledged', '1 alert on 1 host'])
    expect(groups[1]?.hosts.map(({ host, alerts }) => [host, alerts.length])).toEqual([['gpu02', 2], ['gpu03', 1]])
  })

  it('are as severe as the worst that waits for somebody', () => {
    const [group] = groupAlerts([alert('1', 'gpu_hot', 'a', { state: 'acknowledged' }), alert('2', 'gpu_hot', 'b', { severity: 'warning' })])
    expect(group?.severity).toBe('warning')
  })
})

test('rules have names', () => {
  expect([ruleTitle('gpu_hot'), ruleTitle('xid'), ruleTitle('host_down'), ruleTitle('driver_not_answering')]).toEqual(['GPU hot', 'XID', 'Host down', 'Driver not answering'])
})

describe('a mute', () => {
  const alerts = [alert('1', 'gpu_hot', 'gpu[1]'), alert('2', 'gpu_hot', 'gpu02'), alert('3', 'gpu_hot', 'gpu02')]
  const mute: Mute = { id: 'm', start: NOW - 60, end: NOW + 3600, created_at: NOW, created_by: 'ada', reason: 'new fans', host: null, rule: 'gpu_hot', labels: {}, hosts: ['a', 'b', 'c', 'd'] }

  it('is of the hosts that have the alert, by their names', () => {
    const target = targetOf('gpu_hot', alerts)
    expect(muteOf(target, '4h', ' fans ')).toEqual({ rule: 'gpu_hot', hosts: ['gpu[1]', 'gpu02'], for: '4h', reason: 'fans' })
    expect(targetText(target)).toBe('“GPU hot” on 2 hosts')
    expect(muteOf(targetOf('history_failing', [alert('6', 'history_failing', null)]), '1h', 'x')).toEqual({ rule: 'history_failing', for: '1h', reason: 'x' })
  })

  it('is told with who, why and until when', () => {
    expect(muteText(mute, NOW)).toMatchObject({ what: 'GPU hot on a, b, c and 1 more', hosts: 'a, b, c, d', by: 'ada', reason: 'new fans' })
    expect(muteText(mute, NOW).until).toMatch(/^until .* \(1h left\)$/)
    expect(muteText({ ...mute, rule: 'gpu_*', host: 'gpu-1*', hosts: [], labels: { rack: '4' } }, NOW).what).toBe('gpu_* on gpu-1*, rack=4')
    expect(muteText({ ...mute, rule: null, hosts: [], labels: { rack: '4' }, start: NOW + 60 }, NOW)).toMatchObject({ what: 'All alerts, rack=4', until: expect.stringMatching(/^from .* until /) })
  })

  it('comes back as it was', () => {
    expect(muteAgain(mute)).toEqual({ rule: 'gpu_hot', hosts: ['a', 'b', 'c', 'd'], labels: {}, start: NOW - 60, end: NOW + 3600, reason: 'new fans' })
  })
})
