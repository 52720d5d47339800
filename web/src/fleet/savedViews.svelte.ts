/**
 * Views that were given a name: addresses. The hub has those of whoever is logged in, this browser those of anybody else. One
 * of them may be the default: it is shown where the page is opened without naming anything.
 */
import { keepSavedViews, readSavedViews } from '../api/accounts'
import type { Answer } from '../api/request'
import type { SavedView } from '../api/types'
import { explain } from '../ui/apiErrors'
import { toasts } from '../ui/toasts.svelte'
import { readAddress, writeAddress, type Address } from './address'
import type { Density } from './layout'
import { writeAt } from './timeMachine.svelte'

const KEY = 'gpudeck.views'
const DONE: Answer<object> = { done: {} }
export const MOST_VIEWS = 50
export const LONGEST_NAME = 60
const LONGEST_HREF = 2000

/** The address of what the fleet page shows, complete: what the browser remembers besides must not change it. */
export function fleetHref(address: Address, density: Density, at: number | null): string {
  const search = new URLSearchParams(writeAt(writeAddress('', address), at))
  search.set('density', density)
  return `?${search.toString()}`
}

/** The density that an address names, and the address without it: it is applied once, and then chosen as ever. */
export function takeDensity(search: string): { density: Density | null; search: string } {
  const parameters = new URLSearchParams(search)
  const named = parameters.get('density')
  if (named === null) return { density: null, search }
  parameters.delete('density')
  const rest = parameters.toString()
  return { density: named === 'compact' || named === 'comfortable' ? named : null, search: rest === '' ? '' : `?${rest}` }
}

/** What a view shows, in a few words: `free h200 · table · by model`. */
export function describeView(href: string): string {
  if (!href.startsWith('?')) return href.replace(/^#\/?/, '').replace(/[?&]/g, ' ')
  const { text, view, group, sort } = readAddress(href)
  const isPast = new URLSearchParams(href).has('at')
  return [text || 'all GPUs', view, group === 'host' ? null : `by ${group.replace(/^label:/, '')}`, sort === 'free' ? null : `sorted by ${sort}`, isPast ? 'in the past' : null].filter(Boolean).join(' · ')
}

type Store = Pick<Storage, 'getItem' | 'setItem'>

const AT_HUB = { read: readSavedViews, write: keepSavedViews }

export class SavedViews {
  all: readonly SavedView[] = $state.raw([])
  /** Whose they are: the hub has them, and this browser a copy. Null: this browser alone has them. */
  account: string | null = $state(null)

  constructor(
    private readonly storage: () => Store = () => localStorage,
    private readonly hub: typeof AT_HUB = AT_HUB,
  ) {
    this.reread()
  }

  /** From here on those of this account. The copy is there at once, what the hub has at the end. An account that never saved
   * any gets those that were saved in this browser before. */
  async use(account: string | null): Promise<void> {
    this.account = null
    this.reread()
    const here = this.all
    this.account = account
    this.reread()
    await this.pull(here)
  }

  /** Another tab may have changed them. */
  reread(): void {
    try {
      this.all = readViews(this.storage().getItem(this.key))
    } catch {
      // Storage may be forbidden: views then last as long as the page.
      this.all = []
    }
  }

  get default(): SavedView | undefined {
    return this.all.find(({ is_default }) => is_default)
  }

  /** Returns why not, or null. One of the same name is replaced. */
  async add(name: string, href: string): Promise<string | null> {
    const old = (): SavedView | undefined => this.all.find((each) => each.name === name)
    return this.change(
      (views) => (old() === undefined ? [...views, { name, href }] : views.map((each) => (each.name === name ? { ...each, href } : each))),
      () => (old() === undefined ? `Saved the view “${name}”` : `Replaced the view “${name}”`),
    )
  }

  async remove(view: SavedView): Promise<void> {
    this.tell(await this.change((views) => views.filter(({ name }) => name !== view.name), () => `Deleted the view “${view.name}”`))
  }

  /** Makes it the default, or the default no longer. */
  async toggleDefault(view: SavedView): Promise<void> {
    const is_default = !view.is_default
    this.tell(
      await this.change(
        (views) => views.map(({ name, href }) => ({ name, href, ...(is_default && name === view.name ? { is_default } : {}) })),
        () => (is_default ? `“${view.name}” is shown when you open gpudeck` : `“${view.name}” is no longer the default`),
      ),
    )
  }

  /** What the hub has now: another browser may have changed it. */
  async pull(unlessAny: readonly SavedView[] = []): Promise<Answer<object>> {
    const { account } = this
    if (account === null) return DONE
    const answer = await this.hub.read()
    if (this.account !== account) return DONE
    if ('refused' in answer) {
      if (answer.refused.status !== 403) return answer
      // A proxy named somebody who has no account.
      return (await this.use(null), DONE)
    }
    const { views } = answer.done
    if (views === null && unlessAny.length > 0) return this.write(unlessAny)
    this.keep(views ?? [])
    return DONE
  }

  private async change(to: (views: readonly SavedView[]) => readonly SavedView[], words: () => string): Promise<string | null> {
    const known = await this.pull()
    if ('refused' in known) return explain(known.refused).text
    const [before, after, said] = [this.all, to(this.all), words()]
    if (after.length > MOST_VIEWS) return `At most ${MOST_VIEWS} views can be saved. Delete one first`
    const answer = await this.write(after)
    if ('refused' in answer) return explain(answer.refused).text
    toasts.show(said, { run: () => this.write(before), done: 'Undone' }, ['views'])
    return null
  }

  private async write(views: readonly SavedView[]): Promise<Answer<object>> {
    const answer = this.account === null ? DONE : await this.hub.write([...views])
    if ('done' in answer) this.keep(views)
    return answer
  }

  private keep(views: readonly SavedView[]): void {
    this.all = views
    try {
      this.storage().setItem(this.key, JSON.stringify(views))
    } catch {
      // As above.
    }
  }

  private tell(refused: string | null): void {
    if (refused !== null) toasts.fail(refused)
  }

  private get key(): string {
    return this.account === null ? KEY : `${KEY}:${this.account}`
  }
}

/** What is not a view is left out, one by one: a version before or after this one may have written it. */
function readViews(text: string | null): SavedView[] {
  const read: unknown = JSON.parse(text ?? '[]')
  const views = Array.isArray(read) ? (read as unknown[]) : []
  return views.filter(isView).slice(0, MOST_VIEWS)
}

function isView(each: unknown): each is SavedView {
  if (typeof each !== 'object' || each === null) return false
  const { name, href } = each as Record<string, unknown>
  return typeof name === 'string' && name !== '' && name.length <= LONGEST_NAME && typeof href === 'string' && /^[?#]/.test(href) && href.length <= LONGEST_HREF
}

/** The one of this page. */
export const savedViews = new SavedViews()
