import { expect, it } from 'vitest'
import type { Answer } from '../api/request'
import { AsyncResource } from './asyncResource.svelte'

function later<T>(): { promise: Promise<Answer<T>>; resolve: (answer: Answer<T>) => void } {
  let resolve: (answer: Answer<T>) => void = () => {}
  const promise = new Promise<Answer<T>>((done) => (resolve = done))
  return { promise, resolve }
}

it('keeps the last answer while the next one is under way, and when that one fails', async () => {
  const asked = new AsyncResource<number>()
  await asked.ask(() => Promise.resolve({ done: 1 }))
  const next = later<number>()
  const asking = asked.ask(() => next.promise)
  expect([asked.answer, asked.isLoading]).toEqual([1, true])
  next.resolve({ refused: { status: null, message: '' } })
  await asking
  expect([asked.answer, asked.isLoading, asked.refused?.status]).toEqual([1, false, null])
})

it('calls off what was asked before', async () => {
  const asked = new AsyncResource<number>()
  const [first, second] = [later<number>(), later<number>()]
  let signal: AbortSignal | undefined
  const old = asked.ask((given) => ((signal = given), first.promise))
  const fresh = asked.ask(() => second.promise)
  second.resolve({ done: 2 })
  await fresh
  first.resolve({ done: 1 })
  await old
  expect([signal?.aborted, asked.answer]).toEqual([true, 2])
})

it('forgets a refusal with the next answer, and everything when told so', async () => {
  const asked = new AsyncResource<number>()
  await asked.ask(() => Promise.resolve({ refused: { status: 400, message: 'no' } }))
  expect(asked.refused?.message).toBe('no')
  await asked.ask(() => Promise.resolve({ done: 3 }))
  expect([asked.refused, asked.answer]).toEqual([null, 3])
  asked.forget()
  expect([asked.refused, asked.answer]).toEqual([null, null])
})
