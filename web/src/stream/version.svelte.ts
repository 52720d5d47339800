/**
 * Coarse reactivity. The fleet is plain objects changed in place; what is drawn reads a version, and a bump draws it
 * again. A thousand hosts then cost a thousand counters, not a proxy for each of their half million fields.
 */
import { createSubscriber } from 'svelte/reactivity'

/** For what is few and always watched. */
export class Version {
  private count = $state(0)

  /** Call while drawing: whoever reads is drawn again after the next bump. */
  read(): number {
    return this.count
  }

  bump(): void {
    this.count += 1
  }
}

/** For what is many and mostly out of sight: a bump that nobody watches costs nothing. */
export class WatchedVersion {
  private count = 0
  private redraw: (() => void) | undefined
  private readonly watch = createSubscriber((update) => {
    this.redraw = update
    return () => (this.redraw = undefined)
  })

  /** Call while drawing: whoever reads is drawn again after the next bump. */
  read(): number {
    this.watch()
    return this.count
  }

  /** For who compares it with what it was. */
  get untracked(): number {
    return this.count
  }

  bump(): void {
    this.count += 1
    this.redraw?.()
  }
}
