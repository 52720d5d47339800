/**
 * The fleet out of a stream of events, without a gap: a tab may come while the stream has long been running, and may
 * miss events while it sleeps or while another tab takes over. A snapshot is then read once, from a stream of its own:
 * only there it has the rows that deltas refer to. Its id says which deltas come after it.
 */
import type { RawEvent, ConnectionError } from './fleetStream'

/** `Snapshot` and `Delta` are what the stream's address asks for. */
export interface StreamListener<Snapshot, Delta> {
  snapshot(fleet: Snapshot): void
  /** False if the delta does not fit what came before it. */
  delta(delta: Delta): boolean
  error(error: ConnectionError): void
}

/** A snapshot as it is now, or why not. */
export type ReadSnapshot = () => Promise<RawEvent | { error: ConnectionError }>

/** Seconds between two snapshots that are asked for because a delta did not fit. */
export const RENEW_SECONDS = 10

export class Follower<Snapshot, Delta> {
  /** Everything up to `last` was taken. */
  private isWhole = false
  private last = ''
  /** Deltas that wait for a snapshot, each after the one before it. */
  private waiting: RawEvent[] = []
  private isAsking = false
  /** How often the picture was given up: an answer that was asked for before that is too old. */
  private losses = 0
  private renewedAt = -Infinity

  constructor(
    private readonly listener: StreamListener<Snapshot, Delta>,
    private readonly readSnapshot: ReadSnapshot,
  ) {}

  take(event: RawEvent): void {
    try {
      if (event.kind === 'snapshot') this.takeSnapshot(event)
      else this.takeDelta(event)
    } catch (cause) {
      // A broken event leaves the picture in doubt: a snapshot settles it.
      console.warn('gpudeck: an event could not be read, asking for a snapshot', cause)
      this.forget()
      void this.catchUp()
    }
  }

  /** Others have the stream already: without this a snapshot is asked for when the next delta comes. */
  async catchUp(): Promise<void> {
    if (this.isAsking || this.isWhole) return
    this.isAsking = true
    const losses = this.losses
    const answer = await this.readSnapshot()
    this.isAsking = false
    if (this.isWhole) return
    if (losses !== this.losses) return this.waiting.length > 0 ? this.catchUp() : undefined
    if ('error' in answer) this.giveUp(answer.error)
    else this.takeAnswer(answer)
  }

  /** Whatever comes next, the picture is not to be trusted until it is whole again. */
  forget(): void {
    this.isWhole = false
    this.last = ''
    this.waiting = []
    this.losses += 1
  }

  private takeSnapshot({ id, text }: RawEvent): void {
    const fleet: Snapshot = JSON.parse(text)
    this.forget()
    this.isWhole = true
    this.last = id
    this.listener.snapshot(fleet)
  }

  private takeDelta(event: RawEvent): void {
    const step = stepOf(this.last, event.id)
    if (step === 'old') return
    if (step === 'gap') this.forget()
    this.last = event.id
    if (this.isWhole) return this.listener.delta(JSON.parse(event.text)) ? undefined : this.renew()
    this.waiting.push(event)
    void this.catchUp()
  }

  /** Not with each delta: what never fits must not make the hub send everything each second. */
  private renew(): void {
    if (Date.now() - this.renewedAt < RENEW_SECONDS * 1000) return
    this.renewedAt = Date.now()
    this.forget()
    void this.catchUp()
  }

  private takeAnswer(snapshot: RawEvent): void {
    const { waiting } = this
    try {
      this.takeSnapshot(snapshot)
    } catch (cause) {
      console.warn('gpudeck: the fleet could not be read', cause)
      return this.giveUp('failing')
    }
    waiting.forEach((event) => this.take(event))
  }

  /** The next delta asks again: the snapshot that then comes is not older than those that waited. */
  private giveUp(error: ConnectionError): void {
    this.waiting = []
    this.listener.error(error)
  }
}

/** How the event `next` stands to the one that was taken last. An event without an id is taken as it comes. */
function stepOf(last: string, next: string): 'next' | 'old' | 'gap' {
  if (last === '' || next === '') return 'next'
  const [epoch, number] = last.split('-')
  const [nextEpoch, nextNumber] = next.split('-')
  if (epoch !== nextEpoch) return 'gap'
  const step = Number(nextNumber) - Number(number)
  if (step === 1) return 'next'
  return step <= 0 ? 'old' : 'gap'
}
