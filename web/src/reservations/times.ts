/**
 * Times of reservations as people type them, in the viewer's zone: `2026-11-16T09:00` in a field, `1d 6h` as a length.
 *
 * A length is exact: 24 h are 24 hours, also in a night in which the clock is changed. Of a time that a clock shows twice
 * the first is meant; one that it skips does not exist.
 */
import { DASH, MONTHS, pad } from '../ui/format'

const MINUTE = 60
const HOUR = 60 * MINUTE
const DAY = 24 * HOUR
const UNITS: Record<string, number> = { m: MINUTE, h: HOUR, d: DAY, w: 7 * DAY }
const LENGTH = /^(?:\d{1,6}(?:\.\d{1,3})?[mhdw])+$/
const FIELD = /^(\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2})(?::(\d{2}))?/

/** A moment as a field of a form has it. The field counts in minutes: seconds are cut off. */
export function fieldOf(unix: number): string {
  const at = new Date(unix * 1000)
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}T${pad(at.getHours())}:${pad(at.getMinutes())}`
}

/** Unix seconds of what a field has; null where that is no time, also one that the clock skips that night. */
export function momentOf(field: string): number | null {
  const parts = FIELD.exec(field)?.slice(1).map((part) => Number(part ?? 0))
  if (parts === undefined) return null
  const [year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0] = parts
  const at = new Date(year, month - 1, day, hour, minute, second || 0)
  const isThat = at.getMonth() === month - 1 && at.getDate() === day && at.getHours() === hour && at.getMinutes() === minute
  return isThat ? at.getTime() / 1000 : null
}

/** Seconds of `4h`, `90m`, `1d 6h`; null where it is no length. */
export function lengthOf(text: string): number | null {
  const tight = text.replace(/\s+/g, '').toLowerCase()
  if (!LENGTH.test(tight)) return null
  let seconds = 0
  for (const [, count, unit] of tight.matchAll(/([\d.]+)([mhdw])/g)) seconds += Number(count) * (UNITS[unit ?? ''] ?? 0)
  return seconds > 0 ? Math.round(seconds) : null
}

/** A length as it is typed: `1d 6h 30m`. Seconds are cut off. */
export function lengthText(seconds: number): string {
  const minutes = Math.max(0, Math.floor(seconds / MINUTE))
  const parts: [number, string][] = [[Math.floor(minutes / 1440), 'd'], [Math.floor(minutes / 60) % 24, 'h'], [minutes % 60, 'm']]
  return parts.filter(([count]) => count > 0).map(([count, unit]) => `${count}${unit}`).join(' ') || '0m'
}

/** `14:00` today, `Nov 16, 14:00` on another day, with the year in another one, with the offset where the clock shows it twice. */
export function timeText(unix: number, now: number): string {
  const at = new Date(unix * 1000)
  if (Number.isNaN(at.getTime())) return DASH
  const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}${isTwofold(unix) ? ` (${offsetText(unix)})` : ''}`
  const today = new Date(now * 1000)
  if (at.toDateString() === today.toDateString()) return clock
  const year = at.getFullYear() === today.getFullYear() ? '' : ` ${at.getFullYear()}`
  return `${MONTHS[at.getMonth()]} ${at.getDate()}${year}, ${clock}`
}

/** Both ends: `14:00 – 18:00`, `Nov 16, 22:00 – Nov 17, 02:00`. */
export function spanText(start: number, end: number, now: number): string {
  const isSameDay = new Date(start * 1000).toDateString() === new Date(end * 1000).toDateString()
  return `${timeText(start, now)} – ${timeText(end, isSameDay ? start : now)}`
}

/** Whether the clock shows this time once more, an hour later or earlier. */
function isTwofold(unix: number): boolean {
  const offset = (at: number): number => new Date(at * 1000).getTimezoneOffset()
  const clock = (at: number): number => at - offset(at) * MINUTE
  return [unix - 2 * HOUR, unix + 2 * HOUR].some((near) => {
    const other = unix - (offset(unix) - offset(near)) * MINUTE
    return offset(near) !== offset(unix) && other !== unix && clock(other) === clock(unix)
  })
}

/** The offsets of a time, both where the clock is changed in it: `UTC+1`, then `UTC+2`. */
export function offsetsText(start: number, end: number): string {
  const [first, last] = [offsetText(start), offsetText(end - 1)]
  return first === last ? first : `${first}, then ${last}`
}

/** `UTC+1`, `UTC−3:30` */
export function offsetText(unix: number): string {
  const minutes = -new Date(unix * 1000).getTimezoneOffset()
  const rest = Math.abs(minutes) % 60
  return `UTC${minutes < 0 ? '−' : '+'}${Math.floor(Math.abs(minutes) / 60)}${rest === 0 ? '' : `:${pad(rest)}`}`
}
