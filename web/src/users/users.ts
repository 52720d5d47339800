/**
 * Who is on which GPUs now, from the live fleet.
 *
 * Use by unknown users is one row of its own: processes without an owner, memory in use without a process, GPUs in use
 * whose processes could not be read. The last report of a host that is not up is listed, but never counted.
 */
import type { Gpu, Host, Process, UserRow } from '../api/types'
import { bytes, clockTime, count, DASH, duration, elapsed, percent, plain, utcTime } from '../ui/format'
import type { HostEntry } from '../stream/fleetModel'
import type { Figure } from '../ui/format'
import { lower } from '../ui/format'

/** A GPU in use by a user. */
export interface GpuUse {
  host: Host
  gpu: Gpu
  /** Theirs; empty where the list could not be read, or is empty while memory is in use. */
  processes: readonly Process[]
  /** On that GPU; null where a part of it is not known. */
  memory: number | null
  /** The host is not up: this is from its last report. */
  isPast: boolean
}

/** Sums and means cover what is known; null when nothing is. */
interface UserSums {
  /** GPUs of hosts that report. */
  gpus: number
  pastGpus: number
  memory: number | null
  /** Some memory is known, but not all: the sum is at least that. */
  isMemoryPart: boolean
  /** Null where the lists of processes could not be read at all. */
  processes: number | null
  utilization: number | null
  /** GPUs whose utilization is known. */
  measured: number
  idleGpus: number
  /** When the first of the idle ones fell idle. */
  idleSince: number | null
  /** When their oldest process started. */
  since: number | null
}

/** A user of GPUs now. */
export interface ActiveUser extends UserSums {
  /** Unique per row, also for unknown users. */
  key: string
  /** Null: unknown. */
  user: string | null
  /** Their GPUs by host, in the order of the hosts' names. */
  places: readonly (readonly GpuUse[])[]
}

/** Not the name of any login: those have no such character. */
const UNKNOWN_KEY = '\u0000'

export function keyOf(user: string | null): string {
  return user ?? UNKNOWN_KEY
}

/** Somebody on a host. `sums` has the sum of utilizations. */
interface HostUse {
  uses: readonly GpuUse[]
  sums: UserSums
}

/** What the hub has counted, for a fleet whose processes and figures are not streamed. Where it has no row, as it was. */
export function withFigures(users: readonly ActiveUser[], counted: readonly UserRow[]): ActiveUser[] {
  const rows = new Map(counted.map((row) => [row.user, row]))
  return users.map((each) => {
    const row = rows.get(each.user)
    if (row === undefined) return each
    return { ...each, memory: row.memory_used_bytes, isMemoryPart: row.is_memory_part, processes: row.processes, utilization: row.utilization_percent, since: row.since }
  })
}

interface HostUses {
  version: number
  /** The update in which the host was last there. */
  update: number
  users: ReadonlyMap<string | null, HostUse>
}

/** Everyone who uses a GPU, kept current: hosts that changed are read again, and their users are summed up again. */
export class UserIndex {
  private readonly hosts = new Map<HostEntry, HostUses>()
  private readonly users = new Map<string | null, { hosts: Set<HostEntry>; row: ActiveUser | null }>()
  private updates = 0

  /** `hostOf`: what of an entry is read. */
  constructor(private readonly hostOf: (entry: HostEntry) => Host) {}

  /** Takes over what changed, and returns everyone in no particular order. `entries` are all hosts. */
  update(entries: Iterable<HostEntry>): ActiveUser[] {
    this.updates += 1
    for (const entry of entries) this.read(entry)
    for (const [entry, { update }] of this.hosts) if (update !== this.updates) this.put(entry, null)
    for (const [user, { hosts }] of this.users) if (hosts.size === 0) this.users.delete(user)
    return [...this.users].map(([user, each]) => (each.row ??= this.sumUp(user, each.hosts)))
  }

  /** Somebody as of the last update. */
  find(user: string | null): ActiveUser | undefined {
    return this.users.get(user)?.row ?? undefined
  }

  private read(entry: HostEntry): void {
    const known = this.hosts.get(entry)
    if (known?.version === entry.version.untracked) known.update = this.updates
    else this.put(entry, { version: entry.version.untracked, update: this.updates, users: usesOf(this.hostOf(entry)) })
  }

