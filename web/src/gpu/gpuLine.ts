/** A GPU in the words of one line, ready to be drawn: nothing here is a number any more. */
import type { Availability, Gpu, Host } from '../api/types'
import { maintenanceText } from '../maintenance/maintenanceText'
import { allocationText } from './allocationText'
import { celsius, clockTime, DASH, duration, elapsed, fraction, gib, memoryPair, percent, plain, shortDuration, utcTime, watts, type Figure } from '../ui/format'
import { gpuLevel, isUnused } from '../ui/states'

export interface GpuLine {
  uuid: string
  label: string
  state: Availability
  /** Set apart from `who` where the symbol alone could be misread. */
  word: string
  who: Figure
  /** Who reserved it, where somebody is on it: `reserved` where that is them. */
  reserved: Figure | null
  /** That it will not become free, where somebody is on it. */
  drained: Figure | null
  /** The people that `who` names, by login; empty where it names nobody. */
  users: readonly string[]
  utilization: Figure
  /** 0…1; null draws no bar. */
  utilizationFraction: number | null
  /** 0…1; null draws no bar. */
  memoryFraction: number | null
  memory: Figure
  temperature: Figure
  power: Figure
  since: Figure
  /** A sentence when the GPU is not well. */
  alarm: string | undefined
  /** Its temperature is what is wrong. */
  isHot: boolean
  isCritical: boolean
  /** The figures are from the last report of a host that is not up. */
  isPast: boolean
  /** The whole line for a screen reader. */
  spoken: string
}

/** `now` is the hub's clock. */
export function gpuLine(gpu: Gpu, host: Host, now: number): GpuLine {
  const isPast = host.status !== 'up'
  const isEmpty = isUnused(gpu.availability)
  const isUnreadable = !isPast && gpu.availability === 'unknown' && gpu.utilization_percent === null
  const who = whoText(gpu, isPast, now)
  const line = {
    uuid: gpu.uuid,
    label: gpu.label,
    state: gpu.availability,
    word: gpu.availability === 'idle' ? 'idle' : '',
    who,
    reserved: isPast ? null : reservedBy(gpu, now),
    drained: gpu.maintenance && !isEmpty ? { text: 'in maintenance', title: maintenanceText(gpu.maintenance, now) } : null,
    users: isPast || isEmpty || gpu.availability === 'unknown' ? [] : gpu.users,
    utilizationFraction: isEmpty ? null : fraction(gpu.utilization_percent, 100),
    utilization: isEmpty || isUnreadable ? blank : figure(percent(gpu.utilization_percent), gpu, 'utilization_percent'),
    memoryFraction: isEmpty ? null : fraction(gpu.memory_used_bytes, gpu.memory_total_bytes),
    memory: isEmpty ? wholeMemory(gpu) : figure(memoryPair(gpu.memory_used_bytes, gpu.memory_total_bytes), gpu, 'memory_used_bytes'),
    temperature: figure(celsius(gpu.temperature_celsius), gpu, 'temperature_celsius'),
    power: figure(watts(gpu.power_watts), gpu, 'power_watts'),
    since: isPast ? blank : { text: shortDuration(elapsed(gpu.since, now)), title: sinceText(gpu, now) },
    alarm: alarmText(gpu, now),
    isHot: isHeat(gpu),
    isCritical: gpuLevel(gpu.health) === 'critical',
    isPast,
  }
  return { ...line, spoken: spokenText(gpu, line) }
}

/** A GPU in the table: its state alone. Its figures are told by its row and, on demand, by its popover. */
export interface GpuCell {
  uuid: string
  state: Availability
  hasAlarm: boolean
  isCritical: boolean
  spoken: string
}

export function gpuCell(gpu: Gpu, host: Host, now: number): GpuCell {
  const who = whoText(gpu, host.status !== 'up', now).text
  const parts = [`GPU ${gpu.label}`, gpu.availability, who === gpu.availability ? '' : who, alarmText(gpu, now) ?? '']
  return {
    uuid: gpu.uuid,
    state: gpu.availability,
    hasAlarm: gpuLevel(gpu.health) !== 'ok',
    isCritical: gpuLevel(gpu.health) === 'critical',
    spoken: parts.filter((part) => part !== '').join(', ').replaceAll(DASH, 'unknown'),
  }
}

const blank: Figure = { text: '', title: undefined }

function figure(text: string, gpu: Gpu, field: string): Figure {
  return { text, title: text.includes(DASH) ? (gpu.reasons[field] ?? 'not reported') : undefined }
}

/** Somebody who looks for a free GPU wants its size, not that it is empty. */
function wholeMemory(gpu: Gpu): Figure {
  const total = gpu.memory_total_bytes
  return total === null ? figure(DASH, gpu, 'memory_total_bytes') : { text: `${gib(total)}G`, title: undefined }
}

