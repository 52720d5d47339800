import { afterEach, expect, it, vi } from 'vitest'
import { addressOf, request, watchUnauthorized } from './request'

afterEach(() => vi.unstubAllGlobals())

function answerWith(status: number, body: unknown, headers: Record<string, string> = {}): ReturnType<typeof vi.fn> {
  const fetched = vi.fn(() => Promise.resolve(new Response(JSON.stringify(body), { status, headers })))
  vi.stubGlobal('fetch', fetched)
  return fetched
}

it('fills in the path, encodes it, and leaves out what is not known', () => {
  expect(addressOf('/api/v1/hosts/{host}', { path: { host: 'a/b c' } })).toBe('api/v1/hosts/a%2Fb%20c')
  expect(addressOf('/api/v1/runs', { query: { gpu: 'GPU-1', limit: 5 } })).toBe('api/v1/runs?gpu=GPU-1&limit=5')
  expect(addressOf('/api/v1/audit', { query: { limit: 5, before: undefined } })).toBe('api/v1/audit?limit=5')
})

it('sends a body as JSON, and gives back what the hub answers', async () => {
  const fetched = answerWith(200, { name: 'ann' })
  expect(await request('post', '/api/v1/login', { body: { name: 'ann', password: 'secret' } })).toEqual({ done: { name: 'ann' } })
  expect(fetched).toHaveBeenCalledWith('api/v1/login', expect.objectContaining({ method: 'POST', body: '{"name":"ann","password":"secret"}' }))
})

it('tells what the hub refuses, and when to ask again', async () => {
  const unauthorized = vi.fn()
  watchUnauthorized(unauthorized)
  answerWith(429, { error: { message: 'too many' } }, { 'Retry-After': '3' })
  expect(await request('get', '/api/v1/me')).toEqual({ refused: { status: 429, message: 'too many', retryAfter: 3, body: { error: { message: 'too many' } } } })
  expect(unauthorized).not.toHaveBeenCalled()
  answerWith(401, { error: { message: 'log in' } })
  await request('get', '/api/v1/me')
  expect(unauthorized).toHaveBeenCalledOnce()
})

it('has no answer where the network fails', async () => {
  vi.stubGlobal('fetch', () => Promise.reject(new TypeError('no network')))
  expect(await request('get', '/api/v1/me')).toEqual({ refused: { status: null, message: '' } })
})
