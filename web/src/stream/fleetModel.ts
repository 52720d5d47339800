/**
 * The fleet as the page holds it: plain objects, changed in place by the stream's events.
 *
 * A host that stays keeps its entry, so whatever is drawn for it stays too and only its figures change.
 */
import { isOpen, type Alert, type AlertCounts } from '../api/alerts'
import catalog from '../api/catalog.json'
import type { HubEvent } from '../api/events'
import type { Availability, Delta, Fleet, Gpu, GpuChange, HealthLevel, Host, HostChange, HostRows, OverviewDelta, Totals } from '../api/types'
import { alertLevel, gpuLevel, statusLevel, worstLevel, type Level } from '../ui/states'
import { FleetRows } from './fleetRows'
import { inventory } from './inventory'
import { noCounts } from '../ui/states'
import { Version, WatchedVersion } from './version.svelte'

/** A snapshot; without rows no deltas of it follow. */
export type FleetDocument = Fleet & { rows?: HostRows[] }
/** That of an overview has `summaries`, and whole hosts in place of short ones. */
export type FleetDelta = Delta & Partial<Pick<OverviewDelta, 'summaries'>>

/** A host's GPUs in a few numbers. A mean or sum covers the GPUs whose value is known; null when none is. */
export interface HostSummary {
  counts: Record<Availability, number>
  users: string[]
  utilization: number | null
  memoryUsed: number | null
  memoryTotal: number | null
  hottest: number | null
  power: number | null
  health: HealthLevel
}

/** Null where nothing is known. */
type Load = Pick<HostSummary, 'utilization' | 'hottest'>

/**
 * One host. `host`, `gpu()`, `summary` and `inventory` are tracked: a component that reads one of them is drawn again when
 * the host changes. Code that walks through the whole fleet reads `untracked` and follows `FleetModel.pulse` instead.
 */
export class HostEntry {
  readonly id: string
  /** Where the host stands by name among all hosts; UNRANKED before it is known. Set by the model. */
  rank = UNRANKED
  readonly version = new WatchedVersion()
  private summaryCache: HostSummary | null = null
  private inventoryCache: string | null = null
  private slicesCache: number | null = null
  /** The host in full while it is in view of a large fleet; null where it is not, or where all hosts are streamed. */
  detail: Host | null = null
  /** What the overview last told of the figures of its GPUs, some seconds ago. */
  private openAlerts: readonly Alert[] = []
  private sampled: Load = { utilization: null, hottest: null }

  /** `readAt`: the hub's time when all of the host was read. What is not live gets older from then on. `isBaseShort`:
   * `base` has no figures, as it is from an overview. */
  constructor(
    public base: Host,
    public readAt = 0,
    private isBaseShort = false,
  ) {
    this.id = base.id
  }

  get untracked(): Host {
    return this.detail ?? this.base
  }

  /** No figures of it are here: it is not in view, or has just come into view. */
  get isShort(): boolean {
    this.version.read()
    return this.isBaseShort && this.detail === null
  }

  /** To sort by; of a host without figures it may be some seconds old. */
  get load(): Load {
    return this.isBaseShort && this.detail === null ? this.sampled : this.untrackedSummary
  }

  sample(load: Load): void {
    this.sampled = load
  }

  get host(): Host {
    this.version.read()
    return this.untracked
  }

  /** Undefined where the host has no such GPU now. The object is changed in place: derive texts from it, do not keep it. */
  gpu(uuid: string): Gpu | undefined {
    return this.host.gpus.find((gpu) => gpu.uuid === uuid)
  }

  get summary(): HostSummary {
    this.version.read()
    return this.untrackedSummary
  }

  get untrackedSummary(): HostSummary {
    return (this.summaryCache ??= summarize(this.untracked))
  }

  get inventory(): string {
    this.version.read()
    return (this.inventoryCache ??= inventory(this.untracked.gpus))
  }

