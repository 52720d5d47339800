import { expect, it, vi } from 'vitest'
import { fleet } from '../testing/samples'
import { BootstrapData } from './bootstrap'

const page = (textContent: string) => {
  const place = { content: { textContent }, remove: vi.fn() }
  return { place, getElementById: () => place }
}

it('is read from the page once, and taken out of it', () => {
  const paper = page(JSON.stringify({ me: { name: 'ada' }, fleet: fleet([]) }))
  const look = new BootstrapData(paper)
  expect(look.me).toEqual({ name: 'ada' })
  expect(look.takeFleet()).toEqual(fleet([]))
  expect(look.takeFleet()).toBeNull()
  expect(paper.place.remove).toHaveBeenCalledOnce()
})

it('may hold no fleet', () => {
  expect(new BootstrapData(page('{"me":{"name":""},"fleet":null}')).takeFleet()).toBeNull()
})

it('may be missing or broken', () => {
  expect(new BootstrapData({ getElementById: () => null }).me).toBeNull()
  expect(new BootstrapData(page('{"me":')).me).toBeNull()
})
