/**
 * The rows of the stream's arrays: which host or GPU each of them belongs to, and how arrays are written into those.
 *
 * A host has one row among hosts. Its GPUs have consecutive rows among GPUs, in the order of its `gpus`. Rows are given
 * by the hub with whole hosts, and may pass from one host to another.
 */
import catalog from '../api/catalog.json'
import type { Gpu, GpuValues, Host, HostRows, HostValues, ProcessValues, Values } from '../api/types'
import type { HostEntry } from './fleetModel'

type GpuColumn = Exclude<keyof GpuValues, 'rows'>
type HostColumn = Exclude<keyof HostValues, 'rows'>

const namesOf = (wanted: string): Set<string> => new Set(catalog.filter(({ scope }) => scope === wanted).map(({ name }) => name))
const GPU_COLUMNS: ReadonlySet<string> = namesOf('gpu')
const HOST_COLUMNS: ReadonlySet<string> = namesOf('host').add('last_report_at')
/** What changes with nearly every report. */
const OFTEN: ReadonlySet<string> = new Set<GpuColumn>(['utilization_percent', 'memory_used_bytes', 'temperature_celsius', 'power_watts'])
const isGpuColumn = (name: string): name is GpuColumn => GPU_COLUMNS.has(name)
const isHostColumn = (name: string): name is HostColumn => HOST_COLUMNS.has(name)

export class FleetRows {
  /** `hostOf`: what of an entry is written to. */
  constructor(private readonly hostOf: (entry: HostEntry) => Host = (entry) => entry.untracked) {}

  private readonly hosts: (HostEntry | undefined)[] = []
  private readonly gpus: (Gpu | undefined)[] = []
  /** The host of each row among GPUs. */
  private readonly owners: (HostEntry | undefined)[] = []
  private readonly claims = new Map<HostEntry, { row: number; first: number; count: number }>()

  clear(): void {
    this.hosts.length = this.gpus.length = this.owners.length = 0
    this.claims.clear()
  }

  claim(entry: HostEntry, [, row, first]: HostRows): void {
    const { gpus } = this.hostOf(entry)
    this.hosts[row] = entry
    gpus.forEach((gpu, at) => {
      this.gpus[first + at] = gpu
      this.owners[first + at] = entry
    })
    this.claims.set(entry, { row, first, count: gpus.length })
  }

  /** The rows of this host belong to nobody, except those that another host has claimed since. */
  release(entry: HostEntry): void {
    const claim = this.claims.get(entry)
    if (claim === undefined) return
    this.claims.delete(entry)
    if (this.hosts[claim.row] === entry) this.hosts[claim.row] = undefined
    for (let row = claim.first; row < claim.first + claim.count; row++) {
      if (this.owners[row] === entry) this.owners[row] = this.gpus[row] = undefined
    }
  }

  /** These write what they are given, add its hosts to `changed`, and are false if a row belongs to nobody. */
  writeGpus(columns: GpuValues, changed: Set<HostEntry>): boolean {
    this.writeOften(columns)
    const others = Object.keys(columns).filter(isGpuColumn).filter((name) => !OFTEN.has(name) || !Array.isArray(columns[name]))
    if (others.length > 0) write(columns, others, columns.rows.map((row) => this.gpus[row]))
    return mark(columns.rows, this.owners, changed)
  }

  /**
   * Writes the columns that change all the time and have a value for each row. Thousands of rows a second come by here:
   * a field whose name the engine knows, of an object that is at hand, costs a third of one that is found by name.
   */
  private writeOften(columns: GpuValues): void {
    const utilization = whole(columns.utilization_percent)
    const memory = whole(columns.memory_used_bytes)
    const temperature = whole(columns.temperature_celsius)
    const power = whole(columns.power_watts)
    const { rows } = columns
    for (let at = 0; at < rows.length; at++) {
      const gpu = this.gpus[rows[at]!]
      if (gpu === undefined) continue
      if (utilization !== undefined) gpu.utilization_percent = utilization[at]!
      if (memory !== undefined) gpu.memory_used_bytes = memory[at]!
      if (temperature !== undefined) gpu.temperature_celsius = temperature[at]!
      if (power !== undefined) gpu.power_watts = power[at]!
    }
  }

  writeHosts(columns: HostValues, changed: Set<HostEntry>): boolean {
    const owners = columns.rows.map((row) => this.hosts[row])
    write(columns, Object.keys(columns).filter(isHostColumn), owners.map((entry) => entry && this.hostOf(entry)))
    return mark(columns.rows, this.hosts, changed)
  }

  /** The hosts in `rows` that there are, each with its position in `rows`. */
  forEachHost(rows: readonly number[], take: (entry: HostEntry, at: number) => void): void {
    rows.forEach((row, at) => {
      const entry = this.hosts[row]
      if (entry !== undefined) take(entry, at)
    })
  }

  /** Also false if a GPU has more or fewer processes than there are numbers for: it keeps those it has. */
  writeProcesses(columns: ProcessValues, changed: Set<HostEntry>): boolean {
    let fits = mark(columns.rows, this.owners, changed)
    for (const name of ['memory_used_bytes', 'utilization_percent'] as const) {
      columns[name].forEach((numbers, at) => {
        const processes = this.gpus[columns.rows[at]!]?.processes ?? []
        if (processes.length !== numbers.length) fits = false
        else processes.forEach((process, place) => (process[name] = numbers[place]!))
      })
    }
    return fits
  }
}

function whole(values: Values | undefined): (number | null)[] | undefined {
  return Array.isArray(values) ? values : undefined
}

type Numbers<Name extends string> = { [Key in Name]: number | null }

/** `targets` are those of `columns.rows`. */
function write<Name extends string>(columns: { [Key in Name]?: Values }, names: readonly Name[], targets: readonly (Numbers<Name> | undefined)[]): void {
  for (const name of names) {
    const values = columns[name]
    if (values !== undefined) writeColumn(targets, name, values)
  }
}

function writeColumn<Name extends string>(targets: readonly (Numbers<Name> | undefined)[], name: Name, values: Values): void {
  const [at, to] = Array.isArray(values) ? [null, values] : [values.at, values.to]
  for (let i = 0; i < to.length; i++) {
    const target = targets[at === null ? i : at[i]!]
    if (target !== undefined) target[name] = to[i]!
  }
}

/** Rows of one host mostly come one after the other. */
function mark(rows: readonly number[], owners: readonly (HostEntry | undefined)[], changed: Set<HostEntry>): boolean {
  let last: HostEntry | undefined
  let fits = true
  for (const row of rows) {
    const owner = owners[row]
    if (owner === undefined) fits = false
    else if (owner !== last) changed.add((last = owner))
  }
  return fits
}
