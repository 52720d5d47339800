/**
 * How events reach a tab. Browsers open six connections to a site over HTTP/1.1, and a stream keeps one for good: tabs
 * share one stream, by the best way that the browser has.
 *
 *   a shared worker       holds the stream for all tabs; it is there while one of them is
 *   a leader among tabs   elected by a lock, tells the others over a channel; where it goes the lock passes on at once
 *   a stream of one's own where there is neither, as on plain HTTP in a browser without shared workers
 */
import { browser, FleetStream, type Browser, type RawEvent, type RawListener, type Trouble } from './client'
import { ALIVE_SECONDS, type FromExchange, type ToExchange } from './exchange'

/** `start` and `stop` may alternate. Nothing is heard after `stop`. */
export interface Line {
  start(): void
  stop(): void
}

export interface LineListener extends RawListener {
  /** Others have had the stream before: the fleet has to be asked for as a whole. */
  running(): void
}

/** A stream of one's own. */
export function alone(url: string, listener: RawListener, parts: Browser = browser): Line {
  return new FleetStream(url, listener, parts)
}

/** `url` is a whole address: several hubs may live behind one name. `group` keeps apart who must not share: people see
 * different things. */
export function share(url: string, group: string, listener: LineListener): Line {
  const name = `gpudeck ${url} ${group}`
  if (typeof SharedWorker === 'function') return new WorkerLine(url, name, listener)
  return amongTabs(url, name, listener)
}

function amongTabs(url: string, name: string, listener: LineListener): Line {
  if (typeof BroadcastChannel === 'function' && navigator.locks !== undefined) return new LeaderLine(url, name, listener)
  return alone(url, listener)
}

/** Seconds after which a worker that says nothing, not even what is wrong, is given up. */
const DEAD_AFTER_SECONDS = 30

/** Over the shared worker. Where that cannot run (its file is gone, a proxy forbids it) the next best way takes over. */
export class WorkerLine implements Line {
  private port: MessagePort | null = null
  private instead: Line | null = null
  private alive: ReturnType<typeof setInterval> | undefined
  private heardAt = 0

  constructor(
    private readonly url: string,
    private readonly name: string,
    private readonly listener: LineListener,
  ) {}

  start(): void {
    this.stop()
    if (this.instead !== null) return this.instead.start()
    const worker = new SharedWorker(new URL('./worker.ts', import.meta.url), { type: 'module', name: this.name })
    worker.onerror = () => this.giveUp()
    this.port = worker.port
    this.port.onmessage = ({ data }: MessageEvent<FromExchange>) => this.hear(data)
    this.heardAt = Date.now()
    this.say({ say: 'join', url: this.url })
    this.alive = setInterval(() => this.stayAlive(), ALIVE_SECONDS * 1000)
  }

  stop(): void {
    clearInterval(this.alive)
    this.say({ say: 'leave' })
    this.port?.close()
    this.port = null
    this.instead?.stop()
  }

  private say(message: ToExchange): void {
    this.port?.postMessage(message)
  }

  private stayAlive(): void {
    if (Date.now() - this.heardAt > DEAD_AFTER_SECONDS * 1000) this.giveUp()
    else this.say({ say: 'join', url: this.url })
  }

  private hear(message: FromExchange): void {
    this.heardAt = Date.now()
    if (message.say === 'event') this.listener.event(message.event)
    else if (message.say === 'trouble') this.listener.trouble(message.trouble)
    else this.listener.running()
  }

  private giveUp(): void {
    if (this.port === null || this.instead !== null) return
    this.stop()
    this.instead = amongTabs(this.url, this.name, this.listener)
    this.instead.start()
  }
}

type Told = { say: 'event'; event: RawEvent } | { say: 'trouble'; trouble: Trouble } | { say: 'running' } | { say: 'hello' }

/** Among the tabs themselves: whoever has the lock has the stream. A closed tab loses its lock, and the next one begins. */
export class LeaderLine implements Line {
  private channel: BroadcastChannel | null = null
  private leaving: AbortController | null = null

  constructor(
    private readonly url: string,
    private readonly name: string,
    private readonly listener: LineListener,
    private readonly parts: Browser = browser,
  ) {}

  start(): void {
    this.stop()
    const channel = new BroadcastChannel(this.name)
    const leaving = new AbortController()
    this.channel = channel
    this.leaving = leaving
    channel.onmessage = ({ data }: MessageEvent<Told>) => this.hear(data)
    const lead = (): Promise<void> => this.lead(channel, leaving.signal)
    // Given up while waiting for it, the lock is refused: that is no mistake.
    navigator.locks.request(this.name, { signal: leaving.signal }, lead).catch(() => {})
    channel.postMessage({ say: 'hello' } satisfies Told)
  }

  stop(): void {
    this.leaving?.abort()
    this.channel?.close()
    this.channel = this.leaving = null
  }

  private hear(told: Told): void {
    if (told.say === 'event') this.listener.event(told.event)
    else if (told.say === 'trouble') this.listener.trouble(told.trouble)
    else if (told.say === 'running') this.listener.running()
  }

  /** Holds the lock, and with it the stream, until this tab stops. */
  private lead(channel: BroadcastChannel, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return Promise.resolve()
    let isRunning = false
    const tell = (told: Told): void => {
      channel.postMessage(told)
      this.hear(told)
    }
    const stream = new FleetStream(
      this.url,
      {
        event: (event) => {
          isRunning = true
          tell({ say: 'event', event })
        },
        trouble: (trouble) => tell({ say: 'trouble', trouble }),
      },
      this.parts,
    )
    channel.onmessage = ({ data }: MessageEvent<Told>) => {
      if (data.say === 'hello' && isRunning) channel.postMessage({ say: 'running' } satisfies Told)
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
