/** CSS colours for a canvas, which knows neither variables nor `light-dark()`. */

export interface Paint {
  /** The colour as it is now; `share` (0…1) lets what lies below shine through. */
  (colour: string, share?: number): string
}

/** Colours as they are at this element. Ask again after every change of the theme. */
export function paintAt(element: HTMLElement): Paint {
  const mixed = new Map<string, string>()
  return (colour, share = 1) => {
    const key = `${share} ${colour}`
    const known = mixed.get(key)
    if (known !== undefined) return known
    const found = resolve(element, share === 1 ? colour : `color-mix(in srgb, ${colour} ${share * 100}%, transparent)`)
    mixed.set(key, found)
    return found
  }
}

/** Texts and lines are drawn in the colours that somebody forces upon pages. All others say what something is, and stay. */
const PLAIN: ReadonlySet<string> = new Set(['var(--muted)', 'var(--rule)', 'var(--focus)'])

function resolve(element: HTMLElement, colour: string): string {
  const probe = document.createElement('i')
  probe.style.color = colour
  if (!PLAIN.has(colour)) probe.style.setProperty('forced-color-adjust', 'none')
  element.append(probe)
  const found = getComputedStyle(probe).color
  probe.remove()
  return found
}

/** Calls back whenever light turns to dark or back, by the page's own choice or the system's. */
export function watchTheme(onChange: () => void): () => void {
  const system = matchMedia('(prefers-color-scheme: dark)')
  const observer = new MutationObserver(onChange)
  observer.observe(document.documentElement, { attributeFilter: ['data-theme'] })
  system.addEventListener('change', onChange)
  return () => {
    observer.disconnect()
    system.removeEventListener('change', onChange)
  }
}
