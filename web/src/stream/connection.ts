/**
 * How events reach a tab. Browsers open six connections to a site over HTTP/1.1, and a stream keeps one for good: tabs
 * share one stream, by the best way that the browser has.
 *
 *   a shared worker       holds the stream for all tabs; it is there while one of them is
 *   a leader among tabs   elected by a lock, tells the others over a channel; where it goes the lock passes on at once
 *   a stream of one's own where there is neither, as on plain HTTP in a browser without shared workers
 */
import { DetailStream } from './detailStream'
import { browser, FleetStream, type Browser, type RawEvent, type RawListener, type ConnectionError } from './fleetStream'
import { ALIVE_SECONDS, type FromStreamHub, type ToStreamHub } from './streamHub'

/** `start` and `stop` may alternate. Nothing is heard after `stop`. */
export interface Connection {
  start(): void
  stop(): void
  /** These hosts of an overview are in view: they are streamed in full, beginning with a snapshot. After `start`. */
  want(hosts: readonly string[]): void
}

export interface ConnectionListener extends RawListener {
  /** Others have had the stream before: the fleet has to be asked for as a whole. */
  running(): void
  /** Of hosts in view. */
  detail(event: RawEvent): void
}

/** A stream of one's own. */
export function alone(url: string, listener: Omit<ConnectionListener, 'running'>, parts: Browser = browser): Connection {
  const stream = new FleetStream(url, listener, parts)
  const details = ownDetails(listener, parts)
  return {
    start: () => stream.start(),
    stop: () => {
      stream.stop()
      details.stop()
    },
    want: (hosts) => details.follow(url, hosts),
  }
}

function ownDetails(listener: Pick<ConnectionListener, 'detail'>, parts: Browser): DetailStream {
  return new DetailStream((event) => listener.detail(event), (url, events) => new FleetStream(url, events, parts))
}

/** `url` is a whole address: several hubs may live behind one name. `group` keeps apart who must not share: people see
 * different things. */
export function share(url: string, group: string, listener: ConnectionListener): Connection {
  const name = `gpudeck ${url} ${group}`
  if (typeof SharedWorker === 'function') return new WorkerConnection(url, name, listener)
  return amongTabs(url, name, listener)
}

function amongTabs(url: string, name: string, listener: ConnectionListener): Connection {
  if (typeof BroadcastChannel === 'function' && navigator.locks !== undefined) return new LeaderConnection(url, name, listener)
  return alone(url, listener)
}

/** Seconds after which a worker that says nothing, not even what is wrong, is given up. */
const DEAD_AFTER_SECONDS = 30

/** Over the shared worker. Where that cannot run (its file is gone, a proxy forbids it) the next best way takes over. */
export class WorkerConnection implements Connection {
  private port: MessagePort | null = null
  private instead: Connection | null = null
  private alive: ReturnType<typeof setInterval> | undefined
  private receivedAt = 0
  private wanted: readonly string[] = []

  constructor(
    private readonly url: string,
    private readonly name: string,
    private readonly listener: ConnectionListener,
  ) {}

  start(): void {
    this.stop()
    if (this.instead !== null) return this.instead.start()
    const worker = new SharedWorker(new URL('./worker.ts', import.meta.url), { type: 'module', name: this.name })
    worker.onerror = () => this.giveUp()
    this.port = worker.port
    this.port.onmessage = ({ data }: MessageEvent<FromStreamHub>) => this.receive(data)
    this.receivedAt = Date.now()
    this.post({ type: 'join', url: this.url })
    this.alive = setInterval(() => this.stayAlive(), ALIVE_SECONDS * 1000)
  }

  stop(): void {
    clearInterval(this.alive)
    this.post({ type: 'leave' })
    this.port?.close()
    this.port = null
    this.instead?.stop()
  }

  want(hosts: readonly string[]): void {
    this.wanted = hosts
    this.instead?.want(hosts)
    this.post({ type: 'want', hosts })
  }

  private post(message: ToStreamHub): void {
    this.port?.postMessage(message)
  }

  private stayAlive(): void {
    if (Date.now() - this.receivedAt > DEAD_AFTER_SECONDS * 1000) this.giveUp()
    else this.post({ type: 'join', url: this.url })
  }

  private receive(message: FromStreamHub): void {
    this.receivedAt = Date.now()
    if (message.type === 'event') this.listener.event(message.event)
    else if (message.type === 'detail') this.listener.detail(message.event)
    else if (message.type === 'error') this.listener.error(message.error)
    else this.listener.running()
  }

  private giveUp(): void {
    if (this.port === null || this.instead !== null) return
    this.stop()
    this.instead = amongTabs(this.url, this.name, this.listener)
    this.instead.start()
    this.instead.want(this.wanted)
  }
}

type ChannelMessage = { type: 'event'; event: RawEvent } | { type: 'error'; error: ConnectionError } | { type: 'running' } | { type: 'hello' }

/** Among the tabs themselves: whoever has the lock has the stream. A closed tab loses its lock, and the next one begins. */
export class LeaderConnection implements Connection {
  private channel: BroadcastChannel | null = null
  private leaving: AbortController | null = null
  /** Of this tab alone: it is there while the tab is seen. */
  private readonly details: DetailStream

  constructor(
    private readonly url: string,
    private readonly name: string,
    private readonly listener: ConnectionListener,
    private readonly parts: Browser = browser,
  ) {
    this.details = ownDetails(listener, parts)
  }

  start(): void {
    this.stop()
    const channel = new BroadcastChannel(this.name)
    const leaving = new AbortController()
    this.channel = channel
    this.leaving = leaving
    channel.onmessage = ({ data }: MessageEvent<ChannelMessage>) => this.receive(data)
    const lead = (): Promise<void> => this.lead(channel, leaving.signal)
    // Given up while waiting for it, the lock is refused: that is no mistake.
    navigator.locks.request(this.name, { signal: leaving.signal }, lead).catch(() => {})
    channel.postMessage({ type: 'hello' } satisfies ChannelMessage)
  }

  stop(): void {
    this.leaving?.abort()
    this.channel?.close()
    this.channel = this.leaving = null
    this.details.stop()
  }

  want(hosts: readonly string[]): void {
    this.details.follow(this.url, hosts)
  }

  private receive(message: ChannelMessage): void {
    if (message.type === 'event') this.listener.event(message.event)
    else if (message.type === 'error') this.listener.error(message.error)
    else if (message.type === 'running') this.listener.running()
  }

  /** Holds the lock, and with it the stream, until this tab stops. */
  private lead(channel: BroadcastChannel, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return Promise.resolve()
    let isRunning = false
    const broadcast = (message: ChannelMessage): void => {
      channel.postMessage(message)
      this.receive(message)
    }
    const stream = new FleetStream(
      this.url,
      {
        event: (event) => {
          isRunning = true
          broadcast({ type: 'event', event })
        },
        error: (error) => broadcast({ type: 'error', error }),
      },
      this.parts,
    )
    channel.onmessage = ({ data }: MessageEvent<ChannelMessage>) => {
      if (data.type === 'hello' && isRunning) channel.postMessage({ type: 'running' } satisfies ChannelMessage)
    }
    stream.start()
    return new Promise((resolve) =>
      signal.addEventListener('abort', () => {
        stream.stop()
        resolve()
      }),
    )
  }
}
