import { describe, expect, it, test } from 'vitest'
import type { Usage, UsageRow } from '../api/types'
import { allocatedText, amount, coverageText, dayBars, isPriced, isUngrouped, percentage, priceNote, readBy, readUsageOrder, sortUsage, turnUsageOrder, usageText, utilizationText } from './usage'

const row = (changes: Partial<UsageRow> = {}): UsageRow => ({ gpu_hours: 10, measured_hours: 10, active_hours: 5, idle_hours: 1, share: 0.1, peak_memory_bytes: 2 ** 34, energy_kwh: 2, unknown: false, user: 'ann', ...changes })
const usage = (changes: Partial<Usage> = {}): Usage => ({ by: 'user', start: 0, end: 1, coverage: 1, monitored_gpu_hours: 1234.5, currency: '', rows: [], total: row(), known_since: null, allocated_since: null, unpriced_models: [], ...changes })

describe('a row', () => {
  it('is told in words and parts of a bar', () => {
    expect(usageText(row(), 'user', 20, '')).toMatchObject({ name: 'ann', hours: '10.0', hoursPart: 0.5, activePart: 0.25, share: { text: '10.0 %' }, active: { text: '5.0', title: 'utilization 50.0 %' }, idle: '1.0', energy: { text: '2.0' }, cost: '–', peak: '16 GiB' })
  })
  it('has dashes with reasons for what nobody knows, never zeros', () => {
    const text = usageText(row({ active_hours: null, energy_kwh: null, share: null, peak_memory_bytes: null }), 'user', 20, '')
    expect(text).toMatchObject({ active: { text: '–', title: 'utilization not measured' }, energy: { text: '–' }, share: { text: '–' }, peak: '–', activePart: 0 })
    expect(utilizationText(row({ active_hours: null, measured_hours: 0 }))).toBe('–')
    expect(utilizationText(row({ active_hours: 3, measured_hours: 4 }))).toBe('75.0 %')
  })
  it('says who it is of, also where nobody knows', () => {
    expect(usageText(row({ user: null, unknown: true }), 'user', 1, '').title.text).toBe('unknown user')
    expect(usageText(row({ user: null }), 'group', 1, '').title.text).toBe('no group')
    expect(usageText(row({ user: null, unknown: true }), 'user', 1, '').key).not.toBe(usageText(row({ user: 'unknown user' }), 'user', 1, '').key)
  })
  it('tells where nobody is in a group', () => {
    const { user: _, ...nobody } = row()
    expect(isUngrouped(usage({ by: 'group', rows: [nobody] }))).toBe(true)
    expect(isUngrouped(usage({ by: 'group', rows: [nobody, { ...nobody, group: 'vision' }] }))).toBe(false)
    expect(isUngrouped(usage({ rows: [nobody] }))).toBe(false)
  })
  it('has a price where there is one', () => {
    expect(usageText(row({ cost: 1234.5 }), 'user', 1, 'EUR').cost).toBe('1,234.50 EUR')
    expect([isPriced(usage({ rows: [row(), row({ cost: 0 })] })), isPriced(usage({ rows: [row()] }))]).toEqual([true, false])
  })

  it('names the models that a cost leaves out', () => {
    expect(priceNote([], false, true)).toBe('')
    expect(priceNote(['NVIDIA H200', 'NVIDIA L40S'], true, false)).toBe('Costs do not include models without a price: H200, L40S.')
    expect([priceNote(['NVIDIA H200'], false, true).includes('usage.prices'), priceNote(['NVIDIA H200'], false, false)]).toEqual([true, ''])
  })
  it('keeps a hostile name in its line', () => expect(usageText(row({ user: 'a\u202eb\n' }), 'user', 1, '').title.text).toBe('a\ufffdb\ufffd'))
})

