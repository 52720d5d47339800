/**
 * The way in: server-sent events from the hub, kept alive.
 *
 * The browser reconnects by itself after a network fault, but not after an HTTP error (a proxy that answers 502 while
 * the hub restarts), and it does not notice a connection that is open and silent. Both are watched here: the hub sends
 * something every second, so silence means the line is dead.
 *
 * What comes is handed on as text: several tabs may share it, and each of them reads it by itself (stream/follower.ts).
 */

/** Why nothing could be read yet, as far as one plain request can tell. */
export type ConnectionError = 'unreachable' | 'refused' | 'not-found' | 'failing'

/** An event as it came. `id` counts within one life of the hub: `epoch-number`. */
export interface RawEvent {
  kind: 'snapshot' | 'delta'
  id: string
  text: string
}

export interface RawListener {
  event(event: RawEvent): void
  error(error: ConnectionError): void
}

/** The parts of the browser that are used, so that a test can bring its own. */
export interface Browser {
  open(url: string): EventSource
  fetch(url: string): Promise<{ status: number }>
}

export const browser: Browser = {
  open: (url) => new EventSource(url),
  fetch: (url) => fetch(url, { method: 'HEAD', cache: 'no-store' }),
}

/** Seconds of silence after which an open connection is given up and opened anew. */
export const TIMEOUT_SECONDS = 8
const FIRST_RETRY_SECONDS = 1
const LONGEST_RETRY_SECONDS = 10

const CLOSED = 2

export class FleetStream {
  private source: EventSource | null = null
  private retrySeconds = FIRST_RETRY_SECONDS
  private timer: ReturnType<typeof setTimeout> | undefined

  constructor(
    private readonly url: string,
    private readonly listener: RawListener,
    private readonly parts: Browser = browser,
  ) {}

  start(): void {
    this.stop()
    const source = this.parts.open(this.url)
    this.source = source
    for (const kind of ['snapshot', 'delta'] as const) {
      source.addEventListener(kind, (event) => this.receive(source, { kind, id: event.lastEventId, text: String(event.data) }))
    }
    source.addEventListener('error', () => this.onError(source))
    this.expectEvent()
  }

  stop(): void {
    clearTimeout(this.timer)
    this.source?.close()
    this.source = null
  }

  private receive(source: EventSource, event: RawEvent): void {
    if (source !== this.source) return
    this.retrySeconds = FIRST_RETRY_SECONDS
    this.expectEvent()
    this.listener.event(event)
  }

  private onError(source: EventSource): void {
    if (source !== this.source) return
    void this.findError()
    if (source.readyState === CLOSED) this.retry()
  }

  private expectEvent(): void {
    clearTimeout(this.timer)
    this.timer = setTimeout(() => {
      void this.findError()
      this.retry()
    }, TIMEOUT_SECONDS * 1000)
  }

  /** Opens a new connection after a growing pause; the jitter keeps a room full of pages from knocking at once. */
  private retry(): void {
    this.stop()
    const pause = this.retrySeconds * (0.75 + Math.random() / 2)
    this.retrySeconds = Math.min(this.retrySeconds * 2, LONGEST_RETRY_SECONDS)
    this.timer = setTimeout(() => this.start(), pause * 1000)
  }

  /** EventSource does not say why it failed; one plain request does. */
  private async findError(): Promise<void> {
    try {
      const { status } = await this.parts.fetch(this.url.replace(/stream(\?.*)?$/, 'fleet'))
      this.listener.error(errorOf(status))
    } catch {
      this.listener.error('unreachable')
    }
  }
}

/** The first event of a stream that is opened for it alone: without an id to resume from it is a snapshot. */
export function readSnapshot(url: string, parts: Browser = browser): Promise<RawEvent | { error: ConnectionError }> {
  return new Promise((resolve) => {
    const end = (answer: RawEvent | { error: ConnectionError }): void => {
      stream.stop()
      resolve(answer)
    }
    const stream = new FleetStream(url, { event: end, error: (error) => end({ error }) }, parts)
    stream.start()
  })
}

/** What a status that is none of success means. */
function errorOf(status: number): ConnectionError {
  if (status === 401 || status === 403) return 'refused'
  if (status === 404) return 'not-found'
  return 'failing'
}