function whoText(gpu: Gpu, isPast: boolean, now: number): Figure {
  if (isPast) return { text: `last: ${lastText(gpu)}`, title: gpu.availability_reason ?? undefined }
  if (gpu.availability === 'free') return { text: 'free', title: undefined }
  if (gpu.availability === 'reserved') return { text: reservedText(gpu, now), title: undefined }
  if (gpu.availability === 'allocated') return sameTitle(gpu.allocation ? allocationText(gpu.allocation, now) : 'allocated')
  if (gpu.availability === 'drained') return sameTitle(gpu.maintenance ? maintenanceText(gpu.maintenance, now) : (gpu.availability_reason ?? 'drained'))
  if (gpu.availability === 'unknown') return sameTitle(gpu.availability_reason ?? 'unknown')
  return { text: usersText(gpu), title: usersTitle(gpu) }
}

function lastText(gpu: Gpu): string {
  if (gpu.users.length > 0) return usersOf(gpu)
  return gpu.last_seen === 'unknown' ? DASH : (gpu.last_seen ?? DASH)
}

function reservedText({ reservation }: Gpu, now: number): string {
  if (!reservation) return 'reserved'
  if (reservation.kind === 'claim') return `claimed by ${plain(reservation.user)}`
  return `reserved by ${plain(reservation.user)} until ${clockTime(reservation.until, now)}`
}

/** Of a GPU in use: of any other `who` says it. */
function reservedBy(gpu: Gpu, now: number): Figure | null {
  const { reservation, users } = gpu
  if (!reservation || (gpu.availability !== 'busy' && gpu.availability !== 'idle')) return null
  const isOwn = users.length === 1 && users[0] === reservation.user
  return { text: isOwn ? 'reserved' : `reserved: ${plain(reservation.user)}`, title: reservedText(gpu, now) }
}

function usersText(gpu: Gpu): string {
  if (gpu.users.length > 0) return usersOf(gpu)
  return gpu.processes !== null && gpu.processes.length === 0 ? 'no process' : DASH
}

function usersTitle(gpu: Gpu): string | undefined {
  if (gpu.users.length > 1) return usersOf(gpu)
  if (gpu.users.length === 1) return gpu.availability_reason ?? undefined
  return gpu.availability_reason ?? gpu.reasons['processes'] ?? 'user unknown'
}

function usersOf(gpu: Gpu): string {
  return plain(gpu.users.join(', '))
}

function sameTitle(text: string): Figure {
  return { text: plain(text), title: text }
}

function sinceText(gpu: Gpu, now: number): string {
  const age = elapsed(gpu.since, now)
  if (Number.isNaN(age)) return 'start time unknown'
  return `${gpu.availability} for ${duration(age)}, since ${clockTime(gpu.since, now)} (${utcTime(gpu.since)})`
}

export function alarmText(gpu: Gpu, now?: number): string | undefined {
  if (gpuLevel(gpu.health) === 'ok') return undefined
  return [`${gpu.health}: ${reasonText(gpu, now)}`, gpu.health_action].filter(Boolean).join('. ')
}

/** Why it is not well. A fault of a GPU that can be read is past: with its age, where `now`, the hub's clock, is given. */
export function reasonText(gpu: Gpu, now?: number): string {
  const reason = plain(gpu.health_reason ?? 'no reason given')
  const code = /^XID (\d+)/.exec(reason)?.[1]
  const fault = gpu.availability === 'unknown' || now === undefined ? undefined : gpu.events.findLast((event) => String(event.code) === code)
  return fault === undefined ? reason : `${reason}, ${duration(elapsed(fault.at, now!))} ago; it is reporting again`
}

/** Whether it is its temperature that makes it unwell: the hub then gives that as the reason, and nothing else. */
export function isHeat(gpu: Gpu): boolean {
  return alarmText(gpu) !== undefined && /^\d+ °C$/.test(gpu.health_reason ?? '')
}

/** What is seen, in the order in which it is seen, so that who speaks to the page can say it; then what is only drawn. */
function spokenText(gpu: Gpu, line: Omit<GpuLine, 'spoken'>): string {
  const { label, who, reserved, drained, word, utilization, memory, temperature, power, since } = line
  const seen = [`GPU ${label}`, who.text, word, reserved?.text ?? '', drained?.text ?? '', utilization.text, memory.text, temperature.text, power.text, since.text]
  const drawn = [who.text === gpu.availability || word === gpu.availability ? '' : gpu.availability, line.alarm ?? '']
  return [seen.filter((part) => part !== '').join(' '), ...drawn.filter((part) => part !== '')].join(', ')
}
