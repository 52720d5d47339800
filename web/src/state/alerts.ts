/** Alerts as the page shows them: in which words, and how many are worth a number in the navigation. */
import type { Alert, NewSilence } from '../api/alerts'
import { duration, plain } from './format'

/** For how long somebody may have nobody told, in the hub's words and in ours. */
export const SPANS: readonly { length: string; label: string }[] = [
  { length: '1h', label: 'for an hour' },
  { length: '4h', label: 'for 4 hours' },
  { length: '1d', label: 'for a day' },
  { length: '7d', label: 'for a week' },
]

export interface AlertText {
  title: string
  /** For how long, who looks after it, and what is not known. */
  aside: string
  action: string
}

/** `now` is the hub's clock. */
export function alertText(alert: Alert, now: number): AlertText {
  const parts = [`for ${duration(now - alert.since)}`]
  if (alert.acknowledged_by !== null) parts.push(`${plain(alert.acknowledged_by)} looks after it`)
  if (alert.silenced_by !== null) parts.push('silenced')
  if (alert.note !== null) parts.push(plain(alert.note).replace(/\.$/, ''))
  return { title: plain(alert.title), aside: parts.join(' · '), action: plain(alert.action) }
}

/** Those that wait for somebody: what is silenced, looked after or one person's own affair does not. */
export function waiting(alerts: readonly Alert[]): readonly Alert[] {
  return alerts.filter((alert) => alert.severity !== 'info' && alert.state === 'firing' && alert.silenced_by === null)
}

/** Of this rule on this host, or wherever it is where no host is concerned. */
export function silenceOf(alert: Alert, length: string, reason: string): NewSilence {
  return { rule: alert.rule, ...(alert.host === null ? {} : { host: alert.host }), for: length, reason: reason.trim() }
}
