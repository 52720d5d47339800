/** The processes on GPUs as rows of a table, with everything that is known of each. */
import type { Gpu, Host, Process } from '../api/types'
import { bytes, DASH, duration, elapsed, percent, plain, utcTime } from '../ui/format'
import type { Figure } from '../ui/format'
import { userColour } from '../ui/colours'

export interface ProcessRow {
  key: string
  pid: number
  user: string | null
  name: Figure
  colour: string
  command: Figure
  memory: Figure
  utilization: Figure
  runtime: Figure
  place: Figure
  /** How its user was identified. */
  evidence: string
}

/** When the processes of a host were last seen: their run time does not grow while the host does not report. */
export function seenAt(host: Host, now: number): number {
  return host.status === 'up' ? now : (host.last_report_at ?? now)
}

/** Null where the list could not be read. Most memory first, as on the card. `now` is the hub's clock. */
export function processRows(gpu: Gpu, host: Host, now: number): ProcessRow[] | null {
  const { processes } = gpu
  return processes?.map((process, at) => processRow(process, `${gpu.uuid} ${process.pid} ${at}`, seenAt(host, now))) ?? null
}

function processRow(process: Process, key: string, now: number): ProcessRow {
  const { user, command, memory_used_bytes: used, utilization_percent: utilization, started_at: start } = process
  const why = (field: string, otherwise: string): string => process.reasons?.[field] ?? otherwise
  const place = [process.container, process.job == null ? null : `job ${process.job}`, process.display ? 'display' : null].filter((part) => part != null)
  return {
    key,
    pid: process.pid,
    user: user ?? null,
    name: known(user, plain, why('user', process.evidence ?? 'owner unknown')),
    colour: userColour(user ?? null),
    command: { ...known(command, plain, why('command', 'command unknown')), ...(command == null ? {} : { title: plain(command) }) },
    memory: known(used, bytes, why('memory_used_bytes', 'not reported')),
    utilization: known(utilization, percent, why('utilization_percent', 'not reported')),
    runtime: { ...known(start, (since) => duration(elapsed(since, now)), why('started_at', 'not reported')), ...(start == null ? {} : { title: `since ${utcTime(start)}` }) },
    place: { text: plain(place.join(' · ')), title: undefined },
    evidence: plain(process.evidence ?? ''),
  }
}

function known<T>(value: T | null | undefined, text: (value: T) => string, why: string): Figure {
  return value == null ? { text: DASH, title: why } : { text: text(value), title: undefined }
}
