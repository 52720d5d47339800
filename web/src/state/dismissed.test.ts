import { expect, it } from 'vitest'
import { keepDismissed, notDismissed, readDismissed, stillDismissed } from './dismissed'

const PROBLEMS = ['hosts.txt cannot be read', 'gpu07 is named twice']

function store(text: string | null = null) {
  let kept = text
  return { getItem: () => kept, setItem: (_: string, value: string) => void (kept = value) }
}

it('hides a sentence and nothing else', () => {
  expect(notDismissed(PROBLEMS, ['gpu07 is named twice'])).toEqual(['hosts.txt cannot be read'])
  expect(notDismissed(['gpu08 is named twice'], ['gpu07 is named twice'])).toEqual(['gpu08 is named twice'])
})

it('forgets a sentence that is no problem any more, so that it is shown when it comes back', () => {
  expect(stillDismissed(['gone', 'gpu07 is named twice'], PROBLEMS)).toEqual(['gpu07 is named twice'])
})

it('remembers for as long as the tab is open', () => {
  const tab = store()
  keepDismissed(tab, ['a'])
  expect(readDismissed(tab)).toEqual(['a'])
})

it.each([null, '{', '{}', '[1]', 'null'])('takes %s in the store for nothing', (text) => {
  expect(readDismissed(store(text))).toEqual([])
})

it('does without a store', () => {
  keepDismissed(null, ['a'])
  expect(readDismissed(null)).toEqual([])
})
