/** Everything known about one GPU, for its popover. */
import catalog from '../api/catalog.json'
import type { Availability, Gpu, GpuEvent, Host, Process } from '../api/types'
import { bytes, clockTime, DASH, duration, elapsed, plain, utcTime, inUnit } from '../ui/format'
import type { Figure } from '../ui/format'
import { seenAt } from './processes'

export interface Metric {
  name: string
  scope: string
  unit: string
  label: string
  /** Whether deltas bring it; what they do not bring is read with the host while it is shown. */
  live: boolean
}

/** Every metric of a GPU in the order of the catalog: a new one shows up without a line here. */
const GPU_METRICS: readonly Metric[] = catalog.filter((metric) => metric.scope === 'gpu')

export interface UserOnGpu {
  user: Figure
  /** Null: unknown. */
  login: string | null
  memory: string
  runtime: string
}

export interface ProcessOnGpu {
  pid: number
  user: Figure
  /** Null: unknown. */
  login: string | null
  command: Figure
  memory: Figure
  runtime: Figure
  place: string | undefined
}

export interface EventOnGpu {
  kind: GpuEvent['kind']
  time: Figure
  code: string
  /** What the code means; the driver's own words are its title. */
  text: Figure
  /** The owner of the process that the driver blames, or the process alone; undefined where it names none. */
  culprit: string | undefined
}

export interface GpuDetail {
  title: string
  availability: Availability
  /** The host is not up: everything is from its last report. */
  isStale: boolean
  state: string
  stateTitle: string
  reason: string | undefined
  /** What is known, in the order of the catalog. `label` is the short name, its `title` the whole one. */
  metrics: { label: string; title: string; text: string }[]
  /** The rest in one line, with the reasons as its title; null when nothing is unknown. */
  notKnown: Figure | null
  users: UserOnGpu[]
  moreUsers: number
  /** Null when the list could not be read; `processesReason` then says why. */
  processes: ProcessOnGpu[] | null
  processesReason: string
  moreProcesses: number
  /** Faults of the last day, the newest first. */
  events: EventOnGpu[]
  moreEvents: number
}

const MOST_PROCESSES = 8
const MOST_USERS = 8
const MOST_EVENTS = 5
/** Names in the line of what is not known: the catalog begins with what matters most. */
const MOST_NOT_KNOWN = 3

/** Stands for a figure that is being read. */
export const READING = '…'

/** `now` is the hub's clock. `isRead`: what is not live is current too. */
export function gpuDetail(gpu: Gpu, host: Host, now: number, isRead = true): GpuDetail {
  const { processes } = gpu
  const seen = seenAt(host, now)
  const shown = processes?.slice(0, MOST_PROCESSES).map((process) => processText(process, seen)) ?? null
  const users = usersOn((processes ?? []).filter((process) => !process.display), seen)
  return {
    title: plain(`${host.display_name} · GPU ${gpu.label} · ${gpu.name}`),
    availability: gpu.availability,
    isStale: host.status !== 'up',
    state: stateText(gpu, host, now),
    stateTitle: utcTime(gpu.since),
    reason: gpu.availability_reason ?? undefined,
    metrics: knownMetrics(gpu, 'gpu', isRead).map((metric) => ({ label: shortLabel(metric), title: metric.label, text: metric.text })),
    notKnown: notKnown(gpu),
    users: users.slice(0, MOST_USERS),
    moreUsers: Math.max(0, users.length - MOST_USERS),
    processes: shown,
    processesReason: gpu.reasons['processes'] ?? 'The process list could not be read.',
    moreProcesses: Math.max(0, (processes?.length ?? 0) - MOST_PROCESSES),
    events: gpu.events.slice(-MOST_EVENTS).reverse().map((event) => eventText(event, now)),
    moreEvents: Math.max(0, gpu.events.length - MOST_EVENTS),
  }
}

function stateText(gpu: Gpu, host: Host, now: number): string {
  const time = elapsed(gpu.since, now)
  if (host.status === 'up') return Number.isNaN(time) ? gpu.availability : `${gpu.availability} for ${duration(time)}, since ${clockTime(gpu.since, now)}`
  if (host.last_report_at === null) return 'unknown'
  const age = ` ${duration(elapsed(host.last_report_at, now))} ago`
  return gpu.last_seen === null || gpu.last_seen === 'unknown' ? `unknown; last report${age}` : `unknown; was ${gpu.last_seen} at the last report${age}`
}

