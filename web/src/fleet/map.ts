/**
 * The fleet as a map: a cell for each GPU, the cells of a host side by side, the hosts as they stand on the board. What is
 * drawn is one number for each cell, and only hosts that changed are read again: the map of 10,000 hosts is one array.
 */
import type { Gpu, Host } from '../api/types'
import type { Placed } from './arrange'
import { CELLS_PER_LINE, type Heading } from './layout'
import { AVAILABILITIES, gpuLevel, LEVELS, statusLevel } from '../ui/states'

/** A host. A host without GPUs has one cell. */
export interface Block {
  placed: Placed
  /** The number of its first cell. */
  first: number
  x: number
  /** Of its cells, below its name. */
  y: number
  /** Of its cells and its name. */
  width: number
}

/** Blocks side by side. */
interface Line {
  y: number
  height: number
  /** Their places among all blocks. */
  from: number
  until: number
}

export interface MapLayout {
  /** Pixels from one cell to the next. */
  pitch: number
  /** Pixels above the cells of each host for its name; 0: there is no room for names. */
  nameHeight: number
  blocks: readonly Block[]
  lines: readonly Line[]
  headings: readonly Heading[]
  cells: number
  height: number
}

/** One of the cells of a block. */
export interface MapCell {
  block: Block
  at: number
}

/** The largest with which the fleet fits into the window is taken, headings of groups aside; or else the smallest. */
const PITCHES = [28, 22, 18, 14, 11, 8, 6, 5] as const
/** Hosts have names where they fit into the window with them. */
const NAMED_PITCHES = [28, 22, 18, 14, 11] as const
const NAME_HEIGHT = 16
/** Of a host with few GPUs. */
const LEAST_NAME_WIDTH = 56
const HEADING = 34

/** `height` is that of the window below the map's beginning. */
export function layoutMap(board: readonly Placed[], width: number, height: number): MapLayout {
  const isGrouped = board[0]?.group !== undefined
  const sizes = [...NAMED_PITCHES.map((pitch) => [pitch, NAME_HEIGHT] as const), ...PITCHES.map((pitch) => [pitch, 0] as const)]
  for (const [pitch, nameHeight] of sizes) {
    const layout = layoutAt(board, width, pitch, nameHeight, false)
    if (layout.height <= height) return isGrouped ? layoutAt(board, width, pitch, nameHeight, true) : layout
  }
  return layoutAt(board, width, PITCHES[PITCHES.length - 1]!, 0, isGrouped)
}

function layoutAt(board: readonly Placed[], width: number, pitch: number, nameHeight: number, isGrouped: boolean): MapLayout {
  const gap = Math.max(3, Math.round(pitch / 3))
  const blocks: Block[] = []
  const lines: Line[] = []
  const headings: Heading[] = []
  let [x, y, cells] = [0, 0, 0]
  let line: Line | undefined
  for (const placed of board) {
    const count = cellCount(placed)
    const blockWidth = Math.max(Math.min(count, CELLS_PER_LINE) * pitch, nameHeight === 0 ? 0 : LEAST_NAME_WIDTH)
    const heading = isGrouped && placed.group !== headings.at(-1)?.group ? placed.group : undefined
    if (line === undefined || heading !== undefined || x + blockWidth > width) {
      if (line !== undefined) y = line.y + line.height + gap
      if (heading !== undefined) {
        headings.push({ group: heading, y, height: HEADING, row: 0 })
        y += HEADING
      }
      x = 0
      lines.push((line = { y, height: 0, from: blocks.length, until: blocks.length }))
    }
    blocks.push({ placed, first: cells, x, y: y + nameHeight, width: blockWidth })
    line.until += 1
    line.height = Math.max(line.height, nameHeight + Math.ceil(count / CELLS_PER_LINE) * pitch)
    x += blockWidth + gap
    cells += count
  }
  return { pitch, nameHeight, blocks, lines, headings, cells, height: line === undefined ? 0 : line.y + line.height }
}

export function cellCount({ shown }: Placed): number {
  return Math.max(1, shown.length)
}

/** The GPU of a cell: its position in the host's `gpus`, or -1 for the host itself. */
export function slotOf({ block, at }: MapCell): number {
  return block.placed.shown[at] ?? -1
}

/** The corner of a cell. */
export function cornerOf({ block, at }: MapCell, pitch: number): { x: number; y: number } {
  return { x: block.x + (at % CELLS_PER_LINE) * pitch, y: block.y + Math.floor(at / CELLS_PER_LINE) * pitch }
}

/** The first line that ends below `y`. */
function lineAt({ lines }: MapLayout, y: number): number {
  let [low, high] = [0, lines.length]
  while (low < high) {
    const middle = (low + high) >> 1
    if (lines[middle]!.y + lines[middle]!.height <= y) low = middle + 1
    else high = middle
  }
  return low
}

/** The blocks that touch `top…bottom`: the place of the first, and of the one after the last. */
export function blocksBetween(layout: MapLayout, top: number, bottom: number): [from: number, until: number] {
  const { lines } = layout
  const first = lineAt(layout, top)
  let last = first
  while (last < lines.length && lines[last]!.y < bottom) last += 1
  return first === last ? [0, 0] : [lines[first]!.from, lines[last - 1]!.until]
}

