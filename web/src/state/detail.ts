/** Everything known about one GPU, for its popover. */
import catalog from '../api/catalog.json'
import type { Gpu, Host, Process } from '../api/types'
import { bytes, clockTime, DASH, duration, plain, utcTime } from './format'
import type { Figure } from './lines'

export interface Metric {
  name: string
  scope: string
  unit: string
  label: string
}

/** Every metric of a GPU in the order of the catalog: a new one shows up without a line here. */
const GPU_METRICS: readonly Metric[] = catalog.filter((metric) => metric.scope === 'gpu')

export interface PersonOnGpu {
  user: Figure
  memory: string
  runtime: string
}

export interface ProcessOnGpu {
  pid: number
  user: Figure
  command: Figure
  memory: Figure
  runtime: Figure
  place: string | undefined
}

export interface GpuDetail {
  title: string
  state: string
  stateTitle: string
  reason: string | undefined
  metrics: { label: string; figure: Figure }[]
  people: PersonOnGpu[]
  /** Null when the list could not be read; `processesReason` then says why. */
  processes: ProcessOnGpu[] | null
  processesReason: string
  moreProcesses: number
}

const MOST_PROCESSES = 8

/** `now` is the hub's clock. */
export function gpuDetail(gpu: Gpu, host: Host, now: number): GpuDetail {
  const processes = gpu.processes as Process[] | null
  const shown = processes?.slice(0, MOST_PROCESSES).map((process) => processText(process, now)) ?? null
  return {
    title: plain(`${host.display_name} · GPU ${gpu.label} · ${gpu.name}`),
    state: stateText(gpu, host, now),
    stateTitle: utcTime(gpu.since),
    reason: gpu.availability_reason ?? undefined,
    metrics: GPU_METRICS.map((metric) => ({ label: metric.label, figure: metricFigure(gpu, metric) })),
    people: peopleOn((processes ?? []).filter((process) => !process.display), now),
    processes: shown,
    processesReason: gpu.reasons['processes'] ?? 'The list of processes could not be read.',
    moreProcesses: Math.max(0, (processes?.length ?? 0) - MOST_PROCESSES),
  }
}

function stateText(gpu: Gpu, host: Host, now: number): string {
  if (host.status === 'up') return `${gpu.availability} for ${duration(now - gpu.since)}, since ${clockTime(gpu.since, now)}`
  const age = host.last_report_at === null ? '' : ` ${duration(now - host.last_report_at)} ago`
  return `unknown; ${gpu.last_seen ?? 'last seen'}${age}, when the host last reported`
}

export function metricFigure(gpu: Gpu, metric: Metric): Figure {
  const value = (gpu as unknown as Record<string, number | null | undefined>)[metric.name]
  if (value === null || value === undefined) return { text: DASH, title: gpu.reasons[metric.name] ?? 'not reported' }
  return { text: inUnit(value, metric.unit), title: undefined }
}

const SUFFIX: Record<string, string> = { percent: ' %', celsius: ' °C', watts: ' W', megahertz: ' MHz' }

/** A unit that the page has never heard of is written out: better than not at all. */
export function inUnit(value: number, unit: string): string {
  if (unit === 'bytes') return bytes(value)
  if (unit === 'seconds') return duration(value)
  if (unit === 'count' || unit === 'load') return String(value)
  return `${Math.round(value)}${SUFFIX[unit] ?? ` ${unit}`}`
}

/** Who is on it with how much and since when, most memory first. A sum with an unknown part is unknown. */
function peopleOn(processes: readonly Process[], now: number): PersonOnGpu[] {
  const byUser = new Map<string | undefined, Process[]>()
  for (const process of processes) {
    const user = process.user ?? undefined
    byUser.set(user, [...(byUser.get(user) ?? []), process])
  }
  return [...byUser]
    .map(([user, theirs]) => ({ user, theirs, memory: sumMemory(theirs) }))
    .sort((a, b) => (b.memory ?? 0) - (a.memory ?? 0))
    .map(({ user, theirs, memory }) => ({
      user: orDash(user, theirs[0]?.reasons?.['user'], 'the owner is not known'),
      memory: bytes(memory),
      runtime: longest(theirs, now),
    }))
}

function sumMemory(processes: readonly Process[]): number | null {
  return processes.reduce<number | null>((sum, { memory_used_bytes: used }) => (sum === null || used == null ? null : sum + used), 0)
}

function longest(processes: readonly Process[], now: number): string {
  const starts = processes.flatMap(({ started_at: start }) => (start == null ? [] : [start]))
  return starts.length === 0 ? DASH : duration(now - Math.min(...starts))
}

function processText(process: Process, now: number): ProcessOnGpu {
  const reasons = process.reasons ?? {}
  const { started_at: start, memory_used_bytes: used } = process
  return {
    pid: process.pid,
    user: orDash(process.user, reasons['user'] ?? process.evidence, 'the owner is not known', process.evidence),
    command: orDash(process.command, reasons['command'], 'the command is not known', process.command),
    memory: orDash(used == null ? null : bytes(used), reasons['memory_used_bytes'], 'not reported'),
    runtime: orDash(start == null ? null : duration(now - start), reasons['started_at'], 'not reported'),
    place: [process.container, process.job == null ? null : `job ${process.job}`, process.display ? 'display' : null].filter(Boolean).map((part) => plain(part ?? '')).join(' · ') || undefined,
  }
}

function orDash(text: string | null | undefined, reason: string | null | undefined, otherwise: string, title?: string | null): Figure {
  return text == null ? { text: DASH, title: reason ?? otherwise } : { text: plain(text), title: title ?? undefined }
}

/** What to put before a command so that it runs on this GPU and no other. */
export function cudaVisibleDevices(gpu: Gpu): string {
  return `CUDA_VISIBLE_DEVICES=${gpu.uuid}`
}
