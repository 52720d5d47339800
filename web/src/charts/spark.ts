/** The path of a spark line. */
import type { Point } from '../api/history'

const GAP_STEPS = 1.5

/** Over the whole width from the first point to the last; `most` is the upper edge. A lone point is a short dash. */
export function sparkPath(points: readonly Point[], step: number, width: number, height: number, most?: number): { line: string; area: string } {
  const known = points.flatMap(([time, mean]) => (mean === null ? [] : [{ time, mean }]))
  const first = points[0]?.[0] ?? 0
  const span = Math.max(step, (points.at(-1)?.[0] ?? 0) - first)
  const top = Math.max(most ?? 0, ...(most === undefined ? known.map(({ mean }) => mean) : [])) || 1
  const x = (time: number): number => round(((time - first) / span) * width)
  const y = (mean: number): number => round(height - 1 - (Math.min(mean, top) / top) * (height - 2))
  const pieces = split(known, step).map((piece) => piece.map(({ time, mean }) => [x(time), y(mean)] as const))
  return { line: pieces.map(lineOf).join(''), area: pieces.map((piece) => areaOf(piece, height)).join('') }
}

function split<T extends { time: number }>(known: readonly T[], step: number): T[][] {
  const pieces: T[][] = []
  for (const each of known) {
    const last = pieces.at(-1)?.at(-1)
    if (last !== undefined && each.time - last.time <= step * GAP_STEPS) pieces.at(-1)?.push(each)
    else pieces.push([each])
  }
  return pieces
}

type Dot = readonly [x: number, y: number]

function lineOf(piece: readonly Dot[]): string {
  const [x, y] = piece[0]!
  return piece.length === 1 ? `M${x} ${y}h1` : `M${piece.map((dot) => dot.join(' ')).join('L')}`
}

function areaOf(piece: readonly Dot[], height: number): string {
  return piece.length === 1 ? '' : `M${piece[0]![0]} ${height}L${piece.map((dot) => dot.join(' ')).join('L')}L${piece.at(-1)![0]} ${height}Z`
}

function round(value: number): number {
  return Math.round(value * 10) / 10
}
