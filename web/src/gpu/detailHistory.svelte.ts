/** The past of one GPU or host, as its page shows it: a range of time, and what was measured, ran and happened in it. */
import { untrack } from 'svelte'
import type { Question } from '../api/history'
import { HistoryQueries } from '../charts/historyQueries.svelte'
import { TimeWindow } from '../time/timeWindow.svelte'
import { EventList } from '../events/eventList.svelte'
import { hrefOf } from '../ui/route'
import { RunList } from '../usage/runList.svelte'

/** What a page knows of its address, and the hub's clock. */
export interface Viewer {
  params: () => URLSearchParams
  go: (href: string) => void
  now: () => number
}

export class DetailHistory {
  readonly window: TimeWindow
  readonly past: HistoryQueries
  readonly runs: RunList
  readonly events: EventList

  /** `name` is a GPU's UUID, or a host's name or id. */
  constructor(
    private readonly kind: 'gpu' | 'host',
    private readonly name: string,
    { params, go, now }: Viewer,
  ) {
    const whose = kind === 'gpu' ? { gpu: name } : { host: name }
    this.window = new TimeWindow(params, (chosen) => go(hrefOf(kind, name, chosen)), now)
    this.past = new HistoryQueries(() => untrack(now))
    this.runs = new RunList(whose, () => untrack(now))
    this.events = new EventList(whose)
  }

  /** All that happened to it, on a page of its own. */
  get eventsHref(): string {
    return hrefOf('events', '', { [this.kind]: this.name })
  }

  /** Asks, and asks again for each range that is chosen, as long as the page stands. Call it while that is set up. */
  follow(questions: Readonly<Record<string, Question>>): void {
    $effect(() => {
      this.past.ask(questions)
      this.events.start()
      return () => {
        this.past.stop()
        this.runs.stop()
        this.events.stop()
      }
    })
    $effect(() => {
      const range = this.window.range
      untrack(() => {
        this.past.show(range)
        this.runs.show(range)
      })
    })
  }
}
