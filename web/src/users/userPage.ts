/** The page of one user: their GPUs now, and their runs. */
import type { Run } from '../api/history'
import type { Availability } from '../api/types'
import { bytes, clockTime, DASH, duration, elapsed, percent, plain, utcTime } from '../ui/format'
import type { Figure } from '../ui/format'
import type { GpuUse, ActiveUser } from './users'

export interface UserGpu {
  uuid: string
  /** As the hub calls it. */
  host: string
  place: string
  model: string
  state: Availability
  /** `idle for 3h`, `busy for 12m`. */
  stateText: string
  memory: Figure
  utilization: Figure
  commands: string[]
  since: Figure
  isPast: boolean
}

/** Their GPUs, a row each, in the order of hosts and labels. `now` is the hub's clock. */
export function userGpus(user: ActiveUser | undefined, now: number): UserGpu[] {
  const byPlace = new Intl.Collator('en', { numeric: true, sensitivity: 'base' })
  return (user?.places.flat() ?? []).map((use) => userGpu(use, now)).sort((a, b) => byPlace.compare(a.place, b.place))
}

function userGpu({ host, gpu, processes, memory, isPast }: GpuUse, now: number): UserGpu {
  const starts = processes.flatMap(({ started_at }) => (started_at === null ? [] : [started_at]))
  const since = starts.length === 0 ? null : Math.min(...starts)
  const age = elapsed(gpu.since, now)
  return {
    uuid: gpu.uuid,
    host: host.name,
    place: plain(`${host.display_name}: ${gpu.label}`),
    model: plain(gpu.display_name),
    state: gpu.availability,
    stateText: isPast ? `no report for ${duration(elapsed(host.last_report_at, now))}${gpu.last_seen === null ? '' : `; was ${gpu.last_seen}`}` : `${gpu.availability}${Number.isNaN(age) ? '' : ` for ${duration(age)}`}`,
    memory: memory === null ? { text: DASH, title: plain(gpu.reasons['memory_used_bytes'] ?? 'not reported per process') } : { text: `${bytes(memory)} of ${bytes(gpu.memory_total_bytes)}`, title: undefined },
    utilization: { text: percent(gpu.utilization_percent), title: gpu.utilization_percent === null ? plain(gpu.reasons['utilization_percent'] ?? 'not reported') : undefined },
    commands: processes.map(({ command, reasons, pid }) => plain(command ?? `process ${pid}: ${reasons['command'] ?? 'command unknown'}`)),
    since: since === null ? { text: DASH, title: 'start time not reported' } : { text: `${clockTime(since, now)}, ${duration(elapsed(since, now))}`, title: utcTime(since) },
    isPast,
  }
}

/** Those that are there first, then by when they began, the latest first: ids tell when the hub learned of them, no more. */
export function sortRuns(runs: readonly Run[]): Run[] {
  const began = (run: Run): number => run.started_at ?? run.seen_at
  const unique = new Map(runs.map((run) => [run.id, run]))
  return [...unique.values()].sort((a, b) => Number(a.ended_at !== null) - Number(b.ended_at !== null) || began(b) - began(a) || b.id - a.id)
}

/** The time over which a run's chart is drawn. A run of a moment gets a minute. */
export function runBounds(run: Run, now: number): { start: number; end: number } {
  const end = Math.max(run.ended_at ?? now, run.seen_at)
  return { start: Math.min(run.seen_at, end - 60), end: end + 1 }
}
