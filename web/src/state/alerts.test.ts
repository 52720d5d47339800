import { describe, expect, test } from 'vitest'
import { NOW, someAlert } from '../samples'
import { alertText, silenceOf, waiting } from './alerts'

describe('an alert in words', () => {
  test('says for how long it has been so', () => {
    expect(alertText(someAlert({ since: NOW - 180 }), NOW)).toEqual({ title: 'gpu01 has stopped reporting', aside: 'for 3 min', action: 'Look at it.' })
  })

  test('says who looks after it, that it is silenced, and what is not known', () => {
    const alert = someAlert({ since: NOW - 60, acknowledged_by: 'ada', silenced_by: 's1', note: 'It comes and goes.' })
    expect(alertText(alert, NOW).aside).toBe('for 1 min · ada looks after it · silenced · It comes and goes')
  })

  test('shows nothing that could turn the text around', () => {
    expect(alertText(someAlert({ title: 'gpu\u202e01' }), NOW).title).toBe('gpu\ufffd01')
  })
})

describe('the number in the navigation', () => {
  test('counts what waits for somebody, and nothing else', () => {
    const alerts = [
      someAlert({ id: 'a' }),
      someAlert({ id: 'b', severity: 'warning' }),
      someAlert({ id: 'c', severity: 'info' }),
      someAlert({ id: 'd', state: 'acknowledged' }),
      someAlert({ id: 'e', silenced_by: 's1' }),
    ]
    expect(waiting(alerts).map((alert) => alert.id)).toEqual(['a', 'b'])
  })
})

describe('a silence', () => {
  test('is of the rule on that host', () => {
    expect(silenceOf(someAlert(), '4h', ' new fans ')).toEqual({ rule: 'host_down', host: 'gpu01', for: '4h', reason: 'new fans' })
  })

  test('is of the rule alone where no host is concerned', () => {
    expect(silenceOf(someAlert({ host: null, rule: 'history_failing' }), '1h', 'x')).toEqual({ rule: 'history_failing', for: '1h', reason: 'x' })
  })
})
