/** Figures as people read them. Base units in, short text out; an unknown value is a dash and never a zero. */

export const DASH = '–'
const MIB = 2 ** 20
const GIB = 2 ** 30
const MINUTE = 60
const HOUR = 60 * MINUTE
const DAY = 24 * HOUR
/** No machine of a fleet is older: a longer span comes from a clock or a report that is wrong. */
const LONGEST_SPAN = 100 * 366 * DAY
/** The last moment that a date can express, in Unix seconds. */
const LAST_MOMENT = 8.64e12

export function percent(value: number | null): string {
  return value === null ? DASH : `${Math.round(value)}%`
}

export function celsius(value: number | null): string {
  return value === null ? DASH : `${Math.round(value)}°`
}

export function watts(value: number | null): string {
  if (value === null) return DASH
  if (value < 10_000) return `${Math.round(value)} W`
  return value < 1_000_000 ? `${(value / 1000).toFixed(1)} kW` : `${(value / 1_000_000).toFixed(2)} MW`
}

/** GiB without its unit: one decimal below ten, where it matters. */
export function gib(bytes: number): string {
  const value = bytes / GIB
  return value >= 0.05 && value < 9.95 ? value.toFixed(1) : value.toFixed(0)
}

export function bytes(value: number | null): string {
  if (value === null) return DASH
  if (value > 0 && value < GIB) return `${(value / MIB).toFixed(0)} MiB`
  return value >= 10_000 * GIB ? `${(value / GIB / 1024).toFixed(1)} TiB` : `${gib(value)} GiB`
}

/** Both in the unit of the whole: `7.3` and `of 15.0 TiB`. */
export function bytesPair(used: number | null, total: number | null): [used: string, of: string] {
  if (used === null || total === null) return [bytes(used), total === null ? '' : `of ${bytes(total)}`]
  const isLarge = total >= 10_000 * GIB
  return [isLarge ? (used / GIB / 1024).toFixed(1) : gib(used), `of ${bytes(total)}`]
}

/** `71/80G`; a dash for the half that is unknown. */
export function memoryPair(used: number | null, total: number | null): string {
  if (used === null && total === null) return DASH
  return `${used === null ? DASH : gib(used)}/${total === null ? DASH : gib(total)}G`
}

/** 0…1, or null where either half is unknown. */
export function fraction(used: number | null, total: number | null): number | null {
  return used === null || total === null || total <= 0 ? null : Math.min(1, Math.max(0, used / total))
}

/** Whether this can be a date at all. */
function isMoment(unix: number | null | undefined): unix is number {
  return typeof unix === 'number' && Math.abs(unix) <= LAST_MOMENT
}

/** Seconds from a moment to `now`; NaN, which reads as a dash, where the moment is none. */
export function elapsed(since: number | null | undefined, now: number): number {
  return isMoment(since) && Math.abs(now - since) <= LONGEST_SPAN ? now - since : NaN
}

/** One unit, for a narrow column: `45s`, `12m`, `3h`, `9d`. */
export function shortDuration(seconds: number): string {
  if (!(Math.abs(seconds) <= LONGEST_SPAN)) return DASH
  const s = Math.max(0, Math.floor(seconds))
  if (s < MINUTE) return `${s}s`
  if (s < HOUR) return `${Math.floor(s / MINUTE)}m`
  return s < DAY * 2 ? `${Math.floor(s / HOUR)}h` : `${Math.floor(s / DAY)}d`
}

/** Two units, for a sentence: `45s`, `12m`, `3h 12m`, `9d 4h`. */
export function duration(seconds: number): string {
  if (!(Math.abs(seconds) <= LONGEST_SPAN)) return DASH
  const s = Math.max(0, Math.floor(seconds))
  if (s < MINUTE) return `${s}s`
  if (s < HOUR) return `${Math.floor(s / MINUTE)}m`
  if (s < DAY) return two(Math.floor(s / HOUR), 'h', Math.floor((s % HOUR) / MINUTE), 'm')
  return two(Math.floor(s / DAY), 'd', Math.floor((s % DAY) / HOUR), 'h')
}