  private put(entry: HostEntry, next: HostUses | null): void {
    for (const user of this.hosts.get(entry)?.users.keys() ?? []) this.mark(user).delete(entry)
    for (const user of next?.users.keys() ?? []) this.mark(user).add(entry)
    if (next === null) this.hosts.delete(entry)
    else this.hosts.set(entry, next)
  }

  private mark(user: string | null): Set<HostEntry> {
    let each = this.users.get(user)
    if (each === undefined) this.users.set(user, (each = { hosts: new Set(), row: null }))
    each.row = null
    return each.hosts
  }

  private sumUp(user: string | null, hosts: ReadonlySet<HostEntry>): ActiveUser {
    const sorted = [...hosts].sort((a, b) => a.rank - b.rank)
    return sumUp(user, sorted.map((entry) => this.hosts.get(entry)!.users.get(user)!))
  }
}

/** Who uses which GPUs of a host. */
function usesOf(host: Host): Map<string | null, HostUse> {
  const found = new Map<string | null, GpuUse[]>()
  for (const gpu of host.gpus) {
    for (const [user, processes] of ownersOf(gpu, host)) {
      const use = gpuUseOf(host, gpu, processes)
      const others = found.get(user)
      if (others === undefined) found.set(user, [use])
      else others.push(use)
    }
  }
  return new Map([...found].map(([user, uses]) => [user, { uses, sums: sumUpHost(uses) }]))
}

const NOBODY: ReadonlyMap<string | null, Process[]> = new Map()

/** Who is on the GPU with which processes. A display server uses a GPU, but nobody works there. */
function ownersOf(gpu: Gpu, host: Host): ReadonlyMap<string | null, Process[]> {
  const state = host.status === 'up' ? gpu.availability : gpu.last_seen
  const isInUse = state === 'busy' || state === 'idle'
  if (!isInUse && !gpu.processes?.length) return NOBODY
  const owners = new Map<string | null, Process[]>()
  for (const process of gpu.processes ?? []) {
    if (process.display) continue
    const user = process.user ?? null
    const theirs = owners.get(user)
    if (theirs === undefined) owners.set(user, [process])
    else theirs.push(process)
  }
  // Some sources report users without their processes.
  if (owners.size === 0 && isInUse) for (const user of gpu.users.length > 0 ? gpu.users : [null]) owners.set(user, [])
  return owners
}

function gpuUseOf(host: Host, gpu: Gpu, processes: readonly Process[]): GpuUse {
  return { host, gpu, processes, memory: memoryOf(gpu, processes), isPast: host.status !== 'up' }
}

/** What their processes use; all of the GPU's where they are alone on it and that is not told by process. */
function memoryOf(gpu: Gpu, processes: readonly Process[]): number | null {
  let sum = 0
  for (const process of processes) {
    if (process.memory_used_bytes == null) return aloneOn(gpu, processes) ? gpu.memory_used_bytes : null
    sum += process.memory_used_bytes
  }
  return processes.length > 0 ? sum : aloneOn(gpu, processes) ? gpu.memory_used_bytes : null
}

function aloneOn(gpu: Gpu, processes: readonly Process[]): boolean {
  return gpu.users.length <= 1 && (gpu.processes === null || gpu.processes.length === processes.length)
}

/** Somebody on one host. */
function sumUpHost(uses: readonly GpuUse[]): UserSums {
  const sums = noSums()
  const pids = new Set<number>()
  for (const { gpu, processes, memory, isPast } of uses) {
    if (isPast) {
      sums.pastGpus += 1
      continue
    }
    sums.gpus += 1
    sums.memory = plus(sums.memory, memory)
    sums.isMemoryPart ||= memory === null
    sums.utilization = plus(sums.utilization, gpu.utilization_percent)
    if (gpu.utilization_percent !== null) sums.measured += 1
    if (gpu.availability === 'idle') {
      sums.idleGpus += 1
      sums.idleSince = earlier(sums.idleSince, gpu.since)
    }
    if (gpu.processes !== null) sums.processes ??= 0
    for (const { pid, started_at } of processes) {
      pids.add(pid)
      sums.since = earlier(sums.since, started_at)
    }
  }
  // One process on several GPUs is one.
  if (sums.processes !== null) sums.processes = pids.size
  return sums
}

