/**
 * A pointer that drags on the timeline: a mouse or pen at once, a finger after it has rested, as it scrolls otherwise.
 * Escape lets go of everything. Near an edge what is below the pointer scrolls on.
 */
import type { Drag, Spot } from './drags'

/** Pixels below which it is a click. */
const SLACK = 4
/** Pixels that a finger may tremble, and milliseconds after which it means to drag. */
const TREMBLE = 10
const REST = 400
/** Pixels from an edge at which it scrolls on, and by how many a frame. */
const EDGE = 12
const PACE = 10

export interface DragArea {
  /** What scrolls, and gets all of the pointer's events. */
  home: HTMLElement
  /** Pixels at its left and its top that do not scroll. */
  left: number
  top: number
  spotOf: (x: number, y: number) => Spot
  /** What a drag that begins there would be; null: nothing. */
  begin: (target: Element, spot: Spot) => Drag | null
  drop: (drag: Drag) => void
}

interface Press {
  id: number
  x: number
  y: number
  drag: Drag
  timer: number
}

export class DragGesture {
  /** What is being dragged. */
  drag = $state.raw<Drag | null>(null)
  private press: Press | null = null
  private x = 0
  private y = 0

  /** For `{@attach}`. */
  readonly on = (area: DragArea): (() => void) => {
    const { home } = area
    const ended = new AbortController()
    const listen = { signal: ended.signal }
    home.addEventListener('pointerdown', (event) => this.down(event, area), listen)
    home.addEventListener('pointermove', (event) => this.move(event, area), listen)
    home.addEventListener('pointerup', (event) => this.up(event, area), listen)
    home.addEventListener('pointercancel', () => this.letGo(), listen)
    home.addEventListener('touchmove', (event) => this.drag !== null && event.preventDefault(), { ...listen, passive: false })
    home.addEventListener('contextmenu', (event) => this.drag !== null && event.preventDefault(), listen)
    addEventListener('keydown', (event) => event.key === 'Escape' && this.letGo(), listen)
    return () => {
      this.letGo()
      ended.abort()
    }
  }

  private down({ pointerId, clientX, clientY, target, button, isPrimary, pointerType }: PointerEvent, area: DragArea): void {
    if (button !== 0 || !isPrimary || !(target instanceof Element)) return
    const drag = area.begin(target, area.spotOf(clientX, clientY))
    if (drag === null) return
    const timer = pointerType === 'touch' ? window.setTimeout(() => this.take(area), REST) : 0
    this.press = { id: pointerId, x: clientX, y: clientY, drag, timer }
    this.x = clientX
    this.y = clientY
  }

  private take(area: DragArea): void {
    if (this.press === null) return
    area.home.setPointerCapture(this.press.id)
    this.drag = this.press.drag
    requestAnimationFrame(() => this.scroll(area))
  }

  private move({ pointerId, clientX, clientY }: PointerEvent, area: DragArea): void {
    const { press } = this
    if (press === null || press.id !== pointerId) return
    const way = Math.hypot(clientX - press.x, clientY - press.y)
    if (this.drag === null && press.timer !== 0) return way > TREMBLE ? this.letGo() : undefined
    if (this.drag === null && way < SLACK) return
    this.x = clientX
    this.y = clientY
    if (this.drag === null) this.take(area)
    this.follow(area)
  }

  private follow({ spotOf }: DragArea): void {
    if (this.drag !== null) this.drag = { ...this.drag, to: spotOf(this.x, this.y) }
  }

  private scroll(area: DragArea): void {
    if (this.drag === null) return
    const { left, top, right, bottom } = area.home.getBoundingClientRect()
    const push = (at: number, low: number, high: number): number => (at < low + EDGE ? -PACE : at > high - EDGE ? PACE : 0)
    area.home.scrollBy(push(this.x, left + area.left, right), push(this.y, top + area.top, bottom))
    this.follow(area)
    requestAnimationFrame(() => this.scroll(area))
  }

  private up({ pointerId }: PointerEvent, area: DragArea): void {
    if (this.press?.id !== pointerId) return
    const { drag } = this
    this.letGo()
    if (drag !== null) area.drop(drag)
  }

  private letGo(): void {
    if (this.press !== null) clearTimeout(this.press.timer)
    this.press = null
    this.drag = null
  }
}