  /** The model without its count, so that equal machines stand together whatever their size. */
  get inventoryKind(): string {
    return this.inventory.replace(/^\d+× /, '')
  }

  /** Alerts of the host that need attention, the worst first. Tracked. */
  get alerts(): readonly Alert[] {
    this.version.read()
    return this.openAlerts
  }

  /** How bad it is with the host, its GPUs and its alerts. Tracked. */
  get level(): Level {
    this.version.read()
    return this.untrackedLevel
  }

  get untrackedLevel(): Level {
    const { status, problems } = this.untracked
    return worstLevel([statusLevel(status), gpuLevel(this.untrackedSummary.health), problems.length > 0 ? 'warning' : 'ok', ...this.openAlerts.map(({ severity }) => alertLevel(severity))])
  }

  get untrackedAlerts(): number {
    return this.openAlerts.length
  }

  showAlerts(alerts: readonly Alert[]): void {
    const key = (some: readonly Alert[]): string => some.map(({ id, severity, title }) => `${id} ${severity} ${title}`).join('\n')
    if (key(alerts) === key(this.openAlerts)) return
    this.openAlerts = alerts
    this.touch()
  }

  /** How many of its GPUs are MIG slices. Not tracked. */
  get slices(): number {
    return (this.slicesCache ??= this.untracked.gpus.filter(isSlice).length)
  }

  replace(host: Host, readAt: number, isShort = false): void {
    this.base = host
    this.isBaseShort = isShort
    if (this.detail === null) this.readAt = isShort ? 0 : readAt
    this.inventoryCache = this.slicesCache = null
    this.touch()
  }

  /** The host in full, read at `readAt`; null: not any more. */
  showDetail(host: Host | null, readAt = 0): void {
    this.detail = host
    this.readAt = readAt
    this.inventoryCache = this.slicesCache = null
    this.touch()
  }

  /** Takes over the metrics that no delta brings from `host`, read at `readAt`. */
  refresh(host: Host, readAt: number): void {
    copy(HOST_READ, host, this.untracked)
    const byUuid = new Map(host.gpus.map((gpu) => [gpu.uuid, gpu]))
    for (const gpu of this.untracked.gpus) copy(GPU_READ, byUuid.get(gpu.uuid), gpu)
    this.readAt = readAt
    this.touch()
  }

  /** Whether the metrics that no delta brings may be shown as current. `now` is the hub's clock. */
  isRead(now: number): boolean {
    return now - this.readAt < OLD_AFTER_SECONDS
  }

  /** Changes `host`, which is `base` or `detail`. True when it takes another shape on the board: its status, its problems
   * or its maintenance changed. Needs `touch` after it. */
  change(change: HostChange, host: Host = this.untracked): boolean {
    const { gpus, ...facts } = change
    Object.assign(host, facts)
    if (gpus !== undefined) this.changeGpus(gpus, host)
    return change.status !== undefined || change.problems !== undefined || change.maintenance !== undefined
  }

  /** They come in the order in which they stand here, some left out. */
  private changeGpus(changes: readonly GpuChange[], { gpus }: Host): void {
    let place = 0
    for (const change of changes) {
      if (gpus[place]?.uuid !== change.uuid) place = gpus.findIndex(({ uuid }) => uuid === change.uuid)
      const gpu = gpus[place]
      if (gpu !== undefined) Object.assign(gpu, change)
      if (change.display_name !== undefined) this.inventoryCache = null
      place += 1
    }
  }

  /** Whatever is drawn of this host is drawn again. */
  touch(hasNewMemory = false): void {
    if (hasNewMemory) this.inventoryCache = null
    this.summaryCache = null
    this.version.bump()
  }
}

/** Seconds after which a metric that is only read with the host is too old to be shown: three readings were missed. */
const OLD_AFTER_SECONDS = 15
const readOf = (wanted: string): string[] => catalog.filter(({ scope, live }) => scope === wanted && !live).map(({ name }) => name)
const GPU_READ = readOf('gpu')
const HOST_READ = readOf('host')

