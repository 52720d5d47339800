/** A host as text: its title, its footer, its row in the table, and the next step when it does not report. */
import type { Host } from '../api/types'
import type { HostEntry } from '../stream/fleetModel'
import { maintenanceText } from '../maintenance/maintenanceText'
import { celsius, clockTime, count, DASH, duration, elapsed, fraction, memoryPair, percent, plain, watts } from '../ui/format'
import { gpuLevel, statusLevel, worstLevel, type Level } from '../ui/states'
import { alarmText, isHeat } from '../gpu/gpuLine'
import type { Figure } from '../ui/format'
import { NOT_LOADED } from '../stream/overview'

export interface HostText {
  name: string
  inventory: string
  /** `up 12d`, `late 14s`, `down 3m`. */
  status: string
  statusTitle: string | undefined
  isStale: boolean
  /** Why and until when the whole host is drained; null: it is not. */
  maintenance: string | null
  /** What an admin noted about it; null: nothing. */
  note: string | null
  /** Problems, with the next step. */
  notes: string[]
  /** Alerts that need attention, a sentence each; their number stands at the name. */
  alerts: string[]
  free: string
  footer: { label: string; figure: Figure }[]
}

export function hostText(entry: HostEntry, now: number): HostText {
  const { host, summary } = entry
  const isStale = host.status !== 'up'
  return {
    name: plain(host.display_name),
    inventory: plain(inventoryText(entry)),
    status: statusText(host, now),
    statusTitle: statusTitle(host, now),
    isStale,
    maintenance: host.maintenance ? maintenanceText(host.maintenance, now) : null,
    note: host.note ? plain(host.note.text) : null,
    notes: notes(host, now),
    alerts: entry.alerts.map(({ title }) => plain(title)),
    free: freeText(entry),
    footer: [
      { label: 'cpu', figure: figure(percent(host.cpu_percent), host, 'cpu_percent') },
      { label: 'ram', figure: figure(memoryPair(host.memory_used_bytes, host.memory_total_bytes), host, 'memory_used_bytes') },
      { label: 'disk', figure: figure(diskText(host), host, 'disk_used_bytes') },
      { label: 'power', figure: { text: watts(summary.power), title: summary.power === null ? (entry.isShort ? NOT_LOADED : 'no GPU reports power') : undefined } },
    ],
  }
}

function inventoryText({ host, inventory }: HostEntry): string {
  if (host.gpus.length > 0) return inventory
  return host.status === 'never_seen' ? `via ${host.via}` : (host.reasons['gpus'] ?? 'no GPU reported')
}

function figure(text: string, host: Host, field: string): Figure {
  return { text, title: text.includes(DASH) ? (host.reasons[field] ?? 'not reported') : undefined }
}

function diskText(host: Host): string {
  const used = fraction(host.disk_used_bytes, host.disk_total_bytes)
  return percent(used === null ? null : used * 100)
}

function statusText(host: Host, now: number): string {
  if (host.status === 'never_seen') return 'never seen'
  if (host.status !== 'up') return host.last_report_at === null ? host.status : `${host.status} ${duration(elapsed(host.last_report_at, now))}`
  return host.uptime_seconds === null ? 'up' : `up ${duration(host.uptime_seconds).split(' ', 1)[0]}`
}

function statusTitle(host: Host, now: number): string | undefined {
  if (host.status === 'late') return noReportText(host, now)
  return [host.os, host.driver_version === null ? null : `driver ${host.driver_version}`, `via ${host.via}`].filter(Boolean).join(' · ')
}

function notes(host: Host, now: number): string[] {
  const problems = host.problems.slice(0, 2).map(plain)
  if (host.problems.length > 2) problems[1] = `${count(host.problems.length - 1, 'more problem')}: ${problems[1]}`
  return hasNoReportNote(host) ? [noReportText(host, now), ...problems] : problems
}

/** Of one of the notes: a warning, unless the host is down or the GPU that it names is worse. */
export function noteLevel(note: string, { status, gpus }: Host): Level {
  const named = gpus.filter(({ label }) => note.startsWith(`GPU ${label} `))
  return worstLevel(['warning', statusLevel(status), ...named.map(({ health }) => gpuLevel(health))])
}

/** What has to run on the host, by source; SSH needs nothing. */
const REQUIRED: Record<string, string> = { push: ' and that gpudeck agent is running', pull: ' and that gpudeck agent is running', scrape: ' and that its exporter is running' }

function noReportText(host: Host, now: number): string {
  // Of a moment of the past: it had been seen before.
  if (host.last_report_at === null && host.status !== 'never_seen') return 'Nothing was recorded of this host at that moment.'
  if (host.last_report_at === null) return host.via === 'push' ? 'No report yet. Start gpudeck agent on this host.' : 'The hub has not read this host yet.'
  const text = `No report for ${duration(elapsed(host.last_report_at, now))} (last at ${clockTime(host.last_report_at, now)}).`
  return host.status === 'down' ? `${text} Check that the host is on${REQUIRED[host.via] ?? ''}.` : text
}

function freeText({ host, summary }: HostEntry): string {
  if (host.gpus.length === 0) return DASH
  return summary.counts.free === 0 ? '' : `${summary.counts.free} free`
}

/** The figures of a table row, over the host's GPUs. */
export interface RowText {
  users: Figure
  /** What stands in the place of all figures where the host has no GPUs. */
  problems: Figure
  utilization: string
  memory: string
  utilizationFraction: number | null
  memoryFraction: number | null
  hottest: string
  /** A sentence when the hottest GPU is too hot; that it is unwell for another reason stands at its cell. */
  heat: string | undefined
  isCritical: boolean
  power: string
  cpu: Figure
  ram: Figure
}

export function rowText({ host, summary }: HostEntry, notes: readonly string[] = []): RowText {
  const users = plain(summary.users.join(', '))
  const hot = host.gpus.find((gpu) => gpu.temperature_celsius !== null && gpu.temperature_celsius === summary.hottest && isHeat(gpu))
  return {
    users: { text: users, title: summary.users.length > 1 ? users : undefined },
    problems: { text: notes.join(' '), title: notes.join('\n') },
    utilization: percent(summary.utilization),
    memory: memoryPair(summary.memoryUsed, summary.memoryTotal),
    utilizationFraction: fraction(summary.utilization, 100),
    memoryFraction: fraction(summary.memoryUsed, summary.memoryTotal),
    hottest: celsius(summary.hottest),
    heat: hot === undefined ? undefined : `GPU ${hot.label}: ${alarmText(hot)}`,
    isCritical: gpuLevel(hot?.health ?? 'ok') === 'critical',
    power: watts(summary.power),
    cpu: figure(percent(host.cpu_percent), host, 'cpu_percent'),
    ram: figure(memoryPair(host.memory_used_bytes, host.memory_total_bytes), host, 'memory_used_bytes'),
  }
}

/** Whether a sentence says that the host is silent, for good or from the beginning. Where the hub itself tried to read
 * a host that it has never seen, the reason why it could not says more. */
export function hasNoReportNote(host: Host): boolean {
  return host.status === 'down' || (host.status === 'never_seen' && (host.via === 'push' || host.problems.length === 0))
}
