/** What the page of a GPU asks about its past, and the charts that it makes of the answers. */
import type { Question, Told } from '../api/history'
import { bandsOf, type Band } from '../charts/bands'
import { lineOf, peopleLines } from '../charts/lines'
import type { Line } from '../charts/series'

/** What slows a GPU down, in words and colours. */
const SLOWED: readonly { metric: string; label: string; colour: string }[] = [
  { metric: 'throttled_power', label: 'slowed by its power limit', colour: 'var(--held)' },
  { metric: 'throttled_thermal', label: 'slowed by heat', colour: 'var(--busy)' },
  { metric: 'throttled_hardware', label: 'slowed by the hardware', colour: 'var(--booked)' },
]

const METRICS = ['utilization_percent', 'memory_used_bytes', 'power_watts', 'power_limit_watts', 'temperature_celsius', 'memory_temperature_celsius', 'clock_sm_mhz', 'clock_memory_mhz', 'gpus_held', ...SLOWED.map(({ metric }) => metric)]

export function gpuQuestions(uuid: string): Record<string, Question> {
  const each = METRICS.map((metric): [string, Question] => [metric, { gpu: uuid, metric }])
  return { ...Object.fromEntries(each), people: { gpu: uuid, metric: 'memory_used_bytes', by: 'user' } }
}

export interface ChartOf {
  title: string
  unit: string
  series: Line[]
  bands?: Band[]
  stacked?: boolean
  isLoading: boolean
}

/** `of` gives what is known of each answer. */
export function gpuCharts(of: (name: string) => Told): ChartOf[] {
  const past = (name: string): Told['past'] => of(name).past
  const isLoading = (name: string): boolean => of(name).isLoading
  const bands = SLOWED.flatMap(({ metric, label, colour }) => lineOf(past(metric), label, { colour }).flatMap((line) => bandsOf(line)))
  const quiet = { colour: 'var(--bar)' }
  return [
    { title: 'Utilization', unit: 'percent', series: lineOf(past('utilization_percent'), 'Utilization', { hasSpread: true }), bands, isLoading: isLoading('utilization_percent') },
    {
      title: 'Memory',
      unit: 'bytes',
      series: [...peopleLines(past('people')), ...lineOf(past('memory_used_bytes'), 'used in all', { kind: 'line' })],
      bands: lineOf(past('gpus_held'), 'held without work', { colour: 'var(--held)' }).flatMap((line) => bandsOf(line, 0.5)),
      stacked: true,
      isLoading: isLoading('people') || isLoading('memory_used_bytes'),
    },
    {
      title: 'Power',
      unit: 'watts',
      series: [...lineOf(past('power_watts'), 'Power', { hasSpread: true }), ...lineOf(past('power_limit_watts'), 'limit', { kind: 'limit', colour: 'var(--busy)' })],
      bands: bands.filter(({ label }) => label === SLOWED[0]?.label),
      isLoading: isLoading('power_watts'),
    },
    {
      title: 'Temperature',
      unit: 'celsius',
      series: [...lineOf(past('temperature_celsius'), 'GPU', { hasSpread: true }), ...lineOf(past('memory_temperature_celsius'), 'memory', quiet)],
      bands: bands.filter(({ label }) => label === SLOWED[1]?.label),
      isLoading: isLoading('temperature_celsius'),
    },
    {
      title: 'Clocks',
      unit: 'megahertz',
      series: [...lineOf(past('clock_sm_mhz'), 'SM', { hasSpread: true }), ...lineOf(past('clock_memory_mhz'), 'memory', quiet)],
      bands,
      isLoading: isLoading('clock_sm_mhz'),
    },
  ]
}
