/**
 * The number of free GPUs for a tab that nobody sees: its title is read from afar, and says it still.
 *
 * A stream would bring every figure of the fleet each second. This asks for its counts alone, once a minute.
 */
import { request } from '../api/request'
import type { Totals } from '../api/types'

export const POLL_SECONDS = 60

export type ReadTotals = () => Promise<Pick<Totals, 'free'> | null>

const readTotals: ReadTotals = async () => {
  const answer = await request('get', '/api/v1/totals')
  return 'done' in answer ? answer.done : null
}

export class TotalsPoller {
  /** Null where it is not known: the hub did not answer the last time. */
  free = $state<number | null>(null)
  private timer: ReturnType<typeof setInterval> | undefined

  constructor(private readonly read: ReadTotals = readTotals) {}

  /** `free` is what was known last: it is asked for again after a minute. */
  start(free: number | null): void {
    this.stop()
    this.free = free
    const timer = (this.timer = setInterval(async () => {
      const totals = await this.read()
      if (timer === this.timer) this.free = totals?.free ?? null
    }, POLL_SECONDS * 1000))
  }

  stop(): void {
    clearInterval(this.timer)
    this.timer = undefined
  }
}
