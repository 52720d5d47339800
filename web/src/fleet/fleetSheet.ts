/** The GPUs that the board shows, as rows for a spreadsheet: base units in the titles, empty where unknown. */
import type { Placed } from './arrange'

type Row = (string | number | null)[]

const METRICS = ['utilization_percent', 'memory_used_bytes', 'memory_total_bytes', 'temperature_celsius', 'power_watts'] as const
const HEAD = ['host', 'host_status', 'gpu', 'uuid', 'model', 'availability', 'reason', 'users', 'since_utc', ...METRICS]

/** A host that stands in several groups has each GPU once. Figures of a host that is not in view of a large fleet are not here. */
export function fleetRows(placed: readonly Placed[]): Row[] {
  const seen = new Set<string>()
  const rows: Row[] = []
  for (const { entry, shown } of placed) {
    const host = entry.untracked
    for (const at of shown) {
      const gpu = host.gpus[at]
      if (gpu === undefined || seen.has(gpu.uuid)) continue
      seen.add(gpu.uuid)
      const since = gpu.since == null ? null : new Date(gpu.since * 1000).toISOString().replace(/\.\d+Z$/, 'Z')
      rows.push([host.name, host.status, gpu.label, gpu.uuid, gpu.name, gpu.availability, gpu.availability_reason ?? null, gpu.users.join(' '), since, ...METRICS.map((name) => gpu[name] ?? null)])
    }
  }
  return [HEAD, ...rows]
}
