/** Alerts by their cause, which is their rule, and below that by host; and mutes in words. Pure. */
import { isOpen, type Alert, type Mute, type NewMute } from '../api/alerts'
import type { Severity } from '../api/events'
import { count, duration, moment, plain } from '../ui/format'

export interface HostAlerts {
  /** Null for what concerns no host. */
  host: string | null
  alerts: Alert[]
}

export interface AlertGroup {
  rule: string
  /** `GPU hot` */
  title: string
  /** The worst of them. */
  severity: Severity
  alerts: Alert[]
  hosts: HostAlerts[]
  /** `120 alerts on 40 hosts, 3 muted` */
  summary: string
  needsAttention: boolean
}

const WORST: readonly Severity[] = ['info', 'warning', 'critical']
const ABBREVIATIONS: Record<string, string> = { gpu: 'GPU', xid: 'XID', ecc: 'ECC', ram: 'RAM' }

export function ruleTitle(rule: string): string {
  const words = plain(rule).split('_').map((word) => ABBREVIATIONS[word] ?? word).join(' ')
  return words.replace(/^\p{Ll}/u, (letter) => letter.toUpperCase())
}

/** Those that need attention first, then the worst, then the largest. */
export function groupAlerts(alerts: readonly Alert[]): AlertGroup[] {
  const groups = [...grouped(alerts, ({ rule }) => rule)].map(([rule, own]) => groupOf(rule, own))
  const order = ({ needsAttention, severity, alerts }: AlertGroup): number[] => [needsAttention ? 0 : 1, -WORST.indexOf(severity), -alerts.length]
  return groups.sort((a, b) => order(a).map((value, at) => value - (order(b)[at] ?? 0)).find((difference) => difference !== 0) ?? a.rule.localeCompare(b.rule))
}

function groupOf(rule: string, alerts: Alert[]): AlertGroup {
  const hosts = [...grouped(alerts, ({ host }) => host)].map(([host, own]) => ({ host, alerts: own }))
  const open = alerts.filter(isOpen)
  const severity = (open.length > 0 ? open : alerts).reduce<Severity>((worst, each) => (WORST.indexOf(each.severity) > WORST.indexOf(worst) ? each.severity : worst), 'info')
  const named = hosts.filter(({ host }) => host !== null).length
  const parts = [`${count(alerts.length, 'alert')}${named === 0 ? '' : ` on ${count(named, 'host')}`}`, ...handledText(alerts)]
  return { rule, title: ruleTitle(rule), severity, alerts, hosts, summary: parts.join(', '), needsAttention: open.length > 0 }
}

function grouped<K>(alerts: readonly Alert[], keyOf: (alert: Alert) => K): Map<K, Alert[]> {
  const found = new Map<K, Alert[]>()
  for (const alert of alerts) {
    const others = found.get(keyOf(alert))
    if (others === undefined) found.set(keyOf(alert), [alert])
    else others.push(alert)
  }
  return found
}

function handledText(alerts: readonly Alert[]): string[] {
  const acknowledged = alerts.filter(({ state }) => state === 'acknowledged').length
  const muted = alerts.filter(({ state, muted_by }) => state !== 'acknowledged' && muted_by !== null).length
  return [...(acknowledged === 0 ? [] : [`${acknowledged} acknowledged`]), ...(muted === 0 ? [] : [`${muted} muted`])]
}

/** What a mute is to be of. No hosts: all of them. */
export interface MuteTarget {
  rule: string
  hosts: string[]
}

export function targetOf(rule: string, alerts: readonly Alert[]): MuteTarget {
  return { rule, hosts: [...new Set(alerts.flatMap(({ host }) => host ?? []))] }
}

export function targetText({ rule, hosts }: MuteTarget): string {
  return `“${ruleTitle(rule)}”${hosts.length === 0 ? '' : ` on ${hosts.length === 1 ? plain(hosts[0] ?? '') : count(hosts.length, 'host')}`}`
}

/** Hosts are named one by one: an alert of another host that fires later is not muted. */
export function muteOf({ rule, hosts }: MuteTarget, length: string, reason: string): NewMute {
  return { rule, ...(hosts.length === 0 ? {} : { hosts }), for: length, reason: reason.trim() }
}

export interface MuteText {
  /** `GPU hot on gpu07`, `gpu_* on gpu-1*, rack=4` */
  what: string
  /** All hosts, where not all are in `what`. */
  hosts: string
  until: string
  by: string
  reason: string
}

const NAMED = 3

export function muteText(mute: Mute, now: number): MuteText {
  const hosts = mute.hosts ?? []
  const named = hosts.length > NAMED ? `${plain(hosts.slice(0, NAMED).join(', '))} and ${hosts.length - NAMED} more` : plain(hosts.join(', '))
  const rule = mute.rule == null ? 'All alerts' : mute.rule.includes('*') ? plain(mute.rule) : ruleTitle(mute.rule)
  const places = [mute.host == null ? '' : plain(mute.host), named].filter((place) => place !== '')
  const labels = Object.entries(mute.labels ?? {}).map(([name, value]) => plain(`${name}=${value}`))
  const starts = mute.start > now ? `from ${moment(mute.start, now)} ` : ''
  return {
    what: [`${rule}${places.length === 0 ? '' : ` on ${places.join(' and ')}`}`, ...labels].join(', '),
    hosts: plain(hosts.join(', ')),
    until: `${starts}until ${moment(mute.end, now)} (${duration(Math.max(0, mute.end - now))} left)`,
    by: plain(mute.created_by),
    reason: plain(mute.reason),
  }
}

/** The same mute once more, for what is left of it. */
export function muteAgain({ rule, host, hosts, labels, start, end, reason }: Mute): NewMute {
  return { ...(rule == null ? {} : { rule }), ...(host == null ? {} : { host }), ...(hosts?.length ? { hosts } : {}), ...(labels === undefined ? {} : { labels }), start, end, reason }
}
