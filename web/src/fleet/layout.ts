/**
 * Where things stand on the board, in pixels. Heights are known beforehand, so only what is visible has to exist.
 * The measures are handed to the style sheet as custom properties: this file is their only home.
 */
import type { Host } from '../api/types'
import { keyOf, type Placed } from './arrange'
import { hasNoReportNote } from '../host/hostText'

export interface Measures {
  /** A GPU's line on a card. */
  line: number
  header: number
  /** The names of the columns of a card. */
  head: number
  footer: number
  /** A sentence below a card's header. */
  note: number
  gap: number
  /** The least width of a card: with more room there are more columns of them. */
  cardWidth: number
  /** A row of the table, and a line of cells in it. */
  row: number
  cell: number
  /** The heading of a group. */
  group: number
}

/** How close things stand. `compact` shows more at once. */
export type Density = 'comfortable' | 'compact'

const COMFORTABLE: Measures = { line: 26, header: 36, head: 22, footer: 28, note: 26, gap: 12, cardWidth: 530, row: 30, cell: 24, group: 36 }
const COMPACT: Measures = { ...COMFORTABLE, line: 24, header: 32, head: 18, footer: 24, note: 24, gap: 8, cardWidth: 420, row: 26 }
/** Fingers need more room than a pointer. */
const PHONE: Measures = { ...COMFORTABLE, line: 32, header: 40, gap: 8, row: 40, group: 40 }

export const PHONE_WIDTH = 640

export function measuresFor(width: number, density: Density = 'comfortable'): Measures {
  if (width < PHONE_WIDTH) return PHONE
  return density === 'compact' ? COMPACT : COMFORTABLE
}

export interface Box {
  placed: Placed
  column: number
  x: number
  y: number
  width: number
  height: number
  /** Its place among all rows of the table, whose head is the first. 0 on cards. */
  row: number
}

/** Where a group begins. */
export interface Heading {
  group: string
  y: number
  height: number
  row: number
}

export interface Layout {
  readonly boxes: readonly Box[]
  /** None where the board is not in groups. */
  readonly headings: readonly Heading[]
  readonly height: number
  readonly measures: Measures
  /** The boxes that touch `top…bottom`, in the order of the board. */
  between(top: number, bottom: number): Box[]
  /** By the key of its place. */
  find(key: string): Box | undefined
}

/** `header` has the borders of the card in it. */
export function cardHeight({ entry, shown, collapsed }: Placed, measures: Measures): number {
  if (collapsed) return measures.header
  const footer = hasFooter(entry.untracked) ? measures.footer : 0
  const head = shown.length > 0 ? measures.head : 0
  return measures.header + noteCount(entry.untracked) * measures.note + head + shown.length * measures.line + footer
}

/** A host that was never seen has no figures: its card is its title and what is to be done. */
export function hasFooter(host: Host): boolean {
  return host.status !== 'never_seen'
}

/** Sentences on a card: up to two problems, that of its silence, and that of its maintenance. */
export function noteCount(host: Host): number {
  return Math.min(host.problems.length, 2) + (hasNoReportNote(host) ? 1 : 0) + (host.maintenance ? 1 : 0)
}

/** Cards in as many columns as fit, each where there is room first: the order reads from left to right and down. */
export function layoutCards(board: readonly Placed[], width: number, density: Density = 'comfortable'): Layout {
  const measures = measuresFor(width, density)
  const columns = Math.max(1, Math.floor((width + measures.gap) / (measures.cardWidth + measures.gap)))
  const cardWidth = (width - (columns - 1) * measures.gap) / columns
  const ends = new Array<number>(columns).fill(0)
  const headings: Heading[] = []
  const boxes = board.map((placed): Box => {
    if (placed.group !== undefined && placed.group !== headings.at(-1)?.group) {
      const heading = { group: placed.group, y: Math.max(...ends), height: measures.group, row: 0 }
      headings.push(heading)
      ends.fill(heading.y + heading.height)
    }
    const y = Math.min(...ends)
    const column = ends.indexOf(y)
    const height = cardHeight(placed, measures)
    ends[column] = y + height + measures.gap
    return { placed, column, x: column * (cardWidth + measures.gap), y, width: cardWidth, height, row: 0 }
  })
  return {
    boxes,
    headings,
    height: Math.max(0, Math.max(...ends) - measures.gap),
    measures,
    between: (top, bottom) => boxes.filter(({ y, height }) => y < bottom && y + height > top),
    find: (key) => boxes.find(({ placed }) => keyOf(placed) === key),
  }
}

