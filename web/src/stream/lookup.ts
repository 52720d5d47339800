/** A GPU or a host of the live fleet by what stands in an address. */
import type { FleetModel, HostEntry } from './fleetModel'

export interface FoundGpu {
  entry: HostEntry
  /** In the host's `gpus`. */
  position: number
}

/** Undefined where it is not in the fleet now. `near` is where it was the last time: most often it still is. */
export function findGpu({ entries }: FleetModel, uuid: string, near?: FoundGpu): FoundGpu | undefined {
  const still = near !== undefined && entries.get(near.entry.id) === near.entry && near.entry.untracked.gpus[near.position]?.uuid === uuid
  if (still) return near
  for (const entry of entries.values()) {
    const position = entry.untracked.gpus.findIndex((gpu) => gpu.uuid === uuid)
    if (position >= 0) return { entry, position }
  }
  return undefined
}

/** By id, or by name; of two that share a name the one that reports. */
export function findHost(fleet: FleetModel, name: string): HostEntry | undefined {
  const named = fleet.named(name)
  return fleet.entries.get(name) ?? named.find(({ untracked }) => untracked.status === 'up') ?? named[0]
}

/** What an address calls this host: its name, or its id where another one has the same name. */
export function addressName(fleet: FleetModel, entry: HostEntry): string {
  const { name } = entry.base
  const other = fleet.entries.get(name)
  return fleet.named(name).length > 1 || (other !== undefined && other !== entry) ? entry.id : name
}
