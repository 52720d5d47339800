/** uPlot as this page uses it: its options, its colours, and what pointers do on it. */
import uPlot from 'uplot'
import { lanesOf, type Band } from './bands'
import type { Drawing } from './drawing'
import type { Paint } from './paint'
import { pan } from '../time/range'
import type { Bounds } from '../api/history'
import { lonePlaces, type Column, type Line } from './series'
import { tickTexts } from '../time/timeText'
import { axisText, BYTE_STEPS, scaleOf } from './units'

/** What a plot asks whenever it draws: everything in it may change without a new plot. */
export interface PlotSource {
  lines: readonly Line[]
  bands: readonly Band[]
  bounds: Bounds
  paint: Paint
}

export interface PlotOptions {
  drawing: Drawing
  sight: () => PlotSource
  unit: string
  isStacked: boolean
  syncKey: string
  width: number
  height: number
  /** Where the crosshair stood on the plot before this one; undefined: it had none. */
  pointedTime: number | undefined
  /** The place of the crosshair among the times; null: there is none. */
  onPoint: (place: number | null) => void
  /** Null: back to where it was before. */
  onRange: (bounds: Bounds | null) => void
}

const FONT = '11px Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif'
const LANE_PX = 5
const SHORTEST_DRAG_PX = 6

export function plotData({ times, columns }: Drawing): uPlot.AlignedData {
  return [times, ...columns] as uPlot.AlignedData
}

export function makePlot(home: HTMLElement, options: PlotOptions): uPlot {
  const { sight, unit, drawing, onPoint, onRange } = options
  const plot = new uPlot(
    {
      width: options.width,
      height: options.height,
      padding: [8, 16, 0, 0],
      legend: { show: false },
      scales: { x: { time: true, auto: false, min: sight().bounds.start, max: sight().bounds.end }, y: { range: (_, low, high) => scaleOf(unit, low, high) } },
      axes: axesOf(options),
      series: [{}, ...drawing.tracks.map((_, at) => seriesOf(at, options))],
      bands: drawing.fills.map(({ upper, lower, line, isSpread }) => ({
        series: [upper + 1, lower + 1] as [number, number],
        fill: () => sight().paint(colourOf(sight(), line), isSpread ? 0.18 : 0.62),
      })),
      cursor: cursorOf(options),
      hooks: {
        ready: [(each) => takeUp(each, options.pointedTime)],
        drawClear: [(each) => drawBands(each, sight())],
        setCursor: [(each) => onPoint(each.cursor.idx ?? null)],
        setSelect: [
          (each) => {
            const { left, width } = each.select
            each.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false)
            if (width >= SHORTEST_DRAG_PX) onRange({ start: each.posToVal(left, 'x'), end: each.posToVal(left + width, 'x') })
          },
        ],
      },
    },
    plotData(drawing),
    home,
  )
  plot.over.addEventListener('pointerdown', (event) => startPan(plot, event, sight().bounds, onRange))
  return plot
}

/** Puts new figures and bounds in; the scale of the values follows, and so does what stands under the crosshair. */
export function renew(plot: uPlot, drawing: Drawing, { start, end }: Bounds): void {
  plot.batch(() => {
    plot.setData(plotData(drawing), false)
    plot.setScale('x', { min: start, max: end })
  })
  const { left = -1, top = -1 } = plot.cursor
  // The pointer rests while times and values pass below it: uPlot looks again only when it moves.
  if (left >= 0) plot.setCursor({ left, top }, true)
}

function colourOf({ lines }: PlotSource, line: number): string {
  return lines[line]?.colour ?? 'var(--accent)'
}

function seriesOf(at: number, { drawing, sight, isStacked }: PlotOptions): uPlot.Series {
  const { line, part } = drawing.tracks[at]!
  const kind = sight().lines[line]?.kind ?? (isStacked ? 'area' : 'line')
  const colour = (): string => sight().paint(colourOf(sight(), line))
  if (part !== 'mean') return { stroke: 'transparent', width: 0, points: { show: false } }
  const isLowest = !drawing.fills.some((fill) => !fill.isSpread && fill.upper === at)
  return {
    // An area has no edge: that of somebody who is not there would be a line along the pile.
    stroke: kind === 'area' ? 'transparent' : colour,
    width: kind === 'area' ? 0 : kind === 'limit' ? 1 : 1.25,
    ...(kind === 'limit' ? { dash: [4, 4] } : {}),
    ...(kind === 'area' && isLowest ? { fill: () => sight().paint(colourOf(sight(), line), 0.62) } : {}),
    points: { show: true, size: 4, width: 0, fill: colour, filter: (plot, series) => lonePlaces((plot.data[series] ?? []) as Column) },
  }
}

