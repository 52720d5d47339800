import { expect, it } from 'vitest'
import { DetailStream } from './detailStream'

function follow(...wanted: string[][]): { opened: string[]; closed: number } {
  const seen = { opened: [] as string[], closed: 0 }
  const stream = new DetailStream(
    () => {},
    (url) => ({ start: () => void seen.opened.push(url), stop: () => void (seen.closed += 1) }),
  )
  wanted.forEach((hosts) => stream.follow('https://hub/api/v1/stream?shape=overview', hosts))
  return seen
}

it('asks for the hosts by their ids, each once', () => {
  expect(follow(['a', 'b,c', 'a']).opened).toEqual(['https://hub/api/v1/stream?hosts=a,b%2Cc'])
})

it('replaces the stream when others are wanted, and has none when none are', () => {
  expect(follow(['a'], ['b'], [])).toEqual({ opened: ['https://hub/api/v1/stream?hosts=a', 'https://hub/api/v1/stream?hosts=b'], closed: 2 })
})

it('asks for no more than the hub and proxies take', () => {
  const many = (letters: number) => Array.from({ length: 300 }, (_, at) => String(at).padStart(letters, '0'))
  const hosts = (letters: number) => follow(many(letters)).opened[0]?.split('=')[1]?.split(',')
  expect(hosts(32)).toEqual(many(32).slice(0, 200))
  expect(follow(many(200)).opened[0]?.length).toBeLessThanOrEqual(7000)
  expect(hosts(200)?.length).toBeGreaterThan(20)
})
