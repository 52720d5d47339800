import { expect, it } from 'vitest'
import { rememberLayout, withLastLayout } from './lastLayout'

class FakeStorage {
  private readonly kept = new Map<string, string>()
  getItem = (key: string): string | null => this.kept.get(key) ?? null
  setItem = (key: string, value: string): void => void this.kept.set(key, value)
}

const forbidden = (): never => {
  throw new Error('SecurityError')
}

it('brings back the view and the groups, and nothing else', () => {
  const storage = new FakeStorage()
  rememberLayout({ text: 'free', view: 'table', group: 'model', sort: 'name' }, () => storage)
  expect(withLastLayout('?q=h200', () => storage)).toBe('?q=h200&view=table&group=model')
})

it('leaves what an address says', () => {
  const storage = new FakeStorage()
  rememberLayout({ text: '', view: 'table', group: 'model', sort: 'free' }, () => storage)
  expect(withLastLayout('?view=cards&group=user', () => storage)).toBe('?view=cards&group=user')
})

it('lives without storage', () => {
  rememberLayout({ text: '', view: 'table', group: 'model', sort: 'free' }, forbidden)
  expect(withLastLayout('?q=x', forbidden)).toBe('?q=x')
})
