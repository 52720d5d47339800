/**
 * The fleet as the page holds it: plain objects, changed in place by the stream's events.
 *
 * A host that stays keeps its entry, so whatever is drawn for it stays too and only its figures change.
 */
import type { Alert } from '../api/alerts'
import type { HubEvent } from '../api/events'
import type { Availability, Delta, Fleet, Gpu, GpuChange, HealthLevel, Host, HostChange, Totals } from '../api/types'
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

  constructor(public host: Host) {
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

  replace(host: Host): void {
    this.host = host
    this.inventoryCache = null
    this.touch()
  }

  /** True when the host takes another shape on the board: its status or its problems changed. */
  change(change: HostChange): boolean {
    // Thousands a second come by here: nothing is made only to be thrown away.
    const facts = this.host as Record<string, unknown>
    const changes = change as Record<string, unknown>
    for (const name in changes) if (name !== 'gpus') facts[name] = changes[name]
    if (change.gpus !== undefined) this.changeGpus(change.gpus)
    this.touch()
    return change.status !== undefined || change.problems !== undefined
  }

  /** They come in the order in which they stand here, some left out. */
  private changeGpus(changes: readonly GpuChange[]): void {
    const { gpus } = this.host
    let place = 0
    for (const change of changes) {
      if (gpus[place]?.uuid !== change.uuid) place = gpus.findIndex(({ uuid }) => uuid === change.uuid)
      const gpu = gpus[place]
      if (gpu !== undefined) this.changeGpu(gpu, change)
      place += 1
    }
  }

  /** What changes with nearly every report is written out: a field whose name the engine knows costs it a third. */
  private changeGpu(gpu: Gpu, change: GpuChange): void {
    for (const name in change) {
      if (name === 'utilization_percent') gpu.utilization_percent = change.utilization_percent!
      else if (name === 'memory_utilization_percent') gpu.memory_utilization_percent = change.memory_utilization_percent!
      else if (name === 'memory_used_bytes') gpu.memory_used_bytes = change.memory_used_bytes!
      else if (name === 'temperature_celsius') gpu.temperature_celsius = change.temperature_celsius!
      else if (name === 'memory_temperature_celsius') gpu.memory_temperature_celsius = change.memory_temperature_celsius!
      else if (name === 'power_watts') gpu.power_watts = change.power_watts!
      else if (name === 'energy_joules') gpu.energy_joules = change.energy_joules!
      else if (name !== 'uuid') this.changeFact(gpu, change, name)
    }
  }

  private changeFact(gpu: Record<string, unknown>, change: Record<string, unknown>, name: string): void {
    gpu[name] = change[name]
    if (name === 'display_name' || name === 'memory_total_bytes') this.inventoryCache = null
  }

  private touch(): void {
    this.summaryCache = null
    this.version.bump()
  }
}

const byName = new Intl.Collator('en', { numeric: true, sensitivity: 'base' })

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

  /** Takes a snapshot, which replaces everything. `isWhole` is false where more hosts than these are on their way. */
  load(fleet: Fleet, isWhole = true): void {
    const kept = new Set(fleet.hosts.map((host) => host.id))
    for (const id of this.entries.keys()) if (!kept.has(id)) this.entries.delete(id)
    fleet.hosts.forEach((host) => this.put(host))
    this.demo = fleet.demo
    this.isWhole = isWhole
    this.tell([])
    this.booked.bump()
    this.problems = fleet.problems
    this.alerts = fleet.alerts
    this.rankByName()
    this.beat(fleet.time, fleet.totals)
  }

  /** Takes a delta. True when hosts came, went or changed their shape: the board must then be arranged anew. */
  apply(delta: Delta): boolean {
    const rebuilt = Boolean(delta.removed?.length || delta.hosts?.length)
    delta.removed?.forEach((id) => this.entries.delete(id))
    delta.hosts?.forEach((host) => this.put(host))
    let reshaped = false
    for (const change of delta.changes ?? []) reshaped = this.entries.get(change.id)?.change(change) || reshaped
    if (rebuilt) this.rankByName()
    if (delta.problems !== undefined) this.problems = delta.problems
    if (delta.alerts !== undefined) this.alerts = delta.alerts
    if (delta.events !== undefined) this.tell(delta.events)
    if (delta.reservations !== undefined) this.booked.bump()
    this.beat(delta.time, delta.totals)
    return rebuilt || reshaped
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

  private put(host: Host): void {
    const entry = this.entries.get(host.id)
    if (entry === undefined) this.entries.set(host.id, new HostEntry(host))
    else entry.replace(host)
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
