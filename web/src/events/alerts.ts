/** Alerts as the page shows them, in words. */
import type { Alert } from '../api/alerts'
import { duration, plain } from '../ui/format'

/** Durations of a mute, as the API and as people write them. */
export const SPANS: readonly { length: string; label: string }[] = [
  { length: '1h', label: 'for an hour' },
  { length: '4h', label: 'for 4 hours' },
  { length: '1d', label: 'for a day' },
  { length: '7d', label: 'for a week' },
]

/** Stands in `muted_by` of alerts of a host or GPU that is drained. */
export const IN_MAINTENANCE = 'maintenance'

export interface AlertText {
  title: string
  /** For how long, who acknowledged it, and notes. */
  aside: string
  action: string
}

/** `now` is the hub's clock. */
export function alertText(alert: Alert, now: number): AlertText {
  const parts = [`for ${duration(now - alert.since)}`]
  if (alert.acknowledged_by !== null) parts.push(`acknowledged by ${plain(alert.acknowledged_by)}`)
  if (alert.muted_by !== null) parts.push(alert.muted_by === IN_MAINTENANCE ? 'muted: in maintenance' : 'muted')
  if (alert.note !== null) parts.push(plain(alert.note).replace(/\.$/, ''))
  return { title: plain(alert.title), aside: parts.join(' · '), action: plain(alert.action) }
}
