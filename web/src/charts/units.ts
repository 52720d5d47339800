/** How a unit is written on an axis and in a readout, and which part of its scale is drawn. */
import { inUnit } from '../ui/format'
import { bytes, DASH } from '../ui/format'

const MIB = 2 ** 20
const TIB = 2 ** 40

/** Powers of two for memory: an axis of 20, 40, 60 GiB would read 18.6, 37.3, 55.9. */
export const BYTE_STEPS: readonly number[] = Array.from({ length: 34 }, (_, power) => MIB * 2 ** power)

/** Units that have an upper end: it is always in sight. */
const WHOLE: Record<string, number> = { percent: 100, share: 1, flag: 1 }
const ROOM_ABOVE = 0.06
/** Nobody looks for the freezing point of a GPU. */
const [COOL, HOT] = [20, 80]

/** The scale for what lies between `low` and `high`; both null where nothing is known. */
export function scaleOf(unit: string, low: number | null, high: number | null): [number, number] {
  if (unit === 'celsius') return [Math.min(low ?? COOL, COOL), Math.max((high ?? 0) + 4, HOT)]
  const least = Math.min(low ?? 0, 0)
  const most = Math.max(high ?? 0, WHOLE[unit] ?? 0)
  if (most === WHOLE[unit]) return [least, most]
  return [least, most <= least ? least + 1 : most + (most - least) * ROOM_ABOVE]
}

const SHORT: Record<string, (value: number) => string> = {
  percent: (value) => `${round(value)}%`,
  share: (value) => `${round(value * 100)}%`,
  celsius: (value) => `${round(value)}°`,
  watts: (value) => (value >= 10_000 ? `${round(value / 1000)} kW` : `${round(value)} W`),
  megahertz: (value) => (value >= 1000 ? `${Number((value / 1000).toFixed(2))} GHz` : `${round(value)} MHz`),
  bytes: (value) => (value >= TIB ? `${round(value / TIB)}T` : bytes(value).replace(' GiB', 'G').replace(' MiB', 'M')),
  bytes_per_second: (value) => inUnit(value, 'bytes_per_second').replace(/ (.)B\/s/, '$1/s'),
  gpus: (value) => round(value),
  load: (value) => round(value),
}

function round(value: number): string {
  return String(Number(value.toFixed(Math.abs(value) < 10 && !Number.isInteger(value) ? 1 : 0)))
}

/** For an axis: as short as it goes. */
export function axisText(value: number, unit: string): string {
  return (SHORT[unit] ?? ((each) => inUnit(each, unit)))(value)
}

/** For a readout: one decimal where it says something, and a dash for what nobody knows. */
export function readoutText(value: number | null, unit: string): string {
  if (value === null) return DASH
  if (unit === 'gpus' || unit === 'load') return value.toFixed(1)
  if (unit === 'watts' && value >= 10_000) return `${(value / 1000).toFixed(1)} kW`
  if (unit === 'share') return `${Math.round(value * 100)} %`
  return inUnit(value, unit)
}

/** Characters that a readout needs at most, so that its neighbours never move. */
export const READOUT_WIDTH: Record<string, number> = { percent: 5, share: 5, celsius: 6, watts: 8, megahertz: 9, bytes: 9, gpus: 6, load: 6, bytes_per_second: 9 }
