/** Times on an axis and in a readout, in the viewer's zone. */
import { MONTHS, pad } from '../ui/format'

const DAY = 86_400
const MONTH = 28 * DAY

const dayText = (date: Date): string => `${MONTHS[date.getMonth()]} ${date.getDate()}`
const timeText = (date: Date): string => `${pad(date.getHours())}:${pad(date.getMinutes())}`
const isMidnight = (date: Date): boolean => date.getHours() === 0 && date.getMinutes() === 0 && date.getSeconds() === 0

/** The texts of an axis' ticks that lie `distance` seconds apart. A day's name stands where the day begins. */
export function tickTexts(ticks: readonly number[], distance: number): string[] {
  return ticks.map((unix) => {
    const date = new Date(unix * 1000)
    if (distance >= MONTH) return date.getMonth() === 0 ? String(date.getFullYear()) : MONTHS[date.getMonth()] ?? ''
    if (distance >= DAY || isMidnight(date)) return dayText(date)
    return distance < 60 ? `${timeText(date)}:${pad(date.getSeconds())}` : timeText(date)
  })
}

/** The step that begins at `unix`: `Nov 15, 14:00–14:15`, `Nov 15`, `Nov 9 – Nov 15`. */
export function stepText(unix: number, step: number): string {
  const from = new Date(unix * 1000)
  if (step < 60) return `${dayText(from)}, ${timeText(from)}:${pad(from.getSeconds())}`
  const last = new Date((unix + step) * 1000)
  if (step < DAY) return `${dayText(from)}, ${timeText(from)}–${timeText(last)}`
  const lastDay = dayText(new Date((unix + step) * 1000 - 1))
  return step <= DAY ? dayText(from) : `${dayText(from)} – ${lastDay}`
}

/** Both ends, for a heading: `Nov 14, 15:00 – Nov 15, 15:00`. */
export function rangeText(start: number, end: number): string {
  const [from, to] = [new Date(start * 1000), new Date(end * 1000)]
  const isSameDay = dayText(from) === dayText(to) && from.getFullYear() === to.getFullYear()
  if (isSameDay) return `${dayText(from)}, ${timeText(from)}–${timeText(to)}`
  const year = from.getFullYear() === to.getFullYear() ? '' : `, ${from.getFullYear()}`
  return end - start > 60 * DAY ? `${dayText(from)}${year} – ${dayText(to)}` : `${dayText(from)}, ${timeText(from)} – ${dayText(to)}, ${timeText(to)}`
}
