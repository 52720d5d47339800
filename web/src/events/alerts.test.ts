import { describe, expect, test } from 'vitest'
import { NOW, someAlert } from '../testing/samples'
import { alertText } from './alerts'

describe('an alert in words', () => {
  test('says for how long it has been so', () => {
    expect(alertText(someAlert({ since: NOW - 180 }), NOW)).toEqual({ title: 'gpu01 has stopped reporting', aside: 'for 3m', action: 'Look at it.' })
  })

  test('says who acknowledged it, that it is muted, and its note', () => {
    const alert = someAlert({ since: NOW - 60, acknowledged_by: 'ada', muted_by: 's1', note: 'It comes and goes.' })
    expect(alertText(alert, NOW).aside).toBe('for 1m · acknowledged by ada · muted · It comes and goes')
  })

  test('shows nothing that could turn the text around', () => {
    expect(alertText(someAlert({ title: 'gpu\u202e01' }), NOW).title).toBe('gpu\ufffd01')
  })
})
