/** The latest events of one GPU or host, for its page. A hub that keeps none answers 404, and then nothing is said of them. */
import { readEvents, type HubEvent } from '../api/events'
import { clockTime, plain, utcTime } from '../ui/format'
import type { Figure } from '../ui/format'

export interface EventLine {
  id: string
  time: Figure
  severity: HubEvent['severity']
  title: string
  detail: string
}

const LIMIT = 20
const AGAIN_MS = 30_000

export class EventList {
  /** Null until the hub has told, and where it does not tell. */
  events = $state.raw<readonly HubEvent[] | null>(null)
  private timer: ReturnType<typeof setInterval> | undefined
  private underWay = new AbortController()

  /** `gpu` is a UUID, `host` a name or id. */
  constructor(private readonly whose: { gpu: string } | { host: string }) {}

  start(): void {
    this.underWay = new AbortController()
    void this.read()
    this.timer = setInterval(() => void (document.visibilityState === 'visible' && this.read()), AGAIN_MS)
  }

  stop(): void {
    clearInterval(this.timer)
    this.underWay.abort()
  }

  private async read(): Promise<void> {
    const { signal } = this.underWay
    const answer = await readEvents({ ...this.whose, limit: String(LIMIT) }, signal)
    if ('done' in answer) this.events = answer.done.events
    else if (answer.refused.status === 404) clearInterval(this.timer)
  }
}

/** `now` is the hub's clock. */
export function eventLine(event: HubEvent, now: number): EventLine {
  return {
    id: event.id,
    time: { text: clockTime(event.at, now), title: utcTime(event.at) },
    severity: event.severity,
    title: plain(event.title),
    detail: plain(event.detail),
  }
}
