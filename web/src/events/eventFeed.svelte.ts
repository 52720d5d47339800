/** The list of events: a page at a time from the hub, and what happens meanwhile from the stream. */
import { readEvents, type HubEvent } from '../api/events'
import { fits, merge, questionOf, type EventFilter } from './events'
import { explain, type Refused } from '../ui/apiErrors'

const AT_ONCE = '100'

export class EventFeed {
  /** The newest first; null until the hub has told. */
  events = $state.raw<readonly HubEvent[] | null>(null)
  /** Whether there are older ones. */
  hasMore = $state(false)
  isLoading = $state(false)
  refused = $state.raw<Refused | null>(null)
  private next: string | null = null
  private underWay = new AbortController()

  constructor(private readonly filter: EventFilter) {}

  /** The first page. What is there already stays: a stream that was lost has holes, and this fills them. */
  async load(): Promise<void> {
    const page = await this.read({})
    if (page === null) return
    const oldest = page.events.at(-1)?.id ?? ''
    const isHoleLeft = page.next !== null && this.events !== null && !this.events.some((event) => event.id >= oldest)
    const kept = isHoleLeft ? [] : (this.events ?? [])
    if (kept.length === 0 || this.next === null) this.goOnBelow(page.next)
    this.events = merge(page.events, kept)
  }

  async more(): Promise<void> {
    if (this.isLoading || this.next === null) return
    const page = await this.read({ before: this.next })
    if (page === null) return
    this.goOnBelow(page.next)
    this.events = merge(this.events ?? [], page.events)
  }

  /** What has just happened. */
  take(live: readonly HubEvent[]): void {
    const wanted = live.filter((event) => fits(event, this.filter))
    if (this.events !== null && wanted.length > 0) this.events = merge(wanted, this.events)
  }

  stop(): void {
    this.underWay.abort()
  }

  private goOnBelow(id: string | null): void {
    this.next = id
    this.hasMore = id !== null
  }

  private async read(where: Record<string, string>): Promise<{ events: HubEvent[]; next: string | null } | null> {
    const { signal } = this.underWay
    this.isLoading = true
    const answer = await readEvents({ ...questionOf(this.filter), ...where, limit: AT_ONCE }, signal)
    if (signal.aborted) return null
    this.isLoading = false
    this.refused = 'refused' in answer ? explain(answer.refused) : null
    return 'done' in answer ? answer.done : null
  }
}
