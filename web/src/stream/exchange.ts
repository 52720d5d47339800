/**
 * One stream for all tabs of a browser, inside a shared worker: tabs come and go, the stream is open while one of them
 * listens. Nothing here knows what an event means.
 */
import { FleetStream, type RawEvent, type RawListener, type Trouble } from './client'

/** `join` begins to listen and is repeated as a sign of life; `leave` ends it. */
export type ToExchange = { say: 'join'; url: string } | { say: 'leave' }
/** `running`: events came before this tab did, so it has to ask for the fleet as a whole. */
export type FromExchange = { say: 'event'; event: RawEvent } | { say: 'trouble'; trouble: Trouble } | { say: 'running' }

/** A tab, as far as it is needed. */
export interface Port {
  postMessage(message: FromExchange): void
}

/** Seconds between two signs of life of a tab, and after how many without one it is taken for closed. */
export const ALIVE_SECONDS = 10
export const GONE_AFTER_SECONDS = 35

type Open = (url: string, listener: RawListener) => Pick<FleetStream, 'start' | 'stop'>

export class Exchange {
  /** Who listens, and when it was last heard of, in seconds. */
  private readonly heard = new Map<Port, number>()
  private stream: Pick<FleetStream, 'start' | 'stop'> | null = null
  private isRunning = false

  constructor(
    private readonly now: () => number,
    private readonly open: Open = (url, listener) => new FleetStream(url, listener),
  ) {}

  hear(port: Port, message: ToExchange): void {
    if (message.say === 'leave') this.heard.delete(port)
    else this.join(port, message.url)
    this.closeUnheard()
  }

  /** Tabs that crashed say nothing: call it now and then. */
  sweep(): void {
    for (const [port, at] of this.heard) if (this.now() - at > GONE_AFTER_SECONDS) this.heard.delete(port)
    this.closeUnheard()
  }

  private join(port: Port, url: string): void {
    const isNew = !this.heard.has(port)
    this.heard.set(port, this.now())
    if (this.stream === null) this.start(url)
    else if (isNew && this.isRunning) port.postMessage({ say: 'running' })
  }

  private start(url: string): void {
    this.stream = this.open(url, {
      event: (event) => {
        this.isRunning = true
        this.tell({ say: 'event', event })
      },
      trouble: (trouble) => this.tell({ say: 'trouble', trouble }),
    })
    this.stream.start()
  }

  private tell(message: FromExchange): void {
    for (const port of this.heard.keys()) port.postMessage(message)
  }

  private closeUnheard(): void {
    if (this.heard.size > 0) return
    this.stream?.stop()
    this.stream = null
    this.isRunning = false
  }
}