function copy(names: readonly string[], from: Record<string, unknown> | undefined, to: Record<string, unknown>): void {
  if (from !== undefined) for (const name of names) to[name] = from[name] ?? null
}

/** They are labelled by their board and their own number, such as 0.5. */
export const isSlice = ({ label }: Pick<Gpu, 'label'>): boolean => label.includes('.')

const byName = new Intl.Collator('en', { numeric: true, sensitivity: 'base' })
const UNRANKED = -1

export interface Applied {
  /** Hosts came, went or changed their shape: the board must be arranged anew. */
  reshaped: boolean
  /** False if something was missed: the delta names rows that belong to nobody. */
  fits: boolean
}

/** Hosts as one stream has them, and their rows in its arrays. */
class HostLayer {
  readonly entries = new Map<string, HostEntry>()
  private readonly rows: FleetRows

  /** `put` makes the host that came part of its entry, which may be new, and `drop` takes it away again. */
  constructor(
    private readonly put: (host: Host, time: number) => HostEntry,
    private readonly drop: (entry: HostEntry) => void,
    private readonly hostOf: (entry: HostEntry) => Host,
  ) {
    this.rows = new FleetRows(hostOf)
  }

  /** These hosts replace all others. */
  load(hosts: readonly Host[], rows: readonly HostRows[] | undefined, time: number): void {
    const kept = new Set(hosts.map((host) => host.id))
    for (const id of this.entries.keys()) if (!kept.has(id)) this.remove(id)
    hosts.forEach((host) => this.entries.set(host.id, this.put(host, time)))
    this.rows.clear()
    this.claim(rows)
  }

  /** What is said of rows that belong to nobody is left out. */
  apply(delta: FleetDelta): Applied & { renamed: boolean } {
    const changed = new Set<HostEntry>()
    let renamed = Boolean(delta.removed?.length || delta.hosts?.length)
    if (renamed) this.rebuild(delta)
    let reshaped = renamed
    for (const change of delta.changes ?? []) {
      const entry = this.entries.get(change.id)
      if (entry === undefined) continue
      renamed ||= change.name !== undefined || change.display_name !== undefined
      reshaped = entry.change(change, this.hostOf(entry)) || reshaped
      changed.add(entry)
    }
    const fits = this.write(delta, changed)
    const hasNewMemory = delta.gpus?.['memory_total_bytes'] !== undefined
    for (const entry of changed) entry.touch(hasNewMemory)
    return { reshaped: reshaped || renamed, fits, renamed }
  }

  /** Every row of the hosts that come or go is given up before any is claimed: rows may pass from one to another. */
  private rebuild({ removed = [], hosts = [], rows, time }: FleetDelta): void {
    for (const id of [...removed, ...hosts.map((host) => host.id)]) {
      const entry = this.entries.get(id)
      if (entry !== undefined) this.rows.release(entry)
    }
    removed.forEach((id) => this.remove(id))
    hosts.forEach((host) => this.entries.set(host.id, this.put(host, time)))
    this.claim(rows)
  }

  private remove(id: string): void {
    const entry = this.entries.get(id)
    if (entry === undefined) return
    this.entries.delete(id)
    this.drop(entry)
  }

  private claim(rows: readonly HostRows[] = []): void {
    for (const row of rows) {
      const entry = this.entries.get(row[0])
      if (entry !== undefined) this.rows.claim(entry, row)
    }
  }

  /** False if a row belongs to nobody. */
  private write({ gpus, reports, processes, summaries }: FleetDelta, changed: Set<HostEntry>): boolean {
    if (summaries !== undefined) {
      const { rows, utilization_percent: utilization, temperature_celsius: hottest } = summaries
      this.rows.forEachHost(rows, (entry, at) => entry.sample({ utilization: utilization[at] ?? null, hottest: hottest[at] ?? null }))
    }
    const fits = [
      gpus === undefined || this.rows.writeGpus(gpus, changed),
      reports === undefined || this.rows.writeHosts(reports, changed),
      processes === undefined || this.rows.writeProcesses(processes, changed),
    ]
    return fits.every(Boolean)
  }
}

