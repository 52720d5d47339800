/** The reservations of the time that is shown: asked for when it becomes another, when the stream tells of a change, and now and then. */
import { readReservations, type Reservation, type ReservationList } from '../api/reservations'
import { AsyncResource } from '../ui/asyncResource.svelte'
import { explain } from '../ui/apiErrors'

/** Not what was given back as soon as it was had: it is a minute that nobody missed. */
function isWorthShowing({ state, start, end }: Reservation): boolean {
  return state !== 'released' || end - start >= 60
}

interface Span {
  start: number
  end: number
}

export class ReservationQuery {
  private readonly asked = new AsyncResource<ReservationList & { span: Span }>()
  private span = $state.raw<Span | null>(null)
  private readonly told = $derived(this.asked.answer?.span === this.span ? this.asked.answer : null)

  /** Null until the hub has told of this time. */
  readonly reservations: readonly Reservation[] | null = $derived(this.told?.reservations.filter(isWorthShowing) ?? null)
  /** Whether the hub has told of any time at all. */
  readonly hasTold = $derived(this.asked.answer !== null)
  readonly isCut = $derived(this.told?.is_cut ?? false)
  readonly isLoading = $derived(this.asked.isLoading)
  readonly refused = $derived(this.asked.refused === null ? null : explain(this.asked.refused))

  /** Unix seconds. What is known of another time is not shown for this one. */
  show(start: number, end: number): void {
    if (this.span?.start !== start || this.span.end !== end) this.span = { start, end }
    void this.again()
  }

  async again(): Promise<void> {
    const { span } = this
    if (span === null) return
    await this.asked.ask(async (signal) => {
      const answer = await readReservations(span, signal)
      return 'done' in answer ? { done: { ...answer.done, span } } : answer
    })
  }

  stop(): void {
    this.asked.stop()
  }
}
