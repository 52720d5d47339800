/**
 * Time as the timeline draws it: evenly, in seconds that pass. A day on which the clock is changed is an hour narrower or
 * wider than its neighbours, and an hour that comes twice has two places.
 *
 * What is dragged snaps to what a clock shows: 09:00 stays 09:00 on either side of a change.
 */
import { pad } from '../ui/format'
import { dayTitle, GRAINS, type View } from './views'

export interface Day {
  start: number
  end: number
  title: string
  below: string
}

export interface Tick {
  at: number
  /** Empty where only a line is drawn. */
  text: string
}

const HALF_HOUR = 1800

/** The days of a view, by the viewer's clock. */
export function daysOf({ name, start, days }: View): Day[] {
  const first = new Date(start * 1000)
  const dayAt = (at: number): Date => new Date(first.getFullYear(), first.getMonth(), first.getDate() + at)
  return Array.from({ length: days }, (_, at) => {
    const [title, below] = dayTitle(dayAt(at), name)
    return { start: dayAt(at).getTime() / 1000, end: dayAt(at + 1).getTime() / 1000, title, below }
  })
}

/** Lines within the days, and what the clock shows there; a label is left out where the one before is too near. */
export function ticksOf(view: View): Tick[] {
  const { slot, label } = GRAINS[view.name]
  const ticks: Tick[] = []
  let last = -Infinity
  for (let at = view.start; at < view.end; at += HALF_HOUR) {
    const wall = wallOf(at)
    if (label === null || mod(wall, slot) !== 0) continue
    const hasLabel = mod(wall, label) === 0 && at - last > label / 2
    if (hasLabel) last = at
    ticks.push({ at, text: hasLabel ? clockText(at, view) : '' })
  }
  return ticks
}

function clockText(at: number, { name }: View): string {
  const hour = new Date(at * 1000).getHours()
  return name === 'day' ? `${pad(hour)}:00` : String(hour)
}

/** Where a moment lies in a view: 0 at its beginning, 1 at its end, and never beyond. */
export function partOf(at: number, { start, end }: View): number {
  return Math.min(1, Math.max(0, (at - start) / (end - start)))
}

/** What the clock on the wall shows, as if it were seconds of UTC. */
export function wallOf(at: number): number {
  return at - new Date(at * 1000).getTimezoneOffset() * 60
}

/**
 * The moment near `at` at which the clock shows a multiple of `step` seconds since midnight, or since `anchor`, a time on
 * the wall. `round` says on which side.
 */
export function snapped(at: number, step: number, round: (steps: number) => number, anchor = 0): number {
  const steps = (wallOf(at) - anchor) / step
  const moved = Math.round(at + (round(steps) - steps) * step)
  // Where the clock was changed in between it shows something else than was meant.
  const rest = mod(Math.round(wallOf(moved) - anchor), step)
  return rest === 0 ? moved : moved + (wallOf(at) - at) - (wallOf(moved) - moved)
}

function mod(value: number, by: number): number {
  return ((value % by) + by) % by
}
