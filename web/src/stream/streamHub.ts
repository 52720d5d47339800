/**
 * One stream for all tabs of a browser, inside a shared worker: tabs come and go, the stream is open while one of them
 * listens. Nothing here knows what an event means.
 */
import { DetailStream, type Open } from './detailStream'
import { FleetStream, type RawEvent, type ConnectionError } from './fleetStream'

/** `join` begins to listen and is repeated as a sign of life; `leave` ends it. `want`: these hosts are in view. */
export type ToStreamHub = { type: 'join'; url: string } | { type: 'leave' } | { type: 'want'; hosts: readonly string[] }
/** `running`: events came before this tab did, so it has to ask for the fleet as a whole. `detail` is of hosts in view. */
export type FromStreamHub = { type: 'event' | 'detail'; event: RawEvent } | { type: 'error'; error: ConnectionError } | { type: 'running' }

/** A tab, as far as it is needed. */
export interface Port {
  postMessage(message: FromStreamHub): void
}

/** Seconds between two signs of life of a tab, and after how many without one it is taken for closed. */
export const ALIVE_SECONDS = 10
export const GONE_AFTER_SECONDS = 35

export class StreamHub {
  /** Who listens, and when each was last seen, in seconds. */
  private readonly lastSeen = new Map<Port, number>()
  private stream: Pick<FleetStream, 'start' | 'stop'> | null = null
  private isRunning = false
  private url = ''
  /** The hosts in view of each tab, of whoever asked last at the end. */
  private readonly wanted = new Map<Port, readonly string[]>()
  private readonly details: DetailStream

  constructor(
    private readonly now: () => number,
    private readonly open: Open = (url, listener) => new FleetStream(url, listener),
  ) {
    this.details = new DetailStream((event) => this.wanted.forEach((_, port) => port.postMessage({ type: 'detail', event })), open)
  }

  receive(port: Port, message: ToStreamHub): void {
    if (message.type === 'leave') this.forget(port)
    else if (message.type === 'join') this.join(port, message.url)
    else if (this.lastSeen.has(port)) this.want(port, message.hosts)
    this.closeIfUnused()
  }

  /** All tabs share one stream of what any of them shows. Whoever asks needs a snapshot, and all get it. */
  private want(port: Port, hosts: readonly string[]): void {
    this.wanted.delete(port)
    this.wanted.set(port, hosts)
    this.details.follow(this.url, [...this.wanted.values()].reverse().flat())
  }

  private forget(port: Port): void {
    this.lastSeen.delete(port)
    this.wanted.delete(port)
    if (this.wanted.size === 0) this.details.stop()
  }

  /** Tabs that crashed say nothing: call it now and then. */
  sweep(): void {
    for (const [port, at] of this.lastSeen) if (this.now() - at > GONE_AFTER_SECONDS) this.forget(port)
    this.closeIfUnused()
  }

  private join(port: Port, url: string): void {
    const isNew = !this.lastSeen.has(port)
    this.lastSeen.set(port, this.now())
    if (this.stream === null) this.start(url)
    else if (isNew && this.isRunning) port.postMessage({ type: 'running' })
  }

  private start(url: string): void {
    this.url = url
    this.stream = this.open(url, {
      event: (event) => {
        this.isRunning = true
        this.broadcast({ type: 'event', event })
      },
      error: (error) => this.broadcast({ type: 'error', error }),
    })
    this.stream.start()
  }

  private broadcast(message: FromStreamHub): void {
    for (const port of this.lastSeen.keys()) port.postMessage(message)
  }

  private closeIfUnused(): void {
    if (this.lastSeen.size > 0) return
    this.stream?.stop()
    this.stream = null
    this.isRunning = false
  }
}
