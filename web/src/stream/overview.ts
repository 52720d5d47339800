/**
 * All hosts of a large fleet in short (`?shape=overview`): names, states, users and health, without figures. What is not
 * streamed is unknown here, and its reason says so; hosts in view are streamed in full beside it (FleetModel.details).
 */
import catalog from '../api/catalog.json'
import type { Availability, Gpu, HealthLevel, Host, OverviewDelta, OverviewSnapshot, ShortHost, Snapshot } from '../api/types'
import type { FleetDelta } from './fleetModel'

/** From this many hosts on the page subscribes to the hosts in view. */
export const OVERVIEW_FROM_HOSTS = 1500
export const NOT_LOADED = 'not loaded: only hosts in view are'

const namesOf = (scope: string): string[] => catalog.filter((metric) => metric.scope === scope).map(({ name }) => name)
const all = <T>(names: readonly string[], value: T): Record<string, T> => Object.fromEntries(names.map((name) => [name, value]))

const NOBODY: string[] = []
const SHORT_GPU = {
  ...all(namesOf('gpu'), null),
  parent: null,
  pci_address: null,
  availability_reason: null,
  last_seen: null,
  health_reason: null,
  health_action: null,
  processes: null,
  events: [],
  reservation: null,
  reservation_conflict: null,
  maintenance: null,
  reasons: all([...namesOf('gpu'), 'processes'], NOT_LOADED),
}
const SHORT_HOST = {
  ...all(namesOf('host'), null),
  interval_seconds: null,
  clock_skew_seconds: null,
  agent_version: '',
  driver_version: null,
  os: null,
  disks: [],
  addresses: [],
  maintenance: null,
  note: null,
  reasons: all([...namesOf('host'), 'interval_seconds', 'clock_skew_seconds', 'driver_version', 'os', 'gpus'], NOT_LOADED),
}

/**
 * What is not streamed is the same for all, and inherited: copies of it would take most of the page's memory. Each object
 * has the same fields of its own in the same order: whoever walks through the fleet is twice as fast.
 */
class ShortGpu {
  uuid = ''
  index = 0
  label = ''
  availability: Availability = 'unknown'
  since: number | null = null
  name = ''
  display_name = ''
  vendor = ''
  memory_total_bytes: number | null = null
  health: HealthLevel = 'ok'
  users = NOBODY
}

class ExpandedHost {
  id = ''
  gpus: Gpu[] = []
}
Object.assign(ShortGpu.prototype, SHORT_GPU)
Object.assign(ExpandedHost.prototype, SHORT_HOST)

export function expandHost({ model, gpus, ...host }: ShortHost): Host {
  const expanded = gpus.map((gpu) => Object.assign(new ShortGpu(), model, gpu) as unknown as Gpu)
  return Object.assign(new ExpandedHost(), host, { gpus: expanded }) as unknown as Host
}

export function expandSnapshot({ hosts, ...facts }: OverviewSnapshot): Snapshot {
  return { ...facts, hosts: hosts.map(expandHost) }
}

export function expandDelta({ hosts, ...facts }: OverviewDelta): FleetDelta {
  return hosts === undefined ? facts : { ...facts, hosts: hosts.map(expandHost) }
}
