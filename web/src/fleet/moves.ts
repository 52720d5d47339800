/** Arrow keys on the board: from one host or GPU to its neighbour as the eye sees it. */
import { keyOf } from './arrange'
import { noteCount, type Box, type Layout } from './layout'

/** `host` is the key of its place on the board; `slot` is -1 on the host itself and otherwise a position in `host.gpus`. */
export interface Spot {
  host: string
  slot: number
}

export type Direction = 'up' | 'down' | 'left' | 'right' | 'first' | 'last'
export const VIEWS = ['cards', 'table', 'map'] as const
export type View = (typeof VIEWS)[number]

/** The next spot, or the same one at an edge. Null only on an empty board. */
export function move(layout: Layout, view: View, from: Spot | null, direction: Direction): Spot | null {
  const { boxes } = layout
  const box = boxes.find((candidate) => keyOf(candidate.placed) === from?.host)
  if (from === null || box === undefined) return boxes[0] === undefined ? null : spotAt(boxes[0], 0, view)
  if (direction === 'first') return spotAt(boxes[0]!, 0, view)
  if (direction === 'last') return spotAt(boxes.at(-1)!, 0, view)
  return view === 'table' ? moveInTable(boxes, box, from, direction) : moveInCards(layout, box, from, direction)
}

/** The slots of a box in reading order: the host, then the GPUs that can be seen. */
function slots(box: Box, view: View): number[] {
  const { entry, shown, collapsed } = box.placed
  if (view === 'table') return [-1, ...entry.untracked.gpus.keys()]
  return collapsed ? [-1] : [-1, ...shown]
}

function spotAt(box: Box, order: number, view: View): Spot {
  const all = slots(box, view)
  return { host: keyOf(box.placed), slot: all[Math.max(0, Math.min(order, all.length - 1))] ?? -1 }
}

function moveInTable(boxes: readonly Box[], box: Box, from: Spot, direction: Direction): Spot {
  const order = Math.max(0, slots(box, 'table').indexOf(from.slot))
  if (direction === 'left' || direction === 'right') return spotAt(box, order + (direction === 'left' ? -1 : 1), 'table')
  const next = boxes[boxes.indexOf(box) + (direction === 'up' ? -1 : 1)]
  return next === undefined ? from : spotAt(next, order, 'table')
}

function moveInCards(layout: Layout, box: Box, from: Spot, direction: Direction): Spot {
  const { boxes } = layout
  const order = Math.max(0, slots(box, 'cards').indexOf(from.slot))
  if (direction === 'left' || direction === 'right') return moveAside(layout, box, order, direction) ?? from
  const step = direction === 'up' ? -1 : 1
  const target = order + step
  if (target >= 0 && target < slots(box, 'cards').length) return spotAt(box, target, 'cards')
  const column = boxes.filter((candidate) => candidate.column === box.column)
  const next = column[column.indexOf(box) + step]
  if (next === undefined) return from
  return spotAt(next, step === 1 ? 0 : Infinity, 'cards')
}

/** To the line at the same height in the next column that has one there. */
function moveAside({ boxes, measures }: Layout, box: Box, order: number, direction: 'left' | 'right'): Spot | null {
  const { header, head, note, line } = measures
  const above = ({ placed }: Box): number => header + noteCount(placed.entry.untracked) * note + head
  const height = box.y + (order === 0 ? header / 2 : above(box) + (order - 0.5) * line)
  const column = box.column + (direction === 'left' ? -1 : 1)
  const beside = boxes.filter((candidate) => candidate.column === column)
  const target = beside.find((candidate) => candidate.y + candidate.height > height) ?? beside.at(-1)
  if (target === undefined) return null
  const inside = height - target.y - above(target)
  return spotAt(target, inside < 0 ? 0 : Math.floor(inside / line) + 1, 'cards')
}
