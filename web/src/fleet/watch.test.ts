import { expect, test } from 'vitest'
import type { Watch } from '../api/watches'
import { noWatch, readBytes, watchAgain, watchMistakes, watchOf, watchState } from './watch'

test.each([
  ['40G', 40 * 2 ** 30],
  ['37 GiB', 37 * 2 ** 30],
  ['512mib', 512 * 2 ** 20],
  ['1.5T', 1.5 * 2 ** 40],
  ['40', null],
  ['lots', null],
  ['-1G', null],
])('memory is read as the hub reads it: %s', (text, bytes) => {
  expect(readBytes(text)).toBe(bytes)
})

test('only what is said is asked for', () => {
  expect(watchOf(noWatch())).toEqual({ gpus: 1, same_host: false, expire_seconds: 604_800 })
  expect(watchOf({ gpus: '2', memory: '40G', model: ' H200 ', sameHost: true, mig: true, days: 1 })).toEqual({ gpus: 2, same_host: true, mig: true, expire_seconds: 86_400, memory_bytes: 40 * 2 ** 30, model: 'H200' })
})

test.each([
  [{}, []],
  [{ gpus: '0' }, ['gpus']],
  [{ gpus: '2000' }, ['gpus']],
  [{ gpus: '1e2' }, ['gpus']],
  [{ gpus: '', memory: 'much' }, ['gpus', 'memory']],
])('what is wrong is told of its field: %o', (change, fields) => {
  expect(Object.keys(watchMistakes({ ...noWatch(), ...change }))).toEqual(fields)
})

test('a watch says how long it counts, or what was free', () => {
  const watch = { expires_at: 7200, fired_at: null, found: [] } as unknown as Watch
  expect(watchState(watch, 0)).toBe('active for another 2h')
  const found = ['a', 'a', 'b'].map((host) => ({ host })) as Watch['found']
  expect(watchState({ ...watch, fired_at: 60, found }, 120)).toBe('notified 1m ago: a, b')
})

test('a watch that was removed comes back for the rest of its time', () => {
  const wanted = { gpus: 2, model: 'H200', near: 'id-1' } as Watch['wanted']
  const watch = { expires_at: 7200, fired_at: null, wanted } as unknown as Watch
  expect(watchAgain(watch, 3600)).toEqual({ gpus: 2, model: 'H200', expire_seconds: 3600 })
  expect(watchAgain(watch, 7190)).toBeNull()
  expect(watchAgain({ ...watch, fired_at: 60 }, 3600)).toBeNull()
})
