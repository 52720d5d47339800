/** Views that were given a name: addresses, kept in this browser. One of them may be the default. */
import type { Answer } from '../api/request'
import { toasts } from '../ui/toasts.svelte'
import { readAddress, writeAddress, type Address } from './address'
import type { Density } from './layout'
import { writeAt } from './timeMachine.svelte'

const KEY = 'gpudeck.views'
export const MOST_VIEWS = 50
export const LONGEST_NAME = 60
const LONGEST_HREF = 2000

export interface SavedView {
  name: string
  /** Of the fleet page its query part, `?q=free&view=table`; of another page its part from the `#` on. */
  href: string
  /** Shown where the page is opened without naming anything. At most one is. */
  isDefault?: boolean
}

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

export class SavedViews {
  all: readonly SavedView[] = $state.raw([])

  constructor(private readonly storage: () => Store = () => localStorage) {
    this.reread()
  }

  /** Another tab may have changed them. */
  reread(): void {
    try {
      this.all = readViews(this.storage().getItem(KEY))
    } catch {
      // Storage may be forbidden: views then last as long as the page.
    }
  }

  get default(): SavedView | undefined {
    return this.all.find(({ isDefault }) => isDefault)
  }

  /** False where there is no room for another one. One of the same name is replaced. */
  add(name: string, href: string): boolean {
    const before = this.all
    const old = before.find((each) => each.name === name)
    if (old === undefined && before.length >= MOST_VIEWS) return false
    const view = { ...old, name, href }
    this.keep(old === undefined ? [...before, view] : before.map((each) => (each === old ? view : each)), old === undefined ? `Saved the view “${name}”` : `Replaced the view “${name}”`)
    return true
  }

  remove(view: SavedView): void {
    this.keep(this.all.filter(({ name }) => name !== view.name), `Deleted the view “${view.name}”`)
  }

  /** Makes it the default, or the default no longer. */
  toggleDefault(view: SavedView): void {
    const isDefault = !view.isDefault
    this.keep(this.all.map((each) => ({ name: each.name, href: each.href, ...(isDefault && each.name === view.name ? { isDefault } : {}) })), isDefault ? `“${view.name}” is shown when you open gpudeck` : `“${view.name}” is no longer the default`)
  }

  private keep(views: readonly SavedView[], said: string): void {
    const before = this.all
    this.write(views)
    const run = (): Promise<Answer<object>> => {
      this.write(before)
      return Promise.resolve({ done: {} })
    }
    toasts.show(said, { run, done: 'Undone' }, ['views'])
  }

  private write(views: readonly SavedView[]): void {
    this.all = views
    try {
      this.storage().setItem(KEY, JSON.stringify(views))
    } catch {
      // As above.
    }
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
