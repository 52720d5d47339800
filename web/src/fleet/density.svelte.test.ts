import { expect, test } from 'vitest'
import { DensityChoice } from './density.svelte'

function storageWith(kept: string | null): { getItem: () => string | null; setItem: (key: string, value: string) => void; kept: string | null } {
  return {
    kept,
    getItem() {
      return this.kept
    },
    setItem(_key, value) {
      this.kept = value
    },
  }
}

test('a choice is found again', () => {
  const storage = storageWith(null)
  const first = new DensityChoice(() => storage)
  expect(first.value).toBe('comfortable')
  first.choose('compact')
  expect(new DensityChoice(() => storage).value).toBe('compact')
})

test('what makes no sense, and a storage that is forbidden, are the usual density', () => {
  expect(new DensityChoice(() => storageWith('huge')).value).toBe('comfortable')
  const forbidden = new DensityChoice(() => {
    throw new Error('forbidden')
  })
  forbidden.choose('compact')
  expect(forbidden.value).toBe('compact')
})
