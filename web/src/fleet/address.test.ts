import { expect, it } from 'vitest'
import { readAddress, writeAddress } from './address'

it('comes back from the address as it went in', () => {
  const view = { text: 'free h200 >40G', view: 'table', sort: 'name', group: 'label:rack' } as const
  expect(readAddress(writeAddress('', view))).toEqual(view)
})

it('leaves out what nobody chose', () => {
  expect(writeAddress('', { text: ' ', view: null, sort: 'free', group: 'host' })).toBe('')
  expect(readAddress('')).toEqual({ text: '', view: null, sort: 'free', group: 'host' })
})

it('leaves parameters alone that are not its own', () => {
  expect(writeAddress('?lang=de&q=old', { text: 'new', view: null, sort: 'free', group: 'host' })).toBe('?lang=de&q=new')
})

it('passes over values it does not know', () => {
  expect(readAddress('?view=spiral&sort=luck&group=colour')).toEqual({ text: '', view: null, sort: 'free', group: 'host' })
})
