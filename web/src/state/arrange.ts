/** Which hosts and GPUs are shown, in which order, and which hosts are folded to one line. */
import type { HealthLevel } from '../api/types'
import { AVAILABILITIES, type HostEntry } from './fleet'
import { matchesBareHost, matchesGpu, type Query } from './query'

export const SORTS = ['free', 'name', 'model', 'utilization', 'temperature', 'problems'] as const
export type Sort = (typeof SORTS)[number]

export const SORT_LABELS: Record<Sort, string> = {
  free: 'free first',
  name: 'name',
  model: 'model',
  utilization: 'busiest first',
  temperature: 'hottest first',
  problems: 'problems first',
}

/** From this many hosts on, a host with nothing free folds to one line. */
export const MANY_HOSTS = 16

/** One host on the board. `shown` are positions in `entry.host.gpus`. */
export interface Placed {
  entry: HostEntry
  shown: readonly number[]
  folded: boolean
  /** Where the board is in groups (state/groups.ts): the one that it stands in here. */
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
export type Folds = ReadonlyMap<string, boolean>

export function arrange(entries: Iterable<HostEntry>, query: Query, sort: Sort, folds: Folds): Placed[] {
  const found: Placed[] = []
  for (const entry of entries) {
    const shown = shownGpus(entry, query)
    if (shown !== null) found.push({ entry, shown, folded: false })
  }
  found.sort((a, b) => COMPARE[sort](a.entry, b.entry) || a.entry.rank - b.entry.rank)
  const many = found.length >= MANY_HOSTS && query.isEmpty
  return found.map((placed) => ({ ...placed, folded: folds.get(placed.entry.id) ?? (many && isFull(placed.entry)) }))
}

/** The GPUs that fit; null when the host is no answer at all. A host whose GPUs cannot be read stays visible. */
function shownGpus(entry: HostEntry, query: Query): number[] | null {
  const { host } = entry
  if (host.gpus.length === 0) return matchesBareHost(query, host) ? [] : null
  const shown: number[] = []
  host.gpus.forEach((gpu, position) => {
    if (query.isEmpty || matchesGpu(query, host, gpu)) shown.push(position)
  })
  return shown.length > 0 ? shown : null
}

/** Nothing to take and nothing to worry about. */
function isFull({ host, summary }: HostEntry): boolean {
  return host.gpus.length > 0 && summary.counts.free === 0 && host.problems.length === 0 && UNWELL[summary.health] < UNWELL.warning
}

const UNWELL: Record<HealthLevel, number> = { critical: 3, warning: 2, unknown: 1, ok: 0 }
const SILENT = { down: 3, never: 2, late: 1, up: 0 } as const
/** How little may be hoped for: of a host that was never seen nothing is known. */
const REMOTE = { never: 3, down: 2, late: 1, up: 0 } as const

const COMPARE: Record<Sort, (a: HostEntry, b: HostEntry) => number> = {
  free: compareFree,
  name: () => 0,
  model: (a, b) => a.inventoryKind.localeCompare(b.inventoryKind) || compareFree(a, b),
  utilization: (a, b) => descending(a.summary.utilization, b.summary.utilization),
  temperature: (a, b) => descending(a.summary.hottest, b.summary.hottest),
  problems: (a, b) => trouble(b) - trouble(a),
}

/** More free GPUs first, then booked, held, busy: what may become free soonest comes next. Silent hosts are last. */
function compareFree(a: HostEntry, b: HostEntry): number {
  for (const state of ['free', 'booked', 'held', 'busy'] satisfies (typeof AVAILABILITIES)[number][]) {
    const difference = b.summary.counts[state] - a.summary.counts[state]
    if (difference !== 0) return difference
  }
  return REMOTE[a.host.status] - REMOTE[b.host.status]
}

function trouble({ host, summary }: HostEntry): number {
  return SILENT[host.status] * 100 + UNWELL[summary.health] * 10 + Math.min(9, host.problems.length)
}

function descending(a: number | null, b: number | null): number {
  return (b ?? -Infinity) - (a ?? -Infinity) || 0
}

/** `next` in the order of `before`, for who is at work on the board; as it is where it shows a place that is new. */
export function inOldOrder(next: readonly Placed[], before: readonly Placed[]): readonly Placed[] {
  const places = new Map(before.map((placed, i) => [keyOf(placed), i]))
  if (!next.every((placed) => places.has(keyOf(placed)))) return next
  return [...next].sort((a, b) => places.get(keyOf(a))! - places.get(keyOf(b))!)
}

/** Whether both boards show the same lines in the same places, so that nothing needs to move. */
export function isSameBoard(a: readonly Placed[], b: readonly Placed[]): boolean {
  return a.length === b.length && a.every((placed, i) => isSamePlace(placed, b[i]!))
}

function isSamePlace(a: Placed, b: Placed): boolean {
  return a.entry === b.entry && a.group === b.group && a.folded === b.folded && a.shown.length === b.shown.length && a.shown.every((gpu, i) => gpu === b.shown[i])
}
