/**
 * Where things stand on the board, in pixels. Heights are known beforehand, so only what is visible has to exist.
 * The measures are handed to the style sheet as custom properties: this file is their only home.
 */
import type { Host } from '../api/types'
import { keyOf, type Placed } from './arrange'

export interface Measures {
  /** A GPU's line on a card. */
  line: number
  header: number
  footer: number
  /** A sentence below a card's header. */
  note: number
  gap: number
  /** A row of the table, and a line of cells in it. */
  row: number
  cell: number
  /** The heading of a group. */
  group: number
}

const DESK: Measures = { line: 24, header: 32, footer: 26, note: 22, gap: 12, row: 28, cell: 20, group: 36 }
/** Fingers need more room than a pointer. */
const PHONE: Measures = { ...DESK, line: 32, header: 40, gap: 8, row: 40, cell: 24, group: 40 }

export const PHONE_WIDTH = 640
const CARD_WIDTH = 400

export function measuresFor(width: number): Measures {
  return width < PHONE_WIDTH ? PHONE : DESK
}

export interface Box {
  placed: Placed
  column: number
  x: number
  y: number
  width: number
  height: number
}

/** Where a group begins. */
export interface Heading {
  group: string
  y: number
  height: number
}

export interface Layout {
  boxes: readonly Box[]
  /** None where the board is not in groups. */
  headings: readonly Heading[]
  height: number
}

export function cardHeight({ entry, shown, folded }: Placed, measures: Measures): number {
  if (folded) return measures.header
  const footer = hasFooter(entry.host) ? measures.footer : 0
  return measures.header + noteCount(entry.host) * measures.note + shown.length * measures.line + footer + 2
}

/** A host that was never seen has no figures: its card is its title and what is to be done. */
export function hasFooter(host: Host): boolean {
  return host.status !== 'never'
}

/** Whether a sentence says that the host is silent, for good or from the beginning. Where the hub itself tried to read
 * a host that it has never seen, the reason why it could not says more. */
export function isToldSilent(host: Host): boolean {
  return host.status === 'down' || (host.status === 'never' && (host.via === 'push' || host.problems.length === 0))
}

/** Sentences on a card: up to two problems, and that of its silence. */
export function noteCount(host: Host): number {
  return Math.min(host.problems.length, 2) + (isToldSilent(host) ? 1 : 0)
}

/** Cards in as many columns as fit, each where there is room first: the order reads from left to right and down. */
export function layoutCards(board: readonly Placed[], width: number): Layout {
  const measures = measuresFor(width)
  const columns = Math.max(1, Math.floor((width + measures.gap) / (CARD_WIDTH + measures.gap)))
  const cardWidth = (width - (columns - 1) * measures.gap) / columns
  const ends = new Array<number>(columns).fill(0)
  const headings: Heading[] = []
  const boxes = board.map((placed): Box => {
    if (placed.group !== undefined && placed.group !== headings.at(-1)?.group) {
      const heading = { group: placed.group, y: Math.max(...ends), height: measures.group }
      headings.push(heading)
      ends.fill(heading.y + heading.height)
    }
    const y = Math.min(...ends)
    const column = ends.indexOf(y)
    const height = cardHeight(placed, measures)
    ends[column] = y + height + measures.gap
    return { placed, column, x: column * (cardWidth + measures.gap), y, width: cardWidth, height }
  })
  return { boxes, headings, height: Math.max(0, Math.max(...ends) - measures.gap) }
}

/** Cells in a line of the table; a machine with more GPUs, or cut into many instances, takes several lines. */
export const CELLS_PER_LINE = 8

export function layoutRows(board: readonly Placed[], width: number): Layout {
  const measures = measuresFor(width)
  let end = 0
  const headings: Heading[] = []
  const boxes = board.map((placed): Box => {
    if (placed.group !== undefined && placed.group !== headings.at(-1)?.group) {
      headings.push({ group: placed.group, y: end, height: measures.group })
      end += measures.group
    }
    const lines = Math.max(1, Math.ceil(placed.entry.host.gpus.length / CELLS_PER_LINE))
    const height = measures.row + (lines - 1) * measures.cell
    const box = { placed, column: 0, x: 0, y: end, width, height }
    end += height
    return box
  })
  return { boxes, headings, height: end }
}

/** The same with room at its end for hosts that are on their way, as high as those that are here: who scrolls down
 * before they come gets there. */
export function withRoomFor(awaited: number, layout: Layout): Layout {
  const here = layout.boxes.length
  return awaited === 0 || here === 0 ? layout : { ...layout, height: Math.round((layout.height * (here + awaited)) / here) }
}

/** The boxes that touch `top…bottom`, plus the one of `pinned`, which holds the focus and must not vanish. */
export function visibleBoxes(layout: Layout, top: number, bottom: number, pinned: string | null): Box[] {
  return layout.boxes.filter((box) => (box.y < bottom && box.y + box.height > top) || keyOf(box.placed) === pinned)
}

export function visibleHeadings(layout: Layout, top: number, bottom: number): Heading[] {
  return layout.headings.filter((heading) => heading.y < bottom && heading.y + heading.height > top)
}