/** Somebody on all their hosts, in the order of their names. */
function sumUp(user: string | null, hosts: readonly HostUse[]): ActiveUser {
  const sums = noSums()
  for (const { sums: there } of hosts) {
    sums.gpus += there.gpus
    sums.pastGpus += there.pastGpus
    sums.memory = plus(sums.memory, there.memory)
    sums.isMemoryPart ||= there.isMemoryPart
    sums.processes = plus(sums.processes, there.processes)
    sums.utilization = plus(sums.utilization, there.utilization)
    sums.measured += there.measured
    sums.idleGpus += there.idleGpus
    sums.idleSince = earlier(sums.idleSince, there.idleSince)
    sums.since = earlier(sums.since, there.since)
  }
  if (sums.utilization !== null) sums.utilization /= sums.measured
  return { ...sums, key: keyOf(user), user, places: hosts.map(({ uses }) => uses) }
}

function noSums(): UserSums {
  return { gpus: 0, pastGpus: 0, memory: null, isMemoryPart: false, processes: null, utilization: null, measured: 0, idleGpus: 0, idleSince: null, since: null }
}

function plus(sum: number | null, value: number | null): number | null {
  return value === null ? sum : (sum ?? 0) + value
}

function earlier(first: number | null, time: number | null | undefined): number | null {
  return time == null || (first !== null && first <= time) ? first : time
}

export const SORTS = ['gpus', 'user', 'memory', 'processes', 'utilization', 'idle', 'since'] as const
export type UserSort = (typeof SORTS)[number]

/** A column and its direction. `isTurned`: the other way round than one looks first. */
export interface Order {
  by: UserSort
  isTurned: boolean
}

/** `-memory` in an address is the column turned round. What makes no sense is the first order. */
export function readOrder(text: string | null): Order {
  const isTurned = text?.startsWith('-') ?? false
  const by = SORTS.find((known) => known === text?.slice(isTurned ? 1 : 0))
  return by === undefined ? { by: 'gpus', isTurned: false } : { by, isTurned }
}

/** The order that a click on a column asks for, as it stands in the address; empty for the usual one. */
export function turnOrder(order: Order, by: UserSort): string {
  const isTurned = order.by === by && !order.isTurned
  return `${isTurned ? '-' : ''}${by}`.replace(/^gpus$/, '')
}

const byName = new Intl.Collator('en', { numeric: true, sensitivity: 'base' })

/** Most first; the longest first of times; names from A. */
const RANKS: Record<Exclude<UserSort, 'user'>, (each: ActiveUser) => number | null> = {
  gpus: (each) => each.gpus,
  memory: (each) => each.memory,
  processes: (each) => each.processes,
  utilization: (each) => each.utilization,
  idle: (each) => (each.idleSince === null ? null : -each.idleSince),
  since: (each) => (each.since === null ? null : -each.since),
}

/** What is not known comes last either way. Of the same memory who has more processes comes first; equal ones are by
 *  name, whom nobody could name after all others. */
export function sortUsers(users: readonly ActiveUser[], { by, isTurned }: Order): ActiveUser[] {
  const turn = isTurned ? -1 : 1
  return [...users].sort((a, b) => {
    if (by === 'user') return Number(a.user === null) - Number(b.user === null) || turn * names(a, b)
    const left = RANKS[by](a)
    const right = RANKS[by](b)
    if (left === null || right === null) return Number(left === null) - Number(right === null) || names(a, b)
    return turn * (right - left) || (by === 'memory' ? turn * ((b.processes ?? -1) - (a.processes ?? -1)) : 0) || names(a, b)
  })
}

function names(a: ActiveUser, b: ActiveUser): number {
  return Number(a.user === null) - Number(b.user === null) || byName.compare(a.user ?? '', b.user ?? '')
}

/** Every word stands in the name, or in a host or model that the user is on. */
export function findUsers(users: readonly ActiveUser[], text: string): ActiveUser[] {
  const words = text.toLowerCase().split(/\s+/).filter((word) => word !== '')
  return words.length === 0 ? [...users] : users.filter((each) => words.every((word) => isAbout(each, word)))
}

