/** What the command palette finds: pages, actions and saved views, hosts, GPUs and users of the live fleet. */
import type { FleetModel, HostEntry } from '../stream/fleetModel'
import { addressName } from '../stream/lookup'
import { lower } from '../ui/format'
import { hrefOf } from '../ui/route'

export interface PaletteEntry {
  key: string
  kind: 'page' | 'action' | 'view' | 'moment' | 'host' | 'user' | 'GPU' | 'job'
  label: string
  /** What else is said about it, and searched. */
  hint: string
  /** Where it leads, or what it does. */
  target: string | (() => void)
}

/** So many of each kind: one kind must not hide the others. */
const MOST_OF_KIND = 6
const ENOUGH = 200
/** `gpu05:3` or `gpu05 3`; the label of a MIG instance is `0.5`. */
const GPU = /^(.+?)[:\s]\s*(\d+(?:\.\d+)?)$/
const SHORTEST_OF_UUID = 6
/** `4711`, `job 4711_3`. */
const JOB = /^(job\s+\S+|\d{2,}(_\d+)?)$/

/** The users of the fleet, each once: made when the palette opens, not for each letter. */
export function usersOf({ byName }: FleetModel): string[] {
  const users = new Set<string>()
  for (const entry of byName) for (const user of entry.untrackedSummary.users) users.add(user)
  return [...users].sort()
}

/** The best first. Without a text all of `fixed`, in their order. */
export function findEntries(text: string, fixed: readonly PaletteEntry[], fleet: FleetModel, users: readonly string[]): PaletteEntry[] {
  const wanted = text.trim().toLowerCase()
  if (wanted === '') return [...fixed]
  const hosts = fleet.byName.filter((entry) => rank(wanted, lower(entry.base.name)) < NONE || rank(wanted, lower(entry.base.display_name)) < NONE)
  const found = [
    ...fixed.filter((entry) => rank(wanted, lower(entry.label), lower(entry.hint)) < NONE),
    ...hosts.slice(0, ENOUGH).map((entry) => ofHost(fleet, entry)),
    ...users.filter((user) => rank(wanted, lower(user)) < NONE).map((user): PaletteEntry => ({ key: `user ${user}`, kind: 'user', label: user, hint: 'user', target: hrefOf('user', user) })),
    ...findGpus(wanted, hosts, fleet),
    ...(JOB.test(wanted) ? [{ key: 'job', kind: 'job' as const, label: `Job ${wanted.replace(/^job\s+/, '')}`, hint: wanted, target: hrefOf('jobs', wanted.replace(/^job\s+/, '')) }] : []),
  ]
  const ranked = found.map((entry) => ({ entry, rank: rank(wanted, lower(entry.label), lower(entry.hint)) })).sort((a, b) => a.rank - b.rank)
  const counts = new Map<string, number>()
  return ranked.flatMap(({ entry }) => {
    const count = (counts.get(entry.kind) ?? 0) + 1
    counts.set(entry.kind, count)
    return count > MOST_OF_KIND ? [] : [entry]
  })
}

const NONE = 5

/** 0: all of it, 1: its beginning, 2: the beginning of a word, 3: some part, 4: all words stand somewhere; NONE: not. */
function rank(wanted: string, label: string, hint = ''): number {
  if (label === wanted) return 0
  if (label.startsWith(wanted)) return 1
  const at = label.indexOf(wanted)
  if (at > 0) return /[\p{L}\p{N}]/u.test(label[at - 1] ?? '') ? 3 : 2
  const all = `${label} ${hint}`
  return wanted.split(/\s+/).every((word) => all.includes(word)) ? 4 : NONE
}

function ofHost(fleet: FleetModel, entry: HostEntry): PaletteEntry {
  return { key: `host ${entry.id}`, kind: 'host', label: entry.base.display_name, hint: `host ${entry.inventory}`, target: hrefOf('host', addressName(fleet, entry)) }
}

/** By host and number, by the beginning of the UUID, and those of a host that alone fits. */
function findGpus(wanted: string, hosts: readonly HostEntry[], { byName }: FleetModel): PaletteEntry[] {
  const parts = GPU.exec(wanted)
  const found: PaletteEntry[] = []
  const isPartOfUuid = wanted.length >= SHORTEST_OF_UUID && /^(gpu-|mig-)?[0-9a-f-]+$/.test(wanted)
  const places = parts === null ? (isPartOfUuid ? byName : hosts.length === 1 ? hosts : []) : byName.filter(({ base }) => lower(base.name).startsWith(parts[1]!) || lower(base.display_name).startsWith(parts[1]!))
  for (const { base } of places) {
    for (const { uuid, label, display_name: model } of base.gpus) {
      const isMeant = parts === null ? hosts.length === 1 || lower(uuid).replace(/^(gpu|mig)-/, '').startsWith(wanted.replace(/^(gpu|mig)-/, '')) : label === parts[2]
      if (isMeant) found.push({ key: `gpu ${uuid}`, kind: 'GPU', label: `${base.display_name}:${label}`, hint: `GPU ${label} ${model} ${uuid}`, target: hrefOf('gpu', uuid) })
      if (found.length >= ENOUGH) return found
    }
  }
  return found
}