function two(large: number, largeUnit: string, small: number, smallUnit: string): string {
  return small === 0 ? `${large}${largeUnit}` : `${large}${largeUnit} ${small}${smallUnit}`
}

// Written out because the browser's own formatting costs more than the rest of a line together.
export const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec']
export const pad = (value: number): string => String(value).padStart(2, '0')

/** The viewer's wall clock: `14:02` on the same day, `Nov 3, 14:02` otherwise. */
export function clockTime(unix: number | null, now: number): string {
  if (!isMoment(unix)) return DASH
  const then = new Date(unix * 1000)
  const today = new Date(now * 1000)
  const time = `${pad(then.getHours())}:${pad(then.getMinutes())}`
  const isToday = then.getDate() === today.getDate() && Math.abs(unix - now) < DAY
  return isToday ? time : `${MONTHS[then.getMonth()]} ${then.getDate()}, ${time}`
}

/** As `clockTime`, for what may be years away: `Nov 3, 2027` in another year. */
export function moment(unix: number | null, now: number): string {
  if (!isMoment(unix)) return DASH
  const then = new Date(unix * 1000)
  const isThisYear = then.getFullYear() === new Date(now * 1000).getFullYear()
  return isThisYear ? clockTime(unix, now) : `${MONTHS[then.getMonth()]} ${then.getDate()}, ${then.getFullYear()}`
}

/** For a hover: the same moment where everybody agrees on it. */
export function utcTime(unix: number | null): string {
  return isMoment(unix) ? `${new Date(unix * 1000).toISOString().slice(0, -5).replace('T', ' ')} UTC` : DASH
}

// eslint-disable-next-line no-control-regex -- these are what it removes
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g

/** Foreign text without the characters that turn the line around or cannot be seen. */
export function plain(text: string): string {
  return text.replace(UNSEEN, '\ufffd')
}

export function count(value: number, one: string, many = `${one}s`): string {
  return `${value.toLocaleString('en')} ${value === 1 ? one : many}`
}

/** `124 GPUs, 11 MIG slices`, of `all` that are counted. */
export function gpuCount(all: number, slices: number): string {
  if (slices === 0) return count(all, 'GPU')
  return [...(all > slices ? [count(all - slices, 'GPU')] : []), count(slices, 'MIG slice')].join(', ')
}

const SUFFIX: Record<string, string> = { percent: ' %', celsius: ' °C', watts: ' W', megahertz: ' MHz' }

/** A unit that the page has never heard of is written out: better than not at all. */
export function inUnit(value: number, unit: string): string {
  if (unit === 'bytes') return bytes(value)
  if (unit === 'seconds') return duration(value)
  if (unit === 'count' || unit === 'load' || unit === 'state') return String(value)
  if (unit === 'flag') return value === 0 ? 'no' : 'yes'
  if (unit === 'joules') return energy(value)
  if (unit === 'bytes_per_second') return rate(value)
  return `${Math.round(value)}${SUFFIX[unit] ?? ` ${unit}`}`
}

function energy(joules: number): string {
  const wattHours = joules / 3600
  return wattHours < 10_000 ? `${Math.round(wattHours)} Wh` : `${Math.round(wattHours / 1000)} kWh`
}

function rate(bytesPerSecond: number): string {
  if (bytesPerSecond < 1e6) return `${Math.round(bytesPerSecond / 1e3)} kB/s`
  return bytesPerSecond < 1e9 ? `${Math.round(bytesPerSecond / 1e6)} MB/s` : `${(bytesPerSecond / 1e9).toFixed(1)} GB/s`
}

/** A short text and, where it is a dash or cut off, what a hover says. */
export interface Figure {
  text: string
  title: string | undefined
}

const lowered = new Map<string, string>()

/** Names repeat a thousandfold and every keystroke asks for all of them. */
export function lower(text: string): string {
  let found = lowered.get(text)
  if (found === undefined) {
    if (lowered.size > 50_000) lowered.clear()
    found = text.toLowerCase()
    lowered.set(text, found)
  }
  return found
}
