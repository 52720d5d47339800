/** What the page of a host asks about its past, and the charts that it makes of the answers. */
import type { HeatMap, Question } from '../api/history'
import type { QueryState } from '../charts/historyFeed'
import type { Host } from '../api/types'
import { heatOf } from '../charts/heat'
import { gpuLines, lineOf } from '../charts/lines'
import type { Bounds } from '../api/history'
import { constantLine, type Line } from '../charts/series'
import type { ChartOf } from '../gpu/gpuCharts'

/** What the charts of a host need of its present. */
export type HostTotals = Pick<Host, 'memory_total_bytes' | 'disk_total_bytes'>

/** `name` is a host's name or id. */
export function hostQuestions(name: string): Record<string, Question> {
  const of = (metric: string): Question => ({ host: name, metric })
  return {
    utilization: { ...of('utilization_percent'), by: 'gpu' },
    memory: { ...of('memory_used_bytes'), by: 'gpu' },
    power: of('power_watts'),
    cpu: of('host_cpu_percent'),
    ram: of('host_memory_used_bytes'),
    disk: of('host_disk_used_bytes'),
    received: of('host_network_receive_bytes_per_second'),
    sent: of('host_network_transmit_bytes_per_second'),
  }
}

/** A row a GPU: eight lines over each other cannot be read. Null until there is an answer. */
export function hostHeat(of: (name: string) => QueryState, bounds: Bounds): HeatMap | null {
  const { past } = of('utilization')
  return past === null || past.series.length === 0 ? null : heatOf(gpuLines(past), 'percent', bounds)
}

/** `of` gives what is known of each answer; `totals` is undefined for a host that is no longer in the fleet. */
export function hostCharts(of: (name: string) => QueryState, totals: HostTotals | undefined, bounds: Bounds): ChartOf[] {
  const past = (name: string): QueryState['past'] => of(name).past
  const whole = (label: string, value: number | null | undefined): Line[] => (value == null ? [] : [{ ...constantLine(label, label, value, bounds.start, bounds.end), colour: 'var(--muted)' }])
  const charts: (Omit<ChartOf, 'isLoading'> & { name: string })[] = [
    { name: 'memory', title: 'GPU memory', unit: 'bytes', series: gpuLines(past('memory')), stacked: true },
    { name: 'power', title: 'GPU power', unit: 'watts', series: lineOf(past('power'), 'GPU power', { hasSpread: true }) },
    { name: 'cpu', title: 'CPU', unit: 'percent', series: lineOf(past('cpu'), 'CPU', { hasSpread: true }) },
    { name: 'ram', title: 'RAM', unit: 'bytes', series: [...lineOf(past('ram'), 'used', { hasSpread: true }), ...whole('installed', totals?.memory_total_bytes)] },
    { name: 'disk', title: 'Disk', unit: 'bytes', series: [...lineOf(past('disk'), 'used'), ...whole('size', totals?.disk_total_bytes)] },
    { name: 'received', title: 'Network', unit: 'bytes_per_second', series: [...lineOf(past('received'), 'in', { hasSpread: true }), ...lineOf(past('sent'), 'out', { colour: 'var(--bar)' })] },
  ]
  return charts.map(({ name, ...chart }) => ({ ...chart, isLoading: of(name).isLoading }))
}