describe('figures', () => {
  test.each([[0, '0.0'], [0.01, '< 0.1'], [12.34, '12.3'], [1234.5, '1,235']])('%d is %s', (value, text) => expect(amount(value)).toBe(text))
  test.each([[0, '0 %'], [0.0004, '< 0.1 %'], [0.987, '98.7 %'], [0.9999, '99.9 %'], [1, '100 %']])('%d is %s', (part, text) => expect(percentage(part)).toBe(text))
})

describe('coverage', () => {
  test.each([
    [0.987, 'Coverage 98.7 %: 1,235 GPU-hours monitored. Unmonitored time is excluded.'],
    [1, 'Coverage 100 %: 1,235 GPU-hours monitored.'],
    [null, 'No GPU was monitored in this period.'],
  ])('%s', (coverage, text) => expect(coverageText(usage({ coverage }))).toBe(text))

  it('says what is not known of allocated time', () => {
    expect(allocatedText(usage())).toBe('')
    const told = allocatedText(usage({ allocated_since: 1_800_000_000, total: row({ unmonitored_hours: 6, shared_hours: 0 }) }))
    expect(told).toBe('Jobs are recorded since Jan 15. Of the time before, only imported jobs are counted. 6.0 of the allocated hours were not monitored: their use is unknown.')
  })

  it('says of a time before all records when they begin', () => {
    expect(coverageText(usage({ coverage: null, known_since: 1_800_000_000 }))).toBe('No GPU was monitored in this period; records begin Jan 15.')
  })

  it('does not claim the time before anything was recorded', () => {
    const [start, end] = [1_800_000_000, 1_800_000_000 + 30 * 86_400]
    expect(coverageText(usage({ coverage: 0.987, start, end }), start + 20 * 86_400)).toMatch(/^Coverage 98.7 % since records begin on Feb \d+: /)
    expect(coverageText(usage({ coverage: 0.987, start, end }), start + 3600)).toMatch(/^Coverage 98.7 %: /)
  })
})

describe('the order of rows', () => {
  const rows = [row({ user: 'ann', gpu_hours: 1, energy_kwh: null }), row({ user: null, unknown: true, gpu_hours: 9 }), row({ user: 'ben', gpu_hours: 5 })]
  const order = (text: string) => sortUsage(rows, 'user', readUsageOrder(text)).map((each) => each.user)
  it('is by hours first', () => expect(order('')).toEqual([null, 'ben', 'ann']))
  it('turns', () => expect(order('-hours')).toEqual(['ann', 'ben', null]))
  it('is by name, whom nobody could name last', () => expect(order('-name')).toEqual(['ben', 'ann', null]))
  it('has what is not known last', () => expect([order('energy').at(-1), order('-energy').at(-1)]).toEqual(['ann', 'ann']))
  it('is in the address', () => expect([turnUsageOrder(readUsageOrder(null), 'hours'), turnUsageOrder(readUsageOrder('idle'), 'idle'), turnUsageOrder(readUsageOrder('idle'), 'hours')]).toEqual(['-hours', '-idle', '']))
})

describe('days', () => {
  it('have a bar each, also those with nothing', () => {
    const bars = dayBars([{ day: '2026-03-28', time: 0, gpu_hours: 8, active_hours: 4 }, { day: '2026-03-30', time: 0, gpu_hours: 4, active_hours: null }], ['2026-03-28', '2026-03-29', '2026-03-30'])
    expect(bars.map(({ label, hoursPart, activePart }) => [label, hoursPart, activePart])).toEqual([['Mar 28', 1, 0.5], ['Mar 29', 0, 0], ['Mar 30', 0.5, 0]])
    expect(bars.map(({ title }) => title)).toEqual(['Mar 28: 8.0 GPU-hours, 4.0 active', 'Mar 29: no usage', 'Mar 30: 4.0 GPU-hours, active hours unknown'])
  })
  it('are none without a period', () => expect(dayBars([], [])).toEqual([]))
})

test.each([['host', 'host'], ['nonsense', 'user'], [null, 'user']])('by=%s is by %s', (text, by) => expect(readBy(text)).toBe(by))
