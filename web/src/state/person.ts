/** One person: their GPUs now, and the runs of theirs in the order in which they were there. */
import type { Run } from '../api/history'
import type { Availability } from '../api/types'
import { bytes, clockTime, DASH, duration, elapsed, percent, plain, utcTime } from './format'
import type { Figure } from './lines'
import type { Holding, Person } from './people'

export interface HeldGpu {
  uuid: string
  /** As the hub calls it. */
  host: string
  place: string
  model: string
  state: Availability
  /** `held for 3 h`, `busy for 12 min`. */
  stateText: string
  memory: Figure
  utilization: Figure
  commands: string[]
  since: Figure
  isPast: boolean
}

/** Their GPUs, a row each, in the order of hosts and labels. `now` is the hub's clock. */
export function heldGpus(person: Person | undefined, now: number): HeldGpu[] {
  const byPlace = new Intl.Collator('en', { numeric: true, sensitivity: 'base' })
  return (person?.holdings ?? []).map((holding) => heldGpu(holding, now)).sort((a, b) => byPlace.compare(a.place, b.place))
}

function heldGpu({ host, gpu, processes, memory, isPast }: Holding, now: number): HeldGpu {
  const starts = processes.flatMap(({ started_at }) => (started_at === null ? [] : [started_at]))
  const since = starts.length === 0 ? null : Math.min(...starts)
  const age = elapsed(gpu.since, now)
  return {
    uuid: gpu.uuid,
    host: host.name,
    place: plain(`${host.display_name}: ${gpu.label}`),
    model: plain(gpu.display_name),
    state: gpu.availability,
    stateText: isPast ? `silent for ${duration(elapsed(host.last_report_at, now))}; ${gpu.last_seen ?? 'seen'} before` : `${gpu.availability}${Number.isNaN(age) ? '' : ` for ${duration(age)}`}`,
    memory: memory === null ? { text: DASH, title: plain(gpu.reasons['memory_used_bytes'] ?? 'not reported by process') } : { text: `${bytes(memory)} of ${bytes(gpu.memory_total_bytes)}`, title: undefined },
    utilization: { text: percent(gpu.utilization_percent), title: gpu.utilization_percent === null ? plain(gpu.reasons['utilization_percent'] ?? 'not reported') : undefined },
    commands: processes.map(({ command, reasons, pid }) => plain(command ?? `process ${pid}: ${reasons['command'] ?? 'the command is not known'}`)),
    since: since === null ? { text: DASH, title: 'when it started is not reported' } : { text: `${clockTime(since, now)}, ${duration(elapsed(since, now))}`, title: utcTime(since) },
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
