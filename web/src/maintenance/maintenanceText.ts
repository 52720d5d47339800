/** Maintenance in words, and the ends that a form offers. Pure. */
import type { Maintenance, MaintenanceChange, MaintenanceWindow, NewMaintenance } from '../api/maintenance'
import { count, plain } from '../ui/format'
import { timeText } from '../reservations/times'

/** `now` is the hub's clock. */
export function maintenanceText({ until, reason }: Maintenance, now: number): string {
  return plain(`In maintenance${until === null ? '' : ` until ${timeText(until, now)}`}: ${reason}`)
}

/** `gpu07`, or `gpu07:3`. */
export function placeOf({ host, label }: Pick<MaintenanceWindow, 'host' | 'label'>): string {
  return plain(label === null ? host : `${host}:${label}`)
}

export interface WindowText {
  place: string
  /** `until tomorrow`, `from … until …`. */
  when: string
  by: string
  reason: string
}

export function windowText(window: MaintenanceWindow, now: number): WindowText {
  const until = window.end === null ? 'until it is ended' : `until ${timeText(window.end, now)}`
  return {
    place: placeOf(window),
    when: `${window.state === 'planned' ? `from ${timeText(window.start, now)} ` : ''}${until}${window.is_there ? '' : ' · not in the fleet now'}`,
    by: plain(window.created_by),
    reason: plain(window.reason),
  }
}

/** The same once more, from now on where it had begun. */
export function drainAgain({ host_id, gpu, start, end, reason, state }: MaintenanceWindow): NewMaintenance {
  return { host: host_id, ...(gpu === null ? {} : { gpu }), ...(state === 'planned' ? { start } : {}), ...(end === null ? {} : { end }), reason }
}

/** What is said once a window is planned. */
export function plannedText({ maintenance, reservations }: MaintenanceChange, now: number): string {
  const { place, when } = windowText(maintenance, now)
  const users = [...new Set(reservations.map(({ user }) => plain(user)))]
  const warning = users.length === 0 ? '' : `. ${count(reservations.length, 'reservation')} within that time: ${users.slice(0, 4).join(', ')}${users.length > 4 ? ', …' : ''}`
  return `${place} is drained ${when}${warning}`
}

export type EndChoice = '2h' | 'tomorrow' | '7d' | 'open' | 'at'

export const ENDS: readonly { choice: EndChoice; label: string }[] = [
  { choice: '2h', label: 'for 2 hours' },
  { choice: 'tomorrow', label: 'until tomorrow 9:00' },
  { choice: '7d', label: 'for a week' },
  { choice: 'open', label: 'until I end it' },
  { choice: 'at', label: 'until…' },
]

const DAY = 86_400

/** Unix seconds; null: no end. `now` is the hub's clock, the day is the viewer's. */
export function endOf(choice: Exclude<EndChoice, 'at'>, start: number): number | null {
  if (choice === 'open') return null
  if (choice === '2h') return start + 7200
  if (choice === '7d') return start + 7 * DAY
  const morning = new Date(start * 1000)
  morning.setDate(morning.getDate() + 1)
  morning.setHours(9, 0, 0, 0)
  return morning.getTime() / 1000
}
