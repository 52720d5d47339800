import { beforeEach, expect, it, vi } from 'vitest'
import type { Answer, Refusal } from '../api/request'
import type { SavedView } from '../api/types'
import { toasts } from '../ui/toasts.svelte'
import { describeView, fleetHref, LONGEST_NAME, MOST_VIEWS, SavedViews, takeDensity } from './savedViews.svelte'

class FakeStorage {
  readonly kept = new Map<string, string>()
  getItem = (key: string): string | null => this.kept.get(key) ?? null
  setItem = (key: string, value: string): void => void this.kept.set(key, value)
}

const undo = async (): Promise<void> => {
  toasts.undoLast()
  await vi.waitFor(() => expect(toasts.shown.map(({ text }) => text)).toContain('Undone'))
}

/** What one hub has of each account, and whether it answers. */
class FakeHub {
  readonly kept = new Map<string, SavedView[]>()
  refused: Refusal | null = null

  as(account: string): ConstructorParameters<typeof SavedViews>[1] {
    const answer = <T>(done: T): Promise<Answer<T>> => Promise.resolve(this.refused === null ? { done } : { refused: this.refused })
    return {
      read: () => answer({ views: this.kept.get(account) ?? null }),
      write: (views) => {
        if (this.refused === null) this.kept.set(account, views)
        return answer({})
      },
    }
  }
}

beforeEach(() => toasts.shown.forEach(({ id }) => toasts.dismiss(id)))

it('is an address of all that is shown', () => {
  const href = fleetHref({ text: 'free h200', view: 'table', sort: 'name', group: 'model' }, 'compact', 1_794_837_840)
  expect(href).toBe('?q=free+h200&view=table&sort=name&group=model&at=1794837840&density=compact')
  expect(takeDensity(href)).toEqual({ density: 'compact', search: '?q=free+h200&view=table&sort=name&group=model&at=1794837840' })
  expect(describeView(href)).toBe('free h200 · table · by model · sorted by name · in the past')
})

it('takes no density that there is none of', () => {
  expect(takeDensity('?density=loose&q=x')).toEqual({ density: null, search: '?q=x' })
  expect(takeDensity('')).toEqual({ density: null, search: '' })
})

it('names views of other pages by their address', () => {
  expect(describeView('#/history?range=30d&by=group')).toBe('history range=30d by=group')
})

it('keeps views in the browser, in the order in which they were saved', async () => {
  const storage = new FakeStorage()
  const views = new SavedViews(() => storage)
  await views.add('mine', '?q=user%3Aalice')
  await views.add('free', '?q=free')
  expect(new SavedViews(() => storage).all).toEqual([{ name: 'mine', href: '?q=user%3Aalice' }, { name: 'free', href: '?q=free' }])
})

it('replaces one of the same name and brings it back', async () => {
  const views = new SavedViews(() => new FakeStorage())
  await views.add('mine', '?q=a')
  await views.add('mine', '?q=b')
  expect(views.all).toEqual([{ name: 'mine', href: '?q=b' }])
  await undo()
  expect(views.all).toEqual([{ name: 'mine', href: '?q=a' }])
})

it('deletes with a way back', async () => {
  const storage = new FakeStorage()
  const views = new SavedViews(() => storage)
  await views.add('mine', '?q=a')
  await views.toggleDefault(views.all[0]!)
  await views.remove(views.all[0]!)
  expect(new SavedViews(() => storage).all).toEqual([])
  await undo()
  expect(new SavedViews(() => storage).default?.name).toBe('mine')
})

it('has one default at most', async () => {
  const views = new SavedViews(() => new FakeStorage())
  await views.add('a', '?q=a')
  await views.add('b', '?q=b')
  await views.toggleDefault(views.all[0]!)
  await views.toggleDefault(views.all[1]!)
  expect(views.all.filter(({ is_default }) => is_default).map(({ name }) => name)).toEqual(['b'])
  await views.toggleDefault(views.all[1]!)
  expect(views.default).toBeUndefined()
})

it('takes no more than it can list', async () => {
  const views = new SavedViews(() => new FakeStorage())
  for (let at = 0; at < MOST_VIEWS; at += 1) expect(await views.add(`view ${at}`, '?q=a')).toBe(null)
  expect(await views.add('one more', '?q=a')).toContain('Delete one first')
  expect(await views.add('view 3', '?q=b')).toBe(null)
})

it('leaves out what is not a view', () => {
  const storage = new FakeStorage()
  const read = (text: string): number => {
    storage.setItem('gpudeck.views', text)
    return new SavedViews(() => storage).all.length
  }
  expect(read('{')).toBe(0)
  expect(read('{"name":"x"}')).toBe(0)
  expect(read(JSON.stringify([null, 3, { name: 'x' }, { name: 'x', href: 'javascript:alert(1)' }, { name: 'y'.repeat(LONGEST_NAME + 1), href: '?q=' }, { name: 'good', href: '?q=a' }]))).toBe(1)
})

it('lives without storage', async () => {
  const views = new SavedViews(() => {
    throw new Error('SecurityError')
  })
  await views.add('mine', '?q=a')
  expect(views.all).toHaveLength(1)
})

it('has the views of an account in every browser, and none of them without it', async () => {
  const hub = new FakeHub()
  const [office, home] = [new SavedViews(() => new FakeStorage(), hub.as('ada')), new SavedViews(() => new FakeStorage(), hub.as('ada'))]
  await office.use('ada')
  await home.use('ada')
  await office.add('mine', '?q=user%3Aada')
  await home.add('free', '?q=free')
  await office.pull()
  expect([office.all, home.all].map((views) => views.map(({ name }) => name))).toEqual([['mine', 'free'], ['mine', 'free']])
  await office.use(null)
  expect(office.all).toEqual([])
})

it('shows the copy of an account before the hub answers', async () => {
  const [hub, storage] = [new FakeHub(), new FakeStorage()]
  const before = new SavedViews(() => storage, hub.as('ada'))
  await before.use('ada')
  await before.add('mine', '?q=a')
  const views = new SavedViews(() => storage, hub.as('ada'))
  const arrived = views.use('ada')
  expect(views.all.map(({ name }) => name)).toEqual(['mine'])
  await arrived
})

it('gives an account that has none what was saved here before', async () => {
  const [hub, storage] = [new FakeHub(), new FakeStorage()]
  const views = new SavedViews(() => storage, hub.as('ada'))
  await views.add('mine', '?q=a')
  await views.use('ada')
  expect(hub.kept.get('ada')).toEqual([{ name: 'mine', href: '?q=a' }])
  await views.remove(views.all[0]!)
  await views.use('ada')
  expect(views.all).toEqual([])
})

it('says why nothing was saved, and shows nothing that was not', async () => {
  const hub = new FakeHub()
  const views = new SavedViews(() => new FakeStorage(), hub.as('ada'))
  await views.use('ada')
  hub.refused = { status: 503, message: 'the database does not answer' }
  expect(await views.add('mine', '?q=a')).toContain('database')
  expect(views.all).toEqual([])
})

it('keeps the views of a name without an account in the browser', async () => {
  const hub = new FakeHub()
  hub.refused = { status: 403, message: 'this needs an account' }
  const views = new SavedViews(() => new FakeStorage(), hub.as('ada'))
  await views.use('ada')
  expect(await views.add('mine', '?q=a')).toBe(null)
  expect([views.account, views.all.length]).toEqual([null, 1])
})
