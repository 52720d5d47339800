import { afterEach, beforeEach, describe, expect, it, test, vi } from 'vitest'
import { againBody, reservationBody, changeBody, draftOf, lengthShown, mistakesOf, newDraft, emptyRequest, presetsOf, previewQuestion, slotBody, slotChange, undoBody, untilShown, withPreset, withPreview, type Draft } from './draft'
import { gpusOf, reservation } from './samples'

const at = (text: string): number => Date.parse(text) / 1000
const HOUR = 3600
const NOW = at('2026-11-15T12:00:20+01:00')

beforeEach(() => void vi.stubEnv('TZ', 'Europe/Berlin'))
afterEach(() => vi.unstubAllEnvs())

describe('a new reservation', () => {
  it('begins now and lasts some hours where nobody said otherwise', () => {
    expect(reservationBody(newDraft(['a'], null, null, NOW), 'ada')).toEqual({ gpus: ['a'], for: 4 * HOUR, note: '' })
  })
  it('begins now where the drag began in the past', () => {
    const draft = newDraft(['a'], NOW - HOUR, NOW + 2 * HOUR, NOW)
    expect(reservationBody(draft, 'ada')).toEqual({ gpus: ['a'], end: NOW + 2 * HOUR - 20, note: '' })
    expect(lengthShown(draft, NOW)).toBe('1h 59m')
  })
  it('has the length that was typed, or the end', () => {
    const draft: Draft = { ...newDraft(['a'], NOW + HOUR, null, NOW), length: '1d 6h', note: 'paper' }
    expect(untilShown(draft, NOW)).toBe('2026-11-16T19:00')
    expect(reservationBody(draft, 'ada')).toEqual({ gpus: ['a'], start: NOW + HOUR - 20, for: 30 * HOUR, note: 'paper' })
  })
  it('is of any that fit', () => {
    const draft: Draft = { ...newDraft([], null, null, NOW), mode: 'any', request: { count: '2', memory: ' 40GiB ', model: '', sameHost: true, mig: true } }
    expect(reservationBody(draft, 'ada')).toEqual({ any: { gpus: 2, memory: '40GiB', same_host: true, mig: true }, for: 4 * HOUR, note: '' })
  })
  it('names its owner only where that is somebody else', () => {
    expect(reservationBody({ ...newDraft(['a'], null, null, NOW), user: 'ada' }, 'ada')).not.toHaveProperty('user')
    expect(reservationBody({ ...newDraft(['a'], null, null, NOW), user: ' bob ' }, 'ada')).toMatchObject({ user: 'bob' })
  })
})

describe('what is wrong is said where it stands', () => {
  const wrong = (changes: Partial<Draft>): string[] => Object.keys(mistakesOf({ ...newDraft(['a'], null, null, NOW), ...changes }, NOW))
  test.each<[string, Partial<Draft>, string[]]>([
    ['nothing', {}, []],
    ['no GPU', { gpus: [] }, ['gpus']],
    ['a length of nothing', { length: '0h' }, ['length']],
    ['no number', { mode: 'any', request: { ...emptyRequest(), count: 'two' } }, ['count']],
    ['no memory', { mode: 'any', request: { ...emptyRequest(), memory: 'much' } }, ['memory']],
    ['no unit', { mode: 'any', request: { ...emptyRequest(), memory: '40' } }, ['memory']],
    ['a time that the clock skips', { isNow: false, from: '2027-03-28T02:30' }, ['from']],
    ['an end before the start', { isNow: false, from: '2026-11-16T10:00', by: 'until', until: '2026-11-16T09:00' }, ['until']],
    ['an end that is past', { by: 'until', until: '2026-11-15T11:00' }, ['until']],
    ['no end', { by: 'until', until: '' }, ['until']],
  ])('%s', (_, changes, fields) => expect(wrong(changes)).toEqual(fields))

  test('no name where there is no account to reserve by', () => {
    const named = (user: string): string[] => Object.keys(mistakesOf({ ...newDraft(['a'], null, null, NOW), user }, NOW, true))
    expect([named(' '), named('ada')]).toEqual([['user'], []])
  })
})