function isAbout(each: ActiveUser, word: string): boolean {
  if ((each.user ?? UNKNOWN_USER).toLowerCase().includes(word)) return true
  const isHere = ({ host, gpu }: GpuUse): boolean => lower(host.name).includes(word) || lower(host.display_name).includes(word) || lower(gpu.display_name).includes(word)
  return each.places.some((there) => there.some(isHere))
}

export const UNKNOWN_USER = 'unknown user'

/** The GPUs of one host in a user's row: `gpu01: 0,1`. */
export interface Place {
  id: string
  /** Its name in the API. */
  host: string
  /** As displayed. */
  name: string
  labels: string
  isPast: boolean
  title: string
}

export interface UserText {
  name: Figure
  gpus: Figure
  /** The first of them, where they are many. */
  places: Place[]
  morePlaces: number
  memory: Figure
  processes: Figure
  utilization: Figure
  idle: Figure
  since: Figure
}

/** A row in words; `isWhole` with all hosts. `now` is the hub's clock. */
export function userText(each: ActiveUser, now: number, isWhole = false): UserText {
  const shown = isWhole ? each.places.length : placesShown(each.places.length)
  return {
    name: each.user === null ? { text: UNKNOWN_USER, title: 'The owner of these processes is unknown, or the process list could not be read.' } : { text: plain(each.user), title: undefined },
    gpus: { text: String(each.gpus), title: each.pastGpus === 0 ? undefined : `${count(each.pastGpus, 'GPU')} more on hosts that are not reporting` },
    places: each.places.slice(0, shown).map((there) => placeOf(there, now)),
    morePlaces: each.places.length - shown,
    memory: memoryText(each),
    processes: each.processes === null ? { text: DASH, title: reasonOf(each, 'processes') } : { text: String(each.processes), title: undefined },
    utilization: { text: percent(each.utilization), title: each.utilization === null ? reasonOf(each, 'utilization_percent') : 'average of their GPUs, including other users’ work' },
    idle: idleText(each, now),
    since: each.since === null ? { text: DASH, title: each.processes === null ? reasonOf(each, 'processes') : 'start time not reported' } : { text: clockTime(each.since, now), title: `for ${duration(elapsed(each.since, now))}, since ${utcTime(each.since)}` },
  }
}

function memoryText(each: ActiveUser): Figure {
  if (each.memory === null) return { text: DASH, title: reasonOf(each, 'memory_used_bytes') }
  return each.isMemoryPart ? { text: `≥ ${bytes(each.memory)}`, title: 'the memory of some processes is unknown' } : { text: bytes(each.memory), title: undefined }
}

function idleText(each: ActiveUser, now: number): Figure {
  if (each.idleGpus === 0 || each.idleSince === null) return { text: '', title: undefined }
  const time = duration(elapsed(each.idleSince, now))
  return { text: `${each.idleGpus} for ${time}`, title: `${count(each.idleGpus, 'GPU')} idle, the longest for ${time}, since ${utcTime(each.idleSince)}` }
}

function reasonOf(each: ActiveUser, field: string): string {
  for (const there of each.places) {
    for (const { gpu, processes } of there) {
      const reason = gpu.reasons[field] ?? processes[0]?.reasons?.[field]
      if (reason !== undefined) return plain(reason)
    }
  }
  return 'not reported'
}

/** So many hosts are named; of a few more than that all are. */
const FIRST_PLACES = 16
const FEW_MORE = 4

/** How many hosts stand in a row at first: whoever is on hundreds must not hide everybody else. */
export function placesShown(count: number): number {
  return count <= FIRST_PLACES + FEW_MORE ? count : FIRST_PLACES
}

function placeOf(there: readonly GpuUse[], now: number): Place {
  const host = there[0]?.host as Host
  const isPast = host.status !== 'up'
  const lines = there.map(({ gpu, memory }) => `GPU ${gpu.label} ${gpu.display_name}: ${isPast ? `was ${gpu.last_seen ?? 'unknown'}` : gpu.availability}, ${bytes(memory)}`)
  const stale = isPast ? [`no report for ${duration(elapsed(host.last_report_at, now))}; from the last report`] : []
  return { id: host.id, host: host.name, name: plain(host.display_name), labels: there.map(({ gpu }) => gpu.label).join(','), isPast, title: plain([...stale, ...lines].join(' · ')) }
}
