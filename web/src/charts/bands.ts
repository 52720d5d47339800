/** Times during which something was so: a GPU was slowed down, or in a state. */
import type { Line } from './series'

/** Colour by its state's name in app.css; the label says the same in words. */
export interface Band {
  start: number
  end: number
  label: string
  colour: string
}

/** Where a flag was up, or a state was so, for more than `least` of its step. Neighbouring steps are one band; a gap is none. */
export function bandsOf({ points, step, label, colour = 'var(--warning)' }: Pick<Line, 'points' | 'step' | 'label' | 'colour'>, least = 0): Band[] {
  const bands: Band[] = []
  for (const [time, share] of points) {
    if (share === null || share <= least) continue
    const last = bands.at(-1)
    if (last !== undefined && time <= last.end) last.end = time + step
    else bands.push({ start: time, end: time + step, label, colour })
  }
  return bands
}

/** The labels of all bands in their order: each has a lane of its own. */
export function lanesOf(bands: readonly Band[]): Band[] {
  const lanes = new Map<string, Band>()
  for (const band of bands) if (!lanes.has(band.label)) lanes.set(band.label, band)
  return [...lanes.values()]
}

export function bandsAt(bands: readonly Band[], time: number): Band[] {
  return bands.filter(({ start, end }) => start <= time && time < end)
}