describe('a change', () => {
  const before = reservation({ gpus: gpusOf('gpu01', 0, 1), start: NOW + HOUR, end: NOW + 5 * HOUR, note: 'paper', version: 3 })
  const change = (changes: Partial<Draft>) => changeBody({ ...draftOf(before), ...changes }, before)

  it('is nothing where nothing was touched, though fields show no seconds', () => expect(change({})).toBeNull())
  it('sends what was touched, and which version was seen', () => {
    expect(change({ note: 'thesis' })).toEqual({ note: 'thesis', version: 3 })
    expect(change({ gpus: ['gpu01-1', 'gpu01-0'] })).toBeNull()
    expect(change({ gpus: ['gpu01-1'] })).toEqual({ gpus: ['gpu01-1'], version: 3 })
    expect(change({ by: 'length', length: '6h' })).toEqual({ for: 6 * HOUR, version: 3 })
  })
  it('of the start alone keeps the end that is shown', () => {
    expect(change({ from: '2026-11-15T14:00' })).toEqual({ start: at('2026-11-15T14:00+01:00'), end: before.end, version: 3 })
  })
  it('of the start with the same length moves it', () => {
    expect(change({ from: '2026-11-15T14:00', by: 'length' })).toEqual({ start: at('2026-11-15T14:00+01:00'), version: 3 })
  })
})

test('a free slot is taken to the second, on the GPUs that are free, and as long as it was', () => {
  const slot = { start: NOW + 0.5, end: NOW + HOUR, gpus: gpusOf('gpu02', 3) }
  const draft = { ...newDraft(['a'], null, null, NOW), note: 'n' }
  expect(slotBody(draft, slot, 'ada', NOW)).toEqual({ gpus: ['gpu02-3'], start: slot.start, for: HOUR - 0.5, note: 'n' })
  expect(slotBody(draft, slot, 'ada', NOW + 20)).toEqual({ gpus: ['gpu02-3'], for: HOUR - 0.5, note: 'n' })
  expect(slotChange({ for: 60, note: 'n', version: 2 }, reservation({ gpus: gpusOf('gpu02', 3) }), slot, NOW)).toEqual({ start: slot.start, for: HOUR - 0.5, note: 'n', version: 2 })
  expect(slotChange({ gpus: ['x'], end: NOW, version: 2 }, reservation(), slot, NOW + 20)).toEqual({ start: NOW + 20, for: HOUR - 0.5, gpus: ['gpu02-3'], version: 2 })
})

describe('a reservation is undone', () => {
  const before = reservation({ id: 7, gpus: gpusOf('gpu01', 0, 1), version: 3 })
  it('by its old values, of the version that was made', () => {
    expect(undoBody(before, { ...before, version: 4, start: before.start + 60, end: before.end + 60 })).toEqual({ version: 4, start: before.start, end: before.end })
    expect(undoBody(before, { ...before, version: 4, end: before.end + HOUR, gpus: gpusOf('gpu01', 2) })).toEqual({ version: 4, end: before.end, gpus: ['gpu01-0', 'gpu01-1'] })
    expect(undoBody(before, { ...before, version: 4, note: 'n', user: 'bob' })).toEqual({ version: 4, note: '', user: 'ada' })
  })
  it('after its release by reserving it again, from now where it had begun', () => {
    expect(againBody(before, 'ada', NOW)).toEqual({ gpus: ['gpu01-0', 'gpu01-1'], start: before.start, end: before.end, note: '' })
    expect(againBody(before, 'root', before.start + 60)).toEqual({ gpus: ['gpu01-0', 'gpu01-1'], end: before.end, note: '', user: 'ada' })
  })
})

describe('a preview', () => {
  const draft = { ...newDraft([], null, null, NOW), request: { ...emptyRequest(), count: '4', sameHost: true } }
  it('is asked for what is filled in, whatever the note', () => {
    expect(previewQuestion(draft, 'ada', NOW)).toBe(previewQuestion({ ...draft, note: 'paper' }, 'ada', NOW + 5))
    expect(JSON.parse(previewQuestion(draft, 'ada', NOW) ?? '')).toEqual({ any: { gpus: 4, same_host: true }, for: 4 * HOUR, note: '' })
    expect(previewQuestion({ ...draft, length: 'soon' }, 'ada', NOW)).toBeNull()
  })
  it('is what is reserved', () => {
    expect(withPreview({ any: { gpus: 4 } as never, for: HOUR, note: 'n' }, [{ uuid: 'a' }, { uuid: 'b' }])).toEqual({ gpus: ['a', 'b'], for: HOUR, note: 'n' })
  })
})

test('usual times are whole days and nights of the viewer', () => {
  const [tonight, tomorrow, work] = presetsOf(NOW)
  const spans = [tonight, tomorrow, work].map((preset) => withPreset(newDraft([], null, null, NOW), preset!, NOW)).map(({ from, until, isNow }) => [from.slice(11), until.slice(11), isNow])
  expect(spans.slice(1)).toEqual([['00:00', '00:00', false], ['09:00', '18:00', false]])
  expect(spans[0]?.[1]).toBe('08:00')
  expect(tomorrow!.end - tomorrow!.start).toBe(24 * HOUR)
})
