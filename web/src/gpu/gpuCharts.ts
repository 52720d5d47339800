/** What the page of a GPU asks about its past, and the charts that it makes of the answers. */
import type { Question } from '../api/history'
import type { QueryState } from '../charts/historyFeed'
import { bandsOf, type Band } from '../charts/bands'
import { lineOf, userLines } from '../charts/lines'
import type { Line } from '../charts/series'
import { orderColour } from '../ui/colours'
import { STATES } from '../ui/states'

const THROTTLING: readonly { metric: string; label: string; colour: string }[] = [
  { metric: 'throttled_power', label: 'power throttling', colour: 'color-mix(in oklab, var(--warning) 55%, var(--card))' },
  { metric: 'throttled_thermal', label: 'thermal throttling', colour: 'var(--warning)' },
  { metric: 'throttled_hardware', label: 'hardware throttling', colour: 'color-mix(in oklab, var(--warning) 60%, var(--ink))' },
]

/** What the charts need of the history: a metric that is not here is not asked for. */
const METRICS = [
  'utilization_percent',
  'sm_activity_percent',
  'tensor_activity_percent',
  'dram_activity_percent',
  'memory_utilization_percent',
  'memory_used_bytes',
  'power_watts',
  'power_limit_watts',
  'temperature_celsius',
  'memory_temperature_celsius',
  'clock_sm_mhz',
  'clock_memory_mhz',
  'gpus_idle',
  ...THROTTLING.map(({ metric }) => metric),
]

export function gpuQuestions(uuid: string): Record<string, Question> {
  const each = METRICS.map((metric): [string, Question] => [metric, { gpu: uuid, metric }])
  return { ...Object.fromEntries(each), users: { gpu: uuid, metric: 'memory_used_bytes', by: 'user' } }
}

export interface ChartOf {
  title: string
  unit: string
  series: Line[]
  bands?: Band[]
  stacked?: boolean
  isLoading: boolean
}

const hasValues = (lines: readonly Line[]): boolean => lines.some(({ points }) => points.some(([, low]) => low !== null))

/** `of` gives what is known of each answer. */
export function gpuCharts(of: (name: string) => QueryState): ChartOf[] {
  const past = (name: string): QueryState['past'] => of(name).past
  const isLoading = (name: string): boolean => of(name).isLoading
  const bands = THROTTLING.flatMap(({ metric, label, colour }) => lineOf(past(metric), label, { colour }).flatMap((line) => bandsOf(line)))
  const quiet = { colour: 'var(--bar)' }
  // Without a measurement of its bandwidth: for how long the memory was busy.
  const memory = lineOf(past('dram_activity_percent'), 'memory', { colour: orderColour(2) })
  const activity = [
    ...lineOf(past('sm_activity_percent'), 'SM', { colour: orderColour(0) }),
    ...lineOf(past('tensor_activity_percent'), 'tensor cores', { colour: orderColour(1) }),
    ...(hasValues(memory) ? memory : lineOf(past('memory_utilization_percent'), 'memory busy', { colour: orderColour(2) })),
  ].filter((line) => hasValues([line]))
  return [
    { title: 'Utilization', unit: 'percent', series: lineOf(past('utilization_percent'), 'Utilization', { hasSpread: true }), bands, isLoading: isLoading('utilization_percent') },
    ...(activity.length > 0 ? [{ title: 'Activity', unit: 'percent', series: activity, isLoading: isLoading('sm_activity_percent') }] : []),
    {
      title: 'Memory',
      unit: 'bytes',
      series: [...userLines(past('users')), ...lineOf(past('memory_used_bytes'), 'total used', { kind: 'line' })],
      bands: lineOf(past('gpus_idle'), 'idle', { colour: STATES.idle.colour }).flatMap((line) => bandsOf(line, 0.5)),
      stacked: true,
      isLoading: isLoading('users') || isLoading('memory_used_bytes'),
    },
    {
      title: 'Power',
      unit: 'watts',
      series: [...lineOf(past('power_watts'), 'Power', { hasSpread: true }), ...lineOf(past('power_limit_watts'), 'limit', { kind: 'limit', colour: 'var(--muted)' })],
      bands: bands.filter(({ label }) => label === THROTTLING[0]?.label),
      isLoading: isLoading('power_watts'),
    },
    {
      title: 'Temperature',
      unit: 'celsius',
      series: [...lineOf(past('temperature_celsius'), 'GPU', { hasSpread: true }), ...lineOf(past('memory_temperature_celsius'), 'memory', quiet)],
      bands: bands.filter(({ label }) => label === THROTTLING[1]?.label),
      isLoading: isLoading('temperature_celsius'),
    },
    {
      title: 'Clocks',
      unit: 'megahertz',
      series: [
        ...lineOf(past('clock_sm_mhz'), 'SM', { hasSpread: true }),
        ...lineOf(past('clock_memory_mhz'), 'memory', quiet),
      ],
      bands,
      isLoading: isLoading('clock_sm_mhz'),
    },
  ]
}