export class FleetModel {
  /** What the last delta told of, for who lists what happened; empty after a snapshot, before which some may be missed. */
  recent: readonly HubEvent[] = []
  /** Bumped whenever `recent` is another. */
  readonly happened = new Version()
  /** Bumped by every event. */
  readonly pulse = new Version()
  /** Bumped when any reservation was made, changed or given back, and by a snapshot, before which that may be missed. */
  readonly reservationsChanged = new Version()
  demo = false
  /** The hub's clock at the last event, Unix seconds. */
  time = 0
  /** Null until the first snapshot. */
  totals: Totals | null = null
  /** Nothing may be said to be missing from the fleet, and nothing be counted in it, before all of it is here. */
  isWhole = false
  /** The hub's own: lists of hosts that cannot be read, hosts that are named twice. */
  problems: readonly string[] = []
  /** What is wrong, the worst first. */
  alerts: readonly Alert[] = []
  /** Of all alerts: the hub sends the worst of them. */
  alertCounts: AlertCounts = { total: 0, needs_attention: 0, critical: 0 }
  /** The ids of hosts with alerts that need attention. */
  private alerted: ReadonlySet<string> = new Set()
  private isShort = false
  private sorted: HostEntry[] = []
  private names: ReadonlyMap<string, HostEntry[]> | null = null
  private readonly hosts = new HostLayer(
    (host, time) => this.put(host, time),
    (entry) => (entry.rank = UNRANKED),
    (entry) => entry.base,
  )
  /** Of a large fleet the hosts in view, which come in full on a stream of their own. Neither stream waits for the other: a
   * host may be here before it is in the fleet, or after it has left it. */
  private readonly details = new HostLayer(
    (host, time) => this.putDetail(host, time),
    (entry) => entry.showDetail(null),
    (entry) => entry.detail ?? entry.base,
  )

  get entries(): ReadonlyMap<string, HostEntry> {
    return this.hosts.entries
  }

  /** All hosts in the order of their names. */
  get byName(): readonly HostEntry[] {
    return this.sorted
  }

  /** The hosts of this name: several may share one. */
  named(name: string): readonly HostEntry[] {
    this.names ??= groupByName(this.sorted)
    return this.names.get(name) ?? []
  }

  /** Takes a snapshot, which replaces everything. `isWhole` is false where more hosts than these are on their way,
   * `isShort` is true where they are an overview. */
  load(fleet: FleetDocument, isWhole = true, isShort = false): void {
    this.isShort = isShort
    this.hosts.load(fleet.hosts, fleet.rows, fleet.time)
    this.demo = fleet.demo
    this.isWhole = isWhole
    this.tell([])
    this.reservationsChanged.bump()
    this.problems = fleet.problems
    this.alerts = fleet.alerts
    this.alertCounts = fleet.alert_counts
    this.shareAlerts()
    this.rankByName()
    this.updateTotals(fleet.time, fleet.totals)
  }

  /** Takes a delta. What it says of rows that belong to nobody is left out. */
  apply(delta: FleetDelta): Applied {
    const { reshaped, fits, renamed } = this.hosts.apply(delta)
    if (renamed) this.rankByName()
    if (delta.problems !== undefined) this.problems = delta.problems
    if (delta.alerts !== undefined) this.alerts = delta.alerts
    if (delta.alerts !== undefined || renamed) this.shareAlerts()
    if (delta.alert_counts !== undefined) this.alertCounts = delta.alert_counts
    if (delta.events !== undefined) this.tell(delta.events)
    if (delta.reservations !== undefined) this.reservationsChanged.bump()
    this.updateTotals(delta.time, delta.totals)
    return { reshaped, fits }
  }

