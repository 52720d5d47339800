/** Two to eight GPUs, hosts, users or runs beside each other: what the address asks for, and which one differs. */
import type { Past, Question } from '../api/history'
import { hrefOf } from '../ui/route'

export const KINDS = ['gpu', 'host', 'user', 'run'] as const
export type Kind = (typeof KINDS)[number]
export const MOST_COMPARED = 8

export interface Compared {
  kind: Kind
  /** UUIDs of GPUs, names or ids of hosts, users, or numbers of runs, each once. */
  names: readonly string[]
  metric: string
}

const OF_GPUS = [
  ['utilization_percent', 'utilization'],
  ['memory_used_bytes', 'memory'],
  ['power_watts', 'power'],
  ['temperature_celsius', 'temperature'],
  ['clock_sm_mhz', 'SM clock'],
  ['throttled_thermal', 'thermal throttling'],
  ['throttled_power', 'power throttling'],
] as const
export const METRICS: Record<Kind, readonly (readonly [metric: string, label: string])[]> = {
  gpu: OF_GPUS,
  host: [...OF_GPUS.slice(0, 4), ['gpus_busy', 'busy GPUs'], ['gpus_idle', 'idle GPUs'], ['host_cpu_percent', 'CPU'], ['host_memory_used_bytes', 'RAM']],
  user: [
    ['gpus_used', 'GPUs'],
    ['gpus_active', 'GPUs × utilization'],
    ['gpus_idle', 'idle GPUs'],
    ['power_watts', 'power'],
  ],
  run: OF_GPUS.slice(0, 4),
}

/** `of` has names with commas between them; a comma in a name is escaped. What makes no sense is left out. */
export function readCompared(params: URLSearchParams): Compared {
  const kind = KINDS.find((known) => known === params.get('kind')) ?? 'gpu'
  const named = (params.get('of') ?? '').split(',').map(unescape).filter((name) => name !== '' && (kind !== 'run' || /^\d{1,15}$/.test(name)))
  const metric = METRICS[kind].find(([name]) => name === params.get('metric'))?.[0] ?? METRICS[kind][0]![0]
  return { kind, names: [...new Set(named)].slice(0, MOST_COMPARED), metric }
}

/** `kept` are the other parameters of the address. */
export function compareHref({ kind, names, metric }: { kind: Kind; names: readonly string[]; metric?: string }, kept: URLSearchParams | Record<string, string> = {}): string {
  const usual = METRICS[kind][0]![0]
  return hrefOf('compare', '', { ...Object.fromEntries(new URLSearchParams(kept)), kind, of: names.map((name) => name.replaceAll('%', '%25').replaceAll(',', '%2C')).join(), metric: metric === usual ? '' : (metric ?? '') })
}

function unescape(name: string): string {
  return name.replaceAll('%2C', ',').replaceAll('%25', '%')
}

export function questionFor(kind: Kind, name: string, metric: string): Question {
  return kind === 'run' ? { run: Number(name), metric } : { [kind]: name, metric }
}

/** Each step is as long as the others; null where nothing is known. */
export function meanOf(past: Past | null): number | null {
  const known = (past?.series[0]?.points ?? []).flatMap(([, mean]) => (mean === null ? [] : [mean]))
  return known.length === 0 ? null : known.reduce((sum, value) => sum + value, 0) / known.length
}

export interface Straggler {
  /** Which of them. */
  at: number
  /** The median of the others. */
  median: number
}

const TIMES = 3
const LEAST_SHARE = 0.1

/** The one that is further from the median of the others than a tenth of it, and than three times as far as half of them
 * are. Of fewer than three none can be told; null where none stands out. */
export function findStraggler(means: readonly (number | null)[]): Straggler | null {
  const known = means.flatMap((value, at) => (value === null ? [] : [{ value, at }]))
  if (known.length < 3) return null
  const judged = known.map(({ value, at }) => {
    const others = known.filter((other) => other.at !== at).map((other) => other.value)
    const median = medianOf(others)
    return { at, median, off: Math.abs(value - median), spread: medianOf(others.map((other) => Math.abs(other - median))) }
  })
  const worst = judged.reduce((most, one) => (one.off > most.off ? one : most))
  const stands = worst.off > LEAST_SHARE * Math.abs(worst.median) && worst.off > TIMES * worst.spread
  return stands ? { at: worst.at, median: worst.median } : null
}

function medianOf(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  const middle = sorted.length >> 1
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2
}
