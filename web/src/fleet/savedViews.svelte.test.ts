import { beforeEach, expect, it } from 'vitest'
import { toasts } from '../ui/toasts.svelte'
import { describeView, fleetHref, LONGEST_NAME, MOST_VIEWS, SavedViews, takeDensity } from './savedViews.svelte'

class FakeStorage {
  readonly kept = new Map<string, string>()
  getItem = (key: string): string | null => this.kept.get(key) ?? null
  setItem = (key: string, value: string): void => void this.kept.set(key, value)
}

const undo = async (): Promise<void> => {
  toasts.undoLast()
  await Promise.resolve()
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

it('keeps views in the browser, in the order in which they were saved', () => {
  const storage = new FakeStorage()
  const views = new SavedViews(() => storage)
  views.add('mine', '?q=user%3Aalice')
  views.add('free', '?q=free')
  expect(new SavedViews(() => storage).all).toEqual([{ name: 'mine', href: '?q=user%3Aalice' }, { name: 'free', href: '?q=free' }])
})

it('replaces one of the same name and brings it back', async () => {
  const views = new SavedViews(() => new FakeStorage())
  views.add('mine', '?q=a')
  views.add('mine', '?q=b')
  expect(views.all).toEqual([{ name: 'mine', href: '?q=b' }])
  await undo()
  expect(views.all).toEqual([{ name: 'mine', href: '?q=a' }])
})

it('deletes with a way back', async () => {
  const storage = new FakeStorage()
  const views = new SavedViews(() => storage)
  views.add('mine', '?q=a')
  views.toggleDefault(views.all[0]!)
  views.remove(views.all[0]!)
  expect(new SavedViews(() => storage).all).toEqual([])
  await undo()
  expect(new SavedViews(() => storage).default?.name).toBe('mine')
})

it('has one default at most', () => {
  const views = new SavedViews(() => new FakeStorage())
  views.add('a', '?q=a')
  views.add('b', '?q=b')
  views.toggleDefault(views.all[0]!)
  views.toggleDefault(views.all[1]!)
  expect(views.all.filter(({ isDefault }) => isDefault).map(({ name }) => name)).toEqual(['b'])
  views.toggleDefault(views.all[1]!)
  expect(views.default).toBeUndefined()
})

it('takes no more than it can list', () => {
  const views = new SavedViews(() => new FakeStorage())
  for (let at = 0; at < MOST_VIEWS; at += 1) expect(views.add(`view ${at}`, '?q=a')).toBe(true)
  expect(views.add('one more', '?q=a')).toBe(false)
  expect(views.add('view 3', '?q=b')).toBe(true)
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

it('lives without storage', () => {
  const views = new SavedViews(() => {
    throw new Error('SecurityError')
  })
  views.add('mine', '?q=a')
  expect(views.all).toHaveLength(1)
})
