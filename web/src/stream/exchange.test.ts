import { beforeEach, expect, it } from 'vitest'
import type { RawListener } from './client'
import { Exchange, GONE_AFTER_SECONDS, type FromExchange } from './exchange'

class FakePort {
  readonly got: string[] = []

  postMessage(message: FromExchange): void {
    this.got.push(message.say === 'event' ? message.event.text : message.say)
  }
}

let now = 0
let opened: RawListener[]
let closed: number
let exchange: Exchange
let ada: FakePort
let bob: FakePort

const join = (port: FakePort) => exchange.hear(port, { say: 'join', url: '/api/v1/stream' })
const leave = (port: FakePort) => exchange.hear(port, { say: 'leave' })
const send = (text: string) => opened.at(-1)?.event({ kind: 'delta', id: '', text })

beforeEach(() => {
  now = closed = 0
  opened = []
  ada = new FakePort()
  bob = new FakePort()
  exchange = new Exchange(
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
  exchange.sweep()
  send('1')
  expect([ada.got, bob.got]).toEqual([[], ['1']])
  now += GONE_AFTER_SECONDS
  exchange.sweep()
  expect(closed).toBe(1)
})

it('passes troubles on', () => {
  join(ada)
  opened[0]?.trouble('refused')
  expect(ada.got).toEqual(['trouble'])
})
