import { expect, it } from 'vitest'
import { parseRoute } from '../ui/route'
import { faviconAddress, pageTitle } from './tabTitle'

it('puts the number of free GPUs into the title', () => {
  expect([pageTitle(41), pageTitle(0), pageTitle(null)]).toEqual(['41 free · gpudeck', '0 free · gpudeck', 'gpudeck'])
})

it('names the page after it', () => {
  expect(pageTitle(41, parseRoute('#/'))).toBe('41 free · gpudeck')
  expect(pageTitle(41, parseRoute('#/people'))).toBe('41 free · People · gpudeck')
  expect(pageTitle(null, parseRoute('#/host/gpu07'))).toBe('gpu07 · gpudeck')
})

const icon = (free: number | null) => decodeURIComponent(faviconAddress(free))

it('puts the number of free GPUs into the icon', () => {
  expect(icon(41)).toContain('>41</text>')
  expect(icon(1200)).toContain('>1k</text>')
  expect(icon(null)).toContain('>?</text>')
})

it('is green only where there is something to take', () => {
  const colour = (free: number | null) => /fill="(#\w+)"/.exec(icon(free))?.[1]
  expect(colour(0)).toBe(colour(null))
  expect(colour(1)).not.toBe(colour(0))
})
