/** The large figures on top of a page. Each says of what it is; what is not known is a dash, and never a zero. */
import type { AlertCounts } from '../api/alerts'
import type { Totals, Usage } from '../api/types'
import { count, DASH, gpuCount, watts } from '../ui/format'
import { hrefOf } from '../ui/route'
import { amount, costText, measuredText, percentage, utilizationText } from './usage'

export interface Kpi {
  label: string
  text: string
  /** Of what it is, or why it is not known. */
  note: string
  /** The colour of a state or a fault; undefined is ink. */
  tone?: 'free' | 'idle' | 'critical' | 'warning'
  href?: string
  /** A line is drawn behind it. */
  hasTrend?: true
}

/** The usage of a period; before it is there, `reason` says why. */
export interface UsageSoFar {
  usage: Usage | null
  reason: string
}

/** The fleet now, and its last day. `slices` of its GPUs are MIG slices. */
export function fleetKpis(totals: Totals, slices: number, alerts: AlertCounts, day: UsageSoFar): Kpi[] {
  return [
    { label: 'Free now', text: totals.free.toLocaleString('en'), note: `of ${gpuCount(totals.gpus, slices)}`, hasTrend: true, ...(totals.free > 0 ? { tone: 'free' as const } : {}) },
    { label: 'Idle now', text: totals.idle.toLocaleString('en'), note: 'in use without work', ...(totals.idle > 0 ? { tone: 'idle' as const } : {}) },
    { ...utilizationKpi('Utilization, 24 h', day), href: hrefOf('history', '', { range: '24h' }) },
    { ...hoursKpi('GPU-hours, 24 h', day), href: hrefOf('history', '', { range: '24h' }) },
    { label: 'Power', text: watts(totals.power_watts), note: totals.power_watts === null ? 'no GPU reports power' : `${totals.hosts_up.toLocaleString('en')} of ${count(totals.hosts, 'host')} up` },
    problemKpi(alerts),
  ]
}

/** The usage of a period. */
export function usageKpis(period: UsageSoFar, isPriced: boolean): Kpi[] {
  const { usage, reason } = period
  const total = usage?.total
  const idle: Kpi = total === undefined ? { label: 'Idle hours', text: DASH, note: reason } : { label: 'Idle hours', text: total.idle_hours === null ? DASH : amount(total.idle_hours), note: total.idle_hours === null ? 'unknown of imported jobs' : partText(total.idle_hours, total.gpu_hours), ...((total.idle_hours ?? 0) > 0 ? { tone: 'idle' as const } : {}) }
  const energy: Kpi = { label: 'Energy', text: total?.energy_kwh == null ? DASH : `${amount(total.energy_kwh)} kWh`, note: total === undefined ? reason : total.energy_kwh === null ? 'power not reported' : 'of the GPUs in use' }
  return [hoursKpi('GPU-hours', period), utilizationKpi('Utilization', period), idle, energy, ...(isPriced ? [costKpi(period)] : [])]
}

/** In the first minutes of a hub. A period before that has no figures at all. */
const NOTHING_YET = 'nothing recorded yet'

function hoursKpi(label: string, { usage, reason }: UsageSoFar): Kpi {
  if (usage === null || usage.coverage === null) return { label, text: DASH, note: usage === null ? reason : NOTHING_YET }
  const price = usage.total.cost == null ? '' : `${usage.unpriced_models.length > 0 ? '≥ ' : ''}${shortCost(usage.total.cost, usage.currency)} · `
  return { label, text: amount(usage.total.gpu_hours), note: `${price}of ${amount(usage.monitored_gpu_hours)} monitored${coverageText(usage.coverage)}` }
}

/** Where the hub did not see much of the period. */
function coverageText(coverage: number): string {
  return coverage >= 0.95 ? '' : ` · coverage ${Math.round(coverage * 100)} %`
}

function utilizationKpi(label: string, { usage, reason }: UsageSoFar): Kpi {
  if (usage === null || usage.coverage === null) return { label, text: DASH, note: usage === null ? reason : NOTHING_YET }
  const { active_hours: active, measured_hours: measured } = usage.total
  if (active === null || measured === 0) return { label, text: DASH, note: 'not measured' }
  return { label, text: utilizationText(usage.total), note: `${amount(active)} of ${amount(measured)} ${measuredText(usage.total) === '' ? 'hours in use' : 'measured hours'}` }
}

function costKpi({ usage, reason }: UsageSoFar): Kpi {
  const cost = usage?.total.cost ?? null
  return { label: 'Cost', text: shortCost(cost, usage?.currency ?? ''), note: usage === null ? reason : cost === null ? 'no price is configured' : usage.unpriced_models.length > 0 ? 'of models with a price' : 'of these GPU-hours' }
}

/** A figure of a few digits: a tile is narrow on a phone. */
function shortCost(cost: number | null, currency: string): string {
  return costText(cost, currency, cost !== null && cost < 100 ? 2 : 0)
}

function partText(part: number, whole: number): string {
  return whole > 0 ? `${percentage(part / whole)} of the GPU-hours` : 'of the GPU-hours'
}

function problemKpi({ needs_attention: open, critical }: AlertCounts): Kpi {
  const warnings = open - critical
  const parts = [critical === 0 ? '' : `${critical.toLocaleString('en')} critical`, warnings === 0 ? '' : count(warnings, 'warning')].filter((part) => part !== '')
  const tone = critical > 0 ? { tone: 'critical' as const } : warnings > 0 ? { tone: 'warning' as const } : {}
  return { label: 'Problems', text: open.toLocaleString('en'), note: parts.length === 0 ? 'nothing needs attention' : `alerts: ${parts.join(', ')}`, href: hrefOf('events'), ...tone }
}
