/** Events as the page lists them: which fit the address, in which order, under which day. */
import type { HubEvent, Severity } from '../api/events'
import { readPeriod } from '../time/period'
import { duration, MONTHS, pad, plain, utcTime } from '../ui/format'

/** Empty means everything. */
export interface EventFilter {
  kind: string
  severity: '' | 'warning' | 'critical'
  host: string
  gpu: string
  user: string
  q: string
  /** Unix seconds; empty: no bound. */
  start: string
  end: string
}

/** Words for the choice of kinds: each stands for the hub's own words. Kinds of tomorrow are found by the search. */
export const KINDS: readonly { kind: string; label: string }[] = [
  { kind: '', label: 'all events' },
  { kind: 'host_seen,host_up,host_down,host_rebooted,flapping', label: 'hosts up or down' },
  { kind: 'gpu_lost,gpu_found', label: 'GPUs lost or found' },
  { kind: 'xid', label: 'driver errors (XID)' },
  { kind: 'health_raised,health_cleared', label: 'health' },
  { kind: 'driver_changed,agent_changed', label: 'driver and agent versions' },
  { kind: 'duplicate_host', label: 'duplicate hosts' },
  { kind: 'alert_fired,alert_acknowledged,alert_unacknowledged,alert_resolved,alert_muted,alert_mute_ended', label: 'alerts' },
  { kind: 'maintenance_started,maintenance_ended,maintenance_changed', label: 'maintenance' },
  { kind: 'hub_started,hub_stopped,history_problem,history_recovered,history_damaged,clock_doubted,clock_confirmed', label: 'hub' },
]

/** At least that bad. */
const SEVERITIES: Record<EventFilter['severity'], string> = { '': '', warning: 'warning,critical', critical: 'critical' }
const NAMES = ['kind', 'severity', 'host', 'gpu', 'user', 'q', 'start', 'end'] as const

/** `now` is the hub's clock. */
export function readFilter(params: URLSearchParams, now: number): EventFilter {
  const read = (name: string): string => (params.get(name) ?? '').slice(0, 256)
  const severity = read('severity')
  const period = readPeriod(params, now, 'all')
  return {
    kind: read('kind'),
    severity: severity === 'warning' || severity === 'critical' ? severity : '',
    host: read('host'),
    gpu: read('gpu'),
    user: read('user'),
    q: read('q'),
    start: period.name === 'all' ? '' : String(Math.floor(period.start)),
    end: period.isOpen ? '' : String(Math.ceil(period.end)),
  }
}

/** What the hub is asked. */
export function questionOf(filter: EventFilter): Record<string, string> {
  const asked = { ...filter, severity: SEVERITIES[filter.severity], q: filter.q.trim() }
  return Object.fromEntries(NAMES.map((name) => [name, asked[name]]).filter(([, value]) => value !== ''))
}

/** Whether it leaves out events of the time range. */
export function isFiltered(filter: EventFilter): boolean {
  return Object.keys(questionOf({ ...filter, start: '', end: '' })).length > 0
}

/** Whether an event that comes live belongs into the list, by the rules of the hub. */
export function fits(event: HubEvent, filter: EventFilter): boolean {
  const asked = questionOf(filter)
  const matches = (list: string | undefined, word: string): boolean => list === undefined || list.split(',').includes(word)
  const text = [event.title, event.detail, event.user, event.host].join('\n').toLowerCase()
  return (
    matches(asked.kind, event.kind) &&
    matches(asked.severity, event.severity) &&
    (asked.host === undefined || asked.host === event.host || asked.host === event.host_id) &&
    (asked.gpu === undefined || asked.gpu === event.gpu) &&
    (asked.user === undefined || asked.user === event.user) &&
    event.at >= Number(asked.start ?? 0) &&
    event.at < Number(asked.end ?? Infinity) &&
    text.includes((asked.q ?? '').toLowerCase())
  )
}

/** Both lists as one, each event once, the newest first: an id begins with the time. */
export function merge(some: readonly HubEvent[], others: readonly HubEvent[]): HubEvent[] {
  const all = new Map([...some, ...others].map((event) => [event.id, event]))
  return [...all.values()].sort((a, b) => (a.id < b.id ? 1 : -1))
}

export interface EventDay {
  key: string
  title: string
  events: HubEvent[]
}

/** The days of the viewer's zone, in the order of the list. */
export function byDay(events: readonly HubEvent[], now: number): EventDay[] {
  const days: EventDay[] = []
  for (const event of events) {
    const key = dayKey(event.at)
    const last = days.at(-1)
    if (last?.key === key) last.events.push(event)
    else days.push({ key, title: dayTitle(event.at, now), events: [event] })
  }
  return days
}

const WEEKDAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday']

export function dayTitle(at: number, now: number): string {
  const day = new Date(at * 1000)
  const date = `${WEEKDAYS[day.getDay()]}, ${MONTHS[day.getMonth()]} ${day.getDate()}`
  const yesterday = new Date(now * 1000)
  yesterday.setDate(yesterday.getDate() - 1)
  if (dayKey(at) === dayKey(now)) return `Today · ${date}`
  if (dayKey(at) === dayKey(yesterday.getTime() / 1000)) return `Yesterday · ${date}`
  return day.getFullYear() === new Date(now * 1000).getFullYear() ? date : `${date}, ${day.getFullYear()}`
}

function dayKey(at: number): string {
  const day = new Date(at * 1000)
  return `${day.getFullYear()}-${day.getMonth()}-${day.getDate()}`
}

export interface EventText {
  time: string
  utc: string
  title: string
  detail: string
  severity: Severity
}

/** How the hub begins what it says of an alert: its rule and its number, of use to those who look for it in a log. */
const ALERT_SIGN = /^([a-z_]+, [0-9a-f]+)\.\s*/

export function eventText(event: HubEvent, now: number): EventText {
  const clock = new Date(event.at * 1000)
  const sign = event.kind.startsWith('alert_') ? (ALERT_SIGN.exec(event.detail) ?? []) : []
  return {
    time: [clock.getHours(), clock.getMinutes(), clock.getSeconds()].map(pad).join(':'),
    utc: `${utcTime(event.at)}, ${duration(Math.max(0, now - event.at))} ago${sign[1] === undefined ? '' : ` · ${sign[1]}`}`,
    title: `${event.kind === 'alert_fired' ? 'Alert: ' : ''}${plain(event.title)}`,
    detail: plain(event.detail.slice(sign[0]?.length ?? 0)),
    severity: event.severity,
  }
}
