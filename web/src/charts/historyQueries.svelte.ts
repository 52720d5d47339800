/** The past that a page shows: several questions over the same range, each with its own answer. */
import type { Question } from '../api/history'
import { browserTools, HistoryFeed, INITIAL_QUERY_STATE, type QueryState } from './historyFeed'
import type { Range } from '../time/range'

/** `ask`, then `show` each range that is wanted; `stop` at the end. */
export class HistoryQueries {
  told = $state.raw<Readonly<Record<string, QueryState>>>({})
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

  of(name: string): QueryState {
    return this.told[name] ?? INITIAL_QUERY_STATE
  }
}
