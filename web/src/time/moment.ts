/** A past moment as it is typed: `gpu05:3 yesterday 03:12`, `nov 15 3:12`, `2026-11-15 03:12`, `monday 14:00`, `2h ago`. */
import { MONTHS } from '../ui/format'

const DAYS = ['sunday', 'monday', 'tuesday', 'wednesday', 'thursday', 'friday', 'saturday']
const SECONDS: Readonly<Record<string, number>> = { m: 60, h: 3600, d: 86_400 }
const AGO = /(?:^|\s)(?:-|(?=\d+\s*[mhd]\s+ago))(\d+(?:\.\d+)?)\s*([mhd])(?:\s+ago)?(?=\s|$)/
const TIME = /(?:^|\s)(?:at\s+)?(\d{1,2}):(\d{2})(?=\s|$)/
const DATE = new RegExp(`(?:^|\\s)(?:on\\s+)?(?:(today|yesterday|${DAYS.map((day) => `${day.slice(0, 3)}(?:${day.slice(3)})?`).join('|')})|(\\d{4})-(\\d{2})-(\\d{2})|(${MONTHS.join('|').toLowerCase()})[a-z]*\\s+(\\d{1,2}))(?=\\s|$)`)

export interface TypedMoment {
  /** Unix seconds. */
  at: number
  /** The text without it. */
  rest: string
}

/** Null where the text names no moment, or one that is still to come. A time alone is its last one; a day alone is none. */
export function readMoment(text: string, now: number): TypedMoment | null {
  const words = text.trim().toLowerCase()
  const ago = AGO.exec(words)
  if (ago !== null) return { at: Math.floor(now - Number(ago[1]) * SECONDS[ago[2]!]!), rest: without(words, ago[0]) }
  const time = TIME.exec(words)
  if (time === null || Number(time[1]) > 23 || Number(time[2]) > 59) return null
  const left = without(words, time[0])
  const date = DATE.exec(left)
  const at = new Date(now * 1000)
  if (date !== null) setDay(at, date)
  at.setHours(Number(time[1]), Number(time[2]), 0, 0)
  const isWeekday = date?.[1] !== undefined && !['today', 'yesterday'].includes(date[1])
  // Of a time alone, of a weekday, and of a day without its year, the last one is meant.
  if (at.getTime() / 1000 > now) {
    if (date === null) at.setDate(at.getDate() - 1)
    else if (isWeekday) at.setDate(at.getDate() - 7)
    else if (date[5] !== undefined) at.setFullYear(at.getFullYear() - 1)
  }
  const unix = at.getTime() / 1000
  return unix > now || Number.isNaN(unix) ? null : { at: unix, rest: date === null ? left : without(left, date[0]) }
}

function setDay(at: Date, [, word, year, month, day, name, number]: RegExpExecArray): void {
  if (word === 'yesterday') at.setDate(at.getDate() - 1)
  else if (word !== undefined && word !== 'today') at.setDate(at.getDate() - ((at.getDay() - DAYS.findIndex((one) => one.startsWith(word.slice(0, 3))) + 7) % 7))
  else if (year !== undefined) at.setFullYear(Number(year), Number(month) - 1, Number(day))
  else if (name !== undefined) at.setMonth(MONTHS.findIndex((one) => one.toLowerCase() === name), Number(number))
}

function without(text: string, part: string): string {
  return text.replace(part, ' ').replace(/\s+/g, ' ').trim()
}
