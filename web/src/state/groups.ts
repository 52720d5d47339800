/**
 * The board in groups: by the model of the GPUs, by who is on them, or by a label of their hosts. A host stands in
 * every group that some of its GPUs belong to, with those alone.
 */
import type { Availability, Gpu } from '../api/types'
import type { Placed } from './arrange'
import { AVAILABILITIES, type HostEntry } from './fleet'
import { plain } from './format'

/** `host` is the board without groups. */
export type Grouping = 'host' | 'model' | 'user' | `label:${string}`

/** Labels that are offered: a site has a handful that mean anything. */
const MOST_LABELS = 20

export function readGrouping(text: string | null): Grouping {
  return text === 'model' || text === 'user' || (text?.startsWith('label:') && text.length > 6) ? (text as Grouping) : 'host'
}

export function groupingLabel(grouping: Grouping): string {
  return grouping.startsWith('label:') ? plain(grouping.slice(6)) : grouping
}

/** The labels that hosts have, the most common first. */
export function labelsOf(entries: Iterable<HostEntry>): string[] {
  const counts = new Map<string, number>()
  for (const { host } of entries) for (const key of Object.keys(host.labels)) counts.set(key, (counts.get(key) ?? 0) + 1)
  return [...counts].sort(([a, m], [b, n]) => n - m || byName.compare(a, b)).slice(0, MOST_LABELS).map(([key]) => key)
}

/** What has the name, and what has none: a person may be called "free". */
const named = (text: string): string => `=${text}`
const nameless = (text: string): string => `~${text}`
const byName = new Intl.Collator('en', { numeric: true, sensitivity: 'base' })

/** The same board with its hosts split and put together by group; within one the order stays. */
export function inGroups(board: readonly Placed[], grouping: Grouping): readonly Placed[] {
  if (grouping === 'host') return board
  const groups = new Map<string, Placed[]>()
  for (const placed of board) {
    for (const [group, shown] of partsOf(placed, grouping)) {
      const placedThere = { ...placed, shown, group }
      const others = groups.get(group)
      if (others === undefined) groups.set(group, [placedThere])
      else others.push(placedThere)
    }
  }
  const weigh = WEIGH[grouping === 'model' || grouping === 'user' ? grouping : 'label']
  const order = [...groups].map(([group, all]) => ({ group, all, weight: weigh(group, all) }))
  order.sort((a, b) => b.weight - a.weight || byName.compare(a.group, b.group))
  return order.flatMap(({ all }) => all)
}

/** The groups of a host and the positions of its GPUs in each. */
function partsOf(placed: Placed, grouping: Grouping): Map<string, number[]> {
  const { host } = placed.entry
  if (grouping.startsWith('label:')) {
    const value = host.labels[grouping.slice(6)]
    return new Map([[value === undefined ? nameless('without it') : named(value), [...placed.shown]]])
  }
  const parts = new Map<string, number[]>()
  const put = (group: string, slot: number): void => void parts.set(group, [...(parts.get(group) ?? []), slot])
  for (const slot of placed.shown) {
    const gpu = host.gpus[slot]
    if (gpu !== undefined) for (const group of groupsOf(gpu, grouping)) put(group, slot)
  }
  return parts.size > 0 ? parts : new Map([[nameless('no GPU is known'), []]])
}

function groupsOf(gpu: Gpu, grouping: Grouping): string[] {
  if (grouping === 'model') return [gpu.display_name ? named(gpu.display_name) : nameless('unknown')]
  if (gpu.users.length > 0) return gpu.users.map(named)
  return [nameless(gpu.availability === 'busy' || gpu.availability === 'held' ? 'not known who' : gpu.availability)]
}

const countGpus = (all: readonly Placed[]): number => all.reduce((sum, { shown }) => sum + shown.length, 0)

function countFree(all: readonly Placed[]): number {
  return all.reduce((sum, { entry, shown }) => sum + shown.filter((slot) => entry.host.gpus[slot]?.availability === 'free').length, 0)
}

/** What comes first: what may be taken, then who has most; labels by their names. What has no name is last. */
const WEIGH: Record<'model' | 'user' | 'label', (group: string, all: readonly Placed[]) => number> = {
  model: (group, all) => (group.startsWith('~') ? -1 : countFree(all)),
  user: (group, all) => (group === '~free' ? Infinity : group.startsWith('~') ? -1 : countGpus(all)),
  label: (group) => (group.startsWith('~') ? -1 : 0),
}

export interface GroupText {
  title: string
  gpus: number
  hosts: number
  /** Only those that there are. */
  states: readonly { state: Availability; count: number }[]
}

/** What stands above each group, as it is now. */
export function groupTexts(board: readonly Placed[]): Map<string, GroupText> {
  const counts = new Map<string, { hosts: number; states: Record<Availability, number> }>()
  for (const { group, entry, shown } of board) {
    if (group === undefined) continue
    const count = counts.get(group) ?? { hosts: 0, states: { free: 0, busy: 0, held: 0, booked: 0, unknown: 0 } }
    counts.set(group, count)
    count.hosts += 1
    for (const slot of shown) count.states[entry.host.gpus[slot]?.availability ?? 'unknown'] += 1
  }
  return new Map([...counts].map(([group, { hosts, states }]) => [group, textOf(group, hosts, states)]))
}

function textOf(group: string, hosts: number, counts: Record<Availability, number>): GroupText {
  const states = AVAILABILITIES.map((state) => ({ state, count: counts[state] })).filter(({ count }) => count > 0)
  return { title: plain(group.slice(1)), hosts, gpus: states.reduce((sum, { count }) => sum + count, 0), states }
}
