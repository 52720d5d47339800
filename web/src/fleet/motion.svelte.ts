/** The little motion there is, and none of it for people who asked for less. */
import type { Attachment } from 'svelte/attachments'

function isCalm(): boolean {
  return matchMedia('(prefers-reduced-motion: reduce)').matches
}

/** A soft flash on a GPU whose state became another one. One watcher a host: a host has many GPUs. */
export function flashOnChange(states: () => ReadonlyMap<number, string>): Attachment<HTMLElement> {
  return (element) => {
    let before: ReadonlyMap<number, string> | undefined
    $effect(() => {
      const now = states()
      if (before !== undefined && !isSame(before, now)) flashChanged(element, before, now)
      before = now
    })
  }
}

function isSame(a: ReadonlyMap<number, string>, b: ReadonlyMap<number, string>): boolean {
  for (const [slot, state] of b) if (a.get(slot) !== state) return false
  return true
}

function flashChanged(element: HTMLElement, before: ReadonlyMap<number, string>, now: ReadonlyMap<number, string>): void {
  if (isCalm()) return
  for (const [slot, state] of now) {
    if (!before.has(slot) || before.get(slot) === state) continue
    const frames = [{ backgroundColor: `var(--${state}-wash)` }, { backgroundColor: 'transparent' }]
    element.querySelector(`[data-slot="${slot}"]`)?.animate(frames, { duration: 1600, easing: 'ease-out' })
  }
}

/** Lets a box glide from where it stood to where it stands. */
export function glide(place: () => { x: number; y: number }): Attachment<HTMLElement> {
  return (element) => {
    let before: { x: number; y: number } | undefined
    $effect(() => {
      const { x, y } = place()
      const moved = before !== undefined && (before.x !== x || before.y !== y)
      if (moved && before !== undefined && !isCalm()) {
        const from = `translate(${before.x - x}px, ${before.y - y}px)`
        element.animate([{ transform: from }, { transform: 'none' }], { duration: 200, easing: 'ease-out' })
      }
      before = { x, y }
    })
  }
}