/** Cells in a line of the table; a machine with more GPUs, or cut into many instances, takes several lines. */
export const CELLS_PER_LINE = 8

/** A line after the other. Tens of thousands of lines are arranged every two seconds: boxes exist only of those asked for. */
class RowLayout implements Layout {
  readonly headings: Heading[] = []
  readonly height: number
  /** Where each line begins, and the last one ends; and its place among all rows. */
  private readonly tops: Float64Array
  private readonly rows: Uint32Array
  private all: readonly Box[] | null = null

  constructor(
    private readonly board: readonly Placed[],
    private readonly width: number,
    readonly measures: Measures,
  ) {
    this.tops = new Float64Array(board.length)
    this.rows = new Uint32Array(board.length)
    let [end, row] = [0, 1]
    let group: string | undefined
    for (let at = 0; at < board.length; at++) {
      const placed = board[at]!
      if (placed.group !== group) {
        group = placed.group
        if (group !== undefined) {
          this.headings.push({ group, y: end, height: measures.group, row: ++row })
          end += measures.group
        }
      }
      this.tops[at] = end
      this.rows[at] = ++row
      end += rowHeight(placed, measures)
    }
    this.height = end
  }

  get boxes(): readonly Box[] {
    return (this.all ??= this.board.map((_, at) => this.box(at)))
  }

  between(top: number, bottom: number): Box[] {
    const found: Box[] = []
    for (let at = Math.max(0, this.firstBelow(top) - 1); at < this.board.length && this.tops[at]! < bottom; at++) {
      const box = this.box(at)
      if (box.y + box.height > top) found.push(box)
    }
    return found
  }

  find(key: string): Box | undefined {
    const at = this.board.findIndex((placed) => keyOf(placed) === key)
    return at < 0 ? undefined : this.box(at)
  }

  private box(at: number): Box {
    const placed = this.board[at]!
    return { placed, column: 0, x: 0, y: this.tops[at]!, width: this.width, height: rowHeight(placed, this.measures), row: this.rows[at]! }
  }

  /** The first line that begins below `y`. */
  private firstBelow(y: number): number {
    let [low, high] = [0, this.tops.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if (this.tops[middle]! > y) high = middle
      else low = middle + 1
    }
    return low
  }
}

function rowHeight({ entry }: Placed, { row, cell }: Measures): number {
  const gpus = entry.untracked.gpus.length
  return gpus <= CELLS_PER_LINE ? row : row + (Math.ceil(gpus / CELLS_PER_LINE) - 1) * cell
}

export function layoutRows(board: readonly Placed[], width: number, density: Density = 'comfortable'): Layout {
  return new RowLayout(board, width, measuresFor(width, density))
}

/** The height with room at the end for hosts that are on their way, as high as those that are here: who scrolls down
 * before they come gets there. */
export function heightWith(awaited: number, here: number, { height }: Layout): number {
  return awaited === 0 || here === 0 ? height : Math.round((height * (here + awaited)) / here)
}

/** The boxes that touch `top…bottom`, plus the one of `pinned`, which holds the focus and must not vanish. */
export function visibleBoxes(layout: Layout, top: number, bottom: number, pinned: string | null): Box[] {
  const found = layout.between(top, bottom)
  if (pinned === null || found.some(({ placed }) => keyOf(placed) === pinned)) return found
  const box = layout.find(pinned)
  if (box === undefined) return found
  return box.y < top ? [box, ...found] : [...found, box]
}

export function visibleHeadings(layout: Pick<Layout, 'headings'>, top: number, bottom: number): Heading[] {
  return layout.headings.filter((heading) => heading.y < bottom && heading.y + heading.height > top)
}
