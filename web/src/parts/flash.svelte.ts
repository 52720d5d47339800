/** A soft flash when a value becomes another one. Not for people who asked for less motion. */
import type { Attachment } from 'svelte/attachments'

export function flashOnChange(value: () => string): Attachment<HTMLElement> {
  return (element) => {
    let before: string | undefined
    $effect(() => {
      const now = value()
      if (before !== undefined && before !== now) flash(element, now)
      before = now
    })
  }
}

function flash(element: HTMLElement, state: string): void {
  if (matchMedia('(prefers-reduced-motion: reduce)').matches) return
  element.animate([{ backgroundColor: `var(--${state}-wash)` }, { backgroundColor: 'transparent' }], { duration: 1600, easing: 'ease-out' })
}
