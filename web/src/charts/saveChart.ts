/** A chart as a file: its points as CSV, or what is drawn with title, time range and legend as PNG. Loaded when asked for. */
import type { Bounds } from '../api/history'
import { fileName, saveCsv, saveFile } from '../ui/csv'
import { plain } from '../ui/format'
import { paintAt, type Paint } from './paint'
import type { Aligned, Line } from './series'

type Row = (string | number | null)[]

/** One row a time in sight: UTC, then the mean of each line, with the least and the most where they are drawn. Bare units. */
export function pointRows({ times, means, lows, highs }: Aligned, lines: readonly Line[], unit: string, range: Bounds): Row[] {
  const named = (line: Line, part: string): string => `${plain(line.label)}${part}${unit === '' ? '' : ` (${unit})`}`
  const head = ['time_utc', ...lines.flatMap((line) => (line.hasSpread ? [named(line, ''), named(line, ' min'), named(line, ' max')] : [named(line, '')]))]
  const rows = times.flatMap((time, at): Row[] => {
    if (time < range.start || time > range.end) return []
    const cells = lines.flatMap((line, place) => (line.hasSpread ? [means, lows, highs] : [means]).map((columns) => columns[place]?.[at] ?? null))
    return cells.every((cell) => cell === null) ? [] : [[new Date(time * 1000).toISOString().replace('.000Z', 'Z'), ...cells]]
  })
  return [head, ...rows]
}

function savePoints(title: string, values: Aligned, lines: readonly Line[], unit: string, range: Bounds): void {
  saveCsv(title, pointRows(values, lines, unit, range))
}

export interface LegendEntry {
  label: string
  colour: string
}

const [MARGIN, LINE] = [16, 22]
const DRAWING_SCALE = 2

/** `drawn` has `scale` pixels for one of the page. `home` is where it stands: font and colours are those of the page there. */
function savePicture(title: string, rangeText: string, legend: readonly LegendEntry[], drawn: HTMLCanvasElement, home: HTMLElement, scale = drawn.width / (drawn.clientWidth || drawn.width)): void {
  const picture = document.createElement('canvas')
  const context = picture.getContext('2d')
  if (context === null) return
  const paint = paintAt(home)
  const font = (weight: number, size: number): string => `${weight} ${size}px ${getComputedStyle(home).fontFamily}`
  const width = drawn.width / scale
  context.font = font(400, 12)
  const rows = legendRows(legend, width, (text) => context.measureText(text).width)
  const top = MARGIN + LINE + rows.length * LINE
  picture.width = (width + 2 * MARGIN) * scale
  picture.height = (top + drawn.height / scale + MARGIN) * scale
  context.scale(scale, scale)
  context.fillStyle = paint('var(--card)')
  context.fillRect(0, 0, picture.width, picture.height)
  context.fillStyle = paint('var(--ink)')
  context.textBaseline = 'middle'
  context.font = font(600, 14)
  context.fillText(title, MARGIN, MARGIN + 8, width * 0.6)
  context.font = font(400, 12)
  context.textAlign = 'right'
  context.fillText(rangeText, MARGIN + width, MARGIN + 8, width * 0.4)
  context.textAlign = 'left'
  rows.forEach((row, at) => {
    for (const { label, colour, left } of row) {
      const middle = MARGIN + LINE + at * LINE + 8
      context.fillStyle = paint(colour)
      context.fillRect(MARGIN + left, middle - 5, 10, 10)
      context.fillStyle = paint('var(--ink)')
      context.fillText(label, MARGIN + left + 15, middle)
    }
  })
  context.drawImage(drawn, MARGIN, top, width, drawn.height / scale)
  picture.toBlob((blob) => blob !== null && saveFile(fileName(title, 'png'), blob), 'image/png')
}

export type Draw = (context: CanvasRenderingContext2D, paint: Paint) => void

/** Of what is not on a canvas, or not all of it: `draw` draws it, in pixels of the page. */
function saveDrawing(title: string, rangeText: string, legend: readonly LegendEntry[], home: HTMLElement, width: number, height: number, draw: Draw): void {
  const canvas = document.createElement('canvas')
  canvas.width = width * DRAWING_SCALE
  canvas.height = height * DRAWING_SCALE
  const context = canvas.getContext('2d')
  if (context === null) return
  context.scale(DRAWING_SCALE, DRAWING_SCALE)
  context.font = `11px ${getComputedStyle(home).fontFamily}`
  context.textBaseline = 'middle'
  draw(context, paintAt(home))
  savePicture(title, rangeText, legend, canvas, home, DRAWING_SCALE)
}

/** The entries in lines that are not wider than the picture. */
export function legendRows(legend: readonly LegendEntry[], width: number, measure: (text: string) => number): (LegendEntry & { left: number })[][] {
  const rows: (LegendEntry & { left: number })[][] = []
  let left = Infinity
  for (const entry of legend) {
    const wide = measure(entry.label) + 30
    if (left + wide > width) {
      rows.push([])
      left = 0
    }
    rows.at(-1)?.push({ ...entry, left })
    left += wide
  }
  return rows
}

export default { saveDrawing, savePicture, savePoints }
