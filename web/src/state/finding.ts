/** A GPU or a host of the live fleet by what stands in an address. */
import type { FleetModel, HostEntry } from './fleet'

export interface FoundGpu {
  entry: HostEntry
  /** In `entry.host.gpus`. */
  position: number
}

/** Undefined where it is not in the fleet now. `near` is where it was the last time: most often it still is. */
export function findGpu({ entries }: FleetModel, uuid: string, near?: FoundGpu): FoundGpu | undefined {
  const still = near !== undefined && entries.get(near.entry.id) === near.entry && near.entry.host.gpus[near.position]?.uuid === uuid
  if (still) return near
  for (const entry of entries.values()) {
    const position = entry.host.gpus.findIndex((gpu) => gpu.uuid === uuid)
    if (position >= 0) return { entry, position }
  }
  return undefined
}

/** By id, or by name; of two that share a name the one that reports. */
export function findHost({ entries }: FleetModel, name: string): HostEntry | undefined {
  const byId = entries.get(name)
  if (byId !== undefined) return byId
  const named = [...entries.values()].filter(({ host }) => host.name === name)
  return named.find(({ host }) => host.status === 'up') ?? named[0]
}

/** What an address calls this host: its name, or its id where another one has the same name. */
export function addressName({ entries }: FleetModel, entry: HostEntry): string {
  const { name } = entry.host
  for (const other of entries.values()) if (other !== entry && (other.host.name === name || other.id === name)) return entry.id
  return name
}
