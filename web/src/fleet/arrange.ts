/** Which hosts and GPUs are shown, in which order, and which hosts are collapsed to one line. */
import { gpuLevel, LEVELS } from '../ui/states'
import type { Host } from '../api/types'
import type { HostEntry } from '../stream/fleetModel'
import { Groups, type Grouping, type Part } from './groups'
import { matchesBareHost, matchesGpu, wordsInHost, type Query } from './query'

export const SORTS = ['free', 'name', 'model', 'utilization', 'temperature', 'problems'] as const
export type Sort = (typeof SORTS)[number]

const SORT_LABELS: Record<Sort, string> = {
  free: 'free first',
  name: 'name',
  model: 'model',
  utilization: 'busiest first',
  temperature: 'hottest first',
  problems: 'problems first',
}

/** What comes first with a sort. Of idle GPUs alone none is free: those that did no work for longest come first. */
export function sortLabel(sort: Sort, query: Query): string {
  return sort === 'free' && asksForIdle(query) ? 'longest idle' : SORT_LABELS[sort]
}

const asksForIdle = ({ states }: Query): boolean => states.size === 1 && states.has('idle')

/** From this many hosts on, a host with nothing free overrides to one line. */
export const MANY_HOSTS = 16

/** One host on the board. `shown` are positions in the host's `gpus`. */
export interface Placed {
  entry: HostEntry
  shown: readonly number[]
  collapsed: boolean
  /** Where the board is in groups (groups.ts): the one that it stands in here. */
  group?: string
}

/** What tells one place on the board from all others: a host may stand in several groups. */
export function keyOf({ entry, group }: Placed): string {
  return group === undefined ? entry.id : `${entry.id}\n${group}`
}

/** The host of such a place. */
export function hostOf(key: string): string {
  return key.split('\n', 1)[0] ?? ''
}

/** What a person opened or closed by hand, by host id; it wins over the rule. */
export type CollapseOverrides = ReadonlyMap<string, boolean>

/** What a host adds to the board. */
interface HostPlaces {
  readonly entry: HostEntry
  version: number
  /** The search that it was read for. */
  epoch: number
  /** Null where the host is no answer. */
  shown: readonly number[] | null
  /** One without groups; otherwise one for each group that some of its GPUs belong to. */
  parts: readonly Part[]
  /** What the parts follow from: three values of each GPU, one after the other. */
  traits: readonly unknown[]
  isFull: boolean
  /** NaN where the host has changed since it was weighed. */
  weight: number
}

/** What of a GPU decides its groups. The stream replaces a list of users as a whole. */
function traitsOf({ gpus }: Host): unknown[] {
  const traits: unknown[] = []
  for (const { availability, users, display_name } of gpus) traits.push(availability, users, display_name)
  return traits
}

function hasSameTraits({ gpus }: Host, traits: readonly unknown[]): boolean {
  if (gpus.length * 3 !== traits.length) return false
  let at = 0
  for (const { availability, users, display_name } of gpus) if (traits[at++] !== availability || traits[at++] !== users || traits[at++] !== display_name) return false
  return true
}

/** Arranges the board again and again: hosts that did not change since keep their places as they are. */
export class Arranger {
  private readonly hosts = new Map<HostEntry, HostPlaces>()
  private epoch = 0
  private groups = new Groups()
  private entries: readonly HostEntry[] = []
  private found: HostPlaces[] | null = null
  private query: Query | null = null
  private grouping: Grouping = 'host'
  private sort: Sort = 'name'

  /** How many hosts are on the board: one may stand in several groups. */
  get hostCount(): number {
    return this.found?.length ?? 0
  }

  /** The same query must be the same object. */
  arrange(entries: readonly HostEntry[], query: Query, sort: Sort, overrides: CollapseOverrides, grouping: Grouping = 'host'): readonly Placed[] {
    if (query !== this.query) this.begin(query)
    if (grouping !== this.grouping) this.regroup(grouping)
    if (this.hosts.size > entries.length + FORGOTTEN) {
      this.hosts.clear()
      this.found = null
    }
    const found = this.find(entries, query)
    putInOrder(found, sort, sort === this.sort, asksForIdle(query))
    this.sort = sort
    const many = found.length >= MANY_HOSTS && query.isEmpty
    this.groups.clear()
    const board: Placed[] = []
    for (const host of found) {
      const collapsed = overrides.get(host.entry.id) ?? (many && host.isFull)
      for (const part of this.partsOf(host, collapsed)) {
        if (grouping === 'host') board.push(part.placed)
        else this.groups.add(part)
      }
    }
    return grouping === 'host' ? board : this.groups.inOrder(grouping)
  }

