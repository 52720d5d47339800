/** A hub that changes at random, for the unit tests: what follows its stream must come to what a snapshot says. */
import type { Delta, Gpu, Host, HostRows, Process, Values } from '../api/types'
import { fleet, gpu, host, someProcess, totals } from './samples'
import type { FleetModel } from '../stream/fleetModel'

const GPU_METRICS = ['utilization_percent', 'memory_used_bytes', 'temperature_celsius', 'power_watts'] as const
const HOST_METRICS = ['cpu_percent', 'memory_used_bytes', 'last_report_at'] as const
const NUMBERS = ['memory_used_bytes', 'utilization_percent'] as const
const STATES = ['free', 'busy', 'idle', 'allocated', 'reserved', 'drained', 'unknown'] as const
const HEALTH = ['ok', 'warning', 'critical'] as const
const STATUSES = ['up', 'up', 'late', 'down'] as const
const USERS = [[], ['ann'], ['bob'], ['ann', 'bob'], ['cid']]
const MODELS = ['A100', 'H200', 'H100 MIG 1g.10gb']

/** Always the same numbers for the same seed (mulberry32). */
export class SeededRandom {
  constructor(private seed: number) {}

  next(): number {
    this.seed = (this.seed + 0x6d2b79f5) | 0
    let mixed = Math.imul(this.seed ^ (this.seed >>> 15), 1 | this.seed)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }

  below(end: number): number {
    return Math.floor(this.next() * end)
  }

  value(): number | null {
    return this.next() < 0.1 ? null : this.below(1000)
  }
}

/** A hub as far as its stream goes: it says what it changes. */
export class RandomHub {
  readonly hosts = new Map<string, Host>()
  private readonly rows = new Map<string, HostRows>()
  private born = 0

  constructor(private readonly chance: SeededRandom) {}

  /** Copies: what the page changes must not change here. */
  document(time: number): Parameters<FleetModel['load']>[0] {
    return structuredClone({ ...fleet([...this.hosts.values()], { time }), rows: [...this.rows.values()] })
  }

  step(time: number): Delta {
    const delta: Delta = { time, totals: totals() }
    // In half of the seconds nobody comes, goes, or gets another name.
    const unrest = this.chance.next() < 0.5 ? 0 : 1
    const removed = [...this.hosts.keys()].filter(() => this.chance.next() < 0.1 * unrest)
    removed.forEach((id) => this.drop(id))
    const whole = [...this.hosts.keys()].filter(() => this.chance.next() < 0.3 * unrest)
    if (this.hosts.size < 8 && this.chance.next() < 0.8 * unrest) whole.push(`host${this.born++}`)
    whole.forEach((id) => this.drop(id))
    whole.forEach((id) => this.add(id))
    const others = [...this.hosts.values()].filter(({ id }) => !whole.includes(id))
    if (removed.length > 0) delta.removed = removed
    if (whole.length > 0) {
      delta.hosts = whole.map((id) => this.hosts.get(id)!)
      delta.rows = whole.map((id) => this.rows.get(id)!)
    }
    const changes = others.filter(() => this.chance.next() < 0.3).map((each) => this.changeWords(each, unrest))
    if (changes.length > 0) delta.changes = changes
    this.changeNumbers(delta)
    return structuredClone(delta)
  }

  private drop(id: string): void {
    this.hosts.delete(id)
    this.rows.delete(id)
  }

  private add(id: string): void {
    const gpus = Array.from({ length: this.chance.below(5) }, () => gpu({ display_name: this.one(MODELS), processes: this.someProcesses() }))
    this.hosts.set(id, host(id, gpus, { labels: { rack: `r${this.chance.below(3)}` } }))
    this.rows.set(id, [id, this.freeHostRow(), this.freeGpuRow(gpus.length)])
  }

  private freeHostRow(): number {
    const taken = new Set([...this.rows.values()].map(([, row]) => row))
    for (let row = this.chance.below(3); ; row++) if (!taken.has(row)) return row
  }

  private freeGpuRow(count: number): number {
    const taken = new Set([...this.rows.values()].flatMap(([id, , first]) => this.hosts.get(id)!.gpus.map((_, at) => first + at)))
    for (let first = 0; ; first++) if (Array.from({ length: count }, (_, at) => first + at).every((row) => !taken.has(row))) return first
  }

  private someProcesses(): Process[] {
    return Array.from({ length: this.chance.below(3) }, () => ({ ...someProcess, pid: this.chance.below(1000), user: this.one(['ann', 'bob', null]), started_at: this.chance.value(), memory_used_bytes: this.chance.value() }))
  }

  private changeWords(target: Host, unrest: number): NonNullable<Delta['changes']>[number] {
    target.os = `Debian ${this.chance.below(20)}`
    target.status = this.one(STATUSES)
    if (this.chance.next() < 0.3 * unrest) target.name = target.display_name = `name${this.chance.below(6)}`
    const gpus = target.gpus.filter(() => this.chance.next() < 0.5).map((each) => {
      const change = { uuid: each.uuid, availability: this.one(STATES), health: this.one(HEALTH), users: this.one(USERS), since: this.chance.below(1000), processes: this.someProcesses() }
      Object.assign(each, structuredClone(change))
      return change
    })
    const { id, os, status, name, display_name } = target
    return { id, os, status, ...(unrest > 0 ? { name, display_name } : {}), ...(gpus.length > 0 ? { gpus } : {}) }
  }

  private one<T>(values: readonly T[]): T {
    return values[this.chance.below(values.length)]!
  }

  private changeNumbers(delta: Delta): void {
    const byRow = new Map<number, Gpu>()
    for (const [id, , first] of this.rows.values()) this.hosts.get(id)!.gpus.forEach((each, at) => byRow.set(first + at, each))
    const hosts = new Map([...this.rows.values()].map(([id, row]) => [row, this.hosts.get(id)!]))
    if (this.chance.next() < 0.8) delta.gpus = this.columns(byRow, GPU_METRICS)
    if (this.chance.next() < 0.8) delta.reports = this.columns(hosts, HOST_METRICS)
    const rows = [...byRow.keys()].filter(() => this.chance.next() < 0.3)
    if (rows.length === 0) return
    const [memory, utilization] = NUMBERS.map((name) => rows.map((row) => (byRow.get(row)!.processes ?? []).map((each) => (each[name] = this.chance.value()))))
    delta.processes = { rows, memory_used_bytes: memory!, utilization_percent: utilization! }
  }

  private columns<Name extends string>(byRow: ReadonlyMap<number, { [Key in Name]: number | null }>, names: readonly Name[]): { rows: number[] } & { [Key in Name]?: Values } {
    const rows = [...byRow.keys()].filter(() => this.chance.next() < 0.6)
    const chosen = names.filter(() => this.chance.next() < 0.7)
    const columns: { [Key in Name]?: Values } = {}
    for (const name of chosen) columns[name] = this.values(rows, (row) => (byRow.get(row)![name] = this.chance.value()))
    return { rows, ...columns }
  }

  private values(rows: readonly number[], set: (row: number) => number | null): Values {
    if (this.chance.next() < 0.5) return rows.map(set)
    const at = rows.map((_, place) => place).filter(() => this.chance.next() < 0.3)
    return { at, to: at.map((place) => set(rows[place]!)) }
  }
}
