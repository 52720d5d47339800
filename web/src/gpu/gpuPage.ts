/** The page of one GPU in words. */
import type { Run } from '../api/history'
import type { Maintenance } from '../api/maintenance'
import { allocationText } from './allocationText'
import type { Gpu, Host } from '../api/types'
import { reservationText, type ReservationText } from '../reservations/currentReservation'
import { gpuDetail, READING, type GpuDetail } from './gpuDetail'
import { deviceVariable, isMissing, useCommand } from './deviceVariable'
import { bytes, celsius, DASH, fraction, gib, percent, plain, watts } from '../ui/format'
import { gpuLevel } from '../ui/states'
import { alarmText, reasonText } from './gpuLine'
import { processRows, type ProcessRow } from './processes'

export interface BigFigure {
  label: string
  text: string
  /** What it is part of, such as the limit. */
  of: string
  /** 0…1; null draws no bar. */
  fraction: number | null
  title: string | undefined
}

export interface GpuPageText {
  title: string
  host: string
  detail: GpuDetail
  figures: BigFigure[]
  alarm: { reason: string; action: string | null; isCritical: boolean } | null
  /** Restricts a program to this GPU; null where no variable can. */
  variable: string | null
  /** Opens a shell that uses this GPU; null unless it is free. */
  useCommand: string | null
  canReserve: boolean
  /** Null where the list could not be read. */
  processes: ProcessRow[] | null
  reservation: ReservationText | null
  label: string
  /** Who can be asked whether they still need it: its users, where it is idle. */
  owners: readonly string[]
  maintenance: Maintenance | null
  /** The job that it was given to; empty where it was given to none. */
  allocation: string
  /** Its id, where it is known. */
  job: string
}

/** `now` is the hub's clock. `isRead`: what is not live is current too. */
export function gpuPageText(gpu: Gpu, host: Host, now: number, isRead = true): GpuPageText {
  return {
    title: plain(`GPU ${gpu.label} · ${gpu.name}`),
    host: plain(host.display_name),
    detail: gpuDetail(gpu, host, now, isRead),
    figures: figuresOf(gpu, isRead),
    alarm: alarmText(gpu) === undefined ? null : { reason: reasonText(gpu, now), action: gpu.health_action === null ? null : plain(gpu.health_action), isCritical: gpuLevel(gpu.health) === 'critical' },
    variable: deviceVariable(gpu, host),
    useCommand: useCommand(gpu, host),
    canReserve: host.status === 'up' && !isMissing(gpu),
    processes: processRows(gpu, host, now),
    reservation: reservationText(gpu, now),
    label: plain(gpu.label),
    owners: gpu.availability === 'idle' ? gpu.users : [],
    maintenance: gpu.maintenance ?? null,
    allocation: gpu.allocation ? allocationText(gpu.allocation, now) : '',
    job: gpu.allocation?.job ?? '',
  }
}

function figuresOf(gpu: Gpu, isRead: boolean): BigFigure[] {
  const { memory_used_bytes: used, memory_total_bytes: total, power_watts: power, power_limit_watts: limit } = gpu
  const utilization = gpu.utilization_percent
  const figure = (label: string, field: string, text: string, of = '', part: number | null = null): BigFigure => ({
    label,
    text,
    of,
    fraction: part,
    title: text === DASH ? (gpu.reasons[field] ?? 'not reported') : undefined,
  })
  return [
    figure('Utilization', 'utilization_percent', percent(utilization), '', utilization === null ? null : utilization / 100),
    figure('Memory', 'memory_used_bytes', used === null ? DASH : gib(used), total === null ? '' : `of ${bytes(total)}`, fraction(used, total)),
    figure('Power', 'power_watts', watts(power), limit === null ? '' : `of ${watts(limit)}`, fraction(power, limit)),
    figure('Temperature', 'temperature_celsius', celsius(gpu.temperature_celsius).replace('°', ' °C')),
    figure('SM clock', 'clock_sm_mhz', gpu.clock_sm_mhz === null ? DASH : isRead ? `${Math.round(gpu.clock_sm_mhz)} MHz` : READING),
  ]
}

/** What the past tells of a GPU that is in the fleet no more. */
export function pastTitle(uuid: string, runs: readonly Run[]): { title: string; host: string | null } {
  const last = runs[0]
  const label = last?.labels[last.gpus.indexOf(uuid)]
  if (last === undefined) return { title: 'Removed GPU', host: null }
  return { title: plain(`GPU ${label ?? ''} · ${last.model ?? ''}`.replace(/ · $/, '')), host: last.host_name }
}
