import { expect, it } from 'vitest'
import { faviconAddress, pageTitle } from './signs'

it('puts the number of free GPUs into the title', () => {
  expect([pageTitle(41), pageTitle(0), pageTitle(null)]).toEqual(['41 free · gpudeck', '0 free · gpudeck', 'gpudeck'])
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