  /** In the order before where they are the same: what is nearly in order is soon sorted. */
  private find(entries: readonly HostEntry[], query: Query): HostPlaces[] {
    if (entries !== this.entries) this.found = null
    this.entries = entries
    for (const entry of entries) this.read(entry, query)
    return (this.found ??= entries.map((entry) => this.hosts.get(entry)!).filter(({ shown }) => shown !== null))
  }

  private begin(query: Query): void {
    this.epoch += 1
    this.found = null
    this.query = query
  }

  private regroup(grouping: Grouping): void {
    this.groups = new Groups()
    this.grouping = grouping
    for (const host of this.hosts.values()) host.parts = []
  }

  private read(entry: HostEntry, query: Query): void {
    const version = entry.version.untracked
    let host = this.hosts.get(entry)
    if (host?.version === version && host.epoch === this.epoch) return
    if (host === undefined) this.hosts.set(entry, (host = { entry, version, epoch: this.epoch, shown: null, parts: [], traits: [], isFull: false, weight: NaN }))
    const shown = shownGpus(entry, query)
    if (host.epoch !== this.epoch || !isSameList(host.shown, shown) || (this.grouping !== 'host' && !this.keepsGroups(host))) host.parts = []
    host.epoch = this.epoch
    if ((host.shown === null) !== (shown === null)) this.found = null
    host.version = version
    host.shown = shown
    host.isFull = isFull(entry)
    host.weight = NaN
  }

  /** Labels come with the whole host, which is then another object. */
  private keepsGroups({ entry, traits }: HostPlaces): boolean {
    return (this.grouping === 'model' || this.grouping === 'user') && hasSameTraits(entry.untracked, traits)
  }

  private partsOf(host: HostPlaces, collapsed: boolean): readonly Part[] {
    if (host.parts[0]?.placed.collapsed === collapsed) return host.parts
    host.parts = this.groups.split({ entry: host.entry, shown: host.shown ?? [], collapsed }, this.grouping)
    host.traits = this.grouping === 'model' || this.grouping === 'user' ? traitsOf(host.entry.untracked) : []
    return host.parts
  }
}

/** Hosts that have gone are kept up to this many. */
const FORGOTTEN = 100

/** `0, 1, … n - 1`: the same for all hosts with so many GPUs. */
const wholeHosts: (readonly number[])[] = []
const whole = (gpus: number): readonly number[] => (wholeHosts[gpus] ??= Array.from({ length: gpus }, (_, position) => position))

/** The GPUs that fit; null when the host is no answer at all. A host whose GPUs cannot be read stays visible. */
function shownGpus({ untracked: host }: HostEntry, query: Query): readonly number[] | null {
  if (host.gpus.length === 0) return matchesBareHost(query, host) ? whole(0) : null
  if (query.isEmpty) return whole(host.gpus.length)
  const shown: number[] = []
  const inHost = wordsInHost(query, host)
  for (let position = 0; position < host.gpus.length; position++) if (matchesGpu(query, host, host.gpus[position]!, inHost)) shown.push(position)
  if (shown.length === host.gpus.length) return whole(shown.length)
  return shown.length > 0 ? shown : null
}

/** Nothing to take and nothing to worry about. */
function isFull({ untracked: host, untrackedSummary: summary }: HostEntry): boolean {
  return host.gpus.length > 0 && summary.counts.free === 0 && host.problems.length === 0 && gpuLevel(summary.health) === 'ok'
}

const STATUS_SEVERITY = { down: 3, never_seen: 2, late: 1, up: 0 } as const
/** How little may be hoped for: of a host that was never seen nothing is known. */
const STATUS_ORDER = { never_seen: 3, down: 2, late: 1, up: 0 } as const

