/**
 * The fleet as the page holds it: plain objects, changed in place by the stream's events.
 *
 * A host that stays keeps its entry, so whatever is drawn for it stays too and only its figures change.
 */
import type { Alert } from '../api/alerts'
import catalog from '../api/catalog.json'
import type { HubEvent } from '../api/events'
import type { Availability, Delta, GpuChange, HealthLevel, Host, HostChange, HostRows, Snapshot, Totals } from '../api/types'
import { FleetRows } from './fleetRows'
import { inventory } from './models'
import { Version, WatchedVersion } from './signal.svelte'

export const AVAILABILITIES: readonly Availability[] = ['free', 'busy', 'held', 'booked', 'unknown']

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

export class HostEntry {
  readonly id: string
  /** Where the host stands by name among all hosts. Set by the model whenever hosts come or go. */
  rank = 0
  readonly version = new WatchedVersion()
  private summaryCache: HostSummary | null = null
  private inventoryCache: string | null = null

  /** `readAt`: the hub's time when all of `host` was read. What is not live gets older from then on. */
  constructor(
    public host: Host,
    public readAt = 0,
  ) {
    this.id = host.id
  }

  get summary(): HostSummary {
    return (this.summaryCache ??= summarize(this.host))
  }

  get inventory(): string {
    return (this.inventoryCache ??= inventory(this.host.gpus))
  }

  /** The model without its count, so that equal machines stand together whatever their size. */
  get inventoryKind(): string {
    return this.inventory.replace(/^\d+× /, '')
  }

  replace(host: Host, readAt: number): void {
    this.host = host
    this.readAt = readAt
    this.inventoryCache = null
    this.touch()
  }

  /** Takes over the metrics that no delta brings from `host`, read at `readAt`. */
  refresh(host: Host, readAt: number): void {
    copy(HOST_READ, host, this.host)
    const byUuid = new Map(host.gpus.map((gpu) => [gpu.uuid, gpu]))
    for (const gpu of this.host.gpus) copy(GPU_READ, byUuid.get(gpu.uuid), gpu)
    this.readAt = readAt
    this.touch()
  }

  /** Whether the metrics that no delta brings may be shown as current. `now` is the hub's clock. */
  isRead(now: number): boolean {
    return now - this.readAt < OLD_AFTER_SECONDS
  }

  /** True when the host takes another shape on the board: its status or its problems changed. Needs `touch` after it. */
  change(change: HostChange): boolean {
    const { gpus, ...facts } = change
    Object.assign(this.host, facts)
    if (gpus !== undefined) this.changeGpus(gpus)
    return change.status !== undefined || change.problems !== undefined
  }

  /** They come in the order in which they stand here, some left out. */
  private changeGpus(changes: readonly GpuChange[]): void {
    const { gpus } = this.host
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

const byName = new Intl.Collator('en', { numeric: true, sensitivity: 'base' })

export interface Applied {
  /** Hosts came, went or changed their shape: the board must be arranged anew. */
  reshaped: boolean
  /** False if something was missed: the delta names rows that belong to nobody. */
  fits: boolean
}

export class FleetModel {
  readonly entries = new Map<string, HostEntry>()
  /** What the last delta told of, for who lists what happened; empty after a snapshot, before which some may be missed. */
  recent: readonly HubEvent[] = []
  /** Bumped whenever `recent` is another. */
  readonly happened = new Version()
  /** Bumped by every event. */
  readonly pulse = new Version()
  /** Bumped when any reservation was made, changed or given back, and by a snapshot, before which that may be missed. */
  readonly booked = new Version()
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
  private readonly rows = new FleetRows()

  /** Takes a snapshot, which replaces everything. `isWhole` is false where more hosts than these are on their way. */
  load(fleet: Snapshot, isWhole = true): void {
    const kept = new Set(fleet.hosts.map((host) => host.id))
    for (const id of this.entries.keys()) if (!kept.has(id)) this.entries.delete(id)
    fleet.hosts.forEach((host) => this.put(host, fleet.time))
    this.rows.clear()
    this.claim(fleet.rows)
    this.demo = fleet.demo
    this.isWhole = isWhole
    this.tell([])
    this.booked.bump()
    this.problems = fleet.problems
    this.alerts = fleet.alerts
    this.rankByName()
    this.beat(fleet.time, fleet.totals)
  }

  /** Takes a delta. What it says of rows that belong to nobody is left out. */
  apply(delta: Delta): Applied {
    const changed = new Set<HostEntry>()
    const rebuilt = Boolean(delta.removed?.length || delta.hosts?.length)
    if (rebuilt) this.rebuild(delta)
    let reshaped = rebuilt
    for (const change of delta.changes ?? []) {
      const entry = this.entries.get(change.id)
      if (entry === undefined) continue
      reshaped = entry.change(change) || reshaped
      changed.add(entry)
    }
    const fits = this.write(delta, changed)
    const hasNewMemory = delta.gpus?.['memory_total_bytes'] !== undefined
    for (const entry of changed) entry.touch(hasNewMemory)
    if (delta.problems !== undefined) this.problems = delta.problems
    if (delta.alerts !== undefined) this.alerts = delta.alerts
    if (delta.events !== undefined) this.tell(delta.events)
    if (delta.reservations !== undefined) this.booked.bump()
    this.beat(delta.time, delta.totals)
    return { reshaped, fits }
  }

  /** Every row of the hosts that come or go is given up before any is claimed: rows may pass from one to another. */
  private rebuild({ removed = [], hosts = [], rows, time }: Delta): void {
    for (const id of [...removed, ...hosts.map((host) => host.id)]) {
      const entry = this.entries.get(id)
      if (entry !== undefined) this.rows.release(entry)
    }
    removed.forEach((id) => this.entries.delete(id))
    hosts.forEach((host) => this.put(host, time))
    this.claim(rows)
    this.rankByName()
  }

  private claim(rows: readonly HostRows[] = []): void {
    for (const row of rows) {
      const entry = this.entries.get(row[0])
      if (entry !== undefined) this.rows.claim(entry, row)
    }
  }

  /** False if a row belongs to nobody. */
  private write({ gpus, reports, processes }: Delta, changed: Set<HostEntry>): boolean {
    const fits = [
      gpus === undefined || this.rows.writeGpus(gpus, changed),
      reports === undefined || this.rows.writeHosts(reports, changed),
      processes === undefined || this.rows.writeProcesses(processes, changed),
    ]
    return fits.every(Boolean)
  }

  private tell(events: readonly HubEvent[]): void {
    this.recent = events
    this.happened.bump()
  }

  private beat(time: number, totals: Totals): void {
    this.time = time
    this.totals = totals
    this.pulse.bump()
  }

  private put(host: Host, time: number): void {
    const entry = this.entries.get(host.id)
    if (entry === undefined) this.entries.set(host.id, new HostEntry(host, time))
    else entry.replace(host, time)
  }

  private rankByName(): void {
    const sorted = [...this.entries.values()].sort((a, b) => byName.compare(a.host.display_name, b.host.display_name))
    sorted.forEach((entry, rank) => (entry.rank = rank))
  }
}

const SEVERITY: Record<HealthLevel, number> = { ok: 0, unknown: 1, warning: 2, critical: 3 }

function summarize(host: Host): HostSummary {
  const summary: HostSummary = {
    counts: { free: 0, busy: 0, held: 0, booked: 0, unknown: 0 },
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
