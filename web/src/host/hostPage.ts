/** The page of one host in words. */
import type { Maintenance } from '../api/maintenance'
import type { Gpu, Host } from '../api/types'
import { hostDetail, type HostDetail } from './hostDetail'
import { reservationText, type ReservationText } from '../reservations/currentReservation'
import { READING } from '../gpu/gpuDetail'
import { inUnit } from '../ui/format'
import type { HostEntry } from '../stream/fleetModel'
import { bytes, bytesPair, DASH, fraction, gib, percent, plain, watts } from '../ui/format'
import type { BigFigure } from '../gpu/gpuPage'
import { hostText, noteLevel } from './hostText'
import { alertLevel, gpuLevel, type Level } from '../ui/states'
import { alarmText, gpuLine, type GpuLine } from '../gpu/gpuLine'
import { processRows, type ProcessRow } from '../gpu/processes'

export interface HostGpu {
  uuid: string
  line: GpuLine
  model: string
  power: string
  /** The id of the job that a scheduler gave the GPU to; empty where there is none or it is not known. */
  job: string
  reservation: ReservationText | null
  maintenance: Maintenance | null
  alarm: string | undefined
  isCritical: boolean
  /** Null where the list could not be read; `why` then says why. */
  processes: ProcessRow[] | null
  why: string
}

export interface HostDisk {
  mount: string
  text: string
  fraction: number | null
}

export interface HostPageText {
  detail: HostDetail
  /** What is wrong, and what to do. */
  notes: { text: string; level: Level }[]
  figures: BigFigure[]
  gpus: HostGpu[]
  /** The host is not up: everything is from its last report. */
  isStale: boolean
  /** Why there are no GPUs, where there are none. */
  noGpus: string
  /** UUIDs; none while the host is not up. */
  reservable: string[]
  disks: HostDisk[]
  labels: { key: string; value: string }[]
  /** A command that diagnoses the host, for the hub's machine; null while there is no problem. */
  test: string | null
}

/** `now` is the hub's clock. */
export function hostPageText(entry: HostEntry, now: number): HostPageText {
  const { host } = entry
  const { notes } = hostText(entry, now)
  const stale = notes.filter((note) => !host.problems.some((problem) => note.endsWith(plain(problem))))
  return {
    detail: hostDetail(entry, now),
    notes: [...[...stale, ...host.problems.map(plain)].map((text) => ({ text, level: noteLevel(text, host) })), ...alertNotes(entry)],
    figures: figuresOf(entry, now),
    gpus: host.gpus.map((gpu) => gpuOf(gpu, host, now)),
    isStale: host.status !== 'up',
    noGpus: host.status === 'never_seen' ? 'No report yet.' : plain(host.reasons['gpus'] ?? 'No GPU reported.'),
    reservable: host.status === 'up' ? host.gpus.map(({ uuid }) => uuid) : [],
    disks: host.disks.map((disk) => ({
      mount: plain(disk.mount),
      text: `${bytes(disk.used_bytes)} of ${bytes(disk.total_bytes)}`,
      fraction: fraction(disk.used_bytes, disk.total_bytes),
    })),
    labels: Object.entries(host.labels).map(([key, value]) => ({ key: plain(key), value: plain(value) })),
    test: host.status === 'up' && host.problems.length === 0 ? null : `gpudeck hosts test ${host.name}`,
  }
}

/** What these alerts are about stands among the host's own problems. */
const ELSEWHERE = new Set(['host_down', 'host_unreadable', 'gpu_lost', 'driver_not_answering'])

function alertNotes({ alerts }: HostEntry): HostPageText['notes'] {
  return alerts.filter(({ rule }) => !ELSEWHERE.has(rule)).map(({ title, severity }) => ({ text: plain(title), level: alertLevel(severity) }))
}

function gpuOf(gpu: Gpu, host: Host, now: number): HostGpu {
  return {
    uuid: gpu.uuid,
    line: gpuLine(gpu, host, now),
    model: plain(gpu.display_name),
    power: watts(gpu.power_watts),
    job: gpu.allocation?.job ?? '',
    reservation: reservationText(gpu, now),
    maintenance: gpu.maintenance ?? null,
    alarm: alarmText(gpu, now),
    isCritical: gpuLevel(gpu.health) === 'critical',
    processes: processRows(gpu, host, now),
    why: plain(gpu.reasons['processes'] ?? 'the process list could not be read'),
  }
}

function figuresOf(entry: HostEntry, now: number): BigFigure[] {
  const { host, summary } = entry
  const isRead = entry.isRead(now)
  const { memory_used_bytes: used, memory_total_bytes: total, cpu_percent: cpu, cpu_count: threads } = host
  const figure = (label: string, field: string, text: string, of = '', part: number | null = null): BigFigure => ({
    label,
    text,
    of,
    fraction: part,
    title: text === DASH ? (host.reasons[field] ?? 'not reported') : undefined,
  })
  const rate = (value: number | null): string => (value === null ? DASH : isRead ? inUnit(value, 'bytes_per_second') : READING)
  return [
    figure('CPU', 'cpu_percent', percent(cpu), threads === null ? '' : `of ${threads} threads`, cpu === null ? null : cpu / 100),
    figure('RAM', 'memory_used_bytes', used === null ? DASH : gib(used), total === null ? '' : `of ${bytes(total)}`, fraction(used, total)),
    figure('Disk', 'disk_used_bytes', ...bytesPair(host.disk_used_bytes, host.disk_total_bytes), fraction(host.disk_used_bytes, host.disk_total_bytes)),
    figure('Network in', 'network_receive_bytes_per_second', rate(host.network_receive_bytes_per_second)),
    figure('Network out', 'network_transmit_bytes_per_second', rate(host.network_transmit_bytes_per_second)),
    { label: 'GPU power', text: watts(summary.power), of: '', fraction: null, title: summary.power === null ? 'no GPU reports power' : undefined },
  ]
}
