/** A browser without a network, for the unit tests: connections are opened, fed and broken by hand. */
import type { Browser } from './fleetStream'

export class FakeSource extends EventTarget {
  readyState = 1
  closed = false

  constructor(readonly url: string) {
    super()
  }

  close(): void {
    this.closed = true
  }

  send(event: string, data: unknown, id = ''): void {
    this.dispatchEvent(new MessageEvent(event, { data: JSON.stringify(data), lastEventId: id }))
  }

  /** The browser gives up for good, as after an HTTP error. */
  fail(): void {
    this.readyState = 2
    this.dispatchEvent(new Event('error'))
  }

  /** The line breaks; the browser will connect again by itself. */
  interrupt(): void {
    this.readyState = 0
    this.dispatchEvent(new Event('error'))
  }
}

export class FakeBrowser implements Browser {
  readonly sources: FakeSource[] = []
  /** The status of every plain request; null when nothing answers. */
  status: number | null = 200

  open(url: string): EventSource {
    const source = new FakeSource(url)
    this.sources.push(source)
    return source as unknown as EventSource
  }

  async fetch(): Promise<{ status: number }> {
    if (this.status === null) throw new TypeError('network')
    return { status: this.status }
  }

  /** The open connection whose address has this in it. */
  at(text: string): FakeSource {
    const source = this.sources.findLast(({ url, closed }) => url.includes(text) && !closed)
    if (source === undefined) throw new Error(`nothing is open at ${text}`)
    return source
  }

  get last(): FakeSource {
    const source = this.sources.at(-1)
    if (source === undefined) throw new Error('nothing was opened')
    return source
  }
}
