/**
 * The fleet out of a stream of events, without a gap: a tab may come while the stream has long been running, and may
 * miss events while it sleeps or while another tab takes over. What is missing is then asked for once, whole.
 *
 * Deltas hold values, not differences, and the whole fleet says when it was as it is: every delta after that fits.
 */
import type { Delta, Fleet } from '../api/types'
import type { RawEvent, Trouble } from './client'

export interface StreamListener {
  snapshot(fleet: Fleet): void
  delta(delta: Delta): void
  trouble(trouble: Trouble): void
}

/** The whole fleet as text, or why not. */
export type ReadFleet = () => Promise<{ text: string } | { trouble: Trouble }>

export class Follower {
  /** Everything up to `last` was taken. */
  private isWhole = false
  private last = ''
  /** Deltas that wait for the whole fleet, each after the one before it. */
  private waiting: RawEvent[] = []
  private isAsking = false
  /** How often the picture was given up: an answer that was asked for before that is too old. */
  private losses = 0

  constructor(
    private readonly listener: StreamListener,
    private readonly readFleet: ReadFleet,
  ) {}

  take(event: RawEvent): void {
    try {
      if (event.kind === 'snapshot') this.takeSnapshot(event)
      else this.takeDelta(event)
    } catch (cause) {
      // A broken event leaves the picture in doubt: the whole fleet settles it.
      console.warn('gpudeck: an event could not be read, asking for the whole fleet', cause)
      this.forget()
      void this.catchUp()
    }
  }

  /** Others have the stream already: without this the whole fleet is asked for when the next delta comes. */
  async catchUp(): Promise<void> {
    if (this.isAsking || this.isWhole) return
    this.isAsking = true
    const losses = this.losses
    const answer = await this.readFleet()
    this.isAsking = false
    if (this.isWhole) return
    if (losses !== this.losses) return this.waiting.length > 0 ? this.catchUp() : undefined
    if ('trouble' in answer) this.listener.trouble(answer.trouble)
    else this.takeWhole(answer.text)
  }

  /** Whatever comes next, the picture is not to be trusted until it is whole again. */
  forget(): void {
    this.isWhole = false
    this.last = ''
    this.waiting = []
    this.losses += 1
  }

  private takeSnapshot({ id, text }: RawEvent): void {
    const fleet = JSON.parse(text) as Fleet
    this.forget()
    this.begin(fleet, id)
  }

  private begin(fleet: Fleet, id: string): void {
    this.isWhole = true
    this.last = id
    this.listener.snapshot(fleet)
  }

  private takeDelta(event: RawEvent): void {
    const step = stepOf(this.last, event.id)
    if (step === 'old') return
    if (step === 'gap') this.forget()
    this.last = event.id
    if (this.isWhole) return this.listener.delta(JSON.parse(event.text) as Delta)
    this.waiting.push(event)
    void this.catchUp()
  }

  private takeWhole(text: string): void {
    const waiting = this.waiting
    try {
      const fleet = JSON.parse(text) as Fleet
      const deltas = waiting.map((event) => JSON.parse(event.text) as Delta)
      this.waiting = []
      this.begin(fleet, this.last)
      for (const delta of deltas) if (delta.time > fleet.time) this.listener.delta(delta)
    } catch (cause) {
      console.warn('gpudeck: the fleet could not be read', cause)
      this.waiting = []
      this.listener.trouble('failing')
    }
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
