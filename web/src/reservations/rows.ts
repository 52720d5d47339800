/** The rows of the timeline: hosts and, below those that are expanded, their GPUs. */
import type { ReservedGpu, Reservation } from '../api/reservations'
import type { Host } from '../api/types'
import { plain } from '../ui/format'
import { inventory } from '../stream/inventory'

export interface GpuRow {
  kind: 'gpu'
  /** The GPU's UUID. */
  id: string
  host: string
  label: string
  title: string
  detail: string
  /** False where the fleet knows it no more: what was reserved stays, nothing new can be. */
  isThere: boolean
}

export interface HostRow {
  kind: 'host'
  id: string
  /** The host's name, by which reservations know it. */
  host: string
  title: string
  detail: string
  isOpen: boolean
  /** All of its GPUs that are in the fleet. */
  uuids: string[]
}

export type Row = HostRow | GpuRow

export interface RowChoice {
  /** Words that have to be in host, model or GPU, or in who reserved and why. */
  text: string
  /** Only those with a reservation in the time that is shown. */
  isReservedOnly: boolean
  /** Hosts that somebody collapsed or expanded, by name. */
  expandedHosts: ReadonlyMap<string, boolean>
}

/** With more GPUs than that hosts are collapsed unless somebody expands them. */
export const OPEN_UP_TO = 48

interface Place {
  host: string
  title: string
  detail: string
  gpus: GpuRow[]
}

/** `hosts` in the order in which they are shown. */
export function planRows(hosts: readonly Host[], reservations: readonly Reservation[], choice: RowChoice): Row[] {
  const words = choice.text.toLowerCase().split(/\s+/).filter((word) => word !== '')
  const said = textByGpu(reservations)
  const places = placesOf(hosts, reservations).flatMap((place) => {
    const gpus = place.gpus.filter((gpu) => (!choice.isReservedOnly || said.has(gpu.id)) && words.every((word) => `${place.title} ${place.host} ${gpu.title} ${gpu.detail} ${said.get(gpu.id) ?? ''}`.toLowerCase().includes(word)))
    return gpus.length === 0 ? [] : [{ ...place, shown: gpus }]
  })
  const isOpenByItself = places.reduce((sum, { shown }) => sum + shown.length, 0) <= OPEN_UP_TO
  return places.flatMap(({ shown, gpus, ...place }): Row[] => {
    const isOpen = choice.expandedHosts.get(place.host) ?? isOpenByItself
    const uuids = gpus.filter(({ isThere }) => isThere).map(({ id }) => id)
    return [{ kind: 'host', id: `host ${place.host}`, ...place, isOpen, uuids }, ...(isOpen ? shown : [])]
  })
}

/** Two hosts of one name are one place: reservations know names only. */
function placesOf(hosts: readonly Host[], reservations: readonly Reservation[]): Place[] {
  const places = new Map<string, Place>()
  const known = new Set<string>()
  for (const host of hosts) {
    if (host.gpus.length === 0) continue
    const place = places.get(host.name) ?? { host: host.name, title: plain(host.display_name), detail: plain(inventory(host.gpus)), gpus: [] }
    places.set(host.name, place)
    for (const gpu of host.gpus) {
      if (known.has(gpu.uuid)) continue
      known.add(gpu.uuid)
      place.gpus.push({ kind: 'gpu', id: gpu.uuid, host: host.name, label: gpu.label, title: `GPU ${plain(gpu.label)}`, detail: plain(gpu.display_name), isThere: true })
    }
  }
  for (const gpu of goneGpus(reservations, known)) {
    const place = places.get(gpu.host) ?? { host: gpu.host, title: plain(gpu.host), detail: 'not in the fleet', gpus: [] }
    places.set(gpu.host, place)
    place.gpus.push({ kind: 'gpu', id: gpu.uuid, host: gpu.host, label: gpu.label, title: `GPU ${plain(gpu.label)}`, detail: 'removed', isThere: false })
  }
  return [...places.values()]
}

function goneGpus(reservations: readonly Reservation[], known: ReadonlySet<string>): ReservedGpu[] {
  const gone = new Map<string, ReservedGpu>()
  for (const { gpus } of reservations) for (const gpu of gpus) if (!known.has(gpu.uuid)) gone.set(gpu.uuid, gpu)
  return [...gone.values()]
}

function textByGpu(reservations: readonly Reservation[]): Map<string, string> {
  const said = new Map<string, string>()
  for (const { gpus, user, note } of reservations) for (const { uuid } of gpus) said.set(uuid, `${said.get(uuid) ?? ''} ${user} ${note}`)
  return said
}

/** The GPUs that a drag from one row to another means: a host's row is all of them; rows of two hosts are the first alone. */
export function pickedGpus(rows: readonly Row[], from: string, to: string): string[] {
  const first = rows.find(({ id }) => id === from)
  const last = rows.find(({ id }) => id === to)
  if (first === undefined) return []
  if (first.kind === 'host') return first.uuids
  const between = last === undefined || last.host !== first.host || last.kind === 'host' ? [first] : stretch(rows, first, last)
  return between.filter((row): row is GpuRow => row.kind === 'gpu' && row.isThere).map(({ id }) => id)
}

function stretch(rows: readonly Row[], first: Row, last: Row): readonly Row[] {
  const [low, high] = [rows.indexOf(first), rows.indexOf(last)].sort((a, b) => a - b) as [number, number]
  return rows.slice(low, high + 1)
}
