/** The past that a page shows: several questions over the same range, each with its own answer. */
import { browserTools, HistoryFeed, NOTHING_TOLD, type Question, type Told } from '../api/history'
import type { Range } from './range'

/** `ask`, then `show` each range that is wanted; `stop` at the end. */
export class PastBoard {
  told = $state.raw<Readonly<Record<string, Told>>>({})
  private feeds = new Map<string, HistoryFeed>()

  /** `now` is the hub's clock. */
  constructor(private readonly now: () => number) {}

  /** Every question under the name that its answer goes by. Whatever was asked before is called off. */
  ask(questions: Readonly<Record<string, Question>>): void {
    this.stop()
    this.told = {}
    for (const [name, question] of Object.entries(questions)) {
      const feed = new HistoryFeed(question, (told) => (this.told = { ...this.told, [name]: told }), browserTools(this.now))
      this.feeds.set(name, feed)
    }
  }

  show(range: Range): void {
    for (const feed of this.feeds.values()) feed.show(range)
  }

  stop(): void {
    for (const feed of this.feeds.values()) feed.stop()
    this.feeds.clear()
  }

  of(name: string): Told {
    return this.told[name] ?? NOTHING_TOLD
  }
}
