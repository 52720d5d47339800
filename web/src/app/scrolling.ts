/** Going back to where a page was left: it may not be that long yet. */
import type { Stops } from './scrollPositions'

const KEY = 'gpudeck.places'
/** Milliseconds within which the page may grow as long as it was; after that its reader is somewhere else. */
const PATIENCE_MS = 4000

export const browserStops: Stops = {
  state: () => history.state as unknown,
  mark: (state) => history.replaceState(state, ''),
  scrolled: () => window.scrollY,
  load: () => tryStorage(() => sessionStorage.getItem(KEY)),
  save: (text) => void tryStorage(() => sessionStorage.setItem(KEY, text)),
}

/** Storage may be forbidden: then only this visit remembers. */
function tryStorage<T>(use: () => T): T | null {
  try {
    return use()
  } catch {
    return null
  }
}

let giveUp = (): void => {}

/** At once, or as soon as there is so much page; not where somebody has scrolled meanwhile. */
export function scrollWhenLong(y: number): void {
  giveUp()
  const move = (): void => {
    window.scrollTo(0, y)
    if (Math.abs(window.scrollY - y) < 2) giveUp()
  }
  const growing = new ResizeObserver(move)
  const timer = setTimeout(() => giveUp(), PATIENCE_MS)
  const signs = ['wheel', 'touchmove', 'pointerdown', 'keydown'] as const
  const onSign = (): void => giveUp()
  giveUp = () => {
    growing.disconnect()
    clearTimeout(timer)
    for (const sign of signs) window.removeEventListener(sign, onSign)
  }
  for (const sign of signs) window.addEventListener(sign, onSign, { passive: true })
  growing.observe(document.body)
}
