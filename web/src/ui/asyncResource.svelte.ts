/** A question to the hub whose answer a page shows. The last answer stays while a new one is under way. */
import type { Answer, Refusal } from '../api/request'

export class AsyncResource<T> {
  answer = $state.raw<T | null>(null)
  refused = $state.raw<Refusal | null>(null)
  isLoading = $state(false)
  private underWay: AbortController | null = null

  /** Whatever was asked before is called off. */
  async ask(question: (signal: AbortSignal) => Promise<Answer<T>>): Promise<void> {
    this.stop()
    const own = (this.underWay = new AbortController())
    this.isLoading = true
    const said = await question(own.signal)
    if (own.signal.aborted) return
    this.isLoading = false
    if ('done' in said) this.answer = said.done
    this.refused = 'done' in said ? null : said.refused
  }

  /** As though it had never been asked. */
  forget(): void {
    this.stop()
    this.answer = null
    this.refused = null
  }

  stop(): void {
    this.underWay?.abort()
    this.underWay = null
    this.isLoading = false
  }
}