/** The cell at a point; null between cells. */
export function cellAt(layout: MapLayout, x: number, y: number): MapCell | null {
  const line = layout.lines[lineAt(layout, y)]
  if (line === undefined || y < line.y || x < 0) return null
  const block = nearest(layout, line, x)
  const [column, row] = [Math.floor((x - block.x) / layout.pitch), Math.floor((y - block.y) / layout.pitch)]
  const at = row * CELLS_PER_LINE + column
  return row >= 0 && column >= 0 && column < CELLS_PER_LINE && at < cellCount(block.placed) ? { block, at } : null
}

/** The last block of a line that begins at `x` or before. */
function nearest({ blocks }: MapLayout, { from, until }: Line, x: number): Block {
  let place = from
  while (place + 1 < until && blocks[place + 1]!.x <= x) place += 1
  return blocks[place]!
}

/** Where a key leads, or the same cell at an edge; null for keys that are none of ours. Without a cell arrows lead to the first. */
export function stepOnMap(layout: MapLayout, cell: MapCell | null, key: string): MapCell | null {
  const { blocks } = layout
  if (!/^(Arrow(Left|Right|Up|Down)|Home|End)$/.test(key) || blocks.length === 0) return null
  if (key === 'End') return lastOf(blocks.at(-1)!)
  if (cell === null || key === 'Home') return { block: blocks[0]!, at: 0 }
  if (key === 'ArrowLeft' || key === 'ArrowRight') return beside(blocks, cell, key === 'ArrowLeft' ? -1 : 1)
  return above(layout, cell, key === 'ArrowUp' ? -1 : 1)
}

const lastOf = (block: Block): MapCell => ({ block, at: cellCount(block.placed) - 1 })

function beside(blocks: readonly Block[], { block, at }: MapCell, step: -1 | 1): MapCell {
  if (at + step >= 0 && at + step < cellCount(block.placed)) return { block, at: at + step }
  const next = blocks[blocks.indexOf(block) + step]
  if (next === undefined) return { block, at }
  return step === 1 ? { block: next, at: 0 } : lastOf(next)
}

/** In the line of cells above or below, as near to being straight above as there is one. */
function above(layout: MapLayout, cell: MapCell, step: -1 | 1): MapCell {
  const { block, at } = cell
  const inside = at + step * CELLS_PER_LINE
  if (inside >= 0 && inside < cellCount(block.placed)) return { block, at: inside }
  const line = layout.lines[lineAt(layout, block.y) + step]
  if (line === undefined) return cell
  const { x } = cornerOf(cell, layout.pitch)
  const next = nearest(layout, line, x)
  const rows = step === 1 ? 0 : Math.ceil(cellCount(next.placed) / CELLS_PER_LINE) - 1
  const column = Math.max(0, Math.floor((x - next.x) / layout.pitch))
  return { block: next, at: Math.min(rows * CELLS_PER_LINE + Math.min(column, CELLS_PER_LINE - 1), cellCount(next.placed) - 1) }
}

/** The same cell on another layout; null where it is no longer there. */
export function findAgain({ blocks }: MapLayout, cell: MapCell): MapCell | null {
  const { entry, group } = cell.block.placed
  const block = blocks.find(({ placed }) => placed.entry === entry && placed.group === group)
  const at = block?.placed.shown.indexOf(slotOf(cell)) ?? -1
  return block === undefined ? null : { block, at: Math.max(0, at) }
}

/** Numbers of looks: a state and a level each. */
export const LOOKS = AVAILABILITIES.length * LEVELS.length

export function lookOf(code: number): { state: (typeof AVAILABILITIES)[number]; level: (typeof LEVELS)[number] } {
  return { state: AVAILABILITIES[Math.floor(code / LEVELS.length)]!, level: LEVELS[code % LEVELS.length]! }
}

const STATE_CODES = new Map(AVAILABILITIES.map((state, at) => [state, at * LEVELS.length]))

function codeOf(host: Host, gpu: Gpu | undefined): number {
  const level = host.status === 'down' ? statusLevel(host.status) : gpuLevel(gpu?.health ?? 'unknown')
  return STATE_CODES.get(gpu?.availability ?? 'unknown')! + LEVELS.indexOf(level)
}

/** What is drawn in each cell, in the order of cells. */
export class MapCells {
  readonly codes: Uint8Array
  /** Of each block; no host has had as many. */
  private readonly versions: Float64Array

  constructor(private readonly layout: MapLayout) {
    this.codes = new Uint8Array(layout.cells)
    this.versions = new Float64Array(layout.blocks.length).fill(-1)
    this.refresh()
  }

  /** Reads the hosts that changed, and returns those that look different. */
  refresh(): Block[] {
    return this.layout.blocks.filter((block, place) => {
      const version = block.placed.entry.version.untracked
      if (this.versions[place] === version) return false
      this.versions[place] = version
      return this.read(block)
    })
  }

  private read({ placed, first }: Block): boolean {
    const host = placed.entry.untracked
    let isOther = false
    for (let at = 0; at < cellCount(placed); at++) {
      const code = codeOf(host, host.gpus[placed.shown[at] ?? -1])
      if (this.codes[first + at] === code) continue
      this.codes[first + at] = code
      isOther = true
    }
    return isOther
  }
}
