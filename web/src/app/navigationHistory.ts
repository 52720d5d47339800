/**
 * The way back: which changes of the view become a stop of their own in the browser's history.
 *
 * What was chosen is a stop at once. What is typed is one stop, from the first letter to Enter or a pause.
 */
import { readAddress, writeAddress, type Address } from '../fleet/address'

/** The parts of the browser that are used, so that a test can bring its own. */
export interface Visited {
  /** The query part of the address now. */
  search(): string
  push(search: string): void
  replace(search: string): void
}

/** Safari allows a hundred changes in half a minute: not one a keystroke. */
const WRITE_MS = 150
/** After this long without a letter the next one begins another search. */
const PAUSE_MS = 1500

export class NavigationHistory {
  private isInStop = false
  /** Typed, but not in the address yet. */
  private typed: Address | null = null
  private writing: ReturnType<typeof setTimeout> | undefined
  private pausing: ReturnType<typeof setTimeout> | undefined

  constructor(private readonly visited: Visited) {}

  /** Takes over what the page shows now; nothing happens where the address says it already. */
  follow(address: Address, isTyped: boolean): void {
    this.forget()
    if (!isTyped) return this.writeChosen(address)
    this.typed = address
    this.writing = setTimeout(() => this.writeTyped(), WRITE_MS)
  }

  /** Enter: what is typed next is another search. */
  settle(): void {
    this.writeTyped()
    clearTimeout(this.pausing)
    this.isInStop = false
  }

  stop(): void {
    this.forget()
    this.settle()
  }

  private forget(): void {
    clearTimeout(this.writing)
    this.typed = null
  }

  private writeChosen(address: Address): void {
    this.settle()
    this.write(address, (search) => this.visited.push(search))
  }

  private writeTyped(): void {
    const address = this.typed
    if (address === null) return
    this.forget()
    clearTimeout(this.pausing)
    this.pausing = setTimeout(() => this.settle(), PAUSE_MS)
    this.write(address, (search) => {
      if (this.isInStop) this.visited.replace(search)
      else this.visited.push(search)
      this.isInStop = true
    })
  }

  private write(address: Address, put: (search: string) => void): void {
    const before = this.visited.search()
    const after = writeAddress(before, address)
    if (after !== writeAddress(before, readAddress(before))) put(after)
  }
}
