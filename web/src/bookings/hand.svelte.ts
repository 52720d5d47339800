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

export interface Ground {
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

export class Hand {
  /** What is being dragged. */
  drag = $state.raw<Drag | null>(null)
  private press: Press | null = null
  private x = 0
  private y = 0

  /** For `{@attach}`. */
  readonly on = (ground: Ground): (() => void) => {
    const { home } = ground
    const ended = new AbortController()
    const listen = { signal: ended.signal }
    home.addEventListener('pointerdown', (event) => this.down(event, ground), listen)
    home.addEventListener('pointermove', (event) => this.move(event, ground), listen)
    home.addEventListener('pointerup', (event) => this.up(event, ground), listen)
    home.addEventListener('pointercancel', () => this.letGo(), listen)
    home.addEventListener('touchmove', (event) => this.drag !== null && event.preventDefault(), { ...listen, passive: false })
    home.addEventListener('contextmenu', (event) => this.drag !== null && event.preventDefault(), listen)
    addEventListener('keydown', (event) => event.key === 'Escape' && this.letGo(), listen)
    return () => {
      this.letGo()
      ended.abort()
    }
  }

  private down({ pointerId, clientX, clientY, target, button, isPrimary, pointerType }: PointerEvent, ground: Ground): void {
    if (button !== 0 || !isPrimary || !(target instanceof Element)) return
    const drag = ground.begin(target, ground.spotOf(clientX, clientY))
    if (drag === null) return
    const timer = pointerType === 'touch' ? window.setTimeout(() => this.take(ground), REST) : 0
    this.press = { id: pointerId, x: clientX, y: clientY, drag, timer }
    this.x = clientX
    this.y = clientY
  }

  private take(ground: Ground): void {
    if (this.press === null) return
    ground.home.setPointerCapture(this.press.id)
    this.drag = this.press.drag
    requestAnimationFrame(() => this.scroll(ground))
  }

  private move({ pointerId, clientX, clientY }: PointerEvent, ground: Ground): void {
    const { press } = this
    if (press === null || press.id !== pointerId) return
    const way = Math.hypot(clientX - press.x, clientY - press.y)
    if (this.drag === null && press.timer !== 0) return way > TREMBLE ? this.letGo() : undefined
    if (this.drag === null && way < SLACK) return
    this.x = clientX
    this.y = clientY
    if (this.drag === null) this.take(ground)
    this.follow(ground)
  }

  private follow({ spotOf }: Ground): void {
    if (this.drag !== null) this.drag = { ...this.drag, to: spotOf(this.x, this.y) }
  }

  private scroll(ground: Ground): void {
    if (this.drag === null) return
    const { left, top, right, bottom } = ground.home.getBoundingClientRect()
    const push = (at: number, low: number, high: number): number => (at < low + EDGE ? -PACE : at > high - EDGE ? PACE : 0)
    ground.home.scrollBy(push(this.x, left + ground.left, right), push(this.y, top + ground.top, bottom))
    this.follow(ground)
    requestAnimationFrame(() => this.scroll(ground))
  }

  private up({ pointerId }: PointerEvent, ground: Ground): void {
    if (this.press?.id !== pointerId) return
    const { drag } = this
    this.letGo()
    if (drag !== null) ground.drop(drag)
  }

  private letGo(): void {
    if (this.press !== null) clearTimeout(this.press.timer)
    this.press = null
    this.drag = null
  }
}