  /** Takes hosts in view in full: these and no others. */
  loadDetails({ hosts, rows, time }: Pick<FleetDocument, 'hosts' | 'rows' | 'time'>): void {
    this.details.load(hosts, rows, time)
  }

  applyDetails(delta: FleetDelta): Applied {
    return this.details.apply(delta)
  }

  /** Nothing is known of hosts in view that the overview does not say. */
  dropDetails(): void {
    this.details.load([], [], this.time)
  }

  private shareAlerts(): void {
    const open = new Map<string, Alert[]>()
    for (const alert of this.alerts) if (alert.host_id !== null && isOpen(alert)) open.set(alert.host_id, [...(open.get(alert.host_id) ?? []), alert])
    for (const id of new Set([...this.alerted, ...open.keys()])) this.entries.get(id)?.showAlerts(open.get(id) ?? [])
    this.alerted = new Set(open.keys())
  }

  private tell(events: readonly HubEvent[]): void {
    this.recent = events
    this.happened.bump()
  }

  private updateTotals(time: number, totals: Totals): void {
    this.time = time
    this.totals = totals
    this.pulse.bump()
  }

  private put(host: Host, time: number): HostEntry {
    const entry = this.entries.get(host.id) ?? this.details.entries.get(host.id)
    if (entry === undefined) return new HostEntry(host, this.isShort ? 0 : time, this.isShort)
    entry.replace(host, time, this.isShort)
    return entry
  }

  private putDetail(host: Host, time: number): HostEntry {
    const entry = this.details.entries.get(host.id) ?? this.entries.get(host.id) ?? new HostEntry(host, time)
    entry.showDetail(host, time)
    return entry
  }

  /** From the order before: comparing names is slow, and few hosts come or go at a time. */
  private rankByName(): void {
    const added = [...this.entries.values()].filter(({ rank }) => rank === UNRANKED)
    this.sorted = [...this.sorted.filter(({ rank }) => rank !== UNRANKED), ...added]
    this.sorted.sort((a, b) => byName.compare(a.base.display_name, b.base.display_name))
    this.sorted.forEach((entry, rank) => (entry.rank = rank))
    this.names = null
  }
}

function groupByName(entries: readonly HostEntry[]): Map<string, HostEntry[]> {
  const names = new Map<string, HostEntry[]>()
  for (const entry of entries) {
    const { name } = entry.base
    const others = names.get(name)
    if (others === undefined) names.set(name, [entry])
    else others.push(entry)
  }
  return names
}

const SEVERITY: Record<HealthLevel, number> = { ok: 0, unknown: 1, warning: 2, critical: 3 }

function summarize(host: Host): HostSummary {
  const summary: HostSummary = {
    counts: noCounts(),
    users: [],
    utilization: null,
    memoryUsed: null,
    memoryTotal: null,
    hottest: null,
    power: null,
    health: 'ok',
  }
  let measured = 0
  for (const gpu of host.gpus) {
    summary.counts[gpu.availability] += 1
    for (const user of gpu.users) if (!summary.users.includes(user)) summary.users.push(user)
    if (SEVERITY[gpu.health] > SEVERITY[summary.health]) summary.health = gpu.health
    if (gpu.utilization_percent !== null) measured += 1
    summary.utilization = plus(summary.utilization, gpu.utilization_percent)
    summary.memoryUsed = plus(summary.memoryUsed, gpu.memory_used_bytes)
    summary.memoryTotal = plus(summary.memoryTotal, gpu.memory_total_bytes)
    summary.power = plus(summary.power, gpu.power_watts)
    summary.hottest = higher(summary.hottest, gpu.temperature_celsius)
  }
  if (summary.utilization !== null) summary.utilization /= measured
  return summary
}

/** The sum of what is known. */
function plus(sum: number | null, value: number | null): number | null {
  return value === null ? sum : (sum ?? 0) + value
}

function higher(most: number | null, value: number | null): number | null {
  return value === null || (most !== null && most >= value) ? most : value
}
