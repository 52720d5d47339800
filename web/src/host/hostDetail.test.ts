import { expect, it } from 'vitest'
import { entry, NOW } from '../testing/samples'
import { hostDetail } from './hostDetail'

const about = (changes: Parameters<typeof entry>[2], states: Parameters<typeof entry>[1] = ['free']) => hostDetail(entry('gpu07', states, changes), NOW)
const fact = (label: string, changes: Parameters<typeof entry>[2]) => about(changes).facts.find((each) => each.label === label)?.text

it('says from which source a host is read', () => {
  expect(about({ via: 'ssh' }).source).toMatch(/^SSH: /)
  expect(about({ via: 'carrier pigeon' }).source).toBe('carrier pigeon')
})

it('gives the name it reports under where another one is shown', () => {
  expect(about({ display_name: 'Big one' })).toMatchObject({ title: 'Big one', name: 'gpu07' })
  expect(about({}).name).toBeUndefined()
})

it('tells every problem whole', () => {
  const problems = ['one', 'two', 'its clock is 400s behind the hub\u2019s: check its time service']
  expect(about({ problems }).problems).toEqual(problems)
})

it('tells what is known and leaves out the rest', () => {
  expect(fact('RAM', {})).toBe('2015 GiB')
  expect(fact('Driver', { driver_version: null })).toBeUndefined()
  expect(fact('Labels', { labels: { rack: 'b3', room: '2' } })).toBe('rack=b3, room=2')
  expect([fact('Clock', { clock_skew_seconds: 0.2 }), fact('Clock', { clock_skew_seconds: -90 })]).toEqual([undefined, '1m behind the hub'])
})

it('says of a host that was never seen only that', () => {
  const never = about({ status: 'never_seen', last_report_at: null, os: null }, [])
  expect(never).toMatchObject({ status: 'never seen', inventory: '' })
})

it('says what follows a removal', () => {
  expect(about({ via: 'push' }).removal).toMatch(/If its agent still runs/)
  expect(about({ via: 'ssh' }).removal).toBe('The hub stops monitoring it.')
})
