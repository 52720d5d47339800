/**
 * The board in groups: by the model of the GPUs, by who is on them, or by a label of their hosts. A host stands in
 * every group that some of its GPUs belong to, with those alone.
 */
import type { Availability, Gpu } from '../api/types'
import type { Placed } from './arrange'
import { isSlice, type HostEntry } from '../stream/fleetModel'
import { AVAILABILITIES, noCounts } from '../ui/states'
import { plain } from '../ui/format'

/** `host` is the board without groups, `place` that by the labels room and rack together. */
export type Grouping = 'host' | 'model' | 'user' | 'place' | `label:${string}`

/** Labels that are offered: a site has a handful that mean anything. */
const MOST_LABELS = 20

export function readGrouping(text: string | null): Grouping {
  return text === 'model' || text === 'user' || text === 'place' || (text?.startsWith('label:') && text.length > 6) ? (text as Grouping) : 'host'
}

export function groupingLabel(grouping: Grouping): string {
  if (grouping === 'place') return 'room and rack'
  return grouping.startsWith('label:') ? plain(grouping.slice(6)) : grouping
}

/** The labels that hosts have, the most common first. */
export function labelsOf(entries: Iterable<HostEntry>): string[] {
  const counts = new Map<string, number>()
  for (const { untracked } of entries) for (const key of Object.keys(untracked.labels)) counts.set(key, (counts.get(key) ?? 0) + 1)
  return [...counts].sort(([a, m], [b, n]) => n - m || byName.compare(a, b)).slice(0, MOST_LABELS).map(([key]) => key)
}

/** Keys of named and unnamed groups: a user may be called "free". */
const named = (text: string): string => `=${text}`
const nameless = (text: string): string => `~${text}`
const byName = new Intl.Collator('en', { numeric: true, sensitivity: 'base' })

interface Group {
  name: string
  placed: Placed[]
  gpus: number
  free: number
}

/** A host in one group, with its GPUs there. */
export interface Part {
  placed: Placed
  group: Group
  free: number
}

/** The groups of a board, which is put together host by host, in its order. */
export class Groups {
  private readonly named = new Map<string, Group>()
  private readonly nameless = new Map<string, Group>()

  /** Nobody is in any group. */
  clear(): void {
    for (const group of this.all()) {
      group.placed = []
      group.gpus = group.free = 0
    }
  }

  add({ placed, group, free }: Part): void {
    group.placed.push(placed)
    group.gpus += placed.shown.length
    group.free += free
  }

  /** All groups, one after the other. */
  inOrder(grouping: Grouping): Placed[] {
    const weigh = WEIGH[grouping === 'model' || grouping === 'user' ? grouping : 'label']
    const groups = [...this.all()].filter(({ placed }) => placed.length > 0)
    return groups.sort((a, b) => weigh(b) - weigh(a) || byName.compare(a.name, b.name)).flatMap(({ placed }) => placed)
  }

  /** The parts of a host; without groups there is one, which belongs to none. */
  split(placed: Placed, grouping: Grouping): Part[] {
    const { labels, gpus } = placed.entry.untracked
    if (grouping === 'host') return [{ placed, group: NONE, free: 0 }]
    if (grouping === 'place') return [this.part(placed, placed.shown, this.findPlace(labels))]
    if (grouping.startsWith('label:')) {
      const key = grouping.slice(6)
      return [this.part(placed, placed.shown, Object.hasOwn(labels, key) ? this.find(labels[key]!) : this.find(null, 'no label'))]
    }
    const parts: Part[] = []
    for (const slot of placed.shown) {
      const gpu = gpus[slot]
      if (gpu === undefined) continue
      if (grouping === 'model') this.put(parts, placed, slot, gpu, gpu.display_name ? this.find(gpu.display_name) : this.find(null, 'unknown'))
      else if (gpu.users.length > 0) for (const user of gpu.users) this.put(parts, placed, slot, gpu, this.find(user))
      else this.put(parts, placed, slot, gpu, this.find(null, isInUse(gpu) ? 'unknown user' : gpu.availability))
    }
    return parts.length > 0 ? parts : [this.part(placed, [], this.find(null, 'no GPUs'))]
  }

  private findPlace(labels: Readonly<Record<string, string>>): Group {
    const [room, rack] = ['room', 'rack'].map((key) => (Object.hasOwn(labels, key) ? labels[key] : undefined))
    return room === undefined && rack === undefined ? this.find(null, 'no room or rack') : this.find(`${room ?? 'no room'} › ${rack ?? 'no rack'}`)
  }

  private put(parts: Part[], placed: Placed, slot: number, gpu: Gpu, group: Group): void {
    let part: Part | undefined
    for (const each of parts) if (each.group === group) part = each
    if (part === undefined) parts.push((part = this.part(placed, [], group)))
    ;(part.placed.shown as number[]).push(slot)
    if (gpu.availability === 'free') part.free += 1
  }

  private part({ entry, collapsed }: Placed, shown: readonly number[], group: Group): Part {
    return { placed: { entry, shown, collapsed, group: group.name }, group, free: 0 }
  }

  /** `text` is null where the group has no name. */
  private find(text: string | null, otherwise = ''): Group {
    const groups = text === null ? this.nameless : this.named
    const key = text ?? otherwise
    let group = groups.get(key)
    if (group === undefined) groups.set(key, (group = { name: text === null ? nameless(key) : named(key), placed: [], gpus: 0, free: 0 }))
    return group
  }

  private *all(): Iterable<Group> {
    yield* this.named.values()
    yield* this.nameless.values()
  }
}

const isInUse = ({ availability }: Gpu): boolean => availability === 'busy' || availability === 'idle'
const NONE: Group = { name: '', placed: [], gpus: 0, free: 0 }

/** What comes first: what may be taken, then who has most; labels by their names. What has no name is last. */
const WEIGH: Record<'model' | 'user' | 'label', (group: Group) => number> = {
  model: ({ name, free }) => (name.startsWith('~') ? -1 : free),
  user: ({ name, gpus }) => (name === '~free' ? Infinity : name.startsWith('~') ? -1 : gpus),
  label: ({ name }) => (name.startsWith('~') ? -1 : 0),
}

export interface GroupText {
  title: string
  gpus: number
  /** Of these GPUs. */
  slices: number
  hosts: number
  /** Only those that there are. */
  states: readonly { state: Availability; count: number }[]
}

/** Where each group stands on the board. */
export function groupsOn(board: readonly Placed[]): Map<string, readonly Placed[]> {
  const groups = new Map<string, readonly Placed[]>()
  for (let start = 0, end = 0; start < board.length; start = end) {
    const { group } = board[start]!
    while (end < board.length && board[end]!.group === group) end += 1
    if (group !== undefined) groups.set(group, board.slice(start, end))
  }
  return groups
}

/** What stands above a group, as it is now. */
export function groupText(group: readonly Placed[]): GroupText {
  const counts = noCounts()
  let slices = 0
  for (const { entry, shown } of group) {
    const { gpus } = entry.untracked
    if (entry.slices > 0) slices += shown.filter((slot) => isSlice(gpus[slot]!)).length
    for (const slot of shown) counts[gpus[slot]?.availability ?? 'unknown'] += 1
  }
  const states = AVAILABILITIES.map((state) => ({ state, count: counts[state] })).filter(({ count }) => count > 0)
  return { title: plain(group[0]?.group?.slice(1) ?? ''), hosts: group.length, gpus: states.reduce((sum, { count }) => sum + count, 0), slices, states }
}
