/**
 * Coarse reactivity. The fleet is plain objects changed in place; what is drawn reads a version, and a bump draws it
 * again. A thousand hosts then cost a thousand counters, not a proxy for each of their half million fields.
 */
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
