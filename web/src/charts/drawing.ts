/** What lies on the canvas, in order: which column is drawn how, and what is filled between which two. */
import { align, stack, type Aligned, type Column, type Line } from './series'

export interface Track {
  line: number
  part: 'mean' | 'low' | 'high'
}

export interface Drawing {
  times: number[]
  tracks: Track[]
  /** One a track. */
  columns: Column[]
  /** Positions of two tracks, the upper one first, and the line whose colour lies between them. */
  fills: { upper: number; lower: number; line: number; isSpread: boolean }[]
  /** What a readout tells, one a line: a share of a pile by itself, not the height at which it lies. */
  values: Aligned
}

export function draw(lines: readonly Line[], isStacked: boolean): Drawing {
  const values = align(lines)
  const drawing: Drawing = { times: values.times, tracks: [], columns: [], fills: [], values }
  const areas = lines.flatMap((line, at) => (isStacked && (line.kind ?? 'area') === 'area' ? [at] : []))
  addPile(drawing, areas, lines)
  lines.forEach((line, at) => {
    if (areas.includes(at)) return
    if (line.hasSpread) addSpread(drawing, at)
    add(drawing, { line: at, part: 'mean' }, values.means[at] ?? [])
  })
  return drawing
}

function add(drawing: Drawing, track: Track, column: Column): number {
  drawing.columns.push(column)
  return drawing.tracks.push(track) - 1
}

function addPile(drawing: Drawing, areas: readonly number[], lines: readonly Line[]): void {
  const { means } = drawing.values
  const observed = means.filter((_, at) => lines[at]?.kind === 'line')
  const pile = stack(areas.map((at) => means[at] ?? []), observed)
  // From the top down: an edge is then never painted over by the area above it.
  const tracks = new Map([...areas.keys()].reverse().map((level) => [level, add(drawing, { line: areas[level] ?? 0, part: 'mean' }, pile[level] ?? [])]))
  for (const level of areas.keys()) {
    const [upper, lower] = [tracks.get(level), tracks.get(level - 1)]
    if (upper !== undefined && lower !== undefined) drawing.fills.push({ upper, lower, line: areas[level] ?? 0, isSpread: false })
  }
}

function addSpread(drawing: Drawing, line: number): void {
  const upper = add(drawing, { line, part: 'high' }, drawing.values.highs[line] ?? [])
  const lower = add(drawing, { line, part: 'low' }, drawing.values.lows[line] ?? [])
  drawing.fills.push({ upper, lower, line, isSpread: true })
}

/** Drawings of the same shape share their axes and series: only the figures have to be put in. */
export function shapeOf(lines: readonly Line[], isStacked: boolean, unit: string): string {
  return JSON.stringify([unit, isStacked, lines.map(({ key, label, kind, colour, hasSpread }) => [key, label, kind, colour, hasSpread])])
}
