/** Runs as rows of a table and as bars on a line of time. */
import type { Run } from '../api/history'
import type { Bounds } from '../api/history'
import { bytes, clockTime, DASH, duration, moment, plain, utcTime } from '../ui/format'
import { userColour } from '../ui/colours'
import type { Figure } from '../ui/format'

export interface RunRow {
  id: number
  user: string | null
  name: Figure
  colour: string
  command: Figure
  place: string
  pid: number
  /** The GPUs by their labels, with the host where it is not plain. */
  gpus: string
  host: string
  started: Figure
  isRunning: boolean
  lasted: string
  utilization: Figure
  memory: Figure
  idle: Figure
  energy: string
}

/** `now` is the hub's clock. */
export function runRow(run: Run, now: number): RunRow {
  const start = run.started_at ?? run.seen_at
  const until = run.ended_at ?? now
  return {
    id: run.id,
    user: run.user,
    name: { text: run.user === null ? DASH : plain(run.user), title: run.user === null ? 'owner unknown' : undefined },
    colour: userColour(run.user),
    command: run.command === null ? { text: DASH, title: run.command_reason ?? 'command unknown' } : { text: plain(run.command), title: plain(run.command) },
    place: [run.container, run.job === null ? null : `job ${run.job}`].filter((part) => part !== null).map(plain).join(' · '),
    pid: run.pid,
    gpus: run.labels.map(plain).join(', '),
    host: plain(run.host_name),
    started: { text: moment(start, now), title: `${clockTime(start, now)}, ${utcTime(start)}` },
    isRunning: run.ended_at === null,
    lasted: duration(Math.max(0, until - start)),
    utilization: known(run.mean_utilization_percent, (value) => `${Math.round(value)}%`, 'not measured'),
    memory: known(run.peak_memory_bytes, bytes, 'not measured'),
    idle: { text: run.idle_seconds < 60 ? DASH : duration(run.idle_seconds), title: 'time without work' },
    energy: run.energy_joules === null ? DASH : `${(run.energy_joules / 3.6e6).toFixed(run.energy_joules < 3.6e7 ? 2 : 1)} kWh`,
  }
}

function known(value: number | null, text: (value: number) => string, why: string): Figure {
  return value === null ? { text: DASH, title: why } : { text: text(value), title: undefined }
}

/** By when they began: the hub tells them in the order in which it learned of them. */
export function latestFirst(runs: readonly Run[]): Run[] {
  return [...runs].sort((a, b) => b.seen_at - a.seen_at)
}

export interface RunBar {
  id: number
  /** 0…1 of the range. */
  from: number
  width: number
  lane: number
  colour: string
  name: string
  title: string
}

/** Runs that were there at the same time lie in different lanes; the earliest ones in the first. */
export function runBars(runs: readonly Run[], { start, end }: Bounds, now: number): { bars: RunBar[]; lanes: number } {
  const ends: number[] = []
  const shown = [...runs].sort((a, b) => a.seen_at - b.seen_at).filter((run) => run.seen_at < end && (run.ended_at ?? now) > start)
  const bars = shown.map((run) => {
    const [from, until] = [Math.max(start, run.seen_at), Math.min(end, run.ended_at ?? now)]
    const free = ends.findIndex((last) => last <= from)
    const lane = free < 0 ? ends.length : free
    ends[lane] = until
    return { id: run.id, lane, colour: userColour(run.user), name: run.user === null ? DASH : plain(run.user), from: (from - start) / (end - start), width: (until - from) / (end - start), title: barTitle(run, now) }
  })
  return { bars, lanes: ends.length }
}

function barTitle(run: Run, now: number): string {
  const { name, started, lasted, command } = runRow(run, now)
  return `${name.text}, from ${started.text} for ${lasted}: ${command.text}`
}