/** The largest first; equal ones by name. */
const WEIGHTS: Record<Exclude<Sort, 'model'>, (entry: HostEntry) => number> = {
  free: weighFree,
  name: () => 0,
  utilization: ({ load }) => load.utilization ?? -Infinity,
  temperature: ({ load }) => load.hottest ?? -Infinity,
  problems: weighProblems,
}

/** More free GPUs first, then reserved, idle, busy: what may become free soonest comes next. Silent hosts are last. */
function weighFree({ untracked: host, untrackedSummary: { counts } }: HostEntry): number {
  return (((counts.free * MOST + counts.reserved) * MOST + counts.idle) * MOST + counts.busy) * 4 - STATUS_ORDER[host.status]
}

/** Silent hosts first, then by the worst that is wrong, then by how many alerts there are. */
function weighProblems({ untracked: host, untrackedSummary: summary, untrackedLevel: level, untrackedAlerts: alerts }: HostEntry): number {
  const parts = [STATUS_SEVERITY[host.status], LEVELS.indexOf(level), Math.min(99, alerts), LEVELS.indexOf(gpuLevel(summary.health)), Math.min(99, host.problems.length)]
  return parts.reduce((weight, part) => weight * 100 + part, 0)
}

/** By the GPU that has been idle for longest. */
function weighIdle({ untracked: host }: HostEntry): number {
  let first = Infinity
  for (const { availability, since } of host.gpus) if (availability === 'idle' && since !== null && since < first) first = since
  return -first
}

/** More than any host has GPUs; four of its digits are still exact. */
const MOST = 4096

/** These may be other ones though the host has not changed: samples of an overview, and models of other hosts. */
const ALWAYS_WEIGHED: ReadonlySet<Sort> = new Set(['model', 'utilization', 'temperature'])

/** Each host is weighed once, not with every comparison, and where `isSame` only if it has changed. */
function putInOrder(found: HostPlaces[], sort: Sort, isSame: boolean, isIdle: boolean): void {
  const weigh = sort === 'model' ? weighModels(found) : sort === 'free' && isIdle ? weighIdle : WEIGHTS[sort]
  const isKept = isSame && !ALWAYS_WEIGHED.has(sort)
  for (const host of found) if (!isKept || Number.isNaN(host.weight)) host.weight = weigh(host.entry)
  // Two of -Infinity have no difference.
  found.sort((a, b) => (a.weight === b.weight ? a.entry.rank - b.entry.rank : b.weight - a.weight))
}

/** Equal models together, within them what is free first. */
function weighModels(found: readonly HostPlaces[]): (entry: HostEntry) => number {
  const kinds = [...new Set(found.map(({ entry }) => entry.inventoryKind))].sort((a, b) => b.localeCompare(a))
  const places = new Map(kinds.map((kind, place) => [kind, place]))
  // What is below the point orders within a kind.
  return (entry) => places.get(entry.inventoryKind)! + weighFree(entry) / (4 * MOST ** 4)
}

/** `next` in the order of `before`, for who is at work on the board; as it is where it shows a place that is new. */
export function inOldOrder(next: readonly Placed[], before: readonly Placed[]): readonly Placed[] {
  const places = new Map(before.map((placed, i) => [keyOf(placed), i]))
  if (!next.every((placed) => places.has(keyOf(placed)))) return next
  return [...next].sort((a, b) => places.get(keyOf(a))! - places.get(keyOf(b))!)
}

/** Whether both boards show the same lines in the same places, so that nothing needs to move. */
export function isSameArrangement(a: readonly Placed[], b: readonly Placed[]): boolean {
  return a.length === b.length && a.every((placed, i) => isSamePlace(placed, b[i]!))
}

function isSamePlace(a: Placed, b: Placed): boolean {
  return a === b || (a.entry === b.entry && a.group === b.group && a.collapsed === b.collapsed && isSameList(a.shown, b.shown))
}

function isSameList(a: readonly number[] | null, b: readonly number[] | null): boolean {
  return a === b || (a !== null && b !== null && a.length === b.length && a.every((gpu, i) => gpu === b[i]))
}
