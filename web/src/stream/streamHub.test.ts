import { beforeEach, describe, expect, it } from 'vitest'
import type { RawListener } from './fleetStream'
import { StreamHub, GONE_AFTER_SECONDS, type FromStreamHub } from './streamHub'

class FakePort {
  readonly got: string[] = []

  postMessage(message: FromStreamHub): void {
    this.got.push(message.type === 'event' ? message.event.text : message.type)
  }
}

let now = 0
let opened: RawListener[]
let closed: number
let streamHub: StreamHub
let ada: FakePort
let bob: FakePort

const join = (port: FakePort) => streamHub.receive(port, { type: 'join', url: '/api/v1/stream' })
const leave = (port: FakePort) => streamHub.receive(port, { type: 'leave' })
const send = (text: string) => opened.at(-1)?.event({ kind: 'delta', id: '', text })

beforeEach(() => {
  now = closed = 0
  opened = []
  ada = new FakePort()
  bob = new FakePort()
  streamHub = new StreamHub(
    () => now,
    (_url, listener) => ({ start: () => void opened.push(listener), stop: () => void (closed += 1) }),
  )
})

it('opens one stream for all', () => {
  join(ada)
  join(bob)
  send('1')
  expect(opened).toHaveLength(1)
  expect([ada.got, bob.got]).toEqual([['1'], ['1']])
})

it('tells who comes late that the stream is running, and tells it once', () => {
  join(ada)
  send('1')
  join(bob)
  join(bob)
  send('2')
  expect([ada.got, bob.got]).toEqual([['1', '2'], ['running', '2']])
})

it('keeps the stream while one of them listens, and opens another for who comes after the last', () => {
  join(ada)
  join(bob)
  leave(ada)
  expect(closed).toBe(0)
  leave(bob)
  expect(closed).toBe(1)
  join(ada)
  expect(opened).toHaveLength(2)
})

it('tells nothing to who left', () => {
  join(ada)
  join(bob)
  leave(ada)
  send('1')
  expect(ada.got).toEqual([])
})

it('takes a tab without a sign of life for closed', () => {
  join(ada)
  join(bob)
  now = GONE_AFTER_SECONDS
  join(bob)
  now += 1
  streamHub.sweep()
  send('1')
  expect([ada.got, bob.got]).toEqual([[], ['1']])
  now += GONE_AFTER_SECONDS
  streamHub.sweep()
  expect(closed).toBe(1)
})

it('passes errors on', () => {
  join(ada)
  opened[0]?.error('refused')
  expect(ada.got).toEqual(['error'])
})

describe('hosts in view', () => {
  let urls: string[]
  const want = (port: FakePort, ...hosts: string[]) => streamHub.receive(port, { type: 'want', hosts })

  beforeEach(() => {
    urls = []
    streamHub = new StreamHub(
      () => now,
      (url, listener) => ({
        start: () => {
          urls.push(url)
          opened.push(listener)
        },
        stop: () => void (closed += 1),
      }),
    )
    join(ada)
    join(bob)
  })

  it('are those of all tabs, on one stream, the latest first', () => {
    want(ada, 'a', 'b')
    want(bob, 'b', 'c')
    expect(urls.slice(1)).toEqual(['/api/v1/stream?hosts=a,b', '/api/v1/stream?hosts=b,c,a'])
    expect(closed).toBe(1)
    send('1')
    expect([ada.got, bob.got]).toEqual([['detail'], ['detail']])
  })

  it('are no longer those of a tab that left, crashed or never joined', () => {
    want(new FakePort(), 'z')
    want(ada, 'a')
    leave(ada)
    expect([urls.length, closed]).toEqual([2, 1])
    want(bob, 'b')
    expect(urls.at(-1)).toBe('/api/v1/stream?hosts=b')
    now += GONE_AFTER_SECONDS + 1
    streamHub.sweep()
    expect(closed).toBe(3)
  })
})