function metricOf(owner: Gpu | Host, metric: Metric): number | null {
  return (owner as unknown as Record<string, number | null | undefined>)[metric.name] ?? null
}

/** What is known of a GPU or a host, in the order of the catalog. */
export function knownMetrics(owner: Gpu | Host, scope: string, isRead: boolean): (Metric & { text: string })[] {
  return catalog.flatMap((metric) => {
    const value = metric.scope === scope ? metricOf(owner, metric) : null
    return value === null ? [] : [{ ...metric, text: isRead || metric.live ? inUnit(value, metric.unit) : READING }]
  })
}

function notKnown(gpu: Gpu): Figure | null {
  const unknown = GPU_METRICS.filter((metric) => metricOf(gpu, metric) === null)
  if (unknown.length === 0) return null
  const names = unknown.slice(0, MOST_NOT_KNOWN).map((metric) => startingSmall(shortLabel(metric)))
  const more = unknown.length > names.length ? `, ${unknown.length - names.length} more` : ''
  const reasons = unknown.map((metric) => `${shortLabel(metric)}: ${gpu.reasons[metric.name] ?? 'not reported'}`)
  return { text: `not reported: ${names.join(', ')}${more}`, title: reasons.join('\n') }
}

/** Without what stands in brackets to explain it. */
function shortLabel(metric: Metric): string {
  return metric.label.replace(/ \(.*\)$/, '')
}

/** `Fan speed` becomes `fan speed`; `SM clock` stays. */
function startingSmall(label: string): string {
  return /^[A-Z][a-z]/.test(label) ? label.charAt(0).toLowerCase() + label.slice(1) : label
}

/** Who is on it with how much and since when, most memory first. A sum with an unknown part is unknown. */
function usersOn(processes: readonly Process[], now: number): UserOnGpu[] {
  const byUser = new Map<string | undefined, Process[]>()
  for (const process of processes) {
    const user = process.user ?? undefined
    byUser.set(user, [...(byUser.get(user) ?? []), process])
  }
  return [...byUser]
    .map(([user, theirs]) => ({ user, theirs, memory: sumMemory(theirs) }))
    .sort((a, b) => (b.memory ?? 0) - (a.memory ?? 0))
    .map(({ user, theirs, memory }) => ({
      login: user ?? null,
      user: orDash(user, theirs[0]?.reasons?.['user'], 'owner unknown'),
      memory: bytes(memory),
      runtime: longest(theirs, now),
    }))
}

function sumMemory(processes: readonly Process[]): number | null {
  return processes.reduce<number | null>((sum, { memory_used_bytes: used }) => (sum === null || used == null ? null : sum + used), 0)
}

function longest(processes: readonly Process[], now: number): string {
  const starts = processes.flatMap(({ started_at: start }) => (start == null ? [] : [start]))
  return starts.length === 0 ? DASH : duration(elapsed(Math.min(...starts), now))
}

function processText(process: Process, now: number): ProcessOnGpu {
  const reasons = process.reasons ?? {}
  const { started_at: start, memory_used_bytes: used } = process
  return {
    pid: process.pid,
    login: process.user ?? null,
    user: orDash(process.user, reasons['user'] ?? process.evidence, 'owner unknown', process.evidence),
    command: orDash(process.command, reasons['command'], 'command unknown', process.command),
    memory: orDash(used == null ? null : bytes(used), reasons['memory_used_bytes'], 'not reported'),
    runtime: orDash(start == null ? null : duration(elapsed(start, now)), reasons['started_at'], 'not reported'),
    place: [process.container, process.job == null ? null : `job ${process.job}`, process.display ? 'display' : null].filter(Boolean).map((part) => plain(part ?? '')).join(' · ') || undefined,
  }
}

function eventText(event: GpuEvent, now: number): EventOnGpu {
  const process = event.process === null ? undefined : `process ${event.process}`
  return {
    kind: event.kind,
    time: { text: clockTime(event.at, now), title: `${duration(elapsed(event.at, now))} ago, ${utcTime(event.at)}` },
    code: `XID ${event.code}`,
    text: { text: event.text, title: plain(event.message) || undefined },
    culprit: event.user === null ? process : plain(`${event.user}, ${process ?? ''}`),
  }
}

function orDash(text: string | null | undefined, reason: string | null | undefined, otherwise: string, title?: string | null): Figure {
  return text == null ? { text: DASH, title: reason ?? otherwise } : { text: plain(text), title: title ?? undefined }
}