function axesOf({ sight, unit }: PlotOptions): uPlot.Axis[] {
  const ink = (): string => sight().paint('var(--muted)')
  const rule = (): string => sight().paint('var(--rule)')
  const lines = { stroke: rule, width: 1 }
  const time: uPlot.Axis = {
    stroke: ink,
    font: FONT,
    size: 24,
    gap: 4,
    space: 72,
    grid: lines,
    ticks: { ...lines, size: 4 },
    values: (_, splits, __, ___, distance) => tickTexts(splits, distance),
  }
  const values: uPlot.Axis = {
    stroke: ink,
    font: FONT,
    size: 52,
    gap: 4,
    space: 32,
    grid: lines,
    ticks: { ...lines, size: 4 },
    // Where nothing is known there is no scale to tell of.
    values: (plot, splits) => splits.map((value) => (plot.data.slice(1).some((column) => column.some((each) => each != null)) ? axisText(value, unit) : '')),
    ...(unit === 'bytes' ? { incrs: [...BYTE_STEPS] } : {}),
    ...(unit === 'gpus' || unit === 'count' ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] } : {}),
  }
  return [time, values]
}

function cursorOf({ syncKey, drawing, onRange }: PlotOptions): uPlot.Cursor {
  return {
    y: false,
    points: { show: true, size: 6, ...pointsOf(drawing) },
    // Only the crosshair is shared: a drag on one chart must not be a drag on each of them.
    sync: { key: syncKey, scales: ['x', null], setSeries: false, filters: { pub: (type) => type === 'mousemove' } },
    drag: { x: true, y: false, setScale: false, dist: SHORTEST_DRAG_PX },
    bind: {
      mousedown: (_, __, handler) => (event) => (event.shiftKey || event.button !== 0 ? null : handler(event)),
      dblclick: () => () => {
        onRange(null)
        return null
      },
    },
  }
}

/** No dot on the edges of a spread. */
function pointsOf({ tracks }: Drawing): uPlot.Cursor.Points {
  return { size: (_, series) => (tracks[series - 1]?.part === 'mean' ? 6 : 0) }
}

/** A lane at the top for each kind of band, and a faint wash below it down to the axis. */
export function drawBands(plot: Pick<uPlot, 'ctx' | 'bbox' | 'valToPos'>, { bands, paint }: Pick<PlotSource, 'bands' | 'paint'>): void {
  const { ctx, bbox } = plot
  // The plot remembers the colour that it set last, and does not set it again for the texts of its axes.
  ctx.save()
  const lanes = lanesOf(bands).map(({ label }) => label)
  const lane = LANE_PX * devicePixelRatio
  for (const { start, end, label, colour } of bands) {
    const from = Math.max(bbox.left, plot.valToPos(start, 'x', true))
    const until = Math.min(bbox.left + bbox.width, plot.valToPos(end, 'x', true))
    if (until <= from) continue
    const width = Math.max(devicePixelRatio, until - from)
    ctx.fillStyle = paint(colour, 0.12)
    ctx.fillRect(from, bbox.top, width, bbox.height)
    ctx.fillStyle = paint(colour)
    ctx.fillRect(from, bbox.top + lanes.indexOf(label) * (lane + devicePixelRatio), width, lane)
  }
  ctx.restore()
}

/** With shift, or a finger: the chart goes along, and the range is told when it is let go. */
function startPan(plot: uPlot, down: PointerEvent, before: Bounds, onRange: (bounds: Bounds) => void): void {
  if (!down.shiftKey && down.pointerType !== 'touch') return
  const perPixel = (before.end - before.start) / plot.over.clientWidth
  const boundsAt = (event: PointerEvent): Bounds => pan(before, (down.clientX - event.clientX) * perPixel)
  const leave = new AbortController()
  const move = (event: PointerEvent): void => {
    const { start, end } = boundsAt(event)
    plot.setScale('x', { min: start, max: end })
  }
  const finish = (event: PointerEvent): void => {
    leave.abort()
    if (Math.abs(event.clientX - down.clientX) >= SHORTEST_DRAG_PX && event.type === 'pointerup') onRange(boundsAt(event))
    else plot.setScale('x', { min: before.start, max: before.end })
  }
  window.addEventListener('pointermove', move, { signal: leave.signal })
  window.addEventListener('pointerup', finish, { signal: leave.signal })
  window.addEventListener('pointercancel', finish, { signal: leave.signal })
}

/** A plot that is made anew, because a line came or went, has the crosshair where it was, or where the others have it. */
function takeUp(plot: uPlot, before: number | undefined): void {
  const other = sharedWith(plot).find((each) => each !== plot && each.cursor.idx != null)
  const time = before ?? other?.data[0][other.cursor.idx ?? 0]
  if (time !== undefined) setCrosshair(plot, time)
}

function sharedWith(plot: uPlot): uPlot[] {
  return uPlot.sync(plot.cursor.sync?.key ?? '').plots
}

function setCrosshair(plot: uPlot, time: number | undefined): void {
  const left = time === undefined ? -10 : plot.valToPos(time, 'x')
  plot.setCursor({ left, top: left < 0 ? -10 : plot.over.clientHeight / 2 }, true)
}

/** Moves the crosshair of this plot and of those that share it; null takes it away. */
export function pointAt(plot: uPlot, place: number | null): void {
  const time = place === null ? undefined : plot.data[0][place]
  for (const each of sharedWith(plot)) setCrosshair(each, time)
}
